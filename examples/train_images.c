/*
 * train_images.c - trains a small ResNet on pictures, or a segmentation of them.
 *
 *     train_images [--devices SPEC] [--steps N] [--segment] [--cifar PATTERN] [--save FOLDER]
 *                  [--over shard|all] [--batch ROWS] [--report FILE]
 *
 * Without files it draws its pictures: a circle, a square or a triangle of some colour on noise, of
 * 32 x 32 pixels. It learns which it is or, with --segment, which pixels belong to it. Then it
 * prints the confusion matrix over pictures that were held out, and the part of right answers or,
 * with --segment, the mean of the classes' intersections over unions.
 *
 *     --cifar PATTERN   files of CIFAR-10's binary version instead, such as 'data_batch_*.bin'
 *     --save FOLDER     states of the run; a run that finds one there goes on from it
 *     --over WHAT       batch norm's statistics are of each device's rows, or of all (the default)
 *     --report FILE     an HTML page with the confusion matrix and some pictures with their answers
 *
 * Devices that only count (plan) go through the steps, and give no answers.
 *
 * Started by mpirun, torchrun --no-python or srun, the processes train one model together, and the
 * first one prints. SIGINT and SIGTERM stop the run after a step, with a saved state.
 *
 * Exit code 1 if something failed or, in a run of the default number of steps (60, or 240 with
 * --segment) on drawn pictures, half of the answers were wrong; 2 for a wrong command line.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

enum { SIDE = 32, CHANNELS = 3, COUNT = 800, HELD_OUT = 160, KINDS = 3, MOST_CLASSES = 10 };
enum { SEED = 7 };

struct settings {
  const char *devices, *cifar, *save, *report;
  long steps, batch;
  int segment;
  ek_batch_norm_over over;
};

static ek_world *world; /* the processes that train together; for the signals */

static void ask_to_stop(int number) {
  (void)number;
  ek_world_request_stop(world);
}

/* ---- pictures ---- */

static uint8_t pictures[COUNT * SIDE * SIDE * CHANNELS], maps[COUNT * SIDE * SIDE];
static int32_t kinds[COUNT];

/* Whether a pixel, seen from the middle of a figure of this size, belongs to it. */
static int is_inside(int kind, int down, int across, int size) {
  if (kind == 0) return down * down + across * across <= size * size;
  if (kind == 1) return abs(down) <= size && abs(across) <= size;
  return down <= size && down >= -size && 2 * abs(across) <= down + size;
}

/* Every number of a picture follows from the seed and the picture's number. */
static void draw_picture(uint32_t number) {
  const ek_random_key key = {SEED, 0, 1};
  uint32_t place[4], colour[4];
  ek_random_bits(key, number, 0, place);
  ek_random_bits(key, number, 1, colour);
  const int size = 5 + (int)(place[0] % 6), top = 10 + (int)(place[1] % 12);
  const int left = 10 + (int)(place[2] % 12), kind = (int)(place[3] % KINDS);
  kinds[number] = kind;
  for (int pixel = 0; pixel < SIDE * SIDE; pixel++) {
    uint32_t noise[4];
    const int inside = is_inside(kind, pixel / SIDE - top, pixel % SIDE - left, size);
    ek_random_bits(key, number, 2 + (uint32_t)pixel, noise);
    for (int c = 0; c < CHANNELS; c++) {
      const uint32_t bright = inside ? 120 + colour[c] % 100 : 0;
      pictures[((int)number * SIDE * SIDE + pixel) * CHANNELS + c] =
          (uint8_t)(bright + noise[c] % (inside ? 36 : 100));
    }
    maps[(int)number * SIDE * SIDE + pixel] = (uint8_t)(inside ? 1 + kind : 0);
  }
}

static ek_status open_drawn(ek_source **source, const struct settings *s,
                            const ek_image_options *options) {
  ek_image_arrays arrays = EK_IMAGE_ARRAYS_INIT;
  arrays.count = COUNT;
  arrays.height = arrays.width = SIDE;
  arrays.pictures = pictures;
  if (s->segment) arrays.maps = maps;
  else arrays.classes = kinds;
  return ek_image_source_open_arrays(source, &arrays, options);
}

