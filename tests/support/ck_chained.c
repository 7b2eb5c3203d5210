/*
 * ck_chained.c - containers of a program's own that run a chain, and a decoder of them.
 */
#include "ck_chained.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <evenkeel/layers.h>
#include <evenkeel/pass.h>

#include "ek_check.h"

/* ---- a container ---- */

struct chained {
  ek_module base;
  ek_module *children[CK_CHAINED_CHILDREN];
  char names[CK_CHAINED_CHILDREN][24];
  size_t steps[CK_CHAINED_STEPS], child_count, step_count;
  ek_recompute recompute;
  bool unit, tied; /* tied: head.weight is tokens.weight */
};

static ek_chain chain_of(const ek_module *self) {
  const struct chained *m = (const struct chained *)self;
  ek_chain chain = EK_CHAIN_INIT;
  chain.steps = m->step_count == 0 ? NULL : m->steps;
  chain.count = m->step_count;
  chain.recompute = m->recompute;
  return chain;
}

static ek_status chained_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                 ek_tensor *outputs) {
  ek_chain chain = chain_of(self);
  chain.unread = !ek_pass_wants_outputs(pass);
  return ek_chain_forward(outputs, pass, inputs, &chain);
}

static ek_status chained_backward(const ek_module *self, ek_pass *pass,
                                  const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_chain chain = chain_of(self);
  return ek_chain_backward(grad_inputs, pass, grad_outputs, &chain);
}

static ek_status chained_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct chained *m = (const struct chained *)self;
  if (m->unit) EK_TRY(ek_declare_unit(declaration));
  for (size_t i = 0; i < m->child_count; i++) {
    EK_TRY(ek_declare_module(declaration, m->names[i], m->children[i]));
  }
  return m->tied ? ek_declare_tie(declaration, "head.weight", "tokens.weight") : EK_OK;
}

static ek_type chained_input_type(const ek_module *self, size_t input) {
  return ek_module_input_type(((const struct chained *)self)->children[0], input);
}

static void chained_free(ek_module *self) {
  struct chained *m = (struct chained *)self;
  for (size_t i = 0; i < m->child_count; i++) ek_module_free(m->children[i]);
  free(m);
}

CK_MODULE_OPS_WITH(chained, .parameters = chained_parameters,
                   .types = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16,
                   .input_type = chained_input_type);

ek_status ck_chained_create(ek_module **module, ek_module **children, const char *const *names,
                            const size_t *steps, ek_recompute recompute) {
  size_t count = 0;
  struct chained *m = calloc(1, sizeof *m);
  while (count < CK_CHAINED_CHILDREN && children[count] != NULL) count++;
  const size_t outputs = count == 0 ? 1 : ek_module_outputs(children[count - 1]);
  const size_t inputs = count == 0 ? 1 : ek_module_inputs(children[0]);
  const ek_status status = m == NULL ? ek_error_set(EK_ERR_OUT_OF_MEMORY, "chained: no memory")
                                     : ek_module_init(&m->base, &chained_ops, inputs, outputs);
  if (status != EK_OK) {
    for (size_t i = 0; i < count; i++) ek_module_free(children[i]);
    free(m);
    return status;
  }
  for (size_t i = 0; i < count; i++) {
    m->children[i] = children[i];
    if (names != NULL) (void)snprintf(m->names[i], sizeof m->names[i], "%s", names[i]);
    if (names == NULL) (void)snprintf(m->names[i], sizeof m->names[i], "%zu", i);
  }
  m->child_count = count;
  m->recompute = recompute;
  for (; steps != NULL && *steps != CK_CHAINED_END; steps++) m->steps[m->step_count++] = *steps;
  *module = &m->base;
  return EK_OK;
}

/* ---- a decoder ---- */

static ek_status linear(ek_module **module, int64_t in, int64_t out, bool bias, double deviation,
                        int64_t columns) {
  const ek_initializer start = ek_initializer_normal(0.0, deviation);
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  options.bias = bias;
  options.weight_start = &start;
  options.columns = columns;
  return ek_linear_create_with(module, in, out, &options);
}

static ek_status end(ek_module **children, ek_status status) {
  for (size_t i = 0; status != EK_OK && i < CK_CHAINED_CHILDREN; i++) ek_module_free(children[i]);
  return status;
}

enum { LN_1, ATTENTION, DROPOUT_1, LN_2, EXPAND, GELU, CONTRACT, DROPOUT_2, CHILDREN };

