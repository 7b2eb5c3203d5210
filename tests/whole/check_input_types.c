/*
 * check_input_types.c - integers of every type and pixels train as what a program converts by hand:
 * the same bits and the same peaks, in every mode, whole and in micro-batches, with uneven shards,
 * inputs that go whole to every device, and targets of a model that computes its loss itself.
 */
#include "ck_training.h"

enum { SAMPLES = 7, STEPS = 2, DEVICES = 3, MOST_OUTPUTS = 4096 };

static const ek_type integers[] = {EK_U8, EK_U16, EK_U32, EK_I32, EK_I64};
enum { INTEGERS = sizeof integers / sizeof *integers };

/* What a trainer gets, and what came of it. */
struct run {
  const struct ck_workload *workload;
  ek_data_parallel_model_options model;
  ek_data_parallel_criterion_options loss;
  ek_mode mode;
  int64_t micro_batches;
  bool joined;  /* the model and its loss are one module */
  bool planned; /* on `plan` devices, which compute nothing */
  double losses[STEPS], evaluated;
  uint64_t peaks[DEVICES];
  float predicted[MOST_OUTPUTS];
  int64_t outputs;
};

static struct run run_of(const char *workload, int mode) {
  struct run run = {.workload = ck_workload(workload)};
  run.model = (ek_data_parallel_model_options)EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  run.loss = (ek_data_parallel_criterion_options)EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  run.mode = (ek_mode)(mode % CK_MODES);
  ck_ok(ek_data_parallel_model_options_set_mode(&run.model, run.mode));
  ck_assign(run.model, .broadcast_inputs = run.workload->sample.broadcast,
            .precision = ck_precision());
  run.micro_batches = mode % 2 == 0 ? 0 : 2;
  return run;
}

static ek_trainer_options options_of(const struct run *run) {
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &run->model,
          .criterion = &run->loss, .micro_batches = run->micro_batches);
  return options;
}

static void open_trainer(ek_trainer **trainer, const struct run *run) {
  const ek_trainer_options options = options_of(run);
  ek_module *joined = NULL;
  CK_SCOPED(ek_module *, module, run->workload->module(&module));
  CK_SCOPED(ek_criterion *, criterion, run->workload->criterion(&criterion, EK_REDUCTION_MEAN));
  CK_SCOPED(ek_optimizer *, rule, ck_clipped_adamw(&rule));
  if (run->joined) ck_ok(ek_with_criterion_create(&joined, module, criterion));
  ck_ok(ek_trainer_open(trainer, run->planned ? "plan:3" : ck_spec("cpu:3"),
                        run->joined ? joined : module, run->joined ? NULL : criterion, rule,
                        &options));
  ek_module_free(joined);
}

static void predict(struct run *run, ek_trainer *trainer, const struct ck_batch *batch) {
  ek_shards outputs[4] = {{0}};
  ck_ok(ek_trainer_predict(outputs, trainer, batch->input, batch->inputs));
  for (size_t k = 0; k < outputs[0].count; k++) {
    double values[MOST_OUTPUTS];
    const int64_t count = ek_tensor_count(&outputs[0].parts[k]);
    ck_assert_int_le(run->outputs + count, MOST_OUTPUTS);
    if (count > 0) ck_get(values, &outputs[0].parts[k]);
    for (int64_t i = 0; i < count; i++) run->predicted[run->outputs++] = (float)values[i];
  }
  for (size_t i = 0; i < 4; i++) ek_shards_free(&outputs[i]);
}

static void train(struct run *run, const struct ck_batch *batch) {
  ek_trainer *trainer = NULL;
  open_trainer(&trainer, run);
  const ek_group *group = ek_trainer_group(trainer);
  run->outputs = 0;
  for (int i = 0; i < STEPS; i++) {
    if (i > 0) ek_host_memory_fail_at(1); /* a step takes no memory of the host after the first */
    CK_GOT(ek_step_result, result,
           ek_trainer_step(&result, trainer, batch->input, batch->inputs, batch->target,
                           batch->targets));
    ek_host_memory_fail_at(0);
    run->losses[i] = result.loss;
  }
  for (size_t k = 0; k < ek_group_size(group) && k < DEVICES; k++) {
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, k)));
    run->peaks[k] = usage.peak_bytes;
  }
  ck_ok(ek_trainer_evaluate(&run->evaluated, NULL, trainer, batch->input, batch->inputs,
                            batch->target, batch->targets));
  if (!run->planned) predict(run, trainer, batch);
  ck_ok(ek_trainer_close(trainer));
}

