/*
 * check_normalize.c - layer normalisation and RMSNorm against plain loops in long double.
 *
 * Bounds for a row of width W, u the unit roundoff of the type; sums are taken in any order:
 *   mean   e1 = (W + 1) u avg|x|: W additions and one division
 *   d      e2 = e1 + u max|x - mean|: error of x - mean
 *   var    e3 = 2 e2 avg|x - mean| + e2^2 + (W + 3) u var
 *   rstd   relative e4 = e3 / (var + epsilon) / 2 + 4 u (to first order; sum, root, inverse)
 *   y      |gamma| (e2 rstd + |n| (e4 + u)) + 3 u (|gamma n| + |beta|)
 * The bound doubles the whole of it for the terms of second order. A kernel that took the variance
 * as a difference of two sums would fail the rows that are far from zero. Of an RMSNorm e1 is 0:
 * nothing is subtracted, and "var" is the average of x^2.
 *
 * Backward, with mean and rstd given, so that n has a relative error of 2 u:
 *   dx     rstd (4 u |g| + (W + 4) u avg|g| + |n| (W + 8) u avg|g n|) + 4 u |residual|
 *          of an RMSNorm without avg|g|, which is not taken
 *   dgamma (R + 5) u (|scale old| + sum |dy n|) for R rows; dbeta likewise with sum |dy|
 */
#include "ek_check.h"

/* Widths below and above what a warp, a block, and a block's registers hold on a GPU, too. */
static const int64_t sizes[][2] = {{0, 4},     {1, 1},    {3, 2},    {7, 17},   {2, 256},  {65, 33},
                                   {300, 129}, {3, 1024}, {2, 1028}, {2, 5000}, {2, 16400}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

struct row_sums {
  long double mean, variance, rstd;      /* of the exact formula */
  long double average, spread, furthest; /* avg|x|, avg|x - mean|, max|x - mean| */
};

/* `rms`: with a mean of 0. */
static struct row_sums sums_of(const double *x, int64_t width, double epsilon, bool rms) {
  struct row_sums s = {0};
  for (int64_t i = 0; i < width; i++) {
    s.mean += x[i];
    s.average += fabs(x[i]);
  }
  s.mean = rms ? 0 : s.mean / width;
  s.average /= width;
  for (int64_t i = 0; i < width; i++) {
    const long double d = x[i] - s.mean;
    s.variance += d * d;
    s.spread += fabsl(d);
    s.furthest = fmaxl(s.furthest, fabsl(d));
  }
  s.variance /= width;
  s.spread /= width;
  s.rstd = 1 / sqrtl(s.variance + epsilon);
  return s;
}

struct norm {
  int64_t rows, width;
  double epsilon;
  bool rms;
  double *x, *gamma, *beta;
  double *y, *y_bound, *mean, *mean_bound, *rstd, *rstd_bound;
};

CK_UNWATCHED static void forward_reference(const struct ck_rig *rig, struct norm *f) {
  const long double u = rig->unit;
  for (int64_t r = 0; r < f->rows; r++) {
    const double *x = f->x + r * f->width;
    const struct row_sums s = sums_of(x, f->width, f->epsilon, f->rms);
    const long double e1 = f->rms ? 0 : (long double)(f->width + 1) * u * s.average;
    const long double e2 = e1 + u * s.furthest;
    const long double e3 =
        2 * e2 * s.spread + e2 * e2 + (long double)(f->width + 3) * u * s.variance;
    const long double e4 = e3 / (s.variance + f->epsilon) / 2 + 4 * u;
    f->mean[r] = (double)s.mean;
    f->mean_bound[r] = (double)(2 * e1);
    f->rstd[r] = (double)s.rstd;
    f->rstd_bound[r] = (double)(2 * e4 * s.rstd);
    for (int64_t i = 0; i < f->width; i++) {
      const long double n = (x[i] - s.mean) * s.rstd;
      const long double error = fabs(f->gamma[i]) * (e2 * s.rstd + fabsl(n) * (e4 + u)) +
                                3 * u * (fabsl(f->gamma[i] * n) + fabs(f->beta[i]));
      f->y[r * f->width + i] = (double)(n * f->gamma[i] + f->beta[i]);
      f->y_bound[r * f->width + i] = (double)(2 * error);
    }
  }
}

static struct norm make_norm(struct ck_rig *rig, int64_t rows, int64_t width, double offset) {
  const int64_t n = rows * width;
  return (struct norm){.rows = rows, .width = width, .epsilon = 1e-5,
                       .x = ck_values(rig, n, offset - 2, offset + 2),
                       .gamma = ck_values(rig, width, -2, 2), .beta = ck_values(rig, width, -2, 2),
                       .y = ck_zeros(rig, n), .y_bound = ck_zeros(rig, n),
                       .mean = ck_zeros(rig, rows), .mean_bound = ck_zeros(rig, rows),
                       .rstd = ck_zeros(rig, rows), .rstd_bound = ck_zeros(rig, rows)};
}

/* The mean is only asked for where there is one. */
static void check_forward(struct ck_rig *rig, struct norm *f) {
  forward_reference(rig, f);
  ek_tensor *x = ck_tensor(rig, f->x, CK_SHAPE(f->rows, f->width));
  ek_tensor *gamma = ck_tensor(rig, f->gamma, CK_SHAPE(f->width));
  ek_tensor *beta = ck_tensor(rig, f->beta, CK_SHAPE(f->width));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(f->rows, f->width));
  ek_tensor *mean = f->rms ? NULL : ck_poisoned_sums(rig, CK_SHAPE(f->rows));
  ek_tensor *rstd = ck_poisoned_sums(rig, CK_SHAPE(f->rows));
  ck_ok(ek_op_layer_norm_forward(rig->stream, y, mean, rstd, x, gamma, beta, f->epsilon));
  if (mean != NULL) ck_fits(rig, "mean", mean, f->mean, f->mean_bound, f->rows);
  ck_fits(rig, "rstd", rstd, f->rstd, f->rstd_bound, f->rows);
  ck_fits(rig, "y", y, f->y, f->y_bound, f->rows * f->width);
  ck_ok(ek_op_layer_norm_forward(rig->stream, x, mean, rstd, x, gamma, beta, f->epsilon));
  ck_same_bits("y in place", ck_read(rig, x), ck_read(rig, y), f->rows * f->width);
}

