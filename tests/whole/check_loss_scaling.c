/*
 * check_loss_scaling.c - a loss scale changes no bit of a training, and a step that overflows on
 * one device is skipped on all, as if it had not been.
 *
 * Scales are powers of two, so everything here is exact: the undisturbed run that a run with
 * skipped steps is compared with may have another scale, or none.
 *
 * Long, because what a scale must not disturb is in every part of the library: the set-ups and the
 * comparison with the undisturbed run are the same for all.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

#include "ck_folder.h"
#include "ck_snapshot.h"
#include "ck_spike.h"
#include "ck_state.h"

enum { DEVICES = 3, SAMPLES = 7 };

/* ---- set-ups ---- */

static const struct ck_workload *inner; /* what the spiked ones compute */

static ek_status spiked_module(ek_module **module) {
  EK_TRY(inner->module(module));
  *module = ck_spike(*module);
  return EK_OK;
}

static struct ck_workload spiked(const char *name) {
  struct ck_workload workload = *ck_workload(name);
  inner = ck_workload(name);
  workload.module = spiked_module;
  return workload;
}

static struct ck_setup setup_of(const struct ck_workload *workload, int placement,
                                const ek_loss_scale *loss_scale) {
  struct ck_setup setup = ck_setup_mode(workload, "cpu:3", EK_MODE_GATHER);
  ck_setup_place(&setup, placement);
  setup.loss_scale = loss_scale;
  return setup;
}

static ek_loss_scale fixed(double scale) {
  return (ek_loss_scale){.kind = EK_LOSS_SCALE_STATIC, .scale = scale};
}

static ek_loss_scale dynamic(double scale, int64_t interval) {
  ek_loss_scale rule = EK_LOSS_SCALE_INIT;
  rule.scale = scale;
  rule.interval = interval;
  return rule;
}

/* A step of two micro-batches, or of one. */
static ek_status step(struct ck_training *t, uint64_t number, bool two, ek_step_result *result) {
  struct ck_batch batch =
      ck_batch_make(t->setup.workload, t->setup.options.type, SAMPLES, 0.2, 10 + number);
  struct ck_batch more = ck_batch_samples(&batch, 2, 4);
  ek_status status = EK_OK;
  if (two) status = ck_training_backward(t, &more, NULL, true, NULL);
  if (status == EK_OK) status = ck_training_step(t, &batch, result);
  ck_batch_free(&batch);
  return status;
}

static void same_snapshots(const char *what, const struct ck_training *got,
                           const struct ck_training *want) {
  struct ck_snapshot a = ck_snapshot_take(got), b = ck_snapshot_take(want);
  ck_snapshot_same(what, &a, &b);
  ck_snapshot_drop(&a);
  ck_snapshot_drop(&b);
}

static void same_results(const ek_step_result *got, const ek_step_result *want) {
  ck_assert(got->loss == want->loss && got->weight == want->weight);
  ck_assert(got->gradient_norm == want->gradient_norm);
  ck_assert(got->step == want->step && got->learning_rate == want->learning_rate);
  ck_assert(got->finite && want->finite && !got->skipped && !want->skipped);
}

/* ---- a power of two changes nothing ---- */

static void trains_alike(const struct ck_setup *plain, const struct ck_setup *scaled) {
  struct ck_training a, b;
  ck_training_open(&a, plain);
  ck_training_open(&b, scaled);
  for (uint64_t i = 0; i < 3; i++) {
    ek_step_result got, want;
    ck_ok(step(&a, i, i != 1, &want));
    ck_ok(step(&b, i, i != 1, &got));
    same_results(&got, &want);
    ck_assert_double_eq(want.loss_scale, 1);
    ck_assert_double_eq(got.loss_scale, scaled->loss_scale->scale);
    same_snapshots("with a loss scale", &b, &a);
  }
  /* Gradients are shown as they would be without. */
  struct ck_batch batch = ck_batch_make(plain->workload, plain->options.type, SAMPLES, 0, 9);
  int64_t count = 0;
  ck_ok(ck_training_backward(&a, &batch, NULL, false, NULL));
  ck_ok(ck_training_backward(&b, &batch, NULL, false, NULL));
  double *want = ck_training_read(&a, CK_GRADIENTS, &count);
  double *got = ck_training_read(&b, CK_GRADIENTS, NULL);
  ck_same_bits("gradients", got, want, count);
  free(got);
  free(want);
  ck_batch_free(&batch);
  ck_training_close(&a);
  ck_training_close(&b);
}

START_TEST(a_power_of_two_changes_nothing) {
  if (!ck_part(_i)) return;
  static const double scales[] = {0x1p16, 0x1p-9, 0x1p30};
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  const ek_loss_scale rule = fixed(scales[_i % 3]);
  struct ck_setup plain = setup_of(workload, _i % CK_PLACEMENTS, NULL);
  plain.gradient_in_forward = _i % 2 == 1;
  struct ck_setup scaled = plain;
  scaled.loss_scale = &rule;
  trains_alike(&plain, &scaled);
}
END_TEST

