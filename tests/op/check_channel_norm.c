/*
 * check_channel_norm.c - normalisation by channels against plain loops in long double.
 *
 * Sums are f64 of numbers that are exact in f64 (products of two f32 are); in any order of R terms
 * they are good to (R + 2) 2^-53 of the sum of magnitudes. Of slopes one factor of a term, x -
 * mean, is a rounded f32: 2 u more, with u the unit roundoff of sums.
 *
 * Bounds of what is in f32 (f64), from the sums that the operation is given:
 *   mean, rstd   2 u of the value, and 2^-50 of what was subtracted
 *   y            u (5 |(x - mean) factor| + 2 |bias|): four roundings, and that of what is expected
 *   dx           8 u (|dy factor| + |constant| + |slope (x - mean)|)
 *   averages     2 u of the value; dweight, dbias: the same, of the sum of magnitudes
 */
#include "ek_check.h"

/* rows, channels, pieces or samples: whole vectors of every set, rests, strips of 512 and blocks of
 * 32 rows, pieces of uneven length, and pieces without rows. */
static const int64_t sizes[][3] = {{0, 5, 2},  {1, 1, 1},   {6, 3, 2},    {70, 16, 1}, {66, 37, 3},
                                   {5, 40, 8}, {300, 8, 7}, {40, 700, 4}, {9, 1027, 3}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static int64_t piece_begin(int64_t rows, int64_t pieces, int64_t piece) {
  int64_t begin = 0;
  for (int64_t p = 0; p < piece; p++) begin += rows / pieces + (p < rows % pieces ? 1 : 0);
  return begin;
}

/* ---- sums ---- */

struct column_sums {
  double *want, *bound;
};

/* Of b NULL: x and x * x; else of b, and of b * (x - mean) * rstd. */
CK_UNWATCHED static struct column_sums sums_of(struct ck_rig *rig, const int64_t *size,
                                               const double *x, const double *dy,
                                               const double *mean, const double *rstd,
                                               bool of_pieces) {
  const int64_t rows = size[0], channels = size[1], pieces = size[2];
  const long double exact = 0x1p-53L, rounded = dy == NULL ? 0 : 3 * (long double)rig->unit;
  struct column_sums s = {ck_zeros(rig, 2 * pieces * channels),
                          ck_zeros(rig, 2 * pieces * channels)};
  for (int64_t p = 0; p < pieces; p++) {
    const int64_t last = piece_begin(rows, pieces, p + 1);
    for (int64_t c = 0; c < channels; c++) {
      const int64_t at = (of_pieces ? p : 0) * channels + c;
      long double sum[2] = {0}, magnitude[2] = {0};
      for (int64_t r = piece_begin(rows, pieces, p); r < last; r++) {
        const long double v = x[r * channels + c];
        const long double first = dy == NULL ? v : dy[r * channels + c];
        const long double second = dy == NULL ? v * v : first * (v - mean[at]) * rstd[at];
        sum[0] += first, magnitude[0] += fabsl(first);
        sum[1] += second, magnitude[1] += fabsl(second);
      }
      for (int k = 0; k < 2; k++) {
        const int64_t to = (2 * p + k) * channels + c;
        ck_assign(s, .want[to] = (double)sum[k],
                  .bound[to] = (double)(magnitude[k] * ((long double)(rows + 4) * exact +
                                                        (k == 1 ? rounded : 0))));
      }
    }
  }
  return s;
}

CK_RIG_CASES(moments, c, SIZES) {
  const int64_t *size = sizes[c];
  const double *x = ck_values(rig, size[0] * size[1], -3, 5);
  ek_tensor *sums = ck_blank(rig, EK_F64, CK_SHAPE(size[2], 2, size[1]));
  ck_set(sums, NULL);
  const struct column_sums want = sums_of(rig, size, x, NULL, NULL, NULL, false);
  ck_ok(ek_op_channel_moments(rig->stream, sums, ck_tensor(rig, x, CK_SHAPE(size[0], size[1]))));
  ck_within("moments", ck_read(rig, sums), want.want, want.bound, 2 * size[2] * size[1]);
}

CK_RIG_CASES(slopes, c, 2 * SIZES) {
  const int64_t *size = sizes[c / 2], n = size[0] * size[1];
  const bool of_pieces = c % 2 == 1;
  const int64_t samples = of_pieces ? size[2] : 1;
  if (size[0] % samples != 0) return;
  const double *x = ck_values(rig, n, -3, 5), *dy = ck_values(rig, n, -2, 2);
  double *mean = ck_values_of(rig, rig->sum, samples * size[1], -1, 2);
  double *rstd = ck_values_of(rig, rig->sum, samples * size[1], 0.1, 2);
  ek_tensor *sums = ck_blank(rig, EK_F64, CK_SHAPE(size[2], 2, size[1]));
  ck_set(sums, NULL);
  const struct column_sums want = sums_of(rig, size, x, dy, mean, rstd, of_pieces);
  ck_ok(ek_op_channel_slopes(rig->stream, sums, ck_tensor(rig, dy, CK_SHAPE(size[0], size[1])),
                             ck_tensor(rig, x, CK_SHAPE(size[0], size[1])),
                             ck_sums(rig, mean, CK_SHAPE(samples, size[1])),
                             ck_sums(rig, rstd, CK_SHAPE(samples, size[1]))));
  ck_within("slopes", ck_read(rig, sums), want.want, want.bound, 2 * size[2] * size[1]);
}

/* Whole numbers: exact, so that the same is left of one piece and of many. */
CK_RIG_LOOP(pieces_add_up, ck_variants()) {
  enum { ROWS = 1000, C = 21 };
  double want[2 * C] = {0}, got[2 * C] = {0};
  ek_tensor *x = ck_tensor(rig, ck_integers(rig, (int64_t)ROWS * C, -100, 100), CK_SHAPE(ROWS, C));
  for (int64_t pieces = 1; pieces <= 9; pieces += 4) {
    ek_tensor *sums = ck_blank(rig, EK_F64, CK_SHAPE(pieces, 2, C));
    ck_ok(ek_op_channel_moments(rig->stream, sums, x));
    const double *values = ck_read(rig, sums);
    memset(got, 0, sizeof got);
    for (int64_t i = 0; i < 2 * C * pieces; i++) got[i % (2 * C)] += values[i];
    if (pieces == 1) memcpy(want, got, sizeof want);
    ck_same_bits("sums", got, want, 2 * C);
  }
}

/* ---- statistics ---- */

/* Two samples of 6 channels in 3 groups; the second sample is of zeros. */
CK_RIG_LOOP(statistics, ck_variants()) {
  enum { C = 6, G = 3, ROWS = 4 };
  const double epsilon = 0.125;
  double sums[2][2][C] = {{{0}}}, *want[2] = {ck_zeros(rig, 2 * C), ck_zeros(rig, 2 * C)};
  double *bound[2] = {ck_zeros(rig, 2 * C), ck_zeros(rig, 2 * C)};
  for (int c = 0; c < C; c++) sums[0][0][c] = 3 * c - 7, sums[0][1][c] = 40 + c;
  for (int i = 0; i < 2 * C; i++) {
    const int s = i / C, first = i % C / 2 * 2, n = 2 * ROWS;
    const double mean = (sums[s][0][first] + sums[s][0][first + 1]) / n;
    const double squares = (sums[s][1][first] + sums[s][1][first + 1]) / n;
    want[0][i] = mean;
    want[1][i] = 1 / sqrt(squares - mean * mean + epsilon);
    for (int k = 0; k < 2; k++) bound[k][i] = 4 * rig->unit * fabs(want[k][i]);
  }
  ek_tensor *mean = ck_poisoned_sums(rig, CK_SHAPE(2, C));
  ek_tensor *rstd = ck_poisoned_sums(rig, CK_SHAPE(2, C));
  ek_tensor *in = ck_tensor_of(rig, EK_F64, &sums[0][0][0], CK_SHAPE(2, 2, C));
  ek_tensor *rows = ck_tensor_of(rig, EK_F64, (const double[]){ROWS}, CK_SHAPE(1));
  for (int k = 0; k < 2; k++) { /* the device's number of rows comes before the host's */
    ck_ok(ek_op_channel_statistics(rig->stream, mean, rstd, in, k == 0 ? NULL : rows,
                                   k == 0 ? ROWS : 99, G, epsilon));
    ck_within("mean", ck_read(rig, mean), want[0], bound[0], 2 * C);
    ck_within("rstd", ck_read(rig, rstd), want[1], bound[1], 2 * C);
  }
  ck_ok(ek_op_channel_statistics(rig->stream, mean, rstd, in, NULL, 0, G, epsilon));
  ck_within("mean of no rows", ck_read(rig, mean), ck_zeros(rig, 2 * C), NULL, 2 * C);
  ck_within("rstd of no rows", ck_read(rig, rstd), ck_zeros(rig, 2 * C), NULL, 2 * C);
}

/* Numbers that every type holds: {0, 4} has mean 2, variance 4, and 8 without bias. */
CK_RIG_LOOP(running, ck_variants()) {
  static const double sums[] = {4, 8, 16, 32};
  ek_tensor *mean = ck_sums(rig, (const double[]){1, 2}, CK_SHAPE(2));
  ek_tensor *variance = ck_sums(rig, (const double[]){1, 16}, CK_SHAPE(2));
  ek_tensor *batches = ck_sums(rig, (const double[]){3}, CK_SHAPE(1));
  ek_tensor *in = ck_tensor_of(rig, EK_F64, sums, CK_SHAPE(2, 2));
  ck_ok(ek_op_channel_running(rig->stream, mean, variance, batches, in, NULL, 2, 0.5));
  ck_within("mean", ck_read(rig, mean), (const double[]){1.5, 3}, NULL, 2);
  ck_within("variance", ck_read(rig, variance), (const double[]){4.5, 8}, NULL, 2);
  ck_within("batches", ck_read(rig, batches), (const double[]){4}, NULL, 1);
  ck_set(batches, (const double[]){3}); /* the fourth batch counts a quarter */
  ck_ok(ek_op_channel_running(rig->stream, mean, variance, batches, in, NULL, 2, 0));
  ck_within("mean", ck_read(rig, mean), (const double[]){1.625, 3.25}, NULL, 2);
  ck_within("variance", ck_read(rig, variance), (const double[]){5.375, 6}, NULL, 2);
  ck_ok(ek_op_channel_running(rig->stream, mean, variance, batches, in, NULL, 0, 1));
  ck_within("mean of no rows", ck_read(rig, mean), (const double[]){1.625, 3.25}, NULL, 2);
  ck_within("batches", ck_read(rig, batches), (const double[]){4}, NULL, 1);
  ck_ok(ek_op_channel_running(rig->stream, mean, variance, batches, in, NULL, 1, 1));
  ck_within("mean of one row", ck_read(rig, mean), (const double[]){4, 8}, NULL, 2);
  ck_within("variance of one row", ck_read(rig, variance), (const double[]){5.375, 6}, NULL, 2);
}

/* ---- y and dx ---- */

/* Numbers of one call; `part` says which optional operands there are. */
struct norm {
  int64_t rows, channels, samples;
  const double *x, *dy, *mean, *rstd, *weight, *bias, *g, *gn;
  double *y, *y_bound, *dx, *dx_bound;
};

CK_UNWATCHED static void reference(const struct ck_rig *rig, const struct norm *f) {
  const long double u = rig->unit;
  for (int64_t i = 0; i < f->rows * f->channels; i++) {
    const int64_t c = i % f->channels;
    const int64_t of = i / f->channels / (f->rows / f->samples) * f->channels + c;
    const long double d = (long double)f->x[i] - f->mean[of], r = f->rstd[of];
    const long double w = f->weight ? f->weight[c] : 1, b = f->bias ? f->bias[c] : 0;
    const long double g = f->g ? f->g[of] : 0, gn = f->gn ? f->gn[of] : 0;
    f->y[i] = (double)(d * r * w + b);
    f->y_bound[i] = (double)(u * (5 * fabsl(d * r * w) + 2 * fabsl(b)));
    f->dx[i] = (double)(r * (f->dy[i] * w - g - d * r * gn));
    f->dx_bound[i] = (double)(8 * u * r * (fabsl(f->dy[i] * w) + fabsl(g) + fabsl(d * r * gn)));
  }
}

static ek_tensor *maybe(struct ck_rig *rig, const double *values, bool sums, int64_t rows,
                        int64_t columns) {
  if (values == NULL) return NULL;
  return sums ? ck_sums(rig, values, CK_SHAPE(rows, columns))
              : ck_tensor(rig, values, CK_SHAPE(columns));
}

static void check_norm(struct ck_rig *rig, const struct norm *f) {
  const int64_t n = f->rows * f->channels, C = f->channels, S = f->samples;
  reference(rig, f);
  ek_tensor *x = ck_tensor(rig, f->x, CK_SHAPE(f->rows, C));
  ek_tensor *dy = ck_tensor(rig, f->dy, CK_SHAPE(f->rows, C));
  ek_tensor *mean = maybe(rig, f->mean, true, S, C), *rstd = maybe(rig, f->rstd, true, S, C);
  ek_tensor *weight = maybe(rig, f->weight, false, S, C), *bias = maybe(rig, f->bias, false, S, C);
  ek_tensor *g = maybe(rig, f->g, true, S, C), *gn = maybe(rig, f->gn, true, S, C);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(f->rows, C));
  ek_tensor *dx = ck_poisoned(rig, CK_SHAPE(f->rows, C));
  ck_ok(ek_op_channel_norm_forward(rig->stream, y, x, mean, rstd, weight, bias));
  ck_fits(rig, "y", y, f->y, f->y_bound, n);
  ek_channel_norm_backward_args args = {.dx = dx, .dy = dy, .x = x, .mean = mean, .rstd = rstd,
                                        .weight = weight, .average_g = g, .average_gn = gn};
  ck_ok(ek_op_channel_norm_backward(rig->stream, &args));
  ck_fits(rig, "dx", dx, f->dx, f->dx_bound, n);
  args.dx = dy;
  ck_ok(ek_op_channel_norm_backward(rig->stream, &args));
  ck_same_bits("dx in place", ck_read(rig, dy), ck_read(rig, dx), n);
  ck_ok(ek_op_channel_norm_forward(rig->stream, x, x, mean, rstd, weight, bias));
  ck_same_bits("y in place", ck_read(rig, x), ck_read(rig, y), n);
}

