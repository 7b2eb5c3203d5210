/*
 * check_traffic.c - the bytes that a process sends in a step: counted by a plan, they are those of
 * the table in docs/memory.md and, to the byte, those of a real step. And which process it is that
 * the others wait for.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>

#include "ck_batch_norm.h"
#include "ck_processes.h"
#include "ck_training.h"

/* What is planned and trained: one linear layer, whose parameters are 4 * WIDTH * WIDTH bytes, or a
 * workload. */
enum { WIDTH = 48, LAYER = 4 * WIDTH * WIDTH };

static ek_status build(void *context, const ek_settings *settings, ek_module **module,
                       ek_criterion **criterion) {
  const char *workload = context;
  if (settings->fused_loss || settings->recompute.kind != EK_RECOMPUTE_NONE) {
    return ek_error_set(EK_ERR_UNSUPPORTED, "no such form");
  }
  if (workload != NULL) {
    EK_TRY(ck_workload(workload)->module(module));
    return ck_workload(workload)->criterion(criterion, EK_REDUCTION_MEAN);
  }
  CK_WITH(ek_linear_options, options, EK_LINEAR_OPTIONS_INIT, .bias = false);
  EK_TRY(ek_linear_create_with(module, WIDTH, WIDTH, &options));
  return ek_mean_squared_error_create(criterion, EK_REDUCTION_MEAN);
}

/* ---- exact cases ---- */

/* Of P processes with D devices each, for S bytes of parameters and as many of gradients. */
static const struct {
  const char *devices;
  size_t processes;
  ek_mode mode;
  ek_shard_over over;
  int64_t micro_batches;
  double layers; /* bytes sent, in layers */
} cases[] = {
    /* One device in each: the table. */
    {"plan:1", 1, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 0},
    {"plan:1", 2, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 2 * 1 / 2.0},
    {"plan:1", 4, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 2 * 3 / 4.0},
    {"plan:1", 4, EK_MODE_REPLICATED, EK_SHARD_WORLD, 5, 2 * 3 / 4.0},
    {"plan:1", 4, EK_MODE_SHARDED, EK_SHARD_WORLD, 1, 3 / 4.0 + 3 / 4.0},
    {"plan:1", 4, EK_MODE_SHARDED_GRADIENTS, EK_SHARD_WORLD, 1, 3 / 4.0 + 3 / 4.0},
    {"plan:1", 4, EK_MODE_SHARDED_GRADIENTS, EK_SHARD_WORLD, 5, 5 * 3 / 4.0 + 3 / 4.0},
    {"plan:1", 4, EK_MODE_FULLY_SHARDED, EK_SHARD_WORLD, 1, 2 * 3 / 4.0},
    /* Two devices in each are added up first: as one device in each; */
    {"plan:2", 2, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 2 * 1 / 2.0},
    {"plan:2", 4, EK_MODE_SHARDED, EK_SHARD_WORLD, 1, 2 * 3 / 4.0},
    {"plan:2", 4, EK_MODE_SHARDED_GRADIENTS, EK_SHARD_WORLD, 5, 5 * 3 / 4.0 + 3 / 4.0},
    {"plan:3", 3, EK_MODE_FULLY_SHARDED, EK_SHARD_WORLD, 1, 2 * 2 / 3.0},
    /* Shares inside: as one device in each. */
    {"plan:2", 4, EK_MODE_SHARDED, EK_SHARD_PROCESS, 1, 2 * 3 / 4.0},
    {"plan:2", 4, EK_MODE_FULLY_SHARDED, EK_SHARD_PROCESS, 1, 2 * 3 / 4.0},
    /* NCCL: as one device in each. */
    {"plan-cuda:2", 4, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 2 * 3 / 4.0},
    /* Groups that are deterministic: each device sends its part to be added up. */
    {"plan:2", 2, EK_MODE_REPLICATED, EK_SHARD_WORLD, 1, 2 * 1 / 2.0 + 1 / 2.0},
    {"plan:2", 4, EK_MODE_SHARDED, EK_SHARD_WORLD, 1, 2 * 3 / 4.0 + 3 / 4.0}};
