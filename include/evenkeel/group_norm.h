/*
 * group_norm.h - group normalisation (Wu, He 2018).
 *
 * Input and output [B, ..., channels], such as images [B, H, W, C]. The channels are cut into
 * `groups` of neighbours; a group of one sample has one mean and one variance, over all its pixels:
 *
 *     y = (x - mean) / sqrt(variance + epsilon) * weight + bias
 *
 * No sample looks at another one, so the result is the same on any number of devices and with any
 * micro-batches. One group is layer norm over a whole image, as many groups as channels is instance
 * norm. Parameters: weight [channels] (ones), bias [channels] (zeros), without weight decay.
 */
#ifndef EVENKEEL_GROUP_NORM_H
#define EVENKEEL_GROUP_NORM_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_group_norm_options {
  size_t size;
  double epsilon;                     /* > 0 */
  bool affine;                        /* there are weight and bias */
  bool frozen;                        /* weight and bias are (ek_parameter_options) */
  const ek_initializer *weight_start; /* copied, except for values; NULL: ones */
} ek_group_norm_options;
#define EK_GROUP_NORM_OPTIONS_INIT                                                                 \
  {                                                                                                \
    .size = sizeof(ek_group_norm_options), .epsilon = 1e-5, .affine = true, .frozen = false,       \
    .weight_start = NULL                                                                           \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_group_norm_options_init(ek_group_norm_options *options, size_t size);

/* With the default options. */
EK_API EK_CHECKED ek_status ek_group_norm_create(ek_module **module, int64_t channels,
                                                 int64_t groups);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for channels that are not above 0,
 * groups that do not divide them, an epsilon that is not above 0 and finite, and a weight_start
 * without `affine`. */
EK_API EK_CHECKED ek_status ek_group_norm_create_with(ek_module **module, int64_t channels,
                                                      int64_t groups,
                                                      const ek_group_norm_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_GROUP_NORM_H */
