/*
 * ck_parent.c - modules that own their children: see ck_parent.h.
 */
#include "ck_parent.h"

void *ck_parent_new(size_t size, const ek_module_ops *ops, ek_module *child) {
  struct ck_parent *m =
      ck_module_new(size, ops, ek_module_inputs(child), ek_module_outputs(child));
  m->children[0] = child;
  return m;
}

void ck_parent_free(ek_module *self) {
  struct ck_parent *m = (struct ck_parent *)self;
  for (int i = 0; i < CK_CHILDREN; i++) ek_module_free(m->children[i]);
  free(m);
}

ek_module *ck_child(const ek_module *self, size_t number) {
  return ((const struct ck_parent *)self)->children[number];
}

ek_status ck_parent_wraps(const ek_module *self, ek_declaration *declaration) {
  return ek_declare_wrapped(declaration, ck_child(self, 0));
}

ek_status ck_parent_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                            ek_tensor *outputs) {
  CK_FREED(tensor) middle = {0};
  if (ck_child(self, 1) == NULL) return ek_pass_child_forward(outputs, pass, 0, inputs);
  EK_TRY(ek_pass_child_forward(&middle, pass, 0, inputs));
  return ek_pass_child_forward(outputs, pass, 1, &middle);
}

ek_status ck_parent_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                             ek_tensor *grad_inputs) {
  CK_FREED(tensor) middle = {0};
  if (ck_child(self, 1) == NULL) return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs);
  EK_TRY(ek_pass_child_backward(&middle, pass, 1, grad_outputs));
  return ek_pass_child_backward(grad_inputs, pass, 0, &middle);
}
