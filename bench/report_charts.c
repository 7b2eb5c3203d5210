/*
 * report_charts.c - see report_charts.h. A chart is a figure of its own for each mode, on one
 * scale.
 */
#include "report_charts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "html.h"

/* ---- rows of bars from objects of JSON ---- */

/* A row has a part for each member of the object at `path`, and what `more` says after them. */
static void fill_parts(struct chart_row *row, const json_t *root, const char *path,
                       const json_t *object, const char *more, const char *more_path) {
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

struct rows {
  struct chart_row *rows;
  size_t count;
};

static struct rows rows_create(size_t count) {
  return (struct rows){need_memory(count, sizeof(struct chart_row)), count};
}

static void rows_free(struct rows *rows) {
  for (size_t i = 0; i < rows->count; i++) free(rows->rows[i].parts);
  free(rows->rows);
}

static double most_of(const struct rows *groups, size_t count) {
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

static void legend_item(FILE *file, const char *classes, const char *name) {
  fputs("<li><i class=\"", file);
  html_text(file, classes);
  fputs("\"></i>", file);
  html_text(file, name);
  fputs("</li>\n", file);
}

/* The parts that appear in any row, in the order of the first row, and the lines across. */
static void write_legend(FILE *file, const struct rows *groups, size_t count, bool phases) {
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
    legend_item(file, classes, first->parts[p].name);
  }
  if (marked != NULL) legend_item(file, "thin c-mark", marked->mark_name);
  if (limited != NULL) legend_item(file, "thin c-limit", limited->limit_name);
  fputs("</ul>\n", file);
}

static void write_heading(FILE *file, const char *heading, const char *text) {
  fputs("<h2>", file);
  html_text(file, heading);
  fputs("</h2>\n<p class=\"soft\">", file);
  html_text(file, text);
  fputs("</p>\n", file);
}

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text == NULL ? "" : text;
}

/* A run's member, and its precision if that is not f32, or if runs of several are on the page. */
enum { NAME_TEXT = CHARTS_NAME };
static const char *name_of(char buffer[NAME_TEXT], const json_t *root, const json_t *run,
                           const char *key) {
  const char *precision = text_of(run, "precision");
  const json_t *all = json_object_get(json_object_get(root, "config"), "precisions");
  const bool plain = json_array_size(all) < 2 && strcmp(precision, "f32") == 0;
  (void)snprintf(buffer, NAME_TEXT, plain || precision[0] == '\0' ? "%.100s" : "%.100s, %.20s",
                 text_of(run, key), precision);
  return buffer;
}

const char *charts_run_name(char buffer[CHARTS_NAME], const json_t *root, const json_t *run) {
  return name_of(buffer, root, run, "mode");
}

/* ---- memory ---- */

static struct rows memory_rows(const json_t *root, size_t r, const json_t *run) {
  const json_t *devices = json_object_get(run, "devices");
  const bool full = json_is_true(json_object_get(run, "out_of_memory"));
  struct rows rows = rows_create(json_array_size(devices));
  for (size_t k = 0; k < rows.count; k++) {
    struct chart_row *row = &rows.rows[k];
    char path[96], unused[96], text[CHART_TEXT];
    (void)snprintf(path, sizeof path, "runs.%zu.devices.%zu.categories_at_peak", r, k);
    (void)snprintf(unused, sizeof unused, "runs.%zu.devices.%zu.unused_at_peak_bytes", r, k);
    fill_parts(row, root, path, json_object_get(json_array_get(devices, k), "categories_at_peak"),
               "unused", unused);
    (void)snprintf(row->label, sizeof row->label, "device %zu", k);
    row->mark_name = "planned";
    row->limit_name = "cap";
    row->mark = chart_number(root, "runs.%zu.devices.%zu.planned_peak_bytes", r, k);
    if (!full) continue;
    row->limit = chart_number(root, "runs.%zu.devices.%zu.capacity_bytes", r, k);
    (void)snprintf(row->note, sizeof row->note, "needs %s",
                   chart_text(text, CHART_BYTES, row->mark.value));
  }
  return rows;
}

