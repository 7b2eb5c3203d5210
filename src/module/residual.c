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
  EK_TRY(ek__last_child_forward(outputs, pass, INNER, inputs));
  return ek_pass_wants_outputs(pass) ? ek__residual_add(pass, &outputs[0], &inputs[0]) : EK_OK;
}

static ek_status residual_backward(const ek_module *self, ek_pass *pass,
                                   const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  EK_TRY(ek_pass_child_backward(grad_inputs, pass, INNER, grad_outputs));
  if (grad_inputs == NULL) return EK_OK;
  return ek__residual_add(pass, &grad_inputs[0], &grad_outputs[0]);
}

static const ek_module_ops residual_ops = {
    EK__LAYER("residual", residual_forward, residual_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

ek_status ek_residual_create(ek_module **module, ek_module *inner) {
  EK__FAIL_IF(inner == NULL || ek_module_table(inner) == NULL, EK_ERR_INVALID_ARGUMENT,
              "residual: the inner module is NULL or not initialised");
  EK__FAIL_IF(ek_module_inputs(inner) != 1 || ek_module_outputs(inner) != 1,
              EK_ERR_INVALID_ARGUMENT,
              "residual: %s has %zu inputs and %zu outputs, expected 1 and 1",
              ek_module_kind(inner), ek_module_inputs(inner), ek_module_outputs(inner));
  struct ek__composite made = {0};
  const ek_status status = ek__composite_add(&made, "inner", ek_module_share(inner));
  return ek__composite_create(module, &made, sizeof made, &residual_ops, 1, 1, status);
}
