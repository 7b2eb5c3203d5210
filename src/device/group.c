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
 * queued all of that job. The abort says whether it ended well.
 *
 * A child of fork() has no workers. Every function here that would wait for them, or take a lock
 * that a thread of the parent may have held, refuses there (ek__group_check).
 *
 * Lock: `mutex` guards drawn, served and the list of abortables. It is never held while a job runs.
 * A communicator's own lock is taken inside it (abort), never around it. job, stopping, function
 * and context are written by the caller whose turn it is, while no worker has a job.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/process.h"
#include "core/thread.h"
#include "device/backends.h"
#include "device/device_internal.h"
#include "device/device_spec.h"
#include "device/guard.h"
#include "device/holder.h"
#include "device/place.h"
#include "device/track.h"

struct worker {
  ek_group *group;
  ek_device *device;
  pthread_t thread;
  sem_t work; /* posted when there is a job, or none will come any more */
  bool started;
  atomic_bool ended; /* its part of the job that runs */
  ek_status status;
  char message[EK__MESSAGE_SIZE];
  ek_event *ends[2]; /* of the last two jobs, by their number's last bit; a job sets its own */
};

struct ek_group {
  const struct ek__backend *backend;
  void *native; /* the backend's */
  char *spec;
  size_t count;
  size_t first_rank, world_size; /* of the devices of all processes */
  struct ek__place *place;       /* among them; NULL: there is one process, or they only count */
  bool errands;                  /* there may be work of `place` for the waiting thread */
  double time_limit;             /* seconds */
  bool deterministic;            /* as it was opened */
  struct worker *workers;
  struct ek__process process; /* whose workers these are */
  pthread_mutex_t mutex;
  pthread_cond_t turn, done;
  uint64_t drawn, served; /* numbers of callers; equal: there is no job */
  uint64_t job;
  atomic_size_t running; /* workers that have not finished the job */
  bool stopping;
  ek_apply_function function;
  void *context;
  ek_status watched; /* what the backend found of the job that runs; its caller's */
  char watched_message[EK__MESSAGE_SIZE];
  struct ek__abortable *abortables;
  struct ek__host_blocks blocks; /* has a lock of its own */
};

/* Nanoseconds between two looks at workers that may be stuck. */
enum { WATCH_EVERY = 50000000 };
/* The same between two looks at other processes. */
enum { LOOK_EVERY = 200000000 };

static _Thread_local ek_device *device_of_this_worker;

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

static bool ended_well(const ek_group *group, uint64_t job) {
  bool well = true;
  for (size_t i = 0; i < group->count; i++) {
    well = ek_event_synchronize(group->workers[i].ends[job & 1]) == EK_OK && well;
  }
  return well;
}

static void run_job(struct worker *worker, uint64_t job, ek_apply_function function,
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
  if (worker->status == EK_OK) return;
  const char *words = ek__error_words(worker->status, errors);
  memcpy(worker->message, words, strlen(words) + 1);
  const bool well = ended_well(group, job - 1);
  pthread_mutex_lock(&group->mutex);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) a->abort(a, well);
  pthread_mutex_unlock(&group->mutex);
}

/* A signal's handler ends sem_wait() early. */
static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

