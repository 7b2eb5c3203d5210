/*
 * check_gpt.c - a decoder of GPT-2's shape.
 */
#include "ck_gpt.h"
#include "ck_module.h"

static ek_gpt_options small(int layers, double dropout, bool untied) {
  CK_WITH(ek_gpt_options, options, ck_gpt_sizes(11, 6, 8, layers, 2), .dropout = dropout,
          .untied = untied);
  return options;
}

#define SMALL(name, layers, dropout, untied)                                                       \
  static ek_status create_##name(ek_module **module) {                                             \
    const ek_gpt_options options = small(layers, dropout, untied);                                 \
    return ek_gpt_create(module, &options);                                                        \
  }
SMALL(tied, 2, 0.0, false)
SMALL(untied, 2, 0.0, true)
SMALL(dropout, 2, 0.2, false)
SMALL(flat, 0, 0.0, false)

CK_GPT(create_padded, small(2, 0.0, false), .logits_columns = 12)
CK_GPT(create_unbiased, small(2, 0.0, false), .bias = false)

/* depth: fifteen operations a block, forward and backward, times a few for normalisations and
 * softmaxes, whose backwards are differences. */
#define TWO_BLOCKS 200

static const struct ck_module_case cases[] = {
    CK_CASE_PROBED("2 layers, tied", create_tied, 32, TWO_BLOCKS, 80, 24,
                   {EK_I32, 2, {3, 5}, 0, 10}),
    CK_CASE_PROBED("2 layers, untied, the whole sequence", create_untied, 32, TWO_BLOCKS, 70, 24,
                   {EK_I32, 2, {2, 6}, 0, 10}),
    CK_CASE_PROBED("2 layers, dropout", create_dropout, 32, TWO_BLOCKS, 80, 24,
                   {EK_I32, 2, {3, 5}, 0, 10}),
    CK_CASE("no layers", create_flat, 11, 20, 4, {EK_I32, 2, {3, 1}, 0, 10}),
    CK_CASE_PROBED("2 layers without biases", create_unbiased, 32, TWO_BLOCKS, 80, 24,
                   {EK_I32, 2, {3, 5}, 0, 10}),
};
CK_MODULE_CASES(cases)

CK_LOOP(names, 2) {
  static const char *const block[] = {
      "ln_1.weight", "ln_1.bias", "attention.qkv.weight", "attention.qkv.bias",
      "attention.projection.weight", "attention.projection.bias", "ln_2.weight", "ln_2.bias",
      "expand.weight", "expand.bias", "contract.weight", "contract.bias"};
  struct ck_bed *bed = ck_bed_open(&cases[2 * _i], EK_F32, test_devices("cpu:1"));
  ck_assert_uint_eq(ek_replica_parameter_count(bed->replica), 2 + 24 + 2);
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, "tokens.weight"));
  const int64_t table = info.offset;
  ck_ok(ek_replica_find(&info, bed->replica, "tokens.positions"));
  for (size_t i = 0; i < 24; i++) {
    const char *name = ck_text("blocks.%zu.%s", i / 12, block[i % 12]);
    ck_ok(ek_replica_find(&info, bed->replica, name));
  }
  ck_ok(ek_replica_find(&info, bed->replica, "norm.weight"));
  ck_ok(ek_replica_find(&info, bed->replica, "norm.bias"));
  ck_ok(ek_replica_find(&info, bed->replica, "head.weight"));
  ck_assert_int_eq(info.offset, table);
  ck_assert_str_eq(info.name, "tokens.weight");
}

/* Against the same formulas in plain loops. Sums run in another order: the bound is one for 32
 * terms and a chain of some thirty operations, that of the single-precision test in units of 2^-53.
 */
