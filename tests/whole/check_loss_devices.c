/*
 * check_loss_devices.c - losses with ignored elements, soft targets and several outputs over uneven
 * shards and devices without rows: the training is that of one device.
 *
 * All in f64, where two cuts differ by the order of sums: losses and parameters agree to 1e-12,
 * relative, after three steps.
 */
#include "ck_training.h"

enum { IN = 5, OUT = 6, SIDE = 8, COLOURS = 3, CLASSES = 4 };

/* ---- losses of a linear layer ---- */

static ek_status linear(ek_module **module) { return ek_linear_create(module, IN, OUT, true); }

static ek_status element_loss(ek_criterion **criterion, ek_element_loss loss,
                              ek_reduction reduction, bool weighted) {
  CK_WITH(ek_elementwise_loss_options, options, EK_ELEMENTWISE_LOSS_OPTIONS_INIT,
          .reduction = reduction, .weighted = weighted, .by_sample = !weighted);
  return ek_elementwise_loss_create_with(criterion, &loss, &options);
}

static ek_status masked(ek_criterion **criterion, ek_reduction reduction) {
  return element_loss(criterion, ek_smooth_absolute_error(0.5), reduction, true);
}
static ek_status masked_binary(ek_criterion **criterion, ek_reduction reduction) {
  return element_loss(criterion, ek_binary_cross_entropy_with(2), reduction, true);
}
static ek_status divergence(ek_criterion **criterion, ek_reduction reduction) {
  return element_loss(criterion, ek_divergence(false), reduction, false);
}
CK_ENTROPY(soft, .soft_targets = true, .label_smoothing = 0.125)

/* ---- segmentation: two outputs, one map for both ---- */

static ek_status fcn(ek_module **module) {
  CK_WITH(ek_batch_norm_options, norm, EK_BATCH_NORM_OPTIONS_INIT, .over = EK_BATCH_NORM_ALL);
  CK_WITH(ek_resnet_options, backbone, EK_RESNET_OPTIONS_INIT, .norm = &norm, .width = 2,
          .small_pictures = true);
  CK_WITH(ek_fcn_options, options, EK_FCN_OPTIONS_INIT, .backbone = &backbone, .classes = CLASSES,
          .dropout = 0);
  return ek_fcn_create(module, &options);
}

static ek_status pixels(ek_criterion **criterion, ek_reduction reduction) {
  static const double weights[CLASSES] = {0.5, 1, 2, 0.25}, coefficients[] = {1, 0.5};
  ek_criterion *terms[2] = {NULL, NULL};
  CK_WITH(ek_cross_entropy_options, options, EK_CROSS_ENTROPY_OPTIONS_INIT, .reduction = reduction,
          .ignore_index = 255, .class_weights = weights, .classes = CLASSES);
  for (int i = 0; i < 2; i++) ck_ok(ek_cross_entropy_create(&terms[i], &options));
  return ck_weighted_sum(criterion, terms, coefficients, 2);
}

/* ---- training ---- */

#define WITH_WEIGHTS                                                                               \
  {.inputs = 1, .targets = 2, .input = {CK_ROW(IN)}, .target = {CK_ROW(OUT), CK_ROW(OUT)}}
#define MAP {.type = EK_I32, .rank = 3, .shape = {1, SIDE, SIDE}}
#define MAPS                                                                                       \
  {.inputs = 1, .targets = 2, .input = {CK_ROW(SIDE, SIDE, COLOURS)}, .target = {MAP, MAP}}
static const struct ck_workload workloads[] = {
    {"smooth L1 with weights", linear, masked, WITH_WEIGHTS, 0, false},
    {"binary cross-entropy with weights", linear, masked_binary, WITH_WEIGHTS, 0, false},
    {"divergence by sample", linear, divergence, CK_SAMPLE(CK_ROW(IN), CK_ROW(OUT)), 0, false},
    {"soft targets", linear, soft, CK_SAMPLE(CK_ROW(IN), CK_ROW(OUT)), 0, false},
    {"pixels of two outputs", fcn, pixels, MAPS, CLASSES, false}};
