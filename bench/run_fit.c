/*
 * run_fit.c - the subcommands `fit`, which settings fit the devices, the fastest first, and `plan`,
 * what the given settings take in each mode.
 *
 * The answers are the library's, ek_advise() and ek_plan_step(), which plan a trainer's steps. With
 * --measure the first few train as every other subcommand does, in turns: one measured step each
 * and as many rounds as --steps says.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

enum { MOST_CHOICES = 256 };

struct choice {
  ek_advice advice;
  uint64_t measured_peak; /* 0: none was measured */
  double *seconds;        /* of each round; NULL as well */
};

/* ---- the search ---- */

static enum precision bench_precision(const ek_settings *settings) {
  enum precision precision = PRECISION_F32;
  while (precision_value(precision) != settings->precision) precision++;
  return precision;
}

static ek_status build(void *context, const ek_settings *settings, ek_module **module,
                       ek_criterion **criterion) {
  const struct task *task = context;
  struct shape shape = *task->shape;
  shape.recompute = settings->recompute;
  return training_model(module, criterion, &shape, settings->fused_loss, bench_precision(settings));
}

/* Of the global batch, what the first process has: no other one has more. */
static int64_t own_batch(const struct options *options) {
  const int64_t batch = options->shape.batch, devices = options->world_devices;
  if (options->processes == 0) return batch;
  const int64_t all = devices * options->processes, more = batch % all;
  return batch / all * devices + (more < devices ? more : devices);
}

/* One choice for each place of the shares. */
static ek_status plan_mode(ek_advice *advice, size_t *count, const struct options *options,
                           const ek_advise_task *task, ek_settings settings) {
  const bool shares = options->processes > 1 && options->world_devices > 1 &&
                      settings.mode != EK_MODE_REPLICATED;
  for (int over = EK_SHARD_WORLD; over <= (shares ? EK_SHARD_PROCESS : EK_SHARD_WORLD); over++) {
    settings.shard_over = (ek_shard_over)over;
    EK_TRY(ek_plan_step(&advice[*count], options->specs[0], task, &settings));
    ++*count;
  }
  return EK_OK;
}

