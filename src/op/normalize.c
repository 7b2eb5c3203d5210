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

ek_status ek_op_layer_norm_forward(ek_stream *stream, ek_tensor *y, ek_tensor *mean,
                                   ek_tensor *rstd, const ek_tensor *x, const ek_tensor *gamma,
                                   const ek_tensor *beta, double epsilon) {
  enum { Y, MEAN, RSTD, X, GAMMA, BETA, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [Y] = {.name = "y", .tensor = y, .written = true, .may_be = EK__OPERAND(X)},
      [MEAN] = {.name = "mean", .tensor = mean, .written = true},
      [RSTD] = {.name = "rstd", .tensor = rstd, .written = true},
      [X] = {.name = "x", .tensor = x},
      [GAMMA] = {.name = "gamma", .tensor = gamma},
      [BETA] = {.name = "beta", .tensor = beta}};
  EK_TRY(ek__op_begin(&op, "layer_norm_forward", stream, operands, COUNT));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_same(&op, Y, X));
  EK_TRY(ek__op_fits(&op, MEAN, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, RSTD, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, GAMMA, op.columns[X], X));
  EK_TRY(ek__op_fits(&op, BETA, op.columns[X], X));
  EK_TRY(ek__op_between(&op, "epsilon", epsilon, 0.0, HUGE_VAL));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__layer_norm_args args = {.y = y->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .x = x->data,
                                           .gamma = gamma->data,
                                           .beta = beta->data,
                                           .epsilon = epsilon,
                                           .rows = op.rows[X],
                                           .width = op.columns[X],
                                           .type = op.type};
  return op.kernels->layer_norm_forward(stream, &args);
}

ek_status ek_op_add_layer_norm_forward(ek_stream *stream, ek_tensor *y, ek_tensor *sum,
                                       ek_tensor *mean, ek_tensor *rstd, const ek_tensor *x,
                                       const ek_tensor *residual, const ek_tensor *gamma,
                                       const ek_tensor *beta, double epsilon) {
  enum { Y, SUM, MEAN, RSTD, X, RESIDUAL, GAMMA, BETA, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {[Y] = {.name = "y", .tensor = y, .written = true},
                                         [SUM] = {.name = "sum",
                                                  .tensor = sum,
                                                  .written = true,
                                                  .may_be = EK__OPERAND(X) | EK__OPERAND(RESIDUAL)},
                                         [MEAN] = {.name = "mean", .tensor = mean, .written = true},
                                         [RSTD] = {.name = "rstd", .tensor = rstd, .written = true},
                                         [X] = {.name = "x", .tensor = x},
                                         [RESIDUAL] = {.name = "residual", .tensor = residual},
                                         [GAMMA] = {.name = "gamma", .tensor = gamma},
                                         [BETA] = {.name = "beta", .tensor = beta}};
  EK_TRY(ek__op_begin(&op, "add_layer_norm_forward", stream, operands, COUNT));
  EK_TRY(check_width(&op, X));
  EK_TRY(ek__op_same(&op, Y, X));
  EK_TRY(ek__op_same(&op, SUM, X));
  EK_TRY(ek__op_same(&op, RESIDUAL, X));
  EK_TRY(ek__op_fits(&op, MEAN, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, RSTD, op.rows[X], X));
  EK_TRY(ek__op_fits(&op, GAMMA, op.columns[X], X));
  EK_TRY(ek__op_fits(&op, BETA, op.columns[X], X));
  EK_TRY(ek__op_between(&op, "epsilon", epsilon, 0.0, HUGE_VAL));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__layer_norm_args args = {.y = y->data,
                                           .sum = sum->data,
                                           .mean = mean->data,
                                           .rstd = rstd->data,
                                           .x = x->data,
                                           .residual = residual->data,
                                           .gamma = gamma->data,
                                           .beta = beta->data,
                                           .epsilon = epsilon,
                                           .rows = op.rows[X],
                                           .width = op.columns[X],
                                           .type = op.type};
  return op.kernels->layer_norm_forward(stream, &args);
}

ek_status ek_op_layer_norm_backward(ek_stream *stream, ek_tensor *dx, const ek_tensor *residual,
                                    ek_tensor *dgamma, double gamma_scale, ek_tensor *dbeta,
                                    double beta_scale, const ek_tensor *dy, const ek_tensor *x,
                                    const ek_tensor *mean, const ek_tensor *rstd,
                                    const ek_tensor *gamma) {
  enum { DX, RESIDUAL, DGAMMA, DBETA, DY, X, MEAN, RSTD, GAMMA, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [DX] = {.name = "dx",
              .tensor = dx,
              .written = true,
              .optional = true,
              .may_be = EK__OPERAND(DY) | EK__OPERAND(RESIDUAL)},
      [RESIDUAL] = {.name = "residual", .tensor = residual, .optional = true},
      [DGAMMA] = {.name = "dgamma", .tensor = dgamma, .written = true},
      [DBETA] = {.name = "dbeta", .tensor = dbeta, .written = true},
      [DY] = {.name = "dy", .tensor = dy},
      [X] = {.name = "x", .tensor = x},
      [MEAN] = {.name = "mean", .tensor = mean},
      [RSTD] = {.name = "rstd", .tensor = rstd},
      [GAMMA] = {.name = "gamma", .tensor = gamma}};
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
                                           .type = op.type};
  return op.kernels->layer_norm_backward(stream, &args);
}
