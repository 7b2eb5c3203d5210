/*
 * turns.h - functions that run in turns: each on a thread of its own, and one of them at a time.
 *
 * A function goes on until it passes the turn, or ends; then the next one that has not ended goes
 * on, in the order of their numbers and after the last from the first on. So the order of all that
 * they do is fixed, and they may share memory without locks. Number 0 runs on the thread of the
 * caller.
 *
 * Threads, and no other stacks on one thread: sanitizers, debuggers and shadow stacks know them,
 * and every C library has them.
 */
#ifndef EK_TURNS_H
#define EK_TURNS_H

#include <stddef.h>

#include <evenkeel/status.h>

struct ek__turns;

/* For up to `count` functions. A thread begins with prepare(context). */
ek_status ek__turns_open(struct ek__turns **turns, size_t count, void (*prepare)(void *context),
                         void *context);
/* NULL is legal. In a child of fork(), which has none of the threads, the memory alone is freed. */
void ek__turns_close(struct ek__turns *turns);

/*
 * Runs function(context, 0) to function(context, count - 1) until all have ended; allocates
 * nothing. Returns the error that came first in time, with its message. From then on a function
 * that has not begun does not, and one that has passed its turn gets EK_ERR_ABORTED.
 */
typedef ek_status ek__turn_function(void *context, size_t number);
ek_status ek__turns_run(struct ek__turns *turns, size_t count, ek__turn_function *function,
                        void *context);

/* For the running function: its number; and passes the turn, until it comes again. */
size_t ek__turns_number(const struct ek__turns *turns);
ek_status ek__turns_pass(struct ek__turns *turns);

#endif /* EK_TURNS_H */
