/*
 * report_memory.c - peaks by device and category, how even they are, losses and speed.
 */
#include "report_memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report_processes.h"

static bool fits(const struct memory_result *result) { return result->real.status == EK_OK; }

const struct run *memory_shown(const struct memory_result *result) {
  return fits(result) ? &result->real : &result->planned;
}

/* NaN where the plan itself had no room. */
static double planned_peak(const struct memory_result *result, size_t device) {
  if (result->planned.status != EK_OK) return (double)NAN;
  return (double)result->planned.usage[device].peak_bytes;
}

/* ---- what no ledger sees: context, libraries, NCCL, other programs ---- */

/* Only a GPU says how much it has. */
static bool has_outside(const struct memory_result *result, size_t device) {
  return result->real.outside[device].total_bytes > 0;
}

/* What the GPU holds at the end; a device has its part where it shares one. */
static uint64_t gpu_used(const ek_memory_outside *outside) {
  return outside->total_bytes - outside->free_bytes;
}

/* The same from what was known at the start: the arena and the memory outside it then. */
static uint64_t gpu_explained(const ek_memory_outside *outside) {
  return gpu_used(outside) - outside->now_bytes + outside->opening_bytes;
}

/* How far the figure of the start is from what is beside the arena at the end. */
static double outside_off_percent(const ek_memory_outside *outside) {
  const double now = (double)outside->now_bytes;
  return 100 * fabs(now - (double)outside->opening_bytes) / now;
}

/* ---- JSON ---- */

static json_t *outside_json(const struct memory_result *result, size_t device) {
  const ek_memory_outside *outside = &result->real.outside[device];
  if (!has_outside(result, device)) return json_null();
  json_t *json = json_object();
  put(json, "at_start_bytes", whole(outside->opening_bytes));
  put(json, "at_end_bytes", whole(outside->now_bytes));
  put(json, "off_percent", number_or_null(outside_off_percent(outside)));
  put(json, "explained_bytes", whole(gpu_explained(outside)));
  put(json, "gpu_used_bytes", whole(gpu_used(outside)));
  put(json, "reserve_bytes", whole(outside->reserve_bytes));
  return json;
}

static json_t *device_json(const struct memory_result *result, size_t device) {
  const ek_memory_usage *usage = &memory_shown(result)->usage[device];
  json_t *json = json_object();
  put(json, "device", whole(device));
  put(json, "peak_bytes", fits(result) ? whole(usage->peak_bytes) : json_null());
  put(json, "planned_peak_bytes",
      result->planned.status == EK_OK ? whole(result->planned.usage[device].peak_bytes)
                                      : json_null());
  put(json, "capacity_bytes", whole(result->real.usage[device].capacity_bytes));
  put(json, "unused_at_peak_bytes", whole(usage->unused_at_peak));
  json_t *categories = json_object();
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    put(categories, ek_memory_category_name((ek_memory_category)c), whole(usage->at_peak[c]));
  }
  put(json, "categories_at_peak", categories);
  put(json, "outside", outside_json(result, device));
  return json;
}

/* Those of which anything was held. */
static json_t *categories_json(const struct device_timeline *curve) {
  json_t *json = json_object();
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    json_t *bytes = json_array();
    uint64_t most = 0;
    for (size_t i = 0; i < curve->count; i++) {
      append(bytes, whole(curve->categories[i][c]));
      if (curve->categories[i][c] > most) most = curve->categories[i][c];
    }
    if (most > 0) {
      put(json, ek_memory_category_name((ek_memory_category)c), bytes);
    } else {
      json_decref(bytes);
    }
  }
  return json;
}

/* By category the first device, which may be another one than the rest, and one of these. */
static json_t *curve_json(const struct device_timeline *curve, bool by_category) {
  json_t *json = json_object(), *seconds = json_array(), *bytes = json_array();
  for (size_t i = 0; i < curve->count; i++) {
    append(seconds, number_or_null(curve->seconds[i]));
    append(bytes, whole(curve->bytes[i]));
  }
  put(json, "seconds", seconds);
  put(json, "bytes", bytes);
  put(json, "categories", by_category ? categories_json(curve) : json_null());
  return json;
}

