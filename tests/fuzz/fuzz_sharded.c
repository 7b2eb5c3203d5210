/*
 * fuzz_sharded.c - random models in mode fully-sharded against the same in mode replicated.
 *
 * What is random is what may upset the order in which devices gather and reduce: tied and frozen
 * parameters, losses within the model, recomputation, gradients in forward, the size of the units,
 * and batches with fewer rows than there are devices.
 *
 *   one micro-batch a step: the same bits as replicated, because both add a gradient over the
 *   devices in the devices' order;
 *   several: the same bits as sharded-gradients, which adds each micro-batch over the devices
 *   before the next one, too, and in f64 what replicated gives, except for the rounding of these
 *   sums; on `plan`: the same status, and the same peak on every device to the byte.
 *
 * A device that waits for ever is found by the time limit of libFuzzer or of replay.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_training.h"
#include "tied_module.h"

enum { MOST_STEPS = 2, MOST_BATCHES = 3, MOST_DEVICES = 4 };
enum { MOST_ROWS = 6, SEQUENCE = 2, VOCABULARY = 5, WIDTH = 4, MOST_LAYERS = 4, MOST_FROZEN = 8 };

struct plan {
  struct fuzz_input model; /* where the bytes of the model begin */
  size_t devices, steps, batch_count;
  int64_t rows[MOST_STEPS * MOST_BATCHES];
  bool evaluates;
  double momentum;
  struct fuzz_setup setup;
};

/* What a run leaves. */
struct outcome {
  ek_status status;
  uint64_t peak[MOST_DEVICES];
  double loss[MOST_STEPS];
  unsigned char *state;
  size_t size;
};

static struct fuzz_setup read_setup(struct fuzz_input *input, size_t batch_count) {
  static const size_t bytes[] = {4u << 20, 1, 64, 256, 1024};
  struct fuzz_setup setup = {.model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
                             .criterion = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT,
                             .optimizer = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT};
  setup.model.seed = 7;
  setup.model.bucket_bytes = bytes[fuzz_choice(input, 5)];
  setup.criterion.gradient_in_forward = !fuzz_one_in(input, 4);
  const int type = fuzz_choice(input, 4);
  setup.model.type = batch_count > 1 || type == 0 ? EK_F64 : EK_F32;
  if (setup.model.type == EK_F32 && type == 3) setup.model.precision = EK_PRECISION_BF16;
  return setup;
}

static struct plan read_plan(struct fuzz_input *input) {
  struct plan plan = {.devices = 2 + (size_t)fuzz_choice(input, MOST_DEVICES - 1)};
  plan.steps = 1 + (size_t)fuzz_choice(input, MOST_STEPS);
  plan.batch_count = 1 + (size_t)fuzz_choice(input, MOST_BATCHES);
  for (size_t i = 0; i < plan.steps * plan.batch_count; i++) {
    plan.rows[i] = (1 + fuzz_choice(input, MOST_ROWS + 1)) % (MOST_ROWS + 1);
  }
  plan.evaluates = fuzz_one_in(input, 3);
  plan.momentum = fuzz_choice(input, 2) / 2.0;
  plan.setup = read_setup(input, plan.batch_count);
  plan.model = *input;
  return plan;
}

struct run {
  const struct plan *plan;
  struct fuzz_training training;
  bool own_loss; /* targets are inputs, and there is no criterion */
};

/* ---- models ----
 *
 * A body begins with a table of tokens. Its loss has a head of its own or shares the table. What is
 * frozen is a parameter of a wrapper, to which the body's is tied: no stock layer freezes anything.
 */

/* Takes over the child. */
static ek_module *freeze(ek_module *child, unsigned mask) {
  const struct tied_parameters all = {NULL, MOST_FROZEN, mask, false};
  ek_module *module = NULL;
  FUZZ_OK(tied_module_create(&module, child, &all, ek_group_device(fuzz_group("plan:1", 1), 0)));
  return module;
}

static ek_recompute read_recompute(struct fuzz_input *input) {
  static const ek_recompute policies[] = {{EK_RECOMPUTE_NONE, 0, 0},  {EK_RECOMPUTE_ALL, 0, 0},
                                          {EK_RECOMPUTE_EVERY, 1, 0}, {EK_RECOMPUTE_EVERY, 2, 0},
                                          {EK_RECOMPUTE_SQRT, 0, 0},  {EK_RECOMPUTE_CHEAP, 0, 0}};
  return policies[fuzz_choice(input, 6)];
}

