/*
 * llama.c - a decoder of Llama's shape: its form, its facts, its names in files.
 */
#include <evenkeel/llama.h>

#include <inttypes.h>

#include "core/error.h"
#include "core/options.h"
#include "model/decoder.h"

/* ---- names elsewhere ---- */

/* Of LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM. */
static const char heads_of[] = "num_attention_heads", kv_heads_of[] = "num_key_value_heads";
static const ek_weight_name rows[] = {
    {"model.embed_tokens.weight", "tokens.weight", false, false, NULL},
#define QKV(part)                                                                                  \
  {"model.layers.%d.self_attn.q_proj." part, "blocks.%d.attention.qkv." part, false, false,        \
   heads_of},                                                                                      \
      {"model.layers.%d.self_attn.k_proj." part, "blocks.%d.attention.qkv." part, false, false,    \
       kv_heads_of},                                                                               \
  {                                                                                                \
    "model.layers.%d.self_attn.v_proj." part, "blocks.%d.attention.qkv." part, false, false,       \
        kv_heads_of                                                                                \
  }
    QKV("weight"),
    QKV("bias"),
#undef QKV
#define APART(part)                                                                                \
  {"model.layers.%d.self_attn." part "_proj.weight", "blocks.%d.attention." part ".weight",        \
   false, false, NULL},                                                                            \
  {                                                                                                \
    "model.layers.%d.self_attn." part "_proj.bias", "blocks.%d.attention." part ".bias",           \
        false, false, NULL                                                                         \
  }
    APART("q"),
    APART("k"),
    APART("v"),
#undef APART
    {"model.layers.%d.self_attn.q_norm.weight", "blocks.%d.attention.q_norm.weight", false, false,
     NULL},
    {"model.layers.%d.self_attn.k_norm.weight", "blocks.%d.attention.k_norm.weight", false, false,
     NULL},
    {"model.layers.%d.self_attn.o_proj.weight", "blocks.%d.attention.projection.weight", false,
     false, NULL},
    {"model.layers.%d.input_layernorm.weight", "blocks.%d.attention_norm.weight", false, false,
     NULL},
    {"model.layers.%d.post_attention_layernorm.weight", "blocks.%d.feed_forward_norm.weight", false,
     false, NULL},
    {"model.layers.%d.mlp.gate_proj.weight", "blocks.%d.feed_forward.gate.weight", false, false,
     NULL},
    {"model.layers.%d.mlp.up_proj.weight", "blocks.%d.feed_forward.up.weight", false, false, NULL},
    {"model.layers.%d.mlp.down_proj.weight", "blocks.%d.feed_forward.down.weight", false, false,
     NULL},
    {"model.norm.weight", "norm.weight", false, false, NULL},
    {"lm_head.weight", "head.weight", false, false, NULL},
};
static const ek_weight_names names = {rows, sizeof rows / sizeof *rows, NULL};

const ek_weight_name *ek_llama_hugging_face(size_t *count) {
  if (count != NULL) *count = names.count;
  return rows;
}

/* ---- the model ---- */

static const ek_module_ops llama_ops = EK__DECODER("llama");
static const ek_module_ops block_ops = EK__DECODER_BLOCK("llama_block");
static const struct ek__decoder_form form = {.ops = &llama_ops,
                                             .block_ops = &block_ops,
                                             .norms = {"attention_norm", "feed_forward_norm"},
                                             .names = &names,
                                             .rms = true,
                                             .gate = true};

enum { MOST_FACTS = EK__DECODER_FACTS };

static size_t rotary_facts(ek_fact *facts, const ek_rotary *rotary) {
  static const char *const types[] = {
      [EK_ROTARY_PLAIN] = "default", [EK_ROTARY_LINEAR] = "linear", [EK_ROTARY_LLAMA3] = "llama3"};
  size_t n = 0;
  facts[n++] = (ek_fact)EK__FACT_NUMBER("rope_theta", rotary->theta);
  facts[n++] = (ek_fact)EK__FACT_WORD("rope_scaling.rope_type", types[rotary->scaling]);
  if (rotary->scaling == EK_ROTARY_PLAIN) return n;
  facts[n++] = (ek_fact)EK__FACT_NUMBER("rope_scaling.factor", rotary->factor);
  if (rotary->scaling == EK_ROTARY_LINEAR) return n;
  facts[n++] = (ek_fact)EK__FACT_NUMBER("rope_scaling.low_freq_factor", rotary->low_factor);
  facts[n++] = (ek_fact)EK__FACT_NUMBER("rope_scaling.high_freq_factor", rotary->high_factor);
  facts[n++] = (ek_fact)EK__FACT_NUMBER("rope_scaling.original_max_position_embeddings",
                                        rotary->original);
  return n;
}

/* The facts that config.json of the package transformers has about such a model. A bias of queries,
 * keys and values alone is Qwen2's: in a Llama, and a Qwen3, `attention_bias` gives the projection
 * one, too. No class of it normalises as LAYER does, or has both: such a model has no facts. */
static ek_status create(ek_module **module, const ek_llama_options *o, const ek_rotary *rotary,
                        const struct ek__decoder *sizes) {
  const bool norm = o->qk_norm == EK_QK_NORM_RMS, qwen = norm || o->qkv_bias;
  ek_fact facts[MOST_FACTS] = {
      EK__FACT_WORD("model_type", norm          ? "qwen3"
                                  : o->qkv_bias ? "qwen2"
                                                : "llama|mistral"),
      EK__FACT_WORD("hidden_act", "silu"),
      EK__FACT_NUMBER("rms_norm_eps", o->epsilon),
      EK__FACT_NUMBER("vocab_size", o->vocabulary),
      EK__FACT_NUMBER("hidden_size", o->width),
      EK__FACT_NUMBER("intermediate_size", o->hidden),
      EK__FACT_NUMBER("num_hidden_layers", o->layers),
      EK__FACT_NUMBER("num_attention_heads", o->heads),
      EK__FACT_NUMBER("num_key_value_heads", o->kv_heads == 0 ? o->heads : o->kv_heads),
      EK__FACT_NUMBER("head_dim", o->head_width > 0 ? o->head_width : o->width / o->heads),
      EK__FACT_WRITTEN("max_position_embeddings", o->sequence),
      EK__FACT_BOOLEAN("tie_word_embeddings", o->tied),
      EK__FACT_BOOLEAN("mlp_bias", false),
      EK__FACT_WRITTEN("attention_dropout", o->attention_dropout),
      EK__FACT_BOOLEAN(qwen ? "use_sliding_window" : "attention_bias", false),
      EK__FACT_BOOLEAN("attention_bias", false),
  };
  size_t count = norm ? 16 : 15;
  if (!qwen) { /* Mistral's window */
    facts[count++] = (ek_fact)EK__FACT_AT_MOST("sliding_window", o->sequence);
  }
  if (o->qk_norm == EK_QK_NORM_LAYER || (norm && o->qkv_bias)) {
    return ek__decoder_create(module, &form, sizes, NULL, 0);
  }
  count += rotary_facts(&facts[count], rotary);
  return ek__decoder_create(module, &form, sizes, facts, count);
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
  sizes.attention.head_width = o.head_width;
  sizes.attention.qk_norm = o.qk_norm;
  sizes.attention.qk_epsilon = o.epsilon;
  sizes.attention.dropout = o.attention_dropout;
  sizes.attention.segments = o.segments;
  EK_TRY(ek__decoder_check(&form, &sizes));
  return create(module, &o, &rotary, &sizes);
}

EK__OPTIONS_INIT(ek_llama_options, EK_LLAMA_OPTIONS_INIT)
