/*
 * evenkeel-smoke - whether a device computes at all: the first program on a GPU of a new kind.
 *
 *     evenkeel-smoke [DEVICE [TOLERANCES [WHAT...]]]
 *
 *   memory      opens DEVICE (cuda:0), and says how long that took and what is whose of its memory
 *   training    a GPT of two blocks makes STEPS steps in f32, TF32, bf16 and f16 on DEVICE and on
 *               cpu:1; of each the relative L2 of the losses, of the gradients of the first step
 *               and of the change of all parameters, and whether these are within the tolerance
 *   products    those of GPT-2 124M with 8,192 tokens in bf16, the head with 50,257, 50,264 and
 *               50,304 rows: what cuBLASLt's algorithms and epilogues take, from the library's
 *               log; products:N with N tokens, and as many times fewer rows
 *   operations  each operation of the library once in each type, on small shapes: for a tool that
 *               looks at each access (compute-sanitizer); their values are compared by tests/op
 *
 * The first two without WHAT. TOLERANCES (1) multiplies those below; 0 for a try that must fail.
 * Needs nothing but the library. Exit code 1 if something failed or is beyond its tolerance.
 *
 * Tolerances (docs/numerics.md, "The same training on two devices"): between the loss and a
 * parameter there are RESULTS rounded results. Roundings to u, independent of each other on the two
 * devices, give sqrt(RESULTS) u and that factor SAFETY. A result of f32 is a sum of up to LONGEST
 * products, in another order, and so counts as sqrt(LONGEST) of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/kernels.h"
#include "parse.h"
#include "statistics.h"

/* Heads of 32, as tensor cores take them. */
enum { VOCABULARY = 67, TOKENS = 32, WIDTH = 64, HEADS = 2, BLOCKS = 2, BATCH = 4, STEPS = 5 };
enum { RESULTS = 72, LONGEST = 4 * WIDTH, SAFETY = 2 };
/* f16 needs it for small gradients, and it overflows nowhere here. */
#define LOSS_SCALE 1024.0

struct arithmetic {
  const char *name;
  ek_precision precision;
  double unit; /* roundoff of a result */
};
static const struct arithmetic precisions[] = {{"f32", EK_PRECISION_F32, 0x1p-24},
                                              {"tf32", EK_PRECISION_TF32, 0x1p-11},
                                              {"bf16", EK_PRECISION_BF16, 0x1p-9},
                                              {"f16", EK_PRECISION_F16, 0x1p-11}};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

static double tolerance_of(const struct arithmetic *of) {
  const double sums = of->precision == EK_PRECISION_F32 ? sqrt(LONGEST) : 1;
  return SAFETY * of->unit * sqrt(RESULTS) * sums;
}

/* ---- memory ---- */

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

static ek_status show_memory(const ek_device *device, double seconds) {
  ek_memory_usage usage;
  ek_memory_outside outside;
  EK_TRY(ek_memory_stats(&usage, device));
  EK_TRY(ek_memory_measure_outside(&outside, device));
  printf("memory: opened in %.2f s; %.1f MiB of %.1f MiB are the device's, %.1f beside it when it "
         "opened and %.1f now, %.1f in reserve, %.1f free\n",
         seconds, mib(usage.capacity_bytes), mib(outside.total_bytes), mib(outside.opening_bytes),
         mib(outside.now_bytes), mib(outside.reserve_bytes), mib(outside.free_bytes));
  return EK_OK;
}

/* ---- training ---- */

/* What a run leaves. */
struct run {
  double losses[STEPS];
  float *start, *first, *end; /* all parameters: before, after one step, after all */
  size_t count;
};

static void free_run(struct run *run) {
  free(run->start);
  free(run->first);
  free(run->end);
}

