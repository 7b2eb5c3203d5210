/*
 * fuzz_bench.c - what evenkeel-bench reads: text, flags and their values; and the tables it writes.
 *
 * The command line ends the program when it is wrong, so options_parse.c and options_finish.c are
 * compiled here with exit(), argp_error() and argp_parse() under other names (CMakeLists.txt): they
 * come back to this file.
 */
#define _GNU_SOURCE /* memfd_create() */
#include <argp.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <grid.h>
#include <options.h>
#include <parse.h>
#include <text.h>
#include <tokenizer.h>

#include "fuzz_input.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/lsan_interface.h>
#define LEAKS_ALLOWED __lsan_disable()
#define LEAKS_REPORTED __lsan_enable()
#endif
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#define LEAKS_ALLOWED __lsan_disable()
#define LEAKS_REPORTED __lsan_enable()
#endif
#ifndef LEAKS_ALLOWED
#define LEAKS_ALLOWED (void)0
#define LEAKS_REPORTED (void)0
#endif

enum { MOST_TEXT = 4096 };

/* ---- the tokenizer ---- */

static int64_t read_vocab(struct fuzz_input *input) {
  static const int64_t vocabs[] = {256, 257, 258, 300, 255, 1, 2, 3, 50257, INT32_MAX};
  const uint8_t pick = fuzz_byte(input);
  return pick < 128 ? vocabs[pick % 10] : 1 + fuzz_int(input, 0, 511);
}

/* Ids stand for the bytes they came from, except those that stand for many. */
static void check_ids(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                      const unsigned char *bytes, size_t length, int64_t vocab) {
  size_t at = 0;
  FUZZ_EXPECT(count <= length, "%zu ids for %zu bytes", count, length);
  for (size_t i = 0; i < count; i++) {
    FUZZ_EXPECT(ids[i] >= 0 && ids[i] < tokenizer_kinds(tokenizer), "id %d", (int)ids[i]);
    size_t size = 0;
    const unsigned char *piece = tokenizer_decode(tokenizer, ids[i], &size);
    FUZZ_EXPECT(piece != NULL || vocab < 256, "id %d is nothing", (int)ids[i]);
    if (piece == NULL) size = 1;
    FUZZ_EXPECT(at + size <= length, "more bytes than there were");
    FUZZ_EXPECT(piece == NULL || memcmp(piece, bytes + at, size) == 0, "other bytes at %zu", at);
    at += size;
  }
  FUZZ_EXPECT(at == length, "%zu of %zu bytes", at, length);
}

static void try_tokenizer(struct fuzz_input *input) {
  const int64_t vocab = read_vocab(input);
  const size_t length = fuzz_left(input);
  unsigned char *bytes = malloc(length + 1);
  int32_t *ids = malloc((length + 1) * sizeof *ids);
  FUZZ_EXPECT(bytes != NULL && ids != NULL, "the harness has no memory");
  memcpy(bytes, input->at, length);
  struct tokenizer *tokenizer = tokenizer_learn(bytes, length, vocab);
  FUZZ_EXPECT(tokenizer_kinds(tokenizer) >= 1 && tokenizer_kinds(tokenizer) <= vocab,
              "%d kinds of at most %lld", (int)tokenizer_kinds(tokenizer), (long long)vocab);
  const size_t count = tokenizer_encode(tokenizer, ids, bytes, length);
  check_ids(tokenizer, ids, count, bytes, length, vocab);
  size_t size = 1;
  FUZZ_EXPECT(tokenizer_decode(tokenizer, tokenizer_kinds(tokenizer), &size) == NULL && size == 0,
              "an id behind the last");
  tokenizer_free(tokenizer);
  free(ids);
  free(bytes);
}

/* ---- text ---- */

static void check_batches(const struct text *text, struct fuzz_input *input) {
  enum { BATCH = 3, SEQ = 40 };
  int32_t inputs[BATCH * SEQ], targets[BATCH * SEQ], again[BATCH * SEQ], unused[BATCH * SEQ];
  const uint64_t seed = fuzz_byte(input);
  const int64_t seq = 1 + fuzz_choice(input, SEQ), step = fuzz_byte(input);
  text_batch(text, inputs, targets, BATCH, seq, seed, step);
  text_batch(text, again, unused, BATCH, seq, seed, step);
  FUZZ_EXPECT(memcmp(inputs, again, (size_t)(BATCH * seq) * sizeof inputs[0]) == 0,
              "another batch for the same step");
  for (int64_t i = 0; i < BATCH * seq; i++) {
    FUZZ_EXPECT(inputs[i] >= 0 && inputs[i] < text->token_kinds, "id %d", (int)inputs[i]);
    FUZZ_EXPECT(i % seq == seq - 1 || targets[i] == inputs[i + 1], "no next token");
  }
}

