/*
 * device_open.c - opens and closes a device: its name, its arena and its two streams; and checks
 * those that a program gives.
 */
#include <stdio.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/device_struct.h"
#include "device/ledger.h"
#include "device/track.h"

/* "cpu:1", "cuda:0", "cuda:0#2" for the third of several on one GPU. */
static void set_name(ek_device *device, const struct ek__device_spec *spec) {
  const struct ek__device_place *place = spec->places == NULL ? NULL : &spec->places[device->index];
  const char *backend = device->backend->name;
  if (place == NULL) {
    snprintf(device->name, sizeof device->name, "%s:%zu", backend, device->index);
  } else if (place->parts == 1) {
    snprintf(device->name, sizeof device->name, "%s:%d", backend, place->physical);
  } else {
    snprintf(device->name, sizeof device->name, "%s:%d#%d", backend, place->physical, place->part);
  }
}

/* ---- what a program gives ---- */

/* Memory of a device: `first` tells whether those before it have some. */
static ek_status check_memory(const ek_device_resources *given, size_t index, bool first,
                              uint64_t cap) {
  EK__FAIL_IF((given->memory != NULL) != first, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.resources: device 0 has %s memory, and device %zu has %s; "
              "expected all or none",
              first ? "some" : "no", index, first ? "none" : "some");
  EK__FAIL_IF((given->memory == NULL) != (given->bytes == 0), EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.resources[%zu]: %llu bytes at %p; expected an address and "
              "its bytes, or neither",
              index, (unsigned long long)given->bytes, given->memory);
  if (given->memory == NULL) return EK_OK;
  EK__FAIL_IF((uintptr_t)given->memory % EK_MEMORY_UNIT != 0 || given->bytes < EK_MEMORY_UNIT,
              EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.resources[%zu]: %llu bytes at %p; expected at least %d at a "
              "multiple of %d",
              index, (unsigned long long)given->bytes, given->memory, EK_MEMORY_UNIT,
              EK_MEMORY_UNIT);
  EK__FAIL_IF(cap > given->bytes, EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: the cap of %llu bytes is larger than options.resources[%zu], which "
              "has %llu",
              (unsigned long long)cap, index, (unsigned long long)given->bytes);
  return EK_OK;
}

ek_status ek__device_check_resources(const ek_group_options *options,
                                     const struct ek__backend *backend,
                                     const struct ek__device_spec *spec) {
  const ek_device_resources *given = options->resources;
  EK__FAIL_IF(options->resource_count != (given == NULL ? 0 : spec->count), EK_ERR_INVALID_ARGUMENT,
              "ek_group_open: options.resource_count is %zu, expected %zu: one for each device",
              options->resource_count, given == NULL ? 0 : spec->count);
  for (size_t i = 0; i < options->resource_count; i++) {
    EK__FAIL_IF(given[i].stream != NULL && !backend->takes_stream, EK_ERR_UNSUPPORTED,
                "ek_group_open: options.resources[%zu].stream: devices of %s have no streams that "
                "a program can give; expected NULL",
                i, backend->name);
    for (size_t k = 0; k < i; k++) {
      EK__FAIL_IF(given[i].stream != NULL && given[i].stream == given[k].stream,
                  EK_ERR_INVALID_ARGUMENT,
                  "ek_group_open: options.resources[%zu] and [%zu] have one stream; expected one "
                  "for each device",
                  k, i);
    }
    EK_TRY(check_memory(&given[i], i, given[0].memory != NULL, spec->capacity));
  }
  return EK_OK;
}

/* ---- opening and closing ---- */

/* The part of the arena that the backend needs, before everything else. */
static ek_status take_workspace(ek_device *device) {
  const struct ek__backend *backend = device->backend;
  if (backend->workspace_bytes == 0) return EK_OK;
  EK_TRY(ek__arena_take(&device->workspace, &device->arena, EK_MEMORY_WORKSPACE,
                        backend->workspace_bytes));
  device->arena.fixed = device->workspace->bytes;
  if (backend->workspace_give != NULL) backend->workspace_give(device, device->workspace->address);
  return EK_OK;
}

ek_status ek__device_open(ek_device **device, ek_group *group, void *group_native,
                          const struct ek__backend *backend, const struct ek__device_spec *spec,
                          size_t index, const ek_device *first, int threads,
                          const ek_group_options *options) {
  ek_device *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, "a device"));
  result->group = group;
  result->backend = backend;
  result->index = index;
  result->threads = threads;
  result->head.deterministic = options->deterministic;
  if (backend->listens != NULL && backend->listens()) result->heard.listener = backend;
  pthread_mutex_init(&result->used_mutex, NULL);
  set_name(result, spec);
  ek_status status = EK_OK;
  const ek_device_resources given =
      options->resources == NULL ? (ek_device_resources){0} : options->resources[index];
  uint64_t capacity = spec->capacity == 0 ? given.bytes : spec->capacity;
  if (backend->device_open != NULL) {
    EK_TRY_GOTO(status, backend->device_open(&result->head.native, group_native, index), cleanup);
  }
  if (capacity == 0 && backend->shared_memory && first != NULL) { /* equal parts, asked for once */
    capacity = first->arena.capacity;
  } else if (capacity == 0) {
    EK_TRY_GOTO(status, backend->memory_size(&capacity, result, spec->count), cleanup);
  }
  EK_TRY_GOTO(status, ek__arena_open(&result->arena, result, backend, capacity, given.memory),
              cleanup);
  ek_memory_outside outside = {0};
  if (backend->memory_outside != NULL) {
    EK_TRY_GOTO(status, backend->memory_outside(&outside, result), cleanup);
  }
  result->arena.outside = outside.opening_bytes;
  EK_TRY_GOTO(status, take_workspace(result), cleanup);
  for (int kind = 0; kind < 2; kind++) {
    EK_TRY_GOTO(
        status,
        ek__stream_open(&result->streams[kind], result, backend, (ek_stream_kind)kind, threads),
        cleanup);
  }
  *device = result;
  return EK_OK;
cleanup:
  ek__device_close(result);
  return status;
}

void ek__device_close(ek_device *device) {
  if (device == NULL) return;
  ek__stream_close(device->streams[EK_STREAM_COMMUNICATION]);
  ek__stream_close(device->streams[EK_STREAM_COMPUTE]);
  if (device->workspace != NULL) ek__arena_drop(device->workspace);
  ek__track_free(device->kept_track);
  ek__arena_close(&device->arena);
  if (device->head.native != NULL) device->backend->device_close(device->head.native);
  pthread_mutex_destroy(&device->used_mutex);
  ek__free(device);
}

ek_status ek__device_check_unused(const ek_device *device, const char *who) {
  ek_memory_usage usage;
  EK_TRY(ek_memory_stats(&usage, device));
  usage.current[EK_MEMORY_WORKSPACE] -= usage.fixed_bytes;
  if (usage.current_bytes > usage.fixed_bytes) {
    char held[1024];
    ek__ledger_describe(held, sizeof held, usage.current);
    return ek_error_set(EK_ERR_STATE, "%s: tensors remain on %s: %s", who, device->name, held);
  }
  if (ek__arena_apart(ek__device_arena(device)) > 0) {
    return ek_error_set(EK_ERR_STATE,
                        "%s: a tensor of wrapped memory or without elements remains on %s", who,
                        device->name);
  }
  if (atomic_load(&device->events) == 0) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "%s: an event of %s was not freed", who, device->name);
}
