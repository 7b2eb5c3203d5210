/*
 * executor.h - the state of the block that a worker thread runs; for grid.c, block.c and warp.c.
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

struct lane {  /* half a line of the cache: all of them are gone through again and again */
  uint3 index; /* threadIdx */
  int line;    /* where it waits, in a source */
  const char *file;
  struct cuemu_fiber *bound;
};

struct warp {
  _Alignas(64) uint32_t live;
  uint32_t unstarted, ready;
  int rendezvous_count;
  struct rendezvous rendezvous[WARP_LANES];
  uint64_t in[WARP_LANES], out[WARP_LANES];
  uint8_t source[WARP_LANES];
  struct lane lane[WARP_LANES];
  int first; /* CUDA thread */
  unsigned next_slot;
  char sync[SYNC_SLOTS]; /* addresses for ThreadSanitizer, one for each recent rendezvous */
};

struct barrier {
  int waiting;
  struct place place; /* of the waiting threads */
  unsigned generation;
  char sync[2]; /* for ThreadSanitizer, by the last bit of the generation */
};

struct block {
  struct block *next; /* of those that no worker has */
  const char *kernel;
  void (*body)(void *);
  void *closure;
  int threads, warps, live;
  int order;
  struct warp *current_warp; /* NULL at the beginning of a block */
  struct cuemu_fiber *running;
  bool fiber_per_thread;
  unsigned random;
  dim3 indexed; /* the shape that `index` of the lanes is for */
  cudaError_t error;
  struct barrier barrier;
  struct warp warp[MAX_WARPS];

  struct cuemu_fiber main, *idle;
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
/* Runs one block, for which `blockIdx` and `dynamic_shared` are set. */
void cuemu_run_block(struct block *b);
/* A fiber for each CUDA thread of the block. */
void cuemu_make_fibers(struct block *b);
/* What is on the fibers, threads that will never go on, is forgotten; the idle list is built anew.
 */
void cuemu_renew_fibers(struct block *b);
/* Forgets the copies of the block before. */
void cuemu_copies_begin(void);
/* A thread that can run, of the current warp if there is one; -1 if there is none. */
int cuemu_choose_thread(struct block *b);
/* Goes on with the next thread, while the current one, which is at `place`, waits. */
void cuemu_go_on(struct block *b, struct place place);

static inline int cuemu_current(const struct block *b) {
  return b->current_warp->first + cuemu_lane;
}

static inline void cuemu_set_current(struct block *b, struct warp *warp, int lane) {
  b->current_warp = warp;
  threadIdx = warp->lane[lane].index;
  cuemu_lane = lane;
}

static inline void cuemu_switch_to(struct block *b, struct cuemu_fiber *fiber) {
  struct cuemu_fiber *from = b->running;
  if (from == fiber) return;
  b->running = fiber;
  cuemu_fiber_switch(from, fiber);
}

/* Goes on with a ready thread. */
static inline void cuemu_resume(struct block *b, struct warp *warp, int lane) {
  cuemu_set_current(b, warp, lane);
  warp->ready &= ~(1u << lane);
  cuemu_switch_to(b, warp->lane[lane].bound);
}

/* The current CUDA thread waits until another one sets its bit in `ready`. */
static inline void cuemu_wait_here(struct block *b, struct warp *warp, int lane,
                                   struct place place) {
  struct lane *own = &warp->lane[lane];
  own->bound = b->running;
  own->file = place.file;
  own->line = place.line;
  const uint32_t ready = warp->ready;
  if (b->order == ORDER_FORWARD && ready && !warp->unstarted) { /* as it nearly always is */
    cuemu_resume(b, warp, __builtin_ctz(ready));
  } else {
    cuemu_go_on(b, place);
  }
}

#endif
