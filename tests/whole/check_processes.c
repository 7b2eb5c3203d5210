/*
 * check_processes.c - several processes on one machine: what they compute has the bits of one
 * process with all the devices, and what one of them suffers is an error in all.
 *
 * Each test runs a part in processes of their own (ck_processes.h), which record and do not assert.
 */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_mirror.h"
#include "process_training.h"

/* Of the parts that end by a time limit, in seconds. */
#define SHORT_LIMIT (1.0 * (1 + CK_TSAN))

/* NCCL has memory of its own, which no plan counts; and a process that is late, or in another
 * collective, is seen by NCCL, at the time limit of the group. */
static bool on_gpus(void) { return getenv("EVENKEEL_TEST_PROCESSES") != NULL; }

static void fails_with(const struct ck_outcome *outcome, ek_status status, const char *words) {
  ck_assert_msg(outcome->whole && outcome->exit == 0, "ended with %d", outcome->exit);
  ck_assert_msg(outcome->status == status && strstr(outcome->message, words) != NULL,
                "%s: %s, expected %s and \"%s\"", ek_status_name(outcome->status), outcome->message,
                ek_status_name(status), words);
}

/* Each process has given these numbers. */
static void has_numbers(const char *part, const size_t *devices, size_t count,
                        const double *numbers, size_t number_count) {
  const struct ck_outcome *outcomes = ck_processes_done(part, devices, count);
  for (size_t p = 0; p < count; p++) {
    ck_assert_uint_eq(outcomes[p].count, number_count);
    ck_within(part, outcomes[p].numbers, numbers, NULL, (int64_t)number_count);
  }
}

