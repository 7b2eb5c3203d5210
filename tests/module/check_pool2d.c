/*
 * check_pool2d.c - pooling of pictures as layers.
 */
#include "ck_module.h"

static const ek_pooling resnet = {sizeof(ek_pooling), {3, 3}, {2, 2}, {1, 1}, {1, 1}, true, false};
static const ek_pooling uneven = {sizeof(ek_pooling), {3, 2}, {1, 2}, {1, 0}, {1, 1}, false, true};

static ek_status create_max(ek_module **module) { return ek_max_pool2d_create(module, &resnet); }
static ek_status create_plain(ek_module **module) { return ek_max_pool2d_create(module, NULL); }
static ek_status create_mean(ek_module **m) { return ek_average_pool2d_create(m, &uneven); }

/* Random inputs are apart by more than a step of a finite difference, except with a chance of
 * 1e-4. */
static const struct ck_module_case cases[] = {
    CK_CASE("max, 3 x 3", create_max, 4, 1, 2, {0, 4, {4, 5, 6, 3}, -1, 1, 0}), /* the places */
    CK_CASE("max, 2 x 2", create_plain, 1, 1, 1, {0, 4, {3, 4, 5, 2}, -1, 1, 0}),
    CK_CASE("average", create_mean, 6, 2, 0, {0, 4, {4, 5, 5, 3}, -1, 1}),
    CK_CASE("global average", ek_global_average_pool_create, 12, 2, 0, {0, 4, {5, 3, 4, 7}, -1, 1}),
};
CK_MODULE_CASES(cases)

CK_TEST(a_global_mean_has_two_dimensions) {
  struct ck_bed *bed = CK_BED(ek_global_average_pool_create, EK_F32, 0, 4, {2, 1, 2, 3}, -1, 1, 0);
  ck_set(&bed->input[0], (const double[]){1, 2, 3, 5, 6, 7, -1, 0, 4, -3, 2, 0});
  ck_set(&bed->grad_output[0], (const double[]){2, 4, 6, 8, 10, 12});
  struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0], (const double[]){3, 4, 5, -2, 1, 2}, NULL, 6);
  ck_within("dx", r->grad_input[0], (const double[]){1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6}, NULL, 12);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ek_pooling bad = EK_POOLING_INIT;
  ck_bad(bad, stride[1], 0, ek_max_pool2d_create(&module, &bad), "stride is 2 x 0");
  ck_bad(bad, stride[1], 0, ek_average_pool2d_create(&module, &bad), "stride is 2 x 0");
  ck_bad(bad, dilation[0], 2, ek_average_pool2d_create(&module, &bad), "dilation is 2 x 1");
  ck_invalid(ek_max_pool2d_create(NULL, NULL), "max_pool2d: module is NULL");
  ck_invalid(ek_average_pool2d_create(NULL, NULL), "module is NULL");
  ck_invalid(ek_global_average_pool_create(NULL), "module is NULL");
  ck_host_failures(create_max);
  ck_host_failures(create_mean);
  ck_host_failures(ek_global_average_pool_create);
  ck_kept(create_max(&module), module);
  ck_forward_fails(module, EK_ERR_TYPE, "max_pool2d, forward: input is i32, expected f32", EK_I32,
                   CK_SHAPE(2, 3, 3, 1));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 2, expected 4", EK_F32, CK_SHAPE(2, 3));
}

CK_SUITE("pool2d")
