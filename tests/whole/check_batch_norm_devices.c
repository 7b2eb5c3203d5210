/*
 * check_batch_norm_devices.c - batch norm over several devices: with statistics of all of them the
 * training is that of one device, on shards that are uneven or empty; a reproducible model has the
 * same bits on any number of devices, with those of all of them and with those of a shard.
 *
 * Tolerances: statistics are f64 sums, so two numbers of devices give means and variances that
 * differ by some 2^-53, which after rounding to f32 is rarely a bit. What is left are the
 * gradients' sums in f32, in another order: 42 terms, 42 * 2^-24 of the magnitudes in a step of
 * 1/16, in three steps below 1e-6 of the parameters; in f64 below 1e-12.
 */
#include "ck_training.h"

enum { IN = 4, WIDTH = 6, OUT = 2, HEIGHT = 3, BREADTH = 2 };

/* ---- the model: norm, linear, norm, ReLU, linear on images ---- */

/* Of the chain. */
static ek_recompute policy = {EK_RECOMPUTE_NONE, 0, 0};

static ek_status make(ek_module **module, ek_batch_norm_over over, bool again) {
  ek_module *p[5] = {NULL};
  CK_WITH(ek_batch_norm_options, options, EK_BATCH_NORM_OPTIONS_INIT, .over = over,
          .momentum = 0.25);
  ck_ok(ek_batch_norm_create_with(&p[0], IN, &options));
  ck_ok(ek_linear_create(&p[1], IN, WIDTH, false));
  options.momentum = 0;
  ck_ok(ek_batch_norm_create_with(&p[2], WIDTH, &options));
  ck_ok(ek_activation_create(&p[3], EK_ACTIVATION_RELU));
  ck_ok(ek_linear_create(&p[4], WIDTH, OUT, true));
  if (again) ck_ok(ck_around(&p[2], p[2], ek_recompute_create));
  CK_WITH(ek_sequential_options, chain, EK_SEQUENTIAL_OPTIONS_INIT, .recompute = policy);
  return ck_sequential(module, p, 5, &chain);
}

static ek_status over_all(ek_module **module) { return make(module, EK_BATCH_NORM_ALL, false); }
static ek_status recomputed(ek_module **module) { return make(module, EK_BATCH_NORM_ALL, true); }
static ek_status over_shard(ek_module **module) { return make(module, EK_BATCH_NORM_SHARD, false); }

CK_SGD(sgd, .learning_rate = 0.0625)

enum { ALL, AGAIN, SHARD };
#define ON_PICTURES(name_, module_)                                                                \
  {.name = name_, .module = module_, .criterion = ek_mean_squared_error_create,                    \
   .sample = CK_SAMPLE(CK_ROW(HEIGHT, BREADTH, IN), CK_ROW(HEIGHT, BREADTH, OUT))}
static const struct ck_workload workloads[] = {
    ON_PICTURES("over all devices", over_all),
    ON_PICTURES("over all devices, recomputed", recomputed),
    ON_PICTURES("over a shard", over_shard)};

static struct ck_setup setup_of(int workload, const char *spec, int placement, ek_type type) {
  struct ck_setup setup = ck_setup_at(&workloads[workload], spec, placement);
  ck_assign(setup, .options.type = type, .optimizer = sgd);
  return setup;
}

/* A step of two micro-batches: of 7 samples, and of 2, which leaves devices without rows. */
static ek_status step(struct ck_training *training, uint64_t stream) {
  const struct ck_setup *setup = &training->setup;
  struct ck_batch first = ck_batch_make(setup->workload, setup->options.type, 7, 0, 2 * stream);
  struct ck_batch second =
      ck_batch_make(setup->workload, setup->options.type, 2, 0, 2 * stream + 1);
  ek_status status = ck_training_backward(training, &first, NULL, true, NULL);
  if (status == EK_OK) status = ck_training_step(training, &second, NULL);
  return status;
}

/* Parameters after three steps, and after them the buffers. */
static double *trained(struct ck_training *training) {
  for (uint64_t s = 0; s < 3; s++) ck_ok(step(training, s));
  return ck_training_model(training);
}

static double *trained_on(const struct ck_setup *setup) {
  struct ck_training training = ck_training_opened(setup);
  return trained(&training);
}

/* ---- statistics of all devices ---- */

static const char *const specs[] = {"cpu:2", "cpu:3", "cpu:4", "cpu:5"};
enum { SPECS = 4 };

CK_LOOP(any_number_of_devices, 2 * CK_PLACEMENTS * SPECS) {
  const ek_type type = _i % 2 == 0 ? EK_F32 : EK_F64;
  const int placement = _i / 2 / SPECS;
  const struct ck_setup alone = setup_of(ALL, "cpu:1", EK_MODE_REPLICATED, type);
  const struct ck_setup many =
      setup_of(placement % 2 == 0 ? ALL : AGAIN, specs[_i / 2 % SPECS], placement, type);
  double *want = trained_on(&alone), *got = trained_on(&many);
  const int64_t count = ck_count(want);
  ck_assert_msg(want[count - 1] == 6 && got[count - 1] == 6, "6 batches were %g and %g",
                want[count - 1], got[count - 1]);
  const double error = ck_arrays_off(got, want);
  ck_assert_msg(error <= (type == EK_F32 ? 1e-6 : 1e-12), "%s over %s, %s: off by %.3g",
                many.workload->name, many.spec, ck_placement_name(placement), error);
}

