/*
 * gpt.c - a decoder of GPT-2's shape.
 *
 * A block is a module of its own with named children, so that parameters are called
 * "blocks.0.ln_1.weight"; blocks and model run their children as a chain (chain.h).
 */
#include <evenkeel/gpt.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/attention.h>
#include <evenkeel/dropout.h>
#include <evenkeel/embedding.h>
#include <evenkeel/activation.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/sequential.h>

#include "core/alloc.h"
#include "core/options.h"
#include "module/chain.h"
#include "module/layer_internal.h"
#include "module/residual_norm.h"

#define DEVIATION 0.02
#define EPSILON 1e-5

/* Named children in the order in which they run. */
struct children {
  size_t count;
  const char *names[8];
  ek_module *modules[8];
};

/* Takes over the caller's reference. */
static void add_child(struct children *children, const char *name, ek_module *module) {
  children->names[children->count] = name;
  children->modules[children->count] = module;
  children->count++;
}

static ek_status add_dropout(struct children *children, const char *name, double p) {
  if (p == 0.0) return EK_OK;
  ek_module *dropout = NULL;
  EK_TRY(ek_dropout_create(&dropout, p));
  add_child(children, name, dropout);
  return EK_OK;
}

static ek_status add_layer_norm(struct children *children, const char *name, int64_t width) {
  ek_module *norm = NULL;
  EK_TRY(ek_layer_norm_create(&norm, width, EPSILON));
  add_child(children, name, norm);
  return EK_OK;
}

static ek_status add_linear(struct children *children, const char *name, int64_t in, int64_t out,
                            bool bias, double deviation) {
  ek_module *linear = NULL;
  EK_TRY(ek_linear_create_with(&linear, in, out, bias, ek_initializer_normal(0.0, deviation)));
  add_child(children, name, linear);
  return EK_OK;
}

static ek_status declare_children(const struct children *children, ek_declaration *declaration) {
  for (size_t i = 0; i < children->count; i++) {
    EK_TRY(ek_declare_module(declaration, children->names[i], children->modules[i]));
  }
  return EK_OK;
}

static void free_children(struct children *children) {
  for (size_t i = 0; i < children->count; i++) ek_module_free(children->modules[i]);
}

/* ---- one block ---- */

/*
 *     h = ln_1(x)    s = attention(h) + x    m = ln_2(s)    y = feed_forward(m) + s
 *
 * Each residual connection that meets a norm is one operation with it: s and m forward, ds and dx
 * backward.
 */
struct block {
  ek_module base;
  struct children children; /* ln_1, attention, .., ln_2, the feed-forward's */
  size_t ln_2;              /* its number */
};
enum { LN_1 };

static ek_status block_parameters(const ek_module *self, ek_declaration *declaration) {
  return declare_children(&((const struct block *)self)->children, declaration);
}

/* Child number `norm`: sum += residual, if that is not NULL, and y = its layer norm. */
static ek_status norm_forward(ek_pass *pass, size_t norm, ek_tensor *sum, const ek_tensor *residual,
                              ek_tensor *y) {
  EK_TRY(ek_pass_enter(pass, norm));
  EK_TRY(ek__layer_norm_forward(pass, EPSILON, sum, residual, y));
  return ek_pass_leave(pass);
}

/* dx, if it is not NULL, = the child's gradient + residual. */
static ek_status norm_backward(ek_pass *pass, size_t norm, const ek_tensor *dy,
                               const ek_tensor *residual, ek_tensor *dx) {
  EK_TRY(ek_pass_enter(pass, norm));
  EK_TRY(ek__layer_norm_backward(pass, dy, residual, dx));
  return ek_pass_leave(pass);
}

/* The children behind norm number `norm`, up to number `end`. */
static ek_status branch_forward(const struct block *m, ek_pass *pass, size_t norm, size_t end,
                                const ek_tensor *x, ek_tensor *y) {
  const size_t first = norm + 1;
  return ek__chain_forward(pass, first, m->children.modules + first, end - first, x, y);
}

