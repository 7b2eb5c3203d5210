/*
 * optimizer_internal.h - a data-parallel optimizer from the inside. data_parallel_optimizer.c has
 * its steps, optimizer_pieces.c what each rank has of it; state.c reads and writes its state.
 */
#ifndef EK_OPTIMIZER_INTERNAL_H
#define EK_OPTIMIZER_INTERNAL_H

#include <evenkeel/data_parallel_optimizer.h>
#include <evenkeel/state.h>

#include "device/note.h"
#include "parallel_internal.h"

/* The result of a step, with what its norm is still to be made of. */
struct ek__reading {
  ek_step_result result;
  double factor; /* of its gradients in memory */
  bool divided;
  bool norm; /* it has one, or is going to */
};

/* What is known of a step before its update. */
struct ek__numbers {
  double totals[2], square_norm;
};

/* Scratch of agreement.c, in a world. */
struct ek__told {
  double *numbers; /* of all leaves */
  size_t *ends;    /* of those of each process, in bytes */
};

/* The state of an optimizer, which the model has while it is open; what the ranks have is in
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
  /* Of rank 0: the step's totals as the last backward began, when all forwards of the step had
   * ended; and the norm of a step that was begun, before its update. */
  struct ek__note *forward, *square_norm;
  /* Steps that were begun and not ended, the oldest first. */
  struct ek__reading begun[EK_MAX_STEPS_BEGUN];
  size_t begun_count;
  bool late; /* the last one lacks its norm, which `square_norm` is going to have */
  struct ek__told told;
};

struct ek_data_parallel_optimizer {
  ek_data_parallel_model *model;
  struct ek__update update;
};

/* ---- agreement.c ---- */

ek_status ek__told_open(struct ek__told *told, const ek_data_parallel_model *model);
void ek__told_close(struct ek__told *told);
/* All processes add up the norm, or none: before devices wait for each other's, over NCCL. A
 * message only if a call of the program decides. */
ek_status ek__norm_agree(const ek_data_parallel_model *model, bool norm);
/* All processes have come to the update, none with an error; nothing in one process. Ranks then
 * have the totals of the step and, if `norm`, the norm; *numbers is what came with it. */
ek_status ek__update_agree(ek_data_parallel_model *model, bool norm, struct ek__numbers *numbers);

/* ---- data_parallel_optimizer.c ---- */

/* EK_ERR_STATE if another step cannot be begun. */
ek_status ek__optimizer_check_room(const ek_data_parallel_optimizer *parallel);

/* Whether the next step needs the norm of its gradient before the update; `result`: the caller
 * wants the result. */
static inline bool ek__update_takes_norm(const struct ek__update *update, bool result) {
  return ek_optimizer_clip_norm(update->optimizer) > 0 || update->refuse ||
         update->loss_scale.kind != EK_LOSS_SCALE_NONE || (result && update->norm);
}

/* Whether every worker updates a piece of rank 0's memory: all ranks are in one address space. */
static inline bool ek__update_helps(const ek_data_parallel_model *model) {
  return ek__device_table(model->run.ranks[0].device)->shared_memory;
}

/* ---- optimizer_pieces.c ---- */

/* What the ranks have of an optimizer, and the tables of its states; close also after a failure. */
ek_status ek__shares_open(ek_data_parallel_model *model, struct ek__update *update);
void ek__shares_close(ek_data_parallel_model *model, struct ek__update *update);
/* Number 0, 1, ... of the spans that a rank updates; or, with `norm`, whose squares it sums in the
 * order of the reduction `sum`: every element is in a span of one rank. False: no such span. */
bool ek__update_span(struct ek__span *span, const ek_data_parallel_model *model,
                     const struct ek__rank *rank, size_t number, bool norm);

/* Whether a state exists for parameters that the rule takes whole, or for the others. */
bool ek__rule_keeps(const ek_optimizer *rule, size_t state, bool whole);

/* state.c: elements first, first + 1, ... of entry number `index` that the devices of this process
 * have; the others' places in `host` stay as they are. Talks to no other process. */
ek_status ek__state_read_own(ek_tensor *host, const ek_data_parallel_model *model, size_t index,
                             int64_t first);
/* state.c: whether processes have shares of an entry of this kind; else each has all of it. */
bool ek__state_is_cut(const ek_data_parallel_model *model, ek_state_kind kind);
/* Whether a process writes into the model only those spans of an entry that are cut for it. */
bool ek__state_needs_spans(const ek_data_parallel_model *model, ek_state_kind kind);
/* The spans that one process has of elements first .. first + count - 1 of an entry that is cut, in
 * one order. */
struct ek__state_spans {
  const ek_data_parallel_model *model;
  size_t process, index;
  int64_t first, count;
  size_t number; /* 0 at first */
};
bool ek__state_next_span(int64_t *first, int64_t *count, struct ek__state_spans *spans);
/* state.c: whether this is the name of an entry that a model has with a dynamic loss scale
 * alone. */
bool ek__state_is_scaler(const char *name);
/* Whether an entry of `run` may be this number of 8 bytes; any other entry may be anything.
 * EK_ERR_INVALID_ARGUMENT. */
ek_status ek__state_check_number(ek_state_kind kind, const void *value);

#endif /* EK_OPTIMIZER_INTERNAL_H */
