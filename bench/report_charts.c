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
#include "report_rows.h"

/* ---- step ---- */

/* The runs of one mode, a row each. */
static struct rows step_rows(const json_t *root, const json_t *runs, const char *mode) {
  struct rows rows = rows_create(json_array_size(runs));
  rows.count = 0;
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *run = json_array_get(runs, r);
    if (strcmp(rows_text(run, "mode"), mode) != 0) continue;
    struct chart_row *row = &rows.rows[rows.count++];
    char path[96], text[CHART_TEXT], name[ROWS_NAME];
    (void)snprintf(path, sizeof path, "runs.%zu.split_seconds", r);
    rows_fill(row, root, path, json_object_get(run, "split_seconds"), NULL, NULL);
    (void)snprintf(row->label, sizeof row->label, "%s", rows_run_name(name, root, run, "spec"));
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
  rows_heading(file, "Where a step's time goes",
               "Parts by medians of steps with a wait after each part; the line is the median of "
               "steps without waits. Less is faster; all modes on one scale.");
  rows_legend(file, groups, count, true);
  fputs("<div class=\"figures\">\n", file);
  for (size_t m = 0; m < count; m++) {
    const char *mode = json_string_value(json_array_get(modes, m));
    char title[128];
    (void)snprintf(title, sizeof title, "Parts of a step by devices, mode %s", mode);
    const struct chart chart = {
        title, "A stacked bar for each device string; the numbers are in the table below.",
        CHART_SECONDS, true};
    rows_figure(file, "%s", mode);
    chart_bars(file, &chart, groups[m].rows, groups[m].count, rows_most(groups, count));
    fputs("</figure>\n", file);
  }
  fputs("</div>\n", file);
  for (size_t m = 0; m < count; m++) rows_free(&groups[m]);
  free(groups);
}

/* ---- techniques ---- */

/* What a row is called: with its mode, where there are several. */
static void technique_name(char buffer[ROWS_NAME], const json_t *root, const json_t *run,
                           bool several) {
  char name[ROWS_NAME];
  (void)snprintf(buffer, ROWS_NAME, several ? "%.110s, %.40s" : "%.110s",
                 rows_run_name(name, root, run, "technique"), rows_text(run, "mode"));
}

/* Ratios are to `plain` of the same mode and precision, with which each block of rows begins: a
 * block is a chart of its own, and its rows are numbered from 1. */
static bool begins_block(const json_t *runs, size_t r) {
  return r == 0 || strcmp(rows_text(json_array_get(runs, r), "technique"),
                          rows_text(json_array_get(runs, 0), "technique")) == 0;
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
  char(*names)[ROWS_NAME] = need_memory(count, sizeof *names);
  char block[ROWS_NAME], title[256];
  for (size_t i = 0; i < count; i++) {
    technique_name(names[i], root, json_array_get(runs, first + i), several);
    points[i].name = names[i];
    points[i].x = chart_number(root, "runs.%zu.memory_ratio", first + i);
    points[i].y = chart_number(root, "runs.%zu.speed_ratio", first + i);
  }
  chart_find_best(points, count);
  (void)rows_run_name(block, root, json_array_get(runs, first), "mode");
  (void)snprintf(title, sizeof title, "Peak memory against speed of each technique, %s", block);
  const struct chart chart = {title, "Numbered points; the list below has their names and numbers.",
                              CHART_TIMES, false};
  if (alone) {
    fputs("<figure>\n", file);
  } else {
    rows_figure(file, "%s", block);
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
  rows_heading(file, "Memory against speed",
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
    char path[96], unused[96], name[ROWS_NAME];
    number = begins_block(runs, r) ? 1 : number + 1;
    (void)snprintf(path, sizeof path, "runs.%zu.categories_at_peak", r);
    (void)snprintf(unused, sizeof unused, "runs.%zu.unused_at_peak_bytes", r);
    rows_fill(row, root, path, json_object_get(run, "categories_at_peak"), "unused", unused);
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
  rows_legend(file, rows, 1, false);
  fputs("<figure>\n", file);
  chart_bars(file, chart, rows->rows, rows->count, rows_most(rows, 1));
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
  rows_heading(file, "Peak of the fullest device", "What it held when it held most, by category.");
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
    char text[CHART_TEXT], name[ROWS_NAME];
    row->parts = need_memory(1, sizeof *row->parts);
    row->count = 1;
    row->limit = (struct chart_number){(double)NAN, ""};
    row->mark_name = "planned";
    row->mark = chart_number(root, "runs.%zu.planned_max_batch", r);
    row->parts[0] = (struct chart_part){"batch", chart_number(root, "runs.%zu.max_batch", r)};
    (void)snprintf(row->label, sizeof row->label, "%s", rows_run_name(name, root, run, "mode"));
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
  rows_heading(file, "The largest batch", "Samples of the global batch that train under the cap.");
  write_bars(file, &chart, &rows);
  rows_free(&rows);
}

/* ---- fit ---- */

enum { FIT_ROWS = 12 }; /* the rest is in the table */

/* "3 sharded bf16 every=1 fused x4", short enough for a narrow window, without what is usual. */
static void name_choice(char *label, size_t size, const json_t *choice) {
  const double parts = json_number_value(json_object_get(choice, "micro_batches"));
  const char *precision = rows_text(choice, "precision");
  const char *recompute = rows_text(choice, "recompute");
  char micro[32] = "";
  if (parts > 1) (void)snprintf(micro, sizeof micro, parts < 1e4 ? " x%.0f" : " x%.1e", parts);
  const bool wide = strcmp(precision, "f32") == 0, kept = strcmp(recompute, "none") == 0;
  (void)snprintf(label, size, "%lld %s%s%s%s%s%s%s",
                 (long long)json_integer_value(json_object_get(choice, "rank")),
                 rows_text(choice, "mode"), wide ? "" : " ", wide ? "" : precision, kept ? "" : " ",
                 kept ? "" : recompute,
                 strcmp(rows_text(choice, "loss"), "fused") == 0 ? " fused" : "", micro);
  if (strcmp(rows_text(choice, "shard_over"), "process") != 0) return;
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
  rows_heading(file, "Cost",
               "Predicted time of a step relative to the first choice, good for comparisons only: "
               "less is faster. At most the first 12 choices; \"x3\" is three micro-batches.");
  write_bars(file, &cost, &rows);
  rows_free(&rows);
  rows = fit_rows(root, "planned", "planned_peak_bytes", "measured_peak_bytes");
  rows_heading(file, "Memory", "Planned peak of the fullest device, of the same choices.");
  write_bars(file, &peak, &rows);
  rows_free(&rows);
  if (json_object_get(json_object_get(root, "config"), "processes") == NULL) return;
  const struct chart sent = {"Bytes that a process sends in a step, for each choice",
                             "A bar for each; the numbers are in the table below.", CHART_BYTES,
                             false};
  rows = fit_rows(root, "sent", "sent_bytes", NULL);
  rows_heading(file, "Between processes",
               "Bytes that a process sends to the others in a step, of the same choices.");
  write_bars(file, &sent, &rows);
  rows_free(&rows);
}
