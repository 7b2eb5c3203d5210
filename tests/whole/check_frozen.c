/*
 * check_frozen.c - layers over parameters that are frozen: they compute no gradients of these, and
 * what is left is right; no device has memory for such a gradient, in any placement, and a plan is
 * exact. What an update makes of frozen parameters: check_groups.c.
 */
#include "ck_frozen.h"
#include "ck_training.h"

enum { SAMPLES = 7 };

static const char *const pair_names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
static const char *const gpt_names[] = {
    "tokens.weight", "tokens.positions", "blocks.0.attention.qkv.weight", "blocks.0.ln_2.weight",
    "blocks.0.ln_2.bias", "blocks.0.expand.weight", "blocks.0.contract.bias",
    "blocks.1.expand.bias", "blocks.1.contract.weight", "blocks.1.attention.qkv.bias"};
enum { PAIR = 4, GPT = sizeof gpt_names / sizeof *gpt_names };

static unsigned mask; /* of what is frozen in the modules that are made */

/* Two linears with GELU between them, which run in one go. */
static ek_status frozen_pair(ek_module **module) {
  /* The sizes of the workload "mlp". */
  ek_module *parts[] = {ck_linear(7, 16, true), NULL, ck_linear(16, 5, true)}, *inner = NULL;
  EK_TRY(ek_activation_create(&parts[1], EK_ACTIVATION_GELU));
  EK_TRY(ck_sequential(&inner, parts, 3, NULL));
  *module = ck_frozen_create(inner, pair_names, PAIR, mask);
  return EK_OK;
}

static ek_status frozen_gpt(ek_module **module) {
  ek_module *inner = NULL;
  EK_TRY(ck_workload("gpt")->module(&inner));
  *module = ck_frozen_create(inner, gpt_names, GPT, mask);
  return EK_OK;
}

/* ---- on one device ---- */

/* The gradients of a batch on one device, during which no memory is taken for any. */
static double *gradients_of(ek_status (*module)(ek_module **module)) {
  CK_WITH(struct ck_workload, mlp, *ck_workload("mlp"), .module = module);
  CK_TRAINING(t, ck_setup_mode(&mlp, "cpu:1", EK_MODE_REPLICATED), .options.type = EK_F64);
  struct ck_batch batch = ck_batch_make(&mlp, EK_F64, SAMPLES, 0.1, 5);
  const ek_memory_event *events = NULL;
  ek_device *device = ek_group_device(t.group, 0);
  ck_ok(ek_memory_record_start(device, 4096));
  ck_ok(ck_training_backward(&t, &batch, NULL, false, NULL));
  CK_GOT(size_t, event_count, ek_memory_record_stop(&events, &event_count, NULL, device));
  ck_assert_uint_gt(event_count, 0);
  for (size_t i = 0; i < event_count; i++) {
    ck_assert_int_ne(events[i].category, EK_MEMORY_GRADIENTS);
  }
  double *gradients = ck_training_read(&t, CK_GRADIENTS);
  ck_training_close(&t);
  return gradients;
}

/* Sums of 16 terms at most in another order; the sizes are those of pair_names. */
CK_LOOP(layers_leave_out_what_is_frozen, 1 << PAIR) {
  static const int64_t sizes[PAIR] = {16 * 7, 16, 5 * 16, 5};
  int64_t at = 0;
  mask = 0;
  double *want = gradients_of(frozen_pair);
  mask = (unsigned)_i;
  double *got = gradients_of(frozen_pair);
  for (int p = 0; p < PAIR; p++) {
    for (int64_t i = 0; i < sizes[p]; i++, at++) {
      const double expected = (mask >> p & 1u) != 0 ? 0 : want[at];
      ck_assert_msg(fabs(got[at] - expected) <= 0x1p-48 * fabs(want[at]) + 0x1p-52,
                    "%s[%d]: %.17g, expected %.17g", pair_names[p], (int)i, got[at], expected);
    }
  }
  ck_assert_int_eq(at, ck_count(want));
}

/* ---- each kind of layer ---- */

/* A linear that begins with zeros, whose rows may be longer; 0 columns: they are not. */
static ek_status zero_linear(ek_module **module, int64_t in, int64_t out, int64_t columns) {
  const ek_initializer zeros = ek_initializer_zeros();
  CK_WITH(ek_linear_options, options, EK_LINEAR_OPTIONS_INIT, .weight_start = &zeros,
          .columns = columns);
  return ek_linear_create_with(module, in, out, &options);
}

