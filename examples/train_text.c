/*
 * train_text.c - trains a small byte-level language model on a text file and continues the text.
 *
 *     train_text FILE [--devices SPEC] [--steps N]
 *
 * A GPT of two blocks reads windows of 64 bytes, learns to predict the next byte over all devices
 * of the group (AdamW, warm-up and cosine, dropout), and then writes 240 bytes of its own. Exit
 * code 1 if something failed or the loss did not fall, 2 for a wrong command line.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { BYTES = 256, WINDOW = 64, BATCH = 16, CONTINUATION = 240, PROMPT = 32, SEED = 7 };

struct settings {
  const char *path, *devices;
  long steps;
};

struct text {
  unsigned char *bytes;
  size_t length;
};

/* Everything that training needs; each part is freed by its own function, NULL included. */
struct trainer {
  ek_group *group;
  ek_module *gpt;
  ek_data_parallel_model *model;
  ek_criterion *loss;
  ek_data_parallel_criterion *criterion;
  ek_optimizer *adamw;
  ek_data_parallel_optimizer *optimizer;
};

static ek_status open_trainer(struct trainer *t, const struct settings *settings) {
  EK_TRY(ek_group_open(&t->group, settings->devices, NULL));

  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  gpt.vocabulary = BYTES;
  gpt.sequence = WINDOW;
  gpt.width = 64;
  gpt.layers = 2;
  gpt.heads = 4;
  gpt.dropout = 0.05;
  EK_TRY(ek_gpt_create(&t->gpt, &gpt));

  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  model.seed = SEED;
  EK_TRY(ek_data_parallel_model_open(&t->model, t->group, t->gpt, &model));
  EK_TRY(ek_cross_entropy_create(&t->loss, NULL));
  ek_data_parallel_criterion_options criterion = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  criterion.gradient_in_forward = true;
  EK_TRY(ek_data_parallel_criterion_open(&t->criterion, t->model, t->loss, &criterion));

  ek_adamw_options adamw = EK_ADAMW_OPTIONS_INIT;
  adamw.clip_norm = 1.0;
  EK_TRY(ek_adamw_create(&t->adamw, &adamw));
  ek_schedule schedule;
  const int64_t warmup = settings->steps / 10;
  EK_TRY(ek_schedule_warmup_cosine(&schedule, 4e-3, 4e-4, warmup, settings->steps));
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  options.schedule = &schedule;
  return ek_data_parallel_optimizer_open(&t->optimizer, t->model, t->adamw, &options);
}

static void close_trainer(struct trainer *t) {
  ek_data_parallel_optimizer_free(t->optimizer);
  ek_optimizer_free(t->adamw);
  ek_data_parallel_criterion_free(t->criterion);
  ek_criterion_free(t->loss);
  ek_data_parallel_model_free(t->model);
  ek_module_free(t->gpt);
  ek_group_free(t->group);
}

