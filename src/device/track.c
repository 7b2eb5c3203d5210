/*
 * track.c - see track.h.
 */
#include "device/track.h"

#include <evenkeel/device.h>

#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "device/arena.h"
#include "device/device_struct.h"

enum { COUNTERS_PER_SPAN = 4 };

uint64_t ek__track_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static struct ek__track *recording_on(const ek_device *device) {
  return device == NULL ? NULL : atomic_load_explicit(&device->track, memory_order_acquire);
}

const struct ek__track *ek__track_kept(bool *recording, const ek_device *device) {
  *recording = recording_on(device) != NULL;
  return device->kept_track;
}

/* Counters look at it under the arena's mutex. */
void ek__track_start(struct ek__track *track) {
  ek_device *device = track->device;
  pthread_mutex_lock(&device->arena.mutex);
  memcpy(track->held, device->arena.current, sizeof track->held);
  track->start = ek__track_now();
  atomic_store_explicit(&device->track, track, memory_order_release);
  pthread_mutex_unlock(&device->arena.mutex);
  ek__track_free(device->kept_track);
  device->kept_track = track;
}

bool ek__track_stop(ek_device *device) {
  pthread_mutex_lock(&device->arena.mutex);
  const struct ek__track *was = atomic_exchange(&device->track, NULL);
  pthread_mutex_unlock(&device->arena.mutex);
  return was != NULL;
}

ek_status ek__track_open(struct ek__track **track, ek_device *device, size_t spans) {
  static const char memory_of[] = "a trace";
  const struct ek__backend *backend = ek__device_table(device);
  struct ek__track *result = NULL;
  ek_status status = EK_OK;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->device = device;
  result->capacity = spans;
  result->counter_capacity = COUNTERS_PER_SPAN * spans;
  EK_TRY_GOTO(status, ek__new(&result->spans, spans, sizeof *result->spans, memory_of), cleanup);
  EK_TRY_GOTO(
      status,
      ek__new(&result->counters, spans, COUNTERS_PER_SPAN * sizeof *result->counters, memory_of),
      cleanup);
  if (backend->marks_open != NULL) {
    EK_TRY_GOTO(status, backend->marks_open(&result->marks, device, 2 * spans), cleanup);
  }
  *track = result;
  return EK_OK;
cleanup:
  ek__track_free(result);
  return status;
}

void ek__track_free(struct ek__track *track) {
  if (track == NULL) return;
  if (track->marks != NULL) ek__device_table(track->device)->marks_close(track->marks);
  ek__free(track->counters);
  ek__free(track->spans);
  ek__free(track);
}

/* ---- spans ---- */

/* The lanes that are streams of the device. */
static bool is_marked(const struct ek__track *track, enum ek__lane lane) {
  return track->marks != NULL && lane != EK__LANE_TRANSFERS;
}

static void set_mark(const struct ek__track *track, const struct ek__track_span *span,
                     size_t which) {
  if (!is_marked(track, span->lane)) return;
  const ek_stream_kind kind =
      span->lane == EK__LANE_COMPUTE ? EK_STREAM_COMPUTE : EK_STREAM_COMMUNICATION;
  ek__device_table(track->device)
      ->mark(track->marks, 2 * (size_t)(span - track->spans) + which,
             ek_device_stream(track->device, kind));
}

static struct ek__track_span *heard(const ek_device *device) {
  if (device == NULL || device->heard.listener == NULL) return NULL;
  return (struct ek__track_span *)(uintptr_t)&device->heard; /* nothing writes to it */
}

struct ek__track_span *ek__track_span_begin(const ek_device *device, enum ek__lane lane,
                                            const char *category, uint64_t bytes) {
  struct ek__track *track = recording_on(device);
  if (track == NULL) return heard(device);
  const size_t place = atomic_fetch_add_explicit(&track->begun, 1, memory_order_relaxed);
  if (place >= track->capacity) return heard(device);
  struct ek__track_span *span = &track->spans[place];
  span->track = track;
  span->listener = device->heard.listener;
  span->lane = lane;
  span->category = category;
  span->bytes = bytes;
  span->name[0] = '\0';
  span->begin = ek__track_now();
  set_mark(track, span, 0);
  return span;
}

void ek__track_span_name(struct ek__track_span *span, const char *name) {
  if (span->listener != NULL) span->listener->range_begin(name);
  if (span->track == NULL) return;
  const size_t length = strlen(name);
  const size_t cut = length < EK__SPAN_NAME ? 0 : length - (EK__SPAN_NAME - 1);
  memcpy(span->name, name + cut, length - cut + 1);
}

void ek__track_span_end(struct ek__track_span *span) {
  if (span == NULL) return;
  if (span->listener != NULL) span->listener->range_end();
  if (span->track == NULL) return;
  set_mark(span->track, span, 1);
  atomic_store_explicit(&span->end, ek__track_now(), memory_order_release);
}

bool ek__track_span_times(uint64_t *begin, uint64_t *end, const struct ek__track *track,
                          size_t index) {
  const struct ek__track_span *span = &track->spans[index];
  *begin = span->begin;
  *end = atomic_load_explicit(&span->end, memory_order_acquire);
  if (*end == 0) return false;
  if (!is_marked(track, span->lane)) return true;
  const struct ek__backend *backend = ek__device_table(track->device);
  return backend->mark_time(begin, track->marks, 2 * index) &&
         backend->mark_time(end, track->marks, 2 * index + 1);
}

/* ---- counters ---- */

void ek__track_memory(const ek_device *device, ek_memory_category category, uint64_t bytes) {
  struct ek__track *track = recording_on(device);
  if (track == NULL) return;
  const size_t place = track->counted++;
  if (place >= track->counter_capacity) return;
  track->counters[place] = (struct ek__counter){ek__track_now(), bytes, category};
}

/* ---- how long a worker has been at work ---- */

uint64_t ek__device_busy(const ek_device *device) { return atomic_load(&device->busy); }

void ek__device_begins(ek_device *device) {
  device->began = ek__track_now();
  device->waited = 0;
}

void ek__device_waited(ek_device *device, uint64_t since) {
  device->waited += ek__track_now() - since;
}

void ek__device_ends(ek_device *device) {
  atomic_fetch_add(&device->busy, ek__track_now() - device->began - device->waited);
}
