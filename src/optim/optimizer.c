/*
 * optimizer.c - the base of every update rule.
 */
#include <evenkeel/optimizer.h>

#include "core/error.h"
#include "core/options.h"

static ek_status check_ops(const ek_optimizer_ops *given) {
  ek_optimizer_ops ops = {.size = sizeof ops};
  EK_TRY(ek__options_read(&ops, sizeof ops, given, "ek_optimizer_ops"));
  const char *kind = ops.kind == NULL ? "optimizer" : ops.kind;
  const char *missing = ops.kind == NULL     ? "kind"
                        : ops.update == NULL ? "update"
                        : ops.free == NULL   ? "free"
                                             : NULL;
  if (missing == NULL) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s: ops.%s is missing", kind, missing);
}

ek_status ek_optimizer_init(ek_optimizer *optimizer, const ek_optimizer_ops *ops, size_t states,
                            double learning_rate, double clip_norm) {
  EK__NOT_NULL("optimizer", optimizer, ops);
  EK_TRY(check_ops(ops));
  EK__FAIL_IF(states > EK_MAX_OPTIMIZER_STATES, EK_ERR_INVALID_ARGUMENT,
              "%s: %zu states, at most %d are possible", ops->kind, states,
              EK_MAX_OPTIMIZER_STATES);
  EK_TRY(ek__check_number(ops->kind, "learning_rate", learning_rate));
  EK_TRY(ek__check_number(ops->kind, "clip_norm", clip_norm));
  *optimizer = (ek_optimizer){{.ops = ops,
                               .states = states,
                               .learning_rate = learning_rate,
                               .clip_norm = clip_norm,
                               .references = 1}};
  return EK_OK;
}

const ek_optimizer_ops *ek_optimizer_table(const ek_optimizer *optimizer) {
  return optimizer == NULL ? NULL : optimizer->private_members.ops;
}

const char *ek_optimizer_kind(const ek_optimizer *optimizer) {
  const ek_optimizer_ops *ops = ek_optimizer_table(optimizer);
  return ops == NULL ? "" : ops->kind;
}

size_t ek_optimizer_states(const ek_optimizer *optimizer) {
  return optimizer == NULL ? 0 : optimizer->private_members.states;
}

double ek_optimizer_learning_rate(const ek_optimizer *optimizer) {
  return optimizer == NULL ? 0 : optimizer->private_members.learning_rate;
}

double ek_optimizer_clip_norm(const ek_optimizer *optimizer) {
  return optimizer == NULL ? 0 : optimizer->private_members.clip_norm;
}

ek_optimizer *ek_optimizer_share(ek_optimizer *optimizer) {
  if (optimizer == NULL) return NULL;
  (void)__atomic_add_fetch(&optimizer->private_members.references, 1, __ATOMIC_RELAXED);
  return optimizer;
}

void ek_optimizer_free(ek_optimizer *optimizer) {
  if (optimizer == NULL) return;
  struct ek__optimizer_private *own = &optimizer->private_members;
  /* The thread that drops the last reference must see what the others did before theirs. */
  if (__atomic_sub_fetch(&own->references, 1, __ATOMIC_ACQ_REL) == 0) own->ops->free(optimizer);
}
