/*
 * check_scatter.c - cutting a tensor along dimension 0.
 */
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

CK_TEST(known_cuts) {
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

/* The arithmetic knows no largest number of devices. */
CK_TEST(cuts_over_many) {
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

/* For all small cases: every row once, in order; even within one row; chunks as torch cuts them. */
CK_TEST(cuts_cover_all_rows) {
  struct ck_random random = ck_random_start(1);
  for (size_t count = 1; count <= 9; count++) {
    for (int64_t rows = 0; rows <= 40; rows++) {
      int64_t even[CK_MAX_DEVICES + 1], chunk[CK_MAX_DEVICES + 1], weighted[CK_MAX_DEVICES + 1];
      double weights[9], sum = 0;
      for (size_t i = 0; i < count; i++) sum += weights[i] = ck_random_uniform(&random, 0.1, 5);
      CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .weights = weights);
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

CK_TEST(huge_numbers_of_rows) {
  int64_t offsets[CK_MAX_DEVICES + 1];
  const double weights[] = {0, 3, 0, 1e-3}, one[] = {1};
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .weights = weights);
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

static void refused(int64_t rows, size_t count, const ek_scatter_options *options,
                    const char *text) {
  int64_t offsets[CK_MAX_DEVICES + 1] = {-7};
  ck_invalid(ek_scatter_offsets(offsets, rows, count, options), text);
  ck_assert_int_eq(offsets[0], -7);
}

CK_TEST(senseless_cuts_are_refused) {
  const int64_t few[] = {1, 2}, many[] = {3, 3}, negative[] = {6, -1};
  const int64_t huge[] = {INT64_MAX, INT64_MAX};
  const double weights[][2] = {{0, 0}, {-1, 2}, {NAN, 1}, {INFINITY, 1}};
  ck_invalid(ek_scatter_offsets(NULL, 5, 2, NULL), "scatter");
  refused(-1, 2, NULL, "-1 rows");
  refused(5, 0, NULL, "0 devices");
  refused(5, SIZE_MAX, NULL, "devices");
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .size = 3);
  refused(5, 2, &options, "ek_scatter_options.size is 3");
  ck_assign(options, .size = sizeof options, .kind = (ek_scatter_kind)9);
  refused(5, 2, &options, "kind 9");
  options.kind = EK_SCATTER_SIZES;
  refused(5, 2, &options, "options.sizes is NULL");
  options.sizes = few;
  refused(5, 2, &options, "the sizes sum to 3, expected 5");
  options.sizes = many;
  refused(5, 2, &options, "exceeds the rows that are left");
  options.sizes = negative;
  refused(5, 2, &options, "negative");
  options.sizes = huge;
  refused(5, 2, &options, "exceeds the rows that are left");
  options.kind = EK_SCATTER_WEIGHTS;
  refused(5, 2, &options, "options.weights is NULL");
  for (int i = 0; i < 4; i++) {
    options.weights = weights[i];
    refused(5, 2, &options, "weight");
  }
}

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

CK_TEST(from_the_host) {
  CK_SET_UP(struct source, s, open_source(&s));
  const int64_t sizes[DEVICES] = {0, 5, 1, 3};
  CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .sizes = sizes);
  for (int i = 0; i < 6; i++) {
    ck_assign(options, .kind = (ek_scatter_kind)(i % 3), .ahead = i >= 3);
    CK_GOT(ek_shards, shards, ek_scatter(&shards, s.group, &s.host, EK_MEMORY_OUTPUTS, &options));
    ck_assert_ptr_eq(shards.group, s.group);
    ck_assert_uint_eq(shards.count, DEVICES);
    ck_assert(!shards.broadcast);
    ck_assert_int_eq(shards.private_members.ahead, options.ahead);
    ck_ok(ek_shards_wait(&shards));
    for (size_t k = 0; k < DEVICES; k++) {
      holds_rows(&shards, s.values, k);
      ck_assert_int_eq(shards.samples[k + 1], shards.offsets[k + 1]);
      CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(s.group, k)));
      ck_assert_uint_eq(usage.current[EK_MEMORY_OUTPUTS], usage.current_bytes);
    }
    ek_shards_free(&shards);
    ck_assert_ptr_null(shards.group);
  }
}

