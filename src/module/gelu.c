/*
 * gelu.c - GELU in its tanh form.
 */
#include <evenkeel/gelu.h>

#include <evenkeel/elementwise.h>

#include "module/layer_internal.h"

static ek_status gelu_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  (void)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], -1));
  ek_tensor x = inputs[0]; /* a loan; without a bias the operation does not write it */
  EK_TRY(ek__layer_result(&outputs[0], pass, &x));
  EK_TRY(ek_op_gelu_forward(ek_pass_stream(pass), &outputs[0], &x, NULL));
  return ek_pass_save(pass, &x);
}

static ek_status gelu_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  (void)self;
  ek_tensor x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  ek_status status = EK_OK;
  if (grad_inputs != NULL) {
    status = ek__layer_result(&grad_inputs[0], pass, &x);
    if (status == EK_OK) {
      status = ek_op_gelu_backward(ek_pass_stream(pass), &grad_inputs[0], &grad_outputs[0], &x);
    }
  }
  ek_tensor_free(&x);
  return status;
}

static const ek_module_ops gelu_ops = {.size = sizeof(ek_module_ops),
                                       .kind = "gelu",
                                       .forward = gelu_forward,
                                       .backward = gelu_backward,
                                       .free = ek__layer_free,
                                       .types = EK_TYPES_F32 | EK_TYPES_F64};

bool ek__is_gelu(const ek_module *module) { return module->ops == &gelu_ops; }

ek_status ek_gelu_create(ek_module **module) {
  ek_status status = EK_OK;
  ek_module *created = ek__layer_create(&status, module, sizeof *created, &gelu_ops, 1, 1);
  if (created != NULL) *module = created;
  return status;
}
