/*
 * host_blocks.c - blocks of the host's memory that are lent, come back and are lent again.
 *
 * Blocks are freed only when the pool is closed, so the header of a returned block can still be
 * read to find its owner.
 *
 * Lock: `mutex` guards the pool and both lists. A ticket is written under it and read without.
 */
#include "device/host_blocks.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"

struct ek__host_block {
  struct ek__host_block *older; /* in `all` */
  struct ek__host_block *next;  /* in `idle` */
  size_t bytes;
  _Atomic uint64_t ticket; /* 0: it is not lent */
  alignas(max_align_t) char memory[];
};

static struct ek__host_block *block_of(const void *memory) {
  const char *block = (const char *)memory - offsetof(struct ek__host_block, memory);
  return (struct ek__host_block *)(uintptr_t)block;
}

void ek__host_blocks_open(struct ek__host_blocks *blocks) {
  pthread_mutex_init(&blocks->mutex, NULL);
}

void ek__host_blocks_close(struct ek__host_blocks *blocks) {
  while (blocks->all != NULL) {
    struct ek__host_block *block = blocks->all;
    blocks->all = block->older;
    ek__free(block);
  }
  pthread_mutex_destroy(&blocks->mutex);
}

size_t ek__host_blocks_lent(struct ek__host_blocks *blocks) {
  pthread_mutex_lock(&blocks->mutex);
  const size_t lent = blocks->lent;
  pthread_mutex_unlock(&blocks->mutex);
  return lent;
}

/* Called with the mutex held. */
static struct ek__host_block *find_idle(struct ek__host_blocks *blocks, size_t bytes) {
  struct ek__host_block **link = &blocks->idle;
  while (*link != NULL && (*link)->bytes < bytes) link = &(*link)->next;
  struct ek__host_block *block = *link;
  if (block != NULL) *link = block->next;
  return block;
}

static struct ek__host_block *make(struct ek__host_blocks *blocks, size_t bytes) {
  struct ek__host_block *block = ek__calloc(1, sizeof *block + bytes);
  if (block == NULL) return NULL;
  block->bytes = bytes;
  block->older = blocks->all;
  blocks->all = block;
  return block;
}

void *ek__host_block_take(uint64_t *ticket, struct ek__host_blocks *blocks, size_t bytes) {
  pthread_mutex_lock(&blocks->mutex);
  struct ek__host_block *block = find_idle(blocks, bytes);
  if (block == NULL) block = make(blocks, bytes);
  if (block != NULL) {
    blocks->lent++;
    *ticket = ++blocks->tickets;
    atomic_store_explicit(&block->ticket, *ticket, memory_order_relaxed);
  }
  pthread_mutex_unlock(&blocks->mutex);
  return block == NULL ? NULL : memset(block->memory, 0, bytes);
}

void ek__host_block_give(struct ek__host_blocks *blocks, void *memory) {
  struct ek__host_block *block = block_of(memory);
  pthread_mutex_lock(&blocks->mutex);
  atomic_store_explicit(&block->ticket, 0, memory_order_relaxed);
  block->next = blocks->idle;
  blocks->idle = block;
  blocks->lent--;
  pthread_mutex_unlock(&blocks->mutex);
}

bool ek__host_block_lent(const void *memory, uint64_t ticket) {
  return atomic_load_explicit(&block_of(memory)->ticket, memory_order_relaxed) == ticket;
}
