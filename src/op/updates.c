/*
 * updates.c - checked entry points of include/evenkeel/updates.h.
 */
#include <evenkeel/updates.h>

#include <inttypes.h>
#include <math.h>

#include "op/op_internal.h"

static ek_status check_finite(const char *who, const char *name, double value) {
  if (isfinite(value)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: %s is %g", who, name, value);
}

/* A state of an optimizer, and what its operation calls it. */
struct state {
  const char *name;
  ek_tensor *tensor;
  bool optional;
};

/* Checks what both updates have in common, and fills *args except for the terms of the rule.
 * *kernels are NULL if there is nothing to compute. */
static ek_status begin(const struct ek__kernels **kernels, struct ek__update_args *args,
                       const char *name, ek_stream *stream, ek_tensor *parameters,
                       const struct state state[2], const ek_tensor *gradients,
                       const ek_update_scale *scale) {
  static const ek_update_scale no_scale = {0};
  enum { P, STATE0, STATE1, COPY, G, TOTALS, SQUARE_NORM, COUNT };
  struct ek__op op;
  if (scale == NULL) scale = &no_scale;
  ek_tensor *copy = scale->copy;
  const ek_tensor *totals = scale->totals, *square_norm = scale->square_norm;
#define STATE(i)                                                                                   \
  {                                                                                                \
    .name = state[i].name, .tensor = state[i].tensor, .role = EK__SUM, EK__IS(ALL, P),             \
    .to = &args->state##i, .written = true, .optional = state[i].optional                          \
  }
  const struct ek__operand operands[] = {
      [P] = EK__WRITE(parameters, SUM, .to = &args->p),
      [STATE0] = STATE(0),
      [STATE1] = STATE(1),
      [COPY] = EK__MAY_WRITE(copy, VALUE, EK__IS(ALL, P), .to = &args->copy),
      [G] = EK__READ(gradients, EITHER, EK__IS(ALL, P), .to = &args->g),
      [TOTALS] = EK__MAY_READ(totals, F64, EK__IS(EXACTLY, 2), .to = &args->totals),
      [SQUARE_NORM] = EK__MAY_READ(square_norm, F64, EK__IS(EXACTLY, 1), .to = &args->square_norm)};
  EK_TRY(ek__op_begin(&op, name, stream, operands, COUNT, &args->types));
  EK_TRY(ek__op_between(name, "clip_norm", scale->clip_norm, 0.0, HUGE_VAL));
  EK__FAIL_IF(scale->clip_norm > 0.0 && square_norm == NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: clip_norm is %g but square_norm is NULL", name, scale->clip_norm);
  args->count = ek__op_elements(&op, P);
  args->g_is_value = gradients->type != args->types.sum;
  args->clip_norm = scale->clip_norm;
  *kernels = op.kernels;
  return EK_OK;
}

ek_status ek_op_sgd(ek_stream *stream, ek_tensor *parameters, ek_tensor *momentum_buffer,
                    const ek_tensor *gradients, const ek_sgd_terms *terms,
                    const ek_update_scale *scale) {
  const struct ek__kernels *kernels = NULL;
  const struct state state[2] = {{"momentum_buffer", momentum_buffer, true}, {"", NULL, true}};
  EK__NOT_NULL("sgd", terms);
  struct ek__update_args args = {.learning_rate = terms->learning_rate,
                                 .weight_decay = terms->weight_decay,
                                 .momentum = terms->momentum,
                                 .dampening = terms->dampening,
                                 .nesterov = terms->nesterov,
                                 .first = terms->first};
  EK_TRY(begin(&kernels, &args, "sgd", stream, parameters, state, gradients, scale));
  EK_TRY(check_finite("sgd", "learning_rate", terms->learning_rate));
  EK_TRY(check_finite("sgd", "momentum", terms->momentum));
  EK_TRY(check_finite("sgd", "dampening", terms->dampening));
  EK_TRY(check_finite("sgd", "weight_decay", terms->weight_decay));
  if (terms->momentum == 0.0) args.state0 = NULL;
  return kernels == NULL ? EK_OK : kernels->sgd(stream, &args);
}

static ek_status check_adamw_terms(const ek_adamw_terms *terms) {
  const double below_one = 1.0 - 0x1p-53; /* the largest double under 1 */
  EK__FAIL_IF(terms->step < 1, EK_ERR_INVALID_ARGUMENT,
              "adamw: step is %" PRId64 " but the first step is 1", terms->step);
  EK_TRY(ek__op_between("adamw", "beta1", terms->beta1, 0.0, below_one));
  EK_TRY(ek__op_between("adamw", "beta2", terms->beta2, 0.0, below_one));
  EK_TRY(ek__op_between("adamw", "epsilon", terms->epsilon, 0.0, HUGE_VAL));
  EK_TRY(check_finite("adamw", "learning_rate", terms->learning_rate));
  return check_finite("adamw", "weight_decay", terms->weight_decay);
}

/* 1 - beta^step without the cancellation: 1 - 0.999^1 would lose 10 of 53 bits. */
static double bias_correction(double beta, int64_t step) {
  return -expm1((double)step * log(beta));
}

ek_status ek_op_adamw(ek_stream *stream, ek_tensor *parameters, ek_tensor *m, ek_tensor *v,
                      const ek_tensor *gradients, const ek_adamw_terms *terms,
                      const ek_update_scale *scale) {
  const struct ek__kernels *kernels = NULL;
  const struct state state[2] = {{"m", m, false}, {"v", v, false}};
  EK__NOT_NULL("adamw", terms);
  struct ek__update_args args = {.learning_rate = terms->learning_rate,
                                 .weight_decay = terms->weight_decay,
                                 .beta1 = terms->beta1,
                                 .beta2 = terms->beta2,
                                 .epsilon = terms->epsilon,
                                 .decoupled = terms->decoupled,
                                 .first = terms->step == 1};
  EK_TRY(begin(&kernels, &args, "adamw", stream, parameters, state, gradients, scale));
  EK_TRY(check_adamw_terms(terms));
  if (kernels == NULL) return EK_OK;
  args.correction1 = bias_correction(terms->beta1, terms->step);
  args.correction2 = bias_correction(terms->beta2, terms->step);
  return kernels->adamw(stream, &args);
}

ek_status ek_op_square_norm(ek_stream *stream, ek_tensor *result, const ek_tensor *x, double beta) {
  enum { RESULT, X, COUNT };
  struct ek__op op;
  struct ek__elementwise_args args = {.value = beta};
  const struct ek__operand operands[] = {
      [RESULT] = EK__WRITE(result, F64, EK__IS(EXACTLY, 1), .to = &args.y),
      [X] = EK__READ(x, VALUE, .to = &args.a)};
  EK_TRY(ek__op_begin(&op, "square_norm", stream, operands, COUNT, &args.types));
  args.count = ek__op_elements(&op, X);
  return op.kernels == NULL ? EK_OK : op.kernels->square_norm(stream, &args);
}