static void try_text(struct fuzz_input *input) {
  const int64_t vocab = read_vocab(input);
  struct fuzz_input more = *input;
  const int file = memfd_create("fuzz", 0);
  FUZZ_EXPECT(file >= 0, "no file in memory");
  const size_t length = fuzz_left(input);
  FUZZ_EXPECT(write(file, input->at, length) == (ssize_t)length, "no file in memory");
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const char *const paths[] = {path, path};
  const size_t count = 1 + (size_t)(length % 2);
  struct text text;
  const bool good = text_read(&text, paths, count);
  FUZZ_EXPECT(good == (length > 0), "a file of %zu bytes", length);
  if (good) {
    FUZZ_EXPECT(text.length == length * count, "%zu bytes", text.length);
    text_tokenize(&text, vocab);
    FUZZ_EXPECT(text.token_count > 0, "no tokens");
    check_batches(&text, &more);
    text_free(&text);
  }
  close(file);
}

/* ---- values of flags ---- */

static void try_values(struct fuzz_input *input) {
  char text[64], again[512];
  fuzz_string(input, text, sizeof text);
  int64_t whole = 0;
  uint64_t seed = 0;
  double real = 0;
  if (parse_whole(&whole, text, -1000000, INT64_MAX)) {
    FUZZ_EXPECT(whole >= -1000000, "%lld", (long long)whole);
    const char *digits = text + (text[0] == '-');
    while (digits[0] == '0' && digits[1] != '\0') digits++;
    snprintf(again, sizeof again, "%s%s", whole < 0 ? "-" : "", digits);
    char written[32];
    snprintf(written, sizeof written, "%lld", (long long)whole);
    FUZZ_EXPECT(strcmp(again, written) == 0, "\"%s\" is %s", text, written);
  }
  if (parse_seed(&seed, text)) FUZZ_EXPECT(seed <= INT64_MAX, "a seed of 64 bits");
  if (parse_real(&real, text, -1, 1e6)) {
    FUZZ_EXPECT(real >= -1 && real <= 1e6, "\"%s\" is %g", text, real);
  }
  char bad[64];
  ek_mode modes[BENCH_MODES];
  size_t count = 0;
  if (parse_modes(modes, &count, text, bad)) {
    FUZZ_EXPECT(count >= 1 && count <= BENCH_MODES, "%zu modes", count);
  }
}

/* What is taken can be used, or the library says why not. */
static void try_scatter(struct fuzz_input *input) {
  char text[512];
  struct scatter scatter;
  const int kind = fuzz_choice(input, 3);
  size_t used = (size_t)snprintf(text, sizeof text, "%s",
                                 kind == 0   ? ""
                                 : kind == 1 ? "sizes="
                                             : "weights=");
  used += fuzz_string(input, text + used, sizeof text - used);
  if (!parse_scatter(&scatter, text)) return;
  FUZZ_EXPECT(scatter.count <= BENCH_MAX_DEVICES, "%zu parts", scatter.count);
  if (scatter.count == 0) return;
  const ek_scatter_options options = scatter_options(&scatter);
  int64_t offsets[BENCH_MAX_DEVICES + 1], rows = 0;
  for (size_t i = 0; i < scatter.count; i++) rows += scatter.sizes[i];
  if (scatter.kind == EK_SCATTER_WEIGHTS) rows = 1000;
  FUZZ_EXPECT(ek_scatter_offsets(offsets, rows, scatter.count, &options) == EK_OK, "%s",
              ek_error_message());
}

/* ---- the command line ---- */

static jmp_buf refused;
static char refusal[1024];

_Noreturn void fuzz_bench_exit(int code);
void fuzz_bench_argp_error(const struct argp_state *state, const char *format, ...);
error_t fuzz_bench_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                              int *index, void *input);

_Noreturn void fuzz_bench_exit(int code) {
  FUZZ_EXPECT(code == EXIT_USAGE, "options_parse() ends with %d", code);
  longjmp(refused, 1);
}

void fuzz_bench_argp_error(const struct argp_state *state, const char *format, ...) {
  va_list arguments;
  (void)state;
  va_start(arguments, format);
  vsnprintf(refusal, sizeof refusal, format, arguments);
  va_end(arguments);
  longjmp(refused, 1);
}

error_t fuzz_bench_argp_parse(const struct argp *argp, int argc, char **argv, unsigned flags,
                              int *index, void *input) {
  return argp_parse(argp, argc, argv, flags | ARGP_SILENT, index, input);
}

static const char *const words[] = {
    "--preset=quick", "--preset=lm-40k", "--preset=gpt3-175b", "--devices=cpu:4",
    "--devices=plan:8@80GiB", "--modes=all", "--modes=gather,sharded", "--threads=2", "--tf32",
    "--deterministic", "--layers=0", "--width=96", "--heads=7", "--seq=16", "--vocab=2147483647",
    "--batch=5", "--steps=1000000", "--warmup=0", "--seed=0xffff", "--optimizer=sgd", "--data",
    "a file", "--scatter=sizes=1,2,3", "--scatter=weights=1,0.5", "--keep-outputs",
    "--no-keep-outputs", "--loss=fused", "--loss=whole", "--fail-above=1.1", "--timeline=x.csv",
    "-o", "json", "--export-json=x", "-q", "-h", "--help", "--", "--width", "-qo"};
enum { WORDS = sizeof words / sizeof words[0], MOST_ARGUMENTS = 24 };

