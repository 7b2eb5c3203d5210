/*
 * test_parts.c - the parts of evenkeel-bench that can be checked by themselves.
 */
#include <fcntl.h>
#include <unistd.h>

#include <commands.h>
#include <grid.h>
#include <parse.h>
#include <statistics.h>
#include <text.h>
#include <tokenizer.h>
#include <verdict.h>

#include "ek_check.h"

CK_TEST(summary_of_values) {
  const double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 8};
  struct summary s = summarize(odd, 3);
  ck_assert(s.median == 2 && s.min == 1 && s.max == 3);
  s = summarize(even, 4);
  ck_assert(s.median == 3.5 && s.mean == 4 && s.min == 1 && s.max == 8);
  s = summarize(odd, 0);
  ck_assert(isnan(s.median) && isnan(s.mean) && isnan(s.min) && isnan(s.max));
}

/* The call is false with each of these as `text`. */
#define REFUSED(call, ...)                                                                         \
  do {                                                                                             \
    static const char *const texts[] = {__VA_ARGS__};                                              \
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {                                  \
      const char *const text = texts[i];                                                           \
      ck_assert_msg(!call, "\"%s\" was taken", text);                                              \
    }                                                                                              \
  } while (0)

CK_TEST(whole_numbers) {
  int64_t n = 0;
  ck_assert(parse_whole(&n, "12", 1, 20) && n == 12);
  ck_assert(parse_whole(&n, "-3", -5, 5) && n == -3);
  REFUSED(parse_whole(&n, text, 0, 20), "", " 1", "1 ", "+1", "1.5", "0x10", "1e3", "x", "-",
          "99999999999999999999", "21", "-1");
  uint64_t seed = 0;
  ck_assert(parse_seed(&seed, "0xff") && seed == 255);
  ck_assert(parse_seed(&seed, "9223372036854775807") && seed == INT64_MAX);
  ck_assert(!parse_seed(&seed, "9223372036854775808") && !parse_seed(&seed, "-1"));
  double r = 0;
  ck_assert(parse_real(&r, "1.25", 0, 2) && r == 1.25);
  ck_assert(!parse_real(&r, "nan", 0, 2) && !parse_real(&r, "inf", 0, 1e308));
  ck_assert(!parse_real(&r, "3", 0, 2) && !parse_real(&r, "1x", 0, 2));
}

CK_TEST(lists_of_modes) {
  ek_mode modes[BENCH_MODES];
  size_t count = 0;
  char bad[64];
  ck_assert(parse_modes(modes, &count, "all", bad) && count == BENCH_MODES);
  ck_assert(parse_modes(modes, &count, "sharded,gather", bad) && count == 2);
  ck_assert(modes[0] == EK_MODE_SHARDED && modes[1] == EK_MODE_GATHER);
  REFUSED(parse_modes(modes, &count, text, bad), "", "gather,", ",gather", "gather,gather",
          "Gather", "x", "gather balanced");
}

CK_TEST(worlds_and_links) {
  int64_t processes, devices;
  double bytes, seconds;
  ck_assert(parse_world(&processes, &devices, "16x8") && processes == 16 && devices == 8);
  ck_assert(parse_world(&processes, &devices, "1x1048576"));
  REFUSED(parse_world(&processes, &devices, text), "", "16", "x8", "16x", "0x4", "4x0", "-1x4",
          "4 x2", "4x2x2", "1048577x1", "2x524289", "99999999999999999999999999x1");
  ck_assert(parse_link(&bytes, &seconds, "25GB/s,5us") && bytes == 25e9 &&
            fabs(seconds - 5e-6) < 1e-12);
  ck_assert(parse_link(&bytes, &seconds, "100Gbit/s") && bytes == 12.5e9 && seconds == 0);
  ck_assert(parse_link(&bytes, &seconds, "0.5kB/s,1.5ms") && bytes == 500 &&
            fabs(seconds - 1.5e-3) < 1e-9);
  REFUSED(parse_link(&bytes, &seconds, text), "", "25", "GB/s", "25GB", "25gb/s", "0GB/s", "-1GB/s",
          "25GB/s,", "5us", "25GB/s,5", "25GB/s,0s", "25GB/s,us", "1.2.3GB/s", "25 GB/s",
          "25GB/s,5us,5us");
}

CK_TEST(scatters) {
  struct scatter s;
  ck_assert(parse_scatter(&s, "even") && s.kind == EK_SCATTER_EVEN && s.count == 0);
  ck_assert(parse_scatter(&s, "chunk") && s.kind == EK_SCATTER_CHUNK);
  ck_assert(parse_scatter(&s, "sizes=3,0,2") && s.count == 3 && s.sizes[2] == 2);
  ck_assert(scatter_options(&s).sizes == s.sizes && scatter_options(&s).weights == NULL);
  ck_assert(parse_scatter(&s, "weights=1,0.5") && s.count == 2 && s.weights[1] == 0.5);
  REFUSED(parse_scatter(&s, text), "", "evenly", "sizes=", "sizes=0,0", "sizes=-1", "sizes=1,,2",
          "weights=nan,1", "weights=1,-1");
}

