/*
 * grains_memory.h - what a reproducible model holds on each device for its sums.
 */
#ifndef EK_GRAINS_MEMORY_H
#define EK_GRAINS_MEMORY_H

#include "buckets.h"
#include "grains.h"

struct ek__grain_memory {
  struct ek__fold fold;             /* of the blocks that the last backward has left */
  ek_tensor blocks[EK__FOLD_DEPTH]; /* flat gradients; number 0, which is the replica's, is empty */
  ek_tensor earlier;                /* of the step's earlier micro-batches, once there are any */
  ek_tensor exchange; /* the blocks of all devices, `chunk` elements of each; one device: none */
  int64_t chunk;
  int64_t *offsets; /* scratch of an all-gather: one more than there are devices */

  /* Where gradients are shares, the device's share of the blocks of every device: */
  struct ek__grain_run {
    size_t first, last;   /* the grains of that device in this backward */
    struct ek__fold fold; /* of those whose rounds are over */
    size_t begin;         /* its first slot */
  } * runs;               /* per device */
  ek_tensor slots;        /* as long as the share each */
  size_t round, rounds;
  const struct ek__buckets *cut; /* a loan of the reducer */
};

ek_status ek__grains_zeros(ek_tensor *flat, ek_device *device, int64_t count, ek_type type,
                           ek_memory_category category);

#endif /* EK_GRAINS_MEMORY_H */