CK_RIG_CASES(normalize, c, 2 * SIZES) {
  const int64_t *size = sizes[c / 2], n = size[0] * size[1];
  const int64_t samples = c % 2 == 1 ? size[2] : 1, of = samples * size[1];
  if (size[0] % samples != 0) return;
  struct norm f = {.rows = size[0], .channels = size[1], .samples = samples,
                   .x = ck_values(rig, n, -3, 5), .dy = ck_values(rig, n, -2, 2),
                   .mean = ck_values_of(rig, rig->sum, of, -1, 2),
                   .rstd = ck_values_of(rig, rig->sum, of, 0.1, 2),
                   .weight = ck_values(rig, size[1], -2, 2), .bias = ck_values(rig, size[1], -2, 2),
                   .g = ck_values_of(rig, rig->sum, of, -1, 1),
                   .gn = ck_values_of(rig, rig->sum, of, -1, 1), .y = ck_zeros(rig, n),
                   .y_bound = ck_zeros(rig, n), .dx = ck_zeros(rig, n),
                   .dx_bound = ck_zeros(rig, n)};
  check_norm(rig, &f);
  f.weight = f.bias = f.g = f.gn = NULL;
  check_norm(rig, &f);
}

/* ---- averages ---- */

CK_LOOP(averages, 2 * ck_variants()) {
  enum { S = 2, C = 6, G = 3, ROWS = 5 };
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  const bool alone = _i >= ck_variants(); /* without weight, rows and one pair of results */
  const double *weight = ck_values(rig, C, -2, 2);
  double *sums = ck_values_of(rig, EK_F32, S * 2 * C, -9, 9);
  double *want[4], *bound[4], old[C];
  for (int k = 0; k < 4; k++) want[k] = ck_zeros(rig, S * C), bound[k] = ck_zeros(rig, S * C);
  for (int c = 0; c < C; c++) old[c] = c - 2.5;
  for (int i = 0; i < S * C; i++) {
    for (int k = 0; k < 2; k++) {
      for (int j = 0; j < 2; j++) {
        const int c = i % C / 2 * 2 + j;
        const double term = (alone ? 1 : weight[c]) * sums[(i / C * 2 + k) * C + c] / (2 * ROWS);
        want[k][i] += term;
        bound[k][i] += 4 * rig->unit * fabs(term);
      }
      want[3 - k][i % C] += sums[(i / C * 2 + k) * C + i % C];
    }
  }
  for (int c = 0; c < C; c++) {
    want[2][c] += 0.5 * old[c];
    for (int k = 2; k < 4; k++) bound[k][c] = 4 * rig->unit * 40;
  }
  ek_tensor *out[] = {ck_poisoned_sums(rig, CK_SHAPE(S, C)), ck_poisoned_sums(rig, CK_SHAPE(S, C)),
                      ck_sums(rig, old, CK_SHAPE(C)), ck_poisoned_sums(rig, CK_SHAPE(C))};
  ek_tensor *in = ck_tensor_of(rig, EK_F64, sums, CK_SHAPE(S, 2, C));
  ek_tensor *rows = ck_tensor_of(rig, EK_F64, (const double[]){ROWS}, CK_SHAPE(1));
  ek_channel_averages_args args = {.average_g = out[0], .average_gn = out[1], .dweight = out[2],
                                   .dbias = out[3], .sums = in, .rows = rows,
                                   .weight = ck_tensor(rig, weight, CK_SHAPE(C)), .host_rows = 99,
                                   .groups = G, .weight_beta = 0.5};
  if (alone) {
    args.rows = args.weight = NULL;
    args.host_rows = ROWS;
    ek_channel_averages_args first = args;
    first.dweight = first.dbias = NULL;
    ck_ok(ek_op_channel_averages(rig->stream, &first));
    args.average_g = args.average_gn = NULL;
  }
  ck_ok(ek_op_channel_averages(rig->stream, &args));
  static const char *const names[] = {"average_g", "average_gn", "dweight", "dbias"};
  for (int k = 0; k < 4; k++) {
    ck_within(names[k], ck_read(rig, out[k]), want[k], bound[k], k < 2 ? S * C : C);
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_arguments, CK_HUGE_PLAN, EK_F32) {
  ek_stream *s = rig->stream;
  ek_tensor *sums = ck_ghost(rig, EK_F64, CK_SHAPE(3, 2, 8));
  ek_tensor *odd = ck_ghost(rig, EK_F64, CK_SHAPE(3, 8));
  ek_tensor *x = ck_ghost(rig, EK_F32, CK_SHAPE(7, 8)), *y = ck_ghost(rig, EK_F32, CK_SHAPE(7, 8));
  ek_tensor *mean = ck_ghost(rig, EK_F32, CK_SHAPE(3, 8));
  ek_tensor *rstd = ck_ghost(rig, EK_F32, CK_SHAPE(3, 8));
  ek_tensor *two = ck_ghost(rig, EK_F32, CK_SHAPE(2, 8));
  ek_tensor *even = ck_ghost(rig, EK_F32, CK_SHAPE(6, 8));
  ck_fails(ek_op_channel_moments(s, odd, x), EK_ERR_SHAPE,
           "channel_moments: sums has 3 rows, expected two for each piece");
  ck_fails(ek_op_channel_norm_forward(s, y, x, mean, rstd, NULL, NULL), EK_ERR_SHAPE,
           "mean has 3 rows, expected a divisor of the 7 rows of x");
  ck_fails(ek_op_channel_slopes(s, sums, even, even, two, two), EK_ERR_SHAPE,
           "mean has 2 rows, expected one, or one for each of the 3 pieces");
  ck_invalid(ek_op_channel_statistics(s, mean, rstd, sums, NULL, 2, 3, 0),
             "channel_statistics: groups is 3, expected a divisor of the 8 channels");
  ck_invalid(ek_op_channel_averages(s, NULL), "args is NULL");
  ck_invalid(ek_op_channel_norm_backward(s, NULL), "args is NULL");
  ck_invalid(ek_op_channel_statistics(s, mean, rstd, sums, NULL, 2, 0, 0), "groups is 0");
  ck_invalid(ek_op_channel_statistics(s, mean, rstd, sums, NULL, -1, 2, 0), "host_rows is -1");
  ck_invalid(ek_op_channel_statistics(s, mean, rstd, sums, NULL, 2, 2, NAN), "epsilon");
  ek_tensor *one = ck_ghost(rig, EK_F64, CK_SHAPE(2, 8));
  ek_tensor *row = ck_ghost(rig, EK_F32, CK_SHAPE(8)), *other = ck_ghost(rig, EK_F32, CK_SHAPE(8));
  ek_tensor *batches = ck_ghost(rig, EK_F32, CK_SHAPE(1));
  ck_invalid(ek_op_channel_running(s, row, other, batches, one, NULL, 2, 1.5),
             "channel_running: momentum is 1.5");
  ck_fails(ek_op_channel_running(s, row, other, batches, sums, NULL, 2, 0.5), EK_ERR_SHAPE,
           "channel_running: sums is 6 x 8 but must be 2 x 8");
}

CK_SUITE("channel_norm")