/* All parameters, one after the other. */
static ek_status read_parameters(float **values, size_t *count, const ek_trainer *trainer) {
  const ek_data_parallel_model *model = ek_trainer_model(trainer);
  size_t total = 0;
  *values = NULL;
  for (int reading = 0; reading < 2; reading++) {
    size_t at = 0;
    for (size_t i = 0; i < ek_state_count(model); i++) {
      ek_state_info info;
      EK_TRY(ek_state_entry(&info, model, i));
      if (info.kind != EK_STATE_KIND_PARAMETER) continue;
      if (reading == 1) {
        ek_tensor host;
        EK_TRY(ek_tensor_host(&host, *values + at, EK_F32, info.like.rank, info.like.shape));
        EK_TRY(ek_state_read(&host, model, info.name));
      }
      at += (size_t)ek_tensor_count(&info.like);
    }
    total = at;
    if (reading == 0) *values = malloc((total + 1) * sizeof **values);
    if (*values == NULL) return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory");
  }
  *count = total;
  return EK_OK;
}

static ek_status open_trainer(ek_trainer **trainer, ek_group *group,
                              const struct arithmetic *precision) {
  const ek_loss_scale scale = {.kind = EK_LOSS_SCALE_STATIC, .scale = LOSS_SCALE};
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ek_trainer_options options = EK_TRAINER_OPTIONS_INIT;
  gpt.vocabulary = VOCABULARY;
  gpt.sequence = TOKENS;
  gpt.width = WIDTH;
  gpt.heads = HEADS;
  gpt.layers = BLOCKS;
  sgd.learning_rate = 0.5; /* plain, so that the first change is the gradient */
  model.precision = precision->precision;
  model.seed = 7;
  if (precision->precision == EK_PRECISION_F16) optimizer.loss_scale = &scale;
  options.group = group;
  options.model = &model;
  options.optimizer = &optimizer;
  ek_module *module = NULL;
  ek_criterion *criterion = NULL;
  ek_optimizer *rule = NULL;
  ek_status status = ek_gpt_create(&module, &gpt);
  if (status == EK_OK) status = ek_cross_entropy_create(&criterion, NULL);
  if (status == EK_OK) status = ek_sgd_create(&rule, &sgd);
  if (status == EK_OK) {
    status = ek_trainer_open(trainer, NULL, module, criterion, rule, &options);
  }
  ek_optimizer_free(rule);
  ek_criterion_free(criterion);
  ek_module_free(module);
  return status;
}

/* The same batches on each device: a text with a rule that can be learnt, and some noise. */
static void make_batch(int32_t *tokens, int32_t *targets, uint32_t *state) {
  for (int s = 0; s < BATCH; s++) {
    int32_t token = s;
    for (int t = 0; t < TOKENS; t++) {
      *state = *state * 1664525u + 1013904223u;
      tokens[s * TOKENS + t] = token;
      token = *state >> 28 == 0 ? (int32_t)(*state >> 16 & 63) : (token * 5 + 3) % VOCABULARY;
      targets[s * TOKENS + t] = token;
    }
  }
}

static ek_status train(struct run *run, ek_trainer *trainer) {
  static const int64_t shape[] = {BATCH, TOKENS};
  int32_t tokens[BATCH * TOKENS], targets[BATCH * TOKENS];
  uint32_t state = 1;
  size_t count = 0;
  EK_TRY(read_parameters(&run->start, &run->count, trainer));
  for (int i = 0; i < STEPS; i++) {
    ek_tensor inputs, wanted;
    ek_step_result result;
    make_batch(tokens, targets, &state);
    EK_TRY(ek_tensor_host(&inputs, tokens, EK_I32, 2, shape));
    EK_TRY(ek_tensor_host(&wanted, targets, EK_I32, 2, shape));
    EK_TRY(ek_trainer_step(&result, trainer, &inputs, 1, &wanted, 1));
    run->losses[i] = result.loss;
    if (i == 0) EK_TRY(read_parameters(&run->first, &count, trainer));
  }
  return read_parameters(&run->end, &count, trainer);
}

static ek_status run_on(struct run *run, ek_group *group, const struct arithmetic *precision) {
  ek_trainer *trainer = NULL;
  EK_TRY(open_trainer(&trainer, group, precision));
  const ek_status status = train(run, trainer);
  ek_trainer_free(trainer);
  return status;
}

/* Of (a - from) against (b - from); NaN if one of them is. */
static double difference(const float *a, const float *b, const float *from, size_t count) {
  double square = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    const double mine = (double)a[i] - (double)from[i], other = (double)b[i] - (double)from[i];
    square += (mine - other) * (mine - other);
    size += other * other;
  }
  return sqrt(square / size);
}

