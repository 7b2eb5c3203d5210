/*
 * check_agreement.c - what fails in one process fails in all of them in the same call, with the
 * same words, leaves the state as it was, and the next step has the bits that it would have had.
 *
 * The failure of a process in its next call ends no call that the others are still in.
 *
 * The processes of a test talk past the library (tell_all), so that a part knows what the others
 * got from a call, and all of them try the same number of failures.
 */
#include <time.h>

#include "ck_processes.h"
#include "ck_training.h"

enum { COUNT = 3, VICTIM = 1, SAMPLES = 2, WAYS = 4, MOST = 4000 };

/* Seconds in which all processes have the error of one. */
#define SOON (1.0 * (1 + 9 * (CK_TSAN || CK_ASAN)))

static void complain(struct ck_outcome *outcome, const char *words, uint64_t n) {
  if (outcome->status != EK_OK) return;
  outcome->status = EK_ERR_INTERNAL;
  (void)snprintf(outcome->message, sizeof outcome->message, "%s (failure number %llu): %s", words,
                 (unsigned long long)n, ek_error_message());
}

/* The numbers of all processes. */
static void tell_all(const struct ck_process *process, uint64_t mine, uint64_t all[COUNT]) {
  if (ck_process_gather(process, &mine, sizeof mine, all) != EK_OK) abort();
}

static bool all_same(const struct ck_process *process, uint64_t mine) {
  uint64_t all[COUNT] = {0};
  bool same = true;
  tell_all(process, mine, all);
  for (size_t p = 0; p < process->count; p++) same = same && all[p] == mine;
  return same;
}

static bool any(const struct ck_process *process, bool mine) {
  uint64_t all[COUNT] = {0};
  tell_all(process, mine, all);
  return (all[0] | all[1] | all[2]) != 0;
}

/* ---- failures of work and of memory ---- */

/* Parameters of all devices here. */
static uint64_t hash_of_model(const ek_data_parallel_model *model, size_t devices) {
  uint64_t hash = 0;
  for (size_t k = 0; k < devices; k++) {
    const ek_tensor *flat = ek_replica_parameters(ek_data_parallel_model_replica(model, k));
    if (flat->data != NULL) hash ^= ck_hash(CK_HASH, flat->data, ek_tensor_bytes(flat));
  }
  return hash;
}

struct trial {
  const struct ck_process *process;
  struct ck_outcome *outcome;
  struct ck_setup setup;
  ek_group *group;
  bool whole; /* a step is one call, of a trainer */
  ek_trainer *trainer;
  struct ck_training training; /* else */
  struct ck_batch batch;
  bool warm;
  uint64_t fresh; /* state before each failure */
  double longest; /* seconds until an error was everywhere */
};

/* When the devices have ended what was queued. */
static uint64_t state_of(const struct trial *trial) {
  if (ek_group_synchronize(trial->group) != EK_OK) abort();
  return hash_of_model(trial->whole ? ek_trainer_model(trial->trainer) : trial->training.model,
                       ek_group_size(trial->group));
}

static ek_status one_step(struct trial *trial) {
  const struct ck_batch *batch = &trial->batch;
  ek_step_result result;
  if (!trial->whole) return ck_training_step(&trial->training, batch, &result);
  return ek_trainer_step(NULL, trial->trainer, batch->input, batch->inputs, batch->target,
                         batch->targets);
}

static void close_all(struct trial *trial) {
  if (trial->training.model != NULL) ck_training_free(&trial->training);
  memset(&trial->training, 0, sizeof trial->training);
  ek_trainer_free(trial->trainer);
  trial->trainer = NULL;
}

static bool reopen(struct trial *trial) {
  close_all(trial);
  if (trial->whole) {
    trial->trainer = ck_trainer_open(&trial->setup);
  } else if (!ck_went(trial->outcome,
                      ck_training_try(&trial->training, &trial->setup, trial->group))) {
    return false;
  }
  /* When the arenas are warm, a step makes fewer requests. */
  if (trial->warm && !ck_went(trial->outcome, one_step(trial))) return false;
  trial->fresh = state_of(trial);
  return true;
}

