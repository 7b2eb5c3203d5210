/*
 * train_text.c - trains a small byte-level language model on a text file and continues the text.
 *
 *     train_text FILE [--devices SPEC] [--steps N] [--save FOLDER] [--stop-at K]
 *                     [--resume FOLDER] [--exact] [--reproducible GRAINS] [--trace FILE]
 *                     [--metrics PREFIX] [--loss-scale FIRST] [--mode MODE]
 *                     [--precision f32|tf32|bf16|f16] [--gradient-type f32|bf16|f16]
 *                     [--rate PEAK] [--seed N]
 *
 * A GPT of two blocks reads windows of 64 bytes, learns to predict the next byte over all devices
 * of the group (AdamW, warm-up and cosine, dropout), and then writes 240 bytes of its own.
 *
 *     --save FOLDER     the state of the run is saved there when it ends or stops
 *     --stop-at K       stop after step K of N
 *     --resume FOLDER   go on from the last state in that folder, to step N
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
 * any of them stops all after the same step.
 *
 * On a terminal a line shows the step, the loss and the speed as the run goes on.
 *
 * SIGINT and SIGTERM stop the run after the step that is under way. If a file of --trace or
 * --metrics fails during the run, it is reported, and the run goes on to its end and to --save.
 * Devices that only count (plan) go through the steps, and give no text. Exit code 1 if something
 * failed or, in a run that was not interrupted, the loss did not fall; 2 for a wrong command line.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <evenkeel/evenkeel.h>

enum { BYTES = 256, WINDOW = 64, BATCH = 16, CONTINUATION = 240, PROMPT = 32, SEED = 7 };

struct settings {
  const char *path, *devices, *save, *resume, *trace, *metrics;
  long steps, stop_at; /* stop_at 0: when all are done */
  long seed; /* 0: not given */
  double rate;
  long reproducible; /* grains; 0: off */
  ek_mode mode;
  double loss_scale; /* 0: none */
  ek_precision precision;
  ek_type gradient_type;
  int exact;
};

static ek_world *world; /* the processes that train together; for the signals */

static void ask_to_stop(int number) {
  (void)number;
  ek_world_request_stop(world);
}

struct text {
  unsigned char *bytes;
  size_t length;
  uint64_t seed; /* of the places where windows begin */
};

