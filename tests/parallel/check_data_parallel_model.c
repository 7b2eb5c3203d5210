/*
 * check_data_parallel_model.c - forward and backward over a group, and parameters by name.
 *
 * That the numbers are right for every cut is in tests/whole/check_equality.c.
 */
#include "ck_blend.h"
#include "ck_training.h"

enum { DEVICES = 3, SAMPLES = 7 };

static struct ck_setup setup_of(const char *workload, int placement) {
  struct ck_setup setup = ck_setup_at(ck_workload(workload), "cpu:3", placement);
  setup.optimizer = NULL;
  return setup;
}

/* What a forward gives, of any layout, as doubles. */
static double *whole(const ek_shards *output) {
  int64_t count = 0;
  for (size_t k = 0; k < output->count; k++) count += ek_tensor_count(&output->parts[k]);
  float *numbers = ck_array((size_t)count + 1, sizeof *numbers);
  double *values = ck_array((size_t)count + 1, sizeof *values);
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, numbers, EK_F32, 1, &count));
  ck_ok(ek_gather_host(&host, output));
  for (int64_t i = 0; i < count; i++) values[i] = (double)numbers[i];
  return values;
}

static void free_outputs(ek_shards *outputs, const struct ck_training *t) {
  for (size_t i = 0; i < ek_module_outputs(t->module); i++) ek_shards_free(&outputs[i]);
}

/* ---- modes ---- */

CK_TEST(modes_have_names) {
  ek_mode mode = EK_MODE_GATHER;
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  for (int i = 0; i < CK_MODES; i++) {
    ck_assert_str_eq(ek_mode_name((ek_mode)i), ck_placement_name(i));
    ck_ok(ek_mode_parse(&mode, ck_placement_name(i)));
    ck_assert_int_eq(mode, i);
    ck_ok(ek_data_parallel_model_options_set_mode(&options, mode));
  }
  ck_assert_str_eq(ek_mode_name((ek_mode)CK_MODES), "unknown");
  ck_assert_str_eq(ek_mode_name((ek_mode)-1), "unknown");
  ck_invalid(ek_mode_parse(&mode, "zigzag"), "zigzag");
  ck_invalid(ek_mode_parse(NULL, "gather"), "NULL");
  ck_invalid(ek_mode_parse(&mode, NULL), "NULL");
  ck_invalid(ek_data_parallel_model_options_set_mode(NULL, mode), "NULL");
  ck_invalid(ek_data_parallel_model_options_set_mode(&options, (ek_mode)CK_MODES), "is unknown");
}

/* ---- the devices of outputs ---- */

static void lies_right(const ek_shards *output, const struct ck_training *t, const int64_t *sizes) {
  const bool gathered = t->setup.options.outputs == EK_OUTPUTS_GATHER;
  ck_assert_ptr_eq(output->group, t->group);
  ck_assert_uint_eq(output->count, DEVICES);
  for (size_t k = 0; k < DEVICES; k++) {
    const int64_t here = !gathered ? sizes[k] : k == t->setup.options.output_device ? SAMPLES : 0;
    ck_assert_ptr_eq(output->parts[k].device, ek_group_device(t->group, k));
    ck_assert_int_eq(output->parts[k].shape[0], here);
    ck_assert_int_eq(output->offsets[k + 1] - output->offsets[k], here);
    ck_assert_int_eq(output->samples[k + 1] - output->samples[k], here);
  }
}

/* Every output of every workload, in order, where its placement says, for the default cut and for
 * given sizes, equal to what one device gives. */
CK_LOOP(outputs_lie_where_they_should, (CK_WORKLOADS * CK_PLACEMENTS)) {
  static const int64_t even[DEVICES] = {3, 2, 2}, uneven[DEVICES] = {0, 6, 1};
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  struct ck_setup setup = setup_of(workload->name, _i % CK_PLACEMENTS), alone = setup;
  struct ck_batch batch = ck_batch_make(workload, EK_F32, SAMPLES, 0, 1);
  ek_shards want[CK_BATCH_TENSORS] = {{0}}, got[CK_BATCH_TENSORS] = {{0}};
  ek_forward_options forward = EK_FORWARD_OPTIONS_INIT;
  alone.spec = "cpu:1";
  setup.options.output_device = 2;
  CK_WITH(ek_scatter_options, scatter, EK_SCATTER_OPTIONS_INIT, .kind = EK_SCATTER_SIZES,
          .sizes = uneven);
  struct ck_training one = ck_training_opened(&alone);
  struct ck_training many = ck_training_opened(&setup);
  ck_ok(ek_data_parallel_model_forward(want, one.model, batch.input, batch.inputs, NULL));
  for (int cut = 0; cut < 2; cut++) {
    forward.scatter = cut == 0 ? NULL : &scatter;
    ck_ok(ek_data_parallel_model_forward(got, many.model, batch.input, batch.inputs, &forward));
    for (size_t i = 0; i < ek_module_outputs(many.module); i++) {
      lies_right(&got[i], &many, cut == 0 ? even : uneven);
      double *a = whole(&got[i]), *b = whole(&want[i]);
      ck_assert_double_le(ck_rel_l2(a, b, ek_tensor_count(&want[i].parts[0])), 1e-6);
    }
    free_outputs(got, &many);
  }
  free_outputs(want, &one);
}

