/*
 * report_rows.c - see report_rows.h.
 */
#include "report_rows.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"

void rows_fill(struct chart_row *row, const json_t *root, const char *path, const json_t *object,
               const char *more, const char *more_path) {
  const size_t members = json_object_size(object);
  row->parts = need_memory(members + 1, sizeof *row->parts);
  const char *key = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)object, key, value) {
    row->parts[row->count++] = (struct chart_part){key, chart_number(root, "%s.%s", path, key)};
  }
  if (more != NULL) {
    row->parts[row->count++] = (struct chart_part){more, chart_number(root, "%s", more_path)};
  }
  row->mark = row->limit = (struct chart_number){(double)NAN, ""};
}

struct rows rows_create(size_t count) {
  return (struct rows){need_memory(count, sizeof(struct chart_row)), count};
}

void rows_free(struct rows *rows) {
  for (size_t i = 0; i < rows->count; i++) free(rows->rows[i].parts);
  free(rows->rows);
}

double rows_most(const struct rows *groups, size_t count) {
  double most = 0;
  for (size_t g = 0; g < count; g++) {
    for (size_t i = 0; i < groups[g].count; i++) {
      most = fmax(most, chart_row_most(&groups[g].rows[i]));
    }
  }
  return most;
}

static bool has_part(const struct rows *groups, size_t count, const char *name) {
  for (size_t g = 0; g < count; g++) {
    for (size_t i = 0; i < groups[g].count; i++) {
      const struct chart_row *row = &groups[g].rows[i];
      for (size_t p = 0; p < row->count; p++) {
        if (row->parts[p].number.value > 0 && strcmp(row->parts[p].name, name) == 0) return true;
      }
    }
  }
  return false;
}

void rows_item(FILE *file, const char *classes, const char *name) {
  fputs("<li><i class=\"", file);
  html_text(file, classes);
  fputs("\"></i>", file);
  html_text(file, name);
  fputs("</li>\n", file);
}

void rows_legend(FILE *file, const struct rows *groups, size_t count, bool phases) {
  fputs("<ul class=\"legend\">\n", file);
  const struct chart_row *first = NULL, *marked = NULL, *limited = NULL;
  for (size_t g = count; g-- > 0;) {
    for (size_t i = groups[g].count; i-- > 0;) {
      first = &groups[g].rows[i];
      if (isfinite(first->mark.value)) marked = first;
      if (isfinite(first->limit.value)) limited = first;
    }
  }
  for (size_t p = 0; first != NULL && p < first->count; p++) {
    char classes[96];
    if (!has_part(groups, count, first->parts[p].name)) continue;
    (void)snprintf(classes, sizeof classes, "%s-%s", phases ? "p" : "c", first->parts[p].name);
    rows_item(file, classes, first->parts[p].name);
  }
  if (marked != NULL) rows_item(file, "thin c-mark", marked->mark_name);
  if (limited != NULL) rows_item(file, "thin c-limit", limited->limit_name);
  fputs("</ul>\n", file);
}

void rows_heading(FILE *file, const char *heading, const char *text) {
  fputs("<h2>", file);
  html_text(file, heading);
  fputs("</h2>\n<p class=\"soft\">", file);
  html_text(file, text);
  fputs("</p>\n", file);
}

void rows_figure(FILE *file, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  char *heading = need_format(format, arguments);
  va_end(arguments);
  fputs("<figure>\n<h3>", file);
  html_text(file, heading);
  fputs("</h3>\n", file);
  free(heading);
}

const char *rows_text(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text == NULL ? "" : text;
}

const char *rows_run_name(char buffer[ROWS_NAME], const json_t *root, const json_t *run,
                          const char *key) {
  const char *precision = rows_text(run, "precision");
  const json_t *all = json_object_get(json_object_get(root, "config"), "precisions");
  const bool plain = json_array_size(all) < 2 && strcmp(precision, "f32") == 0;
  (void)snprintf(buffer, ROWS_NAME, plain || precision[0] == '\0' ? "%.100s" : "%.100s, %.20s",
                 rows_text(run, key), precision);
  return buffer;
}
