/*
 * check_state.c - the state by name: a run that was carried through host memory goes on as if it
 * had never stopped.
 *
 * Where mode and devices are the same, every entry is the same to the bit. Elsewhere the tolerance
 * is that of check_data_parallel_optimizer.c, for fewer steps: 1e-5 in f32 and 1e-11 in f64, ten
 * times that for the states of the rule. The gpt is compared in f64 alone there, for the reason
 * that is given there.
 */
#include "ck_blend.h"
#include "ck_state.h"
#include "ck_training.h"

enum { SAMPLES = 7, STEPS = 6, STOP = 3 };

/* ---- entries ---- */

static struct ck_setup setup_of(const char *workload, int placement) {
  struct ck_setup setup = ck_setup_at(ck_workload(workload), "cpu:3", placement);
  return setup;
}

CK_LOOP(entries, CK_PLACEMENTS) {
  struct ck_training t = ck_training_of(setup_of("gpt", _i));
  const ek_state_placement state = t.setup.options.state;
  const size_t count = ek_state_count(t.model);
  const size_t parameters = ek_replica_parameter_count(ek_data_parallel_model_replica(t.model, 0));
  ck_assert_uint_eq(count, 3 * parameters + 2);
  for (size_t i = 0; i < count; i++) {
    CK_GOT(ek_state_info, at, ek_state_entry(&at, t.model, i));
    CK_GOT(ek_state_info, named, ek_state_find(&named, t.model, at.name));
    ck_assert_str_eq(at.name, named.name);
    ck_assert_int_eq(at.kind, named.kind);
    ck_assert_int_eq(at.placement, named.placement);
    ck_assert(ek_tensor_same_shape(&at.like, &named.like));
    ck_assert(at.like.data == NULL && at.like.device == NULL && at.like.memory == NULL);
    ck_assert_int_eq(at.kind, i < parameters       ? EK_STATE_KIND_PARAMETER
                              : i < 3 * parameters ? EK_STATE_KIND_OPTIMIZER
                              : i == count - 2     ? EK_STATE_KIND_STEP
                                                   : EK_STATE_KIND_SEED);
    /* In 16 bits masters are cut wherever states are. */
    const bool cuts =
        state == EK_STATE_FULLY_SHARDED || (ck_precision() != 0 && state >= EK_STATE_SHARDED);
    const bool cut = cuts && at.kind == EK_STATE_KIND_PARAMETER;
    const bool shared = at.kind != EK_STATE_KIND_OPTIMIZER && state != EK_STATE_MASTER && !cut;
    ck_assert_int_eq(at.placement, shared || i >= 3 * parameters ? EK_STATE_REPLICATED : state);
  }
  CK_GOT(ek_state_info, info, ek_state_entry(&info, t.model, 0));
  ck_assert_str_eq(info.name, "tokens.weight");
  ck_assert(info.like.rank == 2 && info.like.shape[0] == 13 && info.like.shape[1] == 8);
  ck_ok(ek_state_find(&info, t.model, "adamw/v/head.weight")); /* another name of it */
  ck_assert_str_eq(info.name, "adamw/v/tokens.weight");
  ck_ok(ek_state_find(&info, t.model, "run/seed"));
  ck_assert(info.like.type == EK_I64 && info.like.rank == 0);
  ck_fails(ek_state_find(&info, t.model, "adamw/w/head.weight"), EK_ERR_NOT_FOUND, "adamw/w");
  ck_fails(ek_state_find(&info, t.model, "adamw/m/step"), EK_ERR_NOT_FOUND, "step");
  ck_invalid(ek_state_entry(&info, t.model, count), "no entry");
  ek_data_parallel_optimizer_free(t.optimizer);
  t.optimizer = NULL;
  ck_assert_uint_eq(ek_state_count(t.model), parameters + 2);
  ck_fails(ek_state_find(&info, t.model, "adamw/m/tokens.weight"), EK_ERR_NOT_FOUND, "adamw");
}

