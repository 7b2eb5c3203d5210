/*
 * check_precision.c - training in bf16 and f16: masters and copies.
 *
 * Devices agree in every mode, and with one device; what modules see is always the masters rounded;
 * plans are exact; state goes from one precision to another. Modules that run in another type than
 * their caller: check_frames.c.
 */
#include "ck_gpt.h"
#include "ck_rule.h"
#include "ck_state.h"
#include "ck_training.h"

enum { DEVICES = 3, SAMPLES = 8, STEPS = 2, HALVES = 2, CASES = CK_PLACEMENTS * HALVES };

static const ek_type halves[HALVES] = {EK_BF16, EK_F16};

/* Its update is the parameters minus half the gradient, which is small in all workloads. */
CK_SGD(plain_sgd, .learning_rate = 0.5)

/* Every step is taken: check_skipped_steps.c has those that overflow. */
static const ek_loss_scale no_loss_scale = {.kind = EK_LOSS_SCALE_NONE};

static struct ck_setup setup_of(int number, const char *workload, const char *spec) {
  struct ck_setup setup = ck_setup_at(ck_workload(workload), spec, number % CK_PLACEMENTS);
  ck_assign(setup, .options.precision = (ek_precision)halves[number / CK_PLACEMENTS],
            .optimizer = plain_sgd, .loss_scale = &no_loss_scale);
  return setup;
}

static double *trained(const struct ck_setup *setup) {
  CK_HELD(struct ck_training, t, ck_training_opened(setup));
  ck_training_copies_are_right(&t);
  for (uint64_t step = 0; step < STEPS; step++) {
    struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 20 + step);
    ck_ok(ck_training_step(&t, &batch, NULL));
    ck_training_copies_are_right(&t);
  }
  return ck_training_read(&t, CK_VALUES);
}

/* ---- every precision in every mode ---- */

/* What modules compute in, and what gradients are kept and summed in. */
static const struct row {
  ek_precision precision;
  ek_type gradients; /* 0: f32 */
} table[] = {{EK_PRECISION_BF16, 0},      {EK_PRECISION_F16, 0},       {EK_PRECISION_F32, EK_BF16},
            {EK_PRECISION_BF16, EK_BF16}, {EK_PRECISION_F32, EK_F16}, {EK_PRECISION_F16, EK_F16}};
enum { ROWS = sizeof table / sizeof *table, TABLE = CK_PLACEMENTS * ROWS };

/* The gradient of a sum is divided by nothing. */
static struct ck_setup setup_at(int number, const char *workload) {
  const struct row *row = &table[number / CK_PLACEMENTS];
  CK_WITH(struct ck_setup, setup, setup_of(number % CK_PLACEMENTS, workload, "cpu:3"),
          .options.precision = row->precision, .options.gradient_type = row->gradients);
  if (row->gradients == 0) return setup;
  ck_assign(setup, .reduction = EK_REDUCTION_SUM, .optimizer = ck_clipped_adamw);
  return setup;
}

/* The gradient of a step, the parameters after it and the next one, and after a third one of two
 * micro-batches. */
struct numbers {
  double *gradients, *first, *second;
};

static struct numbers numbers_of(const struct ck_setup *setup) {
  struct numbers it;
  struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 20);
  struct ck_batch other = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 21);
  CK_HELD(struct ck_training, t, ck_training_opened(setup));
  ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
  it.gradients = ck_training_read(&t, CK_GRADIENTS);
  ck_ok(ek_data_parallel_optimizer_step(NULL, t.optimizer));
  ck_ok(ck_training_step(&t, &other, NULL));
  it.first = ck_training_read(&t, CK_VALUES);
  ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
  ck_ok(ck_training_step(&t, &other, NULL));
  it.second = ck_training_read(&t, CK_VALUES);
  return it;
}

/*
 * A second run repeats. All placements that leave the outputs where they are compute the same on
 * each device, and add up, and round, the devices' gradients in their order; micro-batches are
 * rounded in another order, and a norm is summed in another order in shares.
 */
