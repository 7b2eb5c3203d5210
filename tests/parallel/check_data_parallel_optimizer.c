/*
 * check_data_parallel_optimizer.c - 20 steps over N devices are 20 steps on one.
 *
 * The tolerance (docs/numerics.md, "Data parallelism"): gradients agree to e = 1e-6 in f32. An
 * update is at most (a few) times the learning rate and, as a function of the gradient, has a
 * relative condition of order one where the gradient is not zero, so a step adds an error of about
 * learning rate * e to a parameter of size 0.1; 20 steps of rate 0.05 add 20 * 0.05 * 1e-6 / 0.1 =
 * 1e-5. In f64 e is 1e-12 and the bound 1e-11. A gradient that is zero except for rounding (the
 * bias of attention's keys) has no such condition under Adam in f32, so the gpt is trained in f64,
 * where rounding is far below Adam's epsilon. Such a parameter p still sees its own decay: with
 * decay in the gradient it is multiplied by 1 - rate * decay / epsilon in each step, which must not
 * be below -1, or it is thrown about: rate * decay / epsilon is 0.1 here.
 */
#include "ck_snapshot.h"

enum { STEPS = 20, FEW_STEPS = 6, SAMPLES = 9 };

/* In parts, as on emulated devices, fewer steps. */
static int step_count(void) { return ck_in_parts() ? FEW_STEPS : STEPS; }

/* ---- rules ---- */

static ek_status sgd(ek_optimizer **optimizer, double momentum, bool nesterov, double clip) {
  CK_WITH(ek_sgd_options, options, EK_SGD_OPTIONS_INIT, .learning_rate = 0.05, .momentum = momentum,
          .nesterov = nesterov, .weight_decay = 0.01, .clip_norm = clip);
  return ek_sgd_create(optimizer, &options);
}

static ek_status adam(ek_optimizer **optimizer, bool coupled, double clip) {
  CK_WITH(ek_adamw_options, options, EK_ADAMW_OPTIONS_INIT, .learning_rate = 0.01,
          .weight_decay = coupled ? 1e-3 : 0.1, .epsilon = coupled ? 1e-4 : 1e-8,
          .coupled = coupled, .clip_norm = clip);
  return ek_adamw_create(optimizer, &options);
}

static ek_status plain(ek_optimizer **o) { return sgd(o, 0, false, 0); }
static ek_status momentum(ek_optimizer **o) { return sgd(o, 0.9, false, 0); }
static ek_status nesterov(ek_optimizer **o) { return sgd(o, 0.9, true, 0); }
static ek_status clipped_sgd(ek_optimizer **o) { return sgd(o, 0.9, false, 0.3); }
static ek_status coupled_adam(ek_optimizer **o) { return adam(o, true, 0); }
static ek_status decoupled_adam(ek_optimizer **o) { return adam(o, false, 0); }
static ek_status clipped_adam(ek_optimizer **o) { return adam(o, false, 0.3); }

static const struct {
  const char *name;
  ek_status (*create)(ek_optimizer **optimizer);
  int states;
} rules[] = {{"SGD", plain, 0},
             {"SGD with momentum", momentum, 1},
             {"SGD with Nesterov's momentum", nesterov, 1},
             {"SGD, clipped", clipped_sgd, 1},
             {"Adam", coupled_adam, 2},
             {"AdamW", decoupled_adam, 2},
             {"AdamW, clipped", clipped_adam, 2}};
enum { RULES = sizeof rules / sizeof rules[0] };

/* ---- 20 steps, or fewer ---- */

struct trajectory {
  double loss[STEPS], norm[STEPS];
};

static void run(struct trajectory *trajectory, struct ck_training *t,
                const struct ck_setup *setup) {
  ck_training_open(t, setup);
  for (int step = 0; step < step_count(); step++) {
    struct ck_batch batch =
        ck_batch_make(setup->workload, setup->options.type, SAMPLES, 0.2, (uint64_t)step + 50);
    CK_GOT(ek_step_result, result, ck_training_step(t, &batch, &result));
    ck_assert_int_eq(result.step, step + 1);
    trajectory->loss[step] = result.loss;
    trajectory->norm[step] = result.gradient_norm;
  }
  ck_assert_int_eq(ek_data_parallel_optimizer_steps(t->optimizer), step_count());
}

