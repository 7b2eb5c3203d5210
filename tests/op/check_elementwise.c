/*
 * check_elementwise.c - the operations of elementwise.h against plain loops in long double.
 *
 * Bounds, with u the unit roundoff of the type (2^-24 or 2^-53):
 *   zero fill copy relu   equal: nothing is rounded
 *   add add_bias          u |a + b|: one rounding
 *   scale                 2 u |f x|: the factor is rounded to the type, then the product
 *   lerp                  u (3 w |b - a| + 2 |y|): the weight, the difference and the product, then
 *                         the sum and the number that it is compared with
 *   column_sum            (R + 2) u (|beta y| + sum |x|) for R rows: any order of R additions;
 *                         equal for whole numbers
 *   gelu                  8 u |x|: t = tanh(z) has an absolute error of 2 u from tanh and of at
 *                         most 4 u max |z (1 - t^2)| = 1.8 u from z, times |x| / 2; 1 + t and two
 *                         products round once each
 *   gelu's slope          u |dy| (8 + 8 |x z'|): GELU' = (1 + t) / 2 + x z' (1 - t^2) / 2, and both
 *                         t and z err as above; 1 - t^2 is where that error is not damped
 *   silu                  8 u |y|: the exponential 2 u, the sum and the quotient round once; below
 *                         -88 the f32 exponential overflows to a result of 0 in place of 2^-121
 *   silu's slope          u (8 s + 12 |x| s (1 - s)): as many roundings in each of the two terms
 *   binary                2 u |y|: one rounding, and the number it is compared with is rounded too
 *   rsqrt                 4 u |y|: the sum (its offset too) errs by 2 u, halved by the root; root
 *                         and quotient round once each
 *   exp                   (|x + c| + |c| + 8) u y: what the exponent rounds by is a relative error
 *                         of the result; 8 u for the function; below 2^-126 the result may be 0
 *   dropout               3 u |y| where kept (1 - p, its inverse, the product), 0 elsewhere
 * For values of 16 bits u is that of f32, and what comes out is rounded once more (ck_fits()).
 */
#include "ek_check.h"

static const int64_t counts[] = {0, 1, 3, 16, 17, 1023, 4097, 70001};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static const int64_t matrices[][2] = {{0, 5},    {5, 0},    {1, 1},     {3, 7},  {1, 33},
                                      {257, 65}, {1031, 3}, {64, 1024}, {7, 32}, {2, 260}};
enum { MATRICES = sizeof matrices / sizeof matrices[0] };

CK_RIG_CASES(zero_fill_and_copy_are_exact, c, COUNTS) {
  const int64_t n = counts[c];
  double *want = ck_zeros(rig, n);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(n));
  ck_ok(ek_op_zero(rig->stream, y));
  ck_same_bits("zero", ck_read(rig, y), want, n);

  for (int64_t i = 0; i < n; i++) want[i] = ck_round(rig, -0.1);
  ck_ok(ek_op_fill(rig->stream, y, -0.1));
  ck_same_bits("fill", ck_read(rig, y), want, n);

  double *x = ck_values(rig, n, -1, 1);
  ck_ok(ek_op_copy(rig->stream, y, ck_tensor(rig, x, CK_SHAPE(1, n))));
  ck_same_bits("copy", ck_read(rig, y), x, n);

  double *whole = ck_integers(rig, n, -1000000, 1000000);
  ek_tensor *index = ck_tensor_of(rig, EK_I32, NULL, CK_SHAPE(n));
  ck_ok(ek_op_copy(rig->stream, index, ck_tensor_of(rig, EK_I32, whole, CK_SHAPE(n))));
  ck_same_bits("copy of i32", ck_read(rig, index), whole, n);
}

