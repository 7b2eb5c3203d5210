/*
 * cuda_device.c - a device apart from its memory: streams, events, pinned memory, a handle.
 */
#include "backend/cuda/cuda_internal.h"

static ek_status open_event(const struct ek__cuda_device *device, cudaEvent_t *event) {
  return EK__CUDA(device, cudaEventCreateWithFlags, event, cudaEventDisableTiming);
}

/* The program's stream as the compute stream; an event of this GPU cannot be recorded on
 * another's. */
static ek_status take_stream(struct ek__cuda_device *device, cudaStream_t given) {
  if (given == cudaStreamPerThread) {
    return ek__cuda_host->error_set(EK_ERR_INVALID_ARGUMENT,
                                    "%s: cudaStreamPerThread is another stream in each thread; "
                                    "expected a stream that cudaStreamCreate() made",
                                    device->name);
  }
  const cudaError_t error = cudaEventRecord(device->ready, given);
  if (error == cudaErrorInvalidResourceHandle) {
    (void)cudaGetLastError();
    return ek__cuda_host->error_set(EK_ERR_INVALID_ARGUMENT,
                                    "%s: options.resources[%zu].stream is not a stream of GPU %d",
                                    device->name, device->index, device->gpu->physical);
  }
  EK_TRY(ek__cuda_check(device, error, "cudaEventRecord"));
  device->streams[EK_STREAM_COMPUTE].handle = given;
  device->streams[EK_STREAM_COMPUTE].lent = true;
  return EK_OK;
}

/* Streams that do not wait for the default stream; communication goes first, as others wait for it.
 */
static ek_status open_streams(struct ek__cuda_device *device) {
  const ek_device_resources *resources = device->group->options.resources;
  void *given = resources == NULL ? NULL : resources[device->index].stream;
  int least = 0, greatest = 0;
  EK_TRY(EK__CUDA(device, cudaDeviceGetStreamPriorityRange, &least, &greatest));
  for (int kind = 0; kind < EK__CUDA_STREAMS; kind++) {
    const int priority = kind == EK_STREAM_COMMUNICATION ? greatest : least;
    device->streams[kind].device = device;
    if (kind == EK_STREAM_COMPUTE && given != NULL) {
      EK_TRY(take_stream(device, given));
      continue;
    }
    EK_TRY(EK__CUDA(device, cudaStreamCreateWithPriority, &device->streams[kind].handle,
                    cudaStreamNonBlocking, priority));
  }
  return EK_OK;
}

static ek_status pinned(const struct ek__cuda_device *device, void **memory, size_t bytes) {
  return EK__CUDA(device, cudaHostAlloc, memory, bytes,
                  cudaHostAllocPortable | cudaHostAllocMapped);
}

static ek_status open_ring(const struct ek__cuda_device *device, struct ek__cuda_ring *ring) {
  void *memory = NULL;
  for (size_t i = 0; i < EK__CUDA_STAGES; i++) {
    EK_TRY(pinned(device, &memory, EK__CUDA_STAGE_BYTES));
    ring->stages[i].memory = memory;
    EK_TRY(open_event(device, &ring->stages[i].passed));
  }
  return EK_OK;
}

static void close_ring(struct ek__cuda_ring *ring) {
  for (size_t i = 0; i < EK__CUDA_STAGES; i++) {
    if (ring->stages[i].passed != NULL) (void)cudaEventDestroy(ring->stages[i].passed);
    if (ring->stages[i].memory != NULL) (void)cudaFreeHost(ring->stages[i].memory);
  }
}

static ek_status open_marks(const struct ek__cuda_device *device, struct ek__cuda_marks *marks) {
  for (size_t i = 0; i < EK__CUDA_MARKS; i++) EK_TRY(open_event(device, &marks->events[i]));
  return EK_OK;
}

static void close_marks(struct ek__cuda_marks *marks) {
  for (size_t i = 0; i < EK__CUDA_MARKS; i++) {
    if (marks->events[i] != NULL) (void)cudaEventDestroy(marks->events[i]);
  }
}

static ek_status open_pinned(struct ek__cuda_device *device) {
  void *memory = NULL;
  EK_TRY(pinned(device, &memory, sizeof *device->pinned));
  device->pinned = memory;
  device->bad = &device->pinned->bad;
  *device->bad = (struct ek__cuda_bad){EK__CUDA_NOTHING_BAD, EK__CUDA_NOTHING_BAD};
  EK_TRY(open_ring(device, &device->ring));
  return open_ring(device, &device->sending);
}

ek_status ek__cuda_device_prepare(struct ek__cuda_device *device) {
  if (pthread_mutex_init(&device->mutex, NULL) != 0) {
    return ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "%s: a mutex could not be "
                                                          "created", device->name);
  }
  device->mutex_open = true;
  if (pthread_mutex_init(&device->send_mutex, NULL) != 0) {
    return ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "%s: a mutex could not be "
                                                          "created", device->name);
  }
  device->send_mutex_open = true;
  EK_TRY(ek__cuda_enter(device));
  EK_TRY(open_event(device, &device->ready));
  EK_TRY(open_streams(device));
  EK_TRY(open_event(device, &device->passed));
  EK_TRY(open_marks(device, &device->used));
  EK_TRY(open_marks(device, &device->arrived));
  EK_TRY(open_pinned(device));
  return ek__cuda_products_open(device);
}

void ek__cuda_device_discard(struct ek__cuda_device *device) {
  ek__cuda_heap_close(device);
  ek__cuda_cudnn_close(device);
  ek__cuda_products_close(device);
  close_ring(&device->sending);
  close_ring(&device->ring);
  if (device->pinned != NULL) (void)cudaFreeHost(device->pinned);
  close_marks(&device->arrived);
  close_marks(&device->used);
  if (device->passed != NULL) (void)cudaEventDestroy(device->passed);
  if (device->ready != NULL) (void)cudaEventDestroy(device->ready);
  for (int kind = 0; kind < EK__CUDA_STREAMS; kind++) {
    const struct ek__cuda_stream *stream = &device->streams[kind];
    if (stream->handle != NULL && !stream->lent) (void)cudaStreamDestroy(stream->handle);
  }
  if (device->send_mutex_open) pthread_mutex_destroy(&device->send_mutex);
  if (device->mutex_open) pthread_mutex_destroy(&device->mutex);
}
