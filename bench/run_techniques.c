/*
 * run_techniques.c - the subcommand `techniques`: what each way to use less memory saves and costs.
 *
 * All rows train the same model on the same batches from the same initial values. They run in
 * turns, one measured step each and as many rounds as --steps says, so that what else the machine
 * does falls on all of them; a row's speed is compared with that of `plain` in the same round.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

/* The first is what the others are compared with. */
static const struct technique {
  const char *name;
  int64_t micro_batches;
  ek_recompute recompute;
  bool fused_loss, fully_sharded; /* the second: whatever the mode of its rows */
} techniques[] = {
    {"plain", 1, {EK_RECOMPUTE_NONE, 0, 0}, false, false},
    {"micro-batches 4", 4, {EK_RECOMPUTE_NONE, 0, 0}, false, false},
    {"cheap", 1, {EK_RECOMPUTE_CHEAP, 0, 0}, false, false},
    {"sqrt", 1, {EK_RECOMPUTE_SQRT, 0, 0}, false, false},
    {"every=1", 1, {EK_RECOMPUTE_EVERY, 1, 0}, false, false},
    {"all", 1, {EK_RECOMPUTE_ALL, 0, 0}, false, false},
    {"fused loss", 1, {EK_RECOMPUTE_NONE, 0, 0}, true, false},
    {"fused loss, cheap", 1, {EK_RECOMPUTE_CHEAP, 0, 0}, true, false},
    {"fused loss, every=1", 1, {EK_RECOMPUTE_EVERY, 1, 0}, true, false},
    {"micro-batches 4, fused loss", 4, {EK_RECOMPUTE_NONE, 0, 0}, true, false},
    {"micro-batches 4, fused loss, cheap", 4, {EK_RECOMPUTE_CHEAP, 0, 0}, true, false},
    {"micro-batches 4, fused loss, every=1", 4, {EK_RECOMPUTE_EVERY, 1, 0}, true, false},
    {"fully-sharded", 1, {EK_RECOMPUTE_NONE, 0, 0}, false, true},
};
enum { TECHNIQUES = sizeof techniques / sizeof techniques[0] };

/* Of those that a model has: only language models have a fused loss. *count, in every mode. */
static const struct technique *technique_at(size_t index, size_t *count,
                                            const struct shape *shape) {
  const struct technique *found = NULL;
  *count = 0;
  for (size_t i = 0; i < TECHNIQUES; i++) {
    if (shape->image > 0 && techniques[i].fused_loss) continue;
    if ((*count)++ == index) found = &techniques[i];
  }
  return found;
}

/* A technique in a mode. */
struct row {
  const struct technique *technique;
  ek_mode mode;
  enum precision precision;
  struct shape shape;
  struct run first, planned; /* of the first round, and without a cap */
  double *seconds;           /* of each round; NaN where nothing is known */
};

/* ---- figures ---- */

static bool fits(const struct row *row) { return row->first.status == EK_OK; }

static const struct run *shown(const struct row *row) {
  return fits(row) ? &row->first : &row->planned;
}

static size_t fullest(const struct run *run) {
  size_t fullest = 0;
  for (size_t k = 1; k < run->kind.devices; k++) {
    if (run->usage[k].peak_bytes > run->usage[fullest].peak_bytes) fullest = k;
  }
  return fullest;
}

static const ek_memory_usage *usage_of(const struct row *row) {
  return &shown(row)->usage[fullest(shown(row))];
}

static uint64_t state_bytes(const ek_memory_usage *usage) {
  return usage->at_peak[EK_MEMORY_PARAMETERS] + usage->at_peak[EK_MEMORY_COPIES] +
         usage->at_peak[EK_MEMORY_GRADIENTS] + usage->at_peak[EK_MEMORY_OPTIMIZER];
}

static double ratio(uint64_t value, uint64_t of) {
  return of > 0 ? (double)value / (double)of : (double)NAN;
}

static double memory_ratio(const struct row *row, const struct row *plain) {
  return ratio(usage_of(row)->peak_bytes, usage_of(plain)->peak_bytes);
}

