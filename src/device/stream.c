/*
 * stream.c - streams and events: a device's queues of work and marks in them.
 *
 * A stream belongs to its device and lives as long. The backend decides when queued work is done:
 * the CPU backend has done it when a call returns, so its slots for waiting are empty.
 */
#include <stdatomic.h>

#include "backend/backend.h"
#include "core/alloc.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"

struct ek_stream {
  struct ek__stream_head head; /* first: what the backend made of it */
  ek_device *device;
  ek_stream_kind kind;
  /* A stream belongs to one thread at a time, but another thread's operations may read this while
   * a job of the worker begins. */
  atomic_bool tf32;
};

struct ek_event {
  ek_device *device;
  void *native;
  bool recorded;
};

ek_status ek__stream_open(ek_stream **stream, ek_device *device, const struct ek__backend *backend,
                          ek_stream_kind kind, int threads) {
  ek_stream made = {.device = device, .kind = kind};
  EK_TRY(backend->stream_open(&made.head.native, device, kind, threads));
  const ek_status status = ek__new_copy(stream, &made, sizeof made, "a stream");
  if (status != EK_OK) backend->stream_close(made.head.native);
  return status;
}

void ek__stream_close(ek_stream *stream) {
  if (stream == NULL) return;
  ek__device_table(stream->device)->stream_close(stream->head.native);
  ek__free(stream);
}

ek_device *ek_stream_device(const ek_stream *stream) {
  return stream == NULL ? NULL : stream->device;
}

void *ek_stream_native(const ek_stream *stream) {
  if (stream == NULL) return NULL;
  const struct ek__backend *backend = ek__device_table(stream->device);
  return backend->stream_handle == NULL ? NULL : backend->stream_handle(stream->head.native);
}

static ek_status join(ek_stream *stream, void *native, bool reverse) {
  const struct ek__backend *backend = ek__device_table(stream->device);
  EK_TRY(ek__fault_point(stream->device, "event"));
  return backend->stream_join == NULL ? EK_OK : backend->stream_join(stream, native, reverse);
}

ek_status ek_stream_wait_native(ek_stream *stream, void *native) {
  EK__NOT_NULL("ek_stream_wait_native", stream);
  return join(stream, native, false);
}

ek_status ek_stream_native_wait(void *native, ek_stream *stream) {
  EK__NOT_NULL("ek_stream_native_wait", stream);
  return join(stream, native, true);
}

bool ek_stream_allow_tf32(ek_stream *stream, bool allow) {
  if (stream == NULL) return false;
  const bool before = ek_stream_allows_tf32(stream);
  atomic_store_explicit(&stream->tf32, allow, memory_order_relaxed);
  return before;
}

bool ek_stream_allows_tf32(const ek_stream *stream) {
  return stream != NULL && atomic_load_explicit(&stream->tf32, memory_order_relaxed);
}

ek_status ek_stream_synchronize(ek_stream *stream) {
  EK__NOT_NULL("ek_stream_synchronize", stream);
  EK_TRY(ek__fault_point(stream->device, "waiting for a stream"));
  const struct ek__backend *backend = ek__device_table(stream->device);
  return backend->stream_synchronize == NULL ? EK_OK : backend->stream_synchronize(stream);
}

ek_status ek_event_create(ek_event **event, ek_device *device) {
  EK__NOT_NULL("ek_event_create", event, device);
  const struct ek__backend *backend = ek__device_table(device);
  ek_event made = {.device = device};
  if (backend->event_open != NULL) EK_TRY(backend->event_open(&made.native, device));
  const ek_status status = ek__new_copy(event, &made, sizeof made, "an event");
  if (status == EK_OK) {
    ek__device_count_event(device, 1);
  } else if (backend->event_close != NULL) {
    backend->event_close(made.native);
  }
  return status;
}

ek_status ek_event_record(ek_event *event, ek_stream *stream) {
  EK__NOT_NULL("ek_event_record", event, stream);
  EK__FAIL_IF(event->device != stream->device, EK_ERR_DEVICE,
              "ek_event_record: event of %s, stream of %s", ek_device_name(event->device),
              ek_device_name(stream->device));
  EK_TRY(ek__fault_point(event->device, "event"));
  const struct ek__backend *backend = ek__device_table(event->device);
  if (backend->event_record != NULL) EK_TRY(backend->event_record(event->native, stream));
  event->recorded = true;
  return EK_OK;
}

ek_status ek_stream_wait(ek_stream *stream, const ek_event *event) {
  EK__NOT_NULL("ek_stream_wait", event, stream);
  const struct ek__backend *backend = ek__device_table(stream->device);
  if (!event->recorded || backend->stream_wait == NULL) return EK_OK;
  return backend->stream_wait(stream, event->native);
}

ek_status ek_event_synchronize(const ek_event *event) {
  EK__NOT_NULL("ek_event_synchronize", event);
  const struct ek__backend *backend = ek__device_table(event->device);
  if (!event->recorded || backend->event_synchronize == NULL) return EK_OK;
  return backend->event_synchronize(event->native, event->device);
}

void ek_event_free(ek_event *event) {
  if (event == NULL) return;
  const struct ek__backend *backend = ek__device_table(event->device);
  if (backend->event_close != NULL) backend->event_close(event->native);
  ek__device_count_event(event->device, -1);
  ek__free(event);
}

/* ---- a program's own loops ---- */

ek_status ek_device_parallel_for(ek_device *device, int64_t count, ek_range_function function,
                                 void *context) {
  EK__FAIL_IF(
      device == NULL || function == NULL || count < 0, EK_ERR_INVALID_ARGUMENT,
      "ek_device_parallel_for: device and function may not be NULL, and count (%lld) may not be "
      "negative",
      (long long)count);
  EK_TRY(ek__fault_point(device, "ek_device_parallel_for"));
  const struct ek__backend *backend = ek__device_table(device);
  EK__FAIL_IF(backend->parallel_for == NULL && backend->kernels != NULL, EK_ERR_UNSUPPORTED,
              "ek_device_parallel_for: %s does not compute on the host's threads",
              ek_device_name(device));
  if (count == 0 || backend->kernels == NULL) return EK_OK;
  return backend->parallel_for(ek_device_stream(device, EK_STREAM_COMPUTE), count, function,
                               context);
}
