/*
 * check_source.c - the order of samples, reading over the end of an epoch, and parts of a source.
 */
#include "ek_check.h"

/* A sample is its own number, as i64 [2], and its negative as the target, i32 []. */
struct numbers {
  ek_source base;
  int64_t fails_at; /* the sample that cannot be read, or -1 */
};

static ek_status read_numbers(const ek_source *self, const ek_source_request *request,
                              ek_tensor *tensors) {
  int64_t *input = tensors[0].data;
  int32_t *target = tensors[1].data;
  for (int64_t i = 0; i < request->count; i++) {
    const int64_t sample = request->samples[i];
    if (sample == ((const struct numbers *)self)->fails_at) {
      return ek_error_set(EK_ERR_IO, "sample %lld is damaged", (long long)sample);
    }
    input[2 * i] = sample;
    input[2 * i + 1] = request->key.step;
    target[i] = (int32_t)-sample;
  }
  return EK_OK;
}

static void free_numbers(ek_source *self) { free(self); }

static const ek_source_ops ops = {
    .size = sizeof(ek_source_ops), .kind = "numbers", .read = read_numbers, .free = free_numbers};
static const ek_source_tensor tensors_of[] = {{EK_I64, 1, {2}}, {EK_I32, 0, {0}}};

static ek_source *open_numbers(int64_t samples, uint64_t seed, bool in_order) {
  struct numbers *made = calloc(1, sizeof *made);
  ck_assert_ptr_nonnull(made);
  made->fails_at = -1;
  CK_WITH(ek_source_options, options, EK_SOURCE_OPTIONS_INIT, .samples = samples,
          .tensors = tensors_of, .seed = seed, .in_order = in_order);
  ck_ok(ek_source_init(&made->base, &ops, &options));
  return ck_keep(&made->base);
}

static int64_t sample_at(const ek_source *source, int64_t position) {
  CK_GOT(int64_t, sample, ek_source_at(&sample, NULL, source, position));
  return sample;
}

CK_TEST(every_epoch_has_every_sample_once) {
  static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 64, 65, 1000, 4097};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    const int64_t n = sizes[i];
    ek_source *source = open_numbers(n, 7, false);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
      unsigned char *seen = ck_array((size_t)n, 1);
      for (int64_t k = 0; k < n; k++) {
        const int64_t sample = sample_at(source, epoch * n + k);
        ck_assert(sample >= 0 && sample < n);
        ck_assert_msg(seen[sample]++ == 0, "sample %lld of %lld comes twice", (long long)sample,
                      (long long)n);
      }
    }
  }
}

/* Of a random permutation of n the number of fixed points, of neighbours that stay neighbours, and
 * of places that two permutations share is Poisson with mean 1, 2 and 1: more than 12 has a
 * probability below 1e-6. The seed is fixed, so the test cannot fail by chance. */
CK_TEST(an_order_looks_random_and_depends_on_seed_and_epoch) {
  enum { N = 3000 };
  ek_source *a = open_numbers(N, 1, false), *b = open_numbers(N, 2, false);
  int fixed = 0, neighbours = 0, same_seed = 0, same_epoch = 0;
  for (int64_t k = 0; k < N; k++) {
    const int64_t sample = sample_at(a, k);
    fixed += sample == k;
    neighbours += k > 0 && llabs(sample - sample_at(a, k - 1)) == 1;
    same_epoch += sample == sample_at(a, N + k);
    same_seed += sample == sample_at(b, k);
  }
  ck_assert_msg(fixed <= 12 && neighbours <= 14 && same_epoch <= 12 && same_seed <= 12,
                "%d fixed, %d neighbours, %d as in the next epoch, %d as with another seed", fixed,
                neighbours, same_epoch, same_seed);
}

/* Each sixteenth of the positions has samples of each sixteenth: 256 cells of 256 samples; the sum
 * of squares is chi-square with 225 degrees of freedom, whose 1 - 1e-6 quantile is 341. */
CK_TEST(an_order_is_even) {
  enum { N = 65536, PARTS = 16 };
  static double cells[PARTS][PARTS];
  ek_source *source = open_numbers(N, 11, false);
  double square = 0;
  memset(cells, 0, sizeof cells);
  for (int64_t k = 0; k < N; k++) cells[k / (N / PARTS)][sample_at(source, k) / (N / PARTS)] += 1;
  for (int i = 0; i < PARTS; i++) {
    for (int j = 0; j < PARTS; j++) square += (cells[i][j] - 256) * (cells[i][j] - 256) / 256;
  }
  ck_assert_msg(square < 341, "chi-square is %g", square);
}

