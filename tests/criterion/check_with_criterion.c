/*
 * check_with_criterion.c - a model and its loss as one module: the same numbers as the pair, a loss
 * with parameters of its own over any number of devices, by its memory, and what is refused. What
 * is wrong with predictions and ties: tests/whole/check_joined_loss.c.
 */
#include "ck_biased.h"
#include "ck_own_criteria.h"
#include "ck_training.h"

enum { IN = 3, OUT = CK_BIASED_COLUMNS, SEQUENCE = 2 };

/* ---- a training of one module ---- */

static ek_module *linear(void) { return ck_keep(ck_linear(IN, OUT, true)); }

/* Criterion NULL: the module computes its loss itself. */
static struct ck_training training_open_with(const char *spec, ek_mode mode, ek_module *module,
                                             ek_criterion *criterion, bool in_forward) {
  CK_WITH(struct ck_setup, setup, ck_setup_own(NULL, NULL, spec, mode), .module = module,
          .criterion = criterion, .options.type = EK_F64, .options.seed = 5,
          .gradient_in_forward = in_forward);
  return ck_training_opened(&setup);
}

static struct ck_training training_open(const char *spec, ek_mode mode, ek_module *module,
                                        ek_criterion *criterion) {
  return training_open_with(spec, mode, module, criterion, false);
}

/* `rows` samples of SEQUENCE rows each: IN numbers in, OUT numbers or one class as targets. */
enum { MOST_ROWS = 8 };
struct batch {
  double x[MOST_ROWS * SEQUENCE * IN], t[MOST_ROWS * SEQUENCE * OUT];
  int32_t classes[MOST_ROWS * SEQUENCE];
  ek_tensor input, target;
};

static void batch_make(struct batch *b, int64_t rows, bool classes, uint64_t number) {
  struct ck_random random = ck_random_start(number);
  const int64_t in[] = {rows, SEQUENCE, IN}, out[] = {rows, SEQUENCE, OUT};
  for (int i = 0; i < MOST_ROWS * SEQUENCE * IN; i++) b->x[i] = ck_random_uniform(&random, -1, 1);
  for (int i = 0; i < MOST_ROWS * SEQUENCE * OUT; i++) b->t[i] = ck_random_uniform(&random, -1, 1);
  for (int i = 0; i < MOST_ROWS * SEQUENCE; i++) {
    b->classes[i] = (int32_t)ck_random_integer(&random, -1, OUT - 1); /* -1 is ignored */
  }
  ck_ok(ek_tensor_host(&b->input, b->x, EK_F64, 3, in));
  if (classes) { /* several rows for each sample */
    ck_ok(ek_tensor_host(&b->target, b->classes, EK_I32, CK_SHAPE(rows * SEQUENCE)));
  } else {
    ck_ok(ek_tensor_host(&b->target, b->t, EK_F64, 3, out));
  }
}

/* Forward, loss and backward. With `cut` the inputs are scattered before. */
static void backward(struct ck_training *t, const struct batch *b, bool accumulate, bool cut,
                     double *loss) {
  ek_shards outputs = {0}, shards[2] = {{0}};
  const ek_tensor inputs[] = {b->input, b->target};
  const bool pair = ek_module_terms(t->module) == 0;
  ek_criterion_backward_options options = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  options.accumulate = accumulate;
  if (cut) {
    ck_ok(ek_scatter(&shards[0], t->group, &inputs[0], EK_MEMORY_INPUTS, NULL));
    ck_ok(ek_scatter_like(&shards[1], &shards[0], &inputs[1], EK_MEMORY_INPUTS));
    ck_ok(ek_data_parallel_model_forward_shards(&outputs, t->model, shards, 2, NULL));
  } else {
    ck_ok(ek_data_parallel_model_forward(&outputs, t->model, inputs, pair ? 1 : 2, NULL));
  }
  ck_ok(ek_data_parallel_criterion_forward(t->loss, &outputs, 1, pair ? &b->target : NULL, pair));
  if (loss != NULL) ck_ok(ek_data_parallel_criterion_loss(loss, NULL, t->loss));
  ck_ok(ek_data_parallel_criterion_backward(t->loss, &options));
  ek_shards_free(&shards[0]);
  ek_shards_free(&shards[1]);
  ek_shards_free(&outputs);
}

