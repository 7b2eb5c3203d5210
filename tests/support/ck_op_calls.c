/*
 * ck_op_calls.c - operations with their operands: see ck_op_calls.h.
 */
#include "ck_op_calls.h"

#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>
#include <evenkeel/products.h>
#include <evenkeel/rows.h>

/* ---- elementwise.h ---- */

static ek_status call_zero(ek_stream *s, ek_tensor *const *t) { return ek_op_zero(s, t[0]); }
static ek_status call_fill(ek_stream *s, ek_tensor *const *t) { return ek_op_fill(s, t[0], 1.0); }
static ek_status call_copy(ek_stream *s, ek_tensor *const *t) { return ek_op_copy(s, t[0], t[1]); }
static ek_status call_add(ek_stream *s, ek_tensor *const *t) {
  return ek_op_add(s, t[0], t[1], t[2]);
}
static ek_status call_scale(ek_stream *s, ek_tensor *const *t) {
  return ek_op_scale(s, t[0], t[1], 2.0);
}
static ek_status call_add_bias(ek_stream *s, ek_tensor *const *t) {
  return ek_op_add_bias(s, t[0], t[1]);
}
static ek_status call_column_sum(ek_stream *s, ek_tensor *const *t) {
  return ek_op_column_sum(s, t[0], t[1], 0.0);
}
static ek_status call_gelu_forward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_activation_forward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU);
}
static ek_status call_gelu_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU);
}
static ek_status call_relu_forward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_activation_forward(s, t[0], t[1], NULL, EK_ACTIVATION_RELU);
}
static ek_status call_relu_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_RELU);
}
static ek_status call_gate_forward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_gate_forward(s, t[0], t[1], t[2], EK_ACTIVATION_SILU);
}
static ek_status call_gate_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_gate_backward(s, t[0], t[1], t[2], t[3], t[4], EK_ACTIVATION_SILU);
}
static ek_status call_dropout(ek_stream *s, ek_tensor *const *t) {
  return ek_op_dropout(s, t[0], t[1], 0.5, (ek_random_key){1, 2, 3}, 0);
}

static ek_status call_divide(ek_stream *s, ek_tensor *const *t) {
  return ek_op_binary(s, t[0], t[1], EK_BINARY_DIVIDE, t[2], EK_SPREAD_NONE);
}
static ek_status call_multiply_rows(ek_stream *s, ek_tensor *const *t) {
  return ek_op_binary(s, t[0], t[1], EK_BINARY_MULTIPLY, t[2], EK_SPREAD_ROWS);
}
static ek_status call_add_columns(ek_stream *s, ek_tensor *const *t) {
  return ek_op_binary(s, t[0], t[1], EK_BINARY_ADD, t[2], EK_SPREAD_COLUMNS);
}
static ek_status call_rsqrt(ek_stream *s, ek_tensor *const *t) {
  return ek_op_unary(s, t[0], t[1], EK_UNARY_RSQRT, 1.0);
}
static ek_status call_exp(ek_stream *s, ek_tensor *const *t) {
  return ek_op_unary(s, t[0], t[1], EK_UNARY_EXP, 0.0);
}

#define MATRIX .rank = 2, .shape = {3, 4}
#define ROW .rank = 1, .shape = {4}

