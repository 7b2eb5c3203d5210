/*
 * check_shares.c - state of which every device holds a share: the same training, bit for bit, and
 * as little memory as it says.
 */
#include <stdlib.h>
#include <string.h>

#include <evenkeel/evenkeel.h>

#include "ck_training.h"

enum { DEVICES = 3, STEPS = 3, KINDS = 1, CASES = KINDS * CK_WORKLOADS };

static const ek_mode kinds[KINDS] = {EK_MODE_SHARDED_GRADIENTS};

static struct ck_setup setup_of(const char *workload, const char *spec, ek_mode mode) {
  return ck_setup_mode(ck_workload(workload), spec, mode);
}

static uint64_t held(const struct ck_training *t, size_t device, ek_memory_category category) {
  ek_memory_usage usage;
  ck_ok(ck_memory_stats(&usage, ek_group_device(t->group, device)));
  return usage.current[category];
}

static int64_t flat_elements(const struct ck_training *t) {
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  int64_t end = 0;
  for (size_t i = 0; i < ek_replica_parameter_count(replica); i++) {
    ek_parameter_info info;
    ck_ok(ek_replica_parameter(&info, replica, i));
    const int64_t last = info.offset + ((ek_tensor_count(&info.value) + 15) & ~(int64_t)15);
    if (!info.buffer && last > end) end = last;
  }
  return end;
}

/* ---- the same training ---- */

static double *train(const char *workload, ek_mode mode, int64_t samples, size_t bucket_bytes,
                     int64_t *count) {
  struct ck_setup setup = setup_of(workload, "cpu:3", mode);
  struct ck_training t;
  setup.options.bucket_bytes = bucket_bytes;
  ck_training_open(&t, &setup);
  for (uint64_t step = 0; step < STEPS; step++) {
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, samples, 0.1, step);
    ck_ok(ck_training_step(&t, &batch, NULL));
    ck_batch_free(&batch);
  }
  double *values = ck_training_read(&t, CK_VALUES, count);
  ck_training_close(&t);
  return values;
}

/* Devices without rows, ragged ones, small buckets and one for everything. */
START_TEST(as_sharded_bit_for_bit) {
  const char *workload = ck_workloads[_i % CK_WORKLOADS].name;
  const ek_mode mode = kinds[_i / CK_WORKLOADS];
  static const int64_t samples[] = {7, 2, 1};
  static const size_t buckets[] = {64, 1 << 10, 1 << 20};
  for (size_t i = 0; i < 3; i++) {
    int64_t count = 0;
    double *want = train(workload, EK_MODE_SHARDED, samples[i], buckets[i], &count);
    double *got = train(workload, mode, samples[i], buckets[i], &count);
    ck_same_bits(workload, got, want, count);
    free(want);
    free(got);
  }
}
END_TEST

/* ---- memory ---- */

/* Between steps, and between micro-batches, a device holds its shares and no more. */
START_TEST(shares_at_rest) {
  struct ck_setup setup = setup_of("gpt", "cpu:3", kinds[_i]);
  struct ck_training t;
  ck_training_open(&t, &setup);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0, 1);
  const uint64_t most = (uint64_t)flat_elements(&t) * sizeof(float);
  for (int when = 0; when < 4; when++) {
    uint64_t sum = 0;
    for (size_t k = 0; k < DEVICES; k++) sum += held(&t, k, EK_MEMORY_GRADIENTS);
    ck_assert_uint_ge(sum, most);
    ck_assert_uint_le(sum, most + DEVICES * EK_MEMORY_UNIT);
    if (when == 3) break;
    if (when < 2) {
      ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
    } else {
      ck_ok(ck_training_step(&t, &batch, NULL));
    }
  }
  ck_batch_free(&batch);
  ck_training_close(&t);
}
END_TEST

enum { LAYERS = 24, WIDTH = 64 };

static ek_status deep_gpt(ek_module **module) {
  ek_gpt_options gpt = EK_GPT_OPTIONS_INIT;
  gpt.vocabulary = 13, gpt.sequence = 16, gpt.width = WIDTH, gpt.layers = LAYERS, gpt.heads = 2;
  return ek_gpt_create(module, &gpt);
}

/* At no time is more than the gradient of two blocks whole, of 24. */
START_TEST(buckets_are_given_back) {
  struct ck_workload deep = *ck_workload("gpt");
  deep.module = deep_gpt;
  struct ck_setup setup = ck_setup_mode(&deep, "plan:8", kinds[_i]);
  struct ck_training t;
  setup.options.bucket_bytes = 1;
  ck_training_open(&t, &setup);
  struct ck_batch batch = ck_batch_make(&deep, EK_F32, 8, 0, 1);
  const uint64_t block = (12 * WIDTH * WIDTH + 13 * WIDTH) * sizeof(float);
  const uint64_t before = held(&t, 0, EK_MEMORY_GRADIENTS);
  ck_assert_uint_lt(before, (LAYERS + 1) * block / 8);
  ck_ok(ck_training_step(&t, &batch, NULL));
  ck_assert_uint_eq(held(&t, 0, EK_MEMORY_GRADIENTS), before);
  ek_memory_usage usage;
  ck_ok(ck_memory_stats(&usage, ek_group_device(t.group, 0)));
  ck_assert_uint_lt(usage.at_peak[EK_MEMORY_GRADIENTS], before + 2 * block);
  ck_batch_free(&batch);
  ck_training_close(&t);
}
END_TEST

/* A forward that has added to gradients and is dropped leaves nothing behind. */
START_TEST(a_dropped_forward_gives_back) {
  struct ck_setup setup = setup_of("gpt", "cpu:3", kinds[_i]);
  struct ck_training t;
  ck_training_open(&t, &setup);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 5, 0, 1);
  const uint64_t before = held(&t, 0, EK_MEMORY_GRADIENTS);
  ek_shards outputs = {0};
  ck_ok(ek_data_parallel_model_forward(&outputs, t.model, batch.input, batch.inputs, NULL));
  ck_ok(ek_data_parallel_model_discard(t.model));
  ck_assert_uint_eq(held(&t, 0, EK_MEMORY_GRADIENTS), before);
  ek_shards_free(&outputs);
  ck_batch_free(&batch);
  ck_training_close(&t);
}
END_TEST

/* A replica that holds shares is no place for a pass of one's own. */
START_TEST(a_pass_of_ones_own_is_refused) {
  const struct ck_setup setup = setup_of("mlp", "cpu:2", kinds[_i]);
  struct ck_training t;
  ck_training_open(&t, &setup);
  ek_pass *pass = NULL;
  ck_fails(ek_pass_open(&pass, ek_data_parallel_model_replica(t.model, 0), NULL), EK_ERR_STATE,
           "part");
  ck_training_close(&t);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("shares");
  tcase_add_loop_test(ck_case(suite, "bits"), as_sharded_bit_for_bit, 0, CASES);
  TCase *memory = ck_case(suite, "memory");
  tcase_add_loop_test(memory, shares_at_rest, 0, KINDS);
  tcase_add_loop_test(memory, buckets_are_given_back, 0, KINDS);
  tcase_add_loop_test(memory, a_dropped_forward_gives_back, 0, KINDS);
  tcase_add_loop_test(memory, a_pass_of_ones_own_is_refused, 0, KINDS);
  return suite;
}

CK_MAIN(make_suite)
