/*
 * forward.h - a forward and a loss, laid out by the model's thread and run by the workers.
 *
 * The state of a criterion is a struct ek__loss. The model lists it; it points neither to the model
 * nor to the handle. data_parallel_criterion.c opens it and does the work of the model's thread,
 * rank_loss.c that of a worker; criterion_backward.c also weighs several terms.
 *
 * Jobs of the trainer run cut, forward, loss and backward of a rank one after the other; the public
 * calls of model and criterion run the same functions in a job each.
 */
#ifndef EK_FORWARD_H
#define EK_FORWARD_H

#include <evenkeel/data_parallel_criterion.h>

#include "reduction.h"

/* ---- losses ---- */

/* What a rank has of a loss: one of ek__rank.losses. */
struct ek__loss_rank {
  struct ek__loss_rank *next;
  const struct ek__loss *loss;
  ek_replica *replica;      /* of the criterion; NULL if the model computes its loss itself */
  struct ek__totals totals; /* of all ranks after forward */
  ek_tensor scales;         /* f64 [terms, 2], {scale, 0}: the gradient of totals */
  ek_tensor losses;         /* reduction `none`: every single one of the last forward */
  ek_pass **passes;         /* of a forward whose backward may still come: one for each piece */
  size_t pass_count;
  struct ek__pieces pieces; /* of the last forward */
  /* Several terms with reduction `mean`, else empty: the step so far, with this micro-batch. */
  ek_tensor step_totals;   /* f64 [terms, 2]: {S, D} of every term */
  ek_tensor step_scales;   /* scratch, f64 [terms, 2] */
  ek_tensor step_combined; /* f64 {s, D} */
};

/* A forward or backward of a loss on a rank's worker. */
struct ek__loss_work {
  const ek_data_parallel_model *model;
  struct ek__loss *loss;
  const struct ek__rank *rank;
  struct ek__loss_rank *own;
  const ek_shards *targets; /* of forward */
  const ek_tensor *factors; /* of backward; may not exist */
};

/* Whose module computes the loss: one of its own, or the model itself. The gradients are those of
 * the rank's outputs. */
struct ek__loss_form {
  ek_status (*open)(const struct ek__loss_work *work); /* NULL: nothing to open */
  ek_status (*forward)(const struct ek__loss_work *work);
  ek_status (*backward)(ek_tensor *gradients, const struct ek__loss_work *work);
  bool promises; /* the scale of its gradient, to the model's own forward: the second */
};
extern const struct ek__loss_form ek__loss_of_criterion, ek__loss_of_model;

struct ek__loss {
  struct ek__loss *next; /* of those that are open for the model */
  const struct ek__loss_form *form;
  ek_criterion *criterion;
  /* Of the criterion, when it was opened: what arrays are laid out by. */
  size_t outputs, targets, terms;
  ek_reduction reduction;
  double coefficients[EK_MAX_TERMS];
  ek_data_parallel_criterion_options options; /* the scalings are a copy */
  ek_tensor *combined; /* the public totals: f64 {s, D} of the last forward, one per rank */

  /* From forward to backward. */
  bool has_forward, has_loss;
  bool gradient;      /* the model's backward may follow that forward */
  bool with_gradient; /* and it was allowed to write over the outputs */
  uint64_t forward;   /* the number that its outputs carry: of the model's forward; 0: none */
  struct ek__scaling scaling; /* that its gradient is multiplied with */
  ek_shards *seen;            /* the outputs, the caller's */

  /* Several terms over several micro-batches: criterion_backward.c. */
  uint32_t micro_batches;       /* of the step, whose totals these are */
  double weights[EK_MAX_TERMS]; /* of the step, as they were given or seen first */
  bool weights_given;
  bool verify;                       /* the running step has weights that were given */
  double given_scales[EK_MAX_TERMS]; /* that the given weights make */
};

struct ek_data_parallel_criterion {
  ek_data_parallel_model *model;
  struct ek__loss loss;
};

