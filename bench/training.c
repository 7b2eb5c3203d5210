/*
 * training.c - one training run through the library's public interface.
 */
#include "training.h"

#include <stdlib.h>
#include <string.h>

#include "pictures.h"
#include "statistics.h"

ek_type training_type(enum precision precision) {
  return ek_precision_type(precision_value(precision));
}

/* Statistics are those of the whole batch, so that the losses of all modes agree. Pictures that are
 * small have the smaller beginning. */
static ek_status make_images(ek_module **module, const struct shape *shape) {
  ek_batch_norm_options norm = EK_BATCH_NORM_OPTIONS_INIT;
  ek_resnet_options resnet = EK_RESNET_OPTIONS_INIT;
  ek_fcn_options fcn = EK_FCN_OPTIONS_INIT;
  norm.over = EK_BATCH_NORM_ALL;
  resnet.depth = (int)shape->layers;
  resnet.classes = fcn.classes = shape->vocab;
  resnet.width = shape->width;
  resnet.small_pictures = shape->image < 64;
  resnet.norm = &norm;
  resnet.recompute = shape->recompute;
  fcn.auxiliary = false;
  fcn.dropout = 0;
  fcn.backbone = &resnet;
  return shape->segments ? ek_fcn_create(module, &fcn) : ek_resnet_create(module, &resnet);
}

ek_status training_model(ek_module **module, ek_criterion **loss, const struct shape *shape,
                         bool fused_loss, enum precision precision) {
  ek_cross_entropy_options options = EK_CROSS_ENTROPY_OPTIONS_INIT;
  if (shape->image > 0) {
    if (fused_loss) return ek_error_set(EK_ERR_UNSUPPORTED, "images have no fused loss");
    EK_TRY(make_images(module, shape));
    return ek_cross_entropy_create(loss, &options);
  }
  const int64_t columns = ek_tensor_aligned_columns(shape->vocab, training_type(precision));
  EK_TRY(shape_language_model(module, shape, 0, fused_loss, fused_loss ? 0 : columns));
  if (fused_loss) return EK_OK;
  options.classes = shape->vocab;
  return ek_cross_entropy_create(loss, &options);
}

static ek_status make_model(struct training *training) {
  const struct task *task = training->task;
  EK_TRY(training_model(&training->module, &training->loss, task->shape, task->options->fused_loss,
                        task->precision));
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.seed = task->options->seed;
  options.reproducible = task->options->reproducible;
  options.precision = precision_value(task->precision);
  options.gradient_type = training_type(task->options->gradients);
  options.bucket_bytes = task->options->bucket_bytes;
  EK_TRY(ek_data_parallel_model_options_set_mode(&options, task->mode));
  return ek_data_parallel_model_open(&training->model, training->group, training->module, &options);
}

static ek_status make_criterion(struct training *training) {
  ek_data_parallel_criterion_options options = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  options.keep_outputs = training->task->shape->keep_outputs;
  options.gradient_in_forward = !options.keep_outputs;
  return ek_data_parallel_criterion_open(&training->criterion, training->model, training->loss,
                                         &options);
}

ek_status training_rule(ek_optimizer **rule, const struct options *options) {
  if (options->rule == RULE_SGD) {
    ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
    sgd.learning_rate = 0.01;
    sgd.momentum = 0.9;
    return ek_sgd_create(rule, &sgd);
  }
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  adamw.learning_rate = 3e-4;
  return ek_adamw_create(rule, &adamw);
}

static ek_status make_optimizer(struct training *training) {
  EK_TRY(training_rule(&training->rule, training->task->options));
  /* The peers compute no norm either where nothing clips. */
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.gradient_norm = false;
  return ek_data_parallel_optimizer_open(&training->optimizer, training->model, training->rule,
                                         &options);
}

/* Elements of a sample: of what the model gets, and of targets. */
static size_t input_elements(const struct shape *shape) {
  return (size_t)(shape->image > 0 ? shape->image * shape->image * PICTURE_COLOURS : shape->seq);
}
static size_t target_elements(const struct shape *shape) {
  return (size_t)(shape->segments ? shape->image * shape->image : shape->seq);
}

ek_status training_batch(ek_tensor *inputs, ek_tensor *targets, const struct shape *shape,
                         void *input_values, int32_t *target_values, int64_t first,
                         int64_t samples) {
  const int64_t side = shape->image, tokens[] = {samples, shape->seq};
  const int64_t pictures[] = {samples, side, side, PICTURE_COLOURS};
  const bool images = side > 0;
  float *floats = input_values;
  void *at = floats + (size_t)first * input_elements(shape); /* tokens have that size too */
  EK_TRY(ek_tensor_host(inputs, at, images ? EK_F32 : EK_I32, images ? 4 : 2,
                        images ? pictures : tokens));
  return ek_tensor_host(targets, target_values + (size_t)first * target_elements(shape), EK_I32,
                        shape->segments ? 3 : images ? 1 : 2, images ? pictures : tokens);
}