/* Gives up the inner module. */
static ek_status wrap(ek_module **module, ek_module *inner,
                      ek_status (*create)(ek_module **module, ek_module *inner)) {
  const ek_status status = create(module, inner);
  ek_module_free(inner);
  return status;
}

static ek_status make_layer(ek_module **module, struct fuzz_input *input) {
  static const int64_t sizes[] = {WIDTH, 2 * WIDTH, WIDTH};
  ek_module *inner = NULL;
  const int pick = fuzz_choice(input, 9);
  switch (pick) {
  case 1: return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 2: return ek_layer_norm_create(module, WIDTH, 1e-5);
  case 3: return ek_mlp_create(module, sizes, 3, EK_ACTIVATION_GELU);
  case 4: return ek_attention_create(module, WIDTH, 2);
  case 5: return ek_dropout_create(module, 0.25);
  case 6:
    EK_TRY(ek_linear_create(&inner, WIDTH, WIDTH, true));
    return wrap(module, inner, ek_residual_create);
  case 7:
    EK_TRY(ek_mlp_create(&inner, sizes, 3, EK_ACTIVATION_GELU));
    return wrap(module, inner, ek_recompute_create);
  default: return ek_linear_create(module, WIDTH, WIDTH, pick == 8);
  }
}

/* Tokens [rows, sequence] to [rows, sequence, WIDTH], or to logits. *source is the table's name. */
static ek_status make_body(ek_module **module, bool logits, const char **source,
                           struct fuzz_input *input) {
  ek_module *part[MOST_LAYERS + 2] = {NULL};
  ek_sequential_options options = EK_SEQUENTIAL_OPTIONS_INIT;
  size_t count = 1;
  const size_t layers = (size_t)fuzz_choice(input, MOST_LAYERS + 1);
  options.recompute = read_recompute(input);
  const bool positions = fuzz_one_in(input, 3);
  ek_status status = ek_embedding_create(&part[0], VOCABULARY, WIDTH, positions ? SEQUENCE : 0);
  while (status == EK_OK && count <= layers) status = make_layer(&part[count++], input);
  if (status == EK_OK && logits) status = ek_linear_create(&part[count++], WIDTH, VOCABULARY, true);
  if (status == EK_OK) status = ek_sequential_create_with(module, part, count, &options);
  for (size_t i = 0; i < count; i++) ek_module_free(part[i]);
  EK_TRY(status);
  const unsigned mask = fuzz_byte(input);
  *source = mask == 0 ? "0.weight" : "own0";
  if (mask != 0) *module = freeze(*module, mask);
  return EK_OK;
}

static ek_status make_fused(ek_module **module, struct fuzz_input *input) {
  ek_linear_cross_entropy_options head = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ek_with_criterion_options options = EK_WITH_CRITERION_OPTIONS_INIT;
  ek_module *body = NULL;
  ek_criterion *criterion = NULL;
  const char *source = NULL;
  head.bias = fuzz_one_in(input, 2);
  if (fuzz_one_in(input, 2)) head.logits_bytes = 100; /* several blocks */
  const bool tied = fuzz_one_in(input, 2);
  EK_TRY(make_body(&body, false, &source, input));
  if (tied) options.tied = "weight", options.source = source;
  ek_status status = ek_linear_cross_entropy_create(&criterion, WIDTH, VOCABULARY, &head);
  if (status == EK_OK) status = ek_with_criterion_create_with(module, body, criterion, &options);
  ek_criterion_free(criterion);
  ek_module_free(body);
  return status;
}

static ek_status make_gpt(ek_module **module, bool fused, struct fuzz_input *input) {
  ek_gpt_options options = EK_GPT_OPTIONS_INIT;
  options.vocabulary = VOCABULARY;
  options.sequence = SEQUENCE;
  options.width = WIDTH;
  options.heads = 2;
  options.layers = fuzz_choice(input, 3);
  options.untied = fuzz_one_in(input, 2);
  options.dropout = fuzz_one_in(input, 4) ? 0.25 : 0;
  options.recompute = read_recompute(input);
  options.fused_loss = fused;
  return ek_gpt_create(module, &options);
}