/* A linear whose rows may be longer, a table with positions, a head with its loss that shares the
 * weight of a linear, and by their options a norm and a head: what is left to compute is right, and
 * all else that modules must keep. */
static ek_module *frozen_layer(int which) {
  static const char *const linear[] = {"weight", "bias"}, *const table[] = {"weight", "positions"};
  ek_module *inner = NULL, *whole = NULL;
  ek_criterion *head = NULL;
  ek_linear_cross_entropy_options fused = EK_LINEAR_CROSS_ENTROPY_OPTIONS_INIT;
  ek_with_criterion_options o = EK_WITH_CRITERION_OPTIONS_INIT;
  ek_layer_norm_options norm = EK_LAYER_NORM_OPTIONS_INIT;
  if (which == 0) {
    ck_ok(zero_linear(&inner, 3, 5, 5));
    return ck_frozen_create(inner, linear, 2, mask);
  }
  if (which == 4) {
    ck_assign(norm, .frozen = mask == 1, .bias = mask != 2);
    ck_ok(ek_layer_norm_create_with(&inner, 3, &norm));
    return inner;
  }
  if (which == 1) {
    ck_ok(ek_embedding_create(&inner, 7, 3, 4));
    return ck_frozen_create(inner, table, 2, mask);
  }
  ck_ok(ek_linear_create(&inner, 6, 6, true));
  if (which == 5) {
    ck_assign(fused, .frozen = mask % 2 == 1, .bias = mask / 2 == 1);
    ck_ok(ek_linear_cross_entropy_create(&head, 6, 6, &fused));
    ck_ok(ek_with_criterion_create(&whole, inner, head));
    ek_criterion_free(head);
    ek_module_free(inner);
    return whole;
  }
  inner = ck_frozen_create(inner, linear, 2, mask);
  ck_assign(fused, .bias = which == 3, .logits_bytes = 200);
  ck_ok(ek_linear_cross_entropy_create(&head, 6, 6, &fused));
  ck_assign(o, .tied = "weight", .source = "own0");
  ck_ok(ek_with_criterion_create_with(&whole, inner, head, &o));
  ek_criterion_free(head);
  ek_module_free(inner);
  return whole;
}

CK_LOOP(layers_are_right_beside_what_is_frozen, 6 * 4) {
  static const ek_check_input inputs[6][2] = {
      {{.rank = 2, .shape = {4, 3}, .low = -1, .high = 1}},
      {{.type = EK_I32, .rank = 2, .shape = {2, 4}, .high = 6}},
      {{.rank = 2, .shape = {4, 6}, .low = -1, .high = 1},
       {.type = EK_I32, .rank = 1, .shape = {4}, .high = 5}},
      {{.rank = 2, .shape = {4, 6}, .low = -1, .high = 1},
       {.type = EK_I32, .rank = 1, .shape = {4}, .high = 5}},
      {{.rank = 2, .shape = {4, 3}, .low = -1, .high = 1}},
      {{.rank = 2, .shape = {4, 6}, .low = -1, .high = 1},
       {.type = EK_I32, .rank = 1, .shape = {4}, .high = 5}}};
  const int which = _i / 4;
  CK_WITH(ek_module_check_options, options, EK_MODULE_CHECK_OPTIONS_INIT, .depth = 40);
  mask = (unsigned)_i % 4;
  ek_module *module = frozen_layer(which);
  ck_ok(ek_module_check(module, test_devices("cpu:2"), inputs[which],
                        inputs[which][1].rank == 0 ? 1 : 2, &options));
  ek_module_free(module);
}

/* ---- in every placement ---- */

static struct ck_setup frozen_setup(const struct ck_workload *gpt, const char *spec,
                                    int placement) {
  struct ck_setup setup = ck_setup_at(gpt, spec, placement);
  ck_assign(setup.options, .type = EK_F64, .bucket_bytes = 2048);
  setup.optimizer = ck_clipped_adamw;
  return setup;
}

