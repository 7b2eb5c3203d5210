/*
 * check_op.c - rules of op.h that hold for all operations.
 *
 * NaN and infinity: each operation is called with one element of one operand NaN, +inf or -inf and
 * all others between 0.1 and 2. The table says how many elements of the results are then not
 * finite: as many as IEEE arithmetic makes of the operation's formula. What a formula selects
 * (ReLU, a beta of 0) or divides by infinity may be finite; the table shows where. Cross-entropy
 * has a test of its own in check_losses.c.
 */
#include <math.h>
#include <string.h>

#include <evenkeel/op.h>

#include "ek_check.h"

/* R x C: whole vectors of every instruction set and a rest. R is a multiple of a period. T tokens
 * of one head, D wide. */
enum { R = 4, C = 37, K = 5, PERIOD = 2, T = 6, D = 8, MOST = 10, MOST_ELEMENTS = 8 * C };

enum use { IN, OUT, INOUT };

struct operand {
  int64_t rows, columns;
  int reach[3]; /* not finite in all results if one element is NaN, +inf, -inf; -1: not tried */
  enum use use;
  ek_type type; /* 0: the rig's */
  bool sum;     /* that of sums */
  double low, high;
};

struct operation {
  const char *name;
  ek_status (*call)(ek_stream *stream, ek_tensor *const *t);
  bool at_least; /* a product with a tile of zeros may spread it: 0 times infinity is NaN */
  struct operand operand[MOST];
};

#define MATRIX .rows = R, .columns = C
#define ROW .rows = 1, .columns = C
#define COLUMN .rows = 1, .columns = R
#define POSITIVE .low = 0.5, .high = 2
#define SUM .sum = true
#define RESULT .use = OUT, .reach = {-1, -1, -1}
#define ALL(n) .reach = {n, n, n}

/* ---- the calls ---- */

#define CALL(name, ...)                                                                            \
  static ek_status name(ek_stream *s, ek_tensor *const *t) { return __VA_ARGS__; }

static const ek_random_key key = {1, 2, 3};
static const ek_sgd_terms sgd = {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.1};
static const ek_adamw_terms adam = {.learning_rate = 0.1,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .epsilon = 1e-8,
                                    .weight_decay = 0.1,
                                    .decoupled = true,
                                    .step = 2};

CALL(add, ek_op_add(s, t[0], t[1], t[2]))
CALL(scale, ek_op_scale(s, t[0], t[1], 0.0))
CALL(add_bias, ek_op_add_bias(s, t[0], t[1]))
CALL(column_sum, ek_op_column_sum(s, t[0], t[1], 1.0))
CALL(column_sum_anew, ek_op_column_sum(s, t[0], t[1], 0.0))
CALL(gelu_forward, ek_op_activation_forward(s, t[0], t[1], NULL, EK_ACTIVATION_GELU))
CALL(gelu_bias_forward, ek_op_activation_forward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU))
CALL(gelu_backward, ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_GELU))
CALL(relu_forward, ek_op_activation_forward(s, t[0], t[1], NULL, EK_ACTIVATION_RELU))
CALL(relu_backward, ek_op_activation_backward(s, t[0], t[1], t[2], EK_ACTIVATION_RELU))
CALL(gate_forward, ek_op_gate_forward(s, t[0], t[1], t[2], EK_ACTIVATION_SILU))
CALL(gate_backward, ek_op_gate_backward(s, t[0], t[1], t[2], t[3], t[4], EK_ACTIVATION_SILU))
CALL(multiply, ek_op_binary(s, t[0], t[1], EK_BINARY_MULTIPLY, t[2], EK_SPREAD_NONE))
CALL(divide, ek_op_binary(s, t[0], t[1], EK_BINARY_DIVIDE, t[2], EK_SPREAD_NONE))
CALL(subtract_rows, ek_op_binary(s, t[0], t[1], EK_BINARY_SUBTRACT, t[2], EK_SPREAD_ROWS))
CALL(multiply_columns, ek_op_binary(s, t[0], t[1], EK_BINARY_MULTIPLY, t[2], EK_SPREAD_COLUMNS))
CALL(rsqrt, ek_op_unary(s, t[0], t[1], EK_UNARY_RSQRT, 0.25))
CALL(exponential, ek_op_unary(s, t[0], t[1], EK_UNARY_EXP, 0.25))
CALL(row_sum, ek_op_row_reduce(s, t[0], EK_ROW_SUM, t[1], NULL))
CALL(row_mean, ek_op_row_reduce(s, t[0], EK_ROW_MEAN, t[1], t[2]))
CALL(softmax_forward, ek_op_softmax_forward(s, t[0], t[1]))
CALL(softmax_backward, ek_op_softmax_backward(s, t[0], t[1], t[2]))
CALL(dropout, ek_op_dropout(s, t[0], t[1], 0.5, key, 0))
CALL(layer_norm_forward, ek_op_layer_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5], 1e-5))
CALL(add_layer_norm_forward,
     ek_op_add_layer_norm_forward(s, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], 1e-5))
