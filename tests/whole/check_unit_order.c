/*
 * check_unit_order.c - in mode fully-sharded all devices gather and reduce in one order, whatever
 * they have to compute: devices without rows, losses within the model, tied and frozen parameters,
 * recomputation. Where a program's own module breaks that, all devices are told, and none waits for
 * ever. Why it holds: docs/notes/collectives.md. Random models:
 * tests/fuzz/fuzz_sharded.c.
 *
 * Results are those of mode replicated, bit for bit: both add each gradient over the devices in the
 * devices' order.
 */
#include <stdatomic.h>

#include "ck_frozen.h"
#include "ck_gpt.h"
#include "ck_parent.h"
#include "ck_state.h"
#include "ck_training.h"

enum { WIDTH = 4, CLASSES = 5, SEQUENCE = 2, MOST_ROWS = 4, STEPS = 3 };

/* ---- models that compute their loss ---- */

struct choice {
  const char *spec;
  ek_recompute_kind policy;
  int layers; /* after the table: norm, attention, linear */
  bool bias, tied, frozen;
  int64_t rows[STEPS];
};

static ek_module *body_of(const struct choice *c) {
  static const char *const table[] = {"weight"};
  ek_module *parts[4] = {NULL}, *body = NULL;
  const size_t count = 1 + (size_t)c->layers;
  CK_WITH(ek_sequential_options, options, EK_SEQUENTIAL_OPTIONS_INIT, .recompute.kind = c->policy);
  ck_ok(ek_embedding_create(&parts[0], CLASSES, WIDTH, 0));
  if (c->frozen) parts[0] = ck_frozen_create(parts[0], table, 1, 1);
  if (c->layers > 0) ck_ok(ek_layer_norm_create(&parts[1], WIDTH, 1e-5));
  if (c->layers > 1) ck_ok(ek_attention_create(&parts[2], WIDTH, 2));
  if (c->layers > 2) ck_ok(ek_linear_create(&parts[3], WIDTH, WIDTH, true));
  ck_ok(ck_sequential(&body, parts, count, &options));
  return body;
}

static ek_module *model_of(const struct choice *c) {
  ek_linear_cross_entropy_options head = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ek_with_criterion_options whole = EK_WITH_CRITERION_OPTIONS_INIT;
  ek_module *body = body_of(c), *module = NULL;
  ek_criterion *criterion = NULL;
  head.bias = c->bias;
  if (c->tied) ck_assign(whole, .tied = "weight", .source = c->frozen ? "0.own0" : "0.weight");
  ck_ok(ek_linear_cross_entropy_create(&criterion, WIDTH, CLASSES, &head));
  ck_ok(ek_with_criterion_create_with(&module, body, criterion, &whole));
  ek_criterion_free(criterion);
  ek_module_free(body);
  return module;
}

/* ---- a training ---- */

static void open_training(struct ck_training *t, const char *spec, ek_module *module,
                          ek_mode mode) {
  CK_WITH(struct ck_setup, setup, ck_setup_own(module, NULL, spec, mode), .options.type = EK_F64,
          .options.bucket_bytes = 1, .gradient_in_forward = true, .optimizer = ck_plain_sgd);
  ck_training_open(t, &setup);
}

struct numbers {
  int32_t all[2][MOST_ROWS * SEQUENCE];
};

/* Tokens and targets in memory of the caller. */
static struct ck_batch batch_of(struct numbers *numbers, int64_t rows, int first) {
  struct ck_batch batch = {.samples = rows, .inputs = 1, .targets = 1};
  for (int i = 0; i < MOST_ROWS * SEQUENCE; i++) {
    numbers->all[0][i] = (first + 3 * i) % CLASSES;
    numbers->all[1][i] = (2 * first + i) % CLASSES;
  }
  ck_ok(ek_tensor_host(&batch.input[0], numbers->all[0], EK_I32, CK_SHAPE(rows, SEQUENCE)));
  ck_ok(ek_tensor_host(&batch.target[0], numbers->all[1], EK_I32, CK_SHAPE(rows, SEQUENCE)));
  return batch;
}

static ek_status step(struct ck_training *t, int64_t rows, int first) {
  struct numbers numbers;
  const struct ck_batch batch = batch_of(&numbers, rows, first);
  return ck_training_step(t, &batch, NULL);
}

/* ---- legal models ---- */

