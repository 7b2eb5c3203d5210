/*
 * check_equality.c - N devices compute what one device computes.
 *
 * The loss and every parameter's gradient of a batch over N devices, in every placement and for
 * every way to cut it, against one device with the whole batch.
 *
 * The tolerances (docs/numerics.md, "Data parallelism"): both sides add the same products, grouped
 * otherwise. The loss and the gradient of all parameters together agree to 16 units of roundoff of
 * f32: 16 * 2^-24 < 1e-6. So does each parameter's, unless its terms nearly cancel: then what f32
 * knows of it is seen from the distance e of one device's f32 to f64, and 4 e is allowed (a
 * triangle of two such errors, with a factor of 2 for luck), where e itself may be 1e-5 at most.
 * The f64 is always the CPU's: it is the truth, whoever computes it.
 *
 * In 16 bits a product of other rows may be the other neighbour of its value, 2 v off, and a
 * network of depth d hands that on: loss and gradient agree to 2 d v, with d at most 8 in these
 * workloads ("Numbers of 16 bits").
 */
#include "ck_training.h"

#if CK_ASAN || CK_TSAN
enum { MOST_DEVICES = 8, DEVICE_STRIDE = 3, BATCH_STRIDE = 3 };
#else
/* Every batch: with one type in one half of the placements, with the other in the other half. */
enum { MOST_DEVICES = 8, DEVICE_STRIDE = 1, BATCH_STRIDE = 2 };
#endif
/* f32 and f64 of each workload, then bf16 and f16 of each. */
enum { WIDE_VARIANTS = 2 * CK_WORKLOADS, VARIANTS = 2 * WIDE_VARIANTS };
enum { MOST_SAMPLES = 4 * MOST_DEVICES + 1 };

static const double ignored = 0.3;

static bool is_half(int variant) { return variant >= WIDE_VARIANTS; }

/* In parts, as on emulated devices, a part of the batches as well, another one for each case; and
 * of those in 16 bits, as of the numbers of devices. */
static int64_t batch_stride(int variant) {
  return ck_in_parts() || is_half(variant) ? 4 : BATCH_STRIDE;
}

static double tolerance(const struct ck_training *training) {
  switch (training->setup.options.precision) {
  case EK_PRECISION_BF16: return 16 * 0x1p-8;
  case EK_PRECISION_F16: return 16 * 0x1p-11;
  default: return training->setup.options.type == EK_F32 ? 1e-6 : 1e-12;
  }
}

/* In 16 bits that of one parameter may be rounding alone: the bias of attention's keys. */
static bool compares_parameters(const struct ck_training *training) {
  return tolerance(training) <= 1e-6;
}

struct answer {
  double loss, *gradients, allowed[CK_MOST_PARAMETERS];
};

static double *gradients_of(struct ck_training *training, const struct ck_batch *batch,
                            double *loss) {
  ck_ok(ck_training_backward(training, batch, NULL, false, loss));
  double *gradients = ck_training_read(training, CK_GRADIENTS);
  ck_ok(ek_data_parallel_model_discard(training->model));
  return gradients;
}

/* One device with all samples at once, and the truth; answers are computed when they are asked for.
 */
struct reference {
  struct ck_training one, fine;
  struct ck_batch batch[MOST_SAMPLES + 1];
  struct answer answer[MOST_SAMPLES + 1];
};

static struct ck_setup setup_of(int variant, const char *spec, int placement, size_t device) {
  const struct ck_workload *workload = &ck_workloads[variant % WIDE_VARIANTS / 2];
  struct ck_setup setup = ck_setup_at(workload, spec, placement);
  if (is_half(variant)) {
    setup.options.precision = variant % 2 == 0 ? EK_PRECISION_BF16 : EK_PRECISION_F16;
  } else {
    setup.options.type = variant % 2 == 0 ? EK_F32 : EK_F64;
  }
  ck_assign(setup, .options.output_device = device, .keep_outputs = device % 2 == 1,
            .optimizer = NULL);
  return setup;
}

