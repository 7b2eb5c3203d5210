/*
 * attention.h - multi-head self-attention with its projections.
 *
 * Input and output [B, T, width]. Children: qkv, a linear width -> (heads + 2 kv_heads) D whose
 * columns are the queries, keys and values of heads that are D wide, width / heads unless the
 * options say otherwise, and projection, a linear heads D -> width. attend.h has the formula; no B
 * x heads x T x T matrix is held. With `rotary` the queries and keys of all heads are turned by
 * their place before they meet (rotary.h).
 *
 * With `qk_norm` each head of queries and each head of keys is normalised before it is turned, as
 * Qwen3 does. The children are then q, k and v, linears of their own instead of qkv, q_norm and
 * k_norm, whose parameters are as wide as a head, and projection.
 *
 * With `segments` there is a second input, i32 [B, T]: rows may hold several documents, which do
 * not see each other, and padding. Neighbouring tokens with the same number are a document, and a
 * negative number is padding (attend.h). Places are counted from each document's first token.
 */
#ifndef EVENKEEL_ATTENTION_H
#define EVENKEEL_ATTENTION_H

#include <evenkeel/module.h>
#include <evenkeel/rotary.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_qk_norm {
  EK_QK_NORM_NONE = 0,
  EK_QK_NORM_RMS = 1,  /* RMSNorm */
  EK_QK_NORM_LAYER = 2 /* layer normalisation with a bias */
} ek_qk_norm;

typedef struct ek_attention_options {
  size_t size;
  bool bias;     /* of all linears, unless the next one is true */
  bool no_projection_bias;
  bool frozen;   /* all parameters are (ek_parameter_options) */
  bool no_decay; /* the weights have no weight decay either; biases and norms never have */
  double deviation;            /* >= 0, of the normal initial weight of qkv; its bias begins as 0 */
  double projection_deviation; /* the same of the projection; GPT-2: 0.02 / sqrt(2 layers) */
  const ek_rotary *rotary;     /* copied; NULL: no token has a place */
  int kv_heads; /* of keys and values; a divisor of heads; 0: as many as heads (attend.h) */
  int64_t head_width; /* 0: width / heads */
  bool causal;  /* a token does not see later ones */
  /* Of probabilities in training, 0 <= p < 1. As in dropout.h the mask is a function of (seed,
   * step, layer, global sample) and of head, query and key; it is not stored. */
  double dropout;
  ek_qk_norm qk_norm;
  double qk_epsilon; /* of that norm; > 0 */
  bool segments;     /* there is a second input */
} ek_attention_options;
#define EK_ATTENTION_OPTIONS_INIT                                                                  \
  {                                                                                                \
    .size = sizeof(ek_attention_options), .bias = true, .no_projection_bias = false,               \
    .frozen = false, .no_decay = false, .deviation = 0.02, .projection_deviation = 0.02,           \
    .rotary = NULL, .kv_heads = 0, .head_width = 0, .causal = true, .dropout = 0.0,                \
    .qk_norm = EK_QK_NORM_NONE, .qk_epsilon = 1e-6, .segments = false                              \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_attention_options_init(ek_attention_options *options, size_t size);

/* With the default options. `width` must be a multiple of `heads`, unless head_width is given. */
EK_API EK_CHECKED ek_status ek_attention_create(ek_module **module, int64_t width, int heads);

/* `options` NULL gives the defaults. With `rotary` the width of a head must be even, and at most
 * 2 x EK_ROTARY_MOST_PAIRS. */
EK_API EK_CHECKED ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads,
                                                     const ek_attention_options *options);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ATTENTION_H */
