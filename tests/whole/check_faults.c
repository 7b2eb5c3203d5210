/*
 * check_faults.c - a step is a transaction.
 *
 * Each allocation of a step fails once, on each device and in each mode: an error comes back at
 * once, nothing is left behind, parameters and optimizer state are what they were, and the step
 * that is tried again equals an undisturbed one. The same for the memory of the host, from the
 * opening of the group on.
 */

#include "ck_snapshot.h"

enum { DEVICES = 3, SAMPLES = 7, TRIES = 5 };

/* One allocation in each stride fails in a case. Cases begin at different ones, and modes and
 * devices make the same ones, so that each fails in some. EVENKEEL_TEST_EVERY=1: each in all. */
#if CK_TSAN
enum { DEVICE_STRIDE = 11, HOST_STRIDE = 17, SLOW = 10 };
#elif CK_ASAN
enum { DEVICE_STRIDE = 5, HOST_STRIDE = 7, SLOW = 10 };
#else
enum { DEVICE_STRIDE = 2, HOST_STRIDE = 3, SLOW = 1 };
#endif

/* Where opening and waiting take long, each case tests a part; all of them together test all. */
static uint64_t device_stride(void) { return ck_every(ck_on_gpu() ? 5 : DEVICE_STRIDE); }
static uint64_t host_stride(void) { return ck_every(ck_on_gpu() ? 23 : HOST_STRIDE); }

/* Seconds. A device that waits looks at the others once a second by itself: if nothing else ends
 * its wait, the error comes later than this, each time (under sanitizers such a wait passes). On a
 * busy machine an error may come late as well, but not each time: the quickest of TRIES counts. */
static double patience(void) { return ck_on_gpu() ? 10 : SLOW; }

/* ---- devices ---- */

/* A step of two micro-batches, the second shorter; its buckets are reduced in the second backward.
 */
static ek_status step(struct ck_training *training, const struct ck_batch *batch) {
  const struct ck_batch first = ck_batch_samples(batch, 0, SAMPLES - 2);
  const struct ck_batch second = ck_batch_samples(batch, SAMPLES - 2, 2);
  ek_step_result result;
  EK_TRY(ck_training_backward(training, &first, NULL, true, NULL));
  EK_TRY(ck_training_backward(training, &second, NULL, false, NULL));
  return ek_data_parallel_optimizer_step(&result, training->optimizer);
}

/* A step whose allocation number `n` on the device fails, if there is one. `spent`: seconds. */
static bool fails_once(struct ck_training *training, const struct ck_batch *batch, size_t device,
                       uint64_t n, double *spent) {
  ek_device *victim = ek_group_device(training->group, device);
  struct ck_snapshot before = ck_snapshot_take(training);
  ck_ok(ek_memory_fail_at(victim, n));
  const double start = ck_now();
  const ek_status status = step(training, batch);
  *spent = ck_now() - start;
  ck_ok(ek_memory_fail_at(victim, 0));
  if (status != EK_OK) {
    const char *where = ck_text("allocation %d of device %d", (int)n, (int)device);
    ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY, "%s gave %s: %s", where, ek_status_name(status),
                  ek_error_message());
    ck_assert_msg(ck_contains(ek_error_message(), ek_device_name(victim)), "%s: %s", where,
                  ek_error_message());
    ck_snapshot_is(where, training, &before);
  }
  return status != EK_OK;
}

static bool fails_at(struct ck_training *training, const struct ck_batch *batch, size_t device,
                     uint64_t n) {
  double spent = 0;
  if (!fails_once(training, batch, device, n, &spent)) return false;
  for (int i = 1; i < TRIES && spent >= patience(); i++) {
    ck_assert(fails_once(training, batch, device, n, &spent));
  }
  ck_assert_double_lt(spent, patience());
  return true;
}

/* The disturbed training repeats each step that failed; the other one never fails. */
static void every_allocation(struct ck_training *disturbed, struct ck_training *other,
                             const struct ck_batch *batch, size_t device, uint64_t first) {
  const uint64_t stride = device_stride();
  bool failed = true;
  uint64_t n = 1 + first % stride;
  for (; failed; n += stride) {
    failed = fails_at(disturbed, batch, device, n);
    if (failed) ck_ok(step(disturbed, batch));
    ck_ok(step(other, batch));
    ck_snapshots_same("retried step", disturbed, other);
  }
  ck_assert_uint_gt(n, 5);
}

CK_PART_LOOP(device_allocations, (CK_WORKLOADS * CK_PLACEMENTS)) {
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  struct ck_setup setup = ck_setup_at(workload, "cpu:3", _i % CK_PLACEMENTS);
  setup.keep_outputs = _i % 2 == 1;
  struct ck_batch batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 8);
  struct ck_training disturbed = ck_training_opened(&setup);
  struct ck_training other = ck_training_opened(&setup);
  ck_ok(step(&disturbed, &batch));
  ck_ok(step(&other, &batch));
  for (size_t device = 0; device < DEVICES; device++) {
    every_allocation(&disturbed, &other, &batch, device, (uint64_t)_i + device);
  }
  if (setup.options.state != EK_STATE_MASTER) ck_training_replicas_agree(&disturbed);
}