static void reference_open(struct reference *reference, int variant) {
  const struct ck_setup setup = setup_of(variant, "cpu:1", 2, 0);
  const struct ck_setup fine = setup_of(variant % WIDE_VARIANTS | 1, "cpu:1", 2, 0);
  memset(reference, 0, sizeof *reference);
  reference->one = ck_training_opened(&setup);
  ck_ok(ck_training_try(&reference->fine, &fine, ck_open_exactly("cpu:1", 1)));
  reference->fine.owns_group = true;
}

/* What each parameter's gradient of `batch` may be off by: see above. */
static void allow(struct answer *answer, const struct ck_training *one, struct ck_training *fine,
                  const struct ck_batch *batch) {
  double loss = 0, *truth = gradients_of(fine, batch, &loss);
  const size_t known = ck_training_errors(answer->allowed, one, answer->gradients, truth);
  for (size_t i = 0; i < known; i++) {
    ck_assert_double_le(answer->allowed[i], 1e-5);
    answer->allowed[i] = fmax(4 * answer->allowed[i], tolerance(one));
  }
}

/* The answer for reference->batch[samples], which is made. */
static const struct answer *answer_of(struct reference *reference, int64_t samples, double ignore,
                                      uint64_t stream) {
  struct ck_training *const one = &reference->one;
  struct answer *const answer = &reference->answer[samples];
  if (answer->gradients != NULL) return answer;
  const ek_type type = one->setup.options.type;
  struct ck_batch *const batch = &reference->batch[samples];
  *batch = ck_batch_make(one->setup.workload, type, samples, ignore, stream);
  answer->gradients = gradients_of(one, batch, &answer->loss);
  if (!compares_parameters(one)) return answer;
  struct ck_batch exact = ck_batch_make(one->setup.workload, EK_F64, samples, ignore, stream);
  allow(answer, one, &reference->fine, &exact);
  return answer;
}

static void close_to(const char *what, const struct ck_training *training,
                     const struct answer *want, double loss) {
  const double allowed = tolerance(training);
  ck_assert_msg(fabs(loss - want->loss) <= allowed * fabs(want->loss),
                "%s: the loss of %s is %.17g, not %.17g", what, training->setup.workload->name,
                loss, want->loss);
  double *gradients = ck_training_read(training, CK_GRADIENTS);
  const double error = ck_arrays_off(gradients, want->gradients);
  ck_assert_msg(error <= allowed, "%s: the gradient is off by %.3g", what, error);
  if (compares_parameters(training)) {
    ck_training_compare(what, training, gradients, want->gradients, allowed, want->allowed);
  }
}

/* The same once more must give the same bits. */
static void repeats(const char *what, struct ck_training *training, const struct ck_batch *batch,
                    const ek_scatter_options *scatter) {
  double *gradients[2], loss[2];
  for (int i = 0; i < 2; i++) {
    ck_ok(ck_training_backward(training, batch, scatter, false, &loss[i]));
    gradients[i] = ck_training_read(training, CK_GRADIENTS);
    ck_ok(ek_data_parallel_model_discard(training->model));
  }
  ck_same_bits(what, &loss[0], &loss[1], 1);
  ck_arrays_same(what, gradients[0], gradients[1]);
}

static void one_batch(struct ck_training *many, const struct ck_batch *batch,
                      const struct answer *want, struct ck_random *random, const char *where) {
  const size_t devices = ek_group_size(many->group);
  struct ck_scatter scatter;
  const ek_scatter_kind kind = (ek_scatter_kind)ck_random_integer(random, 0, 3);
  ck_scatter_random(&scatter, kind, batch->samples, devices, random);
  const char *what = ck_text("%s, cut %d, %lld samples over %zu devices", where, (int)kind,
                             (long long)batch->samples, devices);
  CK_GOT(double, loss, ck_training_backward(many, batch, &scatter.options, false, &loss));
  close_to(what, many, want, loss);
  ck_ok(ek_data_parallel_model_discard(many->model));
  if (batch->samples % 7 == 3) repeats(what, many, batch, &scatter.options);
}

