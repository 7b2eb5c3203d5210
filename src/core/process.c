/*
 * process.c - counts forks by a handler in the child.
 */
#include "core/process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

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
  return done ? EK_OK : ek_error_set(EK_ERR_OUT_OF_MEMORY, "no memory for a handler of fork()");
}

unsigned ek__process_number(void) { return atomic_load_explicit(&forks, memory_order_relaxed); }