/* Makes the n-th work or allocation fail; the last device of the victim, or its host. */
static ek_status arm(const struct trial *trial, int way, uint64_t n) {
  const size_t last = ek_group_size(trial->group) - 1;
  ek_device *device = ek_group_device(trial->group, last);
  if (trial->process->number != VICTIM) return EK_OK;
  switch (way) {
  case 0: return ek_fault_at(device, n, n == 0 ? EK_OK : EK_ERR_UNAVAILABLE);
  case 1: return ek_fault_at(ek_group_device(trial->group, 0), n, n == 0 ? EK_OK : EK_ERR_IO);
  case 2: return ek_memory_fail_at(device, n);
  default: ek_host_memory_fail_at(n); return EK_OK;
  }
}

static bool reopen_torn(struct trial *trial, uint64_t n, uint64_t *torn) {
  const ek_status next = one_step(trial);
  ++*torn;
  if (next != EK_ERR_TORN || !all_same(trial->process, (uint64_t)next)) {
    complain(trial->outcome, "an error stayed in one process", n);
  }
  (void)reopen(trial);
  return !any(trial->process, trial->outcome->status != EK_OK);
}

/* One step with failure number n. True if it was not reached, and the step went well everywhere. */
static bool try_one(struct trial *trial, int way, uint64_t n, uint64_t *torn) {
  const struct ck_process *process = trial->process;
  struct ck_outcome *outcome = trial->outcome;
  char words[2048];
  if (!ck_went(outcome, arm(trial, way, n))) return true;
  const double begun = ck_now();
  const ek_status status = one_step(trial);
  const double seconds = ck_now() - begun;
  (void)snprintf(words, sizeof words, "%s", status == EK_OK ? "" : ek_error_message());
  (void)arm(trial, way, 0);
  uint64_t all[COUNT];
  tell_all(process, (uint64_t)status, all);
  const bool mixed = all[0] != all[1] || all[1] != all[2];
  if (!mixed && status == EK_OK) return true;
  /* Only an update that has begun fails in one process alone, or changes what there was: the next
   * call finds the model torn in all of them. */
  const bool changed = !mixed && state_of(trial) != trial->fresh;
  if (any(process, mixed || changed)) return !reopen_torn(trial, n, torn);
  if (!all_same(process, ck_hash(CK_HASH, words, strlen(words))))
    complain(outcome, "other words", n);
  if (strstr(words, "process 1 on ") == NULL) complain(outcome, "no name", n);
  if (seconds > SOON) complain(outcome, "too late", n);
  if (seconds > trial->longest) trial->longest = seconds;
  return any(process, outcome->status != EK_OK);
}

/* The update of `rule` needs a norm or not. */
static void fail_everywhere(struct ck_outcome *outcome, const struct ck_process *process,
                            ek_mode mode, bool whole, ek_status (*rule)(ek_optimizer **)) {
  struct trial trial = {.process = process, .outcome = outcome, .whole = whole};
  const struct ck_workload *workload = ck_workload("mlp");
  uint64_t torn = 0, tried = 0;
  ck_assign(trial, .setup = ck_setup_mode(workload, "", mode), .setup.optimizer = rule,
            .setup.options.bucket_bytes = 4096);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  trial.group = group;
  trial.setup.group = trial.group;
  trial.batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 7 + process->number);
  for (int way = 0; way < WAYS && outcome->status == EK_OK; way++) {
    trial.warm = way > 0;
    if (!reopen(&trial)) break;
    for (uint64_t n = 1; n < MOST && !try_one(&trial, way, n, &torn); n++) tried++;
    ck_outcome_add(outcome, (double)(state_of(&trial) >> 12)); /* after the good step */
  }
  ck_outcome_add(outcome, (double)tried);
  ck_outcome_add(outcome, (double)torn);
  ck_outcome_add(outcome, trial.longest);
  close_all(&trial);
}

static void fail_replicated(struct ck_outcome *o, const struct ck_process *p) {
  fail_everywhere(o, p, EK_MODE_REPLICATED, false, ck_clipped_adamw);
}
static void fail_sharded(struct ck_outcome *o, const struct ck_process *p) {
  fail_everywhere(o, p, EK_MODE_SHARDED, true, ck_clipped_adamw);
}
static void fail_fully(struct ck_outcome *o, const struct ck_process *p) {
  fail_everywhere(o, p, EK_MODE_FULLY_SHARDED, true, ck_plain_adamw);
}