static ek_status branch_backward(const struct block *m, ek_pass *pass, size_t norm, size_t end,
                                 const ek_tensor *dy, ek_tensor *dx) {
  const size_t first = norm + 1;
  return ek__chain_backward(pass, first, m->children.modules + first, end - first, dy, dx);
}

static ek_status block_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                               ek_tensor *outputs) {
  const struct block *m = (const struct block *)self;
  ek_tensor x = inputs[0], h = {0}, s = {0}, normal = {0};
  ek_status status = norm_forward(pass, LN_1, &x, NULL, &h);
  if (status == EK_OK) status = branch_forward(m, pass, LN_1, m->ln_2, &h, &s);
  ek_tensor_free(&h);
  if (status == EK_OK) status = norm_forward(pass, m->ln_2, &s, &inputs[0], &normal);
  if (status == EK_OK) {
    status = branch_forward(m, pass, m->ln_2, m->children.count, &normal, outputs);
  }
  ek_tensor_free(&normal);
  if (status == EK_OK) status = ek__residual_add(pass, &outputs[0], &s);
  ek_tensor_free(&s);
  return status;
}

static ek_status block_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                                ek_tensor *grad_inputs) {
  const struct block *m = (const struct block *)self;
  ek_tensor dnormal = {0}, ds = {0}, dh = {0};
  ek_status status = branch_backward(m, pass, m->ln_2, m->children.count, grad_outputs, &dnormal);
  if (status == EK_OK) {
    status = norm_backward(pass, m->ln_2, &dnormal, &grad_outputs[0], &ds);
  }
  ek_tensor_free(&dnormal);
  if (status == EK_OK) status = branch_backward(m, pass, LN_1, m->ln_2, &ds, &dh);
  if (status == EK_OK) status = norm_backward(pass, LN_1, &dh, &ds, grad_inputs);
  ek_tensor_free(&dh);
  ek_tensor_free(&ds);
  return status;
}

static void block_free(ek_module *self) {
  struct block *m = (struct block *)self;
  free_children(&m->children);
  ek__free(m);
}

static const ek_module_ops block_ops = {.size = sizeof(ek_module_ops),
                                        .kind = "gpt_block",
                                        .parameters = block_parameters,
                                        .forward = block_forward,
                                        .backward = block_backward,
                                        .free = block_free,
                                        .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status fill_block(struct block *m, const ek_gpt_options *o) {
  /* The sum over the residual branches keeps its variance (Radford et al. 2019). */
  const double last_deviation = DEVIATION / sqrt(2.0 * o->layers);
  struct children *children = &m->children;
  EK_TRY(add_layer_norm(children, "ln_1", o->width));
  ek_module *attention = NULL;
  EK_TRY(ek_attention_create_with(&attention, o->width, o->heads, DEVIATION, last_deviation));
  add_child(children, "attention", attention);
  EK_TRY(add_dropout(children, "dropout_1", o->dropout));
  m->ln_2 = children->count;

  EK_TRY(add_layer_norm(children, "ln_2", o->width));
  EK_TRY(add_linear(children, "expand", o->width, 4 * o->width, true, DEVIATION));
  ek_module *gelu = NULL;
  EK_TRY(ek_activation_create(&gelu, EK_ACTIVATION_GELU));
  add_child(children, "gelu", gelu);
  EK_TRY(add_linear(children, "contract", 4 * o->width, o->width, true, last_deviation));
  return add_dropout(children, "dropout_2", o->dropout);
}

static ek_status block_create(ek_module **module, const ek_gpt_options *o) {
  ek_status status = EK_OK;
  struct block *m = ek__layer_create(&status, module, sizeof *m, &block_ops, 1, 1);
  if (m == NULL) return status;
  status = fill_block(m, o);
  if (status == EK_OK) {
    *module = &m->base;
  } else {
    ek_module_free(&m->base);
  }
  return status;
}

static ek_status blocks_create(ek_module **module, const ek_gpt_options *o) {
  const size_t count = (size_t)o->layers;
  ek_module **blocks = ek__calloc(count, sizeof(ek_module *));
  if (blocks == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "gpt: the host has no memory for %zu layers", count);
  }
  ek_status status = EK_OK;
  for (size_t i = 0; i < count && status == EK_OK; i++) status = block_create(&blocks[i], o);
  if (status == EK_OK) status = ek_sequential_create(module, blocks, count);
  for (size_t i = 0; i < count; i++) ek_module_free(blocks[i]); /* it keeps its own */
  ek__free(blocks);
  return status;
}

