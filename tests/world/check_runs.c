/*
 * check_runs.c - random runs of reproducible models: processes that have devices in any way train
 * and save, other processes go on in another mode, and one process with one device does all of it.
 * All have the same bits of losses, norms, parameters and states.
 *
 * EVENKEEL_TEST_CASES is the number of runs (8 without it), EVENKEEL_TEST_SEED the first one.
 */
#include "ck_folder.h"
#include "ck_processes.h"
#include "ck_training.h"

enum { RANKS = 4, STEPS = 2, MOST_PARTS = 3, MOST_ROWS = 14, VALUES = 1 << 16 };

#define SEED_VARIABLE "CK_RUNS_SEED"
#define FOLDER_VARIABLE "CK_RUNS_FOLDER"

/* ---- a run, by its number ---- */

struct place {
  size_t count, devices[CK_PROCESSES];
};

struct run {
  const char *workload;
  ek_mode modes[2];
  ek_precision precision;
  size_t grains;
  int64_t parts, rows[2 * STEPS];
  struct place places[2];
};

static uint32_t draw(uint64_t *state, uint32_t below) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(*state >> 33) % below;
}

/* Up to four devices over up to four processes. */
static struct place draw_place(uint64_t *state) {
  struct place place = {.count = 1 + draw(state, CK_PROCESSES)};
  size_t left = RANKS - place.count;
  for (size_t p = 0; p < place.count; p++) {
    const size_t more = left == 0 ? 0 : draw(state, (uint32_t)left + 1);
    place.devices[p] = 1 + more;
    left -= more;
  }
  return place;
}

static struct run run_of(uint64_t seed) {
  static const char *const workloads[] = {"mlp", "gpt", "mixer"};
  static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_BF16, EK_PRECISION_F16};
  uint64_t state = seed * 2654435761u + 1;
  struct run run = {.workload = workloads[draw(&state, 3)],
                    .precision = precisions[draw(&state, 3)],
                    .grains = RANKS + draw(&state, 5),
                    .parts = 1 + draw(&state, MOST_PARTS)};
  for (int i = 0; i < 2; i++) {
    run.modes[i] = (ek_mode)(EK_MODE_REPLICATED + draw(&state, 4));
    run.places[i] = draw_place(&state);
  }
  for (int i = 0; i < 2 * STEPS; i++) run.rows[i] = draw(&state, MOST_ROWS);
  return run;
}

/* ---- a process's part ---- */

/* Rows of a step that this process has: of each micro-batch those of its grains, one after the
 * other. */
static ek_status own_rows(struct ck_batch *own, const struct ck_batch *whole,
                          const struct run *run, const ek_group *group, int64_t rows) {
  int64_t begins[MOST_PARTS], counts[MOST_PARTS], all = 0, done = 0;
  for (int64_t i = 0; i < run->parts; i++) {
    const int64_t rest = rows % run->parts, each = rows / run->parts;
    const int64_t before = i * each + (i < rest ? i : rest);
    EK_TRY(ek_world_rows(&begins[i], &counts[i], group, each + (i < rest), run->grains));
    begins[i] += before;
    all += counts[i];
  }
  *own = ck_batch_make(ck_workload(run->workload), EK_F32, all, 0, 1);
  for (int64_t i = 0; i < run->parts; done += counts[i++]) {
    const struct ck_batch from = ck_batch_samples(whole, begins[i], counts[i]);
    const struct ck_batch to = ck_batch_samples(own, done, counts[i]);
    if (counts[i] == 0) continue;
    for (size_t k = 0; k < to.inputs; k++) {
      memcpy(to.input[k].data, from.input[k].data, (size_t)ek_tensor_bytes(&to.input[k]));
    }
    for (size_t k = 0; k < to.targets; k++) {
      memcpy(to.target[k].data, from.target[k].data, (size_t)ek_tensor_bytes(&to.target[k]));
    }
  }
  return EK_OK;
}

static ek_status steps(struct ck_outcome *outcome, ek_trainer *trainer, const struct run *run,
                       int first) {
  for (int step = first; step < first + STEPS; step++) {
    ek_step_result result = {0};
    struct ck_batch whole = ck_batch_make(ck_workload(run->workload), EK_F32, run->rows[step], 0.2,
                                          (uint64_t)step);
    struct ck_batch own;
    EK_TRY(own_rows(&own, &whole, run, ek_trainer_group(trainer), run->rows[step]));
    EK_TRY(ek_trainer_step(&result, trainer, own.input, own.inputs, own.target, own.targets));
    const double numbers[] = {result.loss, result.weight, result.gradient_norm, result.loss_scale,
                              (double)result.step};
    for (size_t i = 0; i < 5; i++) ck_outcome_add(outcome, numbers[i]);
  }
  return EK_OK;
}

