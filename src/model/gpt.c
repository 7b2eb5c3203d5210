/*
 * gpt.c - a decoder of GPT-2's shape.
 *
 * A block is a module of its own with named children, so that parameters are called
 * "blocks.0.ln_1.weight"; blocks and model run their children as a chain (chain.h). With a
 * fused loss the model ends with its last norm, and a criterion stands in for the head.
 */
#include <evenkeel/gpt.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <evenkeel/attention.h>
#include <evenkeel/dropout.h>
#include <evenkeel/embedding.h>
#include <evenkeel/activation.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/linear_cross_entropy.h>
#include <evenkeel/sequential.h>
#include <evenkeel/with_criterion.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

#define DEVIATION 0.02
#define EPSILON 1e-5

static ek_status add_dropout(struct ek__composite *m, const char *name, double p) {
  if (p == 0.0) return EK_OK;
  ek_module *dropout = NULL;
  EK_TRY(ek_dropout_create(&dropout, p));
  return ek__composite_add(m, name, dropout);
}

static ek_status add_linear(struct ek__composite *m, const char *name, int64_t in, int64_t out,
                            bool bias, double deviation, int64_t columns) {
  const ek_initializer start = ek_initializer_normal(0.0, deviation);
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  options.bias = bias;
  options.weight_start = &start;
  options.columns = columns;
  return ek__composite_add_linear(m, name, in, out, &options);
}

static ek_status add_layer_norm(struct ek__composite *m, const char *name, int64_t width) {
  ek_module *norm = NULL;
  EK_TRY(ek_layer_norm_create(&norm, width, EPSILON));
  return ek__composite_add(m, name, norm);
}

/* ---- one block ---- */

/*
 *     s = x + attention(ln_1(x))    y = s + contract(gelu(expand(ln_2(s))))
 */
enum { LN_1, ATTENTION, LN_2, EXPAND, GELU, CONTRACT };
static const size_t steps[] = {LN_1, ATTENTION, EK_CHAIN_ADD,
                               LN_2, EXPAND,    GELU,         CONTRACT, EK_CHAIN_ADD};

/* With dropout before each addition. */
enum { D_LN_1, D_ATTENTION, D_DROPOUT_1, D_LN_2, D_EXPAND, D_GELU, D_CONTRACT, D_DROPOUT_2 };
static const size_t dropout_steps[] = {D_LN_1,   D_ATTENTION, D_DROPOUT_1, EK_CHAIN_ADD, D_LN_2,
                                       D_EXPAND, D_GELU,      D_CONTRACT,  D_DROPOUT_2,  EK_CHAIN_ADD};

static ek_status block_parameters(const ek_module *self, ek_declaration *declaration) {
  EK_TRY(ek_declare_unit(declaration));
  return ek__composite_parameters(self, declaration);
}

static const ek_module_ops block_ops = {
    EK__LAYER("gpt_block", ek__composite_forward, ek__composite_backward, ek__composite_free),
    .parameters = block_parameters};

static ek_status fill_block(struct ek__composite *block, const ek_gpt_options *o) {
  /* The sum over the residual branches keeps its variance (Radford et al. 2019). */
  const double last_deviation = DEVIATION / sqrt(2.0 * o->layers);
  EK_TRY(add_layer_norm(block, "ln_1", o->width));
  ek_module *attention = NULL;
  ek_attention_options options = EK_ATTENTION_OPTIONS_INIT;
  options.deviation = DEVIATION;
  options.projection_deviation = last_deviation;
  EK_TRY(ek_attention_create_with(&attention, o->width, o->heads, &options));
  EK_TRY(ek__composite_add(block, "attention", attention));
  EK_TRY(add_dropout(block, "dropout_1", o->dropout));
  EK_TRY(add_layer_norm(block, "ln_2", o->width));
  EK_TRY(add_linear(block, "expand", o->width, 4 * o->width, true, DEVIATION, 0));
  ek_module *gelu = NULL;
  EK_TRY(ek_activation_create(&gelu, EK_ACTIVATION_GELU));
  EK_TRY(ek__composite_add(block, "gelu", gelu));
  EK_TRY(add_linear(block, "contract", 4 * o->width, o->width, true, last_deviation, 0));
  return add_dropout(block, "dropout_2", o->dropout);
}

static ek_status block_create(ek_module **module, const ek_gpt_options *o) {
  const bool dropout = o->dropout != 0.0;
  struct ek__composite made = {.steps = dropout ? dropout_steps : steps,
                               .step_count = (dropout ? sizeof dropout_steps : sizeof steps) /
                                             sizeof *steps};
  if (o->recompute.kind == EK_RECOMPUTE_CHEAP) made.recompute = o->recompute;
  const ek_status status = fill_block(&made, o);
  return ek__composite_create(module, &made, sizeof made, &block_ops, 1, 1, status);
}

