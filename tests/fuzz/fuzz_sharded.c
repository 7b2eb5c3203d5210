/*
 * fuzz_sharded.c - random models in mode fully-sharded against the same in mode replicated.
 *
 * What is random is what may upset the order in which devices gather and reduce: tied and frozen
 * parameters, losses within the model, recomputation, gradients in forward, the size of the units,
 * and batches with fewer rows than there are devices.
 *
 *   one micro-batch a step: the same bits as replicated, because both add a gradient over the
 *   devices in the devices' order;
 *   several: the same bits as sharded-gradients, which adds each micro-batch over the devices
 *   before the next one, too, and in f64 what replicated gives, except for the rounding of these
 *   sums; on `plan`: the same status, and the same peak on every device to the byte.
 *
 * A device that waits for ever is found by the time limit of libFuzzer or of replay.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sharded_models.h"

enum { MOST_STEPS = 2, MOST_BATCHES = 3, MOST_DEVICES = 4 };

struct plan {
  struct fuzz_input model; /* where the bytes of the model begin */
  size_t devices, steps, batch_count;
  int64_t rows[MOST_STEPS * MOST_BATCHES];
  bool evaluates;
  double momentum;
  struct fuzz_setup setup;
};

/* What a run leaves. */
struct outcome {
  ek_status status;
  uint64_t peak[MOST_DEVICES];
  double loss[MOST_STEPS];
  unsigned char *state;
  size_t size;
};

static struct fuzz_setup read_setup(struct fuzz_input *input, size_t batch_count) {
  static const size_t bytes[] = {4u << 20, 1, 64, 256, 1024};
  struct fuzz_setup setup = {.model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
                             .criterion = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT,
                             .optimizer = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT};
  setup.model.seed = 7;
  setup.model.bucket_bytes = bytes[fuzz_choice(input, 5)];
  setup.criterion.gradient_in_forward = !fuzz_one_in(input, 4);
  const int type = fuzz_choice(input, 4);
  setup.model.type = batch_count > 1 || type == 0 ? EK_F64 : EK_F32;
  if (setup.model.type == EK_F32 && type == 3) setup.model.precision = EK_PRECISION_BF16;
  return setup;
}

static struct plan read_plan(struct fuzz_input *input) {
  struct plan plan = {.devices = 2 + (size_t)fuzz_choice(input, MOST_DEVICES - 1)};
  plan.steps = 1 + (size_t)fuzz_choice(input, MOST_STEPS);
  plan.batch_count = 1 + (size_t)fuzz_choice(input, MOST_BATCHES);
  for (size_t i = 0; i < plan.steps * plan.batch_count; i++) {
    plan.rows[i] = (1 + fuzz_choice(input, SHARDED_MOST_ROWS + 1)) % (SHARDED_MOST_ROWS + 1);
  }
  plan.evaluates = fuzz_one_in(input, 3);
  plan.momentum = fuzz_choice(input, 2) / 2.0;
  plan.setup = read_setup(input, plan.batch_count);
  plan.model = *input;
  return plan;
}

/* ---- one run ---- */

struct run {
  const struct plan *plan;
  struct fuzz_training training;
  struct sharded_model about;
};

static ek_status open_run(struct run *run, ek_mode mode) {
  struct fuzz_input input = run->plan->model;
  struct fuzz_setup setup = run->plan->setup;
  ek_sgd_options sgd = EK_SGD_OPTIONS_INIT;
  sgd.momentum = run->plan->momentum;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status,
              sharded_model(&run->training.module, &run->training.criterion, &run->about, &input),
              cleanup);
  EK_TRY_GOTO(status, ek_sgd_create(&run->training.rule, &sgd), cleanup);
  EK_TRY_GOTO(status, ek_data_parallel_model_options_set_mode(&setup.model, mode), cleanup);
  EK_TRY_GOTO(status, fuzz_training_open(&run->training, &setup), cleanup);
cleanup:
  return status;
}

/* A forward without a backward. */
static ek_status evaluate(struct run *run, int64_t rows) {
  struct sharded_memory memory;
  struct fuzz_batch batch;
  sharded_batch(&batch, &memory, &run->about, rows, 11);
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = options.training = false;
  ek_shards outputs[FUZZ_BATCH_TENSORS] = {{0}};
  const ek_status status = ek_data_parallel_model_forward(outputs, run->training.model, batch.input,
                                                          batch.inputs, &options);
  for (size_t i = 0; i < ek_module_outputs(run->training.module); i++) ek_shards_free(&outputs[i]);
  return status;
}

