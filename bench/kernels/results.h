/*
 * results.h - what evenkeel-kernels measured, as a table, Markdown, CSV or JSON.
 */
#ifndef BENCH_KERNELS_RESULTS_H
#define BENCH_KERNELS_RESULTS_H

#include "kernels.h"
#include "statistics.h"

struct result { /* of one operation, over the rounds */
  const struct kernel *kernel;
  int64_t rows, columns;
  double bytes, flops;    /* of a call */
  struct summary seconds; /* of a call */
  struct summary other;   /* bytes of a copy a second; or seconds of a call in f32 */
  struct summary ratio;   /* of speeds, over the copy; or of seconds, over f32 */
};

struct results {
  const char *device;
  ek_type type;
  int64_t mib, tokens, rounds;
  int threads;
  bool against_f32;    /* and not a copy */
  bool processor_time; /* and not the clock's */
  struct result *all;
  size_t count;
};

enum results_format { RESULTS_TABLE, RESULTS_MARKDOWN, RESULTS_CSV, RESULTS_JSON };
/* False for another word. */
bool results_parse(enum results_format *format, const char *text);
/* To standard output. */
void results_write(const struct results *results, enum results_format format);

#endif
