/*
 * check_llama.c - a decoder of Llama's shape.
 */
#include "ck_gpt.h"
#include "ck_module.h"

enum { VOCABULARY = 11, WIDTH = 8, HIDDEN = 12, HEADS = 4, LAYERS = 2 };
#define THETA 50.0

static ek_status create_with(ek_module **module, int layers, int kv_heads, bool tied, bool bias,
                             double dropout) {
  CK_WITH(ek_rotary, rotary, EK_ROTARY_INIT, .theta = THETA);
  CK_WITH(ek_llama_options, options, EK_LLAMA_OPTIONS_INIT, .vocabulary = VOCABULARY, .sequence = 6,
          .width = WIDTH, .hidden = HIDDEN, .layers = layers, .heads = HEADS, .kv_heads = kv_heads,
          .rotary = &rotary, .tied = tied, .qkv_bias = bias, .dropout = dropout);
  return ek_llama_create(module, &options);
}
/* As Qwen3: norms of queries and keys, heads wider than width / heads; documents, and dropout of
 * probabilities. */
static ek_status create_qwen(ek_module **module, ek_recompute recompute) {
  CK_WITH(ek_llama_options, options, EK_LLAMA_OPTIONS_INIT, .vocabulary = VOCABULARY, .sequence = 6,
          .width = WIDTH, .hidden = HIDDEN, .layers = 3, .heads = HEADS, .kv_heads = 2,
          .head_width = 4, .qk_norm = EK_QK_NORM_RMS, .attention_dropout = 0.2, .segments = true,
          .recompute = recompute);
  return ek_llama_create(module, &options);
}
#define QWEN(create, ...)                                                                          \
  static ek_status create(ek_module **m) { return create_qwen(m, (ek_recompute){__VA_ARGS__}); }
QWEN(create_documents, EK_RECOMPUTE_NONE, 0, 0)
QWEN(create_every, EK_RECOMPUTE_EVERY, 2, 0)
QWEN(create_all, EK_RECOMPUTE_ALL, 0, 0)
QWEN(create_cheap, EK_RECOMPUTE_CHEAP, 0, 0)

CK_GPT(create_gpt, ck_gpt_sizes(VOCABULARY, 6, WIDTH, LAYERS, 2), .attention_dropout = 0.2,
       .segments = true)

static ek_status create_plain(ek_module **m) { return create_with(m, LAYERS, 0, false, false, 0); }
static ek_status create_tied(ek_module **m) { return create_with(m, LAYERS, 2, true, true, 0); }
static ek_status create_dropout(ek_module **m) {
  return create_with(m, LAYERS, 1, true, false, 0.2);
}
static ek_status create_flat(ek_module **m) { return create_with(m, 0, 0, false, false, 0); }

/* depth: fifteen operations a block, forward and backward, times a few for normalisations and
 * softmaxes, whose backwards are differences. */
#define TWO_BLOCKS 200
/* Tokens, and numbers of documents. */
#define TWO_INPUTS {EK_I32, 2, {3, 6}, 0, VOCABULARY - 1}, {EK_I32, 2, {3, 6}, -1, 1}

static const struct ck_module_case cases[] = {
    CK_CASE_PROBED("2 layers", create_plain, 24, TWO_BLOCKS, 61, 24,
                   {EK_I32, 2, {3, 5}, 0, VOCABULARY - 1}),
    CK_CASE_PROBED("2 layers, tied, biases, 2 heads of keys, the whole sequence",
                   create_tied, 24, TWO_BLOCKS, 55, 24, {EK_I32, 2, {2, 6}, 0, VOCABULARY - 1}),
    CK_CASE_PROBED("2 layers, dropout, 1 head of keys", create_dropout, 24, TWO_BLOCKS, 55, 24,
                   {EK_I32, 2, {3, 5}, 0, VOCABULARY - 1}),
    CK_CASE_PROBED("3 layers, norms of queries and keys, documents, dropout of probabilities",
                   create_documents, 24, 2 * TWO_BLOCKS, 172, 24, TWO_INPUTS),
    CK_CASE_PROBED("the same, recomputed", create_every, 24, 2 * TWO_BLOCKS, 13, 24, TWO_INPUTS),
    CK_CASE_PROBED("GPT-2 with documents, dropout of probabilities", create_gpt, 24, TWO_BLOCKS, 98,
                   24, TWO_INPUTS),
    CK_CASE("no layers", create_flat, 11, 20, 3, {EK_I32, 2, {3, 1}, 0, VOCABULARY - 1}),
};
enum { DOCUMENTS = 3, GPT = 5, FLAT = 6 };
CK_MODULE_CASES(cases)

/* What is made again has the same bits, masks and documents included. */
CK_TEST(recomputed_documents) {
  static ek_status (*const creates[])(ek_module **) = {create_documents, create_every, create_all,
                                                       create_cheap};
  struct ck_results *results[4];
  for (int i = 0; i < 4; i++) {
    CK_WITH(struct ck_module_case, is, cases[DOCUMENTS], .create = creates[i]);
    results[i] = ck_bed_backward(ck_bed_open(&is, EK_F32, test_devices("cpu:1")), false);
    ck_results_same(results[i], results[0]);
  }
}

