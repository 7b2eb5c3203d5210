/*
 * check_half_outputs.c - what a program reads out of a model of 16 bits: the loss of a batch, its
 * logits, and text that is generated from them.
 *
 * A GPT with each of the three ways to its loss: whole logits, whole logits in longer rows, and a
 * fused loss. An evaluation is the loss of the next step, is the cross-entropy of the logits that
 * the model predicts, and is near that of f32 with the same parameters; longer rows change no bit
 * (docs/numerics.md has the bounds).
 */
#include "ck_gpt.h"
#include "ck_product.h"
#include "ck_state.h"
#include "ck_training.h"

enum { VOCABULARY = 51, SEQUENCE = 6, WIDTH = 16, DEPTH = 13 /* operations one after another */ };
enum { SAMPLES = 7, ROWS = SAMPLES * SEQUENCE, LOGITS = ROWS * VOCABULARY };
enum { HALVES = 2, HEADS = 3, MODES = 6, CASES = MODES * HALVES * HEADS };
enum head { WHOLE, LONGER, FUSED };

static const ek_type halves[HALVES] = {EK_BF16, EK_F16};

static double rounding_of(ek_type type) {
  return type == EK_BF16 ? 0x1p-8 : type == EK_F16 ? 0x1p-11 : 0x1p-24;
}

/* Then equal products are the same bits, also for other rows. */
static bool on_cpu(void) { return strncmp(test_devices("cpu:3"), "cpu", 3) == 0; }

/* Some targets are ignored. */
static struct ck_gpt_batch batch_of(int64_t samples, uint64_t number) {
  return ck_gpt_batch(samples, SEQUENCE, VOCABULARY, VOCABULARY, number);
}

CK_ADAMW(fast_adamw, .learning_rate = 0.05)

/* In parts of a batch if `parts` is more than 1. Big steps, so that the logits are not all alike;
 * none overflows. */
static ek_trainer *open_trainer(ek_mode mode, ek_type precision, enum head head, int64_t parts) {
  static const ek_loss_scale no_loss_scale = {.kind = EK_LOSS_SCALE_NONE};
  ek_gpt_options gpt = ck_gpt_sizes(VOCABULARY, SEQUENCE, WIDTH, 1, 2);
  CK_WITH(ek_cross_entropy_options, entropy, EK_CROSS_ENTROPY_OPTIONS_INIT, .ignore_index = -1,
          .classes = VOCABULARY);
  gpt.fused_loss = head == FUSED;
  if (head == FUSED) gpt.loss = &entropy;
  if (head == LONGER) gpt.logits_columns = ek_tensor_aligned_columns(VOCABULARY, precision);
  CK_WITH(struct ck_setup, setup, ck_setup_gpt(&gpt, &entropy, "cpu:3", mode),
          .options.precision = (ek_precision)precision, .options.seed = 3, .micro_batches = parts,
          .optimizer = fast_adamw, .loss_scale = &no_loss_scale);
  return ck_trainer_open(&setup);
}

static void take_steps(ek_trainer *trainer, int count) {
  for (int i = 0; i < count; i++) {
    struct ck_gpt_batch b = batch_of(SAMPLES - i, (uint64_t)i);
    ck_ok(ek_trainer_step(NULL, trainer, &b.input, 1, &b.target, 1));
  }
}

/* The first VOCABULARY columns of what a batch gives, rows in the order of the batch. */
static void predict(double *logits, ek_trainer *trainer, const struct ck_gpt_batch *b) {
  CK_SCOPED(ek_shards, out, ek_trainer_predict(&out, trainer, &b->input, 1));
  for (size_t k = 0; k < out.count; k++) {
    const ek_tensor *part = &out.parts[k];
    if (!ek_tensor_exists(part) || ek_tensor_count(part) == 0) continue;
    const int64_t columns = part->shape[part->rank - 1], rows = ek_tensor_count(part) / columns;
    const double *all = ck_got(part);
    ck_assert_int_ge(columns, VOCABULARY);
    for (int64_t r = 0; r < rows; r++, logits += VOCABULARY) {
      memcpy(logits, all + r * columns, VOCABULARY * sizeof *all);
    }
  }
}

static double evaluate(ek_trainer *trainer, const struct ck_gpt_batch *b, double *weight) {
  CK_GOT(double, loss, ek_trainer_evaluate(&loss, weight, trainer, &b->input, 1, &b->target, 1));
  return loss;
}