static const struct choice choices[] = {
    {"cpu:2", EK_RECOMPUTE_NONE, 0, true, true, false, {1, 2, 1}},
    {"cpu:2", EK_RECOMPUTE_ALL, 0, true, true, true, {1, 2, 1}},
    {"cpu:2", EK_RECOMPUTE_NONE, 1, true, true, true, {1, 2, 1}},
    {"cpu:3", EK_RECOMPUTE_ALL, 3, true, true, false, {1, 3, 2}},
    {"cpu:3", EK_RECOMPUTE_SQRT, 3, true, false, false, {2, 4, 1}},
    {"cpu:3", EK_RECOMPUTE_CHEAP, 3, false, true, false, {2, 1, 4}},
    {"cpu:4", EK_RECOMPUTE_CHEAP, 2, true, false, true, {1, 4, 3}},
    {"cpu:4", EK_RECOMPUTE_ALL, 1, false, true, true, {3, 1, 2}}};
enum { CHOICES = sizeof choices / sizeof choices[0] };

CK_LOOP(devices_without_rows_keep_the_order, CHOICES) {
  const struct choice *c = &choices[_i];
  struct ck_state state[2];
  ck_deterministic_on_gpu();
  for (int i = 0; i < 2; i++) {
    struct ck_training t;
    open_training(&t, c->spec, model_of(c), i == 0 ? EK_MODE_REPLICATED : EK_MODE_FULLY_SHARDED);
    for (int s = 0; s < STEPS; s++) ck_ok(step(&t, c->rows[s], s));
    state[i] = ck_state_take(t.model);
  }
  ck_state_same(c->spec, &state[0], &state[1]);
}

/* As a trainer opens it. */
CK_TEST(a_gpt_of_its_own_loss_trains_on_few_rows) {
  double losses[2][STEPS];
  for (int i = 0; i < 2; i++) {
    CK_WITH(ek_gpt_options, gpt, ck_gpt_sizes(CLASSES, SEQUENCE, WIDTH, 2, 2), .fused_loss = true);
    CK_WITH(struct ck_setup, setup, ck_setup_gpt(&gpt, NULL, "cpu:4", EK_MODE_REPLICATED),
            .options.type = EK_F64,
            .options.state = i == 0 ? EK_STATE_REPLICATED : EK_STATE_FULLY_SHARDED,
            .optimizer = ck_plain_sgd);
    ek_trainer *trainer = ck_trainer_open(&setup);
    for (int s = 0; s < STEPS; s++) {
      struct numbers numbers;
      const struct ck_batch batch = batch_of(&numbers, 1 + s, s);
      ek_step_result result;
      ck_ok(ek_trainer_step(&result, trainer, batch.input, 1, batch.target, 1));
      losses[i][s] = result.loss;
    }
  }
  ck_same_bits("losses", losses[1], losses[0], STEPS);
}

/* ---- a module that devices run differently ---- */

/*
 * Without rows it runs its children more often: at the end of a forward, when the other devices
 * gather nothing any more; or first, where they are two units, or one.
 */
enum way { MORE_AT_THE_END, MORE_AT_FIRST, ONE_UNIT, WAYS, LEAVES_OUT = WAYS };

struct uneven {
  struct ck_parent parent;
  enum way way;
};

CK_PARAMETERS(uneven) {
  if (((const struct uneven *)self)->way == ONE_UNIT) EK_TRY(ek_declare_unit(declaration));
  EK_TRY(ek_declare_module(declaration, "a", ck_child(self, 0)));
  return ek_declare_module(declaration, "b", ck_child(self, 1));
}

static ek_status run_once(ek_pass *pass, size_t child, const ek_tensor *inputs) {
  ek_tensor unread = {0};
  EK_TRY(ek_pass_child_forward(&unread, pass, child, inputs));
  ek_tensor_free(&unread);
  return EK_OK;
}

CK_FORWARD(uneven) {
  const struct uneven *m = (const struct uneven *)self;
  const bool rows = inputs[0].shape[0] > 0;
  if (m->way != MORE_AT_THE_END && m->way != LEAVES_OUT && !rows) EK_TRY(run_once(pass, 0, inputs));
  if (m->way != LEAVES_OUT) EK_TRY(run_once(pass, 1, inputs));
  EK_TRY(run_once(pass, 0, inputs));
  if (m->way == MORE_AT_THE_END && !rows) {
    EK_TRY(run_once(pass, 1, inputs));
    EK_TRY(run_once(pass, 0, inputs));
  }
  return ek_tensor_share(&outputs[0], &inputs[0]);
}

