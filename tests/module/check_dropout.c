/*
 * check_dropout.c - random zeros that depend on seed, step, layer and global sample alone.
 */
#include "ck_module.h"

static ek_status create_third(ek_module **module) { return ek_dropout_create(module, 0.3); }
static ek_status create_none(ek_module **module) { return ek_dropout_create(module, 0.0); }

static const struct ck_module_case cases[] = {
    CK_CASE("5 x 7, p = 0.3", create_third, 1, 1, 0, {0, 2, {5, 7}, -1, 1}),
    CK_CASE("2 x 3 x 3, p = 0", create_none, 1, 1, 0, {0, 3, {2, 3, 3}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* One forward over rows first .. first + count - 1 of x, which are those samples of the batch. */
static void run_rows(double *y, struct ck_bed *bed, int64_t first, int64_t count,
                     const ek_pass_options *with) {
  CK_WITH(ek_pass_options, options, *with, .first_sample = first);
  CK_SCOPED(ek_tensor, rows, ek_tensor_rows(&rows, &bed->input[0], first, count));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &options));
  CK_SCOPED(ek_tensor, out, ek_pass_run_forward(&out, pass, &rows));
  ck_get(y, &out);
}

static int count_equal(const double *a, const double *b, int count) {
  int equal = 0;
  for (int i = 0; i < count; i++) equal += (a[i] == 0) == (b[i] == 0);
  return equal;
}

CK_TEST(mask_depends_on_seed_and_step) {
  struct ck_bed *bed = ck_bed_open(&cases[0], EK_F32, test_devices("cpu:1"));
  ek_pass_options options = EK_PASS_OPTIONS_INIT;
  double first[35], again[35], seed[35], step[35];
  run_rows(first, bed, 0, 5, &options);
  run_rows(again, bed, 0, 5, &options);
  ck_within("the same step", again, first, NULL, 35);
  options.step = 1;
  run_rows(step, bed, 0, 5, &options);
  ck_assign(options, .step = 0, .seed = 1);
  run_rows(seed, bed, 0, 5, &options);
  ck_assert_int_lt(count_equal(first, step, 35), 35);
  ck_assert_int_lt(count_equal(first, seed, 35), 35);
  ck_assert_int_lt(count_equal(step, seed, 35), 35);
}

/* Of n elements p n are dropped, give or take sqrt(n p (1 - p)); five times that is allowed. */
CK_TEST(share_of_zeros) {
  static const struct ck_module_case is = {
      .name = "many", .create = create_third, .input = {{0, 2, {100, 101}, 1, 2, 0}}};
  const int n = 10100;
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  double *y = ck_array((size_t)n, sizeof *y);
  run_rows(y, bed, 0, 100, &bed->options);
  int zeros = 0;
  for (int i = 0; i < n; i++) {
    zeros += y[i] == 0;
    if (y[i] != 0) {
      const double want = bed->value[0][i] / (1 - 0.3);
      ck_assert_double_le(fabs(y[i] - want), 4 * 0x1p-24 * want);
    }
  }
  ck_assert_double_le(fabs(zeros - 0.3 * n), 5 * sqrt(n * 0.3 * 0.7));
}

static ek_status create_pair(ek_module **module) {
  ek_module *one = NULL;
  EK_TRY(ek_dropout_create(&one, 0.5));
  return ck_sequential(module, (ek_module *[]){one, ek_module_share(one)}, 2, NULL);
}

/* The same module twice in a model is two layers with two masks: about a quarter is left. */
CK_TEST(layers_have_masks_of_their_own) {
  static const struct ck_module_case is = {.name = "two layers", .create = create_pair,
                                           .input = {{0, 2, {40, 25}, 1, 2, 0}}};
  const int n = 1000;
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  double *y = ck_array((size_t)n, sizeof *y);
  run_rows(y, bed, 0, 40, &bed->options);
  int kept = 0;
  for (int i = 0; i < n; i++) kept += y[i] != 0;
  ck_assert_double_le(fabs(kept - 0.25 * n), 5 * sqrt(n * 0.25 * 0.75));
}

/* Out of training, and with p = 0, the output is the input's memory. */
CK_LOOP(identity, 2) {
  struct ck_bed *bed = ck_bed_open(&cases[_i], EK_F32, test_devices("cpu:1"));
  if (_i == 0) bed->options.training = false;
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, bed->replica, &bed->options));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, bed->input));
  ck_assert_ptr_eq(y.data, bed->input[0].data);
  ck_assert_int_eq(ek_tensor_holders(&y), 2);
  CK_OPENED(ek_tensor, dx, ek_pass_run_backward(&dx, pass, bed->grad_output));
  ck_assert_ptr_eq(dx.data, bed->grad_output[0].data);
}

CK_TEST(bad_input) {
  const double wrong[] = {-0.1, 1.0, 1.5, (double)NAN, (double)INFINITY};
  ek_module *module = NULL;
  ck_invalid(ek_dropout_create(NULL, 0.5), "dropout");
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_invalid(ek_dropout_create(&module, wrong[i]), "dropout");
  }
  ck_assert_ptr_null(module);
  ck_host_failures(create_third);
  ck_kept(create_third(&module), module);
  ck_forward_fails(module, EK_ERR_TYPE, "dropout, forward: input is i32", EK_I32, CK_SHAPE(2, 3));
  ck_forward_fails(module, EK_ERR_SHAPE, "dropout, forward: input has rank 0", EK_F32, 0, NULL);
}

CK_SUITE("dropout")
