/*
 * convolve_internal.h - a convolution as matrix products over blocks of its pixels.
 *
 * convolve.c checks; convolve_blocks.c cuts and computes.
 */
#ifndef EK_CONVOLVE_INTERNAL_H
#define EK_CONVOLVE_INTERNAL_H

#include "op/op_internal.h"

/* Sizes of a convolution that has been checked. Pairs are of height and width. */
struct ek__convolution {
  int64_t images, channels, out, groups;
  int64_t in_size[2], out_size[2]; /* of x, and of y */
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};

enum ek__convolve { EK__CONVOLVE_Y, EK__CONVOLVE_DX, EK__CONVOLVE_DWEIGHT };

struct ek__convolve_args {
  enum ek__convolve result;
  void *to;           /* y, dx, or dweight (sums) */
  const void *x, *dy; /* y: x. dx: dy. dweight: both */
  const void *weight; /* not for dweight */
  const void *bias;   /* y: or NULL */
  double scale;       /* dweight = scale dweight + .. */
  char *workspace;
  const struct ek__convolution *shape;
  struct ek__types types;
};

/* Bytes of workspace for a result; false if they do not fit in 63 bits. */
bool ek__convolve_bytes(int64_t *bytes, enum ek__convolve result,
                        const struct ek__convolution *shape, struct ek__types types);

/* The result, which has elements; there may be no pixels to add up to a dweight. */
ek_status ek__convolve_blocks(const struct ek__kernels *kernels, ek_stream *stream,
                              const struct ek__convolve_args *args);

#endif /* EK_CONVOLVE_INTERNAL_H */
