/*
 * chart.c - numbers, texts and bars; see chart.h.
 */
#include "chart.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "chart_internal.h"
#include "html.h"

/* A row of bars: a line of text above the bar. Pixels. */
enum { ROW = 42, TEXT_LINE = 13, BAR_TOP = 19, BAR = 14, MARK_OUT = 3 };

/* ---- numbers ---- */

struct chart_number chart_number(const json_t *root, const char *path, ...) {
  struct chart_number number = {(double)NAN, ""};
  va_list arguments;
  va_start(arguments, path);
  (void)vsnprintf(number.path, sizeof number.path, path, arguments);
  va_end(arguments);
  char rest[sizeof number.path];
  memcpy(rest, number.path, sizeof rest);
  char *save = NULL;
  for (char *word = strtok_r(rest, ".", &save); word != NULL; word = strtok_r(NULL, ".", &save)) {
    root = json_is_array(root) ? json_array_get(root, (size_t)strtoul(word, NULL, 10))
                               : json_object_get(root, word);
  }
  if (json_is_number(root)) number.value = json_number_value(root);
  return number;
}

/* 1,234,567 */
static void put_groups(char *buffer, size_t size, double value) {
  char digits[40];
  (void)snprintf(digits, sizeof digits, "%.0f", value);
  const size_t count = strlen(digits);
  size_t used = 0;
  for (size_t i = 0; i < count && used + 2 < size; i++) {
    if (i > 0 && (count - i) % 3 == 0 && isdigit((unsigned char)digits[i - 1])) {
      buffer[used++] = ',';
    }
    buffer[used++] = digits[i];
  }
  buffer[used] = '\0';
}

static double byte_unit(double value, const char **name) {
  static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double unit = 1;
  size_t i = 0;
  while (value >= 1024 * unit && i + 1 < sizeof names / sizeof names[0]) {
    unit *= 1024;
    i++;
  }
  *name = names[i];
  return unit;
}

static const char *seconds_text(char buffer[CHART_TEXT], double value) {
  if (value < 1e-3) {
    (void)snprintf(buffer, CHART_TEXT, "%.1f \xc2\xb5s", value * 1e6);
  } else if (value < 1) {
    (void)snprintf(buffer, CHART_TEXT, "%.2f ms", value * 1e3);
  } else {
    (void)snprintf(buffer, CHART_TEXT, "%.2f s", value);
  }
  return buffer;
}

const char *chart_text(char buffer[CHART_TEXT], enum chart_unit unit, double value) {
  if (!isfinite(value)) return strcpy(buffer, "-");
  const char *name = NULL;
  char digits[40];
  switch (unit) {
  case CHART_BYTES: {
    const double scale = byte_unit(value, &name);
    (void)snprintf(buffer, CHART_TEXT, scale > 1 ? "%.2f %s" : "%.0f %s", value / scale, name);
    break;
  }
  case CHART_SECONDS: return seconds_text(buffer, value);
  case CHART_SAMPLES:
    put_groups(digits, sizeof digits, value);
    (void)snprintf(buffer, CHART_TEXT, "%s sample%s", digits, value == 1 ? "" : "s");
    break;
  case CHART_TIMES: (void)snprintf(buffer, CHART_TEXT, "%.3f \xc3\x97", value); break;
  }
  return buffer;
}

void chart__place(FILE *file, const struct chart_number *number) {
  fputs(" data-path=\"", file);
  html_text(file, number->path);
  fprintf(file, "\" data-value=\"%.17g\"", number->value);
}

void chart_span(FILE *file, const struct chart_number *number, enum chart_unit unit) {
  char text[CHART_TEXT];
  if (!isfinite(number->value)) {
    fputs("<span>-</span>", file);
    return;
  }
  fputs("<span", file);
  chart__place(file, number);
  fputc('>', file);
  html_text(file, chart_text(text, unit, number->value));
  fputs("</span>", file);
}

/* ---- the frame ---- */

void chart__begin(FILE *file, const struct chart *chart, bool parts, int height) {
  static unsigned descriptions; /* names them within the page */
  descriptions++;
  fprintf(file, "<svg role=\"%s\" height=\"%d\" aria-describedby=\"description-%u\" aria-label=\"",
          parts ? "group" : "img", height, descriptions);
  html_text(file, chart->title);
  fprintf(file, "\"><desc id=\"description-%u\">", descriptions);
  html_text(file, chart->description);
  fputs("</desc>\n", file);
}

/* ---- bars ---- */

double chart_row_total(const struct chart_row *row) {
  double total = 0;
  for (size_t i = 0; i < row->count; i++) {
    if (isfinite(row->parts[i].number.value)) total += row->parts[i].number.value;
  }
  return total;
}

double chart_row_most(const struct chart_row *row) {
  return fmax(chart_row_total(row), fmax(row->mark.value, row->limit.value));
}

/* One of a chart's parts; `tip` is what it says while it has the pointer or the focus. */
struct part {
  const char *classes, *palette, *colour, *name; /* palette: "c" or "p" */
  const struct chart_number *number;
  double left, width; /* percent */
  int top, height, text;
};