/* Of a shard they are not: the test above could fail. */
CK_TEST(shards_differ) {
  const struct ck_setup alone = setup_of(SHARD, "cpu:1", EK_MODE_REPLICATED, EK_F64);
  const struct ck_setup many = setup_of(SHARD, "cpu:3", EK_MODE_REPLICATED, EK_F64);
  double *want = trained_on(&alone), *got = trained_on(&many);
  ck_assert_double_ge(ck_arrays_off(got, want), 1e-4);
}

CK_LOOP(plan, 3) {
  ek_memory_usage usage[2][3];
  for (int i = 0; i < 2; i++) {
    struct ck_training training =
        ck_training_of(setup_of(_i, i == 0 ? "cpu:3" : "plan:3", EK_MODE_SHARDED, EK_F32));
    ck_ok(step(&training, 0));
    ck_usages(usage[i], training.group);
  }
  ck_same_peaks(workloads[_i].name, usage[1], usage[0], 3);
}

/* ---- the same bits ---- */

/* What is made again in backward is what it was, and counts once in the running statistics. */
CK_LOOP(recomputed_chains, 4) {
  static const ek_recompute_kind kinds[] = {EK_RECOMPUTE_CHEAP, EK_RECOMPUTE_ALL};
  const int workload = _i / 2 == 0 ? SHARD : ALL;
  const struct ck_setup setup = setup_of(workload, "cpu:2", EK_MODE_SHARDED, EK_F32);
  policy.kind = EK_RECOMPUTE_NONE;
  const double *want = trained_on(&setup);
  policy.kind = kinds[_i % 2];
  const double *got = trained_on(&setup);
  policy.kind = EK_RECOMPUTE_NONE;
  ck_arrays_same(workloads[workload].name, got, want);
}

static double *trained_reproducibly(int workload, const char *spec, int placement, ek_type type) {
  CK_WITH(struct ck_setup, setup, setup_of(workload, spec, placement, type),
          .options.reproducible = 8, .options.bucket_bytes = 64);
  ck_deterministic(true);
  CK_HELD(ek_group *, group, ck_open_exactly(spec, 0));
  CK_SCENE(struct ck_training, training, ck_ok(ck_training_try(&training, &setup, group)));
  return trained(&training);
}

CK_LOOP(reproducible, 3 * CK_PLACEMENTS) {
  static const char *const counts[] = {"cpu:1", "cpu:2", "cpu:3", "cpu:5", "cpu:8"};
  const int workload = _i / CK_PLACEMENTS, placement = _i % CK_PLACEMENTS;
  const double *want = trained_reproducibly(workload, "cpu:1", EK_MODE_REPLICATED, EK_F32);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
    const double *got = trained_reproducibly(workload, counts[i], placement, EK_F32);
    ck_arrays_same(counts[i], got, want);
  }
}

/* In grains that meet, statistics are those of one device with the whole batch: the tolerances
 * above. */
CK_LOOP(reproducible_over_all_is_one_device, 2 * CK_PLACEMENTS) {
  const ek_type type = _i % 2 == 0 ? EK_F32 : EK_F64;
  const struct ck_setup alone = setup_of(ALL, "cpu:1", EK_MODE_REPLICATED, EK_F64);
  const double *want = trained_on(&alone);
  const double *got = trained_reproducibly(ALL, "cpu:3", _i / 2, type);
  ck_assert_double_le(ck_arrays_off(got, want), type == EK_F32 ? 1e-6 : 1e-12);
}

/* Each request for memory or a thread fails once while a model opens whose grains meet. */
CK_LOOP(opening_fails_at_every_call, 2) {
  const ek_mode mode = _i == 0 ? EK_MODE_REPLICATED : EK_MODE_FULLY_SHARDED;
  const struct ck_setup setup = setup_of(ALL, "cpu:2", (int)mode, EK_F32);
  CK_WITH(ek_data_parallel_model_options, options, setup.options, .reproducible = 6);
  ek_data_parallel_model *model = NULL;
  ck_deterministic(true);
  ek_group *group = ck_open_exactly("cpu:2", 0);
  CK_OPENED(ek_module *, module, over_all(&module));
  uint64_t n = 0;
  while (ck_host_fails(&n, ek_data_parallel_model_open(&model, group, module, &options))) {
    ck_assert_ptr_null(model);
  }
  ck_assert_uint_gt(n, 20);
  ek_data_parallel_model_free(model);
  ck_ok(ek_group_close(group));
}

CK_SUITE("batch_norm_devices")
