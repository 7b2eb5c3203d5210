/*
 * check_trainer.c - a trainer does what its parts do: bit for bit what the calls of the pair give
 * that stand in data_parallel_criterion.h.
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
#include "trainer_bench.h"

/* ---- the same as by hand ---- */

CK_PART_LOOP(equals_the_calls_of_its_parts, CK_WORKLOADS * CK_MODES) {
  struct bench b = bench_at(_i);
  bench_open(&b);
  struct ck_training t = ck_training_opened(&b.setup);
  for (int i = 0; i < STEPS; i++) {
    double loss = 0, weight = 0;
    CK_GOT(ek_step_result, got, bench_step(&b, &got));
    same_step(&got, &t, &b);
    ck_ok(bench_evaluate(&b, &loss, i == 0 ? NULL : &weight)); /* changes nothing */
    ck_assert(i == 0 || weight > 0);
  }
  ck_ok(bench_step(&b, NULL));
  ck_ok(ck_training_step(&t, &b.batch, NULL));
  ck_states_same("trainer", ek_trainer_model(b.trainer), t.model);
}

/* In two calls, with the results a step later. */
CK_PART_LOOP(steps_in_two_calls, CK_WORKLOADS * CK_MODES) {
  struct bench b = bench_at(_i);
  bench_open(&b);
  struct ck_training t = ck_training_opened(&b.setup);
  for (int i = 0; i < STEPS; i++) {
    ck_ok(bench_begin(&b));
    if (i == 0) continue;
    CK_GOT(ek_step_result, got, ek_trainer_step_end(&got, b.trainer));
    same_step(&got, &t, &b);
  }
  ck_ok(ck_training_step(&t, &b.batch, NULL));
  ck_states_same("trainer", ek_trainer_model(b.trainer), t.model);
} /* the last result was not taken */

/* ---- before the first step ---- */

/* Changes nothing and holds nothing, before the first step and between two of them; with
 * micro-batches too, and with a loss scale that grows with every step. */
CK_PART_LOOP(preparing_changes_nothing, 2 * CK_WORKLOADS * CK_MODES) {
  static const ek_loss_scale grows = {EK_LOSS_SCALE_DYNAMIC, 1024, 2, 0.5, 1};
  struct bench prepared = bench_at(_i);
  prepared.setup.micro_batches = _i / CK_MODES / CK_WORKLOADS * 3;
  if (_i / CK_MODES % 2 != 0) prepared.setup.loss_scale = &grows;
  struct bench other = prepared;
  bench_open(&prepared);
  bench_open(&other);
  const uint64_t before = bench_held(&prepared);
  ck_ok(bench_prepare(&prepared));
  ck_assert_uint_eq(bench_held(&prepared), before);
  for (int i = 0; i < 2; i++) {
    ek_step_result got, want;
    ck_ok(bench_step(&prepared, &got));
    ck_ok(bench_prepare(&prepared));
    ck_ok(bench_step(&other, &want));
    same_result(&got, &want);
  }
  ck_states_same("prepared", ek_trainer_model(prepared.trainer), ek_trainer_model(other.trainer));
}

