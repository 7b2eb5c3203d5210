/*
 * device.c - one device: its name, its arena and its two streams; and the list of what there is.
 */
#include <evenkeel/device.h>

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log_internal.h"
#include "device/arena.h"
#include "device/device_internal.h"
#include "device/ledger.h"

struct ek_device {
  ek_group *group;
  const struct ek__backend *backend;
  size_t index;
  int threads;
  char name[32];
  ek_stream *streams[2]; /* by ek_stream_kind */
  struct ek__arena arena;
};

ek_status ek__device_open(ek_device **device, ek_group *group, const struct ek__backend *backend,
                          size_t index, int threads, uint64_t capacity) {
  ek_device *result = ek__calloc(1, sizeof *result);
  if (result == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for %s:%zu", backend->name, index);
  }
  result->group = group;
  result->backend = backend;
  result->index = index;
  result->threads = threads;
  snprintf(result->name, sizeof result->name, "%s:%zu", backend->name, index);
  ek_status status = EK_OK;
  if (capacity == 0) EK_TRY_GOTO(status, backend->memory_size(&capacity), cleanup);
  EK_TRY_GOTO(status, ek__arena_open(&result->arena, result, backend, capacity), cleanup);
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
  const uint64_t held = ek__arena_close(&device->arena);
  if (held > 0) {
    char text[32];
    ek__log(EK_LOG_WARNING, "%s: %s still held when the group was closed", device->name,
            ek__ledger_size(text, sizeof text, held));
  }
  ek__free(device);
}

const struct ek__backend *ek__device_table(const ek_device *device) { return device->backend; }

struct ek__arena *ek__device_arena(const ek_device *device) {
  /* The ledger of a device may be read and its peak reset through a pointer to const. */
  return (struct ek__arena *)(uintptr_t)&device->arena;
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

ek_stream *ek_device_stream(const ek_device *device, ek_stream_kind kind) {
  if (device == NULL || (unsigned)kind > EK_STREAM_COMMUNICATION) return NULL;
  return device->streams[kind];
}

/* A backend that this build does not have still has its line. */
static const ek_device_description no_cuda = {
    .name = "cuda", .text = "this build has no CUDA module", .available = false};

ek_status ek_device_list(ek_device_description *descriptions, size_t capacity, size_t *count) {
  if (count == NULL || (descriptions == NULL && capacity > 0)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_device_list: descriptions and count may not be NULL");
  }
  static const struct ek__backend *const backends[] = {&ek__cpu_backend, &ek__plan_backend};
  size_t total = 0;
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
    const size_t room = total < capacity ? capacity - total : 0;
    size_t found = 0;
    EK_TRY(backends[i]->describe(room > 0 ? descriptions + total : NULL, room, &found));
    total += found;
  }
  if (total < capacity) descriptions[total] = no_cuda;
  *count = total + 1;
  return EK_OK;
}