static bool same_number(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

/* ---- collectives ---- */

enum { KINDS = 5, COUNTS = 3, TYPES = 5 };

static const ek_type types[TYPES] = {EK_F32, EK_F64, EK_BF16, EK_F16, EK_I32};
static const int64_t counts[COUNTS] = {1, 37, CK_TSAN ? 30001 : 300001};

/* A collective that all devices of a process run on tensors of their own. */
struct collective {
  ek_communicator *communicator;
  ek_tensor *tensors; /* one per device */
  const int64_t *offsets;
  int kind;
  size_t root;
  bool folded; /* sums of whole numbers, which are looked at here */
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

CK_JOB(run_collective) {
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

/* Runs a job, and waits for what it has left on streams. */
static ek_status run_job(ek_group *group, ek_apply_function job, void *context) {
  EK_TRY(ek_group_apply(group, job, context));
  return ek_group_synchronize(group);
}

/* One on each device. */
static ek_status make_tensors(ek_tensor *tensors, size_t devices, ek_group *group, ek_type type,
                              int64_t count) {
  for (size_t k = 0; k < devices; k++) {
    EK_TRY(ek_tensor_create(&tensors[k], ek_group_device(group, k), EK_MEMORY_INPUTS, type, 1,
                            &count));
  }
  return EK_OK;
}

/* Elements that are wrong: first .. last - 1 are the sum over the ranks, the others have stayed. */
static double wrong_sums(const ek_tensor *tensor, size_t rank, int64_t first, int64_t last,
                         size_t ranks) {
  double wrong = 0;
  for (int64_t i = 0; i < tensor->shape[0]; i++) {
    const size_t times = i >= first && i < last ? ranks * (ranks + 1) / 2 : rank + 1;
    wrong += ck_at(tensor, i) != (double)times * (double)(i % 7);
  }
  return wrong;
}

/* Of a rank's tensor the bits, or how many sums are wrong. */
static double number_of(const struct collective *c, const struct ck_process *process,
                        const ek_tensor *tensor, size_t rank) {
  if (!c->folded) return hash_of_tensor(tensor);
  const bool cut_up = c->kind == 3, none = c->kind == 1 && rank != c->root;
  const int64_t first = cut_up ? c->offsets[rank] : 0;
  const int64_t last = cut_up ? c->offsets[rank + 1] : none ? 0 : tensor->shape[0];
  return wrong_sums(tensor, rank, first, last, process->world);
}

static ek_status collective_case(struct ck_outcome *outcome, const struct ck_process *process,
                                 ek_group *group, struct collective *c, ek_type type,
                                 int64_t count) {
  ek_tensor tensors[RANKS] = {{0}};
  ek_status status = EK_OK;
  const size_t devices = process->devices[process->number];
  c->tensors = tensors;
  EK_TRY_GOTO(status, make_tensors(tensors, devices, group, type, count), cleanup);
  for (size_t k = 0; k < devices; k++) {
    const size_t rank = process->first_rank + k;
    for (int64_t i = 0; i < count && c->folded; i++) { /* small integers: exact in any order */
      ck_put(&tensors[k], i, (double)(rank + 1) * (double)(i % 7));
    }
    if (!c->folded) fill(tensors[k].data, type, count, rank);
  }
  EK_TRY_GOTO(status, run_job(group, run_collective, c), cleanup);
  for (size_t k = 0; k < devices; k++) {
    ck_outcome_add(outcome, number_of(c, process, &tensors[k], process->first_rank + k));
  }
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

/* All kinds, types and lengths; folded: the sums of f32 and f64. */
static void run_collectives(struct ck_outcome *outcome, const struct ck_process *process,
                            ek_group *group, bool folded) {
  struct collective c = {.root = process->world - 1, .folded = folded};
  int64_t offsets[RANKS + 1];
  ck_went(outcome, ek_communicator_open(&c.communicator, group));
  for (int i = 0; i < KINDS * TYPES * COUNTS && outcome->status == EK_OK; i++) {
    const ek_type type = types[i / KINDS % TYPES];
    const int64_t count = counts[i / KINDS / TYPES];
    ck_assign(c, .kind = i % KINDS, .offsets = offsets);
    cut(offsets, count, process->world);
    const bool sums = c.kind > 0 && c.kind < 4;
    if (type == EK_I32 && sums) continue; /* of floats alone */
    if (folded && (!sums || (type != EK_F32 && type != EK_F64))) continue;
    ck_went(outcome, collective_case(outcome, process, group, &c, type, count));
  }
  ek_communicator_free(c.communicator);
}

static void all_collectives(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  run_collectives(outcome, process, group, false);
}

static const struct {
  size_t count, devices[CK_PROCESSES];
} places[] = {{2, {2, 2}}, {2, {1, 2}}, {2, {3, 1}}, {3, {1, 2, 1}}, {4, {1, 1, 1, 1}}};

enum { PLACES = sizeof places / sizeof places[0] };

/* A part in these processes, and in one process with all their devices. Each outcome has `blocks`
 * times a number for each of its devices. */
static void agrees_with_one_process(const char *part,
                                    void (*run)(struct ck_outcome *, const struct ck_process *),
                                    int place) {
  const size_t *devices = places[place].devices, count = places[place].count;
  size_t world = 0;
  for (size_t i = 0; i < count; i++) world += devices[i];
  const struct ck_outcome *want = ck_processes_alone(part, run, world);
  const struct ck_outcome *got = ck_processes_done(part, devices, count);
  const size_t blocks = want->count / world;
  ck_assert_uint_gt(blocks, 0);
  for (size_t i = 0, first = 0; i < count; first += devices[i], i++) {
    ck_assert_uint_eq(got[i].count, blocks * devices[i]);
    for (size_t k = 0; k < got[i].count; k++) {
      const size_t block = k / devices[i], rank = first + k % devices[i];
      const double number = got[i].numbers[k], other = want->numbers[block * world + rank];
      ck_assert_msg(same_number(number, other), "block %zu of rank %zu is not that of one process",
                    block, rank);
    }
  }
}

CK_LOOP(collectives_have_the_bits_of_one_process, PLACES) {
  agrees_with_one_process("collectives", all_collectives, _i);
}

/* reduce, all_reduce and reduce_scatter, where the devices of a process are added up first. */
static void folded_sums(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_group *group = NULL;
  if (!ck_went(outcome, ck_process_open_folding(&group, process, 0))) return;
  run_collectives(outcome, process, group, true);
  ck_went(outcome, ek_group_close(group));
}

CK_LOOP(devices_of_a_process_are_added_up_first, PLACES) {
  struct ck_outcome *outcomes = ck_processes_done("folded", places[_i].devices, places[_i].count);
  for (size_t p = 0; p < places[_i].count; p++) {
    ck_assert_uint_eq(outcomes[p].count, 18 * places[_i].devices[p]);
    for (size_t k = 0; k < outcomes[p].count; k++) ck_assert_double_eq(outcomes[p].numbers[k], 0);
  }
}

/* ---- training ---- */

/* The first in all places, the others in two of them. */
CK_LOOP(training_has_the_bits_of_one_process, PLACES + 2 * (TRAININGS - 1)) {
  const int more = _i - PLACES;
  if (more < 0) {
    agrees_with_one_process(trainings[0].part, train, _i);
  } else {
    agrees_with_one_process(trainings[1 + more / 2].part, train, 1 + more % 2 * 2);
  }
}

/* ---- memory ---- */

CK_TEST(memory_is_what_plan_counts) {
  if (on_gpus()) return;
  const size_t devices[] = {1, 2};
  struct ck_outcome *outcomes = ck_processes_done("memory", devices, 2);
  for (size_t i = 0; i < 2; i++) {
    ck_assert_uint_eq(outcomes[i].count, 4 * devices[i]);
    for (size_t k = 0; k < 2 * devices[i]; k++) {
      ck_assert_double_eq(outcomes[i].numbers[k], outcomes[i].numbers[2 * devices[i] + k]);
      ck_assert_double_gt(outcomes[i].numbers[k], 0);
    }
  }
}

/* Only the order of sums differs: numbers of the steps are close (each is a sum of thousands of
 * roundings of 2^-24, or of 2^-8 in bf16), and all processes have the same. */
CK_LOOP(shares_inside_processes, 2 * INSIDE) {
  const struct training *it = &trainings[TRAININGS + _i / 2];
  const size_t count = _i % 2 == 0 ? 4 : 2, each = 4 / count, even[] = {each, each, each, each};
  const double tolerance = it->precision == EK_PRECISION_BF16 ? 0.05 : 1e-4;
  const struct ck_outcome *want = ck_processes_alone(it->part, train, 4);
  const struct ck_outcome *outcomes = ck_processes_done(it->part, even, count);
  ck_assert_uint_eq(outcomes[0].count, want->count / count);
  for (size_t i = 0; i + each < outcomes[0].count; i++) { /* without the hashes of parameters */
    const double own = outcomes[0].numbers[i], other = want->numbers[i / each * 4];
    for (size_t p = 1; p < count; p++) {
      ck_assert_msg(own == outcomes[p].numbers[i], "number %zu: %g and %g", i, own,
                    outcomes[p].numbers[i]);
    }
    ck_assert_msg(fabs(own - other) <= tolerance * fmax(1, fabs(other)),
                  "number %zu: %.9g, not %.9g", i, own, other);
  }
}

/* Losses, norms and parameters of one device, of four, and of processes that have them in any way.
 * The hash of parameters is of all shares of a process together. */
CK_LOOP(reproducible_over_any_processes, ANY * PLACES) {
  const struct training *it = &trainings[TRAININGS + INSIDE + _i / PLACES];
  const int place = _i % PLACES;
  const size_t *devices = places[place].devices, count = places[place].count;
  const struct ck_outcome *want = ck_processes_alone(it->part, train, 1);
  const struct ck_outcome *outcomes = ck_processes_done(it->part, devices, count);
  for (size_t p = 0; p < count; p++) {
    ck_assert_uint_eq(outcomes[p].count, want->count * devices[p]);
    for (size_t i = 0; i < outcomes[p].count; i++) {
      const bool hash = i / devices[p] + 1 == want->count;
      const double own = outcomes[p].numbers[i], other = want->numbers[i / devices[p]];
      if (hash && it->mode == EK_MODE_FULLY_SHARDED) continue; /* of a share */
      if (hash && it->precision != EK_PRECISION_DEFAULT) continue; /* masters are shares */
      ck_assert_msg(same_number(own, other), "process %zu, number %zu: %.17g, not %.17g", p, i, own,
                    other);
    }
  }
}

CK_TEST(rows_of_other_grains_are_refused) {
  has_numbers("wrong rows", (const size_t[]){1, 1}, 2, (const double[]){EK_ERR_SHAPE, 1}, 2);
}

CK_TEST(shares_inside_need_as_many_devices_everywhere) {
  const size_t devices[] = {1, 2};
  struct ck_outcome *outcomes = ck_processes_outcomes("differ in devices", devices, 2);
  for (size_t i = 0; i < 2; i++) {
    fails_with(&outcomes[i], EK_ERR_INVALID_ARGUMENT, "the same number of devices");
  }
}

/* ---- state ---- */

CK_LOOP(state_and_gradients_are_whole, PLACES) {
  agrees_with_one_process("read states", read_states, _i);
}

/* ---- files of a run ---- */

CK_LOOP(a_run_goes_on_in_other_processes, PLACES) {
  static const char *const savers[] = {"save sharded", "save fully-sharded"};
  static const char *const loaders[] = {"load replicated", "load sharded-gradients"};
  const int next = (_i + 1) % PLACES;
  const char *folder = ck_folder();
  ck_assert_int_eq(setenv(FOLDER_VARIABLE, folder, 1), 0);
  (void)ck_processes_done(savers[_i % 2], places[_i].devices, places[_i].count);
  const struct ck_outcome *want = ck_processes_alone("load replicated", save_or_load, 1);
  ck_assert_double_eq(want->numbers[2], 77);
  ck_assert_double_eq(want->numbers[3], 2);
  const struct ck_outcome *outcomes =
      ck_processes_done(loaders[_i % 2], places[next].devices, places[next].count);
  for (size_t p = 0; p < places[next].count; p++) {
    ck_assert_uint_eq(outcomes[p].count, want->count);
    for (size_t i = 0; i < want->count; i++) {
      ck_assert_msg(outcomes[p].numbers[i] == want->numbers[i], "number %zu of process %zu", i, p);
    }
  }
  /* The last one alone was kept. */
  ck_assert_int_eq(unlink(ck_state_file(folder, 2)), 0);
}

/* ---- what is refused ---- */

CK_TEST(what_needs_one_process_is_refused) {
  has_numbers("refusals", (const size_t[]){1, 2}, 2,
              (const double[]){EK_ERR_UNSUPPORTED, 1, EK_ERR_UNSUPPORTED, 1}, 4);
}

/* ---- failures ---- */

enum disaster { DIES, HANGS, STOPS, FAILS, OTHER_COLLECTIVE, DISASTERS };

static const char *const disasters[] = {"dies", "hangs", "stops", "fails", "other collective"};

struct failing_job {
  struct collective collective;
  const struct ck_process *process;
  enum disaster disaster;
  bool second; /* the first round went well everywhere */
};

/* The whole process, which another one continues. */
static void stop_for(unsigned seconds) {
  const pid_t self = getpid(), other = fork();
  if (other == 0) {
    sleep(seconds);
    (void)kill(self, SIGCONT);
    _exit(0);
  }
  (void)kill(self, SIGSTOP);
  (void)waitpid(other, NULL, 0);
}

/* Process 1 does it, on its last device, when the first job has gone well. */
CK_JOB(meet_disaster) {
  struct failing_job *job = context;
  struct collective c = job->collective;
  const bool victim =
      job->second && job->process->number == 1 && index + 1 == job->process->devices[1];
  if (victim && job->disaster == DIES) (void)raise(SIGKILL);
  if (victim && job->disaster == STOPS) stop_for((unsigned)(3 * SHORT_LIMIT + 1));
  if (victim && job->disaster == HANGS) sleep((unsigned)(SHORT_LIMIT + 1));
  if (victim && job->disaster == FAILS) return ek_error_set(EK_ERR_SHAPE, "a victim's own words");
  if (job->second && job->process->number == 1 && job->disaster == OTHER_COLLECTIVE) c.kind = 0;
  EK_TRY(run_one(&c, device, &c.tensors[index]));
  return ek_communicator_wait(c.communicator, device);
}

/* After the error: the next collective works, or has the same error if a process is lost. */
static void look_after(struct ck_outcome *outcome, ek_group *group, struct failing_job *job) {
  const ek_status again = run_job(group, run_collective, &job->collective);
  ck_outcome_add(outcome, (double)again);
  const char *why = strstr(outcome->message, "process "); /* a replica's name may come before it */
  ck_outcome_add(outcome, again == EK_OK || strstr(ek_error_message(), why) != NULL);
}

static void disaster(struct ck_outcome *outcome, const struct ck_process *process) {
  enum disaster kind = DIES;
  while (strcmp(disasters[kind], process->part) != 0) kind++;
  ek_group *group = NULL;
  ek_tensor tensors[RANKS] = {{0}};
  enum { COUNT = 100000 };
  struct failing_job job = {.process = process, .disaster = kind};
  job.collective = (struct collective){.tensors = tensors, .kind = 2};
  if (!ck_went(outcome, ck_process_open(&group, process, SHORT_LIMIT))) return;
  const size_t devices = process->devices[process->number];
  bool well = ck_went(outcome, ek_communicator_open(&job.collective.communicator, group)) &&
              ck_went(outcome, make_tensors(tensors, devices, group, EK_F32, COUNT));
  for (size_t k = 0; k < devices && well; k++) memset(tensors[k].data, 0, COUNT * sizeof(float));
  well = well && ck_went(outcome, run_job(group, meet_disaster, &job));
  job.second = true;
  if (well && ck_went(outcome, run_job(group, meet_disaster, &job))) {
    outcome->status = EK_ERR_INTERNAL;
    (void)snprintf(outcome->message, sizeof outcome->message, "nothing failed");
  }
  if (well) look_after(outcome, group, &job);
  for (size_t k = 0; k < RANKS; k++) ek_tensor_free(&tensors[k]);
  ek_communicator_free(job.collective.communicator);
  const ek_status freed = ek_group_close(group);
  ck_outcome_add(outcome, (double)freed);
}

/* It has failed as it should, in time, has gone on if no process is lost, and could be freed. */
static void has_ended(const struct ck_outcome *outcome, ek_status status, const char *words,
                      ek_status next) {
  fails_with(outcome, status, words);
  ck_assert_double_lt(outcome->seconds, 4 * SHORT_LIMIT + 5);
  ck_assert_uint_eq(outcome->count, 3);
  ck_assert_int_eq((ek_status)outcome->numbers[0], next);
  ck_assert_double_eq(outcome->numbers[1], 1);
  ck_assert_int_eq((ek_status)outcome->numbers[2], EK_OK);
}

CK_LOOP(an_error_in_one_process_is_one_in_all, 2 * DISASTERS) {
  static const struct {
    ek_status own, others;
    const char *said, *heard;
    ek_status next;
  } expected[DISASTERS] = {
      [DIES] = {EK_OK, EK_ERR_UNAVAILABLE, "", "process 1 on ", EK_ERR_UNAVAILABLE},
      [HANGS] = {EK_ERR_UNAVAILABLE, EK_ERR_UNAVAILABLE, "process 1 on ", "process 1 on ",
                 EK_ERR_UNAVAILABLE},
      [STOPS] = {EK_ERR_UNAVAILABLE, EK_ERR_UNAVAILABLE, "process 1 on ", "gave no sign of life",
                 EK_ERR_UNAVAILABLE},
      [FAILS] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "process 1 on", "a victim's own words", EK_OK},
      [OTHER_COLLECTIVE] = {EK_ERR_SHAPE, EK_ERR_SHAPE, "in a broadcast of 100000 f32",
                            "process 0 is in an all_reduce of 100000 f32", EK_OK}};
  const enum disaster kind = (enum disaster)(_i / 2);
  const bool waits = kind == HANGS || kind == STOPS; /* a case of seconds is seen once */
  const size_t devices[] = {2, 2, 1}, count = 2 + (size_t)_i % 2;
  if (waits && count == 2) return;
  if (on_gpus() && kind != DIES && kind != FAILS) return;
  struct ck_outcome *outcomes = ck_processes_outcomes(disasters[kind], devices, count);
  for (size_t i = 0; i < count; i++) {
    if (i != 1) {
      has_ended(&outcomes[i], expected[kind].others, expected[kind].heard, expected[kind].next);
    } else if (kind == DIES) {
      ck_assert_int_eq(WTERMSIG(outcomes[i].exit), SIGKILL);
    } else {
      has_ended(&outcomes[i], expected[kind].own, expected[kind].said, expected[kind].next);
    }
  }
}

CK_LOOP(a_trainer_has_the_bits_of_one_process, PLACES) {
  agrees_with_one_process("trainer", use_trainer, _i);
}

static const struct ck_part parts[] = {
    {"collectives", all_collectives}, {"folded", folded_sums}, {"wrong rows", wrong_rows},
    {"differ in devices", differ_in_devices}, {"trainer", use_trainer}, {"memory", count_memory},
    {"read states", read_states}, {"save sharded", save_or_load},
    {"save fully-sharded", save_or_load}, {"load replicated", save_or_load},
    {"load sharded-gradients", save_or_load}, {"refusals", refusals}, {"dies", disaster},
    {"hangs", disaster}, {"fails", disaster}, {"other collective", disaster}, {"stops", disaster},
    {NULL, train}};

CK_PARTS_SUITE("processes", parts)
