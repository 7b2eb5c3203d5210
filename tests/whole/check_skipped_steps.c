/*
 * check_skipped_steps.c - a step that overflows on one device is skipped on all, as if it had not
 * been, and the loss scale follows.
 *
 * Scales are powers of two, so everything here is exact: the undisturbed run that a run with
 * skipped steps is compared with may have another scale, or none.
 */
#include "ck_scaling.h"

/* On one device, in one step; dropout, AdamW, clipping, uneven shards, micro-batches. */
CK_PART_LOOP(one_step_is_skipped_on_all, CK_PLACEMENTS * CK_SCALING_DEVICES) {
  const struct ck_workload gpt = ck_spiked("gpt");
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p16, 2);
  const size_t device = (size_t)_i % CK_SCALING_DEVICES;
  struct ck_setup setup = ck_scaling_setup(&gpt, _i / CK_SCALING_DEVICES, &rule);
  struct ck_setup plain = ck_scaling_setup(ck_workload("gpt"), _i / CK_SCALING_DEVICES, NULL);
  struct ck_training disturbed = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&plain);
  for (uint64_t i = 0; i < 4; i++) {
    const bool two = i % 2 == 1;
    ek_step_result got, want;
    if (i > 0) ck_scaling_overflow(&disturbed, device, 100 + i, two, i != 2);
    if (i == 3) ck_scaling_overflow(&disturbed, device, 103, false, true); /* again */
    ck_ok(ck_scaling_step(&disturbed, i, two, &got));
    ck_ok(ck_scaling_step(&other, i, two, &want));
    ck_scaling_same_results(&got, &want);
    ck_snapshots_same("beside an undisturbed run", &disturbed, &other);
  }
  if (setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&disturbed);
}

static ek_status plain_sgd(ek_optimizer **optimizer) { return ek_sgd_create(optimizer, NULL); }

/*
 * The scale itself is too large: the gradient is finite without it, and with the next smaller ones.
 * No clipping: its factor beside numbers that nearly overflow would have fewer bits than others.
 */
CK_PART_LOOP(a_scale_that_is_too_large, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p64, 2000), none = ck_scaling_fixed(1);
  struct ck_setup setup = ck_scaling_setup(&mlp, _i, &rule),
                  plain = ck_scaling_setup(&mlp, _i, &none);
  ek_step_result got = {.skipped = true}, want;
  setup.optimizer = plain.optimizer = plain_sgd;
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&plain);
  ck_spike_at(1, 0x1p70);
  ck_ok(ck_scaling_step(&other, 0, true, &want));
  int skipped = 0;
  for (; got.skipped; skipped += got.skipped) {
    ck_ok(ck_scaling_step(&t, 0, true, &got));
    ck_assert_int_lt(skipped, 20);
  }
  ck_spike_nowhere();
  ck_scaling_same_results(&got, &want);
  ck_snapshots_same("with the scale that fits", &t, &other);
  ck_assert_int_gt(skipped, 0);
  ck_assert_double_eq(ck_scaling_scale(&t), ldexp(1, 64 - skipped));
}

/* Growth and backoff, step by step. */
CK_PART_LOOP(growth_and_backoff, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  const ek_loss_scale rule = ck_scaling_dynamic(256, 3);
  static const struct {
    bool bad;
    double scale;
    int64_t good_steps;
  } course[] = {{false, 256, 1}, {false, 256, 2}, {false, 512, 0}, {false, 512, 1}, {true, 256, 0},
                {true, 128, 0},  {false, 128, 1}, {false, 128, 2}, {false, 256, 0}};
  struct ck_training t = ck_training_of(ck_scaling_setup(&mlp, _i, &rule));
  double scale = rule.scale;
  int64_t steps = 0;
  for (size_t i = 0; i < sizeof course / sizeof *course; i++) {
    if (course[i].bad) ck_spike_at(2, (double)NAN);
    CK_GOT(ek_step_result, result, ck_scaling_step(&t, i, false, &result));
    ck_spike_nowhere();
    steps += !course[i].bad;
    ck_assert_int_eq(result.skipped, course[i].bad);
    ck_assert_int_eq(result.finite, !course[i].bad);
    ck_assert_int_eq(result.step, steps);
    ck_assert_double_eq(result.loss_scale, scale);
    scale = course[i].scale;
    ck_assert_double_eq(ck_scaling_scale(&t), scale);
    ck_assert_int_eq(ck_scaling_number(&t, "run/good_steps"), course[i].good_steps);
  }
}

/* What is not the scale's fault is refused where that is wanted, and the scale stays. */
CK_PART_LOOP(beside_refusing, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  const ek_loss_scale rule = ck_scaling_dynamic(1024, 2000);
  ek_step_result result = {.step = -1};
  CK_WITH(ek_data_parallel_optimizer_options, options, EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT,
          .refuse_not_finite = true, .loss_scale = &rule);
  struct ck_training t = ck_training_of(ck_scaling_setup(&mlp, _i, NULL));
  ck_training_update_with(&t, &options);
  ck_scaling_overflow(&t, 1, 1, true, true);
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, CK_SCALING_SAMPLES, 0, 4);
  ((float *)batch.input[0].data)[9] = NAN;
  ck_fails(ck_training_step(&t, &batch, &result), EK_ERR_NOT_FINITE, "discarded without an update");
  ck_assert_int_eq(result.step, -1);
  ck_assert_double_eq(ck_scaling_scale(&t), 512);
  ck_ok(ck_scaling_step(&t, 2, false, &result));
  ck_assert(result.step == 1 && result.finite && !result.skipped);
}