CK_LOOP(values_by_name, CK_PLACEMENTS) {
  struct ck_training t = ck_training_of(setup_of("gpt", _i));
  float numbers[13 * 8], back[13 * 8] = {0};
  for (int i = 0; i < 13 * 8; i++) numbers[i] = (float)i;
  const char *const names[] = {"tokens.weight", "adamw/m/tokens.weight", "adamw/v/tokens.weight"};
  for (int i = 0; i < 3; i++) {
    CK_WITH(ek_tensor, host, ck_like(&t, names[i]), .data = numbers);
    ck_ok(ek_state_write(t.model, names[i], &host));
    CK_GOT(ek_tensor, flat, ek_tensor_host(&flat, back, EK_F32, CK_SHAPE(13 * 8)));
    ck_ok(ek_state_read(&flat, t.model, names[i]));
    ck_assert_mem_eq(numbers, back, sizeof numbers);
    memset(back, 0, sizeof back);
    host.data = back;
    ck_ok(ek_state_read(&host, t.model, i == 0 ? "head.weight" : names[i]));
    ck_assert_mem_eq(numbers, back, sizeof numbers);
  }
  ck_training_replicas_agree(&t);
}

/* A range of an entry, and the others stay; an empty one at the end is legal. */
CK_LOOP(a_part_is_written, CK_PLACEMENTS) {
  static const char *const names[] = {"tokens.weight", "adamw/v/tokens.weight"};
  enum { COUNT = 13 * 8, FIRST = 50 };
  struct ck_training t = ck_training_of(setup_of("gpt", _i));
  for (size_t n = 0; n < 2; n++) {
    double given[COUNT], got[COUNT];
    ek_tensor whole, part;
    for (int i = 0; i < COUNT; i++) given[i] = 1 + i;
    ck_ok(ek_tensor_host(&whole, given, EK_F64, CK_SHAPE(13, 8)));
    ck_ok(ek_state_write(t.model, names[n], &whole));
    for (int i = FIRST; i < COUNT - 1; i++) given[i] += 0.5;
    ck_ok(ek_tensor_host(&part, given + FIRST, EK_F64, CK_SHAPE(COUNT - 1 - FIRST)));
    ck_ok(ek_state_write_range(t.model, names[n], &part, FIRST));
    ck_ok(ek_tensor_host(&part, given, EK_F64, CK_SHAPE(0)));
    ck_ok(ek_state_write_range(t.model, names[n], &part, COUNT));
    ck_fails(ek_state_write_range(t.model, names[n], &part, COUNT + 1), EK_ERR_SHAPE,
             "ek_state_write_range: the range is outside the 104 elements");
    ck_fails(ek_state_write_range(t.model, names[n], &part, -1), EK_ERR_SHAPE, "outside");
    ck_fails(ek_state_write_range(t.model, names[n], &whole, 0), EK_ERR_SHAPE, "outside");
    ek_tensor negative = part;
    negative.shape[0] = -1;
    ck_fails(ek_state_write_range(t.model, names[n], &negative, 0), EK_ERR_SHAPE, "outside");
    ck_fails(ek_state_write_range(t.model, "who", &part, 0), EK_ERR_NOT_FOUND, "who");
    ck_ok(ek_tensor_host(&whole, got, EK_F64, CK_SHAPE(13, 8)));
    ck_ok(ek_state_read(&whole, t.model, names[n]));
    for (int i = 0; i < COUNT; i++) ck_assert(got[i] == given[i]);
  }
  if (ck_precision() != 0) ck_training_copies_are_right(&t);
  ck_training_replicas_agree(&t);
}

