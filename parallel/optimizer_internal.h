/*
 * optimizer_internal.h - a data-parallel optimizer from the inside: data_parallel_optimizer.c has
 * its steps, optimizer_pieces.c who updates what, state.c reads and writes what it keeps.
 */
#ifndef EK_OPTIMIZER_INTERNAL_H
#define EK_OPTIMIZER_INTERNAL_H

#include <evenkeel/data_parallel_optimizer.h>
#include <evenkeel/state.h>

#include "parallel_internal.h"

/* Elements first .. last - 1 of the flat parameters and gradients. */
struct ek__piece {
  int64_t first, last;
  int64_t state; /* where their elements begin in the owner's state */
  int64_t place; /* and in its gradients, if these are shares */
  size_t group; /* of the layout's */
};

struct ek__pieces {
  struct ek__piece *list;
  size_t count;
};

/* What a device's worker does in a step, and what the device keeps. */
struct ek__optimizer_device {
  size_t owner; /* number of the device whose memory the worker updates: its own, or the master's */
  struct ek__pieces updates; /* of that memory */
  struct ek__pieces norms;   /* whose squares it sums: every element is in those of one worker.
                              * Of a reproducible model parts of buckets, some of them empty */
  int64_t owned;             /* elements of the device's state: of all pieces that it owns */
  ek_tensor states[EK_MAX_OPTIMIZER_STATES];
  ek_tensor square_norm; /* f64, of the whole gradient */
  ek_tensor norm_leaves; /* of a reproducible model: f64, of every part of every bucket */
  int64_t first_leaf;    /* number of norms.list[0] among them */
  int64_t *offsets;      /* scratch of an all-gather: one more than there are ranks */
};

struct ek_data_parallel_optimizer {
  ek_data_parallel_model *model;
  ek_optimizer *optimizer;
  ek_schedule schedule;
  bool held; /* ek_data_parallel_optimizer_set_learning_rate(): this rate takes its place */
  double held_rate;
  ek_loss_scale loss_scale;
  ek_loss_scale_state scaler; /* of the next step */
  bool norm, refuse;          /* options: gradient_norm, refuse_not_finite */
  bool helpers;               /* every worker updates a part of device 0's memory */
  size_t state_count;         /* of the rule, when it was opened */
  struct ek__optimizer_device *devices;
  size_t *parameters, parameter_count; /* those that it updates, not frozen: numbers in a replica */
  uint64_t *written;                   /* per state and such parameter: ek__model_written() */
};

/* Parts of buckets whose squares are summed by themselves: part 0 of all buckets, then part 1,
 * .. */
static inline int64_t ek__norm_leaves(const ek_data_parallel_model *model) {
  return (int64_t)(model->options.reproducible * ek_reducer_bucket_count(model->reducer));
}

/* Of the step that comes next. */
static inline double ek__optimizer_rate(const ek_data_parallel_optimizer *self) {
  return self->held ? self->held_rate : ek_schedule_rate(&self->schedule, self->model->step);
}

/* Fills the pieces, owners and counts of all devices; what was made stays for free on failure. */
ek_status ek__optimizer_cut(ek_data_parallel_optimizer *optimizer);
void ek__optimizer_cut_free(ek_data_parallel_optimizer *optimizer);

/* state.c: whether this is the name of an entry that a model has with a dynamic loss scale
 * alone. */
bool ek__state_is_scaler(const char *name);
/* Whether an entry of `run` may be this number of 8 bytes; any other entry may be anything.
 * EK_ERR_INVALID_ARGUMENT. */
ek_status ek__state_check_number(ek_state_kind kind, const void *value);

#endif /* EK_OPTIMIZER_INTERNAL_H */
