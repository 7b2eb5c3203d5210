/*
 * attention.c - causal multi-head self-attention: a linear, the attention operation, a linear.
 *
 * Rotary positions turn the result of the first linear in place, and its gradient back in place.
 */
#include <evenkeel/attention.h>

#include <inttypes.h>
#include <math.h>

#include <evenkeel/attend.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

enum { QKV, PROJECTION };

struct attention {
  struct ek__composite base;
  int64_t width;
  int heads, kv_heads;
  bool rotary;
  double speeds[EK_ROTARY_MOST_PAIRS];
};

/* What the backward of the attention operation reads, and the projection's input with it. */
enum { SAVED_QKV, SAVED_OUT, SAVED_LSE, SAVED };

/* The queries and the keys, which come before the values. */
static ek_status turn(const struct attention *m, ek_pass *pass, ek_tensor *qkv, bool back) {
  if (!m->rotary) return EK_OK;
  return ek_op_rotary(ek_pass_stream(pass), qkv, m->heads + m->kv_heads, m->width / m->heads,
                      m->speeds, back);
}

static ek_status attend(const struct attention *m, ek_pass *pass, const ek_tensor *x,
                        ek_tensor *s) {
  EK_TRY(ek_pass_child_forward(&s[SAVED_QKV], pass, QKV, x));
  EK_TRY(turn(m, pass, &s[SAVED_QKV], false));
  const int64_t lse_shape[] = {x->shape[0], m->heads, x->shape[1]};
  EK_TRY(ek__layer_result(&s[SAVED_OUT], pass, x));
  EK_TRY(ek_pass_output(&s[SAVED_LSE], pass, ek_type_of_sums(ek_pass_type(pass)), 3, lse_shape));
  EK_TRY(ek_op_attention_forward(ek_pass_stream(pass), &s[SAVED_OUT], &s[SAVED_LSE], &s[SAVED_QKV],
                                 m->heads, m->kv_heads));
  for (int i = 0; i < SAVED; i++) EK_TRY(ek_pass_save(pass, &s[i]));
  return EK_OK;
}

static ek_status attention_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  const struct attention *m = (const struct attention *)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], m->width));
  EK__FAIL_IF(inputs[0].rank != 3, EK_ERR_SHAPE,
              "input has rank %d, expected 3 (samples, tokens, width)", inputs[0].rank);
  ek_tensor s[SAVED] = {{0}};
  ek_status status = attend(m, pass, &inputs[0], s);
  /* Before the projection takes memory: without a backward these two have no other holder. */
  ek_tensor_free(&s[SAVED_LSE]);
  ek_tensor_free(&s[SAVED_QKV]);
  if (status == EK_OK) status = ek__last_child_forward(outputs, pass, PROJECTION, &s[SAVED_OUT]);
  ek__free_all(s, SAVED);
  return status;
}

/* dqkv from dout; what forward saved is freed on the way. */
static ek_status attend_backward(const struct attention *m, ek_pass *pass, const ek_tensor *dout,
                                 ek_tensor *dqkv) {
  ek_tensor s[SAVED];
  EK_TRY(ek__layer_take(s, pass, SAVED));
  ek_status status = ek__layer_result(dqkv, pass, &s[SAVED_QKV]);
  if (status == EK_OK) {
    status = ek_op_attention_backward(ek_pass_stream(pass), dqkv, dout, &s[SAVED_QKV],
                                      &s[SAVED_OUT], &s[SAVED_LSE], m->heads, m->kv_heads);
  }
  if (status == EK_OK) status = turn(m, pass, dqkv, true);
  ek__free_all(s, SAVED);
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

static const ek_module_ops attention_ops = {
    EK__LAYER("attention", attention_forward, attention_backward, ek__composite_free),
    .parameters = ek__composite_parameters};

static ek_status check_options(const ek_attention_options *o, int64_t width, int heads) {
  EK__FAIL_IF(width <= 0 || heads <= 0 || width % heads != 0, EK_ERR_INVALID_ARGUMENT,
              "attention: width %" PRId64 " is not a multiple of %d heads", width, heads);
  EK__FAIL_IF(o->kv_heads < 0 || (o->kv_heads > 0 && heads % o->kv_heads != 0),
              EK_ERR_INVALID_ARGUMENT,
              "attention: kv_heads is %d, expected a divisor of %d heads, or 0 for as many",
              o->kv_heads, heads);
  EK__FAIL_IF(width > INT64_MAX / 3, EK_ERR_OVERFLOW, "attention: 3 x %" PRId64 " columns", width);
  EK__FAIL_IF(!(o->deviation >= 0) || !(o->projection_deviation >= 0) || isinf(o->deviation) ||
                  isinf(o->projection_deviation),
              EK_ERR_INVALID_ARGUMENT,
              "attention: standard deviations are %g and %g, expected 0 or more", o->deviation,
              o->projection_deviation);
  return EK_OK;
}

static ek_status add_linear(struct ek__composite *m, const char *name, int64_t in, int64_t out,
                            const ek_attention_options *o, bool bias, double deviation) {
  const ek_initializer start = ek_initializer_normal(0.0, deviation);
  ek_linear_options linear = EK_LINEAR_OPTIONS_INIT;
  linear.bias = bias;
  linear.frozen = o->frozen;
  linear.no_decay = o->no_decay;
  linear.weight_start = &start;
  return ek__composite_add_linear(m, name, in, out, &linear);
}

ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads,
                                   const ek_attention_options *options) {
  ek_attention_options o = EK_ATTENTION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_attention_options"));
  EK_TRY(check_options(&o, width, heads));
  struct attention made = {.width = width,
                           .heads = heads,
                           .kv_heads = o.kv_heads == 0 ? heads : o.kv_heads,
                           .rotary = o.rotary != NULL};
  if (made.rotary) EK_TRY(ek_rotary_speeds(made.speeds, width / heads, o.rotary));
  struct ek__composite *m = &made.base;
  const int64_t shared = width / heads * made.kv_heads;
  ek_status status = add_linear(m, "qkv", width, width + 2 * shared, &o, o.bias, o.deviation);
  if (status == EK_OK) {
    status = add_linear(m, "projection", width, width, &o, o.bias && !o.no_projection_bias,
                        o.projection_deviation);
  }
  return ek__composite_create(module, m, sizeof made, &attention_ops, 1, 1, status);
}

ek_status ek_attention_create(ek_module **module, int64_t width, int heads) {
  return ek_attention_create_with(module, width, heads, NULL);
}

EK__OPTIONS_INIT(ek_attention_options, EK_ATTENTION_OPTIONS_INIT)
