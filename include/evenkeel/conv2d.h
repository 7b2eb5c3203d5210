/*
 * conv2d.h - convolution of pictures (convolve.h has the formula).
 *
 * Input [B, H, W, in], output [B, OH, OW, out], with channels last. Parameters: weight [out, in /
 * groups, kernel height, kernel width], as torch stores it, and bias [out] unless the options turn
 * it off.
 */
#ifndef EVENKEEL_CONV2D_H
#define EVENKEEL_CONV2D_H

#include <evenkeel/convolve.h>
#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_conv2d_options {
  size_t size;
  const ek_convolution *convolution; /* copied; NULL: a kernel of one pixel */
  bool bias;                         /* there is one */
  bool frozen;                       /* weight and bias are (ek_parameter_options) */
  bool no_decay;                     /* the weight has no weight decay either; the bias never has */
  const ek_initializer *weight_start; /* copied, except for values; NULL: see below */
  const ek_initializer *bias_start;   /* the same; NULL: as the weight if that is NULL, or zeros */
} ek_conv2d_options;
#define EK_CONV2D_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_conv2d_options), .convolution = NULL, .bias = true, .frozen = false,         \
    .no_decay = false, .weight_start = NULL, .bias_start = NULL                                    \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_conv2d_options_init(ek_conv2d_options *options, size_t size);

/* A kernel of kernel x kernel pixels, stride 1, no padding, with a bias. Both parameters begin
 * uniform in +- 1 / sqrt(in / groups * kernel height * kernel width), as torch.nn.Conv2d's. */
EK_API EK_CHECKED ek_status ek_conv2d_create(ek_module **module, int64_t in, int64_t out,
                                             int64_t kernel);

/*
 * `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for sizes of 0 or less, for a
 * bias_start without bias, and for members of `convolution` outside their ranges; EK_ERR_SHAPE for
 * groups that do not divide `in` and `out`.
 */
EK_API EK_CHECKED ek_status ek_conv2d_create_with(ek_module **module, int64_t in, int64_t out,
                                                  const ek_conv2d_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CONV2D_H */
