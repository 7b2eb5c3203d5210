/*
 * chart_curves.c - several curves, or areas on top of each other, over one axis of time, and the
 * phases in the background.
 *
 * The plot is an SVG within the SVG, stretched to its place; the lines keep their width
 * (non-scaling-stroke), and all text is outside of it, in percent.
 */
#include "chart_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"

/* Pixels from top to bottom: names of phases, the plot, ticks of time. In percent: the plot's left
   side, after the numbers of the other axis. Units of the plot's own system of coordinates. */
enum { PHASES = 20, PLOT = 180, TICKS = 18, LEFT = 15, UNITS = 1000 };

/* Pixels of a plot within the narrowest window, and within a wide one; of a letter. */
enum { NARROW = 290, ROOMY = 400, LETTER = 7 };

static double across(const struct chart_time *time, double seconds) {
  return LEFT + (100 - LEFT) * seconds / time->seconds;
}

/* Bands in turns, and names where there is room for them. */
static void write_phases(FILE *file, const struct chart_time *time) {
  for (size_t i = 0; i < time->phase_count; i++) {
    const struct chart_phase *phase = &time->phases[i];
    const double left = across(time, phase->begin.value), right = across(time, phase->end.value);
    if (i % 2 == 0) {
      fprintf(file, "<rect class=\"band\" x=\"%.4f%%\" y=\"%d\" width=\"%.4f%%\" height=\"%d\"/>\n",
              left, PHASES, right - left, PLOT);
    }
    fprintf(file, "<rect class=\"p-%s\" x=\"%.4f%%\" y=\"%d\" width=\"%.4f%%\" height=\"4\"",
            phase->name, left, PHASES - 4, right - left);
    chart__place(file, &phase->begin);
    fputs("/>\n", file);
    const double share = (phase->end.value - phase->begin.value) / time->seconds;
    const double wanted = LETTER * (double)strlen(phase->name) + 4;
    if (share * ROOMY < wanted) continue;
    fprintf(file, "<text class=\"tick middle%s\" x=\"%.4f%%\" y=\"%d\">",
            share * NARROW < wanted ? " roomy" : "", (left + right) / 2, PHASES - 8);
    html_text(file, phase->name);
    fputs("</text>\n", file);
  }
}

static void write_axes(FILE *file, const struct chart *chart, const struct chart_time *time) {
  char text[CHART_TEXT];
  const double step = chart__step(time->most, 4, chart->unit);
  for (int i = 0; i * step <= time->most; i++) {
    const double y = PHASES + PLOT * (1 - i * step / time->most);
    fprintf(file,
            "<line class=\"grid\" x1=\"%d%%\" x2=\"100%%\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick right\" x=\"%d%%\" dx=\"-6\" y=\"%.1f\">",
            LEFT, y, y, LEFT, y + 4);
    if (i == 0) {
      fputc('0', file);
    } else {
      /* Round numbers: "10 MiB". */
      (void)chart_text(text, chart->unit, i * step);
      char *zeros = strstr(text, ".00 ");
      if (zeros != NULL) memmove(zeros, zeros + 3, strlen(zeros + 3) + 1);
      html_text(file, text);
    }
    fputs("</text>\n", file);
  }
  const double lap = chart__step(time->seconds, 4, CHART_SECONDS);
  for (int i = 0; i * lap <= time->seconds; i++) {
    const double at = across(time, i * lap);
    fprintf(file, "<text class=\"tick %s\" x=\"%.4f%%\" y=\"%d\">",
            i == 0    ? ""
            : at > 92 ? "right"
                      : "middle",
            at, PHASES + PLOT + TICKS - 3);
    if (i == 0) {
      fputs("0", file);
    } else {
      html_format(file, "%g ms", i * lap * 1e3);
    }
    fputs("</text>\n", file);
  }
}

static void write_curve(FILE *file, const struct chart_time *time,
                        const struct chart_curve *curve) {
  fprintf(file, "<polyline class=\"curve%s\" data-path=\"", curve->first ? " first" : "");
  html_text(file, curve->path);
  fputs("\" points=\"", file);
  double before = 0;
  for (size_t i = 0; i < json_array_size(curve->x); i++) {
    const double seconds = json_number_value(json_array_get(curve->x, i));
    const double value = json_number_value(json_array_get(curve->y, i));
    const double x = UNITS * seconds / time->seconds;
    if (i > 0) fprintf(file, "%.3f,%.4f ", x, PLOT * (1 - before / time->most));
    fprintf(file, "%.3f,%.4f ", x, PLOT * (1 - value / time->most));
    before = value;
  }
  fprintf(file, "%d,%.4f\"/>\n", UNITS, PLOT * (1 - before / time->most));
}

/* Along the upper side, where `under` are added up, and back along the lower one. */
static void write_area(FILE *file, const struct chart_time *time, const struct chart_area *area,
                       double *under) {
  const size_t count = json_array_size(time->area_x);
  double *over = need_memory(count, sizeof *over);
  fprintf(file, "<polygon class=\"area c-%s\" data-path=\"", area->name);
  html_text(file, time->area_path);
  fprintf(file, "\" data-name=\"%s\" points=\"", area->name);
  for (size_t i = 0; i < count; i++) {
    const double x = UNITS * json_number_value(json_array_get(time->area_x, i)) / time->seconds;
    over[i] = under[i] + json_number_value(json_array_get(area->y, i));
    if (i > 0) fprintf(file, "%.2f,%.3f ", x, PLOT * (1 - over[i - 1] / time->most));
    fprintf(file, "%.2f,%.3f ", x, PLOT * (1 - over[i] / time->most));
  }
  fprintf(file, "%d,%.3f %d,%.3f", UNITS, PLOT * (1 - over[count - 1] / time->most), UNITS,
          PLOT * (1 - under[count - 1] / time->most));
  for (size_t i = count; i-- > 0;) {
    const double x = UNITS * json_number_value(json_array_get(time->area_x, i)) / time->seconds;
    fprintf(file, " %.2f,%.3f", x, PLOT * (1 - under[i] / time->most));
    if (i > 0) fprintf(file, " %.2f,%.3f", x, PLOT * (1 - under[i - 1] / time->most));
  }
  fputs("\"/>\n", file);
  memcpy(under, over, count * sizeof *over);
  free(over);
}

static void write_areas(FILE *file, const struct chart_time *time) {
  const size_t count = json_array_size(time->area_x);
  if (count == 0) return;
  double *under = need_memory(count, sizeof *under);
  for (size_t i = 0; i < time->area_count; i++) write_area(file, time, &time->areas[i], under);
  free(under);
}

void chart_curves(FILE *file, const struct chart *chart, const struct chart_time *time) {
  chart__begin(file, chart, false, PHASES + PLOT + TICKS);
  write_phases(file, time);
  write_axes(file, chart, time);
  fprintf(file,
          "<svg x=\"%d%%\" y=\"%d\" width=\"%d%%\" height=\"%d\" viewBox=\"0 0 %d %d\" "
          "preserveAspectRatio=\"none\" style=\"width:%d%%\" data-seconds=\"%.17g\" "
          "data-most=\"%.17g\">\n",
          LEFT, PHASES, 100 - LEFT, PLOT, UNITS, PLOT, 100 - LEFT, time->seconds, time->most);
  write_areas(file, time);
  for (size_t i = 0; i < time->curve_count; i++) {
    if (!time->curves[i].first) write_curve(file, time, &time->curves[i]);
  }
  for (size_t i = 0; i < time->curve_count; i++) {
    if (time->curves[i].first) write_curve(file, time, &time->curves[i]);
  }
  fputs("</svg>\n</svg>\n", file);
}