static json_t *timeline_json(const struct run *run) {
  const struct step_timeline *timeline = run->timeline;
  if (timeline == NULL) return json_null();
  json_t *json = json_object(), *phases = json_array(), *devices = json_array();
  for (size_t i = 0; i < timeline->phases.count; i++) {
    const struct phase *phase = &timeline->phases.list[i];
    json_t *object = json_object();
    put(object, "name", json_string(phase->name));
    put(object, "begin_seconds", number_or_null(phase->begin));
    put(object, "end_seconds", number_or_null(phase->end));
    append(phases, object);
  }
  for (size_t k = 0; k < run->kind.devices; k++) {
    append(devices, curve_json(&timeline->devices[k], k < 2));
  }
  put(json, "phases", phases);
  put(json, "devices", devices);
  put(json, "dropped", whole(timeline->dropped));
  return json;
}

static double largest_peak(const struct run *run) {
  uint64_t most = 0;
  for (size_t k = 0; k < run->kind.devices; k++) {
    if (run->usage[k].peak_bytes > most) most = run->usage[k].peak_bytes;
  }
  return run->status == EK_OK ? (double)most : (double)NAN;
}

static json_t *without_json(const struct memory_result *result, const struct shape *shape) {
  json_t *json = json_object();
  put(json, "largest_peak_bytes", number_or_null(largest_peak(&result->without)));
  put(json, "tokens_per_second", number_or_null(run_tokens_per_second(&result->without, shape)));
  put(json, "step_seconds", summary_json(run_seconds(&result->without)));
  return json;
}

static json_t *result_json(const struct memory_result *result, const struct shape *shape) {
  const struct run *run = memory_shown(result);
  const struct balance balance = run_balance(run);
  json_t *json = json_object();
  put(json, "mode", json_string(ek_mode_name(run->mode)));
  put(json, "precision", json_string(precision_text(run->precision)));
  put(json, "out_of_memory", json_boolean(!fits(result)));
  json_t *devices = json_array();
  for (size_t k = 0; k < run->kind.devices; k++) append(devices, device_json(result, k));
  put(json, "devices", devices);
  put(json, "max_over_mean", number_or_null(balance.max_over_mean));
  put(json, "max_over_min", number_or_null(balance.max_over_min));
  put(json, "first_over_rest", number_or_null(balance.first_over_rest));
  put(json, "losses", fits(result) ? losses_json(run) : json_null());
  put_loss_scale(json, run);
  put(json, "tokens_per_second", number_or_null(run_tokens_per_second(run, shape)));
  put(json, "step_seconds", summary_json(run_seconds(run)));
  put(json, "timeline", timeline_json(&result->real));
  put_processes(json, &result->real);
  if (result->without.kind.devices > 0) put(json, "without", without_json(result, shape));
  return json;
}

/* ---- CSV ---- */

static struct grid *csv_head(void) {
  struct grid *grid = grid_create(NULL);
  static const char *const first[] = {"mode", "device", "out_of_memory", "peak_bytes",
                                      "planned_peak_bytes"};
  static const char *const last[] = {
      "unused_at_peak_bytes", "max_over_mean",       "max_over_min",        "first_over_rest",
      "first_loss",           "last_loss",           "tokens_per_second",   "step_seconds_median",
      "step_seconds_min",     "step_seconds_max",    "outside_start_bytes", "outside_end_bytes",
      "outside_off_percent",  "gpu_explained_bytes", "gpu_used_bytes",      "reserve_bytes",
      "precision"};
  for (size_t i = 0; i < sizeof first / sizeof first[0]; i++) grid_column(grid, first[i], true);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    char heading[64];
    snprintf(heading, sizeof heading, "%s_bytes", ek_memory_category_name((ek_memory_category)c));
    grid_column(grid, heading, true);
  }
  for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) grid_column(grid, last[i], true);
  return grid;
}

