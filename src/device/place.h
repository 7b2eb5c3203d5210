/*
 * place.h - a group's place in a world: the ranks of each process, and errands.
 *
 * Ranks follow each other, process by process: a process has as many as its group has devices.
 *
 * Work with other processes that workers have prepared is a list of *errands*, which the thread in
 * ek_group_apply() runs while it waits for the workers. Errands run in the order in which the
 * group's device 0 made them, which is the same in all processes. What an errand only begins is
 * bulk of the world (world_internal.h), and the same thread waits for its end.
 */
#ifndef EK_PLACE_H
#define EK_PLACE_H

#include "device/device_internal.h"
#include "world/world_internal.h"

struct ek__place;

/* Talks to all processes, which open their groups at the same time. */
ek_status ek__place_open(struct ek__place **place, ek_world *world, bool deterministic,
                         size_t members);
void ek__place_close(struct ek__place *place);

ek_world *ek__place_world(const struct ek__place *place); /* NULL of NULL */
/* The first rank of a process; for the number of processes: the number of all ranks. */
size_t ek__place_first_rank(const struct ek__place *place, size_t process);
size_t ek__place_ranks(const struct ek__place *place);
/* EK_ERR_INVALID_ARGUMENT unless all processes have as many devices as this one. */
ek_status ek__place_check_even(const struct ek__place *place);

/* Begins a collective of the communicator with this number, which has this many ranks; `offsets`
 * may be NULL. `bytes` from `what->data` go with it: ek__topic. */
ek_status ek__place_meet(struct ek__place *place, uint64_t communicator,
                         const struct ek__collective *what, size_t ranks, char *in, size_t bytes);

/* Communicators are numbered as they are opened, alike in all processes. */
uint64_t ek__place_number(struct ek__place *place);

/* ---- errands ---- */

struct ek__errand {
  struct ek__errand *next;
  bool (*ready)(struct ek__errand *self);
  ek_status (*run)(struct ek__errand *self); /* it is not in the list any more */
};

void ek__place_append(struct ek__place *place, struct ek__errand *errand);
/* Runs errands until the first is not ready. */
ek_status ek__place_work(struct ek__place *place);

/* Adds to the world's bulk; its end says so by ek__place_ended(). */
void ek__place_add_bulk(struct ek__place *place, struct ek__bulk *bulk);
void ek__place_ended(struct ek__place *place, ek_status status);
/* Whether some has not ended: the second function lets it go on, for a moment. NULL: none has. */
bool ek__place_busy(struct ek__place *place);
ek_status ek__place_wait(struct ek__place *place);

/* Notes the thread's last error, of an errand or of bulk, which may go on after it: the processes
 * count on each other's moves. */
void ek__place_fail(struct ek__place *place, ek_status status);
/* The first that was noted since the last call. */
ek_status ek__place_failure(struct ek__place *place);
/* Takes an errand out of the list, if it is there. */
void ek__place_remove(struct ek__place *place, const struct ek__errand *errand);
/* Forgets all errands, after a failure; no worker runs. */
void ek__place_forget(struct ek__place *place);

#endif /* EK_PLACE_H */