CALL(layer_norm_backward,
     ek_op_layer_norm_backward(s, t[0], t[1], t[2], 1, t[3], 0, t[4], t[5], t[6], t[7], t[8]))
CALL(lookup_forward, ek_op_lookup_forward(s, t[0], t[1], t[2], t[3], PERIOD))
CALL(lookup_backward, ek_op_lookup_backward(s, t[0], t[1], t[2]))
CALL(positions_backward, ek_op_positions_backward(s, t[0], t[1], PERIOD, 1.0))
CALL(positions_anew, ek_op_positions_backward(s, t[0], t[1], PERIOD, 0.0))
CALL(matmul, ek_op_matmul(s, t[0], t[1], false, t[2], false, 1.0))
CALL(matmul_anew, ek_op_matmul(s, t[0], t[1], true, t[2], true, 0.0))
CALL(linear, ek_op_linear(s, t[0], t[1], t[2], t[3]))
CALL(linear_gelu, ek_op_linear_gelu(s, t[0], t[1], t[2], t[3], t[4]))
CALL(gelu_linear_backward, ek_op_gelu_linear_backward(s, t[0], t[1], 0, t[2], t[3], t[4]))
CALL(linear_gradients, ek_op_linear_gradients(s, t[0], 0, t[1], 1, t[2], t[3]))
CALL(squared_forward, ek_op_squared_error_forward(s, t[0], t[1], t[2], t[3]))
CALL(squared_backward, ek_op_squared_error_backward(s, t[0], t[1], t[2], t[3], t[4]))
CALL(square_norm, ek_op_square_norm(s, t[0], t[1], 1.0))
CALL(square_norm_anew, ek_op_square_norm(s, t[0], t[1], 0.0))
CALL(update_sgd, ek_op_sgd(s, t[0], t[1], t[2], &sgd,
                           &(ek_update_scale){.totals = t[3], .square_norm = t[4], .clip_norm = 1}))
CALL(update_adamw,
     ek_op_adamw(s, t[0], t[1], t[2], t[3], &adam, &(ek_update_scale){t[4], t[5], 1, NULL}))

/* B x T x 3C and B x heads x T, which a table of rows and columns does not tell. */
static ek_tensor cube(const ek_tensor *t, int64_t d0, int64_t d1, int64_t d2) {
  ek_tensor shaped = *t;
  shaped.rank = 3;
  shaped.shape[0] = d0, shaped.shape[1] = d1, shaped.shape[2] = d2;
  return shaped;
}
static ek_status attention_forward(ek_stream *s, ek_tensor *const *t) {
  ek_tensor out = cube(t[0], 1, T, D), lse = cube(t[1], 1, 1, T), qkv = cube(t[2], 1, T, 3 * D);
  return ek_op_attention_forward(s, &out, &lse, &qkv, 1);
}
static ek_status attention_backward(ek_stream *s, ek_tensor *const *t) {
  ek_tensor dqkv = cube(t[0], 1, T, 3 * D), dout = cube(t[1], 1, T, D);
  ek_tensor qkv = cube(t[2], 1, T, 3 * D), out = cube(t[3], 1, T, D), lse = cube(t[4], 1, 1, T);
  return ek_op_attention_backward(s, &dqkv, &dout, &qkv, &out, &lse, 1);
}