static const char sample[] =
    "the cat and the dog and the 1991 cat  --- two  blanks\n\n\xC3\xA9t\xC3\xA9 x1y the end ";

/* Encodes the sample, checks the ids, and turns them back into text. */
static void check_round_trip(int64_t vocab) {
  const unsigned char *bytes = (const unsigned char *)sample;
  const size_t length = sizeof sample - 1;
  struct tokenizer *tokenizer = tokenizer_learn(bytes, length, vocab);
  int32_t ids[sizeof sample];
  const size_t count = tokenizer_encode(tokenizer, ids, bytes, length);
  ck_assert_int_le(tokenizer_kinds(tokenizer), vocab);
  ck_assert_uint_le(count, length);
  char text[sizeof sample];
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    ck_assert(ids[i] >= 0 && ids[i] < tokenizer_kinds(tokenizer));
    size_t size = 0;
    const unsigned char *piece = tokenizer_decode(tokenizer, ids[i], &size);
    ck_assert_ptr_nonnull(piece);
    ck_assert_uint_le(at + size, length);
    memcpy(text + at, piece, size);
    at += size;
  }
  ck_assert_uint_eq(at, length);
  ck_assert(memcmp(text, sample, length) == 0);
  tokenizer_free(tokenizer);
}

CK_TEST(tokens_turn_back_into_text) {
  static const int64_t vocabularies[] = {64, 255, 256, 257, 258, 260, 300, 50257, INT32_MAX};
  for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) {
    check_round_trip(vocabularies[i]);
  }
}

CK_TEST(frequent_words_come_first) {
  const unsigned char *bytes = (const unsigned char *)sample;
  struct tokenizer *tokenizer = tokenizer_learn(bytes, sizeof sample - 1, 1000);
  size_t size = 0;
  const unsigned char *word = tokenizer_decode(tokenizer, 256, &size);
  ck_assert(size == 4 && memcmp(word, " the", 4) == 0);
  ck_assert_ptr_null(tokenizer_decode(tokenizer, 1000, &size));
  ck_assert_ptr_null(tokenizer_decode(tokenizer, -1, &size));
  tokenizer_free(tokenizer);
}

CK_TEST(too_small_a_vocabulary) {
  const unsigned char bytes[] = {'a', 'b', 'a', 'c', 'b', 'a'};
  for (int64_t vocab = 1; vocab <= 3; vocab++) {
    struct tokenizer *tokenizer = tokenizer_learn(bytes, sizeof bytes, vocab);
    int32_t ids[sizeof bytes];
    ck_assert_uint_eq(tokenizer_encode(tokenizer, ids, bytes, sizeof bytes), sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) ck_assert(ids[i] >= 0 && ids[i] < vocab);
    size_t size = 0;
    /* With two ids `a` has its own, and the other one stands for b and c. */
    if (vocab == 2) ck_assert(ids[0] == 0 && ids[1] == 1 && ids[3] == 1);
    if (vocab == 2) ck_assert_ptr_null(tokenizer_decode(tokenizer, 1, &size));
    if (vocab == 3) ck_assert(ids[0] == 0 && ids[1] == 1 && ids[3] == 2);
    tokenizer_free(tokenizer);
  }
}

CK_TEST(batches_repeat_and_wrap) {
  int32_t tokens[] = {0, 1, 2, 3, 4};
  const struct text text = {.tokens = tokens, .token_count = 5};
  enum { BATCH = 3, SEQ = 12 };
  int32_t in[BATCH * SEQ], out[BATCH * SEQ], again[BATCH * SEQ];
  text_batch(&text, in, out, BATCH, SEQ, 9, 4);
  for (int i = 0; i < BATCH * SEQ; i++) {
    ck_assert_int_eq(out[i], (in[i] + 1) % 5);
    if (i % SEQ != SEQ - 1) ck_assert_int_eq(in[i + 1], out[i]);
  }
  text_batch(&text, again, out, BATCH, SEQ, 9, 4);
  ck_assert(memcmp(in, again, sizeof in) == 0);
}

