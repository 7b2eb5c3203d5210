/*
 * check_scatter.c - cutting a tensor along dimension 0.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/scatter.h>

#include "ek_check.h"

enum { DEVICES = 4, ROWS = 9, COLUMNS = 3 };

/* ---- the arithmetic ---- */

static void cut(const int64_t *want, int64_t rows, size_t count,
                const ek_scatter_options *options) {
  int64_t offsets[CK_MAX_DEVICES + 1];
  ck_ok(ek_scatter_offsets(offsets, rows, count, options));
  ck_assert_int_eq(offsets[0], 0);
  for (size_t i = 0; i < count; i++) {
    ck_assert_msg(offsets[i + 1] - offsets[i] == want[i],
                  "device %zu of %zu gets %lld of %lld rows", i, count,
                  (long long)(offsets[i + 1] - offsets[i]), (long long)rows);
  }
}

START_TEST(known_cuts) {
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  cut((const int64_t[]){3, 2, 2, 2}, 9, 4, NULL);
  cut((const int64_t[]){1, 1, 0, 0}, 2, 4, &options);
  cut((const int64_t[]){0, 0, 0}, 0, 3, &options);
  options.kind = EK_SCATTER_CHUNK; /* torch.chunk */
  cut((const int64_t[]){3, 3, 3, 0}, 9, 4, &options);
  cut((const int64_t[]){3, 3, 3, 1}, 10, 4, &options);
  cut((const int64_t[]){1, 1, 0, 0}, 2, 4, &options);
  cut((const int64_t[]){0, 0}, 0, 2, &options);
  options.kind = EK_SCATTER_SIZES;
  options.sizes = (const int64_t[]){2, 0, 3};
  cut((const int64_t[]){2, 0, 3}, 5, 3, &options);
  options.kind = EK_SCATTER_WEIGHTS;
  options.weights = (const double[]){2, 1, 1};
  cut((const int64_t[]){4, 2, 2}, 8, 3, &options);
  cut((const int64_t[]){3, 2, 2}, 7, 3, &options); /* shares 3.5, 1.75, 1.75 */
  options.weights = (const double[]){0, 1, 0};
  cut((const int64_t[]){0, 5, 0}, 5, 3, &options);
  options.weights = (const double[]){1e-300, 1e300, 0};
  cut((const int64_t[]){0, 5, 0}, 5, 3, &options);
  options.weights = (const double[]){1.5e308, 1.5e308, 0.75e308}; /* whose sum is infinite */
  cut((const int64_t[]){4, 4, 2}, 10, 3, &options);
}
END_TEST

/* The arithmetic knows no largest number of devices. */
START_TEST(cuts_over_many) {
  enum { MANY = 1000 };
  static int64_t offsets[MANY + 1], sizes[MANY];
  static double weights[MANY];
  ek_scatter_options options = {.size = sizeof options, .sizes = sizes, .weights = weights};
  for (int i = 0; i < MANY; i++) sizes[i] = i % 3, weights[i] = i % 2;
  for (int kind = EK_SCATTER_EVEN; kind <= EK_SCATTER_WEIGHTS; kind++) {
    options.kind = (ek_scatter_kind)kind;
    const int64_t rows = kind == EK_SCATTER_SIZES ? MANY / 3 * 3 : 2500;
    ck_ok(ek_scatter_offsets(offsets, rows, MANY, &options));
    ck_assert_int_eq(offsets[0], 0);
    ck_assert_int_eq(offsets[MANY], rows);
    for (int i = 0; i < MANY; i++) {
      const int64_t got = offsets[i + 1] - offsets[i];
      if (kind == EK_SCATTER_EVEN) ck_assert_int_eq(got, 2 + (i < 500));
      if (kind == EK_SCATTER_CHUNK) ck_assert_int_eq(got, i < 833 ? 3 : i == 833);
      if (kind == EK_SCATTER_SIZES) ck_assert_int_eq(got, sizes[i]);
      if (kind == EK_SCATTER_WEIGHTS) ck_assert_int_eq(got, 5 * (i % 2));
    }
  }
}
END_TEST