/* A module that writes its buffers in a training forward leaves them alone. */
CK_LOOP(preparing_writes_no_buffer, CK_MODES) {
  enum { COUNT = SAMPLES * CK_RUNNING_WIDTH };
  float values[COUNT];
  for (int i = 0; i < COUNT; i++) values[i] = (float)(i % 7);
  CK_GOT(ek_tensor, batch,
         ek_tensor_host(&batch, values, EK_F32, CK_SHAPE(SAMPLES, CK_RUNNING_WIDTH)));
  CK_GOT(ek_module *, module, ck_running_create(&module));
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  const struct ck_setup setup = ck_setup_own(module, loss, "cpu:3", (ek_mode)_i);
  ek_trainer *trainer = ck_trainer_open(&setup);
  ek_data_parallel_model *model = ek_trainer_model(trainer);
  struct ck_state before = ck_state_take(model);
  ck_ok(ek_trainer_prepare(trainer, &batch, 1, &batch, 1));
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
  const int cut = _i / CK_MODES / CK_WORKLOADS;
  struct bench b = bench_at(_i);
  b.setup.micro_batches = cuts[cut].micro_batches;
  bench_open(&b);
  struct ck_training parts = ck_training_opened(&b.setup);
  struct ck_training whole = ck_training_opened(&b.setup);
  for (int i = 0; i < 2; i++) {
    ek_step_result got, want, large;
    int64_t first = 0;
    ck_ok(bench_step(&b, &got));
    for (int64_t k = 0; k < cuts[cut].count; k++) {
      struct ck_batch part = ck_batch_samples(&b.batch, first, cuts[cut].sizes[k]);
      const bool more = k + 1 < cuts[cut].count;
      first += cuts[cut].sizes[k];
      ck_ok(more ? ck_training_backward(&parts, &part, NULL, true, NULL)
                 : ck_training_step(&parts, &part, &want));
    }
    ck_ok(ck_training_step(&whole, &b.batch, &large));
    same_result(&got, &want);
    ck_assert(got.weight == large.weight);
    ck_assert_double_le(fabs(got.loss - large.loss), 1e-5 * fabs(large.loss)); /* numerics.md */
  }
  ck_states_same("micro-batches", ek_trainer_model(b.trainer), parts.model);
}

/* What is wrong with a batch is seen before its first part runs. */
CK_TEST(wrong_micro_batches) {
  struct bench b = bench_of("gpt", EK_MODE_REPLICATED);
  ck_assign(b.setup, .spec = "cpu:2", .micro_batches = -1);
  ck_invalid(bench_try(&b), "micro_batches is -1");
  b.setup.micro_batches = 3;
  bench_open(&b);
  const ek_tensor *x = b.batch.input, *y = b.batch.target;
  ek_tensor many[EK_MAX_INPUTS + 1];
  CK_WITH(ek_tensor, scalar, *x, .rank = 0);
  CK_WITH(ek_tensor, fewer, *y, .shape[0] = y->shape[0] - 1);
  for (int i = 0; i <= EK_MAX_INPUTS; i++) many[i] = *x;
  const uint64_t bytes = bench_held(&b);
  ck_fails(ek_trainer_step(NULL, b.trainer, &scalar, 1, y, 1), EK_ERR_SHAPE, "has no rows");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, &fewer, 1), EK_ERR_SHAPE,
           "target number 0: 34 rows are not a multiple of 7 samples");
  ck_invalid(ek_trainer_step(NULL, b.trainer, many, EK_MAX_INPUTS + 1, y, 1), "33 inputs");
  ck_invalid(ek_trainer_step(NULL, b.trainer, x, 0, y, 1), "one must be cut");
  ck_invalid(ek_trainer_step(NULL, b.trainer, many, 2, y, 1), "takes 1 inputs");
  ck_assert_uint_eq(bench_held(&b), bytes);
  ck_ok(bench_step(&b, NULL));
}

/* The loss of the parts of a batch, put together, is that of the whole; no mask is drawn. */
CK_LOOP(evaluation_and_prediction, CK_MODES) {
  struct bench b = bench_opened("gpt", (ek_mode)_i);
  double loss = 0, again = 0, weight = 0, sum = 0, all = 0;
  ck_ok(bench_step(&b, NULL));
  ck_ok(bench_evaluate(&b, &loss, &weight));
  ck_ok(bench_evaluate(&b, &again, NULL));
  ck_assert_double_eq(loss, again);
  for (int64_t k = 0, first = 0; k < cuts[0].count; first += cuts[0].sizes[k++]) {
    const struct ck_batch part = ck_batch_samples(&b.batch, first, cuts[0].sizes[k]);
    double s = 0, d = 0;
    ck_ok(ek_trainer_evaluate(&s, &d, b.trainer, part.input, 1, part.target, 1));
    sum += s * d;
    all += d;
  }
  ck_assert_double_eq(all, weight);
  ck_assert_double_eq_tol(sum / all, loss, 1e-6 * loss); /* f32, about 50 terms: 50 u */

  CK_GOT(ek_shards, outputs, bench_predict(&b, &outputs));
  ek_data_parallel_criterion *criterion = ek_trainer_criterion(b.trainer);
  ck_ok(ek_data_parallel_criterion_forward(criterion, &outputs, 1, b.batch.target, 1));
  ck_ok(ek_data_parallel_criterion_loss(&again, NULL, criterion));
  ck_assert_double_eq(loss, again);
  ck_fails(ek_data_parallel_criterion_backward(criterion, NULL), EK_ERR_STATE, "");
  ek_shards_free(&outputs);
  const uint64_t before = bench_held(&b); /* an evaluation leaves nothing behind */
  ck_ok(bench_evaluate(&b, &again, NULL));
  ck_assert_uint_eq(bench_held(&b), before);
  ck_ok(bench_step(&b, NULL));
}

