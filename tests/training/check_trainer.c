/*
 * check_trainer.c - a trainer does what its parts do: bit for bit what the calls of the pair give
 * that stand in data_parallel_criterion.h.
 *
 * Long, because a header has one check (tests/install/check_layout.sh) and all of it is on one
 * bench.
 */
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ck_folder.h"
#include "ck_gpt.h"
#include "ck_rule.h"
#include "ck_running.h"
#include "ck_state.h"
#include "ck_training.h"

enum { SAMPLES = 7, STEPS = 3 };

struct bench {
  struct ck_setup setup;
  ek_mode mode;
  ek_module *module;
  ek_criterion *criterion;
  ek_optimizer *rule;
  ek_trainer *trainer;
  int64_t micro_batches;
  struct ck_batch batch;
};

/* The same as ck_training_open() of the set-up makes. */
static ek_status open_on(struct bench *b, const char *devices, ek_group *group) {
  const struct ck_setup *setup = &b->setup;
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer_options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  CK_WITH(ek_group_options, threads, EK_GROUP_OPTIONS_INIT, .threads_per_device = 1);
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .model = &model_options);
  if (b->rule != NULL) options.optimizer = &optimizer_options;
  ck_ok(ek_data_parallel_model_options_set_mode(&model_options, b->mode));
  ck_assign(model_options, .type = setup->options.type, .precision = setup->options.precision,
            .seed = setup->options.seed, .broadcast_inputs = setup->options.broadcast_inputs);
  options.micro_batches = b->micro_batches;
  optimizer_options.loss_scale = setup->loss_scale;
  options.group = group;
  if (group == NULL) options.group_options = &threads;
  const ek_status status =
      ek_trainer_open(&b->trainer, devices, b->module, b->criterion, b->rule, &options);
  if (status == EK_OK) ck_keep(b->trainer);
  return status;
}

static void make_parts(struct bench *b, const char *workload, ek_mode mode) {
  *b = (struct bench){.setup = ck_setup_mode(ck_workload(workload), "cpu:3", mode), .mode = mode};
  const ek_data_parallel_model_options defaults = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ck_assign(b->setup, .options.bucket_bytes = defaults.bucket_bytes, .gradient_in_forward = true);
  ck_setup_precision(&b->setup);
  ck_ok(b->setup.workload->module(&b->module));
  ck_ok(b->setup.workload->criterion(&b->criterion, EK_REDUCTION_MEAN));
  ck_ok(b->setup.optimizer(&b->rule));
  ck_keep(b->module);
  ck_keep(b->criterion);
  ck_keep(b->rule);
  b->batch = ck_batch_make(b->setup.workload, b->setup.options.type, SAMPLES, 0.2, 5);
}

static void open_bench(struct bench *b, const char *workload, ek_mode mode) {
  make_parts(b, workload, mode);
  ck_ok(open_on(b, ck_spec("cpu:3"), NULL));
}

static ek_status step(struct bench *b, ek_step_result *result) {
  return ek_trainer_step(result, b->trainer, b->batch.input, b->batch.inputs, b->batch.target,
                         b->batch.targets);
}

static ek_status evaluate(struct bench *b, double *loss, double *weight) {
  return ek_trainer_evaluate(loss, weight, b->trainer, b->batch.input, b->batch.inputs,
                             b->batch.target, b->batch.targets);
}

static uint64_t held(const struct bench *b) {
  uint64_t bytes = 0;
  const ek_group *group = ek_trainer_group(b->trainer);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, k)));
    bytes += usage.current_bytes;
  }
  return bytes;
}

/* ---- the same as by hand ---- */

/* The next step by hand has the result that the trainer's had. */
static void same_step(const ek_step_result *got, struct ck_training *t, const struct bench *b) {
  CK_GOT(ek_step_result, want, ck_training_step(t, &b->batch, &want));
  ck_assert(got->loss == want.loss && got->weight == want.weight && got->step == want.step);
  ck_assert(got->gradient_norm == want.gradient_norm && got->finite);
}

CK_PART_LOOP(equals_the_calls_of_its_parts, CK_WORKLOADS * CK_MODES) {
  struct bench b;
  open_bench(&b, ck_workloads[_i / CK_MODES].name, (ek_mode)(_i % CK_MODES));
  struct ck_training t = ck_training_opened(&b.setup);
  for (int i = 0; i < STEPS; i++) {
    double loss = 0, weight = 0;
    CK_GOT(ek_step_result, got, step(&b, &got));
    same_step(&got, &t, &b);
    ck_ok(evaluate(&b, &loss, i == 0 ? NULL : &weight)); /* changes nothing */
    ck_assert(i == 0 || weight > 0);
  }
  ck_ok(step(&b, NULL));
  ck_ok(ck_training_step(&t, &b.batch, NULL));
  ck_states_same("trainer", ek_trainer_model(b.trainer), t.model);
}

static ek_status begin(struct bench *b) {
  return ek_trainer_step_begin(b->trainer, b->batch.input, b->batch.inputs, b->batch.target,
                               b->batch.targets);
}

/* In two calls, with the results a step later. */
CK_PART_LOOP(steps_in_two_calls, CK_WORKLOADS * CK_MODES) {
  struct bench b;
  open_bench(&b, ck_workloads[_i / CK_MODES].name, (ek_mode)(_i % CK_MODES));
  struct ck_training t = ck_training_opened(&b.setup);
  for (int i = 0; i < STEPS; i++) {
    ck_ok(begin(&b));
    if (i == 0) continue;
    CK_GOT(ek_step_result, got, ek_trainer_step_end(&got, b.trainer));
    same_step(&got, &t, &b);
  }
  ck_ok(ck_training_step(&t, &b.batch, NULL));
  ck_states_same("trainer", ek_trainer_model(b.trainer), t.model);
} /* the last result was not taken */

/* ---- before the first step ---- */

