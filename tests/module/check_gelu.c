/*
 * check_gelu.c - GELU in its tanh form.
 */
#include <math.h>

#include <evenkeel/gelu.h>

#include "ck_module.h"

static const struct ck_module_case cases[] = {
    {.name = "3 x 7",
     .create = ek_gelu_create,
     .inputs = 1,
     .input = {{0, 2, {3, 7}, -4, 4, 0}},
     .longest = 1,
     .depth = 4},
    {.name = "21, far out",
     .create = ek_gelu_create,
     .inputs = 1,
     .input = {{0, 1, {21}, -30, 30, 0}},
     .longest = 1,
     .depth = 4},
};

START_TEST(formula) {
  struct ck_bed *bed = ck_bed_open(&cases[0], EK_F64, test_devices("cpu:1"));
  struct ck_results *r = ck_bed_backward(bed, false);
  const double factor = sqrt(2.0 / 3.14159265358979323846);
  for (int i = 0; i < 21; i++) {
    const double x = bed->value[0][i];
    const double y = 0.5 * x * (1 + tanh(factor * (x + 0.044715 * x * x * x)));
    /* 1 + tanh cancels for negative x: the bound is one of |x|, not of |y|. */
    ck_assert_double_le(fabs(r->output[0][i] - y), 8 * 0x1p-53 * fabs(x));
  }
  ck_results_free(r);
  ck_bed_close(bed);
}
END_TEST

START_TEST(bad_input) {
  ek_module *module = NULL;
  ck_fails(ek_gelu_create(NULL), EK_ERR_INVALID_ARGUMENT, "gelu");
  ck_host_failures(ek_gelu_create);
  ck_ok(ek_gelu_create(&module));
  ck_forward_fails(module, EK_ERR_TYPE, "gelu, forward: input is i32, expected f32", EK_I32,
                   CK_SHAPE(2, 3));
  ek_module_free(module);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("gelu");
  ck_module_tests(suite, cases, (int)(sizeof cases / sizeof *cases));
  TCase *tcase = ck_case(suite, "gelu");
  tcase_add_test(tcase, formula);
  tcase_add_test(tcase, bad_input);
  return suite;
}

CK_MAIN(make_suite)