CK_TEST(tolerance_of_losses) {
  /* sqrt(4 * 64) * (6 * 2 + 2) * 2^-24, or 2^-17 */
  const struct accuracy precision = {64, 2, PRECISION_F32}, tf32 = {64, 2, PRECISION_TF32};
  const struct accuracy bf16 = {64, 2, PRECISION_BF16}, f16 = {64, 2, PRECISION_F16};
  ck_assert_double_eq_tol(loss_tolerance(&precision, 0), 16 * 14 * 0x1p-24, 1e-18);
  ck_assert_double_eq_tol(loss_tolerance(&precision, 4), 5 * 16 * 14 * 0x1p-24, 1e-18);
  ck_assert_double_eq_tol(loss_tolerance(&tf32, 0), 16 * 14 * 0x1p-17, 1e-18);
  ck_assert_double_eq_tol(loss_tolerance(&bf16, 0), 16 * 14 * 0x1p-14, 1e-17);
  ck_assert_double_eq_tol(loss_tolerance(&f16, 0), 16 * 14 * 0x1p-16, 1e-17);
  const double left[] = {8, 7, 6};
  double right[] = {8, 7, 6};
  size_t where = 99;
  ck_assert(losses_agree(&where, left, right, 3, &precision, 0));
  right[1] = 7 * (1 + 1.9 * loss_tolerance(&precision, 0));
  ck_assert(losses_agree(&where, left, right, 3, &precision, 0));
  right[1] = 7 * (1 + 2.1 * loss_tolerance(&precision, 0));
  ck_assert(!losses_agree(&where, left, right, 3, &precision, 0));
  ck_assert_uint_eq(where, 1);
  right[1] = (double)NAN;
  ck_assert(!losses_agree(&where, left, right, 3, &precision, 0));
}

/* The verdict that the program's exit code 3 comes from. */
CK_TEST(runs_that_disagree) {
  double left[] = {8, 7}, right[] = {8, 7.01};
  const struct options options = {.shape = {.layers = 2, .width = 64, .warmup = 1, .steps = 2}};
  struct run runs[2] = {{.mode = EK_MODE_GATHER, .spec = "cpu:2", .losses = left, .steps = 2},
                        {.mode = EK_MODE_SHARDED, .spec = "cpu:2", .losses = right, .steps = 2}};
  ck_assert_int_eq(compare_losses(runs, 2, &options), EXIT_DISAGREE);
  ck_assert_int_eq(compare_losses(runs, 1, &options), EXIT_GOOD);
  right[1] = 7;
  ck_assert_int_eq(compare_losses(runs, 2, &options), EXIT_GOOD);
  left[0] = right[0] = (double)NAN;
  ck_assert_int_eq(compare_losses(runs, 2, &options), EXIT_ERROR);
  runs[0].kind.counts_only = runs[1].kind.counts_only = true;
  ck_assert_int_eq(compare_losses(runs, 2, &options), EXIT_GOOD);
}

CK_TEST(order_of_exit_codes) {
  ck_assert_int_eq(worse(EXIT_GOOD, EXIT_GOOD), EXIT_GOOD);
  ck_assert_int_eq(worse(EXIT_UNEVEN, EXIT_GOOD), EXIT_UNEVEN);
  ck_assert_int_eq(worse(EXIT_UNEVEN, EXIT_DISAGREE), EXIT_DISAGREE);
  ck_assert_int_eq(worse(EXIT_DISAGREE, EXIT_OUT_OF_MEMORY), EXIT_OUT_OF_MEMORY);
  ck_assert_int_eq(worse(EXIT_ERROR, EXIT_OUT_OF_MEMORY), EXIT_ERROR);
}