static void *worker_main(void *argument) {
  struct worker *worker = argument;
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

static ek_status start_workers(ek_group *group) {
  for (size_t i = 0; i < group->count; i++) {
    struct worker *worker = &group->workers[i];
    EK_TRY(ek__thread_start(&worker->thread, EK__WORKER_STACK, worker_main, worker));
    worker->started = true;
  }
  return EK_OK;
}

/* The cores are divided evenly; a device always has one thread. */
static ek_status threads_for(int *threads, const struct ek__backend *backend, size_t count,
                             const ek_group_options *options) {
  if (options != NULL && options->threads_per_device > 0) {
    *threads = options->threads_per_device;
    return EK_OK;
  }
  *threads = 1;
  if (!backend->shared_memory) return EK_OK; /* nothing computes on the host */
  ek_device_description description;
  size_t found = 0;
  EK_TRY(backend->describe(&description, 1, &found));
  const int share = found > 0 ? description.cores / (int)count : 1;
  *threads = share > 1 ? share : 1;
  return EK_OK;
}

/* Asks the other processes for their devices. Devices that only count need to know no more. */
static ek_status join_world(ek_group *group, ek_world *world, bool counts) {
  EK_TRY(ek__place_open(&group->place, world, group->deterministic, group->count));
  group->first_rank = ek__place_first_rank(group->place, ek_world_process(world));
  group->world_size = ek__place_ranks(group->place);
  if (counts) {
    ek__place_close(group->place);
    group->place = NULL;
  } else {
    ek__world_count_group(world, 1);
  }
  return EK_OK;
}

/* The group's place among the devices of all processes. */
static ek_status take_ranks(ek_group *group, const ek_group_options *options) {
  const bool counts = group->backend->kernels == NULL;
  const size_t all = options->world_size == 0 ? group->count : options->world_size;
  group->time_limit = options->time_limit;
  if (options->world != NULL) {
    EK__FAIL_IF(options->world_size != 0 || options->first_rank != 0, EK_ERR_INVALID_ARGUMENT,
                "ek_group_open: options.world says which ranks the group has: world_size and "
                "first_rank must be 0");
    return ek_world_processes(options->world) > 1 ? join_world(group, options->world, counts)
                                                  : EK_OK;
  }
  EK__FAIL_IF(all < group->count || options->first_rank > all - group->count,
              EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: %zu devices from rank %zu on in a world of %zu", group->count,
              options->first_rank, all);
  EK__FAIL_IF(all != group->count && !counts, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: a world of %zu devices, of which this process has %zu, needs "
              "options.world to reach the other processes; only `plan` counts without it",
              all, group->count);
  group->first_rank = options->first_rank;
  group->world_size = all;
  return EK_OK;
}

static ek_status read_options(ek_group_options *o, const ek_group_options *options) {
  EK_TRY(ek__options_read(o, sizeof *o, options, "ek_group_options"));
  EK__FAIL_IF(o->threads_per_device < 0 || o->threads_per_device > 1024, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.threads_per_device is %d, expected 0 to 1024",
              o->threads_per_device);
  EK__FAIL_IF(!(o->time_limit >= 0 && o->time_limit <= 1e9), EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.time_limit is %g seconds, expected 0 to 1e9", o->time_limit);
  if (o->time_limit == 0) o->time_limit = 600;
  return EK_OK;
}

static void wake_workers(ek_group *group) {
  for (size_t i = 0; i < group->count; i++) (void)sem_post(&group->workers[i].work);
}

/* Stops the workers and frees everything, even of a group that did not open completely. */
static void destroy(ek_group *group) {
  group->stopping = true;
  wake_workers(group);
  for (size_t i = 0; i < group->count; i++) {
    if (group->workers[i].started) pthread_join(group->workers[i].thread, NULL);
    (void)sem_destroy(&group->workers[i].work);
  }
  for (size_t i = 0; i < 2 * group->count; i++) {
    struct worker *worker = &group->workers[i / 2];
    if (worker->ends[i % 2] != NULL) ek__device_count_event(worker->device, 1);
    ek_event_free(worker->ends[i % 2]);
  }
  for (size_t i = 0; i < group->count; i++) ek__device_close(group->workers[i].device);
  if (group->native != NULL) group->backend->group_close(group->native);
  ek__world_count_group(ek__place_world(group->place), group->place == NULL ? 0 : -1);
  ek__place_close(group->place);
  ek__host_blocks_close(&group->blocks);
  pthread_cond_destroy(&group->turn);
  pthread_cond_destroy(&group->done);
  pthread_mutex_destroy(&group->mutex);
  ek__free(group->workers);
  ek__free(group->spec);
  ek__free(group);
}

static ek_status share(void *world, void *bytes, size_t count) {
  return ek__world_share(world, bytes, count);
}

static ek_status open_parts(ek_group *group, const struct ek__device_spec *spec,
                            const ek_group_options *options) {
  const struct ek__backend *backend = group->backend;
  int threads = 1;
  for (group->count = 0; group->count < spec->count; group->count++) {
    struct worker *worker = &group->workers[group->count];
    worker->group = group;
    (void)sem_init(&worker->work, 0, 0);
  }
  group->deterministic = options->deterministic;
  group->first_rank = 0;
  group->world_size = spec->count;
  EK_TRY(take_ranks(group, options));
  EK_TRY(threads_for(&threads, backend, spec->count, options));
  const struct ek__members members = {group->first_rank, group->world_size,
                                      group->place == NULL ? NULL : share,
                                      ek__place_world(group->place)};
  if (backend->group_open != NULL) {
    EK_TRY(backend->group_open(&group->native, spec, options, &members));
  }
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(ek__device_open(&group->workers[i].device, group, group->native, backend, spec, i,
                           i > 0 ? group->workers[0].device : NULL, threads, options));
    if (options->debug_memory) ek__guard_start(group->workers[i].device);
  }
  for (size_t i = 0; i < 2 * group->count; i++) {
    struct worker *worker = &group->workers[i / 2];
    EK_TRY(ek_event_create(&worker->ends[i % 2], worker->device));
    ek__device_count_event(worker->device, -1); /* not one of those that a program must free */
  }
  return start_workers(group);
}

static ek_status open_named(ek_group **group, const char *text, struct ek__device_spec *spec,
                            const ek_group_options *options) {
  const struct ek__backend *backend = NULL;
  EK_TRY(ek__backend_load(&backend, spec->backend));
  if (backend->resolve != NULL) EK_TRY(backend->resolve(spec));
  EK_TRY(ek__device_check_resources(options, backend, spec));
  EK_TRY(ek__process_watch());
  ek_group *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, "a group"));
  result->backend = backend;
  result->process = ek__process_this();
  pthread_mutex_init(&result->mutex, NULL);
  pthread_condattr_t steady; /* a wait with an end; the clock of the day may be set meanwhile */
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_cond_init(&result->done, &steady);
  pthread_condattr_destroy(&steady);
  pthread_cond_init(&result->turn, NULL);
  ek__host_blocks_open(&result->blocks);
  ek_status status = ek__new_copy(&result->spec, text, strlen(text) + 1, "a group");
  if (status == EK_OK) {
    status = ek__new(&result->workers, spec->count, sizeof *result->workers, "a group");
  }
  if (status == EK_OK) status = open_parts(result, spec, options);
  if (status == EK_OK) {
    *group = result;
  } else {
    destroy(result);
  }
  return status;
}

