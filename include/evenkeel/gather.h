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
 * `device`, if it comes first and there is free room after it, is made longer in place instead of
 * being copied. *shards is zero afterwards, also on failure.
 */
EK_API EK_CHECKED ek_status ek_gather_move(ek_tensor *whole, ek_shards *shards, size_t device,
                                           ek_memory_category category);

/*
 * All rows into the host tensor `whole`, whose number of elements is that of all parts. Its type is
 * that of the parts, or, where that is floating, any floating type: each element is widened, or
 * rounded once to nearest. Such a copy goes through the stack in pieces and is slower. It is
 * complete when the call returns. EK_ERR_TYPE, EK_ERR_SHAPE.
 */
EK_API EK_CHECKED ek_status ek_gather_host(ek_tensor *whole, const ek_shards *shards);

EK_END_DECLARATIONS

#endif /* EVENKEEL_GATHER_H */
