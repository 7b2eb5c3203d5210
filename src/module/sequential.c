/*
 * sequential.c - modules one after the other.
 */
#include <evenkeel/sequential.h>

#include <stdio.h>

#include "core/alloc.h"
#include "module/chain.h"
#include "module/layer_internal.h"

struct sequential {
  ek_module base;
  size_t count;
  ek_module **modules;
};

static ek_status sequential_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct sequential *m = (const struct sequential *)self;
  for (size_t i = 0; i < m->count; i++) {
    char name[24];
    snprintf(name, sizeof name, "%zu", i);
    EK_TRY(ek_declare_module(declaration, name, m->modules[i]));
  }
  return EK_OK;
}

static ek_status sequential_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  const struct sequential *m = (const struct sequential *)self;
  return ek__chain_forward(pass, 0, m->modules, m->count, inputs, outputs);
}

static ek_status sequential_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct sequential *m = (const struct sequential *)self;
  return ek__chain_backward(pass, 0, m->modules, m->count, grad_outputs, grad_inputs);
}

static void sequential_free(ek_module *self) {
  struct sequential *m = (struct sequential *)self;
  for (size_t i = 0; i < m->count; i++) ek_module_free(m->modules[i]);
  ek__free(m->modules);
  ek__free(m);
}

static const ek_module_ops sequential_ops = {.size = sizeof(ek_module_ops),
                                             .kind = "sequential",
                                             .parameters = sequential_parameters,
                                             .forward = sequential_forward,
                                             .backward = sequential_backward,
                                             .free = sequential_free,
                                             .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status check_modules(ek_module *const *modules, size_t count) {
  if (modules == NULL || count == 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "sequential: there is no module");
  }
  for (size_t i = 0; i < count; i++) {
    if (modules[i] == NULL || modules[i]->ops == NULL) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT, "sequential: module %zu is NULL, or no module",
                          i);
    }
    if (i > 0 && modules[i]->inputs != modules[i - 1]->outputs) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "sequential: module %zu (%s) has %zu outputs, module %zu (%s) takes %zu",
                          i - 1, modules[i - 1]->ops->kind, modules[i - 1]->outputs, i,
                          modules[i]->ops->kind, modules[i]->inputs);
    }
  }
  return EK_OK;
}

ek_status ek_sequential_create(ek_module **module, ek_module *const *modules, size_t count) {
  EK_TRY(check_modules(modules, count));
  ek_status status = EK_OK;
  struct sequential *m = ek__layer_create(&status, module, sizeof *m, &sequential_ops,
                                          modules[0]->inputs, modules[count - 1]->outputs);
  if (m == NULL) return status;
  m->modules = ek__calloc(count, sizeof(ek_module *));
  if (m->modules == NULL) {
    ek_module_free(&m->base);
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "sequential: the host has no memory for %zu modules",
                        count);
  }
  for (; m->count < count; m->count++) m->modules[m->count] = ek_module_share(modules[m->count]);
  *module = &m->base;
  return EK_OK;
}