CK_LOOP(formula, 3) {
  const struct ck_decoder is = {11, 8, 32, _i < 2 ? 2 : 0, 2, 2, 0};
  struct ck_bed *bed = ck_bed_open(&cases[_i == 2 ? 3 : _i], EK_F64, test_devices("cpu:1"));
  struct ck_results *r = ck_bed_backward(bed, false);
  const double *want = ck_decoder_logits(&is, bed->replica, bed->value[0], bed->input[0].shape[0],
                                         bed->input[0].shape[1]);
  ck_assert_double_le(ck_rel_l2(r->output[0], want, r->output_count[0]),
                      30 * (32 * sqrt(32.0) + 8) * 0x1p-53);
}

/* With biases of zeros the outputs have the same bits. */
CK_TEST(without_biases) {
  struct ck_bed *unbiased = ck_bed_open(&cases[4], EK_F32, test_devices("cpu:1"));
  struct ck_bed *plain = ck_bed_open(&cases[0], EK_F32, test_devices("cpu:1"));
  const double *values = ck_bed_parameters(unbiased);
  ck_assert_uint_eq(ek_replica_parameter_count(unbiased->replica), 2 + 12 + 1);
  for (size_t i = 0; i < ek_replica_parameter_count(plain->replica); i++) {
    ek_parameter_info there, here;
    ck_ok(ek_replica_parameter(&there, plain->replica, i));
    const double zeros[64] = {0}, *from = zeros;
    if (ck_contains(there.name, ".bias")) {
      ck_assert_int_le(ek_tensor_count(&there.value), 64);
      ck_fails(ek_replica_find(&here, unbiased->replica, there.name), EK_ERR_NOT_FOUND, "bias");
    } else {
      ck_ok(ek_replica_find(&here, unbiased->replica, there.name));
      from = values + here.offset;
    }
    ck_set(&there.value, from);
  }
  const struct ck_results *got = ck_bed_backward(unbiased, false);
  const struct ck_results *want = ck_bed_backward(plain, false);
  ck_same_bits("logits", got->output[0], want->output[0], want->output_count[0]);
}

/* GPT-2 has 124,439,808 parameters (Radford et al. 2019 print 117M; the released model has these).
 */
CK_TEST(defaults) {
  CK_OPENED(ek_module *, module, ek_gpt_create(&module, NULL));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("plan:1"), module, NULL));
  int64_t count = 0;
  CK_EACH_PARAMETER(info, replica) {
    count += ek_tensor_count(&info.value);
  }
  ck_assert_int_eq(count, 124439808);
}

CK_TEST(initial_values) {
  static const struct {
    const char *name;
    double deviation;
  } want[] = {
      {"tokens.weight", 0.02},
      {"tokens.positions", 0.02},
      {"blocks.1.attention.qkv.weight", 0.02},
      {"blocks.1.attention.projection.weight", 0.01},
      {"blocks.0.expand.weight", 0.02},
      {"blocks.0.contract.weight", 0.01},
      {"blocks.0.contract.bias", 0.0},
      {"head.weight", 0.02},
  };
  CK_WITH(ek_gpt_options, options, small(2, 0.0, true), .width = 32, .vocabulary = 50,
          .sequence = 40);
  CK_OPENED(ek_module *, module, ek_gpt_create(&module, &options));
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, NULL));
  for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
    ck_deviates(replica, want[k].name, want[k].deviation);
  }
}

/* The losses of three steps, and the first logits, with rows of `columns` columns. */
enum { STEPS = 3, SAMPLES = 5, LONG = 6, KINDS = 11 };