static ek_status prepare(struct bench *b) {
  return ek_trainer_prepare(b->trainer, b->batch.input, b->batch.inputs, b->batch.target,
                            b->batch.targets);
}

/* Changes nothing and holds nothing, before the first step and between two of them; with
 * micro-batches too, and with a loss scale that grows with every step. */
CK_PART_LOOP(preparing_changes_nothing, 2 * CK_WORKLOADS * CK_MODES) {
  static const ek_loss_scale grows = {EK_LOSS_SCALE_DYNAMIC, 1024, 2, 0.5, 1};
  const int number = _i / CK_MODES % CK_WORKLOADS;
  const char *workload = ck_workloads[number].name;
  struct bench prepared, other;
  struct bench *const both[] = {&prepared, &other};
  for (int k = 0; k < 2; k++) {
    make_parts(both[k], workload, (ek_mode)(_i % CK_MODES));
    both[k]->micro_batches = _i / CK_MODES / CK_WORKLOADS * 3;
    if (number % 2 != 0) both[k]->setup.loss_scale = &grows;
    ck_ok(open_on(both[k], ck_spec("cpu:3"), NULL));
  }
  const uint64_t before = held(&prepared);
  ck_ok(prepare(&prepared));
  ck_assert_uint_eq(held(&prepared), before);
  for (int i = 0; i < 2; i++) {
    ek_step_result got, want;
    ck_ok(step(&prepared, &got));
    ck_ok(prepare(&prepared));
    ck_ok(step(&other, &want));
    ck_assert(got.loss == want.loss && got.weight == want.weight && got.step == want.step);
  }
  ck_states_same("prepared", ek_trainer_model(prepared.trainer), ek_trainer_model(other.trainer));
}

/* A module that writes its buffers in a training forward leaves them alone. */
CK_LOOP(preparing_writes_no_buffer, CK_MODES) {
  float values[SAMPLES * CK_RUNNING_WIDTH];
  const int64_t shape[] = {SAMPLES, CK_RUNNING_WIDTH};
  struct bench b = {.mode = (ek_mode)_i};
  for (int i = 0; i < SAMPLES * CK_RUNNING_WIDTH; i++) values[i] = (float)(i % 7);
  CK_GOT(ek_tensor, batch, ek_tensor_host(&batch, values, EK_F32, 2, shape));
  ck_ok(ck_running_create(&b.module));
  ck_ok(ek_mean_squared_error_create(&b.criterion, EK_REDUCTION_MEAN));
  ck_ok(ek_sgd_create(&b.rule, NULL));
  ck_keep(b.module);
  ck_keep(b.criterion);
  ck_keep(b.rule);
  b.setup.options.type = EK_F32;
  ck_ok(open_on(&b, ck_spec("cpu:3"), NULL));
  ek_data_parallel_model *model = ek_trainer_model(b.trainer);
  struct ck_state before = ck_state_take(model);
  ck_ok(ek_trainer_prepare(b.trainer, &batch, 1, &batch, 1));
  ck_state_is("buffers", model, &before);
}

/* ---- micro-batches ---- */

/* Sizes of the parts of SAMPLES for each number of micro-batches. */
static const struct {
  int64_t micro_batches, count, sizes[SAMPLES];
} cuts[] = {{2, 2, {4, 3}},
            {3, 3, {3, 2, 2}},
            {7, 7, {1, 1, 1, 1, 1, 1, 1}},
            {9, 7, {1, 1, 1, 1, 1, 1, 1}}};
enum { CUTS = sizeof cuts / sizeof cuts[0] };

/* The same as parts of the batch that are accumulated by hand, bit for bit, and to rounding as the
 * whole batch. A part on three devices may leave some without rows. */
CK_PART_LOOP(micro_batches, CUTS * CK_WORKLOADS * CK_MODES) {
  const struct ck_workload *workload = &ck_workloads[_i / CK_MODES % CK_WORKLOADS];
  const int cut = _i / CK_MODES / CK_WORKLOADS;
  CK_SET_UP(struct bench, b, make_parts(&b, workload->name, (ek_mode)(_i % CK_MODES)));
  b.micro_batches = cuts[cut].micro_batches;
  ck_ok(open_on(&b, ck_spec("cpu:3"), NULL));
  struct ck_training parts = ck_training_opened(&b.setup);
  struct ck_training whole = ck_training_opened(&b.setup);
  for (int i = 0; i < 2; i++) {
    ek_step_result got, want, large;
    int64_t first = 0;
    ck_ok(step(&b, &got));
    for (int64_t k = 0; k < cuts[cut].count; k++) {
      struct ck_batch part = ck_batch_samples(&b.batch, first, cuts[cut].sizes[k]);
      const bool more = k + 1 < cuts[cut].count;
      first += cuts[cut].sizes[k];
      ck_ok(more ? ck_training_backward(&parts, &part, NULL, true, NULL)
                 : ck_training_step(&parts, &part, &want));
    }
    ck_ok(ck_training_step(&whole, &b.batch, &large));
    ck_assert(got.loss == want.loss && got.weight == want.weight && got.step == want.step);
    ck_assert(got.gradient_norm == want.gradient_norm && got.weight == large.weight);
    ck_assert_double_le(fabs(got.loss - large.loss), 1e-5 * fabs(large.loss)); /* numerics.md */
  }
  ck_states_same("micro-batches", ek_trainer_model(b.trainer), parts.model);
}

