/*
 * attention.c - multi-head self-attention: a linear, the attention operation, a linear.
 *
 * Queries, keys and values are one tensor, the result of one linear; or, where queries and keys are
 * normalised, three of three linears, because a norm takes whole tensors. Rotary positions turn
 * queries and keys in place, and their gradients back in place. The places of documents are worked
 * out from the segments in forward and again in backward: only the segments are kept.
 */
#include <evenkeel/attention.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <evenkeel/attend.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/layer_norm.h>
#include <evenkeel/linear.h>
#include <evenkeel/pass.h>

#include "core/error.h"
#include "core/options.h"
#include "module/composite.h"
#include "module/layer_internal.h"

/* Children: QKV and PROJECTION, or with norms N_Q and so on. */
enum { QKV, PROJECTION };
enum { N_Q, N_K, N_V, N_PROJECTION, N_Q_NORM, N_K_NORM };

struct attention {
  struct ek__composite base;
  int64_t width, head; /* of a head */
  int heads, kv_heads;
  bool causal, rotary, norm, segments;
  double dropout;
  double speeds[EK_ROTARY_MOST_PAIRS];
};

/* What the backward of the attention operation reads, and the projection's input with it. Q: all of
 * qkv, without K and V, where they are one tensor. */
enum { Q, K, V, OUT, LSE, SEGMENTS, SAVED };

static size_t projection_of(const struct attention *m) {
  return m->norm ? N_PROJECTION : PROJECTION;
}

/* ---- documents and places ---- */

/* Places of documents, while a function runs. */
struct documents {
  ek_tensor ranges, positions; /* absent: a row is one document */
};

static void documents_free(struct documents *documents) {
  ek_tensor_free(&documents->ranges);
  ek_tensor_free(&documents->positions);
}

static ek_status find_documents(struct documents *documents, const struct attention *m,
                                ek_pass *pass, const ek_tensor *segments) {
  *documents = (struct documents){.ranges = {0}};
  if (!ek_tensor_exists(segments)) return EK_OK;
  const int64_t shape[] = {segments->shape[0], segments->shape[1], 2};
  ek_status status = ek_pass_workspace(&documents->ranges, pass, EK_I32, 3, shape);
  if (status == EK_OK && m->rotary) {
    status = ek_pass_workspace(&documents->positions, pass, EK_I32, 2, shape);
  }
  if (status == EK_OK) {
    status = ek_op_document_ranges(ek_pass_stream(pass), &documents->ranges,
                                   m->rotary ? &documents->positions : NULL, segments);
  }
  if (status != EK_OK) documents_free(documents);
  return status;
}

/* Turns the queries and keys, or their gradients back; values come after them in one tensor. */
static ek_status turn(const struct attention *m, ek_pass *pass, ek_tensor *qkv,
                      const struct documents *documents, bool back) {
  const ek_tensor *positions =
      ek_tensor_exists(&documents->positions) ? &documents->positions : NULL;
  ek_stream *stream = ek_pass_stream(pass);
  if (!m->rotary) return EK_OK;
  if (!m->norm) {
    return ek_op_rotary(stream, &qkv[Q], positions, m->heads + m->kv_heads, m->head, m->speeds,
                        back);
  }
  EK_TRY(ek_op_rotary(stream, &qkv[Q], positions, m->heads, m->head, m->speeds, back));
  return ek_op_rotary(stream, &qkv[K], positions, m->kv_heads, m->head, m->speeds, back);
}

/* qkv and, in backward, dqkv as they are numbered above. */
static ek_attend_options options_of(const struct attention *m, ek_pass *pass,
                                    const struct documents *documents, const ek_tensor *qkv,
                                    ek_tensor *dqkv) {
  ek_attend_options options = EK_ATTEND_OPTIONS_INIT;
  options.heads = m->heads;
  options.kv_heads = m->kv_heads;
  options.causal = m->causal;
  if (m->norm) options.k = &qkv[K], options.v = &qkv[V];
  if (m->norm && dqkv != NULL) options.dk = &dqkv[K], options.dv = &dqkv[V];
  if (ek_tensor_exists(&documents->ranges)) options.ranges = &documents->ranges;
  if (m->dropout == 0.0 || !ek_pass_is_training(pass)) return options;
  options.dropout = m->dropout;
  options.key = ek_pass_random(pass);
  options.first_sample = ek_pass_first_sample(pass);
  return options;
}