CK_RIG_CASES(forward, s, SIZES) {
  static const double offsets[] = {0, 100, -1000};
  for (int o = 0; o < 3; o++) {
    struct norm f = make_norm(rig, sizes[s][0], sizes[s][1], offsets[o]);
    check_forward(rig, &f);
    f.rms = true;
    check_forward(rig, &f);
  }
}

/* The sum is rounded once, and y is the norm of what was written, in whichever place. */
CK_RIG_CASES(forward_of_a_sum, s, 2 * SIZES) {
  static const double offsets[] = {0, 100};
  struct norm f = make_norm(rig, sizes[s / 2][0], sizes[s / 2][1], offsets[s % 2]);
  const int64_t n = f.rows * f.width;
  const double *x = f.x, *residual = ck_values(rig, n, -3, 3);
  f.x = ck_zeros(rig, n);
  for (int64_t i = 0; i < n; i++)
    f.x[i] = ck_round(rig, ck_round_to(rig->sum, x[i] + residual[i]));
  ek_tensor *tx = ck_tensor(rig, x, CK_SHAPE(f.rows, f.width));
  ek_tensor *tresidual = ck_tensor(rig, residual, CK_SHAPE(f.rows, f.width));
  ek_tensor *gamma = ck_tensor(rig, f.gamma, CK_SHAPE(f.width));
  ek_tensor *beta = ck_tensor(rig, f.beta, CK_SHAPE(f.width));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(f.rows, f.width));
  ek_tensor *mean = ck_poisoned_sums(rig, CK_SHAPE(f.rows)),
            *rstd = ck_poisoned_sums(rig, CK_SHAPE(f.rows));
  ek_tensor *sums[] = {ck_poisoned(rig, CK_SHAPE(f.rows, f.width)), tx, tresidual};
  for (int k = 0; k < 6; k++) {
    const int place = k % 3;
    f.rms = k >= 3;
    forward_reference(rig, &f);
    ck_set(tx, x);
    ck_set(tresidual, residual);
    ck_set(y, NULL);
    ek_add_layer_norm_args args = {.y = y, .sum = sums[place], .rstd = rstd, .x = tx};
    args.mean = f.rms ? NULL : mean, args.residual = tresidual;
    args.weight = gamma, args.bias = beta, args.epsilon = f.epsilon;
    ck_ok(ek_op_add_layer_norm_forward(rig->stream, &args));
    ck_same_bits("sum", ck_read(rig, sums[place]), f.x, n);
    if (!f.rms) ck_fits(rig, "mean of a sum", mean, f.mean, f.mean_bound, f.rows);
    ck_fits(rig, "rstd of a sum", rstd, f.rstd, f.rstd_bound, f.rows);
    ck_fits(rig, "y of a sum", y, f.y, f.y_bound, n);
  }
}

