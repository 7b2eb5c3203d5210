/*
 * check_step_terms.c - a loss of several mean terms over the micro-batches of a step is that of one
 * batch, with unequal numbers of ignored targets: loss, weight and gradient. Where the library
 * cannot know the weights of the whole step it refuses; it never gives a mean of means.
 *
 * Tolerances: as for micro-batches of one term (docs/numerics.md, Data parallelism).
 */
#include "ck_mixer.h"
#include "ck_training.h"

enum { SAMPLES = 11, TERMS = 3, IGNORED = -100 };

/* ---- three outputs, of which two are logits ---- */

static const double class_weights[CK_MIXER_WIDTH] = {0.5, 2, 0.25};

static ek_status entropy(ek_criterion **criterion, ek_reduction reduction, bool weights) {
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = reduction,
          .ignore_index = IGNORED, .class_weights = weights ? class_weights : NULL,
          .classes = weights ? CK_MIXER_WIDTH : 0);
  return ek_cross_entropy_create(criterion, &o);
}

static ek_status three_terms(ek_criterion **criterion, ek_reduction reduction) {
  static const double coefficients[TERMS] = {1, 0.5, 2};
  ek_criterion *terms[TERMS] = {NULL};
  ck_ok(entropy(&terms[0], reduction, false));
  ck_ok(ek_mean_squared_error_create(&terms[1], reduction));
  ck_ok(entropy(&terms[2], reduction, true));
  return ck_weighted_sum(criterion, terms, coefficients, TERMS);
}

static const ek_tensor label = CK_LABELS(1);

static struct ck_workload workload(void) {
  CK_WITH(struct ck_workload, w, *ck_workload("mixer"), .criterion = three_terms,
          .sample.target[0] = label, .sample.target[2] = label,
          .classes = 3 /* of the width and the kinds the smaller */, .ignores = true);
  return w;
}

/* What the targets of a batch weigh in each term. */
static void weigh(double weights[TERMS], const struct ck_batch *batch) {
  memset(weights, 0, TERMS * sizeof *weights);
  weights[1] = (double)(batch->samples * CK_MIXER_WIDTH);
  for (int64_t i = 0; i < batch->samples; i++) {
    const int32_t a = ((const int32_t *)batch->target[0].data)[i];
    const int32_t b = ((const int32_t *)batch->target[2].data)[i];
    if (a != IGNORED) weights[0] += 1;
    if (b != IGNORED) weights[2] += class_weights[b];
  }
}

/* One micro-batch; `weights` may be NULL. */
static ek_status micro_batch(struct ck_training *t, const struct ck_batch *batch, int64_t first,
                             int64_t count, bool more, const double *weights) {
  const struct ck_batch part = ck_batch_samples(batch, first, count);
  ek_shards outputs[TERMS] = {{0}};
  CK_WITH(ek_criterion_backward_options, options, EK_CRITERION_BACKWARD_OPTIONS_INIT,
          .accumulate = more, .weights = weights);
  ek_status status =
      ek_data_parallel_model_forward(outputs, t->model, part.input, part.inputs, NULL);
  if (status == EK_OK) {
    status = ek_data_parallel_criterion_forward(t->loss, outputs, TERMS, part.target, part.targets);
  }
  if (status == EK_OK) status = ek_data_parallel_criterion_backward(t->loss, &options);
  for (int i = 0; i < TERMS; i++) ek_shards_free(&outputs[i]);
  return status;
}

struct bed {
  struct ck_workload workload;
  struct ck_setup setup;
  struct ck_batch batch;
  struct ck_training t;
};

static void bed_open(struct bed *bed, ek_type type, ek_mode mode, double ignored) {
  bed->workload = workload();
  bed->setup = ck_setup_mode(&bed->workload, "cpu:3", mode);
  bed->setup.options.type = type;
  bed->batch = ck_batch_make(&bed->workload, type, SAMPLES, ignored, 61);
  bed->t = ck_training_opened(&bed->setup);
}

/* ---- */

