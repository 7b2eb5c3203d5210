/*
 * run_devices.c - the subcommand `devices`: what there is on this machine.
 */
#include <stdlib.h>

#include "commands.h"
#include "report.h"
#include "terminal.h"

static void add_device(struct report *report, json_t *array, const ek_device_description *device) {
  json_t *json = json_object();
  put(json, "name", json_string(device->name));
  put(json, "text", json_string(device->text));
  put(json, "available", json_boolean(device->available));
  put(json, "cores", json_integer(device->cores));
  put(json, "memory_bytes", whole(device->memory_bytes));
  append(array, json);
  grid_cell(report->csv, "%s", device->name);
  grid_cell(report->csv, "%s", device->available ? "yes" : "no");
  grid_cell(report->csv, "%d", device->cores);
  grid_cell(report->csv, "%llu", (unsigned long long)device->memory_bytes);
  grid_cell(report->csv, "%s", device->text);
  struct grid *table = report->tables[0];
  grid_cell(table, "%s", device->name);
  grid_cell(table, "%s", device->available ? "yes" : "no");
  if (device->cores > 0)
    grid_cell(table, "%d", device->cores);
  else
    grid_cell(table, "-");
  if (device->memory_bytes > 0)
    grid_number(table, (double)device->memory_bytes / 1073741824, 1);
  else
    grid_cell(table, "-");
  grid_cell(table, "%s", device->text);
}

static struct report make_report(const ek_device_description *devices, size_t count) {
  struct report report = {.json = json_object(), .csv = grid_create(NULL)};
  report.tables[0] = grid_create("Devices");
  static const char *const names[] = {"name", "available", "cores", "memory_bytes", "text"};
  static const char *const headings[] = {"name", "available", "cores", "memory GiB", "what it is"};
  for (size_t i = 0; i < 5; i++) {
    const bool left = i != 2 && i != 3;
    grid_column(report.csv, names[i], left);
    grid_column(report.tables[0], headings[i], left);
  }
  put(report.json, "schema", json_integer(1));
  put(report.json, "command", json_string(command_name(COMMAND_DEVICES)));
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) add_device(&report, array, &devices[i]);
  put(report.json, "devices", array);
  return report;
}

enum exit_code run_devices(const struct options *options) {
  if (!prepare_outputs(options)) return EXIT_ERROR;
  size_t count = 0;
  if (ek_device_list(NULL, &count, 0) != EK_OK) {
    say_error("%s", ek_error_message());
    return EXIT_ERROR;
  }
  const size_t room = count;
  ek_device_description *devices = need_memory(room, sizeof *devices);
  if (ek_device_list(devices, &count, room) != EK_OK) {
    say_error("%s", ek_error_message());
    free(devices);
    return EXIT_ERROR;
  }
  if (count > room) count = room;
  struct report report = make_report(devices, count);
  free(devices);
  return report_write(&report, options) ? EXIT_GOOD : EXIT_ERROR;
}