/* ---- forward ---- */

/* x as B x T x heads x width of a head, or back. */
static ek_status as_heads(ek_tensor *y, const ek_tensor *x, int64_t width) {
  const int64_t shape[] = {x->shape[0], x->shape[1], x->shape[2] / width, width};
  return ek_tensor_reshape(y, x, 4, shape);
}
static ek_status as_rows(ek_tensor *y, const ek_tensor *x) {
  const int64_t shape[] = {x->shape[0], x->shape[1], x->shape[2] * x->shape[3]};
  return ek_tensor_reshape(y, x, 3, shape);
}

/* Through a child that normalises heads, forward or back: *x, B x T x C, becomes the result. */
typedef ek_status child_function(ek_tensor *results, ek_pass *pass, size_t child,
                                 const ek_tensor *given);
static ek_status through_norm(ek_tensor *x, const struct attention *m, ek_pass *pass, size_t child,
                              child_function *run) {
  ek_tensor heads = {0}, result = {0};
  ek_status status = as_heads(&heads, x, m->head);
  ek_tensor_free(x);
  if (status == EK_OK) status = run(&result, pass, child, &heads);
  ek_tensor_free(&heads);
  if (status == EK_OK) status = as_rows(x, &result);
  ek_tensor_free(&result);
  return status;
}

static ek_status project(ek_tensor *qkv, const struct attention *m, ek_pass *pass,
                         const ek_tensor *x) {
  if (!m->norm) return ek_pass_child_forward(&qkv[Q], pass, QKV, x);
  for (size_t i = 0; i < 3; i++) EK_TRY(ek_pass_child_forward(&qkv[Q + i], pass, N_Q + i, x));
  EK_TRY(through_norm(&qkv[Q], m, pass, N_Q_NORM, ek_pass_child_forward));
  return through_norm(&qkv[K], m, pass, N_K_NORM, ek_pass_child_forward);
}

static ek_status attend(const struct attention *m, ek_pass *pass, const ek_tensor *x,
                        const struct documents *documents, ek_tensor *s) {
  EK_TRY(project(s, m, pass, x));
  EK_TRY(turn(m, pass, s, documents, false));
  const int64_t lse_shape[] = {x->shape[0], m->heads, x->shape[1]};
  const int64_t out_shape[] = {x->shape[0], x->shape[1], m->heads * m->head};
  EK_TRY(ek_pass_output(&s[OUT], pass, ek_pass_type(pass), 3, out_shape));
  EK_TRY(ek_pass_output(&s[LSE], pass, ek_type_of_sums(ek_pass_type(pass)), 3, lse_shape));
  const ek_attend_options options = options_of(m, pass, documents, s, NULL);
  EK_TRY(ek_op_attention_forward(ek_pass_stream(pass), &s[OUT], &s[LSE], &s[Q], &options));
  for (int i = 0; i < SAVED; i++) {
    if (ek_tensor_exists(&s[i])) EK_TRY(ek_pass_save(pass, &s[i]));
  }
  return EK_OK;
}

static ek_status attention_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                                   ek_tensor *outputs) {
  const struct attention *m = (const struct attention *)self;
  EK_TRY(ek__layer_check(pass, &inputs[0], m->width));
  EK__FAIL_IF(inputs[0].rank != 3, EK_ERR_SHAPE,
              "input has rank %d, expected 3 (samples, tokens, width)", inputs[0].rank);
  ek_tensor s[SAVED] = {{0}};
  struct documents documents = {.ranges = {0}};
  if (m->segments) {
    EK_TRY(ek__layer_check_segments(&inputs[1], &inputs[0]));
    EK_TRY(ek_tensor_share(&s[SEGMENTS], &inputs[1]));
  }
  ek_status status = find_documents(&documents, m, pass, &s[SEGMENTS]);
  if (status == EK_OK) status = attend(m, pass, &inputs[0], &documents, s);
  documents_free(&documents);
  /* Before the projection takes memory: without a backward these have no other holder. */
  for (int i = 0; i < SAVED; i++) {
    if (i != OUT) ek_tensor_free(&s[i]);
  }
  if (status == EK_OK) status = ek__last_child_forward(outputs, pass, projection_of(m), &s[OUT]);
  ek__free_all(s, SAVED);
  return status;
}

/* ---- backward ---- */

