/*
 * relu.c - max(x, 0).
 */
#include <evenkeel/relu.h>

#include <evenkeel/elementwise.h>

#include "module/layer_internal.h"

static ek_status relu_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  (void)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], -1));
  EK_TRY(ek__layer_result(&outputs[0], pass, &inputs[0]));
  EK_TRY(ek_op_relu_forward(ek_pass_stream(pass), &outputs[0], &inputs[0]));
  /* y and not x: the next layer is likely to save y too, and then x can go. */
  return ek_pass_save(pass, &outputs[0]);
}

static ek_status relu_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  (void)self;
  ek_tensor y = {0};
  EK_TRY(ek_pass_take(&y, pass));
  ek_status status = EK_OK;
  if (grad_inputs != NULL) {
    status = ek__layer_result(&grad_inputs[0], pass, &y);
    if (status == EK_OK) {
      status = ek_op_relu_backward(ek_pass_stream(pass), &grad_inputs[0], &grad_outputs[0], &y);
    }
  }
  ek_tensor_free(&y);
  return status;
}

static const ek_module_ops relu_ops = {.size = sizeof(ek_module_ops),
                                       .kind = "relu",
                                       .forward = relu_forward,
                                       .backward = relu_backward,
                                       .free = ek__layer_free,
                                       .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ek_relu_create(ek_module **module) {
  ek_status status = EK_OK;
  ek_module *created = ek__layer_create(&status, module, sizeof *created, &relu_ops, 1, 1);
  if (created != NULL) *module = created;
  return status;
}
