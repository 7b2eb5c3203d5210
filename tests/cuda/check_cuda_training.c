/*
 * check_cuda_training.c - training on emulated CUDA devices is the training on the CPU: losses,
 * gradients, parameters, peaks, and what happens when memory runs out or a target makes no sense.
 *
 * Runs on tests/cuemu: see CMakeLists.txt here.
 *
 * 1e-5: sums of some hundred products of f32 in another order differ by a few units of 2^-24 = 6e-8
 * of their terms; the terms of a gradient here are up to some ten times its size. In 16 bits such a
 * sum is another neighbour of its value, 2 v of it, and a network of depth d hands that on: 2 d v,
 * d at most 8 (docs/numerics.md, "Numbers of 16 bits").
 */
#include <pthread.h>
#include <time.h>

#include "ck_emulated.h"
#include "ck_training.h"

#define TOLERANCE 1e-5

static const char *const specs[] = {"cuda:0-3", "cuda:0x4", "cuda:0x2,1x2"};
static const char *const workloads[] = {"mlp", "gpt"};
static const ek_type halves[] = {EK_BF16, EK_F16};
enum { SPECS = 3, WORKLOADS = 2, HALVES = 2, STEPS = 3, SAMPLES = 11 };
enum { CASES = SPECS * WORKLOADS * CK_MODES };

/* Not AdamW: where a gradient is nearly 0 it turns a rounding into a whole step. */
CK_SGD(momentum, .learning_rate = 0.1, .momentum = 0.9, .clip_norm = 0.5)

struct run {
  double losses[STEPS];
  double *before, *gradients, *values; /* parameters; of the first step; after the last */
  ek_memory_usage usage[4];
};

static struct ck_setup setup_of(int number, const char *spec) {
  struct ck_setup setup = ck_setup_mode(ck_workload(workloads[number / SPECS % WORKLOADS]), spec,
                                        (ek_mode)(number / SPECS / WORKLOADS % CK_MODES));
  setup.optimizer = momentum;
  return setup;
}

/* In 16 bits: for each mode and type another workload and another group, in turn. */
static struct ck_setup half_setup_of(int number, bool on_cuda) {
  static const ek_loss_scale none = {.kind = EK_LOSS_SCALE_NONE}; /* every step is taken */
  const int mode = number / HALVES, turn = mode + number % HALVES;
  struct ck_setup setup = setup_of((mode * WORKLOADS + turn % WORKLOADS) * SPECS,
                                   on_cuda ? specs[turn % SPECS] : "cpu:4");
  ck_assign(setup, .options.precision = (ek_precision)halves[number % HALVES], .loss_scale = &none);
  return setup;
}

static struct run train(const struct ck_setup *setup) {
  struct run run = {0};
  struct ck_training training = ck_training_opened(setup);
  run.before = ck_training_read(&training, CK_VALUES);
  for (int step = 0; step < STEPS; step++) {
    struct ck_batch batch =
        ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.2, (uint64_t)(40 + step));
    ck_ok(ck_training_backward(&training, &batch, NULL, false, NULL));
    if (step == 0) run.gradients = ck_training_read(&training, CK_GRADIENTS);
    CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, training.optimizer));
    run.losses[step] = result.loss;
  }
  run.values = ck_training_read(&training, CK_VALUES);
  if (setup->options.state != EK_STATE_MASTER) ck_training_replicas_agree(&training);
  for (size_t k = 0; k < 4; k++) {
    ck_ok(ek_memory_stats(&run.usage[k], ek_group_device(training.group, k)));
  }
  ck_training_close(&training);
  return run;
}

static void losses_near(const struct run *got, const struct run *want, double allowed) {
  for (int step = 0; step < STEPS; step++) {
    ck_assert_double_le(fabs(got->losses[step] - want->losses[step]),
                        allowed * fabs(want->losses[step]));
  }
}

static void equals_cpu(const struct run *cuda, const struct run *cpu) {
  losses_near(cuda, cpu, TOLERANCE);
  ck_assert_double_le(ck_arrays_off(cuda->gradients, cpu->gradients), TOLERANCE);
  ck_assert_double_le(ck_arrays_off(cuda->values, cpu->values), TOLERANCE);
}

