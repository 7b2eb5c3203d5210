/*
 * check_reproducible.c - the same bits for any number of devices: ek_data_parallel_model_options.
 *
 * A case is a run of a few steps: a model, sizes of its micro-batches, a number of grains. It is
 * run on one device in mode replicated, and again in segments: each step may be on another number
 * of devices, in another mode, with other threads, and begins with the state that the step before
 * has left. Every loss, every norm, every entry of the state must have the same bits.
 *
 *     EVENKEEL_TEST_CASES=1000 tests/check_reproducible    # random cases instead of 30
 */
#include "ck_batch_norm.h"
#include "ck_gpt.h"
#include "ck_running.h"
#include "ck_snapshot.h"
#include "ck_state.h"

enum { STEPS = 3, MOST_PARTS = 3, NUMBERS = STEPS * (MOST_PARTS + 3) + 2, MOST_GRAINS = 9 };

/* ---- workloads: the usual ones, one that writes buffers, and one that has collectives ---- */

/* Batch norms over all devices: the stock's with and without running statistics, the second
 * recomputed, and a program's own. Grains meet in all of them. */
static ek_status make_norms(ek_module **module, bool buffers) {
  enum { WIDTH = CK_RUNNING_WIDTH, PARTS = 6 };
  ek_module *p[PARTS] = {NULL};
  CK_WITH(ek_batch_norm_options, norm, EK_BATCH_NORM_OPTIONS_INIT, .over = EK_BATCH_NORM_ALL,
          .track = buffers);
  ck_ok(ek_batch_norm_create_with(&p[0], WIDTH, &norm));
  ck_ok(ek_linear_create(&p[1], WIDTH, WIDTH, true));
  norm.momentum = 0;
  ck_ok(ek_batch_norm_create_with(&p[2], WIDTH, &norm));
  ck_ok(ck_around(&p[2], p[2], ek_recompute_create));
  ck_ok(ek_activation_create(&p[3], EK_ACTIVATION_GELU));
  ck_ok(buffers ? ck_batch_norm_create(&p[4], WIDTH) : ek_linear_create(&p[4], WIDTH, WIDTH, true));
  ck_ok(buffers ? ck_running_create(&p[5]) : ek_linear_create(&p[5], WIDTH, WIDTH, false));
  return ck_sequential(module, p, PARTS, NULL);
}

static ek_status norms(ek_module **module) { return make_norms(module, true); }
static ek_status bare_norms(ek_module **module) { return make_norms(module, false); }

enum { WORKLOADS = CK_WORKLOADS + 2 };

#define ON_ROWS(name_, module_)                                                                    \
  {.name = name_, .module = module_, .criterion = ek_mean_squared_error_create,                    \
   .sample = CK_SAMPLE(CK_ROW(CK_RUNNING_WIDTH), CK_ROW(CK_RUNNING_WIDTH))}
static const struct ck_workload with_buffers[] = {ON_ROWS("running", ck_running_create),
                                                  ON_ROWS("norms", norms)},
                                without_buffers = ON_ROWS("bare norms", bare_norms);

static const struct ck_workload *workload_at(int64_t number) {
  return number < CK_WORKLOADS ? &ck_workloads[number] : &with_buffers[number - CK_WORKLOADS];
}

/* ---- a run ---- */

struct part {
  int64_t samples;
  uint64_t stream;
};

/* What the bits may depend on. */
struct run {
  const struct ck_workload *workload;
  ek_type type;
  ek_precision precision;
  ek_reduction reduction;
  size_t grains, bucket_bytes;
  bool muon; /* matrices are updated whole */
  size_t parts[STEPS];
  struct part part[STEPS][MOST_PARTS];
};

/* What they may not depend on. */
struct place {
  size_t devices;
  int placement, threads;
  bool keep_outputs, gradient_in_forward;
  bool only_accumulates; /* no micro-batch is the last, so the optimizer reduces */
};

struct outcome {
  size_t count;
  double numbers[NUMBERS];
  struct ck_state state;
};

static ek_group *open_group(const char *backend, size_t devices, int threads) {
  ck_deterministic(true);
  ek_group *group = ck_open(ck_text("%s:%zu", backend, devices), threads);
  ck_deterministic(false);
  return group;
}

