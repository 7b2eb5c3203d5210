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

#endif /* EK_BACKEND_FORMULAS_H */