/*
 * calloc() and not malloc(): the batch of a run that only counts is never touched, and costs no
 * memory however large it is.
 */
static ek_status make_batch(struct training *training) {
  const struct shape *shape = training->task->shape;
  const size_t samples = (size_t)shape->batch;
  training->inputs = calloc(samples, input_elements(shape) * sizeof(int32_t));
  training->targets = calloc(samples, target_elements(shape) * sizeof(int32_t));
  if (training->inputs != NULL && training->targets != NULL) return EK_OK;
  return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory for a batch of %lld samples",
                      (long long)shape->batch);
}

ek_status training_open_group(struct training *training, const struct task *task) {
  training->task = task;
  const ek_group_options options = group_options(task->options, task->threads);
  EK_TRY(ek_group_open(&training->group, task->spec, &options));
  if (ek_group_size(training->group) <= BENCH_MAX_DEVICES) return EK_OK;
  return ek_error_set(EK_ERR_UNSUPPORTED, "the benchmark runs on at most %d devices, not on %zu",
                      BENCH_MAX_DEVICES, ek_group_size(training->group));
}

ek_status training_open_model(struct training *training) {
  EK_TRY(make_model(training));
  EK_TRY(make_criterion(training));
  EK_TRY(make_optimizer(training));
  return make_batch(training);
}

void training_close(struct training *training) {
  ek_data_parallel_optimizer_free(training->optimizer);
  ek_optimizer_free(training->rule);
  ek_data_parallel_criterion_free(training->criterion);
  ek_criterion_free(training->loss);
  ek_data_parallel_model_free(training->model);
  ek_module_free(training->module);
  free(training->inputs);
  free(training->targets);
  ek_group_free(training->group);
  memset(training, 0, sizeof *training);
}

void training_prepare(struct training *training) {
  const struct task *task = training->task;
  if (task->text != NULL && task->shape->image > 0) {
    pictures_batch(training->inputs, training->targets, task->shape, task->options->seed,
                   training->next_step);
  } else if (task->text != NULL) {
    text_batch(task->text, training->inputs, training->targets, task->shape->batch,
               task->shape->seq, task->options->seed, training->next_step);
  }
  training->next_step++;
}

static void mark_phase(struct phases *phases, const char *name, double begin, double end) {
  if (phases == NULL || phases->count == TRAINING_PHASES) return;
  phases->list[phases->count++] = (struct phase){name, begin, end};
}

/* Waits for the devices if `laps` are taken, and adds the time since *since to *lap. */
static ek_status take_lap(struct training *training, const char *name, double *lap, double *since) {
  if (lap == NULL) return EK_OK;
  EK_TRY(ek_group_synchronize(training->group));
  const double now = clock_seconds();
  *lap += now - *since;
  mark_phase(training->phases, name, *since, now);
  *since = now;
  return EK_OK;
}

/* Forward, criterion and backward of some of the batch's samples; `split` may be NULL, and is added
 * to. The outputs are freed in any case. */
static ek_status compute_part(struct training *training, int64_t first, int64_t samples,
                              bool accumulate, struct split *split) {
  const struct task *task = training->task;
  const ek_scatter_options scatter = scatter_options(&task->options->scatter);
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  if (task->options->reproducible == 0) forward.scatter = &scatter;
  ek_criterion_backward_options backward = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  backward.accumulate = accumulate;
  int64_t skipped = 0, own = 0; /* the batch of all processes is known to each */
  EK_TRY(ek_world_rows(&skipped, &own, training->group, samples,
                       task->options->reproducible));
  training->rows += own;
  const size_t targets = task->options->fused_loss ? 0 : 1; /* else they are inputs */
  ek_tensor batch[2];
  EK_TRY(training_batch(&batch[0], &batch[1], task->shape, training->inputs, training->targets,
                        first + skipped, own));
  double since = clock_seconds();
  ek_shards outputs = {0};
  ek_status status = EK_OK;
  EK_TRY_GOTO(
      status,
      ek_data_parallel_model_forward(&outputs, training->model, batch, 2 - targets, &forward),
      cleanup);
  EK_TRY_GOTO(status, take_lap(training, "forward", split == NULL ? NULL : &split->forward, &since),
              cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_criterion_forward(training->criterion, &outputs, 1,
                                                 targets == 0 ? NULL : &batch[1], targets),
              cleanup);
  EK_TRY_GOTO(status, take_lap(training, "loss", split == NULL ? NULL : &split->loss, &since),
              cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_criterion_backward(training->criterion, &backward),
              cleanup);
  EK_TRY_GOTO(status,
              take_lap(training, "backward", split == NULL ? NULL : &split->backward, &since),
              cleanup);
cleanup:
  ek_shards_free(&outputs);
  return status;
}

