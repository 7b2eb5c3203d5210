/*
 * lockstep.c - the grains of a rank, advancing together to the collectives of its modules
 * (reduction.h).
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/turns.h"
#include "module/pass_internal.h"
#include "tree.h"

struct ek__lockstep {
  struct ek__exchange exchange; /* for passes: the first member */
  struct ek__turns *turns;
  const struct ek__rounds *run; /* a loan of the caller's */
  size_t arrived;
  uint64_t sums;                     /* that were made */
  ek_tensor *given[EK__MAX_GRAINS];  /* loans of the rounds that have arrived */
  ek_tensor buffers[EK__MAX_GRAINS]; /* of rounds, while a forward may write them */
};

/* ---- sums ---- */

static ek_status check_given(const struct ek__lockstep *self) {
  const ek_tensor *first = self->given[0];
  for (size_t i = 1; i < self->run->count; i++) {
    EK__FAIL_IF(self->given[i]->type != first->type ||
                    ek_tensor_count(self->given[i]) != ek_tensor_count(first),
                EK_ERR_SHAPE,
                "ek_pass_all_reduce: one grain adds %lld %s and another one of the same device "
                "%lld %s",
                (long long)ek_tensor_count(first), ek_type_name(first->type),
                (long long)ek_tensor_count(self->given[i]), ek_type_name(self->given[i]->type));
  }
  return EK_OK;
}

static ek_status add_leaves(const struct ek__lockstep *self, ek_tensor *leaves, size_t count) {
  const struct ek__rounds *run = self->run;
  const struct ek__pieces *pieces = &run->rank->pieces;
  const int64_t size = ek_tensor_count(self->given[0]);
  ek_stream *stream = ek_device_stream(leaves->device, EK_STREAM_COMPUTE);
  for (size_t i = pieces->first; i < pieces->last; i++) {
    ek_tensor own = ek__flat_range(leaves, (int64_t)i * size, size);
    EK_TRY(ek_op_copy(stream, &own, self->given[i - pieces->first]));
  }
  EK_TRY(ek__leaves_add(run->model, run->rank, run->model->run.inner, leaves, count, NULL));
  const ek_tensor sum = ek__flat_range(leaves, 0, size);
  for (size_t i = 0; i < run->count; i++) EK_TRY(ek_op_copy(stream, self->given[i], &sum));
  return EK_OK;
}

static ek_status add_up(const struct ek__lockstep *self) {
  const size_t count = ek__grains_used(self->run->model, self->run->rank->pieces.all);
  const ek_tensor *first = self->given[0];
  const int64_t all = (int64_t)count * ek_tensor_count(first);
  ek_tensor leaves = {0};
  EK_TRY(check_given(self));
  EK_TRY(ek_tensor_create(&leaves, first->device, EK_MEMORY_COMMUNICATION, first->type, 1, &all));
  const ek_status status = add_leaves(self, &leaves, count);
  ek_tensor_free(&leaves);
  return status;
}

static void enter(const struct ek__rounds *run, size_t round) {
  if (run->enter != NULL) run->enter(run->rank, round);
}

/* Whoever goes on meanwhile begins with products that do not round. */
static ek_status pass_turn(struct ek__lockstep *self) {
  ek_stream *stream = ek__rank_stream(self->run->rank);
  const size_t round = ek__turns_number(self->turns);
  const bool tf32 = ek_stream_allow_tf32(stream, false);
  const ek_status status = ek__turns_pass(self->turns);
  (void)ek_stream_allow_tf32(stream, tf32);
  enter(self->run, round);
  return status;
}

static ek_status all_reduce(struct ek__exchange *exchange, ek_tensor *tensor) {
  struct ek__lockstep *self = (struct ek__lockstep *)exchange;
  const uint64_t sums = self->sums;
  self->given[ek__turns_number(self->turns)] = tensor;
  if (++self->arrived == self->run->count) {
    EK_TRY(add_up(self));
    self->arrived = 0;
    self->sums++;
  }
  EK_TRY(pass_turn(self));
  EK__FAIL_IF(self->sums == sums, EK_ERR_SHAPE,
              "ek_pass_all_reduce: of %zu grains of this device only %zu came to a collective",
              self->run->count, self->arrived);
  return EK_OK;
}

/* ---- rounds ---- */

static ek_status run_round(void *context, size_t round) {
  const struct ek__rounds *rounds = context;
  enter(rounds, round);
  return rounds->job(rounds->context, round);
}

ek_status ek__rounds_run(struct ek__rounds *rounds) {
  struct ek__lockstep *self = rounds->rank->lockstep;
  if (self != NULL) {
    self->run = rounds;
    self->arrived = 0;
    return ek__turns_run(self->turns, rounds->count, run_round, rounds);
  }
  for (size_t round = 0; round < rounds->count; round++) EK_TRY(run_round(rounds, round));
  return EK_OK;
}

struct ek__exchange *ek__lockstep_exchange(const struct ek__rank *rank) {
  return rank->lockstep == NULL ? NULL : &rank->lockstep->exchange;
}

/* ---- buffers ---- */

void ek__lockstep_buffers(struct ek__rank *rank, size_t round) {
  const ek_tensor *own = &rank->lockstep->buffers[round];
  if (ek_tensor_exists(own)) rank->replica->buffers = *own;
}

ek_status ek__lockstep_copy_buffers(struct ek__rank *rank, size_t rounds) {
  ek_tensor *buffers = rank->lockstep->buffers;
  ek_stream *stream = ek__rank_stream(rank);
  const ek_tensor *flat = &rank->replica->buffers;
  buffers[0] = *flat;
  for (size_t i = 1; i < rounds; i++) {
    EK_TRY(ek_tensor_create(&buffers[i], rank->device, EK_MEMORY_WORKSPACE, flat->type, flat->rank,
                            flat->shape));
    EK_TRY(ek_op_copy(stream, &buffers[i], flat));
  }
  return EK_OK;
}

void ek__lockstep_free_buffers(struct ek__rank *rank) {
  struct ek__lockstep *self = rank->lockstep;
  if (self == NULL) return;
  ek__lockstep_buffers(rank, 0);
  memset(&self->buffers[0], 0, sizeof self->buffers[0]);
  for (size_t i = 1; i < EK__MAX_GRAINS; i++) ek_tensor_free(&self->buffers[i]);
}

/* ---- opening ---- */

static void stand_in(void *device) { ek__group_stand_in(device); }

ek_status ek__lockstep_open(const ek_data_parallel_model *model, struct ek__rank *rank) {
  static const char memory_of[] = "a reproducible model";
  EK_TRY(ek__new(&rank->lockstep, 1, sizeof *rank->lockstep, memory_of));
  rank->lockstep->exchange.all_reduce = all_reduce;
  return ek__turns_open(&rank->lockstep->turns, ek__grains_most(model), stand_in, rank->device);
}

void ek__lockstep_close(struct ek__rank *rank) {
  if (rank->lockstep == NULL) return;
  ek__turns_close(rank->lockstep->turns);
  ek__free(rank->lockstep);
  rank->lockstep = NULL;
}
