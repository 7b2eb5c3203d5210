/*
 * normalize.c - checked entry points of include/evenkeel/normalize.h.
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
  struct ek__operand operands[] = {
      [Y] = EK__WRITE(y, VALUE, adds ? 0 : EK__OPERAND(X)),
      [SUM] = EK__WRITE(sum, VALUE, EK__OPERAND(X) | EK__OPERAND(RESIDUAL)),
      [MEAN] = EK__WRITE(mean, SUM, 0),
      [RSTD] = EK__WRITE(rstd, SUM, 0),
      [X] = EK__READ(x, VALUE),
      [RESIDUAL] = EK__READ(residual, VALUE),
      [GAMMA] = EK__READ(gamma, VALUE),
      [BETA] = EK__READ(beta, VALUE)};
  operands[SUM].optional = operands[RESIDUAL].optional = !adds;
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_same(&op, Y, X));
  if (adds) EK_TRY(ek__op_same(&op, SUM, X));
  if (adds) EK_TRY(ek__op_same(&op, RESIDUAL, X));
  EK_TRY(ek__op_fits(&op, MEAN, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, RSTD, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, GAMMA, op.columns[X], X));
  EK_TRY(ek__op_fits(&op, BETA, op.columns[X], X));
  EK_TRY(ek__op_between(&op, "epsilon", epsilon, 0.0, HUGE_VAL));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__layer_norm_args args = {.y = y->data,
                                           .sum = ek__op_data(sum),
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .x = x->data,
                                           .residual = ek__op_data(residual),
                                           .gamma = gamma->data,
                                           .beta = beta->data,
                                           .epsilon = epsilon,
                                           .rows = op.rows[X],
                                           .width = op.columns[X],
                                           .types = op.types};
  return op.kernels->layer_norm_forward(stream, &args);
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

ek_status ek_op_layer_norm_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *residual,
                                    ek_tensor *dgamma, double gamma_scale, ek_tensor *dbeta,
                                    double beta_scale, const ek_tensor *dy, const ek_tensor *x,
                                    const ek_tensor *mean, const ek_tensor *rstd,
                                    const ek_tensor *gamma) {
  enum { DX, RESIDUAL, DGAMMA, DBETA, DY, X, MEAN, RSTD, GAMMA, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [DX] = EK__MAY_WRITE(dx, VALUE, EK__OPERAND(DY) | EK__OPERAND(RESIDUAL)),
      [RESIDUAL] = EK__MAY_READ(residual, VALUE),
      [DGAMMA] = EK__WRITE(dgamma, SUM, 0),
      [DBETA] = EK__WRITE(dbeta, SUM, 0),
      [DY] = EK__READ(dy, VALUE),
      [X] = EK__READ(x, VALUE),
      [MEAN] = EK__READ(mean, SUM),
      [RSTD] = EK__READ(rstd, SUM),
      [GAMMA] = EK__READ(gamma, VALUE)};
  EK_TRY(ek__op_begin(&op, "layer_norm_backward", stream, operands, COUNT));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_same(&op, DY, X));
  if (dx != NULL) EK_TRY(ek__op_same(&op, DX, X));
  if (residual != NULL) EK_TRY(ek__op_same(&op, RESIDUAL, X));
  EK_TRY(ek__op_fits(&op, MEAN, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, RSTD, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, GAMMA, op.columns[X], X));
  EK_TRY(ek__op_fits(&op, DGAMMA, op.columns[X], X));
  EK_TRY(ek__op_fits(&op, DBETA, op.columns[X], X));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__layer_norm_args args = {.dx = ek__op_data(dx),
                                           .residual = ek__op_data(residual),
                                           .dgamma = dgamma->data,
                                           .dbeta = dbeta->data,
                                           .dy = dy->data,
                                           .x = x->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .gamma = gamma->data,
                                           .gamma_scale = gamma_scale,
                                           .beta_scale = beta_scale,
                                           .rows = op.rows[X],
                                           .width = op.columns[X],
                                           .types = op.types};
  return op.kernels->layer_norm_backward(stream, &args);
}
