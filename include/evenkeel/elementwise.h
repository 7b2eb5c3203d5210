/*
 * elementwise.h - operations on one element at a time, and sums of columns.
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_ELEMENTWISE_H
#define EVENKEEL_ELEMENTWISE_H

#include <evenkeel/activation_list.h>
#include <evenkeel/random.h>
#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/* Sets every element to zero; any type. */
EK_API EK_CHECKED ek_status ek_op_zero(ek_stream *stream, ek_tensor *y);

/* Sets every element to `value`. */
EK_API EK_CHECKED ek_status ek_op_fill(ek_stream *stream, ek_tensor *y, double value);

/* y = x: same device, any type, equal numbers of elements. */
EK_API EK_CHECKED ek_status ek_op_copy(ek_stream *stream, ek_tensor *y, const ek_tensor *x);

/* y = a + b; y may be a or b itself. */
EK_API EK_CHECKED ek_status ek_op_add(ek_stream *stream, ek_tensor *y, const ek_tensor *a,
                                      const ek_tensor *b);

/* y = factor * x; y may be x itself. */
EK_API EK_CHECKED ek_status ek_op_scale(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                        double factor);

/* y = a + weight * (b - a), from a to b (torch.lerp for weights below 1/2); y may be a or b. */
EK_API EK_CHECKED ek_status ek_op_lerp(ek_stream *stream, ek_tensor *y, const ek_tensor *a,
                                       const ek_tensor *b, double weight);

typedef enum ek_binary {
  EK_BINARY_ADD = 0,
  EK_BINARY_SUBTRACT = 1,
  EK_BINARY_MULTIPLY = 2,
  EK_BINARY_DIVIDE = 3
} ek_binary;

/* What the second operand of a binary operation has an element for. */
typedef enum ek_spread {
  EK_SPREAD_NONE = 0,   /* each element of the first: the same rows x columns */
  EK_SPREAD_ROWS = 1,   /* each row: b[r], as ek_op_row_reduce() gives it */
  EK_SPREAD_COLUMNS = 2 /* each column: b[c], such as a weight */
} ek_spread;

/*
 * y = a OP b, for y and a of rows x columns. b has the number of elements that `spread` says, in
 * any number of dimensions, and the type of values, or with EK_SPREAD_ROWS that of sums. y may be a
 * itself and, with EK_SPREAD_NONE, b; a and b may be the same tensor.
 *
 * Its gradients are made of the same operations: of a product, da = dy b and db = dy a; of a
 * quotient, da = dy / b and db = -da y; and what was spread is summed, over the columns by
 * ek_op_row_reduce(), over the rows by ek_op_column_sum().
 */
EK_API EK_CHECKED ek_status ek_op_binary(ek_stream *stream, ek_tensor *y, const ek_tensor *a,
                                         const ek_tensor *b, ek_binary kind, ek_spread spread);

typedef enum ek_unary {
  EK_UNARY_RSQRT = 0, /* 1 / sqrt(x); dx = -dy y^3 / 2 */
  EK_UNARY_EXP = 1    /* e^x; dx = dy y. Below 2^-126 it may be 0 */
} ek_unary;

/*
 * y = f(x + offset); y may be x itself. Both are values; statistics, which are sums, are values
 * here as well, because f32 and f64 are.
 */
EK_API EK_CHECKED ek_status ek_op_unary(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                        ek_unary kind, double offset);

/* x[r][c] += bias[c] for x: rows x columns; in place. */
EK_API EK_CHECKED ek_status ek_op_add_bias(ek_stream *stream, ek_tensor *x, const ek_tensor *bias);

/*
 * y[c] = beta * y[c] + sum over r of x[r][c], for x: rows x columns and y of `columns` elements.
 * With beta 0 y is not read.
 */
EK_API EK_CHECKED ek_status ek_op_column_sum(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                             double beta);

/*
 * y = f(x) for the activation f; y may be x itself. `bias` (NULL: none) is added first: x[r][c]
 * becomes x[r][c] + bias[c] and is written back, so that it is what a backward over x needs; f is
 * taken of what was written.
 */
EK_API EK_CHECKED ek_status ek_op_activation_forward(ek_stream *stream, ek_tensor *y, ek_tensor *x,
                                                     const ek_tensor *bias, ek_activation kind);

/*
 * dx = dy * f'(x); dx may be dy itself. `kept` is forward's y if ek_activation_keeps_result(), else
 * its x.
 */
EK_API EK_CHECKED ek_status ek_op_activation_backward(ek_stream *stream, ek_tensor *dx,
                                                      const ek_tensor *dy, const ek_tensor *kept,
                                                      ek_activation kind);

/* True if the gradient is computed from the result y, false if from x (activation_list.h). */
EK_API bool ek_activation_keeps_result(ek_activation kind);

/* y = f(x) * factor, the product of a gate; y may be x or factor itself. */
EK_API EK_CHECKED ek_status ek_op_gate_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                               const ek_tensor *factor, ek_activation kind);

/*
 * dx = dy * factor * f'(x) and dfactor = dy * f(x), from x and factor alone: f(x) is computed
 * again. dx may be dy or x itself, dfactor may be factor.
 */
EK_API EK_CHECKED ek_status ek_op_gate_backward(ek_stream *stream, ek_tensor *dx,
                                                ek_tensor *dfactor, const ek_tensor *dy,
                                                const ek_tensor *x, const ek_tensor *factor,
                                                ek_activation kind);

/*
 * Dropout, forward and (with dy for x) backward: y = x / (1 - p) where the element is kept, else
 * 0 times x.
 * Dimension 0 counts samples; element i of local sample s is kept if
 * ek_random_unit(bits[i % 4]) >= p for the bits of (key, first_sample + s, i / 4): random.h.
 * 0 <= p < 1. y may be x itself.
 */
EK_API EK_CHECKED ek_status ek_op_dropout(ek_stream *stream, ek_tensor *y, const ek_tensor *x,
                                          double p, ek_random_key key, int64_t first_sample);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ELEMENTWISE_H */
