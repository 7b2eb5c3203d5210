/*
 * layer_norm.h - layer normalisation over the last dimension, and RMSNorm, which is the same
 * without the mean (normalize.h has the formulas).
 *
 * Input and output [..., width]. Parameters: weight [width] (ones), bias [width] (zeros; if there
 * is one).
 */
#ifndef EVENKEEL_LAYER_NORM_H
#define EVENKEEL_LAYER_NORM_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_layer_norm_options {
  size_t size;
  double epsilon; /* > 0 */
  bool frozen;    /* weight and bias are (ek_parameter_options) */
  const ek_initializer *weight_start; /* copied, except for values; NULL: ones */
  const ek_initializer *bias_start;   /* the same; NULL: zeros */
  bool bias;                          /* there is one */
  bool rms;                           /* RMSNorm: the mean is taken as 0 */
} ek_layer_norm_options;
#define EK_LAYER_NORM_OPTIONS_INIT                                                                 \
  {                                                                                                \
    .size = sizeof(ek_layer_norm_options), .epsilon = 1e-5, .frozen = false, .weight_start = NULL, \
    .bias_start = NULL, .bias = true, .rms = false                                                 \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_layer_norm_options_init(ek_layer_norm_options *options, size_t size);

/* With the default options, except for `epsilon`, which is usually 1e-5. Neither parameter has
 * weight decay. */
EK_API EK_CHECKED ek_status ek_layer_norm_create(ek_module **module, int64_t width, double epsilon);

/* RMSNorm, as Llama has it: with the default options, except for `epsilon`, for `rms`, which is
 * true, and for `bias`, which is false. Its kind is "rms_norm". */
EK_API EK_CHECKED ek_status ek_rms_norm_create(ek_module **module, int64_t width, double epsilon);

/* `options` NULL gives the defaults. EK_ERR_INVALID_ARGUMENT for a width that is not above 0, an
 * epsilon that is not above 0 and finite, and a bias_start without bias. */
EK_API EK_CHECKED ek_status ek_layer_norm_create_with(ek_module **module, int64_t width,
                                                      const ek_layer_norm_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LAYER_NORM_H */
