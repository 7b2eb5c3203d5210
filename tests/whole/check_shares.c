/*
 * check_shares.c - state of which every device holds a share: the same training, bit for bit, and
 * as little memory as it says.
 */
#include <stdatomic.h>

#include "ck_gpt.h"
#include "ck_mirror.h"
#include "ck_parent.h"
#include "ck_training.h"

enum { DEVICES = 3, STEPS = 3, KINDS = 2, CASES = KINDS * CK_WORKLOADS };

static const ek_mode kinds[KINDS] = {EK_MODE_SHARDED_GRADIENTS, EK_MODE_FULLY_SHARDED};

static struct ck_setup setup_of(const char *workload, const char *spec, ek_mode mode) {
  return ck_setup_mode(ck_workload(workload), spec, mode);
}

static uint64_t held(const struct ck_training *t, size_t device, ek_memory_category category) {
  return ck_usage(ek_group_device(t->group, device)).current[category];
}

static int64_t flat_elements(const struct ck_training *t) {
  const ek_replica *replica = ek_data_parallel_model_replica(t->model, 0);
  int64_t end = 0;
  CK_EACH_PARAMETER(info, replica) {
    const int64_t last = info.offset + ((ek_tensor_count(&info.value) + 15) & ~(int64_t)15);
    if (!info.buffer && last > end) end = last;
  }
  return end;
}

/* ---- the same training ---- */

static double *train(const char *workload, ek_mode mode, int64_t samples, size_t bucket_bytes) {
  struct ck_setup setup = setup_of(workload, "cpu:3", mode);
  setup.options.bucket_bytes = bucket_bytes;
  return ck_values_after(&setup, ck_open("cpu:3", 1), STEPS, samples);
}

/* Devices without rows, ragged ones, small buckets and one for everything. */
CK_LOOP(as_sharded_bit_for_bit, CASES) {
  const char *workload = ck_workloads[_i % CK_WORKLOADS].name;
  const ek_mode mode = kinds[_i / CK_WORKLOADS];
  static const int64_t samples[] = {7, 2, 1};
  static const size_t buckets[] = {64, 1 << 10, 1 << 20};
  ck_deterministic_on_gpu();
  for (size_t i = 0; i < 3; i++) {
    double *want = train(workload, EK_MODE_SHARDED, samples[i], buckets[i]);
    double *got = train(workload, mode, samples[i], buckets[i]);
    ck_arrays_same(workload, got, want);
  }
}

/* ---- memory ---- */

/* Between steps, and between micro-batches, a device holds its shares and no more. */
CK_LOOP(shares_at_rest, KINDS) {
  struct ck_training t = ck_training_of(setup_of("gpt", "cpu:3", kinds[_i]));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, 5, 0, 1);
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
}

enum { LAYERS = 24, WIDTH = 64 };

static ek_status deep_gpt(ek_module **module) {
  const ek_gpt_options gpt = ck_gpt_sizes(13, 16, WIDTH, LAYERS, 2);
  return ek_gpt_create(module, &gpt);
}

static ek_status deep_gpt_again(ek_module **module) {
  ek_gpt_options gpt = ck_gpt_sizes(13, 16, WIDTH, LAYERS, 2);
  gpt.recompute = (ek_recompute){.kind = EK_RECOMPUTE_EVERY, .every = 1};
  return ek_gpt_create(module, &gpt);
}

/* At no time is more than the gradient of two blocks whole, of 24. */
CK_LOOP(buckets_are_given_back, KINDS) {
  CK_WITH(struct ck_workload, deep, *ck_workload("gpt"), .module = deep_gpt);
  CK_TRAINING(t, ck_setup_mode(&deep, "plan:8", kinds[_i]), .options.bucket_bytes = 1);
  struct ck_batch batch = ck_batch_make(&deep, EK_F32, 8, 0, 1);
  const uint64_t block = (12 * WIDTH * WIDTH + 13 * WIDTH) * sizeof(float);
  const uint64_t before = held(&t, 0, EK_MEMORY_GRADIENTS);
  ck_assert_uint_lt(before, (LAYERS + 1) * block / 8);
  ck_ok(ck_training_step(&t, &batch, NULL));
  ck_assert_uint_eq(held(&t, 0, EK_MEMORY_GRADIENTS), before);
  ck_assert_uint_lt(ck_usage(ek_group_device(t.group, 0)).at_peak[EK_MEMORY_GRADIENTS],
                    before + 2 * block + block / 16); /* and the tied table */
}

