/*
 * train_text.c - trains a small byte-level language model on a text file and continues the text.
 *
 *     train_text FILE [--devices SPEC] [--steps N] [--stop-at K] [--save FOLDER] [--exact]
 *                     [--reproducible GRAINS] [--trace FILE] [--metrics PREFIX]
 *                     [--loss-scale FIRST] [--mode MODE] [--precision f32|tf32|bf16|f16]
 *                     [--gradient-type f32|bf16|f16] [--rate PEAK] [--seed N]
 *
 * A GPT of two blocks reads windows of 64 bytes, learns to predict the next byte over all devices
 * of the group (AdamW, warm-up and cosine, dropout), and then writes 240 bytes of its own.
 *
 *     --stop-at K       stop after step K of N
 *     --save FOLDER     the state of the run is saved there when it ends or stops, and a run that
 *                       finds one there goes on from it
 *     --exact           every step's loss with 17 digits, as `step K loss L`
 *     --reproducible S  the same bits on 1 to S devices
 *     --trace FILE      what every device did in the last steps, for https://ui.perfetto.dev
 *     --metrics PREFIX  PREFIX.prom for Prometheus, and PREFIX.jsonl with a line for each step
 *     --loss-scale FIRST  a dynamic loss scale that begins so, a power of two; `--exact` says
 *                         `skipped` of a step that overflowed
 *     --mode MODE       gather, balanced, replicated (the default), sharded, sharded-gradients or
 *                       fully-sharded
 *     --precision TYPE  what the model computes in (f32)
 *     --gradient-type TYPE  what gradients of parameters are kept and summed in (f32)
 *     --rate PEAK       the learning rate after the warm-up (4e-3), which falls to a tenth
 *     --seed N          of initial weights, dropout and windows (7); a run that goes on has the
 *                       seed that it began with, and refuses another
 *
 * Started by mpirun, torchrun --no-python or srun, the processes train one model together: SPEC is
 * what each of them has, each takes its part of every batch, and the first one prints. A signal to
 * any of them stops all after the same step. SIGINT and SIGTERM stop the run after the step that is
 * under way. The program evenkeel-train does all this, and more, with files of tokens.
 *
 * Devices that only count (plan) go through the steps, and give no text. Exit code 1 if something
 * failed or, in a run that was not interrupted, the loss did not fall; 2 for a wrong command line.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

enum { BYTES = 256, WINDOW = 64, BATCH = 16, CONTINUATION = 240, PROMPT = 32, SEED = 7 };

struct settings {
  const char *path, *devices, *save, *trace, *metrics, *mode, *precision, *gradients;
  long steps, stop_at;     /* stop_at 0: when all are done */
  long seed;               /* 0: not given */
  long reproducible;       /* grains; 0: off */
  double rate, loss_scale; /* loss_scale 0: none */
  int exact;
};

static ek_world *world; /* the processes that train together; for the signals */

static void ask_to_stop(int number) {
  (void)number;
  ek_world_request_stop(world);
}

/* ---- the text as a source of windows ---- */

/* Sample s is the window at byte s; the target of each byte is the next one. */
struct text {
  ek_source source; /* the first member */
  unsigned char *bytes;
  size_t length;
};

static ek_status read_windows(const ek_source *source, const ek_source_request *request,
                              ek_tensor *tensors) {
  const struct text *text = (const struct text *)source;
  for (int64_t i = 0; i < request->count; i++) {
    const unsigned char *window = text->bytes + request->samples[i];
    memcpy((unsigned char *)tensors[0].data + i * WINDOW, window, WINDOW);
    memcpy((unsigned char *)tensors[1].data + i * WINDOW, window + 1, WINDOW);
  }
  return EK_OK;
}

static void free_text(ek_source *source) { (void)source; /* main() has the text, and frees it */ }

