/*
 * conv2d.c - convolution of pictures.
 *
 * Backward computes the gradients of the parameters first: their reduction over the devices can
 * start, and x is not needed beside dx, which is as large. Where a batch norm sums over the devices
 * they come last: the device computes them while it waits for that sum. Where the weight is frozen
 * only the shape of x is kept, as that of a tensor without elements.
 */
#include <evenkeel/conv2d.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/options.h"
#include "module/layer_internal.h"

enum { WEIGHT, BIAS };

struct conv2d {
  ek_module base;
  int64_t in, out;
  ek_convolution convolution;
  bool bias, frozen, no_decay;
  ek_initializer weight_start, bias_start;
};

static ek_status conv2d_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct conv2d *m = (const struct conv2d *)self;
  const ek_convolution *c = &m->convolution;
  const int64_t shape[] = {m->out, m->in / c->groups, c->kernel[0], c->kernel[1]};
  ek_parameter_options options = EK_PARAMETER_OPTIONS_INIT;
  options.frozen = m->frozen;
  options.no_decay = m->no_decay;
  EK_TRY(ek_declare_parameter_with(declaration, "weight", 4, shape, m->weight_start, &options));
  if (!m->bias) return EK_OK;
  options.no_decay = true;
  return ek_declare_parameter_with(declaration, "bias", 1, shape, m->bias_start, &options);
}

/* For pictures of this shape; absent where none is needed. */
static ek_status workspace(ek_tensor *tensor, const struct conv2d *m, ek_pass *pass,
                           const int64_t x_shape[4], bool back) {
  int64_t forward = 0, backward = 0;
  EK_TRY(ek_convolution_workspace(&forward, &backward, x_shape, m->out, ek_pass_type(pass),
                                  &m->convolution));
  const int64_t elements = back ? backward : forward;
  if (elements == 0) return EK_OK;
  return ek_pass_workspace(tensor, pass, ek_type_of_sums(ek_pass_type(pass)), 1, &elements);
}

static const ek_tensor *or_null(const ek_tensor *tensor) {
  return ek_tensor_exists(tensor) ? tensor : NULL;
}
static ek_tensor *to_or_null(ek_tensor *tensor) { return ek_tensor_exists(tensor) ? tensor : NULL; }

/* ---- forward ---- */

static ek_status save_input(ek_pass *pass, const ek_tensor *x) {
  if (ek_pass_trains(pass, WEIGHT)) return ek_pass_save(pass, x);
  if (!ek_pass_wants_gradient(pass)) return EK_OK;
  const int64_t shape[] = {0, x->shape[1], x->shape[2], x->shape[3]};
  ek_tensor empty = {0};
  EK_TRY(ek_pass_output(&empty, pass, ek_pass_type(pass), 4, shape));
  const ek_status status = ek_pass_save(pass, &empty);
  ek_tensor_free(&empty);
  return status;
}

static ek_status conv2d_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                ek_tensor *outputs) {
  const struct conv2d *m = (const struct conv2d *)self;
  const ek_tensor *x = &inputs[0];
  ek_tensor weight = {0}, bias = {0}, space = {0};
  int64_t shape[4];
  EK_TRY(ek__layer_check(pass, x, m->in));
  EK__FAIL_IF(x->rank != 4, EK_ERR_SHAPE,
              "input has rank %d, expected 4 (images, height, width, channels)", x->rank);
  EK_TRY(ek_convolution_shape(shape, x->shape, m->out, &m->convolution));
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  if (m->bias) EK_TRY(ek_pass_parameter(&bias, pass, BIAS));
  EK_TRY(ek_pass_output(&outputs[0], pass, ek_pass_type(pass), 4, shape));
  if (ek_pass_wants_outputs(pass)) {
    EK_TRY(workspace(&space, m, pass, x->shape, false));
    const ek_status status =
        ek_op_convolve_forward(ek_pass_stream(pass), &outputs[0], to_or_null(&space), x, &weight,
                               or_null(&bias), &m->convolution);
    ek_tensor_free(&space);
    EK_TRY(status);
  }
  return save_input(pass, x);
}

/* ---- backward ---- */

static ek_status add_gradients(const struct conv2d *m, ek_pass *pass, const ek_tensor *dy,
                               const ek_tensor *x, ek_tensor *space) {
  ek_stream *stream = ek_pass_stream(pass);
  ek_tensor weight = {0}, dweight = {0}, dbias = {0};
  double weight_beta = 0, bias_beta = 0;
  const bool with_bias = m->bias && ek_pass_trains(pass, BIAS);
  if (with_bias) EK_TRY(ek_pass_gradient(&dbias, &bias_beta, pass, BIAS));
  if (ek_pass_trains(pass, WEIGHT)) {
    EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
    EK_TRY(ek_pass_gradient(&dweight, &weight_beta, pass, WEIGHT));
    EK_TRY(
        ek_op_convolve_backward(stream, &(ek_convolve_backward_args){.dweight = &dweight,
                                                                     .dbias = to_or_null(&dbias),
                                                                     .workspace = to_or_null(space),
                                                                     .dy = dy,
                                                                     .x = x,
                                                                     .weight = &weight,
                                                                     .weight_beta = weight_beta,
                                                                     .bias_beta = bias_beta,
                                                                     .options = &m->convolution}));
  } else if (with_bias) {
    EK_TRY(ek_op_column_sum(stream, &dbias, dy, bias_beta));
  }
  EK_TRY(ek_pass_gradient_complete(pass, WEIGHT));
  return m->bias ? ek_pass_gradient_complete(pass, BIAS) : EK_OK;
}

