/*
 * cuda_launch.c - the table of kernels: each slot queues its kernel on the stream it is given.
 */
#include "backend/cuda/cuda_internal.h"

_Static_assert(EK__CUDA_KERNEL_BYTES >= EK__CUDA_WORKSPACE, "the kernels' workspace is too small");

/* static ek_status name(ek_stream *, const struct type *): ek__cuda_name() with what else it takes,
 * in terms of `device`. */
#define SLOT(name, type, ...)                                                                      \
  static ek_status name(ek_stream *stream, const struct type *args) {                              \
    const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);                                 \
    const struct ek__cuda_device *device = it->device;                                             \
    EK_TRY(ek__cuda_enter(device));                                                                \
    return ek__cuda_check(device, ek__cuda_##name(it->handle, args __VA_ARGS__), #name);           \
  }

#define WORKSPACE , ek__cuda_kernel_workspace(device)
#define BAD , device->bad

SLOT(fill, ek__elementwise_args, )
SLOT(add, ek__elementwise_args, )
SLOT(scale, ek__elementwise_args, )
SLOT(relu_forward, ek__elementwise_args, )
SLOT(relu_backward, ek__elementwise_args, )
SLOT(add_bias, ek__matrix_args, )
SLOT(column_sum, ek__matrix_args, WORKSPACE)
SLOT(gelu_forward, ek__gelu_args, )
SLOT(gelu_backward, ek__gelu_args, )
SLOT(dropout, ek__dropout_args, )
SLOT(layer_norm_forward, ek__layer_norm_args, )
SLOT(layer_norm_backward, ek__layer_norm_args, WORKSPACE)
SLOT(lookup_forward, ek__lookup_args, BAD)
SLOT(lookup_backward, ek__lookup_args, BAD)
SLOT(positions_backward, ek__lookup_args, )
SLOT(cross_entropy_forward, ek__loss_args, WORKSPACE BAD)
SLOT(cross_entropy_backward, ek__loss_args, WORKSPACE BAD)
SLOT(cross_entropy_gradient, ek__loss_args, WORKSPACE BAD)
SLOT(squared_error_forward, ek__loss_args, WORKSPACE)
SLOT(squared_error_backward, ek__loss_args, )
SLOT(combine_totals, ek__combine_args, )
SLOT(sgd, ek__update_args, )
SLOT(adamw, ek__update_args, )
SLOT(square_norm, ek__elementwise_args, WORKSPACE)
SLOT(reduce, ek__reduce_args, )

static ek_status check_head(const ek_stream *stream, const struct ek__attention_args *args) {
  if (args->head_width <= EK__CUDA_MAX_HEAD_WIDTH) return EK_OK;
  return ek__cuda_host->error_set(EK_ERR_UNSUPPORTED,
                                  "%s: attention: a head is %lld wide; the kernels go up to %d",
                                  ek__cuda_stream_of(stream)->device->name,
                                  (long long)args->head_width, EK__CUDA_MAX_HEAD_WIDTH);
}

SLOT(attention_forward, ek__attention_args, )
SLOT(attention_backward, ek__attention_args, )

static ek_status attend_forward(ek_stream *stream, const struct ek__attention_args *args) {
  EK_TRY(check_head(stream, args));
  return attention_forward(stream, args);
}

static ek_status attend_backward(ek_stream *stream, const struct ek__attention_args *args) {
  EK_TRY(check_head(stream, args));
  return attention_backward(stream, args);
}

static ek_status zero(ek_stream *stream, void *y, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (bytes == 0) return EK_OK;
  EK_TRY(ek__cuda_enter(it->device));
  return ek__cuda_check(it->device, cudaMemsetAsync(y, 0, bytes, it->handle),
                        "zero: cudaMemsetAsync");
}

/* Also between GPUs, where the communicator `peer` asks for it. */
static ek_status copy(ek_stream *stream, void *y, const void *x, size_t bytes) {
  const struct ek__cuda_stream *it = ek__cuda_stream_of(stream);
  if (bytes == 0) return EK_OK;
  EK_TRY(ek__cuda_enter(it->device));
  return ek__cuda_check(it->device, cudaMemcpyAsync(y, x, bytes, cudaMemcpyDefault, it->handle),
                        "copy: cudaMemcpyAsync");
}

const struct ek__kernels ek__cuda_kernels = {
    .zero = zero,
    .copy = copy,
    .fill = fill,
    .add = add,
    .scale = scale,
    .relu_forward = relu_forward,
    .relu_backward = relu_backward,
    .add_bias = add_bias,
    .column_sum = column_sum,
    .gelu_forward = gelu_forward,
    .gelu_backward = gelu_backward,
    .dropout = dropout,
    .matmul = ek__cuda_matmul,
    .matmul_fused = ek__cuda_matmul_fused,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .lookup_forward = lookup_forward,
    .lookup_backward = lookup_backward,
    .positions_backward = positions_backward,
    .attention_forward = attend_forward,
    .attention_backward = attend_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .cross_entropy_gradient = cross_entropy_gradient,
    .squared_error_forward = squared_error_forward,
    .squared_error_backward = squared_error_backward,
    .combine_totals = combine_totals,
    .sgd = sgd,
    .adamw = adamw,
    .square_norm = square_norm,
    .reduce = reduce,
};