/* Those that fit first, the fastest first. */
static int by_time(const void *left, const void *right) {
  const ek_advice *a = left, *b = right;
  if (a->fits != b->fits) return a->fits ? -1 : 1;
  return (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

static ek_status plan(ek_advice *advice, size_t *count, const struct options *options,
                      const ek_advise_task *task) {
  for (size_t i = 0; i < options->mode_count * options->precision_count; i++) {
    const enum precision precision = options->precisions[i / options->mode_count];
    const ek_settings settings = {.mode = options->modes[i % options->mode_count],
                                  .recompute = options->shape.recompute,
                                  .fused_loss = options->fused_loss,
                                  .micro_batches = options->shape.micro_batches,
                                  .precision = precision_value(precision)};
    EK_TRY(plan_mode(advice, count, options, task, settings));
  }
  qsort(advice, *count, sizeof *advice, by_time);
  return EK_OK;
}

static ek_status advise(ek_advice *advice, size_t *count, const struct options *options) {
  const struct shape *shape = &options->shape;
  struct task model = {.options = options, .shape = shape};
  const ek_group_options group = group_options(options, options->threads);
  ek_trainer_options trainer = EK_TRAINER_OPTIONS_INIT;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_advise_task task = EK_ADVISE_TASK_INIT;
  ek_tensor inputs, targets;
  int32_t none[1] = {0}; /* of a batch only type and shape are read */
  EK_TRY(training_batch(&inputs, &targets, shape, none, none, 0, own_batch(options)));
  trainer.group_options = &group;
  trainer.model = &model_options;
  model_options.gradient_type = training_type(options->gradients);
  model_options.bucket_bytes = options->bucket_bytes;
  task.build = build;
  task.context = &model;
  task.inputs = &inputs;
  task.targets = &targets;
  task.input_count = task.target_count = 1;
  task.trainer = &trainer;
  for (size_t i = 0; i < options->mode_count; i++) task.modes |= UINT64_C(1) << options->modes[i];
  for (size_t i = 0; i < options->precision_count; i++) {
    task.precisions |= 1u << precision_value(options->precisions[i]);
  }
  task.processes = (size_t)options->processes;
  task.link_bytes = options->link_bytes;
  task.link_seconds = options->link_seconds;
  EK_TRY(training_rule(&task.optimizer, options));
  const ek_status status =
      options->command == COMMAND_PLAN
          ? plan(advice, count, options, &task)
          : ek_advise(advice, count, MOST_CHOICES, options->specs[0], &task);
  ek_optimizer_free(task.optimizer);
  return status;
}

/* The choices, or the one that comes nearest: EXIT_OUT_OF_MEMORY. */
static enum exit_code find_choices(struct choice *choices, size_t *count,
                                   const struct options *options) {
  ek_advice advice[MOST_CHOICES];
  *count = 0;
  const ek_status status = advise(advice, count, options);
  if (*count > MOST_CHOICES) *count = MOST_CHOICES;
  for (size_t i = 0; i < *count; i++) choices[i].advice = advice[i];
  if (status == EK_OK) {
    const bool good = *count > 0 && advice[0].fits;
    if (!good) say_error("%s: no mode fits", options->specs[0]);
    return good ? EXIT_GOOD : EXIT_OUT_OF_MEMORY;
  }
  const char *message = ek_error_message(), *words = strstr(message, ": ");
  if (strncmp(message, "ek_", 3) == 0 && words != NULL)
    message = words + 2; /* no function's name */
  say_error("%s: %s", options->specs[0], message);
  return status == EK_ERR_OUT_OF_MEMORY && *count == 1 ? EXIT_OUT_OF_MEMORY : EXIT_ERROR;
}

/* ---- measuring ---- */

static double tokens_per_second(const struct choice *choice, const struct options *options) {
  if (choice->seconds == NULL) return (double)NAN;
  const double median = summarize(choice->seconds, (size_t)options->shape.steps).median;
  return (double)options->shape.batch * (double)options->shape.seq / median;
}

static uint64_t highest_peak(const struct run *run) {
  uint64_t peak = 0;
  for (size_t k = 0; k < run->kind.devices; k++) {
    if (run->usage[k].peak_bytes > peak) peak = run->usage[k].peak_bytes;
  }
  return peak;
}

static enum exit_code measure_once(struct choice *choice, size_t round,
                                   const struct options *options, const struct text *text) {
  const ek_settings *settings = &choice->advice.settings;
  struct options own = *options; /* a loan of all that it points to */
  own.fused_loss = settings->fused_loss;
  own.shape.recompute = settings->recompute;
  own.shape.micro_batches = settings->micro_batches;
  own.shape.steps = 1;
  const struct task task =
      make_task(&own, text, options->specs[0], settings->mode, bench_precision(settings));
  struct run run;
  run_task(&run, &task, NULL);
  enum exit_code code = EXIT_GOOD;
  choice->measured_peak = run.kind.counts_only ? 0 : highest_peak(&run);
  choice->seconds[round] = run_seconds(&run).median;
  if (run.status != EK_OK) {
    say_error("mode %s on %s: %s", ek_mode_name(run.mode), run.spec, run.message);
    code = EXIT_ERROR;
  } else if (highest_peak(&run) != choice->advice.peak_bytes) {
    char used[BYTES_TEXT], expected[BYTES_TEXT];
    say_error("mode %s used %s, but %s were planned", ek_mode_name(run.mode),
              bytes_text(used, highest_peak(&run)),
              bytes_text(expected, choice->advice.peak_bytes));
    code = EXIT_ERROR;
  }
  run_free(&run);
  return code;
}

static enum exit_code measure(struct choice *choices, size_t count, const struct options *options,
                              const struct text *text) {
  const size_t wanted = (size_t)options->measure, measured = count < wanted ? count : wanted;
  const size_t rounds = (size_t)options->shape.steps;
  for (size_t i = 0; i < measured; i++) {
    choices[i].seconds = need_memory(rounds, sizeof *choices[i].seconds);
  }
  for (size_t round = 0; round < rounds; round++) {
    for (size_t i = 0; i < measured; i++) {
      progress_run(round * measured + i, measured * rounds);
      const enum exit_code code = measure_once(&choices[i], round, options, text);
      if (code != EXIT_GOOD) return code;
    }
  }
  return EXIT_GOOD;
}

/* ---- report ---- */

static const char *shares_text(const ek_advice *advice) {
  return advice->settings.shard_over == EK_SHARD_PROCESS ? "process" : "world";
}

static json_t *choice_json(const struct choice *choices, size_t rank,
                           const struct options *options) {
  const struct choice *choice = &choices[rank - 1];
  const ek_advice *advice = &choice->advice;
  char recompute[EK_RECOMPUTE_TEXT];
  json_t *json = json_object();
  put(json, "rank", whole(rank));
  put(json, "fits", json_boolean(advice->fits));
  put(json, "mode", json_string(ek_mode_name(advice->settings.mode)));
  const enum precision precision = bench_precision(&advice->settings);
  put(json, "precision", json_string(precision_text(precision)));
  put(json, "recompute", json_string(ek_recompute_format(recompute, &advice->settings.recompute)));
  put(json, "loss", json_string(advice->settings.fused_loss ? "fused" : "whole"));
  put(json, "micro_batches", json_integer(advice->settings.micro_batches));
  put(json, "shard_over", json_string(shares_text(advice)));
  put(json, "planned_peak_bytes", whole(advice->peak_bytes));
  put(json, "missing_bytes", whole(advice->missing_bytes));
  put(json, "predicted_cost", json_real(advice->seconds));
  put(json, "sent_bytes", whole(advice->sent_bytes));
  put(json, "predicted_exchange", json_real(advice->exchange_seconds));
  put(json, "cost_ratio", number_or_null(advice->seconds / choices[0].advice.seconds));
  put(json, "measured_peak_bytes",
      choice->measured_peak > 0 ? whole(choice->measured_peak) : json_null());
  put(json, "tokens_per_second", number_or_null(tokens_per_second(choice, options)));
  return json;
}

static void add_cell(struct grid *grid, double number, int digits, bool csv) {
  if (csv) {
    grid_exact(grid, number);
  } else {
    grid_number(grid, number, digits);
  }
}

/* The columns of both grids; in CSV bytes, and the cost as the library has it, for people MiB, and
 * the cost in units of that of the first choice: it is only good for comparisons. */
static void add_row(struct grid *grid, const struct choice *choices, size_t rank,
                    const struct options *options, bool csv) {
  const struct choice *choice = &choices[rank - 1];
  const ek_advice *advice = &choice->advice;
  const double bytes = csv ? 1 : 1024.0 * 1024.0;
  const double measured =
      choice->measured_peak > 0 ? (double)choice->measured_peak / bytes : (double)NAN;
  char recompute[EK_RECOMPUTE_TEXT];
  grid_cell(grid, "%zu", rank);
  grid_cell(grid, "%s", advice->fits ? "yes" : "no");
  grid_cell(grid, "%s", ek_mode_name(advice->settings.mode));
  grid_cell(grid, "%s", precision_text(bench_precision(&advice->settings)));
  grid_cell(grid, "%s", ek_recompute_format(recompute, &advice->settings.recompute));
  grid_cell(grid, "%s", advice->settings.fused_loss ? "fused" : "whole");
  grid_cell(grid, "%lld", (long long)advice->settings.micro_batches);
  const double numbers[] = {
      (double)advice->peak_bytes / bytes, (double)advice->missing_bytes / bytes,
      advice->seconds / (csv ? 1 : choices[0].advice.seconds), measured,
      tokens_per_second(choice, options)};
  static const int digits[] = {2, 2, 3, 2, 0};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    add_cell(grid, numbers[i], digits[i], csv);
  }
  if (!csv && options->processes == 0) return;
  grid_cell(grid, "%s", shares_text(advice));
  add_cell(grid, (double)advice->sent_bytes / bytes, 2, csv);
  if (!csv) grid_number(grid, advice->seconds, 4);
  add_cell(grid, advice->exchange_seconds, 4, csv);
}

/* measured: some choices have been trained. */
static void add_columns(struct grid *table, struct grid *csv, bool measured,
                        const struct shape *shape) {
  static const char *const words[] = {"fits", "mode", "precision", "recompute", "loss"};
  const char *const shown[] = {"micro-batches", "planned MiB",  "missing",
                               "cost",          "measured MiB", speed_text(shape)};
  static const char *const names[] = {"micro_batches",  "planned_peak_bytes",  "missing_bytes",
                                      "predicted_cost", "measured_peak_bytes", "tokens_per_second"};
  /* Which stay longest where a line is short. */
  static const int words_order[] = {3, 0, 4, 0, 0}, shown_order[] = {0, 6, 2, 7, 1, 0};
  grid_column(table, "rank", false);
  grid_expendable(table, 5);
  grid_column(csv, "rank", true);
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    grid_column(table, words[i], true);
    grid_expendable(table, words_order[i]);
    grid_column(csv, words[i], true);
  }
  for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
    grid_column(table, shown[i], false);
    grid_expendable(table, measured || i != 5 ? shown_order[i] : 1);
    grid_column(csv, names[i], true);
  }
}