/* A constant row has variance 0: n is 0 and y is beta. */
CK_RIG_LOOP(constant_rows, ck_variants()) {
  double *x = ck_integers(rig, 3 * 40, 5, 5), *gamma = ck_values(rig, 40, -2, 2);
  double *beta = ck_values(rig, 40, -2, 2), *want = ck_zeros(rig, 3 * 40);
  for (int r = 0; r < 3; r++) memcpy(want + (size_t)r * 40, beta, 40 * sizeof *want);
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(3, 40));
  ek_tensor *mean = ck_poisoned_sums(rig, CK_SHAPE(3)), *rstd = ck_poisoned_sums(rig, CK_SHAPE(3));
  ck_ok(ek_op_layer_norm_forward(rig->stream, y, mean, rstd, ck_tensor(rig, x, CK_SHAPE(3, 40)),
                                 ck_tensor(rig, gamma, CK_SHAPE(40)),
                                 ck_tensor(rig, beta, CK_SHAPE(40)), 1e-5));
  ck_fits(rig, "y of constant rows", y, want, NULL, 3 * 40);
}

/* ---- backward ---- */

struct slope {
  int64_t rows, width;
  bool rms;
  double weight_beta, bias_beta;
  const double *dy, *x, *mean, *rstd, *gamma;
  const double *residual; /* or NULL */
  const double *old_dgamma, *old_dbeta;
  double *dx, *dx_bound, *dgamma, *dgamma_bound, *dbeta, *dbeta_bound;
};

CK_UNWATCHED static void dx_reference(const struct ck_rig *rig, const struct slope *b) {
  const double w = (double)b->width, u = rig->unit;
  for (int64_t r = 0; r < b->rows; r++) {
    const double *x = b->x + r * b->width, *dy = b->dy + r * b->width;
    long double g_sum = 0, g_size = 0, gn_sum = 0, gn_size = 0;
    for (int64_t i = 0; i < b->width; i++) {
      const long double n = ((long double)x[i] - b->mean[r]) * b->rstd[r];
      const long double g = (long double)dy[i] * b->gamma[i];
      if (!b->rms) g_sum += g, g_size += fabsl(g);
      gn_sum += g * n, gn_size += fabsl(g * n);
    }
    for (int64_t i = 0; i < b->width; i++) {
      const int64_t at = r * b->width + i;
      const long double n = ((long double)x[i] - b->mean[r]) * b->rstd[r];
      const long double g = (long double)dy[i] * b->gamma[i];
      const double old = b->residual ? b->residual[at] : 0;
      const long double error =
          4 * u * fabsl(g) + (w + 4) * u * g_size / w + fabsl(n) * (w + 8) * u * gn_size / w;
      b->dx[at] = (double)(b->rstd[r] * (g - g_sum / w - n * gn_sum / w) + old);
      b->dx_bound[at] = (double)(b->rstd[r] * error + 4 * u * fabs(old));
    }
  }
}

CK_UNWATCHED static void column_reference(const struct ck_rig *rig, const struct slope *b) {
  for (int64_t i = 0; i < b->width; i++) {
    long double gamma = b->weight_beta == 0 ? 0 : (long double)b->weight_beta * b->old_dgamma[i];
    long double beta = b->bias_beta == 0 ? 0 : (long double)b->bias_beta * b->old_dbeta[i];
    long double gamma_size = fabsl(gamma), beta_size = fabsl(beta);
    for (int64_t r = 0; r < b->rows; r++) {
      const int64_t at = r * b->width + i;
      const long double term = b->dy[at] * ((long double)b->x[at] - b->mean[r]) * b->rstd[r];
      gamma += term, gamma_size += fabsl(term);
      beta += b->dy[at], beta_size += fabs(b->dy[at]);
    }
    b->dgamma[i] = (double)gamma;
    b->dbeta[i] = (double)beta;
    b->dgamma_bound[i] = (double)((double)(b->rows + 5) * rig->unit * gamma_size);
    b->dbeta_bound[i] = (double)((double)(b->rows + 5) * rig->unit * beta_size);
  }
}

