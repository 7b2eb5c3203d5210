/*
 * check_misuse.c - what docs/misuse.md says is refused, as far as it belongs to no other test: the
 * end of a group, and threads where they may not be.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "ck_training.h"

CK_JOB(nothing) {
  return EK_OK;
}

/* A refused close leaves a group that works. */
static void refuses(ek_group *group, const char *text) {
  ck_fails(ek_group_close(group), EK_ERR_STATE, text);
  ck_ok(ek_group_apply(group, nothing, NULL));
}

CK_LOOP(a_group_is_closed_last, 2) {
  ek_group *group = ck_open(_i == 0 ? "cpu:2@8MiB" : "plan:2@8MiB", 1);
  ek_device *device = ek_group_device(group, 1);
  const char *name = _i == 0 ? "cpu:1" : "plan:1";
  const int64_t count = 1000;
  ek_tensor tensor = {0}, empty = {0};
  ck_ok(ek_tensor_create(&tensor, device, EK_MEMORY_INPUTS, EK_F32, 1, &count));
  ck_ok(ek_tensor_create(&empty, device, EK_MEMORY_INPUTS, EK_F32, 1, &(int64_t){0}));
  refuses(group, name);
  refuses(group, "inputs 4.00 KiB");
  ek_tensor_free(&tensor);
  CK_GOT(ek_event *, event, ek_event_create(&event, device));
  refuses(group, "event");
  ek_event_free(event);
  CK_GOT(ek_communicator *, communicator, ek_communicator_open(&communicator, group));
  refuses(group, "communicator");
  ek_communicator_free(communicator);
  ck_ok(ek_group_close(group));
  ek_tensor_free(&empty); /* holds nothing of the group */
}

CK_LOOP(a_model_keeps_its_group, CK_MODES) {
  const struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", (ek_mode)_i);
  ek_group *group = ck_open(setup.spec, 1);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0.2, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  ck_ok(ck_training_step(&training, &batch, NULL));
  refuses(group, "ek_group_close: ");
  ck_ok(ck_training_step(&training, &batch, NULL));
}

CK_JOB(close_here) {
  ek_status *statuses = context;
  statuses[ek_device_index(device)] = ek_group_close(ek_device_group(device));
  return EK_OK;
}

CK_TEST(a_worker_does_not_close_its_group) {
  ek_group *group = ck_open("cpu:2", 1);
  ek_status statuses[2] = {EK_OK, EK_OK};
  ck_ok(ek_group_apply(group, close_here, statuses));
  ck_assert_int_eq(statuses[0], EK_ERR_STATE);
  ck_assert_int_eq(statuses[1], EK_ERR_STATE);
}

struct meeting {
  ek_group *group;
  sem_t inside, go_on;
  ek_status status;
};

CK_JOB(meet) {
  struct meeting *meeting = context;
  if (index == 0) {
    sem_post(&meeting->inside);
    sem_wait(&meeting->go_on);
  }
  return EK_OK;
}

static void *apply_meet(void *argument) {
  struct meeting *meeting = argument;
  meeting->status = ek_group_apply(meeting->group, meet, meeting);
  return NULL;
}

CK_TEST(a_group_at_work_is_not_closed) {
  struct meeting meeting = {.group = ck_open("cpu:2", 1), .status = EK_ERR_INTERNAL};
  pthread_t thread;
  ck_assert_int_eq(sem_init(&meeting.inside, 0, 0) | sem_init(&meeting.go_on, 0, 0), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, apply_meet, &meeting), 0);
  sem_wait(&meeting.inside);
  ek_error_clear();
  const ek_status status = ek_group_close(meeting.group);
  char message[256];
  (void)snprintf(message, sizeof message, "%s", ek_error_message());
  sem_post(&meeting.go_on);
  (void)pthread_join(thread, NULL);
  ck_assert_int_eq(status, EK_ERR_STATE);
  ck_assert(strstr(message, "another thread") != NULL);
  ck_ok(meeting.status);
  ck_ok(ek_group_close(meeting.group));
  (void)sem_destroy(&meeting.inside);
  (void)sem_destroy(&meeting.go_on);
}

/* ---- a model ---- */

struct intruder {
  struct ck_training *training;
  const struct ck_batch *batch;
  atomic_bool *stop;
  atomic_int *refused;
};

/* Steps again and again in a model in which another thread does the same. */
static void *intrude(void *argument) {
  struct intruder *it = argument;
  while (!atomic_load(it->stop)) {
    if (ck_training_step(it->training, it->batch, NULL) == EK_OK) continue;
    if (strstr(ek_error_message(), "another thread is using the model") != NULL) {
      atomic_fetch_add(it->refused, 1);
    }
  }
  return NULL;
}

/* Two threads that do not know of each other spoil each other's steps, and are told so. */
CK_TEST(a_model_belongs_to_one_thread) {
  const struct timespec moment = {.tv_nsec = 1000000};
  const struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  atomic_bool stop = false;
  atomic_int refused = 0;
  ek_group *group = ck_open(setup.spec, 1);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0.2, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  struct intruder intruder = {&training, &batch, &stop, &refused};
  pthread_t threads[2];
  int started = 0;
  while (started < 2 && pthread_create(&threads[started], NULL, intrude, &intruder) == 0) started++;
  for (int i = 0; i < 20000 && atomic_load(&refused) == 0; i++) (void)nanosleep(&moment, NULL);
  atomic_store(&stop, true);
  for (int i = 0; i < started; i++) (void)pthread_join(threads[i], NULL);
  ck_assert_int_eq(started, 2);
  ck_assert_int_gt(atomic_load(&refused), 0);
  ck_ok(ek_data_parallel_model_discard(training.model));
  ck_ok(ck_training_step(&training, &batch, NULL));
}

CK_SUITE("misuse")
