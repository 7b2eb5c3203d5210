/*
 * decoder.c - the builder of decoders.
 *
 * A block is a module of its own with named children, so that parameters are called
 * "blocks.0.ln_1.weight"; blocks and model run their children as a chain (chain.h). With a
 * fused loss the model ends with its last norm, and a criterion stands in for the head.
 */
#include "model/decoder.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <evenkeel/activation.h>
#include <evenkeel/dropout.h>
#include <evenkeel/embedding.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/linear_cross_entropy.h>
#include <evenkeel/sequential.h>
#include <evenkeel/swiglu.h>
#include <evenkeel/with_criterion.h>

#include "core/error.h"

#define DEVIATION 0.02

/* ---- parts ---- */

static ek_status add_dropout(struct ek__composite *m, const char *name, double p) {
  if (p == 0.0) return EK_OK;
  ek_module *dropout = NULL;
  EK_TRY(ek_dropout_create(&dropout, p));
  return ek__composite_add(m, name, dropout);
}

static ek_status add_linear(struct ek__composite *m, const char *name, int64_t in, int64_t out,
                            bool bias, double deviation) {
  const ek_initializer start = ek_initializer_normal(0.0, deviation);
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  options.bias = bias;
  options.weight_start = &start;
  return ek__composite_add_linear(m, name, in, out, &options);
}

static ek_status add_norm(struct ek__composite *m, const char *name,
                          const struct ek__decoder_form *form, const struct ek__decoder *o) {
  ek_module *norm = NULL;
  ek_layer_norm_options options = EK_LAYER_NORM_OPTIONS_INIT;
  options.epsilon = o->epsilon;
  options.rms = form->rms;
  options.bias = o->bias && !form->rms;
  EK_TRY(ek_layer_norm_create_with(&norm, o->width, &options));
  return ek__composite_add(m, name, norm);
}

/* ---- one block ---- */

/* Children of a block with and without a gate, and with dropout. */
enum { N_1, ATTENTION, N_2, EXPAND, GELU, CONTRACT };
enum { D_N_1, D_ATTENTION, D_DROPOUT_1, D_N_2, D_EXPAND, D_GELU, D_CONTRACT, D_DROPOUT_2 };
enum { G_N_1, G_ATTENTION, G_N_2, G_FORWARD };
enum { GD_N_1, GD_ATTENTION, GD_DROPOUT_1, GD_N_2, GD_FORWARD, GD_DROPOUT_2 };
static const size_t plain[] = {N_1, ATTENTION, EK_CHAIN_ADD,
                               N_2, EXPAND,    GELU,         CONTRACT, EK_CHAIN_ADD};
static const size_t plain_dropout[] = {D_N_1,        D_ATTENTION, D_DROPOUT_1, EK_CHAIN_ADD,
                                       D_N_2,        D_EXPAND,    D_GELU,      D_CONTRACT,
                                       D_DROPOUT_2,  EK_CHAIN_ADD};
static const size_t gated[] = {G_N_1, G_ATTENTION, EK_CHAIN_ADD, G_N_2, G_FORWARD, EK_CHAIN_ADD};
static const size_t gated_dropout[] = {GD_N_1, GD_ATTENTION, GD_DROPOUT_1, EK_CHAIN_ADD,
                                       GD_N_2, GD_FORWARD,   GD_DROPOUT_2, EK_CHAIN_ADD};
#define STEPS(table) {table, sizeof table / sizeof *table}
static const struct {
  const size_t *steps;
  size_t count;
} chains[2][2] = {{STEPS(plain), STEPS(plain_dropout)}, {STEPS(gated), STEPS(gated_dropout)}};

static ek_status add_attention(struct ek__composite *block, const struct ek__decoder *o,
                               double last_deviation) {
  ek_module *attention = NULL;
  ek_attention_options options = o->attention;
  options.deviation = DEVIATION;
  options.projection_deviation = last_deviation;
  EK_TRY(ek_attention_create_with(&attention, o->width, o->heads, &options));
  return ek__composite_add(block, "attention", attention);
}

