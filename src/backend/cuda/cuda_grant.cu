/*
 * cuda_grant.cu - more than 48 KiB of shared memory for a block, for which CUDA wants to be asked,
 * for each kernel on each GPU.
 *
 * A table keeps which kernels have it, and on which GPUs, a bit for each: CUDA is asked once,
 * because asking takes about as long as a launch. What finds no room in it is asked for again.
 */
#include <atomic>

#include "backend/cuda/cuda_portable.cuh"

namespace {

constexpr unsigned GRANTS = 512, GPUS = 64;
struct granted {
  std::atomic<const void *> kernel;
  std::atomic<uint64_t> gpus;
};
struct granted grants[GRANTS];

/* The kernel's place, or NULL; made by the first that looks for it. */
struct granted *place_of(const void *kernel) {
  const unsigned first = (unsigned)((uintptr_t)kernel >> 4) * 2654435761u;
  for (unsigned i = 0; i < GRANTS; i++) {
    struct granted *it = &grants[(first + i) % GRANTS];
    const void *found = it->kernel.load();
    if (found == nullptr && it->kernel.compare_exchange_strong(found, kernel)) return it;
    if (found == kernel) return it;
  }
  return nullptr;
}

} // namespace

cudaError_t ek__cuda::grant(const struct ek__cuda_place *at, const void *kernel, int bytes) {
  if (bytes > at->shared_bytes) return cudaErrorNotSupported;
  struct granted *it = (unsigned)at->gpu < GPUS ? place_of(kernel) : nullptr;
  const uint64_t bit = UINT64_C(1) << ((unsigned)at->gpu % GPUS);
  if (it != nullptr && (it->gpus.load() & bit) != 0) return cudaSuccess;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess && it != nullptr) it->gpus.fetch_or(bit);
  return status;
}

/* After the GPU was reset. */
extern "C" void ek__cuda_grants_forget(int gpu) {
  for (struct granted &it : grants) {
    if (gpu < (int)GPUS) it.gpus.fetch_and(~(UINT64_C(1) << gpu));
  }
}