static void csv_outside(struct grid *grid, const struct memory_result *result, size_t device) {
  const ek_memory_outside *outside = &result->real.outside[device];
  const bool there = has_outside(result, device);
  const double figures[] = {(double)outside->opening_bytes, (double)outside->now_bytes,
                            outside_off_percent(outside),   (double)gpu_explained(outside),
                            (double)gpu_used(outside),      (double)outside->reserve_bytes};
  for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
    grid_exact(grid, there ? figures[i] : (double)NAN);
  }
}

static double loss_at(const struct run *run, bool last) {
  if (run->steps == 0) return (double)NAN;
  return run->losses[last ? run->steps - 1 : 0];
}

static void csv_row(struct grid *grid, const struct memory_result *result, size_t device,
                    const struct shape *shape) {
  const struct run *run = memory_shown(result);
  const ek_memory_usage *usage = &run->usage[device];
  const struct balance balance = run_balance(run);
  const struct summary seconds = run_seconds(run);
  grid_cell(grid, "%s", ek_mode_name(run->mode));
  grid_cell(grid, "%zu", device);
  grid_cell(grid, "%d", !fits(result));
  grid_exact(grid, fits(result) ? (double)usage->peak_bytes : (double)NAN);
  grid_exact(grid, planned_peak(result, device));
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) grid_exact(grid, (double)usage->at_peak[c]);
  grid_exact(grid, (double)usage->unused_at_peak);
  grid_exact(grid, balance.max_over_mean);
  grid_exact(grid, balance.max_over_min);
  grid_exact(grid, balance.first_over_rest);
  grid_exact(grid, loss_at(run, false));
  grid_exact(grid, loss_at(run, true));
  grid_exact(grid, run_tokens_per_second(run, shape));
  grid_exact(grid, seconds.median);
  grid_exact(grid, seconds.min);
  grid_exact(grid, seconds.max);
  csv_outside(grid, result, device);
  grid_cell(grid, "%s", precision_text(run->precision));
}

/* ---- tables ---- */

/* MiB; GiB where numbers would become long. */
struct unit {
  const char *name;
  double bytes;
};

static struct unit pick_unit(const struct memory_result *results, size_t count) {
  uint64_t most = 0;
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < results[i].planned.kind.devices; k++) {
      const uint64_t peak = results[i].planned.usage[k].peak_bytes;
      if (peak > most) most = peak;
    }
  }
  const struct unit mib = {"MiB", 1048576}, gib = {"GiB", 1073741824};
  return (double)most < 100 * gib.bytes ? mib : gib;
}

static bool category_is_used(const struct memory_result *results, size_t count, int category) {
  for (size_t i = 0; i < count; i++) {
    const struct run *run = memory_shown(&results[i]);
    for (size_t k = 0; k < run->kind.devices; k++) {
      if (run->usage[k].at_peak[category] > 0) return true;
    }
  }
  return false;
}

static void peaks_row(struct grid *grid, const struct memory_result *result, size_t device,
                      const bool used[EK_MEMORY_CATEGORIES], struct unit unit) {
  const struct run *run = memory_shown(result);
  const ek_memory_usage *usage = &run->usage[device];
  grid_cell(grid, "%s", device == 0 ? run_name(run) : "");
  grid_cell(grid, "%zu", device);
  if (fits(result)) {
    grid_number(grid, (double)usage->peak_bytes / unit.bytes, 2);
  } else {
    grid_cell(grid, "too much");
  }
  grid_number(grid, planned_peak(result, device) / unit.bytes, 2);
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    if (used[c]) grid_number(grid, (double)usage->at_peak[c] / unit.bytes, 2);
  }
}

/* Outputs and activations stay longest: modes differ in the first, the batch makes the second. */
static int leave_out_order(ek_memory_category category) {
  switch (category) {
  case EK_MEMORY_OUTPUTS: return 0;
  case EK_MEMORY_ACTIVATIONS: return 8;
  case EK_MEMORY_PARAMETERS: return 7;
  case EK_MEMORY_OPTIMIZER: return 6;
  case EK_MEMORY_GRADIENTS: return 5;
  case EK_MEMORY_LOSS: return 4;
  case EK_MEMORY_COPIES: return 3;
  default: return 2;
  }
}

