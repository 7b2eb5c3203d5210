/*
 * updates.c - checked entry points of include/evenkeel/updates.h.
 */
#include <evenkeel/updates.h>

#include <inttypes.h>
#include <math.h>

#include "op/op_internal.h"

static ek_status check_finite(const struct ek__op *op, const char *name, double value) {
  if (isfinite(value)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is %g", op->name, name, value);
}

/* A state of an optimizer, and what its operation calls it. */
struct state {
  const char *name;
  ek_tensor *tensor;
  bool optional;
};

/* What both updates have: checks it and fills *args but for the terms of the rule. */
static ek_status begin(struct ek__op *op, struct ek__update_args *args, const char *name,
                       ek_stream *stream, ek_tensor *parameters, const struct state state[2],
                       const ek_tensor *gradients, const ek_update_scale *scale) {
  static const ek_update_scale no_scale = {0};
  enum { P, STATE0, STATE1, G, TOTALS, SQUARE_NORM, COUNT };
  if (scale == NULL) scale = &no_scale;
  const ek_tensor *totals = scale->totals, *square_norm = scale->square_norm;
#define STATE(i)                                                                                   \
  {                                                                                                \
    .name = state[i].name, .tensor = state[i].tensor, .role = EK__SUM, .written = true,            \
    .optional = state[i].optional                                                                  \
  }
  const struct ek__operand operands[] = {[P] = EK__WRITE(parameters, SUM, 0),
                                         [STATE0] = STATE(0),
                                         [STATE1] = STATE(1),
                                         [G] = EK__READ(gradients, SUM),
                                         [TOTALS] = EK__MAY_READ(totals, F64),
                                         [SQUARE_NORM] = EK__MAY_READ(square_norm, F64)};
  EK_TRY(ek__op_begin(op, name, stream, operands, COUNT));
  const int64_t count = ek__op_elements(op, P);
  EK_TRY(ek__op_fits(op, STATE0, count, P));
  EK_TRY(ek__op_fits(op, STATE1, count, P));
  EK_TRY(ek__op_fits(op, G, count, P));
  EK_TRY(ek__op_exactly(op, TOTALS, 2));
  EK_TRY(ek__op_exactly(op, SQUARE_NORM, 1));
  EK_TRY(ek__op_between(op, "clip_norm", scale->clip_norm, 0.0, HUGE_VAL));
  EK__FAIL_IF(scale->clip_norm > 0.0 && square_norm == NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: clip_norm is %g but square_norm is NULL", name, scale->clip_norm);
  *args = (struct ek__update_args){.p = parameters->data,
                                   .state0 = ek__op_data(state[0].tensor),
                                   .state1 = ek__op_data(state[1].tensor),
                                   .g = gradients->data,
                                   .count = count,
                                   .totals = ek__op_data(totals),
                                   .square_norm = ek__op_data(square_norm),
                                   .clip_norm = scale->clip_norm,
                                   .types = op->types};
  return EK_OK;
}

ek_status ek_op_sgd(ek_stream *stream, ek_tensor *parameters, ek_tensor *momentum_buffer,
                    const ek_tensor *gradients, const ek_sgd_terms *terms,
                    const ek_update_scale *scale) {
  struct ek__op op;
  struct ek__update_args args;
  const struct state state[2] = {{"momentum_buffer", momentum_buffer, true}, {"", NULL, true}};
  EK__FAIL_IF(terms == NULL, EK_ERR_INVALID_ARGUMENT, "sgd: terms is NULL");
  EK_TRY(begin(&op, &args, "sgd", stream, parameters, state, gradients, scale));
  EK_TRY(check_finite(&op, "learning_rate", terms->learning_rate));
  EK_TRY(check_finite(&op, "momentum", terms->momentum));
  EK_TRY(check_finite(&op, "dampening", terms->dampening));
  EK_TRY(check_finite(&op, "weight_decay", terms->weight_decay));
  if (op.kernels == NULL) return EK_OK;
  if (terms->momentum == 0.0) args.state0 = NULL;
  args.learning_rate = terms->learning_rate;
  args.weight_decay = terms->weight_decay;
  args.momentum = terms->momentum;
  args.dampening = terms->dampening;
  args.nesterov = terms->nesterov;
  args.first = terms->first;
  return op.kernels->sgd(stream, &args);
}

static ek_status check_adamw_terms(const struct ek__op *op, const ek_adamw_terms *terms) {
  const double below_one = 1.0 - 0x1p-53; /* the largest double under 1 */
  EK__FAIL_IF(terms->step < 1, EK_ERR_INVALID_ARGUMENT,
              "%s: step is %" PRId64 " but the first step is 1", op->name, terms->step);
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

ek_status ek_op_adamw(ek_stream *stream, ek_tensor *parameters, ek_tensor *m, ek_tensor *v,
                      const ek_tensor *gradients, const ek_adamw_terms *terms,
                      const ek_update_scale *scale) {
  struct ek__op op;
  struct ek__update_args args;
  const struct state state[2] = {{"m", m, false}, {"v", v, false}};
  EK__FAIL_IF(terms == NULL, EK_ERR_INVALID_ARGUMENT, "adamw: terms is NULL");
  EK_TRY(begin(&op, &args, "adamw", stream, parameters, state, gradients, scale));
  EK_TRY(check_adamw_terms(&op, terms));
  if (op.kernels == NULL) return EK_OK;
  args.learning_rate = terms->learning_rate;
  args.weight_decay = terms->weight_decay;
  args.beta1 = terms->beta1;
  args.beta2 = terms->beta2;
  args.epsilon = terms->epsilon;
  args.correction1 = bias_correction(terms->beta1, terms->step);
  args.correction2 = bias_correction(terms->beta2, terms->step);
  args.decoupled = terms->decoupled;
  args.first = terms->step == 1;
  return op.kernels->adamw(stream, &args);
}

ek_status ek_op_square_norm(ek_stream *stream, ek_tensor *result, const ek_tensor *x, double beta) {
  enum { RESULT, X, COUNT };
  struct ek__op op;
  const struct ek__operand operands[] = {
      [RESULT] = EK__WRITE(result, F64, 0), [X] = EK__READ(x, VALUE)};
  EK_TRY(ek__op_begin(&op, "square_norm", stream, operands, COUNT));
  EK_TRY(ek__op_exactly(&op, RESULT, 1));
  if (op.kernels == NULL) return EK_OK;
  const struct ek__elementwise_args args = {.y = result->data,
                                            .a = x->data,
                                            .count = ek__op_elements(&op, X),
                                            .value = beta,
                                            .types = op.types};
  return op.kernels->square_norm(stream, &args);
}
