/*
 * group.c - a group of devices and its worker threads.
 *
 * One persistent thread per device. ek_group_apply() publishes a job and posts every worker's
 * semaphore; every worker runs the job once and decrements `running`; the last one signals `done`,
 * for which the caller sleeps. The caller then reads the results in the workers' own records. The
 * workers wait for semaphores, because the waiters of a condition would all wake to queue for its
 * mutex, which takes longer than a small job.
 *
 * Jobs of all threads run one after the other: a caller draws a number and waits until it is
 * `served`. It keeps its turn from before it publishes its job until it has read the results and
 * renewed the communicators, so the collectives of two jobs never meet, and a failure reaches the
 * caller whose job failed.
 *
 * A worker whose function failed aborts the group's communicators before it reports, so that no
 * peer waits for it; when all workers have reported, the caller renews the communicators. On
 * devices that work asynchronously (cuda), collectives of earlier jobs may still be running, and an
 * abort would cut them off. So each job's end is marked by an event on each device's compute
 * stream, which has waited for the device's collectives, and a worker that failed waits until the
 * job before its own has ended on all devices. That needs no other worker, because all devices have
 * queued all of that job. If that did not end well, the group's models may be torn.
 *
 * Where other processes have queues as well, they may not have queued the job before. There an
 * abort only ends waits of the host. When all processes have the error and the outermost call
 * ends, each recovers (ek__world_end): it waits for the last job that a call of ek__group_keep()
 * names, such as an update, and then the communicators whose ranks have queued different numbers of
 * collectives are made anew.
 *
 * A child of fork() has no workers. Every function here that would wait for them, or take a lock
 * that a thread of the parent may have held, refuses there (ek__group_check).
 *
 * Lock: `mutex` guards drawn, served and the list of abortables. It is never held while a job runs.
 * A communicator's own lock is taken inside it (abort), never around it. job, stopping, function
 * and context are written by the caller whose turn it is, while no worker has a job.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/thread.h"
#include "device/group_struct.h"
#include "device/guard.h"
#include "device/track.h"

/* Nanoseconds between two looks at workers that may be stuck. */
enum { WATCH_EVERY = 50000000 };
/* The same between two looks at other processes. */
enum { LOOK_EVERY = 200000000 };
/* Looks until workers are cut off after another process has failed. */
enum { PATIENCE = 10 };

static _Thread_local ek_device *device_of_this_worker;
static _Thread_local const ek_group *group_of_this_turn;

struct job {
  ek_apply_function function;
  void *context;
  bool alone; /* not all processes run it */
};

ek_device *ek__group_worker_device(const ek_group *group) {
  return ek_device_group(device_of_this_worker) == group ? device_of_this_worker : NULL;
}

void ek__group_stand_in(ek_device *device) {
  const struct ek__backend *backend = ek_device_group(device)->backend;
  device_of_this_worker = device;
  ek__thread_stays_deaf();
  if (backend->worker_begins != NULL) backend->worker_begins(device);
}

bool ek__group_of_parent(const ek_group *group) { return ek__process_is_child(&group->process); }

ek_status ek__group_check(const ek_group *group, const char *who) {
  return ek__process_check(&group->process, who);
}

void ek__group_attach(ek_group *group, struct ek__abortable *abortable) {
  pthread_mutex_lock(&group->mutex);
  abortable->next = group->abortables;
  group->abortables = abortable;
  pthread_mutex_unlock(&group->mutex);
}

void ek__group_detach(ek_group *group, struct ek__abortable *abortable) {
  if (ek__group_of_parent(group)) return;
  pthread_mutex_lock(&group->mutex);
  struct ek__abortable **link = &group->abortables;
  while (*link != NULL && *link != abortable) link = &(*link)->next;
  if (*link != NULL) *link = abortable->next;
  pthread_mutex_unlock(&group->mutex);
}

/* ---- what it has ---- */

void *ek__group_native(const ek_group *group) { return group->native; }

bool ek__group_worker_ended(const ek_group *group, size_t index) {
  return atomic_load(&group->workers[index].ended);
}

double ek__group_time_limit(const ek_group *group) { return group->time_limit; }

size_t ek__group_first_rank(const ek_group *group) { return group->first_rank; }

size_t ek__group_world_size(const ek_group *group) { return group->world_size; }

ek_world *ek__group_world(const ek_group *group) { return ek__place_world(group->place); }

