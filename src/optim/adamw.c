/*
 * adamw.c - AdamW, and Adam: two states, the moments m and v.
 */
#include <evenkeel/adamw.h>

#include <math.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

struct adamw {
  ek_optimizer base;
  double beta1, beta2, epsilon, weight_decay;
  bool coupled;
};

static ek_status update_range(const ek_optimizer *self, ek_stream *stream,
                              const ek_update *update) {
  const struct adamw *a = (const struct adamw *)self;
  EK__FAIL_IF(update == NULL || update->states == NULL, EK_ERR_INVALID_ARGUMENT, "%s: %s is NULL",
              ek_optimizer_kind(self), update == NULL ? "update" : "update->states");
  const ek_adamw_terms terms = {.learning_rate = update->learning_rate,
                                .beta1 = a->beta1,
                                .beta2 = a->beta2,
                                .epsilon = a->epsilon,
                                .weight_decay = ek_update_decay(update, a->weight_decay),
                                .decoupled = !a->coupled,
                                .step = update->step};
  return ek_op_adamw(stream, update->parameters, &update->states[0], &update->states[1],
                     update->gradients, &terms, &update->scale);
}

static void release(ek_optimizer *self) { ek__free(self); }

static const char *const state_names[] = {"m", "v"};

static const ek_optimizer_ops ops = {.size = sizeof(ek_optimizer_ops),
                                     .kind = "adamw",
                                     .update = update_range,
                                     .free = release,
                                     .types =
                                         EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16,
                                     .state_names = state_names,
                                     .writes_copy = true,
                                     .takes_decay = true};

static ek_status check_beta(const char *name, double beta) {
  if (beta >= 0.0 && beta < 1.0) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "adamw: %s is %g, expected 0 <= %s < 1", name, beta,
                      name);
}

static ek_status check_options(const ek_adamw_options *o) {
  EK_TRY(check_beta("beta1", o->beta1));
  EK_TRY(check_beta("beta2", o->beta2));
  EK__FAIL_IF(!(o->epsilon > 0.0 && isfinite(o->epsilon)), EK_ERR_INVALID_ARGUMENT,
              "adamw: epsilon is %g, expected a number > 0", o->epsilon);
  return ek__check_number("adamw", "weight_decay", o->weight_decay);
}

ek_status ek_adamw_create(ek_optimizer **optimizer, const ek_adamw_options *options) {
  ek_adamw_options o = EK_ADAMW_OPTIONS_INIT;
  EK__NOT_NULL("adamw", optimizer);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_adamw_options"));
  EK_TRY(check_options(&o));
  struct adamw made = {.beta1 = o.beta1,
                       .beta2 = o.beta2,
                       .epsilon = o.epsilon,
                       .weight_decay = o.weight_decay,
                       .coupled = o.coupled};
  EK_TRY(ek_optimizer_init(&made.base, &ops, 2, o.learning_rate, o.clip_norm));
  return ek__new_copy(optimizer, &made, sizeof made, "adamw");
}

EK__OPTIONS_INIT(ek_adamw_options, EK_ADAMW_OPTIONS_INIT)
