/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/products.h>

#include "module/layer_internal.h"

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

/* Checks x and gets the parameters; `shape` is a tensor of the output's shape, without memory. */
static ek_status prepare(const ek_module *self, ek_pass *pass, const ek_tensor *x,
                         ek_tensor *weight, ek_tensor *bias, ek_tensor *shape) {
  const struct linear *m = (const struct linear *)self;
  EK_TRY(ek__layer_check(pass, x, m->in));
  EK_TRY(ek_pass_parameter(weight, pass, EK__LINEAR_WEIGHT));
  if (m->bias) EK_TRY(ek_pass_parameter(bias, pass, EK__LINEAR_BIAS));
  *shape = *x;
  shape->shape[shape->rank - 1] = m->out;
  return EK_OK;
}

static ek_status linear_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const bool has_bias = ((const struct linear *)self)->bias;
  ek_tensor weight = {0}, bias = {0}, shape;
  EK_TRY(prepare(self, pass, &inputs[0], &weight, &bias, &shape));
  EK_TRY(ek__layer_result(&outputs[0], pass, &shape));
  EK_TRY(ek_op_linear(ek_pass_stream(pass), &outputs[0], &inputs[0], &weight,
                      has_bias ? &bias : NULL));
  return ek_pass_save(pass, &inputs[0]);
}

static ek_status gelu_of_linear(const ek_module *self, ek_pass *pass, const ek_tensor *x,
                                ek_tensor *pre, ek_tensor *y) {
  const bool has_bias = ((const struct linear *)self)->bias, keep = ek_pass_wants_gradient(pass);
  ek_tensor weight = {0}, bias = {0}, shape;
  EK_TRY(prepare(self, pass, x, &weight, &bias, &shape));
  if (keep) EK_TRY(ek__layer_result(pre, pass, &shape));
  EK_TRY(ek__layer_result(y, pass, &shape));
  EK_TRY(ek_op_linear_gelu(ek_pass_stream(pass), y, keep ? pre : NULL, x, &weight,
                           has_bias ? &bias : NULL));
  if (!keep) return EK_OK;
  EK_TRY(ek_pass_save(pass, x));
  return ek_pass_save(pass, pre);
}

ek_status ek__linear_gelu_forward(const ek_module *self, ek_pass *pass, const ek_tensor *x,
                                  ek_tensor *y) {
  ek_tensor pre = {0};
  const ek_status status = gelu_of_linear(self, pass, x, &pre, y);
  ek_tensor_free(&pre);
  return status;
}

/* dW (+)= dy^T x and db (+)= the column sums of dy. */
static ek_status add_gradients(const struct linear *m, ek_pass *pass, const ek_tensor *dy,
                               const ek_tensor *x, bool bias_done) {
  ek_tensor weight = {0}, bias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool with_bias = m->bias && !bias_done;
  EK_TRY(ek_pass_gradient(&weight, &weight_beta, pass, EK__LINEAR_WEIGHT));
  if (with_bias) EK_TRY(ek_pass_gradient(&bias, &bias_beta, pass, EK__LINEAR_BIAS));
  EK_TRY(ek_op_linear_gradients(ek_pass_stream(pass), &weight, weight_beta,
                                with_bias ? &bias : NULL, bias_beta, dy, x));
  EK_TRY(ek_pass_gradient_complete(pass, EK__LINEAR_WEIGHT));
  return m->bias ? ek_pass_gradient_complete(pass, EK__LINEAR_BIAS) : EK_OK;
}

ek_status ek__linear_gradients(const ek_module *self, ek_pass *pass, const ek_tensor *dy,
                               bool bias_done) {
  ek_tensor x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  const ek_status status = add_gradients((const struct linear *)self, pass, dy, &x, bias_done);
  ek_tensor_free(&x);
  return status;
}

ek_status ek__linear_backward(const ek_module *self, ek_pass *pass, const ek_tensor *dy,
                              ek_tensor *dx, bool bias_done) {
  /* The parameters first: their reduction over the devices can start, and x is not needed beside
   * dx, which is as large. */
  EK_TRY(ek__linear_gradients(self, pass, dy, bias_done));
  if (dx == NULL) return EK_OK;
  ek_tensor weight = {0}, shape = *dy;
  shape.shape[shape.rank - 1] = ((const struct linear *)self)->in;
  EK_TRY(ek_pass_parameter(&weight, pass, EK__LINEAR_WEIGHT));
  EK_TRY(ek__layer_result(dx, pass, &shape));
  return ek_op_matmul(ek_pass_stream(pass), dx, dy, false, &weight, false, 0.0);
}

static ek_status linear_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  return ek__linear_backward(self, pass, grad_outputs, grad_inputs, false);
}

static const ek_module_ops linear_ops = {.size = sizeof(ek_module_ops),
                                         .kind = "linear",
                                         .parameters = linear_parameters,
                                         .forward = linear_forward,
                                         .backward = linear_backward,
                                         .free = ek__layer_free,
                                         .types = EK_TYPES_F32 | EK_TYPES_F64};

bool ek__is_linear(const ek_module *module) { return module->ops == &linear_ops; }
bool ek__linear_has_bias(const ek_module *module) { return ((const struct linear *)module)->bias; }

static ek_status create(ek_module **module, int64_t in, int64_t out, bool bias,
                        ek_initializer weight_start, ek_initializer bias_start) {
  if (in <= 0 || out <= 0) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "linear: sizes are %" PRId64 " -> %" PRId64 ", expected both above 0", in,
                        out);
  }
  ek_status status = EK_OK;
  struct linear *m = ek__layer_create(&status, module, sizeof *m, &linear_ops, 1, 1);
  if (m == NULL) return status;
  m->in = in;
  m->out = out;
  m->bias = bias;
  m->weight_start = weight_start;
  m->bias_start = bias_start;
  *module = &m->base;
  return EK_OK;
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