/* What lies in memory is over the unit: 7 samples of 5 targets are 35 of them, so 2^6; of the first
 * micro-batch there are 4 samples, so 2^5. Ignored targets count. Where nothing is divided it is 1.
 */
START_TEST(a_scale_counts_from_the_mean) {
  static const double units[] = {0x1p6, 0x1p5, 1, 1};
  if (!ck_part(_i)) return;
  const bool two = _i % 4 == 1, sum = _i % 4 == 2, none = _i % 4 == 3;
  const ek_loss_scale rule = fixed(0x1p16);
  double *values[2];
  int64_t count = 0;
  for (int i = 0; i < 2; i++) {
    struct ck_setup setup = setup_of(ck_workload("gpt"), EK_MODE_REPLICATED, i == 0 ? NULL : &rule);
    struct ck_training t;
    setup.reduction = sum ? EK_REDUCTION_SUM : none ? EK_REDUCTION_NONE : EK_REDUCTION_MEAN;
    setup.gradient_in_forward = _i / 4 == 1 && !none;
    ck_training_open(&t, &setup);
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.2, 5);
    const struct ck_batch some = ck_batch_samples(&batch, 2, 4);
    ck_assert_int_eq(ek_tensor_count(&batch.target[0]), 35);
    if (two) ck_ok(ck_training_backward(&t, &some, NULL, true, NULL));
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    const ek_tensor *flat = ek_replica_gradients(ek_data_parallel_model_replica(t.model, 1));
    count = ek_tensor_count(flat);
    values[i] = calloc((size_t)count, sizeof *values[i]);
    ck_get(values[i], flat);
    ck_batch_free(&batch);
    ck_training_close(&t);
  }
  for (int64_t i = 0; i < count; i++) values[0][i] *= 0x1p16 / units[_i % 4];
  ck_same_bits("gradients in memory", values[1], values[0], count);
  for (int i = 0; i < 2; i++) free(values[i]);
}
END_TEST

/* The other reductions, whose gradients are not divided by any D. */
START_TEST(nor_where_nothing_is_divided) {
  if (!ck_part(_i)) return;
  const ek_loss_scale rule = fixed(0x1p12);
  struct ck_setup plain = setup_of(ck_workload("mlp"), _i / 2, NULL);
  plain.reduction = _i % 2 == 0 ? EK_REDUCTION_SUM : EK_REDUCTION_NONE;
  struct ck_setup scaled = plain;
  scaled.loss_scale = &rule;
  trains_alike(&plain, &scaled);
}
END_TEST

/* A model that computes its loss itself, in its forward too; without clipping. */
static ek_status fused(ek_module **module) {
  ek_gpt_options options = EK_GPT_OPTIONS_INIT;
  options.vocabulary = 64;
  options.sequence = 16;
  options.width = 8;
  options.heads = 2;
  options.layers = 1;
  options.fused_loss = true;
  return ek_gpt_create(module, &options);
}

static ek_status adamw(ek_optimizer **optimizer) { return ek_adamw_create(optimizer, NULL); }

START_TEST(nor_with_a_fused_loss) {
  if (!ck_part(_i)) return;
  const ek_loss_scale rule = dynamic(0x1p20, 1);
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  options.mode = (ek_mode)(_i / 2);
  options.micro_batches = _i % 2 == 0 ? 0 : 3;
  ek_module *gpt = NULL;
  ek_optimizer *rules = NULL;
  ek_trainer *trainers[2] = {NULL, NULL};
  ck_ok(fused(&gpt));
  ck_ok(adamw(&rules));
  struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, SAMPLES, 0.2, 3);
  for (int i = 0; i < 2; i++) {
    options.loss_scale = i == 0 ? NULL : &rule;
    ck_ok(ek_trainer_open(&trainers[i], ck_spec("cpu:3"), gpt, NULL, rules, &options));
  }
  for (int s = 0; s < 3; s++) {
    ek_step_result results[2];
    for (int i = 0; i < 2; i++) {
      ck_ok(ek_trainer_step(&results[i], trainers[i], batch.input, 1, batch.target, 1));
    }
    same_results(&results[1], &results[0]);
    ck_assert_double_eq(results[1].loss_scale, ldexp(1, 20 + s));
  }
  for (size_t e = 0; e < ek_state_count(ek_trainer_model(trainers[0])); e++) {
    static double values[2][4096];
    ek_state_info info;
    ck_ok(ek_state_entry(&info, ek_trainer_model(trainers[0]), e));
    ck_assert_int_lt(ek_tensor_count(&info.like), 4096);
    for (int i = 0; i < 2; i++) {
      ek_tensor host = info.like;
      host.data = values[i];
      ck_ok(ek_state_read(&host, ek_trainer_model(trainers[i]), info.name));
    }
    ck_assert_msg(memcmp(values[0], values[1], ek_tensor_bytes(&info.like)) == 0, "%s", info.name);
  }
  for (int i = 0; i < 2; i++) ck_ok(ek_trainer_free(trainers[i]));
  ck_batch_free(&batch);
  ek_optimizer_free(rules);
  ek_module_free(gpt);
}
END_TEST

