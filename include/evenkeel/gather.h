/*
 * gather.h - the parts of a tensor, put together again.
 */
#ifndef EVENKEEL_GATHER_H
#define EVENKEEL_GATHER_H

#include <evenkeel/scatter.h>

EK_BEGIN_DECLARATIONS

/*
 * All rows on device number `device`, charged to `category`; the caller owns *whole. Types and all
 * dimensions but the first must agree: EK_ERR_SHAPE. Parts without rows are skipped; scalars (rank
 * 0) become a vector with one element per device. The shards stay as they are.
 */
EK_API EK_CHECKED ek_status ek_gather(ek_tensor *whole, const ek_shards *shards, size_t device,
                                      ek_memory_category category);

/*
 * The same, taking the shards over: each part is freed as soon as it was copied, and the part of
 * `device`, if it comes first and there is free room behind it, is made longer in place instead of
 * being copied. *shards is zero afterwards, also on failure.
 */
EK_API EK_CHECKED ek_status ek_gather_move(ek_tensor *whole, ek_shards *shards, size_t device,
                                           ek_memory_category category);

/* All rows into the host tensor `whole`, whose type and number of elements must fit. */
EK_API EK_CHECKED ek_status ek_gather_host(ek_tensor *whole, const ek_shards *shards);

EK_END_DECLARATIONS

#endif /* EVENKEEL_GATHER_H */
