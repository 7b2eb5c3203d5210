/*
 * check_attention.c - multi-head self-attention with its projections.
 */
#include "ck_module.h"

static ek_status create_two(ek_module **module) { return ek_attention_create(module, 6, 2); }
static ek_status create_one(ek_module **module) { return ek_attention_create(module, 4, 1); }

static ek_status create_rotary(ek_module **module) {
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .theta = 100);
  CK_WITH(ek_attention_options, options, EK_ATTENTION_OPTIONS_INIT, .rotary = &rotary);
  return ek_attention_create_with(module, 8, 2, &options);
}

#define ATTENTION(create, width, heads, ...)                                                       \
  CK_CREATE_WITH(create, ek_attention_options, EK_ATTENTION_OPTIONS_INIT,                          \
                 ek_attention_create_with(module, width, heads, &o), __VA_ARGS__)
static const ek_rotary rotary_init = EK_ROTARY_INIT;
ATTENTION(create_shared, 8, 4, .rotary = &rotary_init, .kv_heads = 2, .no_projection_bias = true)
ATTENTION(create_everywhere, 6, 2, .causal = false)
ATTENTION(create_documents, 8, 2, .rotary = &rotary_init, .segments = true)
ATTENTION(create_dropping, 6, 2, .kv_heads = 1, .causal = false, .segments = true,
          .dropout = 0.3)
/* Heads wider than width / heads, as Qwen3 has them. */
ATTENTION(create_rms, 8, 2, .bias = false, .rotary = &rotary_init, .kv_heads = 1,
          .head_width = 6, .qk_norm = EK_QK_NORM_RMS, .segments = true)
/* Without positions k_norm.bias has no effect: the softmax takes it away. */
ATTENTION(create_normal, 8, 2, .rotary = &rotary_init, .qk_norm = EK_QK_NORM_LAYER,
          .dropout = 0.2)

/* depth: two linears, the softmax and its sums, forward and backward; the softmax's backward is a
 * difference of numbers of its own size, which costs a few times more. */
static const struct ck_module_case cases[] = {
    CK_CASE("2 x 5 x 6, 2 heads", create_two, 18, 24, 5, {0, 3, {2, 5, 6}, -1, 1, 0}),
    CK_CASE("1 x 1 x 4, 1 head", create_one, 12, 24, 3, {0, 3, {1, 1, 4}, -1, 1, 0}),
    CK_CASE_PROBED("3 x 70 x 4, 1 head, several tiles", create_one, 210, 24, 58, 40,
                   {0, 3, {3, 70, 4}, -1, 1, 0}),
    CK_CASE("2 x 5 x 8, 2 heads, rotary positions", create_rotary, 24, 30, 7,
            {0, 3, {2, 5, 8}, -1, 1, 0}),
    CK_CASE("2 x 5 x 8, 4 heads that share 2 of keys", create_shared, 16, 30, 6,
            {0, 3, {2, 5, 8}, -1, 1, 0}),
    CK_CASE("2 x 5 x 6, 2 heads, not causal", create_everywhere, 18, 24, 5,
            {0, 3, {2, 5, 6}, -1, 1, 0}),
    CK_CASE("2 x 7 x 8, 2 heads, rotary positions, documents and padding", create_documents, 24, 30,
            9, {0, 3, {2, 7, 8}, -1, 1, 0}, {EK_I32, 2, {2, 7}, -1, 1, 0}),
    CK_CASE("2 x 7 x 6, 2 heads that share keys, not causal, documents, dropout", create_dropping,
            18, 30, 6, {0, 3, {2, 7, 6}, -1, 1, 0}, {EK_I32, 2, {2, 7}, -1, 1, 0}),
    CK_CASE("2 x 7 x 8, 2 heads of 6, RMSNorm of queries and keys, documents", create_rms, 24, 60,
            18, {0, 3, {2, 7, 8}, -1, 1, 0}, {EK_I32, 2, {2, 7}, -1, 1, 0}),
    CK_CASE("2 x 5 x 8, 2 heads, layer norm of queries and keys, dropout", create_normal, 24, 60,
            17, {0, 3, {2, 5, 8}, -1, 1, 0}),
};
CK_MODULE_CASES(cases)

