/*
 * grid.c - rows and columns of text and their three notations.
 */
#include "grid.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct column {
  char *heading;
  bool left;
};

struct grid {
  char *title;
  struct column *columns;
  size_t column_count;
  char **cells;
  size_t cell_count, cell_room;
};

struct grid *grid_create(const char *title) {
  struct grid *grid = need_memory(1, sizeof *grid);
  if (title != NULL) grid->title = need_copy(title, strlen(title));
  return grid;
}

void grid_free(struct grid *grid) {
  if (grid == NULL) return;
  for (size_t i = 0; i < grid->column_count; i++) free(grid->columns[i].heading);
  for (size_t i = 0; i < grid->cell_count; i++) free(grid->cells[i]);
  free(grid->columns);
  free(grid->cells);
  free(grid->title);
  free(grid);
}

void grid_column(struct grid *grid, const char *heading, bool left) {
  grid->columns = need_more(grid->columns, grid->column_count + 1, sizeof *grid->columns);
  grid->columns[grid->column_count].heading = need_copy(heading, strlen(heading));
  grid->columns[grid->column_count].left = left;
  grid->column_count++;
}

void grid_cell(struct grid *grid, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char *text = need_format(format, arguments);
  va_end(arguments);
  if (grid->cell_count == grid->cell_room) {
    grid->cell_room = grid->cell_room * 2 + 64;
    grid->cells = need_more(grid->cells, grid->cell_room, sizeof *grid->cells);
  }
  grid->cells[grid->cell_count++] = text;
}

void grid_number(struct grid *grid, double value, int digits) {
  if (isfinite(value)) {
    grid_cell(grid, "%.*f", digits, value);
  } else {
    grid_cell(grid, "-");
  }
}

void grid_exact(struct grid *grid, double value) {
  if (isfinite(value)) {
    grid_cell(grid, "%.17g", value);
  } else {
    grid_cell(grid, "%s", "");
  }
}

const char *grid_title(const struct grid *grid) { return grid->title == NULL ? "" : grid->title; }

size_t grid_columns(const struct grid *grid) { return grid->column_count; }

/* A row that was begun and not ended does not count. */
size_t grid_rows(const struct grid *grid) {
  return grid->column_count == 0 ? 0 : grid->cell_count / grid->column_count;
}

const char *grid_heading(const struct grid *grid, size_t column) {
  return grid->columns[column].heading;
}

bool grid_is_left(const struct grid *grid, size_t column) { return grid->columns[column].left; }

const char *grid_text(const struct grid *grid, size_t row, size_t column) {
  return grid->cells[row * grid->column_count + column];
}

/* Characters on the screen: UTF-8 continuation bytes take no room. */
static size_t screen_width(const char *text) {
  size_t width = 0;
  for (; *text != '\0'; text++) width += ((unsigned char)*text & 0xC0u) != 0x80u;
  return width;
}

static size_t *column_widths(const struct grid *grid) {
  size_t *widths = need_memory(grid->column_count, sizeof *widths);
  for (size_t c = 0; c < grid->column_count; c++) {
    widths[c] = screen_width(grid->columns[c].heading);
    for (size_t i = c; i < grid->cell_count; i += grid->column_count) {
      const size_t width = screen_width(grid->cells[i]);
      if (width > widths[c]) widths[c] = width;
    }
  }
  return widths;
}

/* Pads to `width`; nothing behind the last column of a plain table. */
static void write_padded(FILE *file, const char *text, size_t width, bool left, bool trim) {
  const int padding = (int)(width - screen_width(text));
  if (!left) fprintf(file, "%*s", padding, "");
  fputs(text, file);
  if (left && !trim) fprintf(file, "%*s", padding, "");
}

static void write_row(const struct grid *grid, FILE *file, const size_t *widths, size_t first,
                      bool headings) {
  for (size_t c = 0; c < grid->column_count; c++) {
    const char *text = headings ? grid->columns[c].heading : grid->cells[first + c];
    if (c > 0) fputs("  ", file);
    write_padded(file, text, widths[c], grid->columns[c].left, c + 1 == grid->column_count);
  }
  fputc('\n', file);
}

void grid_write_table(const struct grid *grid, FILE *file) {
  size_t *widths = column_widths(grid);
  if (grid->title != NULL) fprintf(file, "%s\n", grid->title);
  write_row(grid, file, widths, 0, true);
  for (size_t c = 0; c < grid->column_count; c++) {
    if (c > 0) fputs("  ", file);
    for (size_t i = 0; i < widths[c]; i++) fputc('-', file);
  }
  fputc('\n', file);
  for (size_t i = 0; i + grid->column_count <= grid->cell_count; i += grid->column_count) {
    write_row(grid, file, widths, i, false);
  }
  free(widths);
}

static void write_markdown_text(FILE *file, const char *text) {
  for (; *text != '\0'; text++) {
    if (*text == '|') fputc('\\', file);
    fputc(*text == '\n' ? ' ' : *text, file);
  }
}

void grid_write_markdown(const struct grid *grid, FILE *file) {
  if (grid->title != NULL) fprintf(file, "%s\n\n", grid->title);
  for (size_t c = 0; c < grid->column_count; c++) {
    fputs("| ", file);
    write_markdown_text(file, grid->columns[c].heading);
    fputc(' ', file);
  }
  fputs("|\n", file);
  for (size_t c = 0; c < grid->column_count; c++) {
    fputs(grid->columns[c].left ? "|---" : "|--:", file);
  }
  fputs("|\n", file);
  for (size_t i = 0; i < grid->cell_count; i++) {
    fputs("| ", file);
    write_markdown_text(file, grid->cells[i]);
    fputs((i + 1) % grid->column_count == 0 ? " |\n" : " ", file);
  }
}

static void write_csv_field(FILE *file, const char *text) {
  if (strpbrk(text, ",\"\r\n") == NULL) {
    fputs(text, file);
    return;
  }
  fputc('"', file);
  for (; *text != '\0'; text++) {
    if (*text == '"') fputc('"', file);
    fputc(*text, file);
  }
  fputc('"', file);
}

void grid_write_csv(const struct grid *grid, FILE *file) {
  for (size_t c = 0; c < grid->column_count; c++) {
    if (c > 0) fputc(',', file);
    write_csv_field(file, grid->columns[c].heading);
  }
  fputc('\n', file);
  for (size_t i = 0; i < grid->cell_count; i++) {
    write_csv_field(file, grid->cells[i]);
    fputc((i + 1) % grid->column_count == 0 ? '\n' : ',', file);
  }
}
