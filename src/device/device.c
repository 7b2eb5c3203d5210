/*
 * device.c - properties of an open device. It calls nothing in src/device, so that all of it may
 * call these functions.
 */
#include <evenkeel/device.h>

#include "core/options.h"
#include "device/device_struct.h"

void ek__device_count_event(ek_device *device, int change) {
  atomic_fetch_add(&device->events, change);
}

const struct ek__backend *ek__device_table(const ek_device *device) { return device->backend; }

struct ek__arena *ek__device_arena(const ek_device *device) {
  /* The ledger of a device may be read and its peak reset through a pointer to const. */
  return (struct ek__arena *)(uintptr_t)&device->arena;
}

struct ek__fault *ek__device_fault(const ek_device *device) {
  /* A test arms a device through whatever pointer it has. */
  return (struct ek__fault *)(uintptr_t)&device->fault;
}

struct ek__work *ek__device_work(const ek_device *device) {
  if (device->backend->kernels != NULL) return NULL;
  /* Operations have a stream, which gives a pointer to const. */
  return (struct ek__work *)(uintptr_t)&device->work;
}

static void repeat(struct ek__arithmetic *now, const struct ek__arithmetic *before, double times) {
  now->products += times * (now->products - before->products);
  now->attention += times * (now->attention - before->attention);
  now->bytes += times * (now->bytes - before->bytes);
}

void ek_device_mark_work(ek_device *device) {
  if (ek_device_counts_only(device)) device->marked = device->work;
}

bool ek_device_repeat_work(ek_device *device, int64_t times) {
  if (!ek_device_counts_only(device) || times < 0) return false;
  struct ek__work *work = &device->work;
  const struct ek__work *before = &device->marked;
  const double more = (double)times;
  repeat(&work->wide, &before->wide, more);
  repeat(&work->tf32, &before->tf32, more);
  repeat(&work->half, &before->half, more);
  work->moved += more * (work->moved - before->moved);
  work->calls += more * (work->calls - before->calls);
  return true;
}

size_t ek_device_index(const ek_device *device) { return device == NULL ? 0 : device->index; }

const char *ek_device_name(const ek_device *device) {
  return device == NULL ? "host" : device->name;
}

const char *ek_device_backend(const ek_device *device) {
  return device == NULL ? "host" : device->backend->name;
}

const char *ek_device_planner(const ek_device *device) {
  if (device == NULL) return "";
  return device->backend->planner == NULL ? "plan" : device->backend->planner;
}

ek_group *ek_device_group(const ek_device *device) { return device == NULL ? NULL : device->group; }

int ek_device_threads(const ek_device *device) { return device == NULL ? 0 : device->threads; }

bool ek_device_counts_only(const ek_device *device) {
  return device != NULL && device->backend->kernels == NULL;
}

unsigned ek_device_types(const ek_device *device) {
  return device == NULL ? 0 : device->backend->values;
}

unsigned ek_device_precisions(const ek_device *device) {
  if (device == NULL) return 0;
  return device->backend->values | (device->backend->tf32 ? EK_PRECISIONS_TF32 : 0);
}

ek_stream *ek_device_stream(const ek_device *device, ek_stream_kind kind) {
  if (device == NULL || (unsigned)kind > EK_STREAM_COMMUNICATION) return NULL;
  return device->streams[kind];
}

EK__OPTIONS_INIT(ek_group_options, EK_GROUP_OPTIONS_INIT)
