/*
 * how_do_i.h - the code of docs/how-do-i.md, each piece in a function with the variables that it
 * speaks of. A part of test_shown.c, which includes it where its macros stand for functions of the
 * library and runs every piece with failures.
 */
#ifndef HOW_DO_I_H
#define HOW_DO_I_H

/* ---- on the scene: its model, or its trainer ---- */

SHOWN(answer_own_data) {
  ek_trainer *trainer = s->trainer;
#include "how_do_i_1.inc"
  ck_assert_double_eq(result.loss, 0);
  return EK_OK;
}

/* trainer.h, "The same step in two calls" */
SHOWN(answer_two_calls) {
  ek_trainer *trainer = s->trainer;
  const ek_tensor *tokens = s->inputs, *targets = s->targets;
  const int steps = STEPS_SHOWN;
  ek_step_result result;
  while (ek_trainer_step_end(&result, trainer) == EK_OK) { /* of an attempt that failed */
  }
#include "trainer_2.inc"
  ck_assert(isfinite(result.loss));
  return EK_OK;
}

SHOWN(answer_validation) {
  ek_trainer *trainer = s->trainer;
  const ek_tensor *inputs = s->inputs, *targets = s->targets;
  const int batches = STEPS_SHOWN;
#include "how_do_i_3.inc"
  ck_assert_double_eq(weights, STEPS_SHOWN * SAMPLES_SHOWN * WIDTH);
  return EK_OK;
}

static ek_status make_packed(ek_source **made, ek_module **to) {
  ek_source *source = NULL;
  ek_module *module = NULL;
#include "how_do_i_4.inc"
  *made = source;
  *to = module;
  return EK_OK;
}

/* There are no such files. */
SHOWN(answer_packed) {
  ek_source *source = NULL;
  ek_module *module = NULL;
  const ek_status status = make_packed(&source, &module);
  return status == EK_ERR_NOT_FOUND ? EK_OK : status;
}

SHOWN(answer_rate) {
  ek_trainer *trainer = s->trainer;
  const int64_t step = 0;
  ek_step_result result;
#include "how_do_i_6.inc"
  EK_TRY(ek_trainer_step(&result, trainer, &s->inputs[0], 1, &s->targets[0], 1));
  ck_assert_double_eq(result.learning_rate, 0.1);
  return EK_OK;
}

SHOWN(answer_parts) {
  ek_data_parallel_model *model = s->model;
  ek_data_parallel_criterion *criterion = s->criterion;
  ek_data_parallel_optimizer *optimizer = s->optimizer;
  const ek_tensor *inputs = s->inputs, *targets = s->targets;
  const int parts = STEPS_SHOWN;
  ek_step_result result = {.weight = -1};
  ek_status status = EK_OK;
#include "how_do_i_9.inc"
  if (status == EK_OK) ck_assert_double_eq(result.weight, STEPS_SHOWN * SAMPLES_SHOWN * WIDTH);
  return status;
}

SHOWN(answer_losses) {
  ek_criterion *loss = NULL;
  ek_status status;
#include "how_do_i_11.inc"
  ek_criterion_free(loss);
  return status;
}

static ek_status make_averaged(ek_optimizer **made, ek_optimizer *adamw) {
  ek_optimizer *rule = NULL;
#include "how_do_i_13.inc"
  *made = rule;
  return EK_OK;
}

SHOWN(answer_average) {
  CK_FREED(optimizer) *adamw = NULL, *rule = NULL;
  EK_TRY(ek_adamw_create(&adamw, NULL));
  return make_averaged(&rule, adamw);
}

static ek_status answer_prediction(ek_tensor answers, ek_module *module, const ek_tensor inputs) {
#include "how_do_i_16.inc"
  return status;
}

SHOWN(answer_predict) {
  float numbers[SAMPLES_SHOWN * WIDTH];
  ek_tensor answers = s->inputs[0];
  answers.data = numbers;
  EK_TRY(answer_prediction(answers, s->module, s->inputs[1]));
  ck_assert_float_eq(numbers[1], s->numbers[1][1]); /* all factors are 1 */
  return EK_OK;
}

