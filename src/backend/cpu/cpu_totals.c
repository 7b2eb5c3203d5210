/*
 * cpu_totals.c - puts the terms of a loss together: a handful of numbers in double precision.
 */
#include "backend/cpu/cpu_internal.h"

ek_status ek__cpu_combine_totals(ek_stream *stream, const struct ek__combine_args *args) {
  (void)stream;
  const double *c = args->coefficients;
  const double *totals = args->totals;
  if (!args->divide) {
    double sum = 0.0;
    for (size_t j = 0; j < args->terms; j++) {
      sum += c[j] * totals[2 * j];
      args->scales[j] = c[j];
    }
    args->combined[0] = sum;
    args->combined[1] = 1.0;
    return EK_OK;
  }
  double largest = 0.0;
  for (size_t j = 0; j < args->terms; j++) {
    if (totals[2 * j + 1] > largest) largest = totals[2 * j + 1];
  }
  double sum = 0.0;
  for (size_t j = 0; j < args->terms; j++) {
    const double d = totals[2 * j + 1];
    /* D / d first: it is 1 for the only term of an ordinary loss, whose s then stays as it is. */
    args->scales[j] = d == 0.0 ? 0.0 : c[j] * (largest / d);
    if (d != 0.0) sum += args->scales[j] * totals[2 * j];
  }
  args->combined[0] = sum;
  args->combined[1] = largest;
  return EK_OK;
}
