/*
 * check_layer_norm.c - layer normalisation over the last dimension, and RMSNorm.
 */
#include "ck_frozen.h"
#include "ck_module.h"

static ek_status create_small(ek_module **module) { return ek_layer_norm_create(module, 6, 1e-5); }
CK_CREATE_WITH(create_without_bias, ek_layer_norm_options, EK_LAYER_NORM_OPTIONS_INIT,
               ek_layer_norm_create_with(module, 6, &o), .bias = false)
static ek_status create_two(ek_module **module) { return ek_layer_norm_create(module, 2, 0.1); }
static ek_status create_rms(ek_module **module) { return ek_rms_norm_create(module, 6, 1e-5); }
CK_CREATE_WITH(create_rms_with_bias, ek_layer_norm_options, EK_LAYER_NORM_OPTIONS_INIT,
               ek_layer_norm_create_with(module, 6, &o), .rms = true)

/* The last case of rows of two has rows of two: their x - mean are small numbers against epsilon
 * now and then. */
static const struct ck_module_case cases[] = {
    CK_CASE("4 x 6", create_small, 6, 6, 2, {0, 2, {4, 6}, -2, 2}),
    CK_CASE("2 x 3 x 6, far from zero", create_small, 6, 24, 2,
            {0, 3, {2, 3, 6}, 3, 5, 0}), /* x is four times x - mean */
    CK_CASE("5 x 2, epsilon 0.1", create_two, 5, 6, 2, {0, 2, {5, 2}, -1, 1, 0}),
    CK_CASE("4 x 6, without bias", create_without_bias, 6, 6, 2, {0, 2, {4, 6}, -2, 2}),
    CK_CASE("RMSNorm, 4 x 6", create_rms, 6, 6, 1, {0, 2, {4, 6}, -2, 2}),
    CK_CASE("RMSNorm with bias, 2 x 3 x 6, far from zero", create_rms_with_bias, 6, 6, 1,
            {0, 3, {2, 3, 6}, 3, 5}),
};
CK_MODULE_CASES(cases)

static const double weights[] = {0.5, -1, 2, 0.25, -3, 1}, no_bias[6];

static struct ck_results *run_with(ek_status (*create)(ek_module **module), const char *bias) {
  struct ck_module_case is = cases[0];
  double dy[24];
  for (int i = 0; i < 24; i++) dy[i] = i % 7 - 3;
  is.create = create;
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  ck_bed_set(bed, "weight", weights);
  ck_set(&bed->grad_output[0], dy);
  if (bias != NULL) ck_bed_set(bed, bias, no_bias);
  ek_parameter_info info;
  ck_assert_int_eq(ek_replica_find(&info, bed->replica, "bias") == EK_OK, bias != NULL);
  struct ck_results *results = ck_bed_backward(bed, true);
  ck_ok(ek_replica_find(&info, bed->replica, "weight"));
  ck_get(results->gradient, &info.gradient);
  ck_bed_close(bed);
  return results;
}

/* One parameter, and the bits of a bias of zeros. */
CK_TEST(without_bias) {
  const struct ck_results *want = run_with(create_small, "bias");
  const struct ck_results *got = run_with(create_without_bias, NULL);
  ck_same_bits("y", got->output[0], want->output[0], 24);
  ck_same_bits("dx", got->grad_input[0], want->grad_input[0], 24);
  ck_same_bits("dweight", got->gradient, want->gradient, 6);
}

CK_LOOP(frozen_parameters, 4) {
  CK_FROZEN_PAIR(create_small, (unsigned)_i, weights, no_bias, 0, 2, {4, 6}, -2, 2, 0);
}

CK_TEST(initial_values) {
  CK_OPENED(ek_module *, module, create_small(&module));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "weight"));
  ck_holds(&info.value, 1, 1, 1, 1, 1, 1);
  ck_ok(ek_replica_find(&info, replica, "bias"));
  ck_holds(&info.value, 0, 0, 0, 0, 0, 0);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_layer_norm_create(NULL, 6, 1e-5), "layer_norm");
  ck_invalid(ek_layer_norm_create(&module, 0, 1e-5), "width");
  ck_invalid(ek_layer_norm_create(&module, -6, 1e-5), "width");
  ck_invalid(ek_layer_norm_create(&module, 6, 0), "epsilon");
  ck_invalid(ek_layer_norm_create(&module, 6, -1e-5), "epsilon");
  ck_invalid(ek_layer_norm_create(&module, 6, (double)NAN), "epsilon");
  ck_invalid(ek_layer_norm_create(&module, 6, (double)INFINITY), "epsilon");
  const ek_initializer start = ek_initializer_ones();
  CK_WITH(ek_layer_norm_options, options, EK_LAYER_NORM_OPTIONS_INIT, .bias = false);
  ck_bad(options, bias_start, &start, ek_layer_norm_create_with(&module, 6, &options),
         "layer_norm: bias_start is given, but bias is false");
  ck_assert_ptr_null(module);
  ck_host_failures(create_small);
  ck_invalid(ek_rms_norm_create(&module, 0, 1e-5), "rms_norm: width is 0, expected above 0");
  ck_host_failures(create_rms);

  ck_ok(create_small(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "layer_norm, forward: input has 5 columns, expected 6",
                   EK_F32, CK_SHAPE(2, 5));
  ck_forward_fails(module, EK_ERR_TYPE, "layer_norm, forward: input number 0 is f64", EK_F64,
                   CK_SHAPE(2, 6));
  ek_module_free(module);
  ck_overflows(module, ek_layer_norm_create(&module, INT64_MAX, 1e-5));
}

CK_SUITE("layer_norm")