/* Values and states in f64, with bits that f32 does not have; and in 16 bits, and a part. */
CK_LOOP(in_another_type, CK_PLACEMENTS) {
  static const char *const names[] = {"tokens.weight", "adamw/v/tokens.weight"};
  enum { COUNT = 13 * 8 };
  struct ck_training t = ck_training_of(setup_of("gpt", _i));
  for (size_t n = 0; n < 2; n++) {
    double given[COUNT], doubles[COUNT];
    float singles[COUNT];
    uint16_t halves[COUNT];
    for (int i = 0; i < COUNT; i++) given[i] = (double)(1 + i % 64) + 0x1p-30;
    CK_GOT(ek_tensor, host, ek_tensor_host(&host, given, EK_F64, CK_SHAPE(13, 8)));
    ck_ok(ek_state_write(t.model, names[n], &host));
    ck_ok(ek_tensor_host(&host, singles, EK_F32, CK_SHAPE(13, 8)));
    ck_ok(ek_state_read(&host, t.model, names[n]));
    ck_ok(ek_tensor_host(&host, doubles, EK_F64, CK_SHAPE(COUNT)));
    ck_ok(ek_state_read(&host, t.model, names[n]));
    ck_ok(ek_tensor_host(&host, halves, EK_BF16, CK_SHAPE(COUNT - 5)));
    ck_ok(ek_state_read_range(&host, t.model, names[n], 5));
    for (int i = 0; i < COUNT; i++) {
      ck_assert(singles[i] == (float)(1 + i % 64) && doubles[i] == (double)singles[i]);
      uint32_t bits = 0;
      memcpy(&bits, &singles[i], sizeof bits);
      if (i >= 5) ck_assert_uint_eq(halves[i - 5], bits >> 16); /* 64 fits in eight bits */
    }
  }
  if (ck_precision() != 0) ck_training_copies_are_right(&t);
  ck_training_replicas_agree(&t);
}

CK_TEST(wrong_names_and_tensors) {
  struct ck_training t = ck_training_of(setup_of("blend", 3));
  double numbers[CK_BLEND_WIDTH + 1] = {0};
  int64_t number = -1;
  ek_tensor good, typed, whole, sized, turned, step, absent = {0};
  const ek_tensor there = *ek_replica_parameters(ek_data_parallel_model_replica(t.model, 0));
  ek_tensor remote = there;
  ck_ok(ek_tensor_host(&good, numbers, EK_F32, CK_SHAPE(CK_BLEND_WIDTH)));
  ck_ok(ek_tensor_host(&typed, numbers, EK_F64, CK_SHAPE(CK_BLEND_WIDTH)));
  ck_ok(ek_tensor_host(&whole, numbers, EK_I32, CK_SHAPE(CK_BLEND_WIDTH)));
  ck_ok(ek_tensor_host(&sized, numbers, EK_F32, CK_SHAPE(CK_BLEND_WIDTH + 1)));
  ck_ok(ek_tensor_host(&turned, numbers, EK_F32, CK_SHAPE(CK_BLEND_WIDTH, 1)));
  ck_ok(ek_tensor_host(&step, &number, EK_I64, 0, NULL));
  const struct {
    const char *name;
    ek_tensor *tensor;
    ek_status status;
  } cases[] = {{"nobody", &good, EK_ERR_NOT_FOUND},
               {"a.b", &good, EK_ERR_NOT_FOUND},
               {"adamw/m/c", &good, EK_ERR_NOT_FOUND}, /* a buffer */
               {"a", &whole, EK_ERR_TYPE},
               {"run/seed", &typed, EK_ERR_TYPE},
               {"a", &sized, EK_ERR_SHAPE},
               {"a", &turned, EK_ERR_SHAPE},
               {"adamw/m/a", &turned, EK_ERR_SHAPE},
               {"a", &absent, EK_ERR_INVALID_ARGUMENT},
               {"a", &remote, EK_ERR_INVALID_ARGUMENT},
               {"a", NULL, EK_ERR_INVALID_ARGUMENT},
               {NULL, &good, EK_ERR_INVALID_ARGUMENT},
               {"run/step", &good, EK_ERR_TYPE}};
  struct ck_state before = ck_state_take(t.model);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ck_assert_int_eq(ek_state_read(cases[i].tensor, t.model, cases[i].name), cases[i].status);
    ck_assert_int_eq(ek_state_write(t.model, cases[i].name, cases[i].tensor), cases[i].status);
  }
  ck_invalid(ek_state_write(t.model, "run/step", &step), "-1");
  ck_state_is("after wrong calls", t.model, &before);
  ck_fails(ek_data_parallel_model_gradient(&good, t.model, "a"), EK_ERR_STATE, "last backward");
  ck_invalid(ek_data_parallel_model_gradient(&good, t.model, "c"), "buffer");
  ck_ok(ek_state_read(&good, t.model, "c")); /* buffers have values */
  ck_assert_double_eq(((const float *)good.data)[0], 0.5);
}