/* What is wrong with a batch is seen before its first part runs. */
CK_TEST(wrong_micro_batches) {
  CK_SET_UP(struct bench, b, make_parts(&b, "gpt", EK_MODE_REPLICATED));
  b.micro_batches = -1;
  ck_invalid(open_on(&b, ck_spec("cpu:2"), NULL), "micro_batches is -1");
  b.micro_batches = 3;
  ck_ok(open_on(&b, ck_spec("cpu:2"), NULL));
  const ek_tensor *x = b.batch.input, *y = b.batch.target;
  ek_tensor many[EK_MAX_INPUTS + 1];
  CK_WITH(ek_tensor, scalar, *x, .rank = 0);
  CK_WITH(ek_tensor, fewer, *y, .shape[0] = y->shape[0] - 1);
  for (int i = 0; i <= EK_MAX_INPUTS; i++) many[i] = *x;
  const uint64_t bytes = held(&b);
  ck_fails(ek_trainer_step(NULL, b.trainer, &scalar, 1, y, 1), EK_ERR_SHAPE, "has no rows");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, &fewer, 1), EK_ERR_SHAPE,
           "target number 0: 34 rows are not a multiple of 7 samples");
  ck_invalid(ek_trainer_step(NULL, b.trainer, many, EK_MAX_INPUTS + 1, y, 1), "33 inputs");
  ck_invalid(ek_trainer_step(NULL, b.trainer, x, 0, y, 1), "one must be cut");
  ck_invalid(ek_trainer_step(NULL, b.trainer, many, 2, y, 1), "takes 1 inputs");
  ck_assert_uint_eq(held(&b), bytes);
  ck_ok(step(&b, NULL));
}

/* The loss of the parts of a batch, put together, is that of the whole; no mask is drawn. */
CK_LOOP(evaluation_and_prediction, CK_MODES) {
  CK_SET_UP(struct bench, b, open_bench(&b, "gpt", (ek_mode)_i));
  double loss = 0, again = 0, weight = 0, sum = 0, all = 0;
  ck_ok(step(&b, NULL));
  ck_ok(evaluate(&b, &loss, &weight));
  ck_ok(evaluate(&b, &again, NULL));
  ck_assert_double_eq(loss, again);
  for (int64_t first = 0; first < SAMPLES; first += 4) {
    const struct ck_batch part =
        ck_batch_samples(&b.batch, first, SAMPLES - first < 4 ? SAMPLES - first : 4);
    double s = 0, d = 0;
    ck_ok(ek_trainer_evaluate(&s, &d, b.trainer, part.input, 1, part.target, 1));
    sum += s * d;
    all += d;
  }
  ck_assert_double_eq(all, weight);
  ck_assert_double_eq_tol(sum / all, loss, 1e-6 * loss); /* f32, about 50 terms: 50 u */

  CK_GOT(ek_shards, outputs, ek_trainer_predict(&outputs, b.trainer, b.batch.input, 1));
  ek_data_parallel_criterion *criterion = ek_trainer_criterion(b.trainer);
  ck_ok(ek_data_parallel_criterion_forward(criterion, &outputs, 1, b.batch.target, 1));
  ck_ok(ek_data_parallel_criterion_loss(&again, NULL, criterion));
  ck_assert_double_eq(loss, again);
  ck_fails(ek_data_parallel_criterion_backward(criterion, NULL), EK_ERR_STATE, "");
  ek_shards_free(&outputs);
  const uint64_t before = held(&b); /* an evaluation leaves nothing behind */
  ck_ok(evaluate(&b, &again, NULL));
  ck_assert_uint_eq(held(&b), before);
  ck_ok(step(&b, NULL));
}

