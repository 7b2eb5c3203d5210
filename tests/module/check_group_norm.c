/*
 * check_group_norm.c - normalisation of groups of the channels of each sample.
 */
#include "ck_module.h"

enum { C = 6, SAMPLES = 3, PIXELS = 4 };

static ek_status create_groups(ek_module **module) { return ek_group_norm_create(module, C, 3); }
CK_CREATE_WITH(create_one, ek_group_norm_options, EK_GROUP_NORM_OPTIONS_INIT,
               ek_group_norm_create_with(module, C, 1, &o), .affine = false, .epsilon = 0.125)
CK_CREATE_WITH(create_each, ek_group_norm_options, EK_GROUP_NORM_OPTIONS_INIT,
               ek_group_norm_create_with(module, C, C, &o), .epsilon = 0.125)

static const struct ck_module_case cases[] = {
    CK_CASE("3 x 2 x 2 x 6, in 3 groups", create_groups, 12, 6, 1,
            {0, 4, {SAMPLES, 2, 2, C}, -2, 2}),
    CK_CASE("4 x 6, one group, x alone", create_one, 6, 6, 1, {0, 2, {4, C}, -2, 2}),
    CK_CASE("2 x 5 x 6, a group for each channel", create_each, 10, 6, 1, {0, 3, {2, 5, C}, -2, 2}),
};
CK_MODULE_CASES(cases)

/* Each group of a sample, by plain sums. In f64 a hundred times the error of 8 terms; in f32 32
 * roundings of numbers below 16. */
CK_LOOP(against_plain_sums, 2) {
  const ek_type type = _i == 0 ? EK_F64 : EK_F32;
  const double weights[C] = {0.5, -1, 2, 0.25, -3, 1}, biases[C] = {1, 2, 0, -1, -2, 0.5};
  struct ck_bed *bed = ck_bed_open(&cases[0], type, test_devices("cpu:1"));
  ck_bed_set(bed, "weight", weights);
  ck_bed_set(bed, "bias", biases);
  const double *x = bed->value[0];
  const struct ck_results *results = ck_bed_backward(bed, false);
  for (int s = 0; s < SAMPLES; s++) {
    for (int c = 0; c < C; c++) {
      double mean = 0, variance = 0;
      for (int k = 0; k < 2 * PIXELS; k++) {
        mean += x[(s * PIXELS + k / 2) * C + c / 2 * 2 + k % 2] / (2 * PIXELS);
      }
      for (int k = 0; k < 2 * PIXELS; k++) {
        const double d = x[(s * PIXELS + k / 2) * C + c / 2 * 2 + k % 2] - mean;
        variance += d * d / (2 * PIXELS);
      }
      for (int p = 0; p < PIXELS; p++) {
        const int at = (s * PIXELS + p) * C + c;
        const double y = (x[at] - mean) / sqrt(variance + 1e-5) * weights[c] + biases[c];
        ck_assert_double_le(fabs(results->output[0][at] - y),
                            type == EK_F64 ? 1e-13 : 32 * 16 * 0x1p-24);
      }
    }
  }
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ek_group_norm_options options = EK_GROUP_NORM_OPTIONS_INIT;
  const ek_initializer ones = ek_initializer_ones();
  ck_invalid(ek_group_norm_create(NULL, C, 3), "group_norm");
  ck_invalid(ek_group_norm_create(&module, 0, 1), "channels is 0");
  ck_invalid(ek_group_norm_create(&module, C, 0), "groups is 0");
  ck_invalid(ek_group_norm_create(&module, C, 4),
             "group_norm: groups is 4, expected a divisor of the 6 channels");
  ck_bad(options, epsilon, (double)INFINITY, ek_group_norm_create_with(&module, C, 3, &options),
         "epsilon");
  ck_assign(options, .affine = false, .weight_start = &ones);
  ck_invalid(ek_group_norm_create_with(&module, C, 3, &options), "affine");
  ck_assert_ptr_null(module);
  ck_host_failures(create_groups);

  ck_kept(create_groups(&module), module);
  ck_forward_fails(module, EK_ERR_SHAPE, "group_norm, forward: input has 5 columns, expected 6",
                   EK_F32, CK_SHAPE(2, 5));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 1, expected 2 or more", EK_F32,
                   CK_SHAPE(6));
}

CK_SUITE("group_norm")
