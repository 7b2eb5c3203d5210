/*
 * operations_table.c - see operations_table.h.
 */
#include "operations_table.h"

#define CALL(name)                                                                                 \
  static ek_status call_##name(ek_stream *s, ek_tensor *const *t, const struct parameters *p)

/* ---- elementwise.h ---- */

CALL(zero) { return (void)p, ek_op_zero(s, t[0]); }
CALL(fill) { return ek_op_fill(s, t[0], p->real[0]); }
CALL(copy) { return (void)p, ek_op_copy(s, t[0], t[1]); }
CALL(add) { return (void)p, ek_op_add(s, t[0], t[1], t[2]); }
CALL(scale) { return ek_op_scale(s, t[0], t[1], p->real[0]); }
CALL(add_bias) { return (void)p, ek_op_add_bias(s, t[0], t[1]); }
CALL(column_sum) { return ek_op_column_sum(s, t[0], t[1], p->real[0]); }
CALL(gelu_forward) {
  return (void)p, ek_op_activation_forward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU);
}
CALL(gelu_backward) {
  return (void)p, ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU);
}
CALL(relu_forward) {
  return (void)p, ek_op_activation_forward(s, t[0], t[1], NULL, EK_ACTIVATION_RELU);
}
CALL(relu_backward) {
  return (void)p, ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_RELU);
}
CALL(silu_forward) {
  return (void)p, ek_op_activation_forward(s, t[0], t[1], t[2], EK_ACTIVATION_SILU);
}
CALL(silu_backward) {
  return (void)p, ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_SILU);
}
CALL(gate_forward) { return ek_op_gate_forward(s, t[0], t[1], t[2], p->activation); }
CALL(gate_backward) { return ek_op_gate_backward(s, t[0], t[1], t[2], t[3], t[4], p->activation); }
CALL(binary) {
  const int kind = p->flag[0] + 2 * p->flag[1];
  return ek_op_binary(s, t[0], t[1], (ek_binary)kind, t[2], EK_SPREAD_NONE);
}
CALL(binary_rows) {
  const int kind = p->flag[0] + 2 * p->flag[1];
  return ek_op_binary(s, t[0], t[1], (ek_binary)kind, t[2], EK_SPREAD_ROWS);
}
CALL(binary_columns) {
  const int kind = p->flag[0] + 2 * p->flag[1];
  return ek_op_binary(s, t[0], t[1], (ek_binary)kind, t[2], EK_SPREAD_COLUMNS);
}
CALL(rsqrt) { return ek_op_unary(s, t[0], t[1], EK_UNARY_RSQRT, p->epsilon); }
CALL(exponential) { return ek_op_unary(s, t[0], t[1], EK_UNARY_EXP, p->real[0]); }
CALL(dropout) { return ek_op_dropout(s, t[0], t[1], p->chance, p->key, p->first_sample); }

/* ---- convert.h ---- */

CALL(convert) { return (void)p, ek_op_convert(s, t[0], t[1]); }

/* ---- rows.h ---- */

CALL(row_reduce) {
  return ek_op_row_reduce(s, t[0], p->flag[0] ? EK_ROW_MEAN : EK_ROW_SUM, t[1], t[2]);
}
CALL(softmax_forward) { return (void)p, ek_op_softmax_forward(s, t[0], t[1]); }
CALL(softmax_backward) { return (void)p, ek_op_softmax_backward(s, t[0], t[1], t[2]); }

/* ---- products.h ---- */

CALL(matmul) { return ek_op_matmul(s, t[0], t[1], false, t[2], false, p->real[0]); }
CALL(matmul_a) { return ek_op_matmul(s, t[0], t[1], true, t[2], false, p->real[0]); }
CALL(matmul_b) { return ek_op_matmul(s, t[0], t[1], false, t[2], true, p->real[0]); }
CALL(matmul_ab) { return ek_op_matmul(s, t[0], t[1], true, t[2], true, p->real[0]); }
CALL(linear) { return (void)p, ek_op_linear(s, t[0], t[1], t[2], t[3]); }
CALL(linear_gelu) { return (void)p, ek_op_linear_gelu(s, t[0], t[1], t[2], t[3], t[4]); }
CALL(gelu_linear_backward) {
  return ek_op_gelu_linear_backward(s, t[0], t[1], p->real[0], t[2], t[3], t[4]);
}
CALL(linear_gradients) {
  return ek_op_linear_gradients(s, t[0], p->real[0], t[1], p->real[1], t[2], t[3]);
}
CALL(linear_backward) { return (void)p, ek_op_linear_backward(s, t[0], t[1], t[2]); }