static void same(const struct run *got, const struct run *want, const char *what) {
  ck_assert_msg(memcmp(got->losses, want->losses, sizeof want->losses) == 0,
                "%s in mode %s: losses %.17g %.17g, expected %.17g %.17g", what,
                ek_mode_name(got->mode), got->losses[0], got->losses[1], want->losses[0],
                want->losses[1]);
  ck_assert_mem_eq(&got->evaluated, &want->evaluated, sizeof want->evaluated);
  ck_assert_mem_eq(got->peaks, want->peaks, sizeof want->peaks);
  ck_assert_int_eq(got->outputs, want->outputs);
  ck_assert_int_gt(got->outputs, 0);
  ck_assert_mem_eq(got->predicted, want->predicted, (size_t)want->outputs * sizeof(float));
}

/* ---- integers ---- */

/* The same numbers as another type. */
static ek_tensor turned(const ek_tensor *tensor, ek_type type) {
  const int64_t count = ek_tensor_count(tensor);
  CK_WITH(ek_tensor, result, *tensor, .type = type, .data = ck_array((size_t)count, 8));
  for (int64_t i = 0; i < count; i++) {
    ck_put_integer(result.data, type, i, ((const int32_t *)tensor->data)[i]);
  }
  return result;
}

/* Tokens and classes in all types, each type of both in every mode and every pair of types in some;
 * signed classes have targets that are ignored. */
CK_LOOP(tokens_and_classes, 2 * CK_MODES) {
  const bool joined = _i >= CK_MODES;
  for (int t = 0; t < INTEGERS * INTEGERS; t++) {
    const ek_type of_input = integers[t % INTEGERS], of_target = integers[t / INTEGERS];
    const bool ignores = of_target == EK_I32 || of_target == EK_I64;
    if ((t % INTEGERS + t / INTEGERS + _i) % INTEGERS != 0) continue;
    struct run want = run_of("gpt", _i), got = want;
    want.joined = got.joined = joined;
    struct ck_batch batch = ck_batch_make(want.workload, EK_F32, SAMPLES, ignores ? 0.2 : 0, 5);
    CK_WITH(struct ck_batch, other, batch, .input[0] = turned(&batch.input[0], of_input),
            .target[0] = turned(&batch.target[0], of_target));
    train(&want, &batch);
    train(&got, &other);
    same(&got, &want, ek_type_name(of_input));
  }
}

/* Fewer samples than devices: a device without rows has its inputs in the right type, too. */
CK_LOOP(few_samples, CK_MODES) {
  struct run want = run_of("gpt", _i), got = want;
  struct ck_batch batch = ck_batch_make(want.workload, EK_F32, 2, 0, 5), other = batch;
  other.input[0] = turned(&batch.input[0], EK_U16);
  other.target[0] = turned(&batch.target[0], EK_I64);
  train(&want, &batch);
  train(&got, &other);
  same(&got, &want, "2 samples");
}

/* ---- pixels ---- */

static const ek_input_scaling scalings[] = {{1, {1 / 128.0}, {-1}}, {1, {1 / 300.0}, {0.25}}};

/* Random bytes, and what a program makes of them by hand. */
static void make_pixels(ek_tensor *bytes, ek_tensor *numbers, const ek_input_scaling *scaling) {
  const int64_t count = ek_tensor_count(numbers);
  struct ck_random random = ck_random_start((uint64_t)count);
  *bytes = *numbers;
  bytes->type = EK_U8;
  bytes->data = ck_array((size_t)count, 1);
  for (int64_t i = 0; i < count; i++) {
    const int64_t x = ck_random_integer(&random, 0, 255);
    const double product = (double)x * scaling->scale[0];
    ((uint8_t *)bytes->data)[i] = (uint8_t)x;
    ((float *)numbers->data)[i] = (float)(product + scaling->offset[0]);
  }
}

/* An input that goes whole to every device, one that is cut, and targets; of which the second has
 * no scaling and is given as numbers. */
CK_LOOP(pixels_and_their_targets, 2 * CK_MODES) {
  const bool joined = _i >= CK_MODES;
  struct run want = run_of("blend", _i), got = want;
  want.joined = got.joined = joined;
  struct ck_batch batch = ck_batch_make(want.workload, EK_F32, SAMPLES, 0, 5), other = batch;
  for (size_t i = 0; i < 2; i++) make_pixels(&other.input[i], &batch.input[i], &scalings[i]);
  make_pixels(&other.target[0], &batch.target[0], &scalings[1]);
  ck_assign(got, .model.input_scaling = scalings, .model.input_scaling_count = 2,
            .loss.target_scaling = &scalings[1], .loss.target_scaling_count = 1);
  train(&want, &batch);
  train(&got, &other);
  same(&got, &want, "u8");
}

/* ---- plans ---- */

