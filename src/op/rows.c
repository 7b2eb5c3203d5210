/*
 * rows.c - checked entry points of include/evenkeel/rows.h.
 */
#include <evenkeel/rows.h>

#include <inttypes.h>

#include "op/op_internal.h"

ek_status ek_op_row_reduce(ek_stream *stream, ek_tensor *y, const ek_tensor *a, const ek_tensor *b,
                           ek_row_reduction kind) {
  enum { Y, A, B, COUNT };
  struct ek__op op;
  EK__FAIL_IF((unsigned)kind > EK_ROW_MEAN, EK_ERR_INVALID_ARGUMENT,
              "row_reduce: unknown reduction %d", (int)kind);
  struct ek__row_args args = {.mean = kind == EK_ROW_MEAN};
  const char *name = args.mean ? "row_mean" : "row_sum";
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, SUM, EK__IS(COLUMN, A), .to = &args.y),
      [A] = EK__READ(a, VALUE, .to = &args.a),
      [B] = EK__MAY_READ(b, VALUE, EK__IS(SAME, A), .to = &args.b)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  args.rows = op.rows[A];
  args.columns = op.columns[A];
  EK__FAIL_IF(args.mean && args.rows > 0 && args.columns == 0, EK_ERR_SHAPE,
              "%s: a is %" PRId64 " x 0, which has no mean", name, args.rows);
  return op.kernels == NULL ? EK_OK : op.kernels->row_sum(stream, &args);
}

ek_status ek_op_softmax_forward(ek_stream *stream, ek_tensor *y, const ek_tensor *x) {
  enum { Y, X, COUNT };
  struct ek__op op;
  struct ek__row_args args = {0};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = EK__OPERAND(X)),
      [X] = EK__READ(x, VALUE, .to = &args.a)};
  EK_TRY(ek__op_begin(&op, "softmax_forward", stream, operands, COUNT, &args.types));
  args.rows = op.rows[X];
  args.columns = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->softmax_forward(stream, &args);
}

ek_status ek_op_softmax_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *dy,
                                 const ek_tensor *y) {
  enum { DX, DY, Y, COUNT };
  struct ek__op op;
  struct ek__row_args args = {0};
  const struct ek__operand operands[] = {
      [DX] = EK__WRITE(dx, VALUE, EK__IS(SAME, Y), .to = &args.y,
                       .may_be = EK__OPERAND(DY) | EK__OPERAND(Y)),
      [DY] = EK__READ(dy, VALUE, EK__IS(SAME, Y), .to = &args.a),
      [Y] = EK__READ(y, VALUE, .to = &args.b)};
  EK_TRY(ek__op_begin(&op, "softmax_backward", stream, operands, COUNT, &args.types));
  args.rows = op.rows[Y];
  args.columns = op.columns[Y];
  return op.kernels == NULL ? EK_OK : op.kernels->softmax_backward(stream, &args);
}