/* The one number: what device 0 holds against the mean of the others. */
static void write_evenness(FILE *file, const json_t *root, size_t r, bool full) {
  const struct chart_number ratio = chart_number(root, "runs.%zu.first_over_rest", r);
  if (full) {
    fputs("<p class=\"number far\">out of memory</p>\n", file);
  } else {
    fprintf(file, "<p class=\"number%s\">", ratio.value > 1.5 ? " far" : "");
    chart_span(file, &ratio, CHART_TIMES);
    fputs("</p>\n", file);
  }
  fputs("<figcaption>device 0 against the mean of the rest</figcaption>\n", file);
}

static void write_memory(FILE *file, const json_t *root, const json_t *runs,
                         const struct rows *groups) {
  const size_t count = json_array_size(runs);
  const double most = most_of(groups, count);
  write_heading(file, "Peak of each device",
                "What a device held when it held most, by category; all modes on one scale.");
  write_legend(file, groups, count, false);
  fputs("<div class=\"figures\">\n", file);
  for (size_t r = 0; r < count; r++) {
    const json_t *run = json_array_get(runs, r);
    char title[256], description[256], text[CHART_TEXT], name[NAME_TEXT];
    (void)snprintf(title, sizeof title, "Peak memory by device and category, mode %s",
                   name_of(name, root, run, "mode"));
    (void)snprintf(description, sizeof description,
                   "A stacked bar for each of %zu devices; device 0 holds %s. The numbers are in "
                   "the table below.",
                   groups[r].count,
                   groups[r].count == 0
                       ? "nothing"
                       : chart_text(text, CHART_BYTES, chart_row_total(&groups[r].rows[0])));
    const struct chart chart = {title, description, CHART_BYTES, false};
    fputs("<figure>\n<h3>", file);
    html_text(file, name);
    fputs("</h3>\n", file);
    write_evenness(file, root, r, json_is_true(json_object_get(run, "out_of_memory")));
    chart_bars(file, &chart, groups[r].rows, groups[r].count, most);
    fputs("</figure>\n", file);
  }
  fputs("</div>\n", file);
}

/* What a timeline reaches to the right and upwards. */
static void measure_timeline(const json_t *timeline, double *seconds, double *most) {
  const json_t *devices = json_object_get(timeline, "devices");
  for (size_t k = 0; k < json_array_size(devices); k++) {
    const json_t *bytes = json_object_get(json_array_get(devices, k), "bytes");
    for (size_t i = 0; i < json_array_size(bytes); i++) {
      *most = fmax(*most, json_number_value(json_array_get(bytes, i)));
    }
  }
  const json_t *phases = json_object_get(timeline, "phases");
  for (size_t i = 0; i < json_array_size(phases); i++) {
    const json_t *end = json_object_get(json_array_get(phases, i), "end_seconds");
    *seconds = fmax(*seconds, json_number_value(end));
  }
}

static const json_t *timeline_of(const json_t *root, size_t r) {
  return json_object_get(json_array_get(json_object_get(root, "runs"), r), "timeline");
}

/* The time and the phases of a run; the caller frees them. */
static struct chart_phase *start_timeline(struct chart_time *time, const json_t *root, size_t r,
                                          double most) {
  const json_t *phases = json_object_get(timeline_of(root, r), "phases");
  double unused = 0;
  *time = (struct chart_time){.phase_count = json_array_size(phases), .most = most};
  measure_timeline(timeline_of(root, r), &time->seconds, &unused);
  struct chart_phase *bands = need_memory(time->phase_count, sizeof *bands);
  for (size_t i = 0; i < time->phase_count; i++) {
    bands[i].name = text_of(json_array_get(phases, i), "name");
    bands[i].begin = chart_number(root, "runs.%zu.timeline.phases.%zu.begin_seconds", r, i);
    bands[i].end = chart_number(root, "runs.%zu.timeline.phases.%zu.end_seconds", r, i);
  }
  time->phases = bands;
  return bands;
}

