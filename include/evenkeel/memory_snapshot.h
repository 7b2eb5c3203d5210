/*
 * memory_snapshot.h - who holds a device's memory: by module, now, or when it ran out.
 *
 *     EK_TRY(ek_memory_snapshot_when_full(group, "full.pickle"));   // before the training
 *     EK_TRY(ek_memory_snapshot(group, "now.pickle"));              // at any time
 *
 * Every block of a device's memory knows the module that took it, by its path in the model
 * ("blocks.3.mlp"), and in which of its functions; what a module hands on and others save stays
 * with the one that took it. That costs a few assignments for each function of a module and is
 * always there: an EK_ERR_OUT_OF_MEMORY names the three that hold most. A block forgets its module
 * when the model is freed.
 *
 * A file whose name ends in ".json" is JSON. Any other is the same as a pickle, which is what
 * PyTorch's viewer (https://pytorch.org/memory_viz, or MemoryViz.js in its sources) and
 * `python -m torch.cuda._memory_viz` read: what torch.cuda.memory._snapshot() gives,
 *
 *     {"segments": [one for each device], "device_traces": [a list of events for each device],
 *      "evenkeel": {"version": "0.1.0", "devices": [{"name", "capacity_bytes", "held_bytes",
 *                   "peak_bytes", "holders": [{"name", "bytes", "blocks"}, largest first]}, ...]}}
 *
 * A segment is the arena as far up as it has been used since the peak was reset, and its blocks are
 * all of it. Addresses are places in the arena after (number of the device + 1) * 2^46, so that
 * runs can be compared. Frames of a block are its module's path, with its function, and the paths
 * above; or the category in parentheses where no module took it. Events have "category", the
 * ledger's, by which the viewer colours.
 *
 * What was held before is shown as taken at once, block by block, in the order in which it was;
 * with a recording under way that has dropped nothing (ek_memory_record_start() in memory.h, on
 * each device of interest), the events are all that happened since it began.
 */
#ifndef EVENKEEL_MEMORY_SNAPSHOT_H
#define EVENKEEL_MEMORY_SNAPSHOT_H

#include <evenkeel/memory.h>

EK_BEGIN_DECLARATIONS

/*
 * Writes one of all devices of the group, from any thread, at any time; meanwhile they take and
 * give back no memory. The file is there whole or not at all, and takes the place of an old one. It
 * is written as `path`.tmp, or `path`.1.tmp and so on where that name is taken, and then renamed:
 * where threads write to one path at the same time, the last one to end leaves its file. EK_ERR_IO,
 * EK_ERR_NOT_FOUND (a folder), EK_ERR_OUT_OF_MEMORY (the
 * host's); EK_ERR_STATE in a child of the process that opened the group.
 */
EK_API EK_CHECKED ek_status ek_memory_snapshot(const ek_group *group, const char *path);

/*
 * The first request from now on, on any device of the group, that finds no room writes a snapshot
 * before it fails, with an event "oom" of what was asked for and by which module. The error is that
 * request's in any case; where the file cannot be written, the log callback gets the reason. Of
 * requests that fail at the same time one writes. NULL takes it back. Wants the group at rest: no
 * other thread is in a call on its devices.
 */
EK_API EK_CHECKED ek_status ek_memory_snapshot_when_full(ek_group *group, const char *path);

typedef struct ek_memory_holder {
  char name[160]; /* "blocks.3.mlp"; "(parameters)": what no module took; the end of longer ones */
  uint64_t bytes;
  size_t blocks;
} ek_memory_holder;

/*
 * Who holds a device's memory, the largest first: at most `capacity` of them, and how many there
 * are to *count. `alike`: modules whose paths differ in numbers alone are one, "blocks.*.mlp".
 * `holders` may be NULL when `capacity` is 0. Errors like ek_memory_snapshot().
 */
EK_API EK_CHECKED ek_status ek_memory_holders(ek_memory_holder *holders, size_t *count,
                                              size_t capacity, const ek_device *device, bool alike);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MEMORY_SNAPSHOT_H */
