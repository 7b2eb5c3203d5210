/*
 * cuda_stream.c - streams, events, and waiting for them.
 *
 * A wait asks again and again instead of sleeping in CUDA: work that is stuck (a collective whose
 * peer died, say) would never let go. After the group's time limit the wait fails and says what it
 * waited for; whoever waits later for the same group fails at once.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "backend/cuda/cuda_internal.h"

/* ---- streams and events: a stream's backend part is the device's own ---- */

ek_status ek__cuda_stream_open(void **native, ek_device *device, ek_stream_kind kind, int threads) {
  (void)threads;
  *native = &ek__cuda_device_of(device)->streams[kind];
  return EK_OK;
}

void ek__cuda_stream_close(void *native) { (void)native; }

void *ek__cuda_stream_handle(void *native) { return ((struct ek__cuda_stream *)native)->handle; }

ek_status ek__cuda_event_open(void **native, ek_device *device) {
  const struct ek__cuda_device *it = ek__cuda_device_of(device);
  cudaEvent_t event = NULL;
  EK_TRY(ek__cuda_enter(it));
  EK_TRY(EK__CUDA(it, cudaEventCreateWithFlags, &event, cudaEventDisableTiming));
  *native = event;
  return EK_OK;
}

void ek__cuda_event_close(void *native) {
  if (native != NULL) (void)cudaEventDestroy(native);
}

ek_status ek__cuda_event_record(void *event, ek_stream *stream) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_enter(it->device));
  return EK__CUDA(it->device, cudaEventRecord, event, it->handle);
}

ek_status ek__cuda_stream_wait(ek_stream *stream, void *event) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_enter(it->device));
  return EK__CUDA(it->device, cudaStreamWaitEvent, it->handle, event, 0);
}

/* ---- waiting ---- */

double ek__cuda_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* "Not ready" is an answer; CUDA also keeps it, for the next launch to take it for its own error.
 */
static cudaError_t answer(cudaError_t error) {
  if (error == cudaErrorNotReady) (void)cudaGetLastError();
  return error;
}

cudaError_t ek__cuda_query(const struct ek__cuda_stream *stream) {
  return answer(cudaStreamQuery(stream->handle));
}

/* Appends what each device of the group is stuck in: the late one is the one to look at. */
static void describe_streams(char *text, size_t size, const struct ek__cuda_group *group) {
  static const char *const names[EK__CUDA_STREAMS] = {"compute", "communication", "copy"};
  size_t used = 0;
  for (size_t i = 0; i < group->count && used < size; i++) {
    const struct ek__cuda_device *device = &group->devices[i];
    if (ek__cuda_enter(device) != EK_OK) continue;
    for (int kind = 0; kind < EK__CUDA_STREAMS && used < size; kind++) {
      if (ek__cuda_query(&device->streams[kind]) != cudaErrorNotReady) continue;
      const int written = snprintf(text + used, size - used, "%s%s's %s stream",
                                   used == 0 ? "" : ", ", device->name, names[kind]);
      if (written > 0) used += (size_t)written;
    }
  }
}

static ek_status stuck_error(struct ek__cuda_group *group) {
  pthread_mutex_lock(&group->failure_mutex);
  const ek_status status = ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "%s", group->failure);
  pthread_mutex_unlock(&group->failure_mutex);
  return status;
}

ek_status ek__cuda_check_stuck(struct ek__cuda_group *group) {
  return atomic_load(&group->stuck) ? stuck_error(group) : EK_OK;
}

/* Keeps the reason, if it is the first, for all who wait later. */
static ek_status give_up(struct ek__cuda_group *group, const char *reason) {
  pthread_mutex_lock(&group->failure_mutex);
  if (!atomic_load(&group->stuck)) {
    (void)snprintf(group->failure, sizeof group->failure, "%s", reason);
    atomic_store(&group->stuck, true);
  }
  pthread_mutex_unlock(&group->failure_mutex);
  return stuck_error(group);
}

static ek_status took_too_long(const struct ek__cuda_device *device, const char *what) {
  char where[320] = "", reason[512];
  describe_streams(where, sizeof where, device->group);
  (void)snprintf(reason, sizeof reason, "%s: %s: no end after %g seconds; not done: %s",
                 device->name, what, device->group->time_limit, where);
  return give_up(device->group, reason);
}

ek_status ek__cuda_check_gpus(const struct ek__cuda_group *group) {
  for (size_t i = 0; i < group->gpu_count; i++) {
    const struct ek__cuda_device *device = &group->devices[group->gpus[i].first];
    EK_TRY(ek__cuda_enter(device));
    const cudaError_t error = ek__cuda_query(&device->streams[EK_STREAM_COMPUTE]);
    if (error != cudaErrorNotReady) EK_TRY(ek__cuda_check(device, error, "work on the GPU"));
  }
  return EK_OK;
}

