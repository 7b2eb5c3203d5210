/*
 * composite.c - stock layers that are made of other modules: their children.
 */
#include "module/composite.h"

#include <stdio.h>

#include "core/alloc.h"
#include "module/layer_internal.h"

ek_status ek__composite_add(struct ek__composite *m, const char *name, ek_module *child) {
  const ek_status status = ek__grow(&m->children, &m->capacity, m->count + 1, sizeof *m->children,
                                    "a module's children");
  if (status == EK_OK) {
    m->children[m->count++] = (struct ek__child){name, child};
  } else {
    ek_module_free(child);
  }
  return status;
}

ek_status ek__composite_add_linear(struct ek__composite *m, const char *name, int64_t in,
                                   int64_t out, const ek_linear_options *options) {
  ek_module *linear = NULL;
  EK_TRY(ek_linear_create_with(&linear, in, out, options));
  return ek__composite_add(m, name, linear);
}

ek_status ek__composite_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct ek__composite *m = (const struct ek__composite *)self;
  if (m->unit) EK_TRY(ek_declare_unit(declaration));
  for (size_t i = 0; i < m->count; i++) {
    char number[24];
    snprintf(number, sizeof number, "%zu", i);
    const char *name = m->children[i].name == NULL ? number : m->children[i].name;
    EK_TRY(ek_declare_module(declaration, name, m->children[i].module));
  }
  return EK_OK;
}

ek_status ek__last_child_forward(ek_tensor *outputs, ek_pass *pass, size_t child,
                                 const ek_tensor *inputs) {
  ek_child_options options = EK_CHILD_OPTIONS_INIT;
  options.unread = !ek_pass_wants_outputs(pass);
  return ek_pass_child_forward_with(outputs, pass, child, inputs, &options);
}

/* With `unread` where forward need not compute its outputs. */
static ek_chain chain_of(const ek_module *self, bool unread) {
  const struct ek__composite *m = (const struct ek__composite *)self;
  ek_chain chain = EK_CHAIN_INIT;
  chain.steps = m->steps;
  chain.count = m->step_count;
  chain.recompute = m->recompute;
  chain.shared = m->shared;
  chain.unread = unread;
  return chain;
}

ek_status ek__composite_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const ek_chain chain = chain_of(self, !ek_pass_wants_outputs(pass));
  return ek_chain_forward(outputs, pass, inputs, &chain);
}

ek_status ek__composite_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_chain chain = chain_of(self, false);
  return ek_chain_backward(grad_inputs, pass, grad_outputs, &chain);
}

static void free_children(struct ek__composite *m) {
  for (size_t i = 0; i < m->count; i++) ek_module_free(m->children[i].module);
  ek__free(m->children);
  ek__free(m->names);
}

ek_type ek__composite_input_type(const ek_module *self, size_t input) {
  const struct ek__composite *m = (const struct ek__composite *)self;
  if (input > 0 && m->shared > 0) return EK_I32;
  return m->count == 0 ? (ek_type)0 : ek_module_input_type(m->children[0].module, input);
}

void ek__composite_free(ek_module *self) {
  free_children((struct ek__composite *)self);
  ek__free(self);
}

ek_status ek__composite_create(ek_module **module, struct ek__composite *m, size_t size,
                               const ek_module_ops *ops, size_t inputs, size_t outputs,
                               ek_status status) {
  if (status == EK_OK) status = ek__layer_create(module, m, size, ops, inputs, outputs);
  if (status != EK_OK) free_children(m);
  return status;
}