/* Every workload in every mode on 1 to 4 devices, in parts that are ragged, smaller than the number
 * of devices, or as many as the batch has samples: the loss of all terms and the weight are those
 * of the whole batch, and nothing is left on the devices. */
CK_LOOP(evaluation_in_parts, CUTS * CK_WORKLOADS * CK_MODES) {
  if (!ck_part(_i) || ck_precision() != 0) return;
  const int cut = _i / CK_MODES / CK_WORKLOADS;
  struct bench whole = bench_at(_i);
  whole.setup.spec = ck_text("cpu:%d", (cut + _i) % 4 + 1);
  struct bench parts = whole;
  parts.setup.micro_batches = cuts[cut].micro_batches;
  bench_open(&whole);
  bench_open(&parts);
  parts_are_alike(&parts, &whole);
}

/* The same of a model that computes its loss, whose forward may predict without targets. Two of the
 * devices have no rows of some parts. */
CK_LOOP(its_own_loss_in_parts, CK_MODES) {
  if (ck_precision() != 0) return;
  const ek_cross_entropy_options loss = EK_CROSS_ENTROPY_OPTIONS_INIT;
  CK_WITH(ek_gpt_options, options, ck_gpt_sizes(13, 5, 8, 2, 2), .fused_loss = true, .loss = &loss);
  struct bench both[] = {bench_of("gpt", 0), bench_of("gpt", 1)};
  for (int i = 0; i < 2; i++) {
    both[i].setup = ck_setup_gpt(&options, NULL, "cpu:3", (ek_mode)i);
    both[i].setup.micro_batches = i * 4;
    bench_open(&both[i]);
  }
  parts_are_alike(&both[1], &both[0]);
}

/* Under a cap at which a step of micro-batches just fits, an evaluation and a prediction of the
 * same batch fit, and those of a whole one do not; a plan has the same peaks to the byte. */
CK_LOOP(evaluation_under_the_cap_of_a_step, 4 * CK_MODES) {
  if (!ck_part(_i) || ck_precision() != 0) return;
  const int devices = _i / CK_MODES + 1;
  struct peaks planned = {.step = {0}}, real = planned, capped = planned;
  double loss = 0;
  struct bench b = bench_of("gpt", (ek_mode)(_i % CK_MODES));
  b.batch = ck_batch_make(b.setup.workload, EK_F32, 123, 0.2, 5);
  b.setup.micro_batches = 29;
  const uint64_t cap = run_for_peaks(&planned, &b, ck_text("plan:%d", devices), false);
  (void)run_for_peaks(&real, &b, ck_text("cpu:%d", devices), false);
  ck_assert_mem_eq(&planned, &real, sizeof planned);
  (void)run_for_peaks(&capped, &b, ck_text("cpu:%d@%" PRIu64 "B", devices, cap), true);
  ck_assert_mem_eq(capped.evaluate, real.evaluate, sizeof real.evaluate);
  b.setup.micro_batches = 0;
  bench_open(&b);
  ck_fails(bench_evaluate(&b, &loss, NULL), EK_ERR_OUT_OF_MEMORY, "");
}

