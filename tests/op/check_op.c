/*
 * check_op.c - rules of op.h that hold for all operations.
 *
 * NaN and infinity: each operation is called with one element of one operand NaN, +inf or -inf and
 * all others between 0.1 and 1. The table says how many elements of the results are then not
 * finite: as many as IEEE arithmetic makes of the operation's formula. What a formula selects
 * (ReLU, a beta of 0) or divides by infinity may be finite; the table shows where. Cross-entropy
 * has a test of its own in check_losses.c.
 */
#include "ck_bad_inputs.h"
#include "ek_check.h"

/* R x C: whole vectors of every instruction set and a rest. R is a multiple of a period. T tokens
 * of one head, D wide. */
enum { R = 4, C = 37, K = 5, PERIOD = 2, T = 6, D = 8, J = 3, MOST_ELEMENTS = 8 * C };

/* How many elements of all results are not finite if one element of an operand is NaN, +inf, -inf;
 * UNTRIED: not tried. A result with UNTRIED does not depend on what was there: that was NaN. */
struct reach {
  int of[3];
};
#define ALL(n) {{n, n, n}}
#define UNTRIED ALL(-1)

struct test {
  const char *operation; /* name of its row */
  double real[5];
  bool flag[2];
  bool no_optional; /* optional operands are NULL */
  bool at_least;    /* a product with a tile of zeros may spread it: 0 times infinity is NaN */
  bool cube;        /* of T tokens, D wide, which other_empty_shapes empties */
  struct reach reach[MOST_OPERANDS + 1]; /* in the row's order; 0 after the last that is given */
};

/* The middle row of each operand is the one that is hit; of attention token 3, which tokens 3 .. 5
 * see. The index of a lookup is 0 everywhere, of which every position makes one row. */