/* Number of elements of all parts, which become an array of the caller's, row after row. */
static float *rows_of(const ek_shards *shards, int64_t *count) {
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

/* Output number `output` of a prediction in parts has the rows of the whole batch's, where these
 * are, and into host memory in the same order. */
static void predicts_alike(struct bench *cut, struct bench *whole, size_t outputs) {
  ek_shards got[4] = {{0}}, want[4] = {{0}};
  ek_tensor host[4];
  float *there[4] = {NULL};
  ck_ok(ek_trainer_predict(got, cut->trainer, cut->batch.input, cut->batch.inputs));
  ck_ok(ek_trainer_predict(want, whole->trainer, whole->batch.input, whole->batch.inputs));
  for (size_t i = 0; i < outputs; i++) {
    int64_t got_count = 0, count = 0;
    const size_t bytes = (want[i].count + 1) * sizeof *want[i].offsets;
    ck_assert_mem_eq(got[i].offsets, want[i].offsets, bytes);
    ck_assert_mem_eq(got[i].samples, want[i].samples, bytes);
    float *rows = rows_of(&got[i], &got_count), *all = rows_of(&want[i], &count);
    ck_assert_int_eq(got_count, count);
    same_rows(rows, all, count);
    there[i] = rows;
    memset(rows, 0, (size_t)count * sizeof *rows);
    const int64_t shape[] = {want[i].offsets[want[i].count],
                             count / want[i].offsets[want[i].count]};
    ck_ok(ek_tensor_host(&host[i], rows, EK_F32, 2, shape));
  }
  ck_ok(ek_trainer_predict_host(host, cut->trainer, cut->batch.input, cut->batch.inputs));
  for (size_t i = 0; i < outputs; i++) {
    int64_t count = 0;
    float *all = rows_of(&want[i], &count);
    same_rows(there[i], all, count);
    ek_shards_free(&got[i]);
    ek_shards_free(&want[i]);
  }
}

/* Every workload in every mode on 1 to 4 devices, in parts that are ragged, smaller than the number
 * of devices, or as many as the batch has samples: the loss of all terms and the weight are those
 * of the whole batch, and nothing is left on the devices. */
CK_LOOP(evaluation_in_parts, CUTS * CK_WORKLOADS * CK_MODES) {
  static const char *const devices[] = {"cpu:1", "cpu:2", "cpu:3", "cpu:4"};
  if (!ck_part(_i) || ck_precision() != 0) return;
  const struct ck_workload *workload = &ck_workloads[_i / CK_MODES % CK_WORKLOADS];
  const int cut = _i / CK_MODES / CK_WORKLOADS;
  const char *spec = ck_spec(devices[(cut + _i) % 4]);
  struct bench whole, parts;
  double want = 0, got = 0, all = 0, weight = 0;
  make_parts(&whole, workload->name, (ek_mode)(_i % CK_MODES));
  make_parts(&parts, workload->name, (ek_mode)(_i % CK_MODES));
  parts.micro_batches = cuts[cut].micro_batches;
  ck_ok(open_on(&whole, spec, NULL));
  ck_ok(open_on(&parts, spec, NULL));
  const uint64_t before = held(&parts);
  ck_ok(evaluate(&whole, &want, &all));
  ck_ok(evaluate(&parts, &got, &weight));
  ck_assert_double_eq(weight, all);
  ck_assert_double_le(fabs(got - want), 1e-5 * fabs(want)); /* numerics.md */
  ck_ok(evaluate(&parts, &got, NULL));
  predicts_alike(&parts, &whole, ek_module_outputs(parts.module));
  ck_assert_uint_eq(held(&parts), before);
}

/* The same of a model that computes its loss, whose forward may predict without targets. Two of the
 * devices have no rows of some parts. */
CK_LOOP(its_own_loss_in_parts, CK_MODES) {
  if (ck_precision() != 0) return;
  struct bench whole, parts;
  double want = 0, got = 0, all = 0, weight = 0;
  ek_cross_entropy_options loss = EK_CROSS_ENTROPY_OPTIONS_INIT;
  CK_WITH(ek_gpt_options, options, ck_gpt_sizes(13, 5, 8, 2, 2), .fused_loss = true, .loss = &loss);
  struct bench *both[] = {&whole, &parts};
  for (int i = 0; i < 2; i++) {
    make_parts(both[i], "gpt", (ek_mode)_i);
    ek_module_free(both[i]->module);
    ek_criterion_free(both[i]->criterion);
    both[i]->criterion = NULL;
    ck_kept(ek_gpt_create(&both[i]->module, &options), both[i]->module);
    both[i]->micro_batches = i * 4;
    ck_ok(open_on(both[i], ck_spec("cpu:3"), NULL));
  }
  const uint64_t before = held(&parts);
  ck_ok(evaluate(&whole, &want, &all));
  ck_ok(evaluate(&parts, &got, &weight));
  ck_assert_double_eq(weight, all);
  ck_assert_double_le(fabs(got - want), 1e-5 * fabs(want)); /* numerics.md */
  predicts_alike(&parts, &whole, 1);
  ck_assert_uint_eq(held(&parts), before);
}

enum { LARGE = 123, LARGE_PARTS = 29 };

/* Peaks of all devices after the last call; the next ones count from here. */
static uint64_t peak_of(struct bench *b, uint64_t peaks[4]) {
  const ek_group *group = ek_trainer_group(b->trainer);
  uint64_t most = 0;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(group, k)));
    ck_ok(ek_memory_reset_peak(ek_group_device(group, k)));
    peaks[k] = usage.peak_bytes;
    if (usage.peak_bytes > most) most = usage.peak_bytes;
  }
  return most;
}

struct peaks {
  uint64_t step[4], evaluate[4], predict[4], host[4];
};

/* capped: the devices have no room for all outputs of a prediction, only the host has. */
static uint64_t run_for_peaks(struct peaks *peaks, struct bench *b, const char *spec, bool capped) {
  ek_shards outputs[4] = {{0}};
  float *rows = ck_array(LARGE * 5 * 13, sizeof *rows);
  const int64_t shape[] = {LARGE * 5, 13}; /* of the workload "gpt" */
  b->micro_batches = LARGE_PARTS;
  ck_ok(open_on(b, spec, NULL));
  (void)peak_of(b, peaks->step);
  ck_ok(step(b, NULL));
  ck_ok(step(b, NULL));
  const uint64_t most = peak_of(b, peaks->step);
  CK_GOT(double, loss, evaluate(b, &loss, NULL));
  (void)peak_of(b, peaks->evaluate);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, rows, EK_F32, 2, shape));
  ck_ok(ek_trainer_predict_host(&host, b->trainer, b->batch.input, 1));
  (void)peak_of(b, peaks->host);
  if (!capped) {
    ck_ok(ek_trainer_predict(outputs, b->trainer, b->batch.input, 1));
    (void)peak_of(b, peaks->predict);
    ek_shards_free(outputs);
  }
  ck_ok(ek_trainer_close(b->trainer));
  return most;
}

/* Under a cap at which a step of micro-batches just fits, an evaluation and a prediction of the
 * same batch fit, and those of a whole one do not; a plan has the same peaks to the byte. */
CK_LOOP(evaluation_under_the_cap_of_a_step, 4 * CK_MODES) {
  if (!ck_part(_i) || ck_precision() != 0) return;
  const int devices = _i / CK_MODES + 1;
  struct peaks planned = {.step = {0}}, real = planned, capped = planned;
  double loss = 0;
  CK_SET_UP(struct bench, b, make_parts(&b, "gpt", (ek_mode)(_i % CK_MODES)));
  b.batch = ck_batch_make(b.setup.workload, EK_F32, LARGE, 0.2, 5);
  const uint64_t cap = run_for_peaks(&planned, &b, ck_spec(ck_text("plan:%d", devices)), false);
  (void)run_for_peaks(&real, &b, ck_spec(ck_text("cpu:%d", devices)), false);
  ck_assert_mem_eq(&planned, &real, sizeof planned);
  const char *spec = ck_text("cpu:%d@%" PRIu64 "B", devices, cap);
  (void)run_for_peaks(&capped, &b, spec, true);
  ck_assert_mem_eq(capped.evaluate, real.evaluate, sizeof real.evaluate);
  b.micro_batches = 0;
  ck_ok(open_on(&b, spec, NULL));
  ck_fails(evaluate(&b, &loss, NULL), EK_ERR_OUT_OF_MEMORY, "");
}