static ek_status make_module(ek_module **module, bool *own_loss, struct fuzz_input *input) {
  const char *source = NULL;
  const int kind = fuzz_choice(input, 5);
  *own_loss = kind % 2 != 0 || kind == 4;
  switch (kind) {
  case 1: return make_fused(module, input);
  case 2: return make_gpt(module, false, input);
  case 3: return make_gpt(module, true, input);
  default: return make_body(module, true, &source, input);
  }
}

/* The same input makes the same model. There is no criterion for one with its own loss. */
static ek_status make_parts(struct run *run, struct fuzz_input *input) {
  struct fuzz_training *training = &run->training;
  EK_TRY(make_module(&training->module, &run->own_loss, input));
  if (ek_module_terms(training->module) > 0) return EK_OK;
  EK_TRY(ek_cross_entropy_create(&training->criterion, NULL));
  if (!run->own_loss) return EK_OK;
  ek_module *body = training->module;
  training->module = NULL;
  const ek_status status = ek_with_criterion_create(&training->module, body, training->criterion);
  ek_module_free(body);
  ek_criterion_free(training->criterion);
  training->criterion = NULL;
  return status;
}

/* ---- one run ---- */

static ek_status open_run(struct run *run, ek_mode mode) {
  struct fuzz_input input = run->plan->model;
  struct fuzz_setup setup = run->plan->setup;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  sgd.momentum = run->plan->momentum;
  EK_TRY(make_parts(run, &input));
  EK_TRY(ek_sgd_create(&run->training.rule, &sgd));
  EK_TRY(ek_data_parallel_model_options_set_mode(&setup.model, mode));
  return fuzz_training_open(&run->training, &setup);
}

/* The memory of a batch: tokens, and targets. */
struct memory {
  int32_t tokens[MOST_ROWS * SEQUENCE], targets[MOST_ROWS * SEQUENCE];
};

/* Tokens and targets that follow from `number`; targets are inputs of a model with its own loss. */
static struct fuzz_batch make_batch(const struct run *run, struct memory *memory, int64_t rows,
                                    size_t number) {
  const int64_t shape[] = {rows, SEQUENCE};
  struct fuzz_batch batch = {.inputs = 1};
  for (size_t i = 0; i < MOST_ROWS * SEQUENCE; i++) {
    memory->tokens[i] = (int32_t)((7 * number + 3 * i) % VOCABULARY);
    memory->targets[i] = (int32_t)((5 * number + 2 * i + 1) % VOCABULARY);
  }
  ek_tensor *target = run->own_loss ? &batch.input[batch.inputs++] : &batch.target[batch.targets++];
  FUZZ_OK(ek_tensor_host(&batch.input[0], memory->tokens, EK_I32, 2, shape));
  FUZZ_OK(ek_tensor_host(target, memory->targets, EK_I32, 2, shape));
  return batch;
}

/* A forward without a backward. */
static ek_status evaluate(struct run *run, int64_t rows) {
  struct memory memory;
  const struct fuzz_batch batch = make_batch(run, &memory, rows, 11);
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = options.training = false;
  ek_shards outputs[FUZZ_BATCH_TENSORS] = {{0}};
  const ek_status status = ek_data_parallel_model_forward(outputs, run->training.model, batch.input,
                                                          batch.inputs, &options);
  for (size_t i = 0; i < ek_module_outputs(run->training.module); i++) ek_shards_free(&outputs[i]);
  return status;
}

static ek_status run_step(struct run *run, size_t step, double *loss) {
  struct memory memory[MOST_BATCHES];
  struct fuzz_batch batch[MOST_BATCHES];
  ek_step_result result = {0};
  const size_t count = run->plan->batch_count;
  for (size_t i = 0; i < count; i++) {
    const size_t number = step * count + i;
    batch[i] = make_batch(run, &memory[i], run->plan->rows[number], number);
  }
  if (run->plan->evaluates) EK_TRY(evaluate(run, run->plan->rows[step * count]));
  EK_TRY(fuzz_training_step(&run->training, batch, count, &result));
  *loss = result.loss;
  return EK_OK;
}