static ek_status open_spec(ek_group **group, const char *spec, const ek_group_options *options) {
  struct ek__device_spec parsed;
  EK_TRY(ek__device_spec_parse(&parsed, spec));
  ek_status status = open_named(group, spec, &parsed, options);
  ek__device_spec_free(&parsed);
  if (status == EK_OK) status = ek__world_agree(options->world, "opening a group", 0);
  return status;
}

ek_status ek_group_open(ek_group **group, const char *spec, const ek_group_options *options) {
  EK__NOT_NULL("ek_group_open", group, spec);
  ek_group_options o = EK_GROUP_OPTIONS_INIT;
  ek_group *opened = NULL;
  EK_TRY(read_options(&o, options));
  if (ek_world_processes(o.world) == 1) {
    EK_TRY(open_spec(&opened, spec, &o));
  } else {
    const uint64_t began = ek__world_begin(o.world);
    const ek_status status = ek__world_end(o.world, began, open_spec(&opened, spec, &o));
    if (status != EK_OK) {
      if (opened != NULL) destroy(opened);
      return status;
    }
  }
  *group = opened;
  return EK_OK;
}

/* Finds objects that would dangle or hang if the group were freed now. */
static ek_status check_unused(ek_group *group) {
  pthread_mutex_lock(&group->mutex);
  const bool busy = group->drawn != group->served, communicators = group->abortables != NULL;
  pthread_mutex_unlock(&group->mutex);
  EK__FAIL_IF(busy, EK_ERR_STATE, "ek_group_close: another thread is using the group");
  EK__FAIL_IF(communicators, EK_ERR_STATE,
              "ek_group_close: a model or a communicator is still open");
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(ek__device_check_unused(group->workers[i].device, "ek_group_close"));
  }
  EK__FAIL_IF(ek__host_blocks_lent(&group->blocks) > 0, EK_ERR_STATE,
              "ek_group_close: shards of the group were not freed");
  return EK_OK;
}

ek_status ek_group_close(ek_group *group) {
  if (group == NULL) return EK_OK;
  EK_TRY(ek__group_check(group, "ek_group_close"));
  EK__FAIL_IF(ek__group_worker_device(group) != NULL, EK_ERR_STATE,
              "ek_group_close: called from a worker of the same group");
  EK_TRY(check_unused(group));
  destroy(group);
  return EK_OK;
}

void ek_group_free(ek_group *group) {
  char before[EK__MESSAGE_SIZE];
  ek__error_keep(before);
  ek__error_restore(before, ek_group_close(group));
}

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

