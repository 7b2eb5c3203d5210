/*
 * verdict.c - when two modes have trained the same.
 */
#include "verdict.h"

#include <math.h>

double loss_tolerance(const struct accuracy *accuracy, int64_t step) {
  static const double units[BENCH_PRECISIONS] = {[PRECISION_F32] = 0x1p-24,
                                                 [PRECISION_TF32] = 0x1p-17,
                                                 [PRECISION_BF16] = 0x1p-14,
                                                 [PRECISION_F16] = 0x1p-16};
  const double chain = 6.0 * (double)accuracy->layers + 2.0;
  const double root = sqrt(4.0 * (double)accuracy->width);
  return ((double)step + 1.0) * root * chain * units[accuracy->precision];
}

bool losses_agree(size_t *where, const double *left, const double *right, size_t count,
                  const struct accuracy *accuracy, int64_t first) {
  for (size_t i = 0; i < count; i++) {
    const double tolerance = loss_tolerance(accuracy, first + (int64_t)i);
    const double size = fmax(1.0, fmax(fabs(left[i]), fabs(right[i])));
    /* Written so that NaN is a disagreement. */
    if (isfinite(left[i]) && fabs(left[i] - right[i]) <= tolerance * size) continue;
    *where = i;
    return false;
  }
  return true;
}