enum { CASES = sizeof cases / sizeof cases[0], DETERMINISTIC = CASES - 2 };

static ek_data_parallel_model_options model;
static ek_data_parallel_optimizer_options optimizer;
static ek_trainer_options trainer;

/* The task that is planned; it points to the statics above. */
static ek_advise_task make_task(ek_optimizer **rule, ek_tensor *batch, float *values) {
  ck_ok(ek_sgd_create(rule, NULL));
  ck_keep(*rule);
  ck_ok(ek_tensor_host(batch, values, EK_F32, CK_SHAPE(10, WIDTH)));
  model = (ek_data_parallel_model_options)EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  trainer = (ek_trainer_options)EK_TRAINER_OPTIONS_INIT;
  optimizer = (ek_data_parallel_optimizer_options)EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  optimizer.gradient_norm = false; /* whose sum over shares is a few bytes more */
  ck_assign(trainer, .model = &model, .optimizer = &optimizer);
  CK_WITH(ek_advise_task, task, EK_ADVISE_TASK_INIT, .build = build, .optimizer = *rule);
  task.inputs = task.targets = batch;
  task.input_count = task.target_count = 1;
  task.trainer = &trainer;
  return task;
}

static ek_settings settings_of(ek_mode mode, ek_shard_over over, int64_t micro_batches) {
  return (ek_settings){.mode = mode,
                       .micro_batches = micro_batches,
                       .precision = EK_PRECISION_F32,
                       .shard_over = over};
}

/* And the loss and its weight, two f64 of each micro-batch, to be added up. Those of the last one
 * are no data of a collective, except over NCCL. */
static double losses_of(int i) {
  const double devices = i >= DETERMINISTIC ? atof(strchr(cases[i].devices, ':') + 1) : 1;
  const bool nccl = strncmp(cases[i].devices, "plan-cuda", 9) == 0;
  const double sums = (double)cases[i].micro_batches - (nccl ? 0 : 1);
  return cases[i].processes == 1 ? 0 : 16 * devices * sums;
}

CK_LOOP(bytes_are_those_of_the_table, CASES) {
  static float values[10 * WIDTH];
  ek_optimizer *rule = NULL;
  ek_tensor batch;
  ek_advise_task task = make_task(&rule, &batch, values);
  const ek_settings settings = settings_of(cases[_i].mode, cases[_i].over, cases[_i].micro_batches);
  CK_WITH(ek_group_options, group, EK_GROUP_OPTIONS_INIT, .deterministic = _i >= DETERMINISTIC);
  trainer.group_options = &group;
  ck_assign(task, .processes = cases[_i].processes, .link_bytes = 1e6);
  CK_GOT(ek_advice, plan, ek_plan_step(&plan, cases[_i].devices, &task, &settings));
  ck_assert_double_eq((double)plan.sent_bytes, cases[_i].layers * LAYER + losses_of(_i));
  ck_assert(plan.fits && plan.peak_bytes > 0);
  ck_assert_double_eq_tol(plan.exchange_seconds, (double)plan.sent_bytes / 1e6, 1e-12);
  ck_assert_double_gt(plan.seconds, plan.exchange_seconds);
}

