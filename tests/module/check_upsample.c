/*
 * check_upsample.c - pictures of another size as a layer.
 */
#include <evenkeel/upsample.h>

#include "ck_module.h"

static ek_status create_double(ek_module **module) { return ek_upsample_create(module, NULL); }

static ek_status create_fixed(ek_module **module) {
  ek_upsample_options options = EK_UPSAMPLE_OPTIONS_INIT;
  options.to[0] = 7;
  options.to[1] = 3;
  options.align_corners = true;
  return ek_upsample_create(module, &options);
}

static const struct ck_module_case cases[] = {
    {.name = "twice the size",
     .create = create_double,
     .input = {{0, 4, {4, 3, 4, 3}, -1, 1, 0}},
     .longest = 16,
     .depth = 2},
    {.name = "to 7 x 3",
     .create = create_fixed,
     .input = {{0, 4, {5, 4, 5, 2}, -1, 1, 0}},
     .longest = 16,
     .depth = 2},
};
CK_MODULE_CASES(cases)

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ek_upsample_options bad = EK_UPSAMPLE_OPTIONS_INIT;
  bad.factor = 0;
  ck_fails(ek_upsample_create(&module, &bad), EK_ERR_INVALID_ARGUMENT, "factor 0");
  bad = (ek_upsample_options)EK_UPSAMPLE_OPTIONS_INIT;
  bad.to[1] = 4;
  ck_fails(ek_upsample_create(&module, &bad), EK_ERR_INVALID_ARGUMENT, "to is 0 x 4");
  bad.to[0] = -4;
  ck_fails(ek_upsample_create(&module, &bad), EK_ERR_INVALID_ARGUMENT, "to is -4 x 4");
  ck_fails(ek_upsample_create(NULL, NULL), EK_ERR_INVALID_ARGUMENT, "upsample: module is NULL");
  ck_host_failures(create_double);
  ck_ok(create_double(&module));
  ck_keep(module);
  ck_forward_fails(module, EK_ERR_TYPE, "upsample, forward: input is i32, expected f32", EK_I32,
                   CK_SHAPE(2, 3, 3, 1));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 2, expected 4", EK_F32, CK_SHAPE(2, 3));
}

CK_SUITE("upsample")
