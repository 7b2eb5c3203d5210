/*
 * products.c - checked entry points of include/evenkeel/products.h.
 */
#include <evenkeel/products.h>

#include <inttypes.h>

#include "op/op_internal.h"

ek_status ek_op_matmul(ek_stream *stream, ek_tensor *c, const ek_tensor *a, bool transpose_a,
                       const ek_tensor *b, bool transpose_b, double beta) {
  enum { C, A, B, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[C] = {.name = "c", .tensor = c, .written = true},
                                         [A] = {.name = "a", .tensor = a},
                                         [B] = {.name = "b", .tensor = b}};
  EK_TRY(ek__op_begin(&op, "matmul", stream, operands, COUNT));
  const int64_t m = transpose_a ? op.columns[A] : op.rows[A];
  const int64_t k = transpose_a ? op.rows[A] : op.columns[A];
  const int64_t b_rows = transpose_b ? op.columns[B] : op.rows[B];
  const int64_t n = transpose_b ? op.rows[B] : op.columns[B];
  if (b_rows != k) {
    return ek_error_set(EK_ERR_SHAPE,
                        "matmul: a' is %" PRId64 " x %" PRId64 " but b' is %" PRId64 " x %" PRId64,
                        m, k, b_rows, n);
  }
  EK_TRY(ek__op_matrix(&op, C, m, n, "a' b' is"));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__matmul_args args = {.c = c->data,
                                       .a = a->data,
                                       .b = b->data,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .transpose_a = transpose_a,
                                       .transpose_b = transpose_b,
                                       .beta = beta,
                                       .type = op.type};
  return op.kernels->matmul(stream, &args);
}

ek_status ek_op_linear(ek_stream *stream, ek_tensor *y, const ek_tensor *x, const ek_tensor *w,
                       const ek_tensor *bias) {
  enum { Y, X, W, BIAS, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [Y] = {.name = "y", .tensor = y, .written = true},
      [X] = {.name = "x", .tensor = x},
      [W] = {.name = "w", .tensor = w},
      [BIAS] = {.name = "bias", .tensor = bias, .optional = true}};
  EK_TRY(ek__op_begin(&op, "linear", stream, operands, COUNT));
  if (op.columns[W] != op.columns[X]) {
    return ek_error_set(EK_ERR_SHAPE,
                        "linear: x is %" PRId64 " x %" PRId64 " but w is %" PRId64 " x %" PRId64,
                        op.rows[X], op.columns[X], op.rows[W], op.columns[W]);
  }
  EK_TRY(ek__op_matrix(&op, Y, op.rows[X], op.rows[W], "x w^T is"));
  EK_TRY(ek__op_fits(&op, BIAS, op.rows[W], W));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__matmul_args args = {.c = y->data,
                                       .a = x->data,
                                       .b = w->data,
                                       .m = op.rows[X],
                                       .n = op.rows[W],
                                       .k = op.columns[X],
                                       .transpose_b = true,
                                       .bias = ek__op_data(bias),
                                       .type = op.type};
  return op.kernels->matmul(stream, &args);
}
