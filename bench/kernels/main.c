/*
 * evenkeel-kernels - how near the operations that memory bounds come to a plain copy.
 *
 * Each operation takes turns with a copy that moves the same number of bytes on the same device:
 * some calls are queued, the clock stops when the device is done, and the ratio is taken within a
 * round, so that a drift of the machine's speed cancels. docs/benchmark.md has the columns.
 */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grid.h"
#include "kernels.h"
#include "output.h"
#include "parse.h"
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
  const char *devices;
  ek_type type;
  int64_t mib, rounds;
  void (*write)(const struct grid *grid, FILE *file);
};

struct rates { /* of one operation, over the rounds */
  struct summary kernel, copy, ratio;
  double bytes; /* of a call */
  int64_t rows, columns;
};

/* Seconds for `calls` calls, one after the other. */
static ek_status time_calls(double *seconds, const struct kernel *kernel, struct bed *bed,
                            int64_t calls) {
  const double start = clock_seconds();
  for (int64_t i = 0; i < calls; i++) EK_TRY(kernel->call(bed));
  EK_TRY(ek_stream_synchronize(bed->stream));
  *seconds = clock_seconds() - start;
  return EK_OK;
}

/* Warms up and finds how many calls last SECONDS. */
static ek_status choose_calls(int64_t *calls, const struct kernel *kernel, struct bed *bed) {
  double seconds = 0;
  EK_TRY(time_calls(&seconds, kernel, bed, 1));
  EK_TRY(time_calls(&seconds, kernel, bed, 2));
  const double wanted = 2 * SECONDS / seconds;
  *calls = wanted < 1 ? 1 : wanted < MOST_CALLS ? (int64_t)wanted : MOST_CALLS;
  return EK_OK;
}

/* Which of the two goes first changes from round to round. */
static ek_status take_turns(struct rates *rates, const struct kernel *kernel, struct bed *bed,
                            struct bed *copy, int64_t rounds) {
  const double copy_bytes = kernel_bytes(&copy_kernel, copy->type);
  double kernel_rate[MOST_ROUNDS], copy_rate[MOST_ROUNDS], ratio[MOST_ROUNDS];
  int64_t calls = 0, copies = 0;
  EK_TRY(choose_calls(&calls, kernel, bed));
  EK_TRY(choose_calls(&copies, &copy_kernel, copy));
  for (int64_t r = 0; r < rounds; r++) {
    double seconds = 0, copying = 0;
    if (r % 2 == 0) EK_TRY(time_calls(&copying, &copy_kernel, copy, copies));
    EK_TRY(time_calls(&seconds, kernel, bed, calls));
    if (r % 2 == 1) EK_TRY(time_calls(&copying, &copy_kernel, copy, copies));
    kernel_rate[r] = rates->bytes * (double)calls / seconds;
    copy_rate[r] = (double)copy->rows * copy_bytes * (double)copies / copying;
    ratio[r] = kernel_rate[r] / copy_rate[r];
  }
  rates->kernel = summarize(kernel_rate, (size_t)rounds);
  rates->copy = summarize(copy_rate, (size_t)rounds);
  rates->ratio = summarize(ratio, (size_t)rounds);
  return EK_OK;
}

static ek_status measure(struct rates *rates, const struct kernel *kernel, const struct bed *start,
                         int64_t elements, int64_t rounds) {
  struct bed bed = *start, copy = *start;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, bed_open(&bed, kernel, elements), cleanup);
  rates->rows = bed.rows;
  rates->columns = bed.columns;
  rates->bytes = (double)bed.rows * (double)bed.columns * kernel_bytes(kernel, bed.type);
  copy.random = NULL;
  const int64_t same = (int64_t)(rates->bytes / kernel_bytes(&copy_kernel, bed.type));
  EK_TRY_GOTO(status, bed_open(&copy, &copy_kernel, same), cleanup);
  status = take_turns(rates, kernel, &bed, &copy, rounds);
cleanup:
  bed_close(&copy);
  bed_close(&bed);
  return status;
}

static void add_row(struct grid *grid, const struct kernel *kernel, const struct rates *rates,
                    ek_type type) {
  grid_cell(grid, "%s", kernel->name);
  grid_cell(grid, "%s", ek_type_name(type));
  grid_cell(grid, "%lld x %lld", (long long)rates->rows, (long long)rates->columns);
  grid_cell(grid, "%d", kernel_bytes(kernel, type));
  grid_number(grid, rates->bytes / rates->kernel.median * 1e6, 1);
  grid_number(grid, rates->kernel.median * 1e-9, 3);
  grid_number(grid, rates->copy.median * 1e-9, 3);
  grid_number(grid, rates->ratio.median, 3);
  grid_number(grid, rates->ratio.min, 3);
  grid_number(grid, rates->ratio.max, 3);
}