/* ---- a run that is carried ---- */

static ek_status momentum(ek_optimizer **optimizer) {
  CK_WITH(ek_sgd_options, options, EK_SGD_OPTIONS_INIT, .momentum = 0.9,
          .dampening = 0.5 /* the first step is another one */, .weight_decay = 0.01,
          .clip_norm = 0.5);
  return ek_sgd_create(optimizer, &options);
}

static void open_run(struct ck_training *t, const struct ck_setup *setup) {
  ek_data_parallel_optimizer_options options = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  ck_training_open(t, setup);
  CK_GOT(ek_schedule, schedule, ek_schedule_warmup_cosine(&schedule, 0.02, 0.001, 2, STEPS));
  options.schedule = &schedule;
  ck_training_update_with(t, &options);
}

/* Steps first .. last - 1 of the run, of two micro-batches each. */
static void go(struct ck_training *t, int first, int last) {
  for (int step = first; step < last; step++) {
    struct ck_batch batch =
        ck_batch_make(t->setup.workload, t->setup.options.type, SAMPLES, 0.2, (uint64_t)step + 50);
    const struct ck_batch a = ck_batch_samples(&batch, 0, SAMPLES - 3);
    const struct ck_batch b = ck_batch_samples(&batch, SAMPLES - 3, 3);
    ck_ok(ck_training_backward(t, &a, NULL, true, NULL));
    CK_GOT(ek_step_result, result, ck_training_step(t, &b, &result));
    ck_assert_int_eq(result.step, step + 1);
  }
}

/* Runs `setup` to the end, and a second time as far as STOP and from there on as `other`. */
static void carry(const struct ck_setup *setup, const struct ck_setup *other, bool same) {
  const double allowed = setup->options.type == EK_F32 ? 1e-5 : 1e-11;
  struct ck_training whole, begun, resumed;
  struct ck_setup fresh = *other;
  fresh.options.seed = 12345; /* other initial values, and the masks of another run */
  open_run(&whole, setup);
  go(&whole, 0, STEPS);
  open_run(&begun, setup);
  go(&begun, 0, STOP);
  struct ck_state carried = ck_state_take(begun.model);
  ck_training_close(&begun);
  open_run(&resumed, &fresh);
  if (setup->options.type == EK_F32) go(&resumed, 0, 1); /* it need not be new */
  ck_ok(ck_state_put(resumed.model, &carried));
  ck_assert_int_eq(ek_data_parallel_optimizer_steps(resumed.optimizer), STOP);
  go(&resumed, STOP, STEPS);
  struct ck_state got = ck_state_take(resumed.model), want = ck_state_take(whole.model);
  if (same) {
    ck_state_same("resumed", &got, &want);
  } else {
    ck_state_close("resumed elsewhere", &got, &want, allowed);
  }
  ck_training_close(&resumed);
  ck_training_close(&whole);
}

static struct ck_setup run_setup(int number) {
  struct ck_setup setup =
      ck_setup_mode(&ck_workloads[number % CK_WORKLOADS], "cpu:3", EK_MODE_GATHER);
  const bool gpt = strcmp(setup.workload->name, "gpt") == 0;
  setup.options.type = gpt || number / CK_WORKLOADS % 2 == 0 ? EK_F64 : EK_F32;
  if (number / CK_WORKLOADS / 2 % 2 == 1) setup.optimizer = momentum;
  return setup;
}
enum { RUNS = 4 * CK_WORKLOADS };

CK_PART_LOOP(resumed_alike, RUNS) {
  struct ck_setup setup = run_setup(_i);
  for (int placement = 0; placement < CK_PLACEMENTS; placement++) {
    ck_setup_place(&setup, placement);
    if (_i == 1 && placement % 2 == 0) setup.options.type = EK_F32; /* the gpt, too */
    carry(&setup, &setup, true);
  }
}

