/*
 * products.h - matrix products, alone and with what comes before or after them in a network.
 *
 * See op.h for the rules that hold for all operations. A backend may do the combined ones in one
 * go; sums are then in another order than those of the single operations.
 */
#ifndef EVENKEEL_PRODUCTS_H
#define EVENKEEL_PRODUCTS_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * c = a' b' + beta * c, where a' is `a` or, if transpose_a, its transpose, and so for b. Each
 * tensor is read as rows x columns. With beta 0 c is not read. An empty inner dimension gives beta
 * * c.
 */
EK_API EK_CHECKED ek_status ek_op_matmul(ek_stream *stream, ek_tensor *c, const ek_tensor *a,
                                         bool transpose_a, const ek_tensor *b, bool transpose_b,
                                         double beta);

/*
 * A linear, and its way back:
 *     y = x w^T + bias        dx = dy w
 *     dw = weight_beta * dw + dy^T x,  dbias[c] = bias_beta * dbias[c] + sum over r of dy[r][c]
 * x and dx are rows x in, w and dw are out x in, bias and dbias (NULL: none) have `out` elements.
 * With dw NULL only dbias is computed, and x is not read. A gradient whose beta is 0 is overwritten
 * without being read.
 *
 * y and dy have `out` columns or more; what follows the first `out` is neither read nor written. A
 * GPU has faster products for rows that begin at multiples of 16 bytes:
 * ek_tensor_aligned_columns() gives their length. Longer rows have the results of dense ones, bit
 * for bit on the CPU, except in bf16 where the processor multiplies it (AMX, AVX512-BF16): there to
 * rounding, as on a GPU.
 */
EK_API EK_CHECKED ek_status ek_op_linear(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                         const ek_tensor *w, const ek_tensor *bias);
EK_API EK_CHECKED ek_status ek_op_linear_backward(ek_stream *stream, ek_tensor *dx,
                                                  const ek_tensor *dy, const ek_tensor *w);
EK_API EK_CHECKED ek_status ek_op_linear_gradients(ek_stream *stream, ek_tensor *dw,
                                                   ek_tensor *dbias, const ek_tensor *dy,
                                                   const ek_tensor *x, double weight_beta,
                                                   double bias_beta);

/*
 * A linear followed by GELU (elementwise.h has the formula):
 *     pre = x w^T + bias,  y = GELU(pre)
 * x is rows x in, w is out x in, bias (NULL: none) has `out` elements, pre and y are rows x out.
 * pre is what the backward needs; NULL: it is not kept.
 */
EK_API EK_CHECKED ek_status ek_op_linear_gelu(ek_stream *stream, ek_tensor *y, ek_tensor *pre,
                                              const ek_tensor *x, const ek_tensor *w,
                                              const ek_tensor *bias);

/*
 * The gradient of what goes into GELU followed by a linear, y = GELU(pre) w^T + ..:
 *     dpre = (dy w) * GELU'(pre),  dbias[c] = beta * dbias[c] + sum over r of dpre[r][c]
 * dy is rows x out, w is out x in, pre and dpre are rows x in. dbias (NULL: not wanted) has `in`
 * elements: the gradient of a bias that was added to make pre. With beta 0 it is not read.
 */
EK_API EK_CHECKED ek_status ek_op_gelu_linear_backward(ek_stream *stream, ek_tensor *dpre,
                                                       ek_tensor *dbias, const ek_tensor *dy,
                                                       const ek_tensor *w, const ek_tensor *pre,
                                                       double beta);

EK_END_DECLARATIONS

#endif /* EVENKEEL_PRODUCTS_H */