/* As many steps as were run on one device, again on several. */
static void same_steps(const struct ck_setup *setup, int rule, const struct trajectory *a,
                       const struct ck_training *one) {
  const double allowed = setup->options.type == EK_F32 ? 1e-5 : 1e-11;
  struct ck_training many;
  CK_SET_UP(struct trajectory, b, run(&b, &many, setup));
  ck_runs_agree(&many, one, CK_VALUES, allowed);
  for (int s = 0; s < rules[rule].states; s++) {
    ck_runs_agree(&many, one, s == 0 ? CK_STATE_0 : CK_STATE_1, 10 * allowed);
  }
  if (setup->options.state != EK_STATE_MASTER) ck_training_replicas_agree(&many);
  for (int step = 0; step < step_count(); step++) {
    ck_assert_double_eq_tol(b.loss[step], a->loss[step], allowed * fabs(a->loss[step]));
    ck_assert_double_eq_tol(b.norm[step], a->norm[step], 10 * allowed * a->norm[step]);
  }
  ck_training_close(&many);
}

/* In parts each workload with each rule meets some placements. */
CK_LOOP(steps_equal_one_device, RULES * CK_WORKLOADS) {
  const struct ck_workload *workload = &ck_workloads[_i / RULES];
  const bool fine = strcmp(workload->name, "gpt") == 0;
  struct ck_training one;
  CK_WITH(struct ck_setup, setup, ck_setup_mode(workload, "cpu:1", EK_MODE_GATHER),
          .options.type = fine ? EK_F64 : EK_F32, .optimizer = rules[_i % RULES].create);
  ck_setup_place(&setup, 2);
  CK_SET_UP(struct trajectory, alone, run(&alone, &one, &setup));
  setup.spec = "cpu:4";
  for (int placement = 0; placement < CK_PLACEMENTS; placement++) {
    if (!ck_part(CK_PLACEMENTS * _i + placement)) continue;
    ck_setup_place(&setup, placement);
    same_steps(&setup, _i % RULES, &alone, &one);
  }
}

/* ---- the rest ---- */

CK_SGD(simple_clipped, .learning_rate = 0.5, .clip_norm = 0.01)

/* One clipped step from the gradient that the model shows, by the formula of updates.h. */
CK_PART_LOOP(clipping_by_the_whole_gradient, CK_PLACEMENTS) {
  CK_TRAINING(t, ck_setup_at(ck_workload("gpt"), "cpu:3", _i), .options.type = EK_F64,
              .optimizer = simple_clipped);
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F64, SAMPLES, 0.2, 4);
  double square = 0;
  double *want = ck_training_read(&t, CK_VALUES);
  const int64_t count = ck_count(want);
  ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
  double *gradients = ck_training_read(&t, CK_GRADIENTS);
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, t.optimizer));
  for (int64_t i = 0; i < count; i++) square += gradients[i] * gradients[i];
  const double norm = sqrt(square), clip = 0.01 / (norm + 1e-6);
  ck_assert_double_lt(clip, 1);
  ck_assert_double_eq_tol(result.gradient_norm, norm, 1e-12 * norm);
  for (int64_t i = 0; i < count; i++) want[i] -= 0.5 * clip * gradients[i];
  double *got = ck_training_read(&t, CK_VALUES);
  ck_assert_double_le(ck_arrays_off(got, want), 1e-14);
}

CK_PART_LOOP(schedules, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 1);
  ek_data_parallel_optimizer *optimizer = NULL;
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  setup.optimizer = NULL;
  struct ck_training t = ck_training_opened(&setup);
  CK_SCOPED(ek_optimizer *, rule, plain(&rule));
  CK_GOT(ek_schedule, schedule, ek_schedule_warmup_cosine(&schedule, 0.2, 0.01, 2, 6));
  options.schedule = &schedule;
  ck_kept(ek_data_parallel_optimizer_open(&optimizer, t.model, rule, &options), optimizer);
  ek_schedule other, none = schedule;
  ck_ok(ek_schedule_warmup_cosine(&other, 0.5, 0.25, 9, 7)); /* it ends within its warm-up */
  for (int step = 0; step < 8; step++) {
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, optimizer));
    const bool held = step == 1 || step == 2 || step == 7; /* set after the step before */
    const ek_schedule *now = step == 5 || step == 6 ? &other : &schedule;
    ck_assert_double_eq(result.learning_rate, held ? 0.125 : ek_schedule_rate(now, step));
    if (step == 0) ck_ok(ek_data_parallel_optimizer_set_learning_rate(optimizer, 0.125));
    if (step == 2) ck_ok(ek_data_parallel_optimizer_set_schedule(optimizer, NULL));
    if (step == 4) ck_ok(ek_data_parallel_optimizer_set_schedule(optimizer, &other));
    if (step == 6) ck_ok(ek_data_parallel_optimizer_set_learning_rate(optimizer, 0.125));
  }
  none.kind = (ek_schedule_kind)7;
  ck_invalid(ek_data_parallel_optimizer_set_schedule(optimizer, &none), "unknown kind 7");
  none.kind = EK_SCHEDULE_WARMUP_COSINE;
  ck_bad(none, total, -1, ek_data_parallel_optimizer_set_schedule(optimizer, &none), "total -1");
  ck_invalid(ek_data_parallel_optimizer_set_schedule(NULL, &other), "NULL");
  ck_invalid(ek_data_parallel_optimizer_set_learning_rate(optimizer, -1), "rate");
}