static struct grid *peaks_table(const struct options *options, const struct memory_result *results,
                                size_t count) {
  const struct unit unit = pick_unit(results, count);
  char title[256];
  snprintf(title, sizeof title,
           "Peak memory of each device and what it held then, %s: %s, %s, %s%s", unit.name,
           options->preset, options->specs[0], rule_name(options->rule), precision_name(options));
  struct grid *grid = grid_create(title);
  grid_column(grid, "mode", true);
  grid_column(grid, "device", false);
  grid_column(grid, "peak", false);
  grid_column(grid, "planned", false);
  grid_expendable(grid, 1);
  bool used[EK_MEMORY_CATEGORIES];
  for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
    used[c] = category_is_used(results, count, c);
    if (!used[c]) continue;
    grid_column(grid, ek_memory_category_name((ek_memory_category)c), false);
    grid_expendable(grid, leave_out_order((ek_memory_category)c));
  }
  for (size_t i = 0; i < count; i++) {
    const size_t devices = memory_shown(&results[i])->kind.devices;
    for (size_t k = 0; k < devices; k++) peaks_row(grid, &results[i], k, used, unit);
  }
  return grid;
}

/* NULL where no device is a GPU's. */
static struct grid *outside_table(const struct memory_result *results, size_t count) {
  const double mib = 1048576;
  if (results[0].real.kind.devices == 0 || !has_outside(&results[0], 0)) return NULL;
  struct grid *grid =
      grid_create("Outside the ledger: context, libraries, NCCL, other programs; MiB "
                  "of each device, not counted as unevenness");
  static const char *const headings[] = {"at the start", "at the end", "off by %",
                                         "explained",    "GPU says",   "reserve"};
  grid_column(grid, "mode", true);
  grid_column(grid, "device", false);
  for (size_t i = 0; i < sizeof headings / sizeof headings[0]; i++) {
    grid_column(grid, headings[i], false);
    if (i >= 3) grid_expendable(grid, 6 - (int)i);
  }
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < results[i].real.kind.devices; k++) {
      const ek_memory_outside *outside = &results[i].real.outside[k];
      grid_cell(grid, "%s", k == 0 ? run_name(&results[i].real) : "");
      grid_cell(grid, "%zu", k);
      grid_number(grid, (double)outside->opening_bytes / mib, 2);
      grid_number(grid, (double)outside->now_bytes / mib, 2);
      grid_number(grid, outside_off_percent(outside), 2);
      grid_number(grid, (double)gpu_explained(outside) / mib, 2);
      grid_number(grid, (double)gpu_used(outside) / mib, 2);
      grid_number(grid, (double)outside->reserve_bytes / mib, 2);
    }
  }
  return grid;
}

static struct grid *modes_table(const struct options *options, const struct memory_result *results,
                                size_t count) {
  struct grid *grid =
      grid_create("Evenness, losses of the first and the last measured step, speed");
  grid_column(grid, "mode", true);
  grid_column(grid, "fits", true);
  grid_expendable(grid, 4);
  grid_column(grid, "device 0 / mean of the rest", false);
  grid_column(grid, "max / mean", false);
  grid_column(grid, "first loss", false);
  grid_expendable(grid, 2);
  grid_column(grid, "last loss", false);
  grid_expendable(grid, 3);
  grid_column(grid, speed_text(&options->shape), false);
  grid_column(grid, "step s (min .. max)", false);
  grid_expendable(grid, 1);
  for (size_t i = 0; i < count; i++) {
    const struct run *run = memory_shown(&results[i]);
    const struct balance balance = run_balance(run);
    const struct summary seconds = run_seconds(run);
    grid_cell(grid, "%s", run_name(run));
    grid_cell(grid, "%s", fits(&results[i]) ? "yes" : "no");
    grid_number(grid, balance.first_over_rest, 3);
    grid_number(grid, balance.max_over_mean, 3);
    grid_number(grid, loss_at(run, false), 6);
    grid_number(grid, loss_at(run, true), 6);
    grid_number(grid, run_tokens_per_second(run, &options->shape), 0);
    if (isfinite(seconds.median)) {
      grid_cell(grid, "%.4f (%.4f .. %.4f)", seconds.median, seconds.min, seconds.max);
    } else {
      grid_cell(grid, "-");
    }
  }
  return grid;
}