CK_TEST(the_largest_sources_and_positions) {
  const int64_t most = INT64_C(1) << 62;
  ek_source *source = open_numbers(most, 5, false);
  int64_t sample = 0, epoch = -1;
  ck_ok(ek_source_at(&sample, &epoch, source, INT64_MAX - 1));
  ck_assert(epoch == 1 && sample >= 0 && sample < most);
  ck_assert(sample_at(source, 0) != sample_at(source, 1));
  int upper = 0; /* of 32 samples, those of the upper half: all on one side has probability 2^-31 */
  for (int64_t i = 0; i < 32; i++) upper += sample_at(source, i) >= most / 2;
  ck_assert(upper > 0 && upper < 32);
  source = open_numbers(3, 5, true);
  ck_ok(ek_source_at(&sample, &epoch, source, INT64_C(3) * UINT32_MAX + 2));
  ck_assert(sample == 2 && epoch == UINT32_MAX);
  ck_invalid(ek_source_at(&sample, NULL, source, INT64_C(3) << 32), "below 2^32 epochs");
  ck_invalid(ek_source_at(&sample, NULL, source, -1), "from 0 on");
}

/* ---- reading ---- */

enum { MOST = 2000 };
static int64_t inputs[2 * MOST];
static int32_t targets[MOST];

static void read_some(const ek_source *source, int64_t first, int64_t count, ek_status wanted) {
  const int64_t shape[] = {count, 2};
  ek_tensor tensors[2];
  ck_ok(ek_tensor_host(&tensors[0], inputs, EK_I64, 2, shape));
  ck_ok(ek_tensor_host(&tensors[1], targets, EK_I32, 1, shape));
  const ek_status status = ek_source_read(tensors, 2, source, first, count);
  ck_assert_msg(status == wanted, "%s: %s", ek_status_name(status), ek_error_message());
}

CK_TEST(reading_gives_the_samples_at_their_positions) {
  ek_source *source = open_numbers(700, 3, false);
  static const int64_t places[][2] = {{0, 700}, {690, 20}, {0, 1}, {350, 1650}, {1399, 1}, {5, 0}};
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    read_some(source, places[i][0], places[i][1], EK_OK);
    for (int64_t k = 0; k < places[i][1]; k++) {
      const int64_t position = places[i][0] + k;
      ck_assert(inputs[2 * k] == sample_at(source, position));
      ck_assert(inputs[2 * k + 1] == position / 700); /* the key's step is the epoch */
      ck_assert(targets[k] == -inputs[2 * k]);
    }
  }
}

CK_TEST(an_error_of_a_source_is_named) {
  ek_source *source = open_numbers(50, 3, true);
  ((struct numbers *)source)->fails_at = 30;
  read_some(source, 0, 30, EK_OK);
  read_some(source, 0, 31, EK_ERR_IO);
  ck_assert_str_eq(ek_error_message(), "numbers: sample 30 is damaged");
}

CK_TEST(a_part_has_its_samples_in_its_own_order) {
  ek_source *whole = open_numbers(100, 3, false), *part = NULL, *rest = NULL, *inner = NULL;
  ck_kept(ek_source_part_create(&part, whole, 90, 10, NULL), part);
  CK_WITH(ek_source_options, options, EK_SOURCE_OPTIONS_INIT, .in_order = true);
  ck_kept(ek_source_part_create(&rest, whole, 0, 90, &options), rest);
  ck_kept(ek_source_part_create(&inner, part, 2, 3, &options), inner);
  ek_source_free(whole); /* the parts hold it */
  ck_assert(ek_source_samples(part) == 10 && ek_source_inputs(part) == 1);
  read_some(part, 0, 20, EK_OK);
  int64_t sum = 0;
  for (int k = 0; k < 20; k++) {
    ck_assert(inputs[2 * k] == 90 + sample_at(part, k));
    sum += inputs[2 * k];
  }
  ck_assert(sum == 2 * (90 + 99) * 5);
  read_some(rest, 88, 4, EK_OK);
  ck_assert(inputs[0] == 88 && inputs[2] == 89 && inputs[4] == 0 && inputs[6] == 1);
  read_some(inner, 0, 3, EK_OK);
  ck_assert(inputs[0] == 92 && inputs[2] == 93 && inputs[4] == 94);
}

/* ---- what is refused ---- */