static ek_status open_windows(struct text *text, uint64_t seed) {
  static const ek_source_ops ops = {
      .size = sizeof ops, .kind = "text", .read = read_windows, .free = free_text};
  static const ek_source_tensor tensors[] = {{EK_U8, 1, {WINDOW}}, {EK_U8, 1, {WINDOW}}};
  ek_source_options options = EK_SOURCE_OPTIONS_INIT;
  options.samples = (int64_t)(text->length - WINDOW);
  options.tensors = tensors;
  options.seed = seed;
  return ek_source_init(&text->source, &ops, &options);
}

/* At most 16 MiB of the file; it must be longer than one window. */
static int read_text(struct text *text, const char *path) {
  enum { MOST = 16 << 20 };
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "train_text: cannot open %s: %s\n", path, strerror(errno));
    return 0;
  }
  text->bytes = malloc(MOST);
  text->length = text->bytes == NULL ? 0 : fread(text->bytes, 1, MOST, file);
  const int good = !ferror(file) && text->length > WINDOW;
  if (!good) {
    fprintf(stderr, "train_text: %s cannot be read, or has no more than %d bytes\n", path, WINDOW);
  }
  fclose(file);
  return good;
}

/* ---- the trainer ---- */

/* A precision by its name. */
static ek_status find_precision(ek_precision *found, const char *flag, const char *name) {
  static const ek_precision all[] = {EK_PRECISION_F32, EK_PRECISION_TF32, EK_PRECISION_BF16,
                                     EK_PRECISION_F16};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (strcmp(ek_precision_name(all[i]), name) != 0) continue;
    *found = all[i];
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s %s: expected f32, tf32, bf16 or f16", flag,
                      name);
}

/* Opens a trainer, which keeps what it needs of the parts. */
static ek_status open_trainer(ek_trainer **trainer, const struct settings *settings) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_schedule schedule;
  ek_mode mode;
  ek_precision gradients;
  ek_status status = EK_OK;

  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  gpt.vocabulary = BYTES;
  gpt.sequence = WINDOW;
  gpt.width = 64;
  gpt.layers = 2;
  gpt.heads = 4;
  gpt.dropout = 0.05;
  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  adamw.clip_norm = 1.0;
  const int64_t steps = settings->steps;
  EK_TRY_GOTO(status, ek_gpt_create(&module, &gpt), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, NULL), cleanup);
  EK_TRY_GOTO(status, ek_adamw_create(&rule, &adamw), cleanup);
  const double rate = settings->rate;
  EK_TRY_GOTO(status, ek_schedule_warmup_cosine(&schedule, rate, rate / 10, steps / 10, steps),
              cleanup);

  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer_options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.world = world;
  options.model = &model_options;
  options.optimizer = &optimizer_options;
  model_options.seed = (uint64_t)(settings->seed == 0 ? SEED : settings->seed);
  optimizer_options.schedule = &schedule;
  model_options.reproducible = (size_t)settings->reproducible;
  EK_TRY_GOTO(status, ek_mode_parse(&mode, settings->mode), cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_model_options_set_mode(&model_options, mode), cleanup);
  EK_TRY_GOTO(status, find_precision(&model_options.precision, "--precision", settings->precision),
              cleanup);
  EK_TRY_GOTO(status, find_precision(&gradients, "--gradient-type", settings->gradients), cleanup);
  model_options.gradient_type = ek_precision_type(gradients);
  ek_loss_scale loss_scale = EK_LOSS_SCALE_INIT;
  loss_scale.scale = settings->loss_scale;
  if (settings->loss_scale != 0) optimizer_options.loss_scale = &loss_scale;
  status = ek_trainer_open(trainer, settings->devices, module, loss, rule, &options);
cleanup:
  ek_optimizer_free(rule);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

/* The seed of the run, which a state has: its windows are those with which it began. */
static ek_status read_seed(uint64_t *seed, ek_trainer *trainer, const struct settings *settings) {
  const int64_t one[] = {1};
  int64_t own = 0;
  ek_tensor host;
  ek_checkpoint_info info;
  const ek_status loaded =
      settings->save == NULL ? EK_ERR_NOT_FOUND : ek_trainer_load(&info, trainer, settings->save);
  if (loaded != EK_ERR_NOT_FOUND) EK_TRY(loaded); /* else it is a new run */
  EK_TRY(ek_tensor_host(&host, &own, EK_I64, 1, one));
  EK_TRY(ek_state_read(&host, ek_trainer_model(trainer), "run/seed"));
  if (settings->seed != 0 && settings->seed != own) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--seed %ld: the run began with seed %lld; omit --seed, or start a new run",
                        settings->seed, (long long)own);
  }
  *seed = (uint64_t)own;
  if (loaded == EK_OK) printf("from %s, seed %lld\n", info.path, (long long)own);
  return EK_OK;
}