/* Reduction `none` keeps its outputs until backward; what was evaluated is gone. */
CK_LOOP(every_loss_for_itself, CK_MODES) {
  ek_shards losses = {0};
  struct bench b = bench_of("mlp", (ek_mode)_i);
  b.setup.reduction = EK_REDUCTION_NONE;
  bench_open(&b);
  CK_GOT(ek_step_result, result, bench_step(&b, &result));
  ck_assert(result.finite && result.loss > 0);
  CK_GOT(double, loss, bench_evaluate(&b, &loss, NULL));
  ek_data_parallel_criterion *criterion = ek_trainer_criterion(b.trainer);
  ck_assert_int_ne(ek_data_parallel_criterion_losses(&losses, criterion), EK_OK);
}

/* ---- without an optimizer ---- */

/* Two predictions have the same bits, if they should. */
static void predict_the_same(struct bench *a, struct bench *b, bool same) {
  ek_shards outputs[4] = {{0}}, others[4] = {{0}};
  ck_ok(bench_predict(a, outputs));
  ck_ok(bench_predict(b, others));
  for (size_t i = 0; i < 4 && outputs[i].count > 0; i++) {
    int64_t count = 0;
    float *mine = rows_of(&outputs[i], &count), *theirs = rows_of(&others[i], &count);
    if (same) ck_assert_mem_eq(mine, theirs, (size_t)count * sizeof *mine);
    ek_shards_free(&outputs[i]);
    ek_shards_free(&others[i]);
  }
}

/* What a trainer gives without an optimizer, and without a criterion, is what one with both gives,
 * also after its state was loaded; no device has memory for gradients or states. */
CK_PART_LOOP(only_what_is_wanted, CK_WORKLOADS *CK_MODES) {
  const char *folder = ck_folder();
  (void)ck_state_file(folder, 1);
  struct bench b = bench_at(_i);
  bench_open(&b);
  ck_ok(bench_step(&b, NULL));
  const bool files = !ck_no_files(ek_trainer_save(b.trainer, folder, NULL));
  for (int criterion = 1; criterion >= 0; criterion--) {
    double want = 0, got = -1;
    struct bench less = bench_at(_i);
    less.setup.optimizer = NULL;
    if (criterion == 0) bench_own_module(&less);
    const char *missing = criterion == 0 ? "without a criterion" : "without an optimizer";
    bench_open(&less);
    ck_assert_ptr_null(ek_trainer_optimizer(less.trainer));
    if (files) ck_ok(ek_trainer_load(NULL, less.trainer, folder));
    ck_fails(bench_step(&less, NULL), EK_ERR_STATE, missing);
    if (criterion == 1) {
      ck_ok(bench_evaluate(&b, &want, NULL));
      ck_ok(bench_evaluate(&less, &got, NULL));
      ck_assert(!files || got == want);
      ck_fails(bench_prepare(&less), EK_ERR_STATE, missing);
    } else {
      ck_assert_ptr_null(ek_trainer_criterion(less.trainer));
      ck_fails(bench_evaluate(&less, &got, NULL), EK_ERR_STATE, missing);
    }
    predict_the_same(&b, &less, files);
    for (size_t k = 0; k < 3; k++) {
      const ek_memory_usage usage = ck_usage(ek_group_device(ek_trainer_group(less.trainer), k));
      ck_assert_uint_eq(usage.current[EK_MEMORY_GRADIENTS], 0);
      ck_assert_uint_eq(usage.current[EK_MEMORY_OPTIMIZER], 0);
    }
    ck_ok(ek_trainer_close(less.trainer));
  }
}

/* Patterns of a trainer that only predicts are read all the same. */
CK_TEST(patterns_without_an_optimizer) {
  static const ek_parameter_pattern wrong = {.pattern = "0.wait", .frozen = true};
  struct bench b = bench_of("mlp", EK_MODE_REPLICATED);
  bench_own_module(&b);
  ck_assign(b.setup, .spec = "cpu:1", .optimizer = NULL, .options.pattern_count = 1);
  ck_invalid(bench_try(&b), "NULL");
  b.setup.options.patterns = &wrong;
  ck_fails(bench_try(&b), EK_ERR_NOT_FOUND, "0.weight");
  ck_assert_ptr_null(b.trainer);
}

