/*
 * check_linear_cross_entropy.c - a head and its loss in one against the two apart: all options, any
 * block, every mode; by its memory, with every allocation failing once, and what is refused. A head
 * alone, in a pass of its own: tests/whole/check_fused_head.c.
 */
#include "ck_parent.h"
#include "ck_training.h"

/* ---- a body, a head and a loss: apart, or the last two in one ---- */

struct setting {
  int64_t width, classes, columns;         /* columns: of the logits, padding included */
  bool bias, weights, ignore, whole_scale; /* whole_scale: gradients wait for backward */
  double smoothing;
  ek_reduction reduction;
  uint64_t logits_bytes;
  ek_mode mode;
  ek_type type;
  double class_weight[64];
};

enum { IGNORED = -7, MOST_SAMPLES = 9, TOKENS = 3 };

static ek_cross_entropy_options criterion_options(const struct setting *s) {
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = s->reduction,
          .ignore_index = IGNORED, .label_smoothing = s->smoothing);
  if (s->weights) o.class_weights = s->class_weight;
  if (s->weights || s->classes < s->columns) o.classes = s->classes;
  return o;
}

static ek_module *body(const struct setting *s) {
  CK_OPENED(ek_module *, module, ek_linear_create(&module, s->width, s->width, true));
  return module;
}

static ek_criterion *fused(const struct setting *s) {
  const ek_cross_entropy_options loss = criterion_options(s);
  ek_criterion *criterion = NULL;
  CK_WITH(ek_linear_cross_entropy_options, o, EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT, .loss = &loss,
          .bias = s->bias);
  if (s->logits_bytes > 0) o.logits_bytes = s->logits_bytes;
  ck_ok(ek_linear_cross_entropy_create(&criterion, s->width, s->columns, &o));
  return ck_keep(criterion);
}

static ek_module *together(ek_module *model, ek_criterion *criterion) {
  CK_WITH(ek_with_criterion_options, o, EK_WITH_CRITERION_OPTIONS_INIT, .name = "head");
  CK_GOT(ek_module *, module, ek_with_criterion_create_with(&module, model, criterion, &o));
  return ck_keep(module);
}

/* The same names: "weight" and "bias" of the body, "head.weight" and "head.bias". */
CK_PARAMETERS(apart) {
  EK_TRY(ck_parent_wraps(self, declaration));
  return ek_declare_module(declaration, "head", ck_child(self, 1));
}

static const ek_module_ops apart_ops = {
    CK_OPS("apart", ck_parent_forward, ck_parent_backward, ck_parent_free),
    .parameters = apart_parameters, .types = EK_TYPES_F32 | EK_TYPES_F64};

static ek_module *apart(const struct setting *s) {
  struct ck_parent *a = ck_module_new(sizeof *a, &apart_ops, 1, 1);
  ck_ok(ek_linear_create(&a->children[0], s->width, s->width, true));
  ck_ok(ek_linear_create(&a->children[1], s->width, s->columns, s->bias));
  return ck_keep(&a->base);
}

/* ---- batches ---- */

struct batch {
  float f[MOST_SAMPLES * TOKENS * 64];
  double d[MOST_SAMPLES * TOKENS * 64];
  int32_t t[MOST_SAMPLES * TOKENS];
  ek_tensor x[2]; /* the input and the target */
};

static void batch_make(struct batch *b, const struct setting *s, int64_t samples, uint64_t number) {
  struct ck_random random = ck_random_start(number);
  const int64_t in[] = {samples, TOKENS, s->width}, out[] = {samples, TOKENS};
  for (int64_t i = 0; i < samples * TOKENS * s->width; i++) {
    b->f[i] = (float)ck_random_uniform(&random, -2, 2);
    b->d[i] = (double)b->f[i];
  }
  for (int64_t i = 0; i < samples * TOKENS; i++) {
    b->t[i] = (int32_t)ck_random_integer(&random, 0, s->classes - 1);
    if (s->ignore && ck_random_integer(&random, 0, 2) == 0) b->t[i] = IGNORED;
  }
  ck_ok(ek_tensor_host(&b->x[0], s->type == EK_F64 ? (void *)b->d : b->f, s->type, 3, in));
  ck_ok(ek_tensor_host(&b->x[1], b->t, EK_I32, 2, out));
}

/* ---- a training of either ---- */