/* NULL: it is not open there. */
static inline struct ek__loss_rank *ek__loss_of(const struct ek__rank *rank,
                                                const struct ek__loss *loss) {
  struct ek__loss_rank *own = rank->losses;
  while (own != NULL && own->loss != loss) own = own->next;
  return own;
}

/* Whether the weights of its terms are kept apart over the micro-batches of a step. */
static inline bool ek__loss_keeps_terms(const struct ek__loss *loss) {
  return loss->terms > 1 && loss->reduction == EK_REDUCTION_MEAN;
}

/* Whether a rank has rows of the outputs. */
static inline bool ek__loss_has_rows(const ek_shards *outputs, size_t place) {
  return ek__part_rows(&outputs[0].parts[place]) > 0;
}

/* EK_ERR_SHAPE unless all outputs have rows there, or none. */
ek_status ek__loss_check_rows(const ek_shards *outputs, size_t count, size_t place);

/* ---- data_parallel_criterion.c, in the model's thread ---- */

/* A forward of a loss, laid out: forward.h. */
struct ek__loss_forward {
  ek_data_parallel_model *model;
  struct ek__loss *loss;
  struct ek__given targets;
  struct ek__conversion intakes[EK_MAX_TENSORS];
  int64_t most; /* elements of the largest of them, in all processes */
  bool late;    /* ranks keep their own totals, which are added up with the update: agreement.c */
};
/* Cuts targets at the samples of `like`; nothing is lost if it fails. */
ek_status ek__loss_lay(struct ek__loss_forward *job, ek_data_parallel_model *model,
                       struct ek__loss *loss, const ek_shards *like, const ek_tensor *sources,
                       const ek_shards *cut, size_t count);
/* From here on a failure drops the step. `gradient`: the model's backward may follow. */
void ek__loss_begin(struct ek__loss_forward *job, ek_shards *outputs, bool gradient);

/* The criterion takes as many outputs and targets, and is what it was when it was opened. */
ek_status ek__loss_check_call(const ek_data_parallel_model *model, const struct ek__loss *loss,
                              size_t output_count, size_t target_count);
/* EK_ERR_STATE if the criterion is not any more what it was when it was opened. */
ek_status ek__loss_unchanged(const ek_data_parallel_model *model, const struct ek__loss *loss);
/* Forgets the last forward, except its loss. */
void ek__loss_drop_forward(const ek_data_parallel_model *model, struct ek__loss *loss);

/*
 * Adds {s, d} of every term of the last forward, over all devices, to totals[2 * terms]; and the
 * loss and weight of such sums, as ek_data_parallel_criterion_loss() has them of one forward.
 */
ek_status ek__criterion_add_totals(double *totals, const ek_data_parallel_criterion *self);
double ek__criterion_loss_of(double *weight, const ek_data_parallel_criterion *self,
                             const double *totals);

/* ---- rank_loss.c, on a rank's worker ---- */

ek__rank_job ek__rank_loss_forward; /* of struct ek__loss_forward */
/* The gradients of the rank's outputs, to be freed. Terms that are kept over the step are added
 * up. */
ek_status ek__rank_loss_backward(ek_tensor *gradients, const struct ek__backward *job,
                                 const struct ek__rank *rank);
/* What the model adds up for the step, or takes for it. */
static inline const ek_tensor *ek__loss_totals(const struct ek__loss *loss,
                                               const struct ek__rank *rank) {
  return ek__loss_keeps_terms(loss) ? &ek__loss_of(rank, loss)->step_combined
                                    : &loss->combined[rank->place];
}

/* ---- forward ---- */