/* All pictures, cropped and mirrored at random or not at all; then the part that is asked for. */
static ek_status open_source(ek_source **part, const struct settings *s, int training) {
  ek_image_options options = EK_IMAGE_OPTIONS_INIT;
  ek_source *whole = NULL;
  options.seed = SEED;
  options.augment = training;
  if (training) {
    options.padding = 2;
    options.crop[0] = options.crop[1] = SIDE;
  }
  EK_TRY(s->cifar != NULL ? ek_image_source_open_cifar(&whole, s->cifar, false, &options)
                          : open_drawn(&whole, s, &options));
  const int64_t count = ek_source_samples(whole);
  const int64_t held_out = count / 5 < HELD_OUT ? count / 5 : HELD_OUT;
  const ek_status status =
      training ? ek_source_part_create(part, whole, held_out, count - held_out, NULL)
               : ek_source_part_create(part, whole, 0, held_out, NULL);
  ek_source_free(whole);
  return status;
}

/* ---- the model ---- */

static int64_t classes_of(const struct settings *s) {
  return s->cifar != NULL ? 10 : s->segment ? KINDS + 1 : KINDS;
}

static ek_status create_model(ek_module **module, const struct settings *s) {
  ek_batch_norm_options norm = EK_BATCH_NORM_OPTIONS_INIT;
  ek_resnet_options resnet = EK_RESNET_OPTIONS_INIT;
  norm.over = s->over;
  resnet.norm = &norm;
  resnet.small_pictures = true;
  resnet.width = s->cifar != NULL ? 64 : 8;
  resnet.classes = classes_of(s);
  if (!s->segment) return ek_resnet_create(module, &resnet);
  ek_fcn_options fcn = EK_FCN_OPTIONS_INIT;
  fcn.backbone = &resnet;
  fcn.classes = classes_of(s);
  fcn.auxiliary = false;
  return ek_fcn_create(module, &fcn);
}

static ek_status open_trainer(ek_trainer **trainer, const struct settings *s) {
  static const double mean[CHANNELS] = {0.4, 0.4, 0.4}, deviation[CHANNELS] = {0.25, 0.25, 0.25};
  ek_module *module = NULL;
  ek_criterion *loss = NULL;
  ek_optimizer *sgd = NULL;
  ek_schedule schedule;
  ek_input_scaling pixels;
  ek_cross_entropy_options entropy = EK_CROSS_ENTROPY_OPTIONS_INIT;
  ek_sgd_options rule = EK_SGD_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ek_status status;
  rule.momentum = 0.9;
  rule.weight_decay = 5e-4;
  entropy.ignore_index = 255; /* pixels of the padding */
  options.model = &model;
  options.optimizer = &update;
  options.world = world;
  model.seed = SEED;
  model.input_scaling = &pixels;
  model.input_scaling_count = 1;
  update.schedule = &schedule;
  EK_TRY_GOTO(status, ek_image_scaling(&pixels, mean, deviation, CHANNELS), cleanup);
  EK_TRY_GOTO(status, ek_schedule_warmup_cosine(&schedule, 0.05, 0, s->steps / 10, s->steps),
              cleanup);
  EK_TRY_GOTO(status, create_model(&module, s), cleanup);
  EK_TRY_GOTO(status, ek_cross_entropy_create(&loss, &entropy), cleanup);
  EK_TRY_GOTO(status, ek_sgd_create(&sgd, &rule), cleanup);
  status = ek_trainer_open(trainer, s->devices, module, loss, sgd, &options);
cleanup:
  ek_optimizer_free(sgd);
  ek_criterion_free(loss);
  ek_module_free(module);
  return status;
}

/* ---- answers for the pictures that were held out ---- */

static int64_t confusion[MOST_CLASSES][MOST_CLASSES]; /* by class and answer */

/* The first pictures, for the report: with a class and an answer, or one for each pixel. */
enum { EXAMPLES = 8 };
static uint8_t shown[EXAMPLES][SIDE * SIDE * CHANNELS];
static uint8_t truths[EXAMPLES * SIDE * SIDE], answers[EXAMPLES * SIDE * SIDE];
static int64_t shown_count, answer_count; /* of pictures, of numbers for them */

static void count_answers(const float *logits, const uint8_t *bytes, const int32_t *numbers,
                          int64_t count, int64_t classes, int64_t most_shown) {
  for (int64_t i = 0; i < count; i++) {
    const float *row = logits + i * classes;
    const int64_t right = bytes != NULL ? bytes[i] : numbers[i];
    int64_t best = 0;
    for (int64_t c = 1; c < classes; c++) best = row[c] > row[best] ? c : best;
    if (right < classes) confusion[right][best]++;
    if (answer_count == most_shown) continue;
    truths[answer_count] = (uint8_t)right;
    answers[answer_count++] = (uint8_t)best;
  }
}

