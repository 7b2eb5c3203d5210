/*
 * evenkeel-kernels - how near the operations that memory bounds come to a plain copy, and what
 * products and attention do a second.
 *
 * Each operation takes turns with something on the same device: a copy that moves the same number
 * of bytes, or itself in f32. Some calls are queued, the clock stops when the device is done, and
 * the ratio is taken within a round, so that a drift of the machine's speed cancels.
 * docs/benchmark.md has the columns.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "output.h"
#include "parse.h"
#include "results.h"
#include "statistics.h"
#include "terminal.h"

static void print_version(FILE *stream, struct argp_state *state) {
  (void)state;
  fprintf(stream, "evenkeel-kernels %s (libevenkeel %s)\n", EK_VERSION_STRING, ek_version_string());
}

/* A measurement lasts about so long: launches are hidden, and the clock's error is. */
#define SECONDS 0.02
enum { MOST_CALLS = 1000, MOST_ROUNDS = 1000 };

enum { EXIT_WRONG = 1, EXIT_USAGE = 2 };

struct settings {
  const char *devices, *only; /* only: a list, or NULL for all */
  int64_t threads;
  enum results_format format;
  struct results results; /* what is wanted, and what came of it */
};

/* One operation, or what it is held against. */
struct side {
  const struct kernel *kernel;
  struct bed bed;
  int64_t calls;
};

static double now(bool processor_time) {
  return processor_time ? processor_seconds() : clock_seconds();
}

/* Seconds of one of `calls` calls, one after the other. */
static ek_status time_calls(double *seconds, struct side *side, int64_t calls,
                            bool processor_time) {
  const double start = now(processor_time);
  for (int64_t i = 0; i < calls; i++) EK_TRY(side->kernel->call(&side->bed));
  EK_TRY(ek_stream_synchronize(side->bed.stream));
  *seconds = (now(processor_time) - start) / (double)calls;
  return EK_OK;
}

/* Warms up and finds how many calls last SECONDS. */
static ek_status choose_calls(struct side *side) {
  double seconds = 0;
  EK_TRY(time_calls(&seconds, side, 1, false));
  EK_TRY(time_calls(&seconds, side, 2, false));
  const double wanted = SECONDS / seconds;
  side->calls = wanted < 1 ? 1 : wanted < MOST_CALLS ? (int64_t)wanted : MOST_CALLS;
  return EK_OK;
}

/* Which of the two goes first changes from round to round. */
static ek_status take_turns(struct result *result, struct side *side, struct side *other,
                            const struct results *wanted) {
  double seconds[MOST_ROUNDS], others[MOST_ROUNDS], ratio[MOST_ROUNDS];
  const size_t rounds = (size_t)wanted->rounds;
  const bool processor = wanted->processor_time;
  EK_TRY(choose_calls(side));
  EK_TRY(choose_calls(other));
  for (size_t r = 0; r < rounds; r++) {
    if (r % 2 == 0) EK_TRY(time_calls(&others[r], other, other->calls, processor));
    EK_TRY(time_calls(&seconds[r], side, side->calls, processor));
    if (r % 2 == 1) EK_TRY(time_calls(&others[r], other, other->calls, processor));
    if (!wanted->against_f32) {
      others[r] = other->bed.bytes / others[r];
      ratio[r] = side->bed.bytes / seconds[r] / others[r];
    } else {
      ratio[r] = seconds[r] / others[r];
    }
  }
  result->seconds = summarize(seconds, rounds);
  result->other = summarize(others, rounds);
  result->ratio = summarize(ratio, rounds);
  return EK_OK;
}

/* The same shape in f32, or a copy of as many bytes. */
static ek_status open_other(struct side *other, const struct side *side, bool against_f32) {
  if (against_f32) {
    other->kernel = side->kernel;
    other->bed.type = EK_F32;
    return bed_open(&other->bed, other->kernel, side->bed.rows * side->bed.columns);
  }
  other->kernel = &copy_kernel;
  other->bed.random = NULL;
  const int64_t same = (int64_t)(side->bed.bytes / kernel_bytes(&copy_kernel, side->bed.type));
  return bed_open(&other->bed, other->kernel, same);
}

static ek_status measure(struct result *result, const struct kernel *kernel,
                         const struct bed *start, const struct results *wanted) {
  struct side side = {kernel, *start, 0}, other = {NULL, *start, 0};
  const int64_t elements = (wanted->mib << 20) / (int64_t)ek_type_size(wanted->type);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, bed_open(&side.bed, kernel, elements), cleanup);
  result->kernel = kernel;
  result->rows = side.bed.rows;
  result->columns = side.bed.columns;
  result->bytes = side.bed.bytes;
  result->flops = side.bed.flops;
  EK_TRY_GOTO(status, open_other(&other, &side, wanted->against_f32), cleanup);
  status = take_turns(result, &side, &other, wanted);