static ek_status input_gradient(const struct conv2d *m, ek_pass *pass, const ek_tensor *dy,
                                ek_tensor *space, ek_tensor *dx) {
  ek_tensor weight = {0};
  EK_TRY(ek_pass_parameter(&weight, pass, WEIGHT));
  return ek_op_convolve_backward(ek_pass_stream(pass),
                                 &(ek_convolve_backward_args){.dx = dx,
                                                              .workspace = to_or_null(space),
                                                              .dy = dy,
                                                              .weight = &weight,
                                                              .options = &m->convolution});
}

/* Frees x before dx is made, unless the gradients of the parameters can wait: then dx is made
 * before the workspace, which leaves no hole that is too small for that of the rest. */
static ek_status gradients(const struct conv2d *m, ek_pass *pass, const ek_tensor *dy, ek_tensor *x,
                           ek_tensor *space, ek_tensor *dx) {
  const int64_t shape[] = {dy->shape[0], x->shape[1], x->shape[2], x->shape[3]};
  const bool later = dx != NULL && ek_pass_trains(pass, WEIGHT) && ek_pass_can_postpone(pass);
  if (later) EK_TRY(ek_pass_output(dx, pass, ek_pass_type(pass), 4, shape));
  EK_TRY(workspace(space, m, pass, shape, true));
  if (!later) {
    EK_TRY(add_gradients(m, pass, dy, x, space));
    ek_tensor_free(x);
    if (dx != NULL) EK_TRY(ek_pass_output(dx, pass, ek_pass_type(pass), 4, shape));
  }
  if (dx != NULL) EK_TRY(input_gradient(m, pass, dy, space, dx));
  ek_tensor_free(space);
  return later ? ek_pass_postpone(pass, (const ek_tensor[]){*dy, *x}, 2) : EK_OK;
}

static ek_status conv2d_backward(const ek_module *self, ek_pass *pass,
                                 const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor x = {0}, space = {0};
  EK_TRY(ek_pass_take(&x, pass));
  const ek_status status =
      gradients((const struct conv2d *)self, pass, &grad_outputs[0], &x, &space, grad_inputs);
  ek_tensor_free(&space);
  ek_tensor_free(&x);
  return status;
}

/* Of dy and x. */
static ek_status conv2d_later(const ek_module *self, ek_pass *pass, const ek_tensor *kept) {
  const struct conv2d *m = (const struct conv2d *)self;
  const ek_tensor *dy = &kept[0], *x = &kept[1];
  ek_tensor space = {0};
  EK_TRY(workspace(&space, m, pass, x->shape, true));
  const ek_status status = add_gradients(m, pass, dy, x, &space);
  ek_tensor_free(&space);
  return status;
}

/* ---- making one ---- */

static const ek_module_ops conv2d_ops = {
    EK__LAYER("conv2d", conv2d_forward, conv2d_backward, ek__layer_free),
    .parameters = conv2d_parameters, .backward_later = conv2d_later};

static ek_status check_options(const ek_conv2d_options *o, int64_t in, int64_t out) {
  const int64_t large = INT64_MAX / 2, x_shape[] = {0, large, large, in};
  int64_t y_shape[4];
  EK__FAIL_IF(in <= 0 || out <= 0, EK_ERR_INVALID_ARGUMENT,
              "conv2d: sizes are %" PRId64 " -> %" PRId64 ", expected both above 0", in, out);
  EK__FAIL_IF(o->bias_start != NULL && !o->bias, EK_ERR_INVALID_ARGUMENT,
              "conv2d: bias_start is given, but bias is false");
  return ek_convolution_shape(y_shape, x_shape, out, o->convolution);
}

ek_status ek_conv2d_create_with(ek_module **module, int64_t in, int64_t out,
                                const ek_conv2d_options *options) {
  ek_conv2d_options o = EK_CONV2D_OPTIONS_INIT;
  ek_convolution c = EK_CONVOLUTION_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_conv2d_options"));
  EK_TRY(check_options(&o, in, out));
  EK_TRY(ek__options_read(&c, sizeof c, o.convolution, "ek_convolution"));
  const double terms = (double)(in / c.groups) * (double)c.kernel[0] * (double)c.kernel[1];
  const ek_initializer spread = ek_initializer_uniform(-1 / sqrt(terms), 1 / sqrt(terms));
  struct conv2d made = {.in = in,
                        .out = out,
                        .convolution = c,
                        .bias = o.bias,
                        .frozen = o.frozen,
                        .no_decay = o.no_decay,
                        .weight_start = o.weight_start == NULL ? spread : *o.weight_start,
                        .bias_start = o.weight_start == NULL ? spread : ek_initializer_zeros()};
  if (o.bias_start != NULL) made.bias_start = *o.bias_start;
  return ek__layer_create(module, &made, sizeof made, &conv2d_ops, 1, 1);
}

ek_status ek_conv2d_create(ek_module **module, int64_t in, int64_t out, int64_t kernel) {
  ek_convolution convolution = EK_CONVOLUTION_INIT;
  ek_conv2d_options options = EK_CONV2D_OPTIONS_INIT;
  convolution.kernel[0] = convolution.kernel[1] = kernel;
  options.convolution = &convolution;
  return ek_conv2d_create_with(module, in, out, &options);
}

EK__OPTIONS_INIT(ek_conv2d_options, EK_CONV2D_OPTIONS_INIT)