static const struct test tests[] = {
    {"copy", .reach = {UNTRIED, ALL(1)}},
    {"add", .reach = {UNTRIED, ALL(1), ALL(1)}},
    {"lerp", .real = {0.25}, .reach = {UNTRIED, ALL(1), ALL(1)}},
    {"scale", .real = {0}, .reach = {UNTRIED, ALL(1)}},
    {"add_bias", .reach = {ALL(1), ALL(R)}},
    {"column_sum", .real = {1}, .reach = {ALL(1), ALL(1)}},
    {"column_sum", .real = {0}, .reach = {UNTRIED, ALL(1)}},
    {"gelu_forward", .no_optional = true, .reach = {UNTRIED, ALL(2)}}, /* x is a result too */
    {"gelu_forward", .reach = {UNTRIED, ALL(2), ALL(2 * R)}},
    {"gelu_backward", .reach = {UNTRIED, ALL(1), ALL(1)}},
    {"relu_forward", .reach = {UNTRIED, {{1, 1, 0}}}},
    {"relu_backward", .reach = {UNTRIED, ALL(1), {{1, 0, 0}}}},
    {"silu_forward", .reach = {UNTRIED, ALL(2), ALL(2 * R)}},
    {"silu_backward", .reach = {UNTRIED, ALL(1), ALL(1)}},
    {"gate_forward", .reach = {UNTRIED, ALL(1), ALL(1)}},
    {"gate_backward", .reach = {UNTRIED, UNTRIED, ALL(2), ALL(2), ALL(1)}},
    {"binary", .flag = {false, true}, .reach = {UNTRIED, ALL(1), ALL(1)}}, /* multiply */
    {"binary", .flag = {true, true}, .reach = {UNTRIED, ALL(1), {{1, 0, 0}}}}, /* divide */
    {"binary by rows", .flag = {true, false}, .reach = {UNTRIED, ALL(1), ALL(C)}},    /* subtract */
    {"binary by columns", .flag = {false, true}, .reach = {UNTRIED, ALL(1), ALL(R)}}, /* multiply */
    {"unary_rsqrt", .reach = {UNTRIED, {{1, 0, 1}}}},
    {"unary_exp", .real = {0.25}, .reach = {UNTRIED, {{1, 1, 0}}}},
    {"row_reduce", .no_optional = true, .reach = {UNTRIED, ALL(1)}},
    {"row_reduce", .flag = {true}, .reach = {UNTRIED, ALL(1), ALL(1)}}, /* mean */
    {"softmax_forward", .reach = {UNTRIED, {{C, C, 0}}}},
    {"softmax_backward", .reach = {UNTRIED, ALL(C), ALL(C)}},
    {"dropout", .reach = {UNTRIED, ALL(1)}},
    {"convert", .reach = {UNTRIED, ALL(1)}},
    {"layer_norm_forward", .reach = {UNTRIED, UNTRIED, UNTRIED, ALL(C + 2), ALL(R), ALL(R)}},
    {"add_layer_norm_forward",
     .reach = {UNTRIED, UNTRIED, UNTRIED, UNTRIED, ALL(C + 3), ALL(C + 3), ALL(R), ALL(R)}},
    {"layer_norm_backward",
     .real = {1, 0},
     .reach = {UNTRIED, ALL(1), ALL(1), UNTRIED, ALL(C + 2), ALL(C + 1), ALL(2 * C), ALL(2 * C),
               ALL(R *C)}},
    {"channel_moments", .reach = {UNTRIED, ALL(2)}},
    /* The sum of x of a sample; of its variance 0 is left where the sum is infinite. */
    {"channel_statistics", .reach = {UNTRIED, UNTRIED, {{2 * C, C, C}}, {{2 * R * C, 0, 0}}}},
    /* The sum of x * x of seven rows; less than one row leaves the variance as it is. */
    {"channel_running",
     .real = {0.25}, .no_optional = true, .reach = {ALL(1), ALL(1), ALL(1), {{1, 1, 0}}}},
    {"channel_running",
     .real = {0.25}, .reach = {ALL(1), ALL(1), ALL(1), ALL(0), {{2 * C, 0, 0}}}},
    {"channel_norm_forward",
     .reach = {UNTRIED, ALL(1), ALL(R / PERIOD), ALL(R / PERIOD), ALL(R), ALL(R)}},
    {"channel_slopes", .reach = {UNTRIED, ALL(2), ALL(1), ALL(1), ALL(1)}},
    {"channel_averages",
     .real = {1, 0},
     .reach = {UNTRIED, UNTRIED, ALL(1), UNTRIED, ALL(C + 1), {{2 * R * C, 0, 0}}, ALL(2 * R *C)}},
    {"channel_norm_backward",
     .reach = {UNTRIED, ALL(1), ALL(1), ALL(R / PERIOD), ALL(R / PERIOD), ALL(R), ALL(R / PERIOD),
               ALL(R / PERIOD)}},
    {"lookup_forward", .reach = {UNTRIED, ALL(R), UNTRIED, ALL(R / PERIOD)}},
    {"lookup_backward", .reach = {ALL(1), ALL(1), UNTRIED}},
    {"positions_backward", .real = {1}, .reach = {ALL(1), ALL(1)}},
    {"positions_backward", .real = {0}, .reach = {UNTRIED, ALL(1)}},
    {"matmul", .real = {1}, .reach = {ALL(1), ALL(C), ALL(R)}},
    {"matmul with a transposed", .real = {0}, .reach = {UNTRIED, ALL(C), ALL(R)}},
    {"matmul with b transposed", .real = {1}, .reach = {ALL(1), ALL(C), ALL(R)}},
    {"matmul with both transposed", .real = {0}, .reach = {UNTRIED, ALL(C), ALL(R)}},
    {"linear", .reach = {UNTRIED, ALL(C), ALL(R), ALL(R)}},
    {"linear_gelu", .reach = {UNTRIED, UNTRIED, ALL(2 * C), ALL(2 * R), ALL(2 * R)}},
    {"gelu_linear_backward",
     .real = {0}, .reach = {UNTRIED, UNTRIED, ALL(2 * C), ALL(R + 1), ALL(2)}},
    {"linear_gradients", .real = {0, 1}, .reach = {UNTRIED, ALL(1), ALL(K + 1), ALL(C)}},
    {"linear_backward", .reach = {UNTRIED, ALL(K), ALL(R)}},
    {"convolve_forward", .reach = {UNTRIED, ALL(0), ALL(K), ALL(R), ALL(R)}},
    {"convolve_backward",
     .real = {0, 1}, .reach = {UNTRIED, UNTRIED, ALL(1), ALL(0), ALL(2 * C + 1), ALL(K), ALL(R)}},
    {"max_pool_forward", .reach = {UNTRIED, UNTRIED, ALL(1)}},
    {"max_pool_backward", .reach = {UNTRIED, ALL(1)}},
    {"average_pool_forward", .reach = {UNTRIED, ALL(1)}},
    {"average_pool_backward", .reach = {UNTRIED, ALL(1)}},
    {"resample_forward", .reach = {UNTRIED, ALL(1)}},
    {"resample_backward", .reach = {UNTRIED, ALL(1)}},
    {"squared_error_forward", .reach = {UNTRIED, UNTRIED, ALL(2), ALL(2)}},
    {"squared_error_backward", .reach = {UNTRIED, ALL(1), ALL(1), ALL(R *C), ALL(1)}},
    {"element_loss_forward", .reach = {UNTRIED, UNTRIED, ALL(2), ALL(2), ALL(3)}},
    {"element_loss_backward", .reach = {UNTRIED, {{1, 0, 0}}, ALL(1), ALL(1), ALL(R *C), ALL(1)}},
    /* A weight; of an infinite one all other ratios are infinite, and its own is 1. */
    {"combine_totals", .flag = {true}, .reach = {UNTRIED, UNTRIED, {{J + 2, J + 1, 0}}}},
    {"square_norm", .real = {1}, .reach = {ALL(1), ALL(1)}},
    {"square_norm", .real = {0}, .reach = {UNTRIED, ALL(1)}},
    /* The sum s of the totals is not used; 1 / d and clip_norm / norm of an infinite one are 0. */
    {"sgd",
     .real = {0.1, 0.9, 0, 0.1, 1},
     .reach = {ALL(2), ALL(2), ALL(2), {{2 * R * C, 0, 0}}, {{2 * R * C, 0, 2 * R *C}}}},
    /* m / sqrt(v) is 0 for an infinite v. */
    {"adamw",
     .real = {0.1, 0.9, 0.99, 0.1, 1}, .flag = {true},
     .reach = {ALL(1), ALL(2), {{2, 1, 2}}, ALL(3), {{3 * R * C, 0, 0}},
               {{3 * R * C, 0, 3 * R *C}}}},
    /* The last column that is hit is a value of token 3, the other one a query's element. */
    {"rotary", .cube = true, .reach = {ALL(2), UNTRIED}},
    {"attention_forward", .at_least = true, .cube = true, .reach = {UNTRIED, UNTRIED, ALL(3)}},
    {"attention_backward",
     .at_least = true, .cube = true,
     .reach = {UNTRIED, ALL(5 * D + 4), ALL(4), ALL(5 * D), {{9 * D, 0, 9 * D}}}},
};
enum { TESTS = sizeof tests / sizeof tests[0] };