static struct slope make_slope(struct ck_rig *rig, int64_t rows, int64_t width, bool rms) {
  const int64_t n = rows * width;
  struct slope b = {.rows = rows, .width = width, .rms = rms, .dy = ck_values(rig, n, -1, 1),
                    .x = ck_values(rig, n, 1, 4), .gamma = ck_values(rig, width, -2, 2),
                    .old_dgamma = ck_values(rig, width, -1, 1),
                    .old_dbeta = ck_values(rig, width, -1, 1), .dx = ck_zeros(rig, n),
                    .dx_bound = ck_zeros(rig, n), .dgamma = ck_zeros(rig, width),
                    .dgamma_bound = ck_zeros(rig, width), .dbeta = ck_zeros(rig, width),
                    .dbeta_bound = ck_zeros(rig, width)};
  double *mean = ck_zeros(rig, rows), *rstd = ck_zeros(rig, rows);
  for (int64_t r = 0; r < rows; r++) {
    const struct row_sums s = sums_of(b.x + r * width, width, 1e-5, rms);
    mean[r] = ck_round_to(rig->sum, (double)s.mean);
    rstd[r] = ck_round_to(rig->sum, (double)s.rstd);
  }
  b.mean = mean, b.rstd = rstd;
  return b;
}

/* What backward gets of it, new in each call; results are NULL. */
static ek_layer_norm_backward_args args_of(struct ck_rig *rig, const struct slope *b,
                                           const ek_tensor *dy) {
  return (ek_layer_norm_backward_args){.dy = dy,
                                       .x = ck_tensor(rig, b->x, CK_SHAPE(b->rows, b->width)),
                                       .mean =
                                           b->rms ? NULL : ck_sums(rig, b->mean, CK_SHAPE(b->rows)),
                                       .rstd = ck_sums(rig, b->rstd, CK_SHAPE(b->rows)),
                                       .weight = ck_tensor(rig, b->gamma, CK_SHAPE(b->width)),
                                       .weight_beta = b->weight_beta, .bias_beta = b->bias_beta};
}

/* Where dx goes; IN_BOTH: dy is the residual too. */
enum place { NOWHERE, IN_FRESH, IN_DY, IN_RESIDUAL, IN_BOTH };

static void check_backward(struct ck_rig *rig, const struct slope *b, enum place place) {
  const int64_t n = b->rows * b->width;
  dx_reference(rig, b);
  column_reference(rig, b);
  ek_tensor *dy = ck_tensor(rig, b->dy, CK_SHAPE(b->rows, b->width));
  ek_layer_norm_backward_args args = args_of(rig, b, dy);
  ek_tensor *residual = place == IN_BOTH ? dy : NULL;
  if (b->residual != NULL && place != IN_BOTH) {
    residual = ck_tensor(rig, b->residual, CK_SHAPE(b->rows, b->width));
  }
  ek_tensor *dx = place == IN_RESIDUAL ? residual : place == NOWHERE ? NULL : dy;
  if (place == IN_FRESH) dx = ck_poisoned(rig, CK_SHAPE(b->rows, b->width));
  ek_tensor *dgamma = ck_sums(rig, b->weight_beta == 0 ? NULL : b->old_dgamma, CK_SHAPE(b->width));
  ek_tensor *dbeta = ck_sums(rig, b->bias_beta == 0 ? NULL : b->old_dbeta, CK_SHAPE(b->width));
  args.dx = dx, args.dweight = dgamma, args.dbias = dbeta, args.residual = residual;
  ck_ok(ek_op_layer_norm_backward(rig->stream, &args));
  if (dx != NULL) ck_fits(rig, "dx", dx, b->dx, b->dx_bound, n);
  ck_fits(rig, "dgamma", dgamma, b->dgamma, b->dgamma_bound, b->width);
  ck_fits(rig, "dbeta", dbeta, b->dbeta, b->dbeta_bound, b->width);
}

CK_RIG_CASES(backward, s, 2 * SIZES) {
  struct slope b = make_slope(rig, sizes[s / 2][0], sizes[s / 2][1], s % 2 == 1);
  check_backward(rig, &b, IN_FRESH);
  check_backward(rig, &b, IN_DY);
  b.weight_beta = 1, b.bias_beta = 0;
  check_backward(rig, &b, NOWHERE);
  b.weight_beta = 0, b.bias_beta = 1;
  check_backward(rig, &b, IN_DY);
  b.residual = ck_values(rig, b.rows * b.width, -1, 1);
  b.weight_beta = 0.5, b.bias_beta = -2;
  check_backward(rig, &b, IN_FRESH);
  check_backward(rig, &b, IN_RESIDUAL);
  check_backward(rig, &b, IN_DY);
  b.residual = b.dy;
  check_backward(rig, &b, IN_BOTH);
}