/* Reduction `none` keeps its outputs until backward; what was evaluated is gone. */
CK_LOOP(every_loss_for_itself, CK_MODES) {
  ek_shards losses = {0};
  double loss = 0;
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", (ek_mode)_i));
  ek_criterion_free(b.criterion);
  ck_kept(b.setup.workload->criterion(&b.criterion, EK_REDUCTION_NONE), b.criterion);
  ck_ok(open_on(&b, ck_spec("cpu:3"), NULL));
  CK_GOT(ek_step_result, result, step(&b, &result));
  ck_assert(result.finite && result.loss > 0);
  ck_ok(evaluate(&b, &loss, NULL));
  ek_data_parallel_criterion *criterion = ek_trainer_criterion(b.trainer);
  ck_assert_int_ne(ek_data_parallel_criterion_losses(&losses, criterion), EK_OK);
}

/* ---- without an optimizer ---- */

/* What a trainer gives without an optimizer, and without a criterion, is what one with both gives,
 * also after its state was loaded; no device has memory for gradients or states. */
CK_PART_LOOP(only_what_is_wanted, CK_WORKLOADS * CK_MODES) {
  const ek_status bad = EK_ERR_STATE;
  const struct ck_workload *workload = &ck_workloads[_i / CK_MODES];
  const char *folder = ck_folder(), *path = ck_state_file(folder, 1);
  struct bench b, less;
  open_bench(&b, workload->name, (ek_mode)(_i % CK_MODES));
  make_parts(&less, workload->name, (ek_mode)(_i % CK_MODES));
  ck_ok(step(&b, NULL));
  const ek_status saved = ek_trainer_save(b.trainer, folder, NULL);
  const bool files = !ck_no_files(saved);
  for (int criterion = 1; criterion >= 0; criterion--) {
    double want = 0, got = -1;
    ek_optimizer *rule = less.rule;
    ek_criterion *loss = less.criterion;
    less.rule = NULL;
    if (criterion == 0) less.criterion = NULL;
    ck_ok(open_on(&less, ck_spec("cpu:3"), NULL));
    ck_assign(less, .rule = rule, .criterion = loss);
    ck_assert_ptr_null(ek_trainer_optimizer(less.trainer));
    if (files) ck_ok(ek_trainer_load(NULL, less.trainer, folder));
    if (criterion == 1) {
      ck_ok(evaluate(&b, &want, NULL));
      ck_ok(evaluate(&less, &got, NULL));
      ck_assert(!files || got == want);
      ck_fails(step(&less, NULL), bad, "without an optimizer");
      ck_fails(prepare(&less), bad, "without an optimizer");
    } else {
      ck_assert_ptr_null(ek_trainer_criterion(less.trainer));
      ck_fails(evaluate(&less, &got, NULL), bad, "without a criterion");
      ck_fails(step(&less, NULL), bad, "without a criterion");
    }
    ek_shards outputs[4] = {{0}}, others[4] = {{0}};
    ck_ok(ek_trainer_predict(outputs, b.trainer, b.batch.input, b.batch.inputs));
    ck_ok(ek_trainer_predict(others, less.trainer, b.batch.input, b.batch.inputs));
    for (size_t i = 0; i < ek_module_outputs(less.module); i++) {
      int64_t count = 0;
      float *mine = rows_of(&outputs[i], &count), *theirs = rows_of(&others[i], &count);
      if (files) ck_assert_mem_eq(mine, theirs, (size_t)count * sizeof *mine);
      ek_shards_free(&outputs[i]);
      ek_shards_free(&others[i]);
    }
    for (size_t k = 0; k < 3; k++) {
      ek_memory_usage usage;
      ck_ok(ck_memory_stats(&usage, ek_group_device(ek_trainer_group(less.trainer), k)));
      ck_assert_uint_eq(usage.current[EK_MEMORY_GRADIENTS], 0);
      ck_assert_uint_eq(usage.current[EK_MEMORY_OPTIMIZER], 0);
    }
    ck_ok(ek_trainer_close(less.trainer));
    less.trainer = NULL;
  }
  if (files) ck_assert_int_eq(unlink(path), 0);
}

/* Patterns of a trainer that only predicts are read all the same. */
CK_TEST(patterns_without_an_optimizer) {
  ek_trainer *trainer = NULL;
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", EK_MODE_REPLICATED));
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  static const ek_parameter_pattern wrong = {.pattern = "0.wait", .frozen = true};
  CK_WITH(ek_trainer_options, o, EK_TRAINER_OPTIONS_INIT, .model = &model_options);
  model_options.pattern_count = 1;
  ck_invalid(ek_trainer_open(&trainer, ck_spec("cpu:1"), b.module, NULL, NULL, &o), "NULL");
  model_options.patterns = &wrong;
  ck_fails(ek_trainer_open(&trainer, ck_spec("cpu:1"), b.module, NULL, NULL, &o), EK_ERR_NOT_FOUND,
           "0.weight");
  ck_assert_ptr_null(trainer);
}

/* ---- ownership ---- */

CK_TEST(a_group_of_the_programs) {
  ek_group *group = ck_open("cpu:3", 1);
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", EK_MODE_SHARDED));
  ck_ok(open_on(&b, NULL, group));
  ck_assert_ptr_eq(ek_trainer_group(b.trainer), group);
  ck_ok(step(&b, NULL));
}

/* The description may go when the trainer is open, and outputs outlive the parts. */
CK_TEST(who_goes_first) {
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", EK_MODE_BALANCED));
  ek_module_free(b.module);
  ek_criterion_free(b.criterion);
  ek_optimizer_free(b.rule);
  ck_assign(b, .module = NULL, .criterion = NULL, .rule = NULL);
  ck_ok(step(&b, NULL));
  CK_GOT(ek_shards, outputs, ek_trainer_predict(&outputs, b.trainer, b.batch.input, 1));
  ck_fails(ek_trainer_close(b.trainer), EK_ERR_STATE, "");
  ek_error_set(EK_ERR_SHAPE, "before");
  ek_trainer_free(b.trainer); /* refused as well, and called again below */
  ck_assert_str_eq(ek_error_message(), "before");
  ck_fails(step(&b, NULL), EK_ERR_STATE, "was freed");
  ck_assert_ptr_null(ek_trainer_model(b.trainer));
  ek_shards_free(&outputs);
  ck_ok(ek_trainer_close(b.trainer));
  ck_ok(ek_trainer_close(NULL));
}

