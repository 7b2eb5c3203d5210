/*
 * swiglu.c - a feed-forward layer with a gate: three linears and the product of a gate.
 */
#include <evenkeel/swiglu.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

enum { GATE, UP, DOWN };

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
  /* Before down takes memory: without a backward these two have no other holder. */
  ek_tensor_free(&gate);
  ek_tensor_free(&up);
  if (status == EK_OK) status = ek__last_child_forward(outputs, pass, DOWN, &product);
  ek_tensor_free(&product);
  return status;
}

/* d holds the gradient of the product and gets that of gate's result. */
static ek_status multiply_backward(ek_pass *pass, ek_tensor *d, ek_tensor *dup) {
  ek_tensor saved[2]; /* gate and up */
  EK_TRY(ek__layer_take(saved, pass, 2));
  ek_status status = ek__layer_result(dup, pass, &saved[1]);
  if (status == EK_OK) {
    status = ek_op_gate_backward(ek_pass_stream(pass), d, dup, d, &saved[0], &saved[1],
                                 EK_ACTIVATION_SILU);
  }
  ek__free_all(saved, 2);
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

static const ek_module_ops swiglu_ops = {
    EK__LAYER("swiglu", swiglu_forward, swiglu_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

ek_status ek_swiglu_create_with(ek_module **module, int64_t width, int64_t hidden,
                                const ek_swiglu_options *options) {
  ek_swiglu_options o = EK_SWIGLU_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_swiglu_options"));
  ek_linear_options linear = EK_LINEAR_OPTIONS_INIT;
  linear.bias = o.bias;
  linear.frozen = o.frozen;
  linear.no_decay = o.no_decay;
  struct ek__composite made = {0};
  linear.weight_start = o.weight_start;
  ek_status status = ek__composite_add_linear(&made, "gate", width, hidden, &linear);
  if (status == EK_OK) status = ek__composite_add_linear(&made, "up", width, hidden, &linear);
  linear.weight_start = o.down_start;
  if (status == EK_OK) status = ek__composite_add_linear(&made, "down", hidden, width, &linear);
  return ek__composite_create(module, &made, sizeof made, &swiglu_ops, 1, 1, status);
}

ek_status ek_swiglu_create(ek_module **module, int64_t width, int64_t hidden, bool bias) {
  ek_swiglu_options options = EK_SWIGLU_OPTIONS_INIT;
  options.bias = bias;
  return ek_swiglu_create_with(module, width, hidden, &options);
}

EK__OPTIONS_INIT(ek_swiglu_options, EK_SWIGLU_OPTIONS_INIT)