/* Steps of two micro-batches. */
static void frozen_steps(struct ck_training *t) {
  for (uint64_t step = 0; step < 2; step++) {
    struct ck_batch batch = ck_batch_make(t->setup.workload, EK_F64, SAMPLES, 0.1, 30 + step);
    ck_ok(ck_training_backward(t, &batch, NULL, true, NULL));
    ck_ok(ck_training_step(t, &batch, NULL));
  }
}

/* All devices together hold gradients of what is trained, and of nothing else but padding. */
static void holds_what_is_trained(const struct ck_training *t) {
  const ek_replica *first = ek_data_parallel_model_replica(t->model, 0);
  int64_t trained = 0, held = 0, parameters = 0;
  CK_EACH_PARAMETER(info, first) {
    ck_assert(!info.frozen || !ek_tensor_exists(&info.gradient));
    if (!info.frozen) trained += ek_tensor_count(&info.value), parameters++;
  }
  const bool shares = t->setup.options.state >= EK_STATE_SHARDED_GRADIENTS;
  const size_t devices = shares ? ek_group_size(t->group) : 1;
  for (size_t d = 0; d < devices; d++) {
    held += ek_tensor_count(ek_replica_gradients(ek_data_parallel_model_replica(t->model, d)));
  }
  ck_assert_int_ge(held, trained);
  ck_assert_int_lt(held, trained + 128 * parameters);
}

/* Numbers are those of all parameters, in their order. */
static void frozen_ones_stay(const struct ck_training *t, const double *got, const double *before) {
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  CK_EACH_PARAMETER(info, replica) {
    const int64_t count = info.buffer ? 0 : ek_tensor_count(&info.value);
    if (info.frozen) ck_same_bits(info.name, got, before, count);
    got += count;
    before += count;
  }
}

static void frozen_peaks(ek_memory_usage usage[3], const struct ck_setup *setup, const char *spec) {
  CK_GOT(struct ck_training, t, ck_training_try(&t, setup, ck_open(spec, 1)));
  frozen_steps(&t);
  ck_usages(usage, t.group);
}

/* Two devices-and-placement train alike; what is frozen stays, bit for bit; a plan is exact. */
CK_PART_LOOP(frozen_layers_in_every_placement, 2 * CK_PLACEMENTS) {
  CK_WITH(struct ck_workload, gpt, *ck_workload("gpt"), .module = frozen_gpt);
  mask = _i % 2 == 0 ? (1u << GPT) - 1 : 0x2D6;
  const struct ck_setup setup = frozen_setup(&gpt, "cpu:3", _i / 2);
  struct ck_training t = ck_training_opened(&setup);
  struct ck_training one = ck_training_of(frozen_setup(&gpt, "cpu:1", 2));
  holds_what_is_trained(&t);
  double *before = ck_training_read(&t, CK_VALUES);
  frozen_steps(&t);
  frozen_steps(&one);
  double *got = ck_training_read(&t, CK_VALUES);
  double *want = ck_training_read(&one, CK_VALUES);
  ck_training_compare("parameters", &t, got, want, 1e-11, NULL);
  frozen_ones_stay(&t, got, before);
  ek_tensor host = ck_like(&t, "own0");
  ck_invalid(ek_data_parallel_model_gradient(&host, t.model, "own1"), "frozen");
  ck_training_close(&t);
  ck_training_close(&one);
  ek_memory_usage planned[3], real[3];
  frozen_peaks(planned, &setup, "plan:3");
  frozen_peaks(real, &setup, "cpu:3");
  ck_same_peaks("a frozen gpt", planned, real, 3);
}

/* In 16 bits each device rounds its part of the masters; frozen ones go to all devices, too. */
CK_PART_LOOP(frozen_copies_are_on_all_devices, ck_if_halves(CK_PLACEMENTS)) {
  CK_WITH(struct ck_workload, mlp, *ck_workload("mlp"), .module = frozen_pair);
  mask = 5;
  CK_TRAINING(t, ck_setup_at(&mlp, "cpu:3", _i), .options.precision = EK_PRECISION_BF16);
  ck_training_copies_are_right(&t);
}

/* ---- rows that are longer do the same work ---- */

struct form {
  bool padded, recompute;
};

