/*
 * check_debug_memory.c - groups with `debug_memory`: new tensors are NaN, what is written beside
 * one is found, and training is what it is without, with planned peaks.
 */
#include <stdatomic.h>

#include "ck_arena.h"
#include "ck_mirror.h"
#include "ck_training.h"

static ek_group *open_debug(const char *spec) {
  CK_WITH(ek_group_options, options, EK_GROUP_OPTIONS_INIT, .threads_per_device = 1,
          .debug_memory = true);
  CK_OPENED(ek_group *, group, ek_group_open(&group, ck_spec(spec), &options));
  return group;
}

/* ---- what new tensors hold ---- */

CK_TEST(new_tensors_are_nan) {
  static const ek_type types[] = {EK_F32, EK_F64, EK_I32};
  ek_group *group = open_debug("cpu:1");
  for (int64_t count = 1; count < 200; count += 66) {
    for (size_t t = 0; t < 3; t++) {
      double values[200] = {0};
      CK_SCOPED(ek_tensor, tensor,
                ek_tensor_create(&tensor, ek_group_device(group, 0), EK_MEMORY_OUTPUTS, types[t], 1,
                                 &count));
      ck_assert_uint_eq((uintptr_t)tensor.data % EK_MEMORY_UNIT, 0);
      ck_get(values, &tensor);
      for (int64_t i = 0; i < count; i++) {
        ck_assert(types[t] == EK_I32 ? values[i] == 2147483647.0 : isnan(values[i]));
      }
    }
  }
  ck_ok(ek_group_synchronize(group));
}

/* Memory that was used before is NaN again, and what a tensor that grew held before stays. */
CK_TEST(old_memory_is_nan_again_and_growth_keeps) {
  ek_group *group = open_debug("cpu:1");
  const int64_t rows = 65, more = 300;
  double values[300];
  for (int round = 0; round < 2; round++) {
    ek_tensor tensor = {0};
    ck_ok(
        ek_tensor_create(&tensor, ek_group_device(group, 0), EK_MEMORY_OUTPUTS, EK_F32, 1, &rows));
    ck_get(values, &tensor);
    for (int64_t i = 0; i < rows; i++) ck_assert(isnan(values[i]));
    for (int64_t i = 0; i < rows; i++) values[i] = (double)i;
    ck_set(&tensor, values);
    CK_GOT(bool, grown, ek_tensor_grow(&grown, &tensor, more));
    ck_assert(grown);
    ck_get(values, &tensor);
    for (int64_t i = 0; i < more; i++)
      ck_assert(i < rows ? values[i] == (double)i : isnan(values[i]));
    ck_ok(ek_group_synchronize(group));
    ek_tensor_free(&tensor);
  }
  ck_ok(ek_group_synchronize(group));
}

/* ---- what is written beside a tensor ---- */

/* Two bytes of zeros, `offset` bytes from where the tensor begins. */
static void write_beside(const ek_tensor *tensor, int64_t offset) {
  static const int64_t one = 1;
  ek_tensor host, place = *tensor; /* a loan */
  CK_GOT(uint16_t, zero, ek_tensor_host(&host, &zero, EK_F16, 1, &one));
  ck_assign(place, .data = (char *)tensor->data + offset, .type = EK_F16, .rank = 1, .shape[0] = 1);
  ck_ok(ek_tensor_copy(&place, &host));
}

static void keep_line(void *context, ek_log_level level, const char *line) {
  ck_assert_int_eq(level, EK_LOG_WARNING);
  (void)snprintf(context, 512, "%s", line);
}

static const int64_t counts[] = {1, 3, 128, 129};

/* Elements of f16; each place before and after, near and far. */
static int64_t place_of(int place, int64_t bytes) {
  const int64_t places[] = {-2, -EK_MEMORY_UNIT, bytes, bytes + EK_MEMORY_UNIT - 2};
  return places[place];
}
static const char *const words[] = {
    "outputs: 1 byte before its start", "outputs: 255 bytes before its start",
    "outputs: 1 byte after its end", "outputs: 255 bytes after its end"};

CK_JOB(nothing) {
  ++*(atomic_int *)context;
  return EK_OK;
}

CK_LOOP(a_write_beside_a_tensor_is_found_when_it_is_freed, 16) {
  const int64_t count = counts[_i / 4];
  char line[512] = "";
  atomic_int runs = 0;
  ek_group *group = open_debug("cpu:2");
  ek_tensor tensor = {0};
  ck_ok(ek_tensor_create(&tensor, ek_group_device(group, 1), EK_MEMORY_OUTPUTS, EK_F16, 1, &count));
  write_beside(&tensor, place_of(_i % 4, 2 * count));
  ek_log_set(EK_LOG_DEBUG, keep_line, line);
  ek_error_set(EK_ERR_SHAPE, "said before");
  ek_tensor_free(&tensor);
  ck_assert_str_eq(ek_error_message(), "said before");
  ek_log_set(EK_LOG_DEBUG, NULL, NULL);
  ck_assert_msg(ck_contains(line, words[_i % 4]) && ck_contains(line, "cpu:1"), "%s", line);
  if (_i / 4 % 2 == 0) {
    ck_fails(ek_group_synchronize(group), EK_ERR_OVERRUN, words[_i % 4]);
  } else {
    ck_fails(ek_group_apply(group, nothing, &runs), EK_ERR_OVERRUN, words[_i % 4]);
    ck_assert_int_eq(runs, 0);
  }
  ck_ok(ek_group_apply(group, nothing, &runs)); /* said once */
  ck_assert_int_eq(runs, 2);
  ck_ok(ek_group_synchronize(group));
}