CK_PART_LOOP(resumed_elsewhere, RUNS) {
  static const char *const specs[] = {"cpu:1", "cpu:2", "cpu:4", "cpu:2", "cpu:3", "cpu:1"};
  struct ck_setup setup = run_setup(_i), other = setup;
  for (int placement = 0; placement < CK_PLACEMENTS; placement++) {
    ck_setup_place(&setup, placement);
    ck_setup_place(&other, (placement + 1 + _i) % CK_PLACEMENTS);
    other.spec = specs[placement % 6];
    carry(&setup, &other, false);
  }
}

/* The count of steps ends with the optimizer, and the next one begins a run. */
CK_LOOP(a_second_optimizer, CK_PLACEMENTS) {
  int64_t step = 9;
  CK_GOT(ek_tensor, host, ek_tensor_host(&host, &step, EK_I64, 0, NULL));
  struct ck_training t = ck_training_of(setup_of("mlp", _i));
  go(&t, 0, 2);
  ek_data_parallel_optimizer_free(t.optimizer);
  ck_ok(ek_state_read(&host, t.model, "run/step"));
  ck_assert_int_eq(step, 0);
  step = 4; /* said before there is an optimizer, too */
  ck_ok(ek_state_write(t.model, "run/step", &host));
  ck_kept(ek_data_parallel_optimizer_open(&t.optimizer, t.model, t.rule, NULL), t.optimizer);
  go(&t, 4, 5);
}

/* ---- devices that only count ---- */

CK_LOOP(plan_devices, CK_PLACEMENTS) {
  CK_TRAINING(t, setup_of("gpt", _i), .spec = "plan:3");
  for (size_t i = 0; i < ek_state_count(t.model); i++) {
    CK_GOT(ek_state_info, info, ek_state_entry(&info, t.model, i));
    double numbers[600];
    ek_tensor host = info.like;
    ck_assert_uint_le(ek_tensor_bytes(&host), sizeof numbers);
    memset(numbers, 0x11, sizeof numbers);
    host.data = numbers;
    ck_ok(ek_state_write(t.model, info.name, &host));
    memset(numbers, 0x22, sizeof numbers);
    ck_ok(ek_state_read(&host, t.model, info.name));
    const unsigned char *byte = (const unsigned char *)numbers;
    ck_assert_int_eq(byte[0], info.kind >= EK_STATE_KIND_STEP ? 0x11 : 0x22);
  }
}

/* ---- faults ---- */

/* No call takes host memory. Each piece of work of a device fails once: a read leaves the model
 * good; a write may leave it torn, and writing everything once more mends it. */
CK_LOOP(faults, CK_PLACEMENTS) {
  const struct ck_setup setup = setup_of("mlp", _i);
  CK_SET_UP(struct ck_training, t, open_run(&t, &setup));
  go(&t, 0, 1);
  struct ck_state state = ck_state_take(t.model);
  int failures = 0;
  for (size_t device = 0; device < 3; device++) {
    for (uint64_t n = 1; n < 40; n += 5) {
      ck_ok(ek_fault_at(ek_group_device(t.group, device), n, EK_ERR_UNAVAILABLE));
      ek_host_memory_fail_at(1);
      const ek_status status = ck_state_put(t.model, &state);
      ek_host_memory_fail_at(0);
      ck_ok(ek_fault_at(ek_group_device(t.group, device), 0, EK_OK));
      failures += status != EK_OK;
      ck_assert(status == EK_OK || status == EK_ERR_UNAVAILABLE);
      ek_tensor host = state.host[0];
      ck_assert_int_eq(ek_state_read(&host, t.model, state.info[0].name),
                       status == EK_OK ? EK_OK : EK_ERR_TORN);
      ck_ok(ck_state_put(t.model, &state));
      ck_ok(ek_fault_at(ek_group_device(t.group, device), 1 + n / 5, EK_ERR_UNAVAILABLE));
      for (size_t i = 0; i < state.count; i++) {
        const ek_status read = ek_state_read(&state.host[i], t.model, state.info[i].name);
        ck_assert(read == EK_OK || read == EK_ERR_UNAVAILABLE);
      }
      ck_ok(ek_fault_at(ek_group_device(t.group, device), 0, EK_OK));
    }
  }
  ck_assert_int_gt(failures, 0);
  ck_training_replicas_agree(&t);
  go(&t, 1, 2);
}

CK_SUITE("state")
