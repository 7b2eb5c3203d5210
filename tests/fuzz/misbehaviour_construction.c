/*
 * misbehaviour_construction.c - modules, criteria and rules with counts, names, shapes and slots
 * that cannot be: see misbehaviour_parts.h.
 *
 * What is taken must work: the model is opened over two devices and runs a step. The module gives
 * its first input as every output, the criterion a loss of 1 and no gradient, the rule does
 * nothing.
 */
#include "misbehaviour_parts.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 3, MOST_COUNT = 20, MOST_COEFFICIENTS = 80, MOST_DECLARATIONS = 6 };

/* ---- the module ---- */

struct odd_module {
  ek_module base;
  struct fuzz_input declarations; /* decided anew, and the same, at every walk */
  ek_module *child;
};

static const char *read_name(struct fuzz_input *input) {
  static char long_name[700];
  static const char *const names[] = {"a",  "b",       "c",     "a.b",         "",
                                      NULL, long_name, "child", "child.weight"};
  memset(long_name, 'n', sizeof long_name - 1);
  return names[fuzz_choice(input, 9)];
}

static ek_status declare_one(ek_declaration *declaration, ek_module *child,
                             struct fuzz_input *input) {
  static const int64_t sizes[] = {1, 2, 3, 0, -1, INT64_MAX, INT64_C(1) << 32};
  static const int ranks[] = {0, 1, 2, EK_MAX_RANK, EK_MAX_RANK + 1, -1};
  const int kind = fuzz_choice(input, 8);
  const char *name = read_name(input);
  if (kind == 6) return ek_declare_module(declaration, name, fuzz_one_in(input, 4) ? NULL : child);
  if (kind == 7) {
    EK_TRY(ek_declare_tie(declaration, name, read_name(input)));
    return ek_declare_frozen(declaration, name);
  }
  int64_t shape[EK_MAX_RANK];
  for (int d = 0; d < EK_MAX_RANK; d++) {
    shape[d] = sizes[fuzz_one_in(input, 8) ? fuzz_choice(input, 7) : fuzz_choice(input, 2)];
  }
  const int rank = ranks[fuzz_one_in(input, 4) ? fuzz_choice(input, 6) : fuzz_choice(input, 3)];
  ek_initializer initializer = {.kind = (ek_initializer_kind)fuzz_choice(input, 5)};
  initializer.a = fuzz_real(input);
  initializer.b = fuzz_real(input);
  const int64_t *given = fuzz_one_in(input, 16) ? NULL : shape;
  if (kind == 5) return ek_declare_buffer(declaration, name, rank, given, initializer);
  return ek_declare_parameter(declaration, name, rank, given, initializer);
}

static ek_status odd_parameters(const ek_module *base, ek_declaration *declaration) {
  const struct odd_module *self = (const struct odd_module *)base;
  struct fuzz_input input = self->declarations;
  const int count = fuzz_choice(&input, MOST_DECLARATIONS + 1);
  const bool forgiving = fuzz_one_in(&input, 4);
  for (int i = 0; i < count; i++) {
    const ek_status status = declare_one(declaration, self->child, &input);
    if (status != EK_OK && !forgiving) return status;
  }
  return EK_OK;
}

static ek_status odd_forward(const ek_module *base, ek_pass *pass, const ek_tensor *inputs,
                             ek_tensor *outputs) {
  (void)pass;
  for (size_t i = 0; i < ek_module_outputs(base); i++)
    EK_TRY(ek_tensor_share(&outputs[i], &inputs[0]));
  return EK_OK;
}

static ek_status odd_backward(const ek_module *base, ek_pass *pass, const ek_tensor *grad_outputs,
                              ek_tensor *grad_inputs) {
  (void)pass;
  for (size_t i = 0; grad_inputs != NULL && i < ek_module_inputs(base); i++) {
    EK_TRY(ek_tensor_share(&grad_inputs[i], &grad_outputs[0]));
  }
  return EK_OK;
}

