/*
 * report.c - writes a result in the form that was asked for, and builds what all JSON has in
 * common.
 */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

void put(json_t *object, const char *key, json_t *value) {
  if (value != NULL && json_object_set_new(object, key, value) == 0) return;
  say_error("no JSON for \"%s\": the host is out of memory, or a name is not UTF-8", key);
  exit(EXIT_ERROR);
}

void append(json_t *array, json_t *value) {
  if (value != NULL && json_array_append_new(array, value) == 0) return;
  say_error("no JSON: the host is out of memory, or a name is not UTF-8");
  exit(EXIT_ERROR);
}

json_t *number_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *whole(uint64_t value) { return json_integer((json_int_t)value); }

json_t *summary_json(struct summary summary) {
  json_t *object = json_object();
  put(object, "median", number_or_null(summary.median));
  put(object, "min", number_or_null(summary.min));
  put(object, "max", number_or_null(summary.max));
  return object;
}

json_t *losses_json(const struct run *run) {
  json_t *losses = json_array();
  for (size_t i = 0; i < run->steps; i++) append(losses, number_or_null(run->losses[i]));
  return losses;
}

/* Names of files are bytes; JSON is UTF-8. */
static json_t *file_name(const char *name) {
  json_t *text = json_string(name);
  return text != NULL ? text : json_string("(a name that is not UTF-8)");
}

static json_t *names_json(const struct text *text) {
  json_t *names = json_array();
  for (size_t i = 0; i < text->name_count; i++) append(names, file_name(text->names[i]));
  return names;
}

static void put_shape(json_t *config, const struct options *options) {
  const struct shape *shape = &options->shape;
  put(config, "layers", json_integer(shape->layers));
  put(config, "width", json_integer(shape->width));
  put(config, "heads", json_integer(shape->heads));
  put(config, "seq", json_integer(shape->seq));
  put(config, "vocab", json_integer(shape->vocab));
  if (options->command != COMMAND_MAX_BATCH) put(config, "batch", json_integer(shape->batch));
  put(config, "steps", json_integer(shape->steps));
  put(config, "warmup", json_integer(shape->warmup));
  put(config, "keep_outputs", json_boolean(shape->keep_outputs));
}

/* The processor's or the machine's first line, so that a stored result says where it was made. */
static json_t *machine_json(void) {
  ek_device_description description;
  size_t count = 0;
  if (ek_device_list(&description, 1, &count) != EK_OK || count == 0) return json_null();
  return file_name(description.text);
}

json_t *report_start(const struct options *options, const struct text *text) {
  json_t *config = json_object();
  put(config, "preset", json_string(options->preset));
  if (options->command == COMMAND_STEP) {
    json_t *specs = json_array();
    for (size_t i = 0; i < options->spec_count; i++) append(specs, file_name(options->specs[i]));
    put(config, "devices", specs);
  } else {
    put(config, "devices", file_name(options->specs[0]));
  }
  json_t *modes = json_array();
  for (size_t i = 0; i < options->mode_count; i++) {
    append(modes, json_string(ek_mode_name(options->modes[i])));
  }
  put(config, "modes", modes);
  put_shape(config, options);
  put(config, "optimizer", json_string(rule_name(options->rule)));
  put(config, "scatter", json_string(options->scatter_text));
  put(config, "seed", json_integer((json_int_t)options->seed));
  put(config, "threads", json_integer(options->threads));
  put(config, "tf32", json_boolean(options->tf32));
  put(config, "deterministic", json_boolean(options->deterministic));
  put(config, "data", names_json(text));
  put(config, "data_bytes", whole(text->length));
  put(config, "data_tokens", text->tokens != NULL ? whole(text->token_count) : json_null());
  put(config, "machine", machine_json());
  put(config, "version", json_string(EK_VERSION_STRING));
  json_t *json = json_object();
  put(json, "schema", json_integer(1));
  put(json, "command", json_string(command_name(options->command)));
  put(json, "config", config);
  return json;
}

static void write_json(const struct report *report, FILE *file) {
  json_dumpf(report->json, file, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  fputc('\n', file);
}

static void write_tables(const struct report *report, FILE *file, bool markdown) {
  for (size_t i = 0; i < REPORT_TABLES && report->tables[i] != NULL; i++) {
    if (i > 0) fputc('\n', file);
    if (markdown) {
      grid_write_markdown(report->tables[i], file);
    } else {
      grid_write_table(report->tables[i], file);
    }
  }
}

static void write_format(const struct report *report, FILE *file, enum format format) {
  switch (format) {
  case FORMAT_TABLE: write_tables(report, file, false); return;
  case FORMAT_MARKDOWN: write_tables(report, file, true); return;
  case FORMAT_CSV: grid_write_csv(report->csv, file); return;
  case FORMAT_JSON: write_json(report, file); return;
  }
}

/* A full disk shows only when the buffer is written out. */
static bool finish(FILE *file, const char *name, bool close_it) {
  errno = 0;
  bool good = fflush(file) == 0 && ferror(file) == 0;
  if (close_it) good = fclose(file) == 0 && good;
  if (!good) say_error("cannot write %s: %s", name, strerror(errno));
  return good;
}

static bool write_file(const struct report *report, const char *path, enum format format) {
  FILE *file = fopen(path, "w");
  if (file == NULL) {
    say_error("cannot write %s: %s", path, strerror(errno));
    return false;
  }
  write_format(report, file, format);
  return finish(file, path, true);
}

/* The most memory that the process has held so far; Linux counts it in KiB. */
static uint64_t peak_resident_bytes(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (uint64_t)usage.ru_maxrss * 1024;
}

bool report_write(struct report *report, const struct options *options) {
  progress_clear();
  put(report->json, "peak_resident_bytes", whole(peak_resident_bytes()));
  write_format(report, stdout, options->format);
  bool good = finish(stdout, "standard output", false);
  if (options->export_json != NULL) {
    good = write_file(report, options->export_json, FORMAT_JSON) && good;
  }
  if (options->export_csv != NULL) {
    good = write_file(report, options->export_csv, FORMAT_CSV) && good;
  }
  json_decref(report->json);
  grid_free(report->csv);
  for (size_t i = 0; i < REPORT_TABLES; i++) grid_free(report->tables[i]);
  memset(report, 0, sizeof *report);
  return good;
}
