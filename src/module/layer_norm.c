/*
 * layer_norm.c - layer normalisation over the last dimension.
 */
#include <evenkeel/layer_norm.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/normalize.h>

#include "module/layer_internal.h"

enum { WEIGHT, BIAS };

struct layer_norm {
  ek_module base;
  int64_t width;
  double epsilon;
};

static ek_status layer_norm_parameters(const ek_module *self, ek_declaration *declaration) {
  const int64_t shape[] = {((const struct layer_norm *)self)->width};
  EK_TRY(ek_declare_parameter(declaration, "weight", 1, shape, ek_initializer_ones()));
  return ek_declare_parameter(declaration, "bias", 1, shape, ek_initializer_zeros());
}

static ek_status layer_norm_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                    ek_tensor *outputs) {
  const struct layer_norm *m = (const struct layer_norm *)self;
  const ek_tensor *x = &inputs[0];
  EK_TRY(ek__layer_check(self, pass, x, m->width));

  ek_tensor weight = {0}, bias = {0}, mean = {0}, rstd = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  EK_TRY(ek__layer_result(&outputs[0], pass, x));

  const int64_t rows[] = {ek_tensor_count(x) / m->width};
  ek_status status = ek_pass_output(&mean, pass, ek_pass_type(pass), 1, rows);
  if (status != EK_OK) goto cleanup;
  EK_TRY_GOTO(status, ek_pass_output(&rstd, pass, ek_pass_type(pass), 1, rows), cleanup);
  EK_TRY_GOTO(status,
              ek_op_layer_norm_forward(ek_pass_stream(pass), &outputs[0], &mean, &rstd, x, &weight,
                                       &bias, m->epsilon),
              cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, x), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &mean), cleanup);
  EK_TRY_GOTO(status, ek_pass_save(pass, &rstd), cleanup);
cleanup:
  ek_tensor_free(&rstd);
  ek_tensor_free(&mean);
  return status;
}

struct saved {
  ek_tensor x, mean, rstd;
};

static ek_status gradients(ek_pass *pass, const ek_tensor *dy, const struct saved *saved,
                           ek_tensor *dx) {
  ek_tensor weight = {0}, dweight = {0}, dbias = {0};
  double weight_scale = 0, bias_scale = 0;
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dweight, &weight_scale, pass, WEIGHT));
  EK_TRY(ek_pass_gradient(&dbias, &bias_scale, pass, BIAS));
  if (dx != NULL) EK_TRY(ek__layer_result(dx, pass, &saved->x));
  EK_TRY(ek_op_layer_norm_backward(ek_pass_stream(pass), dx, NULL, &dweight, weight_scale, &dbias,
                                   bias_scale, dy, &saved->x, &saved->mean, &saved->rstd, &weight));
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  return ek_pass_gradient_complete(pass, BIAS);
}

static ek_status layer_norm_backward(const ek_module *self, ek_pass *pass,
                                     const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  (void)self;
  struct saved saved = {{0}, {0}, {0}};
  ek_status status = ek_pass_take(&saved.rstd, pass);
  if (status == EK_OK) status = ek_pass_take(&saved.mean, pass);
  if (status == EK_OK) status = ek_pass_take(&saved.x, pass);
  if (status == EK_OK) status = gradients(pass, &grad_outputs[0], &saved, grad_inputs);
  ek_tensor_free(&saved.rstd);
  ek_tensor_free(&saved.mean);
  ek_tensor_free(&saved.x);
  return status;
}

static const ek_module_ops layer_norm_ops = {.size = sizeof(ek_module_ops),
                                             .kind = "layer_norm",
                                             .parameters = layer_norm_parameters,
                                             .forward = layer_norm_forward,
                                             .backward = layer_norm_backward,
                                             .free = ek__layer_free};

ek_status ek_layer_norm_create(ek_module **module, int64_t width, double epsilon) {
  if (width <= 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "layer_norm: width is %" PRId64 ", expected above 0", width);
  }
  if (!(epsilon > 0) || isinf(epsilon)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "layer_norm: epsilon is %g, expected above 0",
                        epsilon);
  }
  ek_status status = EK_OK;
  struct layer_norm *m = ek__layer_create(&status, module, sizeof *m, &layer_norm_ops, 1, 1);
  if (m == NULL) return status;
  m->width = width;
  m->epsilon = epsilon;
  *module = &m->base;
  return EK_OK;
}
