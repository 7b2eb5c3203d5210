/*
 * ck_op_loss.c - cross-entropy by its formula, with bounds: see ck_op_loss.h.
 */
#include "ck_op_loss.h"

CK_UNWATCHED static long double weight_of(const struct ck_formula *f, int64_t c) {
  return f->weights == NULL ? 1 : f->weights[c];
}

struct row {
  const double *x;
  int64_t y;
  long double m, z, error; /* the relative error of z */
};

CK_UNWATCHED static struct row read_row(const struct ck_formula *f, int64_t r, long double u) {
  struct row row = {.x = f->logits + r * f->classes, .y = (int64_t)f->targets[r], .m = -HUGE_VALL};
  for (int64_t c = 0; c < f->classes; c++) row.m = fmaxl(row.m, row.x[c]);
  for (int64_t c = 0; c < f->classes; c++) row.z += expl(row.x[c] - row.m);
  row.error = (long double)(f->classes + 8) * u;
  return row;
}

CK_UNWATCHED static void loss_of_row(struct ck_formula *f, int64_t r, const struct row *row,
                                     long double u) {
  const long double w = weight_of(f, row->y);
  const long double hard = (1 - f->smoothing) * w, soft = f->smoothing / (double)f->classes;
  const long double log_z = logl(row->z), each = row->error + 2 * u * log_z;
  long double l = hard == 0 ? 0 : hard * (log_z + (row->m - row->x[row->y]));
  long double error = hard * each;
  for (int64_t c = 0; c < f->classes && soft != 0; c++) {
    const long double weight = soft * weight_of(f, c);
    if (weight != 0) l += weight * (log_z + (row->m - row->x[c]));
    error += weight * each;
  }
  f->l[r] = (double)l;
  f->l_bound[r] = (double)(error + (long double)(f->classes + 4) * u * l); /* no term is negative */
  f->s += f->l[r];
  f->s_bound += f->l_bound[r] + (double)f->rows * 0x1p-53 * fabs(f->l[r]);
  f->d += (double)w;
  f->d_bound += f->weights == NULL ? 0 : (double)f->rows * 0x1p-53 * (double)w;
}

CK_UNWATCHED static void gradient_of_row(struct ck_formula *f, int64_t r, const struct row *row,
                                         long double u) {
  const long double w = weight_of(f, row->y);
  const long double hard = (1 - f->smoothing) * w, soft = f->smoothing / (double)f->classes;
  const long double scale = f->scale * (f->row_scale == NULL ? 1 : f->row_scale[r]);
  long double all = 0;
  for (int64_t c = 0; c < f->classes; c++) all += weight_of(f, c);
  for (int64_t c = 0; c < f->classes; c++) {
    const long double far = row->m - row->x[c], p = expl(-far) / row->z;
    const long double one = c == row->y ? 1 : 0, far_error = p == 0 ? 0 : p * u * far;
    const long double error =
        hard * (p * (row->error + 4 * u) + far_error + 3 * u * fabsl(p - one)) +
        soft * (all * (p * (row->error + (long double)(f->classes + 6) * u) + far_error) +
                3 * u * weight_of(f, c)) +
        4 * u * (hard * fabsl(p - one) + soft * (p * all + weight_of(f, c)));
    f->gradient[r * f->classes + c] =
        (double)(scale * (hard * (p - one) + soft * (p * all - weight_of(f, c))));
    /* Below the smallest normal number of f32 there are no relative errors. */
    f->gradient_bound[r * f->classes + c] = (double)(fabsl(scale) * (error + 0x1p-126));
  }
}

CK_UNWATCHED void ck_loss_reference(const struct ck_rig *rig, struct ck_formula *f) {
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
    f->normalizer[2 * r] = (double)row.m; /* exact: its bound is 0 */
    f->normalizer[2 * r + 1] = (double)row.z;
    f->normalizer_bound[2 * r + 1] = (double)(row.error * row.z);
  }
}

struct ck_formula ck_loss_make(struct ck_rig *rig, int64_t rows, int64_t classes) {
  const int64_t n = rows * classes;
  struct ck_formula f = {.rows = rows, .classes = classes, .scale = 1,
                      .logits = ck_values(rig, n, -4, 4),
                      .targets = ck_integers(rig, rows, 0, classes - 1), .l = ck_zeros(rig, rows),
                      .l_bound = ck_zeros(rig, rows), .normalizer = ck_zeros(rig, 2 * rows),
                      .normalizer_bound = ck_zeros(rig, 2 * rows), .gradient = ck_zeros(rig, n),
                      .gradient_bound = ck_zeros(rig, n)};
  return f;
}

struct ck_loss_tensors ck_loss_upload(struct ck_rig *rig, const struct ck_formula *f) {
  struct ck_loss_tensors t = {
      .losses = ck_poisoned_sums(rig, CK_SHAPE(f->rows)),
      .normalizer = ck_poisoned_sums(rig, CK_SHAPE(f->rows, 2)),
      .totals = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2)),
      .logits = ck_tensor(rig, f->logits, CK_SHAPE(f->rows, f->classes)),
      .targets = ck_tensor_of(rig, EK_I32, f->targets, CK_SHAPE(f->rows)),
      .gradient = ck_poisoned(rig, CK_SHAPE(f->rows, f->classes)),
      .terms = {.ignore_index = CK_IGNORED, .label_smoothing = f->smoothing}};
  if (f->scale != 1) t.scale = ck_tensor_of(rig, EK_F64, &f->scale, CK_SHAPE(1));
  if (f->row_scale != NULL) t.row_scale = ck_sums(rig, f->row_scale, CK_SHAPE(f->rows));
  if (f->weights != NULL) t.terms.class_weights = ck_sums(rig, f->weights, CK_SHAPE(f->classes));
  return t;
}
