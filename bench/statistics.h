/*
 * statistics.h - median, smallest and largest of a few measurements.
 */
#ifndef BENCH_STATISTICS_H
#define BENCH_STATISTICS_H

#include <stddef.h>

struct summary {
  double median, min, max; /* NaN for no values */
};

/* The median of an even number of values is the mean of the two in the middle. */
struct summary summarize(const double *values, size_t count);

/* Seconds on a clock that never jumps; only differences mean something. */
double clock_seconds(void);
/* Of the processors, for this process so far. */
double processor_seconds(void);

#endif
