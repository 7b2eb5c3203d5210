/*
 * optimizer_internal.h - a data-parallel optimizer from the inside. data_parallel_optimizer.c has
 * its steps, optimizer_pieces.c the ranges that each rank updates; state.c reads and writes its
 * state.
 */
#ifndef EK_OPTIMIZER_INTERNAL_H
#define EK_OPTIMIZER_INTERNAL_H

#include <evenkeel/data_parallel_optimizer.h>
#include <evenkeel/state.h>

#include "parallel_internal.h"

/* The state of an optimizer, which the model has while it is open; the parts of the ranks are in
 * their ek__rank.share. */
struct ek__update {
  ek_optimizer *optimizer;
  ek_schedule schedule;
  bool held; /* ek_data_parallel_optimizer_set_learning_rate(): this rate instead of a schedule's */
  double rate; /* of the step that is being taken */
  double held_rate;
  ek_loss_scale loss_scale;
  ek_loss_scale_state scaler;          /* of the next step */
  bool norm, refuse;                   /* options: gradient_norm, refuse_not_finite */
  size_t state_count;                  /* of the rule, when it was opened */
  /* Of parameters that are not frozen, those that the rule keeps; state by state. */
  struct ek__kept {
    size_t state, parameter;
  } * kept;
  size_t kept_count;
  uint64_t *written; /* per state and parameter: model_step.c */
};

struct ek_data_parallel_optimizer {
  ek_data_parallel_model *model;
  struct ek__update update;
};

/* Whether the next step needs the norm of its gradient before the update; `result`: the caller
 * wants the result. */
static inline bool ek__update_takes_norm(const struct ek__update *update, bool result) {
  return ek_optimizer_clip_norm(update->optimizer) > 0 || update->refuse ||
         update->loss_scale.kind != EK_LOSS_SCALE_NONE || (result && update->norm);
}

/* Whether every worker updates a part of rank 0's memory: all ranks are in one address space. */
static inline bool ek__update_helps(const ek_data_parallel_model *model) {
  return ek__device_table(model->run.ranks[0].device)->shared_memory;
}

/* Fills ranges, owners and counts of all ranks, which belong to the ranks. */
ek_status ek__optimizer_cut(ek_data_parallel_model *model, const ek_optimizer *rule);
/* Part number 0, 1, ... of what a rank updates; or, with `norm`, of that whose squares it sums in
 * the order of the reduction `sum`: every element is in a part of one rank. False: no such part. */
bool ek__update_part(struct ek__part *part, const ek_data_parallel_model *model,
                     const struct ek__rank *rank, size_t number, bool norm);

/* Whether a state exists for parameters that the rule takes whole, or for the others. */
bool ek__rule_keeps(const ek_optimizer *rule, size_t state, bool whole);

/* state.c: elements first, first + 1, ... of entry number `index` that the devices of this process
 * have; the others' places in `host` stay as they are. Talks to no other process. */
ek_status ek__state_read_own(ek_tensor *host, const ek_data_parallel_model *model, size_t index,
                             int64_t first);
/* state.c: whether processes have parts of an entry; else each has all of it. */
bool ek__state_is_cut(const ek_data_parallel_model *model, const ek_state_info *info);
/* The parts that one process has of elements first .. first + count - 1 of an entry that is cut, in
 * one order. */
struct ek__state_parts {
  const ek_data_parallel_model *model;
  size_t process, index;
  int64_t first, count;
  size_t number; /* 0 at first */
};
bool ek__state_next_part(int64_t *first, int64_t *count, struct ek__state_parts *parts);
/* state.c: whether this is the name of an entry that a model has with a dynamic loss scale
 * alone. */
bool ek__state_is_scaler(const char *name);
/* Whether an entry of `run` may be this number of 8 bytes; any other entry may be anything.
 * EK_ERR_INVALID_ARGUMENT. */
ek_status ek__state_check_number(ek_state_kind kind, const void *value);

#endif /* EK_OPTIMIZER_INTERNAL_H */