cleanup:
  bed_close(&other.bed);
  bed_close(&side.bed);
  return status;
}

/* Takes the first word off a list with commas between; NULL after the last one. */
static const char *take_word(size_t *length, const char **list) {
  const char *word = *list;
  if (word == NULL) return NULL;
  *length = strcspn(word, ",");
  *list = word[*length] == ',' ? word + *length + 1 : NULL;
  return word;
}

static bool is_word(const char *name, const char *word, size_t length) {
  return strlen(name) == length && strncmp(name, word, length) == 0;
}

static bool is_among(const char *name, const char *list) {
  size_t length = 0;
  const char *word = NULL;
  while ((word = take_word(&length, &list)) != NULL) {
    if (is_word(name, word, length)) return true;
  }
  return false;
}

/* The kernels that memory bounds, the products, all operations as listed; NULL after the last. */
static const struct kernel *kernel_at(size_t index) {
  size_t memory = 0, product = 0;
  while (memory_kernel_at(memory) != NULL) memory++;
  while (product_at(product) != NULL) product++;
  return index < memory             ? memory_kernel_at(index)
         : index < memory + product ? product_at(index - memory)
                                    : listed_kernel_at(index - memory - product);
}

/* Whether it is measured: where `only` is NULL, those of the tables. */
static bool is_wanted(const struct kernel *kernel, const char *only) {
  const struct kernel *other = NULL;
  for (size_t i = 0; kernel->plain && (other = kernel_at(i)) != NULL && !other->plain; i++) {
    if (strcmp(other->name, kernel->name) == 0) return false;
  }
  return only == NULL ? !kernel->plain
                      : strcmp(only, "all") == 0 || is_among(kernel->name, only);
}

static ek_status run(struct settings *settings, const ek_group *group, const float *random) {
  ek_device *device = ek_group_device(group, 0);
  struct results *results = &settings->results;
  const struct bed start = {.device = device,
                            .stream = ek_device_stream(device, EK_STREAM_COMPUTE),
                            .type = results->type,
                            .random = random,
                            .tokens = results->tokens};
  ek_status status = EK_OK;
  const struct kernel *kernel;
  results->device = ek_device_name(device);
  results->threads = ek_device_threads(device);
  for (size_t i = 0; status == EK_OK && (kernel = kernel_at(i)) != NULL; i++) {
    if (!is_wanted(kernel, settings->only)) continue;
    results->all = need_more(results->all, results->count + 1, sizeof *results->all);
    status = measure(&results->all[results->count], kernel, &start, results);
    if (status == EK_OK) results->count++;
  }
  results_write(results, settings->format); /* after a failure what there is until then */
  free(results->all);
  return status;
}

/* The same numbers every time; xorshift of 32 bits (Marsaglia 2003). */
static float *make_random(const struct results *wanted) {
  const int64_t large = (wanted->mib << 20) / (int64_t)ek_type_size(wanted->type);
  const int64_t product = product_elements(wanted->tokens),
                count = large > product ? large : product;
  float *values = need_memory((size_t)count, sizeof *values);
  uint32_t state = 2463534242u;
  for (int64_t i = 0; i < count; i++) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    values[i] = (float)(state >> 8) * 0x1p-24f;
  }
  return values;
}

/* ---- options ---- */

enum { KEY_AGAINST = 256, KEY_ONLY, KEY_PROCESSOR_TIME, KEY_THREADS };

static const struct argp_option options[] = {
    {"devices", 'd', "SPEC", 0, "One device, such as cpu (default) or cuda:0", 0},
    {"type", 't', "TYPE", 0, "Type of the values: f32 (default), bf16 or f16", 0},
    {"mib", 'm', "N", 0, "Size of the large tensors in MiB; default 256", 0},
    {"tokens", 'k', "N", 0, "Rows of products, tokens of attention; default 1024", 0},
    {"rounds", 'r', "N", 0, "Rounds of an operation and of what it is compared with; default "
                            "15", 0},
    {"only", KEY_ONLY, "LIST", 0,
     "Only these operations, such as add,adamw; all: every operation of the library", 0},
    {"against", KEY_AGAINST, "WHAT", 0,
     "copy (default): the speed divided by that of a copy of the same number of bytes; f32: the "
     "time divided by that in f32",
     0},
    {"threads", KEY_THREADS, "N", 0, "Threads of a cpu device; default 0: one for each core", 0},
    {"processor-time", KEY_PROCESSOR_TIME, NULL, 0,
     "Measure the processor time of the whole process instead of elapsed time: for cpu devices on "
     "a busy machine", 0},
    {"output", 'o', "FORMAT", 0, "table (default), md, csv or json", 0},
    {NULL, 0, NULL, 0, NULL, 0}};

