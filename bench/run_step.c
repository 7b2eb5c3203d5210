/*
 * run_step.c - the subcommand `step`: the time of a training step by mode and number of devices.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "report_processes.h"
#include "terminal.h"

/* Split steps cost three times a step; their medians need no more than this. */
enum { MOST_SPLITS = 5, PARTS = 5 };

static const char *const part_names[PARTS] = {"forward", "loss", "backward", "reduce", "optimizer"};

static double part_of(const struct split *split, int part) {
  const double parts[PARTS] = {split->forward, split->loss, split->backward, split->reduce,
                               split->optimizer};
  return parts[part];
}

/* The median of one part over the split steps; NaN where nothing was computed. */
static double median_part(const struct run *run, int part) {
  double values[MOST_SPLITS];
  if (run->kind.counts_only || run->status != EK_OK) return (double)NAN;
  for (size_t i = 0; i < run->split_count; i++) values[i] = part_of(&run->splits[i], part);
  return summarize(values, run->split_count).median;
}

static json_t *run_json(const struct run *run, const struct shape *shape) {
  json_t *json = json_object();
  put(json, "mode", json_string(ek_mode_name(run->mode)));
  put(json, "precision", json_string(precision_text(run->precision)));
  put(json, "devices", whole(run->kind.devices));
  put(json, "spec", json_string(run->spec));
  put(json, "threads_per_device", json_integer(run->kind.threads));
  put(json, "out_of_memory", json_boolean(run->status != EK_OK));
  put(json, "tokens_per_second", number_or_null(run_tokens_per_second(run, shape)));
  put(json, "step_seconds", summary_json(run_seconds(run)));
  json_t *split = json_object();
  for (int p = 0; p < PARTS; p++) put(split, part_names[p], number_or_null(median_part(run, p)));
  put(json, "split_seconds", split);
  put(json, "begun_step_seconds",
      number_or_null(run->begun_seconds > 0 ? run->begun_seconds : (double)NAN));
  put(json, "losses", run->status == EK_OK ? losses_json(run) : json_null());
  put_loss_scale(json, run);
  put_processes(json, run);
  return json;
}

static void csv_head(struct grid *grid) {
  static const char *const names[] = {"mode",
                                      "devices",
                                      "spec",
                                      "threads_per_device",
                                      "tokens_per_second",
                                      "step_seconds_median",
                                      "step_seconds_min",
                                      "step_seconds_max"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) grid_column(grid, names[i], true);
  for (int p = 0; p < PARTS; p++) {
    char heading[64];
    snprintf(heading, sizeof heading, "%s_seconds", part_names[p]);
    grid_column(grid, heading, true);
  }
  grid_column(grid, "precision", true);
}

static void csv_row(struct grid *grid, const struct run *run, const struct shape *shape) {
  const struct summary seconds = run_seconds(run);
  grid_cell(grid, "%s", ek_mode_name(run->mode));
  grid_cell(grid, "%zu", run->kind.devices);
  grid_cell(grid, "%s", run->spec);
  grid_cell(grid, "%d", run->kind.threads);
  grid_exact(grid, run_tokens_per_second(run, shape));
  grid_exact(grid, seconds.median);
  grid_exact(grid, seconds.min);
  grid_exact(grid, seconds.max);
  for (int p = 0; p < PARTS; p++) grid_exact(grid, median_part(run, p));
  grid_cell(grid, "%s", precision_text(run->precision));
}

static void table_head(struct grid *grid, const struct shape *shape) {
  grid_column(grid, "mode", true);
  grid_column(grid, "devices", true);
  const char *const numbers[] = {"threads", speed_text(shape), "step ms", "min", "max"};
  static const int order[] = {1, 4, 0, 3, 2}; /* which stay longest where a line is short */
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    grid_column(grid, numbers[i], false);
    grid_expendable(grid, order[i]);
  }
  for (int p = 0; p < PARTS; p++) {
    grid_column(grid, part_names[p], false);
    grid_expendable(grid, 10 - p);
  }
}

static void table_row(struct grid *grid, const struct run *run, const struct shape *shape) {
  const struct summary seconds = run_seconds(run);
  grid_cell(grid, "%s", run_name(run));
  grid_cell(grid, "%s", run->spec);
  grid_cell(grid, "%d", run->kind.threads);
  grid_number(grid, run_tokens_per_second(run, shape), 0);
  grid_number(grid, seconds.median * 1e3, 2);
  grid_number(grid, seconds.min * 1e3, 2);
  grid_number(grid, seconds.max * 1e3, 2);
  for (int p = 0; p < PARTS; p++) grid_number(grid, median_part(run, p) * 1e3, 2);
}

static struct report report_runs(const struct options *options, const struct text *text,
                                 const struct run *runs, size_t count) {
  struct report report = {.json = report_start(options, text), .csv = grid_create(NULL)};
  char title[160];
  snprintf(title, sizeof title,
           "Milliseconds of a training step and of its parts: %s, %s%s, %s", options->preset,
           rule_name(options->rule), precision_name(options), batch_text(&options->shape));
  report.tables[0] = grid_create(title);
  csv_head(report.csv);
  table_head(report.tables[0], &options->shape);
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) {
    append(array, run_json(&runs[i], &options->shape));
    csv_row(report.csv, &runs[i], &options->shape);
    table_row(report.tables[0], &runs[i], &options->shape);
    processes_rows(&report.tables[1], &runs[i]);
  }
  put(report.json, "runs", array);
  return report;
}

static enum exit_code time_mode(struct run *run, const struct task *task) {
  const int64_t steps = task->shape->steps;
  /* Where work is done when a call returns, a step that is begun is a step. */
  const bool queues = strncmp(task->spec, "cuda", 4) == 0;
  const struct run_extras extras = {.splits = steps < MOST_SPLITS ? (size_t)steps : MOST_SPLITS,
                                    .begun = queues,
                                    .trace = task->options->trace,
                                    .snapshot = task->options->snapshot};
  run_task(run, task, &extras);
  if (run->status == EK_OK) return EXIT_GOOD;
  const bool full = run->status == EK_ERR_OUT_OF_MEMORY && run->kind.devices > 0;
  say_error("mode %s %s %s: %s", run_name(run), full ? "does not fit on" : "on",
            task->spec, run->message);
  return full ? EXIT_OUT_OF_MEMORY : EXIT_ERROR;
}

enum exit_code run_step(const struct options *options) {
  struct text text;
  enum exit_code code = prepare(&text, options);
  if (code != EXIT_GOOD) return code;
  const size_t modes = options->mode_count, specs = options->spec_count;
  const size_t total = specs * modes * options->precision_count;
  struct run *runs = need_memory(total, sizeof *runs);
  size_t done = 0;
  while (done < total && code != EXIT_ERROR) {
    const struct task task =
        make_task(options, &text, options->specs[done / modes % specs],
                  options->modes[done % modes], options->precisions[done / (modes * specs)]);
    progress_run(done, total);
    code = worse(code, time_mode(&runs[done++], &task));
  }
  if (code != EXIT_ERROR) {
    code = worse(code, compare_losses(runs, done, options));
    struct report report = report_runs(options, &text, runs, done);
    if (!report_write(&report, options)) code = EXIT_ERROR;
  }
  for (size_t i = 0; i < done; i++) run_free(&runs[i]);
  free(runs);
  text_free(&text);
  return code;
}