CK_TEST(wrong_plans_are_refused) {
  static float values[10 * WIDTH];
  ek_optimizer *rule = NULL;
  ek_tensor batch;
  ek_advice plan;
  ek_group_options place = EK_GROUP_OPTIONS_INIT;
  const ek_advise_task good = make_task(&rule, &batch, values);
  ek_advise_task task = good;
  ek_settings settings = settings_of(EK_MODE_REPLICATED, EK_SHARD_WORLD, 11);
  ck_invalid(ek_plan_step(&plan, "plan:2", &task, NULL), "settings is NULL");
  ck_invalid(ek_plan_step(&plan, "plan:2", &task, &settings), "11 micro-batches of 10 samples");
  settings = settings_of(EK_MODE_BALANCED, EK_SHARD_WORLD, 1);
  ck_ok(ek_plan_step(&plan, "plan:2", &task, &settings));
  ck_bad_with(EK_ERR_UNSUPPORTED, task, processes, 2,
              ek_plan_step(&plan, "plan:2", &task, &settings),
              "mode balanced keeps the state on one device");
  settings.mode = EK_MODE_SHARDED;
  ck_bad(task, link_seconds, -1, ek_plan_step(&plan, "plan:2", &task, &settings),
         "task.link_seconds");
  ck_bad_with(EK_ERR_OVERFLOW, task, processes, SIZE_MAX,
              ek_plan_step(&plan, "plan:2", &task, &settings), "too many");
  place.world_size = 4;
  trainer.group_options = &place;
  ck_bad(task, processes, 2, ek_plan_step(&plan, "plan:2", &task, &settings),
         "among 4 devices; task.processes is 2, expected 0");
  ck_ok(ek_plan_step(&plan, "plan:2", &task, &settings));
  ck_assert_uint_gt(plan.sent_bytes, 0);
}

/* The search leaves out what is not possible between processes, and takes shares inside each. A
 * slow link makes what sends less come first. */
CK_TEST(choices_between_processes) {
  static float values[10 * WIDTH];
  enum { MOST = 64 };
  ek_optimizer *rule = NULL;
  ek_tensor batch;
  ek_advice choices[MOST];
  size_t count = 0, inside = 0;
  uint64_t before = 0;
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  ek_advise_task task = make_task(&rule, &batch, values);
  group.deterministic = true; /* else devices are added up first in all modes */
  trainer.group_options = &group;
  ck_assign(task, .processes = 4, .link_bytes = 1e3);
  ck_ok(ek_advise(choices, &count, MOST, "plan:2@1GiB", &task));
  ck_assert_uint_gt(count, 4);
  for (size_t i = 0; i < count; i++) {
    ek_advice plan;
    ck_assert_int_ge(choices[i].settings.mode, EK_MODE_REPLICATED);
    ck_ok(ek_plan_step(&plan, "plan:2", &task, &choices[i].settings));
    ck_assert_double_eq(plan.seconds, choices[i].seconds);
    ck_assert_uint_eq(plan.peak_bytes, choices[i].peak_bytes);
    ck_assert_uint_ge(plan.sent_bytes, before);
    before = plan.sent_bytes;
    inside += choices[i].settings.shard_over == EK_SHARD_PROCESS;
  }
  ck_assert_uint_eq(inside, 3);
  ck_assert_int_eq(choices[0].settings.shard_over, EK_SHARD_PROCESS);
}

/* ---- real steps ---- */

static const struct {
  const char *workload;
  ek_mode mode;
  ek_precision precision;
  ek_shard_over over;
  int64_t micro_batches;
} steps[] = {{"gpt", EK_MODE_REPLICATED, EK_PRECISION_F32, EK_SHARD_WORLD, 1},
             {"gpt", EK_MODE_REPLICATED, EK_PRECISION_BF16, EK_SHARD_WORLD, 2},
             {"mlp", EK_MODE_SHARDED, EK_PRECISION_F32, EK_SHARD_WORLD, 3},
             {"gpt", EK_MODE_SHARDED_GRADIENTS, EK_PRECISION_F32, EK_SHARD_WORLD, 3},
             {"gpt", EK_MODE_FULLY_SHARDED, EK_PRECISION_BF16, EK_SHARD_WORLD, 2},
             {"mlp", EK_MODE_SHARDED, EK_PRECISION_F32, EK_SHARD_PROCESS, 1},
             {"gpt", EK_MODE_FULLY_SHARDED, EK_PRECISION_F32, EK_SHARD_PROCESS, 2}};
