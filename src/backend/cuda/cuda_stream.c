/*
 * cuda_stream.c - streams and events, their state for a wait, and giving up on a group.
 *
 * A group in which work is stuck is given up once, with one reason; every later wait for it fails
 * at once with that reason. The loops that wait are above this file: cuda_wait.c, and
 * cuda_clique.c for NCCL's own calls.
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

ek_status ek__cuda_stream_join(ek_stream *stream, void *native, bool reverse) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  const cudaStream_t first = reverse ? it->handle : native, second = reverse ? native : it->handle;
  cudaEvent_t event = NULL;
  EK_TRY(ek__cuda_enter(it->device));
  if (first == second) return EK_OK;
  EK_TRY(EK__CUDA(it->device, cudaEventCreateWithFlags, &event, cudaEventDisableTiming));
  ek_status status = EK__CUDA(it->device, cudaEventRecord, event, first);
  if (status == EK_OK) status = EK__CUDA(it->device, cudaStreamWaitEvent, second, event, 0);
  (void)cudaEventDestroy(event); /* CUDA keeps it until it has been reached */
  return status;
}

/* ---- what a wait asks ---- */

double ek__cuda_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
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

cudaError_t ek__cuda_answer(cudaError_t error) {
  if (error == cudaErrorNotReady) (void)cudaGetLastError();
  return error;
}

cudaError_t ek__cuda_query(const struct ek__cuda_stream *stream) {
  return ek__cuda_answer(cudaStreamQuery(stream->handle));
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

/* ---- groups that are given up ---- */

static ek_status stuck_error(struct ek__cuda_group *group) {
  pthread_mutex_lock(&group->failure_mutex);
  const ek_status status = ek__cuda_host->error_set(group->failure_status, "%s", group->failure);
  pthread_mutex_unlock(&group->failure_mutex);
  return status;
}

ek_status ek__cuda_check_stuck(struct ek__cuda_group *group) {
  return atomic_load(&group->stuck) ? stuck_error(group) : EK_OK;
}

ek_status ek__cuda_give_up(struct ek__cuda_group *group, const char *reason) {
  pthread_mutex_lock(&group->failure_mutex);
  if (!atomic_load(&group->stuck)) {
    (void)snprintf(group->failure, sizeof group->failure, "%s", reason);
    group->failure_status = EK_ERR_UNAVAILABLE;
    atomic_store(&group->stuck, true);
  }
  pthread_mutex_unlock(&group->failure_mutex);
  return stuck_error(group);
}
