/*
 * criterion_internal.h - a data-parallel criterion from the inside: data_parallel_criterion.c has
 * its opening, forward and loss, criterion_backward.c its backward.
 */
#ifndef EK_CRITERION_INTERNAL_H
#define EK_CRITERION_INTERNAL_H

#include <evenkeel/data_parallel_criterion.h>

#include "../criterion/criterion_pass.h"
#include "parallel_internal.h"

struct ek_data_parallel_criterion {
  ek_data_parallel_model *model;
  ek_criterion *criterion;
  struct ek__criterion_counts counts; /* of the criterion, when it was opened */
  ek_data_parallel_criterion_options options;
  size_t count; /* of devices */
  double coefficients[EK_MAX_TERMS];
  ek_criterion_pass *passes[EK_MAX_DEVICES];
  ek_tensor totals[EK_MAX_DEVICES];   /* f64 [terms, 2], of all devices after forward */
  ek_tensor combined[EK_MAX_DEVICES]; /* f64 {s, D} */
  ek_tensor scales[EK_MAX_DEVICES];   /* f64 [terms] */

  /* From forward to backward. */
  bool has_forward, has_loss;
  bool with_gradient;   /* that forward was allowed to write over the outputs */
  uint64_t forward;     /* the number that its outputs carry: of the model's forward; 0: none */
  ek_shards *outputs;   /* the caller's */
  ek_shards *targets;   /* one per target */
  ek_shards *gradients; /* one per output, during backward */

  /* Several terms with reduction `mean` (else empty): the step so far, this micro-batch included.
   */
  ek_tensor step_totals[EK_MAX_DEVICES];   /* f64 [terms, 2]: {S, D} of every term */
  ek_tensor step_combined[EK_MAX_DEVICES]; /* f64 {s, D}: of the terms together */
  ek_tensor step_scales[EK_MAX_DEVICES];   /* scratch, f64 [terms] */
  uint32_t micro_batches;                  /* of the step, whose totals these are */
  double weights[EK_MAX_TERMS];            /* of the step, as they were given or seen first */
  bool weights_given;
};

/* Whether the weights of its terms are kept apart over the micro-batches of a step. */
static inline bool ek__criterion_keeps_terms(const ek_data_parallel_criterion *self) {
  return self->criterion->terms > 1 && self->criterion->reduction == EK_REDUCTION_MEAN;
}

static inline bool ek__criterion_has_rows(const ek_shards *outputs, size_t index) {
  return outputs[0].offsets[index] < outputs[0].offsets[index + 1];
}

/* Part `index` of each of `count` shards. */
static inline void ek__criterion_parts(ek_tensor *parts, const ek_shards *shards, size_t count,
                                       size_t index) {
  for (size_t i = 0; i < count; i++) parts[i] = shards[i].parts[index];
}

/* Forgets the last forward, but for its loss. */
void ek__criterion_drop_forward(ek_data_parallel_criterion *self);

#endif /* EK_CRITERION_INTERNAL_H */