CK_LOOP(a_write_beside_a_tensor_is_found_by_synchronize, 16) {
  const int64_t count = counts[_i / 4];
  ek_group *group = open_debug("cpu:2");
  ek_tensor tensors[3] = {{0}};
  for (int i = 0; i < 3; i++) {
    ck_ok(ek_tensor_create(&tensors[i], ek_group_device(group, 1), EK_MEMORY_OUTPUTS, EK_F16, 1,
                           &count));
  }
  ck_ok(ek_group_synchronize(group));
  write_beside(&tensors[1], place_of(_i % 4, 2 * count));
  ck_fails(ek_group_synchronize(group), EK_ERR_OVERRUN, words[_i % 4]);
  ck_assert(ck_contains(ek_error_message(), "cpu:1"));
  for (int i = 0; i < 3; i++) ek_tensor_free(&tensors[i]);
  ck_ok(ek_group_synchronize(group)); /* said once */
}

/* ---- training ---- */

static double *train(const struct ck_setup *setup, ek_group *group, ek_step_result *result) {
  CK_GOT(struct ck_training, training, ck_training_try(&training, setup, group));
  for (uint64_t step = 0; step < 3; step++) {
    struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, step == 1 ? 1 : 7, 0.2, step);
    ck_ok(ck_training_step(&training, &batch, result));
  }
  ck_ok(ek_group_synchronize(group));
  double *values = ck_training_read(&training, CK_VALUES);
  ck_training_close(&training);
  return values;
}

/* Same bits with and without; and no memory is used before it was written. */
CK_LOOP(training_is_the_same, CK_WORKLOADS * CK_MODES) {
  struct ck_setup setup =
      ck_setup_mode(&ck_workloads[_i / CK_MODES], "cpu:3", (ek_mode)(_i % CK_MODES));
  ek_group *plain = ck_open("cpu:3", 1), *debug = open_debug("cpu:3");
  ek_step_result result;
  double *want = train(&setup, plain, &result), *got = train(&setup, debug, &result);
  ck_assert(result.finite);
  ck_arrays_same(setup.workload->name, got, want);
  ck_ok(ek_group_close(debug));
}

CK_LOOP(peaks_are_the_planned_ones, CK_MODES) {
  struct ck_setup setup = ck_setup_mode(ck_workload("gpt"), "cpu:3", (ek_mode)_i);
  ek_memory_usage usage[2][3];
  for (int k = 0; k < 2; k++) {
    ek_group *group = open_debug(k == 0 ? "cpu:3" : "plan:3");
    struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, 7, 0, 1);
    CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
    ck_ok(ck_training_step(&training, &batch, NULL));
    ck_usages(usage[k], group);
  }
  ck_same_peaks("debug memory", usage[1], usage[0], 3);
}

/* ---- a module that reads what it has not written ---- */

CK_FORWARD(forgetful) {
  CK_FREED(tensor) sums = {0};
  ek_tensor *out = &outputs[0];
  const int64_t one = 1;
  EK_TRY(ek_pass_output(out, pass, EK_F32, inputs->rank, inputs->shape));
  EK_TRY(ek_pass_workspace(&sums, pass, EK_F32, 1, &one));
  CK_MIRRORS(m, 1, out, &sums);
  for (int64_t i = 0; i < ek_tensor_count(out); i++) {
    ck_put(&m.host[0], i, ck_at(&m.host[1], 0)); /* a sum that did not begin with zero */
  }
  return ck_mirrors_close(&m);
}

CK_PARAMETERS(forgetful) {
  const int64_t one = 1;
  return ek_declare_parameter(declaration, "w", 1, &one, ek_initializer_ones());
}

CK_TEST(undefined_memory_shows_in_the_step_result) {
  static const ek_module_ops ops = {
      CK_OPS("forgetful", forgetful_forward, ck_share_backward, ck_plain_free),
      .parameters = forgetful_parameters};
  CK_GOT(ek_criterion *, loss, ek_mean_squared_error_create(&loss, EK_REDUCTION_MEAN));
  struct ck_setup setup =
      ck_setup_own(ck_module_new(sizeof(ek_module), &ops, 1, 1), loss, NULL, EK_MODE_REPLICATED);
  ek_group *group = open_debug("cpu:2");
  float numbers[8] = {0};
  struct ck_batch batch = {.samples = 4, .inputs = 1, .targets = 1};
  ck_ok(ek_tensor_host(&batch.input[0], numbers, EK_F32, CK_SHAPE(4, 2)));
  batch.target[0] = batch.input[0];
  CK_GOT(struct ck_training, training, ck_training_try(&training, &setup, group));
  CK_GOT(ek_step_result, result, ck_training_step(&training, &batch, &result));
  ck_assert(!result.finite);
  ck_assert(isnan(result.loss));
}

CK_SUITE("debug memory")