CK_PART_LOOP(placements_agree, ck_if_halves(TABLE)) {
  ck_deterministic_on_gpu();
  for (int w = 0; w < CK_WORKLOADS; w++) {
    const char *name = ck_workloads[w].name;
    const struct ck_setup setup = setup_at(_i, name);
    CK_WITH(struct ck_setup, replicated, setup, .options.state = EK_STATE_REPLICATED);
    const struct numbers got = numbers_of(&setup), again = numbers_of(&setup);
    const struct numbers want = numbers_of(&replicated);
    ck_arrays_same(name, again.gradients, got.gradients);
    ck_arrays_same(name, again.first, got.first);
    ck_arrays_same(name, again.second, got.second);
    name = ck_placement_name(_i % CK_PLACEMENTS);
    ck_arrays_same(name, got.gradients, want.gradients);
    if (setup.options.gradient_type == 0) ck_arrays_same(name, got.first, want.first);
  }
}

/* Copies are there where modules compute in 16 bits, and gradients of 16 bits are half of those of
 * f32: between steps only what is kept is there. */
CK_PART_LOOP(plans_are_exact, ck_if_halves(TABLE)) {
  for (int w = 0; w < CK_WORKLOADS; w++) {
    struct ck_setup setup = setup_at(_i, ck_workloads[w].name), wide = setup;
    const struct row *row = &table[_i / CK_PLACEMENTS];
    ek_memory_usage planned[DEVICES], real[DEVICES], f32[DEVICES];
    uint64_t all = 0;
    setup.optimizer = wide.optimizer = ck_clipped_adamw;
    wide.options.gradient_type = EK_F32;
    const struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, 3);
    const int micro_batches = row->gradients == 0 ? 1 : 2;
    ck_measure(planned, &setup, "plan:3", &batch, micro_batches);
    ck_measure(real, &setup, "cpu:3", &batch, micro_batches);
    ck_measure(f32, &wide, "plan:3", &batch, micro_batches);
    ck_same_peaks(setup.workload->name, planned, real, DEVICES);
    for (size_t k = 0; k < DEVICES; k++) {
      const bool copies = row->precision != EK_PRECISION_F32;
      ck_assert_int_eq(real[k].at_peak[EK_MEMORY_COPIES] > 0, copies);
      const uint64_t kept = planned[k].current[EK_MEMORY_GRADIENTS];
      const uint64_t whole = f32[k].current[EK_MEMORY_GRADIENTS];
      all += kept;
      if (row->gradients == 0) continue;
      ck_assert_uint_le(kept, whole / 2 + EK_MEMORY_UNIT);
      ck_assert_uint_ge(2 * kept, whole);
    }
    ck_assert_uint_gt(all, 0); /* a device may have no share of a small model */
  }
}

/*
 * Rows are cut over the devices, and a product of other rows may add its terms up in another order:
 * a number of 16 bits is then another neighbour of its value, 2 v of it. A network of depth d hands
 * that on, and a gradient is off by 2 d v, relative; d is 8 at most in these workloads. Steps are
 * small, so that is what the change of the parameters is off by (docs/numerics.md).
 */
CK_PART_LOOP(devices_agree_with_one, ck_if_halves(CASES)) {
  const double v = halves[_i / CK_PLACEMENTS] == EK_BF16 ? 0x1p-8 : 0x1p-11;
  for (int w = 0; w < CK_WORKLOADS; w++) {
    struct ck_setup many = setup_of(_i, ck_workloads[w].name, "cpu:3"), one = many, start = many;
    one.spec = "cpu:1";
    start.optimizer = NULL;
    struct ck_training t = ck_training_opened(&start);
    double *before = ck_training_read(&t, CK_VALUES);
    ck_training_close(&t);
    double *got = trained(&many), *want = trained(&one);
    double change = 0, difference = 0;
    for (int64_t i = 0; i < ck_count(want); i++) {
      change += (want[i] - before[i]) * (want[i] - before[i]);
      difference += (got[i] - want[i]) * (got[i] - want[i]);
    }
    ck_assert_msg(difference <= pow(16 * v, 2) * change, "%s, %s: %.3g of a change of %.3g",
                  ck_workloads[w].name, ck_placement_name(_i % CK_PLACEMENTS), sqrt(difference),
                  sqrt(change));
    ck_assert(change > 0);
  }
}