enum { REAL = sizeof steps / sizeof steps[0], ROWS = 6 };

/* Two steps; the bytes of the second. */
static ek_status step_for_real(double *sent, ek_world *world, ek_group *group,
                               const ek_advise_task *task, const ek_settings *settings) {
  CK_FREED(module) *module = NULL;
  CK_FREED(criterion) *criterion = NULL;
  CK_FREED(trainer) *opened = NULL;
  CK_WITH(ek_data_parallel_model_options, own, *task->trainer->model,
          .precision = settings->precision, .shard_over = settings->shard_over);
  CK_WITH(ek_trainer_options, options, *task->trainer, .group = group, .group_options = NULL,
          .model = &own, .micro_batches = settings->micro_batches);
  EK_TRY(ek_data_parallel_model_options_set_mode(&own, settings->mode));
  EK_TRY(task->build(task->context, settings, &module, &criterion));
  EK_TRY(ek_trainer_open(&opened, NULL, module, criterion, task->optimizer, &options));
  for (int i = 0; i < 2; i++) {
    *sent = -(double)ek_world_sent(world);
    EK_TRY(ek_trainer_step(NULL, opened, task->inputs, task->input_count, task->targets,
                           task->target_count));
    *sent += (double)ek_world_sent(world);
  }
  return EK_OK;
}

/* Both numbers of one case. */
static ek_status compare(struct ck_outcome *outcome, const struct ck_process *process,
                         ek_world *world, ek_group *group, size_t which) {
  const size_t devices = process->devices[process->number];
  ek_settings settings = settings_of(steps[which].mode, steps[which].over,
                                     steps[which].micro_batches);
  struct ck_batch batch =
      ck_batch_make(ck_workload(steps[which].workload), EK_F32, ROWS * (int64_t)devices, 0, 1);
  ek_advice plan;
  double sent = 0;
  settings.precision = steps[which].precision;
  CK_WITH(ek_group_options, place, EK_GROUP_OPTIONS_INIT, .world_size = process->world,
          .first_rank = process->first_rank);
  model = (ek_data_parallel_model_options)EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  trainer = (ek_trainer_options)EK_TRAINER_OPTIONS_INIT;
  ck_assign(trainer, .model = &model, .group_options = &place);
  CK_WITH(ek_advise_task, task, EK_ADVISE_TASK_INIT, .build = build,
          .context = (void *)(uintptr_t)steps[which].workload, .inputs = batch.input,
          .targets = batch.target, .input_count = batch.inputs, .target_count = batch.targets,
          .trainer = &trainer);
  CK_FREED(optimizer) *rule = NULL;
  EK_TRY(ck_clipped_adamw(&rule));
  task.optimizer = rule;
  EK_TRY(step_for_real(&sent, world, group, &task, &settings));
  EK_TRY(ek_plan_step(&plan, ck_text("plan:%zu", devices), &task, &settings));
  ck_outcome_add(outcome, sent);
  ck_outcome_add(outcome, (double)plan.sent_bytes);
  return EK_OK;
}

static void count_bytes(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_world *world = NULL;
  ek_group *group = NULL;
  const char *spec = ck_text("cpu:%zu", process->devices[process->number]);
  ck_went(outcome, ck_process_world(&world, process, 0));
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .world = world,
          .threads_per_device = 1);
  if (outcome->status == EK_OK) ck_went(outcome, ek_group_open(&group, spec, &options));
  for (size_t i = 0; i < REAL && outcome->status == EK_OK; i++) {
    ck_went(outcome, compare(outcome, process, world, group, i));
  }
  ek_group_free(group);
  ek_world_free(world);
}

