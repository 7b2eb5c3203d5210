/*
 * check_swiglu.c - a feed-forward layer with a gate.
 */
#include "ck_module.h"

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
