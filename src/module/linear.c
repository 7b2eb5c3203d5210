/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>

#include <evenkeel/products.h>

#include "core/error.h"
#include "module/layer_internal.h"
#include "module/product.h"

struct linear {
  ek_module base;
  struct ek__affine affine;
  int64_t columns; /* of the output */
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
  struct linear made = {.columns = out};
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

/* ---- rows that are longer ---- */

static ek_status padded_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const struct linear *m = (const struct linear *)self;
  ek_tensor weight = {0}, bias = {0}, shape = inputs[0];
  EK_TRY(ek_pass_parameter(&weight, pass, EK__WEIGHT));
  if (m->affine.bias) EK_TRY(ek_pass_parameter(&bias, pass, EK__BIAS));
  EK_TRY(ek__layer_check(pass, &inputs[0], m->affine.in));
  shape.shape[shape.rank - 1] = m->columns;
  EK_TRY(ek__layer_result(&outputs[0], pass, &shape));
  EK_TRY(ek_op_padded_linear(ek_pass_stream(pass), &outputs[0], &inputs[0], &weight,
                             m->affine.bias ? &bias : NULL));
  return ek_pass_save(pass, &inputs[0]);
}

static ek_status padded_gradients(const struct linear *m, ek_pass *pass, const ek_tensor *dy,
                                  const ek_tensor *x) {
  ek_tensor weight = {0}, bias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool with_bias = m->affine.bias && ek_pass_trains(pass, EK__BIAS);
  if (with_bias) EK_TRY(ek_pass_gradient(&bias, &bias_beta, pass, EK__BIAS));
  if (with_bias || ek_pass_trains(pass, EK__WEIGHT)) {
    EK_TRY(ek_pass_gradient(&weight, &weight_beta, pass, EK__WEIGHT));
    EK_TRY(ek_op_padded_linear_gradients(ek_pass_stream(pass), &weight, weight_beta,
                                         with_bias ? &bias : NULL, bias_beta, dy, x));
  }
  EK_TRY(ek_pass_gradient_complete(pass, EK__WEIGHT));
  return m->affine.bias ? ek_pass_gradient_complete(pass, EK__BIAS) : EK_OK;
}

static ek_status padded_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct linear *m = (const struct linear *)self;
  ek_tensor x = {0}, weight = {0}, shape = grad_outputs[0];
  EK_TRY(ek_pass_take(&x, pass));
  const ek_status status = padded_gradients(m, pass, &grad_outputs[0], &x);
  ek_tensor_free(&x);
  if (status != EK_OK || grad_inputs == NULL) return status;
  EK_TRY(ek_pass_parameter(&weight, pass, EK__WEIGHT));
  shape.shape[shape.rank - 1] = m->affine.in;
  EK_TRY(ek__layer_result(&grad_inputs[0], pass, &shape));
  return ek_op_padded_linear_backward(ek_pass_stream(pass), &grad_inputs[0], &grad_outputs[0],
                                      &weight);
}

/* No formula: nothing is joined with it. */
static const ek_module_ops padded_ops = {
    EK__LAYER("linear", padded_forward, padded_backward, ek__layer_free),
    .parameters = linear_parameters};

ek_status ek_linear_create_padded(ek_module **module, int64_t in, int64_t out, bool bias,
                                  ek_initializer weight, int64_t columns) {
  struct linear made = {.columns = columns};
  EK_TRY(ek__affine_fill(&made.affine, padded_ops.kind, in, out, bias, &weight));
  EK__FAIL_IF(columns < out, EK_ERR_INVALID_ARGUMENT,
              "linear: rows of %" PRId64 " columns do not hold %" PRId64, columns, out);
  return ek__layer_create(module, &made, sizeof made, &padded_ops, 1, 1);
}
