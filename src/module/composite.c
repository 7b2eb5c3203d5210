/*
 * composite.c - stock layers that are made of other modules: their children.
 */
#include "module/composite.h"

#include <stdio.h>

#include "core/alloc.h"

ek_status ek__composite_add(struct ek__composite *m, const char *name, ek_module *child) {
  if (!ek__grow(&m->children, &m->capacity, m->count + 1, sizeof *m->children)) {
    ek_module_free(child);
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: the host has no memory for %zu children",
                        m->base.ops->kind, m->count + 1);
  }
  m->children[m->count++] = (struct ek__child){name, child};
  return EK_OK;
}

ek_status ek__composite_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct ek__composite *m = (const struct ek__composite *)self;
  for (size_t i = 0; i < m->count; i++) {
    char number[24];
    snprintf(number, sizeof number, "%zu", i);
    const char *name = m->children[i].name == NULL ? number : m->children[i].name;
    EK_TRY(ek_declare_module(declaration, name, m->children[i].module));
  }
  return EK_OK;
}

void ek__composite_free(ek_module *self) {
  struct ek__composite *m = (struct ek__composite *)self;
  for (size_t i = 0; i < m->count; i++) ek_module_free(m->children[i].module);
  ek__free(m->children);
  ek__free(m);
}

ek_status ek__composite_finish(ek_module **module, struct ek__composite *m, ek_status status) {
  if (status == EK_OK) {
    *module = &m->base;
  } else {
    ek_module_free(&m->base);
  }
  return status;
}