static struct ck_training training_open(const struct setting *s, const char *spec, bool one) {
  const ek_cross_entropy_options loss = criterion_options(s);
  ek_criterion *criterion = NULL;
  if (!one) ck_ok(ek_cross_entropy_create(&criterion, &loss));
  CK_WITH(struct ck_setup, setup, ck_setup_own(NULL, criterion, spec, s->mode),
          .module = one ? together(body(s), fused(s)) : apart(s), .options.type = s->type,
          .options.seed = 11, .gradient_in_forward = !s->whole_scale, .optimizer = ck_plain_sgd);
  return ck_training_opened(&setup);
}

static ek_status try_backward(struct ck_training *t, const struct batch *b, bool accumulate) {
  const bool one = ek_module_terms(t->module) > 0;
  ek_shards outputs = {0};
  ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  o.accumulate = accumulate;
  ek_status status = ek_data_parallel_model_forward(&outputs, t->model, b->x, one ? 2 : 1, NULL);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_forward(t->loss, &outputs, 1, one ? NULL : &b->x[1], !one);
  }
  if (status == EK_OK) status = ek_data_parallel_criterion_backward(t->loss, &o);
  ek_shards_free(&outputs);
  return status;
}

enum { NUMBERS = 4096 };

/* Gradients of all parameters, one after the other; returns how many numbers. */
static int64_t read_gradients(double numbers[NUMBERS], const struct ck_training *t,
                              const struct setting *s) {
  static const char *const names[] = {"weight", "bias", "head.weight", "head.bias"};
  int64_t count = 0;
  for (int i = 0; i < (s->bias ? 4 : 3); i++) {
    float f[NUMBERS];
    CK_GOT(ek_state_info, info, ek_state_find(&info, t->model, names[i]));
    const int64_t own = ek_tensor_count(&info.like);
    ck_assert_int_le(count + own, NUMBERS);
    info.like.data = s->type == EK_F64 ? (void *)(numbers + count) : f;
    ck_ok(ek_data_parallel_model_gradient(&info.like, t->model, names[i]));
    for (int64_t k = 0; k < own && s->type != EK_F64; k++) numbers[count + k] = (double)f[k];
    count += own;
  }
  return count;
}

/* A step of two micro-batches, one of them smaller than the group. */
static double step(struct ck_training *t, const struct setting *s, double gradients[NUMBERS],
                   int64_t *count) {
  CK_SET_UP(struct batch, b, batch_make(&b, s, MOST_SAMPLES - 2, 1));
  ck_ok(try_backward(t, &b, true));
  batch_make(&b, s, 2, 2);
  ck_ok(try_backward(t, &b, false));
  *count = read_gradients(gradients, t, s);
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, t->optimizer));
  return result.loss;
}

/* ---- the numbers of the two apart ---- */

static struct setting random_setting(int number) {
  struct ck_random random = ck_random_start(100 + (uint64_t)number);
  struct setting s = {.width = ck_random_integer(&random, 1, 20),
                      .classes = ck_random_integer(&random, 1, 40), .bias = number % 2 == 1,
                      .weights = number / 2 % 2 == 1, .ignore = number / 4 % 2 == 1,
                      .whole_scale = number / 8 % 2 == 1,
                      .smoothing = number / 16 % 2 == 1 ? 0.125 : 0,
                      .reduction = number % 5 == 0 ? EK_REDUCTION_SUM : EK_REDUCTION_MEAN,
                      .mode = (ek_mode)(number % 4), .type = number % 3 == 0 ? EK_F32 : EK_F64};
  s.columns = s.classes + (number / 32 % 2 == 1 ? ck_random_integer(&random, 1, 20) : 0);
  for (int i = 0; i < 64; i++) s.class_weight[i] = (double)ck_random_integer(&random, 0, 8) / 4;
  /* From less than a row to more than there are. */
  s.logits_bytes = (uint64_t)ck_random_integer(&random, 1, 12 * s.columns * 8);
  return s;
}

/* 64 settings of all options, each over one to four devices. Sums run in another order, over at
 * most 40 classes, 20 columns and 27 rows, three of them one after the other: docs/numerics.md. */