/* Two documents in a row give the logits that each has in a row of its own: positions begin again,
 * and neither sees the other. */
CK_LOOP(packed_is_apart, 2) {
  static const double tokens[18] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0, 0, 0};
  static const double segments[18] = {0, 0, 0, 0, 1, 1, 0, 0, 0, 0, -1, -1, 0, 0, -1, -1, -1, -1};
  struct ck_bed *bed =
      ck_bed_open(&cases[_i == 0 ? DOCUMENTS : GPT], EK_F64, test_devices("cpu:1"));
  bed->options.training = false;
  ck_set(&bed->input[0], tokens);
  ck_set(&bed->input[1], segments);
  const double *y = ck_bed_backward(bed, false)->output[0];
  const double bound = 30 * (32 * sqrt(32.0) + 8) * 0x1p-53; /* as below */
  ck_assert_double_le(ck_rel_l2(y, y + 6 * VOCABULARY, 4 * VOCABULARY), bound);
  ck_assert_double_le(ck_rel_l2(y + 4 * VOCABULARY, y + 12 * VOCABULARY, 2 * VOCABULARY), bound);
}

/* Sums run in another order: the bound is one for 32 terms and a chain of some thirty operations,
 * that of the single-precision test in units of 2^-53. */
CK_LOOP(formula, 3) {
  static const int which[] = {0, 1, FLAT};
  const struct ck_decoder is = {
      VOCABULARY, WIDTH, HIDDEN, _i == 2 ? 0 : LAYERS, HEADS, _i == 1 ? 2 : HEADS, THETA};
  struct ck_bed *bed = ck_bed_open(&cases[which[_i]], EK_F64, test_devices("cpu:1"));
  struct ck_results *r = ck_bed_backward(bed, false);
  const double *want = ck_decoder_logits(&is, bed->replica, bed->value[0], bed->input[0].shape[0],
                                         bed->input[0].shape[1]);
  ck_assert_double_le(ck_rel_l2(r->output[0], want, r->output_count[0]),
                      30 * (32 * sqrt(32.0) + 8) * 0x1p-53);
}

CK_LOOP(names, 2) {
  static const char *const block[] = {
      "attention_norm.weight", "attention.qkv.weight", "attention.projection.weight",
      "feed_forward_norm.weight", "feed_forward.gate.weight", "feed_forward.up.weight",
      "feed_forward.down.weight", "attention.qkv.bias"};
  struct ck_bed *bed = ck_bed_open(&cases[_i], EK_F32, test_devices("cpu:1"));
  const size_t of_block = _i == 1 ? 8 : 7;
  ek_parameter_info info, table;
  ck_assert_uint_eq(ek_replica_parameter_count(bed->replica),
                    2 + LAYERS * of_block + (_i == 0 ? 1 : 0));
  for (size_t i = 0; i < LAYERS * of_block; i++) {
    const char *name = ck_text("blocks.%zu.%s", i / of_block, block[i % of_block]);
    ck_ok(ek_replica_find(&info, bed->replica, name));
  }
  ck_ok(ek_replica_find(&table, bed->replica, "tokens.weight"));
  ck_ok(ek_replica_find(&info, bed->replica, "head.weight"));
  ck_assert_int_eq(info.offset == table.offset, _i == 1);
}

CK_TEST(bad_input) {
  ek_module *module = NULL;
  ek_llama_options options = EK_LLAMA_OPTIONS_INIT;
  ck_invalid(ek_llama_create(NULL, &options), "llama");
  ck_bad(options, hidden, 0, ek_llama_create(&module, &options),
         "llama: hidden is 0, expected above 0");
  ck_bad(options, heads, 0, ek_llama_create(&module, &options), "llama: vocabulary 32000");
  ck_bad(options, heads, 33, ek_llama_create(&module, &options), "multiple of 33 heads");
  ck_bad(options, heads, 4096, ek_llama_create(&module, &options), "rotary: head_width is 1");
  ck_bad(options, epsilon, 0, ek_llama_create(&module, &options), "rms_norm: epsilon is 0");
  const ek_rotary rotary = {.size = sizeof rotary};
  options = (ek_llama_options)EK_LLAMA_OPTIONS_INIT;
  ck_bad(options, rotary, &rotary, ek_llama_create(&module, &options), "rotary: theta is 0");
  ck_assert_ptr_null(module);
  ck_host_failures(create_tied);

  ck_kept(create_plain(&module), module);
  ck_forward_fails(module, EK_ERR_SHAPE, "input has 7 tokens a sample, expected at most 6", EK_I32,
                   CK_SHAPE(2, 7));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has rank 1, expected 2", EK_I32, CK_SHAPE(6));
}

CK_SUITE("llama")
