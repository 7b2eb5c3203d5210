/*
 * layer_norm.c - layer normalisation over the last dimension; RMSNorm is one that saves no mean.
 */
#include <evenkeel/layer_norm.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/normalize.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

enum { WEIGHT, BIAS };

struct layer_norm {
  ek_module base;
  int64_t width;
  double epsilon;
  bool frozen, bias, rms;
  ek_initializer weight_start, bias_start;
};

static ek_status layer_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct layer_norm *m = (const struct layer_norm *)self;
  const int64_t shape[] = {m->width};
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  options.frozen = m->frozen;
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 1, shape, m->weight_start, &options));
  if (!m->bias) return EK_OK;
  return ek_declare_parameter_with(declaration, "bias", 1, shape, m->bias_start, &options);
}

static void layer_norm_formula(const ek_module *self, ek_formula *formula) {
  const struct layer_norm *m = (const struct layer_norm *)self;
  *formula = (ek_formula){.kind = m->rms ? EK_FORMULA_RMS_NORM : EK_FORMULA_NORM,
                          .weight = WEIGHT,
                          .bias = BIAS,
                          .has_bias = m->bias,
                          .epsilon = m->epsilon};
}

/* Whether a mean is taken, and saved for the backward. */
static bool has_mean(const ek_formula *norm) { return norm->kind == EK_FORMULA_NORM; }

/* x, or x + residual written to sum: y is its norm. */
static ek_status normalize(const ek_formula *norm, ek_pass *pass, const ek_tensor *x,
                           const ek_tensor *residual, ek_tensor *sum, ek_tensor *y) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor weight = {0}, bias = {0}, made = {0}, rstd = {0};
  ek_tensor *mean = has_mean(norm) ? &made : NULL;
  EK_TRY(ek_pass_parameter(&weight, pass, norm->weight));
  if (norm->has_bias) EK_TRY(ek_pass_parameter(&bias, pass, norm->bias));
  EK__FAIL_IF(weight.rank != 1, EK_ERR_SHAPE, "its weight has rank %d, expected 1", weight.rank);
  EK_TRY(ek__layer_check(pass, x, weight.shape[0]));
  EK_TRY(ek__layer_result(y, pass, x));

  const int64_t rows[] = {ek_tensor_count(x) / weight.shape[0]};
  const ek_tensor *beta = norm->has_bias ? &bias : NULL;
  const ek_type sums = ek_type_of_sums(ek_pass_type(pass));
  ek_status status = EK_OK;
  if (mean != NULL) EK_TRY_GOTO(status, ek_pass_output(mean, pass, sums, 1, rows), cleanup);
  EK_TRY_GOTO(status, ek_pass_output(&rstd, pass, sums, 1, rows), cleanup);
  EK_TRY_GOTO(status,
              residual == NULL ? ek_op_layer_norm_forward(stream, y, mean, &rstd, x, &weight, beta,
                                                          norm->epsilon)
                               : ek_op_add_layer_norm_forward(
                                     stream, &(ek_add_layer_norm_args){.y = y,
                                                                       .sum = sum,
                                                                       .mean = mean,
                                                                       .rstd = &rstd,
                                                                       .x = x,
                                                                       .residual = residual,
                                                                       .weight = &weight,
                                                                       .bias = beta,
                                                                       .epsilon = norm->epsilon}),
              cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, residual == NULL ? x : sum), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &rstd), cleanup);
  if (mean != NULL) EK_TRY_GOTO(status, ek_pass_save(pass, mean), cleanup);
cleanup:
  ek_tensor_free(&rstd);
  ek_tensor_free(&made);
  return status;
}

ek_status ek__norm_forward(const ek_formula *norm, ek_pass *pass, ek_tensor *sum,
                           const ek_tensor *residual, ek_tensor *y) {
  if (residual == NULL) return normalize(norm, pass, sum, NULL, NULL, y);
  if (ek_tensor_holders(sum) == 1) return normalize(norm, pass, sum, residual, sum, y);

  ek_tensor fresh = {0};
  EK_TRY(ek__layer_result(&fresh, pass, sum));
  const ek_status status = normalize(norm, pass, sum, residual, &fresh, y);
  ek_tensor_free(status == EK_OK ? sum : &fresh);
  if (status == EK_OK) *sum = fresh;
  return status;
}

ek_status ek__norm_forward_over(const ek_formula *norm, ek_pass *pass, ek_tensor *x,
                                const ek_tensor *residual, ek_tensor *y) {
  return normalize(norm, pass, x, residual, x, y);
}

static ek_status layer_norm_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  ek_formula norm;
  ek_tensor x = inputs[0];
  layer_norm_formula(self, &norm);
  return ek__norm_forward(&norm, pass, &x, NULL, &outputs[0]);
}

enum { SAVED_X, SAVED_RSTD, SAVED_MEAN, SAVED };

