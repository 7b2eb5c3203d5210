/*
 * trainer_bench.c - a trainer on a bench: see trainer_bench.h.
 */
#include "trainer_bench.h"

struct bench bench_of(const char *workload, ek_mode mode) {
  const ek_data_parallel_model_options defaults = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  struct bench b = {.setup = ck_setup_mode(ck_workload(workload), "cpu:3", mode)};
  ck_assign(b.setup, .options.bucket_bytes = defaults.bucket_bytes, .gradient_in_forward = true);
  b.batch = ck_batch_make(b.setup.workload, b.setup.options.type, SAMPLES, 0.2, 5);
  return b;
}

struct bench bench_at(int number) {
  return bench_of(ck_workloads[number / CK_MODES % CK_WORKLOADS].name,
                  (ek_mode)(number % CK_MODES));
}

ek_status bench_try(struct bench *b) { return ck_trainer_try(&b->trainer, &b->setup); }

void bench_open(struct bench *b) { ck_ok(bench_try(b)); }

struct bench bench_opened(const char *workload, ek_mode mode) {
  struct bench b = bench_of(workload, mode);
  bench_open(&b);
  return b;
}

void bench_own_module(struct bench *b) {
  ck_kept(b->setup.workload->module(&b->setup.module), b->setup.module);
}

void same_result(const ek_step_result *got, const ek_step_result *want) {
  ck_assert(got->loss == want->loss && got->weight == want->weight && got->step == want->step);
  ck_assert(got->gradient_norm == want->gradient_norm && got->finite);
}

void same_step(const ek_step_result *got, struct ck_training *t, const struct bench *b) {
  CK_GOT(ek_step_result, want, ck_training_step(t, &b->batch, &want));
  same_result(got, &want);
}

/* ---- predictions ---- */

float *rows_of(const ek_shards *shards, int64_t *count) {
  *count = 0;
  for (size_t k = 0; k < shards->count; k++) *count += ek_tensor_count(&shards->parts[k]);
  float *rows = ck_array((size_t)*count + 1, sizeof *rows);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, rows, EK_F32, 1, count));
  ck_ok(ek_gather_host(&host, shards));
  return rows;
}

static void same_rows(const float *got, const float *want, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    ck_assert_msg(fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])), "element %d: %g, not %g",
                  (int)i, (double)got[i], (double)want[i]);
  }
}

/* Each output of a prediction in parts has the rows of the whole batch's, where these are, and into
 * host memory in the same order. */
static void predicts_alike(struct bench *parts, struct bench *whole) {
  ek_shards got[4] = {{0}}, want[4] = {{0}};
  ek_tensor host[4];
  float *there[4] = {NULL}, *all[4] = {NULL};
  int64_t counts[4], count = 0;
  size_t outputs = 0;
  ck_ok(bench_predict(parts, got));
  ck_ok(bench_predict(whole, want));
  while (outputs < 4 && want[outputs].count > 0) outputs++;
  ck_assert_uint_gt(outputs, 0);
  for (size_t i = 0; i < outputs; i++) {
    const size_t bytes = (want[i].count + 1) * sizeof *want[i].offsets;
    ck_assert_mem_eq(got[i].offsets, want[i].offsets, bytes);
    ck_assert_mem_eq(got[i].samples, want[i].samples, bytes);
    there[i] = rows_of(&got[i], &counts[i]);
    all[i] = rows_of(&want[i], &count);
    ck_assert_int_eq(counts[i], count);
    same_rows(there[i], all[i], count);
    memset(there[i], 0, (size_t)count * sizeof *there[i]);
    const int64_t rows = want[i].offsets[want[i].count];
    ck_ok(ek_tensor_host(&host[i], there[i], EK_F32, CK_SHAPE(rows, count / rows)));
    ek_shards_free(&got[i]);
    ek_shards_free(&want[i]);
  }
  ck_ok(ek_trainer_predict_host(host, parts->trainer, parts->batch.input, parts->batch.inputs));
  for (size_t i = 0; i < outputs; i++) same_rows(there[i], all[i], counts[i]);
}

void parts_are_alike(struct bench *parts, struct bench *whole) {
  double want = 0, got = 0, all = 0, weight = 0;
  const uint64_t before = bench_held(parts);
  ck_ok(bench_evaluate(whole, &want, &all));
  ck_ok(bench_evaluate(parts, &got, &weight));
  ck_assert_double_eq(weight, all);
  ck_assert_double_le(fabs(got - want), 1e-5 * fabs(want)); /* numerics.md */
  ck_ok(bench_evaluate(parts, &got, NULL));
  predicts_alike(parts, whole);
  ck_assert_uint_eq(bench_held(parts), before);
}