/* With the weights given, uneven micro-batches give what one batch gives. */
CK_LOOP(uneven_micro_batches, 2 * CK_MODES) {
  struct bed bed, one;
  double weights[TERMS];
  ek_step_result got, want;
  const ek_type type = _i % 2 == 0 ? EK_F32 : EK_F64;
  const double allowed = type == EK_F32 ? 1e-6 : 1e-12;
  bed_open(&bed, type, (ek_mode)(_i / 2), 0.4);
  bed_open(&one, type, (ek_mode)(_i / 2), 0.4);
  weigh(weights, &bed.batch);
  for (int step = 0; step < 2; step++) { /* the weights of a step are forgotten with it */
    ck_ok(micro_batch(&bed.t, &bed.batch, 0, 2, true, weights));
    ck_ok(micro_batch(&bed.t, &bed.batch, 2, 8, true, weights));
    ck_ok(micro_batch(&bed.t, &bed.batch, 10, 1, false, weights));
    ck_ok(micro_batch(&one.t, &one.batch, 0, SAMPLES, false, NULL));
    double *a = ck_training_read(&bed.t, CK_GRADIENTS);
    double *b = ck_training_read(&one.t, CK_GRADIENTS);
    const double error = ck_arrays_off(a, b);
    ck_assert_double_le(error, step == 0 ? allowed : 10 * allowed);
    ck_ok(ek_data_parallel_optimizer_step(&got, bed.t.optimizer));
    ck_ok(ek_data_parallel_optimizer_step(&want, one.t.optimizer));
    ck_assert_double_eq_tol(got.loss, want.loss, 10 * allowed * fabs(want.loss));
    ck_assert_double_eq(got.weight, want.weight);
  }
}

/* Without them the second micro-batch is refused, and the step can be made in one batch. */
CK_LOOP(unknown_weights_are_refused, CK_MODES) {
  CK_SET_UP(struct bed, bed, bed_open(&bed, EK_F32, (ek_mode)_i, 0.4));
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, 2, true, NULL));
  ck_fails(micro_batch(&bed.t, &bed.batch, 2, 9, false, NULL), EK_ERR_STATE, "options.weights");
  ck_fails(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer), EK_ERR_STATE, "no backward");
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, SAMPLES, false, NULL));
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, bed.t.optimizer));
}

/* Nothing ignored: micro-batches of any size weigh the terms in the same ratios, up to class
 * weights, which are left out here by giving all targets one class. */
CK_LOOP(equal_ratios_need_no_weights, CK_MODES) {
  struct bed bed, one;
  bed_open(&bed, EK_F64, (ek_mode)_i, 0);
  bed_open(&one, EK_F64, (ek_mode)_i, 0);
  struct bed *both[] = {&bed, &one};
  for (int b = 0; b < 2; b++) {
    for (int i = 0; i < SAMPLES; i++) ((int32_t *)both[b]->batch.target[2].data)[i] = 1;
  }
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, 7, true, NULL));
  ck_ok(micro_batch(&bed.t, &bed.batch, 7, 4, false, NULL));
  ck_ok(micro_batch(&one.t, &one.batch, 0, SAMPLES, false, NULL));
  double *a = ck_training_read(&bed.t, CK_GRADIENTS);
  double *b = ck_training_read(&one.t, CK_GRADIENTS);
  ck_assert_double_le(ck_arrays_off(a, b), 1e-12);
}

/* Weights that are not those of the targets update nothing. */
CK_LOOP(wrong_weights, CK_MODES) {
  double weights[TERMS], other[TERMS];
  CK_SET_UP(struct bed, bed, bed_open(&bed, EK_F32, (ek_mode)_i, 0.4));
  weigh(weights, &bed.batch);
  memcpy(other, weights, sizeof other);
  other[2] += 0.25;
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, 4, true, other));
  ck_ok(micro_batch(&bed.t, &bed.batch, 4, 7, false, other));
  double *before = ck_training_read(&bed.t, CK_VALUES);
  ck_invalid(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer), "term number 2");
  double *after = ck_training_read(&bed.t, CK_VALUES);
  ck_arrays_same("values", after, before);
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, 4, true, weights));
  ck_invalid(micro_batch(&bed.t, &bed.batch, 4, 3, true, other), "each time with the same values");
  ck_invalid(micro_batch(&bed.t, &bed.batch, 4, 3, true, NULL), "had weights");
  other[0] = NAN;
  ck_invalid(micro_batch(&bed.t, &bed.batch, 4, 3, true, other), "weight number 0");
  ck_ok(micro_batch(&bed.t, &bed.batch, 4, 7, true, weights)); /* refused calls lost nothing */
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
}

