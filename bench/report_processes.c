/*
 * report_processes.c - see report_processes.h.
 */
#include "report_processes.h"

#include <stdio.h>

static bool is_of(const struct run *run, size_t rank, size_t process) {
  return run->ranks[rank].process == (int64_t)process;
}

static uint64_t largest_peak(const struct run *run, size_t process) {
  uint64_t most = 0;
  for (size_t r = 0; r < run->rank_count; r++) {
    const uint64_t peak = (uint64_t)run->ranks[r].peak_bytes;
    if (is_of(run, r, process) && peak > most) most = peak;
  }
  return most;
}

/* The process with the most work; of equal ones the first. */
static size_t slowest_of(const struct run *run) {
  size_t slowest = 0;
  for (size_t p = 1; p < run->process_count; p++) {
    if (run->processes[p].busy > run->processes[slowest].busy) slowest = p;
  }
  return slowest;
}

/* ---- JSON ---- */

static json_t *process_json(const struct run *run, size_t process) {
  const struct process_figures *figures = &run->processes[process];
  json_t *json = json_object(), *devices = json_array();
  put(json, "process", whole(process));
  put(json, "host", file_name(figures->host));
  put(json, "rows", json_integer(figures->rows));
  put(json, "busy_seconds", number_or_null(figures->busy));
  put(json, "peak_bytes", whole(largest_peak(run, process)));
  for (size_t r = 0; r < run->rank_count; r++) {
    if (!is_of(run, r, process)) continue;
    json_t *device = json_object();
    put(device, "rank", whole(r));
    put(device, "name", json_string(run->ranks[r].name));
    put(device, "peak_bytes", json_integer(run->ranks[r].peak_bytes));
    append(devices, device);
  }
  put(json, "devices", devices);
  return json;
}

void put_processes(json_t *json, const struct run *run) {
  if (run->process_count == 0) return;
  json_t *processes = json_array();
  for (size_t p = 0; p < run->process_count; p++) append(processes, process_json(run, p));
  put(json, "processes", processes);
  put(json, "slowest_process", whole(slowest_of(run)));
}

/* ---- table ---- */

static struct grid *start_table(void) {
  static const char *const words[] = {"mode", "host", "devices"};
  static const char *const numbers[] = {"process", "rows", "busy ms", "peak MiB"};
  struct grid *grid = grid_create("Each process: rows of the batch, work of its busiest device in "
                                  "a step without waiting, largest peak");
  grid_column(grid, words[0], true);
  grid_column(grid, numbers[0], false);
  grid_column(grid, words[1], true);
  grid_expendable(grid, 2);
  grid_column(grid, words[2], true);
  grid_expendable(grid, 3);
  for (int i = 1; i < 4; i++) grid_column(grid, numbers[i], false);
  grid_column(grid, "slowest", true);
  return grid;
}

/* "cpu:0, cpu:1", or the first and the last where the cell has no room for all. */
static void write_devices(char *text, size_t size, const struct run *run, size_t process) {
  size_t count = 0, first = 0, used = 0;
  for (size_t r = run->rank_count; r-- > 0;) {
    if (!is_of(run, r, process)) continue;
    count++;
    first = r;
  }
  text[0] = '\0';
  if (count > 4) {
    (void)snprintf(text, size, "%s to %s", run->ranks[first].name,
                   run->ranks[first + count - 1].name);
    return;
  }
  for (size_t r = first; r < first + count && used < size; r++) {
    used += (size_t)snprintf(text + used, size - used, "%s%s", r > first ? ", " : "",
                             run->ranks[r].name);
  }
}

void processes_rows(struct grid **grid, const struct run *run) {
  if (run->process_count == 0) return;
  if (*grid == NULL) *grid = start_table();
  for (size_t p = 0; p < run->process_count; p++) {
    const struct process_figures *figures = &run->processes[p];
    char devices[160];
    write_devices(devices, sizeof devices, run, p);
    grid_cell(*grid, "%s", p == 0 ? run_name(run) : "");
    grid_cell(*grid, "%zu", p);
    grid_cell(*grid, "%s", figures->host);
    grid_cell(*grid, "%s", devices);
    grid_cell(*grid, "%lld", (long long)figures->rows);
    grid_number(*grid, figures->busy * 1e3, 2);
    grid_number(*grid, (double)largest_peak(run, p) / (1 << 20), 2);
    grid_cell(*grid, "%s", p == slowest_of(run) ? "slowest" : "");
  }
}