/* A part that is on its device already is not copied. */
CK_LOOP(views_on_the_source_device, DEVICES) {
  CK_SET_UP(struct source, s, open_source(&s));
  const size_t home = (size_t)_i;
  CK_GOT(ek_tensor, source,
         ek_tensor_create(&source, ek_group_device(s.group, home), EK_MEMORY_INPUTS, EK_F32,
                          CK_SHAPE(ROWS, COLUMNS)));
  ck_ok(ek_tensor_copy(&source, &s.host));
  CK_OPENED(ek_shards, shards, ek_scatter(&shards, s.group, &source, EK_MEMORY_INPUTS, NULL));
  CK_OPENED(ek_shards, whole, ek_scatter_broadcast(&whole, s.group, &source, EK_MEMORY_INPUTS));
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
}

/* Targets follow the samples, also where a sample has several rows. */
CK_TEST(like_another) {
  CK_SET_UP(struct source, s, open_source(&s));
  CK_WITH(ek_tensor, samples, s.host, .shape[0] = 3 /* of 3 rows each */);
  const int64_t sizes[DEVICES] = {1, 0, 2, 0};
  const ek_scatter_options options = {
      .size = sizeof options, .kind = EK_SCATTER_SIZES, .sizes = sizes, .ahead = true};
  CK_GOT(ek_shards, like, ek_scatter(&like, s.group, &samples, EK_MEMORY_INPUTS, &options));
  CK_GOT(ek_shards, shards, ek_scatter_like(&shards, &like, &s.host, EK_MEMORY_INPUTS));
  ck_assert(shards.private_members.ahead);
  ck_ok(ek_shards_wait(&shards));
  for (size_t k = 0; k < DEVICES; k++) {
    ck_assert_int_eq(shards.offsets[k + 1], 3 * like.samples[k + 1]);
    ck_assert_int_eq(shards.samples[k + 1], like.samples[k + 1]);
    holds_rows(&shards, s.values, k);
  }
  ek_shards_free(&shards);
  CK_WITH(ek_tensor, odd, s.host, .shape[0] = 8);
  ck_fails(ek_scatter_like(&shards, &like, &odd, EK_MEMORY_INPUTS), EK_ERR_SHAPE,
           "8 rows are not a multiple of 3 samples");
  CK_GOT(ek_tensor, scalar, ek_tensor_host(&scalar, s.numbers, EK_F32, 0, NULL));
  ck_fails(ek_scatter_like(&shards, &like, &scalar, EK_MEMORY_INPUTS), EK_ERR_SHAPE, "scalar");
  ek_shards_free(&like);
  samples.shape[0] = odd.shape[0] = 0; /* nothing follows nothing */
  ck_ok(ek_scatter(&like, s.group, &samples, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_scatter_like(&shards, &like, &odd, EK_MEMORY_INPUTS));
  ek_shards_free(&shards);
  ck_fails(ek_scatter_like(&shards, &like, &s.host, EK_MEMORY_INPUTS), EK_ERR_SHAPE, "0 samples");
  ek_shards_free(&like);
}

CK_TEST(wrong_sources_are_refused) {
  CK_SET_UP(struct source, s, open_source(&s));
  ek_group *other = ck_open("cpu:2", 1);
  ek_tensor foreign = ck_upload(ek_group_device(other, 1), EK_F32, s.values, CK_SHAPE(9, 3));
  ek_tensor nothing = {0}, scalar;
  ek_shards shards, like = {0};
  memset(&shards, 0x5A, sizeof shards);
  const ek_shards before = shards;
  const ek_memory_category c = EK_MEMORY_INPUTS;
  ck_ok(ek_tensor_host(&scalar, s.numbers, EK_F32, 0, NULL));
  ck_invalid(ek_scatter(NULL, s.group, &s.host, c, NULL), "missing");
  ck_invalid(ek_scatter(&shards, NULL, &s.host, c, NULL), "missing");
  ck_invalid(ek_scatter(&shards, s.group, NULL, c, NULL), "missing");
  ck_invalid(ek_scatter(&shards, s.group, &nothing, c, NULL), "missing");
  ck_fails(ek_scatter(&shards, s.group, &foreign, c, NULL), EK_ERR_DEVICE, "another group");
  ck_fails(ek_scatter(&shards, s.group, &scalar, c, NULL), EK_ERR_SHAPE, "scalar");
  ck_invalid(ek_scatter(&shards, s.group, &s.host, (ek_memory_category)99, NULL), "category");
  ck_fails(ek_scatter_broadcast(&shards, s.group, &foreign, c), EK_ERR_DEVICE, "another group");
  ck_invalid(ek_scatter_broadcast(&shards, NULL, &s.host, c), "missing");
  ck_invalid(ek_scatter_like(&shards, NULL, &s.host, c), "follow");
  ck_invalid(ek_scatter_like(&shards, &like, &s.host, c), "follow");
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
}

/* ---- integers and pixels ---- */

enum { MANY_ROWS = 9, MANY = 20011 }; /* rows of many pieces */

static const ek_type integers[] = {EK_U8, EK_U16, EK_U32, EK_I32, EK_I64};
enum { INTEGERS = sizeof integers / sizeof *integers };

/* Numbers over the whole range that `from` and `to` share, their ends first. */
static void fill_integers(void *data, int64_t *values, ek_type from, ek_type to, int64_t count) {
  struct ck_random random = ck_random_start(7);
  const bool narrow = to == EK_I32 || from == EK_I32;
  const int64_t most = from == EK_U8          ? UINT8_MAX
                       : from == EK_U16       ? UINT16_MAX
                       : narrow               ? INT32_MAX
                       : from == EK_U32       ? UINT32_MAX
                                              : INT64_MAX;
  const int64_t least = from != EK_I32 && from != EK_I64 ? 0 : narrow ? INT32_MIN : INT64_MIN;
  for (int64_t i = 0; i < count; i++) {
    values[i] = i == 0   ? most
                : i == 1 ? least
                : least == INT64_MIN
                    ? (int64_t)ck_random_next(&random)
                    : ck_random_integer(&random, least, most);
    ck_put_integer(data, from, i, values[i]);
  }
}

static void holds(const ek_tensor *part, ek_type type, const void *want, size_t bytes) {
  CK_HELD(void *, got, ck_array(bytes + 1, 1));
  ck_assert_int_eq(part->type, type);
  ck_assert_uint_eq(ek_tensor_bytes(part), bytes);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, got, type, part->rank, part->shape));
  ck_ok(ek_tensor_copy(&host, part));
  ck_assert_mem_eq(got, want, bytes);
}

