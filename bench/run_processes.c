/*
 * run_processes.c - see run_processes.h. A world tells each process how busy the others were; rows,
 * peaks and names of devices are gathered, one piece for each rank.
 */
#include "run_processes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

void run_busy(struct run *run, const ek_world *world, bool begins) {
  const size_t count = ek_world_processes(world);
  if (count == 1 || run->kind.counts_only || run->status != EK_OK) return;
  if (begins) {
    run->processes = need_memory(count, sizeof *run->processes);
    run->process_count = count;
  }
  for (size_t p = 0; p < count; p++) {
    struct process_figures *it = &run->processes[p];
    const double seconds = ek_world_busy(world, p);
    it->host = ek_world_host(world, p);
    it->busy = begins ? seconds : (seconds - it->busy) / (double)run->steps;
  }
}

struct gathering {
  ek_communicator *communicator;
  const struct run *run;
  int64_t process, rows;
  struct rank_figures *ranks; /* of each device in turn its own, then of device 0 all */
  int64_t *offsets;
  size_t first, count;
};

enum { WORDS = sizeof(struct rank_figures) / sizeof(int64_t) };

static ek_status gather(void *context, ek_device *device, size_t index) {
  struct gathering *it = context;
  const int64_t all = (int64_t)it->count * WORDS, rank = (int64_t)(it->first + index);
  ek_tensor tensor = {0}, piece = {0}, own;
  struct rank_figures mine = {it->process, it->rows, (int64_t)it->run->usage[index].peak_bytes, ""};
  (void)snprintf(mine.name, sizeof mine.name, "%s", ek_device_name(device));
  const int64_t words = WORDS;
  ek_status status = ek_tensor_host(&own, &mine, EK_I64, 1, &words);
  if (status == EK_OK) {
    status = ek_tensor_create(&tensor, device, EK_MEMORY_COMMUNICATION, EK_I64, 1, &all);
  }
  if (status == EK_OK) status = ek_tensor_rows(&piece, &tensor, rank * WORDS, WORDS);
  if (status == EK_OK) status = ek_tensor_copy(&piece, &own);
  ek_tensor_free(&piece);
  if (status == EK_OK) {
    status = ek_communicator_all_gather(it->communicator, device, &tensor, it->offsets);
  }
  if (status == EK_OK) status = ek_communicator_wait(it->communicator, device);
  if (status == EK_OK && index == 0) {
    ek_tensor here;
    status = ek_tensor_host(&here, it->ranks, EK_I64, 1, &all);
    if (status == EK_OK) status = ek_tensor_copy(&here, &tensor);
  }
  if (status == EK_OK) status = ek_stream_synchronize(ek_device_stream(device, EK_STREAM_COMPUTE));
  ek_tensor_free(&tensor);
  return status;
}

ek_status run_processes(struct run *run, const struct training *training) {
  if (run->process_count == 0) return EK_OK;
  struct gathering it = {.run = run, .rows = training->rows};
  it.process = (int64_t)ek_world_process(training->task->options->world);
  EK_TRY(ek_communicator_open(&it.communicator, training->group));
  it.first = ek_communicator_first_rank(it.communicator);
  it.count = ek_communicator_world_size(it.communicator);
  it.offsets = need_memory(it.count + 1, sizeof *it.offsets);
  it.ranks = need_memory(it.count, sizeof *it.ranks);
  for (size_t r = 0; r <= it.count; r++) it.offsets[r] = (int64_t)r * WORDS;
  const ek_status status = ek_group_apply(training->group, gather, &it);
  ek_communicator_free(it.communicator);
  free(it.offsets);
  run->ranks = it.ranks;
  run->rank_count = status == EK_OK ? it.count : 0;
  for (size_t r = 0; r < run->rank_count; r++) {
    run->processes[it.ranks[r].process].rows = it.ranks[r].rows;
  }
  return status;
}
