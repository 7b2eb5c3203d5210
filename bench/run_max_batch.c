/*
 * run_max_batch.c - the subcommand `max-batch`: the largest global batch under a cap.
 *
 * Every attempt trains for real, in a group of its own, because the question is whether a program
 * that starts with this batch gets through, and the memory of a group that has been full before may
 * be fragmented differently. It takes two steps, because the second starts with the memory that the
 * first has left. The batch is doubled until it fails and then bisected, which is right because the
 * memory of a mode grows with the batch. The search on `plan` is the same code with the same cap.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

/* More samples at once are not realistic, and the search must end even if a cap is very large. */
#define LARGEST_BATCH (INT64_C(1) << 20)

struct search {
  struct task task;   /* shape points to `shape` */
  struct shape shape; /* with the batch that is tried */
  int64_t attempts;
};

struct result {
  ek_mode mode;
  enum precision precision;
  bool counts_only;
  int64_t batch, planned, attempts;
};

/* *fits: whether it ran through. False, after a message, for a failure that is not memory. */
static bool try_batch(bool *fits, struct search *search, int64_t batch) {
  search->shape.batch = batch;
  struct run run;
  run_task(&run, &search->task, NULL);
  search->attempts++;
  *fits = run.status == EK_OK;
  const bool good = *fits || run.status == EK_ERR_OUT_OF_MEMORY;
  if (!good) {
    say_error("mode %s on %s, batch %lld: %s", run_name(&run), run.spec, (long long)batch,
              run.message);
  }
  run_free(&run);
  return good;
}

static bool find_largest(int64_t *largest, struct search *search) {
  int64_t low = 0, high = 1; /* low fits, high is not known to */
  bool fits = true;
  while (high <= LARGEST_BATCH) {
    if (!try_batch(&fits, search, high)) return false;
    if (!fits) break;
    low = high;
    high *= 2;
  }
  while (!fits && high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    bool here = false;
    if (!try_batch(&here, search, middle)) return false;
    if (here)
      low = middle;
    else
      high = middle;
  }
  if (low == LARGEST_BATCH) say_note("the search ends at %lld samples", (long long)low);
  *largest = low;
  return true;
}

static void start_search(struct search *search, const struct options *options,
                         const struct text *text, ek_mode mode, enum precision precision) {
  search->task = make_task(options, text, options->specs[0], mode, precision);
  search->shape = options->shape;
  search->task.shape = &search->shape;
  search->attempts = 0;
  if (search->shape.warmup + search->shape.steps < 2) search->shape.warmup = 1;
}

/* "plan:4@64MiB" for four devices and the "@64MiB" of the real string. */
static char *planned_spec(const char *spec, const struct kind *kind) {
  const char *cap = strchr(spec, '@');
  const size_t room = strlen(spec) + 32;
  char *planned = need_memory(room, 1);
  snprintf(planned, room, "%s:%zu%s", kind->planner, kind->devices, cap == NULL ? "" : cap);
  return planned;
}

/* What the real group is. */
static bool look_at_group(struct kind *kind, const struct options *options) {
  ek_group *group = NULL;
  const ek_group_options how = group_options(options, options->threads);
  if (ek_group_open(&group, options->specs[0], &how) != EK_OK) {
    say_error("%s: %s", options->specs[0], ek_error_message());
    return false;
  }
  *kind = group_kind(group);
  ek_group_free(group);
  return true;
}

static enum exit_code search_mode(struct result *result, const struct options *options,
                                  const struct text *text, ek_mode mode, enum precision precision) {
  struct kind kind;
  result->mode = mode;
  result->precision = precision;
  if (!look_at_group(&kind, options)) return EXIT_ERROR;
  result->counts_only = kind.counts_only;
  struct search real, plan;
  start_search(&real, options, text, mode, precision);
  if (!result->counts_only && !find_largest(&result->batch, &real)) return EXIT_ERROR;
  result->attempts = real.attempts;

  char *spec = planned_spec(options->specs[0], &kind);
  start_search(&plan, options, text, mode, precision);
  plan.task.spec = spec;
  plan.task.text = NULL;
  plan.task.threads = kind.threads;
  const bool good = find_largest(&result->planned, &plan);
  free(spec);
  if (!good) return EXIT_ERROR;
  if (result->counts_only || result->batch == result->planned) return EXIT_GOOD;
  say_error("mode %s: batch %lld is the largest that trains, but %lld was planned",
            mode_name(mode, precision), (long long)result->batch, (long long)result->planned);
  return EXIT_ERROR;
}

