/*
 * check_threads.c - devices with several threads each.
 *
 * A device's threads are a team that works for one caller at a time. What several workers do to one
 * device's memory at once, as in gather and scatter, must therefore run on the callers' own teams.
 * And a training step must not depend on how many threads a device has, except for rounding; in a
 * deterministic group not at all.
 */
#include "ck_training.h"

enum { DEVICES = 4, THREADS = 4, ROWS = 64, WIDTH = 16384, ROUNDS = 20 };

CK_TEST(many_workers_copy_to_one_device) {
  ek_group *group = ck_open("cpu:4", THREADS);
  const size_t count = (size_t)ROWS * WIDTH;
  float *source = ck_array(count, sizeof *source), *back = ck_array(count, sizeof *back);
  for (size_t i = 0; i < count; i++) source[i] = (float)(i % 16777213u);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, source, EK_F32, CK_SHAPE(ROWS, WIDTH)));
  CK_GOT(ek_tensor, host_back, ek_tensor_host(&host_back, back, EK_F32, CK_SHAPE(ROWS, WIDTH)));
  for (int round = 0; round < ROUNDS; round++) {
    CK_SCOPED(ek_shards, shards, ek_scatter(&shards, group, &host, EK_MEMORY_INPUTS, NULL));
    CK_SCOPED(ek_tensor, whole,
              ek_gather(&whole, &shards, (size_t)round % DEVICES, EK_MEMORY_OUTPUTS));
    CK_SCOPED(ek_shards, again, ek_scatter(&again, group, &whole, EK_MEMORY_INPUTS, NULL));
    memset(back, 0xFF, count * sizeof *back);
    ck_ok(ek_gather_host(&host_back, &again));
    ck_assert_int_eq(memcmp(source, back, count * sizeof *back), 0);
  }
}

enum { STEPS = 3, SAMPLES = 11 };

/* In a group whose devices have `threads` threads. */
static double *train(const struct ck_setup *setup, int threads) {
  return ck_values_after(setup, ck_open(setup->spec, threads), STEPS, SAMPLES);
}

CK_LOOP(a_step_does_not_depend_on_the_threads, CK_WORKLOADS * CK_PLACEMENTS) {
  struct ck_setup setup =
      ck_setup_at(&ck_workloads[_i / CK_PLACEMENTS], "cpu:3", _i % CK_PLACEMENTS);
  setup.optimizer = ck_clipped_adamw;
  setup.options.type = EK_F64; /* so that rounding has no say: kernels sum in other orders */
  double *one = train(&setup, 1), *three = train(&setup, 3);
  double *again = train(&setup, 3);
  ck_assert_double_le(ck_arrays_off(three, one), 1e-9);
  ck_arrays_same("three threads", again, three);
}

/* c, m x n, of a product in a deterministic group whose device has `threads` threads. */
static double *product(int64_t m, int64_t n, int64_t k, bool turned, int threads) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = threads,
          .deterministic = true);
  CK_SCOPED(ek_group *, group, ek_group_open(&group, ck_spec("cpu:1"), &options));
  ek_device *device = ek_group_device(group, 0);
  struct ck_random random = ck_random_start(11);
  double *values = ck_array((size_t)(m * n + m * k + n * k), sizeof *values);
  for (int64_t i = 0; i < m * k + n * k; i++) values[i] = ck_random_uniform(&random, -1, 1);
  const int64_t a_shape[] = {turned ? k : m, turned ? m : k}, b_shape[] = {n, k},
                c_shape[] = {m, n};
  CK_HELD(ek_tensor, a, ck_upload(device, EK_F32, values, 2, a_shape));
  CK_HELD(ek_tensor, b, ck_upload(device, EK_F32, values + m * k, 2, b_shape));
  CK_SCOPED(ek_tensor, c, ek_tensor_create(&c, device, EK_MEMORY_WORKSPACE, EK_F32, 2, c_shape));
  ck_ok(ek_op_matmul(ek_device_stream(device, EK_STREAM_COMPUTE), &c, &a, turned, &b, true, 0));
  ck_get(values, &c);
  return values;
}

CK_LOOP(a_deterministic_product_does_not_depend_on_the_threads, 10) {
  static const int64_t shapes[][3] = {
      {300, 70, 129}, {33, 500, 300}, {1000, 48, 600}, {64, 4500, 40}, {250, 250, 250}};
  const int64_t *shape = shapes[_i / 2], count = shape[0] * shape[1];
  const double *want = product(shape[0], shape[1], shape[2], _i % 2 == 1, 1);
  for (int threads = 2; threads <= 5; threads++) {
    const double *got = product(shape[0], shape[1], shape[2], _i % 2 == 1, threads);
    ck_same_bits("a product", got, want, count);
  }
}

CK_SUITE("threads")