static struct grid *make_grid(const struct settings *settings, const ek_device *device) {
  static const char *const headings[] = {"type",      "shape", "bytes/element", "us/call", "GB/s",
                                         "copy GB/s", "ratio", "min",           "max",     NULL};
  char title[128];
  snprintf(title, sizeof title, "Operations against a copy on %s, %s, %lld MiB a tensor",
           ek_device_name(device), ek_type_name(settings->type), (long long)settings->mib);
  struct grid *grid = grid_create(title);
  grid_column(grid, "operation", true);
  for (size_t i = 0; headings[i] != NULL; i++) grid_column(grid, headings[i], false);
  return grid;
}

static ek_status run(const struct settings *settings, const ek_group *group, const float *random) {
  ek_device *device = ek_group_device(group, 0);
  const struct bed start = {.device = device,
                            .stream = ek_device_stream(device, EK_STREAM_COMPUTE),
                            .type = settings->type,
                            .random = random};
  const int64_t elements = (settings->mib << 20) / (int64_t)ek_type_size(settings->type);
  struct grid *grid = make_grid(settings, device);
  ek_status status = EK_OK;
  const struct kernel *kernel;
  for (size_t i = 0; status == EK_OK && (kernel = kernel_at(i)) != NULL; i++) {
    struct rates rates = {0};
    status = measure(&rates, kernel, &start, elements, settings->rounds);
    if (status == EK_OK) add_row(grid, kernel, &rates, settings->type);
  }
  settings->write(grid, stdout); /* after a failure what there is until then */
  grid_free(grid);
  return status;
}

/* The same numbers every time; xorshift of 32 bits (Marsaglia 2003). */
static float *make_random(int64_t count) {
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

static const struct argp_option options[] = {
    {"devices", 'd', "SPEC", 0, "One device, such as cpu (default) or cuda:0", 0},
    {"type", 't', "TYPE", 0, "Of values: f32 (default), bf16 or f16", 0},
    {"mib", 'm', "N", 0, "Size of the large tensors in MiB; default 256", 0},
    {"rounds", 'r', "N", 0, "Rounds of an operation and a copy; default 15", 0},
    {"output", 'o', "FORMAT", 0, "table (default), md or csv", 0},
    {NULL, 0, NULL, 0, NULL, 0}};

static error_t parse(int key, char *text, struct argp_state *state) {
  struct settings *settings = state->input;
  switch (key) {
  case 'd': settings->devices = text; return 0;
  case 't':
    settings->type = strcmp(text, "f32") == 0    ? EK_F32
                     : strcmp(text, "bf16") == 0 ? EK_BF16
                     : strcmp(text, "f16") == 0  ? EK_F16
                                                 : (ek_type)0;
    if (settings->type == 0) argp_error(state, "--type is f32, bf16 or f16, not \"%s\"", text);
    return 0;
  case 'm':
    if (!parse_whole(&settings->mib, text, 1, 1 << 16)) argp_error(state, "--mib %s?", text);
    return 0;
  case 'r':
    if (!parse_whole(&settings->rounds, text, 1, MOST_ROUNDS)) {
      argp_error(state, "--rounds is 1 to %d, not \"%s\"", MOST_ROUNDS, text);
    }
    return 0;
  case 'o':
    settings->write = strcmp(text, "table") == 0 ? grid_write_table
                      : strcmp(text, "md") == 0  ? grid_write_markdown
                      : strcmp(text, "csv") == 0 ? grid_write_csv
                                                 : NULL;
    if (settings->write == NULL) argp_error(state, "-o is table, md or csv, not \"%s\"", text);
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

int main(int argc, char **argv) {
  argp_program_version_hook = print_version;
  static const struct argp argp = {
      options,
      parse,
      "",
      "Times operations that memory bounds, in turns with a copy of the same number of bytes.",
      NULL,
      NULL,
      NULL};
  struct settings settings = {"cpu", EK_F32, 256, 15, grid_write_table};
  argp_err_exit_status = EXIT_USAGE;
  terminal_program = "evenkeel-kernels";
  output_watch_standard();
  if (argp_parse(&argp, argc, argv, 0, NULL, &settings) != 0) return EXIT_USAGE;
  ek_group *group = NULL;
  if (ek_group_open(&group, settings.devices, NULL) != EK_OK) {
    say_error("--devices %s: %s", settings.devices, ek_error_message());
    return EXIT_WRONG;
  }
  if (ek_group_size(group) != 1 || ek_device_counts_only(ek_group_device(group, 0))) {
    say_error("--devices %s: one device that computes is wanted", settings.devices);
    ek_group_free(group);
    return EXIT_USAGE;
  }
  float *random = make_random((settings.mib << 20) / (int64_t)ek_type_size(settings.type));
  const ek_status status = run(&settings, group, random);
  if (status != EK_OK) say_error("%s", ek_error_message());
  free(random);
  ek_group_free(group);
  return status == EK_OK ? 0 : EXIT_WRONG;
}