/* ---- memory ---- */

/* Of device 1 of four at the peak of two steps of a GPT on devices that count. */
static ek_memory_usage planned(const ek_gpt_options *gpt, int64_t samples, ek_mode mode,
                               ek_precision precision) {
  const int64_t sizes[] = {samples, gpt->sequence};
  ek_memory_usage usage;
  static int32_t none; /* never read */
  CK_GOT(ek_tensor, tokens, ek_tensor_host(&tokens, &none, EK_I32, 2, sizes));
  struct ck_setup setup = ck_setup_gpt(gpt, NULL, "plan:4", mode);
  setup.options.precision = precision;
  ek_trainer *trainer = ck_trainer_open(&setup);
  for (int i = 0; i < STEPS; i++) ck_ok(ek_trainer_step(NULL, trainer, &tokens, 1, &tokens, 1));
  ck_ok(ek_memory_stats(&usage, ek_group_device(ek_trainer_group(trainer), 1)));
  return usage;
}

static double ratio(uint64_t got, uint64_t of) { return (double)got / (double)of; }

/* Logits and their gradient are half, and so are activations, except for statistics of rows. */
CK_TEST(numbers_of_16_bits_take_half) {
  const ek_gpt_options lm = ck_gpt_sizes(40000, 250, 256, 4, 8), m = EK_GPT_OPTIONS_INIT;
  const ek_gpt_options *models[] = {&lm, &m};
  for (int i = 0; i < 2; i++) {
    const int64_t samples = i == 0 ? 32 : 8;
    const ek_memory_usage f32 = planned(models[i], samples, EK_MODE_SHARDED, EK_PRECISION_F32);
    const ek_memory_usage bf16 = planned(models[i], samples, EK_MODE_SHARDED, EK_PRECISION_BF16);
    ck_assert_uint_eq(2 * bf16.at_peak[EK_MEMORY_OUTPUTS], f32.at_peak[EK_MEMORY_OUTPUTS]);
    const double activations =
        ratio(bf16.at_peak[EK_MEMORY_ACTIVATIONS], f32.at_peak[EK_MEMORY_ACTIVATIONS]);
    printf("activations: %.4f of f32's\n", activations);
    ck_assert_double_le(activations, 0.52);
  }
}

/* Bytes for each parameter and device, as data_parallel_model.h has them; padding and the rounding
 * of shares are less than a thousandth. */
CK_TEST(state_takes_what_is_documented) {
  static const struct {
    ek_mode mode;
    double parameters, copies, gradients, optimizer; /* on four devices, not the first */
  } rows[] = {{EK_MODE_BALANCED, 0, 2, 4, 0},
              {EK_MODE_REPLICATED, 4, 2, 4, 8},
              {EK_MODE_SHARDED, 1, 2, 4, 2},
              {EK_MODE_SHARDED_GRADIENTS, 1, 2, 1, 2},
              {EK_MODE_FULLY_SHARDED, 1, 0.5, 1, 2}};
  const ek_gpt_options m = EK_GPT_OPTIONS_INIT;
  const double count = 124439808;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct ck_setup setup = ck_setup_gpt(&m, NULL, "", rows[i].mode);
    setup.options.precision = EK_PRECISION_BF16;
    CK_GOT(struct ck_training, t, ck_training_try(&t, &setup, ck_open_exactly("plan:4", 1)));
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(t.group, 1)));
    const double want[] = {rows[i].parameters, rows[i].copies, rows[i].gradients,
                           rows[i].optimizer};
    const ek_memory_category category[] = {EK_MEMORY_PARAMETERS, EK_MEMORY_COPIES,
                                           EK_MEMORY_GRADIENTS, EK_MEMORY_OPTIMIZER};
    for (int c = 0; c < 4; c++) {
      ck_assert_double_eq_tol((double)usage.current[category[c]] / count, want[c], 4e-3);
    }
  }
}

