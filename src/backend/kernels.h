/*
 * kernels.h - a device's table of kernels, and the one list that it is made from.
 *
 * Kernels run on the stream of their device; the CPU backend runs them at once on the calling
 * thread and its team. A kernel allocates no tensor memory and checks nothing that src/op checks.
 */
#ifndef EK_KERNELS_H
#define EK_KERNELS_H

#include <evenkeel/device.h>

#include "backend/kernel_args.h"

/* ---- the list ----
 *
 * ROW(name, kind, cut): the kernel `name` takes struct ek__<kind>_args. From its row follow
 *   - the slot of struct ek__kernels, and in every backend that computes the prototype of its
 *     function and the entry of its table: a kernel that a backend has not does not link;
 *   - the CPU backend's range functions of all types, and by `cut` the kernel that divides its work
 *     among them: COUNT (args->count elements), ELEMENTS (rows x columns), ROWS, or OWN: a
 *     function in cpu_*.c, which says in the comment what its ranges are;
 *   - the CUDA backend's launcher, its slot, and its run when code is loaded (cuda_warm.c).
 * A kernel without a range function is a row of EK__KERNEL_LIST itself.
 */
#define EK__RANGE_LIST(ROW)                                                                        \
  ROW(fill, elementwise, COUNT)                                                                    \
  ROW(add, elementwise, COUNT)                                                                     \
  ROW(scale, elementwise, COUNT)                                                                   \
  ROW(lerp, elementwise, COUNT)                                                                    \
  ROW(binary, binary, OWN) /* ranges of elements, with a spread of rows */                         \
  ROW(unary, unary, COUNT)                                                                         \
  ROW(row_sum, row, ROWS)                                                                          \
  ROW(softmax_forward, row, ROWS)                                                                  \
  ROW(softmax_backward, row, ROWS)                                                                 \
  ROW(add_bias, matrix, ROWS)                                                                      \
  ROW(column_sum, matrix, OWN) /* of columns */                                                    \
  ROW(activation_forward, activation, OWN) /* of elements, with a bias of rows */                  \
  ROW(activation_backward, activation, ELEMENTS)                                                   \
  ROW(gate_forward, activation, ELEMENTS)                                                          \
  ROW(gate_backward, activation, ELEMENTS) /* x = x, whatever is kept */                           \
  ROW(dropout, dropout, OWN) /* of elements of all samples */                                      \
  ROW(layer_norm_forward, layer_norm, OWN) /* of rows */                                           \
  ROW(layer_norm_backward, layer_norm, OWN) /* of rows; args: layer_norm_job */                    \
  ROW(channel_moments, channel, OWN) /* of pieces */                                               \
  ROW(channel_slopes, channel, OWN) /* of pieces */                                                \
  ROW(channel_statistics, channel, OWN) /* of groups of all samples */                             \
  ROW(channel_running, channel, OWN) /* of all channels */                                         \
  ROW(channel_averages, channel, OWN) /* of groups of all samples, then of channels */             \
  ROW(channel_norm_forward, channel, OWN) /* of rows */                                            \
  ROW(channel_norm_backward, channel, OWN) /* of rows */                                           \
  ROW(lookup_forward, lookup, OWN) /* of rows */                                                   \
  ROW(lookup_backward, lookup, OWN) /* of columns */                                               \
  ROW(positions_backward, lookup, OWN) /* of positions */                                          \
  ROW(unfold, unfold, OWN) /* of rows */                                                           \
  ROW(permute, permute, OWN) /* of the first two dimensions together */                            \
  ROW(window_forward, window, OWN) /* of windows of all images */                                  \
  ROW(window_backward, window, OWN) /* of pixels of all images */                                  \
  ROW(rotary, rotary, OWN) /* of positions */                                                      \
  ROW(attention_forward, attention, OWN) /* of heads of all samples; args: attention_job */        \
  ROW(attention_backward, attention, OWN) /* of heads of keys; the same */                         \
  ROW(cross_entropy_forward, loss, OWN) /* of rows; args: loss_job */                              \
  ROW(cross_entropy_backward, loss, OWN) /* the same */                                            \
  ROW(cross_entropy_gradient, loss, OWN) /* the same: forward, then backward */                    \
  ROW(element_loss_forward, loss, OWN) /* of chunks; args: loss_job */                             \
  ROW(element_loss_backward, loss, OWN) /* of elements; args: loss_job */                          \
  ROW(sgd, update, OWN) /* of elements; args: update_job */                                        \
  ROW(adamw, update, OWN) /* the same */                                                           \
  ROW(square_norm, elementwise, OWN) /* y is a double: value y + sum a^2; chunks, norm_job */      \
  ROW(reduce, reduce, OWN) /* of elements */

#define EK__KERNEL_LIST(ROW)                                                                       \
  ROW(convert, convert, OWN)                                                                       \
  ROW(combine_totals, combine, OWN)                                                                \
  ROW(document_ranges, documents, OWN)                                                             \
  EK__RANGE_LIST(ROW)

/*
 * SLOT(name, arguments): all slots, those that are not like the others first. CUDA(..) and CPU(..)
 * are slots that only one backend has, NULL in the other's table:
 *   matmul_fused   Fallback: matmul, activations, column_sum; also where *done, false before,
 *                  stays false: the backend has nothing for these arguments and has queued
 *                  nothing.
 *   convolve       Fallback: unfold, matmul, permute (op/convolve_blocks.c); also where *done
 *                  stays false, and nothing but the workspace has been written.
 */
#define EK__ARGS(kind) (ek_stream * stream, const struct ek__##kind##_args *args)

#define EK__SLOT_LIST(SLOT, CUDA, CPU, ROW)                                                        \
  SLOT(zero, (ek_stream * stream, void *y, size_t bytes))                                          \
  SLOT(copy, (ek_stream * stream, void *y, const void *x, size_t bytes))                           \
  SLOT(matmul, EK__ARGS(matmul))                                                                   \
  CUDA(matmul_fused, (bool *done, ek_stream *stream, const struct ek__fused_args *args))           \
  CPU(convolve, (bool *done, ek_stream *stream, const struct ek__convolve_args *args))             \
  EK__KERNEL_LIST(ROW)

struct ek__kernels {
#define EK__SLOT(name, arguments) ek_status(*name) arguments;
#define EK__SLOT_OF(name, kind, cut) EK__SLOT(name, EK__ARGS(kind))
  EK__SLOT_LIST(EK__SLOT, EK__SLOT, EK__SLOT, EK__SLOT_OF)
#undef EK__SLOT_OF
#undef EK__SLOT
};

/*
 * What a stream and a device begin with: what the backend made of them. So a backend finds its own
 * part without a call to the layer above, which knows the backends.
 */
struct ek__stream_head {
  void *native;
};
struct ek__device_head {
  void *native;
  bool deterministic; /* ek_group_options */
};

static inline void *ek__stream_backend(const ek_stream *stream) {
  return ((const struct ek__stream_head *)(const void *)stream)->native;
}
static inline void *ek__device_native(const ek_device *device) {
  return ((const struct ek__device_head *)(const void *)device)->native;
}
static inline bool ek__device_is_deterministic(const ek_device *device) {
  return ((const struct ek__device_head *)(const void *)device)->deterministic;
}

#endif /* EK_KERNELS_H */
