/*
 * layer_norm.c - layer normalisation over the last dimension.
 */
#include <evenkeel/layer_norm.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/normalize.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"
#include "module/residual_norm.h"

enum { WEIGHT, BIAS };

struct layer_norm {
  ek_module base;
  int64_t width;
  double epsilon;
  bool frozen;
  ek_initializer weight_start, bias_start;
};

static ek_status layer_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct layer_norm *m = (const struct layer_norm *)self;
  const int64_t shape[] = {m->width};
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.no_decay = true;
  options.frozen = m->frozen;
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 1, shape, m->weight_start, &options));
  return ek_declare_parameter_with(declaration, "bias", 1, shape, m->bias_start, &options);
}

/* x, or x + residual written to sum: y is its layer norm. */
static ek_status normalize(ek_pass *pass, double epsilon, const ek_tensor *x,
                           const ek_tensor *residual, ek_tensor *sum, ek_tensor *y) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor weight = {0}, bias = {0}, mean = {0}, rstd = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  EK_TRY(ek__layer_check(pass, x, weight.shape[0]));
  EK_TRY(ek__layer_result(y, pass, x));

  const int64_t rows[] = {ek_tensor_count(x) / weight.shape[0]};
  const ek_type sums = ek_type_of_sums(ek_pass_type(pass));
  ek_status status = ek_pass_output(&mean, pass, sums, 1, rows);
  if (status != EK_OK) goto cleanup;
  EK_TRY_GOTO(status, ek_pass_output(&rstd, pass, sums, 1, rows), cleanup);
  EK_TRY_GOTO(status,
              residual == NULL
                  ? ek_op_layer_norm_forward(stream, y, &mean, &rstd, x, &weight, &bias, epsilon)
                  : ek_op_add_layer_norm_forward(stream, y, sum, &mean, &rstd, x, residual, &weight,
                                                 &bias, epsilon),
              cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, residual == NULL ? x : sum), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &mean), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &rstd), cleanup);
cleanup:
  ek_tensor_free(&rstd);
  ek_tensor_free(&mean);
  return status;
}

ek_status ek__layer_norm_forward(ek_pass *pass, double epsilon, ek_tensor *sum,
                                 const ek_tensor *residual, ek_tensor *y) {
  if (residual == NULL) return normalize(pass, epsilon, sum, NULL, NULL, y);
  if (ek_tensor_holders(sum) == 1) return normalize(pass, epsilon, sum, residual, sum, y);

  ek_tensor fresh = {0};
  EK_TRY(ek__layer_result(&fresh, pass, sum));
  const ek_status status = normalize(pass, epsilon, sum, residual, &fresh, y);
  ek_tensor_free(status == EK_OK ? sum : &fresh);
  if (status == EK_OK) *sum = fresh;
  return status;
}

static ek_status layer_norm_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  ek_tensor x = inputs[0];
  return ek__layer_norm_forward(pass, ((const struct layer_norm *)self)->epsilon, &x, NULL,
                                &outputs[0]);
}

enum { SAVED_X, SAVED_MEAN, SAVED_RSTD, SAVED };

static ek_status gradients(ek_pass *pass, const ek_tensor *dy, const ek_tensor *residual,
                           const ek_tensor *saved, ek_tensor *dx) {
  ek_tensor weight = {0}, dweight = {0}, dbias = {0};
  double weight_scale = 0, bias_scale = 0;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dweight, &weight_scale, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dbias, &bias_scale, pass, BIAS));
  if (dx != NULL) EK_TRY(ek__layer_result(dx, pass, &saved[SAVED_X]));
  EK_TRY(ek_op_layer_norm_backward(ek_pass_stream(pass), dx, &dweight, &dbias, dy, &saved[SAVED_X],
                                   &saved[SAVED_MEAN], &saved[SAVED_RSTD], &weight, residual,
                                   weight_scale, bias_scale));
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  return ek_pass_gradient_complete(pass, BIAS);
}

ek_status ek__layer_norm_backward(ek_pass *pass, const ek_tensor *dy, const ek_tensor *residual,
                                  ek_tensor *dx) {
  ek_tensor saved[SAVED];
  EK_TRY(ek__layer_take(saved, pass, SAVED));
  const ek_status status = gradients(pass, dy, residual, saved, dx);
  ek__free_all(saved, SAVED);
  return status;
}

static ek_status layer_norm_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  return ek__layer_norm_backward(pass, &grad_outputs[0], NULL, grad_inputs);
}

static const ek_module_ops layer_norm_ops = {
    EK__LAYER("layer_norm", layer_norm_forward, layer_norm_backward, ek__layer_free),
    .parameters = layer_norm_parameters, .cheap = true};

ek_status ek_layer_norm_create_with(ek_module **module, int64_t width,
                                    const ek_layer_norm_options *options) {
  ek_layer_norm_options o = EK_LAYER_NORM_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_layer_norm_options"));
  EK__FAIL_IF(width <= 0, EK_ERR_INVALID_ARGUMENT,
              "layer_norm: width is %" PRId64 ", expected above 0", width);
  EK__FAIL_IF(!(o.epsilon > 0) || isinf(o.epsilon), EK_ERR_INVALID_ARGUMENT,
              "layer_norm: epsilon is %g, expected above 0", o.epsilon);
  const struct layer_norm made = {
      .width = width,
      .epsilon = o.epsilon,
      .frozen = o.frozen,
      .weight_start = o.weight_start == NULL ? ek_initializer_ones() : *o.weight_start,
      .bias_start = o.bias_start == NULL ? ek_initializer_zeros() : *o.bias_start};
  return ek__layer_create(module, &made, sizeof made, &layer_norm_ops, 1, 1);
}

ek_status ek_layer_norm_create(ek_module **module, int64_t width, double epsilon) {
  ek_layer_norm_options options = EK_LAYER_NORM_OPTIONS_INIT;
  options.epsilon = epsilon;
  return ek_layer_norm_create_with(module, width, &options);
}

EK__OPTIONS_INIT(ek_layer_norm_options, EK_LAYER_NORM_OPTIONS_INIT)