static void none_fails(struct ck_outcome *outcome, const struct ck_process *process) {
  struct trial trial = {.process = process, .outcome = outcome};
  const struct ck_workload *workload = ck_workload("mlp");
  ck_assign(trial, .setup = ck_setup_mode(workload, "", EK_MODE_REPLICATED),
            .setup.optimizer = ck_clipped_adamw, .setup.options.bucket_bytes = 4096);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  trial.group = group;
  trial.batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 7 + process->number);
  if (reopen(&trial)) {
    for (int step = 0; step < 2 && ck_went(outcome, one_step(&trial)); step++) {
      ck_outcome_add(outcome, (double)(state_of(&trial) >> 12));
    }
    close_all(&trial);
  }
}

static const size_t devices[COUNT] = {1, 2, 1};

CK_LOOP(each_failure_is_one_in_all, 3) {
  static const char *const parts[] = {"fail replicated", "fail sharded", "fail fully-sharded"};
  struct ck_outcome *well = ck_processes_done("none fails", devices, COUNT);
  double longest = 0;
  struct ck_outcome *outcomes = ck_processes_done(parts[_i], devices, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    const double *got = outcomes[i].numbers;
    ck_assert_uint_eq(outcomes[i].count, WAYS + 3);
    /* Whole parameters are the same in all modes: after one step, or two. */
    for (int way = 0; way < WAYS && _i < 2; way++) {
      ck_assert_msg(got[way] == well[i].numbers[way > 0], "way %d of process %zu", way, i);
    }
    ck_assert_double_gt(got[WAYS], 60);
    ck_assert_double_lt(got[WAYS + 1], 40); /* work of an update alone */
    if (got[WAYS + 2] > longest) longest = got[WAYS + 2];
  }
  printf("%s: %.0f failures, one answer after at most %.3f s\n", parts[_i],
         outcomes->numbers[WAYS], longest);
}

/* ---- a step that goes on while another model of the group fails ---- */

enum { MOST_STEPS = 128 };

static uint64_t hash_after(const struct ck_training *training) {
  if (ek_group_synchronize(training->group) != EK_OK) abort();
  return hash_of_model(training->model, ek_group_size(training->group));
}

/* Steps of two micro-batches. */
static ek_status first_half(struct ck_training *training, const struct ck_batch *batch) {
  return ck_training_backward(training, batch, NULL, true, NULL);
}

/* A step of `other` fails in the middle of one that ends with the bits that it would have had; or
 * is refused in all processes, and taken again. False if the failure was one of an update. */
static bool step_beside(const struct trial *trial, struct ck_training *training,
                        struct ck_training *other, uint64_t n, size_t *again) {
  const struct ck_batch *batch = &trial->batch;
  if (!ck_went(trial->outcome, first_half(training, batch))) return false;
  if (!ck_went(trial->outcome, arm(trial, 0, n))) return false;
  const ek_status failed = ck_training_step(other, batch, NULL);
  if (!ck_went(trial->outcome, arm(trial, 0, 0))) return false;
  if (any(trial->process, failed == EK_OK || failed == EK_ERR_TORN)) return false;
  ek_status status = ck_training_step(training, batch, NULL);
  if (status == EK_ERR_STATE) {
    ++*again;
    status = first_half(training, batch);
    if (status == EK_OK) status = ck_training_step(training, batch, NULL);
  }
  return ck_went(trial->outcome, status);
}