enum { WEIGHTS = IN * OUT + OUT, NUMBERS = WEIGHTS + OUT, STEPS = 3 };

static void read_parameter(double *numbers, const struct ck_training *t, const char *name,
                           bool gradient) {
  CK_GOT(ek_state_info, info, ek_state_find(&info, t->model, name));
  info.like.data = numbers;
  ck_ok(gradient ? ek_data_parallel_model_gradient(&info.like, t->model, name)
                 : ek_state_read(&info.like, t->model, name));
}

/* Steps of uneven micro-batches, one of them smaller than the group; then all numbers, and the loss
 * of the last step. */
static double train(struct ck_training *t, bool classes, bool cut, double numbers[NUMBERS]) {
  static const int64_t rows[] = {5, 1, 7, 2, 3, 8};
  ek_step_result result;
  struct batch b;
  for (int step = 0; step < STEPS; step++) {
    for (int micro = 0; micro < 2; micro++) {
      batch_make(&b, rows[2 * step + micro], classes, (uint64_t)(2 * step + micro));
      backward(t, &b, micro == 0, cut, NULL);
    }
    ck_ok(ek_data_parallel_optimizer_step(&result, t->optimizer));
  }
  memset(numbers, 0, NUMBERS * sizeof *numbers);
  read_parameter(numbers, t, "weight", false);
  read_parameter(numbers + (size_t)(IN * OUT), t, "bias", false);
  ek_state_info info;
  if (ek_state_find(&info, t->model, "criterion.bias") == EK_OK) {
    read_parameter(numbers + WEIGHTS, t, "criterion.bias", false);
  }
  return result.loss;
}

/* ---- the same numbers as the pair ---- */

static ek_criterion *entropy(void) {
  static const double weights[OUT] = {1, 0.5, 2, 0.25};
  CK_WITH(ek_cross_entropy_options, options, EK_CROSS_ENTROPY_OPTIONS_INIT, .ignore_index = -1,
          .class_weights = weights, .classes = OUT);
  CK_GOT(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, &options));
  return ck_keep(criterion);
}

/* Bit for bit: the same operations in the same order. Class weights are the model's buffer now. In
 * mode gather the pair adds up all rows on one device: 1e-12 leaves ten thousand roundings. */
CK_LOOP(equals_the_pair, 4) {
  const ek_mode mode = (ek_mode)_i;
  double numbers[2][NUMBERS], losses[2];
  for (int one = 0; one < 2; one++) {
    ek_criterion *criterion = entropy();
    struct ck_training t =
        one ? training_open("cpu:3", mode, ck_together(linear(), criterion), NULL)
            : training_open("cpu:3", mode, linear(), criterion);
    losses[one] = train(&t, true, false, numbers[one]);
  }
  if (mode == EK_MODE_GATHER) {
    ck_assert_double_eq_tol(losses[1], losses[0], 1e-12 * losses[0]);
    ck_assert_double_le(ck_rel_l2(numbers[1], numbers[0], WEIGHTS), 1e-12);
    return;
  }
  ck_same_bits("loss", &losses[1], &losses[0], 1);
  ck_same_bits("parameters", numbers[1], numbers[0], WEIGHTS);
}

CK_TEST(terms_and_coefficients) {
  double numbers[2][NUMBERS], losses[2];
  for (int one = 0; one < 2; one++) {
    ek_criterion *term = entropy();
    const double coefficient = 0.5;
    CK_OPENED(ek_criterion *, sum, ek_weighted_sum_create(&sum, &term, &coefficient, 1));
    struct ck_training t =
        one ? training_open("cpu:2", EK_MODE_REPLICATED, ck_together(linear(), sum), NULL)
            : training_open("cpu:2", EK_MODE_REPLICATED, linear(), sum);
    losses[one] = train(&t, true, false, numbers[one]);
  }
  ck_same_bits("loss", &losses[1], &losses[0], 1);
  ck_same_bits("parameters", numbers[1], numbers[0], WEIGHTS);
}

/* ---- a loss with parameters ---- */

