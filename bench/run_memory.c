/*
 * run_memory.c - the subcommand `memory`: every mode for real, and every mode planned.
 */
#include <stdlib.h>

#include "commands.h"
#include "report_memory.h"
#include "terminal.h"

/* Events of one mode's timeline: enough for hours of small steps, 40 MB of the host's memory. */
enum { TIMELINE_EVENTS = 1000000 };

/* What --reproducible costs is known beside a run without it. */
static void run_without(struct run *run, const struct task *task) {
  struct options options = *task->options;
  struct task without = *task;
  if (options.reproducible == 0) return;
  options.reproducible = 0;
  without.options = &options;
  run_task(run, &without, NULL);
}

/* Out of memory is a result; anything else that fails is not. */
static enum exit_code run_mode(struct memory_result *result, const struct task *task) {
  const struct run_extras extras = {.events = task->options->timeline != NULL ? TIMELINE_EVENTS : 0,
                                    .trace = task->options->trace,
                                    .snapshot = task->options->snapshot,
                                    .timeline = task->options->page != NULL};
  run_task(&result->real, task, &extras);
  const struct run *real = &result->real;
  if (real->status == EK_ERR_OUT_OF_MEMORY && real->kind.devices > 0) {
    say_error("mode %s does not fit on %s: %s", mode_name(task->mode, task->precision), task->spec,
              real->message);
  } else if (real->status != EK_OK) {
    say_error("mode %s on %s: %s", mode_name(task->mode, task->precision), task->spec,
              real->message);
    return EXIT_ERROR;
  }
  run_without(&result->without, task);
  run_plan(&result->planned, task, real);
  const struct run *planned = &result->planned;
  if (planned->status != EK_OK) {
    say_error("mode %s cannot be planned: %s", mode_name(task->mode, task->precision),
              planned->message);
    /* A need beyond what can be counted is out of memory all the same. */
    if (planned->status != EK_ERR_OUT_OF_MEMORY) return EXIT_ERROR;
    return EXIT_OUT_OF_MEMORY;
  }
  return real->status == EK_OK ? EXIT_GOOD : EXIT_OUT_OF_MEMORY;
}

/* The plan makes the same decisions by the same code, hence the same peak to the byte. */
static enum exit_code compare_plan(const struct memory_result *result) {
  if (result->real.status != EK_OK || result->planned.status != EK_OK) return EXIT_GOOD;
  for (size_t k = 0; k < result->real.kind.devices; k++) {
    const uint64_t peak = result->real.usage[k].peak_bytes;
    const uint64_t planned = result->planned.usage[k].peak_bytes;
    char used[BYTES_TEXT], expected[BYTES_TEXT];
    if (peak == planned) continue;
    say_error("mode %s: device %zu used %s, but %s were planned", run_name(&result->real), k,
              bytes_text(used, peak), bytes_text(expected, planned));
    return EXIT_ERROR;
  }
  return EXIT_GOOD;
}

/* The baseline `gather` is uneven by nature, and is not held to the ratio. */
static enum exit_code check_evenness(const struct memory_result *result, double limit) {
  const struct run *shown = memory_shown(result);
  if (limit < 0 || shown->mode == EK_MODE_GATHER) return EXIT_GOOD;
  const double ratio = run_balance(shown).max_over_mean;
  if (!(ratio > limit)) return EXIT_GOOD;
  say_error("mode %s: the largest peak is %.4f times the mean, above %g", run_name(shown), ratio,
            limit);
  return EXIT_UNEVEN;
}

static enum exit_code judge(const struct options *options, const struct memory_result *results,
                            size_t count) {
  enum exit_code code = EXIT_GOOD;
  struct run *real = need_memory(count, sizeof *real);
  for (size_t i = 0; i < count; i++) {
    real[i] = results[i].real; /* loans */
    code = worse(code, compare_plan(&results[i]));
    code = worse(code, check_evenness(&results[i], options->fail_above));
  }
  code = worse(code, compare_losses(real, count, options));
  free(real);
  return code;
}

enum exit_code run_memory(const struct options *options) {
  struct text text;
  enum exit_code code = prepare(&text, options);
  if (code != EXIT_GOOD) return code;
  const size_t modes = options->mode_count, total = modes * options->precision_count;
  struct memory_result *results = need_memory(total, sizeof *results);
  size_t done = 0;
  while (done < total && code != EXIT_ERROR) {
    const struct task task =
        make_task(options, &text, options->specs[0], options->modes[done % modes],
                  options->precisions[done / modes]);
    progress_run(done, total);
    code = worse(code, run_mode(&results[done++], &task));
  }
  if (code != EXIT_ERROR) {
    code = worse(code, judge(options, results, done));
    struct report report = report_memory(options, &text, results, done);
    if (!report_write(&report, options)) code = EXIT_ERROR;
    const bool writes = ek_world_process(options->world) == 0;
    if (writes && !report_timeline(options->timeline, results, done)) code = EXIT_ERROR;
  }
  for (size_t i = 0; i < done; i++) {
    run_free(&results[i].real);
    run_free(&results[i].planned);
    run_free(&results[i].without);
  }
  free(results);
  text_free(&text);
  return code;
}
