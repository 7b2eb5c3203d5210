/*
 * check_upsample.c - pictures of another size as a layer.
 */
#include "ck_module.h"

static ek_status create_double(ek_module **module) { return ek_upsample_create(module, NULL); }

CK_CREATE_WITH(create_fixed, ek_upsample_options, EK_UPSAMPLE_OPTIONS_INIT,
               ek_upsample_create(module, &o), .to[0] = 7, .to[1] = 3, .align_corners = true)

static const struct ck_module_case cases[] = {
    CK_CASE("twice the size", create_double, 16, 2, 0, {0, 4, {4, 3, 4, 3}, -1, 1}),
    CK_CASE("to 7 x 3", create_fixed, 16, 2, 0, {0, 4, {5, 4, 5, 2}, -1, 1}),
};
CK_MODULE_CASES(cases)

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ek_upsample_options bad = EK_UPSAMPLE_OPTIONS_INIT;
  ck_bad(bad, factor, 0, ek_upsample_create(&module, &bad), "factor 0");
  bad.to[1] = 4;
  ck_invalid(ek_upsample_create(&module, &bad), "to is 0 x 4");
  ck_bad(bad, to[0], -4, ek_upsample_create(&module, &bad), "to is -4 x 4");
  ck_invalid(ek_upsample_create(NULL, NULL), "upsample: module is NULL");
  ck_host_failures(create_double);
  ck_kept(create_double(&module), module);
  ck_forward_fails(module, EK_ERR_TYPE, "upsample, forward: input is i32, expected f32", EK_I32,
                   CK_SHAPE(2, 3, 3, 1));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 2, expected 4", EK_F32, CK_SHAPE(2, 3));
}

CK_SUITE("upsample")