/* ---- rules that know nothing of copies ---- */

static bool saw_copy;

CK_UPDATE(forgetful_update) {
  const ek_sgd_terms terms = {.learning_rate = 0.5, .first = true};
  ek_update_scale scale = update->scale;
  if (scale.copy != NULL) __atomic_store_n(&saw_copy, true, __ATOMIC_RELAXED);
  scale.copy = NULL;
  return ek_op_sgd(stream, update->parameters, NULL, update->gradients, &terms, &scale);
}

/* The others write the copies in the pass over memory that writes the masters. */
CK_TEST(stock_rules_write_copies) {
  ek_optimizer *rules[2];
  ck_ok(ek_sgd_create(&rules[0], NULL));
  ck_ok(ek_adamw_create(&rules[1], NULL));
  for (int i = 0; i < 2; i++) {
    ck_assert(ek_optimizer_table(rules[i])->writes_copy);
    ek_optimizer_free(rules[i]);
  }
}

static ek_status forgetful(ek_optimizer **optimizer) {
  return ck_rule_create(optimizer, "forgetful", forgetful_update);
}

CK_PART_LOOP(rules_need_not_write_copies, ck_if_halves(CASES)) {
  struct ck_setup setup = setup_of(_i, "mlp", "cpu:3"), own = setup;
  own.optimizer = forgetful;
  saw_copy = false;
  double *got = trained(&own), *want = trained(&setup);
  ck_arrays_same("parameters", got, want);
  ck_assert(!saw_copy);
}

/* ---- state ---- */

static void copy_state(const struct ck_training *from, struct ck_training *to) {
  const struct ck_state state = ck_state_take(from->model);
  for (size_t i = 0; i < state.count; i++) {
    ck_assert(state.host[i].type == EK_F32 || state.host[i].type == EK_I64);
  }
  ck_ok(ck_state_put(to->model, &state));
}

static void step(struct ck_training *t, uint64_t number) {
  struct ck_batch batch = ck_batch_make(t->setup.workload, EK_F32, SAMPLES, 0.1, 40 + number);
  ck_ok(ck_training_step(t, &batch, NULL));
}

/* From a placement in bf16 or f16 into f32, from there into another placement of 16 bits, and
 * on. */
CK_PART_LOOP(state_goes_from_one_precision_to_another, ck_if_halves(CASES)) {
  struct ck_setup first = setup_of(_i, "gpt", "cpu:3"), second = first, third = first;
  second.options.precision = EK_PRECISION_F32;
  ck_setup_place(&third, (_i + 3) % CK_PLACEMENTS);
  first.optimizer = second.optimizer = third.optimizer = ck_clipped_adamw;
  struct ck_training from = ck_training_opened(&first);
  struct ck_training middle = ck_training_opened(&second);
  third.options.seed++; /* which the state has, too */
  struct ck_training to = ck_training_opened(&third);
  step(&from, 0);
  copy_state(&from, &middle);
  copy_state(&middle, &to);
  ck_training_copies_are_right(&to);
  step(&middle, 1); /* it trains on */
  step(&from, 1);
  step(&to, 1);
  /* Norms are summed in another order: the factor of the clipping is off by as much. */
  ck_runs_agree(&to, &from, CK_VALUES, 1e-6);
}

/* Parameters of more elements than are rounded at once. */
static ek_status wide_mlp(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){7, 700, 5}, 3, EK_ACTIVATION_GELU);
}

CK_PART_LOOP(copies_of_large_parameters, ck_if_halves(CASES)) {
  CK_WITH(struct ck_workload, wide, *ck_workload("mlp"), .module = wide_mlp);
  CK_WITH(struct ck_setup, setup, setup_of(_i, "mlp", "cpu:3"), .workload = &wide);
  struct ck_training from = ck_training_opened(&setup);
  setup.options.seed++;
  struct ck_training to = ck_training_opened(&setup);
  copy_state(&from, &to);
  ck_training_copies_are_right(&to);
}

