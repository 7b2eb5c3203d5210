/*
 * check_fork.c - a child of fork() has the parent's groups and none of their workers.
 *
 * What would wait for a worker, or for a lock that a thread of the parent held, is refused there
 * with EK_ERR_STATE; what frees returns; reading goes on; and the child may open a group of its
 * own. The parent goes on as if nothing had been. A child reports by its exit code: the number of
 * the first thing that was wrong; one that hangs is killed by its alarm.
 *
 * Devices of the CPU and counting ones only: a child of a process that uses CUDA may not use it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "ck_fork.h"
#include "ck_training.h"

/* AddressSanitizer's allocator has locks of its own, which fork() leaves as they are: a child waits
 * for ever for one that another thread held. No thread is busy there while the process forks. */
enum { SAMPLES = 6, COUNT = 1 << 17, BUSY = !CK_ASAN };

CK_JOB(nothing) {
  return EK_OK;
}

struct scene {
  ek_group *group;
  struct ck_training training;
  struct ck_batch batch;
  ek_communicator *communicator;
  ek_tensor tensor;
};

static bool refused(ek_status status, const char *part) {
  const bool right = status == EK_ERR_STATE && strstr(ek_error_message(), part) != NULL;
  if (!right) (void)fprintf(stderr, "child: %s: %s\n", ek_status_name(status), ek_error_message());
  return right;
}

/* Starting threads in the child of a process with threads is more than a sanitizer allows. */
static ek_status open_own(void) {
#if !CK_TSAN && !CK_ASAN
  ek_group *own = NULL;
  EK_TRY(ek_group_open(&own, "cpu:2", NULL));
  EK_TRY(ek_group_apply(own, nothing, NULL));
  EK_TRY(ek_group_close(own));
#endif
  return EK_OK;
}

static int child(struct scene *scene) {
  char owner[64];
  ek_tensor more = {0};
  ek_memory_usage usage;
  ek_communicator *communicator = NULL;
  const int64_t count = COUNT;
  ek_device *device = ek_group_device(scene->group, 0);
  (void)snprintf(owner, sizeof owner, "by process %ld", (long)getppid());
  if (!refused(ek_group_apply(scene->group, nothing, NULL), owner)) return 1;
  if (!refused(ck_training_step(&scene->training, &scene->batch, NULL), owner)) return 2;
  if (!refused(ek_group_close(scene->group), owner)) return 3;
  if (!refused(ek_group_synchronize(scene->group), owner)) return 4;
  if (!refused(ek_tensor_create(&more, device, EK_MEMORY_INPUTS, EK_F32, 1, &count), owner)) {
    return 5;
  }
  if (!refused(ek_memory_stats(&usage, device), owner)) return 6;
  if (!refused(ek_communicator_open(&communicator, scene->group), owner)) return 7;
  ek_communicator_abort(scene->communicator);
  ek_communicator_free(scene->communicator);
  /* An operation, cut for the threads of a device that are not here. */
  if (ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &scene->tensor, 3.0) != EK_OK) {
    return 8;
  }
  if (!ek_device_counts_only(device) && ((const float *)scene->tensor.data)[COUNT - 1] != 3.0F) {
    return 9;
  }
  ek_tensor_free(&scene->tensor);
  if (open_own() != EK_OK) return 10;
  return 0;
}

static int run_child(struct scene *scene) {
  int code = -1;
  if (ck_forked(&code)) _exit(child(scene));
  return code;
}

static atomic_bool stop;

/* Holds the locks of the group again and again while the process forks. */
static void *keep_busy(void *argument) {
  struct scene *scene = argument;
  const int64_t count = COUNT;
  while (!atomic_load(&stop)) {
    ek_tensor tensor = {0};
    if (ek_tensor_create(&tensor, ek_group_device(scene->group, 1), EK_MEMORY_INPUTS, EK_F32, 1,
                         &count) != EK_OK ||
        ek_group_apply(scene->group, nothing, NULL) != EK_OK) {
      return scene;
    }
    ek_tensor_free(&tensor);
  }
  return NULL;
}

CK_LOOP(a_child_is_refused, 2) {
  static struct scene scene;
  memset(&scene, 0, sizeof scene);
  const struct ck_setup setup =
      ck_setup_mode(ck_workload("mlp"), _i == 0 ? "cpu:2" : "plan:2", EK_MODE_SHARDED);
  const int64_t count = COUNT;
  scene.group = ck_open_exactly(setup.spec, 3);
  scene.batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 1);
  ck_ok(ck_training_try(&scene.training, &setup, scene.group));
  ck_ok(ek_communicator_open(&scene.communicator, scene.group));
  ck_ok(ek_tensor_create(&scene.tensor, ek_group_device(scene.group, 0), EK_MEMORY_INPUTS, EK_F32,
                         1, &count));
  ck_ok(ck_training_step(&scene.training, &scene.batch, NULL));
  pthread_t thread;
  void *failed = NULL;
  atomic_store(&stop, false);
  if (BUSY) ck_assert_int_eq(pthread_create(&thread, NULL, keep_busy, &scene), 0);
  int results[5];
  for (int i = 0; i < 5; i++) results[i] = run_child(&scene);
  atomic_store(&stop, true);
  if (BUSY) ck_assert_int_eq(pthread_join(thread, &failed), 0);
  for (int i = 0; i < 5; i++) ck_assert_int_eq(results[i], 0);
  ck_assert_ptr_null(failed);
  ck_ok(ck_training_step(&scene.training, &scene.batch, NULL));
  ek_tensor_free(&scene.tensor);
  ek_communicator_free(scene.communicator);
  ck_training_close(&scene.training);
  ck_ok(ek_group_close(scene.group));
}

/* A child that hangs ends alone. */
CK_TEST(an_alarm_ends_the_child_only) {
  int code = -1;
  if (ck_forked(&code)) _exit(raise(SIGALRM));
  ck_assert_int_eq(code, CK_KILLED + SIGALRM);
}

CK_SUITE("fork")
