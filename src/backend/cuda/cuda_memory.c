/*
 * cuda_memory.c - the memory of a GPU: taken in one piece when a group is opened, one part per
 * device.
 *
 * Or it is the program's (ek_device_resources). The library allocates and frees nothing on a GPU
 * while a group is open, so peaks and capacities are exact. All other memory in use on the GPU
 * (CUDA's context, the code of the libraries, NCCL's buffers, other programs) belongs to no tensor:
 * it is measured as the memory that is neither free nor ours, and is reported on a line of its own.
 * The reserve (cuda_warm.c) leaves room for its growth; an explicit cap may use the reserve.
 */
#include <stdio.h>

#include "backend/cuda/cuda_internal.h"

static uint64_t whole_units(uint64_t bytes) { return bytes & ~(uint64_t)(EK_MEMORY_UNIT - 1); }

/* The even part of a device without a cap. */
static uint64_t default_capacity(const struct ek__cuda_gpu *gpu, uint64_t free_bytes) {
  if (free_bytes <= gpu->reserve) return 0;
  return whole_units((free_bytes - gpu->reserve) / gpu->count);
}

static ek_status no_memory(const struct ek__cuda_gpu *gpu, uint64_t capacity, uint64_t free_bytes) {
  return ek__cuda_host->error_set(
      EK_ERR_OUT_OF_MEMORY,
      "cuda:%d: out of memory: opening %zu device%s of %.1f MiB each; the GPU has %.1f MiB free",
      gpu->physical, gpu->count, gpu->count == 1 ? "" : "s", (double)capacity / 1048576,
      (double)free_bytes / 1048576);
}

static void report(const struct ek__cuda_gpu *gpu, uint64_t total) {
  const double mib = 1048576.0;
  ek__cuda_host->log(EK_LOG_INFO,
                     "cuda:%d: %.1f MiB of %.1f MiB for %zu device%s; outside %.1f MiB, of which "
                     "code and communicators %.1f MiB; left alone %.1f MiB",
                     gpu->physical, (double)gpu->bytes / mib, (double)total / mib, gpu->count,
                     gpu->count == 1 ? "" : "s", (double)gpu->outside / mib,
                     (double)gpu->loaded / mib, (double)gpu->reserve / mib);
}

/* What is neither free nor ours. */
static uint64_t beside(const struct ek__cuda_gpu *gpu, uint64_t free_bytes, uint64_t total) {
  return total > free_bytes + gpu->bytes ? total - free_bytes - gpu->bytes : 0;
}

/* What is free may change before it is taken, as on a GPU that also draws: a `default` capacity,
 * which is in whole units, is then tried smaller. */
static cudaError_t take(struct ek__cuda_gpu *gpu, uint64_t *stride, uint64_t *capacity,
                        bool is_default) {
  static const unsigned less[] = {2, 5, 10}; /* percent */
  const uint64_t wished = *capacity;
  cudaError_t error = cudaMalloc(&gpu->memory, *stride * gpu->count);
  for (size_t i = 0; i < sizeof less / sizeof less[0]; i++) {
    if (!is_default || error != cudaErrorMemoryAllocation) break;
    (void)cudaGetLastError();
    *stride = *capacity = whole_units(wished - wished / 100 * less[i]);
    ek__cuda_host->log(EK_LOG_WARNING,
                       "cuda:%d: CUDA refuses memory that it reports as free: trying a capacity "
                       "smaller by %u %%",
                       gpu->physical, less[i]);
    error = cudaMalloc(&gpu->memory, *stride * gpu->count);
  }
  return error;
}

static ek_status check_address(const struct ek__cuda_device *it, const void *address) {
  struct cudaPointerAttributes attributes;
  EK_TRY(ek__cuda_enter(it));
  EK_TRY(EK__CUDA(it, cudaPointerGetAttributes, &attributes, address));
  const bool here = attributes.device == it->gpu->physical;
  if (attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged ||
      (attributes.type == cudaMemoryTypeDevice && here)) {
    return EK_OK;
  }
  char what[48] = "no memory that CUDA knows";
  if (attributes.type == cudaMemoryTypeDevice) {
    (void)snprintf(what, sizeof what, "memory of GPU %d", attributes.device);
  }
  return ek__cuda_host->error_set(EK_ERR_INVALID_ARGUMENT,
                                  "%s: %p is %s; expected memory of GPU %d, managed or pinned",
                                  it->name, address, what, it->gpu->physical);
}

