/*
 * activation.c - the pointwise activations as modules: one table of functions each, from the list.
 */
#include <evenkeel/activation.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "module/layer_internal.h"

struct activation {
  ek_module base;
  ek_activation kind;
};

static ek_activation kind_of(const ek_module *self) {
  return ((const struct activation *)self)->kind;
}

static void activation_formula(const ek_module *self, ek_formula *formula) {
  *formula = (ek_formula){.kind = EK_FORMULA_ACTIVATION, .activation = kind_of(self)};
}

ek_status ek__activation_forward(ek_pass *pass, ek_activation kind, const ek_tensor *x,
                                 ek_tensor *y, bool save) {
  EK_TRY(ek__layer_check(pass, x, -1));
  ek_tensor loan = *x; /* without a bias the operation does not write it */
  EK_TRY(ek__layer_result(y, pass, x));
  EK_TRY(ek_op_activation_forward(ek_pass_stream(pass), y, &loan, NULL, kind));
  return save ? ek_pass_save(pass, ek_activation_keeps_result(kind) ? y : x) : EK_OK;
}

static ek_status activation_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  return ek__activation_forward(pass, kind_of(self), &inputs[0], &outputs[0], true);
}

ek_status ek__activation_backward(ek_pass *pass, ek_activation kind, const ek_tensor *dy,
                                  ek_tensor *dx) {
  ek_tensor kept = {0};
  EK_TRY(ek_pass_take(&kept, pass));
  ek_status status = dx == NULL ? EK_OK : ek__layer_result(dx, pass, &kept);
  if (dx != NULL && status == EK_OK) {
    status = ek_op_activation_backward(ek_pass_stream(pass), dx, dy, &kept, kind);
  }
  ek_tensor_free(&kept);
  return status;
}

static ek_status activation_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  return ek__activation_backward(pass, kind_of(self), grad_outputs, grad_inputs);
}

ek_status ek__activate(ek_pass *pass, ek_activation kind, ek_tensor *x) {
  ek_stream *stream = ek_pass_stream(pass);
  if (ek_tensor_holders(x) == 1) return ek_op_activation_forward(stream, x, x, NULL, kind);

  ek_tensor fresh = {0};
  EK_TRY(ek_pass_output(&fresh, pass, x->type, x->rank, x->shape));
  const ek_status status = ek_op_activation_forward(stream, &fresh, x, NULL, kind);
  ek_tensor_free(status == EK_OK ? x : &fresh);
  if (status == EK_OK) *x = fresh;
  return status;
}

enum { CHEAP_INPUT = true, CHEAP_RESULT = false }; /* by what is kept */

static const ek_module_ops activation_ops[] = {
#define OPS(NAME, name, kept)                                                                      \
  [EK_ACTIVATION_##                                                                                \
      NAME] = {EK__LAYER(#name, activation_forward, activation_backward, ek__layer_free),          \
               .formula = activation_formula, .cheap = CHEAP_##kept},
    EK_ACTIVATION_LIST(OPS)};

ek_status ek_activation_create(ek_module **module, ek_activation activation) {
  EK__FAIL_IF((size_t)activation >= sizeof activation_ops / sizeof activation_ops[0],
              EK_ERR_INVALID_ARGUMENT, "activation: unknown activation %d", (int)activation);
  const struct activation made = {.kind = activation};
  return ek__layer_create(module, &made, sizeof made, &activation_ops[activation], 1, 1);
}