const struct ck_operation ck_elementwise_calls[CK_ELEMENTWISE_CALLS] = {
    {"zero",
     call_zero,
     1,
     {{.name = "y", .written = true, .any_type = true, .any_shape = true, MATRIX}}},
    {"fill", call_fill, 1, {{.name = "y", .written = true, .any_shape = true, MATRIX}}},
    {"copy",
     call_copy,
     2,
     {{.name = "y", .written = true, .any_type = true, MATRIX},
      {.name = "x", .any_type = true, MATRIX}}},
    {"add",
     call_add,
     3,
     {{.name = "y", .written = true, .may_be = 6, MATRIX},
      {.name = "a", MATRIX},
      {.name = "b", MATRIX}}},
    {"scale",
     call_scale,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
    {"add_bias", call_add_bias, 2, {{.name = "x", .written = true, MATRIX}, {.name = "bias", ROW}}},
    {"column_sum",
     call_column_sum,
     2,
     {{.name = "y", .sum = true, .written = true, ROW}, {.name = "x", MATRIX}}},
    {"gelu_forward",
     call_gelu_forward,
     3,
     {{.name = "y", .written = true, .may_be = 2, MATRIX},
      {.name = "x", .written = true, MATRIX},
      {.name = "bias", .optional = true, ROW}}},
    {"gate_forward",
     call_gate_forward,
     3,
     {{.name = "y", .written = true, .may_be = 6, MATRIX},
      {.name = "x", MATRIX},
      {.name = "factor", MATRIX}}},
    {"gate_backward",
     call_gate_backward,
     5,
     {{.name = "dx", .written = true, .may_be = 4 | 8, MATRIX},
      {.name = "dfactor", .written = true, .may_be = 16, MATRIX},
      {.name = "dy", MATRIX},
      {.name = "x", MATRIX},
      {.name = "factor", MATRIX}}},
    {"gelu_backward",
     call_gelu_backward,
     3,
     {{.name = "dx", .written = true, .may_be = 2, MATRIX},
      {.name = "dy", MATRIX},
      {.name = "x", MATRIX}}},
    {"relu_forward",
     call_relu_forward,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
    {"relu_backward",
     call_relu_backward,
     3,
     {{.name = "dx", .written = true, .may_be = 2, MATRIX},
      {.name = "dy", MATRIX},
      {.name = "y", MATRIX}}},
    {"dropout",
     call_dropout,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
    {"binary_divide",
     call_divide,
     3,
     {{.name = "y", .written = true, .may_be = 6, MATRIX},
      {.name = "a", MATRIX},
      {.name = "b", MATRIX}}},
    {"binary_multiply",
     call_multiply_rows,
     3,
     {{.name = "y", .written = true, .may_be = 2, MATRIX},
      {.name = "a", MATRIX},
      {.name = "b", .sum = true, .rank = 1, .shape = {3}}}},
    {"binary_add",
     call_add_columns,
     3,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "a", MATRIX}, {.name = "b", ROW}}},
    {"unary_rsqrt",
     call_rsqrt,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
    {"unary_exp",
     call_exp,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
};

/* ---- rows.h ---- */

static ek_status call_row_sum(ek_stream *s, ek_tensor *const *t) {
  return ek_op_row_reduce(s, t[0], EK_ROW_SUM, t[1], t[2]);
}
static ek_status call_row_mean(ek_stream *s, ek_tensor *const *t) {
  return ek_op_row_reduce(s, t[0], EK_ROW_MEAN, t[1], t[2]);
}
static ek_status call_softmax_forward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_softmax_forward(s, t[0], t[1]);
}
static ek_status call_softmax_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_softmax_backward(s, t[0], t[1], t[2]);
}

#define REDUCED                                                                                    \
  {                                                                                                \
    {.name = "y", .sum = true, .written = true, .rank = 1, .shape = {3}}, {.name = "a", MATRIX}, { \
      .name = "b", .optional = true, MATRIX                                                        \
    }                                                                                              \
  }

const struct ck_operation ck_rows_calls[CK_ROWS_CALLS] = {
    {"row_sum", call_row_sum, 3, REDUCED},
    {"row_mean", call_row_mean, 3, REDUCED},
    {"softmax_forward",
     call_softmax_forward,
     2,
     {{.name = "y", .written = true, .may_be = 2, MATRIX}, {.name = "x", MATRIX}}},
    {"softmax_backward",
     call_softmax_backward,
     3,
     {{.name = "dx", .written = true, .may_be = 6, MATRIX},
      {.name = "dy", MATRIX},
      {.name = "y", MATRIX}}},
};

/* ---- losses.h ---- */

static ek_status call_cross_entropy_forward(ek_stream *s, ek_tensor *const *t) {
  const ek_cross_entropy_terms terms = {-100, 0.1, t[5], 0};
  return ek_op_cross_entropy_forward(s, t[0], t[1], t[2], t[3], t[4], &terms);
}
static ek_status call_cross_entropy_backward(ek_stream *s, ek_tensor *const *t) {
  const ek_cross_entropy_terms terms = {-100, 0.1, t[4], 0};
  return ek_op_cross_entropy_backward(s, t[0], t[1], t[2], t[3], &terms, t[5], t[6]);
}
static ek_status call_cross_entropy_gradient(ek_stream *s, ek_tensor *const *t) {
  const ek_cross_entropy_terms terms = {-100, 0.1, t[6], 0};
  return ek_op_cross_entropy_gradient(s, t[0], t[1], t[2], t[3], t[4], t[5], &terms, 0.5);
}
static ek_status call_squared_forward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_squared_error_forward(s, t[0], t[1], t[2], t[3]);
}
static ek_status call_squared_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_squared_error_backward(s, t[0], t[1], t[2], t[3], t[4]);
}