CK_RIG_LOOP(backward_repeats, ck_variants()) {
  const struct slope b = make_slope(rig, 300, 65, false);
  ek_layer_norm_backward_args args = args_of(rig, &b, ck_tensor(rig, b.dy, CK_SHAPE(300, 65)));
  double *first[3] = {0};
  for (int pass = 0; pass < 2; pass++) {
    ck_assign(args, .dx = ck_poisoned(rig, CK_SHAPE(300, 65)),
              .dweight = ck_poisoned_sums(rig, CK_SHAPE(65)),
              .dbias = ck_poisoned_sums(rig, CK_SHAPE(65)));
    ck_ok(ek_op_layer_norm_backward(rig->stream, &args));
    double *got[3] = {ck_read(rig, args.dx), ck_read(rig, args.dweight), ck_read(rig, args.dbias)};
    for (int k = 0; k < 3 && pass == 1; k++) {
      ck_same_bits("again", got[k], first[k], k == 0 ? 300 * 65 : 65);
    }
    memcpy(first, got, sizeof first);
  }
}

/* ---- without beta, dgamma or dbeta ---- */

static struct norm without(struct ck_rig *rig, const struct slope *b, ek_tensor *dx,
                           ek_tensor *dgamma, ek_tensor *dbeta) {
  ek_layer_norm_backward_args args =
      args_of(rig, b, ck_tensor(rig, b->dy, CK_SHAPE(b->rows, b->width)));
  args.dx = dx, args.dweight = dgamma, args.dbias = dbeta;
  args.weight_beta = args.bias_beta = 1;
  ck_ok(ek_op_layer_norm_backward(rig->stream, &args));
  return (struct norm){.y = dx == NULL ? NULL : ck_read(rig, dx),
                       .gamma = dgamma == NULL ? NULL : ck_read(rig, dgamma),
                       .beta = dbeta == NULL ? NULL : ck_read(rig, dbeta)};
}

/* The bits of a beta of zeros; and what is wanted has the bits that it has beside the rest. */
CK_RIG_CASES(left_out, s, SIZES) {
  const int64_t rows = sizes[s][0], width = sizes[s][1], n = rows * width;
  const struct norm f = make_norm(rig, rows, width, 0);
  ek_tensor *zeros = ck_tensor(rig, ck_zeros(rig, width), CK_SHAPE(width));
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, width));
  ek_add_layer_norm_args args = {.y = y, .sum = ck_poisoned(rig, CK_SHAPE(rows, width))};
  ck_assign(args, .mean = ck_poisoned_sums(rig, CK_SHAPE(rows)),
            .rstd = ck_poisoned_sums(rig, CK_SHAPE(rows)),
            .x = ck_tensor(rig, f.x, CK_SHAPE(rows, width)),
            .residual = ck_tensor(rig, ck_values(rig, n, -3, 3), CK_SHAPE(rows, width)));
  args.weight = ck_tensor(rig, f.gamma, CK_SHAPE(width)), args.epsilon = 1e-5;
  double *plain[2] = {0}, *added[2] = {0};
  for (int k = 0; k < 2; k++) {
    args.bias = k == 0 ? zeros : NULL;
    ck_ok(ek_op_layer_norm_forward(rig->stream, y, args.mean, args.rstd, args.x, args.weight,
                                   args.bias, 1e-5));
    plain[k] = ck_read(rig, y);
    ck_set(y, NULL);
    ck_ok(ek_op_add_layer_norm_forward(rig->stream, &args));
    added[k] = ck_read(rig, y);
  }
  ck_same_bits("y", plain[1], plain[0], n);
  ck_same_bits("y of a sum", added[1], added[0], n);

  const struct slope b = make_slope(rig, rows, width, false);
  struct norm got[8];
  for (int k = 7; k >= 0; k--) { /* bit 0: dx, 1: dgamma, 2: dbeta */
    got[k] = without(rig, &b, k & 1 ? ck_poisoned(rig, CK_SHAPE(rows, width)) : NULL,
                     k & 2 ? ck_sums(rig, b.old_dgamma, CK_SHAPE(width)) : NULL,
                     k & 4 ? ck_sums(rig, b.old_dbeta, CK_SHAPE(width)) : NULL);
    if (k & 1) ck_same_bits("dx", got[k].y, got[7].y, n);
    if (k & 2) ck_same_bits("dgamma", got[k].gamma, got[7].gamma, width);
    if (k & 4) ck_same_bits("dbeta", got[k].beta, got[7].beta, width);
  }
}