/* ---- the table ---- */

/* The middle row of each operand is the one that is hit; of attention token 3, which tokens 3 .. 5
 * see. The index of a lookup is 0 everywhere, of which every position makes one row. */
static const struct operation operations[] = {
    {"add", add, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, ALL(1)}}},
    {"scale by 0", scale, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}}},
    {"add_bias", add_bias, false, {{MATRIX, ALL(1), .use = INOUT}, {ROW, ALL(R)}}},
    {"column_sum", column_sum, false, {{ROW, SUM, ALL(1), .use = INOUT}, {MATRIX, ALL(1)}}},
    {"column_sum, beta 0", column_sum_anew, false, {{ROW, SUM, RESULT}, {MATRIX, ALL(1)}}},
    {"gelu_forward", gelu_forward, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}}},
    {"gelu_forward with bias",
     gelu_bias_forward,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(2), .use = INOUT}, {ROW, ALL(2 * R)}}},
    {"gelu_backward", gelu_backward, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, ALL(1)}}},
    {"relu_forward", relu_forward, false, {{MATRIX, RESULT}, {MATRIX, .reach = {1, 1, 0}}}},
    {"relu_backward",
     relu_backward,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, .reach = {1, 0, 0}, POSITIVE}}},
    {"gate_forward", gate_forward, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, ALL(1)}}},
    {"gate_backward",
     gate_backward,
     false,
     {{MATRIX, RESULT}, {MATRIX, RESULT}, {MATRIX, ALL(2)}, {MATRIX, ALL(2)}, {MATRIX, ALL(1)}}},
    {"multiply", multiply, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, ALL(1)}}},
    {"divide",
     divide,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {MATRIX, .reach = {1, 0, 0}}}},
    {"subtract, by rows",
     subtract_rows,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {COLUMN, SUM, ALL(C)}}},
    {"multiply, by columns",
     multiply_columns,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(1)}, {ROW, ALL(R)}}},
    {"rsqrt", rsqrt, false, {{MATRIX, RESULT}, {MATRIX, POSITIVE, .reach = {1, 0, 1}}}},
    {"exp", exponential, false, {{MATRIX, RESULT}, {MATRIX, .reach = {1, 1, 0}}}},
    {"row_sum", row_sum, false, {{COLUMN, SUM, RESULT}, {MATRIX, ALL(1)}}},
    {"row_mean",
     row_mean,
     false,
     {{COLUMN, SUM, RESULT}, {MATRIX, ALL(1)}, {MATRIX, ALL(1)}}},
    {"softmax_forward", softmax_forward, false, {{MATRIX, RESULT}, {MATRIX, .reach = {C, C, 0}}}},
    {"softmax_backward",
     softmax_backward,
     false,
     {{MATRIX, RESULT}, {MATRIX, ALL(C)}, {MATRIX, ALL(C)}}},
    {"dropout", dropout, false, {{MATRIX, RESULT}, {MATRIX, ALL(1)}}},
    {"layer_norm_forward",
     layer_norm_forward,
     false,
     {{MATRIX, RESULT},
      {COLUMN, SUM, RESULT},
      {COLUMN, SUM, RESULT},
      {MATRIX, ALL(C + 2)},
      {ROW, ALL(R)},
      {ROW, ALL(R)}}},
    {"add_layer_norm_forward",
     add_layer_norm_forward,
     false,
     {{MATRIX, RESULT},
      {MATRIX, RESULT},
      {COLUMN, SUM, RESULT},
      {COLUMN, SUM, RESULT},
      {MATRIX, ALL(C + 3)},
      {MATRIX, ALL(C + 3)},
      {ROW, ALL(R)},
      {ROW, ALL(R)}}},
    {"layer_norm_backward",
     layer_norm_backward,
     false,
     {{MATRIX, RESULT},
      {MATRIX, ALL(1)},
      {ROW, SUM, ALL(1), .use = INOUT},
      {ROW, SUM, RESULT},
      {MATRIX, ALL(C + 2)},
      {MATRIX, ALL(C + 1)},
      {COLUMN, SUM, ALL(2 * C)},
      {COLUMN, SUM, ALL(2 * C), POSITIVE},
      {ROW, ALL(R *C)}}},
    {"lookup_forward",
     lookup_forward,
     false,
     {{MATRIX, RESULT},
      {.rows = 1, .columns = C, ALL(R)},
      {COLUMN, .type = EK_I32, .reach = {-1, -1, -1}},
      {.rows = PERIOD, .columns = C, ALL(R / PERIOD)}}},
    {"lookup_backward",
     lookup_backward,
     false,
     {{.rows = 1, .columns = C, SUM, ALL(1), .use = INOUT},
      {MATRIX, ALL(1)},
      {COLUMN, .type = EK_I32, .reach = {-1, -1, -1}}}},
    {"positions_backward",
     positions_backward,
     false,
     {{.rows = PERIOD, .columns = C, SUM, ALL(1), .use = INOUT}, {MATRIX, ALL(1)}}},
    {"positions_backward, beta 0",
     positions_anew,
     false,
     {{.rows = PERIOD, .columns = C, SUM, RESULT}, {MATRIX, ALL(1)}}},
    {"matmul",
     matmul,
     false,
     {{MATRIX, ALL(1), .use = INOUT},
      {.rows = R, .columns = K, ALL(C)},
      {.rows = K, .columns = C, ALL(R)}}},
    {"matmul of transposes, beta 0",
     matmul_anew,
     false,
     {{MATRIX, RESULT}, {.rows = K, .columns = R, ALL(C)}, {.rows = C, .columns = K, ALL(R)}}},
    {"linear",
     linear,
     false,
     {{MATRIX, RESULT},
      {.rows = R, .columns = K, ALL(C)},
      {.rows = C, .columns = K, ALL(R)},
      {ROW, ALL(R)}}},
    {"linear_gelu",
     linear_gelu,
     false,
     {{MATRIX, RESULT},
      {MATRIX, RESULT},
      {.rows = R, .columns = K, ALL(2 * C)},
      {.rows = C, .columns = K, ALL(2 * R)},
      {ROW, ALL(2 * R)}}},
    {"gelu_linear_backward",
     gelu_linear_backward,
     false,
     {{MATRIX, RESULT},
      {ROW, SUM, RESULT},
      {.rows = R, .columns = K, ALL(2 * C)},
      {.rows = K, .columns = C, ALL(R + 1)},
      {MATRIX, ALL(2)}}},
    {"linear_gradients",
     linear_gradients,
     false,
     {{.rows = K, .columns = C, SUM, RESULT},
      {.rows = 1, .columns = K, SUM, ALL(1), .use = INOUT},
      {.rows = R, .columns = K, ALL(C + 1)},
      {MATRIX, ALL(K)}}},
    {"squared_error_forward",
     squared_forward,
     false,
     {{MATRIX, SUM, RESULT},
      {.rows = 1, .columns = 2, .type = EK_F64, RESULT},
      {MATRIX, ALL(2)},
      {MATRIX, ALL(2)}}},
    {"squared_error_backward",
     squared_backward,
     false,
     {{MATRIX, RESULT},
      {MATRIX, ALL(1)},
      {MATRIX, ALL(1)},
      {.rows = 1, .columns = 1, .type = EK_F64, ALL(R *C)},
      {MATRIX, SUM, ALL(1)}}},
    {"square_norm",
     square_norm,
     false,
     {{.rows = 1, .columns = 1, .type = EK_F64, ALL(1), .use = INOUT}, {MATRIX, ALL(1)}}},
    {"square_norm, beta 0",
     square_norm_anew,
     false,
     {{.rows = 1, .columns = 1, .type = EK_F64, RESULT}, {MATRIX, ALL(1)}}},
    /* The sum s of the totals is not used; 1 / d and clip_norm / norm of an infinite one are 0. */
    {"sgd",
     update_sgd,
     false,
     {{MATRIX, SUM, ALL(2), .use = INOUT},
      {MATRIX, SUM, ALL(2), .use = INOUT},
      {MATRIX, ALL(2)},
      {.rows = 1, .columns = 2, .type = EK_F64, POSITIVE, .reach = {2 * R * C, 0, 0}},
      {.rows = 1, .columns = 1, .type = EK_F64, POSITIVE, .reach = {2 * R * C, 0, 2 * R *C}}}},
    /* m / sqrt(v) is 0 for an infinite v. */
    {"adamw",
     update_adamw,
     false,
     {{MATRIX, SUM, ALL(1), .use = INOUT},
      {MATRIX, SUM, ALL(2), .use = INOUT},
      {MATRIX, SUM, .reach = {2, 1, 2}, .use = INOUT, POSITIVE},
      {MATRIX, ALL(3)},
      {.rows = 1, .columns = 2, .type = EK_F64, POSITIVE, .reach = {3 * R * C, 0, 0}},
      {.rows = 1, .columns = 1, .type = EK_F64, POSITIVE, .reach = {3 * R * C, 0, 3 * R *C}}}},
    /* The last column that is hit is a value of token 3, the other one a query's element. */
    {"attention_forward",
     attention_forward,
     true,
     {{.rows = T, .columns = D, RESULT},
      {.rows = 1, .columns = T, SUM, RESULT},
      {.rows = T, .columns = 3 * D, POSITIVE, ALL(3)}}},
    {"attention_backward",
     attention_backward,
     true,
     {{.rows = T, .columns = 3 * D, RESULT},
      {.rows = T, .columns = D, ALL(5 * D + 4)},
      {.rows = T, .columns = 3 * D, POSITIVE, ALL(4)},
      {.rows = T, .columns = D, ALL(5 * D)},
      {.rows = 1, .columns = T, SUM, .reach = {9 * D, 0, 9 * D}}}},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* ---- running it ---- */