/* ---- running it ---- */

/* A test with its operation; t[i] is NULL where operand i is absent. */
struct running {
  const struct test *test;
  const struct operation *operation;
  struct parameters parameters;
  struct sizes sizes;
  ek_tensor *t[MOST_OPERANDS];
};

static const struct operation *find_operation(const char *name) {
  for (size_t i = 0; i < operation_count; i++) {
    if (strcmp(operations[i].name, name) == 0) return &operations[i];
  }
  ck_abort_msg("no operation \"%s\" in bench/kernels/operations.c", name);
}

/* An operand whose earlier content does not count, where it is a result. */
static bool is_untried(const struct running *run, int i) {
  return run->test->reach[i].of[0] < 0;
}

static struct running start(const struct test *test) {
  struct running run = {.test = test, .operation = find_operation(test->operation)};
  run.sizes = (struct sizes){.r = R, .c = C, .w = C, .k = K, .e = 1, .p = PERIOD, .b = 1,
                             .t = T, .h = 1, .j = J};
  if (test->cube) run.sizes.c = run.sizes.w = D;
  run.parameters = operation_parameters(&run.sizes);
  memcpy(run.parameters.real, test->real, sizeof test->real);
  memcpy(run.parameters.flag, test->flag, sizeof test->flag);
  return run;
}