static double loss_difference(const double *a, const double *b) {
  double square = 0, size = 0;
  for (int i = 0; i < STEPS; i++) {
    square += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return sqrt(square / size);
}

static bool show(const struct arithmetic *precision, const struct run *run, const struct run *cpu,
                 double factor) {
  const double most = tolerance_of(precision) * factor;
  const double loss = loss_difference(run->losses, cpu->losses);
  const double gradients = difference(run->first, cpu->first, cpu->start, cpu->count);
  const double parameters = difference(run->end, cpu->end, cpu->start, cpu->count);
  const bool same = memcmp(run->start, cpu->start, cpu->count * sizeof *cpu->start) == 0;
  const bool falls = run->losses[STEPS - 1] < run->losses[0];
  /* Not `>`: NaN is within no tolerance. */
  const bool good = same && falls && loss <= most && gradients <= most && parameters <= most;
  printf("training %-4s  loss %.4f to %.4f; differs from the CPU by: loss %.1e, gradients %.1e, "
         "parameters %.1e; at most %.1e: %s%s%s\n",
         precision->name, run->losses[0], run->losses[STEPS - 1], loss, gradients, parameters, most,
         good ? "ok" : "WRONG", same ? "" : ", other initial values",
         falls ? "" : ", the loss does not fall");
  return good;
}

static ek_status compare(bool *good, ek_group *group, ek_group *cpu, double factor) {
  for (size_t i = 0; i < PRECISIONS; i++) {
    struct run run = {.count = 0}, other = {.count = 0};
    ek_status status = run_on(&run, group, &precisions[i]);
    if (status == EK_OK) status = run_on(&other, cpu, &precisions[i]);
    if (status == EK_OK) *good = show(&precisions[i], &run, &other, factor) && *good;
    free_run(&run);
    free_run(&other);
    if (status != EK_OK) {
      return ek_error_set(status, "training %s: %s", precisions[i].name, ek_error_message());
    }
    (void)fflush(stdout);
  }
  return EK_OK;
}

/* ---- operations ---- */

static ek_status call_once(const struct bed *start, const struct kernel *kernel, int64_t rows) {
  struct bed bed = *start;
  ek_status status = bed_open(&bed, kernel, rows * kernel->columns);
  if (status == EK_OK) status = kernel->call(&bed);
  if (status == EK_OK) status = ek_stream_synchronize(bed.stream);
  bed_close(&bed);
  return status;
}

static ek_status call_all(ek_group *group) {
  static const ek_type types[] = {EK_F32, EK_BF16, EK_F16};
  /* A row; some; whole tiles, aligned; more than a tile, whose rows begin beside 16 bytes. */
  static const struct {
    int64_t rows, columns;
  } shapes[] = {{1, 48}, {7, 96}, {64, 384}, {130, 60}};
  ek_device *device = ek_group_device(group, 0);
  struct bed start = {.device = device, .stream = ek_device_stream(device, EK_STREAM_COMPUTE)};
  const struct kernel *listed;
  size_t calls = 0;
  for (size_t k = 0; (listed = listed_kernel_at(k)) != NULL; k++) {
    for (size_t i = 0; i < 4 * sizeof types / sizeof types[0]; i++) {
      struct kernel kernel = *listed;
      kernel.columns = shapes[i % 4].columns;
      start.type = types[i / 4];
      start.tokens = shapes[i % 4].rows;
      const ek_status status = call_once(&start, &kernel, shapes[i % 4].rows);
      if (status != EK_OK) {
        return ek_error_set(status, "%s, %lld x %lld, %s: %s", listed->name,
                            (long long)shapes[i % 4].rows, (long long)kernel.columns,
                            ek_type_name(start.type), ek_error_message());
      }
      calls++;
    }
  }
  printf("operations: %zu calls\n", calls);
  return EK_OK;
}

/* ---- products ---- */

enum { TOKENS_OF_STEP = 8192 };

static void show_line(void *context, ek_log_level level, const char *line) {
  (void)context, (void)level;
  printf("%s\n", line);
}

static ek_status multiply(ek_device *device, int64_t tokens, int64_t rows) {
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const int64_t of_x[] = {tokens, 768}, of_weight[] = {rows, 768}, of_y[] = {tokens, rows};
  ek_tensor x = {0}, weight = {0}, y = {0};
  ek_status status = ek_tensor_create(&x, device, EK_MEMORY_INPUTS, EK_BF16, 2, of_x);
  if (status == EK_OK) {
    status = ek_tensor_create(&weight, device, EK_MEMORY_INPUTS, EK_BF16, 2, of_weight);
  }
  if (status == EK_OK) status = ek_tensor_create(&y, device, EK_MEMORY_INPUTS, EK_BF16, 2, of_y);
  if (status == EK_OK) status = ek_op_fill(stream, &x, 0.5);
  if (status == EK_OK) status = ek_op_fill(stream, &weight, 0.25);
  if (status == EK_OK) status = ek_op_matmul(stream, &y, &x, false, &weight, true, 0);
  if (status == EK_OK) status = ek_stream_synchronize(stream);
  ek_tensor_free(&y);
  ek_tensor_free(&weight);
  ek_tensor_free(&x);
  return status;
}

static ek_status show_products(ek_group *group, int64_t tokens) {
  static const int64_t rows[] = {768, 2304, 3072, 50257, 50264, 50304};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    EK_TRY(multiply(ek_group_device(group, 0), tokens, rows[i] * tokens / TOKENS_OF_STEP));
  }
  return EK_OK;
}