/* What forward saved, in its places. */
static ek_status take_saved(ek_tensor *s, const struct attention *m, ek_pass *pass) {
  for (int i = SAVED; i-- > 0;) {
    const bool there = i == SEGMENTS ? m->segments : i == K || i == V ? m->norm : true;
    if (there) EK_TRY(ek_pass_take(&s[i], pass));
  }
  return EK_OK;
}

/* dqkv from dout; what forward saved is freed on the way. */
static ek_status attend_backward(const struct attention *m, ek_pass *pass, const ek_tensor *dout,
                                 ek_tensor *dqkv) {
  ek_tensor s[SAVED] = {{0}};
  struct documents documents = {.ranges = {0}};
  const int parts = m->norm ? 3 : 1;
  ek_status status = take_saved(s, m, pass);
  if (status == EK_OK) status = find_documents(&documents, m, pass, &s[SEGMENTS]);
  for (int i = 0; i < parts && status == EK_OK; i++) {
    status = ek__layer_result(&dqkv[i], pass, &s[i]);
  }
  if (status == EK_OK) {
    const ek_attend_options options = options_of(m, pass, &documents, s, dqkv);
    status = ek_op_attention_backward(ek_pass_stream(pass), &dqkv[Q], dout, &s[Q], &s[OUT], &s[LSE],
                                      &options);
  }
  if (status == EK_OK) status = turn(m, pass, dqkv, &documents, true);
  documents_free(&documents);
  ek__free_all(s, SAVED);
  return status;
}

/* The gradient of the input, NULL: not wanted, from those of queries, keys and values. */
static ek_status project_backward(ek_tensor *dx, const struct attention *m, ek_pass *pass,
                                  ek_tensor *dqkv) {
  if (!m->norm) return ek_pass_child_backward(dx, pass, QKV, &dqkv[Q]);
  EK_TRY(through_norm(&dqkv[K], m, pass, N_K_NORM, ek_pass_child_backward));
  EK_TRY(through_norm(&dqkv[Q], m, pass, N_Q_NORM, ek_pass_child_backward));
  for (size_t i = 3; i-- > 0;) {
    ek_tensor part = {0};
    EK_TRY(ek_pass_child_backward(dx == NULL ? NULL : &part, pass, N_Q + i, &dqkv[Q + i]));
    ek_tensor_free(&dqkv[Q + i]);
    if (dx == NULL) continue;
    if (!ek_tensor_exists(dx)) {
      *dx = part;
      continue;
    }
    const ek_status status = ek_op_add(ek_pass_stream(pass), dx, dx, &part);
    ek_tensor_free(&part);
    EK_TRY(status);
  }
  return EK_OK;
}

static ek_status attention_backward(const ek_module *self, ek_pass *pass,
                                    const ek_tensor *grad_outputs, ek_tensor *grad_inputs) {
  const struct attention *m = (const struct attention *)self;
  ek_tensor dout = {0}, dqkv[3] = {{0}}, dx = {0};
  ek_status status = ek_pass_child_backward(&dout, pass, projection_of(m), grad_outputs);
  if (status == EK_OK) status = attend_backward(m, pass, &dout, dqkv);
  ek_tensor_free(&dout);
  if (status == EK_OK) {
    status = project_backward(grad_inputs == NULL ? NULL : &dx, m, pass, dqkv);
  }
  if (status == EK_OK && grad_inputs != NULL) {
    grad_inputs[0] = dx;
  } else {
    ek_tensor_free(&dx);
  }
  ek__free_all(dqkv, 3);
  return status;
}

/* ---- the module ---- */

static ek_type attention_input_type(const ek_module *self, size_t input) {
  (void)self;
  return input == 1 ? EK_I32 : (ek_type)0;
}

static const ek_module_ops attention_ops = {
    EK__LAYER("attention", attention_forward, attention_backward, ek__composite_free),
    .parameters = ek__composite_parameters, .input_type = attention_input_type};

