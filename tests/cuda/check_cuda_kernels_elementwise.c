/*
 * check_cuda_kernels_elementwise.c - CUDA kernels on one element at a time, and column sums,
 * against the reference in double precision. Tolerances: kernel_rig.h.
 */
#include <math.h>
#include <string.h>

#include "kernel_rig.h"

static const int64_t counts[] = {0, 1, 3, 4, 255, 1027};
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* rows, columns */
static const int64_t shapes[][2] = {{0, 4},   {3, 0},   {1, 1},    {5, 3},   {7, 32},
                                    {2, 260}, {70, 33}, {130, 64}, {2100, 3}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef cudaError_t launcher(const struct ek__cuda_place *at,
                             const struct ek__elementwise_args *args);

/* One kernel y = f(a, b); `alias` 1: y is a. */
static void check_map(int variant, const char *what, launcher *launch,
                      ek__range_function *reference, double roundings) {
  for (int i = 0; i < 2 * COUNTS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(variant);
    const int64_t n = counts[i / 2];
    const struct kr_array a = kr_values(rig, n, -2, 2), b = kr_values(rig, n, -2, 2);
    const struct kr_array y = i % 2 == 0 ? kr_poison(rig, n) : a;
    struct ek__elementwise_args args = {y.device, a.device, b.device, n, -1.7, rig->types};
    kr_ok(launch(&rig->at, &args));
    args = (struct ek__elementwise_args){y.host, a.host, b.host, n, -1.7, {EK_F64, EK_F64}};
    reference(&args, 0, n);
    kr_check(rig, what, &y, roundings);
    kr_close(rig);
  }
}

START_TEST(maps) {
  check_map(_i, "fill", ek__cuda_fill, ek__fill_f64, 1);
  check_map(_i, "add", ek__cuda_add, ek__add_f64, 1);
  check_map(_i, "scale", ek__cuda_scale, ek__scale_f64, 2);
}
END_TEST

/* NaN stays NaN; a slope of 0 does not let an infinite gradient through. */
START_TEST(special_values) {
  struct kr_rig *rig = kr_open(_i);
  const struct kr_array x = kr_values(rig, 4, -1, 1), y = kr_poison(rig, 4);
  const double special[] = {NAN, -HUGE_VAL, HUGE_VAL, -0.0}, relu[] = {NAN, 0, HUGE_VAL, -0.0};
  memcpy(x.host, special, sizeof special);
  kr_send(rig, &x);
  struct ek__activation_args args = {.kind = EK_ACTIVATION_RELU,
                                     .y = y.device,
                                     .x = x.device,
                                     .dy = x.device,
                                     .rows = 1,
                                     .columns = 4,
                                     .types = rig->types};
  kr_ok(ek__cuda_activation_forward(&rig->at, &args));
  ck_within("relu", kr_fetch(rig, &y), relu, NULL, 4);
  const double slope[] = {NAN, 0, HUGE_VAL, 0};
  kr_ok(ek__cuda_activation_backward(&rig->at, &args));
  ck_within("relu backward", kr_fetch(rig, &y), slope, NULL, 4);
  kr_close(rig);
}
END_TEST

START_TEST(bias) {
  for (int i = 0; i < SHAPES; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t rows = shapes[i][0], columns = shapes[i][1];
    const struct kr_array y = kr_values(rig, rows * columns, -2, 2);
    const struct kr_array b = kr_values(rig, columns, -2, 2);
    struct ek__matrix_args args = {
        .y = y.device, .b = b.device, .rows = rows, .columns = columns, .types = rig->types};
    kr_ok(ek__cuda_add_bias(&rig->at, &args));
    args = (struct ek__matrix_args){.y = y.host, .b = b.host, .columns = columns};
    ek__add_bias_f64(&args, 0, rows);
    kr_check(rig, "bias", &y, 1);
    kr_close(rig);
  }
}
END_TEST

/* GELU: u errs by 6 of its own u, |u| <= 7 here: the exponential by 2 * 6 * 7; then 8 more. */
static const struct {
  const char *name;
  ek_activation kind;
  bool keeps_result;
  double forward, backward; /* roundings */
} activations[] = {{"relu", EK_ACTIVATION_RELU, true, 1, 0},
                   {"gelu", EK_ACTIVATION_GELU, false, 100, 120},
                   {"silu", EK_ACTIVATION_SILU, false, 16, 32}};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

START_TEST(activation) {
  for (int i = 0; i < 2 * SHAPES * ACTIVATIONS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t rows = shapes[i / 2 % SHAPES][0], columns = shapes[i / 2 % SHAPES][1];
    const int64_t n = rows * columns, of = i / 2 / SHAPES;
    const struct kr_array x = kr_values(rig, n, -3, 3), b = kr_values(rig, columns, -1, 1);
    const struct kr_array y = kr_poison(rig, n), dy = kr_values(rig, n, -1, 1);
    struct ek__activation_args args = {.kind = activations[of].kind,
                                       .y = y.device,
                                       .x = x.device,
                                       .bias = i % 2 == 0 ? b.device : NULL,
                                       .rows = rows,
                                       .columns = columns,
                                       .types = rig->types};
    struct ek__activation_args reference = args;
    reference.y = y.host;
    reference.x = x.host;
    reference.bias = i % 2 == 0 ? b.host : NULL;
    kr_ok(ek__cuda_activation_forward(&rig->at, &args));
    ek__activation_forward_f64(&reference, 0, reference.bias ? rows : n);
    kr_check(rig, "x + bias", &x, 1);
    kr_check(rig, activations[of].name, &y, activations[of].forward);
    const struct kr_array *kept = activations[of].keeps_result ? &y : &x;
    kr_send(rig, kept); /* rounded, on the device; the slope moves by less than that */
    args.x = kept->device;
    args.y = dy.device;
    args.dy = dy.device;
    reference.x = kept->host;
    reference.y = dy.host;
    reference.dy = dy.host;
    kr_ok(ek__cuda_activation_backward(&rig->at, &args));
    ek__activation_backward_f64(&reference, 0, n);
    kr_check(rig, activations[of].name, &dy, activations[of].backward);
    kr_close(rig);
  }
}
END_TEST

/* The same elements are kept, and they are x / (1 - p): the factor rounded, and the product. */
START_TEST(dropout) {
  static const double rates[] = {0, 0.1, 0.5, 0.999999};
  for (int i = 0; i < 4 * SHAPES; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t n = shapes[i / 4][0] * shapes[i / 4][1];
    const struct kr_array x = kr_values(rig, n, 1, 2), y = kr_poison(rig, n);
    struct ek__dropout_args args = {.y = y.device,
                                    .x = x.device,
                                    .samples = shapes[i / 4][0],
                                    .per_sample = shapes[i / 4][1],
                                    .first_sample = 0xFFFFFFFE, /* wraps, as a 32-bit number does */
                                    .p = rates[i % 4],
                                    .key = {0x123456789ABCDEF0u, 7, 9},
                                    .types = rig->types};
    kr_ok(ek__cuda_dropout(&rig->at, &args));
    args.y = y.host;
    args.x = x.host;
    ek__dropout_f64(&args, 0, n);
    const double *got = kr_fetch(rig, &y);
    for (int64_t k = 0; k < n; k++) ck_assert_msg((got[k] == 0) == (y.host[k] == 0), "mask");
    kr_check(rig, "dropout", &y, 2);
    kr_close(rig);
  }
}
END_TEST

START_TEST(column_sum) {
  static const double betas[] = {0, 1, -0.5};
  for (int i = 0; i < 3 * SHAPES; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t rows = shapes[i / 3][0], columns = shapes[i / 3][1];
    const double beta = betas[i % 3];
    const struct kr_array x = kr_values(rig, rows * columns, -1, 2);
    const struct kr_array y = beta == 0 ? kr_poison(rig, columns) : kr_values(rig, columns, -2, 2);
    struct ek__matrix_args args = {.y = y.device,
                                   .a = x.device,
                                   .rows = rows,
                                   .columns = columns,
                                   .value = beta,
                                   .types = rig->types};
    kr_ok(ek__cuda_column_sum(&rig->at, &args));
    args.y = y.host;
    args.a = x.host;
    ek__column_sum_f64(&args, 0, columns);
    kr_check(rig, "column sum", &y, (double)rows + 2);
    kr_close(rig);
  }
}
END_TEST

/* ---- casts ---- */

static double cast_one(struct kr_rig *rig, ek_type to, double value, ek_type by) {
  uint64_t bits = 0;
  void *first = kr_bytes(rig, &value, sizeof value), *second = kr_bytes(rig, &bits, sizeof bits);
  void *third = kr_bytes(rig, &bits, sizeof bits), *last = kr_bytes(rig, &bits, sizeof bits);
  const struct ek__cuda_cast_args steps[] = {
      {second, first, 1, by, EK_F64}, {third, second, 1, to, by}, {last, third, 1, EK_F64, to}};
  for (int i = 0; i < 3; i++) kr_ok(ek__cuda_cast(rig->at.stream, &steps[i]));
  kr_fetch_bytes(rig, &value, last, sizeof value);
  return value;
}

/* Through the type and back: what is kept, what is rounded and where to. */
START_TEST(casts) {
  static const struct {
    ek_type type;
    double value, want;
  } cases[] = {
      {EK_BF16, 1.0 + 0x1p-8, 1.0},                  /* tie to even: down */
      {EK_BF16, 1.0 + 3 * 0x1p-8, 1.0 + 0x1p-6},     /* tie to even: up */
      {EK_BF16, 1.0 + 0x1p-8 + 0x1p-40, 1 + 0x1p-7}, /* past the tie by less than f32 can say */
      {EK_BF16, -0x1p-130, -0x1p-130},               /* subnormal */
      {EK_BF16, 3.4e38, HUGE_VAL},
      {EK_BF16, NAN, NAN},
      {EK_F16, 2049.0, 2048.0},
      {EK_F16, 2051.0, 2052.0},
      {EK_F16, 2049.0 + 0x1p-30, 2050.0},
      {EK_F16, 0x1p-24, 0x1p-24},
      {EK_F16, 0x1p-25, 0.0},
      {EK_F16, -3 * 0x1p-25, -0x1p-23},
      {EK_F16, 65519.0, 65504.0},
      {EK_F16, 65520.0, HUGE_VAL},
      {EK_F16, -HUGE_VAL, -HUGE_VAL},
      {EK_F16, NAN, NAN},
      {EK_F32, 1.0 + 0x1p-24, 1.0},
      {EK_F64, 0.1, 0.1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct kr_rig *rig = kr_open(0);
    const double got = cast_one(rig, cases[i].type, cases[i].value, EK_F64);
    ck_within("cast", &got, &cases[i].want, NULL, 1);
    if ((double)(float)cases[i].value == cases[i].value) { /* the same from f32 */
      const double again = cast_one(rig, cases[i].type, cases[i].value, EK_F32);
      ck_within("cast by f32", &again, &cases[i].want, NULL, 1);
    }
    kr_close(rig);
  }
}
END_TEST

/* Every bf16 and f16 survives f32 and comes back as the same bits; NaN as some NaN. */
START_TEST(all_16_bit_numbers) {
  static uint16_t all[65536], back[65536];
  for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
  const ek_type type = _i == 0 ? EK_BF16 : EK_F16;
  const uint16_t infinity = type == EK_BF16 ? 0x7F80 : 0x7C00;
  struct kr_rig *rig = kr_open(0);
  void *from = kr_bytes(rig, all, sizeof all), *to = kr_bytes(rig, all, sizeof all);
  const struct kr_array middle = kr_poison(rig, 65536);
  const struct ek__cuda_cast_args out = {middle.device, from, 65536, EK_F32, type};
  const struct ek__cuda_cast_args in = {to, middle.device, 65536, type, EK_F32};
  kr_ok(cudaMemset(to, 0, sizeof all));
  kr_ok(cudaDeviceSynchronize());
  kr_ok(ek__cuda_cast(rig->at.stream, &out));
  kr_ok(ek__cuda_cast(rig->at.stream, &in));
  kr_fetch_bytes(rig, back, to, sizeof back);
  for (int i = 0; i < 65536; i++) {
    const bool nan = (all[i] & 0x7FFF) > infinity;
    const bool fits = nan ? (back[i] & 0x7FFF) > infinity : back[i] == all[i];
    if (!fits) ck_abort_msg("%#x came back as %#x", (unsigned)all[i], (unsigned)back[i]);
  }
  kr_close(rig);
}
END_TEST

/* A type that is not computed is refused, and nothing is queued. */
START_TEST(wrong_types) {
  struct kr_rig *rig = kr_open(0);
  const struct ek__elementwise_args args = {.count = 1, .types = {EK_BF16, EK_BF16}};
  const struct ek__cuda_cast_args cast = {.count = 1, .to_type = EK_F32, .from_type = EK_I32};
  ck_assert_int_eq(ek__cuda_fill(&rig->at, &args), cudaErrorInvalidValue);
  ck_assert_int_eq(ek__cuda_cast(rig->at.stream, &cast), cudaErrorInvalidValue);
  kr_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("cuda_kernels_elementwise");
  tcase_add_loop_test(ck_case(suite, "maps"), maps, 0, KR_VARIANTS);
  tcase_add_loop_test(ck_case(suite, "special values"), special_values, 0, KR_VARIANTS);
  tcase_add_loop_test(ck_case(suite, "bias"), bias, 0, KR_VARIANTS);
  tcase_add_loop_test(ck_case(suite, "activation"), activation, 0, KR_VARIANTS);
  tcase_add_loop_test(ck_case(suite, "dropout"), dropout, 0, KR_VARIANTS);
  tcase_add_loop_test(ck_case(suite, "column sum"), column_sum, 0, KR_VARIANTS);
  TCase *cast = ck_case(suite, "casts");
  tcase_add_test(cast, casts);
  tcase_add_loop_test(cast, all_16_bit_numbers, 0, 2);
  tcase_add_test(cast, wrong_types);
  return suite;
}

KR_MAIN(make_suite)
