/*
 * grid.h - rows and columns of text, written as a table, as Markdown or as CSV.
 */
#ifndef BENCH_GRID_H
#define BENCH_GRID_H

#include <stdbool.h>
#include <stdio.h>

#include "terminal.h"

struct grid;

/* Memory that runs out ends the program. `title` may be NULL. */
struct grid *grid_create(const char *title);
void grid_free(struct grid *grid);

/* Columns are added before the first cell. */
void grid_column(struct grid *grid, const char *heading, bool left);

/* The column that was added last may be left out of a table that is too wide; those with the lowest
 * `order` first, but before them those that tell nothing: one word in all rows, zeros, "-". */
void grid_expendable(struct grid *grid, int order);

/* Appends the next cell, row by row. */
void grid_cell(struct grid *grid, const char *format, ...) BENCH_PRINTF(2, 3);

/* A number with `digits` after the point, "-" for one that is not finite. */
void grid_number(struct grid *grid, double value, int digits);

/* The same for CSV: nothing for one that is not finite, else all the digits that count. */
void grid_exact(struct grid *grid, double value);

/* What is in it; texts are the grid's. */
const char *grid_title(const struct grid *grid); /* "" if there is none */
size_t grid_columns(const struct grid *grid);
size_t grid_rows(const struct grid *grid);
const char *grid_heading(const struct grid *grid, size_t column);
bool grid_is_left(const struct grid *grid, size_t column);
const char *grid_text(const struct grid *grid, size_t row, size_t column);

/* No line is longer than `width` if columns can be left out, which a line under the table says, or
 * words of the last one wrapped; 0: there is no limit. */
void grid_write_table(const struct grid *grid, FILE *file, size_t width);
void grid_write_markdown(const struct grid *grid, FILE *file);
/* RFC 4180, but lines end in a plain newline. */
void grid_write_csv(const struct grid *grid, FILE *file);

#endif
