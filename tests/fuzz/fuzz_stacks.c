/*
 * fuzz_stacks.c - random models of stock modules, trained while memory fails.
 *
 * The input describes a model, a loss, an update rule, a mode, a group and a few batches. They are
 * trained three times:
 *
 *   undisturbed, on `cpu`;
 *   on `plan`: the same status, and the same peak on every device to the byte;
 *   on `cpu`, while one allocation of a device or of the host fails: EK_ERR_OUT_OF_MEMORY with a
 *   message, nothing changed and nothing left behind; the same again then gives the same bits as
 *   the undisturbed run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stacks_modules.h"

enum { MOST_STEPS = 3, MOST_BATCHES = 2, MOST_DEVICES = 4 };

/* Where and when memory fails. Moment 0 makes the parts, 1 opens them, 2 + s is step s. */
struct failure {
  int moment; /* -1: never */
  bool host;
  size_t device;
  uint64_t number; /* of the allocation */
};

struct plan {
  struct fuzz_input model; /* where the bytes of the model, the loss and the rule begin */
  struct fuzz_input batches;
  size_t devices, steps, batch_count;
  struct fuzz_setup setup;
  ek_scatter_options scatter;
  struct failure failure;
};

/* What a run leaves. */
struct outcome {
  ek_status status;
  int moment; /* of the failure */
  uint64_t peak[MOST_DEVICES], held[MOST_DEVICES];
  ek_step_result result[MOST_STEPS];
  unsigned char *state;
  size_t size;
};

static struct plan read_plan(struct fuzz_input *input) {
  struct plan plan = {.scatter = EK_SCATTER_OPTIONS_INIT};
  plan.devices = 1 + (size_t)fuzz_choice(input, MOST_DEVICES);
  plan.steps = 1 + (size_t)fuzz_choice(input, MOST_STEPS);
  plan.batch_count = 1 + (size_t)fuzz_choice(input, MOST_BATCHES);
  plan.setup = fuzz_setup(input);
  plan.scatter.kind = fuzz_one_in(input, 4) ? EK_SCATTER_CHUNK : EK_SCATTER_EVEN;
  plan.failure.moment = fuzz_choice(input, (int)plan.steps + 3) - 1;
  plan.failure.host = fuzz_one_in(input, 2);
  plan.failure.device = (size_t)fuzz_choice(input, (int)plan.devices);
  plan.failure.number = 1 + fuzz_byte(input);
  if (fuzz_one_in(input, 2)) plan.failure.number %= 16; /* 0: never */
  plan.batches = *input;
  for (size_t i = 0; i < 2 * plan.steps * plan.batch_count; i++) (void)fuzz_byte(input);
  plan.model = *input;
  return plan;
}

/* ---- one run ---- */

struct run {
  const struct plan *plan;
  struct fuzz_training training;
  struct stack_shape shape;
  bool classes;
  bool disturbed;
};

static ek_status make_parts(struct run *run) {
  struct fuzz_input input = run->plan->model;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, stack_module(&run->training.module, &run->shape, &input), cleanup);
  EK_TRY_GOTO(status, stack_criterion(&run->training.criterion, &run->classes, &run->shape, &input),
              cleanup);
  EK_TRY_GOTO(status, stack_rule(&run->training.rule, &input), cleanup);
  return EK_OK;
cleanup:
  fuzz_training_close(&run->training);
  return status;
}

static ek_status run_step(struct run *run, size_t step, ek_step_result *result) {
  static struct stack_memory memory[MOST_BATCHES];
  struct fuzz_batch batch[MOST_BATCHES];
  struct fuzz_input input = run->plan->batches;
  for (size_t i = 0; i < 2 * step * run->plan->batch_count; i++) (void)fuzz_byte(&input);
  for (size_t i = 0; i < run->plan->batch_count; i++) {
    stack_batch(&batch[i], &memory[i], &run->shape, run->classes, run->plan->setup.model.type,
                &input);
    batch[i].scatter = &run->plan->scatter;
  }
  return fuzz_training_step(&run->training, batch, run->plan->batch_count, result);
}

/* A forward without a backward, in between: it must leave no trace in the training. */
static void evaluate(struct run *run) {
  static struct stack_memory memory;
  struct fuzz_batch batch;
  struct fuzz_input input = run->plan->batches;
  stack_batch(&batch, &memory, &run->shape, run->classes, run->plan->setup.model.type, &input);
  ek_forward_options options = EK_FORWARD_OPTIONS_INIT;
  options.gradient = false;
  options.training = false;
  ek_shards outputs = {0};
  fuzz_expect_explained(ek_data_parallel_model_forward(&outputs, run->training.model, batch.input,
                                                       batch.inputs, &options));
  ek_shards_free(&outputs);
}

static ek_status do_moment(struct run *run, int moment, ek_step_result *result) {
  if (moment == 0) return make_parts(run);
  if (moment == 1) return fuzz_training_open(&run->training, &run->plan->setup);
  return run_step(run, (size_t)moment - 2, &result[moment - 2]);
}

static void arm(const struct run *run, uint64_t number) {
  const struct failure *failure = &run->plan->failure;
  if (failure->host) {
    ek_host_memory_fail_at(number);
  } else {
    FUZZ_OK(ek_memory_fail_at(ek_group_device(run->training.group, failure->device), number));
  }
}