/* "outputs 32.00 MiB (33,554,432 B)" */
static void part_tip(char *tip, size_t size, const struct part *part, enum chart_unit unit) {
  char text[CHART_TEXT], digits[40];
  (void)chart_text(text, unit, part->number->value);
  if (unit == CHART_BYTES && part->number->value >= 1024) {
    put_groups(digits, sizeof digits, part->number->value);
    (void)snprintf(tip, size, "%s %s (%s B)", part->name, text, digits);
  } else {
    (void)snprintf(tip, size, "%s %s", part->name, text);
  }
}

static void write_part(FILE *file, const struct part *part, enum chart_unit unit, const char *row,
                       bool *first) {
  char tip[256];
  part_tip(tip, sizeof tip, part, unit);
  fprintf(file, "<g class=\"part %s\" role=\"img\" tabindex=\"%d\"", part->classes,
          *first ? 0 : -1);
  *first = false;
  chart__place(file, part->number);
  fputs(" aria-label=\"", file);
  html_format(file, "%s: %s", row, tip);
  fprintf(file,
          "\"><rect%s%s%s%s%s x=\"%.4f%%\" y=\"%d\" width=\"%.4f%%\" height=\"%d\"/>"
          "<text class=\"tip\" x=\"0\" y=\"%d\">",
          part->colour != NULL ? " class=\"" : "", part->colour != NULL ? part->palette : "",
          part->colour != NULL ? "-" : "", part->colour != NULL ? part->colour : "",
          part->colour != NULL ? "\"" : "", part->left, part->top, part->width, part->height,
          part->text);
  html_text(file, tip);
  fputs("</text></g>\n", file);
}

/* A line across the bar, two pixels wide whatever the chart's width is. */
static void write_line(FILE *file, const struct chart_row *row, const char *kind, const char *name,
                       const struct chart_number *number, const struct chart *chart, int y,
                       double most, bool *first) {
  if (!isfinite(number->value)) return;
  char tip[256];
  const struct part part = {.classes = kind, .name = name, .number = number};
  part_tip(tip, sizeof tip, &part, chart->unit);
  fprintf(file, "<g class=\"part %s\" role=\"img\" tabindex=\"%d\"", kind, *first ? 0 : -1);
  *first = false;
  chart__place(file, number);
  fputs(" aria-label=\"", file);
  html_format(file, "%s: %s", row->label, tip);
  fprintf(file,
          "\"><rect x=\"%.4f%%\" y=\"%d\" width=\"4\" height=\"%d\" transform=\"translate(-2 0)\"/>"
          "<text class=\"tip\" x=\"0\" y=\"%d\">",
          100 * number->value / most, y + BAR_TOP - MARK_OUT, BAR + 2 * MARK_OUT, y + TEXT_LINE);
  html_text(file, tip);
  fputs("</text></g>\n", file);
}

static void write_row(FILE *file, const struct chart *chart, const struct chart_row *row, int y,
                      double most, bool *first) {
  char text[CHART_TEXT];
  double left = 0;
  fputs("<g class=\"row\">\n", file);
  for (size_t i = 0; i < row->count; i++) {
    const struct chart_part *from = &row->parts[i];
    if (!(from->number.value > 0)) continue;
    const struct part part = {.classes = "bar",
                              .palette = chart->phases ? "p" : "c",
                              .colour = from->name,
                              .name = from->name,
                              .number = &from->number,
                              .left = 100 * left / most,
                              .width = 100 * from->number.value / most,
                              .top = y + BAR_TOP,
                              .height = BAR,
                              .text = y + TEXT_LINE};
    write_part(file, &part, chart->unit, row->label, first);
    left += from->number.value;
  }
  write_line(file, row, "mark", row->mark_name, &row->mark, chart, y, most, first);
  write_line(file, row, "limit", row->limit_name, &row->limit, chart, y, most, first);
  fprintf(file, "<text class=\"label\" x=\"0\" y=\"%d\">", y + TEXT_LINE);
  html_text(file, row->label);
  fputs("<tspan class=\"figure\" dx=\"8\">", file);
  html_text(file, row->note[0] != '\0' ? row->note : chart_text(text, chart->unit, left));
  fputs("</tspan></text></g>\n", file);
}

void chart_bars(FILE *file, const struct chart *chart, const struct chart_row *rows, size_t count,
                double most) {
  if (!(most > 0)) most = 1;
  bool first = true;
  chart__begin(file, chart, true, (int)count * ROW);
  for (size_t i = 0; i < count; i++) write_row(file, chart, &rows[i], (int)i * ROW, most, &first);
  fputs("</svg>\n", file);
}

/* ---- axes ---- */

double chart__step(double range, int steps, enum chart_unit unit) {
  const char *name = NULL;
  const double scale = unit == CHART_BYTES ? byte_unit(range / steps, &name) : 1;
  const double wanted = range / steps / scale;
  if (!(wanted > 0) || !isfinite(wanted)) return 1;
  const double power = pow(10, floor(log10(wanted)));
  static const double nice[] = {1, 2, 5, 10};
  double step = 10 * power;
  for (size_t i = sizeof nice / sizeof nice[0]; i-- > 0;) {
    if (nice[i] * power >= wanted * 0.999) step = nice[i] * power;
  }
  if (unit == CHART_BYTES && step > 500) step = 1024; /* 1 GiB and not 1,000 MiB */
  return step * scale;
}
