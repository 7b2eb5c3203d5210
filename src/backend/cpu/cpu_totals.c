/*
 * cpu_totals.c - puts the terms of a loss together: a handful of numbers in double precision.
 */
#include "backend/cpu/cpu_internal.h"

#include <math.h>

/* D / d of a term. It is 1 for the only term of an ordinary loss, whose s then stays as it is, also
 * where its d is 0: D is then that of other micro-batches. */
static double ratio(double largest, double d) {
  if (d == largest) return 1.0;
  return d == 0.0 ? 0.0 : largest / d;
}

static void write_scale(const struct ek__combine_args *args, size_t term, double scale) {
  args->scales[2 * term] = scale;
  args->scales[2 * term + 1] = 0.0;
}

ek_status ek__cpu_combine_totals(ek_stream *stream, const struct ek__combine_args *args) {
  (void)stream;
  const double *c = args->coefficients;
  const double *totals = args->totals;
  if (!args->divide) {
    double sum = 0.0;
    for (size_t j = 0; j < args->terms; j++) {
      sum += c[j] * totals[2 * j];
      write_scale(args, j, c[j]);
    }
    args->combined[0] = sum;
    args->combined[1] = 1.0;
    return EK_OK;
  }
  double largest = args->terms > 0 ? totals[1] : 0.0;
  for (size_t j = 1; j < args->terms; j++) { /* a NaN is larger than all */
    const double d = totals[2 * j + 1];
    if (d > largest || isnan(d)) largest = d;
  }
  double sum = 0.0;
  for (size_t j = 0; j < args->terms; j++) {
    const double scale = c[j] * ratio(largest, totals[2 * j + 1]);
    write_scale(args, j, scale);
    sum += scale * totals[2 * j];
  }
  args->combined[0] = sum;
  args->combined[1] = largest;
  return EK_OK;
}
