/*
 * check_loss_scale.c - growth and backoff of a loss scale, exactly, and what is refused as one.
 */
#include "ek_check.h"

static const ek_loss_scale defaults = EK_LOSS_SCALE_INIT;

static void follows(const ek_loss_scale *rule, ek_loss_scale_state *state, bool overflow,
                    double scale, int64_t good_steps) {
  *state = ek_loss_scale_next(rule, *state, overflow);
  ck_assert_msg(state->scale == scale && state->good_steps == good_steps,
                "the scale is %g after %lld good steps, expected %g after %lld", state->scale,
                (long long)state->good_steps, scale, (long long)good_steps);
}

/* As torch.amp.GradScaler: 2^16, twice that after 2,000 good steps in a row, half after a bad
 * one. */
CK_TEST(the_defaults) {
  ck_ok(ek_loss_scale_check(&defaults));
  ek_loss_scale_state state = ek_loss_scale_begin(&defaults);
  ck_assert(state.scale == 65536 && state.good_steps == 0);
  for (int i = 1; i < 2000; i++) follows(&defaults, &state, false, 65536, i);
  follows(&defaults, &state, false, 131072, 0);
  for (int i = 1; i < 2000; i++) follows(&defaults, &state, false, 131072, i);
  follows(&defaults, &state, true, 65536, 0);
  follows(&defaults, &state, true, 32768, 0);
  follows(&defaults, &state, false, 32768, 1);
}

CK_TEST(other_rules) {
  ek_loss_scale rule = {EK_LOSS_SCALE_DYNAMIC, 8, 4, 0.125, 2};
  ck_ok(ek_loss_scale_check(&rule));
  ek_loss_scale_state state = ek_loss_scale_begin(&rule);
  follows(&rule, &state, false, 8, 1);
  follows(&rule, &state, false, 32, 0);
  follows(&rule, &state, false, 32, 1);
  follows(&rule, &state, true, 4, 0);
  follows(&rule, &state, true, 0.5, 0);
  state.good_steps = 17; /* of a run with a longer interval */
  follows(&rule, &state, false, 2, 0);
  /* It stays at its bounds. */
  rule.interval = 1;
  state.scale = 0x1p62;
  follows(&rule, &state, false, 0x1p64, 0);
  follows(&rule, &state, false, 0x1p64, 0);
  ck_assert(EK_LOSS_SCALE_MOST == 0x1p64 && EK_LOSS_SCALE_LEAST == 0x1p-64);
  state.scale = 0x1p-63;
  follows(&rule, &state, true, 0x1p-64, 0);
  follows(&rule, &state, true, 0x1p-64, 0);
  rule.growth = rule.backoff = 1; /* never */
  ck_ok(ek_loss_scale_check(&rule));
  follows(&rule, &state, true, 0x1p-64, 0);
  follows(&rule, &state, false, 0x1p-64, 0);
}

CK_TEST(a_scale_that_stays) {
  const ek_loss_scale fixed = {.kind = EK_LOSS_SCALE_STATIC, .scale = 0.25}, none = {.scale = 3};
  ck_ok(ek_loss_scale_check(&fixed));
  ck_ok(ek_loss_scale_check(&none));
  ek_loss_scale_state state = ek_loss_scale_begin(&fixed);
  for (int i = 0; i < 3; i++) follows(&fixed, &state, i == 1, 0.25, 0);
  state = ek_loss_scale_begin(&none);
  for (int i = 0; i < 3; i++) follows(&none, &state, i == 1, 1, 0);
  state = ek_loss_scale_begin(NULL);
  follows(NULL, &state, true, 1, 0);
}

CK_TEST(what_is_refused) {
  const double bad[] = {0, -2, 3, 65535, (double)NAN, (double)INFINITY, 0x1p65, 0x1p-65};
  ck_invalid(ek_loss_scale_check(NULL), "NULL");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ek_loss_scale rule = defaults;
    ck_bad(rule, scale, bad[i], ek_loss_scale_check(&rule), "scale is");
    rule.kind = EK_LOSS_SCALE_STATIC;
    ck_bad(rule, scale, bad[i], ek_loss_scale_check(&rule), "power of two");
    rule = defaults;
    ck_bad(rule, growth, bad[i], ek_loss_scale_check(&rule), "growth is");
    ck_bad(rule, backoff, bad[i], ek_loss_scale_check(&rule), "backoff is");
  }
  ek_loss_scale rule = defaults;
  ck_bad(rule, growth, 0.5, ek_loss_scale_check(&rule), "growth is 0.5");
  ck_bad(rule, backoff, 2, ek_loss_scale_check(&rule), "backoff is 2");
  ck_bad(rule, interval, 0, ek_loss_scale_check(&rule), "interval is 0");
  ck_bad(rule, kind, (ek_loss_scale_kind)3, ek_loss_scale_check(&rule), "kind 3");
}

CK_SUITE("loss scale")