CK_TEST(a_base_needs_a_table_and_sizes_that_fit) {
  struct numbers made;
  ek_source_ops table = ops;
  const ek_source_tensor wide[] = {{EK_F64, 3, {INT64_C(1) << 40, INT64_C(1) << 40, 4}},
                                   tensors_of[1]};
  const ek_source_tensor deep[] = {{EK_F64, EK_MAX_RANK, {0}}, tensors_of[1]};
  const ek_source_tensor untyped[] = {{(ek_type)0, 0, {0}}, tensors_of[1]};
  const ek_source_tensor negative[] = {{EK_U8, 1, {-1}}, tensors_of[1]};
  CK_WITH(ek_source_options, good, EK_SOURCE_OPTIONS_INIT, .samples = 4, .tensors = tensors_of);
  ck_invalid(ek_source_init(NULL, &ops, &good), "source is NULL");
  ck_invalid(ek_source_init(&made.base, NULL, &good), "ops is NULL");
  ck_invalid(ek_source_init(&made.base, &ops, NULL), "options is NULL");
  ck_bad(table, read, NULL, ek_source_init(&made.base, &table, &good), "ops.read is missing");
  ck_bad(table, free, NULL, ek_source_init(&made.base, &table, &good), "ops.free is missing");
#define BAD(member, value, status, text)                                                           \
  ck_bad_with(status, good, member, value, ek_source_init(&made.base, &ops, &good), text)
  BAD(samples, 0, EK_ERR_INVALID_ARGUMENT, "expected above 0");
  BAD(samples, (INT64_C(1) << 62) + 1, EK_ERR_OVERFLOW, "at most 2^62");
  BAD(inputs, 0, EK_ERR_INVALID_ARGUMENT, "1 to 16 inputs");
  BAD(inputs, EK_MAX_TENSORS + 1, EK_ERR_INVALID_ARGUMENT, "1 to 16 inputs");
  BAD(targets, EK_MAX_TENSORS + 1, EK_ERR_INVALID_ARGUMENT, "0 to 16 targets");
  BAD(tensors, NULL, EK_ERR_INVALID_ARGUMENT, "tensors is NULL");
  BAD(tensors, wide, EK_ERR_OVERFLOW, "do not fit");
  BAD(tensors, deep, EK_ERR_INVALID_ARGUMENT, "expected 0 to 7");
  BAD(tensors, untyped, EK_ERR_INVALID_ARGUMENT, "has no type");
  BAD(tensors, negative, EK_ERR_INVALID_ARGUMENT, "expected 0 or more");
#undef BAD
}

CK_TEST(tensors_must_be_the_sources) {
  ek_source *source = open_numbers(8, 3, false), *part = NULL;
  const int64_t shape[] = {4, 2}, flat[] = {8};
  ek_tensor good[2], bad[2];
  ck_ok(ek_tensor_host(&good[0], inputs, EK_I64, 2, shape));
  ck_ok(ek_tensor_host(&good[1], targets, EK_I32, 1, shape));
  ck_ok(ek_source_read(good, 2, source, 0, 4));
  ck_invalid(ek_source_read(good, 1, source, 0, 4), "expected 1 inputs and 1 targets");
  ck_invalid(ek_source_read(NULL, 2, source, 0, 4), "tensors is NULL");
  ck_invalid(ek_source_read(good, 2, NULL, 0, 4), "source is NULL");
  ck_fails(ek_source_read(good, 2, source, 0, 5), EK_ERR_SHAPE, "must have 5 rows");
  ck_invalid(ek_source_read(good, 2, source, -1, 4), "from -1 on");
  ck_invalid(ek_source_read(good, 2, source, INT64_MAX, 4), "positions from 0 on");
  memcpy(bad, good, sizeof bad);
  ck_ok(ek_tensor_host(&bad[0], inputs, EK_F64, 2, shape));
  ck_fails(ek_source_read(bad, 2, source, 0, 4), EK_ERR_TYPE, "is f64, expected i64");
  ck_ok(ek_tensor_host(&bad[0], inputs, EK_I64, 1, flat));
  ck_fails(ek_source_read(bad, 2, source, 0, 8), EK_ERR_SHAPE, "tensor 0 must have 8 rows");
  bad[0] = (ek_tensor){0};
  ck_invalid(ek_source_read(bad, 2, source, 0, 4), "not in host memory");
  ck_invalid(ek_source_part_create(&part, source, 0, 9, NULL), "the source has 8");
  ck_invalid(ek_source_part_create(&part, source, 8, 1, NULL), "the source has 8");
  ck_invalid(ek_source_part_create(&part, source, -1, 1, NULL), "the source has 8");
  ck_invalid(ek_source_part_create(&part, source, 0, 0, NULL), "the source has 8");
  ck_invalid(ek_source_part_create(&part, NULL, 0, 1, NULL), "whole is NULL");
  ck_assert_ptr_null(part);
}

CK_SUITE("source")