static void odd_free(ek_module *base) {
  ek_module_free(((struct odd_module *)base)->child);
  free(base);
}

/* Most are good ones; 16 is the most that there may be. */
static size_t read_count(struct fuzz_input *input) {
  static const size_t counts[] = {0, 2, 16, 17, MOST_COUNT, SIZE_MAX};
  return fuzz_one_in(input, 4) ? counts[fuzz_choice(input, 6)] : 1;
}

static ek_status make_module(ek_module **module, struct fuzz_input *input) {
  static ek_module_ops ops;
  ops = (ek_module_ops){.size = sizeof ops, .kind = "odd", .parameters = odd_parameters,
                        .forward = odd_forward, .backward = odd_backward, .free = odd_free};
  const int missing = fuzz_choice(input, 64);
  if (missing == 1) ops.kind = NULL;
  if (missing == 2) ops.parameters = NULL;
  if (missing == 3) ops.forward = NULL;
  if (missing == 4) ops.backward = NULL;
  if (missing == 5) ops.free = NULL;
  if (missing == 6) ops.size = 0;
  if (missing == 7) ops.size = sizeof ops + 1;
  if (missing == 8) ops.size = sizeof ops - 1;
  struct odd_module *self = calloc(1, sizeof *self);
  FUZZ_EXPECT(self != NULL, "the harness has no memory");
  const size_t inputs = read_count(input), outputs = read_count(input);
  const ek_status status = ek_module_init(&self->base, &ops, inputs, outputs);
  if (status != EK_OK) {
    free(self);
    return status;
  }
  FUZZ_OK(ek_linear_create(&self->child, WIDTH, WIDTH, true));
  self->declarations = *input;
  *module = &self->base;
  return EK_OK;
}

/* ---- the criterion ---- */

/* Class weights and the like: as many buffers as there may be, of values that are there or not. */
struct odd_criterion {
  ek_criterion base;
  size_t buffers;
  const double *values;
};

static ek_status loss_parameters(const ek_module *self, ek_declaration *declaration) {
  const struct odd_criterion *c = (const struct odd_criterion *)self;
  static const char *const names[] = {"a", "b", "c", "d"};
  static const int64_t shape[] = {2};
  for (size_t i = 0; i < c->buffers; i++) {
    EK_TRY(ek_declare_buffer(declaration, names[i], 1, shape, ek_initializer_values(c->values)));
  }
  return EK_OK;
}

static ek_status loss_forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                              ek_tensor *outputs) {
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  EK_TRY(ek_op_fill(ek_pass_stream(pass), &outputs[0], 1.0));
  if (ek_module_outputs(self) == 2) EK_TRY(ek_tensor_share(&outputs[1], &inputs[0]));
  for (size_t i = 0; i < ek_module_inputs(self) - ek_module_targets(self); i++)
    EK_TRY(ek_pass_save(pass, &inputs[i]));
  return EK_OK;
}

static ek_status loss_backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                               ek_tensor *grad_inputs) {
  (void)grad_outputs;
  for (size_t i = ek_module_inputs(self) - ek_module_targets(self); i-- > 0;) {
    ek_tensor output = {0};
    EK_TRY(ek_pass_take(&output, pass));
    ek_status status = ek_pass_input_gradient(&grad_inputs[i], pass, &output);
    if (status == EK_OK) status = ek_op_zero(ek_pass_stream(pass), &grad_inputs[i]);
    ek_tensor_free(&output);
    if (status != EK_OK) return status;
  }
  return EK_OK;
}

static void loss_free(ek_module *self) { free(self); }

