/*
 * check_rotary.c - rotary position embedding against plain loops in long double.
 *
 * Bound of an element of a pair (a, b): 8 u (|a| + |b|) (docs/numerics.md); of f64 with 2^-52 times
 * the angle more, which is the error of a place that is computed in f64 itself.
 */
#include "ek_check.h"

/* samples, tokens, heads, head width, columns */
static const int64_t sizes[][5] = {{1, 1, 1, 2, 2},    {2, 3, 1, 2, 5},      {0, 4, 2, 4, 8},
                                   {3, 0, 1, 2, 2},    {2, 5, 0, 8, 3},      {2, 5, 3, 0, 3},
                                   {3, 7, 2, 10, 21},  {2, 300, 3, 64, 192}, {1, 9, 1, 256, 300},
                                   {2, 33, 5, 36, 200}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

CK_UNWATCHED static void turn(const struct ck_rig *rig, const int64_t *size, const double *speeds,
                              double *x, double *bound, int sign) {
  const int64_t pairs = size[3] / 2;
  for (int64_t row = 0; row < size[0] * size[1]; row++) {
    for (int64_t k = 0; k < size[2] * pairs; k++) {
      const long double angle = (long double)(row % size[1]) * speeds[k % pairs];
      const int64_t at = row * size[4] + k / pairs * size[3] + k % pairs;
      const double a = x[at], b = x[at + pairs];
      x[at] = (double)(a * cosl(angle) - sign * b * sinl(angle));
      x[at + pairs] = (double)(sign * a * sinl(angle) + b * cosl(angle));
      bound[at] = bound[at + pairs] =
          (8 * rig->unit + 0x1p-52 * (double)angle) * (fabs(a) + fabs(b));
    }
  }
}

/* Forward and back; columns after the heads keep their bits, as all have at position 0. */
CK_RIG_CASES(both_ways, s, 2 * SIZES) {
  const int64_t *size = sizes[s / 2], n = size[0] * size[1] * size[4];
  const bool back = s % 2 == 1;
  double speeds[EK_ROTARY_MOST_PAIRS];
  ck_ok(ek_rotary_speeds(speeds, size[3], NULL));
  double *x = ck_values(rig, n, -3, 3), *bound = ck_zeros(rig, n);
  ek_tensor *y = ck_tensor(rig, x, CK_SHAPE(size[0], size[1], size[4]));
  turn(rig, size, speeds, x, bound, back ? -1 : 1);
  ck_ok(ek_op_rotary(rig->stream, y, NULL, (int)size[2], size[3], speeds, back));
  for (int64_t i = 0; i < n && size[1] > 0; i++) {
    if (i / size[4] % size[1] == 0) bound[i] = 0;
  }
  ck_fits(rig, "x", y, x, bound, n);
}

/* f32: only the place within a turn counts, also where there were very many. */
CK_RIG_LOOP(far_positions, ck_variants()) {
  enum { TOKENS = 5000 };
  const int64_t size[] = {1, TOKENS, 1, 4, 4};
  const double speeds[] = {6.25, 123.456};
  double *x = ck_values(rig, TOKENS * 4, -1, 1), *bound = ck_zeros(rig, TOKENS * 4);
  ek_tensor *y = ck_tensor(rig, x, CK_SHAPE(1, TOKENS, 4));
  turn(rig, size, speeds, x, bound, 1);
  ck_ok(ek_op_rotary(rig->stream, y, NULL, 1, 4, speeds, false));
  ck_fits(rig, "x", y, x, bound, TOKENS * 4);
}

/* The product of a turned query and a turned key depends on the distance alone. */
CK_RIG_TEST(products_see_distances, NULL, EK_F64) {
  enum { TOKENS = 40, WIDTH = 16 };
  double speeds[WIDTH / 2], *all = ck_zeros(rig, TOKENS * WIDTH);
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .theta = 500000);
  ck_ok(ek_rotary_speeds(speeds, WIDTH, &rotary));
  for (int i = 0; i < TOKENS * WIDTH; i++) all[i] = i % WIDTH + 1;
  ek_tensor *x = ck_tensor(rig, all, CK_SHAPE(1, TOKENS, WIDTH));
  ck_ok(ek_op_rotary(rig->stream, x, NULL, 1, WIDTH, speeds, false));
  const double *y = ck_read(rig, x);
  for (int t = 0; t + 7 < TOKENS; t++) {
    double product = 0, first = 0;
    for (int i = 0; i < WIDTH; i++) {
      product += y[t * WIDTH + i] * y[(t + 7) * WIDTH + i];
      first += y[i] * y[7 * WIDTH + i];
    }
    ck_assert_double_le(fabs(product - first), 1e-10);
  }
}