/* What there is to say of several processes. */
static void add_world_columns(struct grid *table, struct grid *csv, const struct options *options) {
  static const char *const shown[] = {"shares", "sent MiB", "step s (model)", "link s (model)"};
  static const char *const names[] = {"shard_over", "sent_bytes", "predicted_exchange"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) grid_column(csv, names[i], true);
  for (size_t i = 0; i < sizeof shown / sizeof *shown && options->processes > 0; i++) {
    grid_column(table, shown[i], i == 0);
    grid_expendable(table, i == 3 ? 5 : 8);
  }
}

/* "16x8, link 25GB/s,5us, in each process plan:8", or the devices alone. */
static const char *place_text(char text[160], const struct options *options) {
  (void)snprintf(text, 160, "%s%s%s%s%s", options->processes > 0 ? options->world_text : "",
                 options->link_text != NULL ? ", link " : "",
                 options->link_text != NULL ? options->link_text : "",
                 options->processes > 0 ? ", in each process " : "", options->specs[0]);
  return text;
}

static struct report report_choices(const struct options *options, const struct text *text,
                                    const struct choice *choices, size_t count) {
  struct report report = {.json = report_start(options, text), .csv = grid_create(NULL)};
  const bool fits = choices[0].advice.fits;
  const char *what = options->command == COMMAND_PLAN ? "What each mode would take on"
                     : fits                           ? "What fits"
                                                      : "The settings nearest to fitting";
  char title[400], place[160];
  snprintf(title, sizeof title, "%s %s%s: %s, %s%s, %s%s", what,
           place_text(place, options), fits ? ", the fastest first" : "", options->preset,
           rule_name(options->rule), precision_name(options), batch_text(&options->shape),
           options->processes > 0 ? "; times are those of a model, not measured" : "");
  report.tables[0] = grid_create(title);
  add_columns(report.tables[0], report.csv, options->measure > 0, &options->shape);
  add_world_columns(report.tables[0], report.csv, options);
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) {
    append(array, choice_json(choices, i + 1, options));
    add_row(report.csv, choices, i + 1, options, true);
    add_row(report.tables[0], choices, i + 1, options, false);
  }
  put(report.json, "choices", array);
  return report;
}