/* The lowest device with an error of its own; if all only gave up waiting, the lowest of them. */
static const struct worker *first_failure(const ek_group *group) {
  const struct worker *given_up = NULL;
  for (size_t i = 0; i < group->count; i++) {
    const struct worker *worker = &group->workers[i];
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
static ek_status tell(const struct worker *failed) {
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
  pthread_mutex_lock(&group->mutex);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) a->abort(a, true);
  pthread_mutex_unlock(&group->mutex);
}

/* Waits until all workers have returned, with the mutex held. Meanwhile, and for the errands and
 * the bulk that they leave, this thread talks to other processes. If a worker may be stuck, the
 * backend is asked at intervals. Both happen without the mutex, because workers take it. */
static void wait_for_workers(ek_group *group, uint64_t began) {
  const bool watches = group->backend->watch != NULL;
  ek_world *world = ek__group_world(group);
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
    ek_status looked = ek__world_look(world);
    if (watches && looked == EK_OK) looked = ek__world_doomed(world, began);
    if (watches) note_watched(group, group->backend->watch(group->native, looked));
    end_job(group, looked);
    pthread_mutex_lock(&group->mutex);
  }
  if (group->place != NULL) note_watched(group, ek__place_failure(group->place));
}

/* The error of a job that has ended: an error found outside the workers is the cause of those of
 * workers that gave up. */
static ek_status error_of_job(const ek_group *group, const struct worker *failed) {
  EK__FAIL_IF(group->watched != EK_OK && (failed == NULL || failed->status == EK_ERR_ABORTED),
              group->watched, "%s", group->watched_message);
  return tell(failed);
}

/* The error of a job that failed, which becomes that of all processes. The mutex is held. */
static ek_status agree_on_error(ek_group *group, uint64_t began, ek_status status) {
  if (group->place == NULL) return status;
  pthread_mutex_unlock(&group->mutex);
  status = ek__world_end_job(ek__group_world(group), began, status);
  ek__place_forget(group->place);
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

/* Runs a job on all workers, for the caller that is served; returns with the mutex held. */
static ek_status run_on_all(ek_group *group, ek_apply_function function, void *context) {
  char message[EK__MESSAGE_SIZE];
  const uint64_t began = ek__world_begin(ek__group_world(group));
  group->function = function;
  group->context = context;
  atomic_store(&group->running, group->count);
  for (size_t i = 0; i < group->count; i++) atomic_store(&group->workers[i].ended, false);
  group->job++;
  wake_workers(group);
  pthread_mutex_lock(&group->mutex);
  wait_for_workers(group, began);
  tell_busy(group);
  const struct worker *failed = first_failure(group);
  if (failed == NULL && group->watched == EK_OK) return EK_OK;
  const ek_status status = agree_on_error(group, began, error_of_job(group, failed));
  ek__error_keep(message);
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) {
    if (a->unblock != NULL) a->unblock(a);
  }
  for (struct ek__abortable *a = group->abortables; a != NULL; a = a->next) a->renew(a);
  return ek_error_set(status, "%s", message);
}

static ek_status check_guards(const ek_group *group, ek_status (*check)(struct ek__arena *arena)) {
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(check(ek__device_arena(group->workers[i].device)));
  }
  return EK_OK;
}

ek_status ek_group_apply(ek_group *group, ek_apply_function function, void *context) {
  EK__FAIL_IF(group == NULL || function == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_group_apply: group and function may not be NULL");
  EK_TRY(ek__group_check(group, "ek_group_apply"));
  EK__FAIL_IF(ek__group_worker_device(group) != NULL, EK_ERR_STATE,
              "ek_group_apply: called from a worker of the same group");
  EK_TRY(check_guards(group, ek__guard_noted));
  pthread_mutex_lock(&group->mutex);
  const uint64_t number = group->drawn++;
  while (group->served != number) pthread_cond_wait(&group->turn, &group->mutex);
  pthread_mutex_unlock(&group->mutex);
  const ek_status status = run_on_all(group, function, context);
  group->served++;
  if (group->served != group->drawn) pthread_cond_broadcast(&group->turn);
  pthread_mutex_unlock(&group->mutex);
  return status;
}

/* Whether a wait of this thread for a device may be for other processes. */
static bool waits_for_others(const ek_group *group) {
  return group->place != NULL && group->backend->watch != NULL &&
         ek__group_worker_device(group) == NULL;
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
  return waits_for_others(group) ? ek_group_apply(group, await_one, &awaited) : wait(context);
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
    EK_TRY(ek_group_apply(group, synchronize, NULL));
    return check_guards(group, ek__guard_check);
  }
  for (size_t i = 0; i < group->count; i++) {
    EK_TRY(synchronize(NULL, group->workers[i].device, i));
  }
  return check_guards(group, ek__guard_check);
}
