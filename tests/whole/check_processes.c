/*
 * check_processes.c - several processes on one machine: what they compute has the bits of one
 * process with all the devices, and what one of them suffers is an error in all.
 *
 * Each test runs a part in processes of their own (ck_processes.h), which record and do not assert.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <evenkeel/communicator.h>
#include <evenkeel/evenkeel.h>

#include "ck_processes.h"
#include "ck_training.h"

/* Of the parts that end by a time limit, in seconds. */
#define SHORT_LIMIT 2.0

/* Keeps the first failure of a part. */
static bool keep(struct ck_outcome *outcome, ek_status status) {
  if (status == EK_OK || outcome->status != EK_OK) return status == EK_OK;
  outcome->status = status;
  (void)snprintf(outcome->message, sizeof outcome->message, "%s", ek_error_message());
  return false;
}

/* All of them came back without an error of their own or of a sanitizer. */
static void all_are_well(const struct ck_outcome *outcomes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ck_assert_msg(outcomes[i].whole && outcomes[i].exit == 0, "process %zu ended with %d", i,
                  outcomes[i].exit);
    ck_assert_msg(outcomes[i].status == EK_OK, "process %zu: %s", i, outcomes[i].message);
  }
}

static void fails_with(const struct ck_outcome *outcome, ek_status status, const char *words) {
  ck_assert_msg(outcome->whole && outcome->exit == 0, "ended with %d", outcome->exit);
  ck_assert_msg(outcome->status == status && strstr(outcome->message, words) != NULL,
                "%s: %s, expected %s and \"%s\"", ek_status_name(outcome->status),
                outcome->message, ek_status_name(status), words);
}

/* ---- collectives ---- */

enum { RANKS = 4, KINDS = 5, COUNTS = 3, TYPES = 5 };

static const ek_type types[TYPES] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32};
static const int64_t counts[COUNTS] = {1, 37, 300001};

/* A collective that all devices of a process run on tensors of their own. */
struct collective {
  ek_communicator *communicator;
  ek_tensor *tensors; /* one per device */
  const int64_t *offsets;
  int kind;
  size_t root;
};

static ek_status run_one(const struct collective *c, ek_device *device, ek_tensor *tensor) {
  switch (c->kind) {
  case 0: return ek_communicator_broadcast(c->communicator, device, tensor, c->root);
  case 1: return ek_communicator_reduce(c->communicator, device, tensor, c->root);
  case 2: return ek_communicator_all_reduce(c->communicator, device, tensor);
  case 3: return ek_communicator_reduce_scatter(c->communicator, device, tensor, c->offsets);
  default: return ek_communicator_all_gather(c->communicator, device, tensor, c->offsets);
  }
}

static ek_status run_collective(void *context, ek_device *device, size_t index) {
  const struct collective *c = context;
  EK_TRY(run_one(c, device, &c->tensors[index]));
  return ek_communicator_wait(c->communicator, device);
}

/* Bytes of a rank's tensor whose sums depend on their order: no NaN in any type of floats. */
static void fill(unsigned char *bytes, ek_type type, int64_t count, size_t rank) {
  uint32_t state = (uint32_t)(rank + 1) * 2654435761u;
  for (int64_t i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    const float value = ((float)(state >> 8) / 8388608.0f - 1.0f) * (float)(1 + state % 7);
    const double wide = (double)value / 3.0;
    uint32_t word = 0;
    memcpy(&word, &value, sizeof word);
    /* Of f16: a sign, an exponent near 0 and random digits. */
    uint16_t half = (uint16_t)(type == EK_F16 ? 0x3000u + (word >> 10 & 0x8bffu) : word >> 16);
    switch (type) {
    case EK_F64: memcpy(bytes + i * 8, &wide, sizeof wide); break;
    case EK_BF16:
    case EK_F16: memcpy(bytes + i * 2, &half, sizeof half); break;
    default: memcpy(bytes + i * 4, &word, sizeof word);
    }
  }
}

static double hash_of(const unsigned char *bytes, size_t count) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return (double)(hash >> 12);
}