static void check_options(const struct options *options) {
  const struct shape *shape = &options->shape;
  FUZZ_EXPECT(options->spec_count >= 1 && options->spec_count <= BENCH_SPECS, "%zu devices",
              options->spec_count);
  for (size_t i = 0; i < options->spec_count; i++) {
    FUZZ_EXPECT(options->specs[i] != NULL, "no device string");
  }
  if (options->command == COMMAND_DEVICES) return;
  FUZZ_EXPECT(shape->heads > 0 && shape->width % shape->heads == 0, "width %lld, heads %lld",
              (long long)shape->width, (long long)shape->heads);
  FUZZ_EXPECT(shape->layers >= 0 && shape->seq >= 1 && shape->vocab >= 1 &&
                  shape->vocab <= INT32_MAX && shape->batch >= 1 && shape->steps >= 1 &&
                  shape->warmup >= 0,
              "a shape that cannot be");
  FUZZ_EXPECT(options->mode_count >= 1 && options->mode_count <= BENCH_MODES, "%zu modes",
              options->mode_count);
  FUZZ_EXPECT(options->threads >= 0 && options->threads <= 1024, "%d threads", options->threads);
}

/* The arguments are made and freed by the caller: longjmp() forgets what changed in between. */
static void parse_arguments(struct options *options, enum command command, int argc, char **argv) {
  /* argp has memory of its own, which is lost where a message comes back over it. */
  LEAKS_ALLOWED;
  if (setjmp(refused) == 0) {
    options_parse(options, command, argc, argv);
    LEAKS_REPORTED;
    check_options(options);
  } else {
    LEAKS_REPORTED;
  }
  options_free(options);
}

static void try_options(struct fuzz_input *input) {
  static struct options options;
  char texts[MOST_ARGUMENTS][64], name[] = "fuzz";
  char *argv[MOST_ARGUMENTS + 2] = {name};
  const enum command command = (enum command)fuzz_choice(input, 4);
  int argc = 1;
  while (fuzz_left(input) > 0 && argc <= MOST_ARGUMENTS) {
    char *text = texts[argc - 1];
    const uint8_t pick = fuzz_byte(input);
    size_t used = 0;
    if (pick < 200) used = (size_t)snprintf(text, 64, "%s", words[pick % WORDS]);
    /* A flag whose value is the input's own. */
    if (pick >= 150 && pick < 200) used = strcspn(text, "=") + 1;
    if (used > 63) used = 63;
    if (pick >= 150)
      fuzz_string(input, text + used - (used > 0 && text[used - 1] == '\0'), 64 - used);
    argv[argc++] = text;
  }
  parse_arguments(&options, command, argc, argv);
}

/* ---- tables ---- */

/* Reads one field of CSV back; returns what follows it. */
static const char *read_field(const char *text, char *field) {
  size_t used = 0;
  if (*text != '"') {
    while (*text != ',' && *text != '\n') field[used++] = *text++;
    field[used] = '\0';
    return text;
  }
  for (text++; *text != '"' || text[1] == '"'; text++) {
    if (*text == '"') text++;
    field[used++] = *text;
  }
  field[used] = '\0';
  return text + 1;
}

static void try_grid(struct fuzz_input *input) {
  enum { COLUMNS = 3, CELLS = 9, WIDTH = 24 };
  char cells[CELLS][WIDTH];
  struct grid *grid = grid_create(fuzz_one_in(input, 2) ? "Title" : NULL);
  for (int i = 0; i < COLUMNS; i++) {
    grid_column(grid, "column", i != 1);
    if (i == 1) grid_expendable(grid, 1);
  }
  for (int i = 0; i < CELLS; i++) {
    fuzz_string(input, cells[i], WIDTH);
    grid_cell(grid, "%s", cells[i]);
  }
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  FUZZ_EXPECT(file != NULL, "no stream in memory");
  static const size_t widths[] = {0, 1, 20, 80};
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
    grid_write_table(grid, file, widths[i]);
  }
  grid_write_markdown(grid, file);
  fflush(file);
  const size_t start = size;
  grid_write_csv(grid, file);
  fclose(file);
  const char *at = strchr(text + start, '\n') + 1;
  for (int i = 0; i < CELLS; i++) {
    char field[WIDTH * 2];
    at = read_field(at, field);
    FUZZ_EXPECT(strcmp(field, cells[i]) == 0, "\"%s\" comes back as \"%s\"", cells[i], field);
    FUZZ_EXPECT(*at == (i % COLUMNS == COLUMNS - 1 ? '\n' : ','), "a field too many");
    at++;
  }
  FUZZ_EXPECT(*at == '\0', "more behind the last field");
  free(text);
  grid_free(grid);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size < MOST_TEXT ? size : MOST_TEXT);
  switch (fuzz_choice(&input, 6)) {
  case 0: try_tokenizer(&input); break;
  case 1: try_text(&input); break;
  case 2: try_values(&input); break;
  case 3: try_scatter(&input); break;
  case 4: try_options(&input); break;
  case 5: try_grid(&input); break;
  }
  return 0;
}
