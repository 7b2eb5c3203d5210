/*
 * report_rows.h - what the charts of several commands share: rows of bars from objects of JSON,
 * their legend, headings and the names of runs.
 */
#ifndef BENCH_REPORT_ROWS_H
#define BENCH_REPORT_ROWS_H

#include <jansson.h>
#include <stdio.h>

#include "chart.h"

/* The rows of a chart, whose parts are theirs. */
struct rows {
  struct chart_row *rows;
  size_t count;
};

struct rows rows_create(size_t count);
void rows_free(struct rows *rows);
/* The longest of all rows. */
double rows_most(const struct rows *groups, size_t count);
/* A row has a part for each member of `object`, which is at `path`, and one called `more`, if that
 * is not NULL, with the number at `more_path`. */
void rows_fill(struct chart_row *row, const json_t *root, const char *path, const json_t *object,
               const char *more, const char *more_path);

/* The parts that appear in any row, in the order of the first row, and the lines across. */
void rows_legend(FILE *file, const struct rows *groups, size_t count, bool phases);
/* One entry of a legend that the caller has begun. */
void rows_item(FILE *file, const char *classes, const char *name);
void rows_heading(FILE *file, const char *heading, const char *text);
/* Begins a figure with a heading: printf(), then html_text(). */
void rows_figure(FILE *file, const char *format, ...) BENCH_PRINTF(2, 3);

/* A member, or "" if it is no text. */
const char *rows_text(const json_t *object, const char *key);
/* A run's member, and its precision if that is not f32, or if runs of several are on the page;
 * returns `buffer`. */
enum { ROWS_NAME = 160 };
const char *rows_run_name(char buffer[ROWS_NAME], const json_t *root, const json_t *run,
                          const char *key);

#endif