/* ---- an overflow ---- */

/* The same entries as the other has, bit for bit; those of the scaler are not looked at. */
static int64_t whole_number(const struct ck_training *t, const char *name) {
  int64_t number = -1;
  ek_tensor host = {.type = EK_I64, .data = &number};
  ck_ok(ek_state_read(&host, t->model, name));
  return number;
}

static ek_status write_number(struct ck_training *t, const char *name, ek_type type, void *value) {
  const ek_tensor host = {.type = type, .data = value};
  return ek_state_write(t->model, name, &host);
}

static double scale_of(const struct ck_training *t) {
  double scale = 0;
  ek_tensor host = {.type = EK_F64, .data = &scale};
  ck_ok(ek_state_read(&host, t->model, "run/loss_scale"));
  ck_assert_double_eq(scale, ek_data_parallel_optimizer_loss_scale(t->optimizer));
  return scale;
}

static void overflow(struct ck_training *t, size_t device, uint64_t number, bool two,
                     bool with_result) {
  const double scale = scale_of(t);
  const int64_t steps = whole_number(t, "run/step");
  struct ck_snapshot before = ck_snapshot_take(t);
  ek_step_result result = {.step = -1};
  ck_spike_at(device, (double)INFINITY);
  ck_ok(step(t, number, two, with_result ? &result : NULL));
  ck_spike_nowhere();
  struct ck_snapshot after = ck_snapshot_take(t);
  ck_snapshot_same("a step that overflowed", &after, &before);
  ck_snapshot_drop(&after);
  ck_snapshot_drop(&before);
  ck_assert_int_eq(whole_number(t, "run/step"), steps);
  ck_assert_int_eq(whole_number(t, "run/good_steps"), 0);
  ck_assert_double_eq(scale_of(t), scale / 2);
  if (!with_result) return;
  ck_assert(result.skipped && !result.finite && !isfinite(result.gradient_norm));
  ck_assert(isfinite(result.loss) && result.loss > 0);
  ck_assert_double_eq(result.loss_scale, scale);
  ck_assert_int_eq(result.step, steps);
}

/* On one device, in one step; dropout, AdamW, clipping, uneven shards, micro-batches. */
START_TEST(one_step_is_skipped_on_all) {
  if (!ck_part(_i)) return;
  const struct ck_workload gpt = spiked("gpt");
  const ek_loss_scale rule = dynamic(0x1p16, 2);
  const size_t device = (size_t)_i % DEVICES;
  struct ck_setup setup = setup_of(&gpt, _i / DEVICES, &rule);
  struct ck_setup plain = setup_of(ck_workload("gpt"), _i / DEVICES, NULL);
  struct ck_training disturbed, other;
  ck_training_open(&disturbed, &setup);
  ck_training_open(&other, &plain);
  for (uint64_t i = 0; i < 4; i++) {
    const bool two = i % 2 == 1;
    ek_step_result got, want;
    if (i > 0) overflow(&disturbed, device, 100 + i, two, i != 2);
    if (i == 3) overflow(&disturbed, device, 103, false, true); /* again */
    ck_ok(step(&disturbed, i, two, &got));
    ck_ok(step(&other, i, two, &want));
    same_results(&got, &want);
    same_snapshots("beside an undisturbed run", &disturbed, &other);
  }
  if (setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&disturbed);
  ck_training_close(&disturbed);
  ck_training_close(&other);
}
END_TEST

static ek_status plain_sgd(ek_optimizer **optimizer) { return ek_sgd_create(optimizer, NULL); }

/*
 * The scale itself is too large: the gradient is finite without it, and with the next smaller ones.
 * No clipping: its factor beside numbers that nearly overflow would have fewer bits than others.
 */
START_TEST(a_scale_that_is_too_large) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  const ek_loss_scale rule = dynamic(0x1p64, 2000), none = fixed(1);
  struct ck_setup setup = setup_of(&mlp, _i, &rule), plain = setup_of(&mlp, _i, &none);
  struct ck_training t, other;
  ek_step_result got = {.skipped = true}, want;
  setup.optimizer = plain.optimizer = plain_sgd;
  ck_training_open(&t, &setup);
  ck_training_open(&other, &plain);
  ck_spike_at(1, 0x1p70);
  ck_ok(step(&other, 0, true, &want));
  int skipped = 0;
  for (; got.skipped; skipped += got.skipped) {
    ck_ok(step(&t, 0, true, &got));
    ck_assert_int_lt(skipped, 20);
  }
  ck_spike_nowhere();
  same_results(&got, &want);
  same_snapshots("with the scale that fits", &t, &other);
  ck_assert_int_gt(skipped, 0);
  ck_assert_double_eq(scale_of(&t), ldexp(1, 64 - skipped));
  ck_training_close(&t);
  ck_training_close(&other);
}
END_TEST

