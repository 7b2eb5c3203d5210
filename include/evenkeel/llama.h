/*
 * llama.h - a decoder of Llama's shape.
 *
 * Input i32 tokens [B, T], T <= sequence; output logits [B, T, vocabulary]. `fused_loss`,
 * `logits_columns` and `segments` are as in gpt.h. Pre-norm blocks without biases:
 *     x = tokens.weight[token], dropout
 *     x = x + dropout(attention(RMSNorm(x)))          queries and keys turned by their place
 *     x = x + dropout(down(silu(gate(n)) * up(n))), n = RMSNorm(x)
 *     logits = head(RMSNorm(x))
 * (Touvron et al. 2023). Weights of linears and the table of tokens begin normal with deviation
 * 0.02, those of projection and down with 0.02 / sqrt(2 layers).
 *
 * Parameters: tokens.weight; for each block N = 0, 1, ... blocks.N. followed by
 *     attention_norm.weight attention.qkv.weight attention.projection.weight
 *     feed_forward_norm.weight feed_forward.gate.weight feed_forward.up.weight
 *     feed_forward.down.weight
 * and attention.qkv.bias with `qkv_bias`; with `qk_norm` (Qwen3) instead of qkv the three
 * attention.q, .k and .v, and attention.q_norm.weight and .k_norm.weight; norm.weight; head.weight,
 * which with `tied` is another name of tokens.weight.
 */
#ifndef EVENKEEL_LLAMA_H
#define EVENKEEL_LLAMA_H

#include <evenkeel/attention.h>
#include <evenkeel/cross_entropy.h>
#include <evenkeel/recompute.h>
#include <evenkeel/rotary.h>
#include <evenkeel/weight_names.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_llama_options {
  size_t size;
  int64_t vocabulary; /* > 0 */
  int64_t sequence;   /* the longest T; no parameter depends on it */
  int64_t width;      /* a multiple of heads, unless head_width is given */
  int64_t hidden;     /* of the feed-forward layers */
  int layers;         /* >= 0 */
  int heads;
  int kv_heads;            /* a divisor of heads; 0: as many */
  double epsilon;          /* of the norms */
  const ek_rotary *rotary; /* copied; NULL: its defaults */
  bool qkv_bias;           /* Qwen: the queries, keys and values have a bias */
  bool tied;               /* the head has the table of tokens as its weight */
  double dropout;          /* 0: none */
  ek_recompute recompute;  /* as in ek_gpt_options, like all that follow */
  bool fused_loss;
  const ek_cross_entropy_options *loss;
  uint64_t logits_bytes;
  int64_t logits_columns;
  int64_t head_width;       /* an even number; 0: width / heads */
  ek_qk_norm qk_norm;       /* of queries and keys; RMS: Qwen3 */
  double attention_dropout; /* of probabilities (attention.h); 0: none */
  bool segments;            /* there is an input after the tokens */
} ek_llama_options;
/* Llama 2 7B. */
#define EK_LLAMA_OPTIONS_INIT                                                                      \
  {                                                                                                \
    .size = sizeof(ek_llama_options), .vocabulary = 32000, .sequence = 4096, .width = 4096,        \
    .hidden = 11008, .layers = 32, .heads = 32, .kv_heads = 0, .epsilon = 1e-5,                    \
    .rotary = NULL, .qkv_bias = false, .tied = false, .dropout = 0.0,                              \
    .recompute = {EK_RECOMPUTE_NONE, 0, 0}, .fused_loss = false, .loss = NULL,                     \
    .logits_bytes = 64u << 20, .logits_columns = 0, .head_width = 0,                               \
    .qk_norm = EK_QK_NORM_NONE, .attention_dropout = 0.0, .segments = false                        \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_llama_options_init(ek_llama_options *options, size_t size);

/* EK_ERR_INVALID_ARGUMENT for sizes that do not fit, and for `loss` without a fused loss. */
EK_API EK_CHECKED ek_status ek_llama_create(ek_module **module, const ek_llama_options *options);

/*
 * The names of its parameters in files of the package `transformers` (LlamaForCausalLM, and the
 * classes of Mistral, Qwen2 and Qwen3), which has queries, keys and values apart; a static table,
 * for weights.h.
 * Queries and keys are in that package's order: the pairs of rotary.h.
 */
EK_API const ek_weight_name *ek_llama_hugging_face(size_t *count);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LLAMA_H */
