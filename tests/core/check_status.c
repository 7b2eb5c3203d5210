/*
 * check_status.c - names and texts of statuses, the thread's message, and the two macros.
 */
#include "ek_check.h"

#include <pthread.h>

enum { LONGEST = 4095 };

CK_TEST(every_status_has_its_name_and_a_text) {
  int count = 0;
#define CHECK(name, value, text)                                                                   \
  ck_assert_int_eq(name, value);                                                                   \
  ck_assert_int_eq(value, count);                                                                  \
  ck_assert_str_eq(ek_status_name(name), #name);                                                   \
  ck_assert_str_eq(ek_status_text(name), text);                                                    \
  ck_assert_uint_gt(strlen(ek_status_text(name)), 0);                                              \
  count++;
  EK_STATUS_LIST(CHECK)
#undef CHECK
  ck_assert_int_eq(EK_OK, 0);
  ck_assert_int_eq(count, 19);
}

CK_TEST(a_status_outside_the_list_is_unknown) {
  const int outside[] = {19, 255, 1000000};
  for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
    const ek_status status = (ek_status)outside[i];
    ck_assert_str_eq(ek_status_name(status), "EK_ERR_UNKNOWN");
    ck_assert_ptr_nonnull(ek_status_text(status));
    ck_assert_uint_gt(strlen(ek_status_text(status)), 0);
  }
}

CK_TEST(setting_returns_the_status_and_keeps_the_message) {
  ck_assert_int_eq(ek_error_set(EK_ERR_SHAPE, "mixer: expected %d columns", 7), EK_ERR_SHAPE);
  ck_assert_str_eq(ek_error_message(), "mixer: expected 7 columns");
  const char *place = ek_error_message();
  ck_assert_int_eq(ek_error_set(EK_ERR_IO, "%s", "second"), EK_ERR_IO);
  ck_assert_str_eq(ek_error_message(), "second");
  ck_assert_ptr_eq(ek_error_message(), place);
  ek_error_clear();
  ck_assert_str_eq(ek_error_message(), "");
}

CK_TEST(no_format_gives_the_text_of_the_status) {
  /* Through a pointer: compilers rightly warn about a format that they cannot see. */
  ek_status (*const set)(ek_status, const char *, ...) = ek_error_set;
  ck_assert_int_eq(set(EK_ERR_STATE, NULL), EK_ERR_STATE);
  ck_assert_str_eq(ek_error_message(), ek_status_text(EK_ERR_STATE));
}

CK_TEST(a_success_leaves_the_message) {
  ck_assert_int_eq(ek_error_set(EK_ERR_TYPE, "kept"), EK_ERR_TYPE);
  CK_GOT(ek_group *, group, ek_group_open(&group, "plan:1", NULL));
  ek_group_free(group);
  ck_assert_str_eq(ek_error_message(), "kept");
}

/* ---- long messages, and messages made from messages ---- */

CK_TEST(a_long_message_is_cut) {
  static char text[3 * LONGEST];
  for (size_t length = LONGEST - 2; length <= LONGEST + 2; length++) {
    memset(text, 'x', length);
    text[length] = '\0';
    ck_assert_int_eq(ek_error_set(EK_ERR_IO, "%s", text), EK_ERR_IO);
    const size_t want = length < LONGEST ? length : LONGEST;
    ck_assert_uint_eq(strlen(ek_error_message()), want);
    ck_assert(strncmp(ek_error_message(), text, want) == 0);
  }
  memset(text, 'y', sizeof text - 1);
  ck_assert_int_eq(ek_error_set(EK_ERR_IO, "%d%s", 12345, text), EK_ERR_IO);
  ck_assert_uint_eq(strlen(ek_error_message()), LONGEST);
  ck_assert(strncmp(ek_error_message(), "12345yyy", 8) == 0);
}

