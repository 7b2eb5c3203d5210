/*
 * formulas.h - formulas of a few numbers in double precision, shared by all backends: for the host
 * and for CUDA kernels.
 */
#ifndef EK_BACKEND_FORMULAS_H
#define EK_BACKEND_FORMULAS_H

#include <math.h>

#include "backend/backend.h"

/* weight * term, where 0 times an infinite term is 0: a class without weight may be one
 * that cannot be. NaN shows. */
EK_INLINE double ek__weigh(double weight, double term) {
  return weight == 0.0 && isinf(term) ? 0.0 : weight * term;
}

/* A loss of an element, and its slope by y: losses.h, ek_op_element_loss_forward(). In
 * f64, from which the others round once. */
EK_INLINE double ek__element_loss(const struct ek__loss_args *args, double y, double t) {
  const double d = y - t, size = fabs(d);
  if (args->kind == EK__LOSS_SQUARED) return d * d;
  if (args->kind == EK__LOSS_DIVERGENCE) return t == 0.0 ? 0.0 : t * (log(t) - y);
  if (args->kind == EK__LOSS_LOG_DIVERGENCE) return ek__weigh(exp(t), t - y);
  if (args->kind == EK__LOSS_BINARY) {
    const double both = log1p(exp(-fabs(y))), loss = (y > 0.0 ? y : 0.0) - y * t + both;
    if (args->steepness == 1.0) return loss;
    return loss + (args->steepness - 1.0) * t * (both + (y < 0.0 ? -y : 0.0));
  }
  if (size >= args->width) return args->steepness * (size - 0.5 * args->width);
  return args->steepness * (0.5 * d * d / args->width);
}

EK_INLINE double ek__element_slope(const struct ek__loss_args *args, double y, double t) {
  const double d = y - t;
  if (args->kind == EK__LOSS_SQUARED) return 2.0 * d;
  if (args->kind == EK__LOSS_DIVERGENCE) return -t;
  if (args->kind == EK__LOSS_LOG_DIVERGENCE) return -exp(t);
  if (args->kind == EK__LOSS_BINARY) {
    return 1.0 / (1.0 + exp(-y)) - t - (args->steepness - 1.0) * t / (1.0 + exp(y));
  }
  if (fabs(d) < args->width) return args->steepness * (d / args->width);
  return args->steepness * (d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : d);
}

/* What the gradient in memory is multiplied with: updates.h. */
EK_INLINE double ek__gradient_factor(const double *totals, const double *square_norm,
                                     double clip_norm) {
  double share = 1.0;
  if (totals) share = totals[1] == 0.0 ? 0.0 : 1.0 / totals[1];
  if (clip_norm == 0.0 || !square_norm) return share;
  const double norm = sqrt(*square_norm) * fabs(share);
  const double clip = clip_norm / (norm + 1e-6);
  return clip > 1.0 ? share : share * clip; /* not by fmin: a NaN norm must show */
}

/* D / d of a term. It is 1 for the only term of an ordinary loss, whose s then stays as it is, also
 * where its d is 0: D is then that of other micro-batches. */
EK_INLINE double ek__term_ratio(double largest, double d) {
  if (d == largest) return 1.0;
  return d == 0.0 ? 0.0 : largest / d;
}

/* The terms of a loss put together: losses.h, ek_op_combine_totals(). */
EK_INLINE void ek__combine_terms(const struct ek__combine_args *args) {
  const double *totals = args->totals;
  double largest = args->terms > 0 ? totals[1] : 0.0, sum = 0.0;
  for (size_t j = 1; j < args->terms; j++) { /* a NaN is larger than all */
    const double d = totals[2 * j + 1];
    if (d > largest || isnan(d)) largest = d;
  }
  for (size_t j = 0; j < args->terms; j++) {
    double scale = args->coefficients[j];
    if (args->divide) scale *= ek__term_ratio(largest, totals[2 * j + 1]);
    args->scales[2 * j] = scale;
    args->scales[2 * j + 1] = 0.0;
    sum += scale * totals[2 * j];
  }
  args->combined[0] = sum;
  args->combined[1] = args->divide ? largest : 1.0;
}

/* ---- normalisation by channels: channel_norm.h ---- */

EK_INLINE int64_t ek__channel_piece(const struct ek__channel_args *args, int64_t piece) {
  const int64_t each = args->rows / args->pieces, longer = args->rows % args->pieces;
  return piece * each + (piece < longer ? piece : longer); /* its first row */
}

/* n values: sum of x, and of x * x. No values: zeros. NaN shows. */
struct ek__moments {
  double n, mean, deviations; /* sum of (x - mean)^2 */
};
EK_INLINE struct ek__moments ek__moments_of(double n, double sum, double squares) {
  struct ek__moments m = {n, 0.0, 0.0};
  if (n == 0.0) return m;
  m.mean = sum / n;
  m.deviations = squares - sum * m.mean;
  if (m.deviations < 0.0) m.deviations = 0.0;
  return m;
}

EK_INLINE double ek__channel_rows(const struct ek__channel_args *args) {
  return args->count ? *args->count : args->host_count;
}

/* Of a group of a sample, the group's channels being first .. first + width - 1 of it. */
EK_INLINE struct ek__moments ek__group_moments(const struct ek__channel_args *args, int64_t sample,
                                               int64_t first, int64_t width) {
  const double *sums = args->sums + 2 * sample * args->channels + first;
  double sum = 0.0, squares = 0.0;
  for (int64_t c = 0; c < width; c++) {
    sum += sums[c];
    squares += sums[args->channels + c];
  }
  return ek__moments_of(ek__channel_rows(args) * (double)width, sum, squares);
}

EK_INLINE double ek__moments_rstd(struct ek__moments m, double epsilon) {
  return m.n == 0.0 ? 0.0 : 1.0 / sqrt(m.deviations / m.n + epsilon);
}

#endif /* EK_BACKEND_FORMULAS_H */
