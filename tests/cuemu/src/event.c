/*
 * event.c - events.
 *
 * Each record of an event gets a number; the event knows the last one recorded and the last one
 * reached. A wait takes the number that is the last recorded *when the wait is queued*: with none,
 * it waits for nothing, as in CUDA. Host code of two threads that forgets this is found out by
 * tests.
 *
 * A wait makes the stream of the last record run (stream.c). A record may come in between
 * from another thread: the waiter counts itself before it wants, and the record looks for waiters
 * when its operation is in the stream, so that one of the two wants what is waited for.
 *
 * A record is reached when its operation is released, which happens also on a device that has a
 * sticky error: no wait for a device that died lasts for ever. An event lives until it is destroyed
 * and no operation refers to it.
 */
#include "internal.h"

#include <stdlib.h>

struct CUevent_st {
  pthread_mutex_t mutex;
  pthread_cond_t reached_more;
  int device;
  int references, waiting;
  unsigned flags;
  uint64_t recorded, reached;
  cudaStream_t stream; /* of the last record */
  uint64_t time;       /* the stream's clock when the last record was reached */
};

struct event_operation {
  cudaEvent_t event;
  cudaStream_t stream; /* of a record */
  uint64_t number;
};

static void unreference(cudaEvent_t event) {
  pthread_mutex_lock(&event->mutex);
  bool last = --event->references == 0;
  pthread_mutex_unlock(&event->mutex);
  if (!last) return;
  pthread_mutex_destroy(&event->mutex);
  pthread_cond_destroy(&event->reached_more);
  cuemu_stream_unrefer(event->stream);
  free(event);
}

/* Of other streams than that of the last record nothing is waited for that was not wanted
 * already. */
static void want(cudaEvent_t event, uint64_t number) {
  pthread_mutex_lock(&event->mutex);
  cudaStream_t stream = event->reached < number ? cuemu_stream_refer(event->stream) : NULL;
  pthread_mutex_unlock(&event->mutex);
  if (stream) cuemu_want(stream);
  cuemu_stream_unrefer(stream);
}

static void wait_for(cudaEvent_t event, uint64_t number) {
  pthread_mutex_lock(&event->mutex);
  event->waiting++;
  pthread_mutex_unlock(&event->mutex);
  want(event, number);
  pthread_mutex_lock(&event->mutex);
  while (event->reached < number) pthread_cond_wait(&event->reached_more, &event->mutex);
  event->waiting--;
  pthread_mutex_unlock(&event->mutex);
}

/* ---- life ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  CUEMU_TRY(cuemu_enter());
  if (flags & ~(unsigned)cudaEventDisableTiming) {
    return cuemu_result(cudaErrorInvalidValue);
  }
  cudaEvent_t e = cuemu_new(sizeof(*e));
  e->device = cuemu_current_device();
  e->references = 1;
  e->flags = flags;
  pthread_mutex_init(&e->mutex, NULL);
  pthread_cond_init(&e->reached_more, NULL);
  cuemu_count(&cuemu_devices[e->device].events_alive, 1);
  *event = e;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaError_t error = cuemu_enter();
  if (!event) {
    return cuemu_result(error != cudaSuccess ? error : cudaErrorInvalidResourceHandle);
  }
  cuemu_count(&cuemu_devices[event->device].events_alive, -1);
  unreference(event);
  return cuemu_result(error);
}

/* ---- in streams ---- */

static void reach(void *argument) {
  struct event_operation *operation = argument;
  cudaEvent_t event = operation->event;
  pthread_mutex_lock(&event->mutex);
  if (operation->number > event->reached) event->reached = operation->number;
  event->time = operation->stream->clock;
  if (event->waiting) pthread_cond_broadcast(&event->reached_more);
  pthread_mutex_unlock(&event->mutex);
  unreference(event);
  free(operation);
}

static cudaError_t run_wait(cudaStream_t stream, void *argument) {
  (void)stream;
  struct event_operation *operation = argument;
  wait_for(operation->event, operation->number);
  return cudaSuccess;
}

static void release_wait(void *argument) {
  struct event_operation *operation = argument;
  unreference(operation->event);
  free(operation);
}

/* Refers to the event's last record. Called with its lock held. */
static struct event_operation *refer(cudaEvent_t event) {
  struct event_operation *operation = cuemu_new(sizeof(*operation));
  *operation = (struct event_operation){event, event->stream, event->recorded};
  event->references++;
  return operation;
}

/* A new record, in a stream whose reference the event keeps. */
static void record(cudaEvent_t event, cudaStream_t stream) {
  pthread_mutex_lock(&event->mutex);
  cudaStream_t before = event->stream;
  event->stream = stream;
  event->recorded++;
  struct event_operation *operation = refer(event);
  pthread_mutex_unlock(&event->mutex);
  cuemu_enqueue(stream, -1, NULL, reach, operation);
  pthread_mutex_lock(&event->mutex);
  bool awaited = event->waiting > 0;
  pthread_mutex_unlock(&event->mutex);
  if (awaited) cuemu_want(stream);
  if (before && before != stream) cuemu_want(before);
  cuemu_stream_unrefer(before);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CUEMU_TRY(cuemu_enter());
  if (!event || event->device != cuemu_stream_device(stream)) {
    return cuemu_result(cudaErrorInvalidResourceHandle);
  }
  record(event, cuemu_stream_refer(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  CUEMU_TRY(cuemu_enter());
  if (!event) return cuemu_result(cudaErrorInvalidResourceHandle);
  if (flags != 0) return cuemu_result(cudaErrorInvalidValue);
  pthread_mutex_lock(&event->mutex);
  struct event_operation *operation = refer(event);
  pthread_mutex_unlock(&event->mutex);
  cuemu_enqueue(stream, -1, run_wait, release_wait, operation);
  return cudaSuccess;
}

/* ---- from the host ---- */

cudaError_t cudaEventQuery(cudaEvent_t event) {
  CUEMU_TRY(cuemu_enter());
  if (!event) return cuemu_result(cudaErrorInvalidResourceHandle);
  pthread_mutex_lock(&event->mutex);
  uint64_t number = event->recorded;
  bool pending = event->reached < number;
  pthread_mutex_unlock(&event->mutex);
  want(event, number);
  cudaError_t error = cuemu_sticky(event->device);
  if (!pending) cuemu_add(CUEMU_EVENT_WAITS);
  return cuemu_result(error != cudaSuccess ? error : pending ? cudaErrorNotReady : cudaSuccess);
}

/* The time of the last record, if the event has one and keeps times. */
static cudaError_t read_time(cudaEvent_t event, uint64_t *time) {
  if (!event || (event->flags & cudaEventDisableTiming)) return cudaErrorInvalidResourceHandle;
  pthread_mutex_lock(&event->mutex);
  bool never = event->recorded == 0;
  bool pending = event->reached < event->recorded;
  *time = event->time;
  pthread_mutex_unlock(&event->mutex);
  return never ? cudaErrorInvalidResourceHandle : pending ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  cudaError_t error = cuemu_enter();
  uint64_t from, to;
  if (error == cudaSuccess) error = read_time(start, &from);
  if (error == cudaSuccess) error = read_time(end, &to);
  if (error != cudaSuccess) return cuemu_result(error);
  *milliseconds = (float)((double)to - (double)from) * 1e-6f;
  return cudaSuccess;
}
