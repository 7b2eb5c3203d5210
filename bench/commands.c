/*
 * commands.c - what the subcommands share: checks before the run, verdicts after it.
 */
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "terminal.h"
#include "verdict.h"

/* A cut that the library would refuse only when the first batch comes. */
static enum exit_code check_scatter(const struct options *options, const char *spec,
                                    size_t devices) {
  const struct scatter *scatter = &options->scatter;
  if (scatter->count > 0 && scatter->count != devices) {
    say_error("--scatter %s names %zu devices, but %s has %zu", options->scatter_text,
              scatter->count, spec, devices);
    return EXIT_USAGE;
  }
  if (options->command == COMMAND_MAX_BATCH) return EXIT_GOOD;
  int64_t offsets[BENCH_MAX_DEVICES + 1];
  const ek_scatter_options cut = scatter_options(scatter);
  if (ek_scatter_offsets(offsets, options->shape.batch, devices, &cut) == EK_OK) return EXIT_GOOD;
  say_error("--scatter %s with --batch %lld on %s: %s", options->scatter_text,
            (long long)options->shape.batch, spec, ek_error_message());
  return EXIT_USAGE;
}

/* What is found on the way through all device strings. */
struct found {
  bool computes; /* some do more than count */
  bool tf32;     /* some take tf32, or plan for those that do */
};

/* Opens the devices once. */
static enum exit_code check_spec(struct found *found, const struct options *options,
                                 const char *spec) {
  if (options->command == COMMAND_MAX_BATCH && strchr(spec, '@') == NULL) {
    say_error("max-batch needs a cap per device, such as --devices %s@64MiB", spec);
    return EXIT_USAGE;
  }
  ek_group *group = NULL;
  const ek_group_options how = group_options(options, options->threads);
  const ek_status status = ek_group_open(&group, spec, &how);
  if (status != EK_OK) {
    say_error("--devices %s: %s", spec, ek_error_message());
    return status == EK_ERR_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_ERROR;
  }
  const struct kind kind = group_kind(group);
  ek_group_free(group);
  if (!kind.counts_only) found->computes = true;
  if (kind.tf32) found->tf32 = true;
  return check_scatter(options, spec, kind.devices);
}

/* The library writes a trace or a snapshot as a file under another name in the same folder. */
static bool check_file(const char *option, const struct output *output, const char *path) {
  if (output_is_direct(output)) say_error("%s needs the name of a file, not %s", option, path);
  return !output_is_direct(output);
}

/* All files can be written, and no two of them are one. */
static bool check_outputs(const char *const *flags, struct output *const *outputs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!output_prepare(outputs[i])) return false;
    for (size_t k = 0; k < i && outputs[i] != NULL; k++) {
      if (outputs[k] == NULL || !output_is_same(outputs[i], outputs[k])) continue;
      say_error("%s and %s name the same file; each needs its own", flags[k], flags[i]);
      return false;
    }
  }
  return true;
}

bool prepare_outputs(const struct options *options) {
  if (ek_world_process(options->world) > 0) return true; /* the first process writes */
  static const char *const flags[] = {"--export-json", "--export-csv", "--timeline",
                                      "--report",      "--trace",      "--snapshot"};
  struct output *trace = options->trace == NULL ? NULL : output_create(options->trace);
  struct output *snapshot = options->snapshot == NULL ? NULL : output_create(options->snapshot);
  struct output *const outputs[] = {options->export_json, options->export_csv, options->timeline,
                                    options->page,        trace,               snapshot};
  bool good = check_outputs(flags, outputs, sizeof outputs / sizeof outputs[0]);
  good = good && (trace == NULL || check_file("--trace", trace, options->trace));
  good = good && (snapshot == NULL || check_file("--snapshot", snapshot, options->snapshot));
  output_free(trace);
  output_free(snapshot);
  return good;
}

enum exit_code prepare(struct text *text, const struct options *options) {
  memset(text, 0, sizeof *text);
  struct found found = {false, false};
  for (size_t i = 0; i < options->spec_count; i++) {
    const enum exit_code code = check_spec(&found, options, options->specs[i]);
    if (code != EXIT_GOOD) return code;
  }
  for (size_t i = 0; i < options->precision_count && !found.tf32; i++) {
    if (options->precisions[i] != PRECISION_TF32) continue;
    say_error("--precision tf32 changes only products on cuda devices, and --devices names none");
    return EXIT_USAGE;
  }
  if (!prepare_outputs(options) || !text_read(text, options->data, options->data_count)) {
    return EXIT_ERROR;
  }
  /* Devices that only count read no tokens. */
  if (found.computes) text_tokenize(text, options->shape.vocab);
  if (found.computes && (int64_t)text->token_count <= options->shape.seq) {
    say_note("the text has %zu tokens, fewer than a sample of %lld, so it is repeated",
             text->token_count, (long long)options->shape.seq);
  }
  return EXIT_GOOD;
}

struct task make_task(const struct options *options, const struct text *text, const char *spec,
                      ek_mode mode, enum precision precision) {
  const struct task task = {.options = options,
                            .shape = &options->shape,
                            .text = text->tokens != NULL ? text : NULL,
                            .spec = spec,
                            .threads = options->threads,
                            .mode = mode,
                            .precision = precision};
  return task;
}

static bool has_losses(const struct run *run) {
  return run->status == EK_OK && !run->kind.counts_only && run->steps > 0;
}

static enum exit_code check_finite(const struct run *run, const struct shape *shape) {
  for (size_t i = 0; i < run->steps; i++) {
    if (isfinite(run->losses[i])) continue;
    say_error("the loss of step %lld in mode %s on %s is not finite",
              (long long)(shape->warmup + (int64_t)i + 1), run_name(run), run->spec);
    return EXIT_ERROR;
  }
  return EXIT_GOOD;
}

/* The first of the same precision: precisions differ by more than modes may. */
static const struct run *reference_of(const struct run *runs, size_t index) {
  for (size_t i = 0; i < index; i++) {
    if (runs[i].precision == runs[index].precision && has_losses(&runs[i])) return &runs[i];
  }
  return &runs[index];
}

enum exit_code compare_losses(const struct run *runs, size_t count, const struct options *options) {
  const struct shape *shape = &options->shape;
  enum exit_code code = EXIT_GOOD;
  for (size_t i = 0; i < count; i++) {
    const struct run *run = &runs[i], *first = reference_of(runs, i);
    const bool coarse = options->gradients != PRECISION_F32; /* then as a run in that type */
    const struct accuracy accuracy = {shape->width, shape->layers,
                                      coarse ? options->gradients : run->precision};
    if (!has_losses(run)) continue;
    if (check_finite(run, shape) != EXIT_GOOD) {
      code = EXIT_ERROR;
      continue;
    }
    size_t at = 0;
    if (losses_agree(&at, first->losses, run->losses, run->steps, &accuracy, shape->warmup)) {
      continue;
    }
    say_error("the modes disagree: the loss of step %lld is %.9g in %s on %s, %.9g in %s on %s",
              (long long)(shape->warmup + (int64_t)at + 1), first->losses[at], run_name(first),
              first->spec, run->losses[at], run_name(run), run->spec);
    code = worse(code, EXIT_DISAGREE);
  }
  return code;
}

enum exit_code worse(enum exit_code left, enum exit_code right) {
  static const enum exit_code order[] = {EXIT_ERROR, EXIT_USAGE, EXIT_OUT_OF_MEMORY, EXIT_DISAGREE,
                                         EXIT_UNEVEN};
  for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
    if (left == order[i] || right == order[i]) return order[i];
  }
  return EXIT_GOOD;
}