CK_PART_LOOP(equals_the_two_apart, 64) {
  const struct setting s = random_setting(_i);
  const char *const specs[] = {"cpu:1", "cpu:2", "cpu:3", "cpu:4"};
  static double want[NUMBERS], got[NUMBERS];
  int64_t count = 0;
  struct ck_training t = training_open(&s, "cpu:1", false);
  const double want_loss = step(&t, &s, want, &count);
  t = training_open(&s, specs[_i / 4 % 4], true);
  const double loss = step(&t, &s, got, &count);
  const double unit = s.type == EK_F64 ? 0x1p-53 : 0x1p-24;
  ck_assert_double_eq_tol(loss, want_loss, 256 * unit * (1 + fabs(want_loss)));
  ck_assert_double_le(ck_rel_l2(got, want, count), 256 * unit);
}

/* In f64 a row's logits are added up in one order, whatever the block; sums of single losses are
 * regrouped by blocks. */
CK_LOOP(any_block, 2) {
  static const uint64_t rows[] = {0, 1, 2, 3, 5, 7, 16, 1000};
  static double want[NUMBERS], got[NUMBERS];
  double want_loss = 0;
  int64_t count = 0;
  CK_WITH(struct setting, s, random_setting(13), .type = _i == 0 ? EK_F64 : EK_F32);
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    const size_t mark = ck_mark();
    s.logits_bytes = rows[k] * (uint64_t)s.columns * (_i == 0 ? 8 : 4) + 1;
    struct ck_training t = training_open(&s, "cpu:2", true);
    const double loss = step(&t, &s, k == 0 ? want : got, &count);
    ck_release(mark);
    if (k == 0) {
      want_loss = loss;
      continue;
    }
    const double unit = _i == 0 ? 0x1p-53 : 0x1p-24;
    ck_assert_double_eq_tol(loss, want_loss, 64 * unit * want_loss);
    ck_assert_double_le(ck_rel_l2(got, want, count), 64 * unit);
  }
}

/* ---- what every module must keep ---- */

CK_TEST(as_a_module) {
  struct setting s = {.width = 6, .classes = 11, .columns = 13, .bias = true, .smoothing = 0.125,
                      .logits_bytes = 300};
  const ek_check_input inputs[] = {{.rank = 3, .shape = {4, 2, 6}, .low = -1, .high = 1},
                                   {.type = EK_I32, .rank = 2, .shape = {4, 2}, .high = 10}};
  ek_criterion *criterion = fused(&s);
  ek_module *module = together(body(&s), fused(&s));
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT, .depth = 40);
  ck_ok(ek_module_check(&criterion->base, test_devices("cpu:2"), inputs, 2, &options));
  ck_ok(ek_module_check(module, test_devices("cpu:2"), inputs, 2, &options));
}

/* A term of a weighted sum has a scale that is not known in forward. */
CK_TEST(as_a_term) {
  struct setting s = {.width = 4, .classes = 7, .columns = 7, .type = EK_F64, .logits_bytes = 200};
  static double want[NUMBERS], got[NUMBERS];
  int64_t count = 0;
  struct ck_training t = training_open(&s, "cpu:2", true);
  CK_SET_UP(struct batch, b, batch_make(&b, &s, 5, 3));
  ck_ok(try_backward(&t, &b, false));
  count = read_gradients(want, &t, &s);

  ek_criterion *terms[2] = {fused(&s), NULL};
  const double coefficients[] = {0.5, 0};
  ck_kept(ek_mean_squared_error_create(&terms[1], EK_REDUCTION_MEAN), terms[1]);
  CK_OPENED(ek_criterion *, sum, ek_weighted_sum_create(&sum, terms, coefficients, 1));
  ek_data_parallel_criterion_options how = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  ek_group *group = ck_open("cpu:2", 1);
  CK_WITH(ek_data_parallel_model_options, o, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT, .type = EK_F64,
          .seed = 11);
  how.gradient_in_forward = true;
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, together(body(&s), sum), &o));
  CK_OPENED(ek_data_parallel_criterion *, loss,
            ek_data_parallel_criterion_open(&loss, model, NULL, &how));
  /* The names differ, "head.0.weight", and so do the initial values: make them equal. */
  struct ck_training other = training_open(&s, "cpu:2", true);
  static double values[NUMBERS];
  CK_GOT(ek_state_info, info, ek_state_find(&info, other.model, "head.weight"));
  info.like.data = values;
  ck_ok(ek_state_read(&info.like, other.model, "head.weight"));
  ck_ok(ek_state_write(model, "head.0.weight", &info.like));
  CK_GOT(ek_shards, outputs, ek_data_parallel_model_forward(&outputs, model, b.x, 2, NULL));
  ck_ok(ek_data_parallel_criterion_forward(loss, &outputs, 1, NULL, 0));
  ck_ok(ek_data_parallel_criterion_backward(loss, NULL));
  ek_shards_free(&outputs);
  info.like.data = got;
  ck_ok(ek_data_parallel_model_gradient(&info.like, model, "head.0.weight"));
  for (int64_t i = 0; i < 4 * 7; i++) got[i] *= 2;
  ck_assert_double_le(ck_rel_l2(got, want + (count - 4 * 7), 4 * 7), 64 * 0x1p-53);
}

