/*
 * fuzz_stacks.c - random models of stock modules, trained while memory fails.
 *
 * The input describes a model, a loss, an update rule, a mode, a group and a few batches. They are
 * trained three times:
 *
 *   undisturbed, on `cpu`;
 *   on `plan`: the same status, and the same peak on every device to the byte;
 *   on `cpu`, while one allocation of a device or of the host fails: EK_ERR_OUT_OF_MEMORY with a
 *   message, nothing changed and nothing left behind; the same again then gives the same bits as
 *   the undisturbed run.
 */
#include <stdlib.h>
#include <string.h>

#include "fuzz_training.h"

enum { MOST_STEPS = 3, MOST_BATCHES = 2, MOST_DEVICES = 4, MOST_ROWS = 7, MOST_ELEMENTS = 4096 };
enum { MOST_WIDTH = 12, MOST_LAYERS = 4, MOST_DEPTH = 3 };

/* Where and when memory fails. Moment 0 makes the parts, 1 opens them, 2 + s is step s. */
struct failure {
  int moment; /* -1: never */
  bool host;
  size_t device;
  uint64_t number; /* of the allocation */
};

struct plan {
  struct fuzz_input model; /* where the bytes of the model, the loss and the rule begin */
  struct fuzz_input batches;
  size_t devices, steps, batch_count;
  struct fuzz_setup setup;
  ek_scatter_options scatter;
  struct failure failure;
};

/* What a run leaves. */
struct outcome {
  ek_status status;
  int moment; /* of the failure */
  uint64_t peak[MOST_DEVICES], held[MOST_DEVICES];
  ek_step_result result[MOST_STEPS];
  unsigned char *state;
  size_t size;
};

static struct plan read_plan(struct fuzz_input *input) {
  struct plan plan = {.scatter = EK_SCATTER_OPTIONS_INIT};
  plan.devices = 1 + (size_t)fuzz_choice(input, MOST_DEVICES);
  plan.steps = 1 + (size_t)fuzz_choice(input, MOST_STEPS);
  plan.batch_count = 1 + (size_t)fuzz_choice(input, MOST_BATCHES);
  plan.setup = fuzz_setup(input);
  plan.scatter.kind = fuzz_one_in(input, 4) ? EK_SCATTER_CHUNK : EK_SCATTER_EVEN;
  plan.failure.moment = fuzz_choice(input, (int)plan.steps + 3) - 1;
  plan.failure.host = fuzz_one_in(input, 2);
  plan.failure.device = (size_t)fuzz_choice(input, (int)plan.devices);
  plan.failure.number = 1 + fuzz_byte(input);
  if (fuzz_one_in(input, 2)) plan.failure.number %= 16; /* 0: never */
  plan.batches = *input;
  for (size_t i = 0; i < 2 * plan.steps * plan.batch_count; i++) (void)fuzz_byte(input);
  plan.model = *input;
  return plan;
}

/* What goes into a model and what comes out of it. */
struct shape {
  bool tokens;         /* the input is i32 [rows, sequence] */
  int64_t sequence;    /* 0: the input has two dimensions */
  int64_t input_width; /* of a floating input */
  int64_t vocabulary;  /* of a token input */
  int64_t width;       /* of the output */
};

struct run {
  const struct plan *plan;
  struct fuzz_training training;
  struct shape shape;
  bool classes; /* targets are numbers of classes */
};

/* ---- models ----
 *
 * One layer in sixteen gets a width that does not fit, so that models which cannot run are there
 * too.
 */

static int64_t read_width(struct fuzz_input *input) { return 1 + fuzz_choice(input, MOST_WIDTH); }

static ek_status make_stack(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input);

/* One after the other, unless one of them could not be made; frees the parts. */
static ek_status join(ek_module **module, ek_module **part, size_t count, ek_status status) {
  if (status == EK_OK) status = ek_sequential_create(module, part, count);
  for (size_t i = 0; i < count; i++) ek_module_free(part[i]);
  return status;
}