/* ---- losses without weight ---- */

/* Smoothed cross-entropies in which class 1 weighs nothing. */
static ek_status smoothed_terms(ek_criterion **criterion, ek_reduction reduction) {
  static const double coefficients[TERMS] = {1, 1, 1}, weightless[CK_MIXER_WIDTH] = {1, 0, 2};
  ek_criterion *terms[TERMS] = {NULL};
  CK_WITH(ek_cross_entropy_options, o, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = reduction,
          .label_smoothing = 0.25, .class_weights = weightless, .classes = CK_MIXER_WIDTH);
  for (int i = 0; i < TERMS; i++) ck_ok(ek_cross_entropy_create(&terms[i], &o));
  return ck_weighted_sum(criterion, terms, coefficients, TERMS);
}

/* {s, 0} in a micro-batch: the scales of its terms are not known yet. */
CK_LOOP(losses_without_weight, CK_MODES) {
  struct bed bed;
  ck_assign(bed, .workload = workload(), .workload.criterion = smoothed_terms,
            .workload.sample.target[1] = label);
  bed.setup = ck_setup_mode(&bed.workload, "cpu:3", (ek_mode)_i);
  bed.batch = ck_batch_make(&bed.workload, EK_F32, SAMPLES, 0, 61);
  for (int i = 0; i < TERMS; i++) {
    for (int row = 0; row < 4; row++) ((int32_t *)bed.batch.target[i].data)[row] = 1;
  }
  bed.t = ck_training_opened(&bed.setup);
  ck_fails(micro_batch(&bed.t, &bed.batch, 0, 4, true, NULL), EK_ERR_STATE, "a weight of 0");
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, SAMPLES, false, NULL));
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
}

/* Two criteria of several terms cannot share a step. */
CK_TEST(another_loss_in_the_step) {
  struct ck_training other;
  CK_SET_UP(struct bed, bed, bed_open(&bed, EK_F32, EK_MODE_REPLICATED, 0));
  other = bed.t;
  ck_ok(ek_data_parallel_criterion_open(&other.loss, bed.t.model, bed.t.criterion, NULL));
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, 4, true, NULL));
  ck_fails(micro_batch(&other, &bed.batch, 4, 7, false, NULL), EK_ERR_STATE, "another loss");
  ek_data_parallel_criterion_free(other.loss);
}

/* The weights of a step end with it, also where the next one is a single batch without any. */
CK_TEST(the_next_step_has_no_weights) {
  double weights[TERMS];
  CK_SET_UP(struct bed, bed, bed_open(&bed, EK_F32, EK_MODE_REPLICATED, 0.4));
  weigh(weights, &bed.batch);
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, SAMPLES, false, weights));
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, SAMPLES, false, NULL));
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
}

/* Weights are checked before the update, by a criterion that may be gone then. */
CK_TEST(the_criterion_is_freed_before_the_update) {
  double weights[TERMS];
  CK_SET_UP(struct bed, bed, bed_open(&bed, EK_F32, EK_MODE_REPLICATED, 0.4));
  weigh(weights, &bed.batch);
  weights[0] += 1; /* which the criterion would refuse */
  ck_ok(micro_batch(&bed.t, &bed.batch, 0, SAMPLES, false, weights));
  ek_data_parallel_criterion_free(bed.t.loss);
  bed.t.loss = NULL;
  ck_ok(ek_data_parallel_optimizer_step(NULL, bed.t.optimizer));
}

CK_SUITE("terms of a step")