static ek_status collective_case(struct ck_outcome *outcome, const struct ck_process *process,
                                 ek_group *group, struct collective *c, ek_type type,
                                 int64_t count) {
  ek_tensor tensors[RANKS] = {{0}};
  ek_status status = EK_OK;
  const size_t bytes = (size_t)count * ek_type_size(type);
  const size_t devices = process->devices[process->number];
  c->tensors = tensors;
  for (size_t k = 0; k < devices; k++) {
    EK_TRY_GOTO(status, ek_tensor_create(&tensors[k], ek_group_device(group, k), EK_MEMORY_INPUTS,
                                         type, 1, &count), cleanup);
    fill(tensors[k].data, type, count, process->first_rank + k);
  }
  EK_TRY_GOTO(status, ek_group_apply(group, run_collective, c), cleanup);
  for (size_t k = 0; k < devices; k++) ck_outcome_add(outcome, hash_of(tensors[k].data, bytes));
cleanup:
  for (size_t k = 0; k < devices; k++) ek_tensor_free(&tensors[k]);
  return status;
}

/* Parts of ranks: rising, with an empty one. */
static void cut(int64_t offsets[RANKS + 1], int64_t count, size_t ranks) {
  const int64_t squares = (int64_t)(ranks * ranks);
  for (size_t i = 0; i <= ranks; i++) offsets[i] = count * (int64_t)(i * i) / squares;
  if (ranks > 2) offsets[1] = 0;
}

static void all_collectives(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *group = NULL;
  struct collective c = {0};
  int64_t offsets[RANKS + 1];
  if (!keep(outcome, ck_process_open(&group, process, 0))) return;
  if (keep(outcome, ek_communicator_open(&c.communicator, group))) {
    for (int i = 0; i < KINDS * TYPES * COUNTS && outcome->status == EK_OK; i++) {
      const ek_type type = types[i / KINDS % TYPES];
      const int64_t count = counts[i / KINDS / TYPES];
      c.kind = i % KINDS;
      c.root = process->world - 1;
      c.offsets = offsets;
      cut(offsets, count, process->world);
      if (type == EK_I32 && c.kind > 0 && c.kind < 4) continue; /* sums of floats alone */
      (void)keep(outcome, collective_case(outcome, process, group, &c, type, count));
    }
  }
  ek_communicator_free(c.communicator);
  (void)keep(outcome, ek_group_free(group));
}

/* What the ranks of all processes have, against those of one process. Each outcome has `blocks`
 * times a number for each of its devices. */
static void ranks_agree(const struct ck_outcome *got, const size_t *devices, size_t count,
                        const struct ck_outcome *want, size_t ranks) {
  const size_t blocks = want->count / ranks;
  ck_assert_uint_gt(blocks, 0);
  for (size_t i = 0, first = 0; i < count; first += devices[i], i++) {
    ck_assert_uint_eq(got[i].count, blocks * devices[i]);
    for (size_t k = 0; k < got[i].count; k++) {
      const size_t block = k / devices[i], rank = first + k % devices[i];
      ck_assert_msg(got[i].numbers[k] == want->numbers[block * ranks + rank],
                    "block %zu of rank %zu is not that of one process", block, rank);
    }
  }
}

static const struct {
  size_t count, devices[CK_PROCESSES];
} places[] = {{2, {2, 2}}, {2, {1, 2}}, {2, {3, 1}}, {3, {1, 2, 1}}, {4, {1, 1, 1, 1}}};

enum { PLACES = sizeof places / sizeof places[0] };

static size_t world_of(int place) {
  size_t world = 0;
  for (size_t i = 0; i < places[place].count; i++) world += places[place].devices[i];
  return world;
}

START_TEST(collectives_have_the_bits_of_one_process) {
  struct ck_outcome *outcomes = calloc(CK_PROCESSES + 1, sizeof *outcomes);
  struct ck_outcome *want = &outcomes[CK_PROCESSES];
  const size_t world = world_of(_i), count = places[_i].count;
  const struct ck_process alone = ck_process_alone(world);
  all_collectives(want, &alone);
  ck_processes_run(outcomes, "collectives", places[_i].devices, count);
  all_are_well(want, 0);
  ck_assert_msg(want->status == EK_OK, "%s", want->message);
  all_are_well(outcomes, count);
  ranks_agree(outcomes, places[_i].devices, count, want, world);
  free(outcomes);
}
END_TEST