static ek_status make_mlp(ek_module **module, int64_t *width, struct fuzz_input *input) {
  int64_t sizes[3] = {*width};
  sizes[1] = read_width(input);
  sizes[2] = read_width(input);
  const size_t count = 2 + (size_t)fuzz_choice(input, 2);
  *width = sizes[count - 1];
  return ek_mlp_create(module, sizes, count, (ek_activation)fuzz_choice(input, 2));
}

/* What is inside must give what it got: a stack of its own with a last layer that sees to it. */
static ek_status make_residual(ek_module **module, int64_t *width, bool rank_3, int depth,
                               struct fuzz_input *input) {
  ek_module *part[2] = {NULL}, *inner = NULL;
  int64_t within = *width;
  ek_status status = make_stack(&part[0], &within, rank_3, depth + 1, input);
  if (status == EK_OK) status = ek_linear_create(&part[1], within, *width, true);
  status = join(&inner, part, 2, status);
  if (status == EK_OK) status = ek_residual_create(module, inner);
  ek_module_free(inner);
  return status;
}

static ek_status make_attention(ek_module **module, int64_t *width, struct fuzz_input *input) {
  int heads = 1 + fuzz_choice(input, 3);
  while (*width % heads != 0) heads--;
  return ek_attention_create(module, *width, heads);
}

static ek_status make_layer(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input) {
  ek_layer_norm_options norm = EK_LAYER_NORM_OPTIONS_INIT;
  int64_t in = *width;
  const int pick = fuzz_choice(input, 9);
  if (fuzz_one_in(input, 16)) in = read_width(input); /* perhaps a misfit */
  switch (pick) {
  case 1: return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 2: return ek_activation_create(module, EK_ACTIVATION_RELU);
  case 3: return ek_dropout_create(module, fuzz_choice(input, 4) / 4.0);
  case 4:
    norm.bias = in % 2 == 0;
    return ek_layer_norm_create_with(module, in, &norm);
  case 5: return make_mlp(module, width, input);
  case 6:
    if (depth < MOST_DEPTH) return make_residual(module, width, rank_3, depth, input);
    return ek_activation_create(module, EK_ACTIVATION_GELU);
  case 7:
    if (rank_3) return make_attention(module, width, input);
    return ek_activation_create(module, EK_ACTIVATION_RELU);
  case 8:
    if (depth < MOST_DEPTH) return make_stack(module, width, rank_3, depth + 1, input);
    return ek_activation_create(module, EK_ACTIVATION_GELU);
  default:
    *width = read_width(input);
    return ek_linear_create(module, in, *width, fuzz_one_in(input, 2));
  }
}

static ek_status make_stack(ek_module **module, int64_t *width, bool rank_3, int depth,
                            struct fuzz_input *input) {
  ek_module *layer[MOST_LAYERS] = {NULL};
  const size_t count = 1 + (size_t)fuzz_choice(input, MOST_LAYERS);
  ek_status status = EK_OK;
  for (size_t i = 0; i < count && status == EK_OK; i++) {
    status = make_layer(&layer[i], width, rank_3, depth, input);
  }
  return join(module, layer, count, status);
}

static ek_status make_gpt(ek_module **module, struct shape *shape, struct fuzz_input *input) {
  ek_gpt_options options = EK_GPT_OPTIONS_INIT;
  options.vocabulary = shape->vocabulary;
  options.sequence = shape->sequence;
  options.heads = 1 + fuzz_choice(input, 3);
  options.width = options.heads * (1 + fuzz_choice(input, 4));
  options.layers = fuzz_choice(input, 3);
  options.dropout = fuzz_one_in(input, 4) ? 0.25 : 0;
  options.untied = fuzz_one_in(input, 2);
  shape->width = shape->vocabulary;
  return ek_gpt_create(module, &options);
}