/* Growth and backoff, step by step. */
START_TEST(growth_and_backoff) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  const ek_loss_scale rule = dynamic(256, 3);
  const struct ck_setup setup = setup_of(&mlp, _i, &rule);
  static const struct {
    bool bad;
    double scale;
    int64_t good_steps;
  } course[] = {{false, 256, 1}, {false, 256, 2}, {false, 512, 0}, {false, 512, 1}, {true, 256, 0},
                {true, 128, 0},  {false, 128, 1}, {false, 128, 2}, {false, 256, 0}};
  struct ck_training t;
  ck_training_open(&t, &setup);
  double scale = rule.scale;
  int64_t steps = 0;
  for (size_t i = 0; i < sizeof course / sizeof *course; i++) {
    ek_step_result result;
    if (course[i].bad) ck_spike_at(2, (double)NAN);
    ck_ok(step(&t, i, false, &result));
    ck_spike_nowhere();
    steps += !course[i].bad;
    ck_assert_int_eq(result.skipped, course[i].bad);
    ck_assert_int_eq(result.finite, !course[i].bad);
    ck_assert_int_eq(result.step, steps);
    ck_assert_double_eq(result.loss_scale, scale);
    scale = course[i].scale;
    ck_assert_double_eq(scale_of(&t), scale);
    ck_assert_int_eq(whole_number(&t, "run/good_steps"), course[i].good_steps);
  }
  ck_training_close(&t);
}
END_TEST

/* What is not the scale's fault is refused where that is wanted, and the scale stays. */
START_TEST(beside_refusing) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  const ek_loss_scale rule = dynamic(1024, 2000);
  struct ck_setup setup = setup_of(&mlp, _i, NULL);
  struct ck_training t;
  ek_step_result result = {.step = -1};
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.refuse_not_finite = true;
  options.loss_scale = &rule;
  ck_training_open(&t, &setup);
  ek_data_parallel_optimizer_free(t.optimizer);
  t.optimizer = NULL;
  ck_ok(ek_data_parallel_optimizer_open(&t.optimizer, t.model, t.rule, &options));
  overflow(&t, 1, 1, true, true);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 4);
  ((float *)batch.input[0].data)[9] = NAN;
  ck_fails(ck_training_step(&t, &batch, &result), EK_ERR_NOT_FINITE, "nothing was updated");
  ck_assert_int_eq(result.step, -1);
  ck_assert_double_eq(scale_of(&t), 512);
  ck_ok(step(&t, 2, false, &result));
  ck_assert(result.step == 1 && result.finite && !result.skipped);
  ck_batch_free(&batch);
  ck_training_close(&t);
}
END_TEST

/* ---- f16, whose models have a dynamic scale unless they say otherwise ---- */

/* What modules see is left alone, too. Another scale may round otherwise, so the undisturbed run
 * has the same one. */
START_TEST(f16_scales_by_itself) {
  if (!ck_part(_i)) return;
  if (!ck_has_halves()) return;
  const struct ck_workload gpt = spiked("gpt");
  struct ck_setup setup = setup_of(&gpt, _i, NULL);
  struct ck_training t, other;
  ek_step_result result, want;
  setup.options.precision = EK_BF16;
  ck_training_open(&t, &setup);
  ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(t.optimizer), 1);
  ck_training_close(&t);
  setup.options.precision = EK_F16;
  ck_training_open(&t, &setup);
  ck_training_open(&other, &setup);
  ck_assert_double_eq(scale_of(&t), 65536);
  ck_ok(step(&t, 0, true, &result)); /* 2^16 times the gradient of the mean is within f16 */
  ck_ok(step(&other, 0, true, &want));
  same_results(&result, &want);
  int64_t count = 0;
  double scale = scale_of(&t);
  for (uint64_t i = 1; i < 3; i++) {
    double *before = ck_training_copies(&t, 2, &count);
    overflow(&t, 1, 70 + i, i == 1, true);
    double *after = ck_training_copies(&t, 2, &count);
    if (setup.options.state != EK_STATE_MASTER) ck_same_bits("copies", after, before, count);
    free(before);
    free(after);
    ck_ok(write_number(&t, "run/loss_scale", EK_F64, &scale));
    ck_ok(step(&t, i, false, &result));
    ck_ok(step(&other, i, false, &want));
    same_results(&result, &want);
    same_snapshots("f16", &t, &other);
  }
  ck_training_close(&t);
  ck_training_close(&other);
}
END_TEST

