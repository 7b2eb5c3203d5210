/*
 * report_charts_memory.c - the charts of memory: what each device held at its peak, and over one
 * step; see report_charts.h.
 */
#include <math.h>
#include <stdlib.h>

#include "chart.h"
#include "html.h"
#include "report_charts.h"
#include "report_rows.h"

/* ---- peaks ---- */

static struct rows memory_rows(const json_t *root, size_t r, const json_t *run) {
  const json_t *devices = json_object_get(run, "devices");
  const bool full = json_is_true(json_object_get(run, "out_of_memory"));
  struct rows rows = rows_create(json_array_size(devices));
  for (size_t k = 0; k < rows.count; k++) {
    struct chart_row *row = &rows.rows[k];
    char path[96], unused[96], text[CHART_TEXT];
    (void)snprintf(path, sizeof path, "runs.%zu.devices.%zu.categories_at_peak", r, k);
    (void)snprintf(unused, sizeof unused, "runs.%zu.devices.%zu.unused_at_peak_bytes", r, k);
    rows_fill(row, root, path, json_object_get(json_array_get(devices, k), "categories_at_peak"),
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
  const double most = rows_most(groups, count);
  rows_heading(file, "Peak of each device",
               "What a device held when it held most, by category; all modes on one scale.");
  rows_legend(file, groups, count, false);
  fputs("<div class=\"figures\">\n", file);
  for (size_t r = 0; r < count; r++) {
    const json_t *run = json_array_get(runs, r);
    char title[256], description[256], text[CHART_TEXT], name[ROWS_NAME];
    (void)snprintf(title, sizeof title, "Peak memory by device and category, mode %s",
                   rows_run_name(name, root, run, "mode"));
    (void)snprintf(description, sizeof description,
                   "A stacked bar for each of %zu devices; device 0 holds %s. The numbers are in "
                   "the table below.",
                   groups[r].count,
                   groups[r].count == 0
                       ? "nothing"
                       : chart_text(text, CHART_BYTES, chart_row_total(&groups[r].rows[0])));
    const struct chart chart = {title, description, CHART_BYTES, false};
    rows_figure(file, "%s", name);
    write_evenness(file, root, r, json_is_true(json_object_get(run, "out_of_memory")));
    chart_bars(file, &chart, groups[r].rows, groups[r].count, most);
    fputs("</figure>\n", file);
  }
  fputs("</div>\n", file);
}

/* ---- over one step ---- */

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
    bands[i].name = rows_text(json_array_get(phases, i), "name");
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
  rows_figure(file, "%s", mode);
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
  char mode[ROWS_NAME];
  (void)rows_run_name(mode, root, json_array_get(json_object_get(root, "runs"), r), "mode");
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
  rows_figure(file, "%s, device %zu", mode, device);
  chart_curves(file, &chart, &time);
  fputs("</figure>\n", file);
  free(areas);
  free(bands);
}

/* After write_timelines(), which has the phases' colours. */
static void write_all_areas(FILE *file, const json_t *root, const struct rows *groups, size_t count,
                            double most) {
  if (!(most > 0)) return;
  rows_heading(file, "The same by category",
               "Of device 0, and of device 1, which stands for the rest.");
  rows_legend(file, groups, count, false);
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
  rows_heading(file, "Memory over one step",
               "What each device holds while a step runs, with a wait after each of its parts. Of "
               "devices that only count, the time is that of counting.");
  fputs("<ul class=\"legend\">\n", file);
  rows_item(file, "curve first", "device 0");
  if (devices == 2) rows_item(file, "curve", "device 1");
  if (devices > 2) {
    char rest[64];
    (void)snprintf(rest, sizeof rest, "devices 1 to %zu", devices - 1);
    rows_item(file, "curve", rest);
  }
  for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
    char classes[64];
    (void)snprintf(classes, sizeof classes, "p-%s", phases[i]);
    rows_item(file, classes, phases[i]);
  }
  fputs("</ul>\n<div class=\"figures\">\n", file);
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *run = json_array_get(runs, r);
    if (!json_is_object(json_object_get(run, "timeline"))) continue;
    char name[ROWS_NAME];
    write_timeline(file, root, r, rows_run_name(name, root, run, "mode"), most * 1.04);
  }
  fputs("</div>\n", file);
  return most * 1.04;
}

/* ---- both ---- */

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