/* The gradient of the first step, and what all of them changed. */
static void equals_cpu_in_16_bits(const struct run *cuda, const struct run *cpu, ek_type type) {
  const double allowed = 16 * (type == EK_BF16 ? 0x1p-8 : 0x1p-11);
  ck_assert_double_le(ck_arrays_off(cuda->gradients, cpu->gradients), allowed);
  losses_near(cuda, cpu, allowed);
  ck_arrays_same("parameters before", cuda->before, cpu->before);
  double difference = 0, change = 0;
  for (int64_t i = 0; i < ck_count(cpu->values); i++) {
    difference += pow(cuda->values[i] - cpu->values[i], 2);
    change += pow(cpu->values[i] - cpu->before[i], 2);
  }
  ck_assert_msg(difference <= allowed * allowed * change, "%.3g of a change of %.3g",
                sqrt(difference), sqrt(change));
}

static void repeats_bit_for_bit(const struct run *first, const struct run *second) {
  ck_same_bits("loss", first->losses, second->losses, STEPS);
  ck_arrays_same("gradient", first->gradients, second->gradients);
  ck_arrays_same("parameter", first->values, second->values);
}

/* Also with the gradient in forward, where the peak is the same (the_gradient_in_forward). */
static void has_the_planned_peak(const struct run *cuda, struct ck_setup planned, bool early) {
  planned.gradient_in_forward = early;
  struct ck_training training = ck_training_opened(&planned);
  for (int step = 0; step < STEPS; step++) {
    struct ck_batch batch =
        ck_batch_make(planned.workload, EK_F32, SAMPLES, 0.2, (uint64_t)(40 + step));
    ck_ok(ck_training_step(&training, &batch, NULL));
  }
  for (size_t k = 0; k < 4; k++) {
    CK_GOT(ek_memory_usage, plan, ek_memory_stats(&plan, ek_group_device(training.group, k)));
    ck_assert_uint_eq(plan.peak_bytes, cuda->usage[k].peak_bytes);
    ck_assert_uint_eq(plan.fixed_bytes, cuda->usage[k].fixed_bytes);
    ck_assert_mem_eq(plan.at_peak, cuda->usage[k].at_peak, sizeof plan.at_peak);
    ck_assert_uint_gt(cuda->usage[k].fixed_bytes, 0);
  }
  ck_training_close(&training);
}

/* In one test, because the runs take most of the time. */
CK_PART_LOOP(the_cpus_results_every_time_in_the_planned_memory, CASES) {
  const struct ck_setup on_cpu = setup_of(_i, "cpu:4");
  const struct ck_setup on_cuda = setup_of(_i, specs[_i % SPECS]);
  struct run cpu = train(&on_cpu), first = train(&on_cuda), second = train(&on_cuda);
  equals_cpu(&first, &cpu);
  repeats_bit_for_bit(&first, &second);
  has_the_planned_peak(&first, setup_of(_i, "plan-cuda:4"), false);
  has_the_planned_peak(&first, setup_of(_i, "plan-cuda:4"), true);
}

CK_PART_LOOP(numbers_of_16_bits, HALVES * CK_MODES) {
  const struct ck_setup on_cpu = half_setup_of(_i, false), on_cuda = half_setup_of(_i, true);
  CK_WITH(struct ck_setup, planned, on_cuda, .spec = "plan-cuda:4");
  struct run cpu = train(&on_cpu), first = train(&on_cuda), second = train(&on_cuda);
  equals_cpu_in_16_bits(&first, &cpu, ek_precision_type(on_cuda.options.precision));
  repeats_bit_for_bit(&first, &second);
  has_the_planned_peak(&first, planned, _i % 2 == 1);
}

/* Written in forward or in backward: the sum of exponentials has another order, so that the
 * gradient of the logits differs by some units of 2^-24; and its place is all that the peak
 * depends on. */
CK_PART_LOOP(the_gradient_in_forward, WORKLOADS * CK_MODES) {
  struct ck_setup setup = setup_of(_i * SPECS, specs[_i % SPECS]);
  struct run late = train(&setup);
  setup.gradient_in_forward = true;
  struct run early = train(&setup);
  losses_near(&early, &late, 1e-6);
  ck_assert_double_le(ck_arrays_off(early.gradients, late.gradients), 1e-6);
  ck_assert_double_le(ck_arrays_off(early.values, late.values), 1e-6);
  for (size_t k = 0; k < 4; k++) {
    ck_assert_uint_eq(early.usage[k].peak_bytes, late.usage[k].peak_bytes);
  }
}

