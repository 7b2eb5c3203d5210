/*
 * gpt.c - a decoder of GPT-2's shape: its form, its facts, its names in files.
 */
#include <evenkeel/gpt.h>

#include <inttypes.h>

#include "core/error.h"
#include "core/options.h"
#include "model/decoder.h"

#define EPSILON 1e-5

/* ---- names elsewhere ---- */

/* Of GPT2LMHeadModel. */
static const ek_weight_name rows[] = {
    {"wte.weight", "tokens.weight", false, false, NULL},
    {"wpe.weight", "tokens.positions", false, false, NULL},
    {"h.%d.ln_1.weight", "blocks.%d.ln_1.weight", false, false, NULL},
    {"h.%d.ln_1.bias", "blocks.%d.ln_1.bias", false, false, NULL},
    {"h.%d.attn.c_attn.weight", "blocks.%d.attention.qkv.weight", true, false, NULL},
    {"h.%d.attn.c_attn.bias", "blocks.%d.attention.qkv.bias", false, false, NULL},
    {"h.%d.attn.c_proj.weight", "blocks.%d.attention.projection.weight", true, false, NULL},
    {"h.%d.attn.c_proj.bias", "blocks.%d.attention.projection.bias", false, false, NULL},
    {"h.%d.ln_2.weight", "blocks.%d.ln_2.weight", false, false, NULL},
    {"h.%d.ln_2.bias", "blocks.%d.ln_2.bias", false, false, NULL},
    {"h.%d.mlp.c_fc.weight", "blocks.%d.expand.weight", true, false, NULL},
    {"h.%d.mlp.c_fc.bias", "blocks.%d.expand.bias", false, false, NULL},
    {"h.%d.mlp.c_proj.weight", "blocks.%d.contract.weight", true, false, NULL},
    {"h.%d.mlp.c_proj.bias", "blocks.%d.contract.bias", false, false, NULL},
    {"ln_f.weight", "norm.weight", false, false, NULL},
    {"ln_f.bias", "norm.bias", false, false, NULL},
    {"lm_head.weight", "head.weight", false, true, NULL},
};
static const ek_weight_names names = {rows, sizeof rows / sizeof *rows, "transformer."};

const ek_weight_name *ek_gpt_hugging_face(size_t *count) {
  if (count != NULL) *count = names.count;
  return rows;
}

/* ---- the model ---- */

static const ek_module_ops gpt_ops = EK__DECODER("gpt");
static const ek_module_ops block_ops = EK__DECODER_BLOCK("gpt_block");
static const struct ek__decoder_form form = {
    .ops = &gpt_ops, .block_ops = &block_ops, .norms = {"ln_1", "ln_2"}, .names = &names};

/* Without biases it has neither names nor facts for a folder: every GPT2LMHeadModel has biases. */
static const ek_module_ops unbiased_ops = EK__DECODER_APART("gpt");
static const struct ek__decoder_form unbiased = {
    .ops = &unbiased_ops, .block_ops = &block_ops, .norms = {"ln_1", "ln_2"}};

/* The facts that config.json of the package transformers has about such a model. The words are the
 * names of one activation there; GELU by the error function is "gelu". */
static ek_status create(ek_module **module, const ek_gpt_options *o,
                        const struct ek__decoder *sizes) {
  static const char gelu[] = "gelu_new|gelu_fast|gelu_accurate|gelu_pytorch_tanh";
  const ek_fact facts[] = {
      EK__FACT_WORD("model_type", "gpt2"),
      EK__FACT_WORD("activation_function", gelu),
      EK__FACT_NUMBER("layer_norm_epsilon", EPSILON),
      EK__FACT_NUMBER("vocab_size", o->vocabulary),
      EK__FACT_NUMBER("n_positions", o->sequence),
      EK__FACT_NUMBER("n_embd", o->width),
      EK__FACT_NUMBER("n_inner", 4.0 * (double)o->width),
      EK__FACT_NUMBER("n_layer", o->layers),
      EK__FACT_NUMBER("n_head", o->heads),
      EK__FACT_BOOLEAN("tie_word_embeddings", !o->untied),
      EK__FACT_BOOLEAN("scale_attn_weights", true),
      EK__FACT_BOOLEAN("scale_attn_by_inverse_layer_idx", false),
  };
  return ek__decoder_create(module, &form, sizes, facts, sizeof facts / sizeof *facts);
}

ek_status ek_gpt_create(ek_module **module, const ek_gpt_options *options) {
  ek_gpt_options o = EK_GPT_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_gpt_options"));
  EK__FAIL_IF(o.width > INT64_MAX / 4, EK_ERR_OVERFLOW, "gpt: 4 x %" PRId64 " columns", o.width);
  struct ek__decoder sizes = {.vocabulary = o.vocabulary,
                              .sequence = o.sequence,
                              .positions = o.sequence,
                              .width = o.width,
                              .hidden = 4 * o.width,
                              .layers = o.layers,
                              .heads = o.heads,
                              .epsilon = EPSILON,
                              .dropout = o.dropout,
                              .attention = EK_ATTENTION_OPTIONS_INIT,
                              .bias = o.bias,
                              .untied = o.untied,
                              .recompute = o.recompute,
                              .fused_loss = o.fused_loss,
                              .loss = o.loss,
                              .logits_bytes = o.logits_bytes,
                              .logits_columns = o.logits_columns};
  sizes.attention.bias = o.bias;
  sizes.attention.dropout = o.attention_dropout;
  sizes.attention.segments = o.segments;
  EK_TRY(ek__decoder_check(&form, &sizes));
  return o.bias ? create(module, &o, &sizes)
                : ek__decoder_create(module, &unbiased, &sizes, NULL, 0);
}

EK__OPTIONS_INIT(ek_gpt_options, EK_GPT_OPTIONS_INIT)