CK_RIG_CASES(add_and_scale, c, COUNTS) {
  const int64_t n = counts[c];
  double *a = ck_values(rig, n, -2, 2), *b = ck_values(rig, n, -2, 2);
  double *sum = ck_zeros(rig, n), *sum_bound = ck_zeros(rig, n);
  double *product = ck_zeros(rig, n), *product_bound = ck_zeros(rig, n);
  double *between = ck_zeros(rig, n), *between_bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    between[i] = (double)(a[i] + 0.3L * ((long double)b[i] - a[i]));
    /* The difference, its product, the weight's own rounding; the sum, and `between` itself. */
    between_bound[i] = rig->unit * (3 * 0.3 * fabs(b[i] - a[i]) + 2 * fabs(between[i]));
    sum[i] = (double)((long double)a[i] + b[i]);
    sum_bound[i] = rig->unit * fabs(sum[i]);
    product[i] = (double)((long double)a[i] * 0.3);
    product_bound[i] = 2 * rig->unit * fabs(product[i]);
  }
  ek_tensor *ta = ck_tensor(rig, a, CK_SHAPE(n)), *tb = ck_tensor(rig, b, CK_SHAPE(n));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(n));
  ck_ok(ek_op_add(rig->stream, y, ta, tb));
  ck_fits(rig, "add", y, sum, sum_bound, n);
  ck_set(y, NULL);
  ck_ok(ek_op_scale(rig->stream, y, ta, 0.3));
  ck_fits(rig, "scale", y, product, product_bound, n);

  ck_ok(ek_op_lerp(rig->stream, y, ta, tb, 0.3));
  ck_fits(rig, "lerp", y, between, between_bound, n);
  ck_set(y, a);
  ck_ok(ek_op_lerp(rig->stream, y, y, tb, 0.3));
  ck_fits(rig, "lerp into a", y, between, between_bound, n);
  ck_set(y, b);
  ck_ok(ek_op_lerp(rig->stream, y, ta, y, 0.3));
  ck_fits(rig, "lerp into b", y, between, between_bound, n);

  ck_ok(ek_op_add(rig->stream, tb, ta, tb));
  ck_fits(rig, "add into b", tb, sum, sum_bound, n);
  ck_set(tb, b);
  ck_ok(ek_op_add(rig->stream, tb, tb, ta));
  ck_fits(rig, "add into a", tb, sum, sum_bound, n);
  ck_ok(ek_op_scale(rig->stream, ta, ta, 0.3));
  ck_fits(rig, "scale in place", ta, product, product_bound, n);
  ck_ok(ek_op_add(rig->stream, ta, ta, ta));
}

static double combine(ek_binary kind, double a, double b) {
  switch (kind) {
  case EK_BINARY_ADD: return (double)((long double)a + b);
  case EK_BINARY_SUBTRACT: return (double)((long double)a - b);
  case EK_BINARY_MULTIPLY: return (double)((long double)a * b);
  case EK_BINARY_DIVIDE: break;
  }
  return (double)((long double)a / b);
}

/* Each kind with each spread, apart and over its operands. */
CK_RIG_CASES(binary_operations, c, 12 * MATRICES) {
  const int64_t rows = matrices[c / 12][0], columns = matrices[c / 12][1], n = rows * columns;
  const ek_binary kind = (ek_binary)(c % 4);
  const ek_spread spread = (ek_spread)(c / 4 % 3);
  const int64_t most = spread == EK_SPREAD_NONE ? n : spread == EK_SPREAD_ROWS ? rows : columns;
  const ek_type type = spread == EK_SPREAD_ROWS ? rig->sum : rig->type;
  double *a = ck_values(rig, n, -2, 2), *b = ck_values_of(rig, type, most, 0.5, 3);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    const int64_t r = i / columns, k = i % columns;
    want[i] = combine(kind, a[i],
                      b[spread == EK_SPREAD_NONE ? i : spread == EK_SPREAD_ROWS ? r : k]);
    bound[i] = 2 * rig->unit * fabs(want[i]);
  }
  ek_tensor *ta = ck_tensor(rig, a, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ek_tensor *tb = spread == EK_SPREAD_NONE ? ck_tensor(rig, b, CK_SHAPE(rows, columns))
                                           : ck_tensor_of(rig, type, b, CK_SHAPE(most, 1));
  ck_ok(ek_op_binary(rig->stream, y, ta, tb, kind, spread));
  ck_fits(rig, "binary", y, want, bound, n);
  if (spread == EK_SPREAD_NONE) {
    ck_ok(ek_op_binary(rig->stream, tb, ta, tb, kind, spread));
    ck_same_bits("over b", ck_read(rig, tb), ck_read(rig, y), n);
  }
  if (spread != EK_SPREAD_NONE || kind != EK_BINARY_MULTIPLY) {
    if (spread == EK_SPREAD_NONE) ck_set(tb, b);
    ck_ok(ek_op_binary(rig->stream, ta, ta, tb, kind, spread));
    ck_same_bits("over a", ck_read(rig, ta), ck_read(rig, y), n);
  } else { /* the square, over both */
    for (int64_t i = 0; i < n; i++) {
      want[i] = combine(kind, a[i], a[i]);
      bound[i] = 2 * rig->unit * fabs(want[i]);
    }
    ck_ok(ek_op_binary(rig->stream, ta, ta, ta, kind, spread));
    ck_fits(rig, "over both", ta, want, bound, n);
  }
}