static bool is_given(const struct running *run, int i) {
  return !run->operation->operand[i].optional ||
         (!run->test->no_optional && run->test->reach[i].of[0] != 0);
}

static void make(struct ck_rig *rig, struct running *run) {
  for (int i = 0; i < run->operation->count; i++) {
    const struct operand *o = &run->operation->operand[i];
    const ek_type type = o->type != 0 ? o->type : o->sum ? rig->sum : rig->type;
    int64_t shape[EK_MAX_RANK];
    const int rank = operand_shape(shape, o, &run->sizes);
    if (is_given(run, i)) run->t[i] = ck_blank(rig, type, rank, shape);
  }
}

static void fill(struct ck_rig *rig, const struct running *run, int i, double *values) {
  const struct operand *o = &run->operation->operand[i];
  for (int64_t k = 0; k < ek_tensor_count(run->t[i]); k++) {
    const double value = fmax(ck_random_uniform(&rig->random, 0, 1), 0.1);
    values[k] = o->type == EK_I32 ? 0 : o->written && is_untried(run, i) ? NAN : value;
  }
  ck_set(run->t[i], values);
}

static ek_status call(struct ck_rig *rig, const struct running *run) {
  return run->operation->call(rig->stream, run->t, &run->parameters);
}

static int not_finite(const ek_tensor *t, double *values) {
  int found = 0;
  ck_get(values, t);
  for (int64_t i = 0; i < ek_tensor_count(t); i++) found += !isfinite(values[i]);
  return found;
}

/* One call with one element of operand `hit` as it should not be. */
static void call_hit(struct ck_rig *rig, const struct running *run, int hit, int kind,
                     int64_t column) {
  static const double special[] = {NAN, HUGE_VAL, -HUGE_VAL};
  const ek_tensor *target = run->t[hit];
  const int64_t columns = target->shape[target->rank - 1];
  const int64_t rows = ek_tensor_count(target) / columns;
  double values[MOST_ELEMENTS];
  int found = 0;
  for (int i = 0; i < run->operation->count; i++) {
    if (run->t[i] == NULL) continue;
    fill(rig, run, i, values);
    if (i != hit) continue;
    values[rows / 2 * columns + column] = special[kind];
    ck_set(run->t[i], values);
  }
  ck_ok(call(rig, run));
  for (int i = 0; i < run->operation->count; i++) {
    if (run->t[i] == NULL || !run->operation->operand[i].written) continue;
    found += not_finite(run->t[i], values);
  }
  const int want = run->test->reach[hit].of[kind];
  ck_assert_msg(found == want || (run->test->at_least && found > want),
                "%s (test %d), %s, column %d, %g: %d results are not finite, expected %d",
                run->operation->name, (int)(run->test - tests), run->operation->operand[hit].name,
                (int)column, special[kind], found, want);
}

