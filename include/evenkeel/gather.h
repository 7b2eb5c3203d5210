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
 * The same, but frees the shards: each part as soon as it has been copied. If the part of `device`
 * comes first and has free memory after it, it grows in place instead of being copied. *shards is
 * zero afterwards, also on failure.
 */
EK_API EK_CHECKED ek_status ek_gather_move(ek_tensor *whole, ek_shards *shards, size_t device,
                                           ek_memory_category category);

/*
 * Copies all rows into the host tensor `whole`, which has as many elements as all parts together.
 * Its type is that of the parts or, if that is floating, any floating type: each element is then
 * widened, or rounded once to nearest, in pieces on the stack, which is slower. The copy is
 * complete when the call returns. EK_ERR_TYPE, EK_ERR_SHAPE.
 */
EK_API EK_CHECKED ek_status ek_gather_host(ek_tensor *whole, const ek_shards *shards);

EK_END_DECLARATIONS

#endif /* EVENKEEL_GATHER_H */