CK_LOOP(bytes_are_those_of_a_plan, 2) {
  static const size_t devices[2][3] = {{1, 1, 1}, {2, 2, 0}};
  const size_t count = _i == 0 ? 3 : 2;
  struct ck_outcome *outcomes = ck_processes_done("bytes", devices[_i], count);
  for (size_t p = 0; p < count; p++) {
    const double *got = outcomes[p].numbers;
    ck_assert_uint_eq(outcomes[p].count, 2 * REAL);
    for (size_t i = 0; i < REAL; i++) {
      ck_assert_msg(got[2 * i] > 0 && got[2 * i] == got[2 * i + 1],
                    "case %zu, process %zu: %.0f bytes, planned were %.0f", i, p, got[2 * i],
                    got[2 * i + 1]);
    }
  }
}

/* ---- work without waiting ---- */

struct lazy {
  ek_communicator *communicator;
  ek_tensor tensor;
  bool slow;
};

CK_JOB(work_and_add) {
  struct lazy *lazy = context;
  const struct timespec nap = {.tv_nsec = 300000000};
  if (lazy->slow) (void)nanosleep(&nap, NULL);
  EK_TRY(ek_communicator_all_reduce(lazy->communicator, device, &lazy->tensor));
  return ek_communicator_wait(lazy->communicator, device);
}

/* Process 1 is slow once; the second job tells all of it. */
static ek_status be_slow(struct ck_outcome *outcome, ek_group *group, const ek_world *world) {
  struct lazy lazy = {.slow = ek_world_process(world) == 1};
  const int64_t one = 1;
  ek_status status = EK_OK;
  EK_TRY(ek_communicator_open(&lazy.communicator, group));
  EK_TRY_GOTO(
      status,
      ek_tensor_create(&lazy.tensor, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_F32, 1, &one),
      cleanup);
  EK_TRY_GOTO(status, ek_group_apply(group, work_and_add, &lazy), cleanup);
  lazy.slow = false;
  EK_TRY_GOTO(status, ek_group_apply(group, work_and_add, &lazy), cleanup);
  for (size_t p = 0; p < 4; p++) ck_outcome_add(outcome, ek_world_busy(world, p));
cleanup:
  ek_tensor_free(&lazy.tensor);
  ek_communicator_free(lazy.communicator);
  return status;
}

static void show_work(struct ck_outcome *outcome, const struct ck_process *process) {
  ek_world *world = NULL;
  ek_group *group = NULL;
  ck_went(outcome, ck_process_world(&world, process, 0));
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .world = world,
          .threads_per_device = 1);
  if (outcome->status == EK_OK) ck_went(outcome, ek_group_open(&group, "cpu:1", &options));
  if (outcome->status == EK_OK) ck_went(outcome, be_slow(outcome, group, world));
  ek_group_free(group);
  ek_world_free(world);
}

/* The others wait for it all that time, and say so. */
CK_TEST(the_slowest_process_is_known) {
  const size_t devices[] = {1, 1, 1};
  struct ck_outcome *outcomes = ck_processes_done("work", devices, 3);
  for (size_t p = 0; p < 3; p++) {
    const double *busy = outcomes[p].numbers;
    ck_assert_double_ge(busy[1], 0.3);
    ck_assert_double_lt(busy[0], busy[1] - 0.15);
    ck_assert_double_lt(busy[2], busy[1] - 0.15);
    ck_assert_double_eq(busy[3], 0);
    ck_assert_mem_eq(busy, outcomes[0].numbers, 4 * sizeof *busy);
  }
}

/* ---- messages ---- */

static atomic_int messages;

/* A norm's sums of a forward, and of a backward, have sizes that no other message has. From the
 * first to the second, buckets are held back; how often one was. */
enum { NORMED = 256, HEADER = 16, MOST_HELD = 1000000 };
#define FORWARD (HEADER + (2 * NORMED + 1) * sizeof(double))
#define BACKWARD (HEADER + 2 * NORMED * sizeof(double))
enum { LARGE = 65536 };
static bool counting, holding, passed;
static int held;
static double sent; /* bytes */