/* All grains on any number of devices: the bits are those of one device, skipped steps included. */
START_TEST(the_same_bits_with_grains) {
  if (!ck_part(_i)) return;
  const struct ck_workload gpt = spiked("gpt");
  const ek_loss_scale rule = dynamic(0x1p16, 2);
  ek_group_options options = EK_GROUP_OPTIONS_INIT;
  struct ck_training t[2];
  options.deterministic = true;
  options.threads_per_device = 1;
  for (int i = 0; i < 2; i++) {
    struct ck_setup setup = setup_of(&gpt, _i, &rule);
    setup.options.reproducible = 5;
    ek_group *group = NULL;
    ck_ok(ek_group_open(&group, ck_spec(i == 0 ? "cpu:1" : "cpu:3"), &options));
    ck_ok(ck_training_try(&t[i], &setup, group));
    t[i].owns_group = true;
    for (uint64_t s = 0; s < 4; s++) {
      ek_step_result result;
      if (s == 1 || s == 2) ck_spike_at(i == 0 ? 0 : 2 - s, (double)INFINITY);
      ck_ok(step(&t[i], s, s > 1, &result));
      ck_spike_nowhere();
      ck_assert_int_eq(result.skipped, s == 1 || s == 2);
    }
  }
  struct ck_state one = ck_state_take(t[0].model), three = ck_state_take(t[1].model);
  ck_state_same("three devices", &three, &one);
  ck_state_drop(&one);
  ck_state_drop(&three);
  ck_training_close(&t[0]);
  ck_training_close(&t[1]);
}
END_TEST

/* ---- gradients and rules of a program's own ---- */

/* The gradient of the outputs is all 1, times what the program says. */
static ek_status own_backward(struct ck_training *t, double factor, double said, bool accumulate) {
  struct ck_batch batch = ck_batch_make(t->setup.workload, EK_F32, SAMPLES, 0, 5);
  ek_shards outputs = {0};
  ek_backward_options options = EK_BACKWARD_OPTIONS_INIT;
  options.loss_scale = said;
  options.accumulate = accumulate;
  ek_status status = ek_data_parallel_model_forward(&outputs, t->model, batch.input, 1, NULL);
  for (size_t k = 0; status == EK_OK && k < outputs.count; k++) {
    ek_tensor *part = &outputs.parts[k];
    if (ek_tensor_count(part) == 0) continue;
    status = ek_op_fill(ek_device_stream(part->device, EK_STREAM_COMPUTE), part, factor);
  }
  if (status == EK_OK) status = ek_data_parallel_model_backward(t->model, &outputs, 1, &options);
  ek_shards_free(&outputs);
  ck_batch_free(&batch);
  return status;
}

START_TEST(gradients_of_a_program) {
  if (!ck_part(_i)) return;
  const ek_loss_scale rule = dynamic(64, 2000);
  struct ck_setup setup = setup_of(ck_workload("mlp"), _i, &rule);
  struct ck_setup plain = setup_of(ck_workload("mlp"), _i, NULL);
  struct ck_training t, other;
  ek_step_result result;
  ck_training_open(&t, &setup);
  ck_training_open(&other, &plain);
  for (int i = 0; i < 3; i++) {
    /* One that has not heard of a scale is not divided by it. */
    const double scale = i == 0 ? 1 : ek_data_parallel_optimizer_loss_scale(t.optimizer);
    ck_ok(own_backward(&t, scale, i == 0 ? 0 : scale, i == 2));
    ck_ok(own_backward(&other, 1, 0, i == 2));
    if (i == 2) {
      ck_fails(own_backward(&t, 1, 1, false), EK_ERR_STATE, "loss scales 64 and 1");
      ck_ok(own_backward(&t, scale, scale, false));
      ck_ok(own_backward(&other, 1, 0, false));
    }
    ck_ok(ek_data_parallel_optimizer_step(&result, t.optimizer));
    ck_assert_double_eq(result.loss_scale, scale);
    ck_ok(ek_data_parallel_optimizer_step(NULL, other.optimizer));
    same_snapshots("gradients of a program", &t, &other);
  }
  ck_fails(own_backward(&t, 1, 3, false), EK_ERR_INVALID_ARGUMENT, "power of two");
  ck_fails(own_backward(&t, 1, -1, false), EK_ERR_INVALID_ARGUMENT, "power of two");
  ck_training_close(&t);
  ck_training_close(&other);
}
END_TEST

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

static const ek_optimizer_ops counting_ops = {.size = sizeof(ek_optimizer_ops),
                                              .kind = "counting",
                                              .update = counting_update,
                                              .free = counting_free};

