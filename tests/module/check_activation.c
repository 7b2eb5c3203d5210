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

#define KIND(NAME, name, kept)                                                                     \
  {name, EK_ACTIVATION_##NAME, #name ": module is NULL",                                           \
   #name ", forward: input is i32, expected f32"},
static const struct {
  ek_status (*create)(ek_module **module);
  ek_activation kind;
  const char *no_module, *no_float;
} kinds[] = {EK_ACTIVATION_LIST(KIND)};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* The numbers are the operation's, which check_elementwise.c compares with the formulas. */
CK_LOOP(is_the_operation, KINDS) {
  double want[21];
  struct ck_bed *bed = CK_BED(kinds[_i].create, EK_F64, 0, 1, {21}, -30, 30, 0);
  ek_tensor y = ck_upload(bed->device, EK_F64, NULL, CK_SHAPE(21));
  ck_ok(ek_op_activation_forward(ek_device_stream(bed->device, EK_STREAM_COMPUTE), &y, bed->input,
                                 NULL, kinds[_i].kind));
  ck_get(want, &y);
  ck_same_bits("y", ck_bed_backward(bed, false)->output[0], want, 21);
}

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