/* ---- failures that are the program's ---- */

/* tests/whole/check_faults.c does it with attention, and looks at more. */
CK_LOOP(out_of_memory_at_every_allocation, CK_MODES) {
  struct ck_training training = ck_training_of(setup_of(SPECS * WORKLOADS * _i, "cuda:0x2"));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0.2, 40);
  ck_ok(ck_training_step(&training, &batch, NULL));
  for (size_t k = 0; k < 2; k++) {
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
      ek_device *device = ek_group_device(training.group, k);
      ck_assert_uint_lt(n, 10000);
      ck_ok(ek_memory_fail_at(device, n));
      ek_error_clear();
      const ek_status status = ck_training_step(&training, &batch, NULL);
      failed = status != EK_OK;
      if (!failed) break;
      ck_assert_int_eq(status, EK_ERR_OUT_OF_MEMORY);
      ck_assert(ck_contains(ek_error_message(), ek_device_name(device)));
      ck_ok(ck_training_step(&training, &batch, NULL));
    }
    ck_ok(ek_memory_fail_at(ek_group_device(training.group, k), 0));
  }
}

CK_LOOP(a_bad_target_is_found_before_the_update, SPECS) {
  struct ck_training training = ck_training_of(setup_of(0, specs[_i]));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 40);
  CK_GOT(ek_step_result, result, ck_training_step(&training, &batch, &result));
  double *before = ck_training_read(&training, CK_VALUES);
  ((int32_t *)batch.target[0].data)[SAMPLES - 1] = 1000; /* on the last device */
  ck_invalid(ck_training_step(&training, &batch, &result), "target");
  ck_assert(ck_contains(ek_error_message(), "cuda:"));
  double *after = ck_training_read(&training, CK_VALUES);
  ck_arrays_same("parameter", after, before);
  ((int32_t *)batch.target[0].data)[SAMPLES - 1] = 1;
  ck_ok(ck_training_step(&training, &batch, &result));
}

static ek_status begin(struct ck_training *training, const struct ck_batch *batch) {
  EK_TRY(ck_training_backward(training, batch, NULL, false, NULL));
  return ek_data_parallel_optimizer_step_begin(training->optimizer);
}

/* An index that is wrong in a step that is begun: the step before it has its result. */
CK_LOOP(a_bad_target_of_a_step_that_is_begun, SPECS + 1) {
  const struct ck_setup setup = setup_of(0, _i < SPECS ? specs[_i] : "cuda:0");
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0, 40);
  struct ck_training training = ck_training_opened(&setup);
  ek_step_result want, result;
  ck_ok(ck_training_step(&training, &batch, &want));
  ck_training_close(&training);
  training = ck_training_opened(&setup);
  ck_ok(begin(&training, &batch));
  double *before = ck_training_read(&training, CK_VALUES);
  ((int32_t *)batch.target[0].data)[SAMPLES - 1] = 1000;
  ck_invalid(begin(&training, &batch), "target");
  double *after = ck_training_read(&training, CK_VALUES);
  ck_arrays_same("parameter", after, before);
  ((int32_t *)batch.target[0].data)[SAMPLES - 1] = 1;
  ck_ok(begin(&training, &batch));
  ck_ok(ek_data_parallel_optimizer_step_end(&result, training.optimizer));
  ck_assert(result.loss == want.loss && result.gradient_norm == want.gradient_norm);
  ck_ok(ek_data_parallel_optimizer_step_end(&result, training.optimizer));
  ck_assert_int_eq(result.step, 2);
}

/* ---- the host is ahead of the GPU ---- */

/* Launches of a step on GPU 0; those up to the end of its backward, of which the last one hangs. */
struct ahead {
  unsigned long step, backward, whole;
};

static struct ahead count_launches(struct ck_training *training, const struct ck_batch *batch) {
  struct ahead ahead;
  ck_ok(ck_training_step(training, batch, NULL)); /* plans products */
  ck_ok(ek_group_synchronize(training->group));
  const unsigned long before = cuemu_calls(0, CUEMU_KERNEL);
  ck_ok(ck_training_backward(training, batch, NULL, false, NULL));
  ck_ok(ek_group_synchronize(training->group));
  ahead.backward = cuemu_calls(0, CUEMU_KERNEL) - before;
  CK_GOT(ek_step_result, result, ek_data_parallel_optimizer_step(&result, training->optimizer));
  ck_ok(ek_group_synchronize(training->group));
  ahead.step = cuemu_calls(0, CUEMU_KERNEL) - before;
  ck_assert_uint_gt(ahead.step, ahead.backward);
  ahead.whole = cuemu_calls(0, CUEMU_LAUNCH) + ahead.step;
  return ahead;
}

