/*
 * check_rows.c - the operations of rows.h against plain loops in long double.
 *
 * Bounds for a row of C columns, u the unit roundoff of the arithmetic:
 *   row_sum            (C + 3) u sum |a b|: C products, and additions in any order; equal for whole
 *                      numbers
 *   row_mean           (C + 4) u sum |a b| / C: a division more
 *   softmax            2 p (C + 2 t + 16) u + 2^-126 for t = m - x: an exponent rounds by u t,
 *                      which is a relative error; z, the sum, errs by (C + 8) u and by what its
 *                      terms' exponents round by, u t e^-t, at most u log C of a row; doubled for
 *                      the second order
 *   softmax backward   |y| ((C + 3) u sum |dy y| + 3 u (|dy| + |sum|))
 */
#include "ek_check.h"

/* Below and above what a warp has on a GPU, and what a vector has. */
static const int64_t sizes[][2] = {{0, 4},    {5, 0},   {1, 1},    {3, 2},    {7, 17},  {2, 256},
                                   {65, 33},  {9, 129}, {3, 1024}, {2, 1028}, {2, 5000}, {70, 31}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static void check_sums(struct ck_rig *rig, int64_t rows, int64_t columns, bool product, bool mean) {
  const int64_t n = rows * columns;
  const double *a = ck_values(rig, n, -2, 2), *b = ck_values(rig, n, -2, 2);
  double *want = ck_zeros(rig, rows), *bound = ck_zeros(rig, rows);
  if (mean && columns == 0) return;
  for (int64_t r = 0; r < rows; r++) {
    long double sum = 0, size = 0;
    for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
      const long double term = product ? (long double)a[i] * b[i] : a[i];
      sum += term;
      size += fabsl(term);
    }
    const long double share = mean ? columns : 1;
    want[r] = (double)(sum / share);
    bound[r] = (double)((long double)(columns + 4) * rig->unit * size / share);
  }
  const ek_row_reduction kind = mean ? EK_ROW_MEAN : EK_ROW_SUM;
  ek_tensor *ta = ck_tensor(rig, a, CK_SHAPE(rows, columns));
  ek_tensor *tb = product ? ck_tensor(rig, b, CK_SHAPE(rows, columns)) : NULL;
  ek_tensor *y = ck_poisoned_sums(rig, CK_SHAPE(rows)), *again = ck_poisoned_sums(rig, CK_SHAPE(1));
  ck_ok(ek_op_row_reduce(rig->stream, y, ta, tb, kind));
  const double *got = ck_read(rig, y);
  ck_within("sums of rows", got, want, bound, rows);
  if (rows == 0) return;
  /* A row alone: its order depends on the number of columns and on nothing else. */
  ek_tensor last = {0}, last_b = {0};
  ck_ok(ek_tensor_rows(&last, ta, rows - 1, 1));
  if (product) ck_ok(ek_tensor_rows(&last_b, tb, rows - 1, 1));
  ck_ok(ek_op_row_reduce(rig->stream, again, &last, product ? &last_b : NULL, kind));
  ck_same_bits("the last row alone", ck_read(rig, again), got + rows - 1, 1);
  ek_tensor_free(&last);
  ek_tensor_free(&last_b);
}

CK_RIG_CASES(sums_and_means, s, 4 * SIZES) {
  check_sums(rig, sizes[s / 4][0], sizes[s / 4][1], s % 2 != 0, s / 2 % 2 != 0);
}

/* Sums of whole numbers are exact; the same tensor may be both factors. */
CK_RIG_CASES(whole_numbers, s, SIZES) {
  const int64_t rows = sizes[s][0], columns = sizes[s][1];
  const double *a = ck_integers(rig, rows * columns, -9, 9);
  double *want = ck_zeros(rig, rows), *squares = ck_zeros(rig, rows);
  for (int64_t i = 0; i < rows * columns; i++) {
    want[i / columns] += a[i];
    squares[i / columns] += a[i] * a[i];
  }
  ek_tensor *x = ck_tensor(rig, a, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_poisoned_sums(rig, CK_SHAPE(rows));
  ck_ok(ek_op_row_reduce(rig->stream, y, x, NULL, EK_ROW_SUM));
  ck_within("sums", ck_read(rig, y), want, NULL, rows);
  ck_ok(ek_op_row_reduce(rig->stream, y, x, x, EK_ROW_SUM));
  ck_within("squares", ck_read(rig, y), squares, NULL, rows);
}

static void softmax(long double *p, const double *x, int64_t columns) {
  long double largest = -HUGE_VALL, sum = 0;
  for (int64_t c = 0; c < columns; c++) largest = fmaxl(largest, x[c]);
  for (int64_t c = 0; c < columns; c++) sum += p[c] = expl(x[c] - largest);
  for (int64_t c = 0; c < columns; c++) p[c] /= sum;
}

static void check_softmax(struct ck_rig *rig, int64_t rows, int64_t columns, double offset) {
  static long double p[5000];
  const int64_t n = rows * columns;
  const double *x = ck_values(rig, n, offset - 8, offset + 8);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t r = 0; r < rows; r++) {
    double largest = -HUGE_VAL;
    softmax(p, x + r * columns, columns);
    for (int64_t c = 0; c < columns; c++) largest = fmax(largest, x[r * columns + c]);
    for (int64_t c = 0; c < columns; c++) {
      const double t = largest - x[r * columns + c];
      want[r * columns + c] = (double)p[c];
      bound[r * columns + c] =
          2 * (double)p[c] * ((double)columns + 2 * t + 16) * rig->unit + 0x1p-126;
    }
  }
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(rows, columns));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ck_ok(ek_op_softmax_forward(rig->stream, y, tx));
  ck_fits(rig, "softmax", y, want, bound, n);
  ck_ok(ek_op_softmax_forward(rig->stream, tx, tx));
  ck_same_bits("softmax over x", ck_read(rig, tx), ck_read(rig, y), n);
}

