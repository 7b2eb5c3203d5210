/*
 * chart_points.c - points in a plane, numbered, with a line along those that no other one beats.
 *
 * Numbers are put beside the points, or further away with a line to the point where the places
 * beside it are taken, and do not overlap in any plot from the narrowest to the widest: points that
 * were measured may be anywhere, also all but one in the same place.
 */
#include "chart_internal.h"

#include <math.h>
#include <stdlib.h>

#include "html.h"

/* Pixels: height of all, of the plot and above it; the plot's left side in percent, its right. */
enum { HEIGHT = 360, TOP = 24, PLOT = 292, LEFT = 13, RIGHT = 97 };
/* Pixels of the narrowest plot; of a number with two digits; of a point. */
enum { NARROW = 330, NUMBER_WIDTH = 15, NUMBER_HEIGHT = 12, RADIUS = 5 };
enum { WIDEST = 4 }; /* times the narrowest */

struct range {
  double low, high, step;
};

/* From a tick to a tick around all points. */
static struct range find_range(double low, double high) {
  if (!(high > low)) high = low + (low > 0 ? low : 1) * 0.1;
  const double step = chart__step(high - low, 4, CHART_TIMES);
  return (struct range){floor(low / step) * step, ceil(high / step) * step, step};
}

struct plane {
  struct range x, y;
};

static double across(const struct plane *plane, double x) {
  return LEFT + (RIGHT - LEFT) * (x - plane->x.low) / (plane->x.high - plane->x.low);
}

static double down(const struct plane *plane, double y) {
  return TOP + PLOT * (plane->y.high - y) / (plane->y.high - plane->y.low);
}

static bool is_there(const struct chart_point *point) {
  return isfinite(point->x.value) && isfinite(point->y.value);
}

void chart_find_best(struct chart_point *points, size_t count) {
  for (size_t i = 0; i < count; i++) {
    points[i].best = is_there(&points[i]);
    for (size_t k = 0; k < count && points[i].best; k++) {
      const double x = points[k].x.value, y = points[k].y.value;
      const bool no_worse = x <= points[i].x.value && y >= points[i].y.value;
      if (no_worse && (x < points[i].x.value || y > points[i].y.value)) points[i].best = false;
    }
  }
}

/* ---- where numbers stand ---- */

/* Around `dx` pixels to the right of a point, which is at `x` in the narrowest plot; at `y`. */
struct box {
  double x, dx, y, width, height;
};

/* Whether two boxes meet in any plot from the narrowest to the widest: how far one is to the right
 * of the other is a straight line over the width. */
static bool overlap(struct box a, struct box b) {
  const double wide = (a.width + b.width) / 2;
  const double narrowest = a.x - b.x + a.dx - b.dx;
  const double widest = WIDEST * (a.x - b.x) + a.dx - b.dx;
  return fabs(a.y - b.y) < (a.height + b.height) / 2 && fmin(narrowest, widest) < wide &&
         fmax(narrowest, widest) > -wide;
}

/* Within the axes: what is inside the narrowest plot is inside every other one. */
static bool is_inside(struct box box) {
  const double at = box.x + box.dx;
  return at - box.width / 2 > NARROW * LEFT / 100.0 - 2 &&
         at + box.width / 2 < NARROW * RIGHT / 100.0 + 2 * NUMBER_WIDTH &&
         box.y - box.height / 2 > TOP - NUMBER_HEIGHT &&
         box.y + box.height / 2 < TOP + PLOT + 2;
}

static bool is_free(struct box box, const struct box *taken, size_t count) {
  for (size_t k = 0; k < count; k++) {
    if (overlap(box, taken[k])) return false;
  }
  return is_inside(box);
}

