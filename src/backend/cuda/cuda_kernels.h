/*
 * cuda_kernels.h - the kernels of the CUDA backend, as C functions that queue work on a stream.
 *
 * Each has the semantics of the slot of the same name in struct ek__kernels (backend/kernels.h):
 * arguments were checked before, sizes may be zero, pointers need no alignment beyond their
 * element's. All pointers in the arguments are addresses of device memory, except for the arrays of
 * pointers in struct ek__reduce_args and the coefficients in struct ek__combine_args, which are
 * host memory read before the call returns.
 *
 *   - A launcher returns the status of the launch (cudaSuccess if the work was queued); it never
 *     waits for the device. It works on the current device, which must be the stream's.
 *   - cudaErrorInvalidValue: types that the kernel does not compute, a head wider than
 *     EK__CUDA_MAX_HEAD_WIDTH, or more pointers than EK__CUDA_MAX_POINTERS.
 *   - cudaErrorNotSupported: the kernel needs more shared memory than a block of this GPU may have.
 *   - The order of every sum depends on the arguments' sizes alone: the same call gives the same
 *     bits on every device and in every run.
 *   - `workspace` is EK__CUDA_WORKSPACE bytes of device memory, aligned to 256 bytes, that nothing
 *     else uses from this call until the stream has passed it: one for each stream serves all.
 *     Nothing in it needs to be kept or set.
 *   - `bad` is memory that the device can write, EK__CUDA_NOTHING_BAD before the first call. A
 *     kernel that meets an index or target out of range notes the row there. Such a row is ignored:
 *     it reads as zeros in a lookup and as ignored in a loss. The thread that waits for the stream
 *     checks it, reports the row, and resets it.
 */
#ifndef EK_CUDA_KERNELS_H
#define EK_CUDA_KERNELS_H

#include <cuda_runtime.h>

#include "backend/kernels.h"

#define EK__CUDA_WORKSPACE ((size_t)4 << 20)
#define EK__CUDA_MAX_HEAD_WIDTH 256
#define EK__CUDA_MAX_POINTERS 64 /* sources, and as many destinations, of one reduce */

/*
 * The lowest row of the batch (first_row, first of the arguments) with an index outside the table
 * (lookup) and with a target outside the classes (cross-entropy) since the last reading: row << 32
 * | index, or, from 2^31 rows on, the row alone with the highest bit set. So the smallest number is
 * the lowest row, whoever writes it first.
 */
struct ek__cuda_bad {
  unsigned long long index, target; /* the type of CUDA's atomic functions */
};
#define EK__CUDA_NOTHING_BAD (~0ull)
#define EK__CUDA_ROW_ALONE (1ull << 63)

/* Where a kernel works: see above. Not every kernel needs a workspace or `bad`. */
struct ek__cuda_place {
  cudaStream_t stream;
  void *workspace;
  struct ek__cuda_bad *bad;
  int gpu, shared_bytes; /* the current GPU, and what a block of it may have of shared memory */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Kernels have to be granted their shared memory again on a GPU that was reset. */
void ek__cuda_grants_forget(int gpu);

/* One for each row, in the .cu file of its family. Pointers of reduce may be of other devices of
 * the process, with peer access. */
#define EK__CUDA_PROTOTYPE(name, kind, cut)                                                        \
  cudaError_t ek__cuda_##name(const struct ek__cuda_place *at,                                     \
                              const struct ek__##kind##_args *args);
EK__KERNEL_LIST(EK__CUDA_PROTOTYPE)

/* Not slots. dgamma and dbeta of layer_norm_backward, which calls both: from the rows; and from
 * sums of parts of them, in the workspace, each of dgamma and after it of dbeta (if wanted). */
cudaError_t ek__cuda_layer_norm_columns(const struct ek__cuda_place *at,
                                        const struct ek__layer_norm_args *args);
cudaError_t ek__cuda_layer_norm_parts(const struct ek__cuda_place *at,
                                      const struct ek__layer_norm_args *args, int64_t parts);
/* c without the bias, where cuBLASLt has nothing. */
cudaError_t ek__cuda_multiply_plainly(const struct ek__cuda_place *at,
                                      const struct ek__matmul_args *args);
/* y[r][c] = b[c], of any type. */
cudaError_t ek__cuda_spread_bias(const struct ek__cuda_place *at,
                                 const struct ek__matrix_args *args);

#ifdef __cplusplus
}
#endif

#endif /* EK_CUDA_KERNELS_H */