static struct ck_setup setup_of(const struct run *run, const struct place *place) {
  struct ck_setup setup = ck_setup_at(run->workload, "", place->placement);
  ck_assign(setup.options, .type = run->type, .precision = run->precision,
            .reproducible = run->grains, .bucket_bytes = run->bucket_bytes);
  setup.reduction = run->reduction;
  if (run->muon) setup.optimizer = ck_clipped_muon;
  setup.keep_outputs = place->keep_outputs;
  setup.gradient_in_forward = place->gradient_in_forward;
  return setup;
}

static void record(struct outcome *outcome, double number) {
  ck_assert_uint_lt(outcome->count, NUMBERS);
  outcome->numbers[outcome->count++] = number;
}

static void take_step(struct outcome *outcome, struct ck_training *training, const struct run *run,
                      int step, bool only_accumulates) {
  for (size_t i = 0; i < run->parts[step]; i++) {
    struct ck_batch batch = ck_batch_make(run->workload, run->type, run->part[step][i].samples, 0.1,
                                          run->part[step][i].stream);
    const bool accumulate = only_accumulates || i + 1 < run->parts[step];
    CK_GOT(double, loss, ck_training_backward(training, &batch, NULL, accumulate, &loss));
    record(outcome, loss);
  }
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, training->optimizer));
  record(outcome, result.loss);
  record(outcome, result.weight);
  record(outcome, result.gradient_norm);
}

/* The loss of a batch without gradient. */
static void evaluate(struct outcome *outcome, struct ck_training *training, const struct run *run) {
  struct ck_batch batch = ck_batch_make(run->workload, run->type, 7, 0.1, 99);
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}};
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  const size_t count = ek_module_outputs(training->module);
  double loss = 0, weight = 0;
  options.gradient = options.training = false;
  ck_ok(ek_data_parallel_model_forward(outputs, training->model, batch.input, batch.inputs,
                                       &options));
  ck_ok(ek_data_parallel_criterion_forward(training->loss, outputs, count, batch.target,
                                           batch.targets));
  ck_ok(ek_data_parallel_criterion_loss(&loss, &weight, training->loss));
  record(outcome, loss);
  record(outcome, weight);
  for (size_t i = 0; i < count; i++) ek_shards_free(&outputs[i]);
}

/* Every step at the place that is given for it. */
static struct outcome train(const struct run *run, const struct place places[STEPS]) {
  struct outcome outcome = {0};
  struct ck_training training;
  ek_group *group = NULL;
  for (int step = 0; step < STEPS; step++) {
    const bool moves = step > 0 && memcmp(&places[step], &places[step - 1], sizeof *places) != 0;
    if (moves) {
      outcome.state = ck_state_take(training.model);
      ck_training_close(&training);
      ek_group_free(group);
    }
    if (moves || step == 0) {
      const struct ck_setup setup = setup_of(run, &places[step]);
      group = open_group("cpu", places[step].devices, places[step].threads);
      ck_ok(ck_training_try(&training, &setup, group));
    }
    if (moves) ck_ok(ck_state_put(training.model, &outcome.state));
    take_step(&outcome, &training, run, step, places[step].only_accumulates);
  }
  evaluate(&outcome, &training, run);
  if (places[STEPS - 1].placement != 0 && places[STEPS - 1].placement != 1) {
    ck_training_replicas_agree(&training);
  }
  outcome.state = ck_state_take(training.model);
  ck_training_close(&training);
  ek_group_free(group);
  return outcome;
}

static void describe(char *text, size_t size, const struct run *run,
                     const struct place places[STEPS]) {
  int used = snprintf(text, size, "%s%s, precision %s, %zu grains, reduction %d, samples",
                      run->workload->name, run->muon ? " with muon" : "",
                      ek_precision_name(run->precision), run->grains,
                      (int)run->reduction);
  for (int step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < run->parts[step]; i++) {
      used += snprintf(text + used, size - (size_t)used, "%c%lld", i == 0 ? ' ' : '+',
                       (long long)run->part[step][i].samples);
    }
    used += snprintf(text + used, size - (size_t)used, " on %zu (%s)", places[step].devices,
                     ck_placement_name(places[step].placement));
  }
}