/* Opens a trainer, which keeps what it needs of the parts. */
static ek_status open_trainer(ek_trainer **trainer, const struct settings *settings) {
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *rule = NULL;
  ek_schedule schedule;
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
  ek_group_options group_options = EK_GROUP_OPTIONS_INIT;
  group_options.world = world;
  options.group_options = &group_options;
  options.model = &model_options;
  options.optimizer = &optimizer_options;
  model_options.seed = (uint64_t)(settings->seed == 0 ? SEED : settings->seed);
  optimizer_options.schedule = &schedule;
  EK_TRY_GOTO(status, ek_data_parallel_model_options_set_mode(&model_options, settings->mode),
              cleanup);
  model_options.reproducible = (size_t)settings->reproducible;
  model_options.precision = settings->precision;
  model_options.gradient_type = settings->gradient_type;
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

/* Windows at random places; the target of each byte is the next one. */
static void pick_batch(int32_t *inputs, int32_t *targets, const struct text *text, long step) {
  const ek_random_key key = {text->seed, (uint32_t)step, 0};
  for (uint32_t b = 0; b < BATCH; b++) {
    uint32_t bits[4];
    ek_random_bits(key, b, 0, bits);
    const size_t start = bits[0] % (text->length - WINDOW);
    for (size_t t = 0; t < WINDOW; t++) {
      inputs[b * WINDOW + t] = text->bytes[start + t];
      targets[b * WINDOW + t] = text->bytes[start + t + 1];
    }
  }
}

static ek_status train_step(ek_trainer *trainer, const struct text *text, long step,
                            long grains, ek_step_result *result) {
  int32_t input_ids[BATCH * WINDOW], target_ids[BATCH * WINDOW];
  int64_t first = 0, count = 0;
  pick_batch(input_ids, target_ids, text, step);
  EK_TRY(ek_world_rows(&first, &count, ek_trainer_group(trainer), BATCH, (size_t)grains));
  const int64_t shape[] = {count, WINDOW};
  ek_tensor inputs, targets;
  EK_TRY(ek_tensor_host(&inputs, input_ids + first * WINDOW, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&targets, target_ids + first * WINDOW, EK_I32, 2, shape));
  return ek_trainer_step(result, trainer, &inputs, 1, &targets, 1);
}

/* What a run has become. */
struct progress {
  long first, next;         /* the step that it began with, and the one that comes next */
  double mean, early, late; /* of the part under way, of the first and of the last one */
  double began, shown; /* seconds: the run, and the line on the terminal when it was last drawn */
  int terminal;
  int complained; /* a file beside the run could not be written */
};

static double seconds_now(void) {
  struct timespec time;
  (void)timespec_get(&time, TIME_UTC);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* A line that is drawn again and again, ten times a second at most; `loss` NaN takes it away. */
static void show(struct progress *progress, const struct settings *settings, double loss) {
  const double now = seconds_now();
  if (!progress->terminal) return;
  if (isnan(loss)) {
    fprintf(stderr, "\r\33[K");
  } else if (now - progress->shown > 0.1) {
    const double steps = (double)(progress->next - progress->first);
    fprintf(stderr, "\r\33[Kstep %ld of %ld, loss %.4f, %.0f bytes/s", progress->next,
            settings->steps, loss, steps * BATCH * WINDOW / (now - progress->began));
    progress->shown = now;
  }
  (void)fflush(stderr);
}

/* Ten lines for a whole run, or one for each step. */
static void report(struct progress *progress, const struct settings *settings,
                   const ek_step_result *result) {
  const double loss = result->loss;
  const long part = settings->steps < 20 ? 1 : settings->steps / 10;
  const long done = progress->next;
  if (settings->exact || done % part == 0) show(progress, settings, NAN);
  if (settings->exact) {
    printf("step %ld loss %.17g%s\n", done, loss, result->skipped ? " skipped" : "");
  }
  progress->mean += loss / (double)part;
  if (done % part != 0) {
    show(progress, settings, loss);
    return;
  }
  if (!settings->exact) printf("step %5ld  loss %.4f\n", done, progress->mean);
  if (done == part) progress->early = progress->mean;
  progress->late = progress->mean;
  progress->mean = 0;
}

/* Of a file beside the run, which goes on. Each file is named once. */
static void complain(struct progress *progress, const char *option, int *said) {
  if (!*said) fprintf(stderr, "train_text: %s: %s\n", option, ek_error_message());
  progress->complained = *said = 1;
}

/* The seed of a state is that of its windows, too. */
static ek_status take_seed(struct text *text, ek_trainer *trainer,
                           const struct settings *settings) {
  const int64_t one[] = {1};
  int64_t seed = 0;
  ek_tensor host;
  EK_TRY(ek_tensor_host(&host, &seed, EK_I64, 1, one));
  EK_TRY(ek_state_read(&host, ek_trainer_model(trainer), "run/seed"));
  if (settings->seed != 0 && settings->seed != seed) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "--seed %ld: the run began with seed %lld; omit --seed, or start a new run",
                        settings->seed, (long long)seed);
  }
  text->seed = (uint64_t)seed;
  return EK_OK;
}

/* Goes on from the last state of a folder. */
static ek_status resume(ek_trainer *trainer, const struct settings *settings, struct text *text,
                        struct progress *progress) {
  ek_checkpoint_info info;
  if (settings->resume == NULL) return EK_OK;
  EK_TRY(ek_trainer_load(&info, trainer, settings->resume));
  if (info.position > settings->steps) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s is a state of step %lld, past the last step "
                                                 "of this run",
                        info.path, (long long)info.position);
  }
  EK_TRY(take_seed(text, trainer, settings));
  printf("from %s, seed %llu\n", info.path, (unsigned long long)text->seed);
  progress->first = progress->next = (long)info.position;
  return EK_OK;
}

static ek_status save(ek_trainer *trainer, const struct settings *settings, long position) {
  ek_checkpoint_options options = EK_CHECKPOINT_OPTIONS_INIT;
  if (settings->save == NULL) return EK_OK;
  options.position = position;
  options.keep = 2;
  return ek_trainer_save(trainer, settings->save, &options);
}

/* The files that --metrics names. */
static ek_status open_metrics(ek_metrics **metrics, ek_trainer *trainer, const char *prefix,
                              long first) {
  char prometheus[512], lines[512];
  if (prefix == NULL) return EK_OK;
  const int length = snprintf(prometheus, sizeof prometheus, "%s.prom", prefix);
  (void)snprintf(lines, sizeof lines, "%s.jsonl", prefix);
  if (length < 0 || (size_t)length + 1 >= sizeof prometheus) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "--metrics: the name is too long");
  }
  EK_TRY(ek_metrics_open(metrics, ek_trainer_group(trainer), prometheus, lines));
  return ek_metrics_resume(*metrics, (double)first * BATCH * WINDOW);
}

/* A trace of nothing, so that a name that cannot be written is seen before the training. */
static ek_status try_trace(ek_group *group, const char *path) {
  if (path == NULL) return EK_OK;
  EK_TRY(ek_trace_start(group, 0));
  EK_TRY(ek_trace_stop(group));
  return ek_trace_write(NULL, group, path);
}

