/*
 * updates.c - checked entry points of include/evenkeel/updates.h.
 */
#include <evenkeel/updates.h>

#include <inttypes.h>
#include <math.h>

#include "op/op_internal.h"

static const ek_update_scale no_scale = {0};

/* What SGD and AdamW require of the gradient's scale. */
static ek_status check_scale(const struct ek__op *op, size_t totals, size_t square_norm,
                             const ek_update_scale *scale) {
  EK_TRY(ek__op_exactly(op, totals, 2));
  EK_TRY(ek__op_exactly(op, square_norm, 1));
  EK_TRY(ek__op_between(op, "clip_norm", scale->clip_norm, 0.0, HUGE_VAL));
  if (scale->clip_norm > 0.0 && scale->square_norm == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: clip_norm is %g but square_norm is NULL",
                        op->name, scale->clip_norm);
  }
  return EK_OK;
}

static ek_status check_finite(const struct ek__op *op, const char *name, double value) {
  if (isfinite(value)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is %g", op->name, name, value);
}

ek_status ek_op_sgd(ek_stream *stream, ek_tensor *parameters, ek_tensor *momentum_buffer,
                    const ek_tensor *gradients, const ek_sgd_terms *terms,
                    const ek_update_scale *scale) {
  enum { P, MOMENTUM, G, TOTALS, SQUARE_NORM, COUNT };
  struct ek__op op;
  if (terms == NULL) return ek_error_set(EK_ERR_INVALID_ARGUMENT, "sgd: terms is NULL");
  if (scale == NULL) scale = &no_scale;
  const struct ek__operand operands[] = {
      [P] = {.name = "parameters", .tensor = parameters, .written = true},
      [MOMENTUM] = {.name = "momentum_buffer",
                    .tensor = momentum_buffer,
                    .written = true,
                    .optional = true},
      [G] = {.name = "gradients", .tensor = gradients},
      [TOTALS] = {.name = "totals",
                  .tensor = scale->totals,
                  .kind = EK__OPERAND_F64,
                  .optional = true},
      [SQUARE_NORM] = {.name = "square_norm",
                       .tensor = scale->square_norm,
                       .kind = EK__OPERAND_F64,
                       .optional = true}};
  EK_TRY(ek__op_begin(&op, "sgd", stream, operands, COUNT));
  const int64_t count = ek__op_elements(&op, P);
  EK_TRY(ek__op_fits(&op, G, count, P));
  EK_TRY(ek__op_fits(&op, MOMENTUM, count, P));
  EK_TRY(check_scale(&op, TOTALS, SQUARE_NORM, scale));
  EK_TRY(check_finite(&op, "learning_rate", terms->learning_rate));
  EK_TRY(check_finite(&op, "momentum", terms->momentum));
  EK_TRY(check_finite(&op, "dampening", terms->dampening));
  EK_TRY(check_finite(&op, "weight_decay", terms->weight_decay));
  if (op.kernels == NULL) return EK_OK;
  const bool with_momentum = momentum_buffer != NULL && terms->momentum != 0.0;
  const struct ek__update_args args = {.p = parameters->data,
                                       .state0 = with_momentum ? momentum_buffer->data : NULL,
                                       .g = gradients->data,
                                       .count = count,
                                       .totals = ek__op_data(scale->totals),
                                       .square_norm = ek__op_data(scale->square_norm),
                                       .clip_norm = scale->clip_norm,
                                       .learning_rate = terms->learning_rate,
                                       .weight_decay = terms->weight_decay,
                                       .momentum = terms->momentum,
                                       .dampening = terms->dampening,
                                       .nesterov = terms->nesterov,
                                       .first = terms->first,
                                       .type = op.type};
  return op.kernels->sgd(stream, &args);
}

static ek_status check_adamw_terms(const struct ek__op *op, const ek_adamw_terms *terms) {
  const double below_one = 1.0 - 0x1p-53; /* the largest double under 1 */
  if (terms->step < 1) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: step is %" PRId64 " but the first step is 1",
                        op->name, terms->step);
  }
  EK_TRY(ek__op_between(op, "beta1", terms->beta1, 0.0, below_one));
  EK_TRY(ek__op_between(op, "beta2", terms->beta2, 0.0, below_one));
  EK_TRY(ek__op_between(op, "epsilon", terms->epsilon, 0.0, HUGE_VAL));
  EK_TRY(check_finite(op, "learning_rate", terms->learning_rate));
  return check_finite(op, "weight_decay", terms->weight_decay);
}