static ek_status make_embedded(ek_module **module, struct shape *shape,
                               struct fuzz_input *input) {
  ek_module *part[2] = {NULL};
  shape->width = read_width(input);
  const int64_t positions = fuzz_one_in(input, 2) ? shape->sequence : 0;
  ek_status status = ek_embedding_create(&part[0], shape->vocabulary, shape->width, positions);
  if (status == EK_OK) status = make_stack(&part[1], &shape->width, true, 0, input);
  return join(module, part, 2, status);
}

static ek_status make_module(ek_module **module, struct shape *shape,
                             struct fuzz_input *input) {
  const int kind = fuzz_choice(input, 4);
  *shape = (struct shape){.tokens = kind >= 2};
  shape->vocabulary = 1 + fuzz_choice(input, 16);
  if (kind != 0) shape->sequence = 1 + fuzz_choice(input, 6);
  if (kind == 3) return make_gpt(module, shape, input);
  if (kind == 2) return make_embedded(module, shape, input);
  shape->input_width = shape->width = read_width(input);
  return make_stack(module, &shape->width, kind == 1, 0, input);
}

/* ---- losses and rules ---- */

static ek_status make_criterion(struct run *run, struct fuzz_input *input) {
  static const double weights[MOST_WIDTH + 16] = {1, 0.5, 2, 0, 1, 3};
  ek_criterion **criterion = &run->training.criterion;
  const ek_reduction reduction = (ek_reduction)fuzz_choice(input, 2);
  run->classes = fuzz_one_in(input, 2);
  if (!run->classes) return ek_mean_squared_error_create(criterion, reduction);
  ek_cross_entropy_options options = EK_CROSS_ENTROPY_OPTIONS_INIT;
  options.reduction = reduction;
  options.ignore_index = 0;
  options.label_smoothing = fuzz_choice(input, 3) / 4.0;
  if (fuzz_one_in(input, 4)) {
    options.class_weights = weights;
    options.classes = run->shape.width;
  }
  return ek_cross_entropy_create(criterion, &options);
}

static ek_status make_rule(ek_optimizer **rule, struct fuzz_input *input) {
  const double clip_norm = fuzz_one_in(input, 2) ? 0.5 : 0;
  if (fuzz_one_in(input, 2)) {
    ek_adamw_options options = EK_ADAMW_OPTIONS_INIT;
    options.clip_norm = clip_norm;
    options.coupled = fuzz_one_in(input, 2);
    return ek_adamw_create(rule, &options);
  }
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.clip_norm = clip_norm;
  options.momentum = fuzz_choice(input, 3) / 4.0;
  options.nesterov = options.momentum > 0 && fuzz_one_in(input, 2);
  return ek_sgd_create(rule, &options);
}

/* The same input makes the same parts; a failure leaves nothing. */
static ek_status make_parts(struct run *run) {
  struct fuzz_input input = run->plan->model;
  ek_status status = make_module(&run->training.module, &run->shape, &input);
  if (status == EK_OK) status = make_criterion(run, &input);
  if (status == EK_OK) status = make_rule(&run->training.rule, &input);
  if (status != EK_OK) fuzz_training_close(&run->training);
  return status;
}

/* ---- batches ---- */

struct memory {
  double input[MOST_ELEMENTS], target[MOST_ELEMENTS];
};

static void fill(ek_tensor *tensor, double *memory, ek_type type, int rank, const int64_t *shape,
                 int64_t below, uint8_t start) {
  FUZZ_OK(ek_tensor_host(tensor, memory, type, rank, shape));
  const int64_t count = ek_tensor_count(tensor);
  FUZZ_EXPECT(count <= MOST_ELEMENTS, "the harness made too large a batch");
  for (int64_t i = 0; i < count; i++) {
    const uint8_t byte = (uint8_t)(start + 29 * i + i / 5);
    const int32_t whole = (int32_t)(byte % (below > 0 ? below : 1));
    const double value = ((int)(byte % 17) - 8) / 4.0;
    const float single = (float)value;
    if (type == EK_I32) memcpy((char *)memory + 4 * i, &whole, 4);
    if (type == EK_F32) memcpy((char *)memory + 4 * i, &single, 4);
    if (type == EK_F64) memcpy((char *)memory + 8 * i, &value, 8);
  }
}

