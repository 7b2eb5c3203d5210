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
 * The lowest row of the batch (first_row, first of the arguments) with an index outside the table (lookup) and with a target outside the classes
 * (cross-entropy) since somebody looked: row << 32 | index, or, from 2^31 rows on, the row alone
 * with the highest bit set. So the smallest number is the lowest row, whoever writes it first.
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

/* ---- cuda_elementwise.cu ---- */

cudaError_t ek__cuda_fill(cudaStream_t stream, const struct ek__elementwise_args *args);
cudaError_t ek__cuda_add(cudaStream_t stream, const struct ek__elementwise_args *args);
cudaError_t ek__cuda_scale(cudaStream_t stream, const struct ek__elementwise_args *args);
cudaError_t ek__cuda_relu_forward(cudaStream_t stream, const struct ek__elementwise_args *args);
cudaError_t ek__cuda_relu_backward(cudaStream_t stream, const struct ek__elementwise_args *args);
cudaError_t ek__cuda_cast(cudaStream_t stream, const struct ek__cuda_cast_args *args);

/* ---- cuda_gelu.cu: bias and GELU ---- */

cudaError_t ek__cuda_add_bias(cudaStream_t stream, const struct ek__matrix_args *args);
cudaError_t ek__cuda_gelu_forward(cudaStream_t stream, const struct ek__gelu_args *args);
cudaError_t ek__cuda_gelu_backward(cudaStream_t stream, const struct ek__gelu_args *args);

/* ---- cuda_dropout.cu ---- */

cudaError_t ek__cuda_dropout(cudaStream_t stream, const struct ek__dropout_args *args);

/* ---- cuda_columns.cu ---- */

cudaError_t ek__cuda_column_sum(cudaStream_t stream, const struct ek__matrix_args *args,
                                void *workspace);
/* dgamma and dbeta of layer_norm_backward; ek__cuda_layer_norm_backward() calls it. */
cudaError_t ek__cuda_layer_norm_columns(cudaStream_t stream, const struct ek__layer_norm_args *args,
                                        void *workspace);

/* ---- cuda_layer_norm.cu ---- */

cudaError_t ek__cuda_layer_norm_forward(cudaStream_t stream,
                                        const struct ek__layer_norm_args *args);
cudaError_t ek__cuda_layer_norm_backward(cudaStream_t stream,
                                         const struct ek__layer_norm_args *args, void *workspace);

/* ---- cuda_lookup.cu ---- */

cudaError_t ek__cuda_lookup_forward(cudaStream_t stream, const struct ek__lookup_args *args,
                                    struct ek__cuda_bad *bad);
cudaError_t ek__cuda_lookup_backward(cudaStream_t stream, const struct ek__lookup_args *args,
                                     struct ek__cuda_bad *bad);
cudaError_t ek__cuda_positions_backward(cudaStream_t stream, const struct ek__lookup_args *args);

/* ---- cuda_attend.cu, cuda_attend_backward.cu ---- */

cudaError_t ek__cuda_attention_forward(cudaStream_t stream, const struct ek__attention_args *args);
cudaError_t ek__cuda_attention_backward(cudaStream_t stream, const struct ek__attention_args *args);

/* ---- cuda_cross_entropy.cu, cuda_squared_error.cu ---- */

cudaError_t ek__cuda_cross_entropy_forward(cudaStream_t stream, const struct ek__loss_args *args,
                                           void *workspace, struct ek__cuda_bad *bad);
cudaError_t ek__cuda_cross_entropy_backward(cudaStream_t stream, const struct ek__loss_args *args,
                                            void *workspace, struct ek__cuda_bad *bad);
cudaError_t ek__cuda_cross_entropy_gradient(cudaStream_t stream, const struct ek__loss_args *args,
                                            void *workspace, struct ek__cuda_bad *bad);
cudaError_t ek__cuda_squared_error_forward(cudaStream_t stream, const struct ek__loss_args *args,
                                           void *workspace);
cudaError_t ek__cuda_squared_error_backward(cudaStream_t stream, const struct ek__loss_args *args);
cudaError_t ek__cuda_combine_totals(cudaStream_t stream, const struct ek__combine_args *args);

/* ---- cuda_updates.cu ---- */

cudaError_t ek__cuda_sgd(cudaStream_t stream, const struct ek__update_args *args);
cudaError_t ek__cuda_adamw(cudaStream_t stream, const struct ek__update_args *args);
cudaError_t ek__cuda_square_norm(cudaStream_t stream, const struct ek__elementwise_args *args,
                                 void *workspace);

/* ---- cuda_reduce.cu: pointers may be of other devices of the process, with peer access ---- */

cudaError_t ek__cuda_reduce(cudaStream_t stream, const struct ek__reduce_args *args);

#ifdef __cplusplus
}
#endif

#endif /* EK_CUDA_KERNELS_H */