/* ---- failures ---- */

enum disaster { DIES, HANGS, FAILS, OTHER_COLLECTIVE, EXCHANGE_FAILS, DISASTERS };

static const char *const disasters[] = {"dies", "hangs", "fails", "other collective",
                                        "exchange fails"};

struct failing_job {
  struct collective collective;
  const struct ck_process *process;
  enum disaster disaster;
  bool second; /* the first round went well everywhere */
};

/* Process 1 does it, on its last device, when the first job has gone well. */
static ek_status meet_disaster(void *context, ek_device *device, size_t index) {
  struct failing_job *job = context;
  struct collective c = job->collective;
  const bool victim = job->second && job->process->number == 1 &&
                      index + 1 == job->process->devices[1];
  if (victim && job->disaster == DIES) _exit(7);
  if (victim && job->disaster == HANGS) sleep((unsigned)(SHORT_LIMIT + 1));
  if (victim && job->disaster == FAILS) return ek_error_set(EK_ERR_SHAPE, "a victim's own words");
  if (job->second && job->process->number == 1 && job->disaster == OTHER_COLLECTIVE) c.kind = 0;
  EK_TRY(run_one(&c, device, &c.tensors[index]));
  return ek_communicator_wait(c.communicator, device);
}

/* An exchange that fails from its n-th call on. */
struct failing_exchange {
  ek_exchange inner;
  int calls;
};

static ek_status fail_later(void *context, size_t peer, const void *out, size_t out_bytes, void *in,
                            size_t in_bytes, double seconds) {
  struct failing_exchange *self = context;
  if (self->calls > 0 && --self->calls == 0) {
    return ek_error_set(EK_ERR_IO, "the cable was pulled");
  }
  return self->inner.swap(self->inner.context, peer, out, out_bytes, in, in_bytes, seconds);
}

static ek_status open_failing(ek_group **group, const struct ck_process *process,
                              struct failing_exchange *failing) {
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  ek_exchange exchange = ck_process_exchange(process);
  char spec[32];
  failing->inner = exchange;
  exchange.swap = fail_later;
  exchange.context = failing;
  options.time_limit = SHORT_LIMIT;
  options.first_rank = process->first_rank;
  options.world_size = process->world;
  options.exchange = &exchange;
  (void)snprintf(spec, sizeof spec, "cpu:%zu", process->devices[process->number]);
  return ek_group_open(group, spec, &options);
}

/* After the error: collectives are refused, and what needs no other process works. */
static void look_after(struct ck_outcome *outcome, ek_group *group, struct failing_job *job) {
  char before[256];
  const ek_status again = ek_group_apply(group, run_collective, &job->collective);
  (void)snprintf(before, sizeof before, "%s", ek_error_message());
  ck_outcome_add(outcome, (double)again);
  ck_outcome_add(outcome, strstr(before, "open it again in all of them") != NULL);
}

static void disaster(struct ck_outcome *outcome, const struct ck_process *process,
                     enum disaster kind) {
  ek_group *group = NULL;
  ek_tensor tensors[RANKS] = {{0}};
  const int64_t count = 100000;
  struct failing_exchange failing = {.calls = 0};
  struct failing_job job = {.process = process, .disaster = kind};
  job.collective = (struct collective){.tensors = tensors, .kind = 2};
  if (!keep(outcome, open_failing(&group, process, &failing))) return;
  bool well = keep(outcome, ek_communicator_open(&job.collective.communicator, group));
  for (size_t k = 0; k < process->devices[process->number] && well; k++) {
    well = keep(outcome, ek_tensor_create(&tensors[k], ek_group_device(group, k), EK_MEMORY_INPUTS,
                                          EK_F32, 1, &count));
    if (well) memset(tensors[k].data, 0, (size_t)count * sizeof(float));
  }
  well = well && keep(outcome, ek_group_apply(group, meet_disaster, &job));
  job.second = true;
  if (kind == EXCHANGE_FAILS && process->number == 1) failing.calls = 2;
  if (well && keep(outcome, ek_group_apply(group, meet_disaster, &job))) {
    outcome->status = EK_ERR_INTERNAL;
    (void)snprintf(outcome->message, sizeof outcome->message, "nothing failed");
  }
  if (well) look_after(outcome, group, &job);
  for (size_t k = 0; k < RANKS; k++) ek_tensor_free(&tensors[k]);
  ek_communicator_free(job.collective.communicator);
  const ek_status freed = ek_group_free(group);
  ck_outcome_add(outcome, (double)freed);
}

