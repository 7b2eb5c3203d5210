/*
 * ck_op_loss.c - cross-entropy by its formula, with bounds: see ck_op_loss.h.
 */
#include "ck_op_loss.h"

#include <math.h>
#include <string.h>

static long double weight_of(const struct ck_loss *f, int64_t c) {
  return f->weights == NULL ? 1 : f->weights[c];
}

struct row {
  const double *x;
  int64_t y;
  long double lse, error; /* error of lse */
};

static struct row read_row(const struct ck_loss *f, int64_t r, long double u) {
  struct row row = {.x = f->logits + r * f->classes, .y = (int64_t)f->targets[r]};
  long double largest = -HUGE_VALL, most = 0, sum = 0;
  for (int64_t c = 0; c < f->classes; c++) {
    largest = fmaxl(largest, row.x[c]);
    if (isfinite(row.x[c])) most = fmaxl(most, fabs(row.x[c]));
  }
  for (int64_t c = 0; c < f->classes; c++) sum += expl(row.x[c] - largest);
  row.lse = largest + logl(sum);
  row.error = (long double)(f->classes + 8) * u + u * (2 * most + fabsl(row.lse));
  return row;
}

static void loss_of_row(struct ck_loss *f, int64_t r, const struct row *row, long double u) {
  const long double w = weight_of(f, row->y);
  const long double hard = (1 - f->smoothing) * w, soft = f->smoothing / (double)f->classes;
  long double l = hard == 0 ? 0 : hard * (row->lse - row->x[row->y]), size = fabsl(l);
  long double error = hard * (row->error + u * (fabs(row->x[row->y]) + 2 * fabsl(row->lse)));
  for (int64_t c = 0; c < f->classes && soft != 0; c++) {
    const long double term = soft * weight_of(f, c) * (row->lse - row->x[c]);
    l += term;
    size += fabsl(term);
    error += soft * weight_of(f, c) * (row->error + u * (fabs(row->x[c]) + 2 * fabsl(row->lse)));
  }
  f->l[r] = (double)l;
  f->l_bound[r] = (double)(error + (long double)(f->classes + 4) * u * size);
  f->s += f->l[r];
  f->s_bound += f->l_bound[r] + (double)f->rows * 0x1p-53 * fabs(f->l[r]);
  f->d += (double)w;
  f->d_bound += f->weights == NULL ? 0 : (double)f->rows * 0x1p-53 * (double)w;
}

static void gradient_of_row(struct ck_loss *f, int64_t r, const struct row *row, long double u) {
  const long double w = weight_of(f, row->y);
  const long double hard = (1 - f->smoothing) * w, soft = f->smoothing / (double)f->classes;
  const long double scale = f->scale * (f->row_scale == NULL ? 1 : f->row_scale[r]);
  long double all = 0;
  for (int64_t c = 0; c < f->classes; c++) all += weight_of(f, c);
  for (int64_t c = 0; c < f->classes; c++) {
    const long double p = expl(row->x[c] - row->lse), one = c == row->y ? 1 : 0;
    const long double far = p == 0 ? 0 : fabsl(row->x[c] - row->lse);
    const long double error =
        hard * (p * (row->error + 4 * u + u * far) + 3 * u * fabsl(p - one)) +
        soft * (p * all * (row->error + (long double)(f->classes + 6) * u + u * far) +
                3 * u * weight_of(f, c)) +
        4 * u * (hard * fabsl(p - one) + soft * (p * all + weight_of(f, c)));
    f->gradient[r * f->classes + c] =
        (double)(scale * (hard * (p - one) + soft * (p * all - weight_of(f, c))));
    /* Below the smallest normal number of f32 there are no relative errors. */
    f->gradient_bound[r * f->classes + c] = (double)(fabsl(scale) * (error + 0x1p-126));
  }
}

void ck_loss_reference(const struct ck_rig *rig, struct ck_loss *f) {
  f->s = f->s_bound = f->d = f->d_bound = 0;
  for (int64_t r = 0; r < f->rows; r++) {
    const bool ignored = f->targets[r] == CK_IGNORED;
    struct row row = read_row(f, r, rig->unit);
    if (!ignored) {
      loss_of_row(f, r, &row, rig->unit);
      gradient_of_row(f, r, &row, rig->unit);
    } else {
      f->l[r] = f->l_bound[r] = 0;
      memset(f->gradient + r * f->classes, 0, (size_t)f->classes * sizeof *f->gradient);
      memset(f->gradient_bound + r * f->classes, 0, (size_t)f->classes * sizeof *f->gradient);
    }
    f->lse[r] = (double)row.lse;
    f->lse_bound[r] = (double)row.error;
  }
}

struct ck_loss ck_loss_make(struct ck_rig *rig, int64_t rows, int64_t classes) {
  const int64_t n = rows * classes;
  struct ck_loss f = {.rows = rows,
                      .classes = classes,
                      .scale = 1,
                      .logits = ck_values(rig, n, -4, 4),
                      .targets = ck_integers(rig, rows, 0, classes - 1),
                      .l = ck_zeros(rig, rows),
                      .l_bound = ck_zeros(rig, rows),
                      .lse = ck_zeros(rig, rows),
                      .lse_bound = ck_zeros(rig, rows),
                      .gradient = ck_zeros(rig, n),
                      .gradient_bound = ck_zeros(rig, n)};
  return f;
}
