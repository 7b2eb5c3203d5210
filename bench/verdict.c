/*
 * verdict.c - when two modes have trained the same.
 */
#include "verdict.h"

#include <math.h>

double loss_tolerance(const struct precision *precision, int64_t step) {
  const double unit = precision->tf32 ? 0x1p-17 : 0x1p-24;
  const double chain = 6.0 * (double)precision->layers + 2.0;
  return ((double)step + 1.0) * sqrt(4.0 * (double)precision->width) * chain * unit;
}

bool losses_agree(size_t *where, const double *left, const double *right, size_t count,
                  const struct precision *precision, int64_t first) {
  for (size_t i = 0; i < count; i++) {
    const double tolerance = loss_tolerance(precision, first + (int64_t)i);
    const double size = fmax(1.0, fmax(fabs(left[i]), fabs(right[i])));
    /* Written so that NaN is a disagreement. */
    if (isfinite(left[i]) && fabs(left[i] - right[i]) <= tolerance * size) continue;
    *where = i;
    return false;
  }
  return true;
}
