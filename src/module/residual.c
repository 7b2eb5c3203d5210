/*
 * residual.c - y = x + inner(x).
 */
#include <evenkeel/residual.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "module/composite.h"
#include "module/layer_internal.h"
#include "module/residual_norm.h"

enum { INNER };

ek_status ek__residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x) {
  EK__FAIL_IF(!ek_tensor_same_shape(sum, x), EK_ERR_SHAPE,
              "the inner module changes the shape or type of its input");
  ek_stream *stream = ek_pass_stream(pass);
  if (ek_tensor_holders(sum) == 1) return ek_op_add(stream, sum, sum, x);

  ek_tensor fresh = {0};
  EK_TRY(ek__layer_result(&fresh, pass, x));
  const ek_status status = ek_op_add(stream, &fresh, sum, x);
  ek_tensor_free(status == EK_OK ? sum : &fresh);
  if (status == EK_OK) *sum = fresh;
  return status;
}

static ek_status residual_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                  ek_tensor *outputs) {
  (void)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], -1));
  EK_TRY(ek_pass_child_forward(outputs, pass, INNER, inputs));
  return ek__residual_add(pass, &outputs[0], &inputs[0]);
}

static ek_status residual_backward(const ek_module *self, ek_pass *pass,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  EK_TRY(ek_pass_child_backward(grad_inputs, pass, INNER, grad_outputs));
  if (grad_inputs == NULL) return EK_OK;
  return ek__residual_add(pass, &grad_inputs[0], &grad_outputs[0]);
}

static const ek_module_ops residual_ops = {.size = sizeof(ek_module_ops),
                                           .kind = "residual",
                                           .parameters = ek__composite_parameters,
                                           .forward = residual_forward,
                                           .backward = residual_backward,
                                           .free = ek__composite_free,
                                           .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ek_residual_create(ek_module **module, ek_module *inner) {
  EK__FAIL_IF(inner == NULL || inner->ops == NULL, EK_ERR_INVALID_ARGUMENT,
              "residual: inner module is NULL, or no module");
  EK__FAIL_IF(inner->inputs != 1 || inner->outputs != 1, EK_ERR_INVALID_ARGUMENT,
              "residual: %s has %zu inputs and %zu outputs, expected 1 and 1", inner->ops->kind,
              inner->inputs, inner->outputs);
  ek_status status = EK_OK;
  struct ek__composite *m = ek__layer_create(&status, module, sizeof *m, &residual_ops, 1, 1);
  if (m == NULL) return status;
  return ek__composite_finish(module, m, ek__composite_add(m, "inner", ek_module_share(inner)));
}