static void write_timeline(FILE *file, const json_t *root, size_t r, const char *mode,
                           double most) {
  struct chart_time time;
  struct chart_phase *bands = start_timeline(&time, root, r, most);
  const json_t *devices = json_object_get(timeline_of(root, r), "devices");
  time.curve_count = json_array_size(devices);
  struct chart_curve *curves = need_memory(time.curve_count, sizeof *curves);
  for (size_t k = 0; k < time.curve_count; k++) {
    const json_t *device = json_array_get(devices, k);
    curves[k].x = json_object_get(device, "seconds");
    curves[k].y = json_object_get(device, "bytes");
    curves[k].first = k == 0;
    (void)snprintf(curves[k].path, sizeof curves[k].path, "runs.%zu.timeline.devices.%zu", r, k);
  }
  time.curves = curves;
  char title[256], description[256];
  (void)snprintf(title, sizeof title, "Memory of each device over one step, mode %s", mode);
  (void)snprintf(description, sizeof description,
                 "A curve for each of %zu devices over the parts of a step: forward, loss, "
                 "backward, reduce, optimizer. The JSON has its points.",
                 time.curve_count);
  const struct chart chart = {title, description, CHART_BYTES, false};
  fputs("<figure>\n<h3>", file);
  html_text(file, mode);
  fputs("</h3>\n", file);
  chart_curves(file, &chart, &time);
  fputs("</figure>\n", file);
  free(bands);
  free(curves);
}

/* One device of a run by category, a chart like the one of all devices. */
static void write_areas(FILE *file, const json_t *root, size_t r, size_t device, double most) {
  const json_t *curve = json_array_get(json_object_get(timeline_of(root, r), "devices"), device);
  const json_t *categories = json_object_get(curve, "categories");
  if (json_object_size(categories) == 0) return;
  struct chart_time time;
  struct chart_phase *bands = start_timeline(&time, root, r, most);
  struct chart_area *areas = need_memory(json_object_size(categories), sizeof *areas);
  const char *key = NULL;
  char mode[NAME_TEXT];
  (void)name_of(mode, root, json_array_get(json_object_get(root, "runs"), r), "mode");
  json_t *value = NULL;
  json_object_foreach((json_t *)categories, key, value) {
    areas[time.area_count++] = (struct chart_area){key, value};
  }
  time.areas = areas;
  time.area_x = json_object_get(curve, "seconds");
  (void)snprintf(time.area_path, sizeof time.area_path, "runs.%zu.timeline.devices.%zu", r, device);
  char title[256], description[256];
  (void)snprintf(title, sizeof title, "Memory of device %zu by category over one step, mode %s",
                 device, mode);
  (void)snprintf(description, sizeof description,
                 "%zu categories on top of each other over the parts of a step: forward, loss, "
                 "backward, reduce, optimizer. The JSON has their points.",
                 time.area_count);
  const struct chart chart = {title, description, CHART_BYTES, false};
  fputs("<figure>\n<h3>", file);
  html_format(file, "%s, device %zu", mode, device);
  fputs("</h3>\n", file);
  chart_curves(file, &chart, &time);
  fputs("</figure>\n", file);
  free(areas);
  free(bands);
}

/* After write_timelines(), which has the phases' colours. */
static void write_all_areas(FILE *file, const json_t *root, const struct rows *groups, size_t count,
                            double most) {
  if (!(most > 0)) return;
  write_heading(file, "The same by category",
                "Of device 0, and of device 1, which stands for the rest.");
  write_legend(file, groups, count, false);
  fputs("<div class=\"figures\">\n", file);
  for (size_t r = 0; r < count; r++) {
    for (size_t k = 0; k < 2; k++) write_areas(file, root, r, k, most);
  }
  fputs("</div>\n", file);
}

