/*
 * check_callers.c - one group, several threads of the program.
 *
 * Jobs, collectives, scatters, copies and failures from several threads at once: every caller gets
 * the result of its own job, with its own message, and its own numbers. And a training step gives
 * the same bits while a loader scatters beside it, or while models and communicators come and go.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "ck_training.h"

#if CK_ASAN || CK_TSAN
enum { ROUNDS = 40 };
#else
enum { ROUNDS = 200 };
#endif
enum { CALLERS = 4, DEVICES = 3, ROWS = 24, WIDTH = 4096, NUMBERS = 1000 };

/* ---- callers: they record, the test asserts when they have been joined ---- */

struct caller {
  ek_group *group;
  int number, round;
  pthread_t thread;
  ek_communicator *communicator;
  ek_tensor sums[DEVICES];
  float values[ROWS * WIDTH], back[ROWS * WIDTH], numbers[NUMBERS];
  char wrong[1024];
};

static void complain(struct caller *caller, const char *what) {
  if (caller->wrong[0] != '\0') return;
  (void)snprintf(caller->wrong, sizeof caller->wrong, "caller %d, round %d: %s: %s", caller->number,
                 caller->round, what, ek_error_message());
}

static atomic_int inside[CALLERS]; /* workers that run a job of a caller */

/* In a third of the rounds one device fails; its peers wait for it in a collective. */
static ek_status job(struct caller *caller, ek_device *device, size_t index) {
  for (int i = 0; i < CALLERS; i++) {
    if (i != caller->number && atomic_load(&inside[i]) != 0) {
      return ek_error_set(EK_ERR_INTERNAL, "beside a job of caller %d", i);
    }
  }
  if (caller->round % 3 == 1 && index == (size_t)caller->round % DEVICES) {
    return ek_error_set(EK_ERR_IO, "wanted by caller %d in round %d", caller->number,
                        caller->round);
  }
  ek_tensor *sum = &caller->sums[index];
  EK_TRY(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), sum,
                    (double)(caller->number + 1) * (double)(index + 1)));
  EK_TRY(ek_communicator_all_reduce(caller->communicator, device, sum));
  return ek_communicator_wait(caller->communicator, device);
}

CK_JOB(counted_job) {
  struct caller *caller = context;
  atomic_fetch_add(&inside[caller->number], 1);
  const ek_status status = job(caller, device, index);
  atomic_fetch_sub(&inside[caller->number], 1);
  return status;
}

static void check_job(struct caller *caller) {
  char want[128];
  const ek_status status = ek_group_apply(caller->group, counted_job, caller);
  if (caller->round % 3 == 1) {
    (void)snprintf(want, sizeof want, ": wanted by caller %d in round %d", caller->number,
                   caller->round);
    if (status != EK_ERR_IO || strstr(ek_error_message(), want) == NULL)
      complain(caller, "failure");
    return;
  }
  if (status != EK_OK) {
    complain(caller, "job");
    return;
  }
  const int64_t count = NUMBERS;
  ek_tensor host;
  if (ek_tensor_host(&host, caller->numbers, EK_F32, 1, &count) != EK_OK ||
      ek_tensor_copy(&host, &caller->sums[caller->round % DEVICES]) != EK_OK) {
    complain(caller, "read");
    return;
  }
  const float sum = (float)(caller->number + 1) * 6; /* 1 + 2 + 3 */
  for (int i = 0; i < NUMBERS; i++) {
    if (caller->numbers[i] != sum) complain(caller, "sum");
  }
}

/* What a loader does, with enough rows that a device's threads share the copies. */
static ek_status move(struct caller *caller) {
  ek_tensor host = {0}, back = {0};
  CK_FREED(shards) shards = {0};
  CK_FREED(tensor) copy = {0};
  memset(caller->back, 0xFF, sizeof caller->back);
  EK_TRY(ek_tensor_host(&host, caller->values, EK_F32, CK_SHAPE(ROWS, WIDTH)));
  EK_TRY(ek_tensor_host(&back, caller->back, EK_F32, CK_SHAPE(ROWS, WIDTH)));
  EK_TRY(ek_scatter(&shards, caller->group, &host, EK_MEMORY_INPUTS, NULL));
  EK_TRY(ek_gather(&copy, &shards, 0, EK_MEMORY_OUTPUTS));
  EK_TRY(ek_tensor_copy(&copy, &host));
  EK_TRY(ek_tensor_copy(&back, &copy));
  return ek_group_synchronize(caller->group);
}

static void *call(void *argument) {
  struct caller *caller = argument;
  for (caller->round = 0; caller->round < ROUNDS && caller->wrong[0] == '\0'; caller->round++) {
    check_job(caller);
    if (caller->round % 4 != caller->number) continue;
    if (move(caller) != EK_OK) complain(caller, "move");
    if (memcmp(caller->values, caller->back, sizeof caller->back) != 0) complain(caller, "rows");
  }
  return NULL;
}