struct ek__place *ek__group_place(const ek_group *group) { return group->place; }

void ek__group_errand(ek_group *group) {
  pthread_mutex_lock(&group->mutex);
  group->errands = true;
  pthread_mutex_unlock(&group->mutex);
  pthread_cond_signal(&group->done);
  ek__world_wake(ek__group_world(group));
}

bool ek_group_is_deterministic(const ek_group *group) {
  return group != NULL && group->deterministic;
}

struct ek__host_blocks *ek__group_blocks(ek_group *group) {
  return &group->blocks;
}

size_t ek_group_size(const ek_group *group) { return group == NULL ? 0 : group->count; }

ek_device *ek_group_device(const ek_group *group, size_t index) {
  return group == NULL || index >= group->count ? NULL : group->workers[index].device;
}

const char *ek_group_spec(const ek_group *group) { return group == NULL ? "" : group->spec; }

/* ---- jobs on workers ---- */

/* How a job has ended, by its place in `ends`: waits for that. EK_ERR_ABORTED: it has not, and a
 * communicator is aborted. The thread's last error stays. */
static ek_status end_of(const ek_group *group, size_t end) {
  char kept[EK__MESSAGE_SIZE];
  ek_status worst = EK_OK;
  ek__error_keep(kept);
  for (size_t i = 0; i < group->count; i++) {
    const ek_status status = ek_event_synchronize(group->workers[i].ends[end]);
    if (status != EK_OK && (worst == EK_OK || worst == EK_ERR_ABORTED)) worst = status;
  }
  return worst == EK_OK ? EK_OK : ek_error_set(worst, "%s", kept);
}

static void abort_all(ek_group *group) {
  pthread_mutex_lock(&group->mutex);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    if (a->abort != NULL) a->abort(a);
  }
  pthread_mutex_unlock(&group->mutex);
}

static void tell_left(ek_group *group, enum ek__left left) {
  pthread_mutex_lock(&group->mutex);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    if (a->failed != NULL) a->failed(a, left);
  }
  pthread_mutex_unlock(&group->mutex);
}

void ek__group_keep(ek_device *device) {
  ek_device_group(device)->workers[ek_device_index(device)].keeps = true;
}

static void run_job(struct ek__worker *worker, uint64_t job, ek_apply_function function,
                    void *context) {
  ek_group *group = worker->group;
  const uint64_t errors = ek__error_number();
  ek_stream *stream = ek_device_stream(worker->device, EK_STREAM_COMPUTE);
  ek__device_begins(worker->device);
  (void)ek_stream_allow_tf32(stream, false);
  worker->status = function(context, worker->device, ek_device_index(worker->device));
  ek__device_ends(worker->device);
  (void)ek_stream_allow_tf32(stream, false);
  if (worker->status == EK_OK) {
    worker->status = ek_event_record(worker->ends[job & 1], stream);
  }
  if (worker->status == EK_OK && worker->keeps) {
    worker->status = ek_event_record(worker->ends[EK__KEPT], stream);
  }
  worker->keeps = false;
  if (worker->status == EK_OK) return;
  const char *words = ek__error_words(worker->status, errors);
  memcpy(worker->message, words, strlen(words) + 1);
  if (!ek__group_queues_away(group) && end_of(group, (job - 1) & 1) != EK_OK) {
    tell_left(group, EK__LEFT_TORN);
  }
  abort_all(group);
}

/* A signal's handler ends sem_wait() early. */
static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

static void *worker_main(void *argument) {
  struct ek__worker *worker = argument;
  ek_group *group = worker->group;
  ek__group_stand_in(worker->device);
  for (;;) {
    wait_for(&worker->work);
    if (group->stopping) return NULL;
    run_job(worker, group->job, group->function, group->context);
    atomic_store(&worker->ended, true);
    if (atomic_fetch_sub(&group->running, 1) != 1) continue;
    pthread_mutex_lock(&group->mutex); /* the caller looks at `running` with it, and then sleeps */
    pthread_mutex_unlock(&group->mutex);
    pthread_cond_signal(&group->done);
  }
}

ek_status ek__group_start_workers(ek_group *group) {
  for (size_t i = 0; i < group->count; i++) {
    struct ek__worker *worker = &group->workers[i];
    EK_TRY(ek__thread_start(&worker->thread, EK__WORKER_STACK, worker_main, worker));
    worker->started = true;
  }
  return EK_OK;
}

