/*
 * report.c - writes a result in the form that was asked for, and builds what all JSON has in
 * common.
 */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "report_page.h"

/* jansson says NULL for want of memory and for text that is not UTF-8. Here memory that runs out
   ends the program where it is wanted, so that NULL means the text. */
static void *json_memory(size_t bytes) { return need_more(NULL, bytes, 1); }

void report_prepare(void) { json_set_alloc_funcs(json_memory, free); }

void put(json_t *object, const char *key, json_t *value) {
  if (value != NULL && json_object_set_new(object, key, value) == 0) return;
  say_error("no JSON for \"%s\": a name is not UTF-8", key);
  exit(EXIT_ERROR);
}

void append(json_t *array, json_t *value) {
  if (value != NULL && json_array_append_new(array, value) == 0) return;
  say_error("no JSON: a name is not UTF-8");
  exit(EXIT_ERROR);
}

json_t *number_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *whole(uint64_t value) { return json_integer((json_int_t)value); }

json_t *summary_json(struct summary summary) {
  json_t *object = json_object();
  put(object, "median", number_or_null(summary.median));
  put(object, "mean", number_or_null(summary.mean));
  put(object, "min", number_or_null(summary.min));
  put(object, "max", number_or_null(summary.max));
  return object;
}

void put_loss_scale(json_t *json, const struct run *run) {
  put(json, "loss_scale", number_or_null(run->steps > 0 ? run->loss_scale : (double)NAN));
  put(json, "skipped_steps", json_integer(run->skipped_steps));
}

json_t *losses_json(const struct run *run) {
  json_t *losses = json_array();
  for (size_t i = 0; i < run->steps; i++) append(losses, number_or_null(run->losses[i]));
  return losses;
}

/* Names of files are bytes; JSON is UTF-8. */
json_t *file_name(const char *name) {
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
  if (shape->hidden > 0) {
    put(config, "hidden", json_integer(shape->hidden));
    put(config, "kv_heads", json_integer(shape->kv_heads > 0 ? shape->kv_heads : shape->heads));
  }
  if (shape->image > 0) {
    put(config, "image", json_integer(shape->image));
    put(config, "segments", json_boolean(shape->segments));
  }
  put(config, "seq", json_integer(shape->seq));
  put(config, "vocab", json_integer(shape->vocab));
  if (options->command != COMMAND_MAX_BATCH) put(config, "batch", json_integer(shape->batch));
  put(config, "steps", json_integer(shape->steps));
  put(config, "warmup", json_integer(shape->warmup));
  put(config, "keep_outputs", json_boolean(shape->keep_outputs));
  put(config, "loss", json_string(loss_name(options)));
  put(config, "micro_batches", json_integer(shape->micro_batches));
  put(config, "recompute", json_string(options->recompute_text));
}

/* The processor's or the machine's first line, so that a stored result says where it was made. */
static json_t *machine_json(void) {
  ek_device_description description;
  size_t count = 0;
  if (ek_device_list(&description, &count, 1) != EK_OK || count == 0) return json_null();
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
  if (ek_world_processes(options->world) > 1) {
    put(config, "processes", whole(ek_world_processes(options->world)));
    put(config, "world", json_string(ek_world_source(options->world)));
  } else if (options->processes > 0) {
    put(config, "processes", json_integer(options->processes));
    put(config, "link", options->link_text == NULL ? json_null() : json_string(options->link_text));
  }
  put_shape(config, options);
  put(config, "optimizer", json_string(rule_name(options->rule)));
  put(config, "scatter", json_string(options->scatter_text));
  put(config, "seed", json_integer((json_int_t)options->seed));
  put(config, "threads", json_integer(options->threads));
  json_t *precisions = json_array();
  bool tf32 = false;
  for (size_t i = 0; i < options->precision_count; i++) {
    append(precisions, json_string(precision_text(options->precisions[i])));
    tf32 = tf32 || options->precisions[i] == PRECISION_TF32;
  }
  put(config, "precisions", precisions);
  put(config, "tf32", json_boolean(tf32));
  put(config, "gradient_type", json_string(precision_text(options->gradients)));
  put(config, "bucket_bytes", whole(options->bucket_bytes));
  put(config, "deterministic", json_boolean(options->deterministic));
  put(config, "reproducible", json_integer((json_int_t)options->reproducible));
  put(config, "data", names_json(text));
  put(config, "data_bytes", whole(text->length));
  put(config, "data_tokens", text->tokens != NULL ? whole(text->token_count) : json_null());
  put(config, "machine", machine_json());
  put(config, "version", json_string(ek_version_string()));
  json_t *json = json_object();
  put(json, "schema", json_integer(1));
  put(json, "command", json_string(command_name(options->command)));
  put(json, "config", config);
  return json;
}

/* All of it or nothing: it is put together before a byte is written. */
static char *json_text(const struct report *report) {
  char *text = json_dumps(report->json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  if (text == NULL) say_error("the result cannot be put into JSON");
  return text;
}

static bool write_json(const struct report *report, FILE *file) {
  char *text = json_text(report);
  if (text == NULL) return false;
  fputs(text, file);
  fputc('\n', file);
  free(text);
  return true;
}

/* width: of a table's lines; 0: as it comes. */
static void write_tables(const struct report *report, FILE *file, bool markdown, size_t width) {
  for (size_t i = 0; i < REPORT_TABLES && report->tables[i] != NULL; i++) {
    if (i > 0) fputc('\n', file);
    if (markdown) {
      grid_write_markdown(report->tables[i], file);
    } else {
      grid_write_table(report->tables[i], file, width);
    }
  }
}

static bool write_format(const struct report *report, FILE *file, enum format format,
                         size_t width) {
  switch (format) {
  case FORMAT_TABLE: write_tables(report, file, false, width); break;
  case FORMAT_MARKDOWN: write_tables(report, file, true, 0); break;
  case FORMAT_CSV: grid_write_csv(report->csv, file); break;
  case FORMAT_JSON: return write_json(report, file);
  }
  return true;
}

static bool write_file(const struct report *report, struct output *output, enum format format) {
  if (output == NULL) return true;
  FILE *file = output_begin(output);
  return file != NULL && output_end(output, write_format(report, file, format, 0));
}

static bool write_page(const struct report *report, struct output *output) {
  if (output == NULL) return true;
  FILE *file = output_begin(output);
  if (file == NULL) return false;
  char *text = json_text(report);
  if (text != NULL) report_page(file, report, text);
  free(text);
  return output_end(output, text != NULL);
}

/* The most memory that the process has held so far; Linux counts it in KiB. */
static uint64_t peak_resident_bytes(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (uint64_t)usage.ru_maxrss * 1024;
}

static bool write_all(const struct report *report, const struct options *options) {
  bool good = write_format(report, stdout, options->format,
                           options->wide ? 0 : terminal_width(STDOUT_FILENO));
  (void)fflush(stdout); /* before a file that may lead there; output.c looks whether it worked */
  good = write_file(report, options->export_json, FORMAT_JSON) && good;
  good = write_file(report, options->export_csv, FORMAT_CSV) && good;
  return write_page(report, options->page) && good;
}

bool report_write(struct report *report, const struct options *options) {
  progress_clear();
  put(report->json, "peak_resident_bytes", whole(peak_resident_bytes()));
  const bool good = ek_world_process(options->world) > 0 || write_all(report, options);
  json_decref(report->json);
  grid_free(report->csv);
  for (size_t i = 0; i < REPORT_TABLES; i++) grid_free(report->tables[i]);
  memset(report, 0, sizeof *report);
  return good;
}
