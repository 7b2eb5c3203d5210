/*
 * report_charts_processes.c - the chart of what the processes of a world did, on every page of a
 * result that has them; see report_charts.h.
 */
#include <math.h>
#include <stdlib.h>

#include "chart.h"
#include "html.h"
#include "report_charts.h"
#include "report_rows.h"

/* "process 0 on HOST, 8 rows", with the work as its bar and the memory in the note. */
static void fill_row(struct chart_row *row, struct chart_part *part, const json_t *root, size_t r,
                     size_t p) {
  const json_t *run = json_array_get(json_object_get(root, "runs"), r);
  const json_t *process = json_array_get(json_object_get(run, "processes"), p);
  const bool slowest = json_integer_value(json_object_get(run, "slowest_process")) == (json_int_t)p;
  const struct chart_number peak = chart_number(root, "runs.%zu.processes.%zu.peak_bytes", r, p);
  char seconds[CHART_TEXT], bytes[CHART_TEXT];
  part->name = "busy";
  part->number = chart_number(root, "runs.%zu.processes.%zu.busy_seconds", r, p);
  row->parts = part;
  row->count = 1;
  row->mark = row->limit = (struct chart_number){(double)NAN, ""};
  (void)snprintf(row->label, sizeof row->label, "process %zu on %.40s, %lld rows", p,
                 json_string_value(json_object_get(process, "host")),
                 (long long)json_integer_value(json_object_get(process, "rows")));
  (void)snprintf(row->note, sizeof row->note, "%s%s, %s",
                 chart_text(seconds, CHART_SECONDS, part->number.value),
                 slowest ? ", the slowest" : "", chart_text(bytes, CHART_BYTES, peak.value));
}

static void write_run(FILE *file, const json_t *root, size_t r, double most) {
  const json_t *run = json_array_get(json_object_get(root, "runs"), r);
  const size_t count = json_array_size(json_object_get(run, "processes"));
  const char *spec = json_string_value(json_object_get(run, "spec"));
  if (count == 0) return;
  struct chart_row *rows = need_memory(count, sizeof *rows);
  struct chart_part *parts = need_memory(count, sizeof *parts);
  char name[ROWS_NAME], title[256];
  (void)rows_run_name(name, root, run, "mode");
  (void)snprintf(title, sizeof title, "Work of each process in a step, mode %s%s%.60s", name,
                 spec != NULL ? " on " : "", spec != NULL ? spec : "");
  for (size_t p = 0; p < count; p++) fill_row(&rows[p], &parts[p], root, r, p);
  const struct chart chart = {title, "A bar for each process; the numbers are in the table below.",
                              CHART_SECONDS, false};
  rows_figure(file, "%s%s%s", name, spec != NULL ? " on " : "", spec != NULL ? spec : "");
  chart_bars(file, &chart, rows, count, most);
  fputs("</figure>\n", file);
  free(rows);
  free(parts);
}

void charts_processes(FILE *file, const json_t *root) {
  const json_t *runs = json_object_get(root, "runs");
  double most = 0;
  bool any = false;
  for (size_t r = 0; r < json_array_size(runs); r++) {
    const json_t *all = json_object_get(json_array_get(runs, r), "processes");
    for (size_t p = 0; p < json_array_size(all); p++) {
      const json_t *busy = json_object_get(json_array_get(all, p), "busy_seconds");
      most = fmax(most, json_number_value(busy));
      any = true;
    }
  }
  if (!any) return;
  rows_heading(file, "Processes",
               "Seconds of a step, the mean of the measured ones, in which the busiest device of "
               "each process works without waiting for others: the others wait for the slowest. "
               "After it the largest peak of its devices.");
  fputs("<div class=\"figures\">\n", file);
  for (size_t r = 0; r < json_array_size(runs); r++) write_run(file, root, r, most);
  fputs("</div>\n", file);
}