static void wake_workers(ek_group *group) {
  for (size_t i = 0; i < group->count; i++) (void)sem_post(&group->workers[i].work);
}

void ek__group_stop_workers(ek_group *group) {
  group->stopping = true;
  wake_workers(group);
  for (size_t i = 0; i < group->count; i++) {
    if (group->workers[i].started) pthread_join(group->workers[i].thread, NULL);
    (void)sem_destroy(&group->workers[i].work);
  }
}

/* ---- what a job has come to ---- */

/* The lowest device with an error of its own; if all only gave up waiting, the lowest of them. */
static const struct ek__worker *first_failure(const ek_group *group) {
  const struct ek__worker *given_up = NULL;
  for (size_t i = 0; i < group->count; i++) {
    const struct ek__worker *worker = &group->workers[i];
    if (worker->status == EK_OK) continue;
    if (worker->status != EK_ERR_ABORTED) return worker;
    if (given_up == NULL) given_up = worker;
  }
  return given_up;
}

/* The first "DEVICE: " of a message, at its beginning or after what was put before it; else NULL.
 */
static const char *find_name(const char *message, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = message; (at = strstr(at, name)) != NULL; at += length) {
    const bool begins = at == message || (at - message >= 2 && strncmp(at - 2, ": ", 2) == 0);
    if (begins && strncmp(at + length, ": ", 2) == 0) return at;
  }
  return NULL;
}

/* A message often names its device already: once is enough. */
static ek_status tell(const struct ek__worker *failed) {
  const char *name = ek_device_name(failed->device), *message = failed->message;
  const char *again = find_name(message, name);
  const char *rest = again == NULL ? message : again + strlen(name) + 2;
  const int before = again == NULL ? 0 : (int)(again - message);
  return ek_error_set(failed->status, "replica %zu on %s: %.*s%s", ek_device_index(failed->device),
                      name, before, message, rest);
}

/* An error outside the workers; the first counts. */
static void note_watched(ek_group *group, ek_status status) {
  if (status == EK_OK || group->watched != EK_OK) return;
  group->watched = status;
  (void)snprintf(group->watched_message, sizeof group->watched_message, "%s", ek_error_message());
}

/* Something that concerns other processes has failed: that ends the job of the workers. */
static void end_job(ek_group *group, ek_status status) {
  if (status == EK_OK) return;
  note_watched(group, status);
  abort_all(group);
}

/* Lets the backend cut off what a worker may be stuck in: if it finds that, or after an error
 * outside the workers. */
static void watch(ek_group *group, ek_status looked) {
  end_job(group, looked);
  const bool over = looked != EK_OK && end_of(group, EK__KEPT) == EK_OK;
  const ek_status found = group->backend->watch(group->native, looked);
  if (found != EK_OK && group->left != EK__LEFT_TORN) {
    group->left = over ? EK__LEFT_CUT : EK__LEFT_TORN;
  }
  note_watched(group, found);
}

/* Looks at workers that may be stuck, and at other processes. After the failure of another process
 * waits of the host end by themselves, but a worker may be in a call that does not. *looks: since
 * then. */
static void look(ek_group *group, uint64_t began, unsigned *looks) {
  const bool watches = group->backend->watch != NULL;
  ek_world *world = ek__group_world(group);
  ek_status looked = ek__world_look(world);
  if (watches && looked == EK_OK) {
    const ek_status doomed = ek__world_doomed(world, began);
    if (doomed != EK_OK && ++*looks < PATIENCE) {
      end_job(group, doomed);
      return;
    }
    looked = doomed;
  }
  if (watches) {
    watch(group, looked);
  } else {
    end_job(group, looked);
  }
}

/* Waits until all workers have returned, with the mutex held. Meanwhile, and for the errands and
 * the bulk that they leave, this thread talks to other processes. If a worker may be stuck, the
 * backend is asked at intervals. Both happen without the mutex, because workers take it. */