/* The mean of -log softmax(logits)[y], and what f32 may be off by. */
static double entropy_of(const double *logits, const struct ck_gpt_batch *b, double *bound) {
  double sum = 0, weight = 0, low = HUGE_VAL, high = -HUGE_VAL;
  for (int64_t r = 0; r < ek_tensor_count(&b->target); r++, logits += VOCABULARY) {
    double z = 0;
    for (int c = 0; c < VOCABULARY; c++) {
      z += exp(logits[c]);
      low = fmin(low, logits[c]);
      high = fmax(high, logits[c]);
    }
    if (b->y[r] < 0) continue;
    sum += log(z) - logits[b->y[r]];
    weight++;
  }
  *bound = 4 * 0x1p-24 * (VOCABULARY + 16) * (1 + high - low + log(VOCABULARY));
  return sum / weight;
}

static double largest(const double *values, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(values[i]));
  return most;
}

/* Logits of 16 bits against those of f32, relative L2: each operation rounds what it gives, the
 * parameters are rounded before the first, and one hands on an error and may double it. */
static double logits_bound(ek_type type) { return 2 * (DEPTH + 2) * rounding_of(type); }

/* The L2 norm of a - b; b NULL: of a. */
static double distance(const double *a, const double *b, int64_t count) {
  double square = 0;
  for (int64_t i = 0; i < count; i++) square += pow(a[i] - (b == NULL ? 0 : b[i]), 2);
  return sqrt(square);
}

static enum head head_of(int number) { return (enum head)(number % HEADS); }
static ek_type half_of(int number) { return halves[number / HEADS % HALVES]; }
static ek_mode mode_of(int number) { return (ek_mode)(number / HEADS / HALVES); }

/* ---- evaluation ---- */

/* Shards are uneven, and one device has no rows of the second batch. */
CK_PART_LOOP(an_evaluation_is_the_loss_of_a_step, ck_if_halves(CASES)) {
  ek_trainer *trainer = open_trainer(mode_of(_i), half_of(_i), head_of(_i), 1);
  take_steps(trainer, 2);
  static const int64_t samples[] = {SAMPLES, 2};
  for (int i = 0; i < 2; i++) {
    static double logits[LOGITS];
    double weight = 0, bound = 0;
    const int64_t count = samples[i] * SEQUENCE * VOCABULARY;
    struct ck_gpt_batch b = batch_of(samples[i], 10);
    const double loss = evaluate(trainer, &b, &weight);
    predict(logits, trainer, &b);
    const double want = entropy_of(logits, &b, &bound);
    /* A fused loss's products have other rows: a logit may be the other neighbour, twice. */
    if (head_of(_i) == FUSED) bound += 4 * rounding_of(half_of(_i)) * largest(logits, count);
    ck_assert_msg(fabs(loss - want) <= bound, "%.9g, expected %.9g +- %.3g", loss, want, bound);
    CK_GOT(ek_step_result, result, ek_trainer_step(&result, trainer, &b.input, 1, &b.target, 1));
    /* A GPU has another GELU for a pass without backward. */
    const double allowed =
        on_cpu() ? 0 : sqrt(2 / weight) * logits_bound(half_of(_i)) * distance(logits, NULL, count);
    ck_assert_double_le(fabs(result.loss - loss), allowed);
    ck_assert_double_eq(result.weight, weight);
  }
}

/*
 * The slope of a row's loss in its logits is p - y, of L2 norm sqrt(2) at most: the mean of n rows
 * is off by no more than sqrt(2 / n) times what the logits are off by, which has its own bound.
 */
CK_PART_LOOP(an_evaluation_is_near_that_of_f32, ck_if_halves(CASES)) {
  ek_trainer *half = open_trainer(mode_of(_i), half_of(_i), head_of(_i), 3);
  ek_trainer *wide = open_trainer(mode_of(_i), EK_F32, head_of(_i), 3);
  static double logits[LOGITS], exact[LOGITS];
  double weight = 0, again = 0, bound = 0;
  take_steps(half, 2);
  struct ck_state state = ck_state_take(ek_trainer_model(half));
  ck_ok(ck_state_put(ek_trainer_model(wide), &state));
  struct ck_gpt_batch b = batch_of(SAMPLES, 11);
  predict(logits, half, &b);
  predict(exact, wide, &b);
  ck_assert_double_le(ck_rel_l2(logits, exact, LOGITS), logits_bound(half_of(_i)));
  (void)entropy_of(logits, &b, &bound);
  const double got = evaluate(half, &b, &weight), want = evaluate(wide, &b, &again);
  bound += sqrt(2 / weight) * distance(logits, exact, LOGITS);
  ck_assert_double_eq(weight, again);
  ck_assert_msg(fabs(got - want) <= bound, "%.9g, f32 has %.9g +- %.3g", got, want, bound);
  ck_assert_msg(got != want, "nothing was rounded");
  /* A step takes the batch in parts, whose products have other rows: off as much again. */
  CK_GOT(ek_step_result, result, ek_trainer_step(&result, half, &b.input, 1, &b.target, 1));
  ck_assert_msg(fabs(result.loss - got) <= 2 * bound, "%.9g in parts, else %.9g", result.loss, got);
  ck_assert_double_eq(result.weight, weight);
}