/* What --reproducible costs; NULL without it. */
static struct grid *cost_table(const struct options *options, const struct memory_result *results,
                               size_t count) {
  const char *const headings[] = {"largest peak MiB",           "without", "ratio",
                                  speed_text(&options->shape), "without", "ratio"};
  if (options->reproducible == 0) return NULL;
  char title[96];
  (void)snprintf(title, sizeof title, "The same bits on 1 to %zu devices: what that costs",
                 options->reproducible);
  struct grid *grid = grid_create(title);
  grid_column(grid, "mode", true);
  for (size_t i = 0; i < sizeof headings / sizeof headings[0]; i++) {
    grid_column(grid, headings[i], false);
  }
  for (size_t i = 0; i < count; i++) {
    const struct run *with = memory_shown(&results[i]), *without = &results[i].without;
    const double peak = largest_peak(with), before = largest_peak(without);
    const double speed = run_tokens_per_second(with, &options->shape);
    const double speed_before = run_tokens_per_second(without, &options->shape);
    grid_cell(grid, "%s", run_name(with));
    grid_number(grid, peak / (1 << 20), 2);
    grid_number(grid, before / (1 << 20), 2);
    grid_number(grid, peak / before, 3);
    grid_number(grid, speed, 0);
    grid_number(grid, speed_before, 0);
    grid_number(grid, speed / speed_before, 3);
  }
  return grid;
}

struct report report_memory(const struct options *options, const struct text *text,
                            const struct memory_result *results, size_t count) {
  struct report report = {.json = report_start(options, text), .csv = csv_head()};
  json_t *runs = json_array();
  for (size_t i = 0; i < count; i++) {
    append(runs, result_json(&results[i], &options->shape));
    for (size_t k = 0; k < memory_shown(&results[i])->kind.devices; k++) {
      csv_row(report.csv, &results[i], k, &options->shape);
    }
  }
  put(report.json, "runs", runs);
  report.tables[0] = peaks_table(options, results, count);
  report.tables[1] = modes_table(options, results, count);
  size_t tables = 2;
  report.tables[tables] = cost_table(options, results, count);
  if (report.tables[tables] != NULL) tables++;
  report.tables[tables] = outside_table(results, count);
  if (report.tables[tables] != NULL) tables++;
  for (size_t i = 0; i < count; i++) processes_rows(&report.tables[tables], &results[i].real);
  return report;
}

bool report_timeline(struct output *output, const struct memory_result *results, size_t count) {
  FILE *file = output == NULL ? NULL : output_begin(output);
  if (file == NULL) return output == NULL;
  fputs("mode,nanoseconds,category,delta_bytes,current_bytes,height_bytes\n", file);
  for (size_t i = 0; i < count; i++) {
    const struct run *run = &results[i].real;
    for (size_t e = 0; e < run->event_count; e++) {
      const ek_memory_event *event = &run->events[e];
      fprintf(file, "%s%s%s,%llu,%s,%lld,%llu,%llu\n", ek_mode_name(run->mode),
              run->precision == PRECISION_F32 ? "" : " ",
              run->precision == PRECISION_F32 ? "" : precision_text(run->precision),
              (unsigned long long)event->nanoseconds, ek_memory_category_name(event->category),
              (long long)event->delta_bytes, (unsigned long long)event->current_bytes,
              (unsigned long long)event->height_bytes);
    }
    if (run->events_dropped > 0) {
      say_error("--timeline: the last %zu events of mode %s found no room", run->events_dropped,
                run_name(run));
    }
  }
  return output_end(output, true);
}