static void fail_beside(struct ck_outcome *outcome, const struct ck_process *process) {
  const struct ck_workload *workload = ck_workload("mlp");
  struct trial trial = {.process = process, .outcome = outcome};
  struct ck_training trainings[3];
  uint64_t wanted[MOST_STEPS] = {0};
  size_t again = 0, step = 0;
  CK_WITH(struct ck_setup, setup, ck_setup_mode(workload, "", EK_MODE_SHARDED_GRADIENTS),
          .optimizer = ck_plain_adamw, .options.bucket_bytes = 4096);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  trial.group = group;
  for (size_t i = 0; i < 3; i++) {
    if (!ck_went(outcome, ck_training_try(&trainings[i], &setup, trial.group))) return;
  }
  trial.batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 7 + process->number);
  for (size_t i = 0; i < MOST_STEPS && outcome->status == EK_OK; i++) {
    ck_went(outcome, first_half(&trainings[0], &trial.batch));
    ck_went(outcome, ck_training_step(&trainings[0], &trial.batch, NULL));
    wanted[i] = hash_after(&trainings[0]);
  }
  while (step < MOST_STEPS &&
         step_beside(&trial, &trainings[1], &trainings[2], step + 1, &again)) {
    if (hash_after(&trainings[1]) != wanted[step++]) complain(outcome, "other bits", step);
  }
  ck_outcome_add(outcome, (double)step);
  ck_outcome_add(outcome, (double)again);
  for (size_t i = 0; i < 3; i++) ck_training_free(&trainings[i]);
}

CK_TEST(a_step_goes_on_while_another_model_fails) {
  const struct ck_outcome *outcomes = ck_processes_done("fail beside", devices, COUNT);
  for (size_t i = 0; i < COUNT; i++) {
    ck_assert_double_gt(outcomes[i].numbers[0], 10);
    ck_assert_double_lt(outcomes[i].numbers[0], MOST_STEPS);
    ck_assert_double_eq(outcomes[i].numbers[1], outcomes[0].numbers[1]);
  }
  printf("%.0f failures, %.0f steps were taken again\n", outcomes->numbers[0],
         outcomes->numbers[1]);
}

/* ---- calls that one process makes wrongly ---- */

enum { WRONG_CALLS = 5 };

/* Number `which` is refused in the victim alone, or differs from the others' call: it wants no
 * result, and so no norm. */
static ek_status wrong_call(ek_trainer *trainer, const struct ck_batch *batch, int which,
                            bool wrongly) {
  ek_step_result result;
  struct ck_batch changed = *batch;
  if (wrongly && which == 0) changed.input[0].rank = 0;
  if (wrongly && which == 1) changed.targets = 0;
  if (wrongly && which == 2) changed.target[0].type = EK_BF16;
  if (wrongly && which == 3) changed.inputs = 0;
  return ek_trainer_step(wrongly && which == 4 ? NULL : &result, trainer, changed.input,
                         changed.inputs, changed.target, changed.targets);
}

static void wrong_calls(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", EK_MODE_SHARDED);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 3);
  ek_trainer *trainer = NULL;
  setup.optimizer = ck_plain_adamw;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  setup.group = group;
  trainer = ck_trainer_open(&setup);
  for (int which = 0; which < WRONG_CALLS; which++) {
    const ek_status status = wrong_call(trainer, &batch, which, process->number == VICTIM);
    const char *words = ek_error_message();
    if (status == EK_OK || !all_same(process, ck_hash(CK_HASH, words, strlen(words)))) {
      complain(outcome, "a call that one process makes wrongly", (uint64_t)which);
    }
    if (!ck_went(outcome, wrong_call(trainer, &batch, which, false))) break;
  }
  ek_trainer_free(trainer);
}

CK_TEST(a_call_that_one_process_makes_wrongly) {
  (void)ck_processes_done("wrong calls", devices, COUNT);
}

/* ---- what must be the same ---- */

static const char *const differences[] = {
    "placement of state = ", "precision = ", "seed = 99",      "bucket bytes = 64", "module = ",
    "reduction = ",          "clip norm = ", "loss scale = ", "micro-batches = 3"};

enum { DIFFERENCES = sizeof differences / sizeof differences[0] };

static const ek_loss_scale fixed = {.kind = EK_LOSS_SCALE_STATIC, .scale = 8};

static struct ck_setup set_up(ek_group *group, int which, bool differs) {
  CK_WITH(struct ck_setup, setup, ck_setup_mode(ck_workload("mlp"), "", EK_MODE_REPLICATED),
          .group = group, .optimizer = ck_clipped_adamw, .options.bucket_bytes = 4096);
  if (!differs) return setup;
  switch (which) {
  case 0: setup.options.state = EK_STATE_SHARDED; break;
  case 1: setup.options.precision = EK_PRECISION_BF16; break;
  case 2: setup.options.seed = 99; break;
  case 3: setup.options.bucket_bytes = 64; break;
  case 4: setup.workload = ck_workload("mixer"); break;
  case 5: setup.reduction = EK_REDUCTION_SUM; break;
  case 6: setup.optimizer = ck_plain_adamw; break;
  case 7: setup.loss_scale = &fixed; break;
  default: break;
  }
  return setup;
}

