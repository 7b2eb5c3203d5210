/*
 * check_log.c - the log callback: which one is called, from which level on, until when.
 *
 * The one line that can be had at will is the report of a group that was closed with memory held.
 */
#include "ek_check.h"

#include <pthread.h>
#include <stdatomic.h>

struct listener {
  int lines;
  ek_log_level level;
  char last[512];
};

static void listen(void *context, ek_log_level level, const char *line) {
  struct listener *self = context;
  self->lines++;
  self->level = level;
  (void)snprintf(self->last, sizeof self->last, "%s", line);
}

/* Closes a group of two devices while the second one holds `bytes`; 0: nothing is held. */
static void close_with(int64_t bytes) {
  ek_group *group = ck_open("cpu:2@64MiB", 1);
  ek_tensor tensor = {0};
  if (bytes > 0) {
    ck_ok(ek_tensor_create(&tensor, ek_group_device(group, 1), EK_MEMORY_OUTPUTS, EK_F32, 1,
                           (const int64_t[]){bytes / 4}));
  }
  ek_error_set(EK_ERR_IO, "before");
  ek_group_free(group); /* with a tensor it is not freed, and remains */
  ck_assert_str_eq(ek_error_message(), "before");
}

CK_TEST(held_memory_is_reported) {
  struct listener listener = {0};
  ek_log_set(EK_LOG_DEBUG, listen, &listener);
  close_with(3 << 20);
  ck_assert_int_eq(listener.lines, 1);
  ck_assert_int_eq(listener.level, EK_LOG_WARNING);
  ck_assert_msg(ck_contains(listener.last, "cpu:1"), "%s", listener.last);
  ck_assert_msg(ck_contains(listener.last, "3.00 MiB"), "%s", listener.last);
  ck_assert_ptr_null(strchr(listener.last, '\n'));
}

CK_TEST(a_clean_close_says_nothing) {
  struct listener listener = {0};
  ek_log_set(EK_LOG_WARNING, listen, &listener);
  close_with(0);
  ck_assert_int_eq(listener.lines, 0);
}

CK_TEST(lines_below_the_level_are_left_out) {
  struct listener listener = {0};
  ek_log_set((ek_log_level)(EK_LOG_WARNING + 1), listen, &listener);
  close_with(4096);
  ck_assert_int_eq(listener.lines, 0);
  ek_log_set(EK_LOG_WARNING, listen, &listener);
  close_with(4096);
  ck_assert_int_eq(listener.lines, 1);
}

CK_TEST(a_new_callback_replaces_the_old_one) {
  struct listener first = {0}, second = {0};
  ek_log_set(EK_LOG_DEBUG, listen, &first);
  close_with(4096);
  ek_log_set(EK_LOG_DEBUG, listen, &second);
  close_with(4096);
  close_with(4096);
  ck_assert_int_eq(first.lines, 1);
  ck_assert_int_eq(second.lines, 2);
  ek_log_set(EK_LOG_DEBUG, NULL, NULL);
  close_with(4096);
  ck_assert_int_eq(second.lines, 2);
}

/* ---- threads: one call at a time, and none after a replacement ---- */

struct guarded {
  atomic_int inside;
  atomic_bool overlapped, retired, called_after;
  int lines; /* not atomic: the library promises one call at a time */
};

static void watch(void *context, ek_log_level level, const char *line) {
  struct guarded *self = context;
  (void)level, (void)line;
  if (atomic_fetch_add(&self->inside, 1) != 0) atomic_store(&self->overlapped, true);
  if (atomic_load(&self->retired)) atomic_store(&self->called_after, true);
  self->lines++;
  atomic_fetch_sub(&self->inside, 1);
}

enum { THREADS = 4, ROUNDS = 20 };

static void *leak_rounds(void *argument) {
  atomic_bool *failed = argument;
  for (int i = 0; i < ROUNDS; i++) {
    ek_group *group = NULL;
    ek_tensor tensor = {0};
    if (ek_group_open(&group, "plan:1", NULL) != EK_OK ||
        ek_tensor_create(&tensor, ek_group_device(group, 0), EK_MEMORY_LOSS, EK_F32, 0, NULL) !=
            EK_OK) {
      atomic_store(failed, true);
    }
    ek_group_free(group);
  }
  return NULL;
}

static void start_threads(pthread_t threads[THREADS], atomic_bool *failed) {
  for (int i = 0; i < THREADS; i++) {
    ck_assert_int_eq(pthread_create(&threads[i], NULL, leak_rounds, failed), 0);
  }
}

CK_TEST(calls_come_one_at_a_time) {
  static struct guarded guarded;
  static atomic_bool failed;
  pthread_t threads[THREADS];
  ek_log_set(EK_LOG_DEBUG, watch, &guarded);
  start_threads(threads, &failed);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ek_log_set(EK_LOG_DEBUG, NULL, NULL);
  ck_assert(!atomic_load(&failed));
  ck_assert(!atomic_load(&guarded.overlapped));
  ck_assert_int_eq(guarded.lines, THREADS * ROUNDS);
}

CK_TEST(a_replaced_callback_is_not_called_again) {
  static struct guarded guarded[ROUNDS];
  static atomic_bool failed;
  pthread_t threads[THREADS];
  start_threads(threads, &failed);
  for (int i = 0; i < ROUNDS; i++) {
    ek_log_set(EK_LOG_DEBUG, watch, &guarded[i]);
    if (i > 0) atomic_store(&guarded[i - 1].retired, true);
  }
  ek_log_set(EK_LOG_DEBUG, NULL, NULL);
  atomic_store(&guarded[ROUNDS - 1].retired, true);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ck_assert(!atomic_load(&failed));
  for (int i = 0; i < ROUNDS; i++) ck_assert(!atomic_load(&guarded[i].called_after));
}

static void stop_listening(void) { ek_log_set(EK_LOG_DEBUG, NULL, NULL); }

CK_SUITE_WITH("log", NULL, stop_listening)