static ek_status counting_create(ek_optimizer **optimizer) {
  struct counting *c = calloc(1, sizeof *c);
  if (c == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory");
  *optimizer = &c->base;
  return ek_optimizer_init(&c->base, &counting_ops, 0, 0.5, 0.25);
}

START_TEST(a_rule_of_a_program) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  const ek_loss_scale rule = dynamic(0x1p10, 1);
  struct ck_setup setup = setup_of(&mlp, _i, &rule), plain = setup_of(&mlp, _i, NULL);
  struct ck_training t, other;
  setup.optimizer = plain.optimizer = counting_create;
  ck_training_open(&t, &setup);
  ck_training_open(&other, &plain);
  for (uint64_t i = 0; i < 3; i++) {
    ck_ok(step(&t, i, true, NULL));
    ck_ok(step(&other, i, true, NULL));
    const int updates = ((struct counting *)t.rule)->updates;
    overflow(&t, 0, 50, false, i > 0);
    ck_assert_int_eq(((struct counting *)t.rule)->updates, updates);
    same_snapshots("a rule of a program", &t, &other);
  }
  ck_training_close(&t);
  ck_training_close(&other);
}
END_TEST

/* ---- state ---- */

START_TEST(the_scaler_is_state) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  const ek_loss_scale rule = dynamic(1024, 3), constant = fixed(8);
  const struct ck_setup setup = setup_of(&mlp, _i, &rule), plain = setup_of(&mlp, _i, &constant);
  struct ck_training a, b, without;
  ek_state_info info;
  ek_step_result result;
  double bad[] = {3, 0, -1, (double)NAN, 0x1p65};
  int64_t less = -1, two = 2;
  ck_training_open(&a, &setup);
  ck_training_open(&b, &setup);
  ck_training_open(&without, &plain);
  ck_assert_uint_eq(ek_state_count(a.model), ek_state_count(without.model) + 2);
  ck_fails(ek_state_find(&info, without.model, "run/loss_scale"), EK_ERR_NOT_FOUND, "loss_scale");
  ck_ok(ek_state_find(&info, a.model, "run/loss_scale"));
  ck_assert(info.kind == EK_STATE_KIND_LOSS_SCALE && info.like.type == EK_F64);
  ck_ok(ek_state_entry(&info, a.model, ek_state_count(a.model) - 1));
  ck_assert_str_eq(info.name, "run/good_steps");
  ck_assert(info.kind == EK_STATE_KIND_GOOD_STEPS && info.like.type == EK_I64);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    ck_fails(write_number(&a, "run/loss_scale", EK_F64, &bad[i]), EK_ERR_INVALID_ARGUMENT,
             "power of two");
  }
  ck_fails(write_number(&a, "run/good_steps", EK_I64, &less), EK_ERR_INVALID_ARGUMENT, "-1");
  ck_fails(write_number(&a, "run/good_steps", EK_F64, &bad[0]), EK_ERR_TYPE, "i64");
  /* A run that was carried over goes on with its scale. */
  ck_ok(step(&a, 0, false, NULL));
  overflow(&a, 1, 1, false, true);
  ck_ok(step(&a, 2, false, NULL));
  struct ck_state state = ck_state_take(a.model);
  ck_ok(ck_state_put(b.model, &state));
  ck_state_drop(&state);
  ck_assert_double_eq(scale_of(&b), 512);
  ck_assert_int_eq(whole_number(&b, "run/good_steps"), 1);
  for (uint64_t i = 3; i < 5; i++) {
    ck_ok(step(&a, i, true, NULL));
    ck_ok(step(&b, i, true, NULL));
  }
  ck_assert_double_eq(scale_of(&b), 1024);
  same_snapshots("carried over", &b, &a);
  /* Written in the middle of a step, it is the next step's. */
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, SAMPLES, 0, 8);
  double scale = 0x1p-5;
  ck_ok(ck_training_backward(&a, &batch, NULL, true, NULL));
  ck_ok(ck_training_backward(&b, &batch, NULL, true, NULL));
  ck_ok(write_number(&a, "run/loss_scale", EK_F64, &scale));
  ck_ok(write_number(&a, "run/good_steps", EK_I64, &two));
  ck_ok(ck_training_step(&a, &batch, &result));
  ck_ok(ck_training_step(&b, &batch, NULL));
  ck_assert_double_eq(result.loss_scale, 1024);
  ck_assert_double_eq(scale_of(&a), 0x1p-4);
  same_snapshots("written in a step", &a, &b);
  ck_batch_free(&batch);
  ck_training_close(&a);
  ck_training_close(&b);
  ck_training_close(&without);
}
END_TEST

/* ---- files ---- */

static char folder[CK_FOLDER_SIZE];

static void make_folder(void) { ck_folder_make(folder); }

static void remove_folder(void) {
  for (int number = 0; number < 10; number++) {
    char path[CK_FOLDER_SIZE + 64];
    (void)snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, number);
    (void)unlink(path);
  }
  ck_folder_remove(folder);
}