static struct outcome train_alone(const struct run *run) {
  const struct place alone = {1, EK_MODE_REPLICATED, 1, false, true, false};
  const struct place places[STEPS] = {alone, alone, alone};
  return train(run, places);
}

static void compare(const struct outcome *want, const struct run *run,
                    const struct place places[STEPS]) {
  struct outcome got = train(run, places);
  char text[512];
  describe(text, sizeof text, run, places);
  ck_assert_uint_eq(got.count, want->count);
  ck_same_bits(text, got.numbers, want->numbers, (int64_t)want->count);
  ck_state_same(text, &got.state, &want->state);
}

/* ---- every mode, some numbers of devices ---- */

static const size_t counts[] = {1, 2, 3, 5, 8};
enum { COUNTS = sizeof counts / sizeof counts[0] };

static struct run ragged_run(const struct ck_workload *workload) {
  return (struct run){.workload = workload,
                      .type = EK_F32,
                      .reduction = EK_REDUCTION_MEAN,
                      .grains = 8,
                      .bucket_bytes = 256,
                      .parts = {2, 1, 3},
                      .part = {{{11, 0}, {5, 1}}, {{19, 2}}, {{8, 3}, {3, 4}, {1, 5}}}};
}

CK_PART_LOOP(every_mode_and_number_of_devices, 2 * WORKLOADS * CK_PLACEMENTS) {
  struct run run = ragged_run(workload_at(_i % WORKLOADS));
  const int placement = _i / WORKLOADS % CK_PLACEMENTS;
  run.muon = _i >= WORKLOADS * CK_PLACEMENTS;
  const struct outcome want = train_alone(&run);
  for (size_t i = 0; i < COUNTS; i++) {
    const struct place place = {counts[i], placement, 1, false, i % 2 == 0, i % 3 == 1};
    const struct place places[STEPS] = {place, place, place};
    compare(&want, &run, places);
  }
}

/* A bucket that the devices exchange in several pieces: 14,000 weights, of which 4,096 go at once.
 */
static ek_status wide_mlp(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){7, 2000, 5}, 3, EK_ACTIVATION_GELU);
}

CK_LOOP(large_buckets, CK_PLACEMENTS) {
  CK_WITH(struct ck_workload, wide, *ck_workload("mlp"), .module = wide_mlp);
  const struct run run = ragged_run(&wide);
  const struct place place = {3, _i, 1, false, true, true};
  const struct place places[STEPS] = {place, place, place};
  const struct outcome want = train_alone(&run);
  compare(&want, &run, places);
}

/* ---- random cases ---- */

static struct place random_place(struct ck_random *random, size_t grains) {
  struct place place;
  memset(&place, 0, sizeof place); /* they are compared as bytes */
  ck_assign(place,
            .devices = (size_t)ck_random_integer(random, 1, (int64_t)(grains < 8 ? grains : 8)),
            .placement = (int)ck_random_integer(random, 0, CK_PLACEMENTS - 1),
            .threads = (int)ck_random_integer(random, 1, 3),
            .keep_outputs = ck_random_integer(random, 0, 3) == 0);
  place.gradient_in_forward = !place.keep_outputs && ck_random_integer(random, 0, 1) == 1;
  place.only_accumulates = ck_random_integer(random, 0, 3) == 0;
  return place;
}