/* ---- the run ---- */

/* What a run has become. */
struct progress {
  const struct settings *settings;
  ek_group *group;
  double mean, early, late; /* of the part under way, of the first and of the last one */
  int terminal, tracing;
};

/* Ten lines for a whole run, or one for each step; on a terminal a line that is drawn again. */
static void tell(struct progress *progress, const ek_run_event *event) {
  const struct settings *settings = progress->settings;
  const long part = settings->steps < 20 ? 1 : settings->steps / 10;
  const double loss = event->result->loss;
  const int due = event->step % part == 0;
  char line[160];
  if (progress->terminal && (due || settings->exact)) fprintf(stderr, "\r\33[K");
  if (settings->exact) {
    printf("step %lld loss %.17g%s\n", (long long)event->step, loss,
           event->result->skipped ? " skipped" : "");
  }
  progress->mean += loss / (double)part;
  if (due) {
    if (!settings->exact) printf("step %5lld  loss %.4f\n", (long long)event->step, progress->mean);
    if (event->step == part) progress->early = progress->mean;
    progress->late = progress->mean;
    progress->mean = 0;
  } else if (progress->terminal) {
    fprintf(stderr, "\r\33[K%s", ek_run_line(line, sizeof line, event));
  }
}

enum { TRACED = 10 };

/* The last steps are in the trace. */
static void start_trace(struct progress *progress, int64_t left) {
  if (progress->settings->trace == NULL || progress->tracing || left > TRACED) return;
  progress->tracing = ek_trace_start(progress->group, 0) == EK_OK;
}

static bool report(void *context, const ek_run_event *event) {
  struct progress *progress = context;
  tell(progress, event);
  start_trace(progress, event->steps - event->step);
  return true;
}

/* A trace of what there is, of nothing before the training: a name that cannot be written is seen
 * then. */
static ek_status write_trace(ek_group *group, const char *path, int tracing) {
  if (path == NULL) return EK_OK;
  if (!tracing) EK_TRY(ek_trace_start(group, 0));
  EK_TRY(ek_trace_stop(group));
  return ek_trace_write(NULL, group, path);
}

/* The files that --metrics names. */
static ek_status open_metrics(ek_metrics **metrics, ek_group *group, const char *prefix) {
  char prometheus[512], lines[512];
  if (prefix == NULL) return EK_OK;
  const int length = snprintf(prometheus, sizeof prometheus, "%s.prom", prefix);
  (void)snprintf(lines, sizeof lines, "%s.jsonl", prefix);
  if (length < 0 || (size_t)length + 1 >= sizeof prometheus) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "--metrics: the name is too long");
  }
  return ek_metrics_open(metrics, group, prometheus, lines);
}

static ek_status train(ek_run_result *result, ek_trainer *trainer, struct text *text,
                       struct progress *progress) {
  const struct settings *settings = progress->settings;
  const long last = settings->stop_at > 0 ? settings->stop_at : settings->steps;
  ek_trainer_run_options run = EK_TRAINER_RUN_OPTIONS_INIT;
  EK_TRY(write_trace(progress->group, settings->trace, 0));
  EK_TRY(open_metrics(&run.metrics, progress->group, settings->metrics));
  run.batch = BATCH;
  run.folder = settings->save;
  run.tokens_per_row = WINDOW;
  run.report = report;
  run.context = progress;
  run.world = world;
  progress->terminal = isatty(STDERR_FILENO) && ek_world_process(world) == 0;
  start_trace(progress, last);
  ek_status status = ek_trainer_run(result, trainer, &text->source, last, &run);
  const ek_status closed = ek_metrics_close(run.metrics);
  if (progress->terminal) fprintf(stderr, "\r\33[K");
  EK_TRY(status);
  EK_TRY(closed);
  if (result->step <= settings->steps) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s has a state of step %lld, past the last step of this run", settings->save,
                      (long long)result->step);
}