static ek_status check_options(const ek_attention_options *o, int64_t width, int heads) {
  EK__FAIL_IF(width <= 0 || heads <= 0 || (o->head_width == 0 && width % heads != 0),
              EK_ERR_INVALID_ARGUMENT,
              "attention: width %" PRId64 " is not a multiple of %d heads", width, heads);
  EK__FAIL_IF(o->head_width < 0, EK_ERR_INVALID_ARGUMENT,
              "attention: head_width is %" PRId64 ", expected above 0, or 0 for width / heads",
              o->head_width);
  EK__FAIL_IF(o->kv_heads < 0 || (o->kv_heads > 0 && heads % o->kv_heads != 0),
              EK_ERR_INVALID_ARGUMENT,
              "attention: kv_heads is %d, expected a divisor of %d heads, or 0 for as many",
              o->kv_heads, heads);
  EK__FAIL_IF(width > INT64_MAX / 3 || o->head_width > INT64_MAX / 3 / heads, EK_ERR_OVERFLOW,
              "attention: 3 x %" PRId64 " columns", o->head_width > 0 ? o->head_width : width);
  EK__FAIL_IF(!(o->deviation >= 0) || !(o->projection_deviation >= 0) || isinf(o->deviation) ||
                  isinf(o->projection_deviation),
              EK_ERR_INVALID_ARGUMENT,
              "attention: standard deviations are %g and %g, expected 0 or more", o->deviation,
              o->projection_deviation);
  EK__FAIL_IF(!(o->dropout >= 0.0 && o->dropout < 1.0), EK_ERR_INVALID_ARGUMENT,
              "attention: dropout is %g, expected 0 <= p < 1", o->dropout);
  EK__FAIL_IF(o->qk_norm < EK_QK_NORM_NONE || o->qk_norm > EK_QK_NORM_LAYER,
              EK_ERR_INVALID_ARGUMENT, "attention: qk_norm is %d, expected 0 to %d",
              (int)o->qk_norm, (int)EK_QK_NORM_LAYER);
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

static ek_status add_norm(struct ek__composite *m, const char *name, int64_t width,
                          const ek_attention_options *o) {
  ek_layer_norm_options norm = EK_LAYER_NORM_OPTIONS_INIT;
  ek_module *made = NULL;
  norm.epsilon = o->qk_epsilon;
  norm.rms = o->qk_norm == EK_QK_NORM_RMS;
  norm.bias = !norm.rms;
  norm.frozen = o->frozen;
  EK_TRY(ek_layer_norm_create_with(&made, width, &norm));
  return ek__composite_add(m, name, made);
}

/* own, shared: columns of the queries, and of the keys and of the values. */
static ek_status add_children(struct ek__composite *m, int64_t width, int64_t own, int64_t shared,
                              int64_t head, const ek_attention_options *o) {
  const bool norm = o->qk_norm != EK_QK_NORM_NONE;
  if (!norm) {
    EK_TRY(add_linear(m, "qkv", width, own + 2 * shared, o, o->bias, o->deviation));
  } else {
    EK_TRY(add_linear(m, "q", width, own, o, o->bias, o->deviation));
    EK_TRY(add_linear(m, "k", width, shared, o, o->bias, o->deviation));
    EK_TRY(add_linear(m, "v", width, shared, o, o->bias, o->deviation));
  }
  EK_TRY(add_linear(m, "projection", own, width, o, o->bias && !o->no_projection_bias,
                    o->projection_deviation));
  if (!norm) return EK_OK;
  EK_TRY(add_norm(m, "q_norm", head, o));
  return add_norm(m, "k_norm", head, o);
}

ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads,
                                   const ek_attention_options *options) {
  ek_attention_options o = EK_ATTENTION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_attention_options"));
  EK_TRY(check_options(&o, width, heads));
  struct attention made = {.width = width,
                           .head = o.head_width > 0 ? o.head_width : width / heads,
                           .heads = heads,
                           .kv_heads = o.kv_heads == 0 ? heads : o.kv_heads,
                           .causal = o.causal,
                           .rotary = o.rotary != NULL,
                           .norm = o.qk_norm != EK_QK_NORM_NONE,
                           .segments = o.segments,
                           .dropout = o.dropout};
  if (made.rotary) EK_TRY(ek_rotary_speeds(made.speeds, made.head, o.rotary));
  struct ek__composite *m = &made.base;
  const ek_status status = add_children(m, width, made.head * heads, made.head * made.kv_heads,
                                        made.head, &o);
  return ek__composite_create(module, m, sizeof made, &attention_ops, o.segments ? 2 : 1, 1,
                              status);
}

ek_status ek_attention_create(ek_module **module, int64_t width, int heads) {
  return ek_attention_create_with(module, width, heads, NULL);
}

EK__OPTIONS_INIT(ek_attention_options, EK_ATTENTION_OPTIONS_INIT)