/* Every entry of the state, of which other processes may have parts. */
static ek_status read_all(struct ck_outcome *outcome, const ek_data_parallel_model *model) {
  static double values[VALUES];
  uint64_t hash = CK_HASH;
  for (size_t i = 0; i < ek_state_count(model); i++) {
    ek_state_info info;
    EK_TRY(ek_state_entry(&info, model, i));
    CK_WITH(ek_tensor, host, info.like, .data = values);
    if (ek_tensor_bytes(&host) > (int64_t)sizeof values) return EK_ERR_OVERFLOW;
    EK_TRY(ek_state_read(&host, model, info.name));
    hash = ck_hash(hash, values, ek_tensor_bytes(&host));
  }
  ck_outcome_add(outcome, (double)(hash >> 12));
  return EK_OK;
}

/* Half number `half` of the run, in a group that is open. */
static void train(struct ck_outcome *outcome, ek_group *group, int half, ek_mode mode) {
  const struct run run = run_of(strtoull(getenv(SEED_VARIABLE), NULL, 10));
  const char *folder = getenv(FOLDER_VARIABLE);
  CK_WITH(struct ck_setup, setup, ck_setup_mode(ck_workload(run.workload), "", mode),
          .group = group, .optimizer = ck_clipped_adamw, .options.precision = run.precision,
          .options.reproducible = run.grains, .options.bucket_bytes = 4096,
          .options.seed = half == 0 ? 5 : 6, .micro_batches = run.parts);
  CK_HELD(ek_trainer *, trainer, ck_trainer_open(&setup));
  if (half == 1) ck_went(outcome, ek_trainer_load(NULL, trainer, folder));
  if (outcome->status == EK_OK) ck_went(outcome, steps(outcome, trainer, &run, half * STEPS));
  if (outcome->status == EK_OK) ck_went(outcome, read_all(outcome, ek_trainer_model(trainer)));
  if (outcome->status == EK_OK && half == 0) {
    ck_went(outcome, ek_trainer_save(trainer, folder, NULL));
  }
}

static void in_process(struct ck_outcome *outcome, const struct ck_process *process, int half) {
  const struct run run = run_of(strtoull(getenv(SEED_VARIABLE), NULL, 10));
  CK_PROCESS_GROUP(group, outcome, process, 0);
  train(outcome, group, half, run.modes[half]);
}

static void first_half(struct ck_outcome *o, const struct ck_process *p) { in_process(o, p, 0); }
static void second_half(struct ck_outcome *o, const struct ck_process *p) { in_process(o, p, 1); }

/* ---- the test ---- */

static void same_as(const struct ck_outcome *outcomes, const struct ck_outcome *want,
                    const struct place *place, uint64_t seed, int half) {
  for (size_t p = 0; p < place->count; p++) {
    ck_assert_msg(outcomes[p].whole && outcomes[p].exit == 0 && outcomes[p].status == EK_OK,
                  "run %llu, half %d, process %zu of %zu: %s", (unsigned long long)seed, half, p,
                  place->count, outcomes[p].message);
    ck_assert_uint_eq(outcomes[p].count, want->count);
    for (size_t i = 0; i < want->count; i++) {
      const double own = outcomes[p].numbers[i], other = want->numbers[i];
      ck_assert_msg(own == other || (isnan(own) && isnan(other)),
                    "run %llu, half %d, process %zu of %zu, number %zu: %.17g, not %.17g",
                    (unsigned long long)seed, half, p, place->count, i, own, other);
    }
  }
}

static void one_run(uint64_t seed) {
  static const char *const halves[] = {"first half", "second half"};
  struct ck_outcome *outcomes = ck_array(CK_PROCESSES + 1, sizeof *outcomes);
  struct ck_outcome *want = &outcomes[CK_PROCESSES];
  const struct run run = run_of(seed);
  CK_HELD(const char *, folder, ck_folder());
  const char *text = ck_text("%llu", (unsigned long long)seed);
  ck_assert_int_eq(setenv(SEED_VARIABLE, text, 1), 0);
  ck_assert_int_eq(setenv(FOLDER_VARIABLE, folder, 1), 0);
  for (int half = 0; half < 2; half++) {
    const struct ck_process alone = ck_process_alone(halves[half], 1);
    memset(want, 0, sizeof *want);
    in_process(want, &alone, half);
    ck_assert_msg(want->status == EK_OK, "run %s alone: %s", text, want->message);
    ck_processes_run(outcomes, halves[half], run.places[half].devices, run.places[half].count);
    same_as(outcomes, want, &run.places[half], seed, half);
  }
  for (int step = 0; step <= STEPS; step++) { /* steps may be skipped */
    (void)remove(ck_state_file(folder, step));
  }
}

CK_TEST(any_processes_have_the_bits_of_one) {
  const char *text = getenv("EVENKEEL_TEST_CASES");
  const int cases = text == NULL ? 8 : atoi(text);
  for (int i = 0; i < cases; i++) one_run(ck_seed() + (uint64_t)i);
}

static const struct ck_part parts[] = {
    {"first half", first_half}, {"second half", second_half}, {NULL, NULL}};

CK_PARTS_SUITE("runs", parts)