static double write_timelines(FILE *file, const json_t *root, const json_t *runs) {
  static const char *const phases[] = {"forward", "loss", "backward", "reduce", "optimizer"};
  double most = 0, seconds = 0;
  size_t devices = 0;
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *timeline = json_object_get(json_array_get(runs, r), "timeline");
    measure_timeline(timeline, &seconds, &most);
    if (json_array_size(json_object_get(timeline, "devices")) > devices) {
      devices = json_array_size(json_object_get(timeline, "devices"));
    }
  }
  if (!(most > 0)) return 0;
  write_heading(
      file, "Memory over one step",
      "What each device holds while a step runs, with a wait after each of its parts. Of "
      "devices that only count, the time is that of counting.");
  fputs("<ul class=\"legend\">\n", file);
  legend_item(file, "curve first", "device 0");
  if (devices == 2) legend_item(file, "curve", "device 1");
  if (devices > 2) {
    char rest[64];
    (void)snprintf(rest, sizeof rest, "devices 1 to %zu", devices - 1);
    legend_item(file, "curve", rest);
  }
  for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
    char classes[64];
    (void)snprintf(classes, sizeof classes, "p-%s", phases[i]);
    legend_item(file, classes, phases[i]);
  }
  fputs("</ul>\n<div class=\"figures\">\n", file);
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *run = json_array_get(runs, r);
    if (!json_is_object(json_object_get(run, "timeline"))) continue;
    char name[NAME_TEXT];
    write_timeline(file, root, r, name_of(name, root, run, "mode"), most * 1.04);
  }
  fputs("</div>\n", file);
  return most * 1.04;
}

void charts_memory(FILE *file, const json_t *root) {
  const json_t *runs = json_object_get(root, "runs");
  const size_t count = json_array_size(runs);
  struct rows *groups = need_memory(count, sizeof *groups);
  for (size_t r = 0; r < count; r++) groups[r] = memory_rows(root, r, json_array_get(runs, r));
  write_memory(file, root, runs, groups);
  const double most = write_timelines(file, root, runs);
  write_all_areas(file, root, groups, count, most);
  for (size_t r = 0; r < count; r++) rows_free(&groups[r]);
  free(groups);
}

/* ---- step ---- */

/* The runs of one mode, a row each. */
static struct rows step_rows(const json_t *root, const json_t *runs, const char *mode) {
  struct rows rows = rows_create(json_array_size(runs));
  rows.count = 0;
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *run = json_array_get(runs, r);
    if (strcmp(text_of(run, "mode"), mode) != 0) continue;
    struct chart_row *row = &rows.rows[rows.count++];
    char path[96], text[CHART_TEXT], name[NAME_TEXT];
    (void)snprintf(path, sizeof path, "runs.%zu.split_seconds", r);
    fill_parts(row, root, path, json_object_get(run, "split_seconds"), NULL, NULL);
    (void)snprintf(row->label, sizeof row->label, "%s", name_of(name, root, run, "spec"));
    row->mark_name = "whole step";
    row->mark = chart_number(root, "runs.%zu.step_seconds.median", r);
    const double speed = chart_number(root, "runs.%zu.tokens_per_second", r).value;
    if (isfinite(speed)) {
      const char *unit = chart_number(root, "config.image").value > 0 ? "pictures/s" : "tokens/s";
      (void)snprintf(row->note, sizeof row->note, "%s, %.0f %s",
                     chart_text(text, CHART_SECONDS, row->mark.value), speed, unit);
    } else {
      const bool full = json_is_true(json_object_get(run, "out_of_memory"));
      (void)snprintf(row->note, sizeof row->note, full ? "out of memory" : "not timed");
    }
  }
  return rows;
}