/* ---- memory ---- */

/* Peaks of all devices after the last call; the next ones count from here. */
static uint64_t peak_of(struct bench *b, uint64_t peaks[4]) {
  const ek_group *group = ek_trainer_group(b->trainer);
  uint64_t most = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    peaks[k] = ck_usage(ek_group_device(group, k)).peak_bytes;
    ck_ok(ek_memory_reset_peak(ek_group_device(group, k)));
    if (peaks[k] > most) most = peaks[k];
  }
  return most;
}

uint64_t run_for_peaks(struct peaks *peaks, struct bench *b, const char *spec, bool capped) {
  ek_shards outputs[4] = {{0}};
  const int64_t rows = b->batch.samples * 5, classes = 13; /* of the workload "gpt" */
  float *numbers = ck_array((size_t)(rows * classes), sizeof *numbers);
  b->setup.spec = spec;
  bench_open(b);
  (void)peak_of(b, peaks->step);
  ck_ok(bench_step(b, NULL));
  ck_ok(bench_step(b, NULL));
  const uint64_t most = peak_of(b, peaks->step);
  CK_GOT(double, loss, bench_evaluate(b, &loss, NULL));
  (void)peak_of(b, peaks->evaluate);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, numbers, EK_F32, CK_SHAPE(rows, classes)));
  ck_ok(ek_trainer_predict_host(&host, b->trainer, b->batch.input, 1));
  (void)peak_of(b, peaks->host);
  if (!capped) {
    ck_ok(bench_predict(b, outputs));
    (void)peak_of(b, peaks->predict);
    ek_shards_free(outputs);
  }
  ck_ok(ek_trainer_close(b->trainer));
  return most;
}

/* ---- failures ---- */

/* A step in which something fails leaves everything as it was, or the model torn, and says why. */
static bool fails_well(struct bench *b, struct ck_training *other, ek_status status, uint64_t bytes,
                       const struct ck_state *before) {
  ek_data_parallel_model *model = ek_trainer_model(b->trainer);
  const bool failed = status != EK_OK;
  if (failed) {
    ck_assert_msg(status == EK_ERR_OUT_OF_MEMORY || status == EK_ERR_UNAVAILABLE, "%s: %s",
                  ek_status_name(status), ek_error_message());
    ck_assert_msg(ck_contains(ek_error_message(), "requested by a test") ||
                      ck_contains(ek_error_message(), "memory"),
                  "%s", ek_error_message());
    if (ek_data_parallel_model_discard(model) == EK_ERR_TORN) {
      ck_ok(ck_state_put(model, before));
    } else {
      ck_assert_uint_eq(bench_held(b), bytes);
    }
    ck_state_is("a step that failed", model, before);
    ck_ok(bench_step(b, NULL));
  }
  ck_ok(ck_training_step(other, &b->batch, NULL));
  ck_states_same("the step that was tried again", model, other->model);
  return failed;
}

static ek_status arm(const struct bench *b, enum failure what, uint64_t n) {
  ek_device *device = ek_group_device(ek_trainer_group(b->trainer), 1);
  if (what == WORK) return ek_fault_at(device, n, n == 0 ? EK_OK : EK_ERR_UNAVAILABLE);
  if (what == DEVICE_MEMORY) return ek_memory_fail_at(device, n);
  ek_host_memory_fail_at(n);
  return EK_OK;
}

static ek_status run_call(struct bench *b, enum call call) {
  ek_step_result result;
  if (call == STEP) return bench_step(b, NULL);
  if (call == PREPARING) return bench_prepare(b);
  EK_TRY(bench_begin(b));
  return ek_trainer_step_end(&result, b->trainer);
}

void fail_at_each(struct bench *b, enum failure what, uint64_t stride, enum call call) {
  bench_open(b);
  struct ck_training other = ck_training_opened(&b->setup);
  ck_ok(bench_step(b, NULL));
  ck_ok(ck_training_step(&other, &b->batch, NULL));
  const uint64_t bytes = bench_held(b);
  bool failed = true;
  /* Opening takes long on GPUs, and their work has many pieces. */
  if (ck_on_gpu() || what == WORK) stride = ck_on_gpu() ? 17 : 5 * stride;
  for (uint64_t n = 1; failed; n += stride) {
    struct ck_state before = ck_state_take(ek_trainer_model(b->trainer));
    ck_ok(arm(b, what, n));
    const ek_status status = run_call(b, call);
    ck_ok(arm(b, what, 0));
    if (call == PREPARING && status == EK_OK) ck_ok(bench_step(b, NULL));
    failed = fails_well(b, &other, status, bytes, &before);
  }
  ck_training_close(&other);
  ck_ok(ek_trainer_close(b->trainer));
}