static struct outcome do_run(const struct plan *plan, const char *backend, ek_mode mode) {
  struct outcome outcome = {0};
  struct run run = {.plan = plan, .training = {.group = fuzz_devices(backend, plan->devices)}};
  outcome.status = open_run(&run, mode);
  for (size_t s = 0; s < plan->steps && outcome.status == EK_OK; s++) {
    outcome.status = run_step(&run, s, &outcome.loss[s]);
  }
  FUZZ_EXPECT(outcome.status != EK_ERR_INTERNAL && outcome.status != EK_ERR_ABORTED &&
                  (outcome.status != EK_ERR_SHAPE || run.training.optimizer == NULL),
              "%s, mode %s: %s", ek_status_name(outcome.status), ek_mode_name(mode),
              ek_error_message());
  for (size_t i = 0; i < plan->devices; i++) {
    outcome.peak[i] = fuzz_memory(run.training.group, i).peak_bytes;
  }
  if (run.training.optimizer != NULL && strcmp(backend, "plan") != 0) {
    outcome.state = fuzz_training_state(&run.training, &outcome.size);
  }
  fuzz_training_close(&run.training);
  fuzz_expect_nothing_held(run.training.group);
  return outcome;
}

/* ---- what must be equal ---- */

static void check_bits(const struct plan *plan, const struct outcome *got, ek_mode mode) {
  const struct outcome want = do_run(plan, "cpu", mode);
  FUZZ_EXPECT(want.status == got->status, "%s fully sharded, %s in mode %s",
              ek_status_name(got->status), ek_status_name(want.status), ek_mode_name(mode));
  FUZZ_EXPECT(want.size == got->size &&
                  (got->size == 0 || memcmp(want.state, got->state, got->size) == 0),
              "other parameters or states than in mode %s", ek_mode_name(mode));
  FUZZ_EXPECT(memcmp(want.loss, got->loss, sizeof want.loss) == 0, "another loss than in mode %s",
              ek_mode_name(mode));
  free(want.state);
}

/* All of it is f64: parameters, and the momentum of SGD. Sums of six terms in another order, of
 * numbers around one, twice in a row. */
static void check_nearly(const struct plan *plan, const struct outcome *got) {
  const struct outcome want = do_run(plan, "cpu", EK_MODE_REPLICATED);
  FUZZ_EXPECT(want.status == got->status && want.size == got->size,
              "%s fully sharded, %s replicated", ek_status_name(got->status),
              ek_status_name(want.status));
  for (size_t i = 0; i + sizeof(double) <= got->size; i += sizeof(double)) {
    double a = 0, b = 0;
    memcpy(&a, got->state + i, sizeof a);
    memcpy(&b, want.state + i, sizeof b);
    FUZZ_EXPECT((isnan(a) && isnan(b)) || fabs(a - b) <= 0x1p-36 * (1 + fabs(b)),
                "byte %zu of the state: %.17g, replicated %.17g", i, a, b);
  }
  free(want.state);
}

static void check_plan(const struct plan *plan, const struct outcome *got) {
  const struct outcome planned = do_run(plan, "plan", EK_MODE_FULLY_SHARDED);
  FUZZ_EXPECT(planned.status == got->status, "%s on plan, %s on cpu",
              ek_status_name(planned.status), ek_status_name(got->status));
  for (size_t i = 0; i < plan->devices && planned.status == EK_OK; i++) {
    FUZZ_EXPECT(planned.peak[i] == got->peak[i], "device %zu: peak %llu on plan, %llu on cpu", i,
                (unsigned long long)planned.peak[i], (unsigned long long)got->peak[i]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  const struct plan plan = read_plan(&input);
  struct outcome outcome = do_run(&plan, "cpu", EK_MODE_FULLY_SHARDED);
  if (plan.batch_count > 1) {
    check_bits(&plan, &outcome, EK_MODE_SHARDED_GRADIENTS);
    check_nearly(&plan, &outcome);
  } else {
    check_bits(&plan, &outcome, EK_MODE_REPLICATED);
  }
  check_plan(&plan, &outcome);
  free(outcome.state);
  return 0;
}
