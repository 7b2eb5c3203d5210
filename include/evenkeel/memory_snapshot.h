/*
 * memory_snapshot.h - which modules hold a device's memory, now or when it ran out.
 *
 *     EK_TRY(ek_memory_snapshot_when_full(group, "full.pickle"));   // before the training
 *     EK_TRY(ek_memory_snapshot(group, "now.pickle"));              // at any time
 *
 * Every block of a device's memory records the module that allocated it, by its path in the model
 * ("blocks.3.mlp"), and the function that did. A block that is handed on, or saved by others, stays
 * with the module that allocated it. This costs a few assignments for each function of a module and
 * is always on: the message of an EK_ERR_OUT_OF_MEMORY names the three modules that hold most. A
 * block forgets its module when the model is freed.
 *
 * A file whose name ends in ".json" is JSON. Any other is the same data as a pickle, for PyTorch's
 * viewer (https://pytorch.org/memory_viz, or MemoryViz.js in its sources) and
 * `python -m torch.cuda._memory_viz`. The form is that of torch.cuda.memory._snapshot(),
 *
 *     {"segments": [one for each device], "device_traces": [a list of events for each device],
 *      "evenkeel": {"version": "0.1.0", "devices": [{"name", "capacity_bytes", "held_bytes",
 *                   "peak_bytes", "holders": [{"name", "bytes", "blocks"}, largest first]}, ...]}}
 *
 * A segment is the arena up to the height reached since the peak was reset, and its blocks cover
 * all of it. An address is the place in the arena plus (number of the device + 1) * 2^46, so that
 * runs can be compared. The frames of a block are its module's path, with the function, and the
 * paths above; or the category in parentheses if no module allocated it. Events have "category",
 * that of the ledger, by which the viewer chooses colours.
 *
 * Blocks held before the first event appear as allocations at the start, one by one, in the order
 * in which they were made. With a recording that has dropped nothing (ek_memory_record_start() in
 * memory.h, on each device of interest), the events are all those since it began.
 */
#ifndef EVENKEEL_MEMORY_SNAPSHOT_H
#define EVENKEEL_MEMORY_SNAPSHOT_H

#include <evenkeel/memory.h>

EK_BEGIN_DECLARATIONS

/*
 * Writes a snapshot of all devices of the group; in a world of several processes each writes its
 * own, and the file's name gets the process's number, "now.2.pickle". It may be called from any
 * thread, at any time; the devices allocate and free nothing meanwhile. The file appears whole or
 * not at all, and replaces an older one. It is written as `path`.tmp, or `path`.1.tmp and so on if
 * that name is taken, and then renamed: if threads write to one path at the same time, the file of
 * the last one to end stays. EK_ERR_IO, EK_ERR_NOT_FOUND (a folder), EK_ERR_OUT_OF_MEMORY (the
 * host's); EK_ERR_STATE in a child of the process that opened the group.
 */
EK_API EK_CHECKED ek_status ek_memory_snapshot(const ek_group *group, const char *path);

/*
 * The first request from now on, on any device of the group, that finds no room writes a snapshot
 * before it fails. Its last event, "oom", has the bytes requested and the module that requested
 * them. The call returns the error of the request in any case; if the file cannot be written, the
 * log callback gets the reason. If several requests fail at the same time, one of them writes. NULL
 * cancels this. Call it while no other thread is in a call on the group's devices.
 */
EK_API EK_CHECKED ek_status ek_memory_snapshot_when_full(ek_group *group, const char *path);

typedef struct ek_memory_holder {
  char name[160]; /* "blocks.3.mlp"; "(parameters)" without a module; the end of longer ones */
  uint64_t bytes;
  size_t blocks;
} ek_memory_holder;

/*
 * Fills `holders` with the holders of a device's memory, the largest first, at most `capacity` of
 * them, and sets *count to the number of all. `alike`: modules whose paths differ in numbers alone
 * count as one, "blocks.*.mlp".
 * `holders` may be NULL when `capacity` is 0. Errors like ek_memory_snapshot().
 */
EK_API EK_CHECKED ek_status ek_memory_holders(ek_memory_holder *holders, size_t *count,
                                              size_t capacity, const ek_device *device, bool alike);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MEMORY_SNAPSHOT_H */