/* Takes steps until the run ends, or is to stop; the last ones are in the trace. */
static ek_status take_steps(ek_trainer *trainer, const struct settings *settings,
                            const struct text *text, struct progress *progress,
                            ek_metrics *metrics) {
  enum { TRACED = 10 };
  const long last = settings->stop_at > 0 ? settings->stop_at : settings->steps;
  ek_group *group = ek_trainer_group(trainer);
  int tracing = 0, no_trace = settings->trace == NULL, no_metrics = 0;
  while (progress->next < last && !ek_world_stop_requested(world)) {
    ek_step_result result;
    if (!tracing && !no_trace && progress->next + TRACED >= last) {
      tracing = ek_trace_start(group, 0) == EK_OK;
      if (!tracing) complain(progress, "--trace", &no_trace);
    }
    EK_TRY(train_step(trainer, text, progress->next, settings->reproducible, &result));
    progress->next++;
    if (metrics != NULL && ek_metrics_step(metrics, &result, BATCH * WINDOW) != EK_OK) {
      complain(progress, "--metrics", &no_metrics);
    }
    report(progress, settings, &result);
  }
  if (tracing &&
      (ek_trace_stop(group) != EK_OK || ek_trace_write(NULL, group, settings->trace) != EK_OK)) {
    complain(progress, "--trace", &no_trace);
  }
  return EK_OK;
}

static ek_status train(ek_trainer *trainer, const struct settings *settings,
                       const struct text *text, struct progress *progress) {
  ek_metrics *metrics = NULL;
  int said = 0;
  EK_TRY(try_trace(ek_trainer_group(trainer), settings->trace));
  ek_status status = open_metrics(&metrics, trainer, settings->metrics, progress->first);
  progress->began = seconds_now();
  progress->terminal = isatty(STDERR_FILENO) && ek_world_process(world) == 0;
  if (status == EK_OK) status = take_steps(trainer, settings, text, progress, metrics);
  show(progress, settings, NAN);
  if (status != EK_OK) {
    ek_metrics_free(metrics);
    return status;
  }
  if (ek_metrics_close(metrics) != EK_OK) complain(progress, "--metrics", &said);
  return save(trainer, settings, progress->next);
}

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

/* One sample's logits are whole on one device, in the type that the model computes in. */
static ek_status read_logits(ek_tensor *logits, const ek_shards *outputs) {
  for (size_t i = 0; i < outputs->count; i++) {
    const ek_tensor *part = &outputs->parts[i];
    if (!ek_tensor_exists(part) || ek_tensor_count(part) == 0) continue;
    ek_tensor single = {0};
    EK_TRY(ek_tensor_create(&single, part->device, EK_MEMORY_OUTPUTS, EK_F32, part->rank,
                            part->shape));
    ek_status status =
        ek_op_convert(ek_device_stream(part->device, EK_STREAM_COMPUTE), &single, part);
    if (status == EK_OK) status = ek_tensor_copy(logits, &single);
    ek_tensor_free(&single);
    return status;
  }
  return EK_ERR_INTERNAL;
}

/* The byte that the model writes after `window`; the first process computes it. */
static ek_status next_byte(ek_trainer *trainer, int32_t *window, ek_random_key key, uint32_t number,
                           int32_t *byte) {
  static float logits[WINDOW * BYTES];
  const int first = ek_world_process(world) == 0;
  const int64_t input_shape[] = {first, WINDOW}, output_shape[] = {1, WINDOW, BYTES};
  ek_tensor input, whole;
  EK_TRY(ek_tensor_host(&input, window, EK_I32, 2, input_shape));
  EK_TRY(ek_tensor_host(&whole, logits, EK_F32, 3, output_shape));

  ek_shards outputs = {0};
  EK_TRY(ek_trainer_predict(&outputs, trainer, &input, 1));
  const ek_status status = first ? read_logits(&whole, &outputs) : EK_OK;
  ek_shards_free(&outputs);
  EK_TRY(status);
  uint32_t bits[4];
  ek_random_bits(key, number, 0, bits);
  *byte = draw(logits + (WINDOW - 1) * BYTES, bits[0]);
  return EK_OK;
}

static void print_byte(int32_t byte) {
  const int printable = byte == '\n' || (byte >= ' ' && byte < 127);
  putchar(printable ? byte : '.');
}

/* Starts from the first bytes of the text, and lets the model write the rest. */
static ek_status continue_text(ek_trainer *trainer, const struct text *text) {
  const ek_random_key key = {text->seed, 0, 1};
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

static int read_precision(ek_precision *precision, const char *text) {
  static const ek_precision all[] = {EK_PRECISION_F32, EK_PRECISION_TF32, EK_PRECISION_BF16,
                                     EK_PRECISION_F16};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (strcmp(text, ek_precision_name(all[i])) != 0) continue;
    *precision = all[i];
    return 1;
  }
  return 0;
}

