/*
 * check_residual.c - y = x + inner(x).
 */
#include <evenkeel/dropout.h>
#include <evenkeel/linear.h>
#include <evenkeel/activation.h>
#include <evenkeel/residual.h>

#include "ck_module.h"

static ek_status wrap(ek_module **module, ek_module *inner) {
  const ek_status status = ek_residual_create(module, inner);
  ek_module_free(inner);
  return status;
}

static ek_status create_linear(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(ek_linear_create(&inner, 3, 3, true));
  return wrap(module, inner);
}

static ek_status create_relu(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(ek_activation_create(&inner, EK_ACTIVATION_RELU));
  return wrap(module, inner);
}

static ek_status create_dropout(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(ek_dropout_create(&inner, 0.4));
  return wrap(module, inner);
}

static ek_status create_identity(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(ek_dropout_create(&inner, 0.0));
  return wrap(module, inner);
}

static ek_status create_twice(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(create_linear(&inner));
  return wrap(module, inner);
}

/* An inner result without another holder, one that is saved for backward, one that is x itself. */
static const struct ck_module_case cases[] = {
    {.name = "of a linear",
     .create = create_linear,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 4,
     .depth = 3},
    {.name = "of a relu, which saves its output",
     .create = create_relu,
     .input = {{0, 2, {4, 3}, -1, 1, 0.01}},
     .longest = 2,
     .depth = 2,
     .saved = 1},
    {.name = "of a dropout",
     .create = create_dropout,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 2,
     .depth = 2},
    {.name = "of nothing, which shares its input",
     .create = create_identity,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 2,
     .depth = 1},
    {.name = "of a residual",
     .create = create_twice,
     .input = {{0, 2, {4, 3}, -1, 1, 0}},
     .longest = 4,
     .depth = 4},
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
  ek_memory_usage usage;
  ck_ok(ck_memory_stats(&usage, bed->device));
  ck_assert_uint_eq(usage.peak_bytes - before, EK_MEMORY_UNIT);
  ek_parameter_info info;
  ck_ok(ek_replica_find(&info, bed->replica, "inner.weight"));
}

CK_TEST(bad_input) {
  ek_module *module = NULL, *inner = NULL;
  ck_ok(ek_linear_create(&inner, 3, 2, true));
  ck_fails(ek_residual_create(NULL, inner), EK_ERR_INVALID_ARGUMENT, "residual");
  ck_fails(ek_residual_create(&module, NULL), EK_ERR_INVALID_ARGUMENT, "residual");
  ck_assert_ptr_null(module);
  ck_ok(ek_residual_create(&module, inner));
  ek_module_free(inner);
  ck_forward_fails(module, EK_ERR_SHAPE, "residual, forward: a residual connection adds",
                   EK_F32, CK_SHAPE(2, 3));
  ck_forward_fails(module, EK_ERR_TYPE, "residual, forward: input is i32", EK_I32, CK_SHAPE(2, 3));
  ek_module_free(module);
  ck_host_failures(create_twice);
}

CK_SUITE("residual")