/* ---- memory ---- */

static void peaks_of(ek_memory_usage usage[3], const struct setting *s, const char *spec) {
  struct batch b;
  struct ck_training t = training_open(s, spec, true);
  for (int i = 0; i < 2; i++) {
    batch_make(&b, s, MOST_SAMPLES, 1);
    ck_ok(try_backward(&t, &b, true));
    ck_ok(try_backward(&t, &b, false));
    ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
  }
  for (size_t k = 0; k < 3; k++) ck_ok(ck_memory_stats(&usage[k], ek_group_device(t.group, k)));
}

/* Planned to the byte; and of logits there is a block. */
CK_LOOP(planned_and_small, 8) {
  struct setting s = {.width = 8, .classes = 60, .columns = 60, .type = EK_F32};
  ck_assign(s, .mode = (ek_mode)(_i % 4), .whole_scale = _i / 4 == 1, .logits_bytes = 2 * 60 * 4);
  ek_memory_usage real[3], plan[3];
  peaks_of(real, &s, "cpu:3");
  peaks_of(plan, &s, "plan:3");
  for (size_t k = 0; k < 3; k++) {
    ck_assert_uint_eq(real[k].peak_bytes, plan[k].peak_bytes);
    ck_assert_uint_le(real[k].at_peak[EK_MEMORY_LOSS], s.logits_bytes + 10 * EK_MEMORY_UNIT);
  }
}

/* As many logits as the default allows, of a vocabulary of 40,000 and 2000 rows. */
CK_TEST(at_most_64_mib) {
  ek_group *group = ck_open("plan:1@64GiB", 1);
  CK_OPENED(ek_criterion *, criterion, ek_linear_cross_entropy_create(&criterion, 64, 40000, NULL));
  CK_OPENED(ek_replica *, replica,
            ek_replica_open(&replica, ek_group_device(group, 0), &criterion->base, NULL));
  CK_OPENED(ek_tensor, x,
            ek_tensor_create(&x, ek_group_device(group, 0), EK_MEMORY_OUTPUTS, EK_F32,
                             CK_SHAPE(2000, 64)));
  CK_OPENED(
      ek_tensor, y,
      ek_tensor_create(&y, ek_group_device(group, 0), EK_MEMORY_INPUTS, EK_I32, CK_SHAPE(2000)));
  const ek_tensor inputs[] = {x, y};
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .promise.overwrite_inputs = true,
          .promise.gradient_now = 1);
  CK_OPENED(ek_pass *, pass, ek_pass_open(&pass, replica, &options));
  CK_OPENED(ek_tensor, totals, ek_pass_run_forward(&totals, pass, inputs));
  CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(group, 0)));
  ck_assert_uint_le(usage.at_peak[EK_MEMORY_OUTPUTS] + usage.at_peak[EK_MEMORY_LOSS], 64u << 20);
  ck_assert_uint_eq(usage.current[EK_MEMORY_LOSS], EK_MEMORY_UNIT); /* totals */
}

/* ---- what goes wrong ---- */

/* Whatever allocation of a step fails: nothing is held, and the next step is that of before. */
CK_LOOP(a_failure_anywhere, 2) {
  static double want[NUMBERS], got[NUMBERS];
  int64_t count = 0;
  CK_WITH(struct setting, s, random_setting(5 + 8 * _i), .type = EK_F64);
  CK_SET_UP(struct batch, b, batch_make(&b, &s, 5, 4));
  struct ck_training t = training_open(&s, "cpu:2", true);
  ck_ok(try_backward(&t, &b, false));
  count = read_gradients(want, &t, &s);
  ck_ok(ek_data_parallel_model_discard(t.model));
  uint64_t n = 0;
  while (ck_device_fails(&n, ek_group_device(t.group, 1), try_backward(&t, &b, false))) {
  }
  read_gradients(got, &t, &s);
  ck_same_bits("gradients", got, want, count);
  ck_ok(ek_data_parallel_model_discard(t.model));
}

