/*
 * cuda_copy.c - copies between host and device, and between devices.
 *
 * To and from the host: through a ring of pinned pieces per device, in the order of the compute
 * stream (uploads into memory that was just allocated have a stream and a ring of their own:
 * cuda_send.c). An upload returns when the last piece is filled, while the GPU may still be busy
 * with earlier work; a download when the last piece has arrived. The same stream uses a piece again
 * for a download without waiting (the stream keeps the order), and for an upload once the copy of
 * its earlier contents has ended.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static size_t piece_size(size_t left) {
  return left < EK__CUDA_STAGE_BYTES ? left : EK__CUDA_STAGE_BYTES;
}

static struct ek__cuda_stage *take_stage(struct ek__cuda_ring *ring) {
  struct ek__cuda_stage *stage = &ring->stages[ring->next];
  ring->next = (ring->next + 1) % EK__CUDA_STAGES;
  return stage;
}

/* Queues a copy of a piece, and the mark by which its memory is known to be free again. */
static ek_status pass(const struct ek__cuda_stream *stream, struct ek__cuda_stage *stage, void *to,
                      const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  ek__cuda_call_begins(stream->device);
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, stream->handle);
  EK_TRY(ek__cuda_call_ends(stream->device, ek__cuda_check(stream->device, error,
                                                           kind == cudaMemcpyHostToDevice
                                                               ? "upload: cudaMemcpyAsync"
                                                               : "download: cudaMemcpyAsync")));
  EK_TRY(EK__CUDA(stream->device, cudaEventRecord, stage->passed, stream->handle));
  stage->used = true;
  return EK_OK;
}

/* ---- host to device ---- */

ek_status ek__cuda_upload_pieces(const struct ek__cuda_stream *stream, struct ek__cuda_ring *ring,
                                 char *to, const struct ek__host_bytes *host, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t size = piece_size(bytes - done);
    struct ek__cuda_stage *stage = take_stage(ring);
    if (stage->used) EK_TRY(ek__cuda_finish_event(stream->device, stage->passed, "upload"));
    if (host->make != NULL) {
      EK_TRY(host->make(host->context, stage->memory, done, size));
    } else {
      memcpy(stage->memory, (const char *)host->data + done, size);
    }
    EK_TRY(pass(stream, stage, to + done, stage->memory, size, cudaMemcpyHostToDevice));
    done += size;
  }
  return EK_OK;
}

ek_status ek__cuda_upload(ek_stream *stream, void *to, const struct ek__host_bytes *host,
                          size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_enter(it->device));
  pthread_mutex_lock(&it->device->mutex);
  const ek_status status = ek__cuda_upload_pieces(it, &it->device->ring, to, host, bytes);
  pthread_mutex_unlock(&it->device->mutex);
  return status;
}

/* ---- device to host ---- */

static ek_status download_locked(const struct ek__cuda_stream *stream, char *host, const char *from,
                                 size_t bytes) {
  struct ek__cuda_stage *stages[EK__CUDA_STAGES];
  size_t queued = 0, done = 0, first = 0, under_way = 0;
  while (done < bytes) {
    while (queued < bytes && under_way < EK__CUDA_STAGES) {
      const size_t size = piece_size(bytes - queued);
      struct ek__cuda_stage *stage = take_stage(&stream->device->ring);
      EK_TRY(pass(stream, stage, stage->memory, from + queued, size, cudaMemcpyDeviceToHost));
      stages[(first + under_way++) % EK__CUDA_STAGES] = stage;
      queued += size;
    }
    struct ek__cuda_stage *stage = stages[first];
    const size_t size = piece_size(bytes - done);
    EK_TRY(ek__cuda_finish_event(stream->device, stage->passed, "download"));
    memcpy(host + done, stage->memory, size);
    first = (first + 1) % EK__CUDA_STAGES;
    under_way--;
    done += size;
  }
  return EK_OK;
}

