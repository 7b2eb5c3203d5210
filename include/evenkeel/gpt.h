/*
 * gpt.h - a decoder of GPT-2's shape.
 *
 * Input i32 tokens [B, T], T <= sequence; output logits [B, T, vocabulary]. With `fused_loss` the
 * targets, i32 [B, T], are a second input, and the output is the loss (linear_cross_entropy.h); the
 * whole logits are never in memory. Such a model is trained without a criterion (trainer.h), and
 * gives logits if the targets are left out. `fused_loss` does not change parameters, initial values
 * or random masks.
 * With `segments` rows may hold several documents, which do not see each other, and padding: an
 * input i32 [B, T] after the tokens, as in attention.h; positions begin again with each document.
 * Pre-norm blocks:
 *     x = tokens.weight[token] + tokens.positions[t], dropout
 *     x = x + dropout(attention(layer norm(x)))
 *     x = x + dropout(linear(GELU(linear(layer norm(x)))))
 *     logits = head(layer norm(x))
 * The head has no bias and, unless untied, shares the weight of the token table (Radford et al.
 * 2019).
 * The second linear of each pair starts with its deviation divided by sqrt(2 layers).
 *
 * Parameters: tokens.weight, tokens.positions; for each block N = 0, 1, ... blocks.N. followed by
 *     ln_1.weight ln_1.bias attention.qkv.weight attention.qkv.bias attention.projection.weight
 *     attention.projection.bias ln_2.weight ln_2.bias expand.weight expand.bias contract.weight
 *     contract.bias
 * norm.weight, norm.bias; head.weight, another name of tokens.weight unless untied. With `bias`
 * false the model has no parameter whose name ends with "bias".
 */
#ifndef EVENKEEL_GPT_H
#define EVENKEEL_GPT_H

#include <evenkeel/cross_entropy.h>
#include <evenkeel/recompute.h>
#include <evenkeel/weight_names.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_gpt_options {
  size_t size;
  int64_t vocabulary; /* > 0 */
  int64_t sequence;   /* the longest T */
  int64_t width;      /* a multiple of heads */
  int layers;         /* >= 0 */
  int heads;
  double dropout; /* 0: none */
  bool untied;    /* the head has a weight of its own */
  ek_recompute
      recompute; /* of its blocks; with `cheap` also of what is in them and beside them */
  bool fused_loss;
  const ek_cross_entropy_options *loss; /* of a fused loss; copied; NULL: its defaults */
  uint64_t logits_bytes;                /* of a fused loss: a block of logits is not larger */
  int64_t logits_columns;               /* of whole logits, see below; 0: vocabulary */
  bool bias; /* of linears and layer norms; false: none have one, which no class of the package
                transformers computes */
  double attention_dropout;             /* of probabilities (attention.h); 0: none */
  bool segments;                        /* there is an input after the tokens */
} ek_gpt_options;
/* GPT-2 124M without dropout. */
#define EK_GPT_OPTIONS_INIT                                                                        \
  {                                                                                                \
    .size = sizeof(ek_gpt_options), .vocabulary = 50257, .sequence = 1024, .width = 768,           \
    .layers = 12, .heads = 12, .dropout = 0.0, .untied = false,                                    \
    .recompute = {EK_RECOMPUTE_NONE, 0, 0}, .fused_loss = false, .loss = NULL,                     \
    .logits_bytes = 64u << 20, .logits_columns = 0, .bias = true,                                  \
    .attention_dropout = 0.0, .segments = false                                                    \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_gpt_options_init(ek_gpt_options *options, size_t size);

/*
 * A GPU multiplies rows of 50,257 logits slowly, because they do not begin at multiples of 16
 * bytes. With logits_columns = ek_tensor_aligned_columns(vocabulary, EK_F32), or with the type of
 * the model's precision, the logits are [B, T, logits_columns]. The columns after the first
 * `vocabulary` mean nothing: give a cross-entropy `classes` = vocabulary, and pick tokens from the
 * first `vocabulary` columns only. Parameters, losses and gradients are the same. A fused loss pads
 * its blocks by itself.
 */

/* EK_ERR_INVALID_ARGUMENT for sizes that do not fit, and for `loss` without a fused loss. */
EK_API EK_CHECKED ek_status ek_gpt_create(ek_module **module, const ek_gpt_options *options);

/*
 * The names of its parameters in files of the package `transformers` (GPT2LMHeadModel), whose
 * linears are transposed; a static table, for weights.h. That class writes names with the prefix
 * "transformer.", except lm_head.weight, the weight of an untied head. Version 4 of the package
 * refuses an untied model without the prefix. A load compares config.json in the folder
 * with the model: the activation, the epsilon of the norms, the sizes, the scale of attention, and
 * whether the head is tied.
 */
EK_API const ek_weight_name *ek_gpt_hugging_face(size_t *count);

EK_END_DECLARATIONS

#endif /* EVENKEEL_GPT_H */
