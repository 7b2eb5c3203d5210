/*
 * sgd.c - stochastic gradient descent with momentum: one state, or none without momentum.
 */
#include <evenkeel/sgd.h>

#include <math.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

struct sgd {
  ek_optimizer base;
  double momentum, dampening, weight_decay;
  bool nesterov;
};

static ek_status update_range(const ek_optimizer *self, ek_stream *stream,
                              const ek_update *update) {
  const struct sgd *s = (const struct sgd *)self;
  EK__FAIL_IF(update == NULL || (ek_optimizer_states(self) > 0 && update->states == NULL),
              EK_ERR_INVALID_ARGUMENT, "sgd: %s is NULL",
              update == NULL ? "update" : "update->states");
  const ek_sgd_terms terms = {.learning_rate = update->learning_rate,
                              .momentum = s->momentum,
                              .dampening = s->dampening,
                              .weight_decay = ek_update_decay(update, s->weight_decay),
                              .nesterov = s->nesterov,
                              .first = update->step <= 1};
  ek_tensor *momentum = ek_optimizer_states(self) > 0 ? &update->states[0] : NULL;
  return ek_op_sgd(stream, update->parameters, momentum, update->gradients, &terms,
                   &update->scale);
}

static void release(ek_optimizer *self) { ek__free(self); }

static const char *const state_names[] = {"momentum"};

static const ek_optimizer_ops ops = {.size = sizeof(ek_optimizer_ops),
                                     .kind = "sgd",
                                     .update = update_range,
                                     .free = release,
                                     .types =
                                         EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16,
                                     .state_names = state_names,
                                     .writes_copy = true,
                                     .takes_decay = true};

static ek_status check_options(const ek_sgd_options *o) {
  EK_TRY(ek__check_number("sgd", "momentum", o->momentum));
  EK__FAIL_IF(!isfinite(o->dampening), EK_ERR_INVALID_ARGUMENT,
              "sgd: dampening is %g, expected a finite number", o->dampening);
  EK_TRY(ek__check_number("sgd", "weight_decay", o->weight_decay));
  EK__FAIL_IF(o->nesterov && !(o->momentum > 0.0 && o->dampening == 0.0), EK_ERR_INVALID_ARGUMENT,
              "sgd: nesterov needs momentum > 0 and dampening 0, not %g and %g", o->momentum,
              o->dampening);
  return EK_OK;
}

ek_status ek_sgd_create(ek_optimizer **optimizer, const ek_sgd_options *options) {
  ek_sgd_options o = EK_SGD_OPTIONS_INIT;
  EK__NOT_NULL("sgd", optimizer);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_sgd_options"));
  EK_TRY(check_options(&o));
  struct sgd made = {.momentum = o.momentum,
                     .dampening = o.dampening,
                     .weight_decay = o.weight_decay,
                     .nesterov = o.nesterov};
  const size_t states = o.momentum != 0.0 ? 1 : 0;
  EK_TRY(ek_optimizer_init(&made.base, &ops, states, o.learning_rate, o.clip_norm));
  return ek__new_copy(optimizer, &made, sizeof made, "sgd");
}

EK__OPTIONS_INIT(ek_sgd_options, EK_SGD_OPTIONS_INIT)
