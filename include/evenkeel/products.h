/*
 * products.h - matrix products.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_PRODUCTS_H
#define EVENKEEL_PRODUCTS_H

#include <evenkeel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * c = a' b' + beta * c, where a' is `a` or, if transpose_a, its transpose, and so for b. Each
 * tensor is read as rows x columns. With beta 0 c is not read. An empty inner dimension gives beta
 * * c.
 */
EK_API EK_CHECKED ek_status ek_op_matmul(ek_stream *stream, ek_tensor *c, const ek_tensor *a,
                                         bool transpose_a, const ek_tensor *b, bool transpose_b,
                                         double beta);

/*
 * y = x w^T + bias: x is rows x in, w is out x in, bias (NULL: none) has `out` elements, y is
 * rows x out.
 */
EK_API EK_CHECKED ek_status ek_op_linear(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                         const ek_tensor *w, const ek_tensor *bias);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_PRODUCTS_H */