/* ---- differences ---- */

CK_LOOP(gradients_by_differences, 2) { /* of the second an RMSNorm */
  static const char *const names[] = {"dx", "dgamma", "dbeta"};
  struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
  const int64_t rows = 4, width = 11;
  const double *dy = ck_values(rig, rows * width, -1, 1);
  ek_tensor *in[] = {ck_tensor(rig, ck_values(rig, rows * width, -2, 2), CK_SHAPE(rows, width)),
                     ck_tensor(rig, ck_values(rig, width, -2, 2), CK_SHAPE(width)),
                     ck_tensor(rig, ck_values(rig, width, -2, 2), CK_SHAPE(width))};
  ek_tensor *y = ck_poisoned(rig, CK_SHAPE(rows, width)), *rstd = ck_poisoned(rig, CK_SHAPE(rows));
  ek_tensor *mean = _i == 1 ? NULL : ck_poisoned(rig, CK_SHAPE(rows));
  ek_tensor *d[] = {ck_poisoned(rig, CK_SHAPE(rows, width)), ck_poisoned(rig, CK_SHAPE(width)),
                    ck_poisoned(rig, CK_SHAPE(width))};
  ek_layer_norm_backward_args args = {.dx = d[0], .dweight = d[1], .dbias = d[2]};
  args.dy = ck_tensor(rig, dy, CK_SHAPE(rows, width));
  args.x = in[0], args.mean = mean, args.rstd = rstd, args.weight = in[1];
  ck_ok(ek_op_layer_norm_forward(rig->stream, y, mean, rstd, in[0], in[1], in[2], 1e-5));
  ck_ok(ek_op_layer_norm_backward(rig->stream, &args));
  for (int k = 0; k < 3; k++) {
    ck_gradient(
        rig, names[k], in[k], d[k], 99,
        ek_op_layer_norm_forward(rig->stream, y, mean, rstd, in[0], in[1], in[2], 1e-5),
        ck_weighed(y, dy));
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_epsilon_and_huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t rows = INT64_C(1) << 32, width = INT64_C(1) << 27;
  ek_stream *s = rig->stream;
  ek_tensor *x = ck_ghost(rig, EK_F32, CK_SHAPE(rows, width));
  ek_tensor *mean = ck_ghost(rig, EK_F32, CK_SHAPE(rows));
  ek_tensor *rstd = ck_ghost(rig, EK_F32, CK_SHAPE(rows));
  ek_tensor *gamma = ck_ghost(rig, EK_F32, CK_SHAPE(width));
  ck_ok(ek_op_layer_norm_forward(s, x, mean, rstd, x, gamma, gamma, 0));
  ck_invalid(ek_op_layer_norm_forward(s, x, mean, rstd, x, mean, gamma, 0),
             "layer_norm_forward: mean (4294967296) overlaps weight");
  ek_tensor *other = ck_ghost(rig, EK_F32, CK_SHAPE(rows));
  ck_fails(ek_op_layer_norm_forward(s, x, mean, rstd, x, other, gamma, 0), EK_ERR_SHAPE,
           "layer_norm_forward: weight is 4294967296 but x is 4294967296 x 134217728");
  ck_invalid(ek_op_add_layer_norm_forward(s, NULL), "args is NULL");
  ck_invalid(ek_op_layer_norm_backward(s, NULL), "args is NULL");
  for (int i = 0; i < 2; i++) {
    ck_invalid(ek_op_layer_norm_forward(s, x, mean, rstd, x, gamma, gamma, i == 0 ? -1e-9 : NAN),
               "layer_norm_forward: epsilon");
  }
  ek_add_layer_norm_args args = {.sum = x, .mean = mean, .rstd = rstd, .x = x, .epsilon = -1};
  args.y = ck_ghost(rig, EK_F32, CK_SHAPE(rows, width));
  args.residual = x, args.weight = args.bias = gamma;
  ck_invalid(ek_op_add_layer_norm_forward(s, &args), "add_layer_norm_forward: epsilon");
}

CK_SUITE("normalize")
