/*
 * swiglu.c - a feed-forward layer with a gate: three linears and the product of a gate.
 */
#include <evenkeel/swiglu.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

#include "core/alloc.h"
#include "module/layer_internal.h"

enum { GATE, UP, DOWN, CHILDREN };
static const char *const names[CHILDREN] = {"gate", "up", "down"};

struct swiglu {
  ek_module base;
  ek_module *child[CHILDREN];
};

static ek_status swiglu_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct swiglu *m = (const struct swiglu *)self;
  for (int i = 0; i < CHILDREN; i++) {
    EK_TRY(ek_declare_module(declaration, names[i], m->child[i]));
  }
  return EK_OK;
}

static ek_status multiply(ek_pass *pass, ek_tensor *product, const ek_tensor *gate,
                          const ek_tensor *up) {
  EK_TRY(ek__layer_result(product, pass, gate));
  EK_TRY(ek_op_gate_forward(ek_pass_stream(pass), product, gate, up, EK_ACTIVATION_SILU));
  EK_TRY(ek_pass_save(pass, gate));
  return ek_pass_save(pass, up);
}

static ek_status swiglu_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  (void)self;
  ek_tensor gate = {0}, up = {0}, product = {0};
  ek_status status = ek_pass_child_forward(&gate, pass, GATE, inputs);
  if (status == EK_OK) status = ek_pass_child_forward(&up, pass, UP, inputs);
  if (status == EK_OK) status = multiply(pass, &product, &gate, &up);
  /* Before down takes memory: without a backward nobody else holds these two. */
  ek_tensor_free(&gate);
  ek_tensor_free(&up);
  if (status == EK_OK) status = ek_pass_child_forward(outputs, pass, DOWN, &product);
  ek_tensor_free(&product);
  return status;
}

/* d holds the gradient of the product and gets that of gate's result. */
static ek_status multiply_backward(ek_pass *pass, ek_tensor *d, ek_tensor *dup) {
  ek_tensor gate = {0}, up = {0};
  ek_status status = ek_pass_take(&up, pass);
  if (status == EK_OK) status = ek_pass_take(&gate, pass);
  if (status == EK_OK) status = ek__layer_result(dup, pass, &up);
  if (status == EK_OK) {
    status = ek_op_gate_backward(ek_pass_stream(pass), d, dup, d, &gate, &up, EK_ACTIVATION_SILU);
  }
  ek_tensor_free(&gate);
  ek_tensor_free(&up);
  return status;
}

static ek_status swiglu_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  ek_tensor d = {0}, dup = {0}, dx = {0};
  ek_tensor *through_gate = grad_inputs == NULL ? NULL : &dx;
  ek_status status = ek_pass_child_backward(&d, pass, DOWN, grad_outputs);
  if (status == EK_OK) status = multiply_backward(pass, &d, &dup);
  if (status == EK_OK) status = ek_pass_child_backward(grad_inputs, pass, UP, &dup);
  ek_tensor_free(&dup);
  if (status == EK_OK) status = ek_pass_child_backward(through_gate, pass, GATE, &d);
  ek_tensor_free(&d);
  if (status == EK_OK && grad_inputs != NULL) {
    status = ek_op_add(ek_pass_stream(pass), grad_inputs, grad_inputs, &dx);
  }
  ek_tensor_free(&dx);
  return status;
}

static void swiglu_free(ek_module *self) {
  struct swiglu *m = (struct swiglu *)self;
  for (int i = 0; i < CHILDREN; i++) ek_module_free(m->child[i]);
  ek__free(m);
}

static const ek_module_ops swiglu_ops = {.size = sizeof(ek_module_ops),
                                         .kind = "swiglu",
                                         .parameters = swiglu_parameters,
                                         .forward = swiglu_forward,
                                         .backward = swiglu_backward,
                                         .free = swiglu_free,
                                         .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ek_swiglu_create(ek_module **module, int64_t width, int64_t hidden, bool bias) {
  ek_status status = EK_OK;
  struct swiglu *m = ek__layer_create(&status, module, sizeof *m, &swiglu_ops, 1, 1);
  if (m == NULL) return status;
  for (int i = 0; i < CHILDREN && status == EK_OK; i++) {
    status = ek_linear_create(&m->child[i], i == DOWN ? hidden : width, i == DOWN ? width : hidden,
                              bias);
  }
  if (status != EK_OK) {
    ek_module_free(&m->base);
    return status;
  }
  *module = &m->base;
  return EK_OK;
}
