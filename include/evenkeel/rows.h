/*
 * rows.h - operations on whole rows of a matrix: sums, means, softmax.
 *
 * Together with the elementwise operations they are enough for a norm of your own:
 * docs/own-model.md has RMSNorm.
 */
#ifndef EVENKEEL_ROWS_H
#define EVENKEEL_ROWS_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_row_reduction { EK_ROW_SUM = 0, EK_ROW_MEAN = 1 } ek_row_reduction;

/*
 * y[r] = sum over c of a[r][c], or of a[r][c] * b[r][c] where b is not NULL; EK_ROW_MEAN divides
 * that by the number of columns. a and b are rows x columns of values, y has an element of sums for
 * each row. Products are not rounded to 16 bits. a and b may be the same tensor; y is a tensor of
 * its own. The sum of no columns is 0; their mean is EK_ERR_SHAPE.
 */
EK_API EK_CHECKED ek_status ek_op_row_reduce(ek_stream *stream, ek_tensor *y, const ek_tensor *a,
                                             const ek_tensor *b, ek_row_reduction kind);

/*
 * y[r][c] = e^(x[r][c] - m) / sum over c of e^(x[r][c] - m), m the largest x of the row; y may be x
 * itself. Where an x is -inf y is 0; a row of nothing else, or with an infinity or a NaN, is NaN.
 */
EK_API EK_CHECKED ek_status ek_op_softmax_forward(ek_stream *stream, ek_tensor *y,
                                                  const ek_tensor *x);

/* dx[r][c] = y[r][c] * (dy[r][c] - sum over c of dy[r][c] y[r][c]), with forward's y; dx may be dy
 * or y itself. */
EK_API EK_CHECKED ek_status ek_op_softmax_backward(ek_stream *stream, ek_tensor *dx,
                                                   const ek_tensor *dy, const ek_tensor *y);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ROWS_H */
