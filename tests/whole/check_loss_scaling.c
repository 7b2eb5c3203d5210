/*
 * check_loss_scaling.c - a loss scale changes no bit of a training, takes no memory, and is an
 * option of a trainer.
 *
 * Scales are powers of two, so everything here is exact. Steps that overflow are in
 * check_skipped_steps.c, what is kept of a scale in check_scaler_state.c.
 */
#include "ck_gpt.h"
#include "ck_scaling.h"

/* ---- a power of two changes nothing ---- */

static void trains_alike(const struct ck_setup *plain, const struct ck_setup *scaled) {
  CK_HELD(struct ck_training, a, ck_training_opened(plain));
  CK_HELD(struct ck_training, b, ck_training_opened(scaled));
  for (uint64_t i = 0; i < 3; i++) {
    ek_step_result got, want;
    ck_ok(ck_scaling_step(&a, i, i != 1, &want));
    ck_ok(ck_scaling_step(&b, i, i != 1, &got));
    ck_scaling_same_results(&got, &want);
    ck_assert_double_eq(want.loss_scale, 1);
    ck_assert_double_eq(got.loss_scale, scaled->loss_scale->scale);
    ck_snapshots_same("with a loss scale", &b, &a);
  }
  /* Gradients are shown as they would be without. */
  struct ck_batch batch =
      ck_batch_make(plain->workload, plain->options.type, CK_SCALING_SAMPLES, 0, 9);
  ck_ok(ck_training_backward(&a, &batch, NULL, false, NULL));
  ck_ok(ck_training_backward(&b, &batch, NULL, false, NULL));
  ck_runs_agree(&b, &a, CK_GRADIENTS, 0);
}

CK_PART_LOOP(a_power_of_two_changes_nothing, CK_WORKLOADS * CK_PLACEMENTS) {
  static const double scales[] = {0x1p16, 0x1p-9, 0x1p30};
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  const ek_loss_scale rule = ck_scaling_fixed(scales[_i % 3]);
  struct ck_setup plain = ck_scaling_setup(workload, _i % CK_PLACEMENTS, NULL);
  plain.gradient_in_forward = _i % 2 == 1;
  CK_WITH(struct ck_setup, scaled, plain, .loss_scale = &rule);
  trains_alike(&plain, &scaled);
}

/* Gradients in memory are over the unit: 7 samples of 5 targets, 35 of them, so 2^6; of the first
 * micro-batch there are 4 samples, so 2^5. Ignored targets count. Where nothing is divided it is 1.
 */
CK_PART_LOOP(a_scale_counts_from_the_mean, 8) {
  static const double units[] = {0x1p6, 0x1p5, 1, 1};
  const bool two = _i % 4 == 1, sum = _i % 4 == 2, none = _i % 4 == 3;
  const ek_loss_scale rule = ck_scaling_fixed(0x1p16);
  double *values[2];
  for (int i = 0; i < 2; i++) {
    CK_WITH(struct ck_setup, setup,
            ck_scaling_setup(ck_workload("gpt"), EK_MODE_REPLICATED, i == 0 ? NULL : &rule),
            .reduction = sum    ? EK_REDUCTION_SUM
                         : none ? EK_REDUCTION_NONE
                                : EK_REDUCTION_MEAN,
            .gradient_in_forward = _i / 4 == 1 && !none);
    CK_HELD(struct ck_training, t, ck_training_opened(&setup));
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, CK_SCALING_SAMPLES, 0.2, 5);
    const struct ck_batch some = ck_batch_samples(&batch, 2, 4);
    ck_assert_int_eq(ek_tensor_count(&batch.target[0]), 35);
    if (two) ck_ok(ck_training_backward(&t, &some, NULL, true, NULL));
    ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
    const ek_tensor *flat = ek_replica_gradients(ek_data_parallel_model_replica(t.model, 1));
    values[i] = ck_got(flat);
  }
  for (int64_t i = 0; i < ck_count(values[0]); i++) values[0][i] *= 0x1p16 / units[_i % 4];
  ck_arrays_same("gradients in memory", values[1], values[0]);
}