static void random_case(uint64_t number) {
  struct ck_random random = ck_random_start(number);
  struct run run = {.workload = workload_at(ck_random_integer(&random, 0, WORKLOADS - 1)),
                    .type = ck_random_integer(&random, 0, 7) == 0 ? EK_F64 : EK_F32,
                    .grains = (size_t)ck_random_integer(&random, 1, MOST_GRAINS),
                    .bucket_bytes = (size_t)64 << ck_random_integer(&random, 0, 8)};
  if (run.type == EK_F32 && ck_random_integer(&random, 0, 1) == 0) { /* f16 with its loss scale */
    run.precision = ck_random_integer(&random, 0, 1) == 0 ? EK_PRECISION_BF16 : EK_PRECISION_F16;
  }
  run.muon = ck_random_integer(&random, 0, 2) == 0;
  const int64_t reduction = ck_random_integer(&random, 0, 5);
  const bool one_term =
      strcmp(run.workload->name, "mlp") == 0 || strcmp(run.workload->name, "gpt") == 0;
  run.reduction = reduction == 0               ? EK_REDUCTION_SUM
                  : reduction == 1 && one_term ? EK_REDUCTION_NONE
                                               : EK_REDUCTION_MEAN;
  struct place places[STEPS];
  for (int step = 0; step < STEPS; step++) {
    run.parts[step] = (size_t)ck_random_integer(&random, 1, MOST_PARTS);
    for (size_t i = 0; i < run.parts[step]; i++) {
      const int64_t most = ck_random_integer(&random, 0, 1) == 0 ? MOST_GRAINS : 30;
      run.part[step][i] = (struct part){ck_random_integer(&random, 0, most),
                                        (uint64_t)ck_random_integer(&random, 0, 1 << 20)};
    }
    const bool moves = step == 0 || ck_random_integer(&random, 0, 1) == 0;
    places[step] = moves ? random_place(&random, run.grains) : places[step - 1];
  }
  const struct outcome want = train_alone(&run);
  compare(&want, &run, places);
}

static uint64_t wanted_cases(void) {
  const char *text = getenv("EVENKEEL_TEST_CASES");
  return text == NULL ? 30 : strtoull(text, NULL, 10);
}

CK_TEST(random_cases) {
  const uint64_t cases = wanted_cases();
  for (uint64_t i = 0; i < cases; i++) {
    if (cases > 30 || ck_part((int)i)) random_case(i);
  }
  if (cases > 30) {
    printf("%llu random cases, seed %llu: no bit differs\n", (unsigned long long)cases,
           (unsigned long long)ck_seed());
  }
}

/* ---- a model that computes its loss itself, through a trainer ---- */

/* What the model says of a batch; rows are in the order of the batch on any number of devices. */
static void predict(struct outcome *outcome, ek_trainer *trainer, const struct ck_batch *batch) {
  ek_tensor host = {0};
  double sum = 0;
  CK_SCOPED(ek_shards, outputs, ek_trainer_predict(&outputs, trainer, batch->input, 1));
  host = outputs.parts[0];
  host.shape[0] = outputs.offsets[outputs.count];
  const size_t bytes = ek_tensor_bytes(&host);
  CK_HELD(unsigned char *, logits, ck_array(bytes + 1, 1));
  ck_ok(ek_tensor_host(&host, logits, host.type, host.rank, host.shape));
  ck_ok(ek_gather_host(&host, &outputs));
  for (size_t i = 0; i < bytes; i++) sum = fmod(31 * sum + logits[i], 65521);
  record(outcome, sum);
}

static void train_gpt(struct outcome *outcome, ek_mode mode, size_t devices, int64_t samples) {
  struct ck_batch batch = ck_batch_make(ck_workload("gpt"), EK_F32, samples, 0.1, 5);
  const int64_t length = batch.input[0].shape[1];
  CK_WITH(ek_gpt_options, sizes, ck_gpt_sizes(40, length, 16, 2, 2), .dropout = 0.1,
          .fused_loss = true, .logits_bytes = 4096, .recompute.kind = EK_RECOMPUTE_SQRT);
  CK_WITH(struct ck_setup, setup, ck_setup_gpt(&sizes, NULL, NULL, mode), .options.reproducible = 6,
          .micro_batches = 2, .optimizer = ck_clipped_adamw,
          .group = open_group("cpu", devices, 1));
  ek_trainer *trainer = ck_trainer_open(&setup);
  for (int step = 0; step < 2; step++) {
    ek_step_result result = {0};
    double loss = 0;
    ck_ok(ek_trainer_step(&result, trainer, batch.input, 1, batch.target, 1));
    ck_ok(ek_trainer_evaluate(&loss, NULL, trainer, batch.input, 1, batch.target, 1));
    record(outcome, result.loss);
    record(outcome, result.gradient_norm);
    record(outcome, loss);
    predict(outcome, trainer, &batch);
  }
  outcome->state = ck_state_take(ek_trainer_model(trainer));
  ck_ok(ek_trainer_close(trainer));
  ck_ok(ek_group_close(setup.group));
}

