/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>

#include "core/error.h"
#include "core/options.h"
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

static ek_status check_options(const ek_linear_options *o, int64_t out) {
  EK__FAIL_IF(o->columns != 0 && o->columns < out, EK_ERR_INVALID_ARGUMENT,
              "linear: rows of %" PRId64 " columns do not hold %" PRId64, o->columns, out);
  EK__FAIL_IF(o->bias_start != NULL && !o->bias, EK_ERR_INVALID_ARGUMENT,
              "linear: bias_start is given, but bias is false");
  return EK_OK;
}

ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out,
                                const ek_linear_options *options) {
  ek_linear_options o = EK_LINEAR_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_linear_options"));
  EK_TRY(check_options(&o, out));
  struct linear made = {.columns = o.columns};
  EK_TRY(ek__affine_fill(&made.affine, linear_ops.kind, in, out, o.bias, o.weight_start));
  made.affine.frozen = o.frozen;
  made.affine.no_decay = o.no_decay;
  made.affine.elementwise = o.elementwise;
  if (o.bias_start != NULL) made.affine.bias_start = *o.bias_start;
  return ek__layer_create(module, &made, sizeof made, &linear_ops, 1, 1);
}

ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out, bool bias) {
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  options.bias = bias;
  return ek_linear_create_with(module, in, out, &options);
}

EK__OPTIONS_INIT(ek_linear_options, EK_LINEAR_OPTIONS_INIT)