/* A step without result waits for no device and does the same; a rate of 0 changes nothing. */
CK_PART_LOOP(steps_without_result, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:3", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 2);
  ek_step_result result;
  struct ck_training a = ck_training_opened(&setup);
  struct ck_training b = ck_training_opened(&setup);
  for (int step = 0; step < 3; step++) {
    ck_ok(ck_training_step(&a, &batch, NULL));
    ck_ok(ck_training_step(&b, &batch, &result));
  }
  ck_runs_agree(&a, &b, CK_VALUES, 0);
}

/* ---- steps that are begun and ended ---- */

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)); }

static void same_result(const ek_step_result *got, const ek_step_result *want) {
  ck_assert(same(got->loss, want->loss) && got->weight == want->weight);
  ck_assert(same(got->gradient_norm, want->gradient_norm) && got->finite == want->finite);
  ck_assert(got->learning_rate == want->learning_rate && got->loss_scale == want->loss_scale);
  ck_assert(got->step == want->step && got->skipped == want->skipped && got->empty == want->empty);
}

static ek_status begin(struct ck_training *t, const struct ck_batch *batch) {
  EK_TRY(ck_training_backward(t, batch, NULL, false, NULL));
  return ek_data_parallel_optimizer_step_begin(t->optimizer);
}

/* Results are those of plain steps, in order, however late they are taken; with a loss scale too,
 * under which one of the steps is skipped. */
CK_LOOP(steps_begun_and_ended, 3 * CK_MODES) {
  static const ek_loss_scale grows = {EK_LOSS_SCALE_DYNAMIC, 1024, 2, 0.5, 1};
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)(_i / 3));
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 2);
  enum { BEGUN = 5 };
  const int behind = _i % 3; /* how many steps later a result is taken */
  ek_step_result want[BEGUN], got;
  if (behind == 1) setup.loss_scale = &grows;
  struct ck_training a = ck_training_opened(&setup);
  struct ck_training b = ck_training_opened(&setup);
  for (int i = 0; i < BEGUN; i++) {
    float *x = batch.input[0].data, kept = x[3];
    if (behind == 1 && i == 2) x[3] = INFINITY;
    ck_ok(ck_training_step(&a, &batch, &want[i]));
    ck_ok(begin(&b, &batch));
    x[3] = kept;
    if (i < behind) continue;
    ck_ok(ek_data_parallel_optimizer_step_end(&got, b.optimizer));
    same_result(&got, &want[i - behind]);
  }
  for (int i = BEGUN - behind; i < BEGUN; i++) {
    ck_ok(ek_data_parallel_optimizer_step_end(&got, b.optimizer));
    same_result(&got, &want[i]);
  }
  ck_assert_int_eq(want[2].skipped, behind == 1);
  ck_runs_agree(&a, &b, CK_VALUES, 0);
}

CK_LOOP(results_out_of_order, CK_MODES) {
  struct ck_training t = ck_training_of(ck_setup_mode(ck_workload("mlp"), "cpu:2", (ek_mode)_i));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 2);
  ek_step_result result = {.step = -1};
  ck_fails(ek_data_parallel_optimizer_step_end(&result, t.optimizer), EK_ERR_STATE,
           "no step was begun");
  ck_fails(ek_data_parallel_optimizer_step_begin(t.optimizer), EK_ERR_STATE, "no backward");
  ck_invalid(ek_data_parallel_optimizer_step_end(NULL, t.optimizer), "NULL");
  ck_invalid(ek_data_parallel_optimizer_step_begin(NULL), "NULL");
  ck_ok(begin(&t, &batch));
  ck_ok(ck_training_step(&t, &batch, &result)); /* its own; that of the first is still to come */
  ck_assert_int_eq(result.step, 2);
  ck_ok(ck_training_step(&t, &batch, NULL));
  ck_ok(ek_data_parallel_optimizer_step_end(&result, t.optimizer));
  ck_assert_int_eq(result.step, 1);
  ck_assert(result.gradient_norm > 0);
  for (int i = 0; i < EK_MAX_STEPS_BEGUN; i++) ck_ok(begin(&t, &batch));
  ck_fails(begin(&t, &batch), EK_ERR_STATE, "call step_end");
  for (int i = 0; i < EK_MAX_STEPS_BEGUN / 2; i++) {
    ck_ok(ek_data_parallel_optimizer_step_end(&result, t.optimizer));
    ck_assert_int_eq(result.step, 4 + i);
  }
  ck_ok(ek_data_parallel_optimizer_step_begin(t.optimizer)); /* the one that was refused */
  ck_assert_int_eq(ek_data_parallel_optimizer_steps(t.optimizer), 4 + EK_MAX_STEPS_BEGUN);
} /* the results of the others are lost */