/* ---- what else a step can have ---- */

static ek_recompute policy;

CK_GPT(small_gpt, ck_gpt_sizes(50, 6, 16, 3, 2), .dropout = 0.1, .recompute = policy)

/* Recomputation, dropout and ties, in two micro-batches: the same bits; with `cheap` those of
 * another deterministic group (numerics.md). */
CK_LOOP(recomputed_bits_are_the_same, ck_if_halves(HALVES)) {
  static const struct {
    ek_recompute_kind kind;
    int like;
    bool deterministic;
  } cases[] = {
      {EK_RECOMPUTE_NONE, 0, false}, {EK_RECOMPUTE_EVERY, 0, false}, {EK_RECOMPUTE_ALL, 0, false},
      {EK_RECOMPUTE_NONE, 3, true}, {EK_RECOMPUTE_CHEAP, 3, true}};
  double *values[5];
  CK_WITH(struct ck_workload, workload, *ck_workload("gpt"), .module = small_gpt);
  for (int i = 0; i < 5; i++) {
    ck_deterministic(cases[i].deterministic);
    policy = (ek_recompute){.kind = cases[i].kind, .every = 1};
    CK_TRAINING(t, setup_of(_i * CK_PLACEMENTS + 3, "gpt", "cpu:2"), .workload = &workload);
    for (uint64_t n = 0; n < 2; n++) {
      struct ck_batch batch = ck_batch_make(&workload, EK_F32, SAMPLES, 0.1, 60 + n);
      ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
      ck_ok(ck_training_step(&t, &batch, NULL));
    }
    ck_training_copies_are_right(&t);
    values[i] = ck_training_read(&t, CK_VALUES);
    ck_training_close(&t);
    ck_arrays_same("recomputed", values[i], values[cases[i].like]);
  }
}

/* ---- refusals ---- */

static bool computes(ek_group *group, ek_type type) {
  return (ek_device_types(ek_group_device(group, 0)) >> type & 1u) != 0;
}

CK_TEST(what_makes_no_sense_is_refused) {
  static const struct {
    ek_type type;
    ek_precision precision;
    ek_status status;
    const char *words;
  } rows[] = {{EK_F64, EK_PRECISION_BF16, EK_ERR_INVALID_ARGUMENT, "bf16 with parameters of f64"},
              {EK_F32, EK_PRECISION_F64, EK_ERR_INVALID_ARGUMENT, "f64 with parameters of f32"},
              {EK_F32, (ek_precision)EK_I32, EK_ERR_INVALID_ARGUMENT, "precision is no precision"},
              {EK_BF16, EK_PRECISION_DEFAULT, EK_ERR_INVALID_ARGUMENT,
               "type is bf16, expected f32 or f64"}};
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  ek_group *group = ck_open("cpu:2", 1);
  struct ck_training t;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    ck_assign(setup.options, .type = rows[i].type, .precision = rows[i].precision);
    ck_fails(ck_training_try(&t, &setup, group), rows[i].status, rows[i].words);
    ck_no_memory_held(group);
  }
  setup.options.type = EK_F32;
  for (int i = 0; i < HALVES;
       i++) { /* a device without them says so before it allocates anything */
    ek_memory_usage before, after;
    setup.options.precision = (ek_precision)halves[i];
    if (computes(group, halves[i])) continue;
    ck_ok(ek_memory_stats(&before, ek_group_device(group, 0)));
    ck_fails(ck_training_try(&t, &setup, group), EK_ERR_UNSUPPORTED,
             "computes in f32 and f64, not");
    ck_ok(ek_memory_stats(&after, ek_group_device(group, 0)));
    ck_assert_uint_eq(after.allocations, before.allocations);
  }
}

CK_SUITE("precision")
