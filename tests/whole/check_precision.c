/*
 * check_precision.c - training in bf16 and f16: masters, copies, casts.
 *
 * Devices agree in every mode, and with one device; what modules see is always the masters rounded;
 * plans are exact; a module that knows f32 alone runs between casts; state goes from one precision to
 * another.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "ck_training.h"

enum { DEVICES = 3, SAMPLES = 8, STEPS = 2, HALVES = 2, CASES = CK_PLACEMENTS * HALVES };

static const ek_type halves[HALVES] = {EK_BF16, EK_F16};

/* Its update is the parameters minus half the gradient, which is small in all workloads. */
static ek_status plain_sgd(ek_optimizer **optimizer) {
  ek_sgd_options options = EK_SGD_OPTIONS_INIT;
  options.learning_rate = 0.5;
  return ek_sgd_create(optimizer, &options);
}

static struct ck_setup setup_of(int number, const char *workload, const char *spec) {
  struct ck_setup setup = ck_setup_mode(ck_workload(workload), spec, EK_MODE_GATHER);
  ck_setup_place(&setup, number % CK_PLACEMENTS);
  setup.options.precision = halves[number / CK_PLACEMENTS];
  setup.optimizer = plain_sgd;
  return setup;
}

static double *values_of(const ek_tensor *tensor) {
  double *values = calloc((size_t)ek_tensor_count(tensor) + 1, sizeof *values);
  ck_assert_ptr_nonnull(values);
  ck_get(values, tensor);
  return values;
}

/* Copies are the masters rounded where a device has both in the same order, and the same on all devices
 * that have all of them. Of a master's parameters the other devices get theirs with the next forward. */
static void copies_are_right(const struct ck_training *t) {
  const ek_type type = t->setup.options.precision;
  const ek_state_placement state = t->setup.options.state;
  const bool ordered = state != EK_STATE_SHARDED && state != EK_STATE_SHARDED_GRADIENTS;
  const size_t devices = state == EK_STATE_MASTER ? 1 : ek_group_size(t->group);
  double *values[DEVICES];
  for (size_t k = 0; k < devices; k++) {
    const ek_replica *replica = ek_data_parallel_model_replica(t->model, k);
    const ek_tensor *copies = ek_replica_copies(replica), *masters = ek_replica_parameters(replica);
    const int64_t count = ek_tensor_count(copies);
    ck_assert_int_eq(copies->type, type);
    ck_assert_int_eq(masters->type, EK_F32);
    values[k] = values_of(copies);
    if (ordered) {
      ck_assert_int_eq(ek_tensor_count(masters), count);
      double *want = values_of(masters);
      for (int64_t i = 0; i < count; i++) want[i] = ck_round_to(type, want[i]);
      ck_same_bits("copies", values[k], want, count);
      free(want);
    }
    if (state != EK_STATE_FULLY_SHARDED) ck_same_bits("devices", values[k], values[0], count);
  }
  for (size_t k = 0; k < devices; k++) free(values[k]);
}

/* What a device with all copies sees is what state has, rounded: masters in shares included. */
static void copies_are_the_state(const struct ck_training *t) {
  if (t->setup.options.state == EK_STATE_FULLY_SHARDED) return;
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  double *copies = values_of(ek_replica_copies(replica));
  for (size_t i = 0; i < ek_replica_parameter_count(replica); i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_parameter(&info, replica, i));
    if (info.buffer) continue;
    const int64_t count = ek_tensor_count(&info.value);
    float *master = calloc((size_t)count + 1, sizeof *master);
    ek_tensor host;
    ck_ok(ek_tensor_host(&host, master, EK_F32, 1, &count));
    ck_ok(ek_state_read(&host, t->model, info.name));
    for (int64_t j = 0; j < count; j++) {
      const double want = ck_round_to(t->setup.options.precision, (double)master[j]);
      if (copies[info.offset + j] != want) ck_assert_double_eq(copies[info.offset + j], want);
    }
    free(master);
  }
  free(copies);
}

static double *trained(const struct ck_setup *setup, int64_t *count) {
  struct ck_training t;
  ck_training_open(&t, setup);
  copies_are_right(&t);
  for (uint64_t step = 0; step < STEPS; step++) {
    struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 20 + step);
    ck_ok(ck_training_step(&t, &batch, NULL));
    ck_batch_free(&batch);
    copies_are_right(&t);
  }
  copies_are_the_state(&t);
  double *values = ck_training_read(&t, CK_VALUES, count);
  ck_training_close(&t);
  return values;
}

