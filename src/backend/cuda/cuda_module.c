/*
 * cuda_module.c - the CUDA backend's table, and the one function by which the library gets it.
 */
#include <string.h>

#include <evenkeel/dlpack.h>
#include <evenkeel/version.h>

#include "backend/cuda/cuda_internal.h"

static ek_status device_open(void **native, void *raw, size_t index) {
  struct ek__cuda_group *group = raw;
  *native = &group->devices[index];
  return EK_OK;
}

/* Devices are part of their group. */
static void device_close(void *native) { (void)native; }

static ek_status memory_size(uint64_t *bytes, const ek_device *device, size_t devices) {
  (void)devices;
  *bytes = ek__cuda_device_of(device)->capacity;
  return EK_OK;
}

static ek_status memory_reserve(void **base, uint64_t bytes, const ek_device *device) {
  struct ek__cuda_device *it = ek__cuda_device_of(device);
  if (bytes > it->capacity) {
    return ek__cuda_host->error_set(EK_ERR_INTERNAL, "%s: the arena is larger than its memory",
                                    it->name);
  }
  *base = (char *)it->gpu->memory + it->offset;
  ek__cuda_heap_open(it, *base, bytes);
  return EK_OK;
}

static void memory_release(void *base, uint64_t bytes) {
  (void)base; /* with the group */
  (void)bytes;
}

static int number(const ek_device *device) { return ek__cuda_device_of(device)->gpu->physical; }

static void workspace_give(ek_device *device, void *address) {
  ek__cuda_device_of(device)->workspace = address;
}

static const struct ek__link *link_for(void *raw) {
  const struct ek__cuda_group *group = raw;
  return group->nccl ? ek__cuda_nccl : NULL;
}

/* ---- slots that any thread of the program may call: its current GPU stays what it was ---- */

#define VISIT(slot, parameters, arguments)                                                         \
  static ek_status slot parameters {                                                               \
    const int before = ek__cuda_current();                                                         \
    return ek__cuda_leave(before, ek__cuda_##slot arguments);                                      \
  }
VISIT(group_open,
      (void **native, const struct ek__device_spec *spec, const ek_group_options *options,
       const struct ek__members *members),
      (native, spec, options, members))
VISIT(memory_outside, (ek_memory_outside * outside, const ek_device *device), (outside, device))
VISIT(memory_check, (const ek_device *device, const void *address), (device, address))
VISIT(stream_join, (ek_stream * stream, void *native, bool reverse), (stream, native, reverse))
VISIT(stream_synchronize, (ek_stream * stream), (stream))
VISIT(event_open, (void **native, ek_device *device), (native, device))
VISIT(event_record, (void *event, ek_stream *stream), (event, stream))
VISIT(event_synchronize, (void *event, ek_device *device), (event, device))
VISIT(stream_wait, (ek_stream * stream, void *event), (stream, event))
VISIT(upload, (ek_stream * stream, void *to, const struct ek__host_bytes *host, size_t bytes),
      (stream, to, host, bytes))
VISIT(download, (ek_stream * stream, void *host, const void *from, size_t bytes),
      (stream, host, from, bytes))
VISIT(note_write, (ek_stream * stream, void *memory, const void *from, size_t bytes),
      (stream, memory, from, bytes))
VISIT(check_found, (ek_device * device), (device))
VISIT(between, (ek_stream * stream, void *to, ek_device *source, const void *from, size_t bytes),
      (stream, to, source, from, bytes))
VISIT(send,
      (uint64_t * arrival, ek_device *device, void *to, const struct ek__host_bytes *host,
       size_t bytes, uint64_t ticket),
      (arrival, device, to, host, bytes, ticket))
VISIT(arrive, (ek_device * device, uint64_t arrival), (device, arrival))
VISIT(marks_open, (void **marks, ek_device *device, size_t count), (marks, device, count))

static void mark(void *marks, size_t index, ek_stream *stream) {
  const int before = ek__cuda_current();
  ek__cuda_mark(marks, index, stream);
  (void)ek__cuda_leave(before, EK_OK);
}

static bool mark_time(uint64_t *nanoseconds, void *marks, size_t index) {
  const int before = ek__cuda_current();
  const bool known = ek__cuda_mark_time(nanoseconds, marks, index);
  return ek__cuda_leave(before, EK_OK) == EK_OK && known;
}

static void group_close(void *native) {
  const int before = ek__cuda_current();
  ek__cuda_group_close(native);
  (void)ek__cuda_leave(before, EK_OK);
}

static const struct ek__kernels kernels = {
#define ENTRY(name, ...) .name = ek__cuda_slot_##name,
#define NOTHING(name, ...)
    EK__SLOT_LIST(ENTRY, ENTRY, NOTHING, ENTRY)};

static const struct ek__backend table = {
    EK__BACKEND_REQUIRED("cuda", ek__cuda_describe, memory_size, memory_reserve, memory_release,
                         ek__cuda_stream_open, ek__cuda_stream_close),
    .kernels = &kernels,
    .values = EK__CUDA_VALUES,
    .planner = "plan-cuda",
    .tf32 = true,
    .dlpack_type = EK_DLPACK_CUDA,
    .number = number,
    .resolve = ek__cuda_resolve,
    .group_open = group_open,
    .group_close = group_close,
    .device_open = device_open,
    .device_close = device_close,
    .workspace_bytes = EK__CUDA_DEVICE_BYTES,
    .workspace_give = workspace_give,
    .memory_check = memory_check,
    .memory_outside = memory_outside,
    .stream_handle = ek__cuda_stream_handle,
    .takes_stream = true,
    .stream_join = stream_join,
    .stream_synchronize = stream_synchronize,
    .event_open = event_open,
    .event_close = ek__cuda_event_close,
    .event_record = event_record,
    .event_synchronize = event_synchronize,
    .stream_wait = stream_wait,
    .upload = upload,
    .download = download,
    .note_open = ek__cuda_note_open,
    .note_close = ek__cuda_note_close,
    .note_write = note_write,
    .check_found = check_found,
    .bucket_bytes = EK__CUDA_BUCKET_BYTES,
    .table_rows = EK__CUDA_TABLE_ROWS,
    .between = between,
    .ticket = ek__cuda_ticket,
    .send = send,
    .arrive = arrive,
    .link_for = link_for,
    .marks_open = marks_open,
    .marks_close = ek__cuda_marks_close,
    .mark = mark,
    .mark_time = mark_time,
    .watch = ek__cuda_watch,
    .listens = ek__cuda_listens,
    .range_begin = ek__cuda_range_begin,
    .range_end = ek__cuda_range_end,
    .block_taken = ek__cuda_block_taken,
    .block_given = ek__cuda_block_given,
    .worker_begins = ek__cuda_worker_begins,
};

EK_API ek__module_entry ek_cuda_module;

ek_status ek_cuda_module(const void **backend, const struct ek__module_host *host) {
  if (host->size != sizeof *host || host->table_size != EK__BACKEND_SIZE ||
      strcmp(host->version, EK_VERSION_STRING) != 0) {
    return EK_ERR_UNAVAILABLE;
  }
  ek__cuda_host = host;
  *backend = &table;
  return EK_OK;
}