#define LOGITS .rank = 2, .shape = {4, 5}
#define ROWS .rank = 1, .shape = {4}
#define PAIRS .rank = 2, .shape = {4, 2}

const struct ck_operation ck_losses_calls[CK_LOSSES_CALLS] = {
    {"cross_entropy_forward",
     call_cross_entropy_forward,
     6,
     {{.name = "losses", .sum = true, .written = true, ROWS},
      {.name = "normalizer", .sum = true, .written = true, PAIRS},
      {.name = "totals", .type = EK_F64, .written = true, .rank = 1, .shape = {2}},
      {.name = "logits", LOGITS},
      {.name = "targets", .type = EK_I32, ROWS},
      {.name = "class_weights", .sum = true, .optional = true, .rank = 1, .shape = {5}}}},
    {"cross_entropy_backward",
     call_cross_entropy_backward,
     7,
     {{.name = "gradient", .written = true, .may_be = 2, LOGITS},
      {.name = "logits", LOGITS},
      {.name = "normalizer", .sum = true, PAIRS},
      {.name = "targets", .type = EK_I32, ROWS},
      {.name = "class_weights", .sum = true, .optional = true, .rank = 1, .shape = {5}},
      {.name = "scale", .optional = true, .type = EK_F64, .rank = 1, .shape = {1}},
      {.name = "row_scale", .sum = true, .optional = true, ROWS}}},
    {"cross_entropy_gradient",
     call_cross_entropy_gradient,
     7,
     {{.name = "gradient", .written = true, .may_be = 1 << 4, LOGITS},
      {.name = "losses", .sum = true, .written = true, ROWS},
      {.name = "normalizer", .sum = true, .written = true, PAIRS},
      {.name = "totals", .type = EK_F64, .written = true, .rank = 1, .shape = {2}},
      {.name = "logits", LOGITS},
      {.name = "targets", .type = EK_I32, ROWS},
      {.name = "class_weights", .sum = true, .optional = true, .rank = 1, .shape = {5}}}},
    {"squared_error_forward",
     call_squared_forward,
     4,
     {{.name = "losses", .sum = true, .written = true, .optional = true, LOGITS},
      {.name = "totals", .type = EK_F64, .written = true, .rank = 1, .shape = {2}},
      {.name = "y", LOGITS},
      {.name = "target", LOGITS}}},
    {"squared_error_backward",
     call_squared_backward,
     5,
     {{.name = "gradient", .written = true, .may_be = 2, LOGITS},
      {.name = "y", LOGITS},
      {.name = "target", LOGITS},
      {.name = "scale", .optional = true, .type = EK_F64, .rank = 1, .shape = {1}},
      {.name = "element_scale", .sum = true, .optional = true, LOGITS}}},
};

