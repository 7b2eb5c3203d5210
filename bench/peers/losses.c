/*
 * evenkeel-losses - the losses of a GPT on batches from a file, for a comparison with another
 * program.
 *
 *     evenkeel-losses LAYERS,WIDTH,HEADS,SEQUENCE,BATCH WEIGHTS
 *     evenkeel-losses LAYERS,WIDTH,HEADS,SEQUENCE,BATCH WEIGHTS TOKENS PRECISION \
 *       [DEVICES [RATE [WARMUP]]]
 *
 * The first writes initial weights as a safetensors file with Hugging Face's names of GPT-2. The
 * second begins with those of that file, in the other program's hands meanwhile or not, and trains
 * in mode sharded (on cpu:2): AdamW with a constant rate (1e-3), no dropout. With WARMUP it is the
 * recipe of llm.c: that many steps to the rate and a cosine to 0, betas 0.9 and 0.95, decay 0.1,
 * the gradient clipped to 1. TOKENS has 32-bit integers [steps][BATCH][SEQUENCE + 1], ids below
 * 256. Prints `step K loss L`, as train_text --exact does, with ` skipped` after it for a step that
 * overflowed in f16.
 *
 * Exit code 1 if something failed, 2 for a wrong command line.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "parse.h"
#include "terminal.h"

enum { VOCABULARY = 256, SEED = 1234, SIZES = 5 };

struct task {
  int64_t layers, width, heads, sequence, batch;
  const char *weights, *tokens, *devices;
  ek_precision precision;
  double rate;
  int64_t warmup, steps; /* warmup -1: a constant rate */
};

static ek_status open_trainer(ek_trainer **trainer, const struct task *task) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = EK_OK;
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  gpt.vocabulary = VOCABULARY;
  gpt.sequence = task->sequence;
  gpt.width = task->width;
  gpt.layers = (int)task->layers;
  gpt.heads = (int)task->heads;
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  ek_schedule schedule;
  adamw.learning_rate = task->rate;
  EK_TRY_GOTO(status, ek_schedule_constant(&schedule, task->rate), cleanup);
  if (task->warmup >= 0) {
    adamw.beta2 = 0.95;
    adamw.weight_decay = 0.1;
    adamw.clip_norm = 1;
    EK_TRY_GOTO(status,
                ek_schedule_warmup_cosine(&schedule, task->rate, 0, task->warmup, task->steps),
                cleanup);
  }
  EK_TRY_GOTO(status, ek_gpt_create(&module, &gpt), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, &adamw), cleanup);
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  update.schedule = &schedule;
  options.optimizer = &update;
  options.model = &model_options;
  model_options.state = EK_STATE_SHARDED;
  model_options.seed = SEED;
  model_options.precision = task->precision;
  status = ek_trainer_open(trainer, task->devices, module, loss, rule, &options);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

/* A row of the file has one token more than an input: the targets are the tokens one further on. */
static ek_status step_on(ek_step_result *result, ek_trainer *trainer, const struct task *task,
                         const int32_t *rows, int32_t *inputs, int32_t *targets) {
  const size_t length = (size_t)task->sequence;
  for (size_t b = 0; b < (size_t)task->batch; b++) {
    const int32_t *row = rows + b * (length + 1);
    memcpy(inputs + b * length, row, length * sizeof *row);
    memcpy(targets + b * length, row + 1, length * sizeof *row);
  }
  const int64_t shape[] = {task->batch, task->sequence};
  ek_tensor input, target;
  EK_TRY(ek_tensor_host(&input, inputs, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&target, targets, EK_I32, 2, shape));
  return ek_trainer_step(result, trainer, &input, 1, &target, 1);
}

static ek_status train_on(ek_trainer *trainer, const struct task *task, FILE *file) {
  const size_t tokens = (size_t)(task->batch * task->sequence);
  const size_t row_tokens = tokens + (size_t)task->batch;
  int32_t *rows = need_memory(row_tokens, sizeof *rows);
  int32_t *inputs = need_memory(tokens, sizeof *inputs);
  int32_t *targets = need_memory(tokens, sizeof *targets);
  ek_status status = EK_OK;
  size_t got = 0;
  for (int64_t step = 1; (got = fread(rows, sizeof *rows, row_tokens, file)) == row_tokens;
       step++) {
    ek_step_result result;
    status = step_on(&result, trainer, task, rows, inputs, targets);
    if (status != EK_OK) break;
    printf("step %" PRId64 " loss %.17g%s\n", step, result.loss, result.skipped ? " skipped" : "");
  }
  if (status == EK_OK && (ferror(file) || got != 0)) {
    status = ek_error_set(EK_ERR_IO, "%s: cannot be read, or its length is not a multiple of %zu "
                                     "tokens, one step",
                          task->tokens, row_tokens);
  }
  free(rows);
  free(inputs);
  free(targets);
  return status;
}

