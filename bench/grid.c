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
  int order; /* in which it is left out; 0: never */
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
  grid->columns[grid->column_count].order = 0;
  grid->column_count++;
}

void grid_expendable(struct grid *grid, int order) {
  grid->columns[grid->column_count - 1].order = order;
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

/* ---- a table for people ---- */

enum { GAP = 2, LEAST_WRAPPED = 16 };

/* A table as it is written: which columns, and how wide. */
struct layout {
  size_t *widths;
  bool *shown;
  size_t width; /* limit of a line; 0: none */
};

static size_t line_width(const struct grid *grid, const struct layout *layout) {
  size_t sum = 0;
  for (size_t c = 0; c < grid->column_count; c++) {
    if (layout->shown[c]) sum += layout->widths[c] + (sum > 0 ? GAP : 0);
  }
  return sum;
}

static bool is_too_wide(const struct grid *grid, const struct layout *layout) {
  return layout->width > 0 && line_width(grid, layout) > layout->width;
}

/* The same word in every row, or nothing but zeros and "-". */
static bool tells_nothing(const struct grid *grid, size_t column) {
  for (size_t i = 0; i < grid_rows(grid); i++) {
    const char *text = grid_text(grid, i, column);
    const bool number = strcmp(text, "-") != 0 && strspn(text, "0.") != strlen(text);
    if (grid->columns[column].left ? strcmp(text, grid_text(grid, 0, column)) != 0 : number) {
      return false;
    }
  }
  return true;
}

/* The shown column that is left out next; the number of columns if all have been. */
static size_t next_to_go(const struct grid *grid, const struct layout *layout, bool idle) {
  size_t next = grid->column_count;
  for (size_t c = 0; c < grid->column_count; c++) {
    const int order = grid->columns[c].order;
    if (!layout->shown[c] || order == 0 || (idle && !tells_nothing(grid, c))) continue;
    if (next == grid->column_count || order < grid->columns[next].order) next = c;
  }
  return next;
}

static void leave_out(const struct grid *grid, struct layout *layout) {
  for (int idle = 1; idle >= 0; idle--) {
    while (is_too_wide(grid, layout)) {
      const size_t next = next_to_go(grid, layout, idle == 1);
      if (next == grid->column_count) break;
      layout->shown[next] = false;
    }
  }
}

static size_t last_shown(const struct grid *grid, const struct layout *layout) {
  size_t last = 0;
  for (size_t c = 0; c < grid->column_count; c++) {
    if (layout->shown[c]) last = c;
  }
  return last;
}

/* What is still too wide is the last column's, if that is text. */
static void narrow_last(const struct grid *grid, struct layout *layout) {
  const size_t last = last_shown(grid, layout);
  if (grid->column_count == 0 || !is_too_wide(grid, layout) || !grid->columns[last].left) return;
  const size_t before = line_width(grid, layout) - layout->widths[last];
  const size_t room = layout->width > before ? layout->width - before : 0;
  layout->widths[last] = room > LEAST_WRAPPED ? room : LEAST_WRAPPED;
}

/* Bytes of the first line of a text that is broken at blanks into lines of `width`. */
static size_t first_line(const char *text, size_t width) {
  size_t columns = 0, end = 0, i = 0;
  for (; text[i] != '\0'; i++) {
    if (text[i] == ' ') end = i;
    columns += ((unsigned char)text[i] & 0xC0u) != 0x80u;
    if (columns > width) return end > 0 ? end : i; /* a word that is longer is cut */
  }
  return i;
}

/* Breaks at blanks; lines after the first begin after `indent` blanks. */
static void write_wrapped(FILE *file, const char *text, size_t width, size_t indent) {
  if (width == 0) {
    fprintf(file, "%s\n", text);
    return;
  }
  do {
    const size_t length = first_line(text, width);
    fprintf(file, "%.*s\n", (int)length, text);
    text += length;
    while (*text == ' ') text++;
    if (*text != '\0') fprintf(file, "%*s", (int)indent, "");
  } while (*text != '\0');
}

/* Pads to `width`. */
static void write_padded(FILE *file, const char *text, size_t width, bool left) {
  const int padding = (int)(width - screen_width(text));
  if (!left) fprintf(file, "%*s", padding, "");
  fputs(text, file);
  if (left) fprintf(file, "%*s", padding, "");
}

/* One line, and more where the last column is narrowed; nothing after the last column. */
static void write_row(const struct grid *grid, FILE *file, const struct layout *layout,
                      size_t first, bool headings) {
  const size_t last = last_shown(grid, layout);
  for (size_t c = 0; c < last; c++) {
    if (!layout->shown[c]) continue;
    write_padded(file, headings ? grid->columns[c].heading : grid->cells[first + c],
                 layout->widths[c], grid->columns[c].left);
    fprintf(file, "%*s", GAP, "");
  }
  const char *text = headings ? grid->columns[last].heading : grid->cells[first + last];
  if (grid->columns[last].left) {
    write_wrapped(file, text, layout->widths[last],
                  line_width(grid, layout) - layout->widths[last]);
  } else {
    write_padded(file, text, layout->widths[last], false);
    fputc('\n', file);
  }
}

static void write_rule(const struct grid *grid, FILE *file, const struct layout *layout) {
  const size_t last = last_shown(grid, layout);
  for (size_t c = 0; c < grid->column_count; c++) {
    if (!layout->shown[c]) continue;
    for (size_t i = 0; i < layout->widths[c]; i++) fputc('-', file);
    if (c < last) fprintf(file, "%*s", GAP, "");
  }
  fputc('\n', file);
}

static void write_left_out(const struct grid *grid, FILE *file, const struct layout *layout) {
  char *note = NULL;
  size_t size = 0;
  FILE *text = open_memstream(&note, &size);
  size_t count = 0;
  if (text == NULL) return; /* a note is not worth a failure */
  for (size_t c = 0; c < grid->column_count; c++) {
    if (layout->shown[c]) continue;
    fprintf(text, "%s%s", count++ == 0 ? "Left out, shown by --wide: " : ", ",
            grid->columns[c].heading);
  }
  if (fclose(text) == 0 && count > 0) write_wrapped(file, note, layout->width, 0);
  free(note);
}

void grid_write_table(const struct grid *grid, FILE *file, size_t width) {
  struct layout layout = {column_widths(grid), need_memory(grid->column_count, sizeof(bool)),
                          width};
  for (size_t c = 0; c < grid->column_count; c++) layout.shown[c] = true;
  leave_out(grid, &layout);
  narrow_last(grid, &layout);
  if (grid->title != NULL) write_wrapped(file, grid->title, width, 0);
  if (grid->column_count > 0) {
    write_row(grid, file, &layout, 0, true);
    write_rule(grid, file, &layout);
  }
  for (size_t i = 0; i + grid->column_count <= grid->cell_count && grid->column_count > 0;
       i += grid->column_count) {
    write_row(grid, file, &layout, i, false);
  }
  write_left_out(grid, file, &layout);
  free(layout.widths);
  free(layout.shown);
}

/* ---- for programs and pages ---- */

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
