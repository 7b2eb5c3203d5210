/*
 * world.h - the processes that train together: which ranks each of them has, and how a process
 * reaches the others.
 *
 * A communicator is opened from {first rank, number of members, size of the world, exchange}; this
 * is that struct. The program provides the exchange (ek_exchange in device.h), which moves bytes
 * between two processes and does not interpret them.
 *
 * All processes hold the same conversations in the same order. Each conversation begins with a
 * message of a fixed size between every two processes, which describes the conversation: if the
 * descriptions differ, all processes get an error; otherwise both sides know the sizes of the
 * messages that follow. Received data is checked before it is used.
 *
 * Only the thread that waits in a call of the library talks to other processes: no worker and no
 * other thread of the library does. Work that workers have prepared is a list of errands, which
 * ek_group_apply() runs while it waits for the workers. Errands run in the order in which the
 * group's device 0 made them, which is the same in all processes.
 *
 * A failure ends the world: this process tells the others once, and every later conversation is
 * refused with the message of the first error. From then on it is not known which updates the
 * processes have in common, so no training can go on.
 */
#ifndef EK_WORLD_H
#define EK_WORLD_H

#include "device/device_internal.h"

struct ek__world;

size_t ek__world_processes(const struct ek__world *world);
size_t ek__world_process(const struct ek__world *world); /* this one's number */
/* The first rank of a process; for the number of processes: the size of the world. */
size_t ek__world_first_rank(const struct ek__world *world, size_t process);
size_t ek__world_size(const struct ek__world *world);

/* A program's struct, which may be NULL, checked: one process has processes == 1. */
ek_status ek__exchange_read(ek_exchange *exchange, const ek_exchange *given);

/* Talks to all processes. `options` has the place in the world. */
ek_status ek__world_open(struct ek__world **world, const ek_exchange *exchange,
                         const ek_group_options *options, size_t members);
void ek__world_close(struct ek__world *world);

/* EK_OK, or the error that ended the world. */
ek_status ek__world_check(struct ek__world *world);
/* Ends the world with the thread's last error, which the others are told. Only the first error
 * counts. */
void ek__world_fail(struct ek__world *world, ek_status status);

/* ---- conversations; `world` may be NULL, which is one process ---- */

/* Adds up `count` numbers of all processes, 4 at most; *before (NULL: not wanted): the first
 * number, added up over the processes with lower ranks alone. */
ek_status ek__world_sum(struct ek__world *world, int64_t *numbers, size_t count, int64_t *before);

/* Every process gets the bytes of process 0. */
ek_status ek__world_share(struct ek__world *world, void *bytes, size_t count);

/* Begins a collective of the communicator with this number; `offsets` may be NULL. */
ek_status ek__world_meet(struct ek__world *world, uint64_t communicator,
                         const struct ek__collective *what);
/* Sends to and receives from one process, in the rounds below. */
ek_status ek__world_swap(struct ek__world *world, size_t peer, const void *out, size_t out_bytes,
                         void *in, size_t in_bytes);
/* The process to talk to in one of as many rounds as there are processes; this one: none. Two
 * processes have the same round for each other, so that none waits in a circle. */
size_t ek__world_peer(const struct ek__world *world, size_t round);

/* ---- errands ---- */

struct ek__errand {
  struct ek__errand *next;
  bool (*ready)(struct ek__errand *self);
  ek_status (*run)(struct ek__errand *self); /* it is not in the list any more */
};

void ek__world_append(struct ek__world *world, struct ek__errand *errand);
/* Runs errands until the first is not ready. */
ek_status ek__world_work(struct ek__world *world);
/* Takes an errand out of the list, if it is there. */
void ek__world_remove(struct ek__world *world, const struct ek__errand *errand);
/* Forgets all errands, after a failure; no worker runs. */
void ek__world_forget(struct ek__world *world);
/* Communicators are numbered as they are opened, alike in all processes. */
uint64_t ek__world_number(struct ek__world *world);

#endif /* EK_WORLD_H */
