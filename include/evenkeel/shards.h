/*
 * shards.h - one logical tensor as one part per device.
 *
 * parts[k] is on device k and holds rows offsets[k] .. offsets[k+1] - 1; samples[k] ..
 * samples[k+1] - 1 are the samples of the batch that these rows belong to (equal to the rows unless
 * a sample has several rows). parts has `count` entries, offsets and samples have count + 1.
 *
 * A struct of zeros is "no shards" and has no entries to read. Otherwise parts, offsets and samples
 * are in one block of host memory, which a program may write. The group lends the block and keeps
 * it for the next shards when it comes back, so a step that runs again allocates nothing.
 *
 * Ownership: the shards own the block and one reference for each part. ek_shards_free() drops both,
 * and a group cannot be closed while shards of it exist. A copy of the struct (b = a) stands for
 * the same shards: changes made through one are seen through the other, and only one of the two is
 * freed. The other is then stale: freeing it is harmless, and any other use is EK_ERR_STATE.
 *
 * The outputs of a model's forward remember which forward and which output of the module they are,
 * so that a backward refuses the gradients of other outputs. Shards that a program fills by hand
 * have no such origin, and are taken as they are.
 */
#ifndef EVENKEEL_SHARDS_H
#define EVENKEEL_SHARDS_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_shards {
  ek_group *group;
  size_t count; /* of devices */
  ek_tensor *parts;
  int64_t *offsets;
  int64_t *samples;
  bool broadcast; /* every device has the whole */
  struct ek__shards_private {
    bool ahead, overwritten;
    size_t output;
    uint64_t forward, ticket;
  } private_members; /* the library's: copied with the struct, and otherwise left alone */
} ek_shards;

/*
 * Shards to be filled by hand: no part exists, all offsets and samples are 0.
 * EK_ERR_OUT_OF_MEMORY  the host refused memory
 */
EK_API EK_CHECKED ek_status ek_shards_create(ek_shards *shards, ek_group *group);

/* Drops all parts and makes the struct zero. NULL and zero structs are legal. */
EK_API void ek_shards_free(ek_shards *shards);

/*
 * Makes the devices' compute streams wait for the rows of shards that were sent ahead; the host
 * does not wait. Legal for all shards, any number of times. EK_ERR_INVALID_ARGUMENT for NULL.
 */
EK_API EK_CHECKED ek_status ek_shards_wait(const ek_shards *shards);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SHARDS_H */