/* How many steps the file of tokens has; 1 where that is not known. */
static int64_t count_steps(const struct task *task) {
  FILE *file = task->tokens == NULL ? NULL : fopen(task->tokens, "rb");
  const int64_t step = task->batch * (task->sequence + 1) * (int64_t)sizeof(int32_t);
  int64_t steps = 1;
  if (file == NULL) return steps;
  if (fseek(file, 0, SEEK_END) == 0 && ftell(file) >= step) steps = ftell(file) / step;
  (void)fclose(file);
  return steps;
}

static ek_status run(const struct task *task) {
  size_t count = 0;
  ek_weights_options names = EK_WEIGHTS_OPTIONS_INIT;
  names.names = ek_gpt_hugging_face(&count);
  names.name_count = count;
  ek_trainer *trainer = NULL;
  ek_status status = EK_OK;
  FILE *file = NULL;
  EK_TRY_GOTO(status, open_trainer(&trainer, task), cleanup);
  ek_data_parallel_model *model = ek_trainer_model(trainer);
  if (task->tokens == NULL) {
    status = ek_weights_save(model, task->weights, &names);
    goto cleanup;
  }
  EK_TRY_GOTO(status, ek_weights_load(model, task->weights, &names), cleanup);
  file = fopen(task->tokens, "rb");
  if (file == NULL) {
    status = ek_error_set(EK_ERR_IO, "%s: %s", task->tokens, strerror(errno));
    goto cleanup;
  }
  status = train_on(trainer, task, file);
cleanup:
  if (file != NULL) (void)fclose(file);
  const ek_status freed = ek_trainer_close(trainer);
  return status == EK_OK ? freed : status;
}

static bool read_sizes(struct task *task, const char *text) {
  int64_t *const sizes[SIZES] = {&task->layers, &task->width, &task->heads, &task->sequence,
                                 &task->batch};
  char word[32];
  for (size_t i = 0; i < SIZES; i++) {
    const size_t length = strcspn(text, ",");
    if (length >= sizeof word || (text[length] == '\0') != (i + 1 == SIZES)) return false;
    memcpy(word, text, length);
    word[length] = '\0';
    if (!parse_whole(sizes[i], word, 1, 1 << 20)) return false;
    text += length + 1;
  }
  return true;
}

static bool read_precision(struct task *task, const char *text) {
  static const ek_precision all[] = {EK_PRECISION_F32, EK_PRECISION_BF16, EK_PRECISION_F16};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (strcmp(text, ek_precision_name(all[i])) != 0) continue;
    task->precision = all[i];
    return true;
  }
  return false;
}

int main(int argc, char **argv) {
  struct task task = {
      .devices = "cpu:2", .precision = EK_PRECISION_F32, .rate = 1e-3, .warmup = -1};
  terminal_program = "evenkeel-losses";
  terminal_start(false);
  const bool good = (argc == 3 || (argc >= 5 && argc <= 8)) && read_sizes(&task, argv[1]) &&
                    (argc < 5 || read_precision(&task, argv[4])) &&
                    (argc < 7 || parse_real(&task.rate, argv[6], 0, 1)) &&
                    (argc < 8 || parse_whole(&task.warmup, argv[7], 0, INT32_MAX));
  if (!good) {
    say_error("usage: evenkeel-losses LAYERS,WIDTH,HEADS,SEQUENCE,BATCH WEIGHTS "
              "[TOKENS f32|bf16|f16 [DEVICES [RATE [WARMUP]]]]");
    return 2;
  }
  task.weights = argv[2];
  if (argc > 3) task.tokens = argv[3];
  if (argc > 5) task.devices = argv[5];
  task.steps = count_steps(&task);
  if (run(&task) == EK_OK && fflush(stdout) == 0) return 0;
  say_error("%s", ek_error_message());
  return 1;
}