void charts_step(FILE *file, const json_t *root) {
  const json_t *runs = json_object_get(root, "runs");
  const json_t *modes = json_object_get(json_object_get(root, "config"), "modes");
  const size_t count = json_array_size(modes);
  struct rows *groups = need_memory(count, sizeof *groups);
  for (size_t m = 0; m < count; m++) {
    groups[m] = step_rows(root, runs, json_string_value(json_array_get(modes, m)));
  }
  write_heading(file, "Where a step's time goes",
                "Parts by medians of steps with a wait after each part; the line is the median of "
                "steps without waits. Less is faster; all modes on one scale.");
  write_legend(file, groups, count, true);
  fputs("<div class=\"figures\">\n", file);
  for (size_t m = 0; m < count; m++) {
    const char *mode = json_string_value(json_array_get(modes, m));
    char title[128];
    (void)snprintf(title, sizeof title, "Parts of a step by devices, mode %s", mode);
    const struct chart chart = {
        title, "A stacked bar for each device string; the numbers are in the table below.",
        CHART_SECONDS, true};
    fputs("<figure>\n<h3>", file);
    html_text(file, mode);
    fputs("</h3>\n", file);
    chart_bars(file, &chart, groups[m].rows, groups[m].count, most_of(groups, count));
    fputs("</figure>\n", file);
  }
  fputs("</div>\n", file);
  for (size_t m = 0; m < count; m++) rows_free(&groups[m]);
  free(groups);
}

/* ---- techniques ---- */

/* What a row is called: with its mode, where there are several. */
static void technique_name(char buffer[NAME_TEXT], const json_t *root, const json_t *run,
                           bool several) {
  char name[NAME_TEXT];
  (void)snprintf(buffer, NAME_TEXT, several ? "%.110s, %.40s" : "%.110s",
                 name_of(name, root, run, "technique"), text_of(run, "mode"));
}

/* Ratios are to `plain` of the same mode and precision, with which each block of rows begins: a
 * block is a chart of its own, and its rows are numbered from 1. */
static bool begins_block(const json_t *runs, size_t r) {
  return r == 0 || strcmp(text_of(json_array_get(runs, r), "technique"),
                          text_of(json_array_get(runs, 0), "technique")) == 0;
}

static void write_key(FILE *file, const struct chart_point *points, size_t count) {
  fputs("<ol class=\"key\">\n", file);
  for (size_t i = 0; i < count; i++) {
    fputs(points[i].best ? "<li class=\"best\">" : "<li>", file);
    html_text(file, points[i].name);
    fputs(" <span class=\"soft\">memory ", file);
    chart_span(file, &points[i].x, CHART_TIMES);
    fputs(", speed ", file);
    chart_span(file, &points[i].y, CHART_TIMES);
    fputs("</span></li>\n", file);
  }
  fputs("</ol>\n", file);
}

/* Rows `first` to `last` - 1. */
static void write_block(FILE *file, const json_t *root, const json_t *runs, size_t first,
                        size_t last, bool several) {
  const size_t count = last - first;
  const bool alone = count == json_array_size(runs);
  struct chart_point *points = need_memory(count, sizeof *points);
  char(*names)[NAME_TEXT] = need_memory(count, sizeof *names);
  char block[NAME_TEXT], title[256];
  for (size_t i = 0; i < count; i++) {
    technique_name(names[i], root, json_array_get(runs, first + i), several);
    points[i].name = names[i];
    points[i].x = chart_number(root, "runs.%zu.memory_ratio", first + i);
    points[i].y = chart_number(root, "runs.%zu.speed_ratio", first + i);
  }
  chart_find_best(points, count);
  (void)name_of(block, root, json_array_get(runs, first), "mode");
  (void)snprintf(title, sizeof title, "Peak memory against speed of each technique, %s", block);
  const struct chart chart = {title, "Numbered points; the list below has their names and numbers.",
                              CHART_TIMES, false};
  fputs("<figure>\n", file);
  if (!alone) {
    fputs("<h3>", file);
    html_text(file, block);
    fputs("</h3>\n", file);
  }
  chart_points(file, &chart, "peak memory, times plain", "speed, times plain", points, count);
  write_key(file, points, count);
  fputs("</figure>\n", file);
  free(names);
  free(points);
}

static void write_planes(FILE *file, const json_t *root, const json_t *runs, bool several) {
  const size_t count = json_array_size(runs);
  bool any = false;
  for (size_t r = 0; r < count; r++) {
    any = any || isfinite(chart_number(root, "runs.%zu.speed_ratio", r).value);
  }
  if (!any) return;
  write_heading(file, "Memory against speed",
                "Ratios to plain in the same mode and precision, of the fullest device. Up is "
                "faster, left is smaller. The line leads along what nothing else beats in both.");
  for (size_t first = 0, last; first < count; first = last) {
    for (last = first + 1; last < count && !begins_block(runs, last);) last++;
    write_block(file, root, runs, first, last, several);
  }
}

