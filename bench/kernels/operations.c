/*
 * operations.c - see operations.h.
 */
#include "operations.h"

#include <string.h>

#define CALL(name)                                                                                 \
  static ek_status call_##name(ek_stream *s, ek_tensor *const *t, const struct parameters *p)

/* ---- elementwise.h ---- */

CALL(zero) { return (void)p, ek_op_zero(s, t[0]); }
CALL(fill) { return ek_op_fill(s, t[0], p->real[0]); }
CALL(copy) { return (void)p, ek_op_copy(s, t[0], t[1]); }
CALL(add) { return (void)p, ek_op_add(s, t[0], t[1], t[2]); }
CALL(lerp) { return ek_op_lerp(s, t[0], t[1], t[2], p->real[0]); }
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
  return ek_op_binary(s, t[0], t[1], t[2], (ek_binary)kind, EK_SPREAD_NONE);
}
CALL(binary_rows) {
  const int kind = p->flag[0] + 2 * p->flag[1];
  return ek_op_binary(s, t[0], t[1], t[2], (ek_binary)kind, EK_SPREAD_ROWS);
}
CALL(binary_columns) {
  const int kind = p->flag[0] + 2 * p->flag[1];
  return ek_op_binary(s, t[0], t[1], t[2], (ek_binary)kind, EK_SPREAD_COLUMNS);
}
CALL(unary_rsqrt) { return ek_op_unary(s, t[0], t[1], EK_UNARY_RSQRT, p->epsilon); }
CALL(unary_exp) { return ek_op_unary(s, t[0], t[1], EK_UNARY_EXP, p->real[0]); }
CALL(dropout) { return ek_op_dropout(s, t[0], t[1], p->chance, p->key, p->first_sample); }

/* ---- convert.h ---- */

CALL(convert) { return (void)p, ek_op_convert(s, t[0], t[1]); }

/* ---- rows.h ---- */

CALL(row_reduce) {
  return ek_op_row_reduce(s, t[0], t[1], t[2], p->flag[0] ? EK_ROW_MEAN : EK_ROW_SUM);
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
  return ek_op_gelu_linear_backward(s, t[0], t[1], t[2], t[3], t[4], p->real[0]);
}
CALL(linear_gradients) {
  return ek_op_linear_gradients(s, t[0], t[1], t[2], t[3], p->real[0], p->real[1]);
}
CALL(linear_backward) { return (void)p, ek_op_linear_backward(s, t[0], t[1], t[2]); }

/* ---- normalize.h, lookup.h, attend.h ---- */

CALL(layer_norm_forward) {
  return ek_op_layer_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5], p->epsilon);
}
CALL(add_layer_norm_forward) {
  return ek_op_add_layer_norm_forward(s, &(ek_add_layer_norm_args){.y = t[0],
                                                                   .sum = t[1],
                                                                   .mean = t[2],
                                                                   .rstd = t[3],
                                                                   .x = t[4],
                                                                   .residual = t[5],
                                                                   .weight = t[6],
                                                                   .bias = t[7],
                                                                   .epsilon = p->epsilon});
}
CALL(layer_norm_backward) {
  return ek_op_layer_norm_backward(s, &(ek_layer_norm_backward_args){.dx = t[0],
                                                                     .dweight = t[2],
                                                                     .dbias = t[3],
                                                                     .dy = t[4],
                                                                     .x = t[5],
                                                                     .mean = t[6],
                                                                     .rstd = t[7],
                                                                     .weight = t[8],
                                                                     .residual = t[1],
                                                                     .weight_beta = p->real[0],
                                                                     .bias_beta = p->real[1]});
}
CALL(lookup_forward) { return ek_op_lookup_forward(s, t[0], t[1], t[2], t[3], p->period); }
CALL(lookup_backward) { return (void)p, ek_op_lookup_backward(s, t[0], t[1], t[2]); }
CALL(positions_backward) { return ek_op_positions_backward(s, t[0], t[1], p->period, p->real[0]); }
CALL(rotary) {
  static const double speeds[EK_ROTARY_MOST_PAIRS] = {1, 0.5, 0.25};
  const int64_t columns = t[0] == NULL ? 0 : t[0]->shape[2];
  const int64_t most = 2 * EK_ROTARY_MOST_PAIRS;
  const int64_t width = columns > most ? most : columns / 2 * 2;
  return ek_op_rotary(s, t[0], t[1], 1, width, speeds, p->flag[0]);
}
static ek_attend_options attend_options(const struct parameters *p) {
  ek_attend_options options = EK_ATTEND_OPTIONS_INIT;
  options.heads = p->heads;
  options.causal = !p->flag[0];
  return options;
}
CALL(attention_forward) {
  const ek_attend_options options = attend_options(p);
  return ek_op_attention_forward(s, t[0], t[1], t[2], &options);
}
CALL(attention_backward) {
  const ek_attend_options options = attend_options(p);
  return ek_op_attention_backward(s, t[0], t[1], t[2], t[3], t[4],
                                  &options);
}