/* For all small cases: every row once, in order; even within one row; chunks as torch cuts them. */
START_TEST(cuts_cover_all_rows) {
  struct ck_random random = ck_random_start(1);
  for (size_t count = 1; count <= 9; count++) {
    for (int64_t rows = 0; rows <= 40; rows++) {
      int64_t even[CK_MAX_DEVICES + 1], chunk[CK_MAX_DEVICES + 1], weighted[CK_MAX_DEVICES + 1];
      double weights[9], sum = 0;
      for (size_t i = 0; i < count; i++) sum += weights[i] = ck_random_uniform(&random, 0.1, 5);
      ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
      options.weights = weights;
      if (ek_scatter_offsets(even, rows, count, &options) != EK_OK) ck_abort_msg("even");
      options.kind = EK_SCATTER_CHUNK;
      if (ek_scatter_offsets(chunk, rows, count, &options) != EK_OK) ck_abort_msg("chunk");
      options.kind = EK_SCATTER_WEIGHTS;
      if (ek_scatter_offsets(weighted, rows, count, &options) != EK_OK) ck_abort_msg("weights");
      const int64_t n = (int64_t)count, size = (rows + n - 1) / n;
      bool right = even[count] == rows && chunk[count] == rows && weighted[count] == rows;
      for (int64_t i = 0; i < n; i++) {
        const int64_t mine = even[i + 1] - even[i], share = weighted[i + 1] - weighted[i];
        right = right && mine == rows / n + (i < rows % n ? 1 : 0);
        right = right && chunk[i] == (size * i < rows ? size * i : rows);
        right = right && fabs((double)share - (double)rows * weights[i] / sum) < 1;
      }
      if (!right) ck_abort_msg("%d rows over %d devices", (int)rows, (int)n);
    }
  }
}
END_TEST

START_TEST(huge_numbers_of_rows) {
  int64_t offsets[CK_MAX_DEVICES + 1];
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  const double weights[] = {0, 3, 0, 1e-3}, one[] = {1};
  options.weights = weights;
  for (int kind = 0; kind < 4; kind++) {
    if (kind == EK_SCATTER_SIZES) continue;
    options.kind = (ek_scatter_kind)kind;
    ck_ok(ek_scatter_offsets(offsets, INT64_MAX, 4, &options));
    ck_assert_int_eq(offsets[4], INT64_MAX);
    for (int i = 0; i < 4; i++) ck_assert_int_le(offsets[i], offsets[i + 1]);
  }
  ck_assert_int_eq(offsets[1], 0); /* no row for a weight of 0 */
  ck_assert_int_eq(offsets[2], offsets[3]);
  options.weights = one;
  ck_ok(ek_scatter_offsets(offsets, INT64_MAX, 1, &options));
  ck_assert_int_eq(offsets[1], INT64_MAX);
}
END_TEST

static void refused(int64_t rows, size_t count, const ek_scatter_options *options,
                    const char *text) {
  int64_t offsets[CK_MAX_DEVICES + 1] = {-7};
  ck_fails(ek_scatter_offsets(offsets, rows, count, options), EK_ERR_INVALID_ARGUMENT, text);
  ck_assert_int_eq(offsets[0], -7);
}