static void train_with_rows(double *losses, float *logits, int64_t columns) {
  static int32_t tokens[SAMPLES * LONG];
  float all[SAMPLES * LONG * 16];
  const int64_t wide = columns == 0 ? KINDS : columns, rows[] = {SAMPLES, LONG, wide};
  for (int i = 0; i < SAMPLES * LONG; i++) tokens[i] = i * i % KINDS;
  CK_WITH(ek_gpt_options, gpt, small(1, 0.0, false), .logits_columns = columns);
  CK_WITH(ek_cross_entropy_options, entropy, EK_CROSS_ENTROPY_OPTIONS_INIT, .classes = KINDS);
  CK_WITH(ek_sgd_options, sgd, EK_SGD_OPTIONS_INIT, .learning_rate = 0.5);
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, tokens, EK_I32, CK_SHAPE(SAMPLES, LONG)));
  CK_SCOPED(ek_module *, module, ek_gpt_create(&module, &gpt));
  CK_SCOPED(ek_criterion *, loss, ek_cross_entropy_create(&loss, &entropy));
  CK_SCOPED(ek_optimizer *, optimizer, ek_sgd_create(&optimizer, &sgd));
  CK_SCOPED(ek_trainer *, trainer,
            ek_trainer_open(&trainer, test_devices("cpu:2"), module, loss, optimizer, NULL));
  for (int i = 0; i < STEPS; i++) {
    CK_GOT(ek_step_result, result, ek_trainer_step(&result, trainer, &batch, 1, &batch, 1));
    losses[i] = result.loss;
  }
  CK_SCOPED(ek_shards, out, ek_trainer_predict(&out, trainer, &batch, 1));
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, all, EK_F32, 3, rows));
  ck_ok(ek_gather_host(&host, &out));
  for (int64_t i = 0; i < SAMPLES * LONG; i++) {
    memcpy(logits + i * KINDS, all + i * wide, KINDS * sizeof *all);
  }
}

/* The products are the same numbers in the same order; a GPU may have others for other rows. */
CK_LOOP(longer_rows_of_logits, 2) {
  double dense[STEPS], padded[STEPS];
  float a[SAMPLES * LONG * KINDS], b[SAMPLES * LONG * KINDS];
  train_with_rows(dense, a, 0);
  train_with_rows(padded, b, _i == 0 ? ek_tensor_aligned_columns(KINDS, EK_F32) : 16);
  if (strncmp(test_devices("cpu:2"), "cpu", 3) == 0) {
    ck_assert_mem_eq(dense, padded, sizeof dense);
    ck_assert_mem_eq(a, b, sizeof a);
  }
  for (int i = 0; i < STEPS; i++) ck_assert_double_eq_tol(dense[i], padded[i], 1e-5);
}

CK_TEST(bad_options) {
  ek_gpt_options o = small(2, 0.0, false);
  ek_module *module = NULL;
  ck_invalid(ek_gpt_create(NULL, &o), "gpt");
#define BAD(member, value, text) ck_bad(o, member, value, ek_gpt_create(&module, &o), text)
  BAD(size, 0, "size");
  BAD(size, sizeof o + 8, "size");
  BAD(vocabulary, 0, "vocabulary 0");
  BAD(sequence, -1, "sequence -1");
  BAD(width, 0, "width 0");
  BAD(heads, 0, "0 heads");
  BAD(heads, 3, "multiple of 3 heads");
  BAD(layers, -1, "-1 layers");
  BAD(dropout, 1.0, "dropout");
  BAD(dropout, (double)NAN, "dropout");
  BAD(logits_columns, 10, "rows of 10 columns do not hold 11");
  ck_bad_with(EK_ERR_OVERFLOW, o, width, INT64_MAX - 1, ek_gpt_create(&module, &o), "gpt");
  o.logits_columns = 12;
  BAD(fused_loss, true, "the loss is fused");
  ck_assert_ptr_null(module);
  ck_host_failures(create_tied);
  ck_host_failures(create_dropout);
  ck_host_failures(create_padded);
}

CK_TEST(bad_input) {
  CK_GOT(ek_module *, module, create_tied(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "input has 7 tokens a sample, expected at most 6", EK_I32,
                   CK_SHAPE(2, 7));
  ck_forward_fails(module, EK_ERR_SHAPE, "gpt, forward: input has rank 1, expected 2", EK_I32,
                   CK_SHAPE(4));
  ck_forward_fails(module, EK_ERR_TYPE, "input is f32, expected i32", EK_F32, CK_SHAPE(2, 5));
  ek_module_free(module);

  CK_WITH(ek_gpt_options, options, small(1, 0.0, false), .vocabulary = INT64_MAX / 2);
  ck_overflows(module, ek_gpt_create(&module, &options));
}

CK_SUITE("gpt")