static struct rows technique_rows(const json_t *root, const json_t *runs, bool several) {
  struct rows rows = rows_create(json_array_size(runs));
  size_t number = 0;
  for (size_t r = 0; r < rows.count; r++) {
    const json_t *run = json_array_get(runs, r);
    struct chart_row *row = &rows.rows[r];
    char path[96], unused[96], name[NAME_TEXT];
    number = begins_block(runs, r) ? 1 : number + 1;
    (void)snprintf(path, sizeof path, "runs.%zu.categories_at_peak", r);
    (void)snprintf(unused, sizeof unused, "runs.%zu.unused_at_peak_bytes", r);
    fill_parts(row, root, path, json_object_get(run, "categories_at_peak"), "unused", unused);
    technique_name(name, root, run, several);
    (void)snprintf(row->label, sizeof row->label, "%zu %.*s", number, (int)sizeof row->label - 24,
                   name);
    row->mark_name = "planned";
    row->mark = chart_number(root, "runs.%zu.planned_peak_bytes", r);
    if (json_is_null(json_object_get(run, "peak_bytes"))) {
      char text[CHART_TEXT];
      (void)snprintf(row->note, sizeof row->note, "needs %s",
                     chart_text(text, CHART_BYTES, row->mark.value));
    }
  }
  return rows;
}

/* One figure of bars, with its legend. */
static void write_bars(FILE *file, const struct chart *chart, const struct rows *rows) {
  write_legend(file, rows, 1, false);
  fputs("<figure>\n", file);
  chart_bars(file, chart, rows->rows, rows->count, most_of(rows, 1));
  fputs("</figure>\n", file);
}

void charts_techniques(FILE *file, const json_t *root) {
  const json_t *runs = json_object_get(root, "runs");
  const json_t *modes = json_object_get(json_object_get(root, "config"), "modes");
  const bool several = json_array_size(modes) > 1;
  write_planes(file, root, runs, several);
  struct rows rows = technique_rows(root, runs, several);
  const struct chart chart = {"Peak memory of each technique by category",
                              "A stacked bar for each; the numbers are in the table below.",
                              CHART_BYTES, false};
  write_heading(file, "Peak of the fullest device", "What it held when it held most, by category.");
  write_bars(file, &chart, &rows);
  rows_free(&rows);
}

/* ---- max-batch ---- */

void charts_max_batch(FILE *file, const json_t *root) {
  const json_t *runs = json_object_get(root, "runs");
  struct rows rows = rows_create(json_array_size(runs));
  for (size_t r = 0; r < rows.count; r++) {
    const json_t *run = json_array_get(runs, r);
    struct chart_row *row = &rows.rows[r];
    char text[CHART_TEXT], name[NAME_TEXT];
    row->parts = need_memory(1, sizeof *row->parts);
    row->count = 1;
    row->limit = (struct chart_number){(double)NAN, ""};
    row->mark_name = "planned";
    row->mark = chart_number(root, "runs.%zu.planned_max_batch", r);
    row->parts[0] = (struct chart_part){"batch", chart_number(root, "runs.%zu.max_batch", r)};
    (void)snprintf(row->label, sizeof row->label, "%s", name_of(name, root, run, "mode"));
    const double batch =
        isfinite(row->parts[0].number.value) ? row->parts[0].number.value : row->mark.value;
    const double ratio = chart_number(root, "runs.%zu.times_gather", r).value;
    (void)chart_text(text, CHART_SAMPLES, batch);
    if (isfinite(ratio)) {
      (void)snprintf(row->note, sizeof row->note, "%s, %.2f \xc3\x97 gather", text, ratio);
    } else {
      (void)snprintf(row->note, sizeof row->note, "%s", text);
    }
  }
  const struct chart chart = {"The largest global batch of each mode",
                              "A bar for each mode; the numbers are in the table below.",
                              CHART_SAMPLES, false};
  write_heading(file, "The largest batch", "Samples of the global batch that train under the cap.");
  write_bars(file, &chart, &rows);
  rows_free(&rows);
}

