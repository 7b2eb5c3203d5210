/*
 * run.c - runs a task and keeps what was seen.
 */
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"
#include "run_processes.h"
#include "timeline.h"

/* Of each device: spans of a hundred steps of a model of ten blocks; changes of memory in a step of
 * one with some 10,000 tensors. */
enum { TRACE_SPANS = 20000, SNAPSHOT_EVENTS = 200000 };

static ek_status start_timeline(struct training *training, const struct run_extras *extras) {
  if (extras->events == 0) return EK_OK;
  return ek_memory_record_start(ek_group_device(training->group, 0), extras->events);
}

/* Copies the timeline, which the group keeps, into the run. */
static ek_status keep_timeline(struct run *run, struct training *training) {
  const ek_memory_event *events = NULL;
  EK_TRY(ek_memory_record_stop(&events, &run->event_count, &run->events_dropped,
                               ek_group_device(training->group, 0)));
  run->events = need_memory(run->event_count, sizeof *events);
  if (run->event_count > 0) memcpy(run->events, events, run->event_count * sizeof *events);
  return EK_OK;
}

struct kind group_kind(const ek_group *group) {
  const ek_device *first = ek_group_device(group, 0);
  return (struct kind){.devices = ek_group_size(group),
                       .threads = ek_device_threads(first),
                       .counts_only = ek_device_counts_only(first),
                       .tf32 = (ek_device_precisions(first) & EK_PRECISIONS_TF32) != 0,
                       .planner = ek_device_planner(first)};
}

/* Peaks are read before anything is freed and after everything was done. A GPU that has failed no
 * longer says what it holds. */
static ek_status read_usage(struct run *run, const ek_group *group) {
  for (size_t k = 0; k < run->kind.devices; k++) {
    const ek_device *device = ek_group_device(group, k);
    EK_TRY(ek_memory_stats(&run->usage[k], device));
    if (run->status != EK_OK && run->status != EK_ERR_OUT_OF_MEMORY) continue;
    EK_TRY(ek_memory_measure_outside(&run->outside[k], device));
  }
  return EK_OK;
}

static ek_status take_steps(struct run *run, struct training *training,
                            const struct run_extras *extras) {
  const size_t splits = extras->splits;
  const struct shape *shape = training->task->shape;
  const size_t warmup = (size_t)shape->warmup, steps = (size_t)shape->steps;
  const size_t total = warmup + steps + splits;
  const ek_world *world = training->task->options->world;
  for (size_t i = 0; i < total; i++) {
    if (i == warmup || i == warmup + steps) run_busy(run, world, i == warmup);
    progress_show(i, total, "%s on %s, step %zu of %zu", run_name(run), run->spec, i + 1, total);
    training_prepare(training);
    if (i >= warmup + steps) {
      EK_TRY(training_step_split(training, &run->splits[run->split_count]));
      run->split_count++;
      continue;
    }
    double loss = 0, seconds = 0;
    if (i == warmup && extras->trace != NULL) EK_TRY(ek_trace_start(training->group, TRACE_SPANS));
    EK_TRY(training_step(training, &loss, &seconds));
    if (i + 1 == warmup + steps && extras->trace != NULL) EK_TRY(ek_trace_stop(training->group));
    if (ek_world_stop_requested(training->task->options->world)) {
      return ek_error_set(EK_ERR_ABORTED, "stopped after step %zu of %zu by a signal", i + 1,
                          total);
    }
    run->skipped_steps = training->skipped_steps;
    run->loss_scale = training->loss_scale;
    if (i < warmup) continue;
    run->losses[run->steps] = run->kind.counts_only ? (double)NAN : loss;
    run->seconds[run->steps] = seconds;
    run->steps++;
  }
  if (splits == 0) run_busy(run, world, false);
  if (!extras->begun || run->kind.counts_only) return EK_OK;
  return training_steps_begun(training, shape->steps, &run->begun_seconds);
}

/* ---- recomputation below a number of bytes ---- */

struct planning {
  const struct task *task;
  const struct run *like;
};

