/*
 * averaged.c - a rule around another one: it has that rule's table, states and name, and one state
 * more, which it updates after the rule.
 */
#include <evenkeel/averaged.h>

#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"

struct averaged {
  ek_optimizer base;
  ek_optimizer *rule;
  double decay;
  ek_optimizer_ops ops; /* of this rule: those of the other one, with the functions of this file */
  const char *names[EK_MAX_OPTIMIZER_STATES];
};

static const char average_name[] = "average";

static ek_status update_range(const ek_optimizer *self, ek_stream *stream,
                              const ek_update *update) {
  const struct averaged *a = (const struct averaged *)self;
  EK__FAIL_IF(update == NULL || update->states == NULL, EK_ERR_INVALID_ARGUMENT, "%s: %s is NULL",
              ek_optimizer_kind(self), update == NULL ? "update" : "update->states");
  EK_TRY(ek_optimizer_table(a->rule)->update(a->rule, stream, update));
  ek_tensor *average = &update->states[ek_optimizer_states(a->rule)];
  if (update->step == 1) return ek_op_copy(stream, average, update->parameters);
  return ek_op_lerp(stream, average, average, update->parameters, 1 - a->decay);
}

/* ---- slots that the inner rule may have ---- */

static const ek_optimizer *rule_of(const ek_optimizer *self) {
  return ((const struct averaged *)self)->rule;
}

static bool takes_whole(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  return ek_optimizer_table(rule_of(self))->takes_whole(rule_of(self), parameter);
}

static int64_t workspace(const ek_optimizer *self, const ek_optimizer_parameter *parameter) {
  return ek_optimizer_table(rule_of(self))->workspace(rule_of(self), parameter);
}

static bool keeps(const ek_optimizer *self, size_t state, bool whole) {
  return state == ek_optimizer_states(rule_of(self)) ||
         ek_optimizer_table(rule_of(self))->keeps(rule_of(self), state, whole);
}

static void release(ek_optimizer *self) {
  ek_optimizer_free(((struct averaged *)self)->rule);
  ek__free(self);
}

/* The names of the rule's states, or the numbers that stand for them, then "average". */
static ek_status name_states(struct averaged *made) {
  static const char *const numbers[EK_MAX_OPTIMIZER_STATES] = {"0", "1", "2", "3"};
  const ek_optimizer_ops *own = ek_optimizer_table(made->rule);
  const size_t states = ek_optimizer_states(made->rule);
  const bool named = EK__TABLE_SLOT(own, state_names) != NULL;
  for (size_t i = 0; i < states; i++) {
    made->names[i] = named ? own->state_names[i] : numbers[i];
    EK__FAIL_IF(strcmp(made->names[i], average_name) == 0, EK_ERR_INVALID_ARGUMENT,
                "averaged: the rule %s has a state called average, expected a rule without one",
                own->kind);
  }
  made->names[states] = average_name;
  return EK_OK;
}

ek_status ek_averaged_create(ek_optimizer **optimizer, ek_optimizer *rule, double decay) {
  struct averaged *made = NULL;
  EK__NOT_NULL("ek_averaged_create", optimizer, rule);
  EK__FAIL_IF(!(decay >= 0.0 && decay < 1.0), EK_ERR_INVALID_ARGUMENT,
              "averaged: decay is %g, expected 0 <= decay < 1", decay);
  const ek_optimizer_ops *own = ek_optimizer_table(rule);
  const size_t states = ek_optimizer_states(rule);
  EK__FAIL_IF(states >= EK_MAX_OPTIMIZER_STATES, EK_ERR_INVALID_ARGUMENT,
              "averaged: the rule %s has %zu states, expected at most %d", own->kind, states,
              EK_MAX_OPTIMIZER_STATES - 1);
  EK_TRY(ek__new(&made, 1, sizeof *made, "averaged"));
  made->rule = rule;
  made->decay = decay;
  ek_status status = name_states(made);
  made->ops = (ek_optimizer_ops){.size = sizeof made->ops,
                                 .kind = own->kind,
                                 .update = update_range,
                                 .free = release,
                                 .types = EK__TABLE_SLOT(own, types),
                                 .state_names = made->names,
                                 .writes_copy = EK__TABLE_SLOT(own, writes_copy),
                                 .takes_decay = EK__TABLE_SLOT(own, takes_decay)};
  if (EK__TABLE_SLOT(own, takes_whole) != NULL) made->ops.takes_whole = takes_whole;
  if (EK__TABLE_SLOT(own, workspace) != NULL) made->ops.workspace = workspace;
  if (EK__TABLE_SLOT(own, keeps) != NULL) made->ops.keeps = keeps;
  if (status == EK_OK) {
    status = ek_optimizer_init(&made->base, &made->ops, states + 1,
                               ek_optimizer_learning_rate(rule), ek_optimizer_clip_norm(rule));
  }
  if (status != EK_OK) {
    ek__free(made);
    return status;
  }
  (void)ek_optimizer_share(rule);
  *optimizer = &made->base;
  return EK_OK;
}