enum { POSITIONS = 7, KILLED_AT = 5 };

/* Batch number 2 and 3 overflow. The position in the data is the program's, and goes on. */
static void course(struct ck_training *t, int64_t first, int64_t last, bool save) {
  ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
  for (int64_t position = first; position < last; position++) {
    if (position == 2 || position == 3) ck_spike_at(1, (double)INFINITY);
    ck_ok(step(t, (uint64_t)position, position % 2 == 0, NULL));
    ck_spike_nowhere();
    options.position = position + 1;
    if (save) ck_ok(ek_checkpoint_save(t->model, folder, &options));
  }
}

/* A process is killed after a few steps; another goes on from what it has left. */
START_TEST(a_run_that_was_killed) {
  if (!ck_part(_i)) return;
#if CK_TSAN
  return; /* it cannot start threads in a child of fork() */
#endif
  if (strncmp(test_devices("cpu"), "cuda", 4) == 0) return; /* nor can CUDA */
  const struct ck_workload gpt = spiked("gpt");
  const ek_loss_scale rule = dynamic(0x1p16, 2);
  const struct ck_setup setup = setup_of(&gpt, _i, &rule);
  struct ck_training whole, resumed;
  ek_checkpoint_info info;
  int ended = 0;
  ck_training_open(&whole, &setup);
  if (ck_no_files(ek_checkpoint_save(whole.model, folder, NULL))) {
    ck_training_close(&whole);
    return;
  }
  (void)fflush(stdout);
  const pid_t child = fork();
  ck_assert_int_ge(child, 0);
  if (child == 0) {
    struct ck_training begun;
    ck_training_open(&begun, &setup);
    course(&begun, 0, KILLED_AT, true);
    (void)raise(SIGKILL);
  }
  ck_assert_int_eq(waitpid(child, &ended, 0), child);
  ck_assert(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGKILL);
  course(&whole, 0, POSITIONS, false);
  ck_training_open(&resumed, &setup);
  ck_ok(ek_checkpoint_load(&info, resumed.model, folder));
  ck_assert_int_eq(info.step, KILLED_AT - 2);
  ck_assert_int_eq(info.position, KILLED_AT);
  course(&resumed, info.position, POSITIONS, false);
  struct ck_state got = ck_state_take(resumed.model), want = ck_state_take(whole.model);
  ck_state_same("resumed", &got, &want);
  ck_assert_double_eq(scale_of(&resumed), 0x1p16); /* grown, halved twice, grown */
  ck_state_drop(&got);
  ck_state_drop(&want);
  ck_training_close(&resumed);
  ck_training_close(&whole);
}
END_TEST

/* Files of runs without a scaler, and runs without one. */
START_TEST(with_and_without) {
  if (!ck_part(_i)) return;
  const ek_loss_scale rule = dynamic(1024, 3), constant = fixed(8);
  const struct ck_setup setup = setup_of(ck_workload("mlp"), _i, &rule);
  const struct ck_setup plain = setup_of(ck_workload("mlp"), _i, &constant);
  struct ck_training scaled, without;
  ck_training_open(&scaled, &setup);
  ck_training_open(&without, &plain);
  course(&without, 0, 1, false);
  if (!ck_no_files(ek_checkpoint_save(without.model, folder, NULL))) {
    course(&scaled, 0, 3, false);
    ck_ok(ek_checkpoint_load(NULL, scaled.model, folder));
    same_snapshots("a file without a scaler", &scaled, &without);
    ck_assert_double_eq(scale_of(&scaled), 1024);
    ck_assert_int_eq(whole_number(&scaled, "run/good_steps"), 0);
    course(&scaled, 1, 5, false);
    ck_assert_double_eq(scale_of(&scaled), 2048);
    ck_ok(ek_checkpoint_save(scaled.model, folder, NULL));
    ck_ok(ek_checkpoint_load(NULL, without.model, folder));
    same_snapshots("a file with a scaler", &without, &scaled);
    ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(without.optimizer), 8);
  }
  ck_training_close(&scaled);
  ck_training_close(&without);
}
END_TEST

/* ---- the rest ---- */

