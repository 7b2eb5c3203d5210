/*
 * check_minimum.c - no device's peak is more than 5 % above the arithmetic minimum of
 * docs/memory.md.
 *
 * The minimum is computed here from the shapes alone, and compared with the peaks of `plan`
 * devices, which other tests hold equal to real ones.
 */
#include "ck_gpt.h"
#include "ck_training.h"

struct shape {
  int64_t vocabulary, sequence, batch, width;
  int layers, heads;
  bool keep_outputs;
};

static const struct shape shapes[] = {
    {40000, 250, 32, 64, 2, 4, true},  /* the benchmark's lm-40k */
    {40000, 250, 32, 64, 2, 4, false}, /* the same, the gradient in place */
    {50257, 256, 16, 768, 12, 12, false},
    {8192, 128, 16, 256, 4, 4, false},
};

enum { DEVICES = 4 };

static const ek_mode modes[] = {EK_MODE_GATHER, EK_MODE_BALANCED, EK_MODE_REPLICATED,
                                EK_MODE_SHARDED};

/* Parameters of the GPT with a tied head: tables, blocks, the last layer norm. */
static double parameters_of(const struct shape *s) {
  const double c = (double)s->width;
  return (double)s->vocabulary * c + (double)s->sequence * c + s->layers * (12 * c * c + 13 * c) +
         2 * c;
}

static double minimum_of(const struct shape *s, ek_mode mode, size_t device) {
  const double rows_all = (double)(s->batch * s->sequence), rows = rows_all / DEVICES;
  const double c = (double)s->width, p = parameters_of(s);
  const double activations =
      4 * (s->layers * (16 * rows * c + 4 * rows + rows * s->heads) + 2 * rows * c + 2 * rows);
  double optimizer = 8 * p, logits = 4 * rows * (double)s->vocabulary;
  if (mode == EK_MODE_SHARDED) optimizer /= DEVICES;
  if ((mode == EK_MODE_GATHER || mode == EK_MODE_BALANCED) && device != 0) optimizer = 0;
  double gradient = s->keep_outputs ? logits : 0;
  if (mode == EK_MODE_GATHER && device == 0) {
    logits *= DEVICES;
    gradient *= DEVICES;
  } else if (mode == EK_MODE_GATHER) {
    gradient = 0; /* the other devices hold their outputs, then the gradient of these */
  }
  return 8 * p + optimizer + activations + 8 * rows + logits + gradient;
}

static void run_step(ek_group *group, const struct shape *s, ek_mode mode) {
  const ek_gpt_options gpt =
      ck_gpt_sizes(s->vocabulary, s->sequence, s->width, s->layers, s->heads);
  struct ck_setup setup = ck_setup_gpt(&gpt, NULL, NULL, mode);
  struct ck_batch batch = {.samples = s->batch, .inputs = 1, .targets = 1};
  static int32_t nothing[1]; /* `plan` reads no memory */
  setup.keep_outputs = s->keep_outputs;
  ck_ok(ek_tensor_host(&batch.input[0], nothing, EK_I32, CK_SHAPE(s->batch, s->sequence)));
  batch.target[0] = batch.input[0];
  CK_GOT(struct ck_training, t, ck_training_try(&t, &setup, group));
  for (int step = 0; step < 2; step++) ck_ok(ck_training_step(&t, &batch, NULL));
}

CK_LOOP(test_peak_is_near_the_minimum, 4 * sizeof shapes / sizeof shapes[0]) {
  const struct shape *s = &shapes[_i / 4];
  const ek_mode mode = modes[_i % 4];
  CK_OPENED(ek_group *, group, ek_group_open(&group, "plan:4", NULL));
  run_step(group, s, mode);
  double most = 0, sum = 0;
  for (size_t k = 0; k < DEVICES; k++) {
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(group, k)));
    const double peak = (double)usage.peak_bytes, minimum = minimum_of(s, mode, k);
    ck_assert_msg(peak >= minimum, "%s device %zu: peak %.0f is below the minimum %.0f",
                  ek_mode_name(mode), k, peak, minimum);
    ck_assert_msg(peak <= 1.05 * minimum, "%s device %zu: peak %.0f, minimum %.0f, %.1f %% above",
                  ek_mode_name(mode), k, peak, minimum, 100 * (peak / minimum - 1));
    sum += peak;
    if (peak > most) most = peak;
  }
  if (mode == EK_MODE_SHARDED) ck_assert_double_le(most / (sum / DEVICES), 1.02);
}

CK_SUITE("minimum")