/*
 * All placements that leave the outputs where they are compute the same on each device, and add up the
 * devices' gradients in their order. A second run repeats.
 */
START_TEST(placements_agree) {
  if (!ck_part(_i)) return;
  for (int w = 0; w < CK_WORKLOADS; w++) {
    const char *name = ck_workloads[w].name;
    int64_t count = 0;
    const struct ck_setup setup = setup_of(_i, name, "cpu:3");
    struct ck_setup replicated = setup;
    replicated.options.state = EK_STATE_REPLICATED;
    double *got = trained(&setup, &count), *again = trained(&setup, &count);
    double *want = trained(&replicated, &count);
    ck_same_bits(name, got, again, count);
    ck_same_bits(ck_placement_name(_i % CK_PLACEMENTS), got, want, count);
    free(got);
    free(again);
    free(want);
  }
}
END_TEST

/*
 * Rows are cut over the devices, and a product of other rows may add its terms up in another order: a
 * number of 16 bits is then another neighbour of its value, 2 v of it. A network of depth d hands that on,
 * and a gradient is off by 2 d v, relative; d is 8 at most in these workloads. Steps are small, so that is
 * what the change of the parameters is off by (docs/numerics.md).
 */
START_TEST(devices_agree_with_one) {
  if (!ck_part(_i)) return;
  const double v = halves[_i / CK_PLACEMENTS] == EK_BF16 ? 0x1p-8 : 0x1p-11;
  for (int w = 0; w < CK_WORKLOADS; w++) {
    int64_t count = 0;
    struct ck_setup many = setup_of(_i, ck_workloads[w].name, "cpu:3"), one = many, start = many;
    one.spec = "cpu:1";
    start.optimizer = NULL;
    struct ck_training t;
    ck_training_open(&t, &start);
    double *before = ck_training_read(&t, CK_VALUES, &count);
    ck_training_close(&t);
    double *got = trained(&many, &count), *want = trained(&one, &count);
    double change = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
      change += (want[i] - before[i]) * (want[i] - before[i]);
      difference += (got[i] - want[i]) * (got[i] - want[i]);
    }
    ck_assert_msg(difference <= pow(16 * v, 2) * change, "%s, %s: %.3g of a change of %.3g",
                  ck_workloads[w].name, ck_placement_name(_i % CK_PLACEMENTS), sqrt(difference),
                  sqrt(change));
    ck_assert(change > 0);
    free(before);
    free(got);
    free(want);
  }
}
END_TEST

/* ---- memory ---- */

static void measure(ek_memory_usage usage[DEVICES], const struct ck_setup *setup, const char *spec,
                    const struct ck_batch *batch) {
  struct ck_training t;
  ek_group *group = ck_open(spec, 1);
  ck_ok(ck_training_try(&t, setup, group));
  for (int i = 0; i < STEPS; i++) ck_ok(ck_training_step(&t, batch, NULL));
  ck_training_close(&t);
  for (size_t k = 0; k < DEVICES; k++) ck_ok(ck_memory_stats(&usage[k], ek_group_device(group, k)));
  ck_ok(ek_group_free(group));
}

START_TEST(plans_are_exact) {
  if (!ck_part(_i)) return;
  for (int w = 0; w < CK_WORKLOADS; w++) {
    struct ck_setup setup = setup_of(_i, ck_workloads[w].name, "cpu:3");
    setup.optimizer = ck_clipped_adamw;
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, 3);
    ek_memory_usage planned[DEVICES], real[DEVICES];
    measure(planned, &setup, "plan:3", &batch);
    measure(real, &setup, "cpu:3", &batch);
    for (size_t k = 0; k < DEVICES; k++) {
      ck_assert_uint_eq(planned[k].peak_bytes, real[k].peak_bytes);
      for (int c = 0; c < EK_MEMORY_CATEGORIES; c++) {
        ck_assert_uint_eq(planned[k].at_peak[c], real[k].at_peak[c]);
      }
      ck_assert_uint_gt(real[k].at_peak[EK_MEMORY_COPIES], 0);
    }
    ck_batch_free(&batch);
  }
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("precision");
  tcase_add_loop_test(ck_case(suite, "placements"), placements_agree, 0, CASES);
  tcase_add_loop_test(ck_case(suite, "devices"), devices_agree_with_one, 0, CASES);
  tcase_add_loop_test(ck_case(suite, "memory"), plans_are_exact, 0, CASES);
  return suite;
}

CK_MAIN(make_suite)
