/*
 * device.c - one device: its name, its arena and its two streams.
 */
#include <evenkeel/device.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "device/arena.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"
#include "device/ledger.h"

struct ek_device {
  ek_group *group;
  const struct ek__backend *backend;
  size_t index;
  int threads;
  char name[32];
  void *native;                /* the backend's */
  struct ek_memory *workspace; /* the backend's part of the arena, or NULL */
  ek_stream *streams[2];       /* by ek_stream_kind */
  atomic_int events;           /* that are not freed yet */
  struct ek__fault fault;      /* of a test */
  struct ek__arena arena;
};

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

/* The part of the arena that the backend needs; it lies in front of everything else. */
static ek_status take_workspace(ek_device *device) {
  const struct ek__backend *backend = device->backend;
  if (backend->workspace_bytes == 0) return EK_OK;
  EK_TRY(ek__arena_take(&device->workspace, &device->arena, EK_MEMORY_WORKSPACE,
                        backend->workspace_bytes));
  device->arena.fixed = device->workspace->bytes;
  if (backend->workspace_give != NULL) backend->workspace_give(device, device->workspace->address);
  return EK_OK;
}

ek_status ek__device_open(ek_device **device, ek_group *group, const struct ek__backend *backend,
                          const struct ek__device_spec *spec, size_t index, int threads) {
  ek_device *result = ek__calloc(1, sizeof *result);
  if (result == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for %s:%zu", backend->name, index);
  }
  result->group = group;
  result->backend = backend;
  result->index = index;
  result->threads = threads;
  set_name(result, spec);
  ek_status status = EK_OK;
  uint64_t capacity = spec->capacity;
  if (backend->device_open != NULL) {
    EK_TRY_GOTO(status, backend->device_open(&result->native, ek__group_native(group), result),
                cleanup);
  }
  if (capacity == 0) EK_TRY_GOTO(status, backend->memory_size(&capacity, result), cleanup);
  EK_TRY_GOTO(status, ek__arena_open(&result->arena, result, backend, capacity), cleanup);
  ek_memory_outside outside;
  EK_TRY_GOTO(status, ek_memory_measure_outside(&outside, result), cleanup);
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
  ek__arena_close(&device->arena);
  if (device->native != NULL) device->backend->device_close(device->native);
  ek__free(device);
}

ek_status ek__device_check_unused(const ek_device *device, const char *who) {
  ek_memory_usage usage;
  EK_TRY(ek_memory_stats(&usage, device));
  usage.current[EK_MEMORY_WORKSPACE] -= usage.fixed_bytes;
  if (usage.current_bytes > usage.fixed_bytes) {
    char held[1024];
    ek__ledger_describe(held, sizeof held, usage.current);
    return ek_error_set(EK_ERR_STATE, "%s: tensors still lie on %s: %s", who, device->name, held);
  }
  if (atomic_load(&device->events) == 0) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "%s: an event of %s was not freed", who, device->name);
}

void ek__device_count_event(ek_device *device, int change) {
  atomic_fetch_add(&device->events, change);
}

const struct ek__backend *ek__device_table(const ek_device *device) { return device->backend; }

void *ek__device_native(const ek_device *device) { return device->native; }

struct ek__arena *ek__device_arena(const ek_device *device) {
  /* The ledger of a device may be read and its peak reset through a pointer to const. */
  return (struct ek__arena *)(uintptr_t)&device->arena;
}

struct ek__fault *ek__device_fault(const ek_device *device) {
  /* A test arms a device through whatever pointer it has. */
  return (struct ek__fault *)(uintptr_t)&device->fault;
}

size_t ek_device_index(const ek_device *device) { return device == NULL ? 0 : device->index; }

const char *ek_device_name(const ek_device *device) {
  return device == NULL ? "host" : device->name;
}

const char *ek_device_backend(const ek_device *device) {
  return device == NULL ? "host" : device->backend->name;
}

ek_group *ek_device_group(const ek_device *device) { return device == NULL ? NULL : device->group; }

int ek_device_threads(const ek_device *device) { return device == NULL ? 0 : device->threads; }

bool ek_device_counts_only(const ek_device *device) {
  return device != NULL && device->backend->kernels == NULL;
}

ek_status ek_device_parallel_for(ek_device *device, int64_t count, ek_range_function function,
                                 void *context) {
  if (device == NULL || function == NULL || count < 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_device_parallel_for: device and function may not be NULL, nor count "
                        "negative (%lld)",
                        (long long)count);
  }
  EK_TRY(ek__fault_point(device, "ek_device_parallel_for"));
  const struct ek__backend *backend = device->backend;
  if (backend->parallel_for == NULL && backend->kernels != NULL) {
    return ek_error_set(EK_ERR_UNSUPPORTED,
                        "ek_device_parallel_for: %s does not compute on the host's threads",
                        device->name);
  }
  if (count == 0 || backend->kernels == NULL) return EK_OK;
  return backend->parallel_for(device->streams[EK_STREAM_COMPUTE], count, function, context);
}

ek_stream *ek_device_stream(const ek_device *device, ek_stream_kind kind) {
  if (device == NULL || (unsigned)kind > EK_STREAM_COMMUNICATION) return NULL;
  return device->streams[kind];
}