enum { WORKLOADS = sizeof workloads / sizeof workloads[0], STEPS = 3 };

/* Targets become probabilities, with a row of zeros; weights become 0 (of a NaN), 1 or 2; of the
 * second sample's pixels all are ignored, and of the others some. */
static struct ck_batch make_batch(const struct ck_workload *workload, int64_t samples, int number) {
  struct ck_batch batch = ck_batch_make(workload, EK_F64, samples, 0, (uint64_t)number);
  double *t = batch.target[0].data, *w = batch.target[1].data;
  for (int64_t i = 0; workload->module == linear && i < samples * OUT; i++) {
    t[i] = i / OUT == 1 ? 0 : fmin(fabs(t[i]), 1);
    if (batch.targets < 2) continue;
    w[i] = i / OUT == 1 ? 0 : fmod(floor(fabs(w[i]) * 100), 3);
    if (w[i] == 0) t[i] = (double)NAN;
  }
  for (int64_t i = 0; workload->module == fcn && i < samples * SIDE * SIDE; i++) {
    int32_t *map = batch.target[0].data, *other = batch.target[1].data;
    if (i / SIDE / SIDE == 1 || i % 7 == 3) map[i] = 255;
    other[i] = map[i];
  }
  return batch;
}

/* The losses of three steps, of 7, 2 and 9 samples in two micro-batches each. */
static void train(struct ck_training *training, const struct ck_workload *workload,
                  const char *spec, ek_mode mode, ek_reduction reduction, double *losses) {
  static const int64_t sizes[2 * STEPS] = {4, 3, 1, 1, 8, 1};
  CK_WITH(struct ck_setup, setup, ck_setup_mode(workload, spec, mode), .options.type = EK_F64,
          .optimizer = ck_plain_sgd, .reduction = reduction);
  ck_training_open(training, &setup);
  for (int i = 0; i < STEPS; i++) {
    struct ck_batch first = make_batch(workload, sizes[2 * i], 2 * i);
    struct ck_batch second = make_batch(workload, sizes[2 * i + 1], 2 * i + 1);
    ck_ok(ck_training_backward(training, &first, NULL, true, NULL));
    CK_GOT(ek_step_result, result, ck_training_step(training, &second, &result));
    losses[i] = result.loss;
    ck_assert_msg(isfinite(result.loss), "%s on %s: loss %g", workload->name, spec, result.loss);
  }
}

CK_LOOP(any_number_of_devices, 2 * 3 * WORKLOADS) {
  static const char *const specs[] = {"cpu:2", "cpu:3", "cpu:5"};
  static const ek_mode modes[] = {EK_MODE_GATHER, EK_MODE_REPLICATED, EK_MODE_FULLY_SHARDED};
  const struct ck_workload *workload = &workloads[_i % WORKLOADS];
  const int place = _i / WORKLOADS % 3;
  const ek_reduction reduction = _i / WORKLOADS / 3 == 0 ? EK_REDUCTION_MEAN : EK_REDUCTION_SUM;
  struct ck_training alone, many;
  double want[STEPS], got[STEPS];
  train(&alone, workload, "cpu:1", EK_MODE_REPLICATED, reduction, want);
  train(&many, workload, specs[place], modes[place], reduction, got);
  for (int i = 0; i < STEPS; i++) {
    const double apart = fabs(got[i] - want[i]) / fabs(want[i]);
    ck_assert_msg(apart <= 1e-12, "%s on %s: the loss of step %d is off by %.3g", workload->name,
                  specs[place], i, apart);
  }
  const double *parameters = ck_training_read(&alone, CK_VALUES);
  const double error = ck_arrays_off(ck_training_read(&many, CK_VALUES), parameters);
  ck_assert_msg(error <= 1e-12, "%s on %s: parameters are off by %.3g", workload->name,
                specs[place], error);
}

CK_SUITE("loss_devices")