static void wait_for_workers(ek_group *group, uint64_t began) {
  const bool watches = group->backend->watch != NULL;
  ek_world *world = ek__group_world(group);
  unsigned looks = 0;
  group->watched = EK_OK;
  while (atomic_load(&group->running) != 0 || group->errands || ek__place_busy(group->place)) {
    struct timespec until;
    if (group->errands || ek__place_busy(group->place)) {
      const bool errands = group->errands;
      group->errands = false;
      pthread_mutex_unlock(&group->mutex);
      end_job(group, (errands ? ek__place_work : ek__place_wait)(group->place));
      pthread_mutex_lock(&group->mutex);
      continue;
    }
    if (!watches && world == NULL) {
      pthread_cond_wait(&group->done, &group->mutex);
      continue;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += watches ? WATCH_EVERY : LOOK_EVERY;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    if (pthread_cond_timedwait(&group->done, &group->mutex, &until) != ETIMEDOUT) continue;
    pthread_mutex_unlock(&group->mutex);
    look(group, began, &looks);
    pthread_mutex_lock(&group->mutex);
  }
  if (group->place != NULL) note_watched(group, ek__place_failure(group->place));
}

/* The error of a job that has ended: an error found outside the workers is the cause of those of
 * workers that gave up. */
static ek_status error_of_job(const ek_group *group, const struct ek__worker *failed) {
  EK__FAIL_IF(group->watched != EK_OK && (failed == NULL || failed->status == EK_ERR_ABORTED),
              group->watched, "%s", group->watched_message);
  return tell(failed);
}

/* The end of a job, whose error becomes that of all processes. The mutex is held, except while this
 * talks to them or recovers. */
static ek_status end_for_all(ek_group *group, uint64_t began, ek_status status) {
  if (group->place == NULL) return status;
  pthread_mutex_unlock(&group->mutex);
  status = ek__world_end_job(ek__group_world(group), began, status);
  if (status != EK_OK) ek__place_forget(group->place);
  pthread_mutex_lock(&group->mutex);
  return status;
}

/* The next conversation takes it to the other processes. */
static void tell_busy(const ek_group *group) {
  uint64_t most = 0;
  for (size_t i = 0; i < group->count && group->place != NULL; i++) {
    const uint64_t busy = ek__device_busy(group->workers[i].device);
    if (busy > most) most = busy;
  }
  ek__world_set_busy(ek__group_world(group), most);
}

/* Makes the communicators as new. True if that cut collectives off. No worker runs. */
static bool renew_all(ek_group *group) {
  bool cut = false;
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    if (a->unblock != NULL) cut = a->unblock(a) || cut;
  }
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    if (a->renew != NULL) a->renew(a);
  }
  return cut;
}

/* Runs a job on all workers, for the caller that is served; returns with the mutex held. */
static ek_status run_on_all(ek_group *group, const struct job *job) {
  char message[EK__MESSAGE_SIZE];
  ek_world *world = ek__group_world(group);
  const uint64_t began = job->alone ? ek__world_begin_alone(world) : ek__world_begin(world);
  group->function = job->function;
  group->context = job->context;
  atomic_store(&group->running, group->count);
  for (size_t i = 0; i < group->count; i++) atomic_store(&group->workers[i].ended, false);
  group->job++;
  wake_workers(group);
  pthread_mutex_lock(&group->mutex);
  wait_for_workers(group, began);
  tell_busy(group);
  const struct ek__worker *failed = first_failure(group);
  const bool well = failed == NULL && group->watched == EK_OK;
  const ek_status status = end_for_all(group, began, well ? EK_OK : error_of_job(group, failed));
  if (status == EK_OK || ek__group_queues_away(group)) return status; /* all processes recover */
  ek__error_keep(message);
  (void)renew_all(group);
  return ek_error_set(status, "%s", message);
}

static ek_status check_guards(const ek_group *group, ek_status (*check)(struct ek__arena *arena)) {
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(check(ek__device_arena(group->workers[i].device)));
  }
  return EK_OK;
}

/* ---- turns ---- */

static void take_turn(ek_group *group) {
  pthread_mutex_lock(&group->mutex);
  const uint64_t number = group->drawn++;
  while (group->served != number) pthread_cond_wait(&group->turn, &group->mutex);
  pthread_mutex_unlock(&group->mutex);
  group_of_this_turn = group;
}

/* With the mutex, which it releases. */
static void pass_turn(ek_group *group) {
  group_of_this_turn = NULL;
  group->served++;
  if (group->served != group->drawn) pthread_cond_broadcast(&group->turn);
  pthread_mutex_unlock(&group->mutex);
}

static ek_status apply(ek_group *group, const struct job *job) {
  take_turn(group);
  const ek_status status = run_on_all(group, job);
  pass_turn(group);
  return status;
}