/* An input on a device of the group is not copied there: its rows are views. */
CK_TEST(inputs_on_a_device) {
  struct ck_training t = ck_training_of(setup_of("mlp", 2));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 2);
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  ek_device *home = ek_group_device(t.group, 1);
  CK_OPENED(ek_shards, host,
            ek_data_parallel_model_forward(&host, t.model, batch.input, 1, &forward));
  CK_OPENED(ek_tensor, input,
            ek_tensor_create(&input, home, EK_MEMORY_WORKSPACE, EK_F32, 2, batch.input[0].shape));
  ck_ok(ek_tensor_copy(&input, &batch.input[0]));
  ck_ok(ek_memory_reset_peak(home));
  CK_OPENED(ek_shards, device,
            ek_data_parallel_model_forward(&device, t.model, &input, 1, &forward));
  ck_assert_uint_eq(ck_usage(home).at_peak[EK_MEMORY_INPUTS], 0);
  ck_same_bits("output", whole(&host), whole(&device), host.offsets[DEVICES]);
}

/* ---- forwards without gradient ---- */

CK_LOOP(no_gradient_forward, CK_PLACEMENTS) {
  struct ck_training t = ck_training_of(setup_of("gpt", _i));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, SAMPLES, 0, 3);
  ek_shards output[1] = {{0}};
  double *values[3];
  ek_memory_usage before[DEVICES], after;
  for (size_t k = 0; k < DEVICES; k++) {
    ck_ok(ck_memory_stats(&before[k], ek_group_device(t.group, k)));
  }
  for (int i = 0; i < 3; i++) { /* twice without dropout, once with it */
    CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false,
            .training = i == 2);
    ck_ok(ek_data_parallel_model_forward(output, t.model, batch.input, 1, &forward));
    values[i] = whole(&output[0]);
    ck_fails(ek_data_parallel_model_backward(t.model, output, 1, NULL), EK_ERR_STATE,
             "no forward with gradient");
    ek_shards_free(&output[0]);
    for (size_t k = 0; k < DEVICES; k++) { /* nothing was saved */
      ck_ok(ck_memory_stats(&after, ek_group_device(t.group, k)));
      ck_assert_uint_eq(after.current_bytes, before[k].current_bytes);
    }
  }
  const int64_t count = (int64_t)SAMPLES * 5 * 13;
  ck_same_bits("without dropout", values[0], values[1], count);
  ck_assert_double_gt(ck_rel_l2(values[2], values[0], count), 1e-3);
}

/* ---- a loss of one's own ---- */

/* The outputs themselves as gradients: of half the sum of squares. Nothing is divided. */
static double *own_backward(struct ck_training *t, const struct ck_batch *batch) {
  ek_shards outputs[CK_BATCH_TENSORS] = {{0}};
  ck_ok(ek_data_parallel_model_forward(outputs, t->model, batch->input, batch->inputs, NULL));
  ck_ok(ek_data_parallel_model_backward(t->model, outputs, ek_module_outputs(t->module), NULL));
  free_outputs(outputs, t);
  return ck_training_read(t, CK_GRADIENTS);
}

CK_LOOP(a_loss_of_ones_own, (CK_WORKLOADS * CK_PLACEMENTS)) {
  const struct ck_workload *workload = &ck_workloads[_i / CK_PLACEMENTS];
  struct ck_setup setup = setup_of(workload->name, _i % CK_PLACEMENTS), alone = setup;
  struct ck_batch batch = ck_batch_make(workload, EK_F64, SAMPLES, 0, 4);
  alone.spec = "cpu:1";
  alone.options.type = setup.options.type = EK_F64;
  struct ck_training one = ck_training_opened(&alone);
  struct ck_training many = ck_training_opened(&setup);
  double *want = own_backward(&one, &batch), *got = own_backward(&many, &batch);
  ck_training_compare("own loss", &many, got, want, 1e-12, NULL);
}

/* A module without parameters is a model too. */
CK_LOOP(no_parameters, CK_MODES) {
  ek_group *group = ck_open("cpu:3", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  float numbers[4] = {-1, 2, -3, 4};
  ck_ok(ek_data_parallel_model_options_set_mode(&options, (ek_mode)_i));
  CK_OPENED(ek_module *, relu, ek_activation_create(&relu, EK_ACTIVATION_RELU));
  CK_OPENED(ek_data_parallel_model *, model,
            ek_data_parallel_model_open(&model, group, relu, &options));
  ck_assert_uint_eq(ek_state_count(model), 2); /* step and seed */
  ck_assert_ptr_eq(ek_data_parallel_model_group(model), group);
  ck_assert_ptr_nonnull(ek_data_parallel_model_replica(model, 2));
  ck_assert_ptr_null(ek_data_parallel_model_replica(model, 3));
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F32, CK_SHAPE(4, 1)));
  CK_OPENED(ek_shards, output, ek_data_parallel_model_forward(&output, model, &input, 1, NULL));
  double *values = whole(&output);
  for (int i = 0; i < 4; i++) ck_assert_double_eq(values[i], i % 2 == 0 ? 0 : i + 1);
  ck_ok(ek_data_parallel_model_backward(model, &output, 1, NULL));
}

CK_SUITE("data-parallel model")