CK_LOOP(nothing_is_hidden, TESTS * ck_variants()) {
  if (CK_TSAN ? !ck_part(_i) : !ck_gpu_part(_i)) return; /* a race is in the work, not in values */
  struct running run = start(&tests[_i / ck_variants()]);
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  make(rig, &run);
  for (int hit = 0; hit < run.operation->count; hit++) {
    if (run.t[hit] == NULL) continue;
    const int64_t columns = run.t[hit]->shape[run.t[hit]->rank - 1];
    for (int kind = 0; kind < 3; kind++) {
      if (is_untried(&run, hit)) continue;
      call_hit(rig, &run, hit, kind, columns - 1);
      if (columns > 5) call_hit(rig, &run, hit, kind, 5);
    }
  }
}

/* A new operation belongs into the table above; cross-entropy is tested in check_losses.c. */
CK_TEST(every_operation_is_tested) {
  for (size_t i = 0; i < operation_count; i++) {
    bool found = strncmp(operations[i].name, "cross_entropy", 13) == 0, reads = false;
    for (int k = 0; k < operations[i].count; k++) reads |= !operations[i].operand[k].written;
    for (int k = 0; k < TESTS; k++) found |= strcmp(tests[k].operation, operations[i].name) == 0;
    ck_assert_msg(found || !reads, "no row in check_op.c says which results of %s a NaN reaches",
                  operations[i].name);
  }
}

/* ---- wrong arguments ---- */

CK_LOOP(bad_inputs, (int)operation_count) {
  if (ck_gpu_part(_i)) ck_bad_inputs(&operations[_i], test_devices("cpu:2"));
}
CK_LOOP(bad_inputs_where_nothing_is_computed, operation_count) {
  if (!ck_gpu_part(_i)) return;
  ck_bad_inputs(&operations[_i], "plan:2");
}

/* ---- tensors without elements ---- */

/* The operation with another number of rows and columns: what it gives, if it has such sizes. */
static ek_status run_empty(struct ck_rig *rig, struct running *run, int64_t rows, int64_t columns) {
  run->sizes.r = rows;
  if (rows == 0) run->sizes.j = 0;
  if (columns == 0 && !run->test->cube) run->sizes.c = run->sizes.w = run->sizes.k = 0;
  for (int i = 0; i < run->operation->count; i++) {
    int64_t shape[EK_MAX_RANK], count = 1;
    const int rank = operand_shape(shape, &run->operation->operand[i], &run->sizes);
    for (int d = 0; d < rank; d++) count = shape[d] == 0 ? 0 : count * shape[d];
    if (count > MOST_ELEMENTS) return EK_OK; /* one per row */
  }
  make(rig, run);
  for (int i = 0; i < run->operation->count; i++) {
    double values[MOST_ELEMENTS];
    if (run->t[i] != NULL) fill(rig, run, i, values);
  }
  return call(rig, run);
}

/* 2^58 rows of nothing are no work; the time limit of a test says so. */
CK_LOOP(rows_of_nothing, TESTS * ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  struct running run = start(&tests[_i / ck_variants()]);
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ck_ok(run_empty(rig, &run, INT64_C(1) << 58, 0));
}

/* No rows: sums over them are 0, and what they are added to stays. */
CK_LOOP(sums_of_no_rows, TESTS * ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  struct running run = start(&tests[_i / ck_variants()]);
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  ck_ok(run_empty(rig, &run, 0, C));
  for (int i = 0; i < run.operation->count; i++) {
    if (run.t[i] == NULL) continue;
    const struct operand *o = &run.operation->operand[i];
    const double *values = ck_read(rig, run.t[i]);
    for (int64_t k = 0; k < ek_tensor_count(run.t[i]); k++) {
      ck_assert_msg(!o->written || !is_untried(&run, i) || values[k] == 0 || run.test->at_least,
                    "%s: %g in a sum of no rows", run.operation->name, values[k]);
      ck_assert_msg(isfinite(values[k]), "%s, %s", run.operation->name, o->name);
    }
  }
}

