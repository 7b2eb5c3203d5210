/*
 * attention.h - causal multi-head self-attention with its projections.
 *
 * Input and output [B, T, width]. Children: qkv, a linear width -> 3 width (with fewer kv_heads,
 * width -> width + 2 kv_heads width / heads: queries, keys, values), and projection, a
 * linear width -> width. attend.h has the formula; no B x heads x T x T matrix is held. With `rotary`
 * the queries and keys of all heads are turned by their place before they meet (rotary.h).
 */
#ifndef EVENKEEL_ATTENTION_H
#define EVENKEEL_ATTENTION_H

#include <evenkeel/module.h>
#include <evenkeel/rotary.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_attention_options {
  size_t size;
  bool bias;     /* of both linears, unless the next one is true */
  bool no_projection_bias;
  bool frozen;   /* both linears are (ek_parameter_options) */
  bool no_decay; /* the weights have no weight decay either; biases never have */
  double deviation;            /* >= 0, of the normal initial weight of qkv; its bias begins as 0 */
  double projection_deviation; /* the same of the projection; GPT-2: 0.02 / sqrt(2 layers) */
  const ek_rotary *rotary;     /* copied; NULL: no token has a place */
  int kv_heads; /* of keys and values; a divisor of heads; 0: as many as heads (attend.h) */
} ek_attention_options;
#define EK_ATTENTION_OPTIONS_INIT                                                                  \
  {                                                                                                \
    .size = sizeof(ek_attention_options), .bias = true, .no_projection_bias = false,               \
    .frozen = false, .no_decay = false, .deviation = 0.02, .projection_deviation = 0.02,           \
    .rotary = NULL, .kv_heads = 0                                                                  \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_attention_options_init(ek_attention_options *options, size_t size);

/* With the default options. `width` must be a multiple of `heads`. */
EK_API EK_CHECKED ek_status ek_attention_create(ek_module **module, int64_t width, int heads);

/* `options` NULL gives the defaults. With `rotary` the width of a head must be even, and at most
 * 2 x EK_ROTARY_MOST_PAIRS. */
EK_API EK_CHECKED ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads,
                                                     const ek_attention_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ATTENTION_H */
