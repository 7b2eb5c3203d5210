/*
 * check_training.c - a small language model learns, and all modes learn the same.
 *
 * A GPT over bytes is trained on a text for some dozens of steps. The modes' losses agree in each
 * step: their gradients differ by rounding, 1e-6, and training of a well-conditioned start
 * amplifies it slowly; 1e-4 is allowed (docs/numerics.md, "Data parallelism").
 */
#include "ck_gpt.h"
#include "ck_training.h"

enum { STEPS = 48, FEW_STEPS = 12 };
enum { SAMPLES = 10, LENGTH = 24, VOCABULARY = 128, ORDERS = CK_PLACEMENTS + 1 };

static const char text[] =
    "Peter Piper picked a peck of pickled peppers. A peck of pickled peppers Peter Piper picked. "
    "If Peter Piper picked a peck of pickled peppers, where is the peck of pickled peppers that "
    "Peter Piper picked? She sells sea shells on the sea shore; the shells that she sells are sea "
    "shells, I am sure. So if she sells sea shells on the sea shore, I am sure that the shells are "
    "sea shore shells. How much wood would a woodchuck chuck if a woodchuck could chuck wood? As "
    "much wood as a woodchuck could chuck, if a woodchuck could chuck wood.";

CK_GPT(gpt, ck_gpt_sizes(VOCABULARY, LENGTH, 32, 2, 4), .dropout = 0.05)

CK_ENTROPY(cross_entropy, .reduction = reduction)

CK_ADAMW(adamw, .learning_rate = 5e-3, .clip_norm = 1.0)

static const struct ck_workload bytes = {
    .name = "bytes", .module = gpt, .criterion = cross_entropy, .classes = VOCABULARY,
    .sample = CK_SAMPLE(CK_TOKENS(LENGTH), CK_LABELS(LENGTH))};

/* In parts, as on emulated devices, modes are compared over fewer steps. */
static int step_count(void) { return CK_ASAN || CK_TSAN || ck_in_parts() ? FEW_STEPS : STEPS; }

/* Windows at random places of the text; the target of a byte is the next one. */
static struct ck_batch windows(int step) {
  struct ck_batch batch = ck_batch_make(&bytes, EK_F32, SAMPLES, 0, 1);
  struct ck_random random = ck_random_start(100 + (uint64_t)step);
  for (int b = 0; b < SAMPLES; b++) {
    const int64_t first = ck_random_integer(&random, 0, (int64_t)strlen(text) - LENGTH - 1);
    for (int i = 0; i < LENGTH; i++) {
      ((int32_t *)batch.input[0].data)[b * LENGTH + i] = text[first + i];
      ((int32_t *)batch.target[0].data)[b * LENGTH + i] = text[first + i + 1];
    }
  }
  return batch;
}

/* The last order is one device. */
static void train(double *losses, int order, ek_type precision) {
  static const ek_loss_scale none = {.kind = EK_LOSS_SCALE_NONE}; /* every step is taken */
  struct ck_setup setup =
      ck_setup_mode(&bytes, order == CK_PLACEMENTS ? "cpu:1" : "cpu:3", EK_MODE_REPLICATED);
  if (order < CK_PLACEMENTS) ck_setup_place(&setup, order);
  ck_assign(setup.options, .bucket_bytes = 4096, .precision = (ek_precision)precision);
  setup.optimizer = adamw;
  if (precision == EK_F16) setup.loss_scale = &none;
  CK_HELD(struct ck_training, t, ck_training_opened(&setup));
  for (int step = 0; step < step_count(); step++) {
    struct ck_batch batch = windows(step);
    CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
    losses[step] = result.loss;
    ck_assert_double_eq(result.weight, (double)SAMPLES * LENGTH);
  }
  if (setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&t);
}

/* The losses of one device in f32, which all are compared with: trained once. */
static const double *one_device(void) {
  static double losses[STEPS];
  static bool trained;
  if (!trained) train(losses, ORDERS - 1, EK_F32);
  trained = true;
  return losses;
}

CK_TEST(all_modes_learn_the_same) {
  const double *want = one_device();
  double got[STEPS];
  for (int order = 0; order < CK_PLACEMENTS; order++) {
    if (!ck_part(order)) continue;
    train(got, order, EK_F32);
    for (int step = 0; step < step_count(); step++) {
      ck_assert_msg(fabs(got[step] - want[step]) <= 1e-4 * want[step],
                    "order %d, step %d: loss %.9g, not %.9g", order, step, got[step], want[step]);
    }
  }
  const double first = want[0], last = want[step_count() - 1];
  printf("loss %.3f -> %.3f in %d steps\n", first, last, step_count());
  ck_assert_double_eq_tol(first, log(VOCABULARY), 0.3); /* nothing known: uniform */
  ck_assert_double_lt(last, step_count() == STEPS ? 0.5 * first : 0.8 * first);
}

/* On average over the steps the loss is that of f32 to 1 %
 * (docs/results/2026-11-22-precision.md). Each type on one of the groups of emulated devices. */
CK_LOOP(numbers_of_16_bits_learn_it_too, 2) {
  if (!ck_part(2 * _i)) return;
  const double *want = one_device();
  double got[STEPS], sum = 0, difference = 0;
  train(got, 3 * _i + 2, _i == 0 ? EK_BF16 : EK_F16);
  for (int step = 0; step < step_count(); step++) {
    sum += want[step];
    difference += got[step] - want[step];
  }
  printf("in %s: %+.2f %%\n", _i == 0 ? "bf16" : "f16", 100 * difference / sum);
  ck_assert_double_le(fabs(difference), 0.01 * sum);
}

CK_SUITE("training")