CK_TEST(words_that_are_near) {
  static const char *const words[] = {"gather", "fully-sharded", "sharded", "f32", NULL};
  static const struct {
    const char *word, *meant;
  } cases[] = {{"gahter", "gather"}, {"GATHER", "gather"},  {"gath", "gather"}, {"f23", "f32"},
               {"fp32", "f32"},      {"shardd", "sharded"}, {"full", "fully-sharded"},
               {"", NULL},           {"x", NULL},           {"nothing", NULL},  {"f64", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[UNKNOWN_TEXT], expected[UNKNOWN_TEXT];
    snprintf(expected, sizeof expected,
             "unknown mode \"%s\"; expected gather, fully-sharded, sharded, f32%s%s%s",
             cases[i].word, cases[i].meant != NULL ? "; did you mean " : "",
             cases[i].meant != NULL ? cases[i].meant : "", cases[i].meant != NULL ? "?" : "");
    ck_assert_str_eq(unknown_word(text, "mode", cases[i].word, words), expected);
  }
  char text[UNKNOWN_TEXT], endless[5000];
  memset(endless, 'g', sizeof endless - 1);
  endless[sizeof endless - 1] = '\0';
  ck_assert_ptr_null(strstr(unknown_word(text, "mode", endless, words), "mean"));
}

CK_TEST(units_and_times) {
  char text[BYTES_TEXT], times[PROGRESS_TEXT];
  ck_assert_str_eq(bytes_text(text, 0), "0 bytes");
  ck_assert_str_eq(bytes_text(text, 1023), "1023 bytes");
  ck_assert_str_eq(bytes_text(text, 1024), "1.00 KiB (1024 bytes)");
  ck_assert_str_eq(bytes_text(text, 80306406912), "74.79 GiB (80306406912 bytes)");
  ck_assert_str_eq(bytes_text(text, UINT64_MAX), "16.00 EiB (18446744073709551615 bytes)");
  ck_assert_str_eq(progress_times(times, 0.5, 0.4), "0:00");
  ck_assert_str_eq(progress_times(times, 0.01, 100), "1:40");
  ck_assert_str_eq(progress_times(times, 0.25, 65), "1:05, 3:15 left");
  ck_assert_str_eq(progress_times(times, 0.5, 3600), "1:00:00, 1:00:00 left");
  ck_assert_str_eq(progress_times(times, 1, 10), "0:10, 0:00 left");
}

static size_t table_width;

static void write_table(const struct grid *grid, FILE *file) {
  grid_write_table(grid, file, table_width);
}

static const char *written(const struct grid *grid, void (*write)(const struct grid *, FILE *)) {
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  ck_assert_ptr_nonnull(file);
  write(grid, file);
  ck_assert_int_eq(fclose(file), 0);
  ck_keep_by(text, free);
  return text;
}

static void expect_text(const struct grid *grid, void (*write)(const struct grid *, FILE *),
                        const char *expected) {
  ck_assert_str_eq(written(grid, write), expected);
}

CK_TEST(grids) {
  struct grid *grid = grid_create("Title");
  grid_column(grid, "name", true);
  grid_column(grid, "n", false);
  grid_cell(grid, "a,\"b\"");
  grid_number(grid, 1.25, 1);
  grid_cell(grid, "x|y");
  grid_number(grid, (double)NAN, 1);
  expect_text(grid, write_table, "Title\nname     n\n-----  ---\na,\"b\"  1.2\nx|y      -\n");
  expect_text(grid, grid_write_markdown,
              "Title\n\n| name | n |\n|---|--:|\n| a,\"b\" | 1.2 |\n| x\\|y | - |\n");
  expect_text(grid, grid_write_csv, "name,n\n\"a,\"\"b\"\"\",1.2\nx|y,-\n");
  grid_free(grid);
}

/* At each width no line is longer, and what is left out goes in the order that was asked for. */
CK_TEST(narrow_grids) {
  struct grid *grid = grid_create("A title of some words");
  grid_column(grid, "mode", true);
  grid_column(grid, "alike", true);
  grid_expendable(grid, 9);
  grid_column(grid, "number", false);
  grid_expendable(grid, 1);
  grid_column(grid, "what it is", true);
  for (int i = 0; i < 2; i++) {
    grid_cell(grid, "m");
    grid_cell(grid, "yes");
    grid_cell(grid, "%d", 10 + i);
    grid_cell(grid, "%s", i == 0 ? "a text that is long" : "n\xc3\xa4h");
  }
  table_width = 0;
  expect_text(grid, write_table,
              "A title of some words\n"
              "mode  alike  number  what it is\n"
              "----  -----  ------  -------------------\n"
              "m     yes        10  a text that is long\n"
              "m     yes        11  n\xc3\xa4h\n");
  table_width = 39;
  expect_text(grid, write_table,
              "A title of some words\n"
              "mode  number  what it is\n"
              "----  ------  -------------------\n"
              "m         10  a text that is long\n"
              "m         11  n\xc3\xa4h\n"
              "Left out, shown by --wide: alike\n");
  table_width = 22;
  expect_text(grid, write_table,
              "A title of some words\n"
              "mode  what it is\n"
              "----  ----------------\n"
              "m     a text that is\n"
              "      long\n"
              "m     n\xc3\xa4h\n"
              "Left out, shown by\n"
              "--wide: alike, number\n");
  for (table_width = 1; table_width < 16; table_width++) { /* too little for anything */
    ck_assert_ptr_nonnull(strstr(written(grid, write_table), "long"));
  }
  table_width = 0;
  grid_free(grid);
}

/* COLUMNS counts where it makes sense. */
CK_TEST(widths) {
  const int null = open("/dev/null", O_WRONLY);
  ck_assert_int_ge(null, 0);
  static const struct {
    const char *columns;
    size_t width;
  } cases[] = {{"100", 100}, {"0", 0}, {"-1", 0}, {"many", 0}, {"", 0}, {NULL, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (cases[i].columns != NULL) setenv("COLUMNS", cases[i].columns, 1);
    if (cases[i].columns == NULL) unsetenv("COLUMNS");
    ck_assert_uint_eq(terminal_width(null), cases[i].width);
  }
  close(null);
}

CK_SUITE("bench")