static ek_status add_feed_forward(struct ek__composite *block, const struct ek__decoder_form *form,
                                  const struct ek__decoder *o, double last_deviation) {
  ek_module *made = NULL;
  if (form->gate) {
    const ek_initializer start = ek_initializer_normal(0.0, DEVIATION);
    const ek_initializer down = ek_initializer_normal(0.0, last_deviation);
    ek_swiglu_options options = EK_SWIGLU_OPTIONS_INIT;
    options.bias = false;
    options.weight_start = &start;
    options.down_start = &down;
    EK_TRY(ek_swiglu_create_with(&made, o->width, o->hidden, &options));
    return ek__composite_add(block, "feed_forward", made);
  }
  EK_TRY(add_linear(block, "expand", o->width, o->hidden, o->bias, DEVIATION));
  EK_TRY(ek_activation_create(&made, EK_ACTIVATION_GELU));
  EK_TRY(ek__composite_add(block, "gelu", made));
  return add_linear(block, "contract", o->hidden, o->width, o->bias, last_deviation);
}

static ek_status fill_block(struct ek__composite *block, const struct ek__decoder_form *form,
                            const struct ek__decoder *o) {
  /* The sum over the residual branches keeps its variance (Radford et al. 2019). */
  const double last_deviation = DEVIATION / sqrt(2.0 * o->layers);
  EK_TRY(add_norm(block, form->norms[0], form, o));
  EK_TRY(add_attention(block, o, last_deviation));
  EK_TRY(add_dropout(block, "dropout_1", o->dropout));
  EK_TRY(add_norm(block, form->norms[1], form, o));
  EK_TRY(add_feed_forward(block, form, o, last_deviation));
  return add_dropout(block, "dropout_2", o->dropout);
}

static ek_status block_create(ek_module **module, const struct ek__decoder_form *form,
                              const struct ek__decoder *o) {
  const bool dropout = o->dropout != 0.0;
  struct ek__composite made = {.steps = chains[form->gate][dropout].steps,
                               .step_count = chains[form->gate][dropout].count,
                               .unit = true,
                               .shared = o->attention.segments ? 1 : 0};
  made.recompute = ek__recompute_within(&o->recompute);
  const ek_status status = fill_block(&made, form, o);
  return ek__composite_create(module, &made, sizeof made, form->block_ops, 1 + made.shared, 1,
                              status);
}

static ek_status blocks_create(ek_module **module, const struct ek__decoder_form *form,
                               const struct ek__decoder *o) {
  struct ek__composite made = {.recompute = o->recompute,
                               .shared = o->attention.segments ? 1 : 0};
  ek_status status = EK_OK;
  for (int i = 0; i < o->layers && status == EK_OK; i++) {
    ek_module *block = NULL;
    status = block_create(&block, form, o);
    if (status == EK_OK) status = ek__composite_add(&made, NULL, block);
  }
  return ek__sequential_of(module, &made, status);
}

/* ---- the model ---- */

struct decoder {
  struct ek__composite base;
  int64_t sequence;
  bool tied; /* its head is its own, and has the table of tokens as its weight */
  const ek_weight_names *names;
  ek_fact facts[EK__DECODER_FACTS];
  size_t fact_count;
};

ek_status ek__decoder_parameters(const ek_module *self, ek_declaration *declaration) {
  EK_TRY(ek__composite_parameters(self, declaration));
  if (!((const struct decoder *)self)->tied) return EK_OK;
  return ek_declare_tie(declaration, "head.weight", "tokens.weight");
}

ek_status ek__decoder_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  const int64_t sequence = ((const struct decoder *)self)->sequence;
  if (ek_tensor_exists(&inputs[0])) {
    EK__FAIL_IF(inputs[0].rank != 2, EK_ERR_SHAPE,
                "input has rank %d, expected 2 (samples, tokens)", inputs[0].rank);
    EK__FAIL_IF(inputs[0].shape[1] > sequence, EK_ERR_SHAPE,
                "input has %" PRId64 " tokens a sample, expected at most %" PRId64,
                inputs[0].shape[1], sequence);
  }
  return ek__composite_forward(self, pass, inputs, outputs);
}

ek_status ek__decoder_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  (void)grad_inputs; /* tokens have no gradient */
  return ek__composite_backward(self, pass, grad_outputs, NULL);
}

const ek_fact *ek__decoder_facts(const ek_module *self, size_t *count) {
  const struct decoder *m = (const struct decoder *)self;
  *count = m->fact_count;
  return m->fact_count > 0 ? m->facts : NULL;
}