static void need_whole(int64_t *value, const char *text, int64_t least, int64_t most,
                       const char *name, struct argp_state *state) {
  if (parse_whole(value, text, least, most)) return;
  argp_error(state, "--%s must be %lld to %lld, not "
                    "\"%s\"", name, (long long)least, (long long)most,
             text);
}

static void parse_only(struct settings *settings, const char *text, struct argp_state *state) {
  size_t length = 0;
  const char *list = text, *word = NULL;
  settings->only = text;
  if (strcmp(text, "all") == 0) return;
  while ((word = take_word(&length, &list)) != NULL) {
    const struct kernel *kernel = NULL;
    for (size_t i = 0; (kernel = kernel_at(i)) != NULL; i++) {
      if (is_word(kernel->name, word, length)) break;
    }
    if (kernel == NULL) argp_error(state, "--only: unknown operation \"%.*s\"", (int)length, word);
  }
}

static void parse_type(ek_type *type, const char *text, struct argp_state *state) {
  *type = strcmp(text, "f32") == 0    ? EK_F32
          : strcmp(text, "bf16") == 0 ? EK_BF16
          : strcmp(text, "f16") == 0  ? EK_F16
                                      : (ek_type)0;
  if (*type == 0) argp_error(state, "--type must be f32, bf16 or f16, not \"%s\"", text);
}

static error_t parse(int key, char *text, struct argp_state *state) {
  struct settings *settings = state->input;
  struct results *results = &settings->results;
  switch (key) {
  case 'd': settings->devices = text; return 0;
  case 't': parse_type(&results->type, text, state); return 0;
  case 'm': need_whole(&results->mib, text, 1, 1 << 16, "mib", state); return 0;
  case 'k': need_whole(&results->tokens, text, 1, 1 << 20, "tokens", state); return 0;
  case 'r': need_whole(&results->rounds, text, 1, MOST_ROUNDS, "rounds", state); return 0;
  case KEY_THREADS: need_whole(&settings->threads, text, 0, 1024, "threads", state); return 0;
  case KEY_ONLY: parse_only(settings, text, state); return 0;
  case KEY_PROCESSOR_TIME: results->processor_time = true; return 0;
  case KEY_AGAINST:
    results->against_f32 = strcmp(text, "f32") == 0;
    if (!results->against_f32 && strcmp(text, "copy") != 0) {
      argp_error(state, "--against must be copy or f32, not \"%s\"", text);
    }
    return 0;
  case 'o':
    if (!results_parse(&settings->format, text)) {
      argp_error(state, "-o must be table, md, csv or json, not \"%s\"", text);
    }
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static ek_status open_group(ek_group **group, const struct settings *settings) {
  ek_group_options wanted = EK_GROUP_OPTIONS_INIT;
  wanted.threads_per_device = (int)settings->threads;
  return ek_group_open(group, settings->devices, &wanted);
}

int main(int argc, char **argv) {
  argp_program_version_hook = print_version;
  static const struct argp argp = {
      options,
      parse,
      "",
      "Times operations in turns: those bound by memory with a copy of the same number of bytes, "
      "or all of them with themselves in f32.",
      NULL,
      NULL,
      NULL};
  struct settings settings = {
      .devices = "cpu", .results = {.type = EK_F32, .mib = 256, .tokens = 1024, .rounds = 15}};
  argp_err_exit_status = EXIT_USAGE;
  terminal_program = "evenkeel-kernels";
  output_watch_standard();
  if (argp_parse(&argp, argc, argv, 0, NULL, &settings) != 0) return EXIT_USAGE;
  ek_group *group = NULL;
  if (open_group(&group, &settings) != EK_OK) {
    say_error("--devices %s: %s", settings.devices, ek_error_message());
    return EXIT_WRONG;
  }
  if (ek_group_size(group) != 1 || ek_device_counts_only(ek_group_device(group, 0))) {
    say_error("--devices %s: expected one device that computes (not plan)", settings.devices);
    ek_group_free(group);
    return EXIT_USAGE;
  }
  float *random = make_random(&settings.results);
  const ek_status status = run(&settings, group, random);
  if (status != EK_OK) say_error("%s", ek_error_message());
  free(random);
  ek_group_free(group);
  return status == EK_OK ? 0 : EXIT_WRONG;
}