/* ---- speeds ---- */

CK_TEST(speeds_of_plain_and_linear) {
  double speeds[4], slower[4];
  ck_ok(ek_rotary_speeds(speeds, 8, NULL));
  const double plain[] = {1, 0.1, 0.01, 0.001};
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .scaling = EK_ROTARY_LINEAR, .factor = 4);
  ck_ok(ek_rotary_speeds(slower, 8, &rotary));
  for (int i = 0; i < 4; i++) {
    ck_assert_double_le(fabs(speeds[i] - plain[i]), 1e-15);
    ck_assert_double_eq(slower[i], speeds[i] / 4);
  }
}

/* Llama 3.1's numbers. Wavelengths below 2048 tokens stay, above 8192 they are 8 times as long. */
CK_TEST(speeds_of_llama3) {
  double speeds[64], plain[64];
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .theta = 500000);
  ck_ok(ek_rotary_speeds(plain, 128, &rotary));
  ck_assign(rotary, .scaling = EK_ROTARY_LLAMA3, .factor = 8);
  ck_ok(ek_rotary_speeds(speeds, 128, &rotary));
  int kept = 0, slowed = 0;
  for (int i = 0; i < 64; i++) {
    const double length = 2 * acos(-1) / plain[i], smooth = (8192 / length - 1) / 3;
    const double blend = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
    kept += length < 2048;
    slowed += length > 8192;
    const double want = length < 2048 ? plain[i] : length > 8192 ? plain[i] / 8 : blend;
    ck_assert_double_le(fabs(speeds[i] - want), 1e-15 * plain[i]);
  }
  ck_assert_int_eq(kept, 29);
  ck_assert_int_eq(slowed, 29);
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_arguments, NULL, EK_F32) {
  ek_stream *s = rig->stream;
  ek_tensor *x = ck_poisoned(rig, CK_SHAPE(2, 3, 8)), *flat = ck_poisoned(rig, CK_SHAPE(6, 8));
  const double speeds[] = {1, 1, 1, NAN};
  ck_fails(ek_op_rotary(s, flat, NULL, 1, 2, speeds, false), EK_ERR_SHAPE, "rotary: x has rank 2");
  ck_invalid(ek_op_rotary(s, x, NULL, -1, 2, speeds, false), "rotary: -1 heads");
  ck_invalid(ek_op_rotary(s, x, NULL, 1, 3, speeds, false),
             "rotary: head_width is 3, expected an even number from 0 to 256");
  ck_invalid(ek_op_rotary(s, x, NULL, 1, 258, speeds, false), "rotary: head_width is 258");
  ck_fails(ek_op_rotary(s, x, NULL, 3, 4, speeds, false), EK_ERR_SHAPE,
           "rotary: x has 8 columns, expected at least 3 heads x 4");
  ck_invalid(ek_op_rotary(s, x, NULL, 1, 4, NULL, false), "rotary: speeds is NULL");
  ck_invalid(ek_op_rotary(s, x, NULL, 1, 8, speeds, false),
             "rotary: speeds[3] is nan, expected a finite number");
}

CK_TEST(bad_speeds) {
  static const struct {
    ek_rotary rotary;
    const char *text;
  } bad[] = {
#define BAD(text_, ...) {{.size = sizeof(ek_rotary), __VA_ARGS__}, text_}
      BAD("theta is 0", .theta = 0),
      BAD("theta is inf", .theta = INFINITY),
      BAD("scaling is 3", .theta = 2, .scaling = (ek_rotary_scaling)3),
      BAD("factor is 0", .theta = 2, .scaling = EK_ROTARY_LINEAR),
      BAD("low_factor is 4 and high_factor 4", .theta = 2, .scaling = EK_ROTARY_LLAMA3, .factor = 8,
          .low_factor = 4, .high_factor = 4, .original = 8192),
      BAD("original is 0", .theta = 2, .scaling = EK_ROTARY_LLAMA3, .factor = 8, .low_factor = 1,
          .high_factor = 4),
  };
  double speeds[2] = {-1, -1};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    ck_invalid(ek_rotary_speeds(speeds, 4, &bad[i].rotary), bad[i].text);
  }
  ck_invalid(ek_rotary_speeds(speeds, 5, NULL), "head_width is 5");
  ck_invalid(ek_rotary_speeds(NULL, 4, NULL), "speeds is NULL");
  ck_assert_double_eq(speeds[0], -1);
}

CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const double speeds[] = {1};
  ck_ok(ek_op_rotary(rig->stream, ck_ghost(rig, EK_F32, CK_SHAPE(1 << 20, 1 << 16, 4)), NULL, 2, 2,
                     speeds, false));
}

CK_SUITE("rotary")