/* Rings of places around the point, each further away than the one before. */
static bool find_far(struct box *box, double x, double y, const struct box *taken, size_t count) {
  enum { RINGS = 24 };
  for (int ring = 2; ring < RINGS; ring++) {
    for (int i = -ring; i <= ring; i++) {
      for (int k = -ring; k <= ring; k += i == -ring || i == ring ? 1 : 2 * ring) {
        *box = (struct box){x, i * (NUMBER_WIDTH + 1), y + k * (NUMBER_HEIGHT + 1), NUMBER_WIDTH,
                            NUMBER_HEIGHT};
        if (is_free(*box, taken, count)) return true;
      }
    }
  }
  return false;
}

/* Boxes of points come first in `taken`. Finds the offset from the point to the text's middle:
 * beside it, or further away where that is not free, which returns true. */
static bool place_number(double *dx, double *dy, double x, double y, struct box *taken,
                         size_t *count) {
  static const double places[][2] = {{14, 0},   {-14, 0},   {0, -13}, {0, 13},
                                     {12, -11}, {-12, -11}, {12, 11}, {-12, 11}};
  enum { NEAR = sizeof places / sizeof places[0] };
  struct box box = {0};
  bool found = false, far = false;
  for (int i = 0; i < NEAR && !found; i++) {
    box = (struct box){x, places[i][0], y + places[i][1], NUMBER_WIDTH, NUMBER_HEIGHT};
    found = is_free(box, taken, *count);
  }
  if (!found) far = find_far(&box, x, y, taken, *count);
  if (!found && !far) box.dx = places[0][0], box.y = y; /* more numbers than there are places */
  taken[(*count)++] = box;
  *dx = box.dx;
  *dy = box.y - y;
  return far;
}

/* ---- drawing ---- */

static void write_axes(FILE *file, const struct plane *plane, const char *x_name,
                       const char *y_name) {
  for (double x = plane->x.low; x <= plane->x.high + plane->x.step / 2; x += plane->x.step) {
    fprintf(file,
            "<line class=\"grid\" x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"%d\" y2=\"%d\"/>"
            "<text class=\"tick middle\" x=\"%.3f%%\" y=\"%d\">%.4g</text>\n",
            across(plane, x), across(plane, x), TOP, TOP + PLOT, across(plane, x), TOP + PLOT + 16,
            fabs(x) < plane->x.step / 2 ? 0 : x);
  }
  for (double y = plane->y.low; y <= plane->y.high + plane->y.step / 2; y += plane->y.step) {
    fprintf(file,
            "<line class=\"grid\" x1=\"%d%%\" x2=\"%d%%\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick right\" x=\"%d%%\" dx=\"-6\" y=\"%.1f\">%.4g</text>\n",
            LEFT, RIGHT, down(plane, y), down(plane, y), LEFT, down(plane, y) + 4,
            fabs(y) < plane->y.step / 2 ? 0 : y);
  }
  fprintf(file, "<text class=\"soft\" x=\"0\" y=\"12\">\xe2\x86\x91 ");
  html_text(file, y_name);
  fprintf(file, "</text><text class=\"soft right\" x=\"%d%%\" y=\"%d\">", RIGHT, HEIGHT - 4);
  html_text(file, x_name);
  fputs(" \xe2\x86\x92</text>\n", file);
}

static int by_x(const void *left, const void *right) {
  const double a = (*(const struct chart_point *const *)left)->x.value;
  const double b = (*(const struct chart_point *const *)right)->x.value;
  return (a > b) - (a < b);
}

/* Along the best, from left to right, in the plot's own coordinates. */
static void write_front(FILE *file, const struct plane *plane, const struct chart_point *points,
                        size_t count) {
  const struct chart_point **best = need_memory(count, sizeof *best);
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    if (points[i].best) best[found++] = &points[i];
  }
  qsort((void *)best, found, sizeof *best, by_x);
  fprintf(file,
          "<svg x=\"%d%%\" y=\"%d\" width=\"%d%%\" height=\"%d\" viewBox=\"0 0 1000 %d\" "
          "preserveAspectRatio=\"none\" style=\"width:%d%%\"><polyline class=\"front\" points=\"",
          LEFT, TOP, RIGHT - LEFT, PLOT, PLOT, RIGHT - LEFT);
  for (size_t i = 0; i < found; i++) {
    fprintf(file, "%.3f,%.3f ", 1000 * (across(plane, best[i]->x.value) - LEFT) / (RIGHT - LEFT),
            down(plane, best[i]->y.value) - TOP);
  }
  fputs("\"/></svg>\n", file);
  free((void *)best);
}