static int64_t count_of(const struct operand *o) { return o->rows * o->columns; }

static ek_tensor *make(struct ck_rig *rig, const struct operand *o) {
  const ek_type type = o->type != 0 ? o->type : o->sum ? rig->sum : rig->type;
  return o->rows == 1 ? ck_blank(rig, type, CK_SHAPE(o->columns))
                      : ck_blank(rig, type, CK_SHAPE(o->rows, o->columns));
}

static void fill(struct ck_rig *rig, ek_tensor *t, const struct operand *o, double *values) {
  const double high = o->low == o->high ? 1 : o->high;
  for (int64_t i = 0; i < count_of(o); i++) {
    const double value = ck_random_uniform(&rig->random, o->low, high);
    values[i] = o->type == EK_I32 ? 0 : o->use == OUT ? NAN : fmax(value, 0.1);
  }
  ck_set(t, values);
}

static int not_finite(const ek_tensor *t, double *values) {
  int found = 0;
  ck_get(values, t);
  for (int64_t i = 0; i < ek_tensor_count(t); i++) found += !isfinite(values[i]);
  return found;
}

/* One call with one element of operand `hit` as it should not be. */
static void run(struct ck_rig *rig, const struct operation *operation, ek_tensor *const *t, int hit,
                int kind, int64_t column) {
  static const double special[] = {NAN, HUGE_VAL, -HUGE_VAL};
  const struct operand *target = &operation->operand[hit];
  double values[MOST_ELEMENTS];
  for (int i = 0; i < MOST && t[i] != NULL; i++) {
    fill(rig, t[i], &operation->operand[i], values);
    if (i != hit) continue;
    values[target->rows / 2 * target->columns + column] = special[kind];
    ck_set(t[i], values);
  }
  ck_ok(operation->call(rig->stream, t));
  int found = 0;
  for (int i = 0; i < MOST && t[i] != NULL; i++) {
    if (operation->operand[i].use != IN) found += not_finite(t[i], values);
  }
  const int want = target->reach[kind];
  ck_assert_msg(found == want || (operation->at_least && found > want),
                "%s, operand %d, column %d, %g: %d results are not finite, expected %d",
                operation->name, hit, (int)column, special[kind], found, want);
}

