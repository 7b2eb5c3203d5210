/*
 * log.c - the program's log callback.
 *
 * One mutex serialises the calls, so that a callback needs no lock of its own and ek_log_set() can
 * promise that the old callback has ended.
 */
#include <evenkeel/log.h>

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "core/log_internal.h"

static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static ek_log_callback log_callback; /* the three belong to log_mutex */
static void *log_context;
static ek_log_level log_least;

void ek_log_set(ek_log_level least, ek_log_callback callback, void *context) {
  pthread_mutex_lock(&log_mutex);
  log_callback = callback;
  log_context = context;
  log_least = least;
  pthread_mutex_unlock(&log_mutex);
}

void ek__log(ek_log_level level, const char *format, ...) {
  pthread_mutex_lock(&log_mutex);
  if (log_callback != NULL && level >= log_least) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    log_callback(log_context, level, line);
  }
  pthread_mutex_unlock(&log_mutex);
}
