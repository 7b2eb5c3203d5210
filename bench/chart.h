/*
 * chart.h - charts as inline SVG: stacked bars, curves over time, points.
 *
 * Widths are in percent and heights in pixels, so that a chart is as wide as its column and its
 * text keeps its size. Every number that is drawn names its place in the embedded JSON
 * (`data-path`) and is that number (`data-value`): a test compares them, and so can a reader. Text
 * stands beside the colours and never on them.
 *
 * Why not a library: Debian's that draw SVG (cairo, plplot, gnuplot) give a picture, in which text
 * scales with the width and nothing can be focused, styled for dark screens or read out.
 */
#ifndef BENCH_CHART_H
#define BENCH_CHART_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "terminal.h"

enum chart_unit { CHART_BYTES, CHART_SECONDS, CHART_SAMPLES, CHART_TIMES };

/* A number of the result and where it stands, such as "runs.0.devices.2.peak_bytes". */
struct chart_number {
  double value; /* NaN: null, or nothing there */
  char path[96];
};
struct chart_number chart_number(const json_t *root, const char *path, ...) BENCH_PRINTF(2, 3);

/* "42.00 MiB", "1.25 ms", "128 samples", "0.431 times"; returns `buffer`. */
enum { CHART_TEXT = 64 };
const char *chart_text(char buffer[CHART_TEXT], enum chart_unit unit, double value);

/* <span data-path="..." data-value="...">text</span> */
void chart_span(FILE *file, const struct chart_number *number, enum chart_unit unit);

/* Title and long description are what a screen reader says; both are plain text. */
struct chart {
  const char *title, *description;
  enum chart_unit unit;
  bool phases; /* the parts are phases of a step, which have colours of their own */
};

/* ---- bars ---- */

struct chart_part {
  const char *name; /* also its colour: class c-NAME, of a phase p-NAME */
  struct chart_number number;
};

struct chart_row {
  char label[96];
  char note[96]; /* after the label; "": the sum of the parts */
  struct chart_part *parts;
  size_t count;
  const char *mark_name, *limit_name;
  struct chart_number mark, limit; /* a line across the bar; NaN: none */
};

/* `most` is the value of the whole width: the same for all charts that are compared. */
void chart_bars(FILE *file, const struct chart *chart, const struct chart_row *rows, size_t count,
                double most);
double chart_row_total(const struct chart_row *row);
/* What the row reaches to the right. */
double chart_row_most(const struct chart_row *row);

/* ---- curves over seconds ---- */

struct chart_phase {
  const char *name;
  struct chart_number begin, end;
};

/* Steps: y holds until the next x. Both are JSON arrays of numbers of the same length. */
struct chart_curve {
  const json_t *x, *y;
  char path[96]; /* of the object that holds them */
  bool first;    /* stands out */
};

/* One on top of the other in their order, each a step like a curve; x is that of all. */
struct chart_area {
  const char *name; /* also its colour */
  const json_t *y;
};

struct chart_time {
  const struct chart_phase *phases;
  size_t phase_count;
  const struct chart_curve *curves;
  size_t curve_count;
  const struct chart_area *areas; /* below the curves */
  size_t area_count;
  const json_t *area_x;
  char area_path[96];   /* of the object that holds the areas, by name, and beside it "seconds" */
  double seconds, most; /* of the whole width and height */
};
void chart_curves(FILE *file, const struct chart *chart, const struct chart_time *time);

/* ---- points ---- */

struct chart_point {
  const char *name;
  struct chart_number x, y;
  bool best; /* set by chart_find_best() */
};

/* Which points no other one beats in both: less x, more y. */
void chart_find_best(struct chart_point *points, size_t count);
/* Numbered from 1 in their order; a line leads along the best. */
void chart_points(FILE *file, const struct chart *chart, const char *x_name, const char *y_name,
                  const struct chart_point *points, size_t count);

#endif
