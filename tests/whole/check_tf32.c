/*
 * check_tf32.c - the precision tf32: f32 whose products may take operands with 10 bits of mantissa.
 *
 * The pass decides which products round, not the group: two models of one group compute as if each
 * were alone, in every mode and with every recomputation, and modules and children get the word of
 * their caller. Devices that do not round so compute in f32, bit for bit. As the type of a tensor
 * tf32 is refused everywhere.
 */
#include "ck_gpt.h"
#include "ck_parent.h"
#include "ck_probe.h"
#include "ck_training.h"

/* ---- trainers ---- */

enum { SAMPLES = 5, TOKENS = 12, VOCABULARY = 11, STEPS = 2, MODELS = 2 };

/* What distinguishes two of them. */
struct model {
  ek_precision precision;
  ek_mode mode;
  ek_recompute recompute;
  bool fused_loss;
};

CK_SGD(half_sgd, .learning_rate = 0.5)

static ek_trainer *open_trainer(ek_group *group, const struct model *model) {
  CK_WITH(ek_gpt_options, gpt, ck_gpt_sizes(VOCABULARY, TOKENS, 16, 2, 2),
          .recompute = model->recompute, .fused_loss = model->fused_loss);
  CK_WITH(struct ck_setup, setup, ck_setup_gpt(&gpt, NULL, NULL, model->mode), .group = group,
          .options.precision = model->precision, .optimizer = half_sgd);
  return ck_trainer_open(&setup);
}