CK_BACKWARD(uneven) { return ek_error_set(EK_ERR_INTERNAL, "this module has no backward"); }

CK_PARENT_OPS(uneven, .parameters = uneven_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64);

static ek_module *uneven_of(enum way way) {
  struct uneven *m = ck_module_new(sizeof *m, &uneven_ops, 1, 1);
  m->way = way;
  for (int i = 0; i < 2; i++) ck_ok(ek_linear_create(&m->parent.children[i], 3, 3, true));
  return &m->parent.base;
}

/* Where its children are two units the collectives differ. Where they are one they do not: that the
 * device has gone another way is found in a build with assertions. */
CK_LOOP(devices_that_go_other_ways_are_told, WAYS) {
  ek_module *parts[3] = {uneven_of((enum way)_i), NULL, NULL}, *module = NULL;
  for (int i = 1; i < 3; i++) ck_ok(ek_linear_create(&parts[i], 3, 3, true));
  ck_kept(ek_sequential_create(&module, parts, _i == MORE_AT_THE_END ? 1 : 3), module);
  for (int i = 0; i < 3; i++) ek_module_free(parts[i]);
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  double numbers[6] = {0};
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  ck_assign(options, .type = EK_F64, .bucket_bytes = 1);
  ck_ok(ek_data_parallel_model_options_set_mode(&options, EK_MODE_FULLY_SHARDED));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, &options));
  for (int64_t rows = 2; rows-- > 0;) {
    for (int again = 0; again < 2; again++) {
      ek_shards output = {0};
      CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F64, CK_SHAPE(rows + 1, 3)));
      const ek_status status = ek_data_parallel_model_forward(&output, model, &input, 1, &forward);
#ifdef NDEBUG
      const bool seen = rows == 0 && _i != ONE_UNIT;
#else
      const bool seen = rows == 0;
#endif
      ck_assert_msg(status == (seen ? EK_ERR_SHAPE : EK_OK), "%d rows: %s", (int)rows + 1,
                    ek_status_name(status));
      if (seen) ck_assert_ptr_nonnull(strstr(ek_error_message(), "different collectives"));
      ek_shards_free(&output);
    }
  }
}

/*
 * The second child is gathered ahead and never runs. Its memory goes back when the gather has
 * ended: what is put there afterwards stays as it is. The next forward would do what is left of the
 * gather.
 */
CK_TEST(what_is_gathered_ahead_has_arrived) {
  enum { BLOCKS = 24, NUMBERS = EK_MEMORY_UNIT / 4 };
  ek_module *module = ck_keep(uneven_of(LEAVES_OUT));
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  float numbers[6] = {0};
  double pattern[NUMBERS], found[NUMBERS];
  ek_tensor input, blocks[2][BLOCKS];
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  options.bucket_bytes = 1;
  ck_ok(ek_tensor_host(&input, numbers, EK_F32, CK_SHAPE(2, 3)));
  ck_ok(ek_data_parallel_model_options_set_mode(&options, EK_MODE_FULLY_SHARDED));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, &options));
  for (int again = 0; again < 2; again++) {
    CK_GOT(ek_shards, output, ek_data_parallel_model_forward(&output, model, &input, 1, &forward));
    ek_shards_free(&output);
    for (int d = 0; d < 2; d++) {
      for (int i = 0; i < NUMBERS; i++) pattern[i] = d + 1;
      for (int b = 0; b < BLOCKS; b++) {
        ek_tensor *block = &blocks[d][b];
        if (again == 0) {
          ck_ok(ek_tensor_create(block, ek_group_device(group, (size_t)d), EK_MEMORY_INPUTS, EK_F32,
                                 CK_SHAPE(NUMBERS)));
          ck_set(block, pattern);
          continue;
        }
        ck_get(found, block);
        ck_same_bits("what was put there", found, pattern, NUMBERS);
        ek_tensor_free(block);
      }
    }
  }
}

/* Children a, b, c, d, of which b never runs, and c has the parameters of a. */
CK_PARAMETERS(skipping) {
  static const char *const names[] = {"a", "b", "c", "d"};
  for (size_t i = 0; i < 4; i++) {
    EK_TRY(ek_declare_module(declaration, names[i], ck_child(self, i)));
  }
  EK_TRY(ek_declare_tie(declaration, "c.weight", "a.weight"));
  return ek_declare_tie(declaration, "c.bias", "a.bias");
}