/* ---- the text, and how the model goes on ---- */

/* Draws a byte from softmax(logits / temperature). */
static int32_t draw(const float *logits, uint32_t bits) {
  const double temperature = 0.7;
  double most = logits[0], sum = 0, weights[BYTES];
  for (int i = 1; i < BYTES; i++) most = fmax(most, logits[i]);
  for (int i = 0; i < BYTES; i++) {
    weights[i] = exp((logits[i] - most) / temperature);
    sum += weights[i];
  }
  double left = ek_random_unit(bits) * sum;
  for (int i = 0; i < BYTES; i++) {
    left -= weights[i];
    if (left < 0) return i;
  }
  return BYTES - 1;
}

/* The byte that the model writes after `window`. Every process computes it from a row of its
 * own. */
static ek_status next_byte(ek_trainer *trainer, int32_t *window, ek_random_key key, uint32_t number,
                           int32_t *byte) {
  static float logits[WINDOW * BYTES];
  const int64_t input_shape[] = {1, WINDOW}, output_shape[] = {1, WINDOW, BYTES};
  ek_tensor input, output;
  uint32_t bits[4];
  EK_TRY(ek_tensor_host(&input, window, EK_I32, 2, input_shape));
  EK_TRY(ek_tensor_host(&output, logits, EK_F32, 3, output_shape));
  EK_TRY(ek_trainer_predict_host(&output, trainer, &input, 1));
  ek_random_bits(key, number, 0, bits);
  *byte = draw(logits + (WINDOW - 1) * BYTES, bits[0]);
  return EK_OK;
}

static void print_byte(int32_t byte) {
  const int printable = byte == '\n' || (byte >= ' ' && byte < 127);
  putchar(printable ? byte : '.');
}

/* Starts from the first bytes of the text, and lets the model write the rest. */
static ek_status continue_text(ek_trainer *trainer, const struct text *text, uint64_t seed) {
  const ek_random_key key = {seed, 0, 1};
  int32_t window[WINDOW];
  if (ek_device_counts_only(ek_group_device(ek_trainer_group(trainer), 0))) {
    return ek_error_set(EK_ERR_UNSUPPORTED,
                        "plan devices compute no logits and cannot continue the text; skip that "
                        "with --stop-at and a step before the last");
  }
  for (size_t i = 0; i < WINDOW; i++) window[i] = text->bytes[i];
  printf("\n--- the text, and how the model goes on ---\n");
  for (size_t i = WINDOW - PROMPT; i < WINDOW; i++) print_byte(window[i]);
  printf("|");
  for (uint32_t i = 0; i < CONTINUATION; i++) {
    int32_t byte = 0;
    EK_TRY(next_byte(trainer, window, key, i, &byte));
    print_byte(byte);
    memmove(window, window + 1, (WINDOW - 1) * sizeof window[0]);
    window[WINDOW - 1] = byte;
  }
  printf("\n");
  return EK_OK;
}

/* ---- the command line ---- */

static int read_count(long *count, const char *text) {
  char *end = NULL;
  *count = strtol(text, &end, 10);
  return *end == '\0' && *count >= 1 && *count <= 1000000;
}

static int read_number(double *number, const char *text) {
  char *end = NULL;
  *number = strtod(text, &end);
  return end != text && *end == '\0';
}

