/*
 * check_cuda_models.c - which products and kernels a step of a model takes: those that cuBLASLt can
 * do with a GELU or a bias, rows of logits and of tables that it takes well, and no more than
 * those.
 *
 * Calls of cuBLASLt and launches of kernels are counted. Runs on tests/cuemu: see CMakeLists.txt
 * here.
 */
#include "ck_chained.h"
#include "ck_emulated.h"
#include "ck_gpt.h"
#include "ck_module.h"
#include "ck_training.h"

#define SPEC "cuda:0@64MiB"

static const ek_type fused_types[] = {EK_F32, EK_BF16, EK_F16};
enum { FUSED_TYPES = sizeof fused_types / sizeof fused_types[0] };

/* ---- a model ---- */

static ek_status create(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){6, 16, 24, 5}, 4, EK_ACTIVATION_GELU);
}

static ek_status create_cheap(ek_module **module) {
  static const int64_t sizes[] = {6, 16, 24, 5};
  ek_module *layers[5];
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT,
          .recompute.kind = EK_RECOMPUTE_CHEAP);
  for (int i = 0; i < 5; i++) {
    EK_TRY(i % 2 == 1 ? ek_activation_create(&layers[i], EK_ACTIVATION_GELU)
                      : ek_linear_create(&layers[i], sizes[i / 2], sizes[i / 2 + 1], true));
  }
  return ck_sequential(module, layers, 5, &options);
}

/* The second backward is counted: shapes are timed in the first. */
static struct ck_results *run(ek_status (*create_one)(ek_module **), unsigned epilogues,
                              struct ck_counts *step, uint64_t *peak) {
  const struct ck_module_case is = {
      .name = "6 16 24 5", .create = create_one, .input = {{0, 2, {70, 6}, -1, 1, 0}}};
  cuemu_set_epilogues(epilogues);
  struct ck_bed *bed = ck_bed_open(&is, EK_F32, SPEC);
  (void)ck_bed_backward(bed, true);
  const struct ck_counts before = ck_counts_now();
  struct ck_results *results = ck_bed_backward(bed, true);
  *step = ck_counts_since(before);
  *peak = ck_usage(bed->device).peak_bytes;
  ck_bed_close(bed);
  cuemu_set_epilogues(~0u);
  return results;
}

/* Three linears: three products forward and six backward. There are two kernels of GELU forward and
 * two backward, since this is f32, and three sums of columns of two launches: the third of them is
 * fused, because no GELU is in its way. 1e-6 is 16 u: the order of sums differs. */
CK_TEST(model) {
  struct ck_counts fused, plain;
  uint64_t fused_peak, plain_peak;
  struct ck_results *a = run(create, ~0u, &fused, &fused_peak);
  struct ck_results *b = run(create, 4, &plain, &plain_peak);
  ck_counts_are(fused, 9, 8);
  ck_counts_are(plain, 9, 10);
  ck_assert_uint_eq(fused_peak, plain_peak);
  ck_assert(ck_results_near(a, b, 1e-6));
}

/* What is made again is always a kernel's: two GELUs more. */
CK_TEST(cheap_recomputation_has_kernels) {
  struct ck_counts step;
  uint64_t peak;
  (void)run(create_cheap, ~0u, &step, &peak);
  ck_counts_are(step, 9, 10);
}

/* ---- rows of logits ---- */

enum { VOCABULARY = 37, WIDTH = 8, SAMPLES = 3, TOKENS = 5 };

static ek_tensor batch_of(int32_t tokens[SAMPLES * TOKENS]) {
  for (int i = 0; i < SAMPLES * TOKENS; i++) tokens[i] = i % VOCABULARY;
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, tokens, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  return batch;
}

static ek_trainer *open_gpt(const ek_gpt_options *o, ek_type type) {
  CK_WITH(ek_cross_entropy_options, loss, EK_CROSS_ENTROPY_OPTIONS_INIT, .classes = VOCABULARY);
  CK_WITH(struct ck_setup, setup, ck_setup_gpt(o, &loss, SPEC, EK_MODE_REPLICATED),
          .options.precision = (ek_precision)type, .optimizer = ck_plain_sgd);
  return ck_trainer_open(&setup);
}