ek_status ek_group_apply(ek_group *group, ek_apply_function function, void *context) {
  EK__FAIL_IF(group == NULL || function == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_group_apply: group and function may not be NULL");
  EK_TRY(ek__group_check(group, "ek_group_apply"));
  EK__FAIL_IF(ek__group_worker_device(group) != NULL, EK_ERR_STATE,
              "ek_group_apply: called from a worker of the same group");
  EK_TRY(check_guards(group, ek__guard_noted));
  return apply(group, &(struct job){.function = function, .context = context});
}

/* ---- after an error of all processes ---- */

/* Waits for the job that is kept. Not if an update has failed halfway in some process: the others
 * wait for its collectives for ever. */
static enum ek__left wait_for_kept(ek_group *group) {
  const struct timespec nap = {.tv_nsec = 1000000};
  ek_world *world = ek__group_world(group);
  bool torn = false, same = false;
  pthread_mutex_lock(&group->mutex);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    torn = torn || (a->is_torn != NULL && a->is_torn(a));
  }
  pthread_mutex_unlock(&group->mutex);
  const bool broken = ek__world_compare(world, torn, &same) != EK_OK;
  if (!broken && (torn || !same)) return EK__LEFT_TORN;
  if (group->left != EK__LEFT_WELL) return group->left;
  for (double waited = 0; waited < group->time_limit; waited += 1e-3) {
    const ek_status status = end_of(group, EK__KEPT);
    if (status == EK_OK) return EK__LEFT_WELL;
    if (status != EK_ERR_ABORTED || broken || ek__world_look(world) != EK_OK) break;
    (void)nanosleep(&nap, NULL);
  }
  return EK__LEFT_TORN;
}

static void recover(struct ek__recovery *recovery) {
  ek_group *group = (ek_group *)(void *)((char *)recovery - offsetof(ek_group, recovery));
  const bool own = group_of_this_turn == group;
  if (!own) take_turn(group);
  enum ek__left left = wait_for_kept(group);
  if (renew_all(group) && left == EK__LEFT_WELL) left = EK__LEFT_CUT;
  if (left != EK__LEFT_WELL) tell_left(group, left);
  group->left = EK__LEFT_WELL;
  if (own) return;
  pthread_mutex_lock(&group->mutex);
  pass_turn(group);
}

void ek__group_recovers(ek_group *group) {
  group->recovery.recover = recover;
  if (ek__group_queues_away(group)) ek__world_join(ek__group_world(group), &group->recovery);
}

void ek__group_recovers_no_more(ek_group *group) {
  if (ek__group_queues_away(group)) ek__world_quit(ek__group_world(group), &group->recovery);
}

/* ---- waiting for devices ---- */

/* Whether a wait of this thread for a device may be for other processes. */
static bool waits_for_others(const ek_group *group) {
  return ek__group_queues_away(group) && ek__group_worker_device(group) == NULL &&
         group_of_this_turn != group;
}

/* Not all processes need to wait. */
static ek_status apply_alone(ek_group *group, ek_apply_function function, void *context) {
  EK_TRY(ek__group_check(group, "waiting for a device"));
  return apply(group, &(struct job){.function = function, .context = context, .alone = true});
}

struct awaited {
  ek_device *device;
  ek_status (*wait)(void *context);
  void *context;
};

static ek_status await_one(void *context, ek_device *device, size_t index) {
  const struct awaited *awaited = context;
  (void)index;
  return device == awaited->device ? awaited->wait(awaited->context) : EK_OK;
}

ek_status ek__group_await(ek_device *device, ek_status (*wait)(void *context), void *context) {
  struct awaited awaited = {device, wait, context};
  ek_group *group = ek_device_group(device);
  return waits_for_others(group) ? apply_alone(group, await_one, &awaited) : wait(context);
}

static ek_status synchronize(void *context, ek_device *device, size_t index) {
  (void)context, (void)index;
  EK_TRY(ek_stream_synchronize(ek_device_stream(device, EK_STREAM_COMPUTE)));
  return ek_stream_synchronize(ek_device_stream(device, EK_STREAM_COMMUNICATION));
}

ek_status ek_group_synchronize(ek_group *group) {
  EK__NOT_NULL("ek_group_synchronize", group);
  EK_TRY(ek__group_check(group, "ek_group_synchronize"));
  if (waits_for_others(group)) {
    EK_TRY(apply_alone(group, synchronize, NULL));
    return check_guards(group, ek__guard_check);
  }
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(synchronize(NULL, group->workers[i].device, i));
  }
  return check_guards(group, ek__guard_check);
}
