/*
 * process.h - which process this is, counted in forks.
 *
 * A child of fork() has the parent's memory and none of its threads, and a mutex that some thread
 * of the parent held stays locked in it for ever. What needs threads or locks of the parent
 * therefore remembers the number of the process that made it, and refuses, or leaves alone, where
 * the number is another. A child that is made without the handlers of fork() (vfork, a bare clone)
 * is not seen.
 */
#ifndef EK_PROCESS_H
#define EK_PROCESS_H

#include <stdbool.h>

#include <evenkeel/status.h>

/* From now on forks are counted. EK_ERR_OUT_OF_MEMORY if the system refuses. */
ek_status ek__process_watch(void);

/* Forks between the first watch and this process; costs one read. */
unsigned ek__process_number(void);

/* Whose something is. */
struct ek__process {
  unsigned number;
  long id; /* the same, for people */
};

struct ek__process ek__process_this(void);
/* True in a child of the owner. */
bool ek__process_is_child(const struct ek__process *owner);
/* EK_ERR_STATE in a child of the process that opened the group. */
ek_status ek__process_check(const struct ek__process *owner, const char *who);

#endif /* EK_PROCESS_H */
