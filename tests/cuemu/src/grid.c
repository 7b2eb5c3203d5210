/*
 * grid.c - runs grids: blocks one after the other, in one of three orders as their CUDA threads.
 *
 * With CUEMU_BLOCK_THREADS=2 every second block runs on another thread of the system. Nothing
 * orders it against the first one but the beginning and the end of the grid, so that
 * ThreadSanitizer reports what two blocks share without an atomic operation. (Blocks of one thread
 * it sees as ordered.)
 */
#include "executor.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern CUEMU_THREAD_LOCAL uint3 blockIdx;
extern CUEMU_THREAD_LOCAL dim3 blockDim, gridDim;

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

static struct block *new_block(void) {
  struct block *b = aligned_alloc(_Alignof(struct block), sizeof(*b));
  if (!b) abort();
  memset(b, 0, sizeof(*b));
  for (int w = 0; w < MAX_WARPS; w++) b->warp[w].first = w * WARP_LANES;
  return b;
}

static struct block *take_block(void) {
  pthread_mutex_lock(&pool_mutex);
  struct block *b = pool;
  if (b) pool = b->next;
  pthread_mutex_unlock(&pool_mutex);
  if (!b) b = new_block();
  cuemu_fiber_adopt(&b->main);
  b->random = 88172645u;
  return b;
}

static void index_threads(struct block *b, dim3 shape) {
  if (shape.x == b->indexed.x && shape.y == b->indexed.y && shape.z == b->indexed.z) return;
  b->indexed = shape;
  uint3 index = {0, 0, 0};
  for (unsigned t = 0; t < shape.x * shape.y * shape.z; t++) {
    b->warp[t / WARP_LANES].lane[t % WARP_LANES].index = index;
    if (++index.x < shape.x) continue;
    index.x = 0;
    if (++index.y < shape.y) continue;
    index.y = 0, index.z++;
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
    cuemu_renew_fibers(b);
  }
  if (b->fiber_per_thread) cuemu_make_fibers(b);
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
    cuemu_run_block(b);
    if (b->error != cudaSuccess) __atomic_store_n(&run->error, b->error, __ATOMIC_RELAXED);
  }
  if (b->error != cudaSuccess) cuemu_renew_fibers(b);
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
