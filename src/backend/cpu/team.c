/*
 * team.c - fork-join over persistent threads.
 *
 * A run is published by raising `ticket`: function, arg and parts are written before it (release)
 * and read after it (acquire). Every helper answers every ticket, also when it has no part in it,
 * by lowering `pending`; the caller waits until that is zero. So the job's fields are never
 * rewritten while a helper may still look at them.
 *
 * Both sides spin for a short time first, because the kernels of a training step follow each other
 * within microseconds, and then sleep. A sleeper counts itself under the mutex before it looks at
 * the ticket for the last time; the waker raises the ticket first and then looks for sleepers, both
 * sequentially consistent, so one of the two always sees the other.
 *
 * A caller that finds another one in the team does not wait: it does all parts itself. The work of
 * a part follows from its number alone, so the result has the same bits. Only a caller that needs
 * scratch waits, because the team has one scratch for callers. A child of fork(), which has no
 * helpers and in which `inside` may be locked for ever, does all parts itself.
 */
#include "backend/cpu/team.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backend/cpu/cpu_internal.h"
#include "core/alloc.h"
#include "core/process.h"
#include "core/thread.h"

/* About 20 microseconds: longer than the gap between two kernels, shorter than a time slice. */
#define SPINS 2000

struct helper {
  pthread_t thread;
  struct ek__team *team;
  struct ek__scratch *scratch;
  int part;
};

struct ek__team {
  int threads, started; /* started: helpers that exist */
  bool fixed;
  ek__team_function *function;
  void *arg;
  int parts;
  bool stop;
  unsigned process;            /* core/process.h: whose threads the helpers are */
  pthread_mutex_t inside;      /* held by the caller that runs the team */
  struct ek__scratch *scratch; /* of the caller that is inside; then the helpers' */
  atomic_uint ticket;
  atomic_int pending;  /* helpers that have not answered the current ticket */
  atomic_int sleepers; /* helpers that wait on `wake` */
  atomic_bool caller_sleeps;
  pthread_mutex_t mutex;
  pthread_cond_t wake, done;
  struct helper helpers[];
};

static _Thread_local struct ek__scratch *scratch_of_this_thread;

