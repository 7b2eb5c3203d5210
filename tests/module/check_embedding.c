/*
 * check_embedding.c - rows of a learned table by index, plus a learned position.
 */
#include "ck_module.h"

static ek_status create_plain(ek_module **module) { return ek_embedding_create(module, 5, 3, 0); }
static ek_status create_placed(ek_module **module) { return ek_embedding_create(module, 5, 3, 4); }

/* Some tokens occur twice and some not at all; a table of positions is used whole and in part. */
static const struct ck_module_case cases[] = {
    CK_CASE("2 x 4 tokens", create_plain, 8, 1, 0, {EK_I32, 2, {2, 4}, 0, 3}),
    CK_CASE("6 tokens", create_plain, 6, 1, 0, {EK_I32, 1, {6}, 0, 4}),
    CK_CASE("3 x 4 tokens, 4 positions", create_placed, 12, 1, 0, {EK_I32, 2, {3, 4}, 0, 4}),
    CK_CASE("3 x 2 tokens, 4 positions", create_placed, 6, 1, 0, {EK_I32, 2, {3, 2}, 0, 4}),
    CK_CASE("3 samples of one token, 4 positions", create_placed, 3, 1, 0, {EK_I32, 1, {3}, 0, 4}),
};
CK_MODULE_CASES(cases)

CK_TEST(whole_numbers) {
  struct ck_bed *bed = CK_BED(create_placed, EK_F32, EK_I32, 2, {2, 2}, 0, 4, 0);
  double weight[15], positions[12];
  for (int i = 0; i < 15; i++) weight[i] = i;
  for (int i = 0; i < 12; i++) positions[i] = 100 * (i + 1);
  ck_bed_set(bed, "weight", weight);
  ck_bed_set(bed, "positions", positions);
  ck_set(&bed->input[0], (const double[]){4, 0, 4, 1});
  ck_set(&bed->grad_output[0], (const double[]){1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60});
  struct ck_results *r = ck_bed_backward(bed, true);
  ck_within("y", r->output[0],
            (const double[]){112, 213, 314, 400, 501, 602, 112, 213, 314, 403, 504, 605}, NULL, 12);
  ck_assert_ptr_null(r->grad_input[0]);
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, "weight"));
  ck_within("dweight", r->gradient + info.offset,
            (const double[]){4, 5, 6, 40, 50, 60, 0, 0, 0, 0, 0, 0, 11, 22, 33}, NULL, 15);
  ck_ok(ek_replica_find(&info, bed->replica, "positions"));
  ck_within("dpositions", r->gradient + info.offset,
            (const double[]){11, 22, 33, 44, 55, 66, 0, 0, 0, 0, 0, 0}, NULL, 12);
}

CK_TEST(initial_values) {
  CK_OPENED(ek_module *, module, ek_embedding_create(&module, 200, 50, 200));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  ck_deviates(replica, "weight", 0.02);
  ck_deviates(replica, "positions", 0.02);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_embedding_create(NULL, 5, 3, 0), "embedding");
  ck_invalid(ek_embedding_create(&module, 0, 3, 0), "embedding");
  ck_invalid(ek_embedding_create(&module, 5, -3, 0), "-3");
  ck_invalid(ek_embedding_create(&module, 5, 3, -1), "-1");
  const ek_initializer zeros = ek_initializer_zeros();
  ek_embedding_options options = EK_EMBEDDING_OPTIONS_INIT;
  ck_bad(options, positions_start, &zeros, ek_embedding_create_with(&module, 5, 3, &options),
         "positions_start is given, but positions is 0");
  ck_assert_ptr_null(module);
  ck_host_failures(create_placed);

  ck_ok(create_placed(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "samples have 5 tokens, there are 4 positions", EK_I32,
                   CK_SHAPE(2, 5));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 3", EK_I32, CK_SHAPE(2, 2, 2));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 0", EK_I32, 0, NULL);
  ck_forward_fails(module, EK_ERR_TYPE, "input is f32, expected i32", EK_F32, CK_SHAPE(2, 2));
  ek_module_free(module);

  ck_overflows(module, ek_embedding_create(&module, INT64_MAX, 2, 0));
  ck_overflows(module, ek_embedding_create(&module, 2, INT64_MAX / 2, INT64_MAX));
}

/* A token outside the table is found at once, or at the next wait; nothing is left behind. */
CK_TEST(token_outside) {
  static const struct ck_module_case is = {.name = "tokens", .create = create_plain,
                                           .input = {{EK_I32, 2, {2, 2}, 0, 4, 0}}};
  const double outside[] = {-1, 5};
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, "cpu:1");
  const uint64_t before = ck_bed_held(bed);
  for (int k = 0; k < 2; k++) {
    ek_tensor y = {0};
    ck_set(&bed->input[0], (const double[]){0, 1, outside[k], 2});
    CK_GOT(ek_pass *, pass, ek_pass_open(&pass, bed->replica, NULL));
    ck_invalid(ck_finish(ek_pass_run_forward(&y, pass, bed->input),
                         ek_device_stream(bed->device, EK_STREAM_COMPUTE)),
               "2");
    const bool late = strcmp(ek_device_backend(bed->device), "cuda") == 0;
    ck_assert_int_eq(ek_tensor_exists(&y), late);
    ek_tensor_free(&y);
    ek_pass_free(pass);
    ck_assert_uint_eq(ck_bed_held(bed), before);
  }
}

CK_SUITE("embedding")
