/*
 * thread.c - pthread_create() with a stack of a stated size.
 */
#include "core/thread.h"

#include <errno.h>
#include <string.h>

#include "core/alloc.h"

ek_status ek__thread_start(pthread_t *thread, size_t stack, void *(*function)(void *), void *arg) {
  pthread_attr_t attributes;
  int error = ek__host_call_fails() ? EAGAIN : pthread_attr_init(&attributes);
  if (error == 0) {
    error = pthread_attr_setstacksize(&attributes, stack);
    if (error == 0) error = pthread_create(thread, &attributes, function, arg);
    pthread_attr_destroy(&attributes);
  }
  if (error == 0) return EK_OK;
  return ek_error_set(EK_ERR_OUT_OF_MEMORY, "the system refused a thread: %s", strerror(error));
}