CK_RIG_CASES(unary_functions, c, 2 * COUNTS) {
  const int64_t n = counts[c / 2];
  const ek_unary kind = (ek_unary)(c % 2);
  const double offset = 0.1;
  double *x = kind == EK_UNARY_EXP ? ck_values(rig, n, -10, 10) : ck_values(rig, n, 0, 50);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    const long double v = (long double)x[i] + offset;
    want[i] = (double)(kind == EK_UNARY_EXP ? expl(v) : 1 / sqrtl(v));
    bound[i] = rig->unit * want[i] * (kind == EK_UNARY_EXP ? fabs((double)v) + offset + 8 : 4);
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(n)), *y = ck_poisoned(rig, CK_SHAPE(n));
  ck_ok(ek_op_unary(rig->stream, y, tx, kind, offset));
  ck_fits(rig, "unary", y, want, bound, n);
  ck_ok(ek_op_unary(rig->stream, tx, tx, kind, offset));
  ck_same_bits("over x", ck_read(rig, tx), ck_read(rig, y), n);
}

/* Up to the largest number of f32: e^88.7 is finite, e^89 is not. */
CK_TEST(ends_of_exp) {
  static const double x[] = {88.5, 88.7, 89, -88.5, -200, 0, -0.0, 87, 88.7, 1, 2};
  enum { ENDS = sizeof x / sizeof *x };
  for (int rotation = 0; rotation < ENDS; rotation++) {
    struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
    double turned[ENDS], want[ENDS], bound[ENDS];
    for (int i = 0; i < ENDS; i++) {
      turned[i] = (double)(float)x[(i + rotation) % ENDS];
      want[i] = exp(turned[i]);
      bound[i] = rig->unit * want[i] * (fabs(turned[i]) + 8) + 0x1p-126;
      if (want[i] > 3.5e38) want[i] = HUGE_VAL, bound[i] = 0;
    }
    ek_tensor *t = ck_tensor(rig, turned, CK_SHAPE(ENDS));
    ck_ok(ek_op_unary(rig->stream, t, t, EK_UNARY_EXP, 0));
    ck_within("exp", ck_read(rig, t), want, bound, ENDS);
    ck_rig_close(rig);
  }
}

CK_RIG_CASES(bias_is_added_to_every_row, c, MATRICES) {
  const int64_t rows = matrices[c][0], columns = matrices[c][1], n = rows * columns;
  double *x = ck_values(rig, n, -2, 2), *bias = ck_values(rig, columns, -2, 2);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    want[i] = (double)((long double)x[i] + bias[i % columns]);
    bound[i] = rig->unit * fabs(want[i]);
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ck_ok(ek_op_add_bias(rig->stream, tx, ck_tensor(rig, bias, CK_SHAPE(columns))));
  ck_fits(rig, "add_bias", tx, want, bound, n);
}