START_TEST(nothing_is_hidden) {
  if (CK_TSAN && !ck_part(_i)) return; /* a race is in the work, not in the values */
  const struct operation *operation = &operations[_i / ck_variants()];
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ek_tensor *t[MOST] = {NULL};
  int operands = 0;
  for (; operands < MOST && count_of(&operation->operand[operands]) > 0; operands++) {
    t[operands] = make(rig, &operation->operand[operands]);
  }
  for (int hit = 0; hit < operands; hit++) {
    const struct operand *target = &operation->operand[hit];
    for (int kind = 0; kind < 3; kind++) {
      if (target->reach[kind] < 0) continue;
      run(rig, operation, t, hit, kind, target->columns - 1);
      if (target->columns > 5) run(rig, operation, t, hit, kind, 5);
    }
  }
  ck_rig_close(rig);
}
END_TEST

/* ---- tensors without elements ---- */

static int64_t resized(int64_t size, int64_t rows, int64_t columns) {
  return size == R ? rows : size == C ? columns : size == K && columns == 0 ? 0 : size;
}

/* The operation with another number of rows and columns: what it gives, if it has such sizes. */
static ek_status run_empty(struct ck_rig *rig, const struct operation *operation, ek_tensor **t,
                           int64_t rows, int64_t columns) {
  struct operand o[MOST];
  for (int i = 0; i < MOST && count_of(&operation->operand[i]) > 0; i++) {
    o[i] = operation->operand[i];
    o[i].rows = resized(o[i].rows, rows, columns),
    o[i].columns = resized(o[i].columns, rows, columns);
    if (o[i].columns > C || (o[i].rows > C && o[i].columns > 0)) return EK_OK; /* one per row */
    t[i] = make(rig, &o[i]);
    double values[MOST_ELEMENTS];
    fill(rig, t[i], &o[i], values);
  }
  return operation->call(rig->stream, t);
}