/* ek_scatter_like() chooses the type itself: i64 stay, the others become i32 if they fit. */
static void check_like(ek_shards *like, const ek_shards *shards, const ek_tensor *host,
                       int64_t largest, ek_type type, const void *want) {
  const ek_type plain = host->type == EK_I64 ? EK_I64 : EK_I32;
  if (plain == EK_I32 && largest > INT32_MAX) {
    ck_invalid(ek_scatter_like(like, shards, host, EK_MEMORY_INPUTS),
               "ek_scatter_like: element 0 (row 0) is 4294967295, which does not fit in i32");
    return;
  }
  ck_ok(ek_scatter_like(like, shards, host, EK_MEMORY_INPUTS));
  ck_ok(ek_shards_wait(like));
  for (size_t k = 0; k < DEVICES; k++) {
    const size_t bytes = ek_tensor_bytes(&like->parts[k]), row = MANY * ek_type_size(plain);
    ck_assert_int_eq(like->parts[k].type, plain);
    if (plain == type) {
      holds(&like->parts[k], plain, (const char *)want + (size_t)shards->offsets[k] * row, bytes);
    }
  }
}

/* Every type to every type, cut unevenly with a device without rows, and whole. */
CK_LOOP(integers_become_integers, 2 * INTEGERS) {
  const ek_type from = integers[_i % INTEGERS], to = _i / INTEGERS == 0 ? EK_I32 : EK_I64;
  const int64_t n = MANY_ROWS * MANY, sizes[DEVICES] = {0, 5, 1, 3};
  const size_t size = ek_type_size(to);
  ek_group *group = ck_open("cpu:4", 2);
  void *data = ck_array((size_t)n, 8), *want = ck_array((size_t)n, 8);
  int64_t *values = ck_array((size_t)n, sizeof *values);
  fill_integers(data, values, from, to, n);
  for (int64_t i = 0; i < n; i++) ck_put_integer(want, to, i, values[i]);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, from, CK_SHAPE(MANY_ROWS, MANY)));
  for (int ahead = 0; ahead < 2; ahead++) {
    CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .kind = EK_SCATTER_SIZES,
            .sizes = sizes, .ahead = ahead == 1, .type = to);
    ek_shards shards = {0}, like = {0};
    ck_ok(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
    ck_ok(ek_shards_wait(&shards));
    for (size_t k = 0; k < DEVICES; k++) {
      const size_t first = (size_t)(shards.offsets[k] * MANY), rows = (size_t)sizes[k] * MANY;
      holds(&shards.parts[k], to, (char *)want + first * size, rows * size);
    }
    check_like(&like, &shards, &host, values[0], to, want);
    ek_shards_free(&like);
    ek_shards_free(&shards);
  }
}