/* Lets the GPU go on when the update has been launched; in another thread. */
static void *release_after_the_update(void *context) {
  const struct ahead *ahead = context;
  static const struct timespec moment = {.tv_nsec = 1000000};
  bool launched = false;
  for (int i = 0; i < 20000 && !launched; i++) {
    launched = cuemu_calls(0, CUEMU_LAUNCH) >= ahead->whole;
    (void)nanosleep(&moment, NULL);
  }
  cuemu_reset();
  return launched ? context : NULL;
}

/* Of one device, the update is on its way before the norm is known. */
CK_TEST(a_step_reads_its_norm_after_the_update) {
  struct ck_training training = ck_training_of(setup_of(2 * SPECS * WORKLOADS, "cuda:0"));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 40);
  struct ahead ahead = count_launches(&training, &batch);
  pthread_t thread;
  void *seen = NULL;
  cuemu_hang(0, CUEMU_KERNEL, ahead.backward);
  ck_assert_int_eq(pthread_create(&thread, NULL, release_after_the_update, &ahead), 0);
  ek_step_result result;
  const ek_status status = ck_training_step(&training, &batch, &result);
  ck_assert_int_eq(pthread_join(thread, &seen), 0);
  ck_ok(status);
  ck_assert_ptr_nonnull(seen);
  ck_assert(isfinite(result.gradient_norm) && result.gradient_norm > 0);
}

/* The next step is begun while the GPU has not ended the backward of this one; in all modes, and
 * over peer access. */
CK_LOOP(a_begun_step_does_not_wait_for_backward, 2 * CK_MODES) {
  const int mode = _i / 2;
  struct ck_training training =
      ck_training_of(setup_of(mode * SPECS * WORKLOADS, _i % 2 == 0 ? "cuda:0" : "cuda:0x2"));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 40);
  const struct ahead ahead = count_launches(&training, &batch);
  cuemu_hang(0, CUEMU_KERNEL, ahead.backward);
  ck_ok(begin(&training, &batch));
  const bool launched = cuemu_calls(0, CUEMU_LAUNCH) >= ahead.whole;
  cuemu_reset(); /* it may not have come to the kernel that was to hang */
  CK_GOT(ek_step_result, result,
         ek_data_parallel_optimizer_step_end(&result, training.optimizer));
  ck_assert(launched && isfinite(result.gradient_norm));
}

/* What a step waits for, in the emulation's count of waits that ended. Pinned memory of two steps
 * before is used again for input and target. */
CK_TEST(waits_of_a_step) {
  enum { UPLOADS = 2 };
  struct ck_training training = ck_training_of(setup_of(2 * SPECS * WORKLOADS, "cuda:0"));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, SAMPLES, 0, 40);
  ek_step_result result;
  for (int i = 0; i < 2; i++) ck_ok(ck_training_step(&training, &batch, &result));
  ck_ok(ek_group_synchronize(training.group));
  unsigned long before = cuemu_counted(CUEMU_EVENT_WAITS);
  ck_ok(ck_training_step(&training, &batch, &result));
  ck_assert_uint_eq(cuemu_counted(CUEMU_EVENT_WAITS) - before, UPLOADS + 2);
  ck_ok(begin(&training, &batch));
  for (int i = 0; i < 3; i++) {
    before = cuemu_counted(CUEMU_EVENT_WAITS);
    ck_ok(begin(&training, &batch));
    /* Its own forward, which keeps the host within a step of the GPU; and the norm of the step
     * before, which is there by then. */
    ck_assert_uint_eq(cuemu_counted(CUEMU_EVENT_WAITS) - before, UPLOADS + 2);
    ck_ok(ek_data_parallel_optimizer_step_end(&result, training.optimizer));
    ck_assert_uint_eq(cuemu_counted(CUEMU_EVENT_WAITS) - before, UPLOADS + 2);
  }
}

CK_EMULATED_SUITE("cuda training")