/* ---- normalize.h, lookup.h, attend.h ---- */

CALL(layer_norm_forward) {
  return ek_op_layer_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5], p->epsilon);
}
CALL(add_layer_norm_forward) {
  return ek_op_add_layer_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7],
                                      p->epsilon);
}
CALL(layer_norm_backward) {
  return ek_op_layer_norm_backward(s, t[0], t[1], t[2], p->real[0], t[3], p->real[1], t[4], t[5],
                                   t[6], t[7], t[8]);
}
CALL(lookup_forward) { return ek_op_lookup_forward(s, t[0], t[1], t[2], t[3], p->period); }
CALL(lookup_backward) { return (void)p, ek_op_lookup_backward(s, t[0], t[1], t[2]); }
CALL(positions_backward) { return ek_op_positions_backward(s, t[0], t[1], p->period, p->real[0]); }
CALL(attention_forward) { return ek_op_attention_forward(s, t[0], t[1], t[2], p->heads); }
CALL(attention_backward) {
  return ek_op_attention_backward(s, t[0], t[1], t[2], t[3], t[4], p->heads);
}

/* ---- losses.h ---- */

#define TERMS(weights)                                                                             \
  const ek_cross_entropy_terms terms = {p->ignore_index, p->chance, weights, p->classes},          \
                               *const given = p->without_terms ? NULL : &terms

CALL(cross_entropy_forward) {
  TERMS(t[5]);
  return ek_op_cross_entropy_forward(s, t[0], t[1], t[2], t[3], t[4], given);
}
CALL(cross_entropy_backward) {
  TERMS(t[4]);
  return ek_op_cross_entropy_backward(s, t[0], t[1], t[2], t[3], given, t[5], t[6]);
}
CALL(cross_entropy_gradient) {
  TERMS(t[6]);
  return ek_op_cross_entropy_gradient(s, t[0], t[1], t[2], t[3], t[4], t[5], given, p->real[0]);
}
CALL(squared_error_forward) {
  return (void)p, ek_op_squared_error_forward(s, t[0], t[1], t[2], t[3]);
}
CALL(squared_error_backward) {
  return (void)p, ek_op_squared_error_backward(s, t[0], t[1], t[2], t[3], t[4]);
}
CALL(combine_totals) {
  return ek_op_combine_totals(s, t[0], t[1], t[2], p->without_terms ? NULL : p->coefficients,
                              p->flag[0]);
}

/* ---- updates.h ---- */

CALL(sgd) {
  const ek_sgd_terms terms = {p->real[0], p->real[1], p->real[2],
                              p->real[3], p->flag[0], p->flag[1]};
  const ek_update_scale scale = {t[3], t[4], p->real[4], t[5]};
  return ek_op_sgd(s, t[0], t[1], t[2], p->without_terms ? NULL : &terms,
                   p->flag[2] ? NULL : &scale);
}
CALL(adamw) {
  const ek_adamw_terms terms = {p->real[0], p->real[1], p->real[2], p->epsilon,
                                p->real[3], p->flag[0], p->step};
  const ek_update_scale scale = {t[4], t[5], p->real[4], t[6]};
  return ek_op_adamw(s, t[0], t[1], t[2], t[3], p->without_terms ? NULL : &terms,
                     p->flag[2] ? NULL : &scale);
}
CALL(square_norm) { return ek_op_square_norm(s, t[0], t[1], p->real[0]); }

/* ---- the table ---- */

#define WRITTEN .written = true
#define OPTIONAL .optional = true
#define F64 .type = EK_F64
#define I32 .type = EK_I32
#define SUM .sum = true