static struct fuzz_batch make_batch(const struct run *run, struct memory *memory,
                                    struct fuzz_input *input) {
  const struct shape *shape = &run->shape;
  const ek_type type = run->plan->setup.model.type;
  const int64_t rows = fuzz_byte(input) % (MOST_ROWS + 1);
  const uint8_t start = fuzz_byte(input);
  const bool rank_3 = shape->sequence > 0;
  const int64_t in[] = {rows, rank_3 ? shape->sequence : shape->input_width, shape->input_width};
  const int64_t out[] = {rows, rank_3 ? shape->sequence : shape->width, shape->width};
  struct fuzz_batch batch = {.inputs = 1, .targets = 1, .scatter = &run->plan->scatter};
  fill(&batch.input[0], memory->input, shape->tokens ? EK_I32 : type,
       shape->tokens ? 2 : 2 + rank_3, in, shape->vocabulary, start);
  fill(&batch.target[0], memory->target, run->classes ? EK_I32 : type, 2 + rank_3 - run->classes,
       out, run->classes ? shape->width : 0, (uint8_t)(start + 5));
  return batch;
}

/* ---- one run ---- */

static ek_status run_step(struct run *run, size_t step, ek_step_result *result) {
  static struct memory memory[MOST_BATCHES];
  struct fuzz_batch batch[MOST_BATCHES];
  struct fuzz_input input = run->plan->batches;
  for (size_t i = 0; i < 2 * step * run->plan->batch_count; i++) (void)fuzz_byte(&input);
  for (size_t i = 0; i < run->plan->batch_count; i++) {
    batch[i] = make_batch(run, &memory[i], &input);
  }
  return fuzz_training_step(&run->training, batch, run->plan->batch_count, result);
}

/* A forward without a backward, in between: it must leave no trace in the training. */
static void evaluate(struct run *run) {
  static struct memory memory;
  struct fuzz_input input = run->plan->batches;
  const struct fuzz_batch batch = make_batch(run, &memory, &input);
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = options.training = false;
  ek_shards outputs = {0};
  fuzz_expect_explained(ek_data_parallel_model_forward(&outputs, run->training.model, batch.input,
                                                       batch.inputs, &options));
  ek_shards_free(&outputs);
}

static ek_status do_moment(struct run *run, int moment, ek_step_result *result) {
  if (moment == 0) return make_parts(run);
  if (moment == 1) return fuzz_training_open(&run->training, &run->plan->setup);
  return run_step(run, (size_t)moment - 2, &result[moment - 2]);
}

static void arm(const struct run *run, uint64_t number) {
  const struct failure *failure = &run->plan->failure;
  if (failure->host) {
    ek_host_memory_fail_at(number);
  } else {
    FUZZ_OK(ek_memory_fail_at(ek_group_device(run->training.group, failure->device), number));
  }
}

/* The same while an allocation fails; what it leaves must be what was there before. */
static void do_disturbed(struct run *run, int moment, ek_step_result *result) {
  size_t size = 0, size_after = 0;
  unsigned char *before = NULL;
  if (moment >= 2) before = fuzz_training_state(&run->training, &size);
  arm(run, run->plan->failure.number);
  const ek_status status = do_moment(run, moment, result);
  arm(run, 0);
  fuzz_expect_explained(status);
  if (status == EK_OK || moment < 2) {
    /* It was not reached; or nothing was there before. Again from the beginning. */
    if (moment == 0) fuzz_training_close(&run->training);
    if (moment < 2 && status != EK_OK) fuzz_expect_nothing_held(run->training.group);
    free(before);
    return;
  }
  unsigned char *after = fuzz_training_state(&run->training, &size_after);
  FUZZ_EXPECT(size == size_after && (size == 0 || memcmp(before, after, size) == 0),
              "%s, and the state has changed", ek_status_name(status));
  free(before);
  free(after);
  evaluate(run);
}