START_TEST(senseless_cuts_are_refused) {
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  const int64_t few[] = {1, 2}, many[] = {3, 3}, negative[] = {6, -1};
  const int64_t huge[] = {INT64_MAX, INT64_MAX};
  const double weights[][2] = {{0, 0}, {-1, 2}, {NAN, 1}, {INFINITY, 1}};
  ck_fails(ek_scatter_offsets(NULL, 5, 2, NULL), EK_ERR_INVALID_ARGUMENT, "scatter");
  refused(-1, 2, NULL, "-1 rows");
  refused(5, 0, NULL, "0 devices");
  refused(5, SIZE_MAX, NULL, "devices");
  options.size = 3;
  refused(5, 2, &options, "ek_scatter_options.size is 3");
  options.size = sizeof options;
  options.kind = (ek_scatter_kind)9;
  refused(5, 2, &options, "kind 9");
  options.kind = EK_SCATTER_SIZES;
  refused(5, 2, &options, "sizes are missing");
  options.sizes = few;
  refused(5, 2, &options, "the sizes sum to 3, there are 5 rows");
  options.sizes = many;
  refused(5, 2, &options, "more than what is left");
  options.sizes = negative;
  refused(5, 2, &options, "negative");
  options.sizes = huge;
  refused(5, 2, &options, "more than what is left");
  options.kind = EK_SCATTER_WEIGHTS;
  refused(5, 2, &options, "weights are missing");
  for (int i = 0; i < 4; i++) {
    options.weights = weights[i];
    refused(5, 2, &options, "weight");
  }
}
END_TEST

/* ---- the parts ---- */

static void holds_rows(const ek_shards *shards, const double *values, size_t k) {
  const ek_tensor *part = &shards->parts[k];
  const int64_t first = shards->offsets[k], rows = shards->offsets[k + 1] - first;
  double got[ROWS * COLUMNS];
  ck_assert_ptr_eq(part->device, ek_group_device(shards->group, k));
  ck_assert_int_eq(part->shape[0], rows);
  ck_assert_int_eq(part->shape[1], COLUMNS);
  ck_assert_int_eq(ek_tensor_count(part), rows * COLUMNS);
  ck_get(got, part);
  ck_same_bits("part", got, values + first * COLUMNS, rows * COLUMNS);
}

struct source {
  ek_group *group;
  float numbers[ROWS * COLUMNS];
  double values[ROWS * COLUMNS];
  ek_tensor host;
};

static struct source *open_source(struct source *source) {
  struct ck_random random = ck_random_start(2);
  source->group = ck_open("cpu:4", 1);
  for (int i = 0; i < ROWS * COLUMNS; i++) {
    source->numbers[i] = (float)ck_random_uniform(&random, -1, 1);
    source->values[i] = (double)source->numbers[i];
  }
  ck_ok(ek_tensor_host(&source->host, source->numbers, EK_F32, CK_SHAPE(ROWS, COLUMNS)));
  return source;
}

static void close_source(struct source *source) {
  ck_no_memory_held(source->group);
  ek_group_free(source->group);
}

START_TEST(from_the_host) {
  struct source s;
  open_source(&s);
  const int64_t sizes[DEVICES] = {0, 5, 1, 3};
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  options.sizes = sizes;
  for (int i = 0; i < 6; i++) {
    ek_shards shards = {0};
    options.kind = (ek_scatter_kind)(i % 3);
    options.ahead = i >= 3;
    ck_ok(ek_scatter(&shards, s.group, &s.host, EK_MEMORY_OUTPUTS, &options));
    ck_assert_ptr_eq(shards.group, s.group);
    ck_assert_uint_eq(shards.count, DEVICES);
    ck_assert(!shards.broadcast);
    ck_assert_int_eq(shards.ahead, options.ahead);
    ck_ok(ek_shards_wait(&shards));
    for (size_t k = 0; k < DEVICES; k++) {
      holds_rows(&shards, s.values, k);
      ck_assert_int_eq(shards.samples[k + 1], shards.offsets[k + 1]);
      ek_memory_usage usage;
      ck_ok(ck_memory_stats(&usage, ek_group_device(s.group, k)));
      ck_assert_uint_eq(usage.current[EK_MEMORY_OUTPUTS], usage.current_bytes);
    }
    ek_shards_free(&shards);
    ck_assert_ptr_null(shards.group);
  }
  close_source(&s);
}
END_TEST

