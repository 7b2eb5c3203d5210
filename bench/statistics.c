/*
 * statistics.c - median, smallest and largest; the clock.
 */
#include "statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "terminal.h"

static int compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

struct summary summarize(const double *values, size_t count) {
  struct summary summary = {(double)NAN, (double)NAN, (double)NAN};
  if (count == 0) return summary;
  double *sorted = need_memory(count, sizeof *sorted);
  memcpy(sorted, values, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, compare);
  summary.min = sorted[0];
  summary.max = sorted[count - 1];
  summary.median =
      count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
  free(sorted);
  return summary;
}

double clock_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