/* ---- what is refused ---- */

CK_PART_LOOP(misuse, CK_MODES) {
  double loss = 0;
  ek_shards outputs[4] = {{0}};
  ek_group *group = ck_open("cpu:2", 1);
  ek_trainer *trainer = NULL;
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", (ek_mode)_i));
  ek_data_parallel_model_options model_options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  ek_data_parallel_criterion_options criterion_options = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  ek_data_parallel_optimizer_options optimizer_options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ek_group_options g = EK_GROUP_OPTIONS_INIT;
  const ek_status bad = EK_ERR_INVALID_ARGUMENT;
  const char *spec = ck_spec("cpu:2");
  ck_fails(ek_trainer_open(NULL, spec, b.module, b.criterion, b.rule, NULL), bad, "NULL");
  ck_fails(ek_trainer_open(&trainer, spec, NULL, b.criterion, b.rule, NULL), bad, "NULL");
  ck_fails(ek_trainer_open(&trainer, spec, b.module, NULL, b.rule, NULL), bad, "NULL");
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, b.criterion, b.rule, NULL), bad, "either");
  ck_fails(ek_trainer_open(&trainer, "gpu!", b.module, b.criterion, b.rule, NULL), bad, "gpu!");
  CK_WITH(ek_trainer_options, o, EK_TRAINER_OPTIONS_INIT, .group = group);
  ck_fails(ek_trainer_open(&trainer, spec, b.module, b.criterion, b.rule, &o), bad, "either");
  o.group_options = &g;
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, b.criterion, b.rule, &o), bad, "either");
  ck_assign(o, .group_options = NULL, .model = &model_options);
  model_options.state = (ek_state_placement)7;
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, b.criterion, b.rule, &o), bad, "state");
  model_options = (ek_data_parallel_model_options)EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  model_options.size = 1;
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, b.criterion, b.rule, &o), bad,
           "ek_data_parallel_model_options");
  ck_assign(o, .model = NULL, .optimizer = &optimizer_options);
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, b.criterion, NULL, &o), bad,
           "options.optimizer is given without an optimizer");
  ck_assign(o, .optimizer = NULL, .criterion = &criterion_options);
  ck_fails(ek_trainer_open(&trainer, NULL, b.module, NULL, NULL, &o), bad,
           "options.criterion is given without a criterion");
  ck_assert_ptr_null(trainer);
  ek_group_free(group);

  const ek_tensor *x = b.batch.input, *y = b.batch.target;
  ck_fails(ek_trainer_step(NULL, NULL, x, 1, y, 1), bad, "NULL");
  ck_fails(ek_trainer_step(NULL, b.trainer, NULL, 1, y, 1), bad, "NULL");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, NULL, 1), bad, "NULL");
  ck_fails(ek_trainer_step_begin(NULL, x, 1, y, 1), bad, "NULL");
  ck_fails(ek_trainer_step_begin(b.trainer, NULL, 1, y, 1), bad, "ek_trainer_step_begin: inputs");
  ck_fails(ek_trainer_step_end(NULL, b.trainer), bad, "NULL");
  ck_fails(ek_trainer_prepare(NULL, x, 1, y, 1), bad, "NULL");
  ck_fails(ek_trainer_prepare(b.trainer, x, 1, NULL, 1), bad, "NULL");
  ck_fails(ek_trainer_evaluate(NULL, NULL, b.trainer, x, 1, y, 1), bad, "NULL");
  ck_fails(ek_trainer_predict(NULL, b.trainer, x, 1), bad, "NULL");
  ck_fails(ek_trainer_predict(outputs, NULL, x, 1), bad, "NULL");
  ck_assert_ptr_null(ek_trainer_group(NULL));
  ck_assert_ptr_null(ek_trainer_model(NULL));
  ck_assert_ptr_null(ek_trainer_criterion(NULL));
  ck_assert_ptr_null(ek_trainer_optimizer(NULL));

  /* Wrong batches: nothing is held, nothing has changed, and the words are the part's. */
  struct ck_batch fewer = ck_batch_samples(&b.batch, 0, SAMPLES - 1);
  struct ck_state before = ck_state_take(ek_trainer_model(b.trainer));
  const uint64_t bytes = held(&b);
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 2, y, 1), bad, "takes 1 inputs");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, y, 2), bad, "1 targets");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_fails(ek_trainer_prepare(b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_fails(ek_trainer_evaluate(&loss, NULL, b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_assert_uint_eq(held(&b), bytes);
  ck_state_is("after wrong batches", ek_trainer_model(b.trainer), &before);
  ck_ok(step(&b, NULL));
}

/* ---- files ---- */

/* A save that failed is no reason to load nothing; its error is the next save's. The system refuses
 * what the save writes in the background. */
CK_TEST(a_failed_save_does_not_keep_a_load_away) {
  ek_checkpoint_info info;
  struct rlimit limit;
  const char *folder = ck_folder(), *path = ck_state_file(folder, 1);
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", EK_MODE_SHARDED));
  ck_ok(step(&b, NULL));
  const ek_status status = ek_trainer_save(b.trainer, folder, NULL);
  if (!ck_no_files(status)) {
    ck_ok(step(&b, NULL));
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct rlimit least = {64, limit.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &least), 0);
    const ek_status begun = ek_trainer_save_begin(b.trainer, folder, NULL);
    const ek_status loaded = ek_trainer_load(&info, b.trainer, folder);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_ok(begun);
    ck_ok(loaded);
    ck_assert_int_eq(info.step, 1);
    ck_fails(ek_trainer_save_begin(b.trainer, folder, NULL), EK_ERR_IO, "File too large");
    ck_ok(ek_trainer_save_end(b.trainer));
    ck_assert_int_eq(unlink(path), 0);
  }
  ck_ok(ek_trainer_close(b.trainer));
}

/* A load sees the state that is being written: 12 MiB, which no load would overtake. */
CK_TEST(a_load_waits_for_a_save) {
  enum { WIDTH = 1024 };
  const char *folder = ck_folder();
  static float numbers[2 * WIDTH];
  ek_trainer *trainer = NULL;
  ek_checkpoint_info info = {0};
  for (int step = 1; step < 3; step++) (void)ck_state_file(folder, step);
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, numbers, EK_F32, CK_SHAPE(2, WIDTH)));
  CK_SCOPED(ek_module *, module, ek_linear_create(&module, WIDTH, WIDTH, true));
  CK_SCOPED(ek_criterion *, criterion, ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN));
  CK_SCOPED(ek_optimizer *, rule, ek_adamw_create(&rule, NULL));
  ck_ok(ek_trainer_open(&trainer, ck_spec("cpu:2"), module, criterion, rule, NULL));
  ck_ok(ek_trainer_step(NULL, trainer, &x, 1, &x, 1));
  if (!ck_no_files(ek_trainer_save(trainer, folder, NULL))) {
    ck_ok(ek_trainer_step(NULL, trainer, &x, 1, &x, 1));
    ck_ok(ek_trainer_save_begin(trainer, folder, NULL));
    ck_ok(ek_trainer_load(&info, trainer, folder));
    ck_assert_int_eq(info.step, 2);
    ck_ok(ek_trainer_save_end(trainer));
  }
  ck_ok(ek_trainer_close(trainer));
}