/* ---- numbers that are not finite ---- */

/* The model's first input becomes `value` in one element of one sample. */
static ek_status step_with(struct ck_training *t, struct ck_batch *batch, double value,
                           ek_step_result *result) {
  float *x = batch->input[0].data;
  const float kept = x[9];
  x[9] = (float)value;
  const ek_status status = ck_training_step(t, batch, result);
  x[9] = kept;
  return status;
}

static ek_status plain_sgd(ek_optimizer **optimizer) { return ek_sgd_create(optimizer, NULL); }

/* The result says so, with clipping and without; a finite step after a fresh opening says yes. */
CK_LOOP(not_finite_is_said, 2 * CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)(_i / 2));
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 4);
  if (_i % 2 == 0) setup.optimizer = plain_sgd;
  const double values[] = {NAN, INFINITY, 1};
  for (int i = 0; i < 3; i++) {
    CK_HELD(struct ck_training, t, ck_training_opened(&setup));
    CK_GOT(ek_step_result, result, step_with(&t, &batch, values[i], &result));
    ck_assert_int_eq(result.finite, i == 2);
    ck_assert_int_eq(isfinite(result.gradient_norm) && result.gradient_norm >= 0, i == 2);
  }
}

/* Also where every target is ignored, so that the loss is 0 and the gradient would be. */
CK_LOOP(not_finite_in_an_empty_step_is_said, CK_MODES) {
  struct ck_training t = ck_training_of(ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)_i));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 1, 4);
  CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
  ck_assert(result.empty && result.finite && result.loss == 0 && result.gradient_norm == 0);
  ck_ok(step_with(&t, &batch, NAN, &result));
  ck_assert(result.empty && !result.finite && isnan(result.gradient_norm));
}

/* With the option nothing is written, and the next step is as if the bad one had not been. */
CK_LOOP(not_finite_is_refused, CK_MODES) {
  const struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 4);
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.refuse_not_finite = true;
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  ck_training_update_with(&t, &options);
  for (int step = 0; step < 4; step++) {
    ek_step_result result = {.step = -1};
    ck_fails(step_with(&t, &batch, step % 2 == 0 ? NAN : INFINITY, step < 2 ? &result : NULL),
             EK_ERR_NOT_FINITE, "discarded without an update");
    ck_assert_int_eq(result.step, -1);
    ck_ok(ck_training_step(&t, &batch, &result));
    ck_ok(ck_training_step(&other, &batch, NULL));
    ck_snapshots_same("after a refused step", &t, &other);
  }
}

/* Left out where nothing needs it, it is told from every norm there is. */
CK_LOOP(a_norm_that_is_not_computed, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)_i);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 4);
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.gradient_norm = false;
  setup.optimizer = plain_sgd;
  struct ck_training t = ck_training_opened(&setup);
  ck_training_update_with(&t, &options);
  CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
  ck_assert_double_eq(result.gradient_norm, -1);
  ck_assert(result.finite);
  ck_ok(step_with(&t, &batch, NAN, &result)); /* the loss shows it */
  ck_assert(!result.finite);
}

CK_LOOP(calls_out_of_order, CK_MODES) {
  struct ck_training t = ck_training_of(ck_setup_mode(ck_workload("mlp"), "cpu:3", (ek_mode)_i));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 3);
  ek_shards output[1] = {{0}};
  float numbers[7 * 19];
  ek_data_parallel_optimizer *another = NULL;
  CK_WITH(ek_tensor, host, ck_like(&t, "0.weight"), .data = numbers);
  ck_fails(ek_data_parallel_optimizer_step(NULL, t.optimizer), EK_ERR_STATE, "no backward has run");
  ck_fails(ek_data_parallel_optimizer_open(&another, t.model, t.rule, NULL), EK_ERR_STATE,
           "has an optimizer");
  ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
  ck_fails(ek_data_parallel_model_forward(output, t.model, batch.input, 1, NULL), EK_ERR_STATE,
           "optimizer");
  ck_ok(ek_data_parallel_model_gradient(&host, t.model, "0.weight"));
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
  ck_fails(ek_data_parallel_model_gradient(&host, t.model, "0.weight"), EK_ERR_STATE, "backward");
  ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL)); /* only accumulated: a step is fine */
  ck_fails(ek_data_parallel_model_gradient(&host, t.model, "0.weight"), EK_ERR_STATE, "backward");
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
}

CK_SUITE("data-parallel optimizer")
