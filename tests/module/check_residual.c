/*
 * check_residual.c - y = x + inner(x).
 */
#include "ck_module.h"

CK_CREATE_AROUND(create_linear, ek_residual_create, ek_linear_create(&inner, 3, 3, true))
CK_CREATE_AROUND(create_relu, ek_residual_create, ek_activation_create(&inner, EK_ACTIVATION_RELU))
CK_CREATE_AROUND(create_dropout, ek_residual_create, ek_dropout_create(&inner, 0.4))
CK_CREATE_AROUND(create_identity, ek_residual_create, ek_dropout_create(&inner, 0.0))
CK_CREATE_AROUND(create_twice, ek_residual_create, create_linear(&inner))

/* An inner result without another holder, one that is saved for backward, one that is x itself. */
static const struct ck_module_case cases[] = {
    CK_CASE("of a linear", create_linear, 4, 3, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("of a relu, which saves its output", create_relu, 2, 2, 1, {0, 2, {4, 3}, -1, 1, 0.01}),
    CK_CASE("of a dropout", create_dropout, 2, 2, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("of nothing, which shares its input", create_identity, 2, 1, 0, {0, 2, {4, 3}, -1, 1}),
    CK_CASE("of a residual", create_twice, 4, 4, 0, {0, 2, {4, 3}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* y = 2 x and dx = 2 dy, and x and dy themselves are left as they were. */
CK_TEST(aliases_are_not_overwritten) {
  struct ck_bed *bed = ck_bed_open(&cases[3], EK_F64, test_devices("cpu:1"));
  struct ck_results *r = ck_bed_backward(bed, true);
  double x[12], dy[12];
  ck_get(x, &bed->input[0]);
  ck_get(dy, &bed->grad_output[0]);
  ck_within("x", x, bed->value[0], NULL, 12);
  ck_within("dy", dy, bed->factor[0], NULL, 12);
  for (int i = 0; i < 12; i++) {
    ck_assert(r->output[0][i] == 2 * x[i]);
    ck_assert(r->grad_input[0][i] == 2 * dy[i]);
  }
}

/* In place where it may be: the forward over a linear takes no more memory than the linear's. */
CK_TEST(adds_in_place) {
  struct ck_bed *bed = ck_bed_open(&cases[0], EK_F32, test_devices("cpu:1"));
  const uint64_t before = ck_bed_held(bed);
  ck_ok(ek_memory_reset_peak(bed->device));
  ck_bed_forward(bed);
  ck_assert_uint_eq(ck_usage(bed->device).peak_bytes - before, EK_MEMORY_UNIT);
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, "inner.weight"));
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  CK_SCOPED(ek_module *, inner, ek_linear_create(&inner, 3, 2, true));
  ck_invalid(ek_residual_create(NULL, inner), "residual");
  ck_invalid(ek_residual_create(&module, NULL), "residual");
  ck_assert_ptr_null(module);
  ck_ok(ek_residual_create(&module, inner));
  ck_forward_fails(module, EK_ERR_SHAPE, "residual, forward: a residual connection adds",
                   EK_F32, CK_SHAPE(2, 3));
  ck_forward_fails(module, EK_ERR_TYPE, "residual, forward: input is i32", EK_I32, CK_SHAPE(2, 3));
  ek_module_free(module);
  ck_host_failures(create_twice);
}

CK_SUITE("residual")