static ek_status run_step(struct run *run, size_t step, double *loss) {
  struct sharded_memory memory[MOST_BATCHES];
  struct fuzz_batch batch[MOST_BATCHES];
  ek_step_result result = {0};
  const size_t count = run->plan->batch_count;
  for (size_t i = 0; i < count; i++) {
    const size_t number = step * count + i;
    sharded_batch(&batch[i], &memory[i], &run->about, run->plan->rows[number], number);
  }
  if (run->plan->evaluates) EK_TRY(evaluate(run, run->plan->rows[step * count]));
  EK_TRY(fuzz_training_step(&run->training, batch, count, &result));
  *loss = result.loss;
  return EK_OK;
}

static struct outcome do_run(const struct plan *plan, const char *backend, ek_mode mode) {
  char spec[16];
  (void)snprintf(spec, sizeof spec, "%s:%zu", backend, plan->devices);
  struct outcome outcome = {0};
  struct run run = {.plan = plan, .training = {.group = fuzz_group(spec, 1)}};
  for (size_t i = 0; i < plan->devices; i++) {
    FUZZ_OK(ek_memory_reset_peak(ek_group_device(run.training.group, i)));
  }
  outcome.status = open_run(&run, mode);
  for (size_t s = 0; s < plan->steps && outcome.status == EK_OK; s++) {
    outcome.status = run_step(&run, s, &outcome.loss[s]);
  }
  FUZZ_EXPECT(outcome.status != EK_ERR_INTERNAL && outcome.status != EK_ERR_ABORTED &&
                  (outcome.status != EK_ERR_SHAPE || run.training.optimizer == NULL),
              "%s, mode %s: %s", ek_status_name(outcome.status), ek_mode_name(mode),
              ek_error_message());
  for (size_t i = 0; i < plan->devices; i++) {
    ek_memory_usage usage;
    FUZZ_OK(ek_memory_stats(&usage, ek_group_device(run.training.group, i)));
    outcome.peak[i] = usage.peak_bytes;
  }
  if (run.training.optimizer != NULL && strcmp(backend, "plan") != 0) {
    outcome.state = fuzz_training_state(&run.training, &outcome.size);
  }
  fuzz_training_close(&run.training);
  fuzz_expect_nothing_held(run.training.group);
  return outcome;
}

/* ---- what must be equal ---- */

static void check_bits(const struct plan *plan, const struct outcome *got, ek_mode mode) {
  const struct outcome want = do_run(plan, "cpu", mode);
  FUZZ_EXPECT(want.status == got->status, "%s fully sharded, %s in mode %s",
              ek_status_name(got->status), ek_status_name(want.status), ek_mode_name(mode));
  FUZZ_EXPECT(want.size == got->size &&
                  (got->size == 0 || memcmp(want.state, got->state, got->size) == 0),
              "other parameters or states than in mode %s", ek_mode_name(mode));
  FUZZ_EXPECT(memcmp(want.loss, got->loss, sizeof want.loss) == 0, "another loss than in mode %s",
              ek_mode_name(mode));
  free(want.state);
}

/* All of it is f64: parameters, and the momentum of SGD. Sums of six terms in another order, of
 * numbers around one, twice in a row. */
static void check_nearly(const struct plan *plan, const struct outcome *got) {
  const struct outcome want = do_run(plan, "cpu", EK_MODE_REPLICATED);
  FUZZ_EXPECT(want.status == got->status && want.size == got->size,
              "%s fully sharded, %s replicated", ek_status_name(got->status),
              ek_status_name(want.status));
  for (size_t i = 0; i + sizeof(double) <= got->size; i += sizeof(double)) {
    double a = 0, b = 0;
    memcpy(&a, got->state + i, sizeof a);
    memcpy(&b, want.state + i, sizeof b);
    FUZZ_EXPECT((isnan(a) && isnan(b)) || fabs(a - b) <= 0x1p-36 * (1 + fabs(b)),
                "byte %zu of the state: %.17g, replicated %.17g", i, a, b);
  }
  free(want.state);
}

static void check_plan(const struct plan *plan, const struct outcome *got) {
  const struct outcome planned = do_run(plan, "plan", EK_MODE_FULLY_SHARDED);
  FUZZ_EXPECT(planned.status == got->status, "%s on plan, %s on cpu",
              ek_status_name(planned.status), ek_status_name(got->status));
  for (size_t i = 0; i < plan->devices && planned.status == EK_OK; i++) {
    FUZZ_EXPECT(planned.peak[i] == got->peak[i], "device %zu: peak %llu on plan, %llu on cpu", i,
                (unsigned long long)planned.peak[i], (unsigned long long)got->peak[i]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  const struct plan plan = read_plan(&input);
  struct outcome outcome = do_run(&plan, "cpu", EK_MODE_FULLY_SHARDED);
  if (plan.batch_count > 1) {
    check_bits(&plan, &outcome, EK_MODE_SHARDED_GRADIENTS);
    check_nearly(&plan, &outcome);
  } else {
    check_bits(&plan, &outcome, EK_MODE_REPLICATED);
  }
  check_plan(&plan, &outcome);
  free(outcome.state);
  return 0;
}