const ek_weight_names *ek__decoder_names(const ek_module *self) {
  return ((const struct decoder *)self)->names;
}

static ek_status add_head(struct ek__composite *model, const struct ek__decoder *o) {
  const ek_initializer start = ek_initializer_normal(0.0, DEVIATION);
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  options.bias = false;
  options.elementwise = true; /* its rows are tokens */
  options.weight_start = &start;
  options.columns = o->logits_columns;
  return ek__composite_add_linear(model, "head", o->width, o->vocabulary, &options);
}

static ek_status fill(struct ek__composite *model, const struct ek__decoder_form *form,
                      const struct ek__decoder *o) {
  model->recompute = ek__recompute_within(&o->recompute);
  ek_module *tokens = NULL, *blocks = NULL;
  ek_embedding_options embedding = EK_EMBEDDING_OPTIONS_INIT;
  embedding.positions = o->positions;
  embedding.segments = o->positions > 0 && o->attention.segments;
  EK_TRY(ek_embedding_create_with(&tokens, o->vocabulary, o->width, &embedding));
  EK_TRY(ek__composite_add(model, "tokens", tokens));
  EK_TRY(add_dropout(model, "dropout", o->dropout));
  if (o->layers > 0) {
    EK_TRY(blocks_create(&blocks, form, o));
    EK_TRY(ek__composite_add(model, "blocks", blocks));
  }
  EK_TRY(add_norm(model, "norm", form, o));
  return o->fused_loss ? EK_OK : add_head(model, o);
}

/* Instead of the head and under its name: a criterion that is tied to the model without it. */
static ek_status add_loss(ek_module **module, ek_module *body, const struct ek__decoder *o) {
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

ek_status ek__decoder_check(const struct ek__decoder_form *form, const struct ek__decoder *o) {
  const char *kind = form->ops->kind;
  EK__FAIL_IF(o->vocabulary <= 0 || o->sequence <= 0 || o->width <= 0 || o->heads <= 0 ||
                  o->layers < 0,
              EK_ERR_INVALID_ARGUMENT,
              "%s: vocabulary %" PRId64 ", sequence %" PRId64 ", width %" PRId64
              ", %d layers, %d heads: sizes must be above 0",
              kind, o->vocabulary, o->sequence, o->width, o->layers, o->heads);
  EK__FAIL_IF(o->attention.head_width == 0 && o->width % o->heads != 0, EK_ERR_INVALID_ARGUMENT,
              "%s: width %" PRId64 " is not a multiple of %d heads", kind, o->width, o->heads);
  EK__FAIL_IF(!(o->dropout >= 0.0 && o->dropout < 1.0), EK_ERR_INVALID_ARGUMENT,
              "%s: dropout is %g, expected 0 <= p < 1", kind, o->dropout);
  EK__FAIL_IF(o->loss != NULL && !o->fused_loss, EK_ERR_INVALID_ARGUMENT,
              "%s: options.loss is given, but the loss is not fused", kind);
  EK__FAIL_IF(o->logits_columns != 0 && o->fused_loss, EK_ERR_INVALID_ARGUMENT,
              "%s: options.logits_columns is given, but the loss is fused", kind);
  return ek__recompute_check(kind, &o->recompute);
}

ek_status ek__decoder_create(ek_module **module, const struct ek__decoder_form *form,
                             const struct ek__decoder *sizes, const ek_fact *facts, size_t count) {
  const size_t inputs = sizes->attention.segments ? 2 : 1;
  struct decoder made = {.base = {.shared = inputs - 1},
                         .sequence = sizes->sequence,
                         .tied = !sizes->untied && !sizes->fused_loss,
                         .names = form->names,
                         .fact_count = count};
  ek_module *body = NULL;
  if (count > 0) memcpy(made.facts, facts, count * sizeof *facts);
  ek_status status = fill(&made.base, form, sizes);
  EK_TRY(ek__composite_create(sizes->fused_loss ? &body : module, &made.base, sizeof made,
                              form->ops, inputs, 1, status));
  if (!sizes->fused_loss) return EK_OK;
  status = add_loss(module, body, sizes);
  ek_module_free(body);
  return status;
}