/* Without gradient qkv and lse are gone before the projection takes memory: the peak is that of the
 * attention itself, and no square of T. */
CK_TEST(peak) {
  const uint64_t qkv = 40, out = 14, lse = 4; /* units of 3 x 70 x 12, 3 x 70 x 4 and 3 x 1 x 70 */
  struct ck_bed *bed = ck_bed_open(&cases[2], EK_F32, test_devices("cpu:1"));
  const uint64_t before = ck_bed_held(bed);
  ck_ok(ek_memory_reset_peak(bed->device));
  ck_bed_forward(bed);
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, bed->device));
  ck_assert_uint_eq((usage.peak_bytes - before) / EK_MEMORY_UNIT, qkv + out + lse);
}

CK_TEST(initial_values) {
  CK_WITH(ek_attention_options, options, EK_ATTENTION_OPTIONS_INIT, .deviation = 0.5,
          .projection_deviation = 0.125);
  CK_OPENED(ek_module *, module, ek_attention_create_with(&module, 48, 4, &options));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  ck_assert_uint_eq(ek_replica_parameter_count(replica), 4);
  ck_deviates(replica, "qkv.weight", 0.5);
  ck_deviates(replica, "projection.weight", 0.125);
  ck_deviates(replica, "qkv.bias", 0);
  ck_deviates(replica, "projection.bias", 0);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ck_invalid(ek_attention_create(NULL, 6, 2), "attention");
  ck_invalid(ek_attention_create_with(NULL, 6, 2, NULL), "attention");
  ck_invalid(ek_attention_create(&module, 0, 2), "attention");
  ck_invalid(ek_attention_create(&module, 6, 0), "attention");
  ck_invalid(ek_attention_create(&module, -6, -2), "attention");
  ck_invalid(ek_attention_create(&module, 6, 4), "multiple of 4 heads");
  ck_fails(ek_attention_create(&module, INT64_MAX / 2, 1), EK_ERR_OVERFLOW, "attention");
  ek_attention_options options = EK_ATTENTION_OPTIONS_INIT;
  ek_rotary rotary = EK_ROTARY_INIT;
#define BAD(member, value, width, heads, text)                                                     \
  ck_bad(options, member, value, ek_attention_create_with(&module, width, heads, &options), text)
  BAD(deviation, -1, 6, 2, "deviation");
  BAD(projection_deviation, (double)NAN, 6, 2, "deviation");
  BAD(rotary, &rotary, 6, 2, "rotary: head_width is 3, expected an even number");
  rotary.theta = 0;
  BAD(rotary, &rotary, 8, 2, "theta");
  BAD(kv_heads, 3, 8, 4,
      "attention: kv_heads is 3, expected a divisor of 4 heads, or 0 for as many");
  BAD(kv_heads, -1, 8, 4, "kv_heads is -1");
  BAD(dropout, 1, 8, 4, "attention: dropout is 1, expected 0 <= p < 1");
  BAD(qk_norm, (ek_qk_norm)3, 8, 4, "attention: qk_norm is 3, expected 0 to 2");
  BAD(head_width, -2, 8, 4, "attention: head_width is -2");
  ck_bad_with(EK_ERR_OVERFLOW, options, head_width, INT64_MAX / 4,
              ek_attention_create_with(&module, 8, 4, &options), "attention");
  options.qk_norm = EK_QK_NORM_RMS;
  BAD(qk_epsilon, 0, 8, 4, "epsilon");
  ck_assert_ptr_null(module);
  ck_host_failures(create_two);
  ck_host_failures(create_rms);

  ck_ok(create_two(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "attention, forward: input has 5 columns, expected 6",
                   EK_F32, CK_SHAPE(2, 3, 5));
  ck_forward_fails(module, EK_ERR_SHAPE, "attention, forward: input has rank 2, expected 3", EK_F32,
                   CK_SHAPE(2, 6));
  ck_forward_fails(module, EK_ERR_TYPE, "attention, forward: input number 0 is f64", EK_F64,
                   CK_SHAPE(2, 3, 6));
  ek_module_free(module);
  ck_overflows(module, ek_attention_create(&module, INT64_MAX / 4, 1));
}

CK_SUITE("attention")
