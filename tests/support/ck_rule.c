/*
 * ck_rule.c - an optimizer that is no more than its update: see ck_rule.h.
 */
#include "ck_rule.h"

struct rule {
  ek_optimizer base;
  ek_optimizer_ops ops;
};

static void rule_free(ek_optimizer *self) { free(self); }

ek_status ck_rule_create(ek_optimizer **optimizer, const char *kind,
                         ek_status (*update)(const ek_optimizer *self, ek_stream *stream,
                                             const ek_update *update)) {
  struct rule *rule = calloc(1, sizeof *rule);
  if (rule == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "rule: no memory");
  rule->ops = (ek_optimizer_ops){
      .size = sizeof rule->ops, .kind = kind, .update = update, .free = rule_free};
  *optimizer = &rule->base;
  return ek_optimizer_init(&rule->base, &rule->ops, 0, 0.5, 0);
}
