/*
 * chart_internal.h - what the kinds of charts share.
 */
#ifndef BENCH_CHART_INTERNAL_H
#define BENCH_CHART_INTERNAL_H

#include "chart.h"

/* <svg ...>; with `parts` its children can have the focus. */
void chart__begin(FILE *file, const struct chart *chart, bool parts, int height);
/* The two attributes that name a number. */
void chart__place(FILE *file, const struct chart_number *number);
/* A round distance between ticks, about `steps` of them within the range. */
double chart__step(double range, int steps, enum chart_unit unit);

#endif
