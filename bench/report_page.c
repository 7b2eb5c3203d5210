/*
 * report_page.c - which charts a command's result has; see report_page.h.
 */
#include "report_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "html.h"
#include "report_charts.h"

static const char *text_at(const json_t *json, const char *key) {
  const char *text = json_string_value(json_object_get(json, key));
  return text == NULL ? "" : text;
}

/* "quick on cpu:4 . in f32, bf16" */
static void write_subject(FILE *file, const json_t *config) {
  const json_t *devices = json_object_get(config, "devices");
  html_format(file, "%s on ", text_at(config, "preset"));
  if (json_is_string(devices)) html_text(file, json_string_value(devices));
  for (size_t i = 0; i < json_array_size(devices); i++) {
    html_format(file, "%s%s", i > 0 ? ", " : "", json_string_value(json_array_get(devices, i)));
  }
  const json_t *precisions = json_object_get(config, "precisions");
  for (size_t i = 0; i < json_array_size(precisions); i++) {
    html_format(file, "%s%s", i > 0 ? ", " : " \xc2\xb7 in ",
                json_string_value(json_array_get(precisions, i)));
  }
}

static void write_value(FILE *file, const json_t *value) {
  if (json_is_string(value)) {
    html_text(file, json_string_value(value));
  } else if (json_is_array(value)) {
    for (size_t i = 0; i < json_array_size(value); i++) {
      if (i > 0) fputs(", ", file);
      write_value(file, json_array_get(value, i));
    }
  } else {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    html_text(file, text == NULL ? "-" : text);
    free(text);
  }
}

/* Everything that was set, so that the page tells how it came about. */
static void write_config(FILE *file, const json_t *config) {
  if (config == NULL) return;
  fputs("<h2>How it was measured</h2>\n<dl>\n", file);
  const char *key = NULL;
  json_t *value = NULL;
  json_object_foreach((json_t *)config, key, value) {
    fputs("<dt>", file);
    for (const char *c = key; *c != '\0'; c++) html_format(file, "%c", *c == '_' ? ' ' : *c);
    fputs("</dt><dd>", file);
    write_value(file, value);
    fputs("</dd>\n", file);
  }
  fputs("</dl>\n", file);
}

static void write_head(FILE *file, const json_t *root, const char *command) {
  const json_t *config = json_object_get(root, "config");
  char title[256];
  (void)snprintf(title, sizeof title, "evenkeel %s%s%s", command, config != NULL ? ": " : "",
                 text_at(config, "preset"));
  html_begin(file, title);
  fputs("<h1>", file);
  html_format(file, "evenkeel %s", command);
  fputs("</h1>\n", file);
  if (config == NULL) return;
  fputs("<p class=\"soft\">", file);
  write_subject(file, config);
  html_format(file, " \xc2\xb7 %s \xc2\xb7 version %s", text_at(config, "machine"),
              text_at(config, "version"));
  fputs("</p>\n", file);
}

void report_page(FILE *file, const struct report *report, const char *json) {
  static const struct {
    const char *command;
    void (*charts)(FILE *file, const json_t *root);
  } kinds[] = {{"memory", charts_memory},
               {"step", charts_step},
               {"techniques", charts_techniques},
               {"max-batch", charts_max_batch},
               {"fit", charts_fit},
               {"plan", charts_fit}};
  const json_t *root = report->json;
  const char *command = text_at(root, "command");
  write_head(file, root, command);
  bool charts = false;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (strcmp(kinds[i].command, command) != 0) continue;
    kinds[i].charts(file, root);
    charts_processes(file, root);
    charts = true;
  }
  fputs(charts ? "<h2>The same in numbers</h2>\n" : "<h2>In numbers</h2>\n", file);
  for (size_t i = 0; i < REPORT_TABLES && report->tables[i] != NULL; i++) {
    html_table(file, report->tables[i]);
  }
  write_config(file, json_object_get(root, "config"));
  char name[128];
  (void)snprintf(name, sizeof name, "evenkeel-%s.json", command);
  html_end(file, json, name);
}
