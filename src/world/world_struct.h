/*
 * world_struct.h - what a world has; for world.c, calls.c, talk.c and waiting.c.
 */
#ifndef EK_WORLD_STRUCT_H
#define EK_WORLD_STRUCT_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "core/error.h"
#include "world/world_internal.h"

enum { EK__HOST_SIZE = 64, EK__DIARY = 64 };

struct ek__peer {
  char host[EK__HOST_SIZE];
  int64_t pid;
  bool alive;        /* it has answered since it was asked */
  bool left;         /* it has closed its world */
  double gone_since; /* when its end was first seen; 0: it was not */
};

/* One message of a conversation. */
struct ek__message {
  uint64_t magic;
  uint64_t number; /* conversations before this one */
  uint32_t kind, flags; /* flags: with the bytes that go with it: talk.c */
  uint64_t busy; /* nanoseconds: ek_world_busy() */
  int64_t words[EK__TOPIC_WORDS];
};

/* What a process did last, for the list that is written when it waits too long. */
struct ek__deed {
  uint64_t number;
  char text[96];
  double seconds; /* that it took; negative: it is not over */
};

struct ek_world {
  size_t process, processes;
  char *source;
  struct ek__wire wire, watch; /* `watch` is `wire` where that sees processes that go */
  double limit;                /* seconds of one wait */
  struct ek__peer *peers;      /* of all processes */
  uint64_t sent, received;     /* bytes of data */

  /* Held for a conversation and for the moves that belong to it; recursive. Guards the wires, the
   * peers and what follows. */
  pthread_mutex_t talking;
  uint64_t count;             /* conversations so far */
  uint64_t calls;             /* begun since the last one */
  size_t depth;               /* calls that have begun and not ended */
  uint64_t failed;            /* number of the last that ended in an error of all; 0: none */
  ek_status failure;          /* its status, */
  char told[EK__MESSAGE_SIZE]; /* and its words */
  uint64_t agreed;            /* as `failed`, of those that all processes know of, */
  uint64_t recovered;         /* and the last of them after which there was a recovery */
  struct ek__recovery *recoveries;
  uint64_t parted;            /* ek__world_part(): from this conversation on; UINT64_MAX: never */
  uint64_t failing;           /* a process spends this conversation, from 1, on its error, */
  uint64_t failing_began;     /* of a call that began at this moment */
  uint64_t torn;       /* a process has failed in what all had agreed on: the conversation after */
  uint64_t torn_began; /* that, from 1 (0: none), and the moment of its call */
  struct ek__message *heard;  /* of the last conversation, from each process */
  struct ek__message own;     /* what is sent */
  int64_t *words;             /* of all processes, of the last conversation */
  struct ek__move *moves;     /* for each process three: message, bytes sent and received with it */
  struct ek__move **list;     /* those of `moves` that are under way */
  char *refused;              /* EK__RIDE bytes, for those of another topic */
  struct ek__bulk *bulk;      /* the list, from what is under way */
  unsigned spins;             /* tests since bulk went on */
  double looked;              /* when ek__world_wait() looked at all processes */
  struct ek__deed diary[EK__DIARY];
  const char *doing; /* what is waited for */
  bool writing;      /* by the last conversation: ek__world_writing() */

  pthread_mutex_t mutex; /* guards the rest; no function is called while it is held */
  ek_status broken;      /* EK_OK: it is whole */
  char why[EK__MESSAGE_SIZE];

  /* Set without a lock. */
  _Atomic size_t groups, writing_here;
  volatile sig_atomic_t stop_asked; /* here; set by signal handlers too */
  atomic_bool stop;                 /* everywhere */
  _Atomic uint64_t busy;            /* of this process, in nanoseconds */
};

/* The thread's last error is the last failure of the world. */
ek_status ek__world_note(ek_world *world, ek_status status);

/* Spends a conversation on the thread's last error, of a call that began at this moment. */
ek_status ek__world_spread(ek_world *world, uint64_t began, ek_status status);

/* "process 1 on node7 (pid 4711)"; `size` 160 has room for any. Returns `text`. */
const char *ek__world_name(char *text, size_t size, const ek_world *world, size_t process);

/* Breaks the world with the thread's last error, if it is whole, and tells the others. Returns the
 * error that broke it, which is the thread's last one then. */
ek_status ek__world_break(ek_world *world, ek_status status);

/* Tells the others that the next conversation will bring the error of a call that began at this
 * moment; or, torn, that the call has failed in what all had agreed on. */
void ek__world_warn(ek_world *world, uint64_t began, bool torn);

/* Tells the others that this process closes its world. */
void ek__world_leave(ek_world *world);

/* Writes into the diary that something begins, and that it has ended. */
void ek__world_begin_deed(ek_world *world, const struct ek__topic *topic);
void ek__world_end_deed(ek_world *world);

#endif /* EK_WORLD_STRUCT_H */
