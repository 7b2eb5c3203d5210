/*
 * wire.h - how bytes move between the processes of a world.
 *
 * A wire is a table of functions and its own data. It moves bytes between this process and each
 * other one, and does not interpret them: world_internal.h decides what is sent, in which order,
 * and what a failure means. There are two: `sockets` (mesh.c) and `mpi`, which is a library of its
 * own (mpi_wire.c), loaded when it is asked for.
 *
 * A move sends bytes to one process and receives bytes from it, either of which may be nothing. The
 * buffers belong to the wire until the move is done. Moves with one process are matched in the
 * order in which they begin, in each direction for itself; both sides know the sizes, so a message
 * of another size is an error. Moves with different processes do not wait for each other. A wire
 * copies nothing that need not be copied, allocates nothing in begin() and test(), and cuts
 * messages that are too long for what it stands on.
 *
 * A *bulk* move is matched with bulk moves alone, in their own order. It delays no other move: the
 * bytes of those pass it, also while its receiver has not come to it.
 *
 * Threads: one thread at a time calls a wire (world.c has the lock), except that any may call
 * wake(); a wire starts no thread.
 * After an error a wire moves nothing more; only close() may follow.
 */
#ifndef EK_WIRE_H
#define EK_WIRE_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/status.h>

enum {
  EK__MOVES = 4,   /* with one process that may be under way at once, and as many bulk ones */
  EK__NOTICE = 256 /* bytes of a notice */
};

struct ek__move {
  size_t peer;
  const void *out;
  size_t out_bytes;
  void *in;
  size_t in_bytes;
  bool bulk;
  bool done;         /* set by test() */
  size_t used[2];    /* the wire's own: bytes so far, or what it likes */
  void *requests[2]; /* likewise */
};

struct ek__wire_table {
  size_t size; /* sizeof(struct ek__wire_table): a module of another version differs */
  const char *name;
  /* Begins a move; waits for nothing. */
  ek_status (*begin)(void *self, struct ek__move *move);
  /* Advances all moves, and sets move->done if this one is done; waits for nothing. An error names
   * what happened, and the caller names the process. */
  ek_status (*test)(void *self, struct ek__move *move);
  /* (optional: the caller yields the processor and tests again) returns when something may have
   * moved, after `seconds` at the latest. */
  void (*wait)(void *self, double seconds);
  /* (optional: as wait) lets wait() return, the one of now or the next one. */
  void (*wake)(void *self);
  /* (optional: a process that dies is seen by the time limit) whether the process has gone: its
   * connection has ended. Waits for nothing. */
  bool (*gone)(void *self, size_t peer);
  /* A notice of EK__NOTICE bytes, outside of the order of moves: sent if it can be sent without
   * waiting for the receiver; false if not. */
  bool (*notify)(void *self, size_t peer, const void *notice);
  /* The oldest notice of a process that has not been taken; false: there is none. */
  bool (*noticed)(void *self, size_t peer, void *notice);
  /* Ends moves that are under way. Waits at most as long as bytes take that were sent before. */
  void (*close)(void *self);
};

struct ek__wire {
  const struct ek__wire_table *table; /* NULL: none, there is one process */
  void *self;
};

#endif /* EK_WIRE_H */
