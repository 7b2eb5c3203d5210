/*
 * guard.h - the memory of a group that was opened with `debug_memory`.
 *
 * A block is then [guard][tensor][rest of its last unit, guard] with EK_MEMORY_UNIT bytes in each
 * guard, which belong to the block and are charged with it, also on devices that only count. The
 * tensor is filled with NaN when it is taken and what is around it with a pattern, in the order
 * of the compute stream. A free has no status: what it finds is logged and noted, and the next
 * ek__guard_noted() or ek__guard_check() returns it. Each block is reported once.
 */
#ifndef EK_GUARD_H
#define EK_GUARD_H

#include "device/arena.h"

/* From now on the blocks of a device are guarded. */
void ek__guard_start(ek_device *device);

/* Fills a block that was taken (kept 0), or that has grown: after the first `kept` bytes of the
 * tensor. From then on the block is watched. */
ek_status ek__guard_paint(struct ek_memory *memory, uint64_t kept);

/* Checks a block whose last reference was dropped. The thread's message stays unchanged. */
void ek__guard_close(struct ek_memory *memory);

/* The error noted since the last call: EK_ERR_OVERRUN, or why a guard could not be read. */
ek_status ek__guard_noted(struct ek__arena *arena);

/* The same; then checks all blocks in use. */
ek_status ek__guard_check(struct ek__arena *arena);

#endif /* EK_GUARD_H */