static bool holds_back(const struct msghdr *message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) bytes += message->msg_iov[i].iov_len;
  if (counting && bytes == FORWARD) holding = true;
  if (holding && bytes == BACKWARD) {
    holding = false;
    passed = true;
  }
  const bool holds = holding && bytes >= LARGE && held < MOST_HELD;
  held += holds;
  return holds;
}

/* Stands in front of the C library's: a wire of sockets calls it once for a message. */
ssize_t sendmsg(int socket, const struct msghdr *message, int flags) {
  static ssize_t (*next)(int, const struct msghdr *, int);
  if (next == NULL) *(void **)(void *)&next = dlsym(RTLD_NEXT, "sendmsg");
  atomic_fetch_add(&messages, 1);
  if (holds_back(message)) {
    errno = EAGAIN;
    return -1;
  }
  const ssize_t bytes = next(socket, message, flags);
  if (counting && bytes > 0) sent += (double)bytes;
  return bytes;
}

enum { COUNTED = 10 };

/* Steps whose result has the norm of the gradient, and steps without one. */
static void count_messages(struct ck_outcome *outcome, const struct ck_process *process) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", EK_MODE_SHARDED);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 3, 0, 7 + process->number);
  struct ck_training training;
  ek_step_result result = {0};
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  setup.optimizer = ck_plain_adamw;
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (!ck_went(outcome, ck_training_try(&training, &setup, group))) return;
  for (int with = 0; with < 2 && outcome->status == EK_OK; with++) {
    options.gradient_norm = with == 1;
    ck_training_update_with(&training, &options);
    const int before = atomic_load(&messages);
    for (int i = 0; i < COUNTED; i++) {
      ck_went(outcome, ck_training_step(&training, &batch, &result));
    }
    ck_outcome_add(outcome, atomic_load(&messages) - before);
    ck_outcome_add(outcome, result.gradient_norm);
  }
  ck_training_free(&training);
}

/* The norm is in the message in which the processes agree on the update, so one of the two costs
 * none. */
CK_TEST(the_norm_and_the_agreement_are_one_message) {
  const size_t devices[] = {1, 2, 1};
  struct ck_outcome *outcomes = ck_processes_done("messages", devices, 3);
  for (size_t p = 0; p < 3; p++) {
    const double *got = outcomes[p].numbers;
    ck_assert_double_gt(got[0], 0);
    ck_assert_msg(got[0] == got[2], "%g messages without a norm, %g with one", got[0], got[2]);
    ck_assert_double_lt(got[1], 0);
    ck_assert_double_gt(got[3], 0);
    ck_assert_double_eq(got[3], outcomes[0].numbers[3]);
  }
}

static const struct {
  ek_mode mode;
  ek_shard_over over;
  size_t grains;
} kinds[] = {{EK_MODE_REPLICATED, EK_SHARD_WORLD, 0},
             {EK_MODE_SHARDED, EK_SHARD_PROCESS, 0},
             {EK_MODE_REPLICATED, EK_SHARD_WORLD, 8}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* Messages of steps without a norm, and of the same without an update. */
static void count_agreements(struct ck_outcome *outcome, const struct ck_process *process) {
  CK_PROCESS_GROUP(group, outcome, process, 0);
  for (size_t i = 0; i < KINDS && outcome->status == EK_OK; i++) {
    struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "", kinds[i].mode);
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 4, 0, 7 + process->number);
    ck_assign(setup, .group = group, .optimizer = ck_plain_adamw,
              .options.shard_over = kinds[i].over, .options.reproducible = kinds[i].grains);
    CK_HELD(ek_trainer *, opened, ck_trainer_open(&setup));
    for (int updates = 0; updates < 2; updates++) {
      const int before = atomic_load(&messages);
      for (int step = 0; step < COUNTED; step++) {
        ck_went(outcome, updates ? ek_trainer_step(NULL, opened, batch.input, batch.inputs,
                                                   batch.target, batch.targets)
                                 : ek_trainer_prepare(opened, batch.input, batch.inputs,
                                                      batch.target, batch.targets));
      }
      ck_outcome_add(outcome, atomic_load(&messages) - before);
    }
  }
}