/* Of what is above the model's state, which no technique here makes smaller. */
static double above_ratio(const struct row *row, const struct row *plain) {
  const ek_memory_usage *mine = usage_of(row), *others = usage_of(plain);
  return ratio(mine->peak_bytes - state_bytes(mine), others->peak_bytes - state_bytes(others));
}

/* The median over the rounds of the time of plain in units of this one's. */
static double speed_ratio(const struct row *row, const struct row *plain, size_t rounds) {
  double *ratios = need_memory(rounds, sizeof *ratios);
  size_t count = 0;
  for (size_t i = 0; i < rounds; i++) {
    const double speed = plain->seconds[i] / row->seconds[i];
    if (isfinite(speed)) ratios[count++] = speed;
  }
  const double median = summarize(ratios, count).median;
  free(ratios);
  return median;
}

static double tokens_per_second(const struct row *row, size_t rounds) {
  double *known = need_memory(rounds, sizeof *known);
  size_t count = 0;
  for (size_t i = 0; i < rounds; i++) {
    if (isfinite(row->seconds[i])) known[count++] = row->seconds[i];
  }
  const double median = summarize(known, count).median;
  free(known);
  return (double)row->shape.batch * (double)row->shape.seq / median;
}

static double loss_of(const struct row *row) {
  return fits(row) && row->first.steps > 0 ? row->first.losses[0] : (double)NAN;
}

/* ---- report ---- */

static json_t *row_json(const struct row *row, const struct row *plain, size_t rounds) {
  const ek_memory_usage *usage = usage_of(row);
  json_t *json = json_object(), *categories = json_object();
  put(json, "technique", json_string(row->technique->name));
  put(json, "mode", json_string(ek_mode_name(row->mode)));
  put(json, "precision", json_string(precision_text(row->precision)));
  put(json, "peak_bytes", fits(row) ? whole(usage->peak_bytes) : json_null());
  put(json, "planned_peak_bytes", whole(row->planned.usage[fullest(&row->planned)].peak_bytes));
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    put(categories, ek_memory_category_name((ek_memory_category)c), whole(usage->at_peak[c]));
  }
  put(json, "categories_at_peak", categories);
  put(json, "unused_at_peak_bytes", whole(usage->unused_at_peak));
  put(json, "state_bytes", whole(state_bytes(usage)));
  put(json, "tokens_per_second", number_or_null(tokens_per_second(row, rounds)));
  put(json, "memory_ratio", number_or_null(memory_ratio(row, plain)));
  put(json, "memory_above_state_ratio", number_or_null(above_ratio(row, plain)));
  put(json, "speed_ratio", number_or_null(speed_ratio(row, plain, rounds)));
  put(json, "loss", number_or_null(loss_of(row)));
  return json;
}

static void csv_row(struct grid *grid, const struct row *row, const struct row *plain,
                    size_t rounds) {
  const ek_memory_usage *usage = usage_of(row);
  grid_cell(grid, "%s", row->technique->name);
  grid_cell(grid, "%s", ek_mode_name(row->mode));
  grid_exact(grid, fits(row) ? (double)usage->peak_bytes : (double)NAN);
  grid_exact(grid, (double)row->planned.usage[fullest(&row->planned)].peak_bytes);
  grid_exact(grid, (double)state_bytes(usage));
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) grid_exact(grid, (double)usage->at_peak[c]);
  grid_exact(grid, tokens_per_second(row, rounds));
  grid_exact(grid, memory_ratio(row, plain));
  grid_exact(grid, above_ratio(row, plain));
  grid_exact(grid, speed_ratio(row, plain, rounds));
  grid_exact(grid, loss_of(row));
  grid_cell(grid, "%s", precision_text(row->precision));
}

