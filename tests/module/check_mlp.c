/*
 * check_mlp.c - linear layers with an activation between them.
 */
#include "ck_module.h"

static const int64_t sizes[] = {3, 5, 4, 2};

#define MLP(create, count, activation)                                                             \
  static ek_status create(ek_module **m) { return ek_mlp_create(m, sizes, count, activation); }
MLP(create_gelu, 4, EK_ACTIVATION_GELU)
MLP(create_relu, 3, EK_ACTIVATION_RELU)
MLP(create_single, 2, EK_ACTIVATION_RELU)

static const struct ck_module_case cases[] = {
    CK_CASE("3 5 4 2, gelu", create_gelu, 5, 16, 4, {0, 2, {3, 3}, -1, 1}),
    CK_CASE("3 5, no activation", create_single, 3, 2, 0, {0, 2, {3, 3}, -1, 1}),
};
CK_MODULE_CASES(cases)

/* The same layers put together by hand; not among the cases above, because a hidden value that
 * comes near the edge of relu would spoil finite differences. */
static ek_status create_by_hand(ek_module **module) {
  ek_module *layers[3] = {NULL, NULL, NULL};
  ek_status status = ek_linear_create(&layers[0], 3, 5, true);
  if (status == EK_OK) status = ek_activation_create(&layers[1], EK_ACTIVATION_RELU);
  if (status == EK_OK) status = ek_linear_create(&layers[2], 5, 4, true);
  if (status == EK_OK) status = ek_sequential_create(module, layers, 3);
  for (int i = 0; i < 3; i++) ek_module_free(layers[i]);
  return status;
}

CK_TEST(equals_layers_by_hand) {
  static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
  struct ck_bed *bed[2];
  struct ck_results *r[2];
  for (int k = 0; k < 2; k++) {
    bed[k] = CK_BED(k == 0 ? create_relu : create_by_hand, EK_F32, 0, 2, {3, 3}, -1, 1, 0);
    r[k] = ck_bed_backward(bed[k], true);
    ck_assert_uint_eq(ek_replica_parameter_count(bed[k]->replica), 4);
    for (size_t i = 0; i < 4; i++) {
      CK_GOT(ek_parameter_info, info, ek_replica_parameter(&info, bed[k]->replica, i));
      ck_assert_str_eq(info.name, names[i]);
    }
  }
  ck_assert_int_eq(r[0]->output_count[0], 12);
  ck_within("y", r[0]->output[0], r[1]->output[0], NULL, 12);
  ck_within("dx", r[0]->grad_input[0], r[1]->grad_input[0], NULL, 9);
  ck_within("gradient", r[0]->gradient, r[1]->gradient, NULL, r[1]->parameters);
  for (int k = 0; k < 2; k++) ck_bed_close(bed[k]);
}

CK_TEST(bad_input) {
  const int64_t zero[] = {3, 0, 2}, huge[] = {INT64_MAX, INT64_MAX};
  ek_module *module = NULL;
  ck_invalid(ek_mlp_create(NULL, sizes, 4, EK_ACTIVATION_RELU), "module");
  ck_invalid(ek_mlp_create(&module, NULL, 4, EK_ACTIVATION_RELU), "sizes");
  ck_invalid(ek_mlp_create(&module, sizes, 1, EK_ACTIVATION_RELU), "1 sizes");
  ck_invalid(ek_mlp_create(&module, sizes, 0, EK_ACTIVATION_RELU), "0 sizes");
  ck_invalid(ek_mlp_create(&module, zero, 3, EK_ACTIVATION_RELU), "3 -> 0");
  ck_invalid(ek_mlp_create(&module, sizes, 4, (ek_activation)7), "activation 7");
  ck_assert_ptr_null(module);
  ck_host_failures(create_gelu);
  ck_overflows(module, ek_mlp_create(&module, huge, 2, EK_ACTIVATION_GELU));
  ck_ok(create_relu(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "(linear), forward: input has 4 columns, expected 3",
                   EK_F32, CK_SHAPE(2, 4));
  ek_module_free(module);
}

CK_SUITE("mlp")