/* ---- products.h ---- */

static ek_status call_matmul(ek_stream *s, ek_tensor *const *t) {
  return ek_op_matmul(s, t[0], t[1], false, t[2], false, 0.0);
}
static ek_status call_matmul_tt(ek_stream *s, ek_tensor *const *t) {
  return ek_op_matmul(s, t[0], t[1], true, t[2], true, 1.0);
}
static ek_status call_linear(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear(s, t[0], t[1], t[2], t[3]);
}

static ek_status call_linear_gelu(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear_gelu(s, t[0], t[1], t[2], t[3], t[4]);
}
static ek_status call_gelu_linear_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_gelu_linear_backward(s, t[0], t[1], 1.0, t[2], t[3], t[4]);
}
static ek_status call_linear_gradients(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear_gradients(s, t[0], 1.0, t[1], 1.0, t[2], t[3]);
}

static ek_status call_linear_backward(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear_backward(s, t[0], t[1], t[2]);
}
static ek_status call_bias_gradient(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear_gradients(s, NULL, 0, t[0], 1.0, t[1], NULL);
}

const struct ck_operation ck_products_calls[CK_PRODUCTS_CALLS] = {
    {"matmul",
     call_matmul,
     3,
     {{.name = "c", .written = true, .rank = 2, .shape = {3, 4}},
      {.name = "a", .rank = 2, .shape = {3, 5}},
      {.name = "b", .rank = 2, .shape = {5, 4}}}},
    {"matmul",
     call_matmul_tt,
     3,
     {{.name = "c", .written = true, .rank = 2, .shape = {3, 4}},
      {.name = "a", .rank = 2, .shape = {5, 3}},
      {.name = "b", .rank = 2, .shape = {4, 5}}}},
    {"linear",
     call_linear,
     4,
     {{.name = "y", .any_shape = true, .written = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "x", .rank = 3, .shape = {2, 3, 5}},
      {.name = "w", .rank = 2, .shape = {4, 5}},
      {.name = "bias", .optional = true, .rank = 1, .shape = {4}}}},
    {"linear_gelu",
     call_linear_gelu,
     5,
     {{.name = "y", .written = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "pre", .written = true, .optional = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "x", .rank = 3, .shape = {2, 3, 5}},
      {.name = "w", .rank = 2, .shape = {4, 5}},
      {.name = "bias", .optional = true, .rank = 1, .shape = {4}}}},
    {"gelu_linear_backward",
     call_gelu_linear_backward,
     5,
     {{.name = "dpre", .written = true, .rank = 3, .shape = {2, 3, 5}},
      {.name = "dbias", .sum = true, .written = true, .optional = true, .rank = 1, .shape = {5}},
      {.name = "dy", .rank = 3, .shape = {2, 3, 4}},
      {.name = "w", .rank = 2, .shape = {4, 5}},
      {.name = "pre", .rank = 3, .shape = {2, 3, 5}}}},
    {"linear_gradients",
     call_linear_gradients,
     4,
     {{.name = "dw", .sum = true, .written = true, .optional = true, .rank = 2, .shape = {4, 5}},
      {.name = "dbias", .sum = true, .written = true, .optional = true, .rank = 1, .shape = {4}},
      {.name = "dy", .any_shape = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "x", .rank = 3, .shape = {2, 3, 5}}}},
    {"linear_backward",
     call_linear_backward,
     3,
     {{.name = "dx", .written = true, .rank = 3, .shape = {2, 3, 5}},
      {.name = "dy", .any_shape = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "w", .rank = 2, .shape = {4, 5}}}},
    {"linear_gradients",
     call_bias_gradient,
     2,
     {{.name = "dbias", .sum = true, .written = true, .rank = 1, .shape = {4}},
      {.name = "dy", .any_shape = true, .rank = 3, .shape = {2, 3, 4}}}},
};