static void check_column_sum(struct ck_rig *rig, const double *x, const double *y0, int64_t rows,
                             int64_t columns, double beta, bool exact) {
  double *want = ck_zeros(rig, columns), *bound = ck_zeros(rig, columns);
  for (int64_t c = 0; c < columns; c++) {
    long double sum = beta == 0 ? 0 : (long double)beta * y0[c];
    long double size = fabsl(sum);
    for (int64_t r = 0; r < rows; r++) {
      sum += x[r * columns + c];
      size += fabs(x[r * columns + c]);
    }
    want[c] = (double)sum;
    bound[c] = exact ? 0 : (double)(rows + 2) * rig->unit * (double)size;
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_sums(rig, beta == 0 ? NULL : y0, CK_SHAPE(columns));
  ek_tensor *again = ck_sums(rig, beta == 0 ? NULL : y0, CK_SHAPE(columns));
  ck_ok(ek_op_column_sum(rig->stream, y, tx, beta));
  ck_ok(ek_op_column_sum(rig->stream, again, tx, beta));
  ck_fits(rig, "column_sum", y, want, bound, columns);
  ck_same_bits("column_sum again", ck_read(rig, y), ck_read(rig, again), columns);
}

CK_RIG_CASES(column_sums, c, MATRICES) {
  const int64_t rows = matrices[c][0], columns = matrices[c][1], n = rows * columns;
  double *y0 = ck_integers(rig, columns, -100, 100);
  for (int pass = 0; pass < 2; pass++) {
    const double *x = pass == 0 ? ck_integers(rig, n, -100, 100) : ck_values(rig, n, -1, 1);
    check_column_sum(rig, x, y0, rows, columns, 0.0, pass == 0);
    check_column_sum(rig, x, y0, rows, columns, 1.0, pass == 0);
    check_column_sum(rig, x, y0, rows, columns, -0.5, false);
  }
}

/* ---- activations ---- */

static long double relu(long double x) { return x < 0 ? 0 : x; }
static long double relu_slope(long double x) { return isnan(x) ? x : x > 0; }
static double nothing(double x) { return (void)x, 0; }

static double gelu_bound(double x) { return 8 * fabs(x); }
static double gelu_slope_bound(double x) {
  const double near = fmin(fabs(x), 10); /* beyond, t is 1 and the second term is 0 */
  return 8 + 8 * near * (double)ck_gelu_inner_slope(near);
}

static long double silu(long double x) { return x / (1 + expl(-x)); }
static long double silu_slope(long double x) {
  const long double e = expl(-fabsl(x)), share = 1 / (1 + e);
  return (x < 0 ? e * share : share) + x * (e * share * share);
}
static double silu_bound(double x) { return 8 * fabs((double)silu(x)) + 0x1p-96; }
static double silu_slope_bound(double x) {
  const double e = exp(-fabs(x)), share = 1 / (1 + e);
  return 8 * (x < 0 ? e * share : share) + 12 * fabs(x) * e * share * share + 0x1p-96;
}

/* Bounds in units of u, that of the slope for dy = 1. */
static const struct activation {
  const char *name;
  ek_activation kind;
  long double (*f)(long double x), (*slope)(long double x);
  double (*bound)(double x), (*slope_bound)(double x);
} activations[] = {
    {"relu", EK_ACTIVATION_RELU, relu, relu_slope, nothing, nothing},
    {"gelu", EK_ACTIVATION_GELU, ck_gelu, ck_gelu_slope, gelu_bound, gelu_slope_bound},
    {"silu", EK_ACTIVATION_SILU, silu, silu_slope, silu_bound, silu_slope_bound},
};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

/* Far out, where an exponential overflows or nothing is left of one; the edge; nearly nothing. */
static void put_special(const struct ck_rig *rig, double *x, int64_t n) {
  static const double special[] = {1e4, -1e4, 0, 0x1p-100, -0x1p-130, 3e38, -3e38, 90, -90, NAN};
  enum { SPECIAL = sizeof special / sizeof special[0] };
  for (int i = 0; i < SPECIAL && n > SPECIAL; i++) x[i] = ck_round(rig, special[i]);
}

static void activation_forward(const struct activation *of, struct ck_rig *rig, int64_t rows,
                               int64_t columns) {
  const int64_t n = rows * columns;
  double *x = ck_values(rig, n, -8, 8), *bias = ck_values(rig, columns, -1, 1);
  put_special(rig, x, n);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    want[i] = (double)of->f(x[i]);
    bound[i] = rig->unit * of->bound(x[i]);
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ck_ok(ek_op_activation_forward(rig->stream, y, tx, NULL, of->kind));
  ck_fits(rig, of->name, y, want, bound, n);
  ck_same_bits("x", ck_read(rig, tx), x, n);
  ck_ok(ek_op_activation_forward(rig->stream, tx, tx, NULL, of->kind));
  ck_same_bits("in place", ck_read(rig, tx), ck_read(rig, y), n);

  ck_set(tx, x);
  ck_set(y, NULL);
  ek_tensor *tbias = ck_tensor(rig, bias, CK_SHAPE(columns));
  ck_ok(ek_op_activation_forward(rig->stream, y, tx, tbias, of->kind));
  const double *sum = ck_read(rig, tx);
  double *exact = ck_zeros(rig, n), *near = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    exact[i] = x[i] + bias[i % columns];
    near[i] = 2 * rig->unit * fabs(exact[i]);
    want[i] = (double)of->f(sum[i]);
    bound[i] = rig->unit * of->bound(sum[i]);
  }
  ck_fits(rig, "x and bias", tx, exact, near, n);
  ck_fits(rig, "with bias", y, want, bound, n);
}