static void take_step(ek_trainer *trainer, int step) {
  int32_t ids[SAMPLES * TOKENS + 1];
  for (int i = 0; i <= SAMPLES * TOKENS; i++) ids[i] = (i * 7 + step) % VOCABULARY;
  CK_GOT(ek_tensor, tokens, ek_tensor_host(&tokens, ids, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  CK_GOT(ek_tensor, targets, ek_tensor_host(&targets, ids + 1, EK_I32, CK_SHAPE(SAMPLES, TOKENS)));
  CK_GOT(ek_step_result, result, ek_trainer_step(&result, trainer, &tokens, 1, &targets, 1));
  ck_assert(result.finite);
}

/* What device 0 has of the parameters. */
static double *values_of(const ek_trainer *trainer) {
  const ek_data_parallel_model *model = ek_trainer_model(trainer);
  const ek_tensor *flat = ek_replica_parameters(ek_data_parallel_model_replica(model, 0));
  ck_assert_int_eq(flat->type, EK_F32);
  return ck_got(flat);
}

/* Two models train on one group, a step each in turn; with one of them the group is its own. */
static void train(double *values[MODELS], const struct model *models, int number) {
  CK_HELD(ek_group *, group, ck_open("cpu:3", 1));
  ek_trainer *trainers[MODELS] = {NULL};
  for (int m = 0; m < number; m++) trainers[m] = open_trainer(group, &models[m]);
  for (int step = 0; step < STEPS; step++) {
    for (int m = 0; m < number; m++) take_step(trainers[m], step);
  }
  for (int m = 0; m < number; m++) values[m] = values_of(trainers[m]);
  for (int m = 0; m < number; m++) ck_ok(ek_trainer_close(trainers[m]));
  ck_no_memory_held(group);
}

static double *trained(const struct model *model) {
  double *values[MODELS] = {NULL};
  train(values, model, 1);
  return values[0];
}

/* Whether the devices under test round, and compute at all. */
static bool rounds(void) {
  CK_HELD(ek_group *, group, ck_open("cpu:1", 1));
  const ek_device *device = ek_group_device(group, 0);
  const bool result = (ek_device_precisions(device) & EK_PRECISIONS_TF32) != 0;
  ck_assert_int_eq(result, strcmp(ek_device_backend(device), "cuda") == 0);
  return result;
}

static void check_rounding(const double *tf32, const double *f32) {
  const int64_t count = ck_count(f32);
  if (!rounds()) {
    ck_arrays_same("tf32", tf32, f32);
    return;
  }
  ck_assert(memcmp(tf32, f32, (size_t)count * sizeof *f32) != 0);
  for (int64_t i = 0; i < count; i++) ck_assert_double_eq_tol(tf32[i], f32[i], 0.02);
}

CK_PART_LOOP(two_models_of_one_group, CK_MODES) {
  struct model models[MODELS] = {{.precision = EK_PRECISION_F32, .mode = (ek_mode)_i},
                                 {.precision = EK_PRECISION_TF32, .mode = (ek_mode)_i}};
  const struct model turned[MODELS] = {models[1], models[0]};
  double *together[MODELS], *swapped[MODELS], *alone[MODELS];
  train(together, models, MODELS);
  train(swapped, turned, MODELS);
  for (int m = 0; m < MODELS; m++) {
    alone[m] = trained(&models[m]);
    ck_arrays_same(ek_mode_name(models[m].mode), together[m], alone[m]);
    ck_arrays_same("in the other order", swapped[1 - m], alone[m]);
  }
  check_rounding(alone[1], alone[0]);
}

/* What is run again, by a module or by the pass, is rounded as it was the first time. */
CK_PART_LOOP(recomputation, 6) {
  static const ek_recompute_kind kinds[] = {EK_RECOMPUTE_EVERY, EK_RECOMPUTE_ALL,
                                            EK_RECOMPUTE_CHEAP};
  struct model model = {
      .precision = EK_PRECISION_TF32, .mode = EK_MODE_REPLICATED, .fused_loss = _i % 2 == 1};
  ck_deterministic(kinds[_i / 2] == EK_RECOMPUTE_CHEAP); /* numerics.md */
  double *want = trained(&model);
  ck_assign(model.recompute, .kind = kinds[_i / 2], .every = 1);
  double *got = trained(&model);
  ck_arrays_same("recomputed", got, want);
  model.precision = EK_PRECISION_F32;
  check_rounding(got, trained(&model));
}

/* ---- what modules are told ---- */

enum { ROWS = 5, WIDTH = 24 };

/* Runs a linear as it was asked to, and listens. */
struct listener {
  struct ck_parent parent;
  ek_precision asked; /* ek_child_options.precision */
  bool told;          /* what the pass has said to it */
};

CK_PARAMETERS(listener) {
  return ek_declare_module(declaration, "child", ck_child(self, 0));
}

/* What it says itself does not reach its child, and outlives that. */
static void listen(const struct listener *it, const ek_pass *pass) {
  ck_assert_int_eq(ek_pass_type(pass), EK_F32);
  ck_assert_int_eq(ek_stream_allow_tf32(ek_pass_stream(pass), !it->told), it->told);
}

CK_FORWARD(listener) {
  const struct listener *it = (const struct listener *)self;
  CK_WITH(ek_child_options, options, EK_CHILD_OPTIONS_INIT, .precision = it->asked);
  listen(it, pass);
  EK_TRY(ek_pass_child_forward_with(outputs, pass, 0, inputs, &options));
  ck_assert_int_eq(ek_stream_allows_tf32(ek_pass_stream(pass)), !it->told);
  return EK_OK;
}

CK_BACKWARD(listener) {
  listen((const struct listener *)self, pass);
  return ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs);
}

CK_PARENT_OPS(listener, .parameters = listener_parameters);

static ek_module *listener_of(ek_module *child, ek_precision asked, bool told) {
  struct listener *it = ck_parent_new(sizeof *it, &listener_ops, child);
  ck_assign((*it), .asked = asked, .told = told);
  return &it->parent.base;
}

static ek_module *linear(void) { return ck_linear(WIDTH, WIDTH, false); }

/* What the linear gives, forward and backward, is that of the operations with `rounded`. */
static void check_linear(struct ck_rig *rig, const ek_replica *replica, const ek_tensor *y,
                         const ek_tensor *dx, const ek_tensor *x, bool rounded) {
  const int64_t shape[] = {ROWS, WIDTH}, square[] = {WIDTH, WIDTH};
  ek_tensor *want_y = ck_tensor(rig, NULL, 2, shape), *want_dx = ck_tensor(rig, NULL, 2, shape);
  ek_tensor *want_dw = ck_tensor(rig, NULL, 2, square);
  CK_GOT(ek_parameter_info, weight, ek_replica_parameter(&weight, replica, 0));
  ck_assert(!ek_stream_allow_tf32(rig->stream, rounded));
  ck_ok(ek_op_linear(rig->stream, want_y, x, &weight.value, NULL));
  ck_ok(ek_op_matmul(rig->stream, want_dx, y, false, &weight.value, false, 0));
  ck_ok(ek_op_linear_gradients(rig->stream, want_dw, NULL, y, x, 0, 0));
  ck_assert_int_eq(ek_stream_allow_tf32(rig->stream, false), rounded);
  ck_same_bits("y", ck_read(rig, y), ck_read(rig, want_y), ROWS * WIDTH);
  ck_same_bits("dx", ck_read(rig, dx), ck_read(rig, want_dx), ROWS * WIDTH);
  ck_same_bits("dw", ck_read(rig, &weight.gradient), ck_read(rig, want_dw), WIDTH * WIDTH);
}

/* y is its own gradient. What the stream allowed before, it allows again. */
static void run_listener(ek_module *module, ek_precision precision, bool rounded) {
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_tensor y = {0}, dx = {0};
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .precision = precision);
  ek_tensor *x = ck_tensor(rig, ck_values(rig, ROWS * WIDTH, -1, 1), CK_SHAPE(ROWS, WIDTH));
  CK_GOT(ek_replica *, replica, ek_replica_open(&replica, rig->device, module, &options));
  ek_module_free(module);
  ck_assert_int_eq(ek_replica_precision(replica), precision == 0 ? EK_PRECISION_F32 : precision);
  ck_assert(!ek_tensor_exists(ek_replica_copies(replica)) ||
            ek_tensor_count(ek_replica_copies(replica)) == 0);
  CK_GOT(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  ck_assert_int_eq(ek_pass_type(pass), EK_F32);
  for (int outside = 0; outside < 2; outside++) {
    (void)ek_stream_allow_tf32(rig->stream, outside == 1);
    if (outside == 0) ck_ok(ek_pass_run_forward(&y, pass, x));
    if (outside == 1) ck_ok(ek_pass_run_backward(&dx, pass, &y));
    ck_assert_int_eq(ek_stream_allow_tf32(rig->stream, false), outside == 1);
  }
  check_linear(rig, replica, &y, &dx, x, rounded);
  ek_tensor_free(&y);
  ek_tensor_free(&dx);
  ek_pass_free(pass);
  ek_replica_free(replica);
  ck_rig_close(rig);
}

CK_TEST(children) {
  static const struct {
    ek_precision precision, asked;
    bool told, rounded;
  } cases[] = {{EK_PRECISION_F32, EK_PRECISION_DEFAULT, false, false},
               {EK_PRECISION_DEFAULT, EK_PRECISION_F32, false, false},
               {EK_PRECISION_TF32, EK_PRECISION_DEFAULT, true, true},
               {EK_PRECISION_TF32, EK_PRECISION_TF32, true, true},
               {EK_PRECISION_TF32, EK_PRECISION_F32, true, false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const bool told = cases[i].told, rounded = cases[i].rounded;
    run_listener(listener_of(linear(), cases[i].asked, told), cases[i].precision, rounded);
    ek_module *again = listener_of(linear(), cases[i].asked, told);
    ck_ok(ck_around(&again, again, ek_recompute_create));
    run_listener(again, cases[i].precision, rounded);
  }
  /* A child whose caller runs in f32 may not go back to tf32 by itself, but may be asked to. */
  run_listener(
      listener_of(listener_of(linear(), EK_PRECISION_DEFAULT, false), EK_PRECISION_F32, true),
      EK_PRECISION_TF32, false);
  run_listener(listener_of(listener_of(linear(), EK_PRECISION_TF32, false), EK_PRECISION_F32, true),
               EK_PRECISION_TF32, true);
}

/* A job of the workers begins without it, whatever was left behind, and leaves nothing behind. */
CK_JOB(allow) {
  bool *before = context;
  before[index] = ek_stream_allow_tf32(ek_device_stream(device, EK_STREAM_COMPUTE), true);
  return EK_OK;
}

CK_TEST(jobs) {
  ek_group *group = ck_open("cpu:2", 1);
  for (int i = 0; i < 2; i++) {
    bool before[CK_MAX_DEVICES] = {false};
    ck_assert(!ek_stream_allow_tf32(
        ek_device_stream(ek_group_device(group, 0), EK_STREAM_COMPUTE), i == 1));
    ck_ok(ek_group_apply(group, allow, before));
    for (size_t k = 0; k < ek_group_size(group); k++) {
      ck_assert(!before[k]);
      ck_assert(!ek_stream_allows_tf32(
          ek_device_stream(ek_group_device(group, k), EK_STREAM_COMPUTE)));
    }
  }
  ck_assert(!ek_stream_allow_tf32(NULL, true));
  ck_assert(!ek_stream_allows_tf32(NULL));
}

/* Devices, and the two streams of one device, are asked one by one. */
CK_TEST(streams) {
  ek_group *group = ck_open("cpu:2", 1);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    for (int kind = EK_STREAM_COMPUTE; kind <= EK_STREAM_COMMUNICATION; kind++) {
      ek_stream *one = ek_device_stream(ek_group_device(group, k), (ek_stream_kind)kind);
      ck_assert(!ek_stream_allow_tf32(one, true));
      ck_assert(ek_stream_allow_tf32(one, true));
    }
    for (size_t other = k + 1; other < ek_group_size(group); other++) {
      ck_assert(!ek_stream_allows_tf32(
          ek_device_stream(ek_group_device(group, other), EK_STREAM_COMPUTE)));
    }
  }
}

/* ---- no type of a tensor ---- */

#define NO_TYPE ((ek_type)EK_PRECISION_TF32)

CK_TEST(no_type_of_a_tensor) {
  const int64_t shape[] = {4};
  float numbers[4] = {1, 2, 3, 4};
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_tensor tensor = {0}, *x = ck_tensor(rig, NULL, 1, shape);
  ck_assert_uint_eq(ek_type_size(NO_TYPE), 0);
  ck_assert_str_eq(ek_type_name(NO_TYPE), "no type");
  ck_assert_str_eq(ek_precision_name(EK_PRECISION_TF32), "tf32");
  ck_assert_str_eq(ek_precision_name(EK_PRECISION_F64), "f64");
  ck_assert_str_eq(ek_precision_name(EK_PRECISION_DEFAULT), "no precision");
  ck_assert_str_eq(ek_precision_name((ek_precision)EK_I32), "no precision");
  ck_assert_int_eq(ek_precision_type(EK_PRECISION_TF32), EK_F32);
  ck_assert_int_eq(ek_precision_type(EK_PRECISION_F64), EK_F64);
  ck_assert_int_eq(ek_precision_type(EK_PRECISION_BF16), EK_BF16);
  ck_assert_int_eq(ek_precision_type(EK_PRECISION_F16), EK_F16);
  ck_assert_int_eq(ek_precision_type(EK_PRECISION_DEFAULT), 0);
  ck_assert_int_eq(ek_precision_type((ek_precision)EK_I32), 0);
  ck_assert_int_eq(ek_tensor_aligned_columns(50257, NO_TYPE), 0);
  ck_invalid(ek_tensor_create(&tensor, rig->device, EK_MEMORY_INPUTS, NO_TYPE, 1, shape),
             "unknown element type");
  ck_invalid(ek_tensor_host(&tensor, numbers, NO_TYPE, 1, shape), "unknown element type");
  ck_assert(!ek_tensor_exists(&tensor));
  /* One that a program has made itself. */
  ck_ok(ek_tensor_host(&tensor, numbers, EK_F32, 1, shape));
  ck_bad(tensor, type, NO_TYPE, ek_tensor_copy(x, &tensor), "");
  CK_WITH(ek_tensor, device, *x, .type = NO_TYPE);
  ck_invalid(ek_op_convert(rig->stream, x, &device), "");
  ck_invalid(ek_op_convert(rig->stream, &device, x), "");
  ck_invalid(ek_op_zero(rig->stream, &device), "");
}

/* A module that says it computes in tf32, and in nothing that has tensors. */
static const ek_module_ops boastful_ops = {
    CK_OPS("boastful", ck_share_forward, ck_share_backward, ck_no_free), .types = 1u << NO_TYPE};

static ek_status ask_for_tf32(ek_pass *pass, const ek_tensor *x) {
  ek_tensor y = {0};
  (void)x;
  return ek_pass_output(&y, pass, NO_TYPE, 1, (const int64_t[]){2});
}

static void fails_to_open(ek_module *module, const ek_replica_options *options, ek_status status,
                          const char *text) {
  CK_HELD(ek_group *, group, ck_open("cpu:2", 1));
  ek_data_parallel_model *opened = NULL;
  ek_replica *replica = NULL;
  CK_WITH(ek_data_parallel_model_options, model, EK_DATA_PARALLEL_MODEL_OPTIONS_INIT,
          .type = options->type, .precision = options->precision,
          .gradient_type = options->gradient_type);
  ck_assert_int_eq(ek_replica_open(&replica, ek_group_device(group, 0), module, options), status);
  ck_assert_msg(strstr(ek_error_message(), text) != NULL, "%s", ek_error_message());
  ck_assert_int_eq(ek_data_parallel_model_open(&opened, group, module, &model), status);
  ck_assert_msg(strstr(ek_error_message(), text) != NULL, "%s", ek_error_message());
  ck_no_memory_held(group);
}

CK_TEST(refusals) {
  ek_module *module = linear(), boastful;
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .type = NO_TYPE);
  fails_to_open(module, &options, EK_ERR_INVALID_ARGUMENT,
                "options.type is no type, expected f32 or f64");
  ck_assign(options, .type = EK_F64, .precision = EK_PRECISION_TF32);
  fails_to_open(module, &options, EK_ERR_INVALID_ARGUMENT,
                "options.precision is tf32 with parameters of f64, expected f64");
  ck_assign(options, .type = EK_F32, .gradient_type = NO_TYPE);
  fails_to_open(module, &options, EK_ERR_INVALID_ARGUMENT,
                "options.gradient_type is no type, but parameters are f32 and modules compute "
                "in tf32; expected f32, bf16 or f16");
  options.gradient_type = (ek_type)0;
  ck_ok(ek_module_init(&boastful, &boastful_ops, 1, 1));
  fails_to_open(&boastful, &options, EK_ERR_UNSUPPORTED, "no known type, not in f32");
  ek_module_free(&boastful);
  ek_module_free(module);
  struct ck_probe *probe = ck_probe_open(ask_for_tf32, NULL);
  ck_invalid(ek_pass_run_forward(&probe->y, probe->pass, &probe->x), "unknown element type");
}