CK_TEST(a_message_may_hold_the_old_one) {
  ck_assert_int_eq(ek_error_set(EK_ERR_IO, "inner"), EK_ERR_IO);
  ck_assert_int_eq(
      ek_error_set(EK_ERR_STATE, "a %s b %s c", ek_error_message(), ek_error_message()),
      EK_ERR_STATE);
  ck_assert_str_eq(ek_error_message(), "a inner b inner c");
  for (int i = 0; i < 2000; i++) {
    ck_assert_int_eq(ek_error_set(EK_ERR_STATE, "%d: %s", i, ek_error_message()), EK_ERR_STATE);
  }
  ck_assert_uint_eq(strlen(ek_error_message()), LONGEST);
  ck_assert(strncmp(ek_error_message(), "1999: 1998: 1997: ", 18) == 0);
}

/* ---- threads ---- */

struct speaker {
  int number;
  pthread_barrier_t *barrier;
  bool empty_at_first, own_at_the_end;
};

static void *speak(void *argument) {
  struct speaker *self = argument;
  self->empty_at_first = ek_error_message()[0] == '\0';
  char want[64];
  (void)snprintf(want, sizeof want, "message of thread %d", self->number);
  const ek_status status = ek_error_set(EK_ERR_IO, "message of thread %d", self->number);
  pthread_barrier_wait(self->barrier);
  self->own_at_the_end = status == EK_ERR_IO && strcmp(ek_error_message(), want) == 0;
  return NULL;
}

CK_TEST(each_thread_has_a_message_of_its_own) {
  enum { THREADS = 8 };
  pthread_barrier_t barrier;
  ck_assert_int_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
  pthread_t threads[THREADS];
  struct speaker speakers[THREADS];
  ck_assert_int_eq(ek_error_set(EK_ERR_STATE, "message of the first"), EK_ERR_STATE);
  for (int i = 0; i < THREADS; i++) {
    speakers[i] = (struct speaker){.number = i, .barrier = &barrier};
    ck_assert_int_eq(pthread_create(&threads[i], NULL, speak, &speakers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&barrier);
  for (int i = 0; i < THREADS; i++) {
    ck_assert(speakers[i].empty_at_first);
    ck_assert(speakers[i].own_at_the_end);
  }
  ck_assert_str_eq(ek_error_message(), "message of the first");
}

/* ---- the macros ---- */

static ek_status counted(int *calls, ek_status status) {
  (*calls)++;
  return status;
}

static ek_status try_two(int *calls, ek_status first, ek_status second) {
  EK_TRY(counted(calls, first));
  EK_TRY(counted(calls, second));
  return EK_OK;
}

static ek_status try_goto(int *calls, int *cleanups, ek_status first, ek_status second) {
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, counted(calls, first), cleanup);
  EK_TRY_GOTO(status, counted(calls, second), cleanup);
cleanup:
  (*cleanups)++;
  return status;
}

CK_TEST(a_try_evaluates_once_and_returns_the_first_failure) {
  int calls = 0;
  ck_assert_int_eq(try_two(&calls, EK_OK, EK_OK), EK_OK);
  ck_assert_int_eq(calls, 2);
  ck_assert_int_eq(try_two(&calls, EK_OK, EK_ERR_IO), EK_ERR_IO);
  ck_assert_int_eq(calls, 4);
  ck_assert_int_eq(try_two(&calls, EK_ERR_SHAPE, EK_ERR_IO), EK_ERR_SHAPE);
  ck_assert_int_eq(calls, 5);
}

CK_TEST(a_try_goto_evaluates_once_and_jumps) {
  int calls = 0, cleanups = 0;
  ck_assert_int_eq(try_goto(&calls, &cleanups, EK_OK, EK_OK), EK_OK);
  ck_assert_int_eq(try_goto(&calls, &cleanups, EK_OK, EK_ERR_IO), EK_ERR_IO);
  ck_assert_int_eq(calls, 4);
  ck_assert_int_eq(try_goto(&calls, &cleanups, EK_ERR_TYPE, EK_ERR_IO), EK_ERR_TYPE);
  ck_assert_int_eq(calls, 5);
  ck_assert_int_eq(cleanups, 3);
}

CK_SUITE("status")