/* The loss is in the message in which the processes agree on the update. */
CK_TEST(the_loss_and_the_agreement_are_one_message) {
  const size_t devices[] = {2, 2};
  struct ck_outcome *outcomes = ck_processes_done("agreements", devices, 2);
  for (size_t p = 0; p < 2; p++) {
    const double *got = outcomes[p].numbers;
    ck_assert_uint_eq(outcomes[p].count, 2 * KINDS);
    for (size_t i = 0; i < KINDS; i++, got += 2) {
      ck_assert_double_gt(got[1], 0);
      ck_assert_msg(got[1] <= got[0], "kind %zu: %g messages with an update, %g without one", i,
                    got[1], got[0]);
    }
  }
}

/* ---- statistics and buckets ---- */

/* The gradient of a layer is 512 KiB in f64. */
static ek_status normed(ek_module **module) {
  ek_module *parts[3] = {NULL};
  EK_TRY(ek_linear_create(&parts[0], NORMED, NORMED, false));
  EK_TRY(ck_batch_norm_create(&parts[1], NORMED));
  EK_TRY(ek_linear_create(&parts[2], NORMED, NORMED, false));
  return ck_sequential(module, parts, 3, NULL);
}

/* In backward the bucket of the last layer is queued first, and then devices wait for the norm. */
static void hold_back_buckets(struct ck_outcome *outcome, const struct ck_process *process) {
  static const struct ck_workload workload = {
      .name = "batch norm", .module = normed, .criterion = ek_mean_squared_error_create,
      .sample = CK_SAMPLE(CK_ROW(NORMED), CK_ROW(NORMED))};
  struct ck_training training;
  CK_WITH(struct ck_setup, setup, ck_setup_mode(&workload, "", EK_MODE_REPLICATED),
          .options.type = EK_F64, .options.bucket_bytes = LARGE);
  struct ck_batch batch = ck_batch_make(&workload, EK_F64, 3, 0, 7 + process->number);
  CK_PROCESS_GROUP(group, outcome, process, 0);
  if (!ck_went(outcome, ck_training_try(&training, &setup, group))) return;
  ck_went(outcome, ck_training_step(&training, &batch, NULL)); /* values have been drawn */
  counting = true;
  ck_went(outcome, ck_training_step(&training, &batch, NULL));
  ck_outcome_add(outcome, passed);
  ck_outcome_add(outcome, held);
  ck_outcome_add(outcome, sent);
  ck_training_free(&training);
}

CK_TEST(statistics_pass_buckets) {
  const size_t devices[] = {1, 1};
  struct ck_outcome *outcomes = ck_processes_done("passing", devices, 2);
  for (size_t p = 0; p < 2; p++) {
    ck_assert_double_eq(outcomes[p].numbers[0], true);
    ck_assert_msg(outcomes[p].numbers[1] > 0 && outcomes[p].numbers[1] < MOST_HELD,
                  "process %zu: %g buckets were held back", p, outcomes[p].numbers[1]);
    /* Gradients, statistics and buffers, but not parameters. */
    ck_assert_msg(outcomes[p].numbers[2] < 1.1 * 2 * NORMED * NORMED * sizeof(double),
                  "process %zu sends %g bytes", p, outcomes[p].numbers[2]);
  }
}

static const struct ck_part parts[] = {
    {"bytes", count_bytes}, {"passing", hold_back_buckets}, {"work", show_work},
    {"messages", count_messages}, {"agreements", count_agreements}, {NULL, NULL}};

CK_PARTS_SUITE("traffic", parts)
