/*
 * results.c - the notations of what was measured. JSON is written by hand: this program needs the
 * library alone.
 */
#include "results.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "grid.h"

bool results_parse(enum results_format *format, const char *text) {
  static const char *const names[] = {"table", "md", "csv", "json"};
  for (int i = 0; i < 4; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *format = (enum results_format)i;
    return true;
  }
  return false;
}

/* ---- a grid ---- */

static struct grid *make_grid(const struct results *results) {
  static const char *const copy[] = {"operation", "type", "shape",     "bytes/element",
                                     "us/call",   "GB/s", "copy GB/s", "ratio",
                                     "min",       "max",  "GFLOP/s",   NULL};
  static const char *const f32[] = {"operation", "type", "shape",       "bytes/element",
                                    "us/call",   "GB/s", "f32 us/call", "over f32",
                                    "min",       "max",  "GFLOP/s",     NULL};
  char title[192];
  snprintf(title, sizeof title, "Operations against %s on %s, %s, %lld MiB a tensor, %lld tokens%s",
           results->against_f32 ? "f32" : "a copy", results->device, ek_type_name(results->type),
           (long long)results->mib, (long long)results->tokens,
           results->processor_time ? ", processor time" : "");
  struct grid *grid = grid_create(title);
  const char *const *headings = results->against_f32 ? f32 : copy;
  for (size_t i = 0; headings[i] != NULL; i++) grid_column(grid, headings[i], i == 0);
  return grid;
}

static void add_row(struct grid *grid, const struct results *results, const struct result *result) {
  const double seconds = result->seconds.median;
  grid_cell(grid, "%s", result->kernel->name);
  grid_cell(grid, "%s", ek_type_name(results->type));
  grid_cell(grid, "%lld x %lld", (long long)result->rows, (long long)result->columns);
  if (result->flops > 0) {
    grid_cell(grid, "-");
  } else {
    grid_cell(grid, "%d", kernel_bytes(result->kernel, results->type));
  }
  grid_number(grid, seconds * 1e6, 1);
  grid_number(grid, result->bytes / seconds * 1e-9, 3);
  grid_number(grid, result->other.median * (results->against_f32 ? 1e6 : 1e-9),
              results->against_f32 ? 1 : 3);
  grid_number(grid, result->ratio.median, 3);
  grid_number(grid, result->ratio.min, 3);
  grid_number(grid, result->ratio.max, 3);
  grid_number(grid, result->flops > 0 ? result->flops / seconds * 1e-9 : (double)NAN, 1);
}

/* ---- JSON ---- */

static void write_text(const char *text) {
  putchar('"');
  for (; *text != '\0'; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') putchar('\\');
    if (c < 0x20) {
      printf("\\u%04x", c);
    } else {
      putchar(c);
    }
  }
  putchar('"');
}

static void write_number(const char *name, double value) {
  printf("\"%s\": ", name);
  if (isfinite(value)) {
    printf("%.17g", value);
  } else {
    fputs("null", stdout);
  }
}

static void write_summary(const char *name, const struct summary *summary) {
  printf(",\n     \"%s\": {", name);
  write_number("median", summary->median);
  fputs(", ", stdout);
  write_number("min", summary->min);
  fputs(", ", stdout);
  write_number("max", summary->max);
  putchar('}');
}

static void write_run(const struct results *results, const struct result *result) {
  fputs("    {\"operation\": ", stdout);
  write_text(result->kernel->name);
  printf(", \"type\": \"%s\", \"rows\": %lld, \"columns\": %lld, ", ek_type_name(results->type),
         (long long)result->rows, (long long)result->columns);
  write_number("bytes", result->bytes);
  fputs(", ", stdout);
  write_number("flops", result->flops > 0 ? result->flops : (double)NAN);
  write_summary("seconds", &result->seconds);
  write_summary(results->against_f32 ? "f32_seconds" : "copy_bytes_per_second", &result->other);
  write_summary(results->against_f32 ? "over_f32" : "ratio", &result->ratio);
  putchar('}');
}

static void write_json(const struct results *results) {
  fputs("{\"schema\": 1, \"command\": \"kernels\",\n  \"config\": {\"device\": ", stdout);
  write_text(results->device);
  printf(", \"type\": \"%s\", \"mib\": %lld, \"tokens\": %lld, \"rounds\": %lld, \"threads\": %d,\n"
         "    \"against\": \"%s\", \"processor_time\": %s, \"version\": \"%s\"},\n  \"runs\": [",
         ek_type_name(results->type), (long long)results->mib, (long long)results->tokens,
         (long long)results->rounds, results->threads, results->against_f32 ? "f32" : "copy",
         results->processor_time ? "true" : "false", ek_version_string());
  for (size_t i = 0; i < results->count; i++) {
    fputs(i == 0 ? "\n" : ",\n", stdout);
    write_run(results, &results->all[i]);
  }
  fputs("]}\n", stdout);
}

void results_write(const struct results *results, enum results_format format) {
  if (format == RESULTS_JSON) {
    write_json(results);
    return;
  }
  struct grid *grid = make_grid(results);
  for (size_t i = 0; i < results->count; i++) add_row(grid, results, &results->all[i]);
  switch (format) {
  case RESULTS_TABLE: grid_write_table(grid, stdout, 0); break;
  case RESULTS_MARKDOWN: grid_write_markdown(grid, stdout); break;
  default: grid_write_csv(grid, stdout); break;
  }
  grid_free(grid);
}