/* Rows of no columns, which cannot be normalised. */
CK_LOOP(no_columns, TESTS * ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  struct running run = start(&tests[_i / ck_variants()]);
  struct ck_rig *rig = ck_rig_variant(_i % ck_variants());
  if (strstr(run.operation->name, "layer_norm") != NULL) {
    ck_fails(run_empty(rig, &run, R, 0), EK_ERR_SHAPE, "4 x 0, which has nothing to normalise");
  } else if (strcmp(run.operation->name, "row_reduce") == 0 && run.parameters.flag[0]) {
    ck_fails(run_empty(rig, &run, R, 0), EK_ERR_SHAPE, "4 x 0, which has no mean");
  } else {
    ck_ok(run_empty(rig, &run, R, 0));
  }
}

/* Types of host memory have no operations, also where a struct was filled by hand. */
CK_RIG_LOOP(unsigned_types, ck_variants()) {
  static const ek_type types[] = {EK_U8, EK_U16, EK_U32};
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
}

/* What the table does not have: cubes, classes, and tables without entries. */
CK_RIG_LOOP(other_empty_shapes, ck_variants()) {
  ek_stream *s = rig->stream;
  const int64_t many = INT64_C(1) << 52;
  const ek_cross_entropy_terms terms = {-1, 0.1, NULL, 0};
  double zero[2] = {0, 0};
  CK_WITH(ek_attend_options, two, EK_ATTEND_OPTIONS_INIT, .heads = 2);
  for (int way = 0; way < 3; way++) {
    const int64_t batch = way == 0 ? many : 0, tokens = way == 1 ? many : 0,
                  width = way == 2 ? 0 : 8;
    ek_tensor *qkv = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, 3 * width));
    ek_tensor *out = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, width));
    ek_tensor *lse = ck_blank(rig, rig->sum, CK_SHAPE(batch, 2, tokens));
    ck_ok(ek_op_attention_forward(s, out, lse, qkv, &two));
    ek_tensor *dqkv = ck_blank(rig, rig->type, CK_SHAPE(batch, tokens, 3 * width));
    ck_ok(ek_op_attention_backward(s, dqkv, out, qkv, out, lse, &two));
  }
  ek_tensor *logits = ck_blank(rig, rig->type, CK_SHAPE(0, many));
  ek_tensor *losses = ck_blank(rig, rig->sum, CK_SHAPE(0)),
            *totals = ck_blank(rig, EK_F64, CK_SHAPE(2));
  ek_tensor *pairs = ck_blank(rig, rig->sum, CK_SHAPE(0, 2)),
            *none = ck_blank(rig, EK_I32, CK_SHAPE(0));
  ck_ok(ek_op_cross_entropy_forward(s, losses, pairs, totals, logits, none, &terms));
  ck_within("totals", ck_read(rig, totals), zero, NULL, 2);
  ck_ok(ek_op_cross_entropy_backward(s, logits, logits, pairs, none, NULL, NULL, &terms));
  ck_ok(ek_op_cross_entropy_gradient(s, &(ek_cross_entropy_gradient_args){.gradient = logits,
                                                                          .losses = losses,
                                                                          .normalizer = pairs,
                                                                          .totals = totals,
                                                                          .logits = logits,
                                                                          .targets = none,
                                                                          .scale = 1,
                                                                          .terms = &terms}));
  ek_tensor *table = ck_blank(rig, rig->type, CK_SHAPE(0, 3)),
            *index = ck_tensor_of(rig, EK_I32, zero, CK_SHAPE(2));
  ek_tensor *y = ck_blank(rig, rig->type, CK_SHAPE(2, 3));
  ck_fails(ek_op_lookup_forward(s, y, table, index, NULL, 1), EK_ERR_SHAPE,
           "table is 0 x 3, which has no entries");
  ek_tensor *dtable = ck_blank(rig, rig->sum, CK_SHAPE(0, 3));
  ck_fails(ek_op_lookup_backward(s, dtable, y, index), EK_ERR_SHAPE,
           "dtable is 0 x 3, which has no entries");
}

CK_SUITE("op")
