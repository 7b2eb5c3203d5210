/*
 * host_blocks.h - blocks of host memory that are lent, returned and lent again.
 */
#ifndef EK_HOST_BLOCKS_H
#define EK_HOST_BLOCKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek__host_block;

struct ek__host_blocks {
  pthread_mutex_t mutex;
  struct ek__host_block *all, *idle; /* every block; those that are not lent */
  size_t lent;                       /* how many are lent */
  uint64_t tickets;                  /* loans so far */
};

void ek__host_blocks_open(struct ek__host_blocks *blocks);
/* Frees all blocks, lent or not. */
void ek__host_blocks_close(struct ek__host_blocks *blocks);
size_t ek__host_blocks_lent(struct ek__host_blocks *blocks);

/* Zeroed memory, and the number of this loan, which no other one has. NULL: there is no memory;
 * sets no message. */
void *ek__host_block_take(uint64_t *ticket, struct ek__host_blocks *blocks, size_t bytes);
void ek__host_block_give(struct ek__host_blocks *blocks, void *memory);

/* Whether memory that was once taken still belongs to that loan. */
bool ek__host_block_lent(const void *memory, uint64_t ticket);

#endif /* EK_HOST_BLOCKS_H */