CK_LOOP(a_fused_loss, 3) {
  static const int64_t samples[] = {13, 7, 2};
  struct outcome want = {0};
  train_gpt(&want, EK_MODE_REPLICATED, 1, samples[_i]);
  for (int mode = 0; mode < CK_MODES; mode++) {
    struct outcome got = {0};
    train_gpt(&got, (ek_mode)mode, 2 + (size_t)mode % 5, samples[_i]);
    ck_same_bits(ek_mode_name((ek_mode)mode), got.numbers, want.numbers, (int64_t)want.count);
    ck_state_same(ek_mode_name((ek_mode)mode), &got.state, &want.state);
  }
}

/* ---- what it is to one device, and what it costs ---- */

/* Grains change the order of sums, and nothing else. */
CK_LOOP(one_grain_or_many_differ_by_rounding, CK_WORKLOADS) {
  const struct place alone = {1, EK_MODE_REPLICATED, 1, false, false, false};
  const struct place places[STEPS] = {alone, alone, alone};
  CK_WITH(struct run, run, ragged_run(&ck_workloads[_i]), .type = EK_F64);
  struct outcome many = train(&run, places);
  run.grains = 0;
  struct outcome none = train(&run, places);
  for (size_t i = 0; i < many.count; i++) {
    ck_assert_double_le(fabs(many.numbers[i] - none.numbers[i]), 1e-9 * fabs(none.numbers[i]));
  }
  ck_state_close("grains and none", &many.state, &none.state, 1e-9);
}