static ek_status gradients(const ek_formula *norm, ek_pass *pass, const ek_tensor *dy,
                           const ek_tensor *residual, const ek_tensor *saved, ek_tensor *dx) {
  ek_tensor weight = {0}, dweight = {0}, dbias = {0};
  double weight_beta = 0, bias_beta = 0;
  EK_TRY(ek_pass_parameter(&weight, pass, norm->weight));
  const bool with_weight = ek_pass_trains(pass, norm->weight);
  const bool with_bias = norm->has_bias && ek_pass_trains(pass, norm->bias);
  if (with_weight) EK_TRY(ek_pass_gradient(&dweight, &weight_beta, pass, norm->weight));
  if (with_bias) EK_TRY(ek_pass_gradient(&dbias, &bias_beta, pass, norm->bias));
  if (dx != NULL) EK_TRY(ek__layer_result(dx, pass, &saved[SAVED_X]));
  EK_TRY(ek_op_layer_norm_backward(
      ek_pass_stream(pass),
      &(ek_layer_norm_backward_args){.dx = dx,
                                     .dweight = with_weight ? &dweight : NULL,
                                     .dbias = with_bias ? &dbias : NULL,
                                     .dy = dy,
                                     .x = &saved[SAVED_X],
                                     .mean = has_mean(norm) ? &saved[SAVED_MEAN] : NULL,
                                     .rstd = &saved[SAVED_RSTD],
                                     .weight = &weight,
                                     .residual = residual,
                                     .weight_beta = weight_beta,
                                     .bias_beta = bias_beta}));
  EK_TRY(ek_pass_gradient_complete(pass, norm->weight));
  return norm->has_bias ? ek_pass_gradient_complete(pass, norm->bias) : EK_OK;
}

ek_status ek__norm_backward(const ek_formula *norm, ek_pass *pass, const ek_tensor *dy,
                            const ek_tensor *residual, ek_tensor *dx) {
  ek_tensor saved[SAVED];
  const size_t count = has_mean(norm) ? SAVED : SAVED_MEAN;
  EK_TRY(ek__layer_take(saved, pass, count));
  const ek_status status = gradients(norm, pass, dy, residual, saved, dx);
  ek__free_all(saved, count);
  return status;
}

static ek_status layer_norm_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_formula norm;
  layer_norm_formula(self, &norm);
  return ek__norm_backward(&norm, pass, &grad_outputs[0], NULL, grad_inputs);
}

static const ek_module_ops layer_norm_ops = {
    EK__LAYER("layer_norm", layer_norm_forward, layer_norm_backward, ek__layer_free),
    .parameters = layer_norm_parameters, .formula = layer_norm_formula, .cheap = true};

static const ek_module_ops rms_norm_ops = {
    EK__LAYER("rms_norm", layer_norm_forward, layer_norm_backward, ek__layer_free),
    .parameters = layer_norm_parameters, .formula = layer_norm_formula, .cheap = true};

ek_status ek_layer_norm_create_with(ek_module **module, int64_t width,
                                    const ek_layer_norm_options *options) {
  ek_layer_norm_options o = EK_LAYER_NORM_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_layer_norm_options"));
  const ek_module_ops *ops = o.rms ? &rms_norm_ops : &layer_norm_ops;
  const char *name = ops->kind;
  EK__FAIL_IF(width <= 0, EK_ERR_INVALID_ARGUMENT,
              "%s: width is %" PRId64 ", expected above 0", name, width);
  EK__FAIL_IF(!(o.epsilon > 0) || isinf(o.epsilon), EK_ERR_INVALID_ARGUMENT,
              "%s: epsilon is %g, expected above 0", name, o.epsilon);
  EK__FAIL_IF(o.bias_start != NULL && !o.bias, EK_ERR_INVALID_ARGUMENT,
              "%s: bias_start is given, but bias is false", name);
  const struct layer_norm made = {
      .width = width,
      .epsilon = o.epsilon,
      .frozen = o.frozen,
      .bias = o.bias,
      .rms = o.rms,
      .weight_start = o.weight_start == NULL ? ek_initializer_ones() : *o.weight_start,
      .bias_start = o.bias_start == NULL ? ek_initializer_zeros() : *o.bias_start};
  return ek__layer_create(module, &made, sizeof made, ops, 1, 1);
}

ek_status ek_layer_norm_create(ek_module **module, int64_t width, double epsilon) {
  ek_layer_norm_options options = EK_LAYER_NORM_OPTIONS_INIT;
  options.epsilon = epsilon;
  return ek_layer_norm_create_with(module, width, &options);
}

ek_status ek_rms_norm_create(ek_module **module, int64_t width, double epsilon) {
  ek_layer_norm_options options = EK_LAYER_NORM_OPTIONS_INIT;
  options.epsilon = epsilon;
  options.rms = true;
  options.bias = false;
  return ek_layer_norm_create_with(module, width, &options);
}

EK__OPTIONS_INIT(ek_layer_norm_options, EK_LAYER_NORM_OPTIONS_INIT)
