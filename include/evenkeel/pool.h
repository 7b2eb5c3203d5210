/*
 * pool.h - pooling of pictures, and pictures of another size.
 *
 * Pictures are [B, H, W, C] (images, height, width, channels). Results are those of PyTorch's
 * max_pool2d, avg_pool2d and interpolate (mode bilinear). See op.h for the rules that hold for all
 * operations.
 */
#ifndef EVENKEEL_POOL_H
#define EVENKEEL_POOL_H

#include <stdbool.h>

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/* Windows over a picture, one for each pixel of the result. Pairs are of height and width. */
typedef struct ek_pooling {
  size_t size;
  int64_t kernel[2];   /* > 0: pixels of a window */
  int64_t stride[2];   /* > 0: from one window to the next */
  int64_t padding[2];  /* >= 0, at most half of what a window spans: pixels beyond each side */
  int64_t dilation[2]; /* > 0: from one pixel of a window to the next; 1 for an average */
  bool count_padding;  /* an average divides by the pixels of a window with those of the padding */
  bool round_up;       /* a window may end beyond the padding, if it begins before it */
} ek_pooling;
#define EK_POOLING_INIT                                                                            \
  {                                                                                                \
    .size = sizeof(ek_pooling), .kernel = {2, 2}, .stride = {2, 2}, .padding = {0, 0},             \
    .dilation = {1, 1}, .count_padding = true, .round_up = false                                   \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_pooling_init(ek_pooling *options, size_t size);

/*
 * The shape of y for x of this shape: in each direction
 *     (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down,
 * or up with round_up, without a last window that would begin in the padding after the picture.
 * `options` NULL gives the defaults, here and below. EK_ERR_INVALID_ARGUMENT for options outside
 * their ranges, EK_ERR_SHAPE for sizes below 0 and pictures smaller than a window.
 */
EK_API EK_CHECKED ek_status ek_pooling_shape(int64_t y_shape[4], const int64_t x_shape[4],
                                             const ek_pooling *options);

/*
 * y: the largest number of each window; the padding is smaller than any number. `places`, i32 of
 * the shape of y, becomes the place of that number in its window, row by row, for the way back: of
 * equal numbers the first, and of NaN the last, which is then the result.
 */
EK_API EK_CHECKED ek_status ek_op_max_pool_forward(ek_stream *stream, ek_tensor *y,
                                                   ek_tensor *places, const ek_tensor *x,
                                                   const ek_pooling *options);
/* dx: the sum of dy over the windows in which the pixel was the largest. */
EK_API EK_CHECKED ek_status ek_op_max_pool_backward(ek_stream *stream, ek_tensor *dx,
                                                    const ek_tensor *dy, const ek_tensor *places,
                                                    const ek_pooling *options);

/* y: the mean of each window, with zeros as the padding if that is counted, else of the pixels of
 * the picture alone. */
EK_API EK_CHECKED ek_status ek_op_average_pool_forward(ek_stream *stream, ek_tensor *y,
                                                       const ek_tensor *x,
                                                       const ek_pooling *options);
EK_API EK_CHECKED ek_status ek_op_average_pool_backward(ek_stream *stream, ek_tensor *dx,
                                                        const ek_tensor *dy,
                                                        const ek_pooling *options);

/*
 * y: the picture with the height and width of y, each pixel a bilinear mean of the four pixels of x
 * around its place. The place of pixel i of n, among m pixels of x, is
 *     (i + 1/2) m / n - 1/2, but at least 0, or with align_corners
 *     i (m - 1) / (n - 1), and 0 if n is 1.
 */
EK_API EK_CHECKED ek_status ek_op_resample_forward(ek_stream *stream, ek_tensor *y,
                                                   const ek_tensor *x, bool align_corners);
EK_API EK_CHECKED ek_status ek_op_resample_backward(ek_stream *stream, ek_tensor *dx,
                                                    const ek_tensor *dy, bool align_corners);

EK_END_DECLARATIONS

#endif /* EVENKEEL_POOL_H */
