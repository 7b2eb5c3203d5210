/*
 * statistics.h - median, smallest and largest of a few measurements; the clocks.
 */
#ifndef PROGRAMS_STATISTICS_H
#define PROGRAMS_STATISTICS_H

#include <stddef.h>
#include <time.h>

struct summary {
  double median, mean, min, max; /* NaN for no values */
};

/* The median of an even number of values is the mean of the two in the middle. */
struct summary summarize(const double *values, size_t count);

static inline double clock_reading(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Seconds on a clock that never jumps; only differences mean something. Here and not in a source
 * file: terminal.c reads it, and statistics.c needs terminal.c. */
static inline double clock_seconds(void) { return clock_reading(CLOCK_MONOTONIC); }
/* Seconds of the processors, for this process so far. */
static inline double processor_seconds(void) { return clock_reading(CLOCK_PROCESS_CPUTIME_ID); }

#endif
