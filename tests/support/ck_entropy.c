/*
 * ck_entropy.c - cross-entropy in long double: see ck_entropy.h.
 */
#include "ck_entropy.h"

/*
 * Bounds. With u the unit roundoff, T the distance from a row's largest logit to its smallest, K
 * classes and W the largest weight: the sum of K exponentials, each good to 8 u or so, is good to
 * (K + 8) u, so that its logarithm has an absolute error of (K + 8) u; a loss of at most T + log K
 * rounds a few times. Four times u (K + 16) (1 + T + log K) W covers all of it for the loss. A
 * probability e^(x - m) / z has the error of its exponent and of z as its relative error: the same
 * number bounds a gradient of s. What all logits of a row have in common is in none of it.
 */
static double row_bound(const struct ck_rig *rig, const double *x, int64_t classes, double most) {
  double largest = -HUGE_VAL, smallest = HUGE_VAL;
  for (int64_t c = 0; c < classes; c++) {
    largest = fmax(largest, x[c]);
    smallest = fmin(smallest, x[c]);
  }
  return 4.0 * rig->unit * (double)(classes + 16) *
         (1.0 + (largest - smallest) + log((double)classes)) * most;
}

CK_UNWATCHED static void reference_row(struct ck_entropy *r, const double *x, int64_t row,
                                       int64_t y, int64_t classes, const double *w, double e) {
  long double m = -HUGE_VALL, z = 0, smooth = 0, weights = 0;
  for (int64_t c = 0; c < classes; c++) m = fmaxl(m, x[c]);
  for (int64_t c = 0; c < classes; c++) z += expl(x[c] - m);
  const long double log_z = logl(z);
  for (int64_t c = 0; c < classes; c++) {
    smooth += w[c] * (log_z - (x[c] - m));
    weights += w[c];
  }
  const long double even = (long double)e / (long double)classes;
  r->losses[row] = (double)((1.0L - e) * w[y] * (log_z - (x[y] - m)) + even * smooth);
  r->s += r->losses[row];
  r->d += w[y];
  for (int64_t c = 0; c < classes; c++) {
    const long double p = expl(x[c] - m) / z;
    r->gradient[row * classes + c] =
        (double)((1.0L - e) * w[y] * (p - (c == y)) + even * (p * weights - w[c]));
  }
}

struct ck_entropy ck_entropy(struct ck_rig *rig, const double *logits, const double *targets,
                             int64_t rows, int64_t classes, const ek_cross_entropy_options *o) {
  struct ck_entropy r = {.losses = ck_zeros(rig, rows),
                         .gradient = ck_zeros(rig, rows * classes),
                         .loss_bound = ck_zeros(rig, rows),
                         .gradient_bound = ck_zeros(rig, rows * classes)};
  double *w = ck_zeros(rig, classes), most = 0;
  for (int64_t c = 0; c < classes; c++) {
    w[c] = o->class_weights == NULL ? 1.0 : ck_round(rig, o->class_weights[c]);
    most = fmax(most, w[c]);
  }
  for (int64_t row = 0; row < rows; row++) {
    const double *x = logits + row * classes;
    if ((int32_t)targets[row] == o->ignore_index) continue;
    reference_row(&r, x, row, (int64_t)targets[row], classes, w, o->label_smoothing);
    r.loss_bound[row] = row_bound(rig, x, classes, most);
    /* The sum of the losses rounds once per row more. */
    r.s_bound += r.loss_bound[row] + (double)rows * rig->unit * fabs(r.losses[row]);
    for (int64_t c = 0; c < classes; c++) r.gradient_bound[row * classes + c] = r.loss_bound[row];
  }
  return r;
}