/* The peak of the fullest device; the second step starts with what the first has left. */
static ek_status planned_peak(void *context, const ek_recompute *recompute, uint64_t *peak) {
  const struct planning *planning = context;
  struct shape shape = *planning->task->shape;
  struct task task = *planning->task;
  struct run run;
  shape.recompute = *recompute;
  shape.warmup = shape.steps = 1;
  task.shape = &shape;
  run_plan(&run, &task, planning->like);
  ek_status status = run.status;
  if (status != EK_OK) status = ek_error_set(status, "%s", run.message);
  for (size_t k = 0; k < run.kind.devices; k++) {
    if (run.usage[k].peak_bytes > *peak) *peak = run.usage[k].peak_bytes;
  }
  run_free(&run);
  return status;
}

/* ---- a run ---- */

/* The timeline begins before the first allocation and is kept also when the run fails. */
static ek_status train(struct run *run, struct training *training,
                       const struct run_extras *extras) {
  struct task task = *training->task;
  struct shape shape = *task.shape;
  run->kind = group_kind(training->group);
  if (shape.recompute.kind == EK_RECOMPUTE_BYTES) {
    struct planning planning = {training->task, run};
    EK_TRY(
        ek_recompute_plan(&shape.recompute, NULL, shape.recompute.bytes, planned_peak, &planning));
  }
  const struct task *const given = training->task;
  task.shape = &shape;
  training->task = &task;
  ek_status status = start_timeline(training, extras);
  if (status == EK_OK) status = training_open_model(training);
  if (status == EK_OK) status = take_steps(run, training, extras);
  training->task = given;
  return status;
}

/* Of the first failure; later calls may leave another one. */
static void keep_message(struct run *run, ek_status status) {
  if (status == EK_OK || run->message != NULL) return;
  const char *message = ek_error_message();
  run->message = need_copy(message, strlen(message));
}

static ek_status write_trace(const char *path, const ek_group *group) {
  ek_trace_summary summary;
  EK_TRY(ek_trace_write(&summary, group, path));
  if (summary.spans_dropped + summary.counters_dropped > 0) {
    say_error("--trace: no room was left for the last %llu spans and %llu changes of memory",
              (unsigned long long)summary.spans_dropped,
              (unsigned long long)summary.counters_dropped);
  }
  return EK_OK;
}

/* One more step, with all that it took and gave back. */
static ek_status take_snapshot(const char *path, struct training *training) {
  const ek_memory_event *events = NULL;
  size_t count = 0;
  double loss = 0, seconds = 0;
  training_prepare(training);
  for (size_t k = 0; k < ek_group_size(training->group); k++) {
    EK_TRY(ek_memory_record_start(ek_group_device(training->group, k), SNAPSHOT_EVENTS));
  }
  EK_TRY(training_step(training, &loss, &seconds));
  EK_TRY(ek_memory_snapshot(training->group, path));
  for (size_t k = 0; k < ek_group_size(training->group); k++) {
    EK_TRY(ek_memory_record_stop(&events, &count, NULL, ek_group_device(training->group, k)));
  }
  return EK_OK;
}