/* A plan counts for converted tokens and pixels the bytes that CPUs hold. */
CK_LOOP(planned_bytes_are_real_bytes, 2 * CK_MODES) {
  const bool tokens = _i < CK_MODES;
  if (strcmp(ck_spec("cpu:3"), "cpu:3") != 0) return; /* `plan` counts as CPUs do */
  struct run real = run_of(tokens ? "gpt" : "mlp", _i), planned = real;
  planned.planned = true;
  struct ck_batch batch = ck_batch_make(real.workload, EK_F32, SAMPLES, 0, 5), other = batch;
  if (tokens) {
    other.input[0] = turned(&batch.input[0], EK_U16);
    other.target[0] = turned(&batch.target[0], EK_I64);
  } else {
    make_pixels(&other.input[0], &batch.input[0], &scalings[0]);
    real.model.input_scaling = planned.model.input_scaling = scalings;
    real.model.input_scaling_count = planned.model.input_scaling_count = 1;
  }
  train(&real, &other);
  train(&planned, &other);
  for (int k = 0; k < DEVICES; k++) ck_assert_uint_eq(planned.peaks[k], real.peaks[k]);
  ck_assert_uint_gt(real.peaks[0], 0);
}

/* ---- what is refused ---- */

CK_LOOP(wrong_inputs_lose_nothing, CK_MODES) {
  CK_WITH(struct run, run, run_of("gpt", _i), .model.precision = EK_PRECISION_DEFAULT);
  ek_trainer *trainer = NULL;
  struct ck_batch batch = ck_batch_make(run.workload, EK_F32, SAMPLES, 0, 5), bad = batch;
  ek_step_result result;
  open_trainer(&trainer, &run);
  bad.input[0] = turned(&batch.input[0], EK_U32);
  ((uint32_t *)bad.input[0].data)[1] = 4000000000u;
  ck_invalid(ek_trainer_step(&result, trainer, bad.input, 1, bad.target, 1),
             "forward: input number 0: element 1 (row 0) is 4000000000, which does not fit in i32");
  ck_assign(bad, .input[0] = batch.input[0], .target[0] = turned(&batch.target[0], EK_I64));
  ((int64_t *)bad.target[0].data)[2] = INT64_C(-3000000000);
  ck_invalid(ek_trainer_step(&result, trainer, bad.input, 1, bad.target, 1),
             "criterion forward: target number 0: element 2");
  bad = batch;
  bad.input[0].type = EK_F32; /* as large as an i32 */
  ck_fails(ek_trainer_step(&result, trainer, bad.input, 1, bad.target, 1), EK_ERR_TYPE,
           "input is f32, expected i32");
  bad = batch;
  bad.target[0].type = EK_F32;
  ck_fails(ek_trainer_step(&result, trainer, bad.input, 1, bad.target, 1), EK_ERR_TYPE, "f32");
  ck_ok(ek_trainer_step(&result, trainer, batch.input, 1, batch.target, 1));
  struct run want = run;
  train(&want, &batch);
  ck_assert_mem_eq(&result.loss, &want.losses[0], sizeof result.loss);
  ck_ok(ek_trainer_close(trainer));
}

CK_TEST(wrong_scalings) {
  struct run run = run_of("mlp", 2);
  ek_trainer *trainer = NULL;
  ek_input_scaling two[2] = {{1, {1}, {0}}, {1, {1}, {0}}};
  const ek_trainer_options options = options_of(&run);
  CK_OPENED(ek_module *, module, run.workload->module(&module));
  CK_OPENED(ek_criterion *, criterion, run.workload->criterion(&criterion, EK_REDUCTION_MEAN));
  CK_OPENED(ek_optimizer *, rule, ck_clipped_adamw(&rule));
#define OPEN() ek_trainer_open(&trainer, ck_spec("cpu:3"), module, criterion, rule, &options)
  ck_assign(run.model, .input_scaling = two, .input_scaling_count = 2);
  ck_invalid(OPEN(), "2 scalings for 1 tensors");
  ck_assign(run.model, .input_scaling_count = 1, .input_scaling = NULL);
  ck_invalid(OPEN(), "or they are NULL");
  run.model.input_scaling = two;
  two[0].channels = 9;
  ck_invalid(OPEN(), "9 channels, expected 1 to 4");
  two[0] = (ek_input_scaling){1, {1}, {0}};
  ck_assign(run.loss, .target_scaling = two, .target_scaling_count = 2);
  ck_invalid(OPEN(), "ek_data_parallel_criterion_open: 2 scalings");
  run.loss.target_scaling_count = 0;
  ck_ok(OPEN());
  memset(two, 0, sizeof two); /* they were copied */
  struct ck_batch batch = ck_batch_make(run.workload, EK_F32, SAMPLES, 0, 5);
  ck_fails(ek_trainer_step(NULL, trainer, batch.input, 1, batch.target, 1), EK_ERR_TYPE,
           "forward: input number 0 is f32; only u8 and u16 in host memory are scaled to f32");
  batch.input[0].type = EK_U8; /* of which there is more than enough */
  ck_ok(ek_trainer_step(NULL, trainer, batch.input, 1, batch.target, 1));
  ck_ok(ek_trainer_close(trainer));
}

CK_SUITE("input_types")
