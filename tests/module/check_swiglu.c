/*
 * check_swiglu.c - a feed-forward layer with a gate.
 */
#include "ck_module.h"
#include "ck_training.h"

enum { WIDTH = 6, HIDDEN = 10 };

static ek_status with_bias(ek_module **module) {
  return ek_swiglu_create(module, WIDTH, HIDDEN, true);
}
static ek_status without_bias(ek_module **module) { return ek_swiglu_create(module, 3, 5, false); }

/* depth: two linears and SiLU, forward and backward. */
static const struct ck_module_case cases[] = {
    CK_CASE("7 x 6, with bias", with_bias, HIDDEN, 20, 6, {0, 2, {7, WIDTH}, -1, 1}),
    CK_CASE("2 x 3 x 3, without bias", without_bias, 6, 20, 3, {0, 3, {2, 3, 3}, -1, 1}),
};
CK_MODULE_CASES(cases)

CK_TEST(formula) {
  struct ck_bed *bed = ck_bed_open(&cases[1], EK_F64, test_devices("cpu:1"));
  struct ck_random random = ck_random_start(3);
  double weight[3][15]; /* gate, up: hidden x width; down: width x hidden */
  for (int i = 0; i < 3 * 15; i++) weight[i / 15][i % 15] = ck_random_uniform(&random, -1, 1);
  ck_bed_set(bed, "gate.weight", weight[0]);
  ck_bed_set(bed, "up.weight", weight[1]);
  ck_bed_set(bed, "down.weight", weight[2]);
  struct ck_results *r = ck_bed_backward(bed, false);
  for (int row = 0; row < 6; row++) {
    const double *x = bed->value[0] + (ptrdiff_t)3 * row;
    double y[3] = {0};
    for (int h = 0; h < 5; h++) {
      double g = 0, u = 0;
      for (int i = 0; i < 3; i++) {
        g += weight[0][3 * h + i] * x[i];
        u += weight[1][3 * h + i] * x[i];
      }
      for (int o = 0; o < 3; o++) y[o] += weight[2][5 * o + h] * (g / (1 + exp(-g)) * u);
    }
    /* |gate|, |up| <= 3 and |y| <= 45, from sums of 3 and 5 numbers and SiLU */
    for (int o = 0; o < 3; o++) {
      ck_assert_double_le(fabs(r->output[0][3 * row + o] - y[o]), 45 * 24 * 0x1p-53);
    }
  }
}

/* ---- several devices ---- */

static const struct ck_workload workload = {
    .name = "swiglu", .module = with_bias, .criterion = ek_mean_squared_error_create,
    .sample = CK_SAMPLE(CK_ROW(WIDTH), CK_ROW(WIDTH))};

static double *gradients(struct ck_training *training, const char *spec, ek_mode mode) {
  CK_WITH(struct ck_setup, setup, ck_setup_mode(&workload, spec, mode), .options.type = EK_F64);
  ck_training_open(training, &setup);
  struct ck_batch batch = ck_batch_make(&workload, EK_F64, 7, 0, 1);
  ck_ok(ck_training_backward(training, &batch, NULL, false, NULL));
  ck_batch_free(&batch);
  return ck_training_read(training, CK_GRADIENTS);
}

/* Seven samples over three devices give the gradients of one device: sums in another order. */
CK_LOOP_FROM(devices_agree, EK_MODE_GATHER, EK_MODE_SHARDED + 1) {
  struct ck_training one, three;
  double *want = gradients(&one, "cpu:1", EK_MODE_REPLICATED);
  double *got = gradients(&three, "cpu:3", (ek_mode)_i);
  ck_training_compare("gradients", &three, got, want, 1e-14, NULL);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_swiglu_create(NULL, 2, 3, true), "swiglu: module is NULL");
  ck_invalid(ek_swiglu_create(&module, 0, 3, true), "linear");
  ck_invalid(ek_swiglu_create(&module, 2, -1, true), "linear");
  ck_assert_ptr_null(module);
  ck_host_failures(with_bias);
  ck_kept(with_bias(&module), module);
  ck_forward_fails(module, EK_ERR_SHAPE, "gate", EK_F32, CK_SHAPE(2, WIDTH + 1));
}

CK_SUITE("swiglu")