void run_task(struct run *run, const struct task *task, const struct run_extras *extras) {
  static const struct run_extras none = {.splits = 0};
  if (extras == NULL) extras = &none;
  memset(run, 0, sizeof *run);
  run->mode = task->mode;
  run->precision = task->precision;
  run->spec = task->spec;
  run->losses = need_memory((size_t)task->shape->steps, sizeof *run->losses);
  run->seconds = need_memory((size_t)task->shape->steps, sizeof *run->seconds);
  run->splits = need_memory(extras->splits, sizeof *run->splits);
  struct training training = {0};
  run->status = training_open_group(&training, task);
  if (run->status == EK_OK && extras->snapshot != NULL) {
    run->status = ek_memory_snapshot_when_full(training.group, extras->snapshot);
  }
  if (run->status == EK_OK) run->status = train(run, &training, extras);
  keep_message(run, run->status);
  progress_clear();
  if (training.group != NULL) {
    ek_status kept = read_usage(run, training.group);
    if (kept == EK_OK && extras->events > 0) kept = keep_timeline(run, &training);
    if (kept == EK_OK && run->status == EK_OK) kept = run_processes(run, &training);
    if (kept == EK_OK && run->status == EK_OK && extras->trace != NULL) {
      kept = write_trace(extras->trace, training.group);
    }
    /* After all figures, which it must not touch. */
    if (kept == EK_OK && run->status == EK_OK && extras->timeline) {
      kept = timeline_take(&run->timeline, &training);
    }
    if (kept == EK_OK && run->status == EK_OK && extras->snapshot != NULL) {
      kept = take_snapshot(extras->snapshot, &training);
    }
    keep_message(run, kept);
    if (run->status == EK_OK) run->status = kept;
  }
  if (run->status != EK_OK) run->process_count = run->rank_count = 0;
  training_close(&training);
}

void run_plan(struct run *run, const struct task *task, const struct run *like) {
  char spec[32];
  snprintf(spec, sizeof spec, "%s:%zu", like->kind.planner, like->kind.devices);
  struct task planned = *task;
  planned.spec = spec;
  planned.text = NULL;
  /* Some workspace grows with the threads of a device. */
  planned.threads = like->kind.threads;
  run_task(run, &planned, NULL);
  run->spec = task->spec;
}

void run_free(struct run *run) {
  free(run->message);
  free(run->losses);
  free(run->seconds);
  free(run->splits);
  free(run->events);
  free(run->processes);
  free(run->ranks);
  timeline_free(run->timeline, run->kind.devices);
  memset(run, 0, sizeof *run);
}

static bool several_precisions; /* of this process's options */

void name_modes(const struct options *options) {
  several_precisions = options->precision_count > 1;
}

const char *mode_name(ek_mode mode, enum precision precision) {
  static char names[BENCH_MODES][BENCH_PRECISIONS][40];
  char *name = names[mode][precision];
  if (precision == PRECISION_F32 && !several_precisions) return ek_mode_name(mode);
  snprintf(name, sizeof names[0][0], "%s, %s", ek_mode_name(mode), precision_text(precision));
  return name;
}

const char *run_name(const struct run *run) { return mode_name(run->mode, run->precision); }

struct summary run_seconds(const struct run *run) {
  return summarize(run->seconds, run->kind.counts_only || run->status != EK_OK ? 0 : run->steps);
}

const char *batch_text(const struct shape *shape) {
  static char text[80];
  const long long batch = (long long)shape->batch, side = (long long)shape->image;
  if (side > 0) {
    (void)snprintf(text, sizeof text, "batch %lld x %lld x %lld pixels", batch, side, side);
  } else {
    (void)snprintf(text, sizeof text, "batch %lld x %lld tokens", batch, (long long)shape->seq);
  }
  return text;
}

const char *speed_text(const struct shape *shape) {
  return shape->image > 0 ? "pictures/s" : "tokens/s";
}

double run_tokens_per_second(const struct run *run, const struct shape *shape) {
  return (double)shape->batch * (double)shape->seq / run_seconds(run).median;
}

struct balance run_balance(const struct run *run) {
  struct balance balance = {(double)NAN, (double)NAN, (double)NAN};
  if (run->kind.devices == 0 || run->status != EK_OK) return balance;
  double most = 0, least = (double)INFINITY, sum = 0;
  for (size_t k = 0; k < run->kind.devices; k++) {
    const double peak = (double)run->usage[k].peak_bytes;
    most = fmax(most, peak);
    least = fmin(least, peak);
    sum += peak;
  }
  const double first = (double)run->usage[0].peak_bytes;
  const double count = (double)run->kind.devices;
  if (sum > 0) balance.max_over_mean = most / (sum / count);
  if (least > 0) balance.max_over_min = most / least;
  if (sum > first) balance.first_over_rest = first / ((sum - first) / (count - 1));
  return balance;
}
