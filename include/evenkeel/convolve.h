/*
 * convolve.h - convolution of pictures in two dimensions.
 *
 * Pictures are [B, H, W, C] (images, height, width, channels), weights [out, C / groups, kernel
 * height, kernel width], as torch stores them. See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_CONVOLVE_H
#define EVENKEEL_CONVOLVE_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/* What a convolution is besides its tensors. Pairs are of height and width. */
typedef struct ek_convolution {
  size_t size;
  int64_t kernel[2];   /* > 0 */
  int64_t stride[2];   /* > 0: pixels of the input from one result to the next */
  int64_t padding[2];  /* >= 0: zeros on each side */
  int64_t dilation[2]; /* > 0: pixels from one element of the kernel to the next */
  int64_t groups; /* > 0; divides channels and results: group g of results sees group g alone */
} ek_convolution;
#define EK_CONVOLUTION_INIT                                                                        \
  {                                                                                                \
    .size = sizeof(ek_convolution), .kernel = {1, 1}, .stride = {1, 1}, .padding = {0, 0},         \
    .dilation = {1, 1}, .groups = 1                                                                \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_convolution_init(ek_convolution *options, size_t size);

/*
 * The shape of y for x of this shape and `out` channels of the result: in each direction
 *     (size + 2 padding - dilation (kernel - 1) - 1) / stride + 1, rounded down.
 * `options` NULL gives the defaults, here and below. EK_ERR_INVALID_ARGUMENT for options outside
 * their ranges, EK_ERR_SHAPE for sizes below 0, pictures smaller than the kernel, and groups that
 * do not divide the channels.
 */
EK_API EK_CHECKED ek_status ek_convolution_shape(int64_t y_shape[4], const int64_t x_shape[4],
                                                 int64_t out, const ek_convolution *options);

/*
 * The elements that `workspace` needs at least, a tensor of sums of any shape: *forward in
 * ek_op_convolve_forward(), *backward in ek_op_convolve_backward(). They follow from the arguments
 * alone, and beside a few times the weights are at most 16 MiB. 0: none is needed, and it may
 * be NULL. `type` is that of the values. Fails as ek_convolution_shape(), and with EK_ERR_OVERFLOW.
 */
EK_API EK_CHECKED ek_status ek_convolution_workspace(int64_t *forward, int64_t *backward,
                                                     const int64_t x_shape[4], int64_t out,
                                                     ek_type type, const ek_convolution *options);

/*
 * y[b][i][j][o] = bias[o] + sum over ky, kx, c of
 *     x[b][i stride + ky dilation - padding][j stride + kx dilation - padding][first + c]
 *     * weight[o][c][ky][kx]
 * with x = 0 outside of the picture, and `first` the first channel of o's group. bias NULL: zeros.
 * What is in workspace afterwards is undefined. A weight that is not finite may make NaN where it
 * meets the zeros of the padding, and a pixel that is not finite may make NaN of the results next
 * to those that see it.
 */
EK_API EK_CHECKED ek_status ek_op_convolve_forward(ek_stream *stream, ek_tensor *y,
                                                   ek_tensor *workspace, const ek_tensor *x,
                                                   const ek_tensor *weight, const ek_tensor *bias,
                                                   const ek_convolution *options);

typedef struct ek_convolve_backward_args {
  ek_tensor *dx, *dweight, *dbias; /* each may be NULL: not computed */
  ek_tensor *workspace;
  const ek_tensor *dy, *x, *weight;
  double weight_beta, bias_beta;
  const ek_convolution *options;
} ek_convolve_backward_args;

/*
 * dx becomes the gradient of x, and
 *     dweight = weight_beta * dweight + the gradient of weight
 *     dbias   = bias_beta * dbias + the gradient of bias
 * With a beta of 0 the old values are not read. With dx and without dweight, x is not read and may
 * be NULL.
 */
EK_API EK_CHECKED ek_status ek_op_convolve_backward(ek_stream *stream,
                                                    const ek_convolve_backward_args *args);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CONVOLVE_H */
