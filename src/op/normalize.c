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
static ek_status forward(ek_stream *stream, const char *name, ek_tensor *y, ek_tensor *sum,
                         ek_tensor *mean, ek_tensor *rstd, const ek_tensor *x,
                         const ek_tensor *residual, const ek_tensor *gamma, const ek_tensor *beta,
                         double epsilon, bool adds) {
  enum { Y, SUM, MEAN, RSTD, X, RESIDUAL, GAMMA, BETA, COUNT };
  struct ek__op op;
  struct ek__layer_norm_args args = {.epsilon = epsilon};
  const struct ek__operand operands[] = {
      [Y] =
          EK__WRITE(y, VALUE, EK__IS(SAME, X), .to = &args.y, .may_be = adds ? 0 : EK__OPERAND(X)),
      [SUM] = EK__WRITE(sum, VALUE, EK__IS(SAME, X), .to = &args.sum, .optional = !adds,
                        .may_be = EK__OPERAND(X) | EK__OPERAND(RESIDUAL)),
      [MEAN] = EK__MAY_WRITE(mean, SUM, EK__IS(COLUMN, X), .to = &args.mean),
      [RSTD] = EK__WRITE(rstd, SUM, EK__IS(COLUMN, X), .to = &args.rstd),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [RESIDUAL] =
          EK__READ(residual, VALUE, EK__IS(SAME, X), .to = &args.residual, .optional = !adds),
      [GAMMA] = EK__READ(gamma, VALUE, EK__IS(ROW, X), .to = &args.gamma),
      [BETA] = EK__MAY_READ(beta, VALUE, EK__IS(ROW, X), .to = &args.beta)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args.types));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_between(name, "epsilon", epsilon, 0.0, HUGE_VAL));
  args.rows = op.rows[X];
  args.width = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->layer_norm_forward(stream, &args);
}

ek_status ek_op_layer_norm_forward(ek_stream *stream, ek_tensor *y, ek_tensor *mean,
                                   ek_tensor *rstd, const ek_tensor *x, const ek_tensor *gamma,
                                   const ek_tensor *beta, double epsilon) {
  return forward(stream, "layer_norm_forward", y, NULL, mean, rstd, x, NULL, gamma, beta, epsilon,
                 false);
}

ek_status ek_op_add_layer_norm_forward(ek_stream *stream, ek_tensor *y, ek_tensor *sum,
                                       ek_tensor *mean, ek_tensor *rstd, const ek_tensor *x,
                                       const ek_tensor *residual, const ek_tensor *gamma,
                                       const ek_tensor *beta, double epsilon) {
  return forward(stream, "add_layer_norm_forward", y, sum, mean, rstd, x, residual, gamma, beta,
                 epsilon, true);
}

ek_status ek_op_layer_norm_backward(ek_stream *stream, ek_tensor *dx, ek_tensor *dgamma,
                                    ek_tensor *dbeta, const ek_tensor *dy, const ek_tensor *x,
                                    const ek_tensor *mean, const ek_tensor *rstd,
                                    const ek_tensor *gamma, const ek_tensor *residual,
                                    double gamma_scale, double beta_scale) {
  enum { DX, RESIDUAL, DGAMMA, DBETA, DY, X, MEAN, RSTD, GAMMA, COUNT };
  struct ek__op op;
  struct ek__layer_norm_args args = {.gamma_scale = gamma_scale, .beta_scale = beta_scale};
  const struct ek__operand operands[] = {
      [DX] = EK__MAY_WRITE(dx, VALUE, EK__IS(SAME, X), .to = &args.dx,
                           .may_be = EK__OPERAND(DY) | EK__OPERAND(RESIDUAL)),
      [RESIDUAL] = EK__MAY_READ(residual, VALUE, EK__IS(SAME, X), .to = &args.residual),
      [DGAMMA] = EK__MAY_WRITE(dgamma, SUM, EK__IS(ROW, X), .to = &args.dgamma),
      [DBETA] = EK__MAY_WRITE(dbeta, SUM, EK__IS(ROW, X), .to = &args.dbeta),
      [DY] = EK__READ(dy, VALUE, EK__IS(SAME, X), .to = &args.dy),
      [X] = EK__READ(x, VALUE, .to = &args.x),
      [MEAN] = EK__MAY_READ(mean, SUM, EK__IS(COLUMN, X), .to = &args.mean),
      [RSTD] = EK__READ(rstd, SUM, EK__IS(COLUMN, X), .to = &args.rstd),
      [GAMMA] = EK__READ(gamma, VALUE, EK__IS(ROW, X), .to = &args.gamma)};
  EK_TRY(ek__op_begin(&op, "layer_norm_backward", stream, operands, COUNT, &args.types));
  EK_TRY(check_width(&op, X));
  args.rows = op.rows[X];
  args.width = op.columns[X];
  return op.kernels == NULL ? EK_OK : op.kernels->layer_norm_backward(stream, &args);
}