/* 1 - beta^step without the cancellation: 1 - 0.999^1 would lose 10 of 53 bits. */
static double bias_correction(double beta, int64_t step) {
  return -expm1((double)step * log(beta));
}

static ek_status adamw_kernel(const struct ek__op *op, ek_stream *stream,
                              const ek_adamw_terms *terms, const ek_update_scale *scale) {
  enum { P, M, V, G }; /* the first rows of ek_op_adamw's table */
  const struct ek__update_args args = {.p = op->operand[P].tensor->data,
                                       .state0 = op->operand[M].tensor->data,
                                       .state1 = op->operand[V].tensor->data,
                                       .g = op->operand[G].tensor->data,
                                       .count = ek__op_elements(op, P),
                                       .totals = ek__op_data(scale->totals),
                                       .square_norm = ek__op_data(scale->square_norm),
                                       .clip_norm = scale->clip_norm,
                                       .learning_rate = terms->learning_rate,
                                       .weight_decay = terms->weight_decay,
                                       .beta1 = terms->beta1,
                                       .beta2 = terms->beta2,
                                       .epsilon = terms->epsilon,
                                       .correction1 = bias_correction(terms->beta1, terms->step),
                                       .correction2 = bias_correction(terms->beta2, terms->step),
                                       .decoupled = terms->decoupled,
                                       .first = terms->step == 1,
                                       .type = op->type};
  return op->kernels->adamw(stream, &args);
}

ek_status ek_op_adamw(ek_stream *stream, ek_tensor *parameters, ek_tensor *m, ek_tensor *v,
                      const ek_tensor *gradients, const ek_adamw_terms *terms,
                      const ek_update_scale *scale) {
  enum { P, M, V, G, TOTALS, SQUARE_NORM, COUNT };
  struct ek__op op;
  if (terms == NULL) return ek_error_set(EK_ERR_INVALID_ARGUMENT, "adamw: terms is NULL");
  if (scale == NULL) scale = &no_scale;
  const struct ek__operand operands[] = {
      [P] = {.name = "parameters", .tensor = parameters, .written = true},
      [M] = {.name = "m", .tensor = m, .written = true},
      [V] = {.name = "v", .tensor = v, .written = true},
      [G] = {.name = "gradients", .tensor = gradients},
      [TOTALS] = {.name = "totals",
                  .tensor = scale->totals,
                  .kind = EK__OPERAND_F64,
                  .optional = true},
      [SQUARE_NORM] = {.name = "square_norm",
                       .tensor = scale->square_norm,
                       .kind = EK__OPERAND_F64,
                       .optional = true}};
  EK_TRY(ek__op_begin(&op, "adamw", stream, operands, COUNT));
  const int64_t count = ek__op_elements(&op, P);
  EK_TRY(ek__op_fits(&op, M, count, P));
  EK_TRY(ek__op_fits(&op, V, count, P));
  EK_TRY(ek__op_fits(&op, G, count, P));
  EK_TRY(check_scale(&op, TOTALS, SQUARE_NORM, scale));
  EK_TRY(check_adamw_terms(&op, terms));
  return op.kernels == NULL ? EK_OK : adamw_kernel(&op, stream, terms, scale);
}

ek_status ek_op_square_norm(ek_stream *stream, ek_tensor *result, const ek_tensor *x, double beta) {
  enum { RESULT, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [RESULT] = {.name = "result", .tensor = result, .kind = EK__OPERAND_F64, .written = true},
      [X] = {.name = "x", .tensor = x}};
  EK_TRY(ek__op_begin(&op, "square_norm", stream, operands, COUNT));
  EK_TRY(ek__op_exactly(&op, RESULT, 1));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__elementwise_args args = {.y = result->data,
                                            .a = x->data,
                                            .count = ek__op_elements(&op, X),
                                            .value = beta,
                                            .type = op.type};
  return op.kernels->square_norm(stream, &args);
}
