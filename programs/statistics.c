/*
 * statistics.c - median, mean, smallest and largest.
 */
#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

static int compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

struct summary summarize(const double *values, size_t count) {
  struct summary summary = {(double)NAN, (double)NAN, (double)NAN, (double)NAN};
  if (count == 0) return summary;
  double *sorted = need_memory(count, sizeof *sorted);
  memcpy(sorted, values, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, compare);
  summary.min = sorted[0];
  summary.max = sorted[count - 1];
  summary.median =
      count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += sorted[i];
  summary.mean = sum / (double)count;
  free(sorted);
  return summary;
}