static void peaks(ek_memory_usage usage[8], const char *backend, const struct run *run,
                  const struct place *place) {
  const struct ck_setup setup = setup_of(run, place);
  ek_group *group = open_group(backend, place->devices, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  for (int step = 0; step < STEPS; step++) {
    for (size_t i = 0; i < run->parts[step]; i++) {
      struct ck_batch batch =
          ck_batch_make(run->workload, run->type, run->part[step][i].samples, 0.1, 3);
      ck_ok(ck_training_backward(&training, &batch, NULL, i + 1 < run->parts[step], NULL));
    }
    ck_ok(ek_data_parallel_optimizer_step(NULL, training.optimizer));
  }
  ck_usages(usage, group);
  ck_training_close(&training);
  ek_group_free(group);
}

CK_PART_LOOP(plan_knows_its_peak, 2 * WORKLOADS * CK_PLACEMENTS) {
  struct run run = ragged_run(workload_at(_i % WORKLOADS));
  const struct place place = {3, _i / WORKLOADS % CK_PLACEMENTS, 1, _i % 2 == 0, false, false};
  ek_memory_usage planned[8], real[8];
  run.muon = _i >= WORKLOADS * CK_PLACEMENTS;
  peaks(planned, "plan", &run, &place);
  peaks(real, "cpu", &run, &place);
  ck_same_peaks(run.workload->name, planned, real, place.devices);
}

/* ---- faults ---- */

/* A step of two micro-batches that fails leaves everything as it was. (Buffers may have been
 * written.) In lockstep each allocation fails once. */
CK_PART_LOOP(a_step_is_a_transaction, (CK_WORKLOADS + 1) * CK_PLACEMENTS) {
  const int workload = _i % (CK_WORKLOADS + 1);
  const bool lockstep = workload == CK_WORKLOADS;
  const uint64_t stride = lockstep ? 1 : 7;
  struct run run = ragged_run(lockstep ? &without_buffers : &ck_workloads[workload]);
  const struct place place = {3, _i / (CK_WORKLOADS + 1), 1, false, false, false};
  run.muon = _i % 3 == 0;
  const struct ck_setup setup = setup_of(&run, &place);
  ek_group *group = open_group("cpu", 3, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  struct ck_batch batch = ck_batch_make(run.workload, run.type, 11, 0.1, 3);
  uint64_t failures = 0;
  /* The first second micro-batch takes memory for good. */
  ck_ok(ck_training_backward(&training, &batch, NULL, true, NULL));
  ck_ok(ck_training_step(&training, &batch, NULL));
  for (uint64_t n = 1 + (uint64_t)_i % stride;; n += stride) {
    ek_device *victim = ek_group_device(group, (n / stride) % 3);
    struct ck_snapshot before = ck_snapshot_take(&training);
    ck_ok(ek_memory_fail_at(victim, n));
    ek_status status = ck_training_backward(&training, &batch, NULL, true, NULL);
    if (status == EK_OK) status = ck_training_step(&training, &batch, NULL);
    ck_ok(ek_memory_fail_at(victim, 0));
    if (status == EK_OK) break;
    ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
    ck_snapshot_is("a reproducible step", &training, &before);
    failures++;
  }
  ck_assert_uint_gt(failures, 3);
}

/* ---- what is refused ---- */

static void refuses(const struct run *run, const struct place *place, ek_group *group,
                    ek_status wanted, const char *text) {
  const struct ck_setup setup = setup_of(run, place);
  struct ck_training training;
  ck_fails(ck_training_try(&training, &setup, group), wanted, text);
}

CK_TEST(what_is_refused) {
  struct run run = ragged_run(ck_workload("mlp"));
  const struct place place = {3, EK_MODE_REPLICATED, 1, false, false, false};
  ek_group *group = open_group("cpu", 3, 1), *other = ck_open("cpu:3", 1);
  refuses(&run, &place, other, EK_ERR_INVALID_ARGUMENT, "ek_group_options.deterministic");
  run.grains = 2;
  refuses(&run, &place, group, EK_ERR_INVALID_ARGUMENT, "at least the 3 devices");
  run.grains = 257;
  refuses(&run, &place, group, EK_ERR_INVALID_ARGUMENT, "at most 256");
}

/* A module that comes to a collective with its first sample alone, or with another number of
 * elements than in the other grains. */
struct fickle {
  ek_module base;
  bool size;
};

CK_FORWARD(fickle) {
  const bool first = ek_pass_first_sample(pass) == 0, size = ((const struct fickle *)self)->size;
  const int64_t count = size && first ? 2 : 1;
  CK_FREED(tensor) sums = {0};
  EK_TRY(ek_tensor_share(&outputs[0], &inputs[0]));
  EK_TRY(ek_pass_workspace(&sums, pass, EK_F64, 1, &count));
  EK_TRY(ek_op_zero(ek_pass_stream(pass), &sums));
  return first || size ? ek_pass_all_reduce(pass, &sums) : EK_OK;
}

static const ek_module_ops fickle_ops = {
    CK_OPS("fickle", fickle_forward, ck_share_backward, ck_plain_free), .types = EK_TYPES_F32,
    .collective = true};

CK_LOOP(grains_come_to_the_same_collectives, 2) {
  static const char *const texts[] = {"of 4 grains of this device only 1 came to a collective",
                                      "one grain adds 2 f64 and another one of the same device 1"};
  CK_HELD(float *, values, ck_array(9, sizeof *values));
  struct fickle *made = ck_module_new(sizeof *made, &fickle_ops, 1, 1);
  made->size = _i == 1;
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_shards y = {0};
  options.reproducible = 4;
  ek_group *group = open_group("cpu", 1, 1);
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, &made->base, &options));
  ek_module_free(&made->base);
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, values, EK_F32, 2, (const int64_t[]){9, 1}));
  for (int again = 0; again < 2; again++) {
    ck_fails(ek_data_parallel_model_forward(&y, model, &x, 1, NULL), EK_ERR_SHAPE, texts[_i]);
  }
}