CK_TEST(broadcast_integers) {
  enum { N = 6 };
  const uint16_t numbers[N] = {0, 1, 65535, 40000, 7, 8};
  const int32_t want[N] = {0, 1, 65535, 40000, 7, 8};
  ek_group *group = ck_open("cpu:4", 1);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, (void *)(uintptr_t)numbers, EK_U16, CK_SHAPE(N)));
  CK_OPENED(ek_shards, shards, ek_scatter_broadcast(&shards, group, &host, EK_MEMORY_INPUTS));
  for (size_t k = 0; k < DEVICES; k++) holds(&shards.parts[k], EK_I32, want, sizeof want);
}

/* u8 and u16 to f32 and f64, without a scaling, with one and with one for each channel: the bits of
 * the formula. */
CK_LOOP(pixels, 4) {
  const ek_type from = _i % 2 == 0 ? EK_U8 : EK_U16, to = _i / 2 == 0 ? EK_F32 : EK_F64;
  const int64_t rows = 7, spots = 11003, n = rows * spots * 3;
  const ek_input_scaling scalings[] = {
      {1, {1 / 255.0}, {-0.1}}, {3, {0.017, 1 / 3.0, -2}, {-2.1, 0.3, 1e-3}}};
  ek_group *group = ck_open("cpu:4", 2);
  void *data = ck_array((size_t)n, 2);
  double *wide = ck_array((size_t)n, sizeof *wide);
  float *narrow = ck_array((size_t)n, sizeof *narrow);
  int64_t *values = ck_array((size_t)n, sizeof *values);
  fill_integers(data, values, from, EK_I32, n);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, from, CK_SHAPE(rows, spots, 3)));
  for (int way = 0; way < 3; way++) {
    const ek_input_scaling *scaling = way == 0 ? NULL : &scalings[way - 1];
    for (int64_t i = 0; i < n; i++) {
      const int64_t c = scaling == NULL ? 0 : i % scaling->channels;
      const double product = (double)values[i] * (scaling == NULL ? 1 : scaling->scale[c]);
      wide[i] = product + (scaling == NULL ? 0 : scaling->offset[c]);
      narrow[i] = (float)wide[i];
    }
    CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .type = to, .scaling = scaling);
    CK_SCOPED(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
    const size_t size = ek_type_size(to);
    const char *want = to == EK_F32 ? (const char *)narrow : (const char *)wide;
    for (size_t k = 0; k < DEVICES; k++) {
      const size_t first = (size_t)(shards.offsets[k] * spots * 3);
      const size_t last = (size_t)(shards.offsets[k + 1] * spots * 3);
      holds(&shards.parts[k], to, want + first * size, (last - first) * size);
    }
  }
}

/* The message names the first element that does not fit, counted in the source; nothing is left. */
CK_TEST(integers_out_of_range) {
  static const struct {
    ek_type from;
    int64_t value;
  } bad[] = {{EK_U32, 4000000000}, {EK_U32, INT64_C(2147483648)}, {EK_I64, INT64_C(2147483648)},
             {EK_I64, INT64_C(-2147483649)}, {EK_I64, INT64_MIN}};
  static const int64_t places[] = {0, 40001, MANY_ROWS * MANY - 1};
  const int64_t n = MANY_ROWS * MANY;
  ek_group *group = ck_open("cpu:4", 2);
  void *data = ck_array((size_t)n, 8);
  for (int i = 0; i < 15; i++) {
    const ek_type from = bad[i % 5].from;
    const int64_t place = places[i / 5];
    ek_shards shards = {0}, before = shards;
    CK_WITH(ek_scatter_options, options, EK_SCATTER_OPTIONS_INIT, .type = EK_I32);
    memset(data, 0, (size_t)n * 8);
    ck_put_integer(data, from, place, bad[i % 5].value);
    ck_put_integer(data, from, n - 1, bad[i % 5].value); /* a later one */
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, data, from, CK_SHAPE(MANY_ROWS, MANY)));
    ck_invalid(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options),
               ck_text("element %lld (row %lld) is %lld, which does not fit in i32",
                       (long long)place, (long long)(place / MANY), (long long)bad[i % 5].value));
    ck_assert_mem_eq(&shards, &before, sizeof shards);
    ck_no_memory_held(group);
    options.type = EK_I64;
    ck_ok(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options));
    ek_shards_free(&shards);
  }
}

