/*
 * criterion_internal.h - a data-parallel criterion from the inside: data_parallel_criterion.c has
 * its opening, forward and loss, criterion_backward.c its backward.
 */
#ifndef EK_CRITERION_INTERNAL_H
#define EK_CRITERION_INTERNAL_H

#include <evenkeel/data_parallel_criterion.h>

#include "parallel_internal.h"

/* What lies on one device. */
struct ek__criterion_device {
  ek_replica *replica; /* of the criterion; NULL if the model computes its loss itself */
  ek_tensor totals;    /* f64 [terms, 2], of all devices after forward */
  ek_tensor scales;    /* f64 [terms, 2], {scale, 0}: the gradient of totals */
  ek_tensor losses;    /* reduction `none`: every single one of the last forward */
  ek_tensor leaves;    /* f64 [grains, terms, 2] of a reproducible model: totals of each grain */
  int64_t *offsets;    /* the same model's: scratch of an all-gather */
  /* Several terms with reduction `mean` (else empty): the step so far, this micro-batch included.
   */
  ek_tensor step_totals; /* f64 [terms, 2]: {S, D} of every term */
  ek_tensor step_scales; /* scratch, f64 [terms, 2] */
};

struct ek_data_parallel_criterion {
  ek_data_parallel_model *model;
  ek_data_parallel_criterion *next; /* of those that are open for the model */
  ek_criterion *criterion;
  bool of_model; /* the model computes its loss itself: the criterion is its module */
  /* Of the criterion, when it was opened: what arrays are laid out by. */
  size_t outputs, targets, terms;
  ek_reduction reduction;
  double coefficients[EK_MAX_TERMS];
  ek_data_parallel_criterion_options options;
  ek_input_scaling *scalings; /* a copy of those of the options, or NULL */
  size_t count; /* of devices */
  struct ek__criterion_device *devices;
  ek_pass **passes; /* of a forward whose backward may still come: one for each device, or grain */
  size_t pass_count;
  ek_tensor *combined;      /* one per device: f64 {s, D} of the last forward */
  ek_tensor *step_combined; /* the same of the step so far */

  /* From forward to backward. */
  bool has_forward, has_loss;
  bool gradient;      /* the model's backward may follow that forward */
  bool with_gradient; /* and it was allowed to write over the outputs */
  uint64_t forward;   /* the number that its outputs carry: of the model's forward; 0: none */
  struct ek__scaling scaling; /* that its gradient is multiplied with */
  ek_shards *seen;            /* the outputs, the caller's */

  /* Several terms over several micro-batches. */
  uint32_t micro_batches;       /* of the step, whose totals these are */
  double weights[EK_MAX_TERMS]; /* of the step, as they were given or seen first */
  bool weights_given;
};

/* Whether the weights of its terms are kept apart over the micro-batches of a step. */
static inline bool ek__criterion_keeps_terms(const ek_data_parallel_criterion *self) {
  return self->terms > 1 && self->reduction == EK_REDUCTION_MEAN;
}

static inline bool ek__criterion_has_rows(const ek_shards *outputs, size_t index) {
  return outputs[0].offsets[index] < outputs[0].offsets[index + 1];
}

/* ---- criterion_grains.c: on a worker, the grains of a reproducible model (grains.h) ---- */

/* The totals of all devices, from those of the grains. */
ek_status ek__criterion_grains_forward(ek_data_parallel_criterion *self, ek_device *device,
                                       size_t index, const ek_shards *targets);
/* The gradients of the device's outputs; factors: of its losses, or a struct of zeros. */
ek_status ek__criterion_grains_backward(ek_tensor *gradients, ek_data_parallel_criterion *self,
                                        size_t index, const ek_tensor *factors);

/* criterion_pass.c: opens a pass whose first sample is number `first` of those that the forward
 * saw. */
ek_status ek__criterion_open_pass(ek_pass **pass, const ek_data_parallel_criterion *self,
                                  size_t index, int64_t first, const ek_tensor *totals);

/* EK_ERR_STATE if the criterion is not any more what it was when it was opened. */
ek_status ek__criterion_unchanged(const ek_data_parallel_criterion *self);

/*
 * Adds {s, d} of every term of the last forward, over all devices, to totals[2 * terms]; and the
 * loss and weight of such sums, as ek_data_parallel_criterion_loss() has them of one forward.
 */
ek_status ek__criterion_add_totals(double *totals, const ek_data_parallel_criterion *self);
double ek__criterion_loss_of(double *weight, const ek_data_parallel_criterion *self,
                             const double *totals);

/* Forgets the last forward, but for its loss. */
void ek__criterion_drop_forward(ek_data_parallel_criterion *self);

#endif /* EK_CRITERION_INTERNAL_H */