/* The devices of --devices are those of each process. */
static enum exit_code check_world(const struct options *options) {
  ek_group *group = NULL;
  const ek_group_options how = group_options(options, options->threads);
  if (options->processes == 0) return EXIT_GOOD;
  if (ek_group_open(&group, options->specs[0], &how) != EK_OK) {
    say_error("%s: %s", options->specs[0], ek_error_message());
    return EXIT_ERROR;
  }
  const size_t devices = ek_group_size(group);
  ek_group_free(group);
  if ((int64_t)devices == options->world_devices) return EXIT_GOOD;
  say_error("--world %s has %lld devices in each process, but %s has %zu", options->world_text,
            (long long)options->world_devices, options->specs[0], devices);
  return EXIT_USAGE;
}

enum exit_code run_fit(const struct options *options) {
  struct text text;
  enum exit_code code = prepare(&text, options);
  if (code == EXIT_GOOD) code = check_world(options);
  if (code != EXIT_GOOD) {
    text_free(&text);
    return code;
  }
  struct choice *choices = need_memory(MOST_CHOICES, sizeof *choices);
  size_t count = 0;
  code = find_choices(choices, &count, options);
  if (code == EXIT_GOOD && options->measure > 0) code = measure(choices, count, options, &text);
  if (count > 0 && code != EXIT_ERROR) {
    struct report report = report_choices(options, &text, choices, count);
    if (!report_write(&report, options)) code = EXIT_ERROR;
  }
  for (size_t i = 0; i < count; i++) free(choices[i].seconds);
  free(choices);
  text_free(&text);
  return code;
}