/* The same while an allocation fails; what it leaves must be what was there before. */
static void do_disturbed(struct run *run, int moment, ek_step_result *result) {
  size_t size = 0, size_after = 0;
  unsigned char *before = NULL;
  if (moment >= 2) before = fuzz_training_state(&run->training, &size);
  arm(run, run->plan->failure.number);
  const ek_status status = do_moment(run, moment, result);
  arm(run, 0);
  fuzz_expect_explained(status);
  if (status == EK_OK || moment < 2) {
    /* It was not reached; or nothing was there before. Again from the beginning. */
    if (moment == 0) fuzz_training_close(&run->training);
    if (moment < 2 && status != EK_OK) fuzz_expect_nothing_held(run->training.group);
    free(before);
    return;
  }
  unsigned char *after = fuzz_training_state(&run->training, &size_after);
  FUZZ_EXPECT(size == size_after && (size == 0 || memcmp(before, after, size) == 0),
              "%s, and the state has changed", ek_status_name(status));
  free(before);
  free(after);
  evaluate(run);
}

static void close_run(struct run *run) {
  fuzz_training_close(&run->training);
  fuzz_expect_nothing_held(run->training.group);
}

static struct outcome do_run(const struct plan *plan, const char *backend, bool disturbed) {
  char spec[16];
  snprintf(spec, sizeof spec, "%s:%zu", backend, plan->devices);
  struct outcome outcome = {0};
  struct run run = {.plan = plan, .training = {.group = fuzz_group(spec, 1)}};
  for (size_t i = 0; i < plan->devices; i++) {
    FUZZ_OK(ek_memory_reset_peak(ek_group_device(run.training.group, i)));
  }
  const int moments = 2 + (int)plan->steps;
  for (int moment = 0; moment < moments && outcome.status == EK_OK; moment++) {
    bool again = true;
    if (disturbed && moment == plan->failure.moment) {
      const int64_t steps = ek_data_parallel_optimizer_steps(run.training.optimizer);
      do_disturbed(&run, moment, outcome.result);
      again = moment == 0 || (moment == 1 && run.training.model == NULL) ||
              (moment >= 2 && ek_data_parallel_optimizer_steps(run.training.optimizer) == steps);
    }
    if (again) outcome.status = do_moment(&run, moment, outcome.result);
    outcome.moment = moment;
    fuzz_expect_explained(outcome.status);
  }
  for (size_t i = 0; i < plan->devices; i++) {
    ek_memory_usage usage;
    FUZZ_OK(ek_memory_stats(&usage, ek_group_device(run.training.group, i)));
    outcome.peak[i] = usage.peak_bytes;
    outcome.held[i] = usage.current_bytes;
  }
  if (run.training.optimizer != NULL)
    outcome.state = fuzz_training_state(&run.training, &outcome.size);
  close_run(&run);
  return outcome;
}

/* ---- what must be equal ---- */

static void check_plan(const struct plan *plan, const struct outcome *outcome) {
  const struct outcome planned = do_run(plan, "plan", false);
  FUZZ_EXPECT(planned.status == outcome->status && planned.moment == outcome->moment,
              "%s at %d on plan, %s at %d on cpu", ek_status_name(planned.status), planned.moment,
              ek_status_name(outcome->status), outcome->moment);
  for (size_t i = 0; i < plan->devices && planned.status == EK_OK; i++) {
    FUZZ_EXPECT(planned.peak[i] == outcome->peak[i] && planned.held[i] == outcome->held[i],
                "device %zu: peak %llu on plan, %llu on cpu", i,
                (unsigned long long)planned.peak[i], (unsigned long long)outcome->peak[i]);
  }
  free(planned.state);
}

static void check_disturbed(const struct plan *plan, const struct outcome *outcome) {
  const struct outcome disturbed = do_run(plan, "cpu", true);
  FUZZ_EXPECT(disturbed.status == outcome->status && disturbed.moment == outcome->moment,
              "%s at %d, undisturbed %s at %d", ek_status_name(disturbed.status), disturbed.moment,
              ek_status_name(outcome->status), outcome->moment);
  FUZZ_EXPECT(
      disturbed.size == outcome->size &&
          (outcome->size == 0 || memcmp(disturbed.state, outcome->state, outcome->size) == 0),
      "other parameters or states after a failure that was made good");
  for (size_t s = 0; s < plan->steps && outcome->status == EK_OK; s++) {
    FUZZ_EXPECT(memcmp(&disturbed.result[s].loss, &outcome->result[s].loss, sizeof(double)) == 0 &&
                    disturbed.result[s].step == outcome->result[s].step,
                "step %zu: another loss", s);
  }
  for (size_t i = 0; i < plan->devices; i++) {
    FUZZ_EXPECT(disturbed.held[i] == outcome->held[i], "device %zu holds %llu bytes and not %llu",
                i, (unsigned long long)disturbed.held[i], (unsigned long long)outcome->held[i]);
  }
  free(disturbed.state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz_input input = fuzz_input(data, size);
  const struct plan plan = read_plan(&input);
  const struct outcome outcome = do_run(&plan, "cpu", false);
  check_plan(&plan, &outcome);
  if (plan.failure.moment >= 0) check_disturbed(&plan, &outcome);
  free(outcome.state);
  return 0;
}