/* Sums in another order: 1e-12 leaves ten thousand roundings of f64. */
CK_LOOP(trains_the_same_over_any_devices, 8) {
  const ek_mode mode = (ek_mode)(_i / 2);
  static const char *const specs[] = {"cpu:1", "cpu:2", "cpu:3"};
  double want[NUMBERS], got[NUMBERS], want_loss = 0;
  for (int k = 0; k < 3; k++) {
    struct ck_training t = training_open(specs[k], mode, ck_together(linear(), ck_biased()), NULL);
    const double loss = train(&t, false, _i % 2 == 1, got);
    if (k == 0) {
      want_loss = loss;
      memcpy(want, got, sizeof want);
      for (int c = 0; c < OUT; c++) ck_assert(want[WEIGHTS + c] != 0.25); /* it has learned */
    }
    ck_assert_double_eq_tol(loss, want_loss, 1e-12 * fabs(want_loss));
    ck_assert_double_le(ck_rel_l2(got, want, NUMBERS), 1e-12);
  }
}

static double loss_at(struct ck_training *t, const struct batch *b, const double *bias) {
  const ek_tensor inputs[] = {b->input, b->target};
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  double values[OUT], loss = 0;
  memcpy(values, bias, sizeof values);
  options.gradient = options.training = false;
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, values, EK_F64, CK_SHAPE(OUT)));
  ck_ok(ek_state_write(t->model, "criterion.bias", &host));
  CK_SCOPED(ek_shards, outputs,
            ek_data_parallel_model_forward(&outputs, t->model, inputs, 2, &options));
  ck_ok(ek_data_parallel_criterion_forward(t->loss, &outputs, 1, NULL, 0));
  ck_ok(ek_data_parallel_criterion_loss(&loss, NULL, t->loss));
  return loss;
}

/* The loss is quadratic in the bias, so a central difference has no error but rounding: that of two
 * losses of size 1 over a step of 2e-3 stays below 1e-12. */
CK_TEST(gradient_is_the_derivative) {
  struct ck_training t =
      training_open("cpu:3", EK_MODE_BALANCED, ck_together(linear(), ck_biased()), NULL);
  double gradient[OUT], bias[OUT];
  const double h = 1e-3;
  CK_SET_UP(struct batch, b, batch_make(&b, 7, false, 3));
  backward(&t, &b, false, false, NULL);
  read_parameter(gradient, &t, "criterion.bias", true);
  ck_ok(ek_data_parallel_model_discard(t.model));
  for (int c = 0; c < OUT; c++) {
    for (int i = 0; i < OUT; i++) bias[i] = 0.25;
    bias[c] = 0.25 + h;
    const double above = loss_at(&t, &b, bias);
    bias[c] = 0.25 - h;
    const double below = loss_at(&t, &b, bias);
    ck_assert_double_eq_tol(gradient[c], (above - below) / (2 * h), 1e-12);
  }
}

/* A trainer takes such a model without a criterion; its targets are inputs. */
CK_TEST(in_a_trainer) {
  ek_module *module = ck_together(linear(), ck_biased());
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_step_result first, last;
  double loss = 0, weight = 0;
  ek_group *group = ck_open("cpu:3", 1);
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .group = group,
          .model = &model_options);
  model_options.type = EK_F64;
  CK_SET_UP(struct batch, b, batch_make(&b, 5, false, 6));
  const ek_tensor inputs[] = {b.input, b.target};
  CK_OPENED(ek_optimizer *, rule, ek_sgd_create(&rule, NULL));
  CK_GOT(ek_trainer *, trainer, ek_trainer_open(&trainer, NULL, module, NULL, rule, &options));
  ck_ok(ek_trainer_evaluate(&loss, &weight, trainer, inputs, 2, NULL, 0));
  ck_ok(ek_trainer_step(&first, trainer, inputs, 2, NULL, 0));
  ck_assert_double_eq_tol(first.loss, loss, 1e-12);
  ck_assert(weight == 5 * SEQUENCE * OUT);
  for (int i = 0; i < 5; i++) ck_ok(ek_trainer_step(&last, trainer, inputs, 2, NULL, 0));
  ck_assert_double_lt(last.loss, first.loss);
  /* Targets may also come as those of a pair do. */
  double other = 0, again = 0;
  ck_ok(ek_trainer_evaluate(&loss, &weight, trainer, inputs, 2, NULL, 0));
  ck_ok(ek_trainer_evaluate(&other, &again, trainer, inputs, 1, &b.target, 1));
  ck_assert(loss == other && weight == again);
  ck_ok(ek_trainer_step(&last, trainer, inputs, 1, &b.target, 1));
  ck_assert_double_eq_tol(last.loss, loss, 1e-12);
  ck_invalid(ek_trainer_step(&last, trainer, inputs, 1, NULL, 0), "takes 2 inputs, not 1");
  ck_invalid(ek_trainer_step(&last, trainer, inputs, 2, &b.target, 1), "targets, not 1 and 1");
  ck_invalid(ek_trainer_evaluate(&loss, NULL, trainer, inputs, 1, NULL, 0),
             "takes 2 inputs and targets, not 1 and 0");
  /* Without targets: what the model gives. */
  CK_GOT(ek_shards, outputs, ek_trainer_predict(&outputs, trainer, inputs, 1));
  ck_assert_int_eq(outputs.offsets[3], 5);
  ck_assert_int_eq(outputs.parts[0].shape[2], OUT);
  ek_shards_free(&outputs);
  ck_ok(ek_trainer_close(trainer));
  trainer = NULL;
  ek_module *plain = linear();
  ck_invalid(ek_trainer_open(&trainer, NULL, plain, NULL, rule, &options), "criterion is NULL");
}

