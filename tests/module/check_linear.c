/*
 * check_linear.c - y = x W^T + b.
 */
#include "ck_module.h"

static ek_status create_plain(ek_module **module) { return ek_linear_create(module, 3, 2, true); }
static ek_status create_deep(ek_module **module) { return ek_linear_create(module, 5, 4, false); }
static ek_status create_one(ek_module **module) { return ek_linear_create(module, 1, 1, true); }

static const struct ck_module_case cases[] = {
    CK_CASE("4 x 3 -> 2, bias", create_plain, 4, 2, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("2 x 3 x 5 -> 4, no bias", create_deep, 6, 2, 0, {0, 3, {2, 3, 5}, -1, 1}),
    CK_CASE("1 x 1 -> 1", create_one, 1, 2, 0, {0, 2, {1, 1}, -1, 1}),
    CK_CASE("3 -> 2, a single row without a row dimension", create_plain, 3, 2, 0,
            {0, 1, {3}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* Small whole numbers: every sum is exact, so the results are known. */
CK_LOOP(whole_numbers, 2) {
  struct ck_bed *bed = CK_BED(create_plain, _i == 0 ? EK_F32 : EK_F64, 0, 2, {2, 3}, -1, 1, 0);
  ck_bed_set(bed, "weight", (const double[]){1, 2, 3, 4, 5, 6});
  ck_bed_set(bed, "bias", (const double[]){10, 20});
  ck_set(&bed->input[0], (const double[]){1, 0, -1, 2, 2, 2});
  ck_set(&bed->grad_output[0], (const double[]){1, 2, 3, -1});
  struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0], (const double[]){8, 18, 22, 50}, NULL, 4);
  ck_within("dx", r->grad_input[0], (const double[]){9, 12, 15, -1, 1, 3}, NULL, 6);
  ek_parameter_info weight, bias;
  ck_ok(ek_replica_find(&weight, bed->replica, "weight"));
  ck_ok(ek_replica_find(&bias, bed->replica, "bias"));
  ck_within("dW", r->gradient + weight.offset, (const double[]){7, 6, 5, 0, -2, -4}, NULL, 6);
  ck_within("db", r->gradient + bias.offset, (const double[]){4, 1}, NULL, 2);
}

static void read_start(ek_module *module, const char *name, double *values) {
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, name));
  ck_get(values, &info.value);
}