static int read_arguments(struct settings *s, int argc, char **argv) {
  const struct {
    const char *name, **word;
    long *count;
    double *number;
  } flags[] = {{"--devices", .word = &s->devices},
               {"--save", .word = &s->save},
               {"--trace", .word = &s->trace},
               {"--metrics", .word = &s->metrics},
               {"--mode", .word = &s->mode},
               {"--precision", .word = &s->precision},
               {"--gradient-type", .word = &s->gradients},
               {"--steps", .count = &s->steps},
               {"--stop-at", .count = &s->stop_at},
               {"--seed", .count = &s->seed},
               {"--reproducible", .count = &s->reproducible},
               {"--rate", .number = &s->rate},
               {"--loss-scale", .number = &s->loss_scale}};
  enum { FLAGS = sizeof flags / sizeof flags[0] };
  for (int i = 1; i < argc; i++) {
    size_t f = 0;
    while (f < FLAGS && strcmp(argv[i], flags[f].name) != 0) f++;
    if (f < FLAGS) {
      const char *value = ++i < argc ? argv[i] : "";
      if (i == argc) return 0;
      if (flags[f].word != NULL)
        *flags[f].word = value;
      else if (flags[f].count != NULL ? !read_count(flags[f].count, value)
                                      : !read_number(flags[f].number, value))
        return 0;
    } else if (strcmp(argv[i], "--exact") == 0) {
      s->exact = 1;
    } else if (argv[i][0] != '-' && s->path == NULL) {
      s->path = argv[i];
    } else {
      return 0;
    }
  }
  return s->path != NULL && s->stop_at <= s->steps;
}

/* Joins the processes that were started with this one. Only the first of them prints. */
static ek_status enter_world(void) {
  EK_TRY(ek_world_open(&world, NULL));
  (void)signal(SIGINT, ask_to_stop);
  (void)signal(SIGTERM, ask_to_stop);
  if (ek_world_process(world) == 0) return EK_OK;
  return freopen("/dev/null", "w", stdout) != NULL ? EK_OK : ek_error_set(EK_ERR_IO, "/dev/null");
}

int main(int argc, char **argv) {
  struct settings settings = {.devices = "cpu:2",
                              .steps = 300,
                              .rate = 4e-3,
                              .mode = "replicated",
                              .precision = "f32",
                              .gradients = "f32"};
  struct text text = {.bytes = NULL};
  struct progress progress = {.settings = &settings};
  ek_trainer *trainer = NULL;
  ek_run_result result = {0};
  uint64_t seed = 0;
  int good = 1;
  ek_status status;
  if (!read_arguments(&settings, argc, argv)) {
    fprintf(stderr, "usage: train_text FILE [--devices SPEC] [--steps N] [--stop-at K] "
                    "[--save FOLDER] [--exact] [--reproducible GRAINS] [--trace FILE] "
                    "[--metrics PREFIX] [--loss-scale FIRST] [--mode MODE] "
                    "[--precision f32|tf32|bf16|f16] [--gradient-type f32|bf16|f16] "
                    "[--rate PEAK] [--seed N]\n");
    return 2;
  }
  if (!read_text(&text, settings.path)) {
    free(text.bytes);
    return 1;
  }
  EK_TRY_GOTO(status, enter_world(), cleanup);
  EK_TRY_GOTO(status, open_trainer(&trainer, &settings), cleanup);
  progress.group = ek_trainer_group(trainer);
  EK_TRY_GOTO(status, read_seed(&seed, trainer, &settings), cleanup);
  EK_TRY_GOTO(status, open_windows(&text, seed), cleanup);
  EK_TRY_GOTO(status, train(&result, trainer, &text, &progress), cleanup);
  if (write_trace(progress.group, settings.trace, progress.tracing) != EK_OK) {
    fprintf(stderr, "train_text: --trace: %s\n", ek_error_message());
    good = 0;
  }
  if (result.step < settings.steps) {
    printf("stopped after step %lld of %ld\n", (long long)result.step, settings.steps);
    goto cleanup;
  }
  EK_TRY_GOTO(status, continue_text(trainer, &text, seed), cleanup);
  if (result.first == 0 && progress.late >= progress.early) {
    fprintf(stderr, "train_text: the loss did not fall\n");
    good = 0;
  }
cleanup:
  if (status != EK_OK) {
    fprintf(stderr, "train_text: %s: %s\n", ek_status_name(status), ek_error_message());
  }
  ek_trainer_free(trainer);
  ek_world_free(world);
  free(text.bytes);
  return status == EK_OK && good ? 0 : 1;
}