struct ek__forward {
  ek_data_parallel_model *model;
  const ek_forward_options *options; /* the caller's */
  struct ek__last_forward next; /* what the model's last forward is from ek__forward_begin() on */
  int64_t targets;              /* the most that an input has of them, in all processes */
  bool predict;        /* what the module predicts, with its targets left out */
  struct ek__given inputs;
  struct ek__conversion intakes[EK_MAX_INPUTS];
  size_t output_count;
  size_t lead;        /* the first input that is cut: its samples are those of the forward */
  ek_shards *outputs; /* made: the parts of a rank are there after its forward */
  bool replicate;     /* before, replicas get all that rank 0 has, */
  bool renew;         /* or its buffers */
};

ek__rank_job ek__rank_forward; /* of struct ek__forward */
/* Several pieces of a rank may write buffers: afterwards all ranks have those of the first. */
bool ek__forward_keeps_buffers(const struct ek__forward *job);

/* model_forward.c, in the model's thread. Checks the arguments of a forward and cuts its inputs:
 * whole ones (`sources`) or shards; nothing is lost if it fails. */
ek_status ek__forward_lay(struct ek__forward *job, ek_data_parallel_model *model,
                          const ek_tensor *sources, const ek_shards *cut, size_t count,
                          const ek_forward_options *options);
/* From here on a failure drops the step. */
ek_status ek__forward_begin(struct ek__forward *job, ek_shards *outputs);
/* After all ranks have run: checks their outputs. */
void ek__forward_ran(const struct ek__forward *job);
ek_status ek__forward_check(const struct ek__forward *job);

/* ---- backward ---- */

/* On a rank's worker: from the gradients of its outputs; totals: f64 {s, D}, may be NULL. */
ek_status ek__rank_backward(const struct ek__backward *job, struct ek__rank *rank,
                            const ek_tensor *gradients, const ek_tensor *totals);
/* The same of the gradients that a loss has there. */
ek__rank_job ek__rank_backward_of_loss; /* of struct ek__backward */

/* model_backward.c: a micro-batch goes with the earlier ones of its step; and all ranks have run
 * its backward. */
ek_status ek__backward_check(const struct ek__backward *job);
void ek__backward_ran(const struct ek__backward *job);
/* Runs the model back from the gradients that are given, those of a gathered output on its device
 * alone: these are cut where the forward's rows came from. */
ek_status ek__backward_run(struct ek__backward job);

/* criterion_backward.c: lays out and begins that of a forward that is about to run. */
ek_status ek__backward_begin(struct ek__backward *job, ek_data_parallel_model *model,
                             struct ek__loss *loss, bool accumulate);
/* Before the update: the weights of terms that were given are what the step's targets weighed. */
ek_status ek__terms_verify(const ek_data_parallel_model *model);

/* ---- micro_batches.c: one micro-batch, for a trainer ---- */

/* A batch: loans. Bit i of `broadcast`: input i is not cut. */
struct ek__batch {
  const ek_tensor *inputs, *targets;
  size_t input_count, target_count;
  uint64_t broadcast;
};

/* What comes after a batch in its step. */
enum ek__next {
  EK__NEXT_NOTHING, /* of an evaluation, or of a gradient that is dropped */
  EK__NEXT_MORE,    /* other micro-batches */
  EK__NEXT_UPDATE,  /* the update, in the same call of the program */
  EK__NEXT_UPDATE_BY_NORM /* the same, and it needs the norm of the gradient */
};

/* The first module of the model whose results of a sample depend on the others of its micro-batch
 * (`mixes_samples` of its table), or NULL. */
const ek_module *ek__model_mixer(const ek_data_parallel_model *model);

/*
 * Forward and loss of a batch or micro-batch as `module` takes it; with gradient also their
 * backward. This is one job of the workers unless a rank needs more from another in between than
 * the sum of {s, D}. Before an update that sum may be left to the agreement on it (agreement.c);
 * the criterion has a loss after it. On failure the step is dropped, unless the arguments were
 * wrong.
 */
ek_status ek__batch_run(ek_data_parallel_model *model, ek_data_parallel_criterion *criterion,
                        const struct ek__batch *batch, const ek_forward_options *options,
                        enum ek__next next);

#endif /* EK_FORWARD_H */
