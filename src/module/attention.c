/*
 * attention.c - causal multi-head self-attention: a linear, the attention operation, a linear.
 */
#include <evenkeel/attention.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/attend.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

#include "core/error.h"
#include "module/composite.h"
#include "module/layer_internal.h"

enum { QKV, PROJECTION };

struct attention {
  struct ek__composite base;
  int64_t width;
  int heads;
};

/* What the backward of the attention operation reads, and the projection's input with it. */
struct saved {
  ek_tensor qkv, out, lse;
};

static void saved_free(struct saved *saved) {
  ek_tensor_free(&saved->lse);
  ek_tensor_free(&saved->out);
  ek_tensor_free(&saved->qkv);
}

static ek_status attend(const struct attention *m, ek_pass *pass, const ek_tensor *x,
                        struct saved *s) {
  EK_TRY(ek_pass_child_forward(&s->qkv, pass, QKV, x));
  const int64_t lse_shape[] = {x->shape[0], m->heads, x->shape[1]};
  EK_TRY(ek__layer_result(&s->out, pass, x));
  EK_TRY(ek_pass_output(&s->lse, pass, ek_pass_type(pass), 3, lse_shape));
  EK_TRY(ek_op_attention_forward(ek_pass_stream(pass), &s->out, &s->lse, &s->qkv, m->heads));
  EK_TRY(ek_pass_save(pass, &s->qkv));
  EK_TRY(ek_pass_save(pass, &s->out));
  return ek_pass_save(pass, &s->lse);
}

static ek_status attention_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  const struct attention *m = (const struct attention *)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], m->width));
  EK__FAIL_IF(inputs[0].rank != 3, EK_ERR_SHAPE,
              "input has rank %d, expected 3 (samples, tokens, width)", inputs[0].rank);
  struct saved s = {{0}, {0}, {0}};
  ek_status status = attend(m, pass, &inputs[0], &s);
  /* Before the projection takes memory: without a backward nobody else holds these two. */
  ek_tensor_free(&s.lse);
  ek_tensor_free(&s.qkv);
  if (status == EK_OK) status = ek_pass_child_forward(outputs, pass, PROJECTION, &s.out);
  saved_free(&s);
  return status;
}

/* dqkv from dout; what forward saved is freed on the way. */
static ek_status attend_backward(const struct attention *m, ek_pass *pass, const ek_tensor *dout,
                                 ek_tensor *dqkv) {
  struct saved s = {{0}, {0}, {0}};
  ek_status status = ek_pass_take(&s.lse, pass);
  if (status == EK_OK) status = ek_pass_take(&s.out, pass);
  if (status == EK_OK) status = ek_pass_take(&s.qkv, pass);
  if (status == EK_OK) status = ek__layer_result(dqkv, pass, &s.qkv);
  if (status == EK_OK) {
    status = ek_op_attention_backward(ek_pass_stream(pass), dqkv, dout, &s.qkv, &s.out, &s.lse,
                                      m->heads);
  }
  saved_free(&s);
  return status;
}

static ek_status attention_backward(const ek_module *self, ek_pass *pass,
                                    const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  ek_tensor dout = {0}, dqkv = {0};
  ek_status status = ek_pass_child_backward(&dout, pass, PROJECTION, grad_outputs);
  if (status == EK_OK) {
    status = attend_backward((const struct attention *)self, pass, &dout, &dqkv);
  }
  ek_tensor_free(&dout);
  if (status == EK_OK) status = ek_pass_child_backward(grad_inputs, pass, QKV, &dqkv);
  ek_tensor_free(&dqkv);
  return status;
}

static const ek_module_ops attention_ops = {.size = sizeof(ek_module_ops),
                                            .kind = "attention",
                                            .parameters = ek__composite_parameters,
                                            .forward = attention_forward,
                                            .backward = attention_backward,
                                            .free = ek__composite_free,
                                            .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_status check_sizes(int64_t width, int heads, double deviation,
                             double projection_deviation) {
  EK__FAIL_IF(width <= 0 || heads <= 0 || width % heads != 0, EK_ERR_INVALID_ARGUMENT,
              "attention: width %" PRId64 " is not a multiple of %d heads", width, heads);
  EK__FAIL_IF(width > INT64_MAX / 3, EK_ERR_OVERFLOW, "attention: 3 x %" PRId64 " columns", width);
  EK__FAIL_IF(!(deviation >= 0) || !(projection_deviation >= 0) || isinf(deviation) ||
                  isinf(projection_deviation),
              EK_ERR_INVALID_ARGUMENT,
              "attention: standard deviations are %g and %g, expected 0 or more", deviation,
              projection_deviation);
  return EK_OK;
}

static ek_status add_linear(struct attention *m, const char *name, int64_t columns,
                            double deviation) {
  ek_module *linear = NULL;
  EK_TRY(ek_linear_create_with(&linear, m->width, columns, true,
                               ek_initializer_normal(0.0, deviation)));
  return ek__composite_add(&m->base, name, linear);
}

ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads, double deviation,
                                   double projection_deviation) {
  EK_TRY(check_sizes(width, heads, deviation, projection_deviation));
  ek_status status = EK_OK;
  struct attention *m = ek__layer_create(&status, module, sizeof *m, &attention_ops, 1, 1);
  if (m == NULL) return status;
  m->width = width;
  m->heads = heads;
  status = add_linear(m, "qkv", 3 * width, deviation);
  if (status == EK_OK) status = add_linear(m, "projection", width, projection_deviation);
  return ek__composite_finish(module, &m->base, status);
}

ek_status ek_attention_create(ek_module **module, int64_t width, int heads) {
  return ek_attention_create_with(module, width, heads, 0.02, 0.02);
}
