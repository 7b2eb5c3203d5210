/*
 * ck_chained.c - containers of a program's own that run a chain, and decoders of them.
 */
#include "ck_chained.h"

/* ---- a container ---- */

bool ck_chained_apart;

struct chained {
  ek_module base;
  ek_module_ops ops;
  ek_module *children[CK_CHAINED_CHILDREN];
  char names[CK_CHAINED_CHILDREN][24];
  size_t steps[CK_CHAINED_STEPS], child_count, step_count;
  ek_recompute recompute;
  bool unit, tied; /* tied: head.weight is tokens.weight */
};

static ek_chain chain_of(const ek_module *self) {
  const struct chained *m = (const struct chained *)self;
  CK_WITH(ek_chain, chain, EK_CHAIN_INIT, .steps = m->step_count == 0 ? NULL : m->steps,
          .count = m->step_count, .recompute = m->recompute);
  return chain;
}

CK_FORWARD(chained) {
  CK_WITH(ek_chain, chain, chain_of(self), .unread = !ek_pass_wants_outputs(pass));
  return ek_chain_forward(outputs, pass, inputs, &chain);
}

CK_BACKWARD(chained) {
  const ek_chain chain = chain_of(self);
  return ek_chain_backward(grad_inputs, pass, grad_outputs, &chain);
}

