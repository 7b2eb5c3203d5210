/*
 * llama.c - a decoder of Llama's shape: its form and its facts.
 */
#include <evenkeel/llama.h>

#include <inttypes.h>

#include "core/error.h"
#include "core/options.h"
#include "model/decoder.h"

static const ek_module_ops llama_ops = EK__DECODER("llama");
static const ek_module_ops block_ops = EK__DECODER_BLOCK("llama_block");
static const struct ek__decoder_form form = {.ops = &llama_ops,
                                             .block_ops = &block_ops,
                                             .norms = {"attention_norm", "feed_forward_norm"},
                                             .rms = true,
                                             .gate = true};

/* What config.json of the package transformers says of such a model. */
static ek_status create(ek_module **module, const ek_llama_options *o, double theta,
                        const struct ek__decoder *sizes) {
  const ek_fact facts[] = {
      {"model_type", EK_FACT_WORD, 0, "llama|mistral|qwen2"},
      {"hidden_act", EK_FACT_WORD, 0, "silu"},
      {"rms_norm_eps", EK_FACT_NUMBER, o->epsilon, NULL},
      {"rope_theta", EK_FACT_NUMBER, theta, NULL},
      {"vocab_size", EK_FACT_NUMBER, (double)o->vocabulary, NULL},
      {"hidden_size", EK_FACT_NUMBER, (double)o->width, NULL},
      {"intermediate_size", EK_FACT_NUMBER, (double)o->hidden, NULL},
      {"num_hidden_layers", EK_FACT_NUMBER, o->layers, NULL},
      {"num_attention_heads", EK_FACT_NUMBER, o->heads, NULL},
      {"num_key_value_heads", EK_FACT_NUMBER, o->kv_heads == 0 ? o->heads : o->kv_heads, NULL},
      {"head_dim", EK_FACT_NUMBER, (double)(o->width / o->heads), NULL},
      {"tie_word_embeddings", EK_FACT_BOOLEAN, o->tied, NULL},
      {"mlp_bias", EK_FACT_BOOLEAN, false, NULL},
  };
  return ek__decoder_create(module, &form, sizes, facts, sizeof facts / sizeof *facts);
}

ek_status ek_llama_create(ek_module **module, const ek_llama_options *options) {
  ek_llama_options o = EK_LLAMA_OPTIONS_INIT;
  ek_rotary rotary = EK_ROTARY_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_llama_options"));
  EK_TRY(ek__options_read(&rotary, sizeof rotary, o.rotary, "ek_rotary"));
  EK__FAIL_IF(o.hidden <= 0, EK_ERR_INVALID_ARGUMENT,
              "llama: hidden is %" PRId64 ", expected above 0", o.hidden);
  struct ek__decoder sizes = {.vocabulary = o.vocabulary,
                              .sequence = o.sequence,
                              .width = o.width,
                              .hidden = o.hidden,
                              .layers = o.layers,
                              .heads = o.heads,
                              .epsilon = o.epsilon,
                              .dropout = o.dropout,
                              .attention = EK_ATTENTION_OPTIONS_INIT,
                              .untied = !o.tied,
                              .recompute = o.recompute,
                              .fused_loss = o.fused_loss,
                              .loss = o.loss,
                              .logits_bytes = o.logits_bytes,
                              .logits_columns = o.logits_columns};
  sizes.attention.kv_heads = o.kv_heads;
  sizes.attention.bias = o.qkv_bias;
  sizes.attention.no_projection_bias = true;
  sizes.attention.rotary = &rotary;
  EK_TRY(ek__decoder_check(&form, &sizes));
  return create(module, &o, rotary.theta, &sizes);
}

EK__OPTIONS_INIT(ek_llama_options, EK_LLAMA_OPTIONS_INIT)