/* ---- gradients in forward ---- */

static ek_module *with_early_loss(int number, bool early) {
  const ek_reduction reduction = number == 1 ? EK_REDUCTION_SUM : EK_REDUCTION_MEAN;
  if (number < 2) return ck_together(linear(), ck_biased_with(early, reduction));
  ek_criterion *criterion = entropy();
  if (number == 3) {
    static const double half = 0.5; /* of the criterion, which the module takes over */
    criterion->private_members.coefficients = &half;
  }
  return ck_together(linear(), criterion);
}

/* A loss of the program's own, with a parameter, and cross-entropy: the numbers are those of a
 * backward that does it all, over micro-batches that are uneven and smaller than the group. The
 * gradient of cross-entropy is of the same formula: docs/numerics.md. */
CK_LOOP(in_forward_as_in_backward, 16) {
  const ek_mode mode = (ek_mode)(_i % 4);
  const int number = _i / 4;
  double numbers[2][NUMBERS], losses[2];
  for (int now = 0; now < 2; now++) {
    struct ck_training t =
        training_open_with("cpu:3", mode, with_early_loss(number, now == 1), NULL, now == 1);
    losses[now] = train(&t, number >= 2, now == 1, numbers[now]);
  }
  if (number < 2) {
    ck_same_bits("loss", &losses[1], &losses[0], 1);
    ck_same_bits("numbers", numbers[1], numbers[0], NUMBERS);
  } else {
    ck_assert_double_eq_tol(losses[1], losses[0], 1e-12 * fabs(losses[0]));
    ck_assert_double_le(ck_rel_l2(numbers[1], numbers[0], WEIGHTS), 1e-12);
  }
}

/* Gradients of parameters that forward has added to those of the step cannot be taken back: only
 * the backward of that forward may follow, or the end of the step. */
CK_TEST(what_forward_has_added) {
  struct ck_training t =
      training_open_with("cpu:2", EK_MODE_REPLICATED, with_early_loss(0, true), NULL, true);
  struct batch b, other;
  double want[NUMBERS], got[NUMBERS];
  batch_make(&b, 5, false, 1);
  batch_make(&other, 3, false, 2);
  const ek_tensor inputs[] = {b.input, b.target}, others[] = {other.input, other.target};
  ek_shards outputs = {0}, dropped = {0}, none = {0};
  ek_forward_options evaluation = EK_FORWARD_OPTIONS_INIT;
  evaluation.gradient = evaluation.training = false;
  backward(&t, &other, true, false, NULL);
  backward(&t, &b, false, false, NULL);
  read_parameter(want, &t, "criterion.bias", true);
  ck_ok(ek_data_parallel_model_discard(t.model));

  /* With nothing accumulated a forward may be dropped. */
  ck_ok(ek_data_parallel_model_forward(&dropped, t.model, inputs, 2, NULL));
  ek_shards_free(&dropped);
  backward(&t, &other, true, false, NULL);
  ck_ok(ek_data_parallel_model_forward(&outputs, t.model, inputs, 2, NULL));
  ck_fails(ek_data_parallel_model_forward(&none, t.model, others, 2, NULL), EK_ERR_STATE,
           "call its backward, or discard, first");
  ck_fails(ek_data_parallel_model_forward(&none, t.model, others, 2, &evaluation), EK_ERR_STATE,
           "call its backward, or discard, first");
  ck_fails(ek_data_parallel_model_backward(t.model, &outputs, 1, NULL), EK_ERR_STATE,
           "for a criterion's scale");
  ck_ok(ek_data_parallel_criterion_forward(t.loss, &outputs, 1, NULL, 0));
  ck_ok(ek_data_parallel_criterion_backward(t.loss, NULL));
  read_parameter(got, &t, "criterion.bias", true);
  ck_same_bits("gradient", got, want, OUT);
  ek_shards_free(&outputs);
  ck_ok(ek_data_parallel_model_discard(t.model));
  ck_ok(ek_data_parallel_model_forward(&outputs, t.model, others, 2, &evaluation));
  ek_shards_free(&outputs);
}

