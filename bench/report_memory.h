/*
 * report_memory.h - the result of `memory` in its three forms.
 */
#ifndef BENCH_REPORT_MEMORY_H
#define BENCH_REPORT_MEMORY_H

#include "report.h"

/*
 * One mode: what ran, and the same planned without a cap. Where the real one ran out of memory, the
 * planned peaks take its place.
 */
struct memory_result {
  struct run real, planned;
  struct run without; /* with --reproducible: the same mode without it; else all zero */
};

/* The run whose peaks are shown. */
const struct run *memory_shown(const struct memory_result *result);

struct report report_memory(const struct options *options, const struct text *text,
                            const struct memory_result *results, size_t count);

/* The timelines of all runs as CSV, unless `output` is NULL. False, after a message, if it cannot
 * be
   written. */
bool report_timeline(struct output *output, const struct memory_result *results, size_t count);

#endif
