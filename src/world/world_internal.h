/*
 * world_internal.h - the processes that train together: how a world is made, and how its processes
 * agree on what they do next.
 *
 * All processes hold the same *conversations* in the same order. In a conversation each process
 * sends one message of a fixed size to each other one, which says what it is about to do (its
 * *topic*); then all of them have all messages. So they all come to the same end: they go on, or
 * they all fail with the error of the first process that has failed, or with the first difference
 * between their topics. A conversation that ends in such an error is over like any other, and the
 * next one may succeed. A process that fails between two conversations spends the next one on its
 * error (calls.h).
 *
 * A conversation that cannot take place (a process has died, or does not come within the time
 * limit, or sends what is no message) breaks the world: all later ones are refused with that error.
 *
 * Only a thread that is in a call of the library talks to other processes: no worker does, and a
 * world has no thread of its own.
 */
#ifndef EK_WORLD_INTERNAL_H
#define EK_WORLD_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/world.h>

#include "world/calls.h"
#include "world/wire.h"

/* ---- making a world: sources.c ---- */

struct ek__world_parts {
  size_t process, processes;
  const char *source;    /* "torchrun", for messages; copied */
  struct ek__wire wire;  /* carries everything; no table: there is one process */
  struct ek__wire watch; /* (optional: `wire` does it) sees processes that have gone, and carries
                            notices; nothing else */
  double time_limit;     /* seconds; 0: 600 */
};

/* Takes the wires: it closes them, also if it fails. Holds the first conversation, in which the
 * processes compare versions and byte order and give their hosts and pids. */
ek_status ek__world_make(ek_world **world, const struct ek__world_parts *parts);

/* A group opens or closes in the world. */
void ek__world_count_group(ek_world *world, int more);

/* ---- conversations: talk.c; `world` may be NULL, which is one process ---- */

enum ek__topic_kind {
  EK__TOPIC_OPENING = 1,
  EK__TOPIC_GROUP,
  EK__TOPIC_SUM,
  EK__TOPIC_SHARE,
  EK__TOPIC_SAME,
  EK__TOPIC_AGREE,
  EK__TOPIC_COLLECTIVE,
  EK__TOPIC_FAILURE
};

enum { EK__TOPIC_WORDS = 8, EK__RIDE = 16384 };

struct ek__topic {
  enum ek__topic_kind kind;
  const char *doing;              /* for messages: "opening a group" */
  size_t same;                    /* the first words, which all processes must have alike */
  int64_t words[EK__TOPIC_WORDS]; /* what the processes tell each other */
  /* (optional: `doing`) the same from words that another process has sent. */
  void (*say)(char *text, size_t size, const int64_t *words);
  /* (optional) `bytes` that go with the message, EK__RIDE at most: those of another process p come
   * to in + p * bytes, if the conversation ends well. The same number is in all processes. */
  const void *out;
  char *in;
  size_t bytes;
};

/* The lock of conversations; a thread that has it may take it again. */
void ek__world_lock(ek_world *world);
void ek__world_unlock(ek_world *world);

/* Holds a conversation. `heard`: the words of all processes, processes times EK__TOPIC_WORDS, valid
 * until the next conversation: the lock is held by a caller that reads them. NULL: not wanted. */
ek_status ek__world_talk(ek_world *world, const struct ek__topic *topic, const int64_t **heard);

/* Adds up `count` numbers of all processes, EK__TOPIC_WORDS - 1 at most; *before (NULL: not
 * wanted): the first number, added up over the processes before this one alone. `step` is that of
 * training, which must be the same everywhere. */
ek_status ek__world_sum(ek_world *world, int64_t step, int64_t *numbers, size_t count,
                        int64_t *before);

/* All processes get the bytes of process 0, or of another one. */
ek_status ek__world_share(ek_world *world, void *bytes, size_t count);
ek_status ek__world_share_from(ek_world *world, size_t from, void *bytes, size_t count);

/* All processes get the bytes of each, end to end: those of process p end before ends[p]. `ends`
 * has a place for each process. *all, a pointer to anything, goes to ek__free(). */
ek_status ek__world_gather(void *all, size_t *ends, ek_world *world, const char *doing,
                           const void *own, size_t bytes);

/* All processes must have the same lines of text, each of which is "name = value". The error is
 * the same in all of them and names the first line that differs from that of process 0. */
ek_status ek__world_same(ek_world *world, const char *doing, const char *lines);

/* Such lines while they are written; zeros at first. The second compares them, unless one could not
 * be added, and frees them. */