static ek_status build_form(void *context, const ek_settings *settings, ek_module **module,
                            ek_criterion **criterion) {
  static const char *const names[] = {"1.weight", "1.bias"};
  const struct form *form = context;
  if (settings->fused_loss || settings->recompute.kind != EK_RECOMPUTE_NONE) {
    return EK_ERR_UNSUPPORTED;
  }
  ek_module *parts[] = {NULL, NULL, ck_linear(80, 400, false)}, *inner = NULL;
  EK_TRY(ek_activation_create(&parts[0], EK_ACTIVATION_GELU));
  EK_TRY(zero_linear(&inner, 96, 80, form->padded ? 80 : 0));
  parts[1] = inner;
  if (form->recompute) EK_TRY(ck_around(&parts[1], inner, ek_recompute_create));
  EK_TRY(ck_sequential(&inner, parts, 3, NULL));
  *module = form->recompute ? inner : ck_frozen_create(inner, names, 2, mask);
  return ek_mean_squared_error_create(criterion, EK_REDUCTION_MEAN);
}

/* A padded linear whose rows are no longer than the dense one's has its operations and its memory:
 * no result that is not read (recomputed), no x that a frozen weight does not need, no gradient of
 * a frozen weight where the bias trains. */
CK_LOOP(padded_linear_does_no_more_than_the_dense_one, 4) {
  enum { ROWS = 64 };
  static const int64_t in[] = {ROWS, 96}, out[] = {ROWS, 400};
  static float x[ROWS * 96], y[ROWS * 400];
  ek_advice advice[2];
  CK_GOT(ek_tensor, inputs, ek_tensor_host(&inputs, x, EK_F32, 2, in));
  CK_GOT(ek_tensor, targets, ek_tensor_host(&targets, y, EK_F32, 2, out));
  mask = (unsigned)_i; /* 1: the weight is frozen, 2: the bias */
  CK_WITH(ek_advise_task, task, EK_ADVISE_TASK_INIT, .build = build_form);
  ck_ok(ek_sgd_create(&task.optimizer, NULL));
  ck_assign(task, .inputs = &inputs, .targets = &targets);
  task.input_count = task.target_count = 1;
  task.modes = UINT64_C(1) << EK_MODE_REPLICATED;
  for (int k = 0; k < 2; k++) {
    struct form form = {.padded = k == 1, .recompute = _i == 3};
    task.context = &form;
    CK_GOT(size_t, count, ek_advise(&advice[k], &count, 1, "plan:2", &task));
    ck_assert_uint_eq(count, 1);
  }
  ck_assert_double_gt(advice[0].seconds, 0);
  ck_assert_double_eq(advice[1].seconds, advice[0].seconds);
  ck_assert_uint_eq(advice[1].peak_bytes, advice[0].peak_bytes);
  ek_optimizer_free(task.optimizer);
}

/* Bytes that a pass holds between forward and backward when the caller has freed x and y. */
static uint64_t held_by_pass(bool padded) {
  static const char *const names[] = {"weight", "bias"};
  const int64_t shape[] = {64, 96};
  CK_GOT(ek_module *, linear, zero_linear(&linear, 96, 80, padded ? 88 : 0));
  ek_module *module = ck_frozen_create(linear, names, 2, mask);
  CK_HELD(ek_group *, group, ck_open_exactly("plan:1", 1));
  ek_device *device = ek_group_device(group, 0);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, device, module, NULL));
  CK_GOT(ek_memory_usage, before, ek_memory_stats(&before, device));
  CK_GOT(ek_tensor, x, ek_tensor_create(&x, device, EK_MEMORY_ACTIVATIONS, EK_F32, 2, shape));
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, NULL));
  CK_GOT(ek_tensor, y, ek_pass_run_forward(&y, pass, &x));
  ek_tensor_free(&x);
  ek_tensor_free(&y);
  CK_GOT(ek_memory_usage, after, ek_memory_stats(&after, device));
  ek_module_free(module);
  return after.current_bytes - before.current_bytes;
}

CK_LOOP(padded_linear_keeps_no_input_of_a_frozen_weight, 4) {
  const uint64_t x = 64 * 96 * sizeof(float);
  mask = (unsigned)_i; /* 1: the weight is frozen, 2: the bias */
  ck_assert_uint_eq(held_by_pass(true), held_by_pass(false));
  ck_assert_uint_eq(held_by_pass(true), _i % 2 == 0 ? x : 0);
}

CK_SUITE("frozen")