struct ek__scratch *ek__team_scratch(void) {
  return scratch_of_this_thread;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

static void wait_for_ticket(struct ek__team *team, unsigned seen) {
  for (int spin = 0; spin < SPINS; spin++) {
    if (atomic_load_explicit(&team->ticket, memory_order_acquire) != seen) return;
    relax();
  }
  pthread_mutex_lock(&team->mutex);
  atomic_fetch_add(&team->sleepers, 1);
  while (atomic_load(&team->ticket) == seen) pthread_cond_wait(&team->wake, &team->mutex);
  atomic_fetch_sub(&team->sleepers, 1);
  pthread_mutex_unlock(&team->mutex);
}

static void answer(struct ek__team *team) {
  if (atomic_fetch_sub(&team->pending, 1) != 1) return;
  if (!atomic_load(&team->caller_sleeps)) return;
  pthread_mutex_lock(&team->mutex);
  pthread_cond_signal(&team->done);
  pthread_mutex_unlock(&team->mutex);
}

static void *helper_main(void *raw) {
  const struct helper *helper = raw;
  struct ek__team *team = helper->team;
  unsigned seen = 0;
  ek__thread_stays_deaf();
  scratch_of_this_thread = helper->scratch;
  for (;;) {
    wait_for_ticket(team, seen);
    seen++;
    if (team->stop) return NULL;
    if (helper->part < team->parts) team->function(team->arg, helper->part, team->parts);
    answer(team);
  }
}

static void raise_ticket(struct ek__team *team) {
  atomic_fetch_add(&team->ticket, 1u);
  if (atomic_load(&team->sleepers) == 0) return;
  pthread_mutex_lock(&team->mutex);
  pthread_cond_broadcast(&team->wake);
  pthread_mutex_unlock(&team->mutex);
}

static void wait_for_answers(struct ek__team *team) {
  for (int spin = 0; spin < SPINS; spin++) {
    if (atomic_load_explicit(&team->pending, memory_order_acquire) == 0) return;
    relax();
  }
  pthread_mutex_lock(&team->mutex);
  atomic_store(&team->caller_sleeps, true);
  while (atomic_load(&team->pending) != 0) pthread_cond_wait(&team->done, &team->mutex);
  atomic_store(&team->caller_sleeps, false);
  pthread_mutex_unlock(&team->mutex);
}

/* Most programs touch little of it. */
static ek_status open_scratch(struct ek__team *team) {
  void *memory = NULL;
  EK_TRY(ek__cpu_memory_map(&memory, (uint64_t)team->threads * sizeof(struct ek__scratch)));
  team->scratch = memory;
  for (int i = 0; i < team->threads - 1; i++) team->helpers[i].scratch = team->scratch + i + 1;
  return EK_OK;
}

static ek_status start_helpers(struct ek__team *team) {
  for (int i = 0; i < team->threads - 1; i++) {
    struct helper *helper = &team->helpers[i];
    helper->team = team;
    helper->part = i + 1;
    EK_TRY(ek__thread_start(&helper->thread, EK__HELPER_STACK, helper_main, helper));
    team->started++;
  }
  return EK_OK;
}

ek_status ek__team_open(struct ek__team **result, int threads) {
  const size_t helpers = (size_t)(threads - 1);
  struct ek__team *team = NULL;
  EK_TRY(ek__new(&team, 1, sizeof *team + helpers * sizeof team->helpers[0], "a team of threads"));
  team->threads = threads;
  team->process = ek__process_number();
  pthread_mutex_init(&team->inside, NULL);
  pthread_mutex_init(&team->mutex, NULL);
  pthread_cond_init(&team->wake, NULL);
  pthread_cond_init(&team->done, NULL);
  ek_status status = open_scratch(team);
  if (status == EK_OK) status = start_helpers(team);
  if (status != EK_OK) {
    ek__team_close(team);
    return status;
  }
  *result = team;
  return EK_OK;
}

static void close_scratch(struct ek__team *team) {
  if (team->scratch == NULL) return;
  for (int i = 0; i < team->threads; i++) {
    struct ek__scratch *scratch = team->scratch + i;
    if (scratch->kept != NULL) scratch->free_kept(scratch->kept);
  }
  ek__cpu_memory_unmap(team->scratch, (uint64_t)team->threads * sizeof *team->scratch);
}

void ek__team_close(struct ek__team *team) {
  if (!team) return;
  if (team->started > 0) {
    team->stop = true;
    raise_ticket(team);
    for (int i = 0; i < team->started; i++) pthread_join(team->helpers[i].thread, NULL);
  }
  pthread_cond_destroy(&team->done);
  pthread_cond_destroy(&team->wake);
  pthread_mutex_destroy(&team->mutex);
  pthread_mutex_destroy(&team->inside);
  close_scratch(team);
  ek__free(team);
}

int ek__team_threads(const struct ek__team *team) { return team->threads; }

void ek__team_fix(struct ek__team *team) { team->fixed = true; }

bool ek__team_is_fixed(const struct ek__team *team) { return team->fixed; }

/* All parts on this thread. */
static void run_here(int parts, ek__team_function *function, void *arg) {
  for (int part = 0; part < parts; part++) function(arg, part, parts);
}

/* By the caller that is inside. */
static void run_together(struct ek__team *team, int parts, ek__team_function *function, void *arg) {
  team->function = function;
  team->arg = arg;
  team->parts = parts;
  atomic_store(&team->pending, team->started);
  raise_ticket(team);
  function(arg, 0, parts);
  wait_for_answers(team);
}

void ek__team_run(struct ek__team *team, int parts, ek__team_function *function, void *arg) {
  if (parts <= 1 || team->process != ek__process_number() ||
      pthread_mutex_trylock(&team->inside) != 0) {
    run_here(parts, function, arg);
    return;
  }
  run_together(team, parts, function, arg);
  pthread_mutex_unlock(&team->inside);
}

void ek__team_run_with_scratch(struct ek__team *team, int parts, ek__team_function *function,
                               void *arg) {
  const bool child = team->process != ek__process_number();
  struct ek__scratch *before = scratch_of_this_thread;
  if (!child) pthread_mutex_lock(&team->inside);
  scratch_of_this_thread = team->scratch;
  if (child || parts <= 1) {
    run_here(parts, function, arg);
  } else {
    run_together(team, parts, function, arg);
  }
  scratch_of_this_thread = before;
  if (!child) pthread_mutex_unlock(&team->inside);
}