/* The whole batch, in micro-batches of sizes that differ by at most one, as a trainer does it. */
static ek_status compute_gradients(struct training *training, bool accumulate,
                                   struct split *split) {
  const struct shape *shape = training->task->shape;
  const int64_t wanted = shape->micro_batches > 1 ? shape->micro_batches : 1;
  const int64_t parts = wanted < shape->batch ? wanted : shape->batch;
  int64_t first = 0;
  training->rows = 0;
  for (int64_t i = 0; i < parts; i++) {
    const int64_t samples = shape->batch / parts + (i < shape->batch % parts ? 1 : 0);
    EK_TRY(compute_part(training, first, samples, accumulate || i + 1 < parts, split));
    first += samples;
  }
  return EK_OK;
}

ek_status training_step(struct training *training, double *loss, double *seconds) {
  const double start = clock_seconds();
  EK_TRY(compute_gradients(training, false, NULL));
  ek_step_result result = {0};
  EK_TRY(ek_data_parallel_optimizer_step(&result, training->optimizer));
  EK_TRY(ek_group_synchronize(training->group));
  *seconds = clock_seconds() - start;
  *loss = result.loss;
  training->skipped_steps += result.skipped;
  training->loss_scale = result.loss_scale;
  return EK_OK;
}

static ek_status begin_steps(struct training *training, int64_t steps) {
  ek_step_result result;
  for (int64_t i = 0; i < steps; i++) {
    EK_TRY(compute_gradients(training, false, NULL));
    EK_TRY(ek_data_parallel_optimizer_step_begin(training->optimizer));
    if (i > 0) EK_TRY(ek_data_parallel_optimizer_step_end(&result, training->optimizer));
  }
  return ek_data_parallel_optimizer_step_end(&result, training->optimizer);
}

ek_status training_steps_begun(struct training *training, int64_t steps, double *seconds) {
  const double start = clock_seconds();
  EK_TRY(begin_steps(training, steps));
  EK_TRY(ek_group_synchronize(training->group));
  *seconds = (clock_seconds() - start) / (double)steps;
  return EK_OK;
}

/* The gradients without reduction, dropped. */
static ek_status compute_and_drop(struct training *training, struct split *split) {
  EK_TRY(compute_gradients(training, true, split));
  return ek_data_parallel_model_discard(training->model);
}

static ek_status step_behind(struct training *training, const struct split *without,
                             struct split *split) {
  EK_TRY(compute_gradients(training, false, split));
  double since = clock_seconds();
  EK_TRY(ek_data_parallel_optimizer_step(NULL, training->optimizer));
  EK_TRY(take_lap(training, "optimizer", &split->optimizer, &since));
  split->reduce = split->backward > without->backward ? split->backward - without->backward : 0;
  split->backward -= split->reduce;
  return EK_OK;
}

ek_status training_step_split(struct training *training, struct split *split) {
  struct split without = {0};
  *split = without;
  EK_TRY(compute_and_drop(training, &without));
  return step_behind(training, &without, split);
}

/* The last backward, which reduces, ends earlier by what the reduction took. */
static void mark_reduce(struct phases *phases, double seconds) {
  for (size_t i = phases->count; i-- > 0;) {
    struct phase *phase = &phases->list[i];
    if (strcmp(phase->name, "backward") != 0) continue;
    const double end = phase->end, left = end - phase->begin;
    phase->end = end - (seconds < left ? seconds : left);
    const double begin = phase->end; /* the next call may fill the list */
    if (seconds > 0) mark_phase(phases, "reduce", begin, end);
    return;
  }
}

static int by_begin(const void *left, const void *right) {
  const double a = ((const struct phase *)left)->begin, b = ((const struct phase *)right)->begin;
  return (a > b) - (a < b);
}

ek_status training_step_phases(struct training *training, struct phases *phases,
                               ek_status (*before)(void *context), void *context) {
  struct split without = {0}, split = {0};
  EK_TRY(compute_and_drop(training, &without));
  EK_TRY(before(context));
  training->phases = phases;
  const ek_status status = step_behind(training, &without, &split);
  training->phases = NULL;
  mark_reduce(phases, split.reduce);
  qsort(phases->list, phases->count, sizeof *phases->list, by_begin);
  return status;
}