SHOWN(answer_count) {
  ek_module *module = s->module;
#include "how_do_i_17.inc"
  ck_assert_int_eq(totals.parameters, WIDTH);
  return EK_OK;
}

static ek_status save_position(ek_trainer *trainer, int64_t position) {
#include "how_do_i_19.inc"
  return EK_OK;
}

static ek_status load_position(ek_trainer *trainer, int64_t *where) {
  int64_t position = -1;
#include "how_do_i_20.inc"
  *where = position;
  return EK_OK;
}

/* Saved once: a load that failed halfway leaves a torn model, which the next load mends. */
SHOWN(answer_resume) {
  int64_t position = 0;
  EK_TRY(load_position(s->trainer, &position));
  if (position == -1) {
    const ek_status status = save_position(s->trainer, 17);
    return status == EK_ERR_UNSUPPORTED ? EK_OK : status; /* built without files */
  }
  ck_assert_int_eq(position, 17);
  return EK_OK;
}

static ek_status open_folder(ek_criterion *loss, ek_optimizer *rule) {
  ek_module *module = NULL;
  ek_trainer *trainer = NULL;
#include "how_do_i_21.inc"
  return EK_OK;
}

static ek_status save_folder(ek_trainer *trainer) {
#include "how_do_i_22.inc"
  return EK_OK;
}

/* The folder that is read is not there. */
SHOWN(answer_weights) {
  const ek_status nowhere = open_folder(NULL, NULL);
  if (nowhere == EK_ERR_OUT_OF_MEMORY) return nowhere;
  ck_assert_int_eq(nowhere, EK_ERR_NOT_FOUND);
  const ek_status status = save_folder(s->trainer);
  (void)remove("fine-tuned/model.safetensors");
  (void)remove("fine-tuned/config.json");
  (void)remove("fine-tuned");
  return status == EK_ERR_UNSUPPORTED ? EK_OK : status; /* built without files, or no names */
}

SHOWN(answer_trace) {
  ek_trainer *trainer = s->trainer;
  const ek_tensor inputs = s->inputs[0], targets = s->targets[0];
#include "how_do_i_23.inc"
  (void)remove("step.json");
  return EK_OK;
}

static ek_status tell_metrics(ek_metrics *metrics) {
  const ek_step_result result = {.step = 1};
  const double tokens = 24, loss = 0.5;
#include "how_do_i_24.inc"
  return EK_OK;
}

SHOWN(answer_metrics) {
  ek_metrics *metrics = NULL;
  EK_TRY(ek_metrics_open(&metrics, s->group, "run.prom", "run.jsonl"));
  ek_status status = ek_metrics_resume(metrics, 1000);
  if (status == EK_OK) status = tell_metrics(metrics);
  const ek_status ended = ek_metrics_close(metrics);
  (void)remove("run.prom");
  (void)remove("run.jsonl");
  return status == EK_OK ? ended : status;
}

/* ---- with a trainer of their own ---- */

static ek_status answer_options(const ek_tensor *tokens, const ek_tensor *targets, int steps) {
  CK_FREED(module) *gpt = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *adamw = NULL;
  SHOWN_TRAINER *trainer = NULL;
  ek_schedule schedule;
  ek_step_result result;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer_options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ek_status status;
  options.model = &model_options;
  options.optimizer = &optimizer_options;
#include "how_do_i_7.inc"
#include "how_do_i_5.inc"
#include "how_do_i_8.inc"
#include "how_do_i_10.inc"
#include "how_do_i_14.inc"
#include "how_do_i_12.inc" /* patterns for its parameters */
  EK_TRY(ek_gpt_create(&gpt, NULL));
  EK_TRY(ek_cross_entropy_create(&loss, NULL));
  EK_TRY(ek_trainer_open(&trainer, "cpu:4", gpt, loss, adamw, &options));
  for (int i = 0; i < steps; i++) {
    EK_TRY(ek_trainer_step(&result, trainer, &tokens[i], 1, &targets[i], 1));
    ck_assert_double_eq(result.learning_rate, 6e-4 * (i + 1) / 2000);
  }
cleanup:
  return status;
}