struct ek__lines {
  char *text; /* ends with a NUL */
  size_t used, room;
  ek_status status;
};
void ek__lines_add(struct ek__lines *lines, const char *format, ...) EK_PRINTF(2, 3);
ek_status ek__lines_same(struct ek__lines *lines, ek_world *world, const char *doing);

/* Holds a conversation with some bytes of each process: in the end those of all are in `all`, of
 * process p before ends[p]; this process's own are in their place at the call. They are in the
 * message, after the words that must be alike, if those of each process fit there. */
ek_status ek__world_tell(ek_world *world, const struct ek__topic *topic, void *all,
                         const size_t *ends);

/* All processes have come here, at the same step, without an error. */
ek_status ek__world_agree(ek_world *world, const char *doing, int64_t step);
/* The same in a world of several processes, which tell each other `count` numbers with it,
 * EK__TOPIC_WORDS - 1 at most: those of process p are heard[p * EK__TOPIC_WORDS + 1] and the next,
 * valid as ek__world_talk() says. */
ek_status ek__world_agree_on(ek_world *world, const char *doing, int64_t step,
                             const int64_t *numbers, size_t count, const int64_t **heard);

/* Whether all processes have the same number. */
ek_status ek__world_compare(ek_world *world, int64_t number, bool *same);

/* ---- data ---- */

/* Begins a move; sees whether these moves are done, or waits until they are. The sizes are known to
 * both sides from the conversation before. */
ek_status ek__world_move(ek_world *world, struct ek__move *move);
ek_status ek__world_test(ek_world *world, struct ek__move *const *moves, size_t count, bool *done);
ek_status ek__world_finish(ek_world *world, struct ek__move *const *moves, size_t count);
/* Both, of one move. */
ek_status ek__world_swap(ek_world *world, size_t peer, const void *out, size_t out_bytes, void *in,
                         size_t in_bytes);
/* Adds to the bytes of data that ek_world_sent() and ek_world_received() give; the lock is held. */
void ek__world_count(ek_world *world, size_t sent, size_t received);
/* The process to talk to in one of as many rounds as there are processes; this one: none. Two
 * processes have the same round for each other, so that all pairs can exchange at once. */
size_t ek__world_peer(const ek_world *world, size_t round);

/*
 * ---- bulk: waiting.c ----
 *
 * Data that all processes have agreed on in a conversation, and that moves while conversations go
 * on (wire.h: bulk moves). So a message that devices wait for does not wait for megabytes that none
 * needs yet. One after the other goes to its end, in the order of the conversations, in all
 * processes and whatever else fails, so each process may count on the moves of the others. It goes
 * on in every wait of this file and in ek__world_wait(), in whatever thread; a caller whose data it
 * is waits for its end before anything else.
 */
struct ek__bulk {
  /* Begins moves and tests them, without waiting. *done: all of them are done. Otherwise `moves`
   * are those that the next call needs. After an error the world is broken. */
  ek_status (*advance)(struct ek__bulk *self, bool *done);
  /* It is over, by an error of the world or well; it is not in the list any more. */
  void (*end)(struct ek__bulk *self, ek_status status);
  struct ek__move *const *moves;
  size_t count;
  size_t waits; /* raised by `advance` when moves are done */
  /* The world's own: */
  struct ek__bulk *next;
  uint64_t number; /* of the conversation */
  char doing[96];
  double since; /* when it began to wait for `moves` */
};

/* Appends what the last conversation has agreed on; the lock is held. */
void ek__world_add_bulk(ek_world *world, struct ek__bulk *bulk);

/* Waits for a moment, or until a thread calls the second function, while bulk goes on. An error is
 * one of the world: the failure of another process's later job does not end what is agreed on. */
ek_status ek__world_wait(ek_world *world);
void ek__world_wake(ek_world *world);

/* ---- waiting ---- */

/* A thread that waits for its own devices calls this several times a second: answers processes that
 * ask whether this one is alive. An error if the world is broken or a process has gone. */
ek_status ek__world_look(ek_world *world);

/* EK_OK, or the error that broke the world. */
ek_status ek__world_check(ek_world *world);

/* A thread of this process begins (+1) or ends (-1) writing for a save in the background. */
void ek__world_count_writing(ek_world *world, int more);
/* Whether such a thread was at work in any process in the last conversation: the same in all. */
bool ek__world_writing(ek_world *world);

/* How long this process has been at work, in nanoseconds; NULL is legal. */
void ek__world_set_busy(ek_world *world, uint64_t nanoseconds);

#endif /* EK_WORLD_INTERNAL_H */