/* ---- ownership ---- */

CK_TEST(a_group_of_the_programs) {
  struct bench b = bench_of("mlp", EK_MODE_SHARDED);
  b.setup.group = ck_open("cpu:3", 1);
  bench_open(&b);
  ck_assert_ptr_eq(ek_trainer_group(b.trainer), b.setup.group);
  ck_ok(bench_step(&b, NULL));
}

/* The description has gone when the trainer is open, and outputs outlive the parts. */
CK_TEST(who_goes_first) {
  struct bench b = bench_opened("mlp", EK_MODE_BALANCED);
  ck_ok(bench_step(&b, NULL));
  CK_GOT(ek_shards, outputs, bench_predict(&b, &outputs));
  ck_fails(ek_trainer_close(b.trainer), EK_ERR_STATE, "");
  ek_error_set(EK_ERR_SHAPE, "before");
  ek_trainer_free(b.trainer); /* refused as well, and called again below */
  ck_assert_str_eq(ek_error_message(), "before");
  ck_fails(bench_step(&b, NULL), EK_ERR_STATE, "was freed");
  ck_assert_ptr_null(ek_trainer_model(b.trainer));
  ek_shards_free(&outputs);
  ck_ok(ek_trainer_close(b.trainer));
  ck_ok(ek_trainer_close(NULL));
}

/* ---- what is refused ---- */

static void wrong_parts(const struct bench *b) {
  ek_trainer *trainer = NULL;
  ek_data_parallel_model_options model = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  const ek_data_parallel_criterion_options loss = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  const ek_data_parallel_optimizer_options update = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  const ek_group_options threads = EK_GROUP_OPTIONS_INIT;
  const char *spec = ck_spec("cpu:2");
  CK_HELD(ek_group *, group, ck_open("cpu:2", 1));
  CK_SCOPED(ek_module *, m, b->setup.workload->module(&m));
  CK_SCOPED(ek_criterion *, c, b->setup.workload->criterion(&c, EK_REDUCTION_MEAN));
  CK_SCOPED(ek_optimizer *, rule, ck_clipped_adamw(&rule));
  ek_trainer_options o = EK_TRAINER_OPTIONS_INIT;
  ck_invalid(ek_trainer_open(NULL, spec, m, c, rule, NULL), "NULL");
  ck_invalid(ek_trainer_open(&trainer, spec, NULL, c, rule, NULL), "NULL");
  ck_invalid(ek_trainer_open(&trainer, spec, m, NULL, rule, NULL), "NULL");
  ck_invalid(ek_trainer_open(&trainer, NULL, m, c, rule, NULL), "either");
  ck_invalid(ek_trainer_open(&trainer, "gpu!", m, c, rule, NULL), "gpu!");
  o.group = group;
  ck_invalid(ek_trainer_open(&trainer, spec, m, c, rule, &o), "either");
#define TRY(module, criterion, rule)                                                               \
  ek_trainer_open(&trainer, NULL, module, criterion, rule, &o)
  ck_bad(o, group_options, &threads, TRY(m, c, rule), "either");
  o.model = &model;
  ck_bad(model, state, (ek_state_placement)7, TRY(m, c, rule), "state");
  ck_bad(model, size, 1, TRY(m, c, rule), "ek_data_parallel_model_options");
  o.model = NULL;
  ck_bad(o, optimizer, &update, TRY(m, c, NULL), "options.optimizer is given without an optimizer");
  ck_bad(o, criterion, &loss, TRY(m, NULL, NULL), "options.criterion is given without a criterion");
  ck_assert_ptr_null(trainer);
}