static ek_status answer_plan(const ek_tensor *tokens, const ek_tensor *targets, int steps) {
  CK_FREED(module) *gpt = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *adamw = NULL;
  SHOWN_TRAINER *trainer = NULL;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_status status;
  (void)steps;
  EK_TRY(ek_gpt_create(&gpt, NULL));
  EK_TRY(ek_cross_entropy_create(&loss, NULL));
  EK_TRY(ek_adamw_create(&adamw, NULL));
#include "how_do_i_18.inc"
  ck_assert_uint_gt(usage.peak_bytes, 0);
cleanup:
  return status;
}

/* What bytes become is what a scale_module, whose factors begin as ones, gives back. */
static ek_status answer_pixels(void) {
  unsigned char bytes[SAMPLES_SHOWN * WIDTH];
  float numbers[SAMPLES_SHOWN * WIDTH];
  const int64_t shape[] = {SAMPLES_SHOWN, WIDTH};
  ek_tensor inputs, targets;
  CK_FREED(module) *scale = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *adamw = NULL;
  SHOWN_TRAINER *trainer = NULL;
  ek_step_result result;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.model = &model_options;
  for (int i = 0; i < SAMPLES_SHOWN * WIDTH; i++) {
    bytes[i] = (unsigned char)(255 - i);
    const double product = (1 / 255.0) * bytes[i];
    numbers[i] = (float)(product - 0.5);
  }
  EK_TRY(ek_tensor_host(&inputs, bytes, EK_U8, 2, shape));
  EK_TRY(ek_tensor_host(&targets, numbers, EK_F32, 2, shape));
#include "how_do_i_2.inc"
  EK_TRY(scale_create(&scale, WIDTH));
  EK_TRY(ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  EK_TRY(ek_adamw_create(&adamw, NULL));
  EK_TRY(ek_trainer_open(&trainer, "cpu:4", scale, loss, adamw, &options));
  EK_TRY(ek_trainer_step(&result, trainer, &inputs, 1, &targets, 1));
  ck_assert_double_eq(result.loss, 0);
  return EK_OK;
}

#include "how_do_i_15.inc"

/* Factors of a scale_module move from 1 by the rate, up or down, and decay by a tenth of it. */
static ek_status answer_optimizer(void) {
  float numbers[2][SAMPLES_SHOWN * WIDTH], factors[WIDTH];
  const int64_t shape[] = {SAMPLES_SHOWN, WIDTH};
  ek_tensor inputs, targets;
  CK_FREED(module) *scale = NULL;
  CK_FREED(criterion) *loss = NULL;
  CK_FREED(optimizer) *lion = NULL;
  SHOWN_TRAINER *trainer = NULL;
  ek_state_info info;
  for (int i = 0; i < SAMPLES_SHOWN * WIDTH; i++) {
    numbers[0][i] = (float)i + 2;
    numbers[1][i] = (float)i + 1;
  }
  EK_TRY(ek_tensor_host(&inputs, numbers[0], EK_F32, 2, shape));
  EK_TRY(ek_tensor_host(&targets, numbers[1], EK_F32, 2, shape));
  EK_TRY(scale_create(&scale, WIDTH));
  EK_TRY(ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  EK_TRY(lion_create(&lion, 0.25));
  EK_TRY(ek_trainer_open(&trainer, "cpu:4", scale, loss, lion, NULL));
  EK_TRY(ek_trainer_step(NULL, trainer, &inputs, 1, &targets, 1));
  EK_TRY(ek_state_entry(&info, ek_trainer_model(trainer), 0));
  info.like.data = factors;
  EK_TRY(ek_state_read(&info.like, ek_trainer_model(trainer), info.name));
  for (int i = 0; i < WIDTH; i++) ck_assert_float_eq(factors[i], 0.725f); /* y was above t */
  return EK_OK;
}

#endif /* HOW_DO_I_H */