const struct operation operations[] = {
    {"zero", call_zero, 1, {{.name = "y", .shape = "RC", WRITTEN}}},
    {"fill", call_fill, 1, {{.name = "y", .shape = "RC", WRITTEN}}},
    {"copy", call_copy, 2, {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"add",
     call_add,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RC"},
      {.name = "b", .shape = "RC"}}},
    {"scale", call_scale, 2, {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"add_bias",
     call_add_bias,
     2,
     {{.name = "x", .shape = "RC", WRITTEN}, {.name = "bias", .shape = "C"}}},
    {"column_sum",
     call_column_sum,
     2,
     {{.name = "y", SUM, .shape = "C", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"gelu_forward",
     call_gelu_forward,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "x", .shape = "RC", WRITTEN},
      {.name = "bias", .shape = "C", OPTIONAL}}},
    {"gelu_backward",
     call_gelu_backward,
     3,
     {{.name = "dx", .shape = "RC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "x", .shape = "RC"}}},
    {"relu_forward",
     call_relu_forward,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"relu_backward",
     call_relu_backward,
     3,
     {{.name = "dx", .shape = "RC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "y", .shape = "RC"}}},
    {"silu_forward",
     call_silu_forward,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "x", .shape = "RC", WRITTEN},
      {.name = "bias", .shape = "C", OPTIONAL}}},
    {"silu_backward",
     call_silu_backward,
     3,
     {{.name = "dx", .shape = "RC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "x", .shape = "RC"}}},
    {"gate_forward",
     call_gate_forward,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "x", .shape = "RC"},
      {.name = "factor", .shape = "RC"}}},
    {"gate_backward",
     call_gate_backward,
     5,
     {{.name = "dx", .shape = "RC", WRITTEN},
      {.name = "dfactor", .shape = "RC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "x", .shape = "RC"},
      {.name = "factor", .shape = "RC"}}},
    {"dropout",
     call_dropout,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"convert",
     call_convert,
     2,
     {{.name = "y", .shape = "RC", .type = EK_BF16, WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"convert",
     call_convert,
     2,
     {{.name = "y", .shape = "RC", .type = EK_F32, WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"convert",
     call_convert,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC", .type = EK_F16}}},
    {"convert",
     call_convert,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC", .type = EK_F32}}},
    {"matmul",
     call_matmul,
     3,
     {{.name = "c", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RK"},
      {.name = "b", .shape = "KC"}}},
    {"matmul",
     call_matmul_a,
     3,
     {{.name = "c", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "KR"},
      {.name = "b", .shape = "KC"}}},
    {"matmul",
     call_matmul_b,
     3,
     {{.name = "c", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RK"},
      {.name = "b", .shape = "CK"}}},
    {"matmul",
     call_matmul_ab,
     3,
     {{.name = "c", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "KR"},
      {.name = "b", .shape = "CK"}}},
    {"linear",
     call_linear,
     4,
     {{.name = "y", .shape = "RW", WRITTEN},
      {.name = "x", .shape = "RK"},
      {.name = "w", .shape = "CK"},
      {.name = "bias", .shape = "C", OPTIONAL}}},
    {"linear_gelu",
     call_linear_gelu,
     5,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "pre", .shape = "RC", WRITTEN, OPTIONAL},
      {.name = "x", .shape = "RK"},
      {.name = "w", .shape = "CK"},
      {.name = "bias", .shape = "C", OPTIONAL}}},
    {"gelu_linear_backward",
     call_gelu_linear_backward,
     5,
     {{.name = "dpre", .shape = "RC", WRITTEN},
      {.name = "dbias", SUM, .shape = "C", WRITTEN, OPTIONAL},
      {.name = "dy", .shape = "RK"},
      {.name = "w", .shape = "KC"},
      {.name = "pre", .shape = "RC"}}},
    {"linear_gradients",
     call_linear_gradients,
     4,
     {{.name = "dw", SUM, .shape = "CK", WRITTEN, OPTIONAL},
      {.name = "dbias", SUM, .shape = "C", WRITTEN, OPTIONAL},
      {.name = "dy", .shape = "RW"},
      {.name = "x", .shape = "RK"}}},
    {"linear_backward",
     call_linear_backward,
     3,
     {{.name = "dx", .shape = "RK", WRITTEN},
      {.name = "dy", .shape = "RW"},
      {.name = "w", .shape = "CK"}}},
    {"layer_norm_forward",
     call_layer_norm_forward,
     6,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "mean", SUM, .shape = "R", WRITTEN},
      {.name = "rstd", SUM, .shape = "R", WRITTEN},
      {.name = "x", .shape = "RC"},
      {.name = "gamma", .shape = "C"},
      {.name = "beta", .shape = "C"}}},
    {"add_layer_norm_forward",
     call_add_layer_norm_forward,
     8,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "sum", .shape = "RC", WRITTEN},
      {.name = "mean", SUM, .shape = "R", WRITTEN},
      {.name = "rstd", SUM, .shape = "R", WRITTEN},
      {.name = "x", .shape = "RC"},
      {.name = "residual", .shape = "RC"},
      {.name = "gamma", .shape = "C"},
      {.name = "beta", .shape = "C"}}},
    {"layer_norm_backward",
     call_layer_norm_backward,
     9,
     {{.name = "dx", .shape = "RC", WRITTEN, OPTIONAL},
      {.name = "residual", .shape = "RC", OPTIONAL},
      {.name = "dgamma", SUM, .shape = "C", WRITTEN},
      {.name = "dbeta", SUM, .shape = "C", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "x", .shape = "RC"},
      {.name = "mean", SUM, .shape = "R"},
      {.name = "rstd", SUM, .shape = "R"},
      {.name = "gamma", .shape = "C"}}},
    {"lookup_forward",
     call_lookup_forward,
     4,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "table", .shape = "EC"},
      {.name = "index", .shape = "R", I32, .index_below = 'E'},
      {.name = "positions", .shape = "PC", OPTIONAL}}},
    {"lookup_backward",
     call_lookup_backward,
     3,
     {{.name = "dtable", SUM, .shape = "EC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "index", .shape = "R", I32, .index_below = 'E'}}},
    {"positions_backward",
     call_positions_backward,
     2,
     {{.name = "dpositions", SUM, .shape = "PC", WRITTEN}, {.name = "dy", .shape = "RC"}}},
    {"attention_forward",
     call_attention_forward,
     3,
     {{.name = "out", .shape = "BTC", WRITTEN},
      {.name = "lse", SUM, .shape = "BHT", WRITTEN},
      {.name = "qkv", .shape = "BTQ"}}},
    {"attention_backward",
     call_attention_backward,
     5,
     {{.name = "dqkv", .shape = "BTQ", WRITTEN},
      {.name = "dout", .shape = "BTC"},
      {.name = "qkv", .shape = "BTQ"},
      {.name = "out", .shape = "BTC"},
      {.name = "lse", SUM, .shape = "BHT"}}},
    {"cross_entropy_forward",
     call_cross_entropy_forward,
     6,
     {{.name = "losses", SUM, .shape = "R", WRITTEN},
      {.name = "normalizer", SUM, .shape = "R2", WRITTEN},
      {.name = "totals", .shape = "2", F64, WRITTEN},
      {.name = "logits", .shape = "RW"},
      {.name = "targets", .shape = "R", I32, .index_below = 'C'},
      {.name = "class_weights", SUM, .shape = "C", OPTIONAL, .not_negative = true}}},
    {"cross_entropy_backward",
     call_cross_entropy_backward,
     7,
     {{.name = "gradient", .shape = "RW", WRITTEN, .zero_padding = true},
      {.name = "logits", .shape = "RW"},
      {.name = "normalizer", SUM, .shape = "R2"},
      {.name = "targets", .shape = "R", I32, .index_below = 'C'},
      {.name = "class_weights", SUM, .shape = "C", OPTIONAL, .not_negative = true},
      {.name = "scale", .shape = "1", F64, OPTIONAL},
      {.name = "row_scale", SUM, .shape = "R", OPTIONAL}}},
    {"cross_entropy_gradient",
     call_cross_entropy_gradient,
     7,
     {{.name = "gradient", .shape = "RW", WRITTEN, .zero_padding = true},
      {.name = "losses", SUM, .shape = "R", WRITTEN},
      {.name = "normalizer", SUM, .shape = "R2", WRITTEN},
      {.name = "totals", .shape = "2", F64, WRITTEN},
      {.name = "logits", .shape = "RW"},
      {.name = "targets", .shape = "R", I32, .index_below = 'C'},
      {.name = "class_weights", SUM, .shape = "C", OPTIONAL, .not_negative = true}}},
    {"squared_error_forward",
     call_squared_error_forward,
     4,
     {{.name = "losses", SUM, .shape = "RC", WRITTEN, OPTIONAL},
      {.name = "totals", .shape = "2", F64, WRITTEN},
      {.name = "y", .shape = "RC"},
      {.name = "target", .shape = "RC"}}},
    {"squared_error_backward",
     call_squared_error_backward,
     5,
     {{.name = "gradient", .shape = "RC", WRITTEN},
      {.name = "y", .shape = "RC"},
      {.name = "target", .shape = "RC"},
      {.name = "scale", .shape = "1", F64, OPTIONAL},
      {.name = "element_scale", SUM, .shape = "RC", OPTIONAL}}},
    {"combine_totals",
     call_combine_totals,
     3,
     {{.name = "combined", .shape = "2", F64, WRITTEN},
      {.name = "scales", .shape = "J2", F64, WRITTEN},
      {.name = "totals", .shape = "J2", F64, .not_negative = true}}},
    {"sgd",
     call_sgd,
     6,
     {{.name = "parameters", SUM, .shape = "RC", WRITTEN},
      {.name = "momentum_buffer", SUM, .shape = "RC", WRITTEN, OPTIONAL},
      {.name = "gradients", .shape = "RC"},
      {.name = "totals", .shape = "2", F64, OPTIONAL, .not_negative = true},
      {.name = "square_norm", .shape = "1", F64, OPTIONAL, .not_negative = true},
      {.name = "copy", .shape = "RC", .type = EK_F16, WRITTEN, OPTIONAL}}},
    {"adamw",
     call_adamw,
     7,
     {{.name = "parameters", SUM, .shape = "RC", WRITTEN},
      {.name = "m", SUM, .shape = "RC", WRITTEN},
      {.name = "v", SUM, .shape = "RC", WRITTEN, .not_negative = true},
      {.name = "gradients", .shape = "RC"},
      {.name = "totals", .shape = "2", F64, OPTIONAL, .not_negative = true},
      {.name = "square_norm", .shape = "1", F64, OPTIONAL, .not_negative = true},
      {.name = "copy", .shape = "RC", .type = EK_BF16, WRITTEN, OPTIONAL}}},
    {"square_norm",
     call_square_norm,
     2,
     {{.name = "result", .shape = "1", F64, WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"binary",
     call_binary,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RC"},
      {.name = "b", .shape = "RC", .not_negative = true}}},
    {"binary by rows",
     call_binary_rows,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RC"},
      {.name = "b", SUM, .shape = "R", .not_negative = true}}},
    {"binary by columns",
     call_binary_columns,
     3,
     {{.name = "y", .shape = "RC", WRITTEN},
      {.name = "a", .shape = "RC"},
      {.name = "b", .shape = "C", .not_negative = true}}},
    {"rsqrt",
     call_rsqrt,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC", .not_negative = true}}},
    {"exp",
     call_exponential,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"row_reduce",
     call_row_reduce,
     3,
     {{.name = "y", SUM, .shape = "R", WRITTEN},
      {.name = "a", .shape = "RC"},
      {.name = "b", .shape = "RC", OPTIONAL}}},
    {"softmax_forward",
     call_softmax_forward,
     2,
     {{.name = "y", .shape = "RC", WRITTEN}, {.name = "x", .shape = "RC"}}},
    {"softmax_backward",
     call_softmax_backward,
     3,
     {{.name = "dx", .shape = "RC", WRITTEN},
      {.name = "dy", .shape = "RC"},
      {.name = "y", .shape = "RC"}}},
};

const size_t operation_count = sizeof operations / sizeof operations[0];