static ek_status blocks_create(ek_module **module, const ek_gpt_options *o) {
  struct ek__composite made = {.recompute = o->recompute};
  ek_status status = EK_OK;
  for (int i = 0; i < o->layers && status == EK_OK; i++) {
    ek_module *block = NULL;
    status = block_create(&block, o);
    if (status == EK_OK) status = ek__composite_add(&made, NULL, block);
  }
  return ek__sequential_of(module, &made, status);
}

/* ---- the model ---- */

/* What config.json of the package transformers says of such a model: see fill_facts(). */
enum { FACTS = 12 };

struct gpt {
  struct ek__composite base;
  bool tied; /* its head is its own, and has the table of tokens as its weight */
  ek_fact facts[FACTS];
};

static ek_status gpt_parameters(const ek_module *self, ek_declaration *declaration) {
  EK_TRY(ek__composite_parameters(self, declaration));
  if (!((const struct gpt *)self)->tied) return EK_OK;
  return ek_declare_tie(declaration, "head.weight", "tokens.weight");
}

static ek_status gpt_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                             ek_tensor *outputs) {
  EK__FAIL_IF(ek_tensor_exists(&inputs[0]) && inputs[0].rank != 2, EK_ERR_SHAPE,
              "input has rank %d, expected 2 (samples, tokens)", inputs[0].rank);
  return ek__composite_forward(self, pass, inputs, outputs);
}

static ek_status gpt_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                              ek_tensor *grad_inputs) {
  (void)grad_inputs; /* tokens have no gradient */
  return ek__composite_backward(self, pass, grad_outputs, NULL);
}

static const ek_fact *gpt_facts(const ek_module *self, size_t *count) {
  *count = FACTS;
  return ((const struct gpt *)self)->facts;
}

static const ek_module_ops gpt_ops = {
    EK__LAYER("gpt", gpt_forward, gpt_backward, ek__composite_free), .parameters = gpt_parameters,
    .facts = gpt_facts, .input_type = ek__composite_input_type};

/* The names of one activation there; GELU by the error function is "gelu". */
static void fill_facts(struct gpt *m, const ek_gpt_options *o) {
  static const char gelu[] = "gelu_new|gelu_fast|gelu_accurate|gelu_pytorch_tanh";
  const ek_fact facts[FACTS] = {
      {"model_type", EK_FACT_WORD, 0, "gpt2"},
      {"activation_function", EK_FACT_WORD, 0, gelu},
      {"layer_norm_epsilon", EK_FACT_NUMBER, EPSILON, NULL},
      {"vocab_size", EK_FACT_NUMBER, (double)o->vocabulary, NULL},
      {"n_positions", EK_FACT_NUMBER, (double)o->sequence, NULL},
      {"n_embd", EK_FACT_NUMBER, (double)o->width, NULL},
      {"n_inner", EK_FACT_NUMBER, 4.0 * (double)o->width, NULL},
      {"n_layer", EK_FACT_NUMBER, o->layers, NULL},
      {"n_head", EK_FACT_NUMBER, o->heads, NULL},
      {"tie_word_embeddings", EK_FACT_BOOLEAN, !o->untied, NULL},
      {"scale_attn_weights", EK_FACT_BOOLEAN, true, NULL},
      {"scale_attn_by_inverse_layer_idx", EK_FACT_BOOLEAN, false, NULL},
  };
  memcpy(m->facts, facts, sizeof facts);
}

static ek_status fill_gpt(struct ek__composite *gpt, const ek_gpt_options *o) {
  if (o->recompute.kind == EK_RECOMPUTE_CHEAP) gpt->recompute = o->recompute;
  ek_module *tokens = NULL, *blocks = NULL;
  EK_TRY(ek_embedding_create(&tokens, o->vocabulary, o->width, o->sequence));
  EK_TRY(ek__composite_add(gpt, "tokens", tokens));
  EK_TRY(add_dropout(gpt, "dropout", o->dropout));
  if (o->layers > 0) {
    EK_TRY(blocks_create(&blocks, o));
    EK_TRY(ek__composite_add(gpt, "blocks", blocks));
  }
  EK_TRY(add_layer_norm(gpt, "norm", o->width));
  if (o->fused_loss) return EK_OK;
  return add_linear(gpt, "head", o->width, o->vocabulary, false, DEVIATION, o->logits_columns);
}