static void activation_backward(const struct activation *of, struct ck_rig *rig, int64_t rows,
                                int64_t columns) {
  const int64_t n = rows * columns;
  double *x = ck_values(rig, n, -8, 8), *dy = ck_values(rig, n, -2, 2);
  put_special(rig, x, n);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    want[i] = (double)(dy[i] * of->slope(x[i]));
    bound[i] = rig->unit * fabs(dy[i]) * of->slope_bound(x[i]);
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(rows, columns));
  ek_tensor *dx = ck_poisoned(rig, CK_SHAPE(rows, columns));
  if (ek_activation_keeps_result(of->kind)) {
    ck_ok(ek_op_activation_forward(rig->stream, tx, tx, NULL, of->kind));
  }
  ck_ok(ek_op_activation_backward(rig->stream, dx, tdy, tx, of->kind));
  ck_fits(rig, of->name, dx, want, bound, n);
  ck_ok(ek_op_activation_backward(rig->stream, tdy, tdy, tx, of->kind));
  ck_same_bits("backward in place", ck_read(rig, tdy), ck_read(rig, dx), n);
}

CK_LOOP(activations_both_ways, ACTIVATIONS * ck_variants()) {
  for (int c = 0; c < MATRICES; c++) {
    if (!ck_turn(_i % ck_variants(), c)) continue;
    struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
    activation_forward(&activations[_i / ck_variants()], rig, matrices[c][0], matrices[c][1]);
    activation_backward(&activations[_i / ck_variants()], rig, matrices[c][0], matrices[c][1]);
    ck_rig_close(rig);
  }
}

/* y = f(x) u rounds once more than f, and the number that it is compared with once; so does dy
 * f(x), and dy u rounds before the slope. */