CK_TEST(conversions_that_are_refused) {
  double numbers[12] = {0};
  ek_group *group = ck_open("cpu:4", 1);
  ek_shards shards = {0};
  ek_tensor host;
  ek_input_scaling scaling = {3, {1, 1, 1}, {0}};
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
#define REFUSED(from, to, with, status, text)                                                      \
  do {                                                                                             \
    ck_ok(ek_tensor_host(&host, numbers, from, CK_SHAPE(4, 3)));                                   \
    options.type = (ek_type)(to);                                                                  \
    options.scaling = with;                                                                        \
    ck_fails(ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, &options), status, text);         \
    ck_no_memory_held(group);                                                                      \
  } while (0)
  REFUSED(EK_F32, EK_I32, NULL, EK_ERR_TYPE, "f32 cannot become i32");
  REFUSED(EK_F64, EK_I64, NULL, EK_ERR_TYPE, "f64 cannot become i64");
  REFUSED(EK_BF16, EK_F32, NULL, EK_ERR_TYPE, "bf16; only u8 and u16 in host memory");
  REFUSED(EK_U32, EK_F32, NULL, EK_ERR_TYPE, "u32; only u8 and u16 in host memory");
  REFUSED(EK_I64, EK_F64, NULL, EK_ERR_TYPE, "i64; only u8 and u16 in host memory");
  REFUSED(EK_U8, EK_BF16, NULL, EK_ERR_INVALID_ARGUMENT, "expected 0, i32, i64, f32 or f64");
  REFUSED(EK_U8, EK_U16, NULL, EK_ERR_INVALID_ARGUMENT, "options.type is u16");
  REFUSED(EK_U8, 77, NULL, EK_ERR_INVALID_ARGUMENT, "options.type is no type");
  REFUSED(EK_U8, EK_I32, &scaling, EK_ERR_INVALID_ARGUMENT, "a scaling gives f32 or f64, not i32");
  REFUSED(EK_U8, 0, &scaling, EK_ERR_INVALID_ARGUMENT, "a scaling gives f32 or f64");
  scaling.channels = 2;
  REFUSED(EK_U8, EK_F32, &scaling, EK_ERR_SHAPE, "2 channels, but its last dimension is 3");
  scaling.channels = 5;
  REFUSED(EK_U8, EK_F32, &scaling, EK_ERR_INVALID_ARGUMENT, "5 channels, expected 1 to 4");
  scaling.channels = 0;
  REFUSED(EK_U8, EK_F32, &scaling, EK_ERR_INVALID_ARGUMENT, "0 channels, expected 1 to 4");
  scaling = (ek_input_scaling){3, {1, 1, HUGE_VAL}, {0}};
  REFUSED(EK_U8, EK_F32, &scaling, EK_ERR_INVALID_ARGUMENT, "channel 2 is not finite");
  scaling = (ek_input_scaling){1, {1}, {NAN}};
  REFUSED(EK_U8, EK_F32, &scaling, EK_ERR_INVALID_ARGUMENT, "is not finite");
#undef REFUSED
  /* On a device they have no choice. */
  ek_tensor there = ck_upload(ek_group_device(group, 1), EK_I32, numbers, CK_SHAPE(4));
  options = (ek_scatter_options)EK_SCATTER_OPTIONS_INIT;
  options.type = EK_I64;
  ck_fails(ek_scatter(&shards, group, &there, EK_MEMORY_INPUTS, &options), EK_ERR_TYPE,
           "i32 on a device cannot become i64");
  options.type = EK_F32;
  ck_fails(ek_scatter(&shards, group, &there, EK_MEMORY_INPUTS, &options), EK_ERR_TYPE,
           "i32 on a device");
}

CK_SUITE("scatter")