/* The other reductions, whose gradients are not divided by any D. */
CK_PART_LOOP(nor_where_nothing_is_divided, 2 * CK_MODES) {
  const ek_loss_scale rule = ck_scaling_fixed(0x1p12);
  struct ck_setup plain = ck_scaling_setup(ck_workload("mlp"), _i / 2, NULL);
  plain.reduction = _i % 2 == 0 ? EK_REDUCTION_SUM : EK_REDUCTION_NONE;
  CK_WITH(struct ck_setup, scaled, plain, .loss_scale = &rule);
  trains_alike(&plain, &scaled);
}

/* A model that computes its loss itself, in its forward too; without clipping. */
CK_PART_LOOP(nor_with_a_fused_loss, 2 * CK_MODES) {
  const ek_loss_scale rule = ck_scaling_dynamic(0x1p20, 1);
  CK_WITH(ek_gpt_options, gpt, ck_gpt_sizes(64, 16, 8, 1, 2), .fused_loss = true);
  struct ck_setup setup = ck_setup_gpt(&gpt, NULL, "cpu:3", (ek_mode)(_i / 2));
  setup.micro_batches = _i % 2 == 0 ? 0 : 3;
  ek_trainer *trainers[2];
  struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, CK_SCALING_SAMPLES, 0.2, 3);
  for (int i = 0; i < 2; i++) {
    setup.loss_scale = i == 0 ? NULL : &rule;
    trainers[i] = ck_trainer_open(&setup);
  }
  for (int s = 0; s < 3; s++) {
    ek_step_result results[2];
    for (int i = 0; i < 2; i++) {
      ck_ok(ek_trainer_step(&results[i], trainers[i], batch.input, 1, batch.target, 1));
    }
    ck_scaling_same_results(&results[1], &results[0]);
    ck_assert_double_eq(results[1].loss_scale, ldexp(1, 20 + s));
  }
  struct ck_state values[2];
  for (int i = 0; i < 2; i++) values[i] = ck_state_take(ek_trainer_model(trainers[i]));
  ck_assert_uint_eq(values[1].count, values[0].count + 2);
  values[1].count = values[0].count; /* the scale's own entries follow */
  ck_state_same("scaled", &values[1], &values[0]);
}

/* Of a model that computes its loss itself the targets count, and not its inputs: 7 rows of 9
 * numbers have 7 targets, so 2^3. */
CK_TEST(targets_of_a_fused_loss_count) {
  enum { IN = 9, OUT = 5, COUNT = 1024 };
  const ek_loss_scale rule = ck_scaling_fixed(0x1p16);
  float features[CK_SCALING_SAMPLES * IN];
  int32_t classes[CK_SCALING_SAMPLES];
  double values[2][COUNT];
  int64_t count = 0;
  ek_tensor inputs[2];
  for (int i = 0; i < CK_SCALING_SAMPLES * IN; i++) features[i] = (float)(i % 5 - 2);
  for (int i = 0; i < CK_SCALING_SAMPLES; i++) classes[i] = i % OUT;
  ck_ok(ek_tensor_host(&inputs[0], features, EK_F32, CK_SHAPE(CK_SCALING_SAMPLES, IN)));
  ck_ok(ek_tensor_host(&inputs[1], classes, EK_I32, CK_SHAPE(CK_SCALING_SAMPLES)));
  CK_OPENED(ek_module *, linear, ek_linear_create(&linear, IN, IN, true));
  CK_OPENED(ek_criterion *, head, ek_linear_cross_entropy_create(&head, IN, OUT, NULL));
  CK_GOT(ek_module *, module, ek_with_criterion_create(&module, linear, head));
  struct ck_setup setup = ck_setup_own(module, NULL, "cpu:2", EK_MODE_REPLICATED);
  for (int i = 0; i < 2; i++) {
    setup.loss_scale = i == 0 ? NULL : &rule;
    ek_trainer *trainer = ck_trainer_open(&setup);
    ck_ok(ek_trainer_step(NULL, trainer, &inputs[0], 1, &inputs[1], 1));
    const ek_tensor *flat =
        ek_replica_gradients(ek_data_parallel_model_replica(ek_trainer_model(trainer), 1));
    count = ek_tensor_count(flat);
    ck_assert_int_le(count, COUNT);
    ck_get(values[i], flat);
  }
  for (int64_t i = 0; i < count; i++) values[0][i] *= 0x1p16 / 0x1p3;
  ck_same_bits("gradients in memory", values[1], values[0], count);
}

