/*
 * cuda_send.c - uploads into memory that was just allocated, while the compute stream goes on.
 *
 * Each device has a stream for copies. A batch sent on it is copied while a step computes, provided
 * that no queued work still uses the memory: the arena frees memory in the order of the compute
 * stream, so work of the previous holder may not have run yet.
 *
 * Tickets. Now and then the compute stream gets a mark, an event; marks have numbers from 1.
 * Freed memory keeps the number of the next mark as its ticket: every mark recorded from then on,
 * that one included, comes after all work that used the memory. So the copy stream waits for the
 * earliest mark with at least the ticket's number, and makes one if necessary. Memory that was
 * never used has ticket 0 and waits for nothing. The number is raised before the event is recorded,
 * so a thread that reads the old number has queued its work before the mark.
 *
 * Arrivals are the same the other way round: the copy stream gets a mark after each tensor, and
 * the compute stream waits for it when the tensor is first needed (ek__cuda_arrive), or when its
 * memory is taken for something else because it was not needed.
 *
 * Few marks are kept: the newest replaces the oldest, and a later wait for that one waits for the
 * earliest that is left. That is a longer wait, never a wrong one.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static struct ek__cuda_stream *compute_of(struct ek__cuda_device *device) {
  return &device->streams[EK_STREAM_COMPUTE];
}

static struct ek__cuda_stream *copies_of(struct ek__cuda_device *device) {
  return &device->streams[EK__CUDA_COPIES];
}

/* ---- marks in a stream ---- */

/* Records the next mark, over the oldest one. */
static ek_status make_mark(size_t *place, struct ek__cuda_marks *marks,
                           const struct ek__cuda_stream *stream) {
  size_t oldest = 0;
  for (size_t i = 1; i < EK__CUDA_MARKS; i++) {
    if (marks->numbers[i] < marks->numbers[oldest]) oldest = i;
  }
  marks->numbers[oldest] = 0;
  const uint64_t number = atomic_fetch_add(&marks->made, 1) + 1;
  EK_TRY(EK__CUDA(stream->device, cudaEventRecord, marks->events[oldest], stream->handle));
  marks->numbers[oldest] = number;
  *place = oldest;
  return EK_OK;
}

/* The earliest mark with at least this number; makes one if no mark has it. */
static ek_status find_mark(size_t *place, struct ek__cuda_marks *marks,
                           const struct ek__cuda_stream *stream, uint64_t number) {
  size_t best = EK__CUDA_MARKS;
  for (size_t i = 0; i < EK__CUDA_MARKS; i++) {
    if (marks->numbers[i] < number) continue;
    if (best == EK__CUDA_MARKS || marks->numbers[i] < marks->numbers[best]) best = i;
  }
  if (best == EK__CUDA_MARKS) return make_mark(place, marks, stream);
  *place = best;
  return EK_OK;
}

/* `waiting` goes on when `other` has passed the mark; *number is the mark's. */
static ek_status wait_for_mark(uint64_t *number, const struct ek__cuda_stream *waiting,
                               struct ek__cuda_marks *marks, const struct ek__cuda_stream *other,
                               uint64_t wanted) {
  size_t place = 0;
  EK_TRY(find_mark(&place, marks, other, wanted));
  EK_TRY(EK__CUDA(waiting->device, cudaStreamWaitEvent, waiting->handle, marks->events[place], 0));
  *number = marks->numbers[place];
  return EK_OK;
}

/* ---- sending ---- */

uint64_t ek__cuda_ticket(const ek_device *device) {
  return atomic_load(&ek__cuda_device_of(device)->used.made) + 1;
}

static ek_status send_locked(struct ek__cuda_device *device, void *to,
                             const struct ek__host_bytes *host, size_t bytes, uint64_t ticket) {
  uint64_t number = 0;
  size_t place = 0;
  if (ticket > 0) {
    EK_TRY(wait_for_mark(&number, copies_of(device), &device->used, compute_of(device), ticket));
  }
  EK_TRY(ek__cuda_upload_pieces(copies_of(device), &device->sending, to, host, bytes));
  return make_mark(&place, &device->arrived, copies_of(device));
}

ek_status ek__cuda_send(uint64_t *arrival, ek_device *raw, void *to,
                        const struct ek__host_bytes *host, size_t bytes, uint64_t ticket) {
  struct ek__cuda_device *device = ek__cuda_device_of(raw);
  pthread_mutex_lock(&device->send_mutex);
  *arrival = atomic_load(&device->arrived.made) + 1;
  ek_status status = ek__cuda_enter(device);
  if (status == EK_OK) status = send_locked(device, to, host, bytes, ticket);
  pthread_mutex_unlock(&device->send_mutex);
  return status;
}

ek_status ek__cuda_arrive(ek_device *raw, uint64_t arrival) {
  struct ek__cuda_device *device = ek__cuda_device_of(raw);
  ek_status status = EK_OK;
  pthread_mutex_lock(&device->send_mutex);
  if (arrival > device->awaited) {
    status = ek__cuda_enter(device);
    if (status == EK_OK) {
      status = wait_for_mark(&device->awaited, compute_of(device), &device->arrived,
                             copies_of(device), arrival);
    }
  }
  pthread_mutex_unlock(&device->send_mutex);
  return status;
}
