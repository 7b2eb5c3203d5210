/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>
#include <math.h>

#include "core/error.h"
#include "module/layer_internal.h"
#include "module/product.h"

enum { WEIGHT, BIAS };

struct linear {
  ek_module base;
  int64_t in, out;
  bool bias;
  ek_initializer weight_start, bias_start;
};

static ek_status linear_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct linear *m = (const struct linear *)self;
  const int64_t shape[] = {m->out, m->in};
  EK_TRY(ek_declare_parameter(declaration, "weight", 2, shape, m->weight_start));
  if (!m->bias) return EK_OK;
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  return ek_declare_parameter_with(declaration, "bias", 1, shape, m->bias_start, &options);
}

static void linear_formula(const ek_module *self, ek_formula *formula) {
  *formula = (ek_formula){.kind = EK_FORMULA_LINEAR,
                          .weight = WEIGHT,
                          .bias = BIAS,
                          .has_bias = ((const struct linear *)self)->bias};
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
                        ek_initializer weight_start, ek_initializer bias_start) {
  EK__FAIL_IF(in <= 0 || out <= 0, EK_ERR_INVALID_ARGUMENT,
              "linear: sizes are %" PRId64 " -> %" PRId64 ", expected both above 0", in, out);
  const struct linear made = {
      .in = in, .out = out, .bias = bias, .weight_start = weight_start, .bias_start = bias_start};
  return ek__layer_create(module, &made, sizeof made, &linear_ops, 1, 1);
}

ek_status ek_linear_create(ek_module **module, int64_t in, int64_t out, bool bias) {
  const double bound = in > 0 ? 1.0 / sqrt((double)in) : 0.0;
  const ek_initializer start = ek_initializer_uniform(-bound, bound);
  return create(module, in, out, bias, start, start);
}

ek_status ek_linear_create_with(ek_module **module, int64_t in, int64_t out, bool bias,
                                ek_initializer weight) {
  return create(module, in, out, bias, weight, ek_initializer_zeros());
}