/* ---- the program ---- */

static bool is_products(int64_t *tokens, const char *what) {
  *tokens = TOKENS_OF_STEP;
  if (strcmp(what, "products") == 0) return true;
  return strncmp(what, "products:", 9) == 0 && parse_whole(tokens, what + 9, 11, TOKENS_OF_STEP);
}

static ek_status run(bool *good, const char *devices, double factor, char **what, int count) {
  ek_group *group = NULL, *cpu = NULL;
  ek_status status = EK_OK;
  int64_t tokens = 0;
  for (int i = 0; i < count; i++) {
    if (is_products(&tokens, what[i])) ek_log_set(EK_LOG_DEBUG, show_line, NULL);
  }
  const double start = clock_seconds();
  EK_TRY(ek_group_open(&group, devices, NULL));
  const double seconds = clock_seconds() - start;
  for (int i = 0; i < count && status == EK_OK; i++) {
    if (strcmp(what[i], "memory") == 0) status = show_memory(ek_group_device(group, 0), seconds);
    if (strcmp(what[i], "operations") == 0) status = call_all(group);
    if (is_products(&tokens, what[i])) status = show_products(group, tokens);
    if (strcmp(what[i], "training") != 0) continue;
    if (status == EK_OK) status = ek_group_open(&cpu, "cpu:1", NULL);
    if (status == EK_OK) status = compare(good, group, cpu, factor);
    ek_group_free(cpu);
    cpu = NULL;
  }
  const ek_status closed = ek_group_close(group);
  return status == EK_OK ? closed : status;
}

static bool is_known(const char *what) {
  int64_t tokens = 0;
  return is_products(&tokens, what) || strcmp(what, "memory") == 0 ||
         strcmp(what, "training") == 0 || strcmp(what, "operations") == 0;
}

int main(int argc, char **argv) {
  static char *usual[] = {"memory", "training"};
  char **what = argc > 3 ? argv + 3 : usual;
  const int count = argc > 3 ? argc - 3 : 2;
  char *end = NULL;
  const double factor = argc > 2 ? strtod(argv[2], &end) : 1;
  bool good = argc < 3 || (*end == '\0' && factor >= 0);
  for (int i = 0; i < count; i++) good = good && is_known(what[i]);
  if (!good) {
    fprintf(stderr,
            "usage: evenkeel-smoke [DEVICE [TOLERANCES "
            "[memory|training|products|operations]...]]\n");
    return 2;
  }
  const ek_status status = run(&good, argc > 1 ? argv[1] : "cuda:0", factor, what, count);
  if (status != EK_OK) fprintf(stderr, "evenkeel-smoke: %s\n", ek_error_message());
  return status == EK_OK && good ? 0 : 1;
}