/* Steps that were taken while a state was written, and steps from that state on, end the same. */
CK_PART_LOOP(saves_and_loads, CK_MODES) {
  ek_checkpoint_info info;
  const char *folder = ck_folder(), *path = ck_state_file(folder, 1);
  CK_SET_UP(struct bench, b, open_bench(&b, "mlp", (ek_mode)_i));
  ck_ok(ek_trainer_save_end(b.trainer));
  ck_ok(step(&b, NULL));
  const ek_status status = ek_trainer_save_begin(b.trainer, folder, NULL);
  if (!ck_no_files(status)) {
    ck_ok(step(&b, NULL));
    struct ck_state want = ck_state_take(ek_trainer_model(b.trainer));
    ck_ok(ek_trainer_load(&info, b.trainer, folder));
    ck_assert_int_eq(info.step, 1);
    ck_assert_str_eq(info.path, path);
    ck_ok(step(&b, NULL));
    ck_state_is("resumed", ek_trainer_model(b.trainer), &want);
    ck_fails(ek_trainer_save(b.trainer, path, NULL), EK_ERR_IO, "not a directory; states");
    ck_fails(ek_trainer_save_begin(b.trainer, path, NULL), EK_ERR_IO, "not a directory; states");
    ck_ok(ek_trainer_save_end(b.trainer));
    ck_invalid(ek_trainer_load(NULL, NULL, folder), "trainer is NULL");
    ck_assert_int_eq(unlink(path), 0);
    ck_ok(ek_trainer_save_begin(b.trainer, folder, NULL)); /* free waits for it */
    path = ck_state_file(folder, 2);
  }
  ck_ok(ek_trainer_close(b.trainer));
  ck_assert_int_eq(status == EK_OK ? unlink(path) : 0, 0);
}

/* ---- threads ---- */

static sem_t inside, go_on; /* of an update on device 0 */

static ek_status wait_update(const ek_optimizer *self, ek_stream *stream, const ek_update *u) {
  (void)self;
  if (ek_device_index(ek_stream_device(stream)) != 0 || u->no_decay) return EK_OK;
  (void)sem_post(&inside);
  (void)sem_wait(&go_on);
  return EK_OK;
}

static ek_status step_status;

static void *step_there(void *bench) {
  step_status = step(bench, NULL);
  return NULL;
}

CK_TEST(another_thread_is_refused) {
  pthread_t thread;
  double loss = 0;
  ek_shards outputs = {0};
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", EK_MODE_REPLICATED));
  ek_optimizer_free(b.rule);
  ck_kept(ck_rule_create(&b.rule, "wait", wait_update), b.rule);
  ck_ok(open_on(&b, ck_spec("cpu:3"), NULL));
  ck_assert_int_eq(sem_init(&inside, 0, 0) | sem_init(&go_on, 0, 0), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, step_there, &b), 0);
  (void)sem_wait(&inside);
  const ek_status got[] = {step(&b, NULL), prepare(&b), evaluate(&b, &loss, NULL),
                           ek_trainer_predict(&outputs, b.trainer, b.batch.input, 1),
                           ek_trainer_close(b.trainer)};
  const char *message = ck_text("%s", ek_error_message());
  (void)sem_post(&go_on);
  (void)pthread_join(thread, NULL);
  for (int i = 0; i < 5; i++) ck_assert_int_eq(got[i], EK_ERR_STATE);
  ck_assert(strstr(message, "another thread is using the trainer") != NULL);
  ck_ok(step_status);
  ck_ok(ek_trainer_close(b.trainer));
  (void)sem_destroy(&inside);
  (void)sem_destroy(&go_on);
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
      ck_assert_uint_eq(held(b), bytes);
    }
    ck_state_is("a step that failed", model, before);
    ck_ok(step(b, NULL));
  }
  ck_ok(ck_training_step(other, &b->batch, NULL));
  ck_states_same("the step that was tried again", model, other->model);
  return failed;
}

enum { WORK, DEVICE_MEMORY, HOST_MEMORY, FAILURES };