/* ---- generation ---- */

enum { TOKENS = 10 };

static int32_t best_of(const double *logits) {
  int32_t best = 0;
  for (int32_t c = 1; c < VOCABULARY; c++) {
    if (logits[c] > logits[best]) best = c;
  }
  return best;
}

/* Greedily, or as given, each after a window of the last SEQUENCE tokens; the logits of each as
 * well. */
static void generate(int32_t tokens[TOKENS], double *logits, ek_trainer *trainer,
                     const int32_t *given) {
  double all[SEQUENCE * VOCABULARY];
  struct ck_gpt_batch b = batch_of(1, 12);
  for (int i = 0; i < TOKENS; i++) {
    predict(all, trainer, &b);
    const double *last = all + (SEQUENCE - 1) * VOCABULARY;
    memcpy(logits + i * VOCABULARY, last, VOCABULARY * sizeof *last);
    tokens[i] = given == NULL ? best_of(last) : given[i];
    memmove(b.x, b.x + 1, (SEQUENCE - 1) * sizeof b.x[0]);
    b.x[SEQUENCE - 1] = tokens[i];
  }
}

/* On the CPU the same tokens and logits again, with longer rows and a fused loss, too: a GPU has
 * other products for them. Near those of f32 after the same tokens. */
CK_LOOP(text_is_generated, ck_if_halves(HALVES)) {
  const ek_type type = halves[_i];
  const bool same = on_cpu();
  int32_t first[TOKENS], tokens[TOKENS];
  static double want[TOKENS * VOCABULARY], logits[TOKENS * VOCABULARY];
  struct ck_state state = {0};
  for (int head = 0; head < HEADS; head++) {
    ek_trainer *trainer = open_trainer(EK_MODE_REPLICATED, type, (enum head)head, 1);
    if (head == 0) {
      take_steps(trainer, 3);
      state = ck_state_take(ek_trainer_model(trainer));
      generate(first, want, trainer, NULL);
    }
    ck_ok(ck_state_put(ek_trainer_model(trainer), &state));
    generate(tokens, logits, trainer, same ? NULL : first);
    ck_assert_mem_eq(tokens, first, sizeof tokens);
    if (same) ck_same_bits("logits", logits, want, TOKENS * VOCABULARY);
    ck_assert_double_le(ck_rel_l2(logits, want, TOKENS * VOCABULARY), 2 * logits_bound(type));
    ck_ok(ek_trainer_close(trainer));
  }
  ek_trainer *wide = open_trainer(EK_MODE_REPLICATED, EK_F32, LONGER, 1);
  ck_ok(ck_state_put(ek_trainer_model(wide), &state));
  generate(tokens, logits, wide, first);
  ck_assert_double_le(ck_rel_l2(want, logits, TOKENS * VOCABULARY), logits_bound(type));
}

/* ---- longer rows ---- */

/* Training with them changes no bit where the CPU multiplies by the library's own routine, in any
 * mode: their gradient is 0. */
CK_LOOP(longer_rows_train_alike, ck_if_halves(MODES * HALVES)) {
  if (!ck_part(_i) || !on_cpu() || ck_onednn_primitive(halves[_i % HALVES])) return;
  struct ck_state state[2];
  for (int longer = 0; longer < 2; longer++) {
    ek_trainer *trainer =
        open_trainer((ek_mode)(_i / HALVES), halves[_i % HALVES], longer ? LONGER : WHOLE, 2);
    take_steps(trainer, 3);
    state[longer] = ck_state_take(ek_trainer_model(trainer));
    ck_ok(ek_trainer_close(trainer));
  }
  ck_state_same("longer rows", &state[1], &state[0]);
}

CK_SUITE("half_outputs")
