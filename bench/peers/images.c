/*
 * evenkeel-images - losses and times of an image model on one batch, for a comparison with another
 * program (torch2_images.py).
 *
 *     evenkeel-images MODEL WEIGHTS PICTURES TARGETS BATCH,SIZE,CLASSES STEPS f32|f64|bf16
 *                     DEVICES OUT [RECOMPUTE [MODE [NORM]]]
 *
 * MODEL is resnet18-small (the beginning for small pictures), resnet18, resnet50 or fcn50. It
 * begins with the WEIGHTS of a safetensors file with torchvision's names, and takes STEPS steps of
 * SGD with a rate of 0.001 and momentum 0.9 on the same batch, in mode replicated, with batch norm
 * over all devices (fcn50 without dropout). PICTURES has f32 numbers [BATCH][SIZE][SIZE][3],
 * TARGETS i32 classes of pictures or of pixels. RECOMPUTE is a policy of recompute.h, MODE another
 * mode, NORM `shard` for batch norm over each device's own samples (else `all`). Prints
 * `step K loss L seconds S processor P`, P being the time of all processors; OUT gets the weights
 * after the last step, in the type of the model.
 *
 * Exit code 1 if something failed, 2 for a wrong command line.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <evenkeel/evenkeel.h>
#include <evenkeel/fcn.h>
#include <evenkeel/resnet.h>

#include "parse.h"
#include "terminal.h"

enum { ARGUMENTS = 10, MOST_ARGUMENTS = 13, CHANNELS = 3 };

struct task {
  const char *model, *weights, *pictures, *targets, *devices, *out;
  int64_t batch, size, classes, steps;
  ek_precision precision;
  ek_recompute recompute;
  ek_mode mode;
  ek_batch_norm_over over;
};

static bool segments(const struct task *task) { return strcmp(task->model, "fcn50") == 0; }

static ek_status create_model(ek_module **module, const struct task *task) {
  ek_batch_norm_options norm = EK_BATCH_NORM_OPTIONS_INIT;
  ek_resnet_options resnet = EK_RESNET_OPTIONS_INIT;
  ek_fcn_options fcn = EK_FCN_OPTIONS_INIT;
  norm.over = task->over;
  resnet.norm = &norm;
  resnet.recompute = task->recompute;
  resnet.classes = fcn.classes = task->classes;
  resnet.small_pictures = strcmp(task->model, "resnet18-small") == 0;
  if (strstr(task->model, "50") != NULL) resnet.depth = 50;
  fcn.backbone = &resnet;
  fcn.dropout = 0;
  return segments(task) ? ek_fcn_create(module, &fcn) : ek_resnet_create(module, &resnet);
}

/* Of two outputs the second counts half, as in torchvision's training. */
static ek_status create_loss(ek_criterion **loss, const struct task *task) {
  static const double coefficients[] = {1, 0.5};
  ek_criterion *one = NULL;
  EK_TRY(ek_cross_entropy_create(&one, NULL));
  if (!segments(task)) {
    *loss = one;
    return EK_OK;
  }
  ek_criterion *const both[] = {one, one};
  const ek_status status = ek_weighted_sum_create(loss, both, coefficients, 2);
  ek_criterion_free(one);
  return status;
}

static ek_status open_trainer(ek_trainer **trainer, const struct task *task) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = EK_OK;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_group_options group = EK_GROUP_OPTIONS_INIT;
  options.model = &model;
  EK_TRY(ek_data_parallel_model_options_set_mode(&model, task->mode));
  options.group_options = &group;
  sgd.learning_rate = 0.001;
  sgd.momentum = 0.9;
  if (task->precision == EK_PRECISION_F64) model.type = EK_F64;
  else model.precision = task->precision;
  EK_TRY_GOTO(status, create_model(&module, task), cleanup);
  EK_TRY_GOTO(status, create_loss(&loss, task), cleanup);
  EK_TRY_GOTO(status, ek_sgd_create(&rule, &sgd), cleanup);
  status = ek_trainer_open(trainer, task->devices, module, loss, rule, &options);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

static ek_status read_numbers(void *to, size_t count, const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) return ek_error_set(EK_ERR_IO, "%s: %s", path, strerror(errno));
  const size_t got = fread(to, 4, count, file);
  (void)fclose(file);
  if (got == count) return EK_OK;
  return ek_error_set(EK_ERR_IO, "%s: %zu numbers of 4 bytes, expected %zu", path, got, count);
}