/* Rows of a grain that are copied are still counted over the batch. */
CK_TEST(wrong_tokens_are_counted_over_the_batch) {
  const struct run run = ragged_run(ck_workload("gpt"));
  const struct place place = {3, EK_MODE_REPLICATED, 1, false, false, false};
  const struct ck_setup setup = setup_of(&run, &place);
  ek_group *group = open_group("cpu", 3, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  struct ck_batch batch = ck_batch_make(run.workload, run.type, 20, 0, 3);
  const int64_t tokens = ek_tensor_count(&batch.input[0]);
  for (int64_t i = tokens - 30; i < tokens; i += 7) {
    int32_t *token = (int32_t *)batch.input[0].data + i;
    const int32_t right = *token;
    *token = 99;
    double loss = 0; /* a GPU finds it before this is read */
    ck_invalid(ck_training_backward(&training, &batch, NULL, true, &loss),
               ck_text("index 99 at position %lld of the batch", (long long)i));
    ck_ok(ek_data_parallel_model_discard(training.model));
    *token = right;
  }
}

/* Shards that were cut before: each device has its own grains, or nothing is run. */
CK_TEST(shards_are_cut_between_grains) {
  const struct run run = ragged_run(ck_workload("mlp"));
  const struct place place = {3, EK_MODE_REPLICATED, 1, false, false, false};
  const struct ck_setup setup = setup_of(&run, &place);
  ek_group *group = open_group("cpu", 3, 1);
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  struct ck_batch batch = ck_batch_make(run.workload, run.type, 20, 0, 3);
  ek_shards input = {0}, outputs = {0};
  ek_scatter_options scatter = EK_SCATTER_OPTIONS_INIT;
  ck_ok(ek_scatter(&input, group, batch.input, EK_MEMORY_INPUTS, &scatter)); /* 7 7 6 */
  ck_fails(ek_data_parallel_model_forward_shards(&outputs, training.model, &input, 1, NULL),
           EK_ERR_SHAPE,
           "device number 0 has 7 samples; its grains of a reproducible model have 9");
  ek_shards_free(&input);
  scatter.kind = EK_SCATTER_SIZES;
  scatter.sizes = (const int64_t[]){9, 9, 2}; /* whole grains, of other devices */
  ck_ok(ek_scatter(&input, group, batch.input, EK_MEMORY_INPUTS, &scatter));
  ck_fails(ek_data_parallel_model_forward_shards(&outputs, training.model, &input, 1, NULL),
           EK_ERR_SHAPE,
           "device number 1 has 9 samples; its grains of a reproducible model have 7");
  ek_shards_free(&input);
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .scatter = &scatter);
  ck_invalid(ek_data_parallel_model_forward(&outputs, training.model, batch.input, 1, &forward),
             "options.scatter");
  scatter.kind = EK_SCATTER_GRAINS;
  ck_invalid(ek_scatter(&input, group, batch.input, EK_MEMORY_INPUTS, &scatter), "grains");
  scatter.grains = run.grains;
  ck_ok(ek_scatter(&input, group, batch.input, EK_MEMORY_INPUTS, &scatter)); /* 3 3 3, 3 2 2, 2 2 */
  ck_assert_int_eq(input.offsets[1], 9);
  ck_assert_int_eq(input.offsets[2], 16);
  ck_kept(ek_data_parallel_model_forward_shards(&outputs, training.model, &input, 1, NULL),
          outputs);
  ek_shards_free(&input);
}

/* ---- outputs with several rows for each sample ---- */

/* Each sample of 4 numbers as 2 rows of 2. */
CK_FORWARD(halves) {
  EK_TRY(ek_pass_output(&outputs[0], pass, inputs[0].type, CK_SHAPE(2 * inputs[0].shape[0], 2)));
  return ek_op_copy(ek_pass_stream(pass), &outputs[0], &inputs[0]);
}

CK_LOOP(several_rows_for_each_sample, 3) {
  enum { SAMPLES = 11 };
  static const ek_module_ops ops = {
      CK_OPS("halves", halves_forward, ck_share_backward, ck_no_free)};
  ek_group *group = open_group("cpu", (size_t)_i + 1, 1);
  CK_WITH(ek_data_parallel_model_options, options, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .reproducible = 8);
  float x[SAMPLES * 4], y[SAMPLES * 4] = {0};
  for (int i = 0; i < SAMPLES * 4; i++) x[i] = (float)i;
  CK_GOT(ek_module, module, ek_module_init(&module, &ops, 1, 1));
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, x, EK_F32, CK_SHAPE(SAMPLES, 4)));
  CK_GOT(ek_tensor, output, ek_tensor_host(&output, y, EK_F32, CK_SHAPE(2 * SAMPLES, 2)));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, &module, &options));
  CK_SCOPED(ek_shards, outputs, ek_data_parallel_model_forward(&outputs, model, &input, 1, NULL));
  ck_ok(ek_gather_host(&output, &outputs));
  ck_assert_mem_eq(x, y, sizeof x);
}

CK_SUITE("reproducible")
