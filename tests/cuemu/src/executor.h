/*
 * executor.h - the state of the block that a worker thread runs; shared by block.c and warp.c.
 *
 * A CUDA thread is unstarted, ready, waiting (at the block's barrier or in a warp function),
 * running, or gone. The sets are bit masks of a warp. A waiting or ready thread is bound to the
 * fiber whose stack it is on; a fiber whose thread has ended takes the next unstarted one, so that
 * kernels without barriers never switch stacks.
 *
 * Everything here belongs to one worker thread: there are no locks. What every barrier and every
 * shuffle of every CUDA thread goes through is inline: tests spend most of their time there.
 */
#ifndef CUEMU_EXECUTOR_H
#define CUEMU_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "fiber.h"
#include "internal.h"

enum { WARP_LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP_LANES };
enum { SYNC_SLOTS = 64 };

enum cuemu_warp_operation {
  CUEMU_WARP_SYNC,
  CUEMU_WARP_SHUFFLE,
  CUEMU_WARP_BALLOT,
  CUEMU_WARP_MULTIPLY,
  CUEMU_WARP_LOAD
};

enum { ORDER_FORWARD, ORDER_BACKWARD, ORDER_RANDOM };

struct place { /* in a source */
  const char *file;
  int line;
};

struct rendezvous { /* lanes that wait for each other in a warp function */
  uint32_t mask, arrived;
  enum cuemu_warp_operation operation;
  struct place place;
  unsigned slot; /* of warp.sync */
};

struct warp {
  uint32_t live, unstarted, ready;
  int rendezvous_count;
  struct rendezvous rendezvous[WARP_LANES];
  uint64_t in[WARP_LANES], out[WARP_LANES];
  uint8_t source[WARP_LANES];
  unsigned next_slot;
  char sync[SYNC_SLOTS]; /* addresses for ThreadSanitizer, one for each recent rendezvous */
};

struct barrier {
  int waiting;
  struct place place;  /* of the waiting threads */
  unsigned generation;
  char sync[2]; /* for ThreadSanitizer, by the last bit of the generation */
};

struct block {
  struct block *next; /* of those that no worker has */
  const char *kernel;
  void (*body)(void *);
  void *closure;
  int threads, warps, live, current;
  struct warp *current_warp;
  int order;
  bool fiber_per_thread;
  unsigned random;
  dim3 indexed; /* the shape that `index` is for */
  uint3 index[MAX_THREADS];
  cudaError_t error;
  struct warp warp[MAX_WARPS];
  struct barrier barrier;
  struct place waits_at[MAX_THREADS];
  struct cuemu_fiber *bound[MAX_THREADS];

  struct cuemu_fiber main, *running, *idle;
  struct cuemu_fiber *fiber[MAX_THREADS]; /* all of them */
  int fibers;
  void *dynamic_shared;
  char begin_sync, end_sync;
};

#define CUEMU_THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))
extern CUEMU_THREAD_LOCAL struct block *cuemu_block;
extern CUEMU_THREAD_LOCAL uint3 threadIdx;
extern CUEMU_THREAD_LOCAL int cuemu_lane;

/* The kernel has failed: says why and leaves the block, never to come back. */
__attribute__((noreturn)) void cuemu_fail_block(const char *why, struct place place);
/* A lane of the warp has gone: what waited only for it goes on. */
void cuemu_warp_lane_gone(struct warp *warp);
/* The product of a whole warp: each lane's value is the address of its struct cuemu_operands. */
void cuemu_multiply(struct warp *warp, struct place place);
/* Matrices for a whole warp: of struct cuemu_matrices. */
void cuemu_load_matrices(struct warp *warp, struct place place);
/* Forgets the copies of the block before. */
void cuemu_copies_begin(void);
/* A thread that can run, of the current warp if there is one; -1 if there is none. */
int cuemu_choose_in_order(struct block *b);
/* Goes on with the next thread, while the current one, which is at `place`, waits. */
void cuemu_go_on(struct block *b, struct place place);

static inline void cuemu_set_current(struct block *b, int thread) {
  b->current = thread;
  b->current_warp = &b->warp[thread / WARP_LANES];
  threadIdx = b->index[thread];
  cuemu_lane = thread % WARP_LANES;
}

static inline void cuemu_switch_to(struct block *b, struct cuemu_fiber *fiber) {
  struct cuemu_fiber *from = b->running;
  if (from == fiber) return;
  b->running = fiber;
  cuemu_fiber_switch(from, fiber);
}

static inline int cuemu_choose_thread(struct block *b) {
  const uint32_t lanes = b->current_warp->ready | b->current_warp->unstarted;
  if (b->order == ORDER_FORWARD && lanes) {
    return (b->current & ~(WARP_LANES - 1)) + __builtin_ctz(lanes);
  }
  return cuemu_choose_in_order(b);
}

/* Goes on with a ready thread. */
static inline void cuemu_resume(struct block *b, int thread) {
  cuemu_set_current(b, thread);
  b->current_warp->ready &= ~(1u << (thread % WARP_LANES));
  cuemu_switch_to(b, b->bound[thread]);
}

/* The current CUDA thread waits until another one sets its bit in `ready`. */
static inline void cuemu_wait_here(struct block *b, struct place place) {
  const int thread = b->current;
  b->bound[thread] = b->running;
  b->waits_at[thread] = place;
  const uint32_t ready = b->current_warp->ready;
  if (b->order == ORDER_FORWARD && ready &&
      !b->current_warp->unstarted) { /* as it nearly always is */
    cuemu_resume(b, (thread & ~(WARP_LANES - 1)) + __builtin_ctz(ready));
  } else {
    cuemu_go_on(b, place);
  }
}

#endif