static double seconds_of(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static ek_status take_steps(ek_trainer *trainer, const struct task *task, const ek_tensor *pictures,
                            const ek_tensor *targets) {
  const ek_tensor both[] = {*targets, *targets};
  for (int64_t step = 1; step <= task->steps; step++) {
    ek_step_result result;
    const double began = seconds_of(CLOCK_MONOTONIC);
    const double used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    EK_TRY(ek_trainer_step(&result, trainer, pictures, 1, both, segments(task) ? 2 : 1));
    printf("step %" PRId64 " loss %.17g seconds %.6f processor %.6f\n", step, result.loss,
           seconds_of(CLOCK_MONOTONIC) - began, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used);
  }
  return EK_OK;
}

static ek_status run(const struct task *task) {
  const int64_t pixels = task->batch * task->size * task->size;
  const int64_t shape[] = {task->batch, task->size, task->size, CHANNELS};
  const bool f64 = task->precision == EK_PRECISION_F64;
  const int64_t count = pixels * CHANNELS, target_count = segments(task) ? pixels : task->batch;
  float *numbers = need_memory((size_t)count, sizeof *numbers);
  double *wide = need_memory((size_t)count, sizeof *wide);
  int32_t *classes = need_memory((size_t)target_count, sizeof *classes);
  ek_trainer *trainer = NULL;
  ek_tensor pictures, targets;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, read_numbers(numbers, (size_t)count, task->pictures), cleanup);
  EK_TRY_GOTO(status, read_numbers(classes, (size_t)target_count, task->targets), cleanup);
  for (int64_t i = 0; i < count; i++) wide[i] = numbers[i];
  EK_TRY_GOTO(status, open_trainer(&trainer, task), cleanup);
  EK_TRY_GOTO(status, ek_weights_load(ek_trainer_model(trainer), task->weights, NULL), cleanup);
  EK_TRY_GOTO(status, ek_tensor_host(&pictures, f64 ? (void *)wide : numbers, f64 ? EK_F64 : EK_F32,
                                     4, shape), cleanup);
  EK_TRY_GOTO(status, ek_tensor_host(&targets, classes, EK_I32, segments(task) ? 3 : 1, shape),
              cleanup);
  EK_TRY_GOTO(status, take_steps(trainer, task, &pictures, &targets), cleanup);
  status = ek_weights_save(ek_trainer_model(trainer), task->out, NULL);
cleanup:
  ek_trainer_free(trainer);
  free(numbers);
  free(wide);
  free(classes);
  return status;
}

/* The arguments that may be there. */
static bool read_rest(struct task *task, int argc, char **argv) {
  const bool recomputes = argc > ARGUMENTS, chooses = argc > ARGUMENTS + 1;
  const char *norm = argc > ARGUMENTS + 2 ? argv[ARGUMENTS + 2] : "all";
  task->mode = EK_MODE_REPLICATED;
  task->over = strcmp(norm, "shard") == 0 ? EK_BATCH_NORM_SHARD : EK_BATCH_NORM_ALL;
  if (task->over == EK_BATCH_NORM_ALL && strcmp(norm, "all") != 0) return false;
  if (recomputes && ek_recompute_parse(&task->recompute, argv[ARGUMENTS]) != EK_OK) return false;
  return !chooses || ek_mode_parse(&task->mode, argv[ARGUMENTS + 1]) == EK_OK;
}

static bool read_task(struct task *task, char **argv) {
  static const char *const models[] = {"resnet18-small", "resnet18", "resnet50", "fcn50"};
  static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_F64, EK_PRECISION_BF16};
  bool known = false, computes = false;
  *task = (struct task){.model = argv[1], .weights = argv[2], .pictures = argv[3],
                        .targets = argv[4], .devices = argv[8], .out = argv[9]};
  for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
    known = known || strcmp(models[i], task->model) == 0;
  }
  for (size_t i = 0; i < sizeof precisions / sizeof precisions[0]; i++) {
    if (strcmp(argv[7], ek_precision_name(precisions[i])) != 0) continue;
    task->precision = precisions[i];
    computes = true;
  }
  char rest = '\0';
  return known && computes &&
         sscanf(argv[5], "%" SCNd64 ",%" SCNd64 ",%" SCNd64 "%c", &task->batch, &task->size,
                &task->classes, &rest) == 3 &&
         task->batch > 0 && task->size > 0 && task->batch <= 4096 && task->size <= 4096 &&
         parse_whole(&task->steps, argv[6], 0, 1 << 20);
}

int main(int argc, char **argv) {
  struct task task;
  terminal_program = "evenkeel-images";
  terminal_start(false);
  if (argc < ARGUMENTS || argc > MOST_ARGUMENTS || !read_task(&task, argv) ||
      !read_rest(&task, argc, argv)) {
    say_error(
        "usage: evenkeel-images resnet18-small|resnet18|resnet50|fcn50 WEIGHTS PICTURES TARGETS "
        "BATCH,SIZE,CLASSES STEPS f32|f64|bf16 DEVICES OUT [RECOMPUTE [MODE [all|shard]]]");
    return 2;
  }
  if (run(&task) == EK_OK && fflush(stdout) == 0) return 0;
  say_error("%s", ek_error_message());
  return 1;
}