/* The peak of `plan` is the real one; a device that only counts never overflows. */
START_TEST(memory_is_planned) {
  if (!ck_part(_i)) return;
  if (strncmp(test_devices("cpu"), "cuda", 4) == 0) return; /* check_memory_plan.c has its rules */
  const ek_loss_scale rule = dynamic(1024, 1);
  const struct ck_setup setup = setup_of(ck_workload("gpt"), _i, &rule);
  ek_memory_usage usage[2][DEVICES];
  for (int i = 0; i < 2; i++) {
    ek_group *group = ck_open_exactly(i == 0 ? "cpu:3" : "plan:3", 1);
    struct ck_training t;
    ek_step_result result;
    ck_ok(ck_training_try(&t, &setup, group));
    for (uint64_t s = 0; s < 2; s++) ck_ok(step(&t, s, true, &result));
    ck_assert(result.finite && !result.skipped && result.step == 2);
    ck_assert_double_eq(result.loss_scale, 2048);
    for (size_t k = 0; k < DEVICES; k++) {
      ck_ok(ek_memory_stats(&usage[i][k], ek_group_device(group, k)));
    }
    ck_training_close(&t);
    ek_group_free(group);
  }
  for (size_t k = 0; k < DEVICES; k++) {
    ck_assert_uint_eq(usage[0][k].peak_bytes, usage[1][k].peak_bytes);
    ck_assert_uint_eq(usage[0][k].allocations, usage[1][k].allocations);
  }
}
END_TEST

/* A trainer's option, with micro-batches that it cuts itself. */
START_TEST(a_trainer_has_it) {
  if (!ck_part(_i)) return;
  const struct ck_workload mlp = spiked("mlp");
  ek_loss_scale rule = dynamic(512, 2000);
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_module *module = NULL;
  ek_criterion *criterion = NULL;
  ek_optimizer *optimizer = NULL;
  ek_trainer *trainer = NULL;
  options.mode = (ek_mode)_i;
  options.micro_batches = 3;
  options.loss_scale = &rule;
  ck_ok(mlp.module(&module));
  ck_ok(mlp.criterion(&criterion, EK_REDUCTION_MEAN));
  ck_ok(adamw(&optimizer));
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, SAMPLES, 0.2, 3);
  rule.growth = 3;
  ck_fails(ek_trainer_open(&trainer, ck_spec("cpu:3"), module, criterion, optimizer, &options),
           EK_ERR_INVALID_ARGUMENT, "growth is 3");
  rule.growth = 2;
  ck_ok(ek_trainer_open(&trainer, ck_spec("cpu:3"), module, criterion, optimizer, &options));
  memset(&rule, 0, sizeof rule); /* it was copied */
  for (int i = 0; i < 4; i++) {
    ek_step_result result;
    if (i % 2 == 0) ck_spike_at(0, (double)INFINITY);
    ck_ok(ek_trainer_step(&result, trainer, batch.input, 1, batch.target, 1));
    ck_spike_nowhere();
    ck_assert(result.skipped == (i % 2 == 0) && result.step == (i + 1) / 2);
    ck_assert_double_eq(result.loss_scale, i == 0 ? 512 : i < 3 ? 256 : 128);
  }
  ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(ek_trainer_optimizer(trainer)), 128);
  ck_assert_double_eq(ek_data_parallel_optimizer_loss_scale(NULL), 1);
  ck_ok(ek_trainer_free(trainer));
  ck_batch_free(&batch);
  ek_optimizer_free(optimizer);
  ek_criterion_free(criterion);
  ek_module_free(module);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("loss scaling");
  TCase *exact = ck_case(suite, "exact"), *skips = ck_case(suite, "skips");
  TCase *state = ck_case(suite, "state"), *files = ck_case(suite, "files");
  tcase_add_loop_test(exact, a_power_of_two_changes_nothing, 0, CK_WORKLOADS * CK_PLACEMENTS);
  tcase_add_loop_test(exact, nor_where_nothing_is_divided, 0, 2 * CK_MODES);
  tcase_add_loop_test(exact, a_scale_counts_from_the_mean, 0, 8);
  tcase_add_loop_test(exact, nor_with_a_fused_loss, 0, 2 * CK_MODES);
  tcase_add_loop_test(skips, one_step_is_skipped_on_all, 0, CK_PLACEMENTS * DEVICES);
  tcase_add_loop_test(skips, a_scale_that_is_too_large, 0, CK_MODES);
  tcase_add_loop_test(skips, growth_and_backoff, 0, CK_MODES);
  tcase_add_loop_test(skips, beside_refusing, 0, CK_MODES);
  tcase_add_loop_test(skips, f16_scales_by_itself, 0, CK_MODES);
  tcase_add_loop_test(skips, the_same_bits_with_grains, 0, CK_MODES);
  tcase_add_loop_test(skips, gradients_of_a_program, 1, CK_MODES);
  tcase_add_loop_test(skips, a_rule_of_a_program, 0, CK_MODES);
  tcase_add_loop_test(skips, a_trainer_has_it, 0, CK_MODES);
  tcase_add_loop_test(skips, memory_is_planned, 0, CK_MODES);
  tcase_add_loop_test(state, the_scaler_is_state, 0, CK_MODES);
  tcase_add_checked_fixture(files, make_folder, remove_folder);
  tcase_add_loop_test(files, a_run_that_was_killed, 0, CK_MODES);
  tcase_add_loop_test(files, with_and_without, 0, CK_MODES);
  return suite;
}

CK_MAIN(make_suite)
