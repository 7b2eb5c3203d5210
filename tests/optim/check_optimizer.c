/*
 * check_optimizer.c - the base of update rules, and a rule of a program's own.
 */
#include "ck_optimizer.h"

/* The sign of the gradient is the step; the state counts how often it was positive. */
struct sign_rule {
  ek_optimizer base;
  int *freed;
};

CK_UPDATE(sign_update) {
  const int64_t count = ek_tensor_count(update->parameters);
  double *p = ck_got(update->parameters), *g = ck_got(update->gradients);
  double *s = update->step > 1 ? ck_got(&update->states[0]) : ck_array((size_t)count, sizeof *s);
  for (int64_t i = 0; i < count; i++) {
    p[i] -= update->learning_rate * (g[i] > 0 ? 1 : -1);
    s[i] += g[i] > 0 ? 1 : 0;
  }
  ck_set(update->parameters, p);
  ck_set(&update->states[0], s);
  return EK_OK;
}

static void sign_free(ek_optimizer *self) {
  ++*((struct sign_rule *)self)->freed;
  free(self);
}

static const ek_optimizer_ops sign_ops = {
    .size = sizeof(ek_optimizer_ops), .kind = "sign", .update = sign_update, .free = sign_free};

static ek_optimizer *make(int *freed) {
  struct sign_rule *rule = calloc(1, sizeof *rule);
  ck_assert_ptr_nonnull(rule);
  rule->freed = freed;
  ck_ok(ek_optimizer_init(&rule->base, &sign_ops, 1, 0.5, 2.0));
  return &rule->base;
}

CK_RIG_LOOP(a_rule_of_our_own, CK_VARIANTS) {
  const double start[] = {1, 2, 3}, gradient[] = {0.1, -7, 3}, want[] = {0, 3, 2};
  const double counts[] = {2, 0, 2};
  int freed = 0;
  struct ck_range range = ck_range_open(rig, make(&freed), start, 3);
  ck_range_step(&range, gradient, NULL);
  ck_range_step(&range, gradient, NULL);
  ck_within("parameters", ck_read(rig, range.parameters), want, NULL, 3);
  ck_within("state", ck_read(rig, &range.states[0]), counts, NULL, 3);
  ek_optimizer_free(range.optimizer);
  ck_assert_int_eq(freed, 1);
}

CK_TEST(references) {
  int freed = 0;
  ek_optimizer *o = make(&freed);
  ck_assert_ptr_eq(ek_optimizer_table(o), &sign_ops);
  ck_assert_str_eq(ek_optimizer_kind(o), sign_ops.kind);
  ck_assert_uint_eq(ek_optimizer_states(o), 1);
  ck_assert(ek_optimizer_learning_rate(o) == 0.5 && ek_optimizer_clip_norm(o) == 2.0);
  ck_assert_ptr_null(ek_optimizer_table(NULL));
  ck_assert_str_eq(ek_optimizer_kind(NULL), "");
  ck_assert_uint_eq(ek_optimizer_states(NULL), 0);
  ck_assert(ek_optimizer_learning_rate(NULL) == 0 && ek_optimizer_clip_norm(NULL) == 0);
  ck_assert_ptr_null(ek_optimizer_share(NULL));
  ek_optimizer_free(NULL);
  ck_assert_ptr_eq(ek_optimizer_share(o), o);
  ek_optimizer_free(o);
  ck_assert_int_eq(freed, 0);
  ek_optimizer_free(o);
  ck_assert_int_eq(freed, 1);
}

CK_TEST(refused) {
  ek_optimizer o;
  ek_optimizer_ops ops = sign_ops;
  ck_invalid(ek_optimizer_init(NULL, &ops, 0, 1, 0), "optimizer is NULL");
  ck_invalid(ek_optimizer_init(&o, NULL, 0, 1, 0), "ops is NULL");
  ck_bad(ops, size, 0, ek_optimizer_init(&o, &ops, 0, 1, 0), "ek_optimizer_ops.size");
  ck_bad(ops, kind, NULL, ek_optimizer_init(&o, &ops, 0, 1, 0), "ops.kind");
  ck_bad(ops, update, NULL, ek_optimizer_init(&o, &ops, 0, 1, 0), "ops.update");
  ck_bad(ops, free, NULL, ek_optimizer_init(&o, &ops, 0, 1, 0), "ops.free");
  ck_invalid(ek_optimizer_init(&o, &sign_ops, EK_MAX_OPTIMIZER_STATES + 1, 1, 0), "5 states");
  const double bad[] = {-1, (double)NAN, (double)INFINITY};
  for (size_t i = 0; i < 3; i++) {
    ck_invalid(ek_optimizer_init(&o, &sign_ops, 0, bad[i], 0), "sign: learning_rate");
    ck_invalid(ek_optimizer_init(&o, &sign_ops, 0, 1, bad[i]), "sign: clip_norm");
  }
  ck_ok(ek_optimizer_init(&o, &sign_ops, EK_MAX_OPTIMIZER_STATES, 0, 0));
}

CK_SUITE("optimizer")