CK_PARAMETERS(chained) {
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
  if (m != NULL) m->ops = chained_ops;
  if (m != NULL) m->ops.chain = !ck_chained_apart;
  const ek_status status = m == NULL ? ek_error_set(EK_ERR_OUT_OF_MEMORY, "chained: no memory")
                                     : ek_module_init(&m->base, &m->ops, inputs, outputs);
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

/* ---- decoders ---- */

/* What both families are made of. */
struct shape {
  int64_t vocabulary, positions, width, hidden, logits_columns;
  int layers, heads;
  double epsilon, dropout;
  ek_attention_options attention; /* except its deviations */
  bool rms, gate, tied;
  ek_recompute recompute;
};

/* Children as they are added, with their names; a failure ends them. */
struct list {
  ek_module *children[CK_CHAINED_CHILDREN + 1];
  const char *names[CK_CHAINED_CHILDREN];
  size_t steps[CK_CHAINED_STEPS], count, step_count;
  ek_status status;
};

static ek_module **next(struct list *list, const char *name) {
  list->steps[list->step_count++] = list->count;
  list->names[list->count] = name;
  return &list->children[list->count++];
}

/* One more child from an expression that makes *made. */
#define ADD(list, name, create)                                                                    \
  do {                                                                                             \
    ek_module *made = NULL;                                                                        \
    if ((list)->status == EK_OK) (list)->status = (create);                                        \
    if ((list)->status == EK_OK) *next(list, name) = made;                                         \
  } while (0)

static void step(struct list *list, size_t code) { list->steps[list->step_count++] = code; }

/* A chain of the list's steps, or of its children if `steps` is false. */
static ek_status end(ek_module **module, struct list *list, bool steps, ek_recompute recompute) {
  list->steps[list->step_count] = CK_CHAINED_END;
  if (list->status == EK_OK) {
    return ck_chained_create(module, list->children, list->names[0] == NULL ? NULL : list->names,
                             steps ? list->steps : NULL, recompute);
  }
  for (size_t i = 0; i < list->count; i++) ek_module_free(list->children[i]);
  return list->status;
}

static ek_status linear(ek_module **module, int64_t in, int64_t out, bool bias, double deviation,
                        int64_t columns) {
  const ek_initializer start = ek_initializer_normal(0.0, deviation);
  CK_WITH(ek_linear_options, options, EK_LINEAR_OPTIONS_INIT, .bias = bias, .weight_start = &start,
          .columns = columns);
  return ek_linear_create_with(module, in, out, &options);
}

static ek_status norm(ek_module **module, const struct shape *o) {
  return o->rms ? ek_rms_norm_create(module, o->width, o->epsilon)
                : ek_layer_norm_create(module, o->width, o->epsilon);
}

static ek_status attention(ek_module **module, const struct shape *o, double last) {
  CK_WITH(ek_attention_options, options, o->attention, .deviation = 0.02,
          .projection_deviation = last);
  return ek_attention_create_with(module, o->width, o->heads, &options);
}

static ek_recompute cheap_or_none(const struct shape *o) {
  const bool cheap = o->recompute.kind == EK_RECOMPUTE_CHEAP;
  return cheap ? o->recompute : (ek_recompute){.kind = EK_RECOMPUTE_NONE};
}

/* down(silu(gate(x)) * up(x)) */
static ek_status gated(ek_module **module, const struct shape *o, double last) {
  struct list list = {.status = EK_OK};
  ADD(&list, "gate", linear(&made, o->width, o->hidden, false, 0.02, 0));
  step(&list, EK_CHAIN_ACTIVATION(EK_ACTIVATION_SILU));
  ADD(&list, "up", linear(&made, o->width, o->hidden, false, 0.02, 0));
  list.steps[2] = EK_CHAIN_MULTIPLY_CHILD(1);
  ADD(&list, "down", linear(&made, o->hidden, o->width, false, last, 0));
  return end(module, &list, true, (ek_recompute){.kind = EK_RECOMPUTE_NONE});
}

static ek_status block_create(ek_module **module, const struct shape *o) {
  const double last = 0.02 / sqrt(2.0 * o->layers);
  struct list list = {.status = EK_OK};
  ADD(&list, o->rms ? "attention_norm" : "ln_1", norm(&made, o));
  ADD(&list, "attention", attention(&made, o, last));
  if (o->dropout > 0) ADD(&list, "dropout_1", ek_dropout_create(&made, o->dropout));
  step(&list, EK_CHAIN_ADD);
  ADD(&list, o->rms ? "feed_forward_norm" : "ln_2", norm(&made, o));
  if (o->gate) {
    ADD(&list, "feed_forward", gated(&made, o, last));
  } else {
    ADD(&list, "expand", linear(&made, o->width, o->hidden, true, 0.02, 0));
    ADD(&list, "gelu", ek_activation_create(&made, EK_ACTIVATION_GELU));
    ADD(&list, "contract", linear(&made, o->hidden, o->width, true, last, 0));
  }
  if (o->dropout > 0) ADD(&list, "dropout_2", ek_dropout_create(&made, o->dropout));
  step(&list, EK_CHAIN_ADD);
  EK_TRY(end(module, &list, true, cheap_or_none(o)));
  ((struct chained *)*module)->unit = true;
  return EK_OK;
}

static ek_status blocks_create(ek_module **module, const struct shape *o) {
  struct list list = {.status = EK_OK};
  for (int i = 0; i < o->layers; i++) ADD(&list, NULL, block_create(&made, o));
  return end(module, &list, false, o->recompute);
}

static ek_status decoder(ek_module **module, const struct shape *o) {
  struct list list = {.status = EK_OK};
  ADD(&list, "tokens", ek_embedding_create(&made, o->vocabulary, o->width, o->positions));
  if (o->dropout > 0) ADD(&list, "dropout", ek_dropout_create(&made, o->dropout));
  ADD(&list, "blocks", blocks_create(&made, o));
  ADD(&list, "norm", norm(&made, o));
  ADD(&list, "head", linear(&made, o->width, o->vocabulary, false, 0.02, o->logits_columns));
  EK_TRY(end(module, &list, false, cheap_or_none(o)));
  ((struct chained *)*module)->tied = o->tied;
  return EK_OK;
}

ek_status ck_chained_gpt_create(ek_module **module, const ek_gpt_options *o) {
  const struct shape shape = {.vocabulary = o->vocabulary, .positions = o->sequence,
                              .width = o->width, .hidden = 4 * o->width,
                              .logits_columns = o->logits_columns, .layers = o->layers,
                              .heads = o->heads, .epsilon = 1e-5, .dropout = o->dropout,
                              .attention = EK_ATTENTION_OPTIONS_INIT, .tied = !o->untied,
                              .recompute = o->recompute};
  return decoder(module, &shape);
}

ek_status ck_chained_llama_create(ek_module **module, const ek_llama_options *o) {
  const ek_rotary rotary = EK_ROTARY_INIT;
  struct shape shape = {.vocabulary = o->vocabulary, .width = o->width, .hidden = o->hidden,
                        .logits_columns = o->logits_columns, .layers = o->layers, .heads = o->heads,
                        .epsilon = o->epsilon, .dropout = o->dropout,
                        .attention = EK_ATTENTION_OPTIONS_INIT, .rms = true, .gate = true,
                        .tied = o->tied, .recompute = o->recompute};
  ck_assign(shape.attention, .kv_heads = o->kv_heads, .bias = o->qkv_bias,
            .no_projection_bias = true, .rotary = o->rotary != NULL ? o->rotary : &rotary);
  return decoder(module, &shape);
}