/* How many products of a step, forward, backward and update, have rows beside 16 bytes. */
static unsigned long unaligned_in_a_step(const ek_gpt_options *o, ek_type type) {
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  ek_trainer *trainer = open_gpt(o, type);
  const unsigned long before = cuemu_counted(CUEMU_UNALIGNED_PRODUCTS);
  ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
  return cuemu_counted(CUEMU_UNALIGNED_PRODUCTS) - before;
}

/* The head's product and its two ways back have an odd vocabulary: with whole logits all three. */
CK_TEST(rows_of_logits_are_aligned) {
  ek_gpt_options o = ck_gpt_sizes(VOCABULARY, TOKENS, WIDTH, 0, 1);
  for (int type = 0; type < FUSED_TYPES; type++) {
    ck_assign(o, .fused_loss = false, .logits_columns = 0);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 3);
    o.logits_columns = ek_tensor_aligned_columns(VOCABULARY, fused_types[type]);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 0);
    ck_assign(o, .logits_columns = 0, .fused_loss = true);
    ck_assert_uint_eq(unaligned_in_a_step(&o, fused_types[type]), 0);
  }
}

/* ---- before the first step ---- */

/* A step that was prepared for times nothing: it has the products of every later one. A step that
 * repeats describes nothing to cuBLASLt, and no step asks for shared memory that a kernel has. */
CK_LOOP(prepared_steps_time_nothing, 4) {
  enum { STEPS = 3 };
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  unsigned long products[STEPS], described[STEPS], asked = 0;
  const int width = 16 * (_i + 1); /* shapes that the process has not seen */
  ek_gpt_options o = ck_gpt_sizes(VOCABULARY, TOKENS, width, 2, 2);
  ck_assign(o, .dropout = 0.25, .fused_loss = _i / 2 == 1);
  ck_emulate(algorithms, 4);
  ek_trainer *trainer = open_gpt(&o, EK_F32);
  if (_i % 2 == 1) ck_ok(ek_trainer_prepare(trainer, &batch, 1, &batch, 1));
  for (int i = 0; i < STEPS; i++) {
    const unsigned long before = ck_counts_now().products;
    const unsigned long known = cuemu_counted(CUEMU_DESCRIPTIONS);
    const unsigned long attributes = cuemu_counted(CUEMU_ATTRIBUTE_CALLS);
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
    asked += cuemu_counted(CUEMU_ATTRIBUTE_CALLS) - attributes;
    products[i] = ck_counts_now().products - before;
    described[i] = cuemu_counted(CUEMU_DESCRIPTIONS) - known;
  }
  ck_assert_uint_eq(products[1], products[2]);
  ck_assert_uint_eq(asked, 0);
  ck_assert_uint_eq(described[1] + described[2] + (_i % 2 == 1 ? described[0] : 0), 0);
  if (_i % 2 == 0) ck_assert_uint_gt(described[0], 0);
  if (_i % 2 == 1) ck_assert_uint_eq(products[0], products[1]);
  if (_i % 2 == 0) ck_assert_uint_gt(products[0], 2 * products[1]);
}

/* ---- rows after a table ---- */

enum { TABLE = 8200, TABLE_STEPS = 3 };

/* A GPT with a table of 8200 tokens; a loss of whole logits knows nothing of rows after it. */
static ek_trainer *open_table(const char *spec, bool fused_loss, ek_mode mode, ek_type type,
                              ek_type gradient_type) {
  CK_WITH(ek_gpt_options, o, ck_gpt_sizes(TABLE, TOKENS, WIDTH, 1, 1), .fused_loss = fused_loss);
  CK_WITH(struct ck_setup, setup, ck_setup_gpt(&o, NULL, spec, mode),
          .options.precision = (ek_precision)type, .options.gradient_type = gradient_type);
  return ck_trainer_open(&setup);
}