static void table_row(struct grid *grid, const struct row *row, const struct row *plain,
                      size_t rounds) {
  const double mib = 1024.0 * 1024.0;
  const ek_memory_usage *usage = usage_of(row);
  grid_cell(grid, "%s", row->technique->name);
  grid_cell(grid, "%s", mode_name(row->mode, row->precision));
  grid_cell(grid, "%s", fits(row) ? "yes" : "no");
  grid_number(grid, (double)usage->peak_bytes / mib, 2);
  grid_number(grid, (double)state_bytes(usage) / mib, 2);
  grid_number(grid, (double)usage->at_peak[EK_MEMORY_ACTIVATIONS] / mib, 2);
  grid_number(
      grid, (double)(usage->at_peak[EK_MEMORY_OUTPUTS] + usage->at_peak[EK_MEMORY_LOSS]) / mib, 2);
  grid_number(grid, tokens_per_second(row, rounds), 0);
  grid_number(grid, memory_ratio(row, plain), 3);
  grid_number(grid, above_ratio(row, plain), 3);
  grid_number(grid, speed_ratio(row, plain, rounds), 3);
  grid_number(grid, loss_of(row), 6);
}

static void heads(struct grid *table, struct grid *csv, const struct shape *shape) {
  static const char *const words[] = {"technique", "mode", "fits"};
  const char *const numbers[] = {"peak MiB",       "state",           "activations",
                                 "outputs + loss", speed_text(shape), "memory",
                                 "above state",    "speed",           "loss"};
  static const char *const first[] = {"technique", "mode", "peak_bytes", "planned_peak_bytes",
                                      "state_bytes"};
  static const char *const last[] = {
      "tokens_per_second", "memory_ratio", "memory_above_state_ratio",
      "speed_ratio",       "loss",         "precision"};
  /* Which stay longest where a line is short; the memory and the speed always do. */
  static const int words_order[] = {0, 8, 2}, numbers_order[] = {0, 3, 6, 5, 7, 0, 4, 0, 1};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    grid_column(table, words[i], true);
    grid_expendable(table, words_order[i]);
  }
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    grid_column(table, numbers[i], false);
    grid_expendable(table, numbers_order[i]);
  }
  for (size_t i = 0; i < sizeof first / sizeof *first; i++) grid_column(csv, first[i], true);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    grid_column(csv, ek_memory_category_name((ek_memory_category)c), true);
  }
  for (size_t i = 0; i < sizeof last / sizeof *last; i++) grid_column(csv, last[i], true);
}

static struct report report_rows(const struct options *options, const struct text *text,
                                 const struct row *rows, size_t count) {
  const size_t rounds = (size_t)options->shape.steps;
  struct report report = {.json = report_start(options, text), .csv = grid_create(NULL)};
  char title[200];
  snprintf(title, sizeof title,
           "The fullest device, and ratios to plain, on %s: %s, %s%s, %s", options->specs[0],
           options->preset, rule_name(options->rule), precision_name(options),
           batch_text(&options->shape));
  report.tables[0] = grid_create(title);
  heads(report.tables[0], report.csv, &options->shape);
  json_t *runs = json_array();
  size_t each;
  (void)technique_at(0, &each, &options->shape);
  for (size_t i = 0; i < count; i++) {
    const struct row *plain = &rows[i - i % each]; /* of the same mode and precision */
    append(runs, row_json(&rows[i], plain, rounds));
    csv_row(report.csv, &rows[i], plain, rounds);
    table_row(report.tables[0], &rows[i], plain, rounds);
  }
  put(report.json, "runs", runs);
  return report;
}

/* ---- runs ---- */

