/*
 * turns.c - threads that hand one turn on, each by a semaphore of its own: see turns.h.
 *
 * Only the thread that has the turn reads and writes what is here, until it posts the semaphore of
 * the next.
 */
#include "core/turns.h"

#include <semaphore.h>
#include <stdbool.h>
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/process.h"
#include "core/thread.h"

struct turn {
  struct ek__turns *turns;
  size_t number;
  pthread_t thread; /* not of number 0 */
  sem_t comes;      /* posted when it gets the turn, and at the end of all to number 0 */
  bool ended;
};

struct ek__turns {
  size_t count, started; /* started: threads that exist, and number 0 */
  unsigned process;      /* core/process.h: whose threads they are */
  void (*prepare)(void *context);
  void *prepare_context;
  bool stop;
  /* Of a run: */
  ek__turn_function *function;
  void *context;
  size_t running, left; /* functions, and those that have not ended */
  size_t current;
  ek_status status; /* the first error */
  char message[EK__MESSAGE_SIZE];
  struct turn list[];
};

/* A signal's handler ends sem_wait() early. */
static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) {
  }
}

/* False: there is no other to go on. */
static bool hand_on(struct ek__turns *turns) {
  const size_t own = turns->current;
  size_t next = own;
  do {
    next = (next + 1) % turns->running;
  } while (next != own && turns->list[next].ended);
  if (turns->left == 0) next = 0;
  if (next == own) return false;
  turns->current = next;
  (void)sem_post(&turns->list[next].comes);
  return true;
}

static void take_turn(struct ek__turns *turns, size_t number) {
  const uint64_t errors = ek__error_number();
  if (turns->status == EK_OK) {
    const ek_status status = turns->function(turns->context, number);
    if (status != EK_OK && turns->status == EK_OK) {
      const char *words = ek__error_words(status, errors);
      memcpy(turns->message, words, strlen(words) + 1);
      turns->status = status;
    }
  }
  turns->list[number].ended = true;
  turns->left--;
}

static void *thread_main(void *raw) {
  const struct turn *own = raw;
  struct ek__turns *turns = own->turns;
  const size_t number = own->number;
  turns->prepare(turns->prepare_context);
  for (;;) {
    wait_for(&turns->list[number].comes);
    if (turns->stop) return NULL;
    take_turn(turns, number);
    (void)hand_on(turns);
  }
}

ek_status ek__turns_open(struct ek__turns **turns, size_t count, void (*prepare)(void *context),
                         void *context) {
  struct ek__turns *made = NULL;
  EK_TRY(ek__new(&made, 1, sizeof *made + count * sizeof *made->list, "functions in turns"));
  made->count = count;
  made->process = ek__process_number();
  made->prepare = prepare;
  made->prepare_context = context;
  for (size_t i = 0; i < count; i++) {
    made->list[i].turns = made;
    made->list[i].number = i;
    (void)sem_init(&made->list[i].comes, 0, 0);
  }
  ek_status status = EK_OK;
  for (made->started = 1; made->started < count; made->started++) {
    struct turn *turn = &made->list[made->started];
    status = ek__thread_start(&turn->thread, EK__WORKER_STACK, thread_main, turn);
    if (status != EK_OK) break;
  }
  if (status == EK_OK) {
    *turns = made;
  } else {
    ek__turns_close(made);
  }
  return status;
}

void ek__turns_close(struct ek__turns *turns) {
  if (turns == NULL) return;
  if (turns->process == ek__process_number()) {
    turns->stop = true;
    for (size_t i = 1; i < turns->started; i++) {
      (void)sem_post(&turns->list[i].comes);
      (void)pthread_join(turns->list[i].thread, NULL);
    }
    for (size_t i = 0; i < turns->count; i++) (void)sem_destroy(&turns->list[i].comes);
  }
  ek__free(turns);
}

ek_status ek__turns_run(struct ek__turns *turns, size_t count, ek__turn_function *function,
                        void *context) {
  if (count == 0) return EK_OK;
  turns->function = function;
  turns->context = context;
  turns->running = turns->left = count;
  turns->current = 0;
  turns->status = EK_OK;
  for (size_t i = 0; i < count; i++) turns->list[i].ended = false;
  take_turn(turns, 0);
  if (hand_on(turns)) wait_for(&turns->list[0].comes);
  EK__FAIL_IF(turns->status != EK_OK, turns->status, "%s", turns->message);
  return EK_OK;
}

size_t ek__turns_number(const struct ek__turns *turns) { return turns->current; }

ek_status ek__turns_pass(struct ek__turns *turns) {
  sem_t *comes = &turns->list[turns->current].comes;
  if (hand_on(turns)) wait_for(comes);
  EK__FAIL_IF(turns->status != EK_OK, EK_ERR_ABORTED, "another of the functions has failed");
  return EK_OK;
}
