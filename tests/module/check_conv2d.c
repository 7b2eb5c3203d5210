/*
 * check_conv2d.c - convolution of pictures as a layer.
 */
#include "ck_frozen.h"
#include "ck_module.h"

static ek_status create_plain(ek_module **module) { return ek_conv2d_create(module, 3, 4, 3); }

static ek_status create_of(ek_module **module, int64_t in, int64_t out, bool bias,
                           ek_convolution convolution) {
  convolution.size = sizeof convolution;
  CK_WITH(ek_conv2d_options, options, EK_CONV2D_OPTIONS_INIT, .bias = bias,
          .convolution = &convolution);
  return ek_conv2d_create_with(module, in, out, &options);
}
static ek_status create_wide(ek_module **module) {
  return create_of(module, 4, 6, false, (ek_convolution){0, {3, 2}, {2, 1}, {1, 1}, {1, 2}, 2});
}
static ek_status create_depthwise(ek_module **module) {
  return create_of(module, 5, 5, true, (ek_convolution){0, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 5});
}
static ek_status create_pixel(ek_module **module) { return ek_conv2d_create(module, 6, 3, 1); }

static const struct ck_module_case cases[] = {
    CK_CASE("3 -> 4, 3 x 3", create_plain, 30, 1, 0, {0, 4, {5, 5, 4, 3}, -1, 1}),
    CK_CASE("4 -> 6 in two groups, stride, padding, dilation", create_wide, 45, 1, 0,
            {0, 4, {3, 6, 5, 4}, -1, 1}),
    CK_CASE("depthwise", create_depthwise, 64, 1, 0, {0, 4, {4, 4, 4, 5}, -1, 1}),
    CK_CASE("6 -> 3, one pixel", create_pixel, 24, 1, 0, {0, 4, {4, 3, 2, 6}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* A kernel that has a 1 in its middle moves pictures by its padding, and dy back. */
CK_TEST(a_kernel_of_one_element_moves) {
  static const double one[9] = {0, 0, 0, 0, 1, 0, 0, 0, 0};
  struct ck_bed *bed = CK_BED(create_depthwise, EK_F32, 0, 4, {1, 4, 4, 5}, -1, 1, 0);
  double weight[45], bias[5] = {0};
  for (int c = 0; c < 5; c++) memcpy(weight + (size_t)c * 9, one, sizeof one);
  ck_bed_set(bed, "weight", weight);
  ck_bed_set(bed, "bias", bias);
  const struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0], bed->value[0], NULL, 80);
  ck_within("dx", r->grad_input[0], bed->factor[0], NULL, 80);
}

CK_LOOP(frozen_parameters, 4) {
  double weight[108], bias[4];
  for (int i = 0; i < 108; i++) weight[i] = i % 7 - 3;
  for (int i = 0; i < 4; i++) bias[i] = i - 1;
  CK_FROZEN_PAIR(create_plain, (unsigned)_i, weight, bias, 0, 4, {2, 5, 4, 3}, -1, 1, 0);
}

/* torch's: uniform in +- 1 / sqrt(3 * 3 * 3). */
CK_TEST(initial_values) {
  double sum = 0, most = 0;
  CK_OPENED(ek_module *, module, create_plain(&module));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "weight"));
  ck_assert_int_eq(info.value.rank, 4);
  const double *values = ck_got(&info.value);
  for (int i = 0; i < 108; i++) {
    sum += values[i] * values[i];
    most = fmax(most, fabs(values[i]));
  }
  ck_assert_double_le(most, 1 / sqrt(27));
  ck_assert_double_ge(most, 0.9 / sqrt(27));
  ck_assert_double_le(fabs(sum / 108 * 81 - 1), 0.4); /* variance 1 / 27 / 3; 5 deviations of it */
  ck_ok(ek_replica_find(&info, replica, "bias"));
  values = ck_got(&info.value);
  for (int i = 0; i < 4; i++) ck_assert_double_le(fabs(values[i]), 1 / sqrt(27));
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_conv2d_create(NULL, 3, 4, 3), "conv2d");
  ck_invalid(ek_conv2d_create(&module, 0, 4, 3), "sizes are 0 -> 4");
  ck_invalid(ek_conv2d_create(&module, 3, -1, 3), "sizes are 3 -> -1");
  ck_invalid(ek_conv2d_create(&module, 3, 4, 0), "kernel is 0 x 0");
  ck_invalid(create_of(&module, 3, 4, true, (ek_convolution){0, {1, 1}, {0, 1}, {0, 0}, {1, 1}, 1}),
             "stride is 0 x 1");
  ck_fails(create_of(&module, 3, 4, true, (ek_convolution){0, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 2}),
           EK_ERR_SHAPE, "2 groups do not divide 3 and 4 channels");
  const ek_initializer start = ek_initializer_ones();
  CK_WITH(ek_conv2d_options, options, EK_CONV2D_OPTIONS_INIT, .bias = false);
  ck_bad(options, bias_start, &start, ek_conv2d_create_with(&module, 3, 4, &options),
         "conv2d: bias_start is given, but bias is false");
  ck_assert_ptr_null(module);
  ck_host_failures(create_plain);

  ck_ok(create_plain(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "conv2d, forward: input has 5 columns, expected 3", EK_F32,
                   CK_SHAPE(2, 4, 4, 5));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 2, expected 4", EK_F32, CK_SHAPE(2, 3));
  ck_forward_fails(module, EK_ERR_SHAPE, "x is 2 high with its padding, and the kernel 3", EK_F32,
                   CK_SHAPE(2, 2, 4, 3));
  ek_module_free(module);
  ck_overflows(module, ek_conv2d_create(&module, INT64_MAX, 1, 1));
}

CK_SUITE("conv2d")
