/*
 * thread.c - pthread_create() with a stack of a stated size, and threads without signals.
 */
#include "core/thread.h"

#include <errno.h>
#include <string.h>

#include <evenkeel/host_memory.h>


ek_status ek__thread_start(pthread_t *thread, size_t stack, void *(*function)(void *), void *arg) {
  pthread_attr_t attributes;
  int error = ek_host_memory_fails() ? EAGAIN : pthread_attr_init(&attributes);
  if (error == 0) {
    error = pthread_attr_setstacksize(&attributes, stack);
    if (error == 0) error = ek__thread_create(thread, &attributes, function, arg);
    pthread_attr_destroy(&attributes);
  }
  if (error == 0) return EK_OK;
  return ek_error_set(EK_ERR_OUT_OF_MEMORY, "the system refused a thread: %s", strerror(error));
}

static _Thread_local bool is_deaf;

void ek__thread_stays_deaf(void) { is_deaf = true; }

void ek__thread_block(struct ek__thread_signals *signals) {
  signals->changed = !is_deaf;
  if (is_deaf) return;
  sigset_t set;
  ek__signals_that_interrupt(&set);
  (void)pthread_sigmask(SIG_BLOCK, &set, &signals->before);
}

void ek__thread_unblock(const struct ek__thread_signals *signals) {
  if (signals->changed) (void)pthread_sigmask(SIG_SETMASK, &signals->before, NULL);
}