/* A forward that has added to gradients and is dropped leaves nothing behind. */
CK_LOOP(a_dropped_forward_gives_back, KINDS) {
  struct ck_training t = ck_training_of(setup_of("gpt", "cpu:3", kinds[_i]));
  struct ck_batch batch = ck_batch_make(t.setup.workload, EK_F32, 5, 0, 1);
  const uint64_t before = held(&t, 0, EK_MEMORY_GRADIENTS);
  CK_OPENED(ek_shards, outputs,
            ek_data_parallel_model_forward(&outputs, t.model, batch.input, batch.inputs, NULL));
  ck_ok(ek_data_parallel_model_discard(t.model));
  ck_assert_uint_eq(held(&t, 0, EK_MEMORY_GRADIENTS), before);
}

/* A replica that holds shares is no place for a pass of one's own. */
CK_LOOP(a_pass_of_ones_own_is_refused, KINDS) {
  struct ck_training t = ck_training_of(setup_of("mlp", "cpu:2", kinds[_i]));
  ek_pass *pass = NULL;
  ck_fails(ek_pass_open(&pass, ek_data_parallel_model_replica(t.model, 0), NULL), EK_ERR_STATE,
           "whole");
}

/* ---- units ---- */

/* Does the work of its child, a unit; it keeps a parameter from forward to backward. */
static atomic_int wrong;

CK_PARAMETERS(unit) {
  EK_TRY(ek_declare_unit(declaration));
  return ck_parent_wraps(self, declaration);
}

CK_FORWARD(unit) {
  ek_tensor weight;
  EK_TRY(ek_pass_parameter(&weight, pass, 0));
  EK_TRY(ek_pass_save(pass, &weight));
  return ek_pass_child_forward(outputs, pass, 0, inputs);
}

CK_BACKWARD(unit) {
  CK_FREED(tensor) kept = {0};
  ek_tensor now;
  EK_TRY(ek_pass_child_backward(grad_inputs, pass, 0, grad_outputs));
  EK_TRY(ek_pass_parameter(&now, pass, 0));
  EK_TRY(ek_pass_take(&kept, pass));
  CK_MIRRORS(m, 0, &now, &kept);
  for (int64_t i = 0; i < ek_tensor_count(&now); i++) {
    if (ck_at(&m.host[0], i) != ck_at(&m.host[1], i)) atomic_fetch_add(&wrong, 1);
  }
  return ck_mirrors_close(&m);
}

CK_PARENT_OPS(unit, .parameters = unit_parameters);

/* Takes over the child. */
static ek_module *parent_of(const ek_module_ops *ops, ek_module *child) {
  return ck_parent_new(sizeof(struct ck_parent), ops, child);
}

/* A model of three such units, or of what is in them. */
static ek_status chain_of(ek_module **module, bool units) {
  static const int64_t sizes[] = {7, 19, 9, 5};
  ek_module *parts[4] = {NULL};
  size_t count = 0;
  for (size_t i = 0; i < 3; i++) {
    ck_ok(ek_linear_create(&parts[count], sizes[i], sizes[i + 1], true));
    if (units) parts[count] = parent_of(&unit_ops, parts[count]);
    count++;
    if (i == 1) ck_ok(ek_activation_create(&parts[count++], EK_ACTIVATION_RELU));
  }
  return ck_sequential(module, parts, count, NULL);
}

static ek_status with_units(ek_module **module) { return chain_of(module, true); }
static ek_status without_units(ek_module **module) { return chain_of(module, false); }

/* A program's own units, one of whose parameters is kept while it is not there. */
CK_LOOP(a_program_marks_units, CK_PLACEMENTS) {
  atomic_store(&wrong, 0);
  ck_trains_alike(ck_workload("mlp"), without_units, with_units, "cpu:3", _i);
  ck_assert_int_eq(atomic_load(&wrong), 0);
}

/* Runs its two children in an order of the device's. */
CK_PARAMETERS(moody) {
  EK_TRY(ek_declare_module(declaration, "a", ck_child(self, 0)));
  return ek_declare_module(declaration, "b", ck_child(self, 0));
}

CK_FORWARD(moody) {
  const size_t first = ek_device_index(ek_pass_device(pass)) % 2;
  CK_FREED(tensor) between = {0};
  EK_TRY(ek_pass_child_forward(&between, pass, first, inputs));
  return ek_pass_child_forward(outputs, pass, 1 - first, &between);
}

CK_BACKWARD(moody) { return EK_OK; }

CK_PARENT_OPS(moody, .parameters = moody_parameters);