static void keep_pictures(const ek_tensor *batch) {
  const uint8_t *bytes = batch->data;
  for (int64_t i = 0; i < batch->shape[0] && shown_count < EXAMPLES; i++) {
    memcpy(shown[shown_count++], bytes + (size_t)i * sizeof shown[0], sizeof shown[0]);
  }
}

/* In batches; every process counts its own rows' answers, and the first one prints what it has. */
static ek_status answer(ek_trainer *trainer, ek_source *held_out, const struct settings *s) {
  const int64_t classes = classes_of(s), pixels = s->segment ? SIDE * SIDE : 1;
  ek_data_loader *loader = NULL;
  ek_data_loader_options options = EK_DATA_LOADER_OPTIONS_INIT;
  ek_status status = EK_OK;
  float *logits = malloc((size_t)(s->batch * pixels * classes) * sizeof *logits);
  if (logits == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory for the answers");
  options.batch = s->batch;
  options.end = ek_source_samples(held_out);
  EK_TRY_GOTO(status, ek_data_loader_open(&loader, held_out, trainer, &options), cleanup);
  for (;;) {
    ek_batch batch;
    ek_tensor output;
    EK_TRY_GOTO(status, ek_data_loader_next(&batch, loader), cleanup);
    if (batch.rows == 0) break;
    const ek_tensor *targets = &batch.targets[0];
    const int64_t rows = targets->shape[0], map[] = {rows, SIDE, SIDE, classes};
    const int64_t flat[] = {rows, classes};
    const int64_t *shape = s->segment ? map : flat;
    const int rank = s->segment ? 4 : 2;
    EK_TRY_GOTO(status, ek_tensor_host(&output, logits, EK_F32, rank, shape), cleanup);
    EK_TRY_GOTO(status, ek_trainer_predict_host(&output, trainer, batch.inputs, 1), cleanup);
    const int is_bytes = targets->type == EK_U8;
    keep_pictures(&batch.inputs[0]);
    count_answers(logits, is_bytes ? targets->data : NULL, is_bytes ? NULL : targets->data,
                  rows * pixels, classes, EXAMPLES * pixels);
  }
cleanup:
  ek_data_loader_free(loader);
  free(logits);
  return status;
}

/* Prints the matrix; the part of right answers, or the mean of intersections over unions. */
static double judge(const struct settings *s) {
  const int64_t classes = classes_of(s);
  int64_t right = 0, all = 0, seen = 0;
  double overlap = 0;
  printf("class: answers\n");
  for (int64_t c = 0; c < classes; c++) {
    int64_t own = 0, answered = 0;
    printf("%5d:", (int)c);
    for (int64_t other = 0; other < classes; other++) {
      printf(" %6lld", (long long)confusion[c][other]);
      own += confusion[c][other];
      answered += confusion[other][c];
    }
    printf("\n");
    right += confusion[c][c];
    all += own;
    const int64_t either = own + answered - confusion[c][c];
    if (either > 0) overlap += (double)confusion[c][c] / (double)either;
    seen += either > 0;
  }
  const double part = all == 0 ? 0 : (double)right / (double)all;
  const double mean = seen == 0 ? 0 : overlap / (double)seen;
  if (s->segment) printf("mean intersection over union %.3f, pixels right %.3f\n", mean, part);
  else printf("right %.3f\n", part);
  return s->segment ? mean : part;
}

/* ---- the report ---- */

/* Bytes as base64. */
static void put_bytes(FILE *file, const uint8_t *bytes, size_t count) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < count; i += 3) {
    const size_t left = count - i;
    const uint32_t word = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                          (left > 2 ? bytes[i + 2] : 0);
    fprintf(file, "%c%c%c%c", digits[word >> 18], digits[word >> 12 & 63],
            left > 1 ? digits[word >> 6 & 63] : '=', left > 2 ? digits[word & 63] : '=');
  }
}

/* A picture within the page, as a BMP: a head and then the rows, the last one first, blue first. */
static void put_picture(FILE *file, const uint8_t *rgb, const char *name) {
  enum { HEAD = 54, BODY = SIDE * SIDE * 3 };
  static uint8_t bmp[HEAD + BODY] = {'B', 'M'};
  bmp[2] = sizeof bmp & 255;
  bmp[3] = sizeof bmp >> 8;
  bmp[10] = HEAD;
  bmp[14] = 40; /* bytes of the second half of the head */
  bmp[18] = bmp[22] = SIDE;
  bmp[26] = 1;  /* plane */
  bmp[28] = 24; /* bits of a pixel */
  for (int i = 0; i < SIDE * SIDE; i++) {
    const uint8_t *from = rgb + ((SIDE - 1 - i / SIDE) * SIDE + i % SIDE) * CHANNELS;
    for (int c = 0; c < CHANNELS; c++) bmp[HEAD + 3 * i + c] = from[CHANNELS - 1 - c];
  }
  fprintf(file, "<img alt=\"%s\" src=\"data:image/bmp;base64,", name);
  put_bytes(file, bmp, sizeof bmp);
  fprintf(file, "\">");
}