/* ---- memory ---- */

/* Logits are on the device once, as the pair has them, and the loss adds little. */
CK_TEST(logits_lie_there_once) {
  ek_group *group = ck_open("plan:2@16GiB", 1);
  const int64_t in[] = {64, 8}, targets[] = {64};
  float x[64 * 8] = {0};
  int32_t y[64] = {0};
  ek_tensor inputs[2];
  CK_GOT(ek_module *, head, ek_linear_create(&head, 8, 1000000, false));
  CK_GOT(ek_criterion *, criterion, ek_cross_entropy_create(&criterion, NULL));
  ek_module *module = ck_together(head, criterion);
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, module, NULL));
  CK_OPENED(ek_data_parallel_criterion *, loss,
            ek_data_parallel_criterion_open(&loss, model, NULL, NULL));
  ck_ok(ek_tensor_host(&inputs[0], x, EK_F32, 2, in));
  ck_ok(ek_tensor_host(&inputs[1], y, EK_I32, 1, targets));
  CK_OPENED(ek_shards, outputs, ek_data_parallel_model_forward(&outputs, model, inputs, 2, NULL));
  ck_ok(ek_data_parallel_criterion_forward(loss, &outputs, 1, NULL, 0));
  ck_ok(ek_data_parallel_criterion_backward(loss, NULL));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(group, 0)));
  ck_assert_uint_eq(usage.at_peak[EK_MEMORY_OUTPUTS], 32u * 1000000u * 4u);
  ck_assert_uint_le(usage.at_peak[EK_MEMORY_LOSS], 8 * EK_MEMORY_UNIT);
}

/* ---- what is refused ---- */

CK_TEST(parts_that_do_not_fit) {
  ek_module *model = linear(), *module = NULL;
  ek_criterion *criterion = entropy();
  const double weights[CK_ABSOLUTE_COLUMNS] = {1, 1, 1};
  ek_criterion *two = ck_keep(ck_pair(weights, weights, CK_NO_FAULT));
  CK_OPENED(ek_criterion *, single, ek_mean_squared_error_create(&single, EK_REDUCTION_NONE));
  ck_invalid(ek_with_criterion_create(NULL, model, criterion), "NULL");
  ck_invalid(ek_with_criterion_create(&module, NULL, criterion), "NULL");
  ck_invalid(ek_with_criterion_create(&module, model, NULL), "NULL");
  ck_invalid(ek_with_criterion_create(&module, model, single), "reduction none");
  ck_invalid(ek_with_criterion_create(&module, model, two), "takes 2 outputs, but linear has 1");
  ek_host_memory_fail_at(1);
  ck_fails(ek_with_criterion_create(&module, model, criterion), EK_ERR_OUT_OF_MEMORY, "memory");
  ek_host_memory_fail_at(0);
  ck_assert_int_eq(model->private_members.references, 1);
  CK_OPENED(ek_module *, whole, ek_with_criterion_create(&whole, model, criterion));
  ck_invalid(ek_with_criterion_create(&module, whole, criterion), "already has targets or a loss");
  ck_assert_ptr_null(module);

  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model *parallel = NULL;
  criterion->base.private_members.terms = 2; /* after they were put together */
  ck_fails(ek_data_parallel_model_open(&parallel, group, whole, NULL), EK_ERR_STATE,
           "cross_entropy changed");
  criterion->base.private_members.terms = 1;
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  options.broadcast_inputs = 2;
  ck_invalid(ek_data_parallel_model_open(&parallel, group, whole, &options), "names a target");
  ck_fails(ek_data_parallel_model_open(&parallel, group, &single->base, NULL), EK_ERR_UNSUPPORTED,
           "single losses");
  ck_assert_ptr_null(parallel);
}