CK_RIG_CASES(softmax_of_rows, s, 2 * SIZES) {
  static const double offsets[] = {0, 1000};
  check_softmax(rig, sizes[s / 2][0], sizes[s / 2][1], offsets[s % 2]);
}

static void check_backward(struct ck_rig *rig, int64_t rows, int64_t columns) {
  const int64_t n = rows * columns;
  const double *dy = ck_values(rig, n, -2, 2), *y = ck_values(rig, n, 0, 1);
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  for (int64_t r = 0; r < rows; r++) {
    long double sum = 0, size = 0;
    for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
      sum += (long double)dy[i] * y[i];
      size += fabsl((long double)dy[i] * y[i]);
    }
    for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
      want[i] = (double)(y[i] * (dy[i] - sum));
      bound[i] = (double)(y[i] * ((long double)(columns + 3) * rig->unit * size +
                                  3 * rig->unit * (fabsl((long double)dy[i]) + fabsl(sum))));
    }
  }
  ek_tensor *tdy = ck_tensor(rig, dy, CK_SHAPE(rows, columns));
  ek_tensor *ty = ck_tensor(rig, y, CK_SHAPE(rows, columns));
  ek_tensor *dx = ck_poisoned(rig, CK_SHAPE(rows, columns));
  ck_ok(ek_op_softmax_backward(rig->stream, dx, tdy, ty));
  ck_fits(rig, "dx", dx, want, bound, n);
  ck_ok(ek_op_softmax_backward(rig->stream, tdy, tdy, ty));
  ck_same_bits("dx over dy", ck_read(rig, tdy), ck_read(rig, dx), n);
  ck_set(tdy, dy);
  ck_ok(ek_op_softmax_backward(rig->stream, ty, tdy, ty));
  ck_same_bits("dx over y", ck_read(rig, ty), ck_read(rig, dx), n);
}

CK_RIG_CASES(backward_of_softmax, s, SIZES) {
  check_backward(rig, sizes[s][0], sizes[s][1]);
}

CK_RIG_TEST(gradient_by_differences, NULL, EK_F64) {
  enum { ROWS = 5, COLUMNS = 9, N = ROWS * COLUMNS };
  const double *dy = ck_values(rig, N, -2, 2);
  ek_tensor *x = ck_tensor(rig, ck_values(rig, N, -2, 2), CK_SHAPE(ROWS, COLUMNS));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(ROWS, COLUMNS));
  ek_tensor *dx = ck_poisoned(rig, CK_SHAPE(ROWS, COLUMNS));
  ck_ok(ek_op_softmax_forward(rig->stream, y, x));
  ck_ok(ek_op_softmax_backward(rig->stream, dx, ck_tensor(rig, dy, CK_SHAPE(ROWS, COLUMNS)), y));
  ck_gradient(rig, "softmax", x, dx, N, ek_op_softmax_forward(rig->stream, y, x),
              ck_weighed(y, dy));
}

CK_RIG_TEST(bad_numbers, NULL, EK_F32) {
  ek_tensor *x = ck_poisoned(rig, CK_SHAPE(3, 4)), *y = ck_poisoned(rig, CK_SHAPE(3));
  ck_invalid(ek_op_row_reduce(rig->stream, y, x, NULL, (ek_row_reduction)2), "unknown reduction 2");
  ck_fails(ek_op_row_reduce(rig->stream, ck_poisoned(rig, CK_SHAPE(4)), x, NULL, EK_ROW_SUM),
           EK_ERR_SHAPE, "row_sum: y is 4");
}

CK_SUITE("rows")