CK_FORWARD(skipping) {
  CK_FREED(tensor) first = {0}, second = {0};
  EK_TRY(ek_pass_child_forward(&first, pass, 0, inputs));
  EK_TRY(ek_pass_child_forward(&second, pass, 2, &first));
  return ek_pass_child_forward(outputs, pass, 3, &second);
}

static const ek_module_ops skipping_ops = {
    CK_OPS("skipping", skipping_forward, uneven_backward, ck_parent_free),
    .parameters = skipping_parameters};

/* While a runs b is gathered. c finds its unit there and waits for nothing, and d takes the place
 * of b in memory: not before the gather of b has ended. */
CK_TEST(what_was_not_needed_has_arrived) {
  enum { OUT = 200, ROWS = 2 };
  struct ck_parent *m = ck_module_new(sizeof *m, &skipping_ops, 1, 1);
  ck_keep(&m->base);
  for (int i = 0; i < 4; i++) {
    ck_ok(ek_linear_create(&m->children[i], 3, i == 1 ? OUT / 2 : i == 3 ? OUT : 3, true));
  }
  ek_group *group = ck_open("cpu:2", 1);
  float numbers[ROWS * 3] = {1, -2, 3, -4, 5, -6}, results[2][ROWS * OUT];
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  for (int i = 0; i < 2; i++) {
    ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
    options.bucket_bytes = 1;
    CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F32, CK_SHAPE(ROWS, 3)));
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, results[i], EK_F32, CK_SHAPE(ROWS, OUT)));
    ck_ok(ek_data_parallel_model_options_set_mode(&options, i == 0 ? EK_MODE_REPLICATED
                                                                   : EK_MODE_FULLY_SHARDED));
    CK_SCOPED(ek_data_parallel_model *, model,
              ek_data_parallel_model_open(&model, group, &m->base, &options));
    CK_SCOPED(ek_shards, output,
              ek_data_parallel_model_forward(&output, model, &input, 1, &forward));
    ck_ok(ek_gather_host(&host, &output));
  }
  ck_assert_mem_eq(results[0], results[1], sizeof results[0]);
}

/* ---- tensors without elements ---- */

static atomic_int wrong, seen_empty;

/* What a running module makes has holders, and is unlike any other tensor. */
CK_FORWARD(look) {
  const ek_tensor *like = &inputs[0];
  ek_tensor other = {0}, shared = {0};
  EK_TRY(ek_pass_output(&outputs[0], pass, like->type, like->rank, like->shape));
  EK_TRY(ek_pass_output(&other, pass, like->type, like->rank, like->shape));
  if (ek_tensor_holders(&other) != 1 || other.memory == outputs[0].memory) wrong++;
  EK_TRY(ek_tensor_share(&shared, &other));
  if (ek_tensor_holders(&other) != 2 || shared.memory != other.memory) wrong++;
  ek_tensor_free(&shared);
  if (ek_tensor_holders(&other) != 1) wrong++;
  if (ek_tensor_count(&other) == 0) seen_empty++;
  ek_tensor_free(&other);
  return ek_op_copy(ek_pass_stream(pass), &outputs[0], like);
}

static const ek_module_ops look_ops = {
    CK_OPS("look", look_forward, uneven_backward, ck_plain_free)};

CK_TEST(tensors_without_elements_have_holders) {
  ek_module *module = ck_module_new(sizeof *module, &look_ops, 1, 1);
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_model *model = NULL;
  float numbers[2] = {1, 2};
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F32, CK_SHAPE(1, 2)));
  ck_ok(ek_data_parallel_model_options_set_mode(&options, EK_MODE_FULLY_SHARDED));
  ck_ok(ek_data_parallel_model_open(&model, group, module, &options));
  CK_GOT(ek_shards, output, ek_data_parallel_model_forward(&output, model, &input, 1, &forward));
  ck_assert_int_eq(atomic_load(&wrong), 0);
  ck_assert_int_eq(atomic_load(&seen_empty), 1);
  ck_assert_int_eq(ek_tensor_count(&output.parts[1]), 0);
  CK_OPENED(ek_tensor, kept, ek_tensor_share(&kept, &output.parts[1]));
  ek_shards_free(&output);
  ek_data_parallel_model_free(model);
  ek_module_free(module);
  ck_no_memory_held(group);
  ck_fails(ek_group_close(group), EK_ERR_STATE, "without elements");
}

CK_SUITE("unit_order")