/* The pair has no optimizer for the parameters of a loss. */
CK_TEST(pairs_that_do_not_fit) {
  ek_criterion *learns = ck_keep(ck_biased()), *plain = entropy();
  struct ck_training t = training_open("cpu:2", EK_MODE_SHARDED, linear(), plain);
  struct ck_training whole =
      training_open("cpu:2", EK_MODE_SHARDED, ck_together(linear(), ck_biased()), NULL);
  ek_data_parallel_criterion *loss = NULL;
  ck_fails(ek_data_parallel_criterion_open(&loss, t.model, learns, NULL), EK_ERR_UNSUPPORTED,
           "biased has parameters: join it with the model");
  ck_invalid(ek_data_parallel_criterion_open(&loss, t.model, NULL, NULL), "criterion is NULL");
  ck_invalid(ek_data_parallel_criterion_open(&loss, whole.model, plain, NULL),
             "computes its loss itself");
  ck_assert_ptr_null(loss);
}

/* Bad targets lose nothing: what was accumulated is still there. */
CK_TEST(wrong_targets) {
  struct ck_training t =
      training_open("cpu:3", EK_MODE_REPLICATED, ck_together(linear(), entropy()), NULL);
  struct batch b, few;
  ek_shards outputs = {0}, shards[2] = {{0}};
  batch_make(&b, 5, true, 1);
  batch_make(&few, 4, true, 2);
  backward(&t, &b, true, false, NULL);
  const ek_tensor uneven[] = {b.input, few.target}; /* 8 rows, 5 samples */
  ck_fails(ek_data_parallel_model_forward(&outputs, t.model, uneven, 2, NULL), EK_ERR_SHAPE,
           "input number 1: 8 rows are not a multiple of 5 samples");
  ck_ok(ek_scatter(&shards[0], t.group, &b.input, EK_MEMORY_INPUTS, NULL));
  ck_ok(ek_scatter(&shards[1], t.group, &b.target, EK_MEMORY_INPUTS, NULL)); /* 10 rows: 4 3 3 */
  ck_fails(ek_data_parallel_model_forward_shards(&outputs, t.model, shards, 2, NULL), EK_ERR_SHAPE,
           "a target, is not cut at the samples");
  ek_shards_free(&shards[0]);
  ek_shards_free(&shards[1]);
  backward(&t, &b, false, false, NULL);
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
}

static ek_status try_step(struct ck_training *t, const ek_tensor *inputs) {
  ek_shards outputs = {0};
  ek_status status = ek_data_parallel_model_forward(&outputs, t->model, inputs, 2, NULL);
  if (status == EK_OK) status = ek_data_parallel_criterion_forward(t->loss, &outputs, 1, NULL, 0);
  if (status == EK_OK) status = ek_data_parallel_criterion_backward(t->loss, NULL);
  if (status == EK_OK) status = ek_data_parallel_optimizer_step(NULL, t->optimizer);
  ek_shards_free(&outputs);
  return status;
}

/* Whatever allocation of a step fails, the parameters are those of before, and the next goes well.
 */
CK_LOOP(a_failure_anywhere, 2) {
  struct ck_training t =
      training_open_with("cpu:2", EK_MODE_REPLICATED, with_early_loss(0, _i == 1), NULL, _i == 1);
  double before[OUT], after[OUT];
  CK_SET_UP(struct batch, b, batch_make(&b, 5, false, 4));
  const ek_tensor inputs[] = {b.input, b.target};
  read_parameter(before, &t, "criterion.bias", false);
  uint64_t n = 0;
  while (ck_device_fails(&n, ek_group_device(t.group, 1), try_step(&t, inputs))) {
    read_parameter(after, &t, "criterion.bias", false);
    ck_same_bits("bias", after, before, OUT);
  }
}

CK_SUITE("with_criterion")