/* Two units of one size that two devices enter in different orders: their parts are not mixed. */
CK_TEST(devices_that_disagree_are_told) {
  ek_module *module = ck_keep(parent_of(&moody_ops, parent_of(&unit_ops, ck_linear(3, 3, true))));
  ek_group *group = ck_open("cpu:2", 1);
  ek_data_parallel_model_options options = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  float numbers[12] = {0};
  ek_shards output = {0};
  CK_WITH(ek_forward_options, forward, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  CK_GOT(ek_tensor, input, ek_tensor_host(&input, numbers, EK_F32, CK_SHAPE(4, 3)));
  for (ek_mode mode = EK_MODE_SHARDED_GRADIENTS; mode <= EK_MODE_FULLY_SHARDED; mode++) {
    ck_ok(ek_data_parallel_model_options_set_mode(&options, mode));
    CK_SCOPED(ek_data_parallel_model *, model,
              ek_data_parallel_model_open(&model, group, module, &options));
    const ek_status status = ek_data_parallel_model_forward(&output, model, &input, 1, &forward);
    ck_assert_int_eq(status, mode == EK_MODE_FULLY_SHARDED ? EK_ERR_SHAPE : EK_OK);
    ek_shards_free(&output);
  }
}

CK_PARAMETERS(late) {
  EK_TRY(ck_parent_wraps(self, declaration));
  return ek_declare_unit(declaration);
}

CK_PARAMETERS(twice) {
  EK_TRY(ek_declare_unit(declaration));
  return unit_parameters(self, declaration);
}

CK_PARAMETERS(again) {
  EK_TRY(ek_declare_unit(declaration));
  return ek_declare_unit(declaration);
}

CK_LOOP(a_unit_is_declared_first_and_once, 3) {
  ek_status (*const declares[])(const ek_module *, ek_declaration *) = {
      late_parameters, twice_parameters, again_parameters};
  CK_WITH(ek_module_ops, ops, unit_ops, .parameters = declares[_i]);
  CK_HELD(ek_module *, module, ck_keep(parent_of(&ops, ck_linear(3, 3, true))));
  ek_data_parallel_model *model = NULL;
  ck_invalid(ek_data_parallel_model_open(&model, ck_open("cpu:2", 1), module, NULL),
             "a unit must be declared once, before anything else");
  ck_invalid(ek_declare_unit(NULL), "NULL");
}

struct seen {
  uint64_t most;             /* bytes of gathered units at a time */
  size_t taken, given, both; /* blocks; and how often two of them were there */
};

/* What the ledger says of the gathered parameters of device 0. */
static struct seen look(ek_device *device, uint64_t block) {
  size_t count = 0, dropped = 0, there = 0;
  struct seen seen = {0};
  uint64_t held_now = 0;
  CK_GOT(const ek_memory_event *, events, ek_memory_record_stop(&events, &count, &dropped, device));
  ck_assert_uint_eq(dropped, 0);
  for (size_t i = 0; i < count; i++) {
    if (events[i].category != EK_MEMORY_PARAMETERS) continue;
    const bool whole =
        events[i].delta_bytes >= (int64_t)block || events[i].delta_bytes <= -(int64_t)block;
    held_now += (uint64_t)events[i].delta_bytes;
    if (held_now > seen.most) seen.most = held_now;
    if (!whole) continue;
    if (events[i].delta_bytes > 0) {
      seen.taken++;
      if (++there == 2) seen.both++;
      ck_assert_uint_le(there, 2);
    } else {
      seen.given++;
      there--;
    }
  }
  ck_assert_uint_eq(held_now, 0);
  return seen;
}

/* The same of a forward without gradient. */
static struct seen look_at_forward(const struct ck_training *t, const struct ck_batch *batch,
                                   ek_device *device, uint64_t block) {
  CK_WITH(ek_forward_options, options, EK_FORWARD_OPTIONS_INIT, .gradient = false);
  ek_shards outputs = {0};
  ck_ok(ek_memory_record_start(device, 1 << 16));
  ck_ok(ek_data_parallel_model_forward(&outputs, t->model, batch->input, batch->inputs, &options));
  ek_shards_free(&outputs);
  return look(device, block);
}

/* Each block is gathered for forward and for backward, while the one before it computes, and given
 * back: two are there at a time, and never three. One that runs again in backward is gathered once
 * for that and its backward, while the one after it goes back. */
CK_LOOP(units_come_and_go, 4) {
  struct ck_workload deep = *ck_workload("gpt");
  deep.module = _i < 3 ? deep_gpt : deep_gpt_again;
  CK_TRAINING(t, ck_setup_mode(&deep, "plan:8", EK_MODE_FULLY_SHARDED), .options.bucket_bytes = 1);
  struct ck_batch batch = ck_batch_make(&deep, EK_F32, _i == 0 ? 8 : 3, 0, 1);
  ek_device *device = ek_group_device(t.group, _i == 2 ? 7 : 0); /* one without rows */
  const uint64_t block = (12 * WIDTH * WIDTH + 13 * WIDTH) * sizeof(float);
  const struct seen forward = look_at_forward(&t, &batch, device, block);
  ck_assert_uint_eq(forward.taken, LAYERS);
  ck_assert_uint_eq(forward.given, LAYERS);
  ck_assert_uint_eq(forward.both, LAYERS - 1);
  ck_assert_uint_le(forward.most, 2 * block + 2 * EK_MEMORY_UNIT);
  ck_ok(ek_memory_record_start(device, 1 << 16));
  ck_ok(ck_training_step(&t, &batch, NULL));
  const struct seen step = look(device, block);
  ck_assert_uint_eq(step.taken, 2 * LAYERS);
  ck_assert_uint_eq(step.given, 2 * LAYERS);
  ck_assert_uint_eq(step.both, 2 * (LAYERS - 1));
  ck_assert_uint_le(step.most, 2 * block + 2 * EK_MEMORY_UNIT);
}

enum { STACK = 8, SIDE = 24, LAYER = SIDE * SIDE + SIDE };

static ek_status stack_of_linears(ek_module **module) {
  ek_module *layers[STACK] = {NULL};
  for (int i = 0; i < STACK; i++) {
    ck_ok(ek_linear_create(&layers[i], i == 0 ? 7 : SIDE, i + 1 == STACK ? 5 : SIDE, true));
  }
  return ck_sequential(module, layers, STACK, NULL);
}

/* Modules that mark no units are put together until a unit has `bucket_bytes`: here the first
 * three, of which the first is small, then pairs. Each begins as memory of its own would. */
CK_TEST(modules_share_units) {
  CK_WITH(struct ck_workload, stack, *ck_workload("mlp"), .module = stack_of_linears);
  struct ck_setup setup = ck_setup_mode(&stack, "plan:2", EK_MODE_FULLY_SHARDED);
  const uint64_t pair = 2 * LAYER * sizeof(float);
  setup.options.bucket_bytes = pair;
  struct ck_training t = ck_training_opened(&setup);
  struct ck_batch batch = ck_batch_make(&stack, EK_F32, 8, 0, 1);
  const struct seen seen = look_at_forward(&t, &batch, ek_group_device(t.group, 0), pair);
  ck_assert_uint_eq(seen.taken, 3); /* layers 0 to 2, 3 and 4, 5 and 6; 7 is less than a pair */
  ck_training_close(&t);

  setup.options.bucket_bytes = 1;
  t = ck_training_opened(&setup);
  const ek_replica *replica = ek_data_parallel_model_replica(t.model, 0);
  for (int i = 0; i < STACK; i++) {
    ek_parameter_info weight, bias;
    ck_ok(ek_replica_find(&weight, replica, ck_text("%d.weight", i)));
    ck_ok(ek_replica_find(&bias, replica, ck_text("%d.bias", i)));
    const int64_t first = weight.offset < bias.offset ? weight.offset : bias.offset;
    ck_assert_int_eq(first * (int64_t)sizeof(uint16_t) % EK_MEMORY_UNIT, 0);
  }
}

/* 16 bytes for each parameter, over the devices, and at most two units besides; evenly. */
CK_TEST(state_is_an_eighth) {
  CK_WITH(struct ck_workload, deep, *ck_workload("gpt"), .module = deep_gpt);
  struct ck_training t = ck_training_of(ck_setup_mode(&deep, "plan:8", EK_MODE_FULLY_SHARDED));
  struct ck_batch batch = ck_batch_make(&deep, EK_F32, 8, 0, 1);
  static const ek_memory_category state[] = {EK_MEMORY_PARAMETERS, EK_MEMORY_GRADIENTS,
                                             EK_MEMORY_OPTIMIZER};
  const double eighth = 16.0 * (double)flat_elements(&t) / 8;
  const double units = 2 * 2 * (12 * WIDTH * WIDTH + 13 * WIDTH) * sizeof(float);
  ck_ok(ck_training_step(&t, &batch, NULL));
  double most = 0, sum = 0;
  for (size_t k = 0; k < 8; k++) {
    double at_rest = 0, at_peak = 0;
    CK_GOT(ek_memory_usage, usage, ck_memory_stats(&usage, ek_group_device(t.group, k)));
    for (size_t c = 0; c < 3; c++) at_rest += (double)usage.current[state[c]];
    for (size_t c = 0; c < 3; c++) at_peak += (double)usage.at_peak[state[c]];
    ck_assert_double_le(at_rest, 1.02 * eighth);
    ck_assert_double_le(at_peak, 1.02 * eighth + units);
    sum += (double)usage.peak_bytes;
    if ((double)usage.peak_bytes > most) most = (double)usage.peak_bytes;
  }
  ck_assert_double_le(most / (sum / 8), 1.02);
}

CK_SUITE("shares")