static void dies(struct ck_outcome *o, const struct ck_process *p) { disaster(o, p, DIES); }
static void hangs(struct ck_outcome *o, const struct ck_process *p) { disaster(o, p, HANGS); }
static void fails(struct ck_outcome *o, const struct ck_process *p) { disaster(o, p, FAILS); }
static void differs(struct ck_outcome *o, const struct ck_process *p) {
  disaster(o, p, OTHER_COLLECTIVE);
}
static void cable(struct ck_outcome *o, const struct ck_process *p) {
  disaster(o, p, EXCHANGE_FAILS);
}

/* It has failed as it should, in time, refuses collectives, and could be freed. */
static void has_ended(const struct ck_outcome *outcome, ek_status status, const char *words) {
  fails_with(outcome, status, words);
  ck_assert_double_lt(outcome->seconds, 6 * SHORT_LIMIT);
  ck_assert_uint_eq(outcome->count, 3);
  ck_assert_double_eq(outcome->numbers[0], EK_ERR_UNAVAILABLE);
  ck_assert_double_eq(outcome->numbers[1], 1);
  ck_assert_double_eq(outcome->numbers[2], EK_OK);
}

START_TEST(an_error_in_one_process_is_one_in_all) {
  static const struct {
    ek_status own, others;
    const char *said, *heard;
  } expected[DISASTERS] = {
      [DIES] = {EK_OK, EK_ERR_UNAVAILABLE, "", "process 1"},
      [HANGS] = {EK_ERR_UNAVAILABLE, EK_ERR_UNAVAILABLE, "process", "process 1"},
      [FAILS] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "a victim's own words", "a victim's own words"},
      [OTHER_COLLECTIVE] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "this one a broadcast of 100000 f32",
                            "does a broadcast of 100000 f32"},
      [EXCHANGE_FAILS] = {EK_ERR_IO, EK_ERR_UNAVAILABLE, "the cable was pulled", "process"}};
  const enum disaster kind = (enum disaster)(_i / 2);
  const size_t devices[] = {2, 2, 1}, count = 2 + (size_t)_i % 2;
  struct ck_outcome *outcomes = calloc(CK_PROCESSES, sizeof *outcomes);
  ck_processes_run(outcomes, disasters[kind], devices, count);
  for (size_t i = 0; i < count; i++) {
    if (i != 1) {
      has_ended(&outcomes[i], expected[kind].others, expected[kind].heard);
    } else if (kind == DIES) {
      ck_assert_int_eq(WEXITSTATUS(outcomes[i].exit), 7);
    } else {
      has_ended(&outcomes[i], expected[kind].own, expected[kind].said);
    }
  }
  free(outcomes);
}
END_TEST

static const struct ck_part parts[] = {{"collectives", all_collectives},
                                       {"dies", dies},
                                       {"hangs", hangs},
                                       {"fails", fails},
                                       {"other collective", differs},
                                       {"exchange fails", cable},
                                       {NULL, NULL}};

static Suite *make_suite(void) {
  Suite *suite = suite_create("processes");
  TCase *core = ck_case(suite, "collectives");
  tcase_add_loop_test(core, collectives_have_the_bits_of_one_process, 0, PLACES);
  TCase *failures = ck_case(suite, "failures");
  tcase_add_loop_test(failures, an_error_in_one_process_is_one_in_all, 0, 2 * DISASTERS);
  return suite;
}

int main(int argc, char **argv) { return ck_processes_main(argc, argv, parts, make_suite); }
