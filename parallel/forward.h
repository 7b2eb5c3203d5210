/*
 * forward.h - a forward and a loss, laid out by the model's thread and run by the workers.
 *
 * Jobs of the trainer run cut, forward, loss and backward of a rank one after the other; the public
 * calls of model and criterion run the same functions in a job each.
 */
#ifndef EK_FORWARD_H
#define EK_FORWARD_H

#include "criterion_internal.h"
#include "reduction.h"

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
