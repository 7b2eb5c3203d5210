/*
 * check_relu.c - max(x, 0).
 */
#include <math.h>

#include <evenkeel/relu.h>

#include "ck_module.h"

/* The gap keeps finite differences away from the edge at zero. */
static const struct ck_module_case cases[] = {
    {.name = "3 x 5",
     .create = ek_relu_create,
     .inputs = 1,
     .input = {{0, 2, {3, 5}, -1, 1, 0.01}},
     .longest = 1,
     .depth = 1,
     .saved = 1},
    {.name = "2 x 2 x 3",
     .create = ek_relu_create,
     .inputs = 1,
     .input = {{0, 3, {2, 2, 3}, -1, 1, 0.01}},
     .longest = 1,
     .depth = 1,
     .saved = 1},
};

START_TEST(values) {
  static const struct ck_module_case is = {
      .name = "values", .create = ek_relu_create, .inputs = 1, .input = {{0, 2, {1, 6}, -1, 1, 0}}};
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  ck_set(&bed->input[0], (const double[]){-1, -0.0, 0, 2, (double)INFINITY, (double)NAN});
  ck_set(&bed->grad_output[0], (const double[]){3, 4, 5, 6, 7, 8});
  struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0], (const double[]){0, 0, 0, 2, (double)INFINITY, (double)NAN}, NULL,
            6);
  ck_within("dx", r->grad_input[0], (const double[]){0, 0, 0, 6, 7}, NULL, 5);
  ck_results_free(r);
  ck_bed_close(bed);
}
END_TEST

START_TEST(bad_input) {
  ek_module *module = NULL;
  ck_fails(ek_relu_create(NULL), EK_ERR_INVALID_ARGUMENT, "relu");
  ck_host_failures(ek_relu_create);
  ck_ok(ek_relu_create(&module));
  ck_forward_fails(module, EK_ERR_TYPE, "relu, forward: input is i32, expected f32", EK_I32,
                   CK_SHAPE(2, 3));
  ek_module_free(module);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("relu");
  ck_module_tests(suite, cases, (int)(sizeof cases / sizeof *cases));
  TCase *tcase = ck_case(suite, "relu");
  tcase_add_test(tcase, values);
  tcase_add_test(tcase, bad_input);
  return suite;
}

CK_MAIN(make_suite)
