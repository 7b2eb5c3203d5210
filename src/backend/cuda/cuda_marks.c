/*
 * cuda_marks.c - marks of time in a device's streams, for a trace.
 *
 * A mark is an event that keeps its time. CUDA gives only the time between two events; so when the
 * marks are opened, one more event is recorded and waited for, the host's clock is read, and all
 * times are counted from there. They are milliseconds in a float, with a resolution of half a
 * microsecond in the first seconds and about eight microseconds after a minute.
 */
#include <time.h>

#include "backend/cuda/cuda_internal.h"

struct marks {
  struct ek__cuda_device *device;
  uint64_t base; /* the host's clock when `first` was reached */
  cudaEvent_t first;
  size_t count;
  cudaEvent_t events[];
};

static uint64_t host_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void ek__cuda_marks_close(void *native) {
  struct marks *marks = native;
  for (size_t i = 0; i < marks->count; i++) (void)cudaEventDestroy(marks->events[i]);
  if (marks->first != NULL) (void)cudaEventDestroy(marks->first);
  ek__cuda_host->free(marks);
}

static ek_status fill(struct marks *marks, size_t count) {
  struct ek__cuda_device *device = marks->device;
  const struct ek__cuda_stream *stream = &device->streams[EK_STREAM_COMPUTE];
  EK_TRY(ek__cuda_enter(device));
  EK_TRY(EK__CUDA(device, cudaEventCreate, &marks->first));
  while (marks->count < count) {
    EK_TRY(EK__CUDA(device, cudaEventCreate, &marks->events[marks->count]));
    marks->count++;
  }
  EK_TRY(EK__CUDA(device, cudaEventRecord, marks->first, stream->handle));
  EK_TRY(ek__cuda_finish_event(device, marks->first, "the first mark of a trace"));
  marks->base = host_clock();
  return EK_OK;
}

ek_status ek__cuda_marks_open(void **native, ek_device *device, size_t count) {
  struct marks *marks = ek__cuda_host->calloc(1, sizeof *marks + count * sizeof marks->events[0]);
  if (marks == NULL)
    return ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory for a trace");
  marks->device = ek__cuda_device_of(device);
  const ek_status status = fill(marks, count);
  if (status != EK_OK) {
    ek__cuda_marks_close(marks);
    return status;
  }
  *native = marks;
  return EK_OK;
}

/* What fails here has its error at the next call that waits; the mark cannot be read then. */
void ek__cuda_mark(void *native, size_t index, ek_stream *stream) {
  const struct marks *marks = native;
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (ek__cuda_enter(it->device) != EK_OK) return;
  (void)cudaEventRecord(marks->events[index], it->handle);
}

bool ek__cuda_mark_time(uint64_t *nanoseconds, void *native, size_t index) {
  const struct marks *marks = native;
  float milliseconds = 0;
  if (ek__cuda_enter(marks->device) != EK_OK) return false;
  if (cudaEventElapsedTime(&milliseconds, marks->first, marks->events[index]) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  const double after = (double)milliseconds * 1e6;
  *nanoseconds = marks->base + (after > 0 ? (uint64_t)after : 0);
  return true;
}