/* In a pass of another precision. */
CK_TEST(no_child_in_tf32) {
  static const ek_precision precisions[] = {EK_PRECISION_F32, EK_PRECISION_BF16};
  struct ck_rig *rig = ck_rig_open(NULL, EK_F32, 1);
  ek_tensor *x = ck_tensor(rig, NULL, 2, (const int64_t[]){ROWS, WIDTH});
  for (size_t i = 0; i < 2; i++) {
    ek_module *module = listener_of(linear(), EK_PRECISION_TF32, false);
    ek_tensor y = {0};
    CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .precision = precisions[i]);
    CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, rig->device, module, &options));
    ek_module_free(module);
    CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
    ck_fails(ek_pass_run_forward(&y, pass, x), EK_ERR_UNSUPPORTED, "not in tf32");
  }
}

/* Gradients of 16 bits go with it, as with f32; memory is that of f32. */
CK_TEST(memory) {
  uint64_t peaks[MODELS];
  for (int m = 0; m < MODELS; m++) {
    const struct model model = {.precision = m == 0 ? EK_PRECISION_F32 : EK_PRECISION_TF32,
                                .mode = EK_MODE_FULLY_SHARDED};
    CK_HELD(ek_group *, group, ck_open_exactly("plan-cuda:2", 1));
    ek_trainer *trainer = open_trainer(group, &model);
    for (int step = 0; step < STEPS; step++) take_step(trainer, step);
    CK_GOT(ek_memory_usage, usage, ek_memory_stats(&usage, ek_group_device(group, 0)));
    peaks[m] = usage.peak_bytes;
    ck_ok(ek_trainer_close(trainer));
  }
  ck_assert_uint_eq(peaks[0], peaks[1]);
  ek_module *module = linear();
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .precision = EK_PRECISION_TF32,
          .gradient_type = EK_BF16);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, ck_device("cpu:1"), module, &options));
  ck_assert_int_eq(ek_replica_gradients(replica)->type, EK_BF16);
  ek_module_free(module);
}

CK_SUITE("tf32")