/* ---- gradients of a program's own ---- */

/* The gradient of the outputs is all 1, times what the program says. */
static ek_status own_backward(struct ck_training *t, double factor, double said, bool accumulate) {
  struct ck_batch batch = ck_batch_make(t->setup.workload, EK_F32, CK_SCALING_SAMPLES, 0, 5);
  CK_FREED(shards) outputs = {0};
  CK_WITH(ek_backward_options, options, EK_BACKWARD_OPTIONS_INIT, .loss_scale = said,
          .accumulate = accumulate);
  EK_TRY(ek_data_parallel_model_forward(&outputs, t->model, batch.input, 1, NULL));
  for (size_t k = 0; k < outputs.count; k++) {
    ek_tensor *part = &outputs.parts[k];
    if (ek_tensor_count(part) == 0) continue;
    EK_TRY(ek_op_fill(ek_device_stream(part->device, EK_STREAM_COMPUTE), part, factor));
  }
  return ek_data_parallel_model_backward(t->model, &outputs, 1, &options);
}

CK_LOOP_FROM(gradients_of_a_program, 1, CK_MODES) {
  if (!ck_part(_i)) return;
  const ek_loss_scale rule = ck_scaling_dynamic(64, 2000);
  ek_step_result result;
  struct ck_training t = ck_training_of(ck_scaling_setup(ck_workload("mlp"), _i, &rule));
  struct ck_training other = ck_training_of(ck_scaling_setup(ck_workload("mlp"), _i, NULL));
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
    ck_snapshots_same("gradients of a program", &t, &other);
  }
  ck_invalid(own_backward(&t, 1, 3, false), "power of two");
  ck_invalid(own_backward(&t, 1, -1, false), "power of two");
}

/* ---- the rest ---- */

/* The peak of `plan` is the real one; a device that only counts never overflows. */
CK_PART_LOOP(memory_is_planned, CK_MODES) {
  if (ck_on_gpu()) return; /* check_memory_plan.c has its rules */
  const ek_loss_scale rule = ck_scaling_dynamic(1024, 1);
  const struct ck_setup setup = ck_scaling_setup(ck_workload("gpt"), _i, &rule);
  ek_memory_usage usage[2][CK_SCALING_DEVICES];
  for (int i = 0; i < 2; i++) {
    ek_group *group = ck_open_exactly(i == 0 ? "cpu:3" : "plan:3", 1);
    ek_step_result result;
    CK_GOT(struct ck_training, t, ck_training_try(&t, &setup, group));
    for (uint64_t s = 0; s < 2; s++) ck_ok(ck_scaling_step(&t, s, true, &result));
    ck_assert(result.finite && !result.skipped && result.step == 2);
    ck_assert_double_eq(result.loss_scale, 2048);
    ck_usages(usage[i], group);
  }
  ck_same_peaks("with a loss scale", usage[1], usage[0], CK_SCALING_DEVICES);
}

/* A trainer's option, with micro-batches that it cuts itself. */
CK_PART_LOOP(a_trainer_has_it, CK_MODES) {
  const struct ck_workload mlp = ck_spiked("mlp");
  ek_loss_scale rule = ck_scaling_dynamic(512, 2000);
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer_options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ek_trainer *trainer = NULL;
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &model_options,
          .optimizer = &optimizer_options);
  ck_ok(ek_data_parallel_model_options_set_mode(&model_options, (ek_mode)_i));
  options.micro_batches = 3;
  optimizer_options.loss_scale = &rule;
  CK_OPENED(ek_module *, module, mlp.module(&module));
  CK_OPENED(ek_criterion *, criterion, mlp.criterion(&criterion, EK_REDUCTION_MEAN));
  CK_OPENED(ek_optimizer *, optimizer, ck_plain_adamw(&optimizer));
  struct ck_batch batch = ck_batch_make(&mlp, EK_F32, CK_SCALING_SAMPLES, 0.2, 3);
  rule.growth = 3;
  ck_invalid(ek_trainer_open(&trainer, ck_spec("cpu:3"), module, criterion, optimizer, &options),
             "growth is 3");
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
  ck_ok(ek_trainer_close(trainer));
}

CK_SUITE("loss scaling")
