/*
 * cuda_memory.c - the memory of a GPU: taken in one piece when a group is opened, one part per
 * device.
 *
 * Nothing is allocated or freed on a GPU while a group is open, so peaks and capacities are exact.
 * What the GPU holds beside this memory (CUDA's context, the code of the libraries, NCCL's buffers,
 * other programs) is nobody's tensor: it is measured as what is neither free nor ours, and reported
 * in a line of its own.
 */
#include <inttypes.h>

#include "backend/cuda/cuda_internal.h"

/* CUDA loads the code of a kernel when it is first used, and NCCL its buffers when the first
 * communicator is opened: that much of the GPU is left alone if nobody said how much to take. */
#define SPARE_PART 64
#define NCCL_BYTES ((uint64_t)1 << 30)

static uint64_t whole_units(uint64_t bytes) { return bytes & ~(uint64_t)(EK_MEMORY_UNIT - 1); }

/* The even part of a device without a cap. */
static uint64_t default_capacity(const struct ek__cuda_group *group, const struct ek__cuda_gpu *gpu,
                                 uint64_t free_bytes, uint64_t total) {
  uint64_t spare = total / SPARE_PART;
  if (group->nccl && total > 8 * NCCL_BYTES) spare += NCCL_BYTES;
  return free_bytes > spare ? whole_units((free_bytes - spare) / gpu->count) : 0;
}

static ek_status no_memory(const struct ek__cuda_gpu *gpu, uint64_t capacity, uint64_t free_bytes) {
  return ek__cuda_host->error_set(
      EK_ERR_OUT_OF_MEMORY,
      "cuda:%d: out of memory: %zu device%s of %" PRIu64 " bytes do not fit into the %" PRIu64
      " bytes that the GPU has free",
      gpu->physical, gpu->count, gpu->count == 1 ? "" : "s", capacity, free_bytes);
}

static void report(const struct ek__cuda_gpu *gpu, uint64_t before, uint64_t after,
                   uint64_t total) {
  const double mib = 1048576.0;
  ek__cuda_host->log(EK_LOG_INFO,
                     "cuda:%d: %.1f MiB of %.1f MiB for %zu device%s; outside %.1f MiB, of which "
                     "streams, handles and pinned memory %.1f MiB",
                     gpu->physical, (double)gpu->bytes / mib, (double)total / mib, gpu->count,
                     gpu->count == 1 ? "" : "s", (double)gpu->outside * (double)gpu->count / mib,
                     before > after + gpu->bytes ? (double)(before - after - gpu->bytes) / mib : 0);
}

ek_status ek__cuda_memory_open(struct ek__cuda_group *group, struct ek__cuda_gpu *gpu,
                               uint64_t capacity) {
  size_t before = 0, after = 0, total = 0;
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaSetDevice(gpu->physical), "cudaSetDevice"));
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaMemGetInfo(&before, &total), "cudaMemGetInfo"));
  if (capacity == 0) capacity = default_capacity(group, gpu, before, total);
  uint64_t bytes = 0, stride = 0;
  if (capacity == 0 || __builtin_add_overflow(capacity, EK_MEMORY_UNIT - 1, &stride) ||
      __builtin_mul_overflow(stride = whole_units(stride), gpu->count, &bytes) || bytes > before) {
    return no_memory(gpu, capacity, before);
  }
  const cudaError_t error = cudaMalloc(&gpu->memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    gpu->memory = NULL;
    return no_memory(gpu, capacity, before);
  }
  EK_TRY(ek__cuda_check_gpu(gpu->physical, error, "cudaMalloc"));
  gpu->bytes = bytes;
  EK_TRY(ek__cuda_check_gpu(gpu->physical, cudaMemGetInfo(&after, &total), "cudaMemGetInfo"));
  gpu->outside = total > after + bytes ? (total - after - bytes) / gpu->count : 0;
  for (size_t i = 0; i < gpu->count; i++) {
    struct ek__cuda_device *device = &group->devices[gpu->first + i];
    device->offset = stride * i;
    device->capacity = capacity;
  }
  report(gpu, before, after, total);
  return EK_OK;
}
