/*
 * loss_scale.c - the factor of a gradient on its way back, as a function of the steps before.
 */
#include <evenkeel/loss_scale.h>

#include <inttypes.h>
#include <math.h>

#include "core/error.h"

static ek_status check_power(const char *name, double value, double least, double most) {
  int exponent = 0;
  /* A power of two has one bit; NaN, infinity and 0 have another fraction. */
  if (frexp(value, &exponent) == 0.5 && value >= least && value <= most) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "loss scale: %s is %g, expected a power of two from %g to %g", name, value,
                      least, most);
}

ek_status ek_loss_scale_check(const ek_loss_scale *rule) {
  EK__NOT_NULL("loss scale", rule);
  switch (rule->kind) {
  case EK_LOSS_SCALE_NONE: return EK_OK;
  case EK_LOSS_SCALE_STATIC:
  case EK_LOSS_SCALE_DYNAMIC: break;
  default:
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "loss scale: unknown kind %d",
                        (int)rule->kind);
  }
  EK_TRY(check_power("scale", rule->scale, EK_LOSS_SCALE_LEAST, EK_LOSS_SCALE_MOST));
  if (rule->kind == EK_LOSS_SCALE_STATIC) return EK_OK;
  EK_TRY(check_power("growth", rule->growth, 1, EK_LOSS_SCALE_MOST));
  EK_TRY(check_power("backoff", rule->backoff, EK_LOSS_SCALE_LEAST, 1));
  EK__FAIL_IF(rule->interval < 1, EK_ERR_INVALID_ARGUMENT,
              "loss scale: interval is %" PRId64 ", expected 1 or more", rule->interval);
  return EK_OK;
}

ek_loss_scale_state ek_loss_scale_begin(const ek_loss_scale *rule) {
  const bool none = rule == NULL || rule->kind == EK_LOSS_SCALE_NONE;
  return (ek_loss_scale_state){.scale = none ? 1 : rule->scale, .good_steps = 0};
}

ek_loss_scale_state ek_loss_scale_next(const ek_loss_scale *rule, ek_loss_scale_state state,
                                       bool overflow) {
  if (rule == NULL || rule->kind != EK_LOSS_SCALE_DYNAMIC) return state;
  double factor = rule->backoff;
  if (!overflow) {
    /* A run that was resumed with a shorter interval may be beyond it already. */
    const bool grows = ++state.good_steps >= rule->interval;
    if (!grows) return state;
    factor = rule->growth;
  }
  state.good_steps = 0;
  state.scale = fmin(fmax(state.scale * factor, EK_LOSS_SCALE_LEAST), EK_LOSS_SCALE_MOST);
  return state;
}

void ek_loss_scale_init(ek_loss_scale *rule) { *rule = (ek_loss_scale)EK_LOSS_SCALE_INIT; }