/* ---- convolve.h: kernels of one pixel, which need no workspace ---- */

CALL(convolve_forward) {
  return (void)p, ek_op_convolve_forward(s, t[0], t[1], t[2], t[3], t[4], NULL);
}
CALL(convolve_backward) {
  return ek_op_convolve_backward(s, &(ek_convolve_backward_args){.dx = t[0],
                                                                 .dweight = t[1],
                                                                 .dbias = t[2],
                                                                 .workspace = t[3],
                                                                 .dy = t[4],
                                                                 .x = t[5],
                                                                 .weight = t[6],
                                                                 .weight_beta = p->real[0],
                                                                 .bias_beta = p->real[1]});
}

/* ---- pool.h: windows of one pixel ---- */

static const ek_pooling one_pixel = {
    sizeof(ek_pooling), {1, 1}, {1, 1}, {0, 0}, {1, 1}, true, false};

CALL(max_pool_forward) {
  return (void)p, ek_op_max_pool_forward(s, t[0], t[1], t[2], &one_pixel);
}
CALL(max_pool_backward) {
  return (void)p, ek_op_max_pool_backward(s, t[0], t[1], t[2], &one_pixel);
}
CALL(average_pool_forward) {
  return (void)p, ek_op_average_pool_forward(s, t[0], t[1], &one_pixel);
}
CALL(average_pool_backward) {
  return (void)p, ek_op_average_pool_backward(s, t[0], t[1], &one_pixel);
}
CALL(resample_forward) { return ek_op_resample_forward(s, t[0], t[1], p->flag[0]); }
CALL(resample_backward) { return ek_op_resample_backward(s, t[0], t[1], p->flag[0]); }

/* ---- channel_norm.h ---- */

CALL(channel_moments) { return (void)p, ek_op_channel_moments(s, t[0], t[1]); }
CALL(channel_statistics) {
  return ek_op_channel_statistics(s, t[0], t[1], t[2], t[3], 7, p->heads, p->epsilon);
}
CALL(channel_running) {
  return ek_op_channel_running(s, t[0], t[1], t[2], t[3], t[4], 7, p->real[0]);
}
CALL(channel_norm_forward) {
  return (void)p, ek_op_channel_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5]);
}
CALL(channel_slopes) { return (void)p, ek_op_channel_slopes(s, t[0], t[1], t[2], t[3], t[4]); }
CALL(channel_averages) {
  return ek_op_channel_averages(s, &(ek_channel_averages_args){.average_g = t[0],
                                                               .average_gn = t[1],
                                                               .dweight = t[2],
                                                               .dbias = t[3],
                                                               .sums = t[4],
                                                               .rows = t[5],
                                                               .weight = t[6],
                                                               .host_rows = 7,
                                                               .groups = p->heads,
                                                               .weight_beta = p->real[0],
                                                               .bias_beta = p->real[1]});
}
CALL(channel_norm_backward) {
  return (void)p,
         ek_op_channel_norm_backward(s, &(ek_channel_norm_backward_args){.dx = t[0],
                                                                         .dy = t[1],
                                                                         .x = t[2],
                                                                         .mean = t[3],
                                                                         .rstd = t[4],
                                                                         .weight = t[5],
                                                                         .average_g = t[6],
                                                                         .average_gn = t[7]});
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
  return ek_op_cross_entropy_backward(s, t[0], t[1], t[2], t[3], t[5], t[6], given);
}
CALL(cross_entropy_gradient) {
  TERMS(t[6]);
  return ek_op_cross_entropy_gradient(s, &(ek_cross_entropy_gradient_args){.gradient = t[0],
                                                                           .losses = t[1],
                                                                           .normalizer = t[2],
                                                                           .totals = t[3],
                                                                           .logits = t[4],
                                                                           .targets = t[5],
                                                                           .scale = p->real[0],
                                                                           .terms = given});
}
CALL(squared_error_forward) {
  return (void)p, ek_op_squared_error_forward(s, t[0], t[1], t[2], t[3]);
}
CALL(squared_error_backward) {
  return (void)p, ek_op_squared_error_backward(s, t[0], t[1], t[2], t[3], t[4]);
}
static const ek_element_loss binary = {EK_ELEMENT_LOSS_BINARY, 0, 1};