static void all_batches(int variant, size_t devices, int placement, struct reference *reference,
                        struct ck_random *random) {
  const char *spec = ck_text("cpu:%zu", devices);
  /* Outputs are gathered on each device in turn. */
  const size_t output_device = (size_t)(placement + variant) % devices;
  struct ck_training many = ck_training_of(setup_of(variant, spec, placement, output_device));
  const int64_t stride = batch_stride(variant), first = (placement + variant) % stride;
  for (int64_t samples = first; samples <= 4 * (int64_t)devices + 1; samples += stride) {
    /* The batch of 13 has only targets that are ignored. */
    const double ignore = samples == 13 ? 1.0 : ignored;
    const struct answer *want = answer_of(reference, samples, ignore, (uint64_t)samples);
    one_batch(&many, &reference->batch[samples], want, random, ck_placement_name(placement));
  }
  ck_training_close(&many);
}

CK_LOOP(many_equal_one, VARIANTS) {
  struct ck_random random = ck_random_start(1000 + (uint64_t)_i);
  CK_SET_UP(struct reference, reference, reference_open(&reference, _i));
  const size_t stride = is_half(_i) ? 3 : DEVICE_STRIDE;
  for (size_t devices = 1; devices <= MOST_DEVICES; devices += stride) {
    for (int placement = 0; placement < CK_PLACEMENTS; placement++) {
      if (!ck_part((int)devices * CK_PLACEMENTS + placement + _i)) continue;
      all_batches(_i, devices, placement, &reference, &random);
    }
  }
}

/* Micro-batches of random sizes, the last one shorter, are the large batch: masks and weight too.
 */
CK_LOOP(accumulation_equals_one_batch, VARIANTS) {
  enum { SAMPLES = 11 };
  struct ck_training many;
  CK_SET_UP(struct reference, reference, reference_open(&reference, _i));
  const struct answer *want = answer_of(&reference, SAMPLES, ignored, 77);
  const struct ck_batch *batch = &reference.batch[SAMPLES];
  for (int placement = 0; placement < CK_PLACEMENTS; placement++) {
    if (!ck_part(placement + _i)) continue;
    const struct ck_setup other = setup_of(_i, "cpu:3", placement, 1);
    many = ck_training_opened(&other);
    for (int64_t size = 2; size <= SAMPLES; size += 3) {
      double sum = 0, weights = 0;
      for (int64_t first = 0; first < SAMPLES; first += size) {
        const int64_t count = first + size < SAMPLES ? size : SAMPLES - first;
        const struct ck_batch part = ck_batch_samples(batch, first, count);
        double loss = 0, weight = 0;
        ck_ok(ck_training_backward(&many, &part, NULL, first + count < SAMPLES, &loss));
        ck_ok(ek_data_parallel_criterion_loss(&loss, &weight, many.loss));
        sum += loss * weight;
        weights += weight;
      }
      close_to("accumulated", &many, want, sum / weights);
      ck_ok(ek_data_parallel_model_discard(many.model));
    }
    ck_training_close(&many);
  }
}

/* A batch without a target that counts: loss 0, gradient 0, and the step says so. */
CK_LOOP(all_ignored_is_empty, CK_MODES) {
  for (size_t w = 0; w < 2; w++) {
    struct ck_setup setup = ck_setup_mode(&ck_workloads[w], "cpu:3", (ek_mode)_i);
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 7, 1.0, 5);
    CK_HELD(struct ck_training, training, ck_training_opened(&setup));
    double loss = NAN, weight = NAN;
    ck_ok(ck_training_backward(&training, &batch, NULL, false, &loss));
    ck_ok(ek_data_parallel_criterion_loss(&loss, &weight, training.loss));
    ck_assert_double_eq(loss, 0);
    ck_assert_double_eq(weight, 0);
    double *gradients = ck_training_read(&training, CK_GRADIENTS);
    for (int64_t i = 0; i < ck_count(gradients); i++) ck_assert_double_eq(gradients[i], 0);
    CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, training.optimizer));
    ck_assert(result.empty && result.loss == 0 && result.weight == 0 && result.step == 1);
    ck_assert_double_eq(result.gradient_norm, 0);
    double *values = ck_training_read(&training, CK_VALUES);
    for (int64_t i = 0; i < ck_count(values); i++) ck_assert(isfinite(values[i]));
  }
}