static void write_point(FILE *file, const struct plane *plane, const struct chart_point *point,
                        size_t number, double dx, double dy, bool far, bool first) {
  char x_text[CHART_TEXT], y_text[CHART_TEXT];
  (void)chart_text(x_text, CHART_TIMES, point->x.value);
  (void)chart_text(y_text, CHART_TIMES, point->y.value);
  fprintf(file, "<g class=\"point%s\" role=\"img\" tabindex=\"%d\"", point->best ? " best" : "",
          first ? 0 : -1);
  chart__place(file, &point->x);
  fputs(" data-path-y=\"", file);
  html_text(file, point->y.path);
  fprintf(file, "\" data-value-y=\"%.17g\" aria-label=\"", point->y.value);
  html_format(file, "%zu, %s: memory %s, speed %s", number, point->name, x_text, y_text);
  fputs("\">", file);
  if (far) {
    fprintf(file,
            "<svg class=\"leader\" x=\"%.4f%%\" y=\"%.2f\" width=\"1\" height=\"1\">"
            "<line x2=\"%.0f\" y2=\"%.0f\"/></svg>",
            across(plane, point->x.value), down(plane, point->y.value), dx, dy);
  }
  fprintf(file,
          "<circle cx=\"%.4f%%\" cy=\"%.2f\" r=\"%d\"/>"
          "<text class=\"middle\" x=\"%.4f%%\" y=\"%.2f\" dx=\"%.0f\" dy=\"%.0f\">%zu</text>"
          "<text class=\"tip right\" x=\"%d%%\" y=\"12\">",
          across(plane, point->x.value), down(plane, point->y.value), RADIUS,
          across(plane, point->x.value), down(plane, point->y.value), dx, dy + 4, number, RIGHT);
  html_text(file, point->name);
  fputs("</text></g>\n", file);
}

void chart_points(FILE *file, const struct chart *chart, const char *x_name, const char *y_name,
                  const struct chart_point *points, size_t count) {
  double low_x = 1, high_x = 1, low_y = 1, high_y = 1; /* what all are compared with */
  for (size_t i = 0; i < count; i++) {
    if (!is_there(&points[i])) continue;
    low_x = fmin(low_x, points[i].x.value);
    high_x = fmax(high_x, points[i].x.value);
    low_y = fmin(low_y, points[i].y.value);
    high_y = fmax(high_y, points[i].y.value);
  }
  const struct plane plane = {find_range(low_x, high_x), find_range(low_y, high_y)};
  chart__begin(file, chart, true, HEIGHT);
  write_axes(file, &plane, x_name, y_name);
  write_front(file, &plane, points, count);
  struct box *taken = need_memory(2 * count + 1, sizeof *taken);
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (!is_there(&points[i])) continue;
    taken[used++] = (struct box){NARROW * across(&plane, points[i].x.value) / 100, 0,
                                 down(&plane, points[i].y.value), 2 * RADIUS, 2 * RADIUS};
  }
  bool first = true;
  for (size_t i = 0; i < count; i++) {
    if (!is_there(&points[i])) continue;
    double dx = 0, dy = 0;
    const bool far = place_number(&dx, &dy, NARROW * across(&plane, points[i].x.value) / 100,
                                  down(&plane, points[i].y.value), taken, &used);
    write_point(file, &plane, &points[i], i + 1, dx, dy, far, first);
    first = false;
  }
  free(taken);
  fputs("</svg>\n", file);
}