/* 2^58 rows of nothing are no work; the time limit of a test says so. */
START_TEST(rows_of_nothing) {
  const struct operation *operation = &operations[_i / ck_variants()];
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ek_tensor *t[MOST] = {NULL};
  ck_ok(run_empty(rig, operation, t, INT64_C(1) << 58, 0));
  ck_rig_close(rig);
}
END_TEST

/* No rows: sums over them are 0, and what they are added to stays. */
START_TEST(sums_of_no_rows) {
  const struct operation *operation = &operations[_i / ck_variants()];
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ek_tensor *t[MOST] = {NULL};
  ck_ok(run_empty(rig, operation, t, 0, C));
  for (int i = 0; i < MOST && t[i] != NULL; i++) {
    const double *values = ck_read(rig, t[i]);
    for (int64_t k = 0; k < ek_tensor_count(t[i]); k++) {
      ck_assert_msg(operation->operand[i].use != OUT || values[k] == 0 || operation->at_least,
                    "%s: %g in a sum of no rows", operation->name, values[k]);
      ck_assert_msg(isfinite(values[k]), "%s, operand %d", operation->name, i);
    }
  }
  ck_rig_close(rig);
}
END_TEST

/* Rows of no columns, which nobody can normalise. */
START_TEST(no_columns) {
  const struct operation *operation = &operations[_i / ck_variants()];
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ek_tensor *t[MOST] = {NULL};
  if (strstr(operation->name, "layer_norm") != NULL) {
    ck_fails(run_empty(rig, operation, t, R, 0), EK_ERR_SHAPE,
             "4 x 0, which has nothing to normalise");
  } else if (strcmp(operation->name, "row_mean") == 0) {
    ck_fails(run_empty(rig, operation, t, R, 0), EK_ERR_SHAPE, "4 x 0, which has no mean");
  } else {
    ck_ok(run_empty(rig, operation, t, R, 0));
  }
  ck_rig_close(rig);
}
END_TEST