/* ---- targets that weigh nothing ---- */

static const double class_weights[] = {0, 1.5, 0.25, 2, 0};

/* With smoothed labels a target of class 0 or 4 has a loss, and a gradient, but no weight. */
CK_ENTROPY(smoothed, .label_smoothing = 0.2, .class_weights = class_weights, .classes = 5)

/* The step's gradient and result of samples 0 .. samples - 1 in micro-batches of `size`. */
static double *weightless_step(struct ck_training *t, const struct ck_batch *batch, int64_t samples,
                               int64_t size, ek_step_result *result) {
  for (int64_t first = 0; first < samples; first += size) {
    const struct ck_batch part = ck_batch_samples(batch, first, size);
    ck_ok(ck_training_backward(t, &part, NULL, first + size < samples, NULL));
  }
  double *gradients = ck_training_read(t, CK_GRADIENTS);
  ck_ok(ek_data_parallel_optimizer_step(result, t->optimizer));
  return gradients;
}

/* A micro-batch without weight counts as it would in one batch, as the first and as the last; alone
 * it is empty, for nothing can be divided by its weight. */
CK_LOOP(targets_without_weight, CK_MODES) {
  enum { SAMPLES = 12 };
  CK_WITH(struct ck_workload, workload, *ck_workload("mlp"), .criterion = smoothed);
  for (int how = 0; how < 4; how++) {
    if (!ck_part(4 * _i + how)) continue;
    struct ck_setup alone = ck_setup_mode(&workload, "cpu:1", EK_MODE_REPLICATED);
    struct ck_setup setup = ck_setup_mode(&workload, "cpu:3", (ek_mode)_i);
    alone.options.type = setup.options.type = EK_F64;
    setup.gradient_in_forward = how / 2 == 1;
    struct ck_batch batch = ck_batch_make(&workload, EK_F64, SAMPLES, 0, 21);
    int32_t *targets = batch.target[0].data;
    for (int i = 0; i < SAMPLES; i++) {
      const bool weightless = how % 2 == 0 ? i < SAMPLES / 2 : i >= SAMPLES / 2;
      targets[i] = weightless ? i % 2 * 4 : 1 + i % 3;
    }
    ek_step_result want, got;
    CK_HELD(struct ck_training, one, ck_training_opened(&alone));
    struct ck_training many = ck_training_opened(&setup);
    double *whole = weightless_step(&one, &batch, SAMPLES, SAMPLES, &want);
    for (int64_t size = 2; size <= SAMPLES; size *= size == 2 ? 3 : 2) {
      ck_training_close(&many); /* parameters as they were */
      many = ck_training_opened(&setup);
      double *parts = weightless_step(&many, &batch, SAMPLES, size, &got);
      ck_assert_double_eq_tol(got.loss, want.loss, 1e-12 * want.loss);
      ck_assert_double_eq_tol(got.weight, want.weight, 1e-12 * want.weight);
      ck_assert_double_le(ck_arrays_off(parts, whole), 1e-12);
    }
    const struct ck_batch part = ck_batch_samples(&batch, how % 2 == 0 ? 0 : SAMPLES / 2, 6);
    double *nothing = weightless_step(&many, &part, 6, 3, &got);
    ck_assert(got.empty && got.loss == 0 && got.weight == 0 && got.gradient_norm == 0);
    for (int64_t i = 0; i < ck_count(nothing); i++) ck_assert_double_eq(nothing[i], 0);
    ck_training_close(&many);
  }
}

CK_SUITE("equality")