/* EK_OK if there is no reason not to go on waiting: what is waited for may hang on another GPU. */
static ek_status look_around(const struct ek__cuda_device *device, double since, const char *what) {
  struct ek__cuda_group *group = device->group;
  char reason[512] = "";
  if (group->gpu_count > 1) {
    EK_TRY(ek__cuda_check_gpus(group));
    EK_TRY(ek__cuda_enter(device));
  }
  if (group->nccl) {
    pthread_mutex_lock(&group->failure_mutex);
    const bool failed = ek__cuda_nccl_failed(group, reason, sizeof reason);
    pthread_mutex_unlock(&group->failure_mutex);
    if (failed) return give_up(group, reason);
  }
  return ek__cuda_now() - since > group->time_limit ? took_too_long(device, what) : EK_OK;
}

/* First politely often, for work that is nearly done; then 20 times a millisecond. */
void ek__cuda_pause(unsigned asked) {
  static const struct timespec moment = {.tv_nsec = 50000};
  if (asked < 100) {
    (void)sched_yield();
  } else {
    (void)nanosleep(&moment, NULL);
  }
}

/* `peers`: it may be for a collective, which ends in no other way where a peer's worker has
 * failed. */
static ek_status wait_until_done(const struct ek__cuda_device *device, cudaStream_t stream,
                                 cudaEvent_t event, bool peers, const char *what) {
  EK_TRY(ek__cuda_enter(device));
  double since = 0;
  for (unsigned asked = 0;; asked++) {
    const cudaError_t error =
        answer(event != NULL ? cudaEventQuery(event) : cudaStreamQuery(stream));
    if (error != cudaErrorNotReady && error != cudaSuccess) {
      return ek__cuda_check(device, error, what);
    }
    /* Also where nothing is left to wait for: what was stuck has been ended, not done. */
    EK_TRY(ek__cuda_check_stuck(device->group));
    if (error == cudaSuccess) return EK_OK;
    if (peers && ek__cuda_nccl_aborted(device->group)) return ek__cuda_given_up();
    ek__cuda_call_goes_on(&device->group->devices[device->index]);
    if (asked == 0) since = ek__cuda_now();
    if (asked >= 100 && asked % 8 == 0) EK_TRY(look_around(device, since, what));
    ek__cuda_pause(asked);
  }
}

ek_status ek__cuda_finish(const struct ek__cuda_stream *stream, const char *what) {
  return wait_until_done(stream->device, stream->handle, NULL, false, what);
}

ek_status ek__cuda_finish_collectives(const struct ek__cuda_device *device, const char *what) {
  return wait_until_done(device, device->streams[EK_STREAM_COMMUNICATION].handle, NULL, true, what);
}

ek_status ek__cuda_finish_event(const struct ek__cuda_device *device, cudaEvent_t event,
                                const char *what) {
  return wait_until_done(device, NULL, event, false, what);
}

/* How an error calls what one word of struct ek__cuda_bad is about. */
struct bad_words {
  const char *op, *value, *place, *limits;
};
static const struct bad_words bad_index = {"lookup", "index", "position", "table"};
static const struct bad_words bad_target = {"cross_entropy", "target", "row", "classes"};

/* Forgets what it has told. */
static ek_status check_bad(const struct ek__cuda_device *device, unsigned long long *word,
                           struct bad_words words) {
  const unsigned long long bad = __atomic_exchange_n(word, EK__CUDA_NOTHING_BAD, __ATOMIC_RELAXED);
  if (bad == EK__CUDA_NOTHING_BAD) return EK_OK;
  char value[16] = "";
  if (bad < EK__CUDA_ROW_ALONE) (void)snprintf(value, sizeof value, " %d", (int)(int32_t)bad);
  const unsigned long long row = bad < EK__CUDA_ROW_ALONE ? bad >> 32 : bad - EK__CUDA_ROW_ALONE;
  return ek__cuda_host->error_set(
      EK_ERR_INVALID_ARGUMENT, "%s: %s: %s%s at %s %llu of the batch is outside the %s",
      device->name, words.op, words.value, value, words.place, row, words.limits);
}

static ek_status check_indices(struct ek__cuda_group *group) {
  ek_status status = EK_OK;
  for (size_t i = group->count; i-- > 0;) { /* the lowest device's message is the last */
    struct ek__cuda_device *device = &group->devices[i];
    const ek_status target = check_bad(device, &device->bad->target, bad_target);
    const ek_status index = check_bad(device, &device->bad->index, bad_index);
    status = index != EK_OK ? index : target != EK_OK ? target : status;
  }
  return status;
}

ek_status ek__cuda_check_group(struct ek__cuda_group *group) {
  EK_TRY(ek__cuda_check_gpus(group));
  return check_indices(group);
}

ek_status ek__cuda_event_synchronize(void *event, ek_device *device) {
  return ek__cuda_finish_event(ek__cuda_device_of(device), event, "waiting for an event");
}

ek_status ek__cuda_stream_synchronize(ek_stream *stream) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_finish(it, "waiting for a stream"));
  /* What was sent ahead belongs to the compute stream, though it does not wait for it yet. */
  if (it == &it->device->streams[EK_STREAM_COMPUTE]) {
    EK_TRY(ek__cuda_finish(&it->device->streams[EK__CUDA_COPIES], "waiting for copies"));
  }
  return ek__cuda_check_group(it->device->group);
}