CK_TEST(initial_values) {
  enum { IN = 64, OUT = 50 };
  static double weight[IN * OUT], bias[OUT];
  CK_GOT(ek_module *, module, ek_linear_create(&module, IN, OUT, true));
  read_start(module, "weight", weight);
  read_start(module, "bias", bias);
  ek_module_free(module);
  double largest = 0, sum = 0;
  for (int i = 0; i < IN * OUT; i++) {
    largest = fmax(largest, fabs(weight[i]));
    sum += weight[i];
  }
  ck_assert_double_le(largest, 0.125);
  ck_assert_double_ge(largest, 0.12);
  /* The mean of n uniform numbers has the deviation bound / sqrt(3 n); five of them. */
  ck_assert_double_le(fabs(sum) / (IN * OUT), 5 * 0.125 / sqrt(3.0 * IN * OUT));
  for (int i = 0; i < OUT; i++) ck_assert_double_le(fabs(bias[i]), 0.125);
  ck_assert(bias[0] != bias[1]);

  const ek_initializer half = ek_initializer_constant(0.5), two = ek_initializer_constant(2);
  CK_WITH(ek_linear_options, options, EK_LINEAR_OPTIONS_INIT, .weight_start = &half);
  for (int k = 0; k < 2; k++) {
    ck_ok(ek_linear_create_with(&module, IN, OUT, &options));
    read_start(module, "weight", weight);
    read_start(module, "bias", bias);
    ek_module_free(module);
    for (int i = 0; i < IN * OUT; i++) ck_assert(weight[i] == 0.5);
    for (int i = 0; i < OUT; i++) ck_assert(bias[i] == 2 * k);
    options.bias_start = &two;
  }
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_linear_create(NULL, 3, 2, true), "linear");
  ek_linear_options options = EK_LINEAR_OPTIONS_INIT;
  const ek_initializer zeros = ek_initializer_zeros();
  ck_invalid(ek_linear_create_with(NULL, 3, 2, NULL), "linear");
  ck_bad(options, columns, 1, ek_linear_create_with(&module, 3, 2, &options),
         "rows of 1 columns do not hold 2");
  ck_bad(options, columns, -2, ek_linear_create_with(&module, 3, 2, &options), "-2 columns");
  options.bias = false;
  ck_bad(options, bias_start, &zeros, ek_linear_create_with(&module, 3, 2, &options),
         "bias_start is given, but bias is false");
  ck_invalid(ek_linear_create(&module, 0, 2, true), "0 -> 2");
  ck_invalid(ek_linear_create(&module, 3, 0, true), "3 -> 0");
  ck_invalid(ek_linear_create(&module, -1, 2, true), "-1");
  ck_invalid(ek_linear_create_with(&module, 3, INT64_MIN, NULL), "linear");
  ck_assert_ptr_null(module);
  ck_host_failures(create_plain);

  ck_ok(ek_linear_create(&module, 7, 2, true));
  ck_forward_fails(module, EK_ERR_SHAPE, "linear, forward: input has 5 columns, expected 7", EK_F32,
                   CK_SHAPE(4, 5));
  ck_forward_fails(module, EK_ERR_SHAPE, "linear, forward: input has rank 0", EK_F32, 0, NULL);
  ck_forward_fails(module, EK_ERR_TYPE,
                   "linear, forward: input number 0 is f64, but the module runs in f32", EK_F64,
                   CK_SHAPE(4, 7));
  ck_forward_fails(module, EK_ERR_TYPE, "linear, forward: input is i32", EK_I32, CK_SHAPE(4, 7));
  ek_module_free(module);

  ck_overflows(module, ek_linear_create(&module, INT64_MAX, INT64_MAX, true));
  ck_overflows(module, ek_linear_create(&module, INT64_C(1) << 31, INT64_C(1) << 31, false));
  ck_ok(ek_linear_create(&module, 1 << 20, 1 << 20, true));
  ck_replica_fails(module, "plan:1@1GiB", EK_ERR_OUT_OF_MEMORY, "parameters");
  ek_module_free(module);
}

struct seen {
  ek_device *device;
  uint64_t allocations[2];
  int count;
};

static ek_status on_complete(void *context, ek_pass *pass, size_t parameter) {
  struct seen *seen = context;
  (void)pass, (void)parameter;
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, seen->device));
  ck_assert_int_lt(seen->count, 2);
  seen->allocations[seen->count++] = usage.allocations;
  return EK_OK;
}

/* Both gradients are complete before dx exists: their reduction need not wait for it. */
CK_TEST(gradients_come_early) {
  struct ck_bed *bed = ck_bed_open(&cases[0], EK_F32, test_devices("cpu:1"));
  struct seen seen = {.device = bed->device};
  ck_assign(bed->options, .complete = on_complete, .context = &seen);
  (void)ck_bed_backward(bed, true);
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, bed->device));
  ck_assert_int_eq(seen.count, 2);
  ck_assert_uint_eq(seen.allocations[0] + 1, usage.allocations);
  ck_assert_uint_eq(seen.allocations[1] + 1, usage.allocations);
}

/* 2^31 elements are nothing special: 32 x 2048 rows of 40,000 columns, only counted. */
CK_TEST(large) {
  const int64_t shape[] = {32, 2048, 64};
  ek_group *group = ck_open("plan:1@80GiB", 1);
  CK_OPENED(ek_module *, module, ek_linear_create(&module, 64, 40000, true));
  CK_OPENED(ek_replica *, replica,
            ek_replica_open(&replica, ek_group_device(group, 0), module, NULL));
  CK_OPENED(ek_tensor, x,
            ek_tensor_create(&x, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_F32, 3, shape));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_OPENED(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ck_assert_int_eq(ek_tensor_count(&y), INT64_C(32) * 2048 * 40000);
  CK_OPENED(ek_tensor, dx, ek_pass_run_backward(&dx, pass, &y));
  ck_assert(ek_tensor_same_shape(&x, &dx));
}

CK_SUITE("linear")
