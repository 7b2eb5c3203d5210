/*
 * block.c - runs the CUDA threads of a block, as fibers.
 *
 * The next thread is chosen only when a thread ends or has to wait. Three orders, so that a kernel
 * that works only by luck is found out: forward, backward, random. In each, a thread runs until it
 * cannot, so a missing barrier shows as a wrong value.
 *
 * A barrier is passed when all threads that have not ended wait at it, and all at the same place in
 * the source. If no thread can run and one waits, the kernel fails with cudaErrorLaunchFailure
 * (719).
 */
#include "executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUEMU_THREAD_LOCAL uint3 threadIdx, blockIdx;
CUEMU_THREAD_LOCAL dim3 blockDim, gridDim;
CUEMU_THREAD_LOCAL struct block *cuemu_block;
CUEMU_THREAD_LOCAL int cuemu_lane;

/* ---- choosing ---- */

static uint32_t runnable(const struct warp *warp) { return warp->ready | warp->unstarted; }

/* The first lane in one of the two orders, of the next warp that has one; -1 if none has. */
static int choose_in_order(const struct block *b) {
  const bool back = b->order == ORDER_BACKWARD;
  int w = back ? b->warps - 1 : 0;
  if (b->current_warp) w = (int)(b->current_warp - b->warp);
  for (int i = 0; i < b->warps; i++) {
    const uint32_t lanes = runnable(&b->warp[w]);
    if (lanes) return w * WARP_LANES + (back ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
    if (back) {
      w = w > 0 ? w - 1 : b->warps - 1;
    } else {
      w = w + 1 < b->warps ? w + 1 : 0;
    }
  }
  return -1;
}

/* The high bits of a number choose the warp, the low ones the lane. */
static int choose_at_random(struct block *b) {
  const uint32_t number = cuemu_random(&b->random);
  int w = (int)((uint64_t)number * (unsigned)b->warps >> 32);
  for (int i = 0; i < b->warps; i++) {
    const uint32_t lanes = runnable(&b->warp[w]);
    if (lanes) {
      const unsigned turn = number % WARP_LANES;
      const uint32_t turned = lanes >> turn | lanes << (-turn % WARP_LANES);
      return w * WARP_LANES + (int)(((unsigned)__builtin_ctz(turned) + turn) % WARP_LANES);
    }
    w = w + 1 < b->warps ? w + 1 : 0;
  }
  return -1;
}

int cuemu_choose_thread(struct block *b) {
  return b->order == ORDER_RANDOM ? choose_at_random(b) : choose_in_order(b);
}

/* ---- fibers ---- */

static void thread_main(void);

static struct cuemu_fiber *new_fiber(struct block *b, int index) {
  struct cuemu_fiber *fiber = cuemu_fiber_new(thread_main, index);
  b->fiber[index] = fiber;
  if (index >= b->fibers) b->fibers = index + 1;
  return fiber;
}

/* A fiber to start the thread on. With a fiber for each, ThreadSanitizer tells all of them apart.
 */
static struct cuemu_fiber *take_fiber(struct block *b, int thread) {
  if (b->fiber_per_thread) return b->fiber[thread];
  struct cuemu_fiber *fiber = b->idle;
  if (fiber) {
    b->idle = fiber->next;
    return fiber;
  }
  int index = 0;
  while (b->fiber[index]) index++;
  return new_fiber(b, index);
}

static void put_fiber(struct block *b, struct cuemu_fiber *fiber) {
  if (b->fiber_per_thread) return;
  fiber->next = b->idle;
  b->idle = fiber;
}

static struct warp *warp_of(struct block *b, int thread) { return &b->warp[thread / WARP_LANES]; }

static void become(struct block *b, int thread) {
  const int lane = thread % WARP_LANES;
  cuemu_set_current(b, warp_of(b, thread), lane);
  b->current_warp->unstarted &= ~(1u << lane);
}

/* Goes on with the thread; the running fiber has none of its own any more. */
static void go_on_with(struct block *b, int thread) {
  const int lane = thread % WARP_LANES;
  if (!(warp_of(b, thread)->unstarted >> lane & 1)) {
    put_fiber(b, b->running);
    cuemu_resume(b, warp_of(b, thread), lane);
    return;
  }
  become(b, thread);
  /* else thread_main() starts it here */
  if (b->fiber_per_thread) cuemu_switch_to(b, take_fiber(b, thread));
}

static void start(struct block *b, int thread) {
  become(b, thread);
  cuemu_switch_to(b, take_fiber(b, thread));
}

void cuemu_go_on(struct block *b, struct place place) {
  const int next = cuemu_choose_thread(b), lane = next % WARP_LANES;
  if (next < 0) cuemu_fail_block("all threads wait, and not for the same", place);
  if (warp_of(b, next)->ready >> lane & 1) {
    cuemu_resume(b, warp_of(b, next), lane);
  } else {
    start(b, next);
  }
}

/* ---- threads ---- */

static void release_barrier(struct block *b) {
  for (int w = 0; w < b->warps; w++) b->warp[w].ready |= b->warp[w].live & ~b->warp[w].unstarted;
  b->barrier.waiting = 0;
  b->barrier.generation++;
}

static void thread_gone(struct block *b) {
  struct warp *warp = b->current_warp;
  warp->live &= ~(1u << cuemu_lane);
  b->live--;
  cuemu_warp_lane_gone(warp);
  if (b->live && b->barrier.waiting == b->live) release_barrier(b);
}

/* Not inlined, as the next one is not: a fiber may go on in another thread than it stopped in, so
 * that
   addresses of thread-local variables must not be kept. */
static __attribute__((noinline)) struct block *block_of_this_thread(void) { return cuemu_block; }

/* The current thread has ended: goes on with another one, here or on that one's fiber. */
static __attribute__((noinline)) void end_thread(struct block *b) {
  cuemu_release_to(&b->end_sync);
  thread_gone(b);
  int next = cuemu_choose_thread(b);
  if (next >= 0) {
    go_on_with(b, next);
  } else if (b->live) {
    cuemu_fail_block("the other threads wait for one that has ended", (struct place){"?", 0});
  } else {
    put_fiber(b, b->running);
    cuemu_switch_to(b, &b->main);
  }
}

/* What runs on a fiber: one CUDA thread after the other. */
static void thread_main(void) {
  cuemu_fiber_entered();
  for (;;) {
    struct block *b = block_of_this_thread();
    cuemu_acquire(&b->begin_sync);
    b->body(b->closure);
    end_thread(b);
  }
}

void cuemu_fail_block(const char *why, struct place place) {
  struct block *b = cuemu_block;
  b->error = cudaErrorLaunchFailure;
  cuemu_release_to(&b->end_sync);
  for (int i = 0; i < b->fibers; i++) { /* waiting threads will not get to the end */
    struct cuemu_fiber *fiber = b->fiber[i];
    if (fiber && fiber != b->running) cuemu_fiber_release_to(fiber, b->running, &b->end_sync);
  }
  fprintf(stderr, "cuemu: kernel %s, block (%u,%u,%u), thread %d, %s:%d: %s\n", b->kernel,
          blockIdx.x, blockIdx.y, blockIdx.z, cuemu_current(b), place.file, place.line, why);
  for (int t = 0, told = 0; t < b->threads && told < 2; t++) {
    const struct warp *warp = warp_of(b, t);
    const struct lane *lane = &warp->lane[t % WARP_LANES];
    const uint32_t waiting = warp->live & ~warp->unstarted & ~warp->ready;
    if (t == cuemu_current(b) || !(waiting >> (t % WARP_LANES) & 1)) continue;
    fprintf(stderr, "cuemu:   thread %d waits at %s:%d\n", t, lane->file, lane->line);
    told++;
  }
  cuemu_switch_to(b, &b->main);
  __builtin_unreachable();
}

/* ---- device functions ---- */

CUEMU_GATE(cuemu_syncthreads)

void CUEMU_GATE_HERE(cuemu_syncthreads)(const char *file, int line) {
  struct block *b = cuemu_block;
  struct barrier *barrier = &b->barrier;
  struct place place = {file, line};
  unsigned mine = barrier->generation & 1;
  if (barrier->waiting == 0) barrier->place = place;
  if (barrier->place.line != line ||
      (barrier->place.file != file && strcmp(barrier->place.file, file) != 0)) {
    cuemu_fail_block("divergent barrier: other threads wait at another one", place);
  }
  cuemu_release_to(&barrier->sync[mine]);
  if (++barrier->waiting == b->live) {
    release_barrier(b);
    b->current_warp->ready &= ~(1u << cuemu_lane);
  } else {
    cuemu_wait_here(b, b->current_warp, cuemu_lane, place);
  }
  cuemu_acquire(&barrier->sync[mine]);
}

void *cuemu_dynamic_shared(void) { return cuemu_block->dynamic_shared; }

/* ---- blocks ---- */

static void begin_block(struct block *b) {
  cuemu_copies_begin();
  b->live = b->threads;
  b->current_warp = NULL;
  memset(&b->barrier, 0, sizeof(b->barrier));
  for (int w = 0; w < b->warps; w++) {
    struct warp *warp = &b->warp[w];
    int lanes = b->threads - w * WARP_LANES;
    warp->live = warp->unstarted = lanes >= WARP_LANES ? ~0u : (1u << lanes) - 1;
    warp->ready = 0;
    warp->rendezvous_count = 0;
  }
}

void cuemu_run_block(struct block *b) {
  begin_block(b);
  b->running = &b->main;
  cuemu_release_to(&b->begin_sync);
  start(b, cuemu_choose_thread(b));
  cuemu_acquire(&b->end_sync);
}

void cuemu_renew_fibers(struct block *b) {
  b->idle = NULL;
  for (int i = 0; i < b->fibers; i++) {
    if (!b->fiber[i]) continue;
    cuemu_fiber_restart(b->fiber[i]);
    put_fiber(b, b->fiber[i]);
  }
}

/* Not one by one from each other: to create a fiber orders it after its creator. */
void cuemu_make_fibers(struct block *b) {
  for (int i = 0; i < b->threads; i++) {
    if (!b->fiber[i]) (void)new_fiber(b, i);
  }
}