static struct outcome do_run(const struct plan *plan, const char *backend, bool disturbed) {
  struct outcome outcome = {0};
  struct run run = {.plan = plan, .training = {.group = fuzz_devices(backend, plan->devices)}};
  const int moments = 2 + (int)plan->steps;
  for (int moment = 0; moment < moments && outcome.status == EK_OK; moment++) {
    bool again = true;
    if (disturbed && moment == plan->failure.moment) {
      const int64_t steps = ek_data_parallel_optimizer_steps(run.training.optimizer);
      do_disturbed(&run, moment, outcome.result);
      again = moment == 0 || (moment == 1 && run.training.model == NULL) ||
              (moment >= 2 && ek_data_parallel_optimizer_steps(run.training.optimizer) == steps);
    }
    if (again) outcome.status = do_moment(&run, moment, outcome.result);
    outcome.moment = moment;
    fuzz_expect_explained(outcome.status);
  }
  for (size_t i = 0; i < plan->devices; i++) {
    const ek_memory_usage usage = fuzz_memory(run.training.group, i);
    outcome.peak[i] = usage.peak_bytes;
    outcome.held[i] = usage.current_bytes;
  }
  if (run.training.optimizer != NULL)
    outcome.state = fuzz_training_state(&run.training, &outcome.size);
  fuzz_training_close(&run.training);
  fuzz_expect_nothing_held(run.training.group);
  return outcome;
}

/* ---- what must be equal ---- */

static void check_plan(const struct plan *plan, const struct outcome *outcome) {
  const struct outcome planned = do_run(plan, "plan", false);
  FUZZ_EXPECT(planned.status == outcome->status && planned.moment == outcome->moment,
              "%s at %d on plan, %s at %d on cpu", ek_status_name(planned.status), planned.moment,
              ek_status_name(outcome->status), outcome->moment);
  for (size_t i = 0; i < plan->devices && planned.status == EK_OK; i++) {
    FUZZ_EXPECT(planned.peak[i] == outcome->peak[i] && planned.held[i] == outcome->held[i],
                "device %zu: peak %llu on plan, %llu on cpu", i,
                (unsigned long long)planned.peak[i], (unsigned long long)outcome->peak[i]);
  }
  free(planned.state);
}

static void check_disturbed(const struct plan *plan, const struct outcome *outcome) {
  const struct outcome disturbed = do_run(plan, "cpu", true);
  FUZZ_EXPECT(disturbed.status == outcome->status && disturbed.moment == outcome->moment,
              "%s at %d, undisturbed %s at %d", ek_status_name(disturbed.status), disturbed.moment,
              ek_status_name(outcome->status), outcome->moment);
  FUZZ_EXPECT(
      disturbed.size == outcome->size &&
          (outcome->size == 0 || memcmp(disturbed.state, outcome->state, outcome->size) == 0),
      "other parameters or states after a failure that was made good");
  for (size_t s = 0; s < plan->steps && outcome->status == EK_OK; s++) {
    FUZZ_EXPECT(memcmp(&disturbed.result[s].loss, &outcome->result[s].loss, sizeof(double)) == 0 &&
                    disturbed.result[s].step == outcome->result[s].step,
                "step %zu: another loss", s);
  }
  for (size_t i = 0; i < plan->devices; i++) {
    FUZZ_EXPECT(disturbed.held[i] == outcome->held[i], "device %zu holds %llu bytes and not %llu",
                i, (unsigned long long)disturbed.held[i], (unsigned long long)outcome->held[i]);
  }
  free(disturbed.state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  const struct plan plan = read_plan(&input);
  const struct outcome outcome = do_run(&plan, "cpu", false);
  check_plan(&plan, &outcome);
  if (plan.failure.moment >= 0) check_disturbed(&plan, &outcome);
  free(outcome.state);
  return 0;
}