/* Types of host memory have no operations, also where a struct was filled by hand. */
START_TEST(unsigned_types) {
  static const ek_type types[] = {EK_U8, EK_U16, EK_U32};
  struct ck_rig *rig = ck_rig_variant(_i);
  ek_tensor *y = ck_blank(rig, EK_I32, CK_SHAPE(8)), *x = ck_blank(rig, EK_I32, CK_SHAPE(8));
  ek_tensor none = {0};
  for (size_t i = 0; i < 3; i++) {
    ek_tensor a = *y, b = *x;
    a.type = b.type = types[i];
    ck_fails(ek_op_zero(rig->stream, &a), EK_ERR_TYPE, ek_type_name(types[i]));
    ck_fails(ek_op_copy(rig->stream, &a, &b), EK_ERR_TYPE, "a type of tensors on devices");
    ck_fails(ek_op_scale(rig->stream, &a, &b, 2), EK_ERR_TYPE, "must be f32, f64, bf16 or f16");
    ck_fails(ek_tensor_create(&none, rig->device, EK_MEMORY_INPUTS, types[i], CK_SHAPE(8)),
             EK_ERR_TYPE, "exist only in host memory");
    ck_assert(!ek_tensor_exists(&none));
  }
  ck_rig_close(rig);
}
END_TEST

/* What the table does not have: cubes, classes, and tables without entries. */
START_TEST(other_empty_shapes) {
  struct ck_rig *rig = ck_rig_variant(_i);
  ek_stream *s = rig->stream;
  const int64_t many = INT64_C(1) << 52;
  const ek_cross_entropy_terms terms = {-1, 0.1, NULL, 0};
  double zero[2] = {0, 0};
  for (int way = 0; way < 3; way++) {
    const int64_t batch = way == 0 ? many : 0, tokens = way == 1 ? many : 0,
                  width = way == 2 ? 0 : 8;
    ek_tensor *qkv = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, 3 * width));
    ek_tensor *out = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, width));
    ek_tensor *lse = ck_blank(rig, rig->sum, CK_SHAPE(batch, 2, tokens));
    ck_ok(ek_op_attention_forward(s, out, lse, qkv, 2));
    ek_tensor *dqkv = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, 3 * width));
    ck_ok(ek_op_attention_backward(s, dqkv, out, qkv, out, lse, 2));
  }
  ek_tensor *logits = ck_blank(rig, rig->type, CK_SHAPE(0, many));
  ek_tensor *losses = ck_blank(rig, rig->sum, CK_SHAPE(0)),
            *totals = ck_blank(rig, EK_F64, CK_SHAPE(2));
  ek_tensor *pairs = ck_blank(rig, rig->sum, CK_SHAPE(0, 2)),
            *none = ck_blank(rig, EK_I32, CK_SHAPE(0));
  ck_ok(ek_op_cross_entropy_forward(s, losses, pairs, totals, logits, none, &terms));
  ck_within("totals", ck_read(rig, totals), zero, NULL, 2);
  ck_ok(ek_op_cross_entropy_backward(s, logits, logits, pairs, none, &terms, NULL, NULL));
  ck_ok(ek_op_cross_entropy_gradient(s, logits, losses, pairs, totals, logits, none, &terms, 1));
  ek_tensor *table = ck_blank(rig, rig->type, CK_SHAPE(0, 3)),
            *index = ck_tensor_of(rig, EK_I32, zero, CK_SHAPE(2));
  ek_tensor *y = ck_blank(rig, rig->type, CK_SHAPE(2, 3));
  ck_fails(ek_op_lookup_forward(s, y, table, index, NULL, 1), EK_ERR_SHAPE,
           "table is 0 x 3, which has no entries");
  ek_tensor *dtable = ck_blank(rig, rig->sum, CK_SHAPE(0, 3));
  ck_fails(ek_op_lookup_backward(s, dtable, y, index), EK_ERR_SHAPE,
           "dtable is 0 x 3, which has no entries");
  ck_rig_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("op");
  tcase_add_loop_test(ck_case(suite, "not finite"), nothing_is_hidden, 0,
                      OPERATIONS * ck_variants());
  TCase *empty = ck_case(suite, "empty");
  tcase_add_loop_test(empty, rows_of_nothing, 0, OPERATIONS * ck_variants());
  tcase_add_loop_test(empty, sums_of_no_rows, 0, OPERATIONS * ck_variants());
  tcase_add_loop_test(empty, no_columns, 0, OPERATIONS * ck_variants());
  tcase_add_loop_test(ck_case(suite, "types"), unsigned_types, 0, ck_variants());
  tcase_add_loop_test(empty, other_empty_shapes, 0, ck_variants());
  return suite;
}

CK_MAIN(make_suite)