/* ---- the model ---- */

struct gpt {
  ek_module base;
  struct children children;
  bool untied;
};

static ek_status gpt_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct gpt *m = (const struct gpt *)self;
  EK_TRY(declare_children(&m->children, declaration));
  return m->untied ? EK_OK : ek_declare_tie(declaration, "head.weight", "tokens.weight");
}

static ek_status gpt_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                             ek_tensor *outputs) {
  if (ek_tensor_exists(&inputs[0]) && inputs[0].rank != 2) {
    return ek_error_set(EK_ERR_SHAPE, "input has rank %d, expected 2 (samples, tokens)",
                        inputs[0].rank);
  }
  const struct children *children = &((const struct gpt *)self)->children;
  return ek__chain_forward(pass, 0, children->modules, children->count, inputs, outputs);
}

static ek_status gpt_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                              ek_tensor *grad_inputs) {
  (void)grad_inputs; /* tokens have no gradient */
  const struct children *children = &((const struct gpt *)self)->children;
  return ek__chain_backward(pass, 0, children->modules, children->count, grad_outputs, NULL);
}

static void gpt_free(ek_module *self) {
  struct gpt *m = (struct gpt *)self;
  free_children(&m->children);
  ek__free(m);
}

static const ek_module_ops gpt_ops = {.size = sizeof(ek_module_ops),
                                      .kind = "gpt",
                                      .parameters = gpt_parameters,
                                      .forward = gpt_forward,
                                      .backward = gpt_backward,
                                      .free = gpt_free,
                                      .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status fill_gpt(struct gpt *m, const ek_gpt_options *o) {
  struct children *children = &m->children;
  ek_module *tokens = NULL;
  EK_TRY(ek_embedding_create(&tokens, o->vocabulary, o->width, o->sequence));
  add_child(children, "tokens", tokens);
  EK_TRY(add_dropout(children, "dropout", o->dropout));
  if (o->layers > 0) {
    ek_module *blocks = NULL;
    EK_TRY(blocks_create(&blocks, o));
    add_child(children, "blocks", blocks);
  }
  EK_TRY(add_layer_norm(children, "norm", o->width));
  m->untied = o->untied;
  return add_linear(children, "head", o->width, o->vocabulary, false, DEVIATION);
}

static ek_status check_options(const ek_gpt_options *o) {
  if (o->vocabulary <= 0 || o->sequence <= 0 || o->width <= 0 || o->heads <= 0 || o->layers < 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "gpt: vocabulary %" PRId64 ", sequence %" PRId64 ", width %" PRId64
                        ", %d layers, %d heads: sizes must be above 0",
                        o->vocabulary, o->sequence, o->width, o->layers, o->heads);
  }
  if (o->width % o->heads != 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "gpt: width %" PRId64 " is not a multiple of %d heads", o->width, o->heads);
  }
  if (o->width > INT64_MAX / 4) {
    return ek_error_set(EK_ERR_OVERFLOW, "gpt: 4 x %" PRId64 " columns", o->width);
  }
  if (!(o->dropout >= 0.0 && o->dropout < 1.0)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "gpt: dropout is %g, expected 0 <= p < 1",
                        o->dropout);
  }
  return EK_OK;
}

ek_status ek_gpt_create(ek_module **module, const ek_gpt_options *options) {
  ek_gpt_options o = EK_GPT_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_gpt_options"));
  EK_TRY(check_options(&o));
  ek_status status = EK_OK;
  struct gpt *m = ek__layer_create(&status, module, sizeof *m, &gpt_ops, 1, 1);
  if (m == NULL) return status;
  status = fill_gpt(m, &o);
  if (status == EK_OK) {
    *module = &m->base;
  } else {
    ek_module_free(&m->base);
  }
  return status;
}
