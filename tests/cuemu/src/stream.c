/*
 * stream.c - streams: a queue of operations and a worker thread that runs them in order.
 *
 * As in CUDA, queued work runs at some time before a wait for it ends, and not sooner. The worker
 * sleeps until there is a wait (of the host, of another stream, or a query), or until a number of
 * operations is queued, a different number each time. Waking it for each operation would take
 * longer than most of them take; and code that forgets to wait is found by late streams as well as
 * by early ones. Collectives and host functions, for which others may wait unseen, wake it, and
 * every operation does with jitter or an armed hang.
 *
 * The worker owns the execution of kernels too, so that a CUDA thread's stack never moves between
 * threads of the system. An operation on a device with a sticky error is not run, only released.
 *
 * cudaStreamDestroy() returns at once, as in CUDA: the worker ends when its queue is empty, and the
 * stream is freed with its last reference (of the user, the worker, or a thread that waits for it).
 * It stays on its device's list until then, so that cudaFree() waits for it. Where the queue is
 * empty the worker is joined, so that a normal end leaves no thread behind.
 *
 * The default stream is a stream of its own. It does not wait for other streams as CUDA's legacy
 * stream does for blocking ones: what relies on that fails here.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* What events measure does not depend on how busy the machine is: kernels, products, copies and
 * collectives take a microsecond each, only functions of the host and waits what they take. */
#define OPERATION_TIME 1000

enum { MOST_PATIENCE = 64 };

void cuemu_stream_unrefer(cudaStream_t s) {
  if (!s || __atomic_sub_fetch(&s->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  pthread_mutex_destroy(&s->mutex);
  pthread_cond_destroy(&s->work);
  pthread_cond_destroy(&s->idle);
  free(s);
}

/* ---- the device's list ---- */

static void link_stream(cudaStream_t s) { /* the lock is held */
  s->next = cuemu_devices[s->device].streams;
  cuemu_devices[s->device].streams = s;
}

static void unlink_stream(cudaStream_t s) {
  cuemu_lock();
  cudaStream_t *link = &cuemu_devices[s->device].streams;
  while (*link && *link != s) link = &(*link)->next;
  if (*link) *link = s->next;
  cuemu_unlock();
}

/* ---- worker ---- */

static struct cuemu_operation *next_operation(cudaStream_t s) { /* NULL: the stream was destroyed */
  pthread_mutex_lock(&s->mutex);
  while (s->done >= s->wanted && !s->stop) pthread_cond_wait(&s->work, &s->mutex);
  struct cuemu_operation *operation = s->head;
  if (operation) {
    s->head = operation->next;
    if (!s->head) s->tail = &s->head;
  }
  pthread_mutex_unlock(&s->mutex);
  return operation;
}

uint64_t cuemu_nanoseconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void run_operation(cudaStream_t s, struct cuemu_operation *operation) {
  unsigned jitter = cuemu_settings.jitter_us;
  if (jitter) usleep(cuemu_random(&s->random) % jitter);
  if (operation->run && cuemu_sticky(s->device) == cudaSuccess) {
    if (operation->kind >= 0 && operation->kind != CUEMU_NCCL &&
        cuemu_runs_into_hang(s->device, (enum cuemu_kind)operation->kind)) {
      cuemu_hang_here();
    }
    uint64_t since = operation->kind < 0 ? cuemu_nanoseconds() : 0;
    cudaError_t error = operation->run(s, operation->argument);
    s->clock += operation->kind < 0 ? cuemu_nanoseconds() - since : OPERATION_TIME;
    if (error != cudaSuccess) cuemu_set_sticky(s->device, error);
  }
  if (operation->release) operation->release(operation->argument);
  free(operation);
}

static void *work(void *argument) {
  cudaStream_t s = argument;
  (void)cudaSetDevice(s->device);
  struct cuemu_operation *operation;
  while ((operation = next_operation(s))) {
    run_operation(s, operation);
    pthread_mutex_lock(&s->mutex);
    s->done++;
    if (s->waiting) pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->mutex);
  }
  cuemu_executor_exit();
  unlink_stream(s);
  cuemu_stream_unrefer(s);
  return NULL;
}

/* ---- creation ---- */

static cudaStream_t create(int device) {
  cudaStream_t s = cuemu_new(sizeof(*s));
  s->device = device;
  s->references = 2; /* user and worker */
  s->tail = &s->head;
  s->random = s->chance = 2463534242u + (unsigned)device;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->work, NULL);
  pthread_cond_init(&s->idle, NULL);
  if (pthread_create(&s->worker, NULL, work, s)) {
    fprintf(stderr, "cuemu: cannot start a thread for a stream\n");
    abort();
  }
  return s;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  CUEMU_TRY(cuemu_enter());
  if (flags & ~(unsigned)cudaStreamNonBlocking) return cuemu_result(cudaErrorInvalidValue);
  (void)priority; /* a value out of range is clamped in CUDA */
  int device = cuemu_current_device();
  *stream = create(device);
  cuemu_lock();
  link_stream(*stream);
  cuemu_devices[device].streams_alive++;
  cuemu_unlock();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  cudaError_t error = cuemu_enter();
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cuemu_result(error);
}

static cudaStream_t resolve(cudaStream_t stream) {
  if (stream) return stream;
  struct cuemu_device *device = &cuemu_devices[cuemu_current_device()];
  cuemu_lock();
  if (!device->default_stream) {
    device->default_stream = create(cuemu_current_device());
    link_stream(device->default_stream);
  }
  stream = device->default_stream;
  cuemu_unlock();
  return stream;
}