/* Windows at random places; the target of each byte is the one behind it. */
static void pick_batch(int32_t *inputs, int32_t *targets, const struct text *text, long step) {
  const ek_random_key key = {SEED, (uint32_t)step, 0};
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

/* One step. The outputs hold the gradient once the loss is known, and are not needed any more. */
static ek_status train_step(struct trainer *t, const struct text *text, long step, double *loss) {
  int32_t input_ids[BATCH * WINDOW], target_ids[BATCH * WINDOW];
  pick_batch(input_ids, target_ids, text, step);
  const int64_t shape[] = {BATCH, WINDOW};
  ek_tensor inputs, targets;
  EK_TRY(ek_tensor_host(&inputs, input_ids, EK_I32, 2, shape));
  EK_TRY(ek_tensor_host(&targets, target_ids, EK_I32, 2, shape));

  ek_status status = EK_OK;
  ek_shards outputs = {0};
  ek_step_result result;
  EK_TRY_GOTO(status, ek_data_parallel_model_forward(&outputs, t->model, &inputs, 1, NULL),
              cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_criterion_forward(t->criterion, &outputs, 1, &targets, 1),
              cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_criterion_backward(t->criterion, t->model, NULL), cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_optimizer_step(&result, t->optimizer), cleanup);
  *loss = result.loss;
cleanup:
  ek_shards_free(&outputs);
  return status;
}

/* Trains, prints the loss ten times, and tells whether it fell. */
static ek_status train(struct trainer *t, const struct settings *settings, const struct text *text,
                       int *fell) {
  const long steps = settings->steps;
  const long part = steps < 20 ? 1 : steps / 10;
  double first = 0, last = 0, mean = 0;
  for (long step = 0; step < steps; step++) {
    double loss = 0;
    EK_TRY(train_step(t, text, step, &loss));
    mean += loss / (double)part;
    if ((step + 1) % part != 0) continue;
    printf("step %5ld  loss %.4f\n", step + 1, mean);
    if (step + 1 == part) first = mean;
    last = mean;
    mean = 0;
  }
  *fell = last < first;
  return EK_OK;
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

/* The byte that the model writes behind `window`: a forward without gradient and without dropout.
 */
static ek_status next_byte(struct trainer *t, int32_t *window, uint32_t number, int32_t *byte) {
  static float logits[WINDOW * BYTES];
  const int64_t input_shape[] = {1, WINDOW}, output_shape[] = {1, WINDOW, BYTES};
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = false;
  options.training = false;
  ek_tensor input, whole;
  EK_TRY(ek_tensor_host(&input, window, EK_I32, 2, input_shape));
  EK_TRY(ek_tensor_host(&whole, logits, EK_F32, 3, output_shape));

  ek_shards outputs = {0};
  EK_TRY(ek_data_parallel_model_forward(&outputs, t->model, &input, 1, &options));
  const ek_status status = ek_gather_host(&whole, &outputs);
  ek_shards_free(&outputs);
  EK_TRY(status);
  uint32_t bits[4];
  ek_random_bits((ek_random_key){SEED, 0, 1}, number, 0, bits);
  *byte = draw(logits + (WINDOW - 1) * BYTES, bits[0]);
  return EK_OK;
}

static void print_byte(int32_t byte) {
  const int printable = byte == '\n' || (byte >= ' ' && byte < 127);
  putchar(printable ? byte : '.');
}

/* Starts from the first bytes of the text, and lets the model write the rest. */
static ek_status continue_text(struct trainer *t, const struct text *text) {
  int32_t window[WINDOW];
  for (size_t i = 0; i < WINDOW; i++) window[i] = text->bytes[i];
  printf("\n--- the text, and how the model goes on ---\n");
  for (size_t i = WINDOW - PROMPT; i < WINDOW; i++) print_byte(window[i]);
  printf("|");
  for (uint32_t i = 0; i < CONTINUATION; i++) {
    int32_t byte = 0;
    EK_TRY(next_byte(t, window, i, &byte));
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

static int read_arguments(struct settings *settings, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const int more = i + 1 < argc;
    if (strcmp(argv[i], "--devices") == 0 && more) {
      settings->devices = argv[++i];
    } else if (strcmp(argv[i], "--steps") == 0 && more) {
      char *end = NULL;
      settings->steps = strtol(argv[++i], &end, 10);
      if (*end != '\0' || settings->steps < 1 || settings->steps > 1000000) return 0;
    } else if (argv[i][0] != '-' && settings->path == NULL) {
      settings->path = argv[i];
    } else {
      return 0;
    }
  }
  return settings->path != NULL;
}

int main(int argc, char **argv) {
  struct settings settings = {NULL, "cpu:2", 300};
  if (!read_arguments(&settings, argc, argv)) {
    fprintf(stderr, "usage: train_text FILE [--devices SPEC] [--steps N]\n");
    return 2;
  }
  struct text text = {0};
  struct trainer trainer = {0};
  int fell = 0;
  ek_status status = EK_ERR_IO;
  if (!read_text(&text, settings.path)) goto cleanup;
  EK_TRY_GOTO(status, open_trainer(&trainer, &settings), report);
  EK_TRY_GOTO(status, train(&trainer, &settings, &text, &fell), report);
  EK_TRY_GOTO(status, continue_text(&trainer, &text), report);
  if (!fell) fprintf(stderr, "train_text: the loss did not fall\n");
report:
  if (status != EK_OK) {
    fprintf(stderr, "train_text: %s: %s\n", ek_status_name(status), ek_error_message());
  }
cleanup:
  close_trainer(&trainer);
  free(text.bytes);
  return status == EK_OK && fell ? 0 : 1;
}