static void check_gate(const struct activation *of, struct ck_rig *rig, int64_t rows,
                       int64_t columns) {
  const int64_t n = rows * columns;
  double *x = ck_values(rig, n, -8, 8), *u = ck_values(rig, n, -1, 1),
         *dy = ck_values(rig, n, -1, 1);
  put_special(rig, x, n);
  double *want[3], *bound[3];
  for (int k = 0; k < 3; k++) want[k] = ck_zeros(rig, n), bound[k] = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++) {
    const long double y = of->f(x[i]), slope = of->slope(x[i]);
    const double unit = rig->unit, y_bound = of->bound(x[i]) + 2 * fabs((double)y);
    want[0][i] = (double)(y * u[i]);
    want[1][i] = (double)(slope * dy[i] * u[i]);
    want[2][i] = (double)(y * dy[i]);
    bound[0][i] = unit * fabs(u[i]) * y_bound + 0x1p-126;
    bound[1][i] =
        unit * fabs(dy[i] * u[i]) * (of->slope_bound(x[i]) + 3 * fabs((double)slope)) + 0x1p-126;
    bound[2][i] = unit * fabs(dy[i]) * y_bound + 0x1p-126;
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ek_tensor *tu = ck_tensor(rig, u, CK_SHAPE(rows, columns));
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ek_tensor *dx = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ek_tensor *du = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ck_ok(ek_op_gate_forward(rig->stream, y, tx, tu, of->kind));
  ck_fits(rig, "gate", y, want[0], bound[0], n);
  ck_ok(ek_op_gate_backward(rig->stream, dx, du, tdy, tx, tu, of->kind));
  ck_fits(rig, "gate's dx", dx, want[1], bound[1], n);
  ck_fits(rig, "gate's dfactor", du, want[2], bound[2], n);
  ck_ok(ek_op_gate_backward(rig->stream, tdy, tu, tdy, tx, tu, of->kind));
  ck_same_bits("dx over dy", ck_read(rig, tdy), ck_read(rig, dx), n);
  ck_same_bits("dfactor over factor", ck_read(rig, tu), ck_read(rig, du), n);
  ck_set(tu, u);
  ck_ok(ek_op_gate_forward(rig->stream, tx, tx, tu, of->kind));
  ck_same_bits("over x", ck_read(rig, tx), ck_read(rig, y), n);
}

CK_LOOP(gates, ACTIVATIONS * ck_variants()) {
  for (int c = 0; c < MATRICES; c++) {
    if (!ck_turn(_i % ck_variants(), c + _i / ck_variants())) continue;
    struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
    check_gate(&activations[_i / ck_variants()], rig, matrices[c][0], matrices[c][1]);
    ck_rig_close(rig);
  }
}

CK_LOOP(activation_gradient_by_differences, ACTIVATIONS) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const ek_activation kind = activations[_i].kind;
  const double *dy = ck_values(rig, 20, -1, 1);
  ek_tensor *x = ck_tensor(rig, ck_values(rig, 20, -3, 3), CK_SHAPE(4, 5));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(4, 5)), *dx = ck_poisoned(rig, CK_SHAPE(4, 5));
  ck_ok(ek_op_activation_forward(rig->stream, y, x, NULL, kind));
  ck_ok(ek_op_activation_backward(rig->stream, dx, ck_tensor(rig, dy, CK_SHAPE(4, 5)),
                                  ek_activation_keeps_result(kind) ? y : x, kind));
  ck_gradient(rig, activations[_i].name, x, dx, 20,
              ek_op_activation_forward(rig->stream, y, x, NULL, kind), ck_weighed(y, dy));
}

/* What the public list says of infinities, and a slope of 0 that lets no infinite gradient through.
 */
CK_RIG_LOOP(activations_of_infinities, ck_variants()) {
  enum { N = 3 };
  const double x[N] = {HUGE_VAL, -HUGE_VAL, NAN}, dy[N] = {HUGE_VAL, HUGE_VAL, 1};
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(N)), *tdy = ck_tensor(rig, dy, CK_SHAPE(N));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(N)), *dx = ck_poisoned(rig, CK_SHAPE(N));
  ck_ok(ek_op_activation_forward(rig->stream, y, tx, NULL, EK_ACTIVATION_RELU));
  ck_fits(rig, "relu", y, (const double[]){HUGE_VAL, 0, NAN}, NULL, N);
  ck_ok(ek_op_activation_backward(rig->stream, dx, tdy, y, EK_ACTIVATION_RELU));
  ck_fits(rig, "relu", dx, (const double[]){HUGE_VAL, 0, NAN}, NULL, N);
  ck_ok(ek_op_activation_backward(rig->stream, dx, tdy, tx, EK_ACTIVATION_GELU));
  ck_fits(rig, "gelu", dx, (const double[]){NAN, NAN, NAN}, NULL, N);
  ck_ok(ek_op_activation_forward(rig->stream, y, tx, NULL, EK_ACTIVATION_SILU));
  ck_fits(rig, "silu", y, (const double[]){HUGE_VAL, NAN, NAN}, NULL, N);
  ck_ok(ek_op_activation_backward(rig->stream, dx, tdy, tx, EK_ACTIVATION_SILU));
  ck_fits(rig, "silu", dx, (const double[]){NAN, NAN, NAN}, NULL, N);
  ck_invalid(ek_op_activation_forward(rig->stream, y, tx, NULL, (ek_activation)99),
             "activation 99");
  ck_invalid(ek_op_activation_backward(rig->stream, dx, tdy, tx, (ek_activation)-1),
             "activation -1");
}