/* The baseline's batch in a precision, for the ratio; 0 if it is not there. */
static double gather_batch(const struct result *results, size_t count, enum precision precision) {
  for (size_t i = 0; i < count; i++) {
    if (results[i].mode == EK_MODE_GATHER && results[i].precision == precision)
      return (double)results[i].planned;
  }
  return 0;
}

static void add_columns(struct report *report) {
  static const char *const headings[] = {"max batch", "planned", "times gather", "attempts"};
  static const char *const names[] = {"max_batch", "planned_max_batch", "times_gather", "attempts"};
  grid_column(report->tables[0], "mode", true);
  grid_column(report->csv, "mode", true);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    grid_column(report->tables[0], headings[i], false);
    grid_column(report->csv, names[i], false);
  }
  grid_column(report->csv, "precision", true);
}

/* `ratio`: how many times the baseline's batch. */
static void add_result(struct report *report, json_t *runs, const struct result *result,
                       double ratio) {
  const double batch = result->counts_only ? (double)NAN : (double)result->batch;
  json_t *run = json_object();
  put(run, "mode", json_string(ek_mode_name(result->mode)));
  put(run, "precision", json_string(precision_text(result->precision)));
  put(run, "max_batch", result->counts_only ? json_null() : json_integer(result->batch));
  put(run, "planned_max_batch", json_integer(result->planned));
  put(run, "times_gather", number_or_null(ratio));
  put(run, "attempts", json_integer(result->attempts));
  append(runs, run);
  struct grid *table = report->tables[0], *csv = report->csv;
  grid_cell(table, "%s", mode_name(result->mode, result->precision));
  grid_number(table, batch, 0);
  grid_number(table, (double)result->planned, 0);
  grid_number(table, ratio, 2);
  grid_cell(table, "%lld", (long long)result->attempts);
  grid_cell(csv, "%s", ek_mode_name(result->mode));
  grid_exact(csv, batch);
  grid_exact(csv, (double)result->planned);
  grid_exact(csv, ratio);
  grid_cell(csv, "%lld", (long long)result->attempts);
  grid_cell(csv, "%s", precision_text(result->precision));
}

static struct report report_results(const struct options *options, const struct text *text,
                                    const struct result *results, size_t count) {
  struct report report = {.json = report_start(options, text), .csv = grid_create(NULL)};
  char title[160];
  snprintf(title, sizeof title, "Largest global batch: %s, %s, %s%s", options->preset,
           options->specs[0], rule_name(options->rule), precision_name(options));
  report.tables[0] = grid_create(title);
  add_columns(&report);
  json_t *runs = json_array();
  for (size_t i = 0; i < count; i++) {
    const double base = gather_batch(results, count, results[i].precision);
    const double ratio = base > 0 ? (double)results[i].planned / base : (double)NAN;
    add_result(&report, runs, &results[i], ratio);
  }
  put(report.json, "runs", runs);
  return report;
}

enum exit_code run_max_batch(const struct options *options) {
  struct text text;
  enum exit_code code = prepare(&text, options);
  if (code != EXIT_GOOD) return code;
  struct result results[BENCH_MODES * BENCH_PRECISIONS] = {{0}};
  const size_t modes = options->mode_count, count = modes * options->precision_count;
  progress_run(0, 0); /* of each mode some attempts */
  for (size_t i = 0; i < count; i++) {
    code = worse(code, search_mode(&results[i], options, &text, options->modes[i % modes],
                                   options->precisions[i / modes]));
  }
  struct report report = report_results(options, &text, results, count);
  if (!report_write(&report, options)) code = EXIT_ERROR;
  text_free(&text);
  return code;
}