static ek_status make_criterion(ek_criterion **criterion, size_t outputs,
                                struct fuzz_input *input) {
  static const ek_module_ops ops = {.size = sizeof(ek_module_ops), .kind = "odd",
                                    .parameters = loss_parameters, .forward = loss_forward,
                                    .backward = loss_backward, .free = loss_free};
  static const size_t terms[] = {2, 64, 65, 0, 70, SIZE_MAX};
  static double coefficients[MOST_COEFFICIENTS];
  static const double values[2] = {1, 2};
  struct odd_criterion *self = calloc(1, sizeof *self);
  FUZZ_EXPECT(self != NULL, "the harness has no memory");
  const size_t looks_at = fuzz_one_in(input, 4) ? read_count(input) : outputs;
  const size_t targets = read_count(input);
  const ek_reduction reduction = (ek_reduction)(fuzz_one_in(input, 8) ? fuzz_byte(input) : 0);
  const ek_status status = ek_criterion_init(&self->base, &ops, looks_at, targets, reduction);
  if (status != EK_OK) {
    free(self);
    return status;
  }
  for (size_t i = 0; i < MOST_COEFFICIENTS; i++) coefficients[i] = 1;
  if (fuzz_one_in(input, 8)) coefficients[0] = fuzz_real(input);
  const bool without_values = fuzz_one_in(input, 8);
  if (fuzz_one_in(input, 4)) self->base.base.private_members.terms = terms[fuzz_choice(input, 6)];
  if (!fuzz_one_in(input, 4)) self->base.private_members.coefficients = coefficients;
  if (!fuzz_one_in(input, 8) && !without_values) self->values = values;
  if (fuzz_one_in(input, 4)) self->buffers = read_count(input) % 5;
  *criterion = &self->base;
  return EK_OK;
}

/* ---- the update rule ---- */

static ek_status rule_update(const ek_optimizer *self, ek_stream *stream, const ek_update *update) {
  (void)self;
  (void)stream;
  (void)update;
  return EK_OK;
}

static void rule_free(ek_optimizer *self) { free(self); }

static ek_status make_rule(ek_optimizer **rule, struct fuzz_input *input) {
  static const ek_optimizer_ops ops = {
      .size = sizeof(ek_optimizer_ops), .kind = "odd", .update = rule_update, .free = rule_free};
  static const size_t states[] = {0, 1, 4, 5, SIZE_MAX};
  ek_optimizer *self = calloc(1, sizeof *self);
  FUZZ_EXPECT(self != NULL, "the harness has no memory");
  const size_t count = states[fuzz_choice(input, 5)];
  const double rate = fuzz_real(input), clip_norm = fuzz_real(input);
  const ek_status status = ek_optimizer_init(self, &ops, count, rate, clip_norm);
  if (status == EK_OK) {
    *rule = self;
  } else {
    free(self);
  }
  return status;
}

/* ---- together ---- */

static ek_status run_step(struct fuzz_training *training) {
  static double values[ROWS * WIDTH];
  const int64_t shape[] = {ROWS, WIDTH};
  struct fuzz_batch batch = {.inputs = ek_module_inputs(training->module),
                             .targets = ek_module_targets(&training->criterion->base)};
  for (size_t i = 0; i < batch.inputs; i++) {
    FUZZ_OK(ek_tensor_host(&batch.input[i], values, EK_F32, 2, shape));
  }
  for (size_t i = 0; i < batch.targets; i++) {
    FUZZ_OK(ek_tensor_host(&batch.target[i], values, EK_F32, 2, shape));
  }
  ek_step_result result;
  return fuzz_training_step(training, &batch, 1, &result);
}

static ek_status try_all(struct fuzz_training *training, struct fuzz_input *input) {
  struct fuzz_setup setup = fuzz_setup(input);
  setup.model.type = EK_F32;
  EK_TRY(make_rule(&training->rule, input));
  EK_TRY(make_module(&training->module, input));
  EK_TRY(make_criterion(&training->criterion, ek_module_outputs(training->module), input));
  EK_TRY(fuzz_training_open(training, &setup));
  return run_step(training);
}

void misbehaviour_construction(struct fuzz_input *input) {
  struct fuzz_training training = {.group = fuzz_group("cpu:2@64MiB", 1)};
  ek_error_clear();
  fuzz_expect_explained(try_all(&training, input));
  fuzz_training_close(&training);
  fuzz_expect_nothing_held(training.group);
}