/* ---- dropout ---- */

CK_UNWATCHED static void dropout_reference(struct ck_rig *rig, double *want, double *bound,
                                           const double *x, int64_t samples, int64_t per_sample,
                                           double p, ek_random_key key, int64_t first) {
  for (int64_t i = 0; i < samples * per_sample; i++) {
    uint32_t bits[4];
    const int64_t e = i % per_sample;
    ek_random_bits(key, (uint32_t)(first + i / per_sample), (uint32_t)(e / 4), bits);
    const bool kept = (double)ek_random_unit(bits[e % 4]) >= p;
    want[i] = kept ? (double)(x[i] / (1 - (long double)p)) : 0;
    bound[i] = kept ? 3 * rig->unit * fabs(want[i]) : 0;
  }
}

CK_RIG_GRID(dropout_keeps_what_the_bits_say, s, 7, r, 5) {
  static const int64_t shapes[][2] = {{0, 4},   {3, 0},     {1, 1},   {5, 7},
                                      {17, 64}, {33, 1027}, {2, 9001}};
  static const double rates[] = {0.0, 0.1, 0.5, 0.9, 1 - 0x1p-24};
  const int64_t samples = shapes[s][0], per_sample = shapes[s][1], n = samples * per_sample;
  const ek_random_key key = {ck_random_next(&rig->random), 3, 7};
  const int64_t first = s % 2 == 0 ? 0 : (INT64_C(1) << 32) - samples;
  double *x = ck_values(rig, n, 1, 2), *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  dropout_reference(rig, want, bound, x, samples, per_sample, rates[r], key, first);
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(samples, per_sample));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(samples, per_sample));
  ck_ok(ek_op_dropout(rig->stream, y, tx, rates[r], key, first));
  ck_fits(rig, "dropout", y, want, bound, n);
  ck_ok(ek_op_dropout(rig->stream, tx, tx, rates[r], key, first));
  ck_same_bits("dropout in place", ck_read(rig, tx), ck_read(rig, y), n);
}

/* Rows 3 .. 8 of a batch are what a device gets that holds just these: same mask, same bits. */
CK_RIG_LOOP(dropout_of_a_slice_is_a_slice_of_dropout, ck_variants()) {
  const int64_t width = 101;
  const ek_random_key key = {42, 1, 2};
  double *x = ck_values(rig, 10 * width, -1, 1);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(10, width)),
            *part = ck_poisoned(rig, CK_SHAPE(6, width));
  ck_ok(ek_op_dropout(rig->stream, y, ck_tensor(rig, x, CK_SHAPE(10, width)), 0.3, key, 100));
  ek_tensor *slice = ck_tensor(rig, x + 3 * width, CK_SHAPE(6, width));
  ck_ok(ek_op_dropout(rig->stream, part, slice, 0.3, key, 103));
  ck_same_bits("slice", ck_read(rig, part), ck_read(rig, y) + 3 * width, 6 * width);
}