static enum exit_code run_row(struct row *row, size_t round, const struct options *options,
                              const struct text *text) {
  struct task task = make_task(options, text, options->specs[0], row->mode, row->precision);
  struct run run;
  struct options own = *options; /* a loan of all that it points to */
  own.fused_loss = row->technique->fused_loss;
  task.options = &own;
  task.shape = &row->shape;
  run_task(&run, &task, NULL);
  row->seconds[round] = run_seconds(&run).median;
  const bool full = run.status == EK_ERR_OUT_OF_MEMORY && run.kind.devices > 0;
  enum exit_code code = full ? EXIT_OUT_OF_MEMORY : run.status == EK_OK ? EXIT_GOOD : EXIT_ERROR;
  if (code != EXIT_GOOD) {
    say_error("%s in mode %s %s %s: %s", row->technique->name, mode_name(row->mode, row->precision),
              full ? "does not fit on" : "on", task.spec, run.message);
  }
  if (round > 0) {
    run_free(&run);
    return code;
  }
  row->first = run;
  if (code == EXIT_ERROR) return code;
  run_plan(&row->planned, &task, &row->first);
  if (row->planned.status != EK_OK) {
    say_error("%s in mode %s cannot be planned: %s", row->technique->name,
              mode_name(row->mode, row->precision), row->planned.message);
    return EXIT_ERROR;
  }
  const uint64_t planned = row->planned.usage[fullest(&row->planned)].peak_bytes;
  if (!fits(row) || usage_of(row)->peak_bytes == planned) return code;
  char used[BYTES_TEXT], expected[BYTES_TEXT];
  say_error("%s in mode %s used %s, but %s were planned", row->technique->name,
            mode_name(row->mode, row->precision), bytes_text(used, usage_of(row)->peak_bytes),
            bytes_text(expected, planned));
  return EXIT_ERROR;
}

/* One measured step a round. What did not fit is not tried again. */
static enum exit_code run_rounds(struct row *rows, size_t count, const struct options *options,
                                 const struct text *text) {
  enum exit_code code = EXIT_GOOD;
  for (size_t round = 0; round < (size_t)options->shape.steps; round++) {
    for (size_t i = 0; i < count && code != EXIT_ERROR; i++) {
      if (round > 0 && (!fits(&rows[i]) || rows[i].first.kind.counts_only)) {
        rows[i].seconds[round] = (double)NAN;
        continue;
      }
      progress_run(round * count + i, count * (size_t)options->shape.steps);
      code = worse(code, run_row(&rows[i], round, options, text));
    }
  }
  return code;
}

static enum exit_code compare(const struct row *rows, size_t count, const struct options *options) {
  struct run *runs = need_memory(count, sizeof *runs);
  for (size_t i = 0; i < count; i++) {
    runs[i] = rows[i].first; /* loans */
    /* Batch norm has the statistics of a micro-batch: another training. */
    if (rows[i].shape.image > 0 && rows[i].shape.micro_batches > 1) runs[i].steps = 0;
  }
  const enum exit_code code = compare_losses(runs, count, options);
  free(runs);
  return code;
}

enum exit_code run_techniques(const struct options *options) {
  struct text text;
  enum exit_code code = prepare(&text, options);
  if (code != EXIT_GOOD) return code;
  size_t each;
  (void)technique_at(0, &each, &options->shape);
  const size_t modes = options->mode_count, count = modes * options->precision_count * each;
  struct row *rows = need_memory(count, sizeof *rows);
  for (size_t i = 0; i < count; i++) {
    struct row *row = &rows[i];
    const struct technique *technique = technique_at(i % each, &each, &options->shape);
    *row = (struct row){.technique = technique,
                        .mode = technique->fully_sharded ? EK_MODE_FULLY_SHARDED
                                                         : options->modes[i / each % modes],
                        .precision = options->precisions[i / each / modes],
                        .shape = options->shape,
                        .seconds = need_memory((size_t)options->shape.steps, sizeof(double))};
    row->shape.steps = 1;
    row->shape.micro_batches = row->technique->micro_batches;
    row->shape.recompute = row->technique->recompute;
  }
  code = run_rounds(rows, count, options, &text);
  if (code != EXIT_ERROR) {
    code = worse(code, compare(rows, count, options));
    struct report report = report_rows(options, &text, rows, count);
    if (!report_write(&report, options)) code = EXIT_ERROR;
  }
  for (size_t i = 0; i < count; i++) {
    run_free(&rows[i].first);
    run_free(&rows[i].planned);
    free(rows[i].seconds);
  }
  free(rows);
  text_free(&text);
  return code;
}
