/*
 * linear.c - y = x W^T + b.
 */
#include <evenkeel/linear.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/products.h>

#include "module/layer_internal.h"

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
  return ek_declare_parameter(declaration, "bias", 1, shape, m->bias_start);
}

static ek_status linear_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const struct linear *m = (const struct linear *)self;
  const ek_tensor *x = &inputs[0];
  EK_TRY(ek__layer_check(self, pass, x, m->in));

  ek_tensor weight = {0}, bias = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  if (m->bias) EK_TRY(ek_pass_parameter(&bias, pass, BIAS));

  ek_tensor shape = *x;
  shape.shape[shape.rank - 1] = m->out;
  EK_TRY(ek__layer_result(&outputs[0], pass, &shape));
  EK_TRY(ek_op_linear(ek_pass_stream(pass), &outputs[0], x, &weight, m->bias ? &bias : NULL));
  return ek_pass_save(pass, x);
}

/* dW (+)= dy^T x and db (+)= the column sums of dy. */
static ek_status parameter_gradients(const struct linear *m, ek_pass *pass, const ek_tensor *dy,
                                     const ek_tensor *x) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor gradient = {0};
  double beta = 0;
  EK_TRY(ek_pass_gradient(&gradient, &beta, pass, WEIGHT));
  EK_TRY(ek_op_matmul(stream, &gradient, dy, true, x, false, beta));
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  if (!m->bias) return EK_OK;
  EK_TRY(ek_pass_gradient(&gradient, &beta, pass, BIAS));
  EK_TRY(ek_op_column_sum(stream, &gradient, dy, beta));
  return ek_pass_gradient_complete(pass, BIAS);
}

static ek_status linear_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct linear *m = (const struct linear *)self;
  const ek_tensor *dy = &grad_outputs[0];
  ek_tensor x = {0};
  EK_TRY(ek_pass_take(&x, pass));
  /* The parameters first: their reduction over the devices can start, and x is not needed beside
   * dx, which is as large. */
  ek_tensor shape = x;
  const ek_status status = parameter_gradients(m, pass, dy, &x);
  ek_tensor_free(&x);
  if (status != EK_OK || grad_inputs == NULL) return status;

  ek_tensor weight = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  EK_TRY(ek__layer_result(&grad_inputs[0], pass, &shape));
  return ek_op_matmul(ek_pass_stream(pass), &grad_inputs[0], dy, false, &weight, false, 0.0);
}

static const ek_module_ops linear_ops = {.size = sizeof(ek_module_ops),
                                         .kind = "linear",
                                         .parameters = linear_parameters,
                                         .forward = linear_forward,
                                         .backward = linear_backward,
                                         .free = ek__layer_free};

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