static void train_table(ek_trainer *trainer, int steps) {
  int32_t tokens[SAMPLES * TOKENS], next[SAMPLES * TOKENS];
  for (int i = 0; i < SAMPLES * TOKENS; i++) {
    tokens[i] = i * 547 % TABLE;
    next[i] = (i * 911 + TABLE - 3) % TABLE;
  }
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, tokens, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  CK_GOT(ek_tensor, target, ek_tensor_host(&target, next, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  for (int i = 0; i < steps; i++) ck_ok(ek_trainer_step(NULL, trainer, &input, 1, &target, 1));
}

/* All numbers of the state, end to end, of the type of the host; with `write` they are written. */
static int64_t table_state(double *values, ek_trainer *trainer, bool write) {
  ek_data_parallel_model *model = ek_trainer_model(trainer);
  int64_t total = 0;
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_tensor host;
    CK_GOT(ek_state_info, info, ek_state_entry(&info, model, i));
    const ek_type type = info.like.type == EK_F32 ? EK_F64 : info.like.type;
    ck_ok(ek_tensor_host(&host, values + total, type, info.like.rank, info.like.shape));
    ck_ok(write ? ek_state_write(model, info.name, &host) : ek_state_read(&host, model, info.name));
    total += ek_tensor_count(&info.like);
  }
  return total;
}

enum { TABLE_STATE = 3 * (TABLE * WIDTH + 4096) };

static double *numbers(void) { return ck_array(TABLE_STATE, sizeof(double)); }

/* The head's products have the rows that follow the table, and no odd sizes, except that of a
 * gradient that the pass lends; the parameters and their states are those of a model whose products
 * have not, bit for bit. */
CK_LOOP(a_table_has_more_rows_for_products, FUSED_TYPES + 1) {
  const bool lends = _i == FUSED_TYPES;
  const ek_type type = lends ? EK_BF16 : fused_types[_i];
  double *values[2];
  int64_t count[2];
  for (int fused = 0; fused < 2; fused++) {
    ek_trainer *trainer =
        open_table(SPEC, fused == 1, EK_MODE_REPLICATED, type, lends ? EK_BF16 : EK_F32);
    const unsigned long before = cuemu_counted(CUEMU_UNEVEN_PRODUCTS);
    train_table(trainer, TABLE_STEPS);
    const unsigned long uneven = fused == 0 ? 3 : lends ? 1 : 0;
    ck_assert_uint_eq(cuemu_counted(CUEMU_UNEVEN_PRODUCTS) - before, uneven);
    values[fused] = numbers();
    count[fused] = table_state(values[fused], trainer, false);
    ck_assert_int_le(count[fused], TABLE_STATE);
    ck_ok(ek_trainer_close(trainer));
  }
  ck_assert_int_eq(count[0], count[1]);
  ck_same_bits("the table", values[1], values[0], count[0]);
}

/* A step of NaN leaves NaN after the table, too. A state that is loaded clears that. */
CK_LOOP(a_state_clears_the_rows_after_a_table, 3) {
  static const ek_mode modes[] = {EK_MODE_REPLICATED, EK_MODE_SHARDED_GRADIENTS,
                                  EK_MODE_FULLY_SHARDED};
  double *saved = numbers(), *bad = numbers(), *values[2];
  int64_t count = 0;
  ek_trainer *trainer =
      open_table("cuda:0x2@64MiB", true, modes[_i], _i == 1 ? EK_BF16 : EK_F32, EK_F32);
  train_table(trainer, 1);
  count = table_state(saved, trainer, false);
  for (int again = 0; again < 2; again++) {
    memcpy(bad, saved, (size_t)count * sizeof *bad);
    bad[0] = NAN; /* the first token's, and so all of dx */
    if (again == 1) (void)table_state(bad, trainer, true);
    if (again == 1) train_table(trainer, 2);
    (void)table_state(saved, trainer, true);
    train_table(trainer, 1);
    values[again] = numbers();
    (void)table_state(values[again], trainer, false);
  }
  ck_assert_int_ne(isfinite(values[0][0]), 0);
  ck_same_bits("after NaN", values[1], values[0], count);
  ck_ok(ek_trainer_close(trainer));
}

/* Nor does a gradient keep what a step has left there, when a module begins it that knows only the
 * table's own rows. */
CK_TEST(a_gradient_begins_with_zeros_after_a_table) {
  enum { COUNT = 8256 * WIDTH };
  static double got[COUNT];
  ek_device *device = ek_group_device(ck_open_exactly(SPEC, 1), 0);
  CK_OPENED(ek_module *, table, ek_embedding_create(&table, TABLE, WIDTH, 0));
  CK_OPENED(ek_replica *, replica, ek_replica_open(&replica, device, table, NULL));
  ek_tensor gradients = *ek_replica_gradients(replica);
  ck_assert_int_eq(ek_tensor_count(&gradients), COUNT);
  ck_ok(ek_op_fill(ek_device_stream(device, EK_STREAM_COMPUTE), &gradients, NAN));
  CK_HELD(ek_tensor, tokens, ck_upload(device, EK_I32, (const double[]){7}, CK_SHAPE(1)));
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_GOT(ek_tensor, output, ek_pass_run_forward(&output, pass, &tokens));
  ck_ok(ek_pass_run_backward(NULL, pass, &output));
  ek_tensor_free(&output);
  ck_get(got, &gradients);
  for (int i = 0; i < COUNT; i++) ck_assert_int_ne(isfinite(got[i]), 0);
}

/* GPT-2 124M: 47 rows more, 0.03 % of the parameters; no file has them. */
CK_TEST(rows_after_a_table_are_few) {
  uint64_t bytes[2];
  CK_OPENED(ek_module *, gpt, ek_gpt_create(&gpt, NULL));
  for (int i = 0; i < 2; i++) {
    ek_group *group = ck_open_exactly(i == 0 ? "plan:1" : "plan-cuda:1", 1);
    CK_OPENED(ek_replica *, replica,
              ek_replica_open(&replica, ek_group_device(group, 0), gpt, NULL));
    bytes[i] = (uint64_t)ek_tensor_count(ek_replica_parameters(replica)) * 4;
    CK_GOT(ek_parameter_info, info, ek_replica_find(&info, replica, "tokens.weight"));
    ck_assert_int_eq(info.value.shape[0], 50257);
  }
  ck_assert_uint_eq(bytes[1] - bytes[0], (50304 - 50257) * 768 * 4);
}

/* ---- decoders from the public headers alone ---- */

enum { GPT, LLAMA, FAMILIES };

static ek_module *decoder_of(int family, bool own) {
  const ek_gpt_options gpt = ck_gpt_sizes(VOCABULARY, TOKENS, WIDTH, 2, 2);
  ek_llama_options llama = EK_LLAMA_OPTIONS_INIT;
  ek_module *made = NULL;
  ck_assign(llama, .vocabulary = VOCABULARY, .sequence = TOKENS, .width = WIDTH, .hidden = 24);
  llama.layers = llama.heads = 2;
  if (family == GPT) ck_ok(own ? ck_chained_gpt_create(&made, &gpt) : ek_gpt_create(&made, &gpt));
  if (family == LLAMA) {
    ck_ok(own ? ck_chained_llama_create(&made, &llama) : ek_llama_create(&made, &llama));
  }
  return made;
}

/* They make as many calls of cuBLASLt and launches of kernels in a step as the stock ones. */
CK_LOOP(decoders_of_ones_own, FAMILIES * FUSED_TYPES) {
  struct ck_counts step[2];
  uint64_t peak[2];
  int32_t tokens[SAMPLES * TOKENS];
  const ek_tensor batch = batch_of(tokens);
  const int family = _i % FAMILIES;
  for (int own = 0; own < 2; own++) {
    CK_GOT(ek_criterion *, loss, ek_cross_entropy_create(&loss, NULL));
    CK_WITH(struct ck_setup, setup,
            ck_setup_own(decoder_of(family, own), loss, SPEC, EK_MODE_REPLICATED),
            .options.precision = (ek_precision)fused_types[_i / FAMILIES],
            .optimizer = ck_plain_sgd);
    ek_trainer *trainer = ck_trainer_open(&setup);
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1)); /* times algorithms */
    const struct ck_counts before = ck_counts_now();
    ck_ok(ek_trainer_step(NULL, trainer, &batch, 1, &batch, 1));
    step[own] = ck_counts_since(before);
    peak[own] = ck_usage(ek_group_device(ek_trainer_group(trainer), 0)).peak_bytes;
    ck_ok(ek_trainer_close(trainer));
  }
  /* Per layer four products or five, forward and twice back; once the head's. */
  ck_assert_uint_ge(step[0].products, 2 * (family == GPT ? 4 : 5) * 3 + 3);
  ck_counts_are(step[1], step[0].products, step[0].launches);
  ck_assert_uint_eq(peak[1], peak[0]);
}

CK_EMULATED_SUITE("cuda models")
