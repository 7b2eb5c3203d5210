/*
 * block.c - runs grids: blocks one after the other, the CUDA threads of a block as fibers.
 *
 * With CUEMU_BLOCK_THREADS=2 every second block runs on another thread of the system. Nothing
 * orders it against the first one but the beginning and the end of the grid, so that
 * ThreadSanitizer reports what two blocks share without an atomic operation. (Blocks of one thread
 * it sees as ordered.)
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

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CUEMU_THREAD_LOCAL uint3 threadIdx, blockIdx;
CUEMU_THREAD_LOCAL dim3 blockDim, gridDim;
CUEMU_THREAD_LOCAL struct block *cuemu_block;
CUEMU_THREAD_LOCAL int cuemu_lane;

/* ---- choosing ---- */

static int choose_lane(struct block *b, uint32_t lanes) {
  if (b->order == ORDER_BACKWARD) return 31 - __builtin_clz(lanes);
  if (b->order != ORDER_RANDOM) return __builtin_ctz(lanes);
  unsigned turn = cuemu_random(&b->random) & 31;
  uint32_t turned = turn ? (lanes >> turn) | (lanes << (32 - turn)) : lanes;
  return (int)(((unsigned)__builtin_ctz(turned) + turn) & 31);
}

int cuemu_choose_in_order(struct block *b) {
  int first = b->current / WARP_LANES;
  if (b->current < 0) first = b->order == ORDER_BACKWARD ? b->warps - 1 : 0;
  if (b->order == ORDER_RANDOM) first = (int)(cuemu_random(&b->random) % (unsigned)b->warps);
  for (int i = 0, w = first; i < b->warps; i++) {
    uint32_t lanes = b->warp[w].ready | b->warp[w].unstarted;
    if (lanes) return w * WARP_LANES + choose_lane(b, lanes);
    w = b->order != ORDER_BACKWARD ? (w + 1 < b->warps ? w + 1 : 0) : w > 0 ? w - 1 : b->warps - 1;
  }
  return -1;
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

/* Goes on with the thread; the running fiber has none of its own any more. */
static void go_on_with(struct block *b, int thread) {
  uint32_t bit = 1u << (thread % WARP_LANES);
  if (!(b->warp[thread / WARP_LANES].unstarted & bit)) {
    put_fiber(b, b->running);
    cuemu_resume(b, thread);
    return;
  }
  cuemu_set_current(b, thread);
  b->current_warp->unstarted &= ~bit;
  /* else thread_main() starts it here */
  if (b->fiber_per_thread) cuemu_switch_to(b, take_fiber(b, thread));
}

static void start(struct block *b, int thread) {
  cuemu_set_current(b, thread);
  b->current_warp->unstarted &= ~(1u << (thread % WARP_LANES));
  cuemu_switch_to(b, take_fiber(b, thread));
}

void cuemu_go_on(struct block *b, struct place place) {
  int next = cuemu_choose_thread(b);
  if (next < 0) cuemu_fail_block("all threads wait, and not for the same", place);
  if (b->warp[next / WARP_LANES].ready >> (next % WARP_LANES) & 1) {
    cuemu_resume(b, next);
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
  warp->live &= ~(1u << (b->current % WARP_LANES));
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
          blockIdx.x, blockIdx.y, blockIdx.z, b->current, place.file, place.line, why);
  for (int t = 0, told = 0; t < b->threads && told < 2; t++) {
    bool waits = b->bound[t] && (b->warp[t / WARP_LANES].live >> (t % WARP_LANES) & 1);
    if (!waits || t == b->current) continue;
    fprintf(stderr, "cuemu:   thread %d waits at %s:%d\n", t, b->waits_at[t].file,
            b->waits_at[t].line);
    told++;
  }
  cuemu_switch_to(b, &b->main);
  __builtin_unreachable();
}

/* ---- device functions ---- */

void cuemu_syncthreads(const char *file, int line) {
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
    b->current_warp->ready &= ~(1u << (b->current % WARP_LANES));
  } else {
    cuemu_wait_here(b, place);
  }
  cuemu_acquire(&barrier->sync[mine]);
}

void *cuemu_dynamic_shared(void) { return cuemu_block->dynamic_shared; }

/* ---- grids ---- */

static void begin_block(struct block *b) {
  cuemu_copies_begin();
  b->live = b->threads;
  b->current = -1;
  memset(&b->barrier, 0, sizeof(b->barrier));
  memset(b->bound, 0, (size_t)b->threads * sizeof(struct cuemu_fiber *));
  for (int w = 0; w < b->warps; w++) {
    struct warp *warp = &b->warp[w];
    int lanes = b->threads - w * WARP_LANES;
    warp->live = warp->unstarted = lanes >= WARP_LANES ? ~0u : (1u << lanes) - 1;
    warp->ready = 0;
    warp->rendezvous_count = 0;
  }
}

static void run_block(struct block *b) {
  begin_block(b);
  b->running = &b->main;
  cuemu_release_to(&b->begin_sync);
  start(b, cuemu_choose_in_order(b));
  cuemu_acquire(&b->end_sync);
}

/* What is on the fibers, threads that will never go on, is forgotten; the idle list is built anew.
 */
