/*
 * cuda_kernels.h - the kernels of the CUDA backend, as C functions that queue work on a stream.
 *
 * Each has the semantics of the slot of the same name in struct ek__kernels (backend/backend.h):
 * arguments were checked before, sizes may be zero, pointers need no alignment beyond their
 * element's. All pointers in the arguments are addresses of device memory, but for the arrays of
 * pointers in struct ek__reduce_args and the coefficients in struct ek__combine_args, which are
 * host memory read before the call returns.
 *
 *   - A launcher returns what the launch said (cudaSuccess, or why nothing was queued); it never
 *     waits for the device. It works on the current device, which must be the stream's.
 *   - cudaErrorInvalidValue: a type that the kernel does not compute, a head wider than
 *     EK__CUDA_MAX_HEAD_WIDTH, or more pointers than EK__CUDA_MAX_POINTERS.
 *   - The order of every sum depends on the arguments' sizes alone: the same call gives the same
 *     bits on every device and in every run.
 *   - `workspace` is EK__CUDA_WORKSPACE bytes of device memory, aligned to 256 bytes, that nothing
 *     else uses from this call until the stream has passed it: one for each stream serves all.
 *     Nothing in it needs to be kept or set.
 *   - `bad` is memory that the device can write, EK__CUDA_NOTHING_BAD before the first call. A
 *     kernel that meets an index or target out of range notes the row there. Such a row counts for
 *     nothing: it reads as zeros in a lookup and as ignored in a loss. Who waits for the stream
 *     looks, reports, and sets it back.
 */
#ifndef EK_CUDA_KERNELS_H
#define EK_CUDA_KERNELS_H

#include <cuda_runtime.h>

#include "backend/backend.h"

#define EK__CUDA_WORKSPACE ((size_t)4 << 20)
#define EK__CUDA_MAX_HEAD_WIDTH 256
#define EK__CUDA_MAX_POINTERS 64 /* sources, and as many destinations, of one reduce */

/*
 * The lowest row of the batch (first_row, first of the arguments) with an index outside the table
 * (lookup) and with a target outside the classes (cross-entropy) since somebody looked: row << 32 |
 * index, or, from 2^31 rows on, the row alone with the highest bit set. So the smallest number is
 * the lowest row, whoever writes it first.
 */
struct ek__cuda_bad {
  unsigned long long index, target; /* the type of CUDA's atomic functions */
};
#define EK__CUDA_NOTHING_BAD (~0ull)
#define EK__CUDA_ROW_ALONE (1ull << 63)

/* to[i] = (to_type)from[i] for two of f32, f64, bf16, f16; rounds to nearest, ties to even. */
struct ek__cuda_cast_args {
  void *to;
  const void *from;
  int64_t count;
  ek_type to_type, from_type;
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * LAUNCHER(name, kind, more): cudaError_t ek__cuda_<name>(stream, args of that kind, and more).
 * Each is in the .cu file of its family.
 */
#define EK__CUDA_LAUNCHER_LIST(LAUNCHER)                                                           \
  LAUNCHER(fill, elementwise, NOTHING)                                                             \
  LAUNCHER(add, elementwise, NOTHING)                                                              \
  LAUNCHER(scale, elementwise, NOTHING)                                                            \
  LAUNCHER(add_bias, matrix, NOTHING)                                                              \
  LAUNCHER(column_sum, matrix, WORKSPACE)                                                          \
  LAUNCHER(activation_forward, activation, NOTHING)                                                \
  LAUNCHER(activation_backward, activation, NOTHING)                                               \
  LAUNCHER(dropout, dropout, NOTHING)                                                              \
  LAUNCHER(layer_norm_forward, layer_norm, NOTHING)                                                \
  LAUNCHER(layer_norm_backward, layer_norm, WORKSPACE)                                             \
  LAUNCHER(lookup_forward, lookup, BAD)                                                            \
  LAUNCHER(lookup_backward, lookup, BAD)                                                           \
  LAUNCHER(positions_backward, lookup, NOTHING)                                                    \
  LAUNCHER(attention_forward, attention, HEAD)                                                     \
  LAUNCHER(attention_backward, attention, HEAD)                                                    \
  LAUNCHER(cross_entropy_forward, loss, WORKSPACE_BAD)                                             \
  LAUNCHER(cross_entropy_backward, loss, WORKSPACE_BAD)                                            \
  LAUNCHER(cross_entropy_gradient, loss, WORKSPACE_BAD)                                            \
  LAUNCHER(squared_error_forward, loss, WORKSPACE)                                                 \
  LAUNCHER(squared_error_backward, loss, NOTHING)                                                  \
  LAUNCHER(combine_totals, combine, NOTHING)                                                       \
  LAUNCHER(sgd, update, NOTHING)                                                                   \
  LAUNCHER(adamw, update, NOTHING)                                                                 \
  LAUNCHER(square_norm, elementwise, WORKSPACE)                                                    \
  /* Pointers may be of other devices of the process, with peer access. */                         \
  LAUNCHER(reduce, reduce, NOTHING)

#define EK__CUDA_PARAMETERS_NOTHING
#define EK__CUDA_PARAMETERS_HEAD /* no more; the slot checks the width of a head */
#define EK__CUDA_PARAMETERS_WORKSPACE , void *workspace
#define EK__CUDA_PARAMETERS_BAD , struct ek__cuda_bad *bad
#define EK__CUDA_PARAMETERS_WORKSPACE_BAD , void *workspace, struct ek__cuda_bad *bad
#define EK__CUDA_PROTOTYPE(name, kind, more)                                                       \
  cudaError_t ek__cuda_##name(cudaStream_t stream,                                                 \
                              const struct ek__##kind##_args *args EK__CUDA_PARAMETERS_##more);
EK__CUDA_LAUNCHER_LIST(EK__CUDA_PROTOTYPE)

/* Not slots: a cast, and dgamma and dbeta of layer_norm_backward, which calls it. */
cudaError_t ek__cuda_cast(cudaStream_t stream, const struct ek__cuda_cast_args *args);
cudaError_t ek__cuda_layer_norm_columns(cudaStream_t stream, const struct ek__layer_norm_args *args,
                                        void *workspace);

#ifdef __cplusplus
}
#endif

#endif /* EK_CUDA_KERNELS_H */