static int read_type(ek_type *type, const char *text) {
  static const ek_type types[] = {EK_F32, EK_BF16, EK_F16};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    if (strcmp(text, ek_type_name(types[i])) != 0) continue;
    *type = types[i];
    return 1;
  }
  return 0;
}

static int read_arguments(struct settings *settings, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const int more = i + 1 < argc;
    if (strcmp(argv[i], "--devices") == 0 && more) {
      settings->devices = argv[++i];
    } else if (strcmp(argv[i], "--steps") == 0 && more) {
      if (!read_count(&settings->steps, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--stop-at") == 0 && more) {
      if (!read_count(&settings->stop_at, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--reproducible") == 0 && more) {
      if (!read_count(&settings->reproducible, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--loss-scale") == 0 && more) {
      if (!read_number(&settings->loss_scale, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--rate") == 0 && more) {
      if (!read_number(&settings->rate, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--seed") == 0 && more) {
      if (!read_count(&settings->seed, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--mode") == 0 && more) {
      if (ek_mode_parse(&settings->mode, argv[++i]) != EK_OK) return 0;
    } else if (strcmp(argv[i], "--precision") == 0 && more) {
      if (!read_precision(&settings->precision, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--gradient-type") == 0 && more) {
      if (!read_type(&settings->gradient_type, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--save") == 0 && more) {
      settings->save = argv[++i];
    } else if (strcmp(argv[i], "--resume") == 0 && more) {
      settings->resume = argv[++i];
    } else if (strcmp(argv[i], "--trace") == 0 && more) {
      settings->trace = argv[++i];
    } else if (strcmp(argv[i], "--metrics") == 0 && more) {
      settings->metrics = argv[++i];
    } else if (strcmp(argv[i], "--exact") == 0) {
      settings->exact = 1;
    } else if (argv[i][0] != '-' && settings->path == NULL) {
      settings->path = argv[i];
    } else {
      return 0;
    }
  }
  return settings->path != NULL && settings->stop_at <= settings->steps;
}

/* The processes that were started with this one, of which the first prints. */
static ek_status enter_world(void) {
  EK_TRY(ek_world_open(&world, NULL));
  if (ek_world_process(world) == 0) return EK_OK;
  return freopen("/dev/null", "w", stdout) != NULL ? EK_OK
                                                   : ek_error_set(EK_ERR_IO, "/dev/null");
}

static void stop_on_signals(void) {
  (void)signal(SIGINT, ask_to_stop);
  (void)signal(SIGTERM, ask_to_stop);
}

int main(int argc, char **argv) {
  struct settings settings = {.devices = "cpu:2",
                              .steps = 300,
                              .rate = 4e-3,
                              .mode = EK_MODE_REPLICATED,
                              .precision = EK_PRECISION_F32};
  if (!read_arguments(&settings, argc, argv)) {
    fprintf(stderr, "usage: train_text FILE [--devices SPEC] [--steps N] [--save FOLDER] "
                    "[--stop-at K] [--resume FOLDER] [--exact] [--reproducible GRAINS] "
                    "[--trace FILE] [--metrics PREFIX] [--loss-scale FIRST] [--mode MODE] "
                    "[--precision f32|tf32|bf16|f16] [--gradient-type f32|bf16|f16] "
                    "[--rate PEAK] [--seed N]\n");
    return 2;
  }
  struct text text = {.seed = (uint64_t)(settings.seed == 0 ? SEED : settings.seed)};
  struct progress progress = {0};
  ek_trainer *trainer = NULL;
  int good = 0;
  ek_status status = EK_ERR_IO;
  if (!read_text(&text, settings.path)) goto cleanup;
  EK_TRY_GOTO(status, enter_world(), report);
  stop_on_signals();
  EK_TRY_GOTO(status, open_trainer(&trainer, &settings), report);
  EK_TRY_GOTO(status, resume(trainer, &settings, &text, &progress), report);
  EK_TRY_GOTO(status, train(trainer, &settings, &text, &progress), report);
  good = !progress.complained;
  if (progress.next < settings.steps) {
    printf("stopped after step %ld of %ld\n", progress.next, settings.steps);
    goto cleanup;
  }
  EK_TRY_GOTO(status, continue_text(trainer, &text), report);
  if (progress.first == 0 && progress.late >= progress.early) {
    fprintf(stderr, "train_text: the loss did not fall\n");
    good = 0;
  }
report:
  if (status != EK_OK) {
    fprintf(stderr, "train_text: %s: %s\n", ek_status_name(status), ek_error_message());
  }
cleanup:
  ek_trainer_free(trainer);
  ek_world_free(world);
  free(text.bytes);
  return status == EK_OK && good ? 0 : 1;
}
