/*
 * product.c - y = x W^T + b and its way back: what a linear does, and a chain in its place.
 */
#include "module/product.h"

#include <inttypes.h>
#include <math.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "core/error.h"
#include "module/layer_internal.h"

ek_status ek__affine_fill(struct ek__affine *affine, const char *kind, int64_t in, int64_t out,
                          bool bias, const ek_initializer *weight) {
  EK__FAIL_IF(in <= 0 || out <= 0, EK_ERR_INVALID_ARGUMENT,
              "%s: sizes are %" PRId64 " -> %" PRId64 ", expected both above 0", kind, in, out);
  const double bound = 1.0 / sqrt((double)in);
  const ek_initializer spread = ek_initializer_uniform(-bound, bound);
  *affine = (struct ek__affine){.in = in,
                                .out = out,
                                .bias = bias,
                                .weight_start = weight == NULL ? spread : *weight,
                                .bias_start = weight == NULL ? spread : ek_initializer_zeros()};
  return EK_OK;
}

ek_status ek__affine_declare(const struct ek__affine *affine, ek_declaration *declaration) {
  const int64_t shape[] = {affine->out, affine->in};
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.frozen = affine->frozen;
  options.no_decay = affine->no_decay;
  options.elementwise = affine->elementwise;
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 2, shape, affine->weight_start,
                                   &options));
  if (!affine->bias) return EK_OK;
  options.no_decay = true;
  return ek_declare_parameter_with(declaration, "bias", 1, shape, affine->bias_start, &options);
}

ek_formula ek__affine_formula(const struct ek__affine *affine) {
  return (ek_formula){
      .kind = EK_FORMULA_LINEAR, .weight = EK__WEIGHT, .bias = EK__BIAS, .has_bias = affine->bias};
}

/* Gets the parameters and checks x; `shape` is a tensor of the output's shape, without memory. */
static ek_status prepare(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                         int64_t columns, ek_tensor *weight, ek_tensor *bias, ek_tensor *shape) {
  EK_TRY(ek_pass_parameter(weight, pass, linear->weight));
  if (linear->has_bias) EK_TRY(ek_pass_parameter(bias, pass, linear->bias));
  EK__FAIL_IF(weight->rank != 2, EK_ERR_SHAPE, "its weight has rank %d, expected 2 (out, in)",
              weight->rank);
  EK_TRY(ek__layer_check(pass, x, weight->shape[1]));
  *shape = *x;
  shape->shape[shape->rank - 1] = columns != 0 ? columns : weight->shape[0];
  return EK_OK;
}

/* It is needed for the gradient of the weight alone. */
static ek_status save_input(const ek_formula *linear, ek_pass *pass, const ek_tensor *x) {
  return ek_pass_trains(pass, linear->weight) ? ek_pass_save(pass, x) : EK_OK;
}

ek_status ek__product_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                              ek_tensor *y, int64_t columns) {
  ek_tensor weight = {0}, bias = {0}, shape;
  EK_TRY(prepare(linear, pass, x, columns, &weight, &bias, &shape));
  EK_TRY(ek__layer_result(y, pass, &shape));
  if (ek_pass_wants_outputs(pass)) {
    EK_TRY(ek_op_linear(ek_pass_stream(pass), y, x, &weight, linear->has_bias ? &bias : NULL));
  }
  return save_input(linear, pass, x);
}

ek_status ek__product_gelu_forward(const ek_formula *linear, ek_pass *pass, const ek_tensor *x,
                                   ek_tensor *pre, ek_tensor *y, bool again) {
  /* Whether pre is needed may decide which operation is joined with GELU, and so the last bits. */
  const bool keep = ek_pass_wants_gradient(pass) || ek_pass_runs_again(pass);
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor weight = {0}, bias = {0}, shape;
  EK_TRY(prepare(linear, pass, x, 0, &weight, &bias, &shape));
  const ek_tensor *added = linear->has_bias ? &bias : NULL;
  if (keep) EK_TRY(ek__layer_result(pre, pass, &shape));
  EK_TRY(ek__layer_result(y, pass, &shape));
  if (keep && again) {
    /* GELU adds the bias as it reads, except to 16 bits, which the product rounds once with it. */
    const ek_tensor *with = ek_type_size(y->type) == 2 ? added : NULL;
    EK_TRY(ek_op_linear(stream, pre, x, &weight, with));
    EK_TRY(ek_op_activation_forward(stream, y, pre, with == NULL ? added : NULL,
                                    EK_ACTIVATION_GELU));
  } else {
    EK_TRY(ek_op_linear_gelu(stream, y, keep ? pre : NULL, x, &weight, added));
  }
  if (!keep) return EK_OK;
  EK_TRY(save_input(linear, pass, x));
  return ek_pass_save(pass, pre);
}

/* dW (+)= dy^T x and db (+)= the column sums of dy; x NULL: dW is not wanted. */
static ek_status add_gradients(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                               const ek_tensor *x, bool bias_done) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor weight = {0}, bias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool with_bias = linear->has_bias && !bias_done && ek_pass_trains(pass, linear->bias);
  if (x != NULL) EK_TRY(ek_pass_gradient(&weight, &weight_beta, pass, linear->weight));
  if (with_bias) EK_TRY(ek_pass_gradient(&bias, &bias_beta, pass, linear->bias));
  if (x != NULL || with_bias) {
    EK_TRY(ek_op_linear_gradients(stream, x != NULL ? &weight : NULL, with_bias ? &bias : NULL, dy,
                                  x, weight_beta, bias_beta));
  }
  EK_TRY(ek_pass_gradient_complete(pass, linear->weight));
  return linear->has_bias ? ek_pass_gradient_complete(pass, linear->bias) : EK_OK;
}

ek_status ek__product_gradients(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                                bool bias_done) {
  ek_tensor x = {0};
  if (!ek_pass_trains(pass, linear->weight)) {
    return add_gradients(linear, pass, dy, NULL, bias_done);
  }
  EK_TRY(ek_pass_take(&x, pass));
  const ek_status status = add_gradients(linear, pass, dy, &x, bias_done);
  ek_tensor_free(&x);
  return status;
}

ek_status ek__product_backward(const ek_formula *linear, ek_pass *pass, const ek_tensor *dy,
                               ek_tensor *dx, bool bias_done) {
  /* The parameters first: their reduction over the devices can start, and x is not needed beside
   * dx, which is as large. */
  EK_TRY(ek__product_gradients(linear, pass, dy, bias_done));
  if (dx == NULL) return EK_OK;
  ek_tensor weight = {0}, shape = *dy;
  EK_TRY(ek_pass_parameter(&weight, pass, linear->weight));
  shape.shape[shape.rank - 1] = weight.shape[1];
  EK_TRY(ek__layer_result(dx, pass, &shape));
  return ek_op_linear_backward(ek_pass_stream(pass), dx, dy, &weight);
}
