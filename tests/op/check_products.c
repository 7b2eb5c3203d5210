/*
 * check_products.c - the operations of products.h against plain loops in long double.
 *
 * Bound, with u the unit roundoff of the type and k the inner dimension:
 *   (k + 3) u (sum |a| |b| + |beta c| + |bias|): k products and k additions in any order, fused or
 *   not (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), one rounding of beta
 *   c, one addition each for c and bias. Whole numbers whose sums stay below 2^24 are equal.
 */
#include <evenkeel/products.h>
#include <math.h>

#include "ek_check.h"

static const int64_t sizes[][3] = {{0, 3, 4},     {3, 0, 4},    {3, 4, 0},     {0, 0, 0},
                                   {1, 1, 1},     {1, 17, 5},   {7, 1, 33},    {3, 5, 1},
                                   {31, 47, 2},   {64, 64, 64}, {65, 33, 129}, {130, 97, 300},
                                   {1, 513, 257}, {200, 2, 77}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

struct product {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  double beta;
  const double *a, *b, *c, *bias; /* bias may be NULL */
};

static void reference(struct ck_rig *rig, double *want, double *bound, const struct product *p) {
  for (int64_t i = 0; i < p->m; i++) {
    for (int64_t j = 0; j < p->n; j++) {
      long double sum = p->beta == 0 ? 0 : (long double)p->beta * p->c[i * p->n + j];
      if (p->bias != NULL) sum += p->bias[j];
      long double size = p->beta == 0 ? 0 : fabsl((long double)p->beta * p->c[i * p->n + j]);
      if (p->bias != NULL) size += fabs(p->bias[j]);
      for (int64_t l = 0; l < p->k; l++) {
        const long double term = (long double)p->a[p->transpose_a ? l * p->m + i : i * p->k + l] *
                                 p->b[p->transpose_b ? j * p->k + l : l * p->n + j];
        sum += term;
        size += fabsl(term);
      }
      want[i * p->n + j] = (double)sum;
      bound[i * p->n + j] = (double)(p->k + 3) * rig->unit * (double)size;
    }
  }
}

static void check_matmul(struct ck_rig *rig, const struct product *p, bool exact) {
  const int64_t n = p->m * p->n;
  double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
  reference(rig, want, bound, p);
  const int64_t a0 = p->transpose_a ? p->k : p->m, a1 = p->transpose_a ? p->m : p->k;
  const int64_t b0 = p->transpose_b ? p->n : p->k, b1 = p->transpose_b ? p->k : p->n;
  ek_tensor *a = ck_tensor(rig, p->a, CK_SHAPE(a0, a1));
  ek_tensor *b = ck_tensor(rig, p->b, CK_SHAPE(b0, b1));
  ek_tensor *c = ck_tensor(rig, p->beta == 0 ? NULL : p->c, CK_SHAPE(p->m, p->n));
  ek_tensor *again = ck_tensor(rig, p->beta == 0 ? NULL : p->c, CK_SHAPE(p->m, p->n));
  ck_ok(ek_op_matmul(rig->stream, c, a, p->transpose_a, b, p->transpose_b, p->beta));
  ck_ok(ek_op_matmul(rig->stream, again, a, p->transpose_a, b, p->transpose_b, p->beta));
  ck_within("matmul", ck_read(rig, c), want, exact ? NULL : bound, n);
  ck_same_bits("matmul again", ck_read(rig, again), ck_read(rig, c), n);
}

START_TEST(matmul) {
  for (int s = 0; s < SIZES; s++) {
    for (int t = 0; t < 4; t++) {
      struct ck_rig *rig = ck_rig_variant(_i);
      struct product p = {.m = sizes[s][0],
                          .n = sizes[s][1],
                          .k = sizes[s][2],
                          .transpose_a = (t & 1) != 0,
                          .transpose_b = (t & 2) != 0};
      p.a = ck_integers(rig, p.m * p.k, -9, 9);
      p.b = ck_integers(rig, p.k * p.n, -9, 9);
      p.c = ck_integers(rig, p.m * p.n, -99, 99);
      check_matmul(rig, &p, true);
      p.beta = 1;
      check_matmul(rig, &p, true);
      p.beta = -2;
      check_matmul(rig, &p, true);
      p.a = ck_values(rig, p.m * p.k, -1, 1);
      p.b = ck_values(rig, p.k * p.n, -1, 1);
      p.c = ck_values(rig, p.m * p.n, -1, 1);
      p.beta = 0.7;
      check_matmul(rig, &p, false);
      p.beta = 0;
      check_matmul(rig, &p, false);
      ck_rig_close(rig);
    }
  }
}
END_TEST

START_TEST(linear) {
  for (int s = 0; s < SIZES; s++) {
    for (int pass = 0; pass < 3; pass++) {
      struct ck_rig *rig = ck_rig_variant(_i);
      struct product p = {
          .m = sizes[s][0], .n = sizes[s][1], .k = sizes[s][2], .transpose_b = true};
      const int64_t n = p.m * p.n;
      p.a = pass < 2 ? ck_integers(rig, p.m * p.k, -9, 9) : ck_values(rig, p.m * p.k, -1, 1);
      p.b = pass < 2 ? ck_integers(rig, p.k * p.n, -9, 9) : ck_values(rig, p.k * p.n, -1, 1);
      if (pass > 0) p.bias = ck_integers(rig, p.n, -99, 99);
      double *want = ck_zeros(rig, n), *bound = ck_zeros(rig, n);
      reference(rig, want, bound, &p);
      ek_tensor *y = ck_poisoned(rig, CK_SHAPE(1, p.m, p.n));
      ek_tensor *x = ck_tensor(rig, p.a, CK_SHAPE(p.m, 1, p.k));
      ek_tensor *w = ck_tensor(rig, p.b, CK_SHAPE(p.n, p.k));
      ek_tensor *bias = p.bias == NULL ? NULL : ck_tensor(rig, p.bias, CK_SHAPE(p.n));
      ck_ok(ek_op_linear(rig->stream, y, x, w, bias));
      ck_within("linear", ck_read(rig, y), want, pass < 2 ? NULL : bound, n);
      ck_rig_close(rig);
    }
  }
}
END_TEST

/* beta 0 must not read c, also where there is nothing to add up. */
START_TEST(empty_inner_dimension) {
  struct ck_rig *rig = ck_rig_variant(_i);
  const double three[6] = {3, 3, 3, 3, 3, 3}, six[6] = {6, 6, 6, 6, 6, 6}, zero[6] = {0};
  const double bias[3] = {1, 2, 3}, rows[6] = {1, 2, 3, 1, 2, 3};
  ek_tensor *a = ck_poisoned(rig, CK_SHAPE(2, 0)), *b = ck_poisoned(rig, CK_SHAPE(3, 0));
  ek_tensor *c = ck_tensor(rig, three, CK_SHAPE(2, 3));
  ck_ok(ek_op_matmul(rig->stream, c, a, false, b, true, 2.0));
  ck_within("2 c", ck_read(rig, c), six, NULL, 6);
  ck_set(c, NULL);
  ck_ok(ek_op_matmul(rig->stream, c, a, false, b, true, 0.0));
  ck_within("0 c", ck_read(rig, c), zero, NULL, 6);
  ck_set(c, NULL);
  ck_ok(ek_op_linear(rig->stream, c, a, b, ck_tensor(rig, bias, CK_SHAPE(3))));
  ck_within("bias alone", ck_read(rig, c), rows, NULL, 6);
  ck_rig_close(rig);
}
END_TEST

/* ---- wrong arguments ---- */

static ek_status call_matmul(ek_stream *s, ek_tensor *const *t) {
  return ek_op_matmul(s, t[0], t[1], false, t[2], false, 0.0);
}
static ek_status call_matmul_tt(ek_stream *s, ek_tensor *const *t) {
  return ek_op_matmul(s, t[0], t[1], true, t[2], true, 1.0);
}
static ek_status call_linear(ek_stream *s, ek_tensor *const *t) {
  return ek_op_linear(s, t[0], t[1], t[2], t[3]);
}

static const struct ck_operation operations[] = {
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
     {{.name = "y", .written = true, .rank = 3, .shape = {2, 3, 4}},
      {.name = "x", .rank = 3, .shape = {2, 3, 5}},
      {.name = "w", .rank = 2, .shape = {4, 5}},
      {.name = "bias", .optional = true, .rank = 1, .shape = {4}}}},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

START_TEST(bad_inputs) { ck_bad_inputs(&operations[_i], test_devices("cpu:2")); }
END_TEST
START_TEST(bad_inputs_where_nothing_is_computed) { ck_bad_inputs(&operations[_i], "plan:2"); }
END_TEST

START_TEST(messages_show_both_shapes) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_stream *s = rig->stream;
  ek_tensor *a = ck_poisoned(rig, CK_SHAPE(3, 2)), *b = ck_poisoned(rig, CK_SHAPE(2, 5));
  ek_tensor *c = ck_poisoned(rig, CK_SHAPE(3, 4));
  ck_fails(ek_op_matmul(s, c, a, false, b, false, 0), EK_ERR_SHAPE,
           "matmul: c is 3 x 4 but a' b' is 3 x 5");
  ck_fails(ek_op_matmul(s, c, a, true, b, false, 0), EK_ERR_SHAPE,
           "matmul: a' is 2 x 3 but b' is 2 x 5");
  ck_fails(ek_op_matmul(s, c, a, false, b, true, 0), EK_ERR_SHAPE,
           "matmul: a' is 3 x 2 but b' is 5 x 2");
  ck_fails(ek_op_linear(s, c, a, b, NULL), EK_ERR_SHAPE, "linear: x is 3 x 2 but w is 2 x 5");
  ck_rig_close(rig);
}
END_TEST