/* ---- f16, whose models have a dynamic scale unless they say otherwise ---- */

/* What modules see is left alone, too. Another scale may round otherwise, so the undisturbed run
 * has the same one. */
CK_PART_LOOP(f16_scales_by_itself, CK_MODES) {
  if (!ck_has_halves()) return;
  const struct ck_workload gpt = ck_spiked("gpt");
  struct ck_setup setup = ck_scaling_setup(&gpt, _i, NULL);
  ek_step_result result, want;
  setup.options.precision = EK_PRECISION_BF16;
  struct ck_training t = ck_training_opened(&setup);
  ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(t.optimizer), 1);
  ck_training_close(&t);
  setup.options.precision = EK_PRECISION_F16;
  t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  ck_assert_double_eq(ck_scaling_scale(&t), 65536);
  ck_ok(ck_scaling_step(&t, 0, true,
                        &result)); /* 2^16 times the gradient of the mean is within f16 */
  ck_ok(ck_scaling_step(&other, 0, true, &want));
  ck_scaling_same_results(&result, &want);
  double scale = ck_scaling_scale(&t);
  for (uint64_t i = 1; i < 3; i++) {
    double *before = ck_training_copies(&t, 2);
    ck_scaling_overflow(&t, 1, 70 + i, i == 1, true);
    double *after = ck_training_copies(&t, 2);
    if (setup.options.state != EK_STATE_MASTER) ck_arrays_same("copies", after, before);
    ck_ok(ck_scaling_write(&t, "run/loss_scale", EK_F64, &scale));
    ck_ok(ck_scaling_step(&t, i, false, &result));
    ck_ok(ck_scaling_step(&other, i, false, &want));
    ck_scaling_same_results(&result, &want);
    ck_snapshots_same("f16", &t, &other);
  }
}

/* All grains on any number of devices: the bits are those of one device, skipped steps included. */
CK_PART_LOOP(the_same_bits_with_grains, CK_MODES) {
  const struct ck_workload gpt = ck_spiked("gpt");
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p16, 2);
  struct ck_training t[2];
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .deterministic = true,
          .threads_per_device = 1);
  for (int i = 0; i < 2; i++) {
    CK_WITH(struct ck_setup, setup, ck_scaling_setup(&gpt, _i, &rule), .options.reproducible = 5);
    CK_GOT(ek_group *, group, ek_group_open(&group, ck_spec(i == 0 ? "cpu:1" : "cpu:3"), &options));
    ck_ok(ck_training_try(&t[i], &setup, group));
    t[i].owns_group = true;
    for (uint64_t s = 0; s < 4; s++) {
      if (s == 1 || s == 2) ck_spike_at(i == 0 ? 0 : 2 - s, (double)INFINITY);
      CK_GOT(ek_step_result, result, ck_scaling_step(&t[i], s, s > 1, &result));
      ck_spike_nowhere();
      ck_assert_int_eq(result.skipped, s == 1 || s == 2);
    }
  }
  ck_states_same("three devices", t[1].model, t[0].model);
}

/* ---- a rule of a program's own ---- */

/* A rule that knows the contract of ek_update_scale and nothing of loss scales; it counts. */
struct counting {
  ek_optimizer base;
  _Atomic int updates;
};

static ek_status counting_update(const ek_optimizer *self, ek_stream *stream, const ek_update *u) {
  const ek_sgd_terms terms = {.learning_rate = u->learning_rate, .first = true};
  ((struct counting *)(uintptr_t)self)->updates++;
  return ek_op_sgd(stream, u->parameters, NULL, u->gradients, &terms, &u->scale);
}

static void counting_free(ek_optimizer *self) { free(self); }

static const ek_optimizer_ops counting_ops = {.size = sizeof counting_ops,
                                              .kind = "counting",
                                              .update = counting_update,
                                              .free = counting_free};

static ek_status counting_create(ek_optimizer **optimizer) {
  struct counting *c = calloc(1, sizeof *c);
  if (c == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory");
  *optimizer = &c->base;
  return ek_optimizer_init(&c->base, &counting_ops, 0, 0.5, 0.25);
}

CK_PART_LOOP(a_rule_of_a_program, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p10, 1);
  struct ck_setup setup = ck_scaling_setup(&mlp, _i, &rule),
                  plain = ck_scaling_setup(&mlp, _i, NULL);
  setup.optimizer = plain.optimizer = counting_create;
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&plain);
  for (uint64_t i = 0; i < 3; i++) {
    ck_ok(ck_scaling_step(&t, i, true, NULL));
    ck_ok(ck_scaling_step(&other, i, true, NULL));
    const int updates = ((struct counting *)t.rule)->updates;
    ck_scaling_overflow(&t, 0, 50, false, i > 0);
    ck_assert_int_eq(((struct counting *)t.rule)->updates, updates);
    ck_snapshots_same("a rule of a program", &t, &other);
  }
}

CK_SUITE("skipped steps")