/* A colour for each class; beyond the classes, where nothing is counted, grey. */
static void put_map(FILE *file, const uint8_t *classes, const char *name) {
  static const uint8_t colours[][CHANNELS] = {
      {24, 24, 32}, {240, 90, 60}, {70, 150, 240}, {250, 210, 70}};
  static const uint8_t grey[CHANNELS] = {128, 128, 128};
  uint8_t rgb[SIDE * SIDE * CHANNELS];
  for (int i = 0; i < SIDE * SIDE; i++) {
    memcpy(rgb + i * CHANNELS, classes[i] <= KINDS ? colours[classes[i]] : grey, CHANNELS);
  }
  put_picture(file, rgb, name);
}

static void put_matrix(FILE *file, int64_t classes) {
  fprintf(file, "<table><caption>Rows are classes, columns are answers</caption><tr><th></th>");
  for (int64_t c = 0; c < classes; c++) fprintf(file, "<th scope=col>%d</th>", (int)c);
  for (int64_t c = 0; c < classes; c++) {
    int64_t own = 0;
    for (int64_t other = 0; other < classes; other++) own += confusion[c][other];
    fprintf(file, "</tr>\n<tr><th scope=row>%d</th>", (int)c);
    for (int64_t other = 0; other < classes; other++) {
      const double part = own == 0 ? 0 : (double)confusion[c][other] / (double)own;
      fprintf(file, "<td style=\"background:rgb(47 111 196 / %.0f%%)\">%lld</td>", 70 * part,
              (long long)confusion[c][other]);
    }
  }
  fprintf(file, "</tr></table>\n");
}

static void put_examples(FILE *file, const struct settings *s) {
  for (int64_t i = 0; i < shown_count; i++) {
    fprintf(file, "<figure>");
    put_picture(file, shown[i], "picture");
    if (s->segment) {
      put_map(file, truths + i * SIDE * SIDE, "classes");
      put_map(file, answers + i * SIDE * SIDE, "answers");
      fprintf(file, "<figcaption>picture, classes, answers</figcaption></figure>\n");
    } else {
      fprintf(file, "<figcaption>class %d, answer %d</figcaption></figure>\n", truths[i],
              answers[i]);
    }
  }
}

static ek_status write_report(const struct settings *s, double right) {
  FILE *file = fopen(s->report, "w");
  if (file == NULL) return ek_error_set(EK_ERR_IO, "cannot write %s", s->report);
  fprintf(file, "<!DOCTYPE html>\n<html lang=en><meta charset=utf-8>\n<title>train_images</title>\n"
                "<meta name=viewport content=\"width=device-width\">\n<style>\n"
                ":root { color-scheme: light dark; } body { font: 15px/1.5 system-ui, sans-serif; "
                "max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }\n"
                "td, th { padding: .2rem .6rem; text-align: right; }\n"
                "caption { text-align: left; }\n"
                "div { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; }\n"
                "img { width: 96px; image-rendering: pixelated; margin-right: 4px; }\n"
                "</style>\n<h1>train_images</h1>\n<p>%s %.3f after %ld steps on %s.</p>\n",
          s->segment ? "Mean intersection over union" : "Right answers", right, s->steps,
          s->cifar != NULL ? "CIFAR-10" : "drawn pictures");
  fprintf(file, "<h2>Confusion matrix</h2>\n");
  put_matrix(file, classes_of(s));
  fprintf(file, "<h2>Pictures that were held out</h2>\n<div>\n");
  put_examples(file, s);
  fprintf(file, "</div></html>\n");
  const int bad = ferror(file);
  if (fclose(file) == 0 && !bad) return EK_OK;
  return ek_error_set(EK_ERR_IO, "cannot write %s", s->report);
}

/* ---- a run ---- */

static bool tell(void *context, const ek_run_event *event) {
  const struct settings *s = context;
  char line[160];
  const int64_t part = s->steps < 10 ? 1 : s->steps / 10;
  if (event->step % part == 0) printf("%s\n", ek_run_line(line, sizeof line, event));
  return fflush(stdout) == 0;
}

