/*
 * executor.h - the state of the block that a worker thread runs; shared by block.c and warp.c.
 *
 * A CUDA thread is unstarted, ready, waiting (at the block's barrier or in a warp function),
 * running, or gone. The sets are bit masks of a warp. A waiting or ready thread is bound to the
 * fiber whose stack it is on; a fiber whose thread has ended takes the next unstarted one, so that
 * kernels without barriers never switch stacks.
 *
 * Everything here belongs to one worker thread: there are no locks.
 */
#ifndef CUEMU_EXECUTOR_H
#define CUEMU_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "fiber.h"
#include "internal.h"

enum { WARP_LANES = 32, MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / WARP_LANES };
enum { SYNC_SLOTS = 64 };

enum cuemu_warp_operation { CUEMU_WARP_SYNC, CUEMU_WARP_SHUFFLE, CUEMU_WARP_BALLOT };

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
  struct place place;  /* of those who wait */
  unsigned generation; /* its last bit indexes the arrays */
  int arrived[2], sum[2];
  char sync[2]; /* for ThreadSanitizer */
};

struct block {
  struct block *next; /* of those that no worker has */
  const char *kernel;
  void (*body)(void *);
  void *closure;
  int threads, warps, live, current;
  int order;
  bool fiber_per_thread;
  unsigned random;
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

extern __thread struct block *cuemu_block;

/* The current CUDA thread waits until somebody sets its bit in `ready`. */
void cuemu_wait_here(struct place place);
/* The kernel has failed: says why and leaves the block, never to come back. */
__attribute__((noreturn)) void cuemu_fail_block(const char *why, struct place place);
/* A lane of the warp has gone: what waited only for it goes on. */
void cuemu_warp_lane_gone(struct warp *warp);

#endif
