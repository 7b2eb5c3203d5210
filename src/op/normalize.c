/*
 * normalize.c - checked entry points of include/evenkeel/normalize.h.
 *
 * Without a mean the same kernels normalise by the root mean square: they take 0 as the mean.
 */
#include <evenkeel/normalize.h>

#include <inttypes.h>
#include <math.h>

#include "op/op_internal.h"

/* A row of no elements has no mean. */
static ek_status check_width(const struct ek__op *op, size_t x) {
  if (op->rows[x] == 0 || op->columns[x] > 0) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "%s: %s is %" PRId64 " x 0, which has nothing to normalise",
                      op->name, op->operand[x].name, op->rows[x]);
}

/* Without `adds` sum and residual are NULL, and it is the norm of x itself. */
static ek_status forward(ek_stream *stream, const char *name, const ek_add_layer_norm_args *given,
                         bool adds) {
  enum { Y, SUM, MEAN, RSTD, X, RESIDUAL, WEIGHT, BIAS, COUNT };
  struct ek__op op;
  struct ek__layer_norm_args args = {.epsilon = given->epsilon};
  const struct ek__operand operands[] = {
      [Y] = EK__WRITE_OF(given, y, VALUE, EK__IS(SAME, X), .to = &args.y,
                         .may_be = adds ? 0 : EK__OPERAND(X)),
      [SUM] = EK__WRITE_OF(given, sum, VALUE, EK__IS(SAME, X), .to = &args.sum, .optional = !adds,
                           .may_be = EK__OPERAND(X) | EK__OPERAND(RESIDUAL)),
      [MEAN] = EK__MAY_WRITE_OF(given, mean, SUM, EK__IS(COLUMN, X), .to = &args.mean),
      [RSTD] = EK__WRITE_OF(given, rstd, SUM, EK__IS(COLUMN, X), .to = &args.rstd),
      [X] = EK__READ_OF(given, x, VALUE, .to = &args.x),
      [RESIDUAL] = EK__READ_OF(given, residual, VALUE, EK__IS(SAME, X), .to = &args.residual,
                               .optional = !adds),
      [WEIGHT] = EK__READ_OF(given, weight, VALUE, EK__IS(ROW, X), .to = &args.gamma),
      [BIAS] = EK__MAY_READ_OF(given, bias, VALUE, EK__IS(ROW, X), .to = &args.beta)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_between(name, "epsilon", given->epsilon, 0.0, HUGE_VAL));
  args.rows = op.rows[X];
  args.width = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->layer_norm_forward(stream, &args);
}

ek_status ek_op_layer_norm_forward(ek_stream *stream, ek_tensor *y, ek_tensor *mean,
                                   ek_tensor *rstd, const ek_tensor *x, const ek_tensor *weight,
                                   const ek_tensor *bias, double epsilon) {
  const ek_add_layer_norm_args plain = {.y = y,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .x = x,
                                        .weight = weight,
                                        .bias = bias,
                                        .epsilon = epsilon};
  return forward(stream, "layer_norm_forward", &plain, false);
}

ek_status ek_op_add_layer_norm_forward(ek_stream *stream, const ek_add_layer_norm_args *args) {
  EK__NOT_NULL("add_layer_norm_forward", args);
  return forward(stream, "add_layer_norm_forward", args, true);
}

ek_status ek_op_layer_norm_backward(ek_stream *stream, const ek_layer_norm_backward_args *args) {
  enum { DX, RESIDUAL, DWEIGHT, DBIAS, DY, X, MEAN, RSTD, WEIGHT, COUNT };
  EK__NOT_NULL("layer_norm_backward", args);
  struct ek__op op;
  struct ek__layer_norm_args own = {.gamma_scale = args->weight_beta,
                                    .beta_scale = args->bias_beta};
  const struct ek__operand operands[] = {
      [DX] = EK__MAY_WRITE_OF(args, dx, VALUE, EK__IS(SAME, X), .to = &own.dx,
                              .may_be = EK__OPERAND(DY) | EK__OPERAND(RESIDUAL)),
      [RESIDUAL] = EK__MAY_READ_OF(args, residual, VALUE, EK__IS(SAME, X), .to = &own.residual),
      [DWEIGHT] = EK__MAY_WRITE_OF(args, dweight, SUM, EK__IS(ROW, X), .to = &own.dgamma),
      [DBIAS] = EK__MAY_WRITE_OF(args, dbias, SUM, EK__IS(ROW, X), .to = &own.dbeta),
      [DY] = EK__READ_OF(args, dy, VALUE, EK__IS(SAME, X), .to = &own.dy),
      [X] = EK__READ_OF(args, x, VALUE, .to = &own.x),
      [MEAN] = EK__MAY_READ_OF(args, mean, SUM, EK__IS(COLUMN, X), .to = &own.mean),
      [RSTD] = EK__READ_OF(args, rstd, SUM, EK__IS(COLUMN, X), .to = &own.rstd),
      [WEIGHT] = EK__READ_OF(args, weight, VALUE, EK__IS(ROW, X), .to = &own.gamma)};
  EK_TRY(ek__op_begin(&op, "layer_norm_backward", stream, operands, COUNT, &own.types));
  EK_TRY(check_width(&op, X));
  own.rows = op.rows[X];
  own.width = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->layer_norm_backward(stream, &own);
}