static void renew_fibers(struct block *b) {
  b->idle = NULL;
  for (int i = 0; i < b->fibers; i++) {
    if (!b->fiber[i]) continue;
    cuemu_fiber_restart(b->fiber[i]);
    put_fiber(b, b->fiber[i]);
  }
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* A worker's block goes to the next one when it ends: to make a thousand fibers takes longer than
   most kernels, under ThreadSanitizer seconds. There are never more than workers at a time. */
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct block *pool;

static struct block *take_block(void) {
  pthread_mutex_lock(&pool_mutex);
  struct block *b = pool;
  if (b) pool = b->next;
  pthread_mutex_unlock(&pool_mutex);
  if (!b) b = cuemu_new(sizeof(*b));
  cuemu_fiber_adopt(&b->main);
  b->random = 88172645u;
  return b;
}

static void index_threads(struct block *b, dim3 shape) {
  if (shape.x == b->indexed.x && shape.y == b->indexed.y && shape.z == b->indexed.z) return;
  b->indexed = shape;
  uint3 *index = b->index;
  for (unsigned z = 0; z < shape.z; z++) {
    for (unsigned y = 0; y < shape.y; y++) {
      for (unsigned x = 0; x < shape.x; x++) *index++ = (uint3){x, y, z};
    }
  }
}

static struct block *prepare(const char *kernel, dim3 block) {
  if (!cuemu_block) cuemu_block = take_block();
  struct block *b = cuemu_block;
  b->kernel = kernel;
  b->threads = (int)(block.x * block.y * block.z);
  b->warps = (b->threads + WARP_LANES - 1) / WARP_LANES;
  index_threads(b, block);
  b->order = __atomic_load_n(&cuemu_settings.order, __ATOMIC_RELAXED);
  b->error = cudaSuccess;
  if (b->fiber_per_thread != cuemu_settings.fiber_per_thread) {
    b->fiber_per_thread = cuemu_settings.fiber_per_thread;
    renew_fibers(b);
  }
  /* Not one by one from each other: to create a fiber orders it after its creator. */
  for (int i = 0; b->fiber_per_thread && i < b->threads; i++) {
    if (!b->fiber[i]) (void)new_fiber(b, i);
  }
  return b;
}

/* A grid, whose blocks may be dealt to two threads of the system. */
struct grid_run {
  const char *name;
  void (*body)(void *);
  void *closure;
  dim3 grid, block;
  size_t shared_bytes;
  uint64_t blocks, first, step; /* the order of the blocks: first + i * step, modulo their number */
  unsigned shares;
  cudaError_t error; /* atomic */
};

static void order_blocks(struct grid_run *run, struct block *b) {
  const uint64_t blocks = run->blocks = (uint64_t)run->grid.x * run->grid.y * run->grid.z;
  run->first = 0, run->step = 1;
  if (b->order == ORDER_BACKWARD) run->first = blocks - 1, run->step = blocks - 1;
  if (b->order == ORDER_RANDOM) {
    run->first = cuemu_random(&b->random) % blocks;
    do run->step = 1 + cuemu_random(&b->random) % blocks;
    while (common_divisor(run->step, blocks) != 1);
  }
}

static void run_share(struct grid_run *run, struct block *b, unsigned share) {
  const dim3 grid = gridDim = run->grid;
  blockDim = run->block;
  b->body = run->body;
  b->closure = run->closure;
  b->dynamic_shared = NULL;
  if (run->shared_bytes && posix_memalign(&b->dynamic_shared, 128, run->shared_bytes)) abort();
  for (uint64_t i = share; i < run->blocks; i += run->shares) {
    if (__atomic_load_n(&run->error, __ATOMIC_RELAXED) != cudaSuccess) break;
    const uint64_t index = (run->first + i * run->step) % run->blocks;
    blockIdx.x = (unsigned)(index % grid.x);
    blockIdx.y = (unsigned)(index / grid.x % grid.y);
    blockIdx.z = (unsigned)(index / grid.x / grid.y);
    /* A GPU leaves there what was there; NaN shows a kernel that reads before it writes. */
    if (run->shared_bytes) memset(b->dynamic_shared, 0xff, run->shared_bytes);
    run_block(b);
    if (b->error != cudaSuccess) __atomic_store_n(&run->error, b->error, __ATOMIC_RELAXED);
  }
  if (b->error != cudaSuccess) renew_fibers(b);
  free(b->dynamic_shared);
}

/* The other thread: __shared__ variables, fibers and built-in variables of its own. */
static void *run_second_share(void *argument) {
  struct grid_run *run = argument;
  run_share(run, prepare(run->name, run->block), 1);
  cuemu_executor_exit();
  return NULL;
}

cudaError_t cuemu_run_grid(const char *name, void (*body)(void *), void *closure, dim3 grid,
                           dim3 block, size_t shared_bytes) {
  struct block *b = prepare(name, block);
  struct grid_run run = {name, body, closure, grid, block, shared_bytes, 0, 0, 0, 1, cudaSuccess};
  order_blocks(&run, b);
  pthread_t second;
  if (cuemu_settings.block_threads > 1 && run.blocks > 1) run.shares = 2;
  if (run.shares > 1 && pthread_create(&second, NULL, run_second_share, &run)) abort();
  run_share(&run, b, 0);
  if (run.shares > 1) pthread_join(second, NULL);
  return run.error;
}

void cuemu_executor_exit(void) {
  struct block *b = cuemu_block;
  if (!b) return;
  cuemu_block = NULL;
  pthread_mutex_lock(&pool_mutex);
  b->next = pool;
  pool = b;
  pthread_mutex_unlock(&pool_mutex);
}