/* 2^17 draws: the number kept is within 6 standard deviations, sqrt(n p (1 - p)), of n (1 - p). */
CK_PART_LOOP(dropout_keeps_the_right_share, ck_variants()) {
  struct ck_rig *rig = ck_rig_variant(_i);
  const int64_t n = INT64_C(1) << 17;
  const double p = 0.2;
  double *x = ck_integers(rig, n, 1, 1);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(128, n / 128));
  const ek_random_key key = {7, 0, 0};
  ck_ok(ek_op_dropout(rig->stream, y, ck_tensor(rig, x, CK_SHAPE(128, n / 128)), p, key, 0));
  const double *got = ck_read(rig, y);
  int64_t kept = 0;
  for (int64_t i = 0; i < n; i++) kept += got[i] != 0;
  ck_assert(fabs((double)kept - (double)n * (1 - p)) < 6 * sqrt((double)n * p * (1 - p)));
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_numbers, NULL, EK_F32) {
  const ek_random_key key = {1, 2, 3};
  ek_stream *s = rig->stream;
  ek_tensor *x = ck_poisoned(rig, CK_SHAPE(3, 4)), *y = ck_poisoned(rig, CK_SHAPE(3, 4));
  ck_invalid(ek_op_dropout(s, y, x, 1.0, key, 0), "dropout: p is 1");
  ck_invalid(ek_op_dropout(s, y, x, -0.1, key, 0), "dropout: p is -0.1");
  ck_invalid(ek_op_dropout(s, y, x, NAN, key, 0), "dropout: p is");
  ck_invalid(ek_op_dropout(s, y, x, 0.1, key, -1), "first_sample is -1");
  ck_invalid(ek_op_dropout(s, y, x, 0.1, key, (INT64_C(1) << 32) - 2),
             "first_sample is 4294967294");
  ck_invalid(ek_op_dropout(s, y, x, 0.1, key, INT64_MAX), "first_sample");
  ek_tensor *wide = ck_poisoned(rig, CK_SHAPE(3, 5));
  ck_fails(ek_op_add(s, y, x, wide), EK_ERR_SHAPE, "add: b is 3 x 5 but a is 3 x 4");
  ck_fails(ek_op_add(s, y, x, ck_poisoned(rig, CK_SHAPE(4, 3))), EK_ERR_SHAPE, "b is 4 x 3");
  ck_invalid(ek_op_binary(s, y, x, x, (ek_binary)4, EK_SPREAD_NONE), "unknown operation 4");
  ck_invalid(ek_op_binary(s, y, x, x, EK_BINARY_ADD, (ek_spread)3), "or spread 3");
  ck_invalid(ek_op_unary(s, y, x, (ek_unary)-1, 0), "unknown function -1");
}

/* Nothing at 2^31, 2^32 and close to 2^63 bytes is special. */
CK_RIG_TEST(huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const ek_random_key key = {1, 2, 3};
  const int64_t big = (INT64_C(1) << 31) + 1;
  ek_stream *s = rig->stream;
  ek_tensor *x = ck_blank(rig, EK_F32, CK_SHAPE(3, big));
  ek_tensor *y = ck_blank(rig, EK_F32, CK_SHAPE(3, big));
  ek_tensor *wide = ck_blank(rig, EK_F32, CK_SHAPE(3, big + 1));
  ek_tensor *row = ck_blank(rig, EK_F32, CK_SHAPE(big));
  ck_ok(ek_op_add(s, y, x, x));
  ck_ok(ek_op_column_sum(s, row, x, 0.0));
  ck_ok(ek_op_add_bias(s, x, row));
  ck_ok(ek_op_activation_forward(s, y, x, row, EK_ACTIVATION_GELU));
  ck_ok(ek_op_dropout(s, y, x, 0.5, key, 0));
  ck_fails(ek_op_add(s, y, x, wide), EK_ERR_SHAPE,
           "add: b is 3 x 2147483650 but a is 3 x 2147483649");
  ek_tensor *most = ck_ghost(rig, EK_F64, CK_SHAPE(INT64_C(1) << 30, INT64_C(1) << 28));
  ck_ok(ek_op_scale(s, most, most, 2.0));
  ck_fails(ek_op_scale(s, most, x, 2.0), EK_ERR_TYPE, "scale");
  ek_tensor *sample = ck_blank(rig, EK_F32, CK_SHAPE(1, (INT64_C(1) << 34) + 1));
  ck_fails(ek_op_dropout(s, sample, sample, 0.5, key, 0), EK_ERR_UNSUPPORTED, "dropout");
}

CK_SUITE("elementwise")
