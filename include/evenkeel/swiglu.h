/*
 * swiglu.h - a feed-forward layer with a gate (Shazeer 2020): y = down(silu(gate(x)) * up(x)).
 *
 * Input and output [..., width]. Children: gate and up, linears width -> hidden, and down, a linear
 * hidden -> width. For backward this module keeps the results of gate and up, and `down` keeps its
 * input; silu(gate(x)) is computed again.
 */
#ifndef EVENKEEL_SWIGLU_H
#define EVENKEEL_SWIGLU_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_swiglu_options {
  size_t size;
  bool bias;     /* of the three linears */
  bool frozen;   /* the three linears are (ek_parameter_options) */
  bool no_decay; /* the weights have no weight decay either; biases never have */
  const ek_initializer *weight_start; /* of gate and up, as in ek_linear_options */
  const ek_initializer *down_start;   /* of down */
} ek_swiglu_options;
#define EK_SWIGLU_OPTIONS_INIT                                                                     \
  {                                                                                                \
    .size = sizeof(ek_swiglu_options), .bias = true, .frozen = false, .no_decay = false,           \
    .weight_start = NULL, .down_start = NULL                                                       \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_swiglu_options_init(ek_swiglu_options *options, size_t size);

/* With the default options, except for `bias`. */
EK_API EK_CHECKED ek_status ek_swiglu_create(ek_module **module, int64_t width, int64_t hidden,
                                             bool bias);

/* `options` NULL gives the defaults. */
EK_API EK_CHECKED ek_status ek_swiglu_create_with(ek_module **module, int64_t width, int64_t hidden,
                                                  const ek_swiglu_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SWIGLU_H */