static ek_status train(ek_run_result *result, ek_trainer *trainer, ek_source *source,
                       ek_source *held_out, struct settings *s) {
  ek_trainer_run_options options = EK_TRAINER_RUN_OPTIONS_INIT;
  options.batch = s->batch;
  options.validation = held_out;
  options.validation_every = s->steps < 5 ? 1 : s->steps / 5;
  options.folder = s->save;
  options.report = tell;
  options.context = s;
  options.world = world;
  return ek_trainer_run(result, trainer, source, s->steps, &options);
}

static int read_count(long *count, const char *text) {
  char *end = NULL;
  *count = strtol(text, &end, 10);
  return *end == '\0' && *count >= 1 && *count <= 1000000;
}

static int read_arguments(struct settings *s, int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    const int more = i + 1 < argc;
    if (strcmp(argv[i], "--segment") == 0) {
      s->segment = 1;
    } else if (strcmp(argv[i], "--devices") == 0 && more) {
      s->devices = argv[++i];
    } else if (strcmp(argv[i], "--cifar") == 0 && more) {
      s->cifar = argv[++i];
    } else if (strcmp(argv[i], "--save") == 0 && more) {
      s->save = argv[++i];
    } else if (strcmp(argv[i], "--report") == 0 && more) {
      s->report = argv[++i];
    } else if (strcmp(argv[i], "--steps") == 0 && more) {
      if (!read_count(&s->steps, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--batch") == 0 && more) {
      if (!read_count(&s->batch, argv[++i])) return 0;
    } else if (strcmp(argv[i], "--over") == 0 && more) {
      const char *over = argv[++i];
      if (strcmp(over, "shard") != 0 && strcmp(over, "all") != 0) return 0;
      s->over = strcmp(over, "all") == 0 ? EK_BATCH_NORM_ALL : EK_BATCH_NORM_SHARD;
    } else {
      return 0;
    }
  }
  return s->cifar == NULL || !s->segment;
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
  struct settings settings = {
      .devices = "cpu:2", .batch = 32, .over = EK_BATCH_NORM_ALL};
  ek_source *source = NULL, *held_out = NULL;
  ek_trainer *trainer = NULL;
  ek_run_result result;
  ek_status status;
  double right = 0;
  int good = 1;
  if (!read_arguments(&settings, argc, argv)) {
    fprintf(stderr, "usage: train_images [--devices SPEC] [--steps N] [--segment] "
                    "[--cifar PATTERN] [--save FOLDER] [--over shard|all] [--batch ROWS] "
                    "[--report FILE]\n");
    return 2;
  }
  const long enough = settings.segment ? 240 : 60;
  if (settings.steps == 0) settings.steps = enough;
  for (uint32_t i = 0; i < COUNT && settings.cifar == NULL; i++) draw_picture(i);
  EK_TRY_GOTO(status, enter_world(), cleanup);
  EK_TRY_GOTO(status, open_source(&source, &settings, 1), cleanup);
  EK_TRY_GOTO(status, open_source(&held_out, &settings, 0), cleanup);
  EK_TRY_GOTO(status, open_trainer(&trainer, &settings), cleanup);
  EK_TRY_GOTO(status, train(&result, trainer, source, held_out, &settings), cleanup);
  if (result.end == EK_RUN_STOPPED) {
    printf("stopped after step %lld of %ld\n", (long long)result.step, settings.steps);
    goto cleanup;
  }
  if (ek_device_counts_only(ek_group_device(ek_trainer_group(trainer), 0))) {
    printf("plan devices compute no answers%s\n",
           settings.report == NULL ? "" : ", so no report is written");
    goto cleanup;
  }
  EK_TRY_GOTO(status, answer(trainer, held_out, &settings), cleanup);
  right = judge(&settings);
  if (settings.report != NULL && ek_world_process(world) == 0) {
    EK_TRY_GOTO(status, write_report(&settings, right), cleanup);
  }
  good = settings.cifar != NULL || settings.steps < enough || right > 0.5;
  if (!good) fprintf(stderr, "train_images: half of the answers or more are wrong\n");
cleanup:
  if (status != EK_OK) {
    fprintf(stderr, "train_images: %s: %s\n", ek_status_name(status), ek_error_message());
  }
  ek_trainer_free(trainer);
  ek_source_free(held_out);
  ek_source_free(source);
  ek_world_free(world);
  return status == EK_OK && good ? 0 : 1;
}
