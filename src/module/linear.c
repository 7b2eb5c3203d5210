/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include "module/layer_internal.h"
#include "module/product.h"

struct linear {
  ek_module base;
  struct ek__affine affine;
};

static ek_status linear_parameters(const ek_module *self, ek_declaration *declaration) {
  return ek__affine_declare(&((const struct linear *)self)->affine, declaration);
}

static void linear_formula(const ek_module *self, ek_formula *formula) {
  *formula = ek__affine_formula(&((const struct linear *)self)->affine);
}

static ek_status linear_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  ek_formula formula;
  linear_formula(self, &formula);
  return ek__product_forward(&formula, pass, &inputs[0], &outputs[0]);
}

static ek_status linear_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_formula formula;
  linear_formula(self, &formula);
  return ek__product_backward(&formula, pass, &grad_outputs[0], grad_inputs, false);
}

static const ek_module_ops linear_ops = {
    EK__LAYER("linear", linear_forward, linear_backward, ek__layer_free),
    .parameters = linear_parameters, .formula = linear_formula};

static ek_status create(ek_module **module, int64_t in, int64_t out, bool bias,
                        const ek_initializer *weight) {
  struct linear made = {.base = {.ops = NULL}};
  EK_TRY(ek__affine_fill(&made.affine, linear_ops.kind, in, out, bias, weight));
  return ek__layer_create(module, &made, sizeof made, &linear_ops, 1, 1);
}

ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out, bool bias) {
  return create(module, in, out, bias, NULL);
}

ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out, bool bias,
                                ek_initializer weight) {
  return create(module, in, out, bias, &weight);
}