ek_status ek__cuda_memory_check(const ek_device *device, const void *address) {
  return check_address(ek__cuda_device_of(device), address);
}

/* The program's memory for all devices of a GPU. */
static ek_status use_given(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu, uint64_t cap) {
  size_t free_bytes = 0, total = 0;
  gpu->reserve = 0;
  for (size_t i = 0; i < gpu->count; i++) {
    struct ek__cuda_device *device = &group->devices[gpu->first + i];
    const ek_device_resources *given = &group->options.resources[device->index];
    EK_TRY(check_address(device, given->memory));
    EK_TRY(check_address(device, (const char *)given->memory + given->bytes - 1));
    device->capacity = cap == 0 ? given->bytes : cap;
    gpu->bytes += given->bytes;
  }
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaMemGetInfo, &free_bytes, &total));
  gpu->outside = beside(gpu, free_bytes, total);
  report(gpu, total);
  return EK_OK;
}

ek_status ek__cuda_memory_open(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu,
                               uint64_t capacity) {
  size_t before = 0, after = 0, total = 0;
  const ek_device_resources *given = group->options.resources;
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaSetDevice, gpu->physical));
  if (given != NULL && given[0].memory != NULL) return use_given(group, gpu, capacity);
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaMemGetInfo, &before, &total));
  const bool is_default = capacity == 0;
  if (is_default) {
    capacity = default_capacity(gpu, before);
  } else {
    gpu->reserve = 0;
  }
  uint64_t bytes = 0, stride = 0;
  if (capacity == 0 || __builtin_add_overflow(capacity, EK_MEMORY_UNIT - 1, &stride) ||
      __builtin_mul_overflow(stride = whole_units(stride), gpu->count, &bytes) || bytes > before) {
    return no_memory(gpu, capacity, before);
  }
  const cudaError_t error = take(gpu, &stride, &capacity, is_default);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    gpu->memory = NULL;
    return no_memory(gpu, capacity, before);
  }
  EK_TRY(ek__cuda_check_gpu(gpu->physical, error, "cudaMalloc"));
  gpu->bytes = stride * gpu->count;
  EK_TRY(EK__CUDA_GPU(gpu->physical, cudaMemGetInfo, &after, &total));
  gpu->outside = beside(gpu, after, total);
  for (size_t i = 0; i < gpu->count; i++) {
    struct ek__cuda_device *device = &group->devices[gpu->first + i];
    device->offset = stride * i;
    device->capacity = capacity;
  }
  report(gpu, total);
  return EK_OK;
}

/* A device's part of what its GPU has; the parts of all its devices sum to it. */
static uint64_t part_of(uint64_t bytes, const struct ek__cuda_device *device) {
  const size_t count = device->gpu->count, number = device->index - device->gpu->first;
  return bytes / count + (number < bytes % count ? 1 : 0);
}

ek_status ek__cuda_memory_outside(ek_memory_outside *outside, const ek_device *device) {
  const struct ek__cuda_device *it = ek__cuda_device_of(device);
  size_t free_bytes = 0, total = 0;
  EK_TRY(ek__cuda_enter(it));
  EK_TRY(EK__CUDA(it, cudaMemGetInfo, &free_bytes, &total));
  *outside = (ek_memory_outside){.opening_bytes = part_of(it->gpu->outside, it),
                                 .now_bytes = part_of(beside(it->gpu, free_bytes, total), it),
                                 .reserve_bytes = part_of(it->gpu->reserve, it),
                                 .free_bytes = part_of(free_bytes, it),
                                 .total_bytes = part_of(total, it)};
  return EK_OK;
}