/* Rows and columns of 2^31 and more, and a result that comes close to 2^63 bytes. */
START_TEST(huge_sizes) {
  struct ck_rig *rig = ck_rig_open(CK_HUGE_PLAN, EK_F32, 1);
  const int64_t m = INT64_C(1) << 30, n = INT64_C(1) << 30;
  ek_stream *s = rig->stream;
  ek_tensor *a = ck_ghost(rig, EK_F32, CK_SHAPE(m, 2)), *b = ck_ghost(rig, EK_F32, CK_SHAPE(2, n));
  ek_tensor *c = ck_ghost(rig, EK_F32, CK_SHAPE(m, n));
  ck_ok(ek_op_matmul(s, c, a, false, b, false, 0));
  ck_fails(ek_op_matmul(s, c, a, false, b, true, 0), EK_ERR_SHAPE, "matmul");
  ek_tensor *long_b = ck_ghost(rig, EK_F32, CK_SHAPE(2, 4 * n));
  ck_fails(ek_op_matmul(s, c, a, false, long_b, false, 0), EK_ERR_SHAPE,
           "a' b' is 1073741824 x 4294967296");
  ek_tensor *vocabulary = ck_ghost(rig, EK_F32, CK_SHAPE(151936, 1024));
  ek_tensor *x = ck_ghost(rig, EK_F32, CK_SHAPE(32, 2048, 1024));
  ck_ok(ek_op_linear(s, ck_ghost(rig, EK_F32, CK_SHAPE(32, 2048, 151936)), x, vocabulary, NULL));
  ek_tensor endless = *c;
  endless.shape[1] = INT64_C(1) << 33;
  ck_fails(ek_op_matmul(s, &endless, a, false, b, false, 0), EK_ERR_OVERFLOW, "matmul");
  ck_rig_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("products");
  TCase *values = ck_case(suite, "values");
  tcase_add_loop_test(values, matmul, 0, CK_VARIANTS);
  tcase_add_loop_test(values, linear, 0, CK_VARIANTS);
  tcase_add_loop_test(values, empty_inner_dimension, 0, CK_VARIANTS);
  TCase *errors = ck_case(suite, "errors");
  tcase_add_loop_test(errors, bad_inputs, 0, OPERATIONS);
  tcase_add_loop_test(errors, bad_inputs_where_nothing_is_computed, 0, OPERATIONS);
  tcase_add_test(errors, messages_show_both_shapes);
  tcase_add_test(errors, huge_sizes);
  return suite;
}

CK_MAIN(make_suite)
