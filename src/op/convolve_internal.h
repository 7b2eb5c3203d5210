/*
 * convolve_internal.h - a convolution as matrix products over blocks of its pixels.
 *
 * convolve.c checks; convolve_blocks.c cuts and computes.
 */
#ifndef EK_CONVOLVE_INTERNAL_H
#define EK_CONVOLVE_INTERNAL_H

#include "op/op_internal.h"

/* Pieces of the images of which dweight is the sum in a backend's own form; at least 1. */
int64_t ek__convolve_chunks(const struct ek__convolution *shape);

/* Bytes of workspace for a result; false if they do not fit in 63 bits. */
bool ek__convolve_bytes(int64_t *bytes, enum ek__convolve result,
                        const struct ek__convolution *shape, struct ek__types types);

/* The result, which has elements; there may be no pixels to add up to a dweight. */
ek_status ek__convolve(const struct ek__kernels *kernels, ek_stream *stream,
                       const struct ek__convolve_args *args);

#endif /* EK_CONVOLVE_INTERNAL_H */