static void close_stream(cudaStream_t s) {
  pthread_mutex_lock(&s->mutex);
  s->stop = true;
  bool idle = s->done == s->queued;
  pthread_t worker = s->worker;
  pthread_cond_broadcast(&s->work);
  pthread_mutex_unlock(&s->mutex);
  if (idle && !pthread_equal(worker, pthread_self())) {
    pthread_join(worker, NULL);
  } else {
    pthread_detach(worker);
  }
  cuemu_stream_unrefer(s);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaError_t error = cuemu_enter();
  if (!stream) {
    return cuemu_result(error != cudaSuccess ? error : cudaErrorInvalidResourceHandle);
  }
  cuemu_count(&cuemu_devices[stream->device].streams_alive, -1);
  close_stream(stream);
  return cuemu_result(error);
}

void cuemu_close_default_stream(int device) {
  cuemu_lock();
  cudaStream_t stream = cuemu_devices[device].default_stream;
  cuemu_devices[device].default_stream = NULL;
  cuemu_unlock();
  if (stream) close_stream(stream);
}

/* ---- use ---- */

int cuemu_stream_device(cudaStream_t stream) {
  return stream ? stream->device : cuemu_current_device();
}

cudaStream_t cuemu_stream_refer(cudaStream_t stream) {
  cudaStream_t s = resolve(stream);
  __atomic_add_fetch(&s->references, 1, __ATOMIC_ACQ_REL);
  return s;
}

/* What is queued may run; false if all of it might before. Called with the stream's lock held. It
   is dropped before the worker is woken, which would else wake to wait for it. */
static bool want(cudaStream_t s) {
  bool more = s->wanted < s->queued;
  s->wanted = s->queued;
  s->patience = cuemu_random(&s->chance) % MOST_PATIENCE;
  return more;
}

static cudaError_t run_host_call(cudaStream_t stream, void *argument);

void cuemu_enqueue(cudaStream_t stream, int kind, cudaError_t (*run)(cudaStream_t, void *),
                   void (*release)(void *), void *argument) {
  cudaStream_t s = resolve(stream);
  struct cuemu_operation *operation = cuemu_new(sizeof(*operation));
  *operation = (struct cuemu_operation){NULL, kind, run, release, argument};
  bool now = kind < 0 ? run == run_host_call : kind == CUEMU_NCCL;
  pthread_mutex_lock(&s->mutex);
  *s->tail = operation;
  s->tail = &operation->next;
  s->queued++;
  now =
      now || s->queued - s->wanted > s->patience || cuemu_settings.jitter_us || cuemu_hangs_armed();
  if (now) (void)want(s);
  pthread_mutex_unlock(&s->mutex);
  if (now) pthread_cond_signal(&s->work);
}

void cuemu_want(cudaStream_t s) {
  pthread_mutex_lock(&s->mutex);
  bool more = want(s);
  pthread_mutex_unlock(&s->mutex);
  if (more) pthread_cond_signal(&s->work);
}

static void drain(cudaStream_t s) { /* what was queued until now */
  pthread_mutex_lock(&s->mutex);
  uint64_t target = s->queued; /* and all of that is wanted: others may queue more meanwhile */
  if (want(s)) pthread_cond_signal(&s->work);
  s->waiting++;
  while (s->done < target) pthread_cond_wait(&s->idle, &s->mutex);
  s->waiting--;
  pthread_mutex_unlock(&s->mutex);
}

/* Waits for all streams, one after the other. The list may change meanwhile, so it is copied. */
void cuemu_drain_device(int device) {
  size_t count = 0, room = 0;
  cudaStream_t *streams = NULL;
  cuemu_lock();
  for (cudaStream_t s = cuemu_devices[device].streams; s; s = s->next) room++;
  if (room) streams = cuemu_new(room * sizeof(cudaStream_t));
  for (cudaStream_t s = cuemu_devices[device].streams; s; s = s->next) {
    streams[count++] = cuemu_stream_refer(s); /* takes no lock */
  }
  cuemu_unlock();
  for (size_t i = 0; i < count; i++) {
    drain(streams[i]);
    cuemu_stream_unrefer(streams[i]);
  }
  free(streams);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUEMU_TRY(cuemu_enter());
  cudaStream_t s = resolve(stream);
  drain(s);
  return cuemu_result(cuemu_sticky(s->device));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CUEMU_TRY(cuemu_enter());
  cudaStream_t s = resolve(stream);
  cuemu_want(s);
  pthread_mutex_lock(&s->mutex);
  bool busy = s->done < s->queued;
  pthread_mutex_unlock(&s->mutex);
  cudaError_t error = cuemu_sticky(s->device);
  return cuemu_result(error != cudaSuccess ? error : busy ? cudaErrorNotReady : cudaSuccess);
}

/* ---- host functions ---- */

struct host_call {
  cudaHostFn_t function;
  void *user_data;
};

static cudaError_t run_host_call(cudaStream_t stream, void *argument) {
  (void)stream;
  struct host_call *call = argument;
  call->function(call->user_data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user_data) {
  CUEMU_TRY(cuemu_enter());
  if (!function) return cuemu_result(cudaErrorInvalidValue);
  struct host_call *call = cuemu_new(sizeof(*call));
  *call = (struct host_call){function, user_data};
  cuemu_enqueue(stream, -1, run_host_call, free, call);
  return cudaSuccess;
}
