/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>

#include "core/error.h"
#include "module/layer_internal.h"
#include "module/product.h"

struct linear {
  ek_module base;
  struct ek__affine affine;
  int64_t columns; /* of the output, where its rows may be longer than W has rows; else 0 */
};

static ek_status linear_parameters(const ek_module *self, ek_declaration *declaration) {
  return ek__affine_declare(&((const struct linear *)self)->affine, declaration);
}

/* Nothing is joined with longer rows. */
static void linear_formula(const ek_module *self, ek_formula *formula) {
  const struct linear *m = (const struct linear *)self;
  if (m->columns == 0) *formula = ek__affine_formula(&m->affine);
}

static ek_status linear_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const struct linear *m = (const struct linear *)self;
  const ek_formula formula = ek__affine_formula(&m->affine);
  return ek__product_forward(&formula, pass, &inputs[0], &outputs[0], m->columns);
}

static ek_status linear_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const ek_formula formula = ek__affine_formula(&((const struct linear *)self)->affine);
  return ek__product_backward(&formula, pass, &grad_outputs[0], grad_inputs, false);
}

static const ek_module_ops linear_ops = {
    EK__LAYER("linear", linear_forward, linear_backward, ek__layer_free),
    .parameters = linear_parameters, .formula = linear_formula};

static ek_status create(ek_module **module, int64_t in, int64_t out, bool bias,
                        const ek_initializer *weight, int64_t columns) {
  struct linear made = {.columns = columns};
  EK_TRY(ek__affine_fill(&made.affine, linear_ops.kind, in, out, bias, weight));
  return ek__layer_create(module, &made, sizeof made, &linear_ops, 1, 1);
}

ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out, bool bias) {
  return create(module, in, out, bias, NULL, 0);
}

ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out, bool bias,
                                ek_initializer weight) {
  return create(module, in, out, bias, &weight, 0);
}

ek_status ek_linear_create_padded(ek_module **module, int64_t in, int64_t out, bool bias,
                                  ek_initializer weight, int64_t columns) {
  EK__FAIL_IF(columns < out, EK_ERR_INVALID_ARGUMENT,
              "linear: rows of %" PRId64 " columns do not hold %" PRId64, columns, out);
  return create(module, in, out, bias, &weight, columns);
}