static ek_status block_create(ek_module **module, const ek_gpt_options *o) {
  static const char *const names[] = {"ln_1",   "attention", "dropout_1", "ln_2",
                                      "expand", "gelu",      "contract",  "dropout_2"};
  static const size_t order[] = {LN_1,   ATTENTION, DROPOUT_1, EK_CHAIN_ADD, LN_2,
                                 EXPAND, GELU,      CONTRACT,  DROPOUT_2,    EK_CHAIN_ADD};
  const double last = 0.02 / sqrt(2.0 * o->layers);
  ek_module *all[CHILDREN] = {NULL}, *children[CHILDREN + 1] = {NULL};
  const char *own_names[CHILDREN];
  size_t steps[CK_CHAINED_STEPS], count = 0, step_count = 0;
  ek_attention_options attention = EK_ATTENTION_OPTIONS_INIT;
  attention.deviation = 0.02;
  attention.projection_deviation = last;
  ek_status status = ek_layer_norm_create(&all[LN_1], o->width, 1e-5);
  if (status == EK_OK) {
    status = ek_attention_create_with(&all[ATTENTION], o->width, o->heads, &attention);
  }
  if (status == EK_OK && o->dropout > 0) status = ek_dropout_create(&all[DROPOUT_1], o->dropout);
  if (status == EK_OK) status = ek_layer_norm_create(&all[LN_2], o->width, 1e-5);
  if (status == EK_OK) status = linear(&all[EXPAND], o->width, 4 * o->width, true, 0.02, 0);
  if (status == EK_OK) status = ek_activation_create(&all[GELU], EK_ACTIVATION_GELU);
  if (status == EK_OK) status = linear(&all[CONTRACT], 4 * o->width, o->width, true, last, 0);
  if (status == EK_OK && o->dropout > 0) status = ek_dropout_create(&all[DROPOUT_2], o->dropout);
  EK_TRY(end(all, status));
  for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
    if (order[i] != EK_CHAIN_ADD && all[order[i]] == NULL) continue;
    steps[step_count++] = order[i] == EK_CHAIN_ADD ? EK_CHAIN_ADD : count;
    if (order[i] == EK_CHAIN_ADD) continue;
    own_names[count] = names[order[i]];
    children[count++] = all[order[i]];
  }
  steps[step_count] = CK_CHAINED_END;
  const bool cheap = o->recompute.kind == EK_RECOMPUTE_CHEAP;
  EK_TRY(ck_chained_create(module, children, own_names, steps,
                           cheap ? o->recompute : (ek_recompute){.kind = EK_RECOMPUTE_NONE}));
  ((struct chained *)*module)->unit = true;
  return EK_OK;
}

static ek_status blocks_create(ek_module **module, const ek_gpt_options *o) {
  ek_module *blocks[CK_CHAINED_CHILDREN + 1] = {NULL};
  ek_status status = EK_OK;
  for (int i = 0; i < o->layers && status == EK_OK; i++) status = block_create(&blocks[i], o);
  EK_TRY(end(blocks, status));
  return ck_chained_create(module, blocks, NULL, NULL, o->recompute);
}

ek_status ck_chained_gpt_create(ek_module **module, const ek_gpt_options *options) {
  const ek_gpt_options *o = options;
  ek_module *all[CK_CHAINED_CHILDREN + 1] = {NULL};
  const char *names[CK_CHAINED_CHILDREN];
  size_t count = 0;
  ek_status status = ek_embedding_create(&all[count], o->vocabulary, o->width, o->sequence);
  names[count++] = "tokens";
  if (status == EK_OK && o->dropout > 0) {
    names[count] = "dropout";
    status = ek_dropout_create(&all[count++], o->dropout);
  }
  names[count] = "blocks";
  if (status == EK_OK) status = blocks_create(&all[count++], o);
  names[count] = "norm";
  if (status == EK_OK) status = ek_layer_norm_create(&all[count++], o->width, 1e-5);
  names[count] = "head";
  if (status == EK_OK) {
    status = linear(&all[count], o->width, o->vocabulary, false, 0.02, o->logits_columns);
  }
  EK_TRY(end(all, status));
  const bool cheap = o->recompute.kind == EK_RECOMPUTE_CHEAP;
  EK_TRY(ck_chained_create(module, all, names, NULL,
                           cheap ? o->recompute : (ek_recompute){.kind = EK_RECOMPUTE_NONE}));
  ((struct chained *)*module)->tied = !o->untied;
  return EK_OK;
}