/* Instead of the head and under its name: a criterion that is tied to the model without it. */
static ek_status add_loss(ek_module **module, ek_module *body, const ek_gpt_options *o) {
  ek_linear_cross_entropy_options head = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ek_with_criterion_options together = EK_WITH_CRITERION_OPTIONS_INIT;
  const ek_initializer start = ek_initializer_normal(0.0, DEVIATION);
  ek_criterion *loss = NULL;
  head.loss = o->loss;
  head.logits_bytes = o->logits_bytes;
  head.weight = &start;
  together.name = "head";
  if (!o->untied) {
    together.tied = "weight";
    together.source = "tokens.weight";
  }
  EK_TRY(ek_linear_cross_entropy_create(&loss, o->width, o->vocabulary, &head));
  const ek_status status = ek_with_criterion_create_with(module, body, loss, &together);
  ek_criterion_free(loss);
  return status;
}

static ek_status check_options(const ek_gpt_options *o) {
  EK__FAIL_IF(o->vocabulary <= 0 || o->sequence <= 0 || o->width <= 0 || o->heads <= 0 ||
                  o->layers < 0,
              EK_ERR_INVALID_ARGUMENT,
              "gpt: vocabulary %" PRId64 ", sequence %" PRId64 ", width %" PRId64
              ", %d layers, %d heads: sizes must be above 0",
              o->vocabulary, o->sequence, o->width, o->layers, o->heads);
  EK__FAIL_IF(o->width % o->heads != 0, EK_ERR_INVALID_ARGUMENT,
              "gpt: width %" PRId64 " is not a multiple of %d heads", o->width, o->heads);
  EK__FAIL_IF(o->width > INT64_MAX / 4, EK_ERR_OVERFLOW, "gpt: 4 x %" PRId64 " columns", o->width);
  EK__FAIL_IF(!(o->dropout >= 0.0 && o->dropout < 1.0), EK_ERR_INVALID_ARGUMENT,
              "gpt: dropout is %g, expected 0 <= p < 1", o->dropout);
  EK__FAIL_IF(o->loss != NULL && !o->fused_loss, EK_ERR_INVALID_ARGUMENT,
              "gpt: options.loss is given, but the loss is not fused");
  EK__FAIL_IF(o->logits_columns != 0 && o->fused_loss, EK_ERR_INVALID_ARGUMENT,
              "gpt: options.logits_columns is given, but the loss is fused");
  return ek__recompute_check("gpt", &o->recompute);
}

ek_status ek_gpt_create(ek_module **module, const ek_gpt_options *options) {
  ek_gpt_options o = EK_GPT_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_gpt_options"));
  EK_TRY(check_options(&o));
  struct gpt made = {.tied = !o.untied && !o.fused_loss};
  ek_module *body = NULL;
  fill_facts(&made, &o);
  ek_status status = fill_gpt(&made.base, &o);
  EK_TRY(ek__composite_create(o.fused_loss ? &body : module, &made.base, sizeof made, &gpt_ops, 1,
                              1, status));
  if (!o.fused_loss) return EK_OK;
  status = add_loss(module, body, &o);
  ek_module_free(body);
  return status;
}

/* ---- names elsewhere ---- */

const ek_weight_name *ek_gpt_hugging_face(size_t *count) {
  static const ek_weight_name names[] = {
      {"wte.weight", "tokens.weight", false, false},
      {"wpe.weight", "tokens.positions", false, false},
      {"h.%d.ln_1.weight", "blocks.%d.ln_1.weight", false, false},
      {"h.%d.ln_1.bias", "blocks.%d.ln_1.bias", false, false},
      {"h.%d.attn.c_attn.weight", "blocks.%d.attention.qkv.weight", true, false},
      {"h.%d.attn.c_attn.bias", "blocks.%d.attention.qkv.bias", false, false},
      {"h.%d.attn.c_proj.weight", "blocks.%d.attention.projection.weight", true, false},
      {"h.%d.attn.c_proj.bias", "blocks.%d.attention.projection.bias", false, false},
      {"h.%d.ln_2.weight", "blocks.%d.ln_2.weight", false, false},
      {"h.%d.ln_2.bias", "blocks.%d.ln_2.bias", false, false},
      {"h.%d.mlp.c_fc.weight", "blocks.%d.expand.weight", true, false},
      {"h.%d.mlp.c_fc.bias", "blocks.%d.expand.bias", false, false},
      {"h.%d.mlp.c_proj.weight", "blocks.%d.contract.weight", true, false},
      {"h.%d.mlp.c_proj.bias", "blocks.%d.contract.bias", false, false},
      {"ln_f.weight", "norm.weight", false, false},
      {"ln_f.bias", "norm.bias", false, false},
      {"lm_head.weight", "head.weight", false, true},
  };
  if (count != NULL) *count = sizeof names / sizeof names[0];
  return names;
}

EK__OPTIONS_INIT(ek_gpt_options, EK_GPT_OPTIONS_INIT)