ek_status ek__cuda_download(ek_stream *stream, void *host, const void *from, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_enter(it->device));
  pthread_mutex_lock(&it->device->mutex);
  const ek_status status = download_locked(it, host, from, bytes);
  pthread_mutex_unlock(&it->device->mutex);
  EK_TRY(status);
  return ek__cuda_check_group(it->device->group);
}

/* ---- a few numbers, read later ---- */

ek_status ek__cuda_note_open(void **memory, ek_device *raw) {
  struct ek__cuda_device *device = ek__cuda_device_of(raw);
  *memory = NULL;
  pthread_mutex_lock(&device->mutex);
  for (size_t i = 0; i < EK__CUDA_NOTES && *memory == NULL; i++) {
    if (device->noted[i]) continue;
    device->noted[i] = true;
    *memory = device->pinned->notes[i];
  }
  pthread_mutex_unlock(&device->mutex);
  if (*memory != NULL) return EK_OK;
  return ek__cuda_host->error_set(EK_ERR_UNSUPPORTED,
                                  "%s: %d optimizers are open, expected one less at most",
                                  device->name, EK__CUDA_NOTES / 2);
}

void ek__cuda_note_close(void *memory, ek_device *raw) {
  struct ek__cuda_device *device = ek__cuda_device_of(raw);
  double(*note)[2] = memory;
  pthread_mutex_lock(&device->mutex);
  device->noted[note - device->pinned->notes] = false;
  pthread_mutex_unlock(&device->mutex);
}

ek_status ek__cuda_note_write(ek_stream *stream, void *memory, const void *from, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  EK_TRY(ek__cuda_enter(it->device));
  ek__cuda_call_begins(it->device);
  const cudaError_t error =
      cudaMemcpyAsync(memory, from, bytes, cudaMemcpyDeviceToHost, it->handle);
  return ek__cuda_call_ends(it->device,
                            ek__cuda_check(it->device, error, "a note: cudaMemcpyAsync"));
}

/* ---- device to device ---- */

/* `stream` waits for what `other`, of another device, holds now. `event` is of the other device; a
 * later record of it by another thread only makes the wait a little longer. */
static ek_status follow(const struct ek__cuda_stream *stream, struct ek__cuda_stream *other,
                        cudaEvent_t event) {
  struct ek__cuda_device *device = other->device;
  EK_TRY(ek__cuda_enter(device));
  pthread_mutex_lock(&device->mutex);
  ek_status status = EK__CUDA(device, cudaEventRecord, event, other->handle);
  if (status == EK_OK) {
    status = EK__CUDA(device, cudaStreamWaitEvent, stream->handle, event, 0);
  }
  pthread_mutex_unlock(&device->mutex);
  return status;
}

static ek_status queue_copy(const struct ek__cuda_stream *stream, void *to,
                            const struct ek__cuda_device *source, const void *from, size_t bytes) {
  const int here = stream->device->gpu->physical, there = source->gpu->physical;
  EK_TRY(ek__cuda_enter(stream->device));
  if (here == there) {
    return ek__cuda_check(
        stream->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream->handle),
        "copy: cudaMemcpyAsync");
  }
  return ek__cuda_check(stream->device,
                        cudaMemcpyPeerAsync(to, here, from, there, bytes, stream->handle),
                        "copy: cudaMemcpyPeerAsync");
}

/* On the destination's compute stream, after what the source's holds; then the source's goes on,
 * so that memory which is freed there after this call is not used again before it was read. */
ek_status ek__cuda_between(ek_stream *stream, void *to, ek_device *source_device, const void *from,
                           size_t bytes) {
  struct ek__cuda_stream *destination = ek__cuda_stream_of(stream);
  struct ek__cuda_device *source = ek__cuda_device_of(source_device);
  if (source == destination->device) return queue_copy(destination, to, source, from, bytes);
  struct ek__cuda_stream *origin = &source->streams[EK_STREAM_COMPUTE];
  EK_TRY(follow(destination, origin, source->ready));
  EK_TRY(queue_copy(destination, to, source, from, bytes));
  return follow(origin, destination, destination->device->passed);
}