static ek_status open_differently(ek_group *group, int which, bool differs) {
  const struct ck_setup setup = set_up(group, which, differs);
  struct ck_training training;
  if (which < 8) {
    EK_TRY(ck_training_try(&training, &setup, group));
    ck_training_free(&training);
    return EK_OK;
  }
  CK_FREED(module) *module = NULL;
  CK_FREED(criterion) *criterion = NULL;
  CK_FREED(trainer) *trainer = NULL;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .group = group,
          .micro_batches = differs ? 3 : 2);
  EK_TRY(setup.workload->module(&module));
  EK_TRY(setup.workload->criterion(&criterion, EK_REDUCTION_MEAN));
  return ek_trainer_open(&trainer, NULL, module, criterion, NULL, &options);
}

static void differ(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  for (int which = 0; which < DIFFERENCES; which++) {
    const ek_status status = open_differently(group, which, process->number == VICTIM);
    const char *words = ek_error_message();
    if (status != EK_ERR_INVALID_ARGUMENT || strstr(words, differences[which]) == NULL ||
        strstr(words, "process 1 on ") == NULL ||
        !all_same(process, ck_hash(CK_HASH, words, strlen(words)))) {
      complain(outcome, differences[which], (uint64_t)which);
    }
    if (!ck_went(outcome, open_differently(group, which, false))) break;
  }
}

CK_TEST(what_differs_is_named_in_all) {
  (void)ck_processes_done("differ", devices, COUNT);
}

/* ---- a failure in a later call ---- */

struct job {
  ek_communicator *communicator;
  bool fails, takes_long;
};

CK_JOB(add_up) {
  const struct job *job = context;
  const struct timespec nap = {.tv_nsec = 400000000};
  const int64_t seven = 7;
  CK_FREED(tensor) tensor = {0};
  if (job->fails) return ek_error_set(EK_ERR_IO, "the disk is gone");
  EK_TRY(ek_tensor_create(&tensor, device, EK_MEMORY_INPUTS, EK_F32, 1, &seven));
  ek_status status = ek_communicator_all_reduce(job->communicator, device, &tensor);
  if (status == EK_OK) status = ek_communicator_wait(job->communicator, device);
  if (job->takes_long) (void)nanosleep(&nap, NULL);
  return status;
}

/* The victim fails in its second call while the others still compute in their first one. */
static void fail_later(struct ck_outcome *outcome, const struct ck_process *process) {
  const bool victim = process->number == VICTIM;
  struct job job = {.takes_long = !victim};
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (ck_went(outcome, ek_communicator_open(&job.communicator, group))) {
    ck_went(outcome, ek_group_apply(group, add_up, &job));
    job = (struct job){.communicator = job.communicator, .fails = victim};
    ek_status status = ek_group_apply(group, add_up, &job);
    if (status == EK_OK) status = ek_group_synchronize(group); /* the sum was queued */
    if (status != EK_ERR_IO || strstr(ek_error_message(), "process 1 on ") == NULL) {
      complain(outcome, "the second call", 0);
    }
    job.fails = false;
    ck_went(outcome, ek_group_apply(group, add_up, &job));
  }
  ek_communicator_free(job.communicator);
}

CK_TEST(a_failure_in_a_later_call_ends_no_earlier_one) {
  (void)ck_processes_done("fail later", devices, COUNT);
}

static const struct ck_part parts[] = {{"fail replicated", fail_replicated},
                                       {"fail sharded", fail_sharded},
                                       {"fail fully-sharded", fail_fully},
                                       {"none fails", none_fails},
                                       {"fail beside", fail_beside},
                                       {"wrong calls", wrong_calls},
                                       {"differ", differ},
                                       {"fail later", fail_later},
                                       {NULL, NULL}};

CK_PARTS_SUITE("agreement", parts)