/* Opening: each allocation of a device fails once. */
CK_LOOP(device_allocations_of_open, CK_MODES) {
  const struct ck_setup setup = ck_setup_mode(&ck_workloads[0], "cpu:3", (ek_mode)_i);
  ek_group *group = ck_open(setup.spec, 1);
  for (size_t device = 0; device < DEVICES; device++) {
    struct ck_training training;
    uint64_t n = 0;
    while (ck_device_fails(&n, ek_group_device(group, device),
                           ck_training_try(&training, &setup, group))) {
      ck_no_memory_held(group);
    }
    ck_training_free(&training);
    ck_no_memory_held(group);
  }
}

/* ---- the host ---- */

/* On a group of its own where there is none yet. */
static ek_status open_and_step(ek_group *open, const struct ck_setup *setup,
                               const struct ck_batch *batch, double **values) {
  ek_group *group = open;
  struct ck_training training;
  if (open == NULL) EK_TRY(ek_group_open(&group, ck_spec(setup->spec), NULL));
  ek_status status = ck_training_try(&training, setup, group);
  if (status == EK_OK) {
    status = ck_training_step(&training, batch, NULL);
    ek_host_memory_fail_at(0);
    if (status == EK_OK) *values = ck_training_read(&training, CK_VALUES);
    ck_training_close(&training);
  }
  ck_no_memory_held(group);
  if (open == NULL) ek_group_free(group);
  return status;
}

/* The same while allocation number `n` of the host fails, if there is one. */
static bool host_fails(ek_group *open, const struct ck_setup *setup, const struct ck_batch *batch,
                       uint64_t n, double **values) {
  ek_host_memory_fail_at(n);
  const ek_status status = open_and_step(open, setup, batch, values);
  ek_host_memory_fail_at(0);
  ck_assert_msg(status == EK_OK || status == EK_ERR_OUT_OF_MEMORY,
                "allocation %d of the host gave %s: %s", (int)n, ek_status_name(status),
                ek_error_message());
  return status != EK_OK;
}

/* Groups open and keep what they keep alike: every mode meets that with one of the workloads. */
CK_LOOP(host_allocations, CK_WORKLOADS * CK_MODES) {
  enum { CALM = 40 };
  const int number = _i / CK_MODES, mode = _i % CK_MODES;
  const struct ck_workload *workload = &ck_workloads[number];
  const struct ck_setup setup = ck_setup_mode(workload, "cpu:3", (ek_mode)mode);
  ek_group *group = number == mode % CK_WORKLOADS ? NULL : ck_open(setup.spec, 1);
  struct ck_batch batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 9);
  double *want = NULL, *got = NULL;
  int calm = 0;
  ck_ok(open_and_step(group, &setup, &batch, &want));
  const uint64_t stride = host_stride();
  uint64_t n = 1 + (uint64_t)_i % stride;
  /* A failure that was swallowed would end the loop too early: several calm runs must follow. */
  for (; calm <= CALM / (int)stride; n += stride) {
    const double limit = 10 * patience(); /* it starts and stops threads too */
    double spent = limit;
    bool failed = false;
    for (int i = 0; i < TRIES && spent >= limit; i++) {
      const double start = ck_now();
      failed = host_fails(group, &setup, &batch, n, &got);
      spent = ck_now() - start;
    }
    ck_assert_double_lt(spent, limit);
    ck_assert_msg(calm == 0 || !failed, "allocation %d passed and a later one failed", (int)n);
    if (failed) continue;
    calm++;
    ck_arrays_same("parameters", got, want);
  }
  ck_assert_uint_gt(n, 20);
  ek_group_free(group);
}

/* A step that has run before takes nothing from the host. */
CK_LOOP(steady_steps_take_no_host_memory, (CK_WORKLOADS * CK_PLACEMENTS)) {
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  struct ck_training training = ck_training_of(ck_setup_at(workload, "cpu:3", _i % CK_PLACEMENTS));
  struct ck_batch batch = ck_batch_make(workload, EK_F32, SAMPLES, 0.2, 10);
  ck_ok(ck_training_step(&training, &batch, NULL));
  for (int i = 0; i < 2; i++) {
    ek_host_memory_fail_at(1);
    CK_GOT(ek_step_result, result, ck_training_step(&training, &batch, &result));
    ek_data_parallel_model *model = NULL; /* shows that it is still armed */
    ck_fails(ek_data_parallel_model_open(&model, training.group, training.module, NULL),
             EK_ERR_OUT_OF_MEMORY, "host memory");
  }
}

CK_SUITE("faults")