CK_TEST(every_caller_gets_its_own) {
  static struct caller callers[CALLERS];
  memset(callers, 0, sizeof callers);
  ek_group *group = ck_open("cpu:3", 2);
  const int64_t count = NUMBERS;
  for (int i = 0; i < CALLERS; i++) {
    struct caller *caller = &callers[i];
    caller->group = group;
    caller->number = i;
    for (int j = 0; j < ROWS * WIDTH; j++) caller->values[j] = (float)(j * CALLERS + i);
    ck_ok(ek_communicator_open(&caller->communicator, group));
    for (size_t k = 0; k < DEVICES; k++) {
      ck_ok(ek_tensor_create(&caller->sums[k], ek_group_device(group, k), EK_MEMORY_COMMUNICATION,
                             EK_F32, 1, &count));
    }
  }
  int started = 0;
  while (started < CALLERS &&
         pthread_create(&callers[started].thread, NULL, call, &callers[started]) == 0) {
    started++;
  }
  for (int i = 0; i < started; i++) (void)pthread_join(callers[i].thread, NULL);
  ck_assert_int_eq(started, CALLERS);
  for (int i = 0; i < CALLERS; i++) {
    ck_assert_msg(callers[i].wrong[0] == '\0', "%s", callers[i].wrong);
    ek_communicator_free(callers[i].communicator);
    for (size_t k = 0; k < DEVICES; k++) ek_tensor_free(&callers[i].sums[k]);
  }
}

/* ---- another thread beside a training ---- */

enum { STEPS = 12, SAMPLES = 12 };

struct neighbour {
  void *(*function)(void *neighbour);
  const struct ck_setup *setup; /* of the training */
  struct ck_batch batch;
  ek_group *group;
  atomic_bool stop;
  int rounds;
  char wrong[1024];
};

/* A loader, which scatters. */
static void *load(void *argument) {
  struct neighbour *loader = argument;
  static float rows[SAMPLES * 8192];
  const ek_tensor host = {
      .data = rows, .type = EK_F32, .rank = 2, .shape = {SAMPLES, 8192}};
  while (!atomic_load(&loader->stop) && loader->wrong[0] == '\0') {
    CK_FREED(shards) shards = {0};
    CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .ahead = loader->rounds % 2 == 0);
    if (ek_scatter(&shards, loader->group, &host, EK_MEMORY_INPUTS, &options) != EK_OK) {
      (void)snprintf(loader->wrong, sizeof loader->wrong, "%s", ek_error_message());
    }
    loader->rounds++;
  }
  return NULL;
}

static double *train(const struct ck_setup *setup, void *(*beside)(void *)) {
  struct ck_batch batch = ck_batch_make(setup->workload, setup->options.type, SAMPLES, 0.2, 1);
  CK_HELD(ek_group *, group, ck_open(setup->spec, 2));
  CK_GOT(struct ck_training, training, ck_training_try(&training, setup, group));
  static struct neighbour neighbour;
  neighbour = (struct neighbour){.setup = setup, .batch = batch, .group = group};
  pthread_t thread;
  if (beside != NULL) ck_assert_int_eq(pthread_create(&thread, NULL, beside, &neighbour), 0);
  ek_status status = EK_OK;
  for (int i = 0; i < STEPS && status == EK_OK; i++) {
    status = ck_training_step(&training, &batch, NULL);
  }
  char message[1024];
  (void)snprintf(message, sizeof message, "%s", ek_error_message());
  atomic_store(&neighbour.stop, true);
  if (beside != NULL) (void)pthread_join(thread, NULL);
  ck_assert_msg(status == EK_OK, "step: %s", message);
  ck_assert_msg(neighbour.wrong[0] == '\0', "beside: %s", neighbour.wrong);
  ck_assert(beside == NULL || neighbour.rounds > 0);
  double *values = ck_training_read(&training, CK_VALUES);
  ck_training_close(&training);
  return values;
}

static void compare_with_neighbour(int mode, void *(*beside)(void *)) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:3", (ek_mode)mode);
  setup.optimizer = ck_clipped_adamw;
  double *alone = train(&setup, NULL), *got = train(&setup, beside);
  ck_arrays_same("parameters", got, alone);
}

CK_LOOP(a_loader_changes_no_bit, CK_MODES) {
  compare_with_neighbour(_i, load);
}

/* A model that has had a step, and a communicator that was used, are freed. */
static ek_status come_and_go(struct neighbour *visitor) {
  static struct caller caller;
  const int64_t count = NUMBERS;
  struct ck_training training;
  memset(&caller, 0, sizeof caller);
  EK_TRY(ck_training_try(&training, visitor->setup, visitor->group));
  ek_status status = ck_training_step(&training, &visitor->batch, NULL);
  ck_training_free(&training);
  EK_TRY(status);
  EK_TRY(ek_communicator_open(&caller.communicator, visitor->group));
  for (size_t k = 0; k < DEVICES && status == EK_OK; k++) {
    status = ek_tensor_create(&caller.sums[k], ek_group_device(visitor->group, k),
                              EK_MEMORY_COMMUNICATION, EK_F32, 1, &count);
  }
  if (status == EK_OK) status = ek_group_apply(visitor->group, counted_job, &caller);
  ek_communicator_free(caller.communicator);
  for (size_t k = 0; k < DEVICES; k++) ek_tensor_free(&caller.sums[k]);
  return status;
}

static void *visit(void *argument) {
  struct neighbour *visitor = argument;
  while (!atomic_load(&visitor->stop) && visitor->wrong[0] == '\0') {
    if (come_and_go(visitor) != EK_OK) {
      (void)snprintf(visitor->wrong, sizeof visitor->wrong, "%s", ek_error_message());
    }
    visitor->rounds++;
  }
  return NULL;
}

CK_LOOP(freeing_beside_a_training_changes_no_bit, CK_MODES) {
  compare_with_neighbour(_i, visit);
}

CK_SUITE("callers")
