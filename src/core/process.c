/*
 * process.c - counts forks by a handler in the child.
 */
#include "core/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_uint forks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static bool watching; /* belongs to the mutex */

/* Alone in the new process. The mutex may have been held by a thread that is not here. */
static void in_the_child(void) {
  atomic_fetch_add_explicit(&forks, 1u, memory_order_relaxed);
  (void)pthread_mutex_init(&mutex, NULL);
}

ek_status ek__process_watch(void) {
  pthread_mutex_lock(&mutex);
  if (!watching) watching = pthread_atfork(NULL, NULL, in_the_child) == 0;
  const bool done = watching;
  pthread_mutex_unlock(&mutex);
  return done ? EK_OK : ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of memory for a fork() handler");
}

unsigned ek__process_number(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }

struct ek__process ek__process_this(void) {
  return (struct ek__process){ek__process_number(), (long)getpid()};
}

bool ek__process_is_child(const struct ek__process *owner) {
  return owner->number != ek__process_number();
}

ek_status ek__process_check(const struct ek__process *owner, const char *who) {
  if (!ek__process_is_child(owner)) return EK_OK;
  return ek_error_set(EK_ERR_STATE,
                      "%s: the group was opened by process %ld; a child made by fork() cannot use "
                      "it", who,
                      owner->id);
}