static ek_status create(int64_t in, int64_t out, const ek_linear_cross_entropy_options *o) {
  ek_criterion *criterion = NULL;
  const ek_status status = ek_linear_cross_entropy_create(&criterion, in, out, o);
  ck_assert_int_eq(status == EK_OK, criterion != NULL);
  ek_criterion_free(criterion);
  return status;
}

CK_TEST(refused) {
  static const double weights[] = {1, 1, 1};
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  ek_cross_entropy_options loss = EK_CROSS_ENTROPY_OPTIONS_INIT;
  ek_linear_cross_entropy_options o = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ck_fails(ek_linear_cross_entropy_create(NULL, 3, 5, NULL), bad, "NULL");
  ck_fails(create(0, 5, NULL), bad, "sizes are 0 -> 5");
  ck_fails(create(3, -1, NULL), bad, "sizes are 3 -> -1");
  ck_bad_with(bad, o, logits_bytes, 0, create(3, 5, &o), "logits_bytes is 0");
  o.loss = &loss;
  loss.label_smoothing = 2;
  ck_fails(create(3, 5, &o), bad, "linear_cross_entropy: label_smoothing is 2");
  ck_assign(loss, .label_smoothing = 0, .classes = 6);
  ck_fails(create(3, 5, &o), bad, "6 classes, but 5 logits");
  ck_assign(loss, .classes = 3, .class_weights = weights, .reduction = (ek_reduction)9);
  ck_fails(create(3, 5, &o), bad, "unknown reduction 9");
  loss.reduction = EK_REDUCTION_MEAN;
  for (uint64_t n = 1; n <= 2; n++) {
    ek_host_memory_fail_at(n);
    ck_fails(create(3, 5, &o), EK_ERR_OUT_OF_MEMORY, "out of host memory for linear_cross_entropy");
    ek_host_memory_fail_at(0);
  }
  ck_ok(create(3, 5, &o));
}

/* In a pair no optimizer trains its weight; the error says what to do. */
CK_TEST(inputs_that_do_not_fit) {
  struct setting s = {.width = 4, .classes = 7, .columns = 7, .type = EK_F32, .logits_bytes = 60};
  ek_shards outputs = {0};
  ek_data_parallel_criterion *pair = NULL;
  ek_criterion *criterion = fused(&s);
  struct ck_training t = training_open(&s, "cpu:2", false);
  ck_fails(ek_data_parallel_criterion_open(&pair, t.model, criterion, NULL), EK_ERR_UNSUPPORTED,
           "linear_cross_entropy has parameters: join it with the model");

  t = training_open(&s, "cpu:2", true);
  CK_SET_UP(struct batch, b, batch_make(&b, &s, 5, 4));
  b.t[10] = 7; /* row 1 of device 1, in its second block; a GPU says so when it is asked */
  ck_invalid(try_backward(&t, &b, false) == EK_OK ? ek_group_synchronize(t.group)
                                                  : EK_ERR_INVALID_ARGUMENT,
             "target 7 at row 10 of the batch is outside");
  ck_ok(ek_data_parallel_model_discard(t.model));
  b.t[10] = 0;
  const int64_t wide[] = {5, TOKENS, 5}, few[] = {5};
  ck_ok(ek_tensor_host(&b.x[0], b.f, EK_F32, 3, wide));
  ck_fails(try_backward(&t, &b, false), EK_ERR_SHAPE, "linear, forward: input has 5 columns");
  batch_make(&b, &s, 5, 4);
  ck_ok(ek_tensor_host(&b.x[1], b.t, EK_I32, 1, few));
  ck_fails(try_backward(&t, &b, false), EK_ERR_SHAPE,
           "head (linear_cross_entropy), forward: 3 targets for 9 rows");
  batch_make(&b, &s, 5, 4);
  ck_invalid(ek_data_parallel_model_forward(&outputs, t.model, b.x, 1, NULL),
             "takes 2 inputs, not 1");
  ck_ok(try_backward(&t, &b, false));
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
}

CK_SUITE("linear_cross_entropy")