CK_PART_LOOP(misuse, CK_MODES) {
  double loss = 0;
  ek_shards outputs[4] = {{0}};
  struct bench b = bench_opened("mlp", (ek_mode)_i);
  wrong_parts(&b);
  const ek_tensor *x = b.batch.input, *y = b.batch.target;
  ck_invalid(ek_trainer_step(NULL, NULL, x, 1, y, 1), "NULL");
  ck_invalid(ek_trainer_step(NULL, b.trainer, NULL, 1, y, 1), "NULL");
  ck_invalid(ek_trainer_step(NULL, b.trainer, x, 1, NULL, 1), "NULL");
  ck_invalid(ek_trainer_step_begin(NULL, x, 1, y, 1), "NULL");
  ck_invalid(ek_trainer_step_begin(b.trainer, NULL, 1, y, 1), "ek_trainer_step_begin: inputs");
  ck_invalid(ek_trainer_step_end(NULL, b.trainer), "NULL");
  ck_invalid(ek_trainer_prepare(NULL, x, 1, y, 1), "NULL");
  ck_invalid(ek_trainer_prepare(b.trainer, x, 1, NULL, 1), "NULL");
  ck_invalid(ek_trainer_evaluate(NULL, NULL, b.trainer, x, 1, y, 1), "NULL");
  ck_invalid(ek_trainer_predict(NULL, b.trainer, x, 1), "NULL");
  ck_invalid(ek_trainer_predict(outputs, NULL, x, 1), "NULL");
  ck_assert(ek_trainer_group(NULL) == NULL && ek_trainer_model(NULL) == NULL);
  ck_assert(ek_trainer_criterion(NULL) == NULL && ek_trainer_optimizer(NULL) == NULL);

  /* Wrong batches: nothing is held, nothing has changed, and the words are the part's. */
  struct ck_batch fewer = ck_batch_samples(&b.batch, 0, SAMPLES - 1);
  struct ck_state before = ck_state_take(ek_trainer_model(b.trainer));
  const uint64_t bytes = bench_held(&b);
  ck_invalid(ek_trainer_step(NULL, b.trainer, x, 2, y, 1), "takes 1 inputs");
  ck_invalid(ek_trainer_step(NULL, b.trainer, x, 1, y, 2), "1 targets");
  ck_fails(ek_trainer_step(NULL, b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_fails(ek_trainer_prepare(b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_fails(ek_trainer_evaluate(&loss, NULL, b.trainer, x, 1, fewer.target, 1), EK_ERR_SHAPE, "");
  ck_assert_uint_eq(bench_held(&b), bytes);
  ck_state_is("after wrong batches", ek_trainer_model(b.trainer), &before);
  ck_ok(bench_step(&b, NULL));
}

/* ---- files ---- */

/* A save that failed is no reason to load nothing; its error is the next save's. The system refuses
 * what the save writes in the background. */
CK_TEST(a_failed_save_does_not_keep_a_load_away) {
  ek_checkpoint_info info;
  struct rlimit limit;
  const char *folder = ck_folder(), *path = ck_state_file(folder, 1);
  struct bench b = bench_opened("mlp", EK_MODE_SHARDED);
  ck_ok(bench_step(&b, NULL));
  if (!ck_no_files(ek_trainer_save(b.trainer, folder, NULL))) {
    ck_ok(bench_step(&b, NULL));
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
  static float numbers[2 * WIDTH];
  const char *folder = ck_folder();
  for (int step = 1; step < 3; step++) (void)ck_state_file(folder, step);
  CK_GOT(ek_tensor, x, ek_tensor_host(&x, numbers, EK_F32, CK_SHAPE(2, WIDTH)));
  CK_GOT(ek_module *, module, ek_linear_create(&module, WIDTH, WIDTH, true));
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  const struct ck_setup setup = ck_setup_own(module, loss, "cpu:2", EK_MODE_BALANCED);
  ek_trainer *trainer = ck_trainer_open(&setup);
  ck_ok(ek_trainer_step(NULL, trainer, &x, 1, &x, 1));
  if (!ck_no_files(ek_trainer_save(trainer, folder, NULL))) {
    ck_ok(ek_trainer_step(NULL, trainer, &x, 1, &x, 1));
    ck_ok(ek_trainer_save_begin(trainer, folder, NULL));
    CK_GOT(ek_checkpoint_info, info, ek_trainer_load(&info, trainer, folder));
    ck_assert_int_eq(info.step, 2);
    ck_ok(ek_trainer_save_end(trainer));
  }
  ck_ok(ek_trainer_close(trainer));
}

/* Steps that were taken while a state was written, and steps from that state on, end the same. */
CK_PART_LOOP(saves_and_loads, CK_MODES) {
  const char *folder = ck_folder(), *path = ck_state_file(folder, 1);
  struct bench b = bench_opened("mlp", (ek_mode)_i);
  ck_ok(ek_trainer_save_end(b.trainer));
  ck_ok(bench_step(&b, NULL));
  const ek_status status = ek_trainer_save_begin(b.trainer, folder, NULL);
  if (!ck_no_files(status)) {
    ck_ok(bench_step(&b, NULL));
    struct ck_state want = ck_state_take(ek_trainer_model(b.trainer));
    CK_GOT(ek_checkpoint_info, info, ek_trainer_load(&info, b.trainer, folder));
    ck_assert_int_eq(info.step, 1);
    ck_assert_str_eq(info.path, path);
    ck_ok(bench_step(&b, NULL));
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

CK_UPDATE(wait_update) {
  if (ek_device_index(ek_stream_device(stream)) != 0 || update->no_decay) return EK_OK;
  (void)sem_post(&inside);
  (void)sem_wait(&go_on);
  return EK_OK;
}

static ek_status create_wait(ek_optimizer **optimizer) {
  return ck_rule_create(optimizer, "wait", wait_update);
}

static ek_status step_status;

static void *step_there(void *bench) {
  step_status = bench_step((struct bench *)bench, NULL);
  return NULL;
}

CK_TEST(another_thread_is_refused) {
  pthread_t thread;
  double loss = 0;
  ek_shards outputs = {0};
  struct bench b = bench_of("mlp", EK_MODE_REPLICATED);
  b.setup.optimizer = create_wait;
  bench_open(&b);
  ck_assert_int_eq(sem_init(&inside, 0, 0) | sem_init(&go_on, 0, 0), 0);
  ck_assert_int_eq(pthread_create(&thread, NULL, step_there, &b), 0);
  (void)sem_wait(&inside);
  const ek_status got[] = {bench_step(&b, NULL), bench_prepare(&b), bench_evaluate(&b, &loss, NULL),
                           bench_predict(&b, &outputs), ek_trainer_close(b.trainer)};
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

CK_PART_LOOP(each_call_fails_once, CK_MODES * FAILURES) {
  struct bench b = bench_of("mlp", (ek_mode)(_i / FAILURES));
  fail_at_each(&b, (enum failure)(_i % FAILURES), 1, _i % 2 == 0 ? STEP : TWO_CALLS);
}

CK_LOOP(each_call_of_preparing_fails_once, FAILURES) {
  struct bench b = bench_of("mlp", EK_MODE_SHARDED_GRADIENTS);
  fail_at_each(&b, (enum failure)_i, 3, PREPARING);
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
  struct bench b = bench_of("gpt", EK_MODE_SHARDED);
  b.setup.workload = &gpt;
  fail_at_each(&b, (enum failure)(_i % FAILURES), 3, STEP);
}

CK_TEST(opening_fails_at_each_allocation) {
  struct bench b = bench_of("mlp", EK_MODE_SHARDED);
  b.setup.spec = "plan:3";
  uint64_t n = 0;
  while (ck_host_fails(&n, bench_try(&b))) ck_assert_ptr_null(b.trainer);
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
  CK_GOT(ek_module *, module, ek_batch_norm_create_with(&module, 3, &norm));
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  CK_WITH(struct ck_setup, setup, ck_setup_own(module, loss, "plan:2", EK_MODE_REPLICATED),
          .optimizer = NULL, .micro_batches = _i == 3 ? 1 : 2);
  ek_log_set(EK_LOG_WARNING, keep_warning, &warnings);
  (void)ck_trainer_open(&setup);
  ek_log_set(EK_LOG_WARNING, NULL, NULL);
  ck_assert_int_eq(warnings.count, _i < 2 ? 1 : 0);
  if (_i < 2) ck_assert(ck_contains(warnings.last, "the statistics of batch_norm are of one"));
}

CK_SUITE("trainer")
