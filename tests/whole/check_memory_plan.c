/*
 * check_memory_plan.c - capacities are exact, and a device that only counts counts right.
 *
 * For each workload and placement: the peak of `plan` is the peak of `cpu`, in total and by
 * category; a run passes with a capacity equal to its peak and fails with 256 bytes less.
 */
#include "ck_training.h"

enum { DEVICES = 3, STEPS = 2, CASES = CK_WORKLOADS * CK_PLACEMENTS };

#if CK_ASAN || CK_TSAN
static const int64_t sizes[] = {0, 2, 8};
#else
static const int64_t sizes[] = {0, 1, 2, 3, 4, 7, 12, 33};
#endif
enum { SIZES = sizeof sizes / sizeof sizes[0] };

static struct ck_setup setup_of(int number, bool keep_outputs, ek_type type) {
  struct ck_setup setup =
      ck_setup_at(&ck_workloads[number / CK_PLACEMENTS], "cpu:3", number % CK_PLACEMENTS);
  ck_assign(setup, .keep_outputs = keep_outputs, .options.type = type);
  return setup;
}

/* Opens everything on the group, takes two steps, and closes; the first failure. */
static ek_status train(const struct ck_setup *setup, ek_group *group,
                       const struct ck_batch *batch) {
  struct ck_training training;
  EK_TRY(ck_training_try(&training, setup, group));
  ek_status status = EK_OK;
  for (int i = 0; i < STEPS && status == EK_OK; i++) {
    status = ck_training_step(&training, batch, NULL);
  }
  ck_training_close(&training);
  return status;
}

CK_PART_LOOP(plan_equals_cpu, CASES) {
  for (int variant = 0; variant < 4; variant++) {
    const ek_type type = variant % 2 == 0 ? EK_F32 : EK_F64;
    const struct ck_setup setup = setup_of(_i, variant / 2 == 1, type);
    for (size_t i = 0; i < SIZES; i++) {
      struct ck_batch batch = ck_batch_make(setup.workload, type, sizes[i], 0.2, 3);
      ek_memory_usage planned[DEVICES], real[DEVICES];
      ck_measure(planned, &setup, "plan:3", &batch, 1);
      ck_measure(real, &setup, "cpu:3", &batch, 1);
      ck_same_peaks(ck_text("%s of %s, %d samples, variant %d",
                            ck_placement_name(_i % CK_PLACEMENTS), setup.workload->name,
                            (int)sizes[i], variant),
                    planned, real, DEVICES);
    }
  }
}

/* All devices get the same capacity, so the one with the largest peak decides. */
CK_PART_LOOP(capacity_is_exact, CASES) {
  static const char *const backends[] = {"plan", "cpu"};
  for (int variant = 0; variant < 4; variant++) {
    const struct ck_setup setup = setup_of(_i, variant / 2 == 1, EK_F32);
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, variant % 2 == 0 ? 7 : 12, 0, 4);
    ek_memory_usage usage[DEVICES];
    ck_measure(usage, &setup, "plan:3", &batch, 1);
    uint64_t peak = 0;
    for (size_t k = 0; k < DEVICES; k++) {
      if (usage[k].peak_bytes > peak) peak = usage[k].peak_bytes;
    }
    for (int backend = 0; backend < 2; backend++) {
      for (int less = 0; less < 2; less++) {
        const char *spec = ck_text("%s:3@%" PRIu64 "B", backends[backend],
                                   peak - (less == 0 ? 0 : EK_MEMORY_UNIT));
        CK_HELD(ek_group *, group, ck_open(spec, 1));
        if (less == 0) {
          ck_ok(train(&setup, group, &batch));
        } else {
          ck_fails(train(&setup, group, &batch), EK_ERR_OUT_OF_MEMORY, "replica ");
        }
        ck_no_memory_held(group);
      }
    }
  }
}

/* The peak of a long run is that of its second step: nothing creeps. */
CK_PART_LOOP(peak_is_reached_at_once, CASES) {
  struct ck_training training = ck_training_of(setup_of(_i, false, EK_F32));
  struct ck_batch batch = ck_batch_make(training.setup.workload, EK_F32, 8, 0.2, 6);
  ek_memory_usage early[DEVICES], late[DEVICES];
  for (int step = 0; step < 6; step++) {
    ck_ok(ck_training_step(&training, &batch, NULL));
    ck_usages(late, training.group);
    if (step == 1) memcpy(early, late, sizeof early);
  }
  for (size_t k = 0; k < DEVICES; k++) {
    ck_assert_uint_eq(early[k].peak_bytes, late[k].peak_bytes);
    ck_assert_uint_eq(early[k].current_bytes, late[k].current_bytes);
  }
}

/* Sharded: the optimizer's state is cut evenly, to the size of a vector per bucket. */
CK_TEST(sharded_state_is_even) {
  struct ck_setup setup = setup_of(CK_PLACEMENTS + 3, false, EK_F32); /* gpt, sharded */
  setup.options.bucket_bytes = 1 << 20;
  struct ck_training training = ck_training_opened(&setup);
  uint64_t least = UINT64_MAX, most = 0;
  ek_memory_usage usage[DEVICES];
  ck_usages(usage, training.group);
  for (size_t k = 0; k < DEVICES; k++) {
    const uint64_t bytes = usage[k].current[EK_MEMORY_OPTIMIZER];
    if (bytes < least) least = bytes;
    if (bytes > most) most = bytes;
  }
  ck_assert_uint_le(most - least, 2 * EK_MEMORY_UNIT); /* two states, each a unit apart at most */
}

CK_SUITE("memory plan")