/* ---- fit ---- */

enum { FIT_ROWS = 12 }; /* the rest is in the table */

/* "3 sharded bf16 every=1 fused x4", short enough for a narrow window, without what is usual. */
static void name_choice(char *label, size_t size, const json_t *choice) {
  const double parts = json_number_value(json_object_get(choice, "micro_batches"));
  const char *precision = text_of(choice, "precision"), *recompute = text_of(choice, "recompute");
  char micro[32] = "";
  if (parts > 1) (void)snprintf(micro, sizeof micro, parts < 1e4 ? " x%.0f" : " x%.1e", parts);
  const bool wide = strcmp(precision, "f32") == 0, kept = strcmp(recompute, "none") == 0;
  (void)snprintf(label, size, "%lld %s%s%s%s%s%s%s",
                 (long long)json_integer_value(json_object_get(choice, "rank")),
                 text_of(choice, "mode"), wide ? "" : " ", wide ? "" : precision, kept ? "" : " ",
                 kept ? "" : recompute,
                 strcmp(text_of(choice, "loss"), "fused") == 0 ? " fused" : "", micro);
  if (strcmp(text_of(choice, "shard_over"), "process") != 0) return;
  (void)snprintf(label + strlen(label), size - strlen(label), " inside");
}

/* A bar for each of the first choices, with the number `member`, which is called `name`, and a line
 * at the number `mark`; NULL: without. */
static struct rows fit_rows(const json_t *root, const char *name, const char *member,
                            const char *mark) {
  const json_t *choices = json_object_get(root, "choices");
  const size_t all = json_array_size(choices);
  struct rows rows = rows_create(all < FIT_ROWS ? all : FIT_ROWS);
  for (size_t i = 0; i < rows.count; i++) {
    struct chart_row *row = &rows.rows[i];
    row->parts = need_memory(1, sizeof *row->parts);
    row->count = 1;
    row->parts[0] = (struct chart_part){name, chart_number(root, "choices.%zu.%s", i, member)};
    row->limit = row->mark = (struct chart_number){(double)NAN, ""};
    row->mark_name = "measured";
    if (mark != NULL) row->mark = chart_number(root, "choices.%zu.%s", i, mark);
    name_choice(row->label, sizeof row->label, json_array_get(choices, i));
  }
  return rows;
}

void charts_fit(FILE *file, const json_t *root) {
  const struct chart cost = {"Cost of each choice", "A bar for each; less is faster.", CHART_TIMES,
                             false};
  const struct chart peak = {"Planned peak of the fullest device for each choice",
                             "A bar for each; the numbers are in the table below.", CHART_BYTES,
                             false};
  struct rows rows = fit_rows(root, "cost", "cost_ratio", NULL);
  write_heading(file, "Cost",
                "Predicted time of a step relative to the first choice, good for comparisons only: "
                "less is faster. At most the first 12 choices; \"x3\" is three micro-batches.");
  write_bars(file, &cost, &rows);
  rows_free(&rows);
  rows = fit_rows(root, "planned", "planned_peak_bytes", "measured_peak_bytes");
  write_heading(file, "Memory", "Planned peak of the fullest device, of the same choices.");
  write_bars(file, &peak, &rows);
  rows_free(&rows);
  if (json_object_get(json_object_get(root, "config"), "processes") == NULL) return;
  const struct chart sent = {"Bytes that a process sends in a step, for each choice",
                             "A bar for each; the numbers are in the table below.", CHART_BYTES,
                             false};
  rows = fit_rows(root, "sent", "sent_bytes", NULL);
  write_heading(file, "Between processes",
                "Bytes that a process sends to the others in a step, of the same choices.");
  write_bars(file, &sent, &rows);
  rows_free(&rows);
}