CALL(element_loss_forward) {
  return (void)p, ek_op_element_loss_forward(s, t[0], t[1], t[2], t[3], t[4], &binary, 1);
}
CALL(element_loss_backward) {
  return (void)p, ek_op_element_loss_backward(s, t[0], t[1], t[2], t[3], t[4], t[5], &binary);
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

/* ---- the list ---- */

#define NAMED(title, word, function, ...)                                                          \
  {.name = title,                                                                                  \
   .message = word,                                                                                \
   .call = function,                                                                               \
   .count = sizeof((struct operand[]){__VA_ARGS__}) / sizeof(struct operand),                      \
   .operand = {__VA_ARGS__}}
#define OP(name, ...) NAMED(#name, #name, call_##name, __VA_ARGS__)
/* Name and shape, then what else is true of the operand. */
#define IN(title, ...) {.name = title, .shape = __VA_ARGS__}
#define OUT(title, ...) {.name = title, .written = true, .shape = __VA_ARGS__}
#define UPDATED(title, ...) OUT(title, __VA_ARGS__, .updated = true)
#define MAY_BE(...) .may_be = __VA_ARGS__
#define F64 .type = EK_F64
#define I32_BELOW(letter) .type = EK_I32, .index_below = letter
#define SUM .sum = true
#define OPTIONAL .optional = true
#define NOT_NEGATIVE .not_negative = true
#define ANY_SHAPE .any_shape = true
#define ANY_FLOAT .any_float = true
#define FUZZED(kind) .fuzzed = kind

const struct operation operations[] = {
    OP(zero, OUT("y", "RC", .any_type = true, ANY_SHAPE)),
    OP(fill, OUT("y", "RC", ANY_SHAPE)),
    OP(copy, OUT("y", "RC", .any_type = true), IN("x", "RC", .any_type = true)),
    OP(add, OUT("y", "RC", MAY_BE(1 << 1 | 1 << 2)), IN("a", "RC"), IN("b", "RC")),
    OP(lerp, OUT("y", "RC", MAY_BE(1 << 1 | 1 << 2)), IN("a", "RC"), IN("b", "RC")),
    OP(scale, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC")),
    OP(add_bias, UPDATED("x", "RC"), IN("bias", "C")),
    OP(column_sum, OUT("y", "C", SUM), IN("x", "RC")),
    OP(gelu_forward, OUT("y", "RC", MAY_BE(1 << 1)), OUT("x", "RC"), IN("bias", "C", OPTIONAL)),
    OP(gelu_backward, OUT("dx", "RC", MAY_BE(1 << 1)), IN("dy", "RC"), IN("x", "RC")),
    OP(relu_forward, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC")),
    OP(relu_backward, OUT("dx", "RC", MAY_BE(1 << 1)), IN("dy", "RC"), IN("y", "RC")),
    OP(silu_forward, OUT("y", "RC", MAY_BE(1 << 1)), OUT("x", "RC"), IN("bias", "C", OPTIONAL)),
    OP(silu_backward, OUT("dx", "RC", MAY_BE(1 << 1)), IN("dy", "RC"), IN("x", "RC")),
    OP(gate_forward, OUT("y", "RC", MAY_BE(1 << 1 | 1 << 2)), IN("x", "RC"), IN("factor", "RC")),
    OP(gate_backward, OUT("dx", "RC", MAY_BE(1 << 2 | 1 << 3)),
       OUT("dfactor", "RC", MAY_BE(1 << 4)), IN("dy", "RC"), IN("x", "RC"), IN("factor", "RC")),
    OP(dropout, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC")),
    OP(convert, OUT("y", "RC", ANY_FLOAT, FUZZED(EK_BF16)), IN("x", "RC", ANY_FLOAT)),
    OP(convert, OUT("y", "RC", ANY_FLOAT, FUZZED(EK_F32)), IN("x", "RC", ANY_FLOAT)),
    OP(convert, OUT("y", "RC", ANY_FLOAT), IN("x", "RC", ANY_FLOAT, FUZZED(EK_F16))),
    OP(convert, OUT("y", "RC", ANY_FLOAT), IN("x", "RC", ANY_FLOAT, FUZZED(EK_F32))),
    OP(matmul, OUT("c", "RC"), IN("a", "RK"), IN("b", "KC")),
    NAMED("matmul with a transposed", "matmul", call_matmul_a, OUT("c", "RC"), IN("a", "KR"),
          IN("b", "KC")),
    NAMED("matmul with b transposed", "matmul", call_matmul_b, OUT("c", "RC"), IN("a", "RK"),
          IN("b", "CK")),
    NAMED("matmul with both transposed", "matmul", call_matmul_ab, OUT("c", "RC"), IN("a", "KR"),
          IN("b", "CK")),
    OP(linear, OUT("y", "RW", ANY_SHAPE), IN("x", "RK"), IN("w", "CK"), IN("bias", "C", OPTIONAL)),
    OP(linear_gelu, OUT("y", "RC"), OUT("pre", "RC", OPTIONAL), IN("x", "RK"), IN("w", "CK"),
       IN("bias", "C", OPTIONAL)),
    OP(gelu_linear_backward, OUT("dpre", "RC"), OUT("dbias", "C", SUM, OPTIONAL), IN("dy", "RK"),
       IN("w", "KC"), IN("pre", "RC")),
    OP(linear_gradients, OUT("dw", "CK", SUM, OPTIONAL), OUT("dbias", "C", SUM, OPTIONAL),
       IN("dy", "RW", ANY_SHAPE), IN("x", "RK")),
    OP(linear_backward, OUT("dx", "RK"), IN("dy", "RW", ANY_SHAPE), IN("w", "CK")),
    OP(layer_norm_forward, OUT("y", "RC", MAY_BE(1 << 3)), OUT("mean", "R", SUM, OPTIONAL),
       OUT("rstd", "R", SUM), IN("x", "RC"), IN("gamma", "C"), IN("beta", "C", OPTIONAL)),
    OP(add_layer_norm_forward, OUT("y", "RC"), OUT("sum", "RC", MAY_BE(1 << 4 | 1 << 5)),
       OUT("mean", "R", SUM, OPTIONAL), OUT("rstd", "R", SUM), IN("x", "RC"), IN("residual", "RC"),
       IN("gamma", "C"), IN("beta", "C", OPTIONAL)),
    OP(layer_norm_backward, OUT("dx", "RC", OPTIONAL, MAY_BE(1 << 1 | 1 << 4)),
       IN("residual", "RC", OPTIONAL), OUT("dgamma", "C", SUM, OPTIONAL),
       OUT("dbeta", "C", SUM, OPTIONAL), IN("dy", "RC"), IN("x", "RC"),
       IN("mean", "R", SUM, OPTIONAL), IN("rstd", "R", SUM), IN("gamma", "C")),
    OP(channel_moments, OUT("sums", "P2C", F64), IN("x", "RC")),
    OP(channel_statistics, OUT("mean", "RC", SUM), OUT("rstd", "RC", SUM), IN("sums", "R2C", F64),
       IN("rows", "1", F64, OPTIONAL, NOT_NEGATIVE)),
    OP(channel_running, UPDATED("running_mean", "C", SUM), UPDATED("running_variance", "C", SUM),
       UPDATED("batches", "1", SUM, NOT_NEGATIVE), IN("sums", "2C", F64),
       IN("rows", "1", F64, OPTIONAL, NOT_NEGATIVE)),
    OP(channel_norm_forward, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC"), IN("mean", "PC", SUM),
       IN("rstd", "PC", SUM), IN("weight", "C", OPTIONAL), IN("bias", "C", OPTIONAL)),
    OP(channel_slopes, OUT("sums", "P2C", F64), IN("dy", "RC"), IN("x", "RC"),
       IN("mean", "PC", SUM), IN("rstd", "PC", SUM)),
    OP(channel_averages, OUT("average_g", "RC", SUM, OPTIONAL),
       OUT("average_gn", "RC", SUM, OPTIONAL), OUT("dweight", "C", SUM, OPTIONAL),
       OUT("dbias", "C", SUM, OPTIONAL), IN("sums", "R2C", F64),
       IN("rows", "1", F64, OPTIONAL, NOT_NEGATIVE), IN("weight", "C", OPTIONAL)),
    OP(channel_norm_backward, OUT("dx", "RC", MAY_BE(1 << 1)), IN("dy", "RC"), IN("x", "RC"),
       IN("mean", "PC", SUM), IN("rstd", "PC", SUM), IN("weight", "C", OPTIONAL),
       IN("average_g", "PC", SUM, OPTIONAL), IN("average_gn", "PC", SUM, OPTIONAL)),
    OP(lookup_forward, OUT("y", "RC"), IN("table", "EC"), IN("index", "R", I32_BELOW('E')),
       IN("positions", "PC", OPTIONAL)),
    OP(lookup_backward, OUT("dtable", "EC", SUM), IN("dy", "RC"), IN("index", "R", I32_BELOW('E'))),
    OP(positions_backward, OUT("dpositions", "PC", SUM), IN("dy", "RC")),
    OP(rotary, UPDATED("x", "BTC", ANY_SHAPE), IN("positions", "BT", I32_BELOW('T'), OPTIONAL)),
    OP(attention_forward, OUT("out", "BTC"), OUT("lse", "BHT", SUM), IN("q", "BTQ")),
    OP(attention_backward, OUT("dq", "BTQ"), IN("dout", "BTC"), IN("q", "BTQ"), IN("out", "BTC"),
       IN("lse", "BHT", SUM)),
    OP(convolve_forward, OUT("y", "R11K"), OUT("workspace", "J", SUM, OPTIONAL, ANY_SHAPE),
       IN("x", "R11C"), IN("weight", "KC11"), IN("bias", "K", OPTIONAL)),
    OP(convolve_backward, OUT("dx", "R11C", OPTIONAL), OUT("dweight", "KC11", SUM, OPTIONAL),
       OUT("dbias", "K", SUM, OPTIONAL), OUT("workspace", "J", SUM, OPTIONAL, ANY_SHAPE),
       IN("dy", "R11K"), IN("x", "R11C"), IN("weight", "KC11")),
    OP(max_pool_forward, OUT("y", "R11C"), OUT("places", "R11C", I32_BELOW('1')), IN("x", "R11C")),
    OP(max_pool_backward, OUT("dx", "R11C"), IN("dy", "R11C"),
       IN("places", "R11C", I32_BELOW('1'))),
    OP(average_pool_forward, OUT("y", "R11C"), IN("x", "R11C")),
    OP(average_pool_backward, OUT("dx", "R11C"), IN("dy", "R11C")),
    OP(resample_forward, OUT("y", "R11C"), IN("x", "R11C")),
    OP(resample_backward, OUT("dx", "R11C"), IN("dy", "R11C")),
    OP(cross_entropy_forward, OUT("losses", "R", SUM), OUT("normalizer", "R2", SUM),
       OUT("totals", "2", F64), IN("logits", "RW"), IN("targets", "R", I32_BELOW('C')),
       IN("class_weights", "C", SUM, OPTIONAL, NOT_NEGATIVE)),
    OP(cross_entropy_backward, OUT("gradient", "RW", .zero_padding = true, MAY_BE(1 << 1)),
       IN("logits", "RW"), IN("normalizer", "R2", SUM), IN("targets", "R", I32_BELOW('C')),
       IN("class_weights", "C", SUM, OPTIONAL, NOT_NEGATIVE), IN("scale", "1", F64, OPTIONAL),
       IN("row_scale", "R", SUM, OPTIONAL)),
    OP(cross_entropy_gradient, OUT("gradient", "RW", .zero_padding = true, MAY_BE(1 << 4)),
       OUT("losses", "R", SUM), OUT("normalizer", "R2", SUM), OUT("totals", "2", F64),
       IN("logits", "RW"), IN("targets", "R", I32_BELOW('C')),
       IN("class_weights", "C", SUM, OPTIONAL, NOT_NEGATIVE)),
    OP(squared_error_forward, OUT("losses", "RC", SUM, OPTIONAL), OUT("totals", "2", F64),
       IN("y", "RC"), IN("target", "RC")),
    OP(squared_error_backward, OUT("gradient", "RC", MAY_BE(1 << 1)), IN("y", "RC"),
       IN("target", "RC"), IN("scale", "1", F64, OPTIONAL),
       IN("element_scale", "RC", SUM, OPTIONAL)),
    OP(element_loss_forward, OUT("losses", "RC", SUM, OPTIONAL), OUT("totals", "2", F64),
       IN("y", "RC"), IN("target", "RC"), IN("weights", "RC", OPTIONAL)),
    OP(element_loss_backward, OUT("gradient", "RC", MAY_BE(1 << 1)), IN("y", "RC"),
       IN("target", "RC"), IN("weights", "RC", OPTIONAL), IN("scale", "1", F64, OPTIONAL),
       IN("element_scale", "RC", SUM, OPTIONAL)),
    OP(combine_totals, OUT("combined", "2", F64), OUT("scales", "J2", F64),
       IN("totals", "J2", F64, NOT_NEGATIVE)),
    OP(sgd, UPDATED("parameters", "RC", SUM), UPDATED("momentum_buffer", "RC", SUM, OPTIONAL),
       IN("gradients", "RC", .either = true), IN("totals", "2", F64, OPTIONAL, NOT_NEGATIVE),
       IN("square_norm", "1", F64, OPTIONAL, .needed = true, NOT_NEGATIVE),
       OUT("copy", "RC", OPTIONAL, FUZZED(EK_F16))),
    OP(adamw, UPDATED("parameters", "RC", SUM), UPDATED("m", "RC", SUM),
       UPDATED("v", "RC", SUM, NOT_NEGATIVE), IN("gradients", "RC", .either = true),
       IN("totals", "2", F64, OPTIONAL, NOT_NEGATIVE),
       IN("square_norm", "1", F64, OPTIONAL, .needed = true, NOT_NEGATIVE),
       OUT("copy", "RC", OPTIONAL, FUZZED(EK_BF16))),
    OP(square_norm, OUT("result", "1", F64), IN("x", "RC", ANY_SHAPE)),
    NAMED("binary", "binary_divide", call_binary, OUT("y", "RC", MAY_BE(1 << 1 | 1 << 2)),
          IN("a", "RC"), IN("b", "RC", NOT_NEGATIVE)),
    NAMED("binary by rows", "binary_divide", call_binary_rows, OUT("y", "RC", MAY_BE(1 << 1)),
          IN("a", "RC"), IN("b", "R", SUM, NOT_NEGATIVE)),
    NAMED("binary by columns", "binary_divide", call_binary_columns, OUT("y", "RC", MAY_BE(1 << 1)),
          IN("a", "RC"), IN("b", "C", NOT_NEGATIVE)),
    OP(unary_rsqrt, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC", NOT_NEGATIVE)),
    OP(unary_exp, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC")),
    NAMED("row_reduce", "row_mean", call_row_reduce, OUT("y", "R", SUM), IN("a", "RC"),
          IN("b", "RC", OPTIONAL)),
    OP(softmax_forward, OUT("y", "RC", MAY_BE(1 << 1)), IN("x", "RC")),
    OP(softmax_backward, OUT("dx", "RC", MAY_BE(1 << 1 | 1 << 2)), IN("dy", "RC"), IN("y", "RC")),
};

_Static_assert(sizeof operations / sizeof operations[0] <= MOST_OPERATIONS, "too many");
const size_t operation_count = sizeof operations / sizeof operations[0];

/* ---- sizes and parameters ---- */

int64_t operation_size(const struct sizes *sizes, char letter) {
  switch (letter) {
  case 'R': return sizes->r;
  case 'C': return sizes->c;
  case 'K': return sizes->k;
  case 'E': return sizes->e;
  case 'P': return sizes->p;
  case 'B': return sizes->b;
  case 'T': return sizes->t;
  case 'H': return sizes->h;
  case 'J': return sizes->j;
  case 'W': return sizes->w;
  case 'Q': return 3 * sizes->c;
  default: return letter - '0';
  }
}

int operand_shape(int64_t *shape, const struct operand *operand, const struct sizes *sizes) {
  const int rank = (int)strlen(operand->shape);
  for (int d = 0; d < rank; d++) shape[d] = operation_size(sizes, operand->shape[d]);
  return rank;
}

struct parameters operation_parameters(const struct sizes *sizes) {
  struct parameters p = {.real = {0.5, 0.75, 0, 0.125, 1},
                         .chance = 0.5,
                         .epsilon = 1e-5,
                         .period = sizes->p,
                         .step = 2,
                         .heads = (int)sizes->h,
                         .activation = EK_ACTIVATION_SILU,
                         .ignore_index = -100,
                         .flag = {true, true, false},
                         .key = {1, 2, 3}};
  for (size_t i = 0; i < MOST_TERMS; i++) p.coefficients[i] = 1 + (double)(i % 5) / 4;
  return p;
}
