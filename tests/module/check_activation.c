/*
 * check_activation.c - the pointwise activations as modules.
 */
#include "ck_module.h"

#define CREATE(NAME, name, kept)                                                                   \
  static ek_status name(ek_module **module) {                                                      \
    return ek_activation_create(module, EK_ACTIVATION_##NAME);                                     \
  }
EK_ACTIVATION_LIST(CREATE)

/* `depth` is that of the formula's roundings; ReLU saves its output, which the caller may hold. The
 * gap keeps finite differences away from ReLU's edge at zero. */
#define CASE(of, rounds, kept, ...)                                                                \
  {                                                                                                \
    .name = #of, .create = of, .input = {__VA_ARGS__}, .longest = 1, .depth = rounds,              \
    .saved = kept                                                                                  \
  }

static const struct ck_module_case cases[] = {
    CASE(relu, 1, 1, {0, 2, {3, 5}, -1, 1, 0.01}), CASE(relu, 1, 1, {0, 3, {2, 2, 3}, -1, 1, 0.01}),
    CASE(gelu, 4, 0, {0, 2, {3, 7}, -4, 4, 0}),    CASE(gelu, 4, 0, {0, 1, {21}, -30, 30, 0}),
    CASE(silu, 4, 0, {0, 2, {3, 7}, -4, 4, 0}),    CASE(silu, 4, 0, {0, 1, {21}, -30, 30, 0}),
};
CK_MODULE_CASES(cases)

CK_TEST(gelu_formula) {
  struct ck_bed *bed = ck_bed_open(&cases[2], EK_F64, test_devices("cpu:1"));
  struct ck_results *r = ck_bed_backward(bed, false);
  const double factor = sqrt(2.0 / 3.14159265358979323846);
  for (int i = 0; i < 21; i++) {
    const double x = bed->value[0][i];
    const double y = 0.5 * x * (1 + tanh(factor * (x + 0.044715 * x * x * x)));
    /* 1 + tanh cancels for negative x: the bound is one of |x|, not of |y|. */
    ck_assert_double_le(fabs(r->output[0][i] - y), 8 * 0x1p-53 * fabs(x));
  }
}

CK_TEST(relu_values) {
  static const struct ck_module_case is = CASE(relu, 1, 1, {0, 2, {1, 6}, -1, 1, 0});
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, test_devices("cpu:1"));
  ck_set(&bed->input[0], (const double[]){-1, -0.0, 0, 2, (double)INFINITY, (double)NAN});
  ck_set(&bed->grad_output[0], (const double[]){3, 4, 5, 6, 7, 8});
  struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0], (const double[]){0, 0, 0, 2, (double)INFINITY, (double)NAN}, NULL,
            6);
  ck_within("dx", r->grad_input[0], (const double[]){0, 0, 0, 6, 7}, NULL, 5);
}

/* Of x sigmoid(x) and its derivative, from 50 decimal digits. */
CK_TEST(silu_values) {
  static const struct ck_module_case is = CASE(silu, 4, 0, {0, 2, {1, 6}, -1, 1, 0});
  static const double x[] = {-20, -5, -0.5, 0, 1, 20};
  static const double y[] = {-4.122307236380407e-08, -0.03346425462142428,
                             -0.18877033439907273,   0.0,
                             0.7310585786300049,     19.99999995877693},
                      dx[] = {-3.9161918660646786e-08, -0.02654743242966592,
                              0.2600388126973482,      0.5,
                              0.9276705118714867,      1.0000000391619186};
  for (int f64 = 0; f64 < 2; f64++) {
    struct ck_bed *bed = ck_bed_open(&is, f64 ? EK_F64 : EK_F32, test_devices("cpu:1"));
    const double unit = f64 ? 0x1p-53 : 0x1p-24;
    ck_set(&bed->input[0], x);
    ck_set(&bed->grad_output[0], (const double[]){1, 1, 1, 1, 1, 1});
    struct ck_results *r = ck_bed_backward(bed, true);
    for (int i = 0; i < 6; i++) {
      ck_assert_double_le(fabs(r->output[0][i] - y[i]), 8 * unit * fabs(y[i]));
      ck_assert_double_le(fabs(r->grad_input[0][i] - dx[i]), 12 * unit * fabs(x[i]) + 8 * unit);
    }
    ck_bed_close(bed);
  }
}

#define KIND(NAME, name, kept)                                                                     \
  {name, EK_ACTIVATION_##NAME, #name ": module is NULL",                                           \
   #name ", forward: input is i32, expected f32"},
static const struct {
  ek_status (*create)(ek_module **module);
  ek_activation kind;
  const char *no_module, *no_float;
} kinds[] = {EK_ACTIVATION_LIST(KIND)};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

CK_LOOP(bad_input, KINDS) {
  ek_module *module = NULL;
  ck_invalid(ek_activation_create(NULL, kinds[_i].kind), kinds[_i].no_module);
  ck_invalid(ek_activation_create(&module, (ek_activation)99), "activation 99");
  ck_host_failures(kinds[_i].create);
  ck_ok(kinds[_i].create(&module));
  ck_forward_fails(module, EK_ERR_TYPE, kinds[_i].no_float, EK_I32, CK_SHAPE(2, 3));
  ek_module_free(module);
}

CK_SUITE("activation")