/* What lies on its device already is not copied. */
START_TEST(views_on_the_source_device) {
  struct source s;
  open_source(&s);
  const size_t home = (size_t)_i;
  ek_tensor source = {0};
  ck_ok(ek_tensor_create(&source, ek_group_device(s.group, home), EK_MEMORY_INPUTS, EK_F32,
                         CK_SHAPE(ROWS, COLUMNS)));
  ck_ok(ek_tensor_copy(&source, &s.host));
  ek_shards shards = {0}, whole = {0};
  ck_ok(ek_scatter(&shards, s.group, &source, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_scatter_broadcast(&whole, s.group, &source, EK_MEMORY_INPUTS));
  ck_assert_int_eq(ek_tensor_holders(&source), 3);
  ck_assert_ptr_eq(shards.parts[home].data, (float *)source.data + shards.offsets[home] * COLUMNS);
  ck_assert_ptr_eq(whole.parts[home].data, source.data);
  for (size_t k = 0; k < DEVICES; k++) {
    holds_rows(&shards, s.values, k);
    double got[ROWS * COLUMNS];
    ck_get(got, &whole.parts[k]);
    ck_same_bits("whole", got, s.values, (int64_t)ROWS * COLUMNS);
    ck_assert_int_eq(whole.parts[k].shape[0], ROWS);
  }
  ck_assert(whole.broadcast);
  ek_tensor_free(&source); /* the views keep what they see */
  holds_rows(&shards, s.values, home);
  ek_shards_free(&shards);
  ek_shards_free(&whole);
  close_source(&s);
}
END_TEST

/* Targets follow the samples, also where a sample has several rows. */
START_TEST(like_another) {
  struct source s;
  open_source(&s);
  ek_tensor samples = s.host, scalar;
  ek_shards like = {0}, shards = {0};
  samples.shape[0] = 3; /* of 3 rows each */
  const int64_t sizes[DEVICES] = {1, 0, 2, 0};
  ek_scatter_options options = {.size = sizeof options, .kind = EK_SCATTER_SIZES, .sizes = sizes};
  options.ahead = true;
  ck_ok(ek_scatter(&like, s.group, &samples, EK_MEMORY_INPUTS, &options));
  ck_ok(ek_scatter_like(&shards, &like, &s.host, EK_MEMORY_INPUTS));
  ck_assert(shards.ahead);
  ck_ok(ek_shards_wait(&shards));
  for (size_t k = 0; k < DEVICES; k++) {
    ck_assert_int_eq(shards.offsets[k + 1], 3 * like.samples[k + 1]);
    ck_assert_int_eq(shards.samples[k + 1], like.samples[k + 1]);
    holds_rows(&shards, s.values, k);
  }
  ek_shards_free(&shards);
  ek_tensor odd = s.host;
  odd.shape[0] = 8;
  ck_fails(ek_scatter_like(&shards, &like, &odd, EK_MEMORY_INPUTS), EK_ERR_SHAPE,
           "8 rows are no multiple of 3 samples");
  ck_ok(ek_tensor_host(&scalar, s.numbers, EK_F32, 0, NULL));
  ck_fails(ek_scatter_like(&shards, &like, &scalar, EK_MEMORY_INPUTS), EK_ERR_SHAPE, "scalar");
  ek_shards_free(&like);
  samples.shape[0] = odd.shape[0] = 0; /* nothing follows nothing */
  ck_ok(ek_scatter(&like, s.group, &samples, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_scatter_like(&shards, &like, &odd, EK_MEMORY_INPUTS));
  ek_shards_free(&shards);
  ck_fails(ek_scatter_like(&shards, &like, &s.host, EK_MEMORY_INPUTS), EK_ERR_SHAPE, "0 samples");
  ek_shards_free(&like);
  close_source(&s);
}
END_TEST

START_TEST(wrong_sources_are_refused) {
  struct source s;
  open_source(&s);
  ek_group *other = ck_open("cpu:2", 1);
  ek_tensor foreign = ck_upload(ek_group_device(other, 1), EK_F32, s.values, CK_SHAPE(9, 3));
  ek_tensor nothing = {0}, scalar;
  ek_shards shards, like = {0};
  memset(&shards, 0x5A, sizeof shards);
  const ek_shards before = shards;
  const ek_memory_category c = EK_MEMORY_INPUTS;
  ck_ok(ek_tensor_host(&scalar, s.numbers, EK_F32, 0, NULL));
  ck_fails(ek_scatter(NULL, s.group, &s.host, c, NULL), EK_ERR_INVALID_ARGUMENT, "missing");
  ck_fails(ek_scatter(&shards, NULL, &s.host, c, NULL), EK_ERR_INVALID_ARGUMENT, "missing");
  ck_fails(ek_scatter(&shards, s.group, NULL, c, NULL), EK_ERR_INVALID_ARGUMENT, "missing");
  ck_fails(ek_scatter(&shards, s.group, &nothing, c, NULL), EK_ERR_INVALID_ARGUMENT, "missing");
  ck_fails(ek_scatter(&shards, s.group, &foreign, c, NULL), EK_ERR_DEVICE, "another group");
  ck_fails(ek_scatter(&shards, s.group, &scalar, c, NULL), EK_ERR_SHAPE, "scalar");
  ck_fails(ek_scatter(&shards, s.group, &s.host, (ek_memory_category)99, NULL),
           EK_ERR_INVALID_ARGUMENT, "category");
  ck_fails(ek_scatter_broadcast(&shards, s.group, &foreign, c), EK_ERR_DEVICE, "another group");
  ck_fails(ek_scatter_broadcast(&shards, NULL, &s.host, c), EK_ERR_INVALID_ARGUMENT, "missing");
  ck_fails(ek_scatter_like(&shards, NULL, &s.host, c), EK_ERR_INVALID_ARGUMENT, "follow");
  ck_fails(ek_scatter_like(&shards, &like, &s.host, c), EK_ERR_INVALID_ARGUMENT, "follow");
  for (int i = 0; i < 5; i++) { /* structs that were filled by hand */
    ek_tensor odd = s.host;
    if (i == 0) odd.rank = EK_MAX_RANK + 1;
    if (i == 1) odd.rank = -1;
    if (i == 2) odd.shape[1] = -1;
    if (i == 3) odd.data = NULL;
    if (i == 4) odd.shape[0] = INT64_MAX / 4;
    const ek_status wanted = i == 4 ? EK_ERR_OVERFLOW : EK_ERR_INVALID_ARGUMENT;
    ck_assert_int_eq(ek_scatter(&shards, s.group, &odd, c, NULL), wanted);
    ck_assert_int_eq(ek_scatter_broadcast(&shards, s.group, &odd, c), wanted);
  }
  /* Full devices: the parts that were made are given back. */
  ck_ok(ek_memory_fail_at(ek_group_device(s.group, 2), 1));
  ck_fails(ek_scatter(&shards, s.group, &s.host, c, NULL), EK_ERR_OUT_OF_MEMORY,
           "replica 2 on cpu:2");
  ck_assert_mem_eq(&shards, &before, sizeof shards);
  ek_tensor_free(&foreign);
  ek_group_free(other);
  close_source(&s);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("scatter");
  TCase *cuts = ck_case(suite, "cuts"), *parts = ck_case(suite, "parts");
  tcase_add_test(cuts, known_cuts);
  tcase_add_test(cuts, cuts_over_many);
  tcase_add_test(cuts, cuts_cover_all_rows);
  tcase_add_test(cuts, huge_numbers_of_rows);
  tcase_add_test(cuts, senseless_cuts_are_refused);
  tcase_add_test(parts, from_the_host);
  tcase_add_loop_test(parts, views_on_the_source_device, 0, DEVICES);
  tcase_add_test(parts, like_another);
  tcase_add_test(parts, wrong_sources_are_refused);
  return suite;
}

CK_MAIN(make_suite)
