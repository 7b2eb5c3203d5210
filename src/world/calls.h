/*
 * calls.h - calls of the library that all processes make: how they begin and end, and what follows
 * one that fails. `world` may be NULL, which is one process, except to join and quit.
 */
#ifndef EK_CALLS_H
#define EK_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/world.h>

/*
 * Around a call that all processes make: an error that no conversation of the call has told the
 * others is told, and the status and message become those that all processes have. Calls may nest.
 * A call may drop an error that all processes have, and go on: an error of one process after it is
 * told, because it has other words. So an error that was told is forwarded with its words; others
 * may stand before it.
 *
 * ek__world_begin() returns the *moment* of the call: conversations so far, and calls since the
 * last one. As all processes make the same calls, it is the same in all of them. Each is followed
 * by one ek__world_end(), with EK_OK as well.
 */
uint64_t ek__world_begin(ek_world *world);
/* The same of a call that not all processes make: the moment is that of the last call. */
uint64_t ek__world_begin_alone(ek_world *world);
ek_status ek__world_end(ek_world *world, uint64_t began, ek_status status);
/* The same after a job of workers, which ends at the first error that all processes have: whatever
 * else a worker has met, the error is that one. */
ek_status ek__world_end_job(ek_world *world, uint64_t began, ek_status status);
/* Returns the status of such a call from the enclosing function. */
#define EK__WORLD_CALL(world, call)                                                                \
  do {                                                                                             \
    ek_world *const ek_world_ = (world);                                                           \
    const uint64_t ek_began_ = ek__world_begin(ek_world_);                                         \
    return ek__world_end(ek_world_, ek_began_, call);                                              \
  } while (0)
/* Work that all processes have agreed on, and that needs the others for this number of
 * conversations more: an error after these is told to no other process, because the others have
 * ended the call. */
void ek__world_part(ek_world *world, size_t conversations);
void ek__world_rejoin(ek_world *world);

/* What is brought back into step with the other processes after a conversation that ended in an
 * error of all: in each process when its outermost call ends (ek__world_end), in the order in which
 * they joined, without a lock. */
struct ek__recovery {
  struct ek__recovery *next;
  void (*recover)(struct ek__recovery *self);
};
void ek__world_join(ek_world *world, struct ek__recovery *recovery);
void ek__world_quit(ek_world *world, const struct ek__recovery *recovery);

/* EK_ERR_ABORTED if another process has failed in the call that began at this moment, or in an
 * earlier one: devices that wait for that process without a conversation wait for ever. */
ek_status ek__world_doomed(ek_world *world, uint64_t began);

/* Whether some process may not come to what all of them do without a conversation: it has said that
 * it fails, or it is gone. From any thread. */
bool ek__world_misses(ek_world *world);

#endif /* EK_CALLS_H */