static ek_status arm(const struct bench *b, int what, uint64_t n) {
  ek_device *device = ek_group_device(ek_trainer_group(b->trainer), 1);
  if (what == WORK) return ek_fault_at(device, n, n == 0 ? EK_OK : EK_ERR_UNAVAILABLE);
  if (what == DEVICE_MEMORY) return ek_memory_fail_at(device, n);
  ek_host_memory_fail_at(n);
  return EK_OK;
}

/* What fails. */
enum call { STEP, PREPARING, TWO_CALLS };

static ek_status run_call(struct bench *b, enum call call) {
  ek_step_result result;
  if (call == STEP) return step(b, NULL);
  if (call == PREPARING) return prepare(b);
  EK_TRY(begin(b));
  return ek_trainer_step_end(&result, b->trainer);
}

/* Every stride-th call of a step, or of what comes before one, fails, in turn; the parts were made,
 * and b is closed. */
static void fail_at_each(struct bench *b, int what, uint64_t stride, enum call call) {
  ck_ok(open_on(b, ck_spec("cpu:3"), NULL));
  struct ck_training other = ck_training_opened(&b->setup);
  ck_ok(step(b, NULL));
  ck_ok(ck_training_step(&other, &b->batch, NULL));
  const uint64_t bytes = held(b);
  bool failed = true;
  for (uint64_t n = 1; failed; n += stride) {
    struct ck_state before = ck_state_take(ek_trainer_model(b->trainer));
    ck_ok(arm(b, what, n));
    const ek_status status = run_call(b, call);
    ck_ok(arm(b, what, 0));
    if (call == PREPARING && status == EK_OK) ck_ok(step(b, NULL));
    failed = fails_well(b, &other, status, bytes, &before);
  }
  ck_training_close(&other);
  ck_ok(ek_trainer_close(b->trainer));
}

/* Opening takes long on GPUs, and their work has many pieces. */
static uint64_t stride_of(int what, uint64_t on_cpu) {
  return ck_on_gpu() ? 17 : what == WORK ? 5 * on_cpu : on_cpu;
}

CK_PART_LOOP(each_call_fails_once, CK_MODES * FAILURES) {
  const int what = _i % FAILURES;
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", (ek_mode)(_i / FAILURES)));
  fail_at_each(&b, what, stride_of(what, 1), _i % 2 == 0 ? STEP : TWO_CALLS);
}

CK_LOOP(each_call_of_preparing_fails_once, FAILURES) {
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", EK_MODE_SHARDED_GRADIENTS));
  fail_at_each(&b, _i, stride_of(_i, 3), PREPARING);
}

/* A second forward that fails in the middle of a backward is a step that has failed. */
static const ek_recompute_kind recomputed[] = {EK_RECOMPUTE_CHEAP, EK_RECOMPUTE_SQRT,
                                               EK_RECOMPUTE_ALL};
static int policy;

CK_GPT(recomputed_gpt, ck_gpt_sizes(13, 5, 8, 3, 2), .dropout = 0.25,
       .recompute.kind = recomputed[policy])

CK_LOOP(each_call_of_recomputation_fails_once,
        FAILURES * (int)(sizeof recomputed / sizeof *recomputed)) {
  if (CK_TSAN && !ck_part(_i)) return;
  policy = _i / FAILURES;
  CK_WITH(struct ck_workload, gpt, *ck_workload("gpt"), .module = recomputed_gpt);
  CK_SET_UP(struct bench, b, make_parts(&b, "gpt", EK_MODE_SHARDED));
  ek_module_free(b.module);
  ck_kept(recomputed_gpt(&b.module), b.module);
  b.setup.workload = &gpt;
  fail_at_each(&b, _i % FAILURES, stride_of(_i % FAILURES, 3), STEP);
}

CK_TEST(opening_fails_at_each_allocation) {
  CK_SET_UP(struct bench, b, make_parts(&b, "mlp", EK_MODE_SHARDED));
  uint64_t n = 0;
  while (ck_host_fails(&n, open_on(&b, ck_spec("plan:3"), NULL))) ck_assert_ptr_null(b.trainer);
  ck_assert_ptr_nonnull(b.trainer);
  ck_assert_uint_ge(n, 20);
}

/* ---- statistics of a part ---- */

struct warnings {
  int count;
  char last[256];
};

static void keep_warning(void *context, ek_log_level level, const char *line) {
  struct warnings *warnings = context;
  if (level < EK_LOG_WARNING) return;
  warnings->count++;
  (void)snprintf(warnings->last, sizeof warnings->last, "%s", line);
}

/* Once, where a module mixes samples and batches are cut. */
CK_LOOP(micro_batches_of_batch_norm, 4) {
  static const ek_batch_norm_over over[] = {EK_BATCH_NORM_SHARD, EK_BATCH_NORM_ALL,
                                            EK_BATCH_NORM_FROZEN, EK_BATCH_NORM_SHARD};
  struct warnings warnings = {0};
  CK_WITH(ek_batch_norm_options, norm, EK_BATCH_NORM_OPTIONS_INIT, .over = over[_i]);
  CK_WITH(ek_trainer_options, options, EK_TRAINER_OPTIONS_INIT, .micro_batches = _i == 3 ? 1 : 2);
  CK_SCOPED(ek_module *, module, ek_batch_norm_create_with(&module, 3, &norm));
  CK_SCOPED(ek_criterion *, criterion, ek_mean_squared_error_create(&criterion, EK_REDUCTION_MEAN));
  ek_log_set(EK_LOG_WARNING, keep_warning, &warnings);
  CK_OPENED(ek_trainer *, trainer,
            ek_trainer_open(&trainer, ck_spec("plan:2"), module, criterion, NULL, &options));
  ek_log_set(EK_LOG_WARNING, NULL, NULL);
  ck_assert_int_eq(warnings.count, _i < 2 ? 1 : 0);
  if (_i < 2) ck_assert(ck_contains(warnings.last, "the statistics of batch_norm are of one"));
}

CK_SUITE("trainer")
