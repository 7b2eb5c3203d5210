/*
 * check_gradient_type.c - gradients that are kept and summed in 16 bits.
 *
 * What a backward adds is rounded once, devices and micro-batches are added up to bounds that
 * docs/numerics.md derives, and modules see f32. That placements agree and plans are exact is in
 * check_precision.c.
 */
#include "ck_probe.h"
#include "ck_rule.h"
#include "ck_training.h"

enum { DEVICES = 3, SAMPLES = 8, PAIRS = 4, CASES = CK_PLACEMENTS * PAIRS };

static const struct {
  ek_precision precision;
  ek_type gradients;
} pairs[PAIRS] = {
    {EK_PRECISION_F32, EK_BF16}, {EK_PRECISION_BF16, EK_BF16}, {EK_PRECISION_F32, EK_F16},
    {EK_PRECISION_F16, EK_F16}};

static double rounding_of(ek_type type) { return type == EK_BF16 ? 0x1p-8 : 0x1p-11; }

static const ek_loss_scale no_loss_scale = {.kind = EK_LOSS_SCALE_NONE};

/* The gradient of a sum, which nothing is divided by. */
static struct ck_setup setup_of(int number, const char *workload, const char *spec) {
  struct ck_setup setup = ck_setup_at(ck_workload(workload), spec, number % CK_PLACEMENTS);
  ck_assign(setup, .options.precision = pairs[number / CK_PLACEMENTS].precision,
            .options.gradient_type = pairs[number / CK_PLACEMENTS].gradients,
            .reduction = EK_REDUCTION_SUM, .loss_scale = &no_loss_scale,
            .optimizer = ck_clipped_adamw);
  return setup;
}

/* Gradients of a step of samples first .. last - 1 in two micro-batches, cut at `middle`, or in
 * one. */
static double *gradients_of(const struct ck_setup *setup, int64_t first, int64_t middle,
                            int64_t last) {
  struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 5);
  CK_HELD(struct ck_training, t, ck_training_opened(setup));
  if (middle > first) {
    const struct ck_batch before = ck_batch_samples(&batch, first, middle - first);
    ck_ok(ck_training_backward(&t, &before, NULL, true, NULL));
  }
  const struct ck_batch rest = ck_batch_samples(&batch, middle, last - middle);
  ck_ok(ck_training_backward(&t, &rest, NULL, false, NULL));
  return ck_training_read(&t, CK_GRADIENTS);
}

/* ---- rounding ---- */

/* One of more elements than are read at once. */
static ek_status wide_mlp(ek_module **module) {
  return ek_mlp_create(module, (const int64_t[]){7, 700, 5}, 3, EK_ACTIVATION_GELU);
}

/* One device and one micro-batch: the f32 gradient, rounded to nearest. */
CK_PART_LOOP(a_gradient_is_rounded_once, ck_if_halves(CASES)) {
  for (int w = 0; w <= CK_WORKLOADS; w++) {
    struct ck_workload workload = *(w < CK_WORKLOADS ? &ck_workloads[w] : ck_workload("mlp"));
    if (w == CK_WORKLOADS) workload.module = wide_mlp;
    CK_WITH(struct ck_setup, setup, setup_of(_i, workload.name, "cpu:1"), .workload = &workload);
    CK_WITH(struct ck_setup, wide, setup, .options.gradient_type = EK_F32);
    double *got = gradients_of(&setup, 0, 0, SAMPLES);
    double *want = gradients_of(&wide, 0, 0, SAMPLES);
    for (int64_t i = 0; i < ck_count(want); i++) {
      want[i] = ck_round_to(setup.options.gradient_type, want[i]);
    }
    ck_arrays_same(workload.name, got, want);
  }
}

/* abs(got - want) is at most v times `sizes`, and as much as the smallest numbers of f16 round. */
static void within(const double *got, const double *want, const double *sizes, ek_type type,
                   double roundings) {
  const double v = rounding_of(type), tiny = type == EK_F16 ? 0x1p-25 : 0x1p-134;
  ck_assert_int_eq(ck_count(got), ck_count(sizes));
  for (int64_t i = 0; i < ck_count(got); i++) {
    const double bound = (v + 0x1p-20) * sizes[i] + roundings * tiny;
    ck_assert_msg(fabs(got[i] - want[i]) <= bound, "number %lld: %.9g, expected %.9g +- %.3g",
                  (long long)i, got[i], want[i], bound);
  }
}

/*
 * Each device rounds its gradient g_k, and so does the sum; NCCL rounds at each of N - 1 additions.
 * What they round is at most the sum S of abs(g_k) and what was rounded before, so N v S covers
 * both. The devices' gradients are those of one device for their rows: SAMPLES over 3 devices are
 * 3, 3 and 2.
 */
CK_PART_LOOP(devices_add_up, ck_if_halves(CASES)) {
  static const int64_t cut[DEVICES + 1] = {0, 3, 6, 8};
  const struct ck_setup many = setup_of(_i, "mlp", "cpu:3");
  CK_WITH(struct ck_setup, one, setup_of(_i, "mlp", "cpu:1"), .options.gradient_type = EK_F32);
  double *got = gradients_of(&many, 0, 0, SAMPLES);
  const int64_t count = ck_count(got);
  double *want = ck_array((size_t)count, sizeof *want);
  double *sizes = ck_array((size_t)count, sizeof *sizes);
  for (int k = 0; k < DEVICES; k++) {
    double *part = gradients_of(&one, cut[k], cut[k], cut[k + 1]);
    for (int64_t i = 0; i < count; i++) {
      want[i] += part[i];
      sizes[i] += (DEVICES + 1) * fabs(part[i]);
    }
  }
  within(got, want, sizes, many.options.gradient_type, DEVICES + 1);
}

/* A micro-batch is added to what was rounded before, and the sum is rounded; where devices keep
 * shares it is rounded by itself, too. */
CK_PART_LOOP(micro_batches_add_up, ck_if_halves(CASES)) {
  const struct ck_setup setup = setup_of(_i, "mlp", "cpu:1");
  CK_WITH(struct ck_setup, wide, setup, .options.gradient_type = EK_F32);
  double *got = gradients_of(&setup, 0, 5, SAMPLES);
  double *want = gradients_of(&wide, 0, 0, 5);
  double *second = gradients_of(&wide, 5, 5, SAMPLES);
  double *sizes = ck_array((size_t)ck_count(want), sizeof *sizes);
  for (int64_t i = 0; i < ck_count(want); i++) {
    sizes[i] = 2.02 * (fabs(want[i]) + fabs(second[i]));
    want[i] += second[i];
  }
  within(got, want, sizes, setup.options.gradient_type, 3);
}

/* ---- training ---- */

static double *trained(const struct ck_setup *setup) {
  ck_deterministic(true);
  struct ck_training t = ck_training_opened(setup);
  for (uint64_t step = 0; step < 2; step++) {
    struct ck_batch batch = ck_batch_make(setup->workload, EK_F32, SAMPLES, 0.1, 20 + step);
    ck_ok(ck_training_backward(&t, &batch, NULL, true, NULL));
    ck_ok(ck_training_step(&t, &batch, NULL));
  }
  return ck_training_read(&t, CK_VALUES);
}

/* Any number of devices, with the tree of sums in 16 bits. */
CK_PART_LOOP(reproducible_bits_are_the_same, ck_if_halves(CASES)) {
  static const char *const specs[] = {"cpu:1", "cpu:2", "cpu:3"};
  double *values[3];
  for (int i = 0; i < 3; i++) {
    CK_WITH(struct ck_setup, setup, setup_of(_i, "gpt", specs[i]),
            .options.outputs = EK_OUTPUTS_STAY, .options.reproducible = 3);
    values[i] = trained(&setup);
    if (i > 0) ck_arrays_same(specs[i], values[i], values[0]);
  }
}

/* ---- what a module sees ---- */

enum { ADDITIONS = 8 };

/* 1 and several times 2^-9, which bf16 would lose one by one, and keeps together: 1 + 2^-6. */
static ek_status add_often(ek_pass *pass, const ek_tensor *dy) {
  double beta = -1;
  ek_tensor da, again, db, step;
  (void)dy;
  ek_stream *stream = ek_pass_stream(pass);
  EK_TRY(ek_pass_gradient(&da, &beta, pass, 0));
  ck_assert_int_eq(da.type, EK_F32);
  ck_assert_double_eq(beta, 0);
  EK_TRY(ek_op_fill(stream, &da, 1));
  EK_TRY(ek_pass_workspace(&step, pass, EK_F32, da.rank, da.shape));
  EK_TRY(ek_op_fill(stream, &step, 0x1p-9));
  for (int i = 0; i < ADDITIONS; i++) {
    EK_TRY(ek_pass_gradient(&again, &beta, pass, 0));
    ck_assert_ptr_eq(again.data, da.data);
    ck_assert_double_eq(beta, 1);
    EK_TRY(ek_op_add(stream, &again, &again, &step));
  }
  ek_tensor_free(&step);
  EK_TRY(ek_pass_gradient(&db, NULL, pass, 1)); /* zeroed, and never said to be complete */
  ck_assert_int_eq(db.type, EK_F32);
  return ek_pass_gradient_complete(pass, 0);
}

/* It begins with what the step has; 2^-7 is the next number, so a quarter of it is lost and all of
 * it is not. */
static ek_status add_more(ek_pass *pass, const ek_tensor *dy) {
  double beta = -1;
  ek_tensor da;
  (void)dy;
  EK_TRY(ek_pass_gradient(&da, &beta, pass, 0));
  ck_assert_double_eq(beta, 1);
  const double values[] = {1 + 0x1p-6, 1 + 0x1p-6};
  double got[2];
  ck_get(got, &da);
  ck_same_bits("so far", got, values, 2);
  return ek_tensor_copy(
      &da, &(ek_tensor){.type = EK_F32,
                        .rank = 1,
                        .shape = {2},
                        .data = (float[]){1 + 0x1p-6F + 0x1p-9F, 1 + 0x1p-6F + 0x1p-7F}});
}

static ek_status give_up(ek_pass *pass, const ek_tensor *dy) {
  ek_tensor da;
  (void)dy;
  EK_TRY(ek_pass_gradient(&da, NULL, pass, 0));
  return ek_error_set(EK_ERR_STATE, "enough");
}

static ek_status run_probe(struct ck_probe *p, ek_replica *replica, bool accumulate) {
  CK_WITH(ek_pass_options, options, EK_PASS_OPTIONS_INIT, .accumulate = accumulate);
  CK_SCOPED(ek_pass *, pass, ek_pass_open(&pass, replica, &options));
  CK_SCOPED(ek_tensor, y, ek_pass_run_forward(&y, pass, &p->x));
  const ek_status status = ek_pass_run_backward(NULL, pass, &y);
  return status;
}

CK_LOOP(modules_see_f32, ck_if_halves(1)) {
  struct ck_probe *p = ck_probe_open(NULL, add_often);
  ek_parameter_info a, b;
  double got[2];
  CK_WITH(ek_replica_options, options, EK_REPLICA_OPTIONS_INIT, .gradient_type = EK_BF16);
  CK_SCOPED(ek_replica *, replica, ek_replica_open(&replica, p->device, &p->probe->base, &options));
  ck_ok(ek_replica_find(&a, replica, "a"));
  ck_ok(ek_replica_find(&b, replica, "b"));
  ck_assert_int_eq(a.gradient.type, EK_BF16);
  CK_GOT(ek_memory_usage, before, ek_memory_stats(&before, p->device));
  ck_ok(run_probe(p, replica, false));
  ck_get(got, &a.gradient);
  ck_same_bits("a", got, (const double[]){1 + 0x1p-6, 1 + 0x1p-6}, 2);
  ck_get(got, &b.gradient);
  ck_same_bits("b", got, (const double[]){0, 0}, 2);
  p->probe->backward = add_more;
  ck_ok(run_probe(p, replica, true));
  ck_get(got, &a.gradient);
  ck_same_bits("a", got, (const double[]){1 + 0x1p-6, 1 + 0x3p-7}, 2);
  p->probe->backward = give_up;
  ck_fails(run_probe(p, replica, true), EK_ERR_STATE, "enough");
  CK_GOT(ek_memory_usage, after, ek_memory_stats(&after, p->device));
  ck_assert_uint_eq(after.current[EK_MEMORY_GRADIENTS], before.current[EK_MEMORY_GRADIENTS]);
}

/* ---- f16 wants a loss scale ---- */

/* The f32 gradient does not overflow, what it is rounded to does: the step is skipped on all
 * devices. */
CK_LOOP(an_overflow_of_the_rounding_is_found, ck_if_halves(CK_PLACEMENTS)) {
  struct ck_setup setup = setup_of(_i, "mlp", "cpu:3");
  ck_assign(setup.options, .precision = EK_PRECISION_F32, .gradient_type = EK_F16);
  setup.loss_scale = &(const ek_loss_scale){.kind = EK_LOSS_SCALE_DYNAMIC,
                                            .scale = 0x1p30,
                                            .growth = 2,
                                            .backoff = 0.5,
                                            .interval = 2000};
  struct ck_training t = ck_training_opened(&setup);
  struct ck_batch batch = ck_batch_make(setup.workload, EK_F32, SAMPLES, 0.1, 5);
  double *before = ck_training_read(&t, CK_VALUES);
  CK_GOT(ek_step_result, result, ck_training_step(&t, &batch, &result));
  ck_assert(result.skipped);
  double *values = ck_training_read(&t, CK_VALUES);
  ck_arrays_same("parameters", values, before);
  for (int i = 0; i < 40 && result.skipped; i++) ck_ok(ck_training_step(&t, &batch, &result));
  ck_assert(!result.skipped);
  ck_assert_int_eq(result.step, 1);
}

CK_LOOP(f16_has_a_loss_scale_by_default, ck_if_halves(1)) {
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  struct ck_training t;
  for (int i = 0; i < PAIRS; i++) {
    ck_assign(setup.options, .precision = pairs[i].precision, .gradient_type = pairs[i].gradients);
    setup.optimizer = ck_clipped_adamw;
    t = ck_training_opened(&setup);
    const double scale = ek_data_parallel_optimizer_loss_scale(t.optimizer);
    ck_assert_double_eq(scale, pairs[i].gradients == EK_F16 ? 0x1p16 : 1);
    ck_training_close(&t);
  }
}

/* ---- refusals ---- */

CK_UPDATE(narrow_update) {
  return EK_OK;
}

/* A rule that says nothing about types: its loops read floats. */
static ek_status narrow(ek_optimizer **optimizer) {
  return ck_rule_create(optimizer, "narrow", narrow_update);
}

CK_TEST(what_makes_no_sense_is_refused) {
  static const struct {
    ek_type type, precision, gradients;
    const char *words;
  } rows[] = {{EK_F64, EK_F64, EK_BF16, "gradient_type is bf16, but parameters are f64"},
              {EK_F32, EK_F32, EK_F64, "expected f32, bf16 or f16"},
              {EK_F32, EK_F32, EK_I32, "gradient_type is i32"},
              {EK_F32, EK_BF16, EK_F16, "modules compute in bf16; expected f32 or bf16"},
              {EK_F32, EK_F16, EK_BF16, "modules compute in f16; expected f32 or f16"}};
  struct ck_setup setup = ck_setup_mode(ck_workload("mlp"), "cpu:2", EK_MODE_SHARDED);
  ek_group *group = ck_open("cpu:2", 1);
  struct ck_training t;
  const unsigned types = ek_device_types(ek_group_device(group, 0));
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    if ((types >> rows[i].precision & 1u) == 0) continue;
    ck_assign(setup.options, .type = rows[i].type, .precision = (ek_precision)rows[i].precision,
              .gradient_type = rows[i].gradients);
    ck_invalid(ck_training_try(&t, &setup, group), rows[i].words);
    ck_no_memory_held(group);
  }
  ck_assign(setup.options, .type = EK_F32, .precision = EK_PRECISION_F32, .gradient_type = EK_BF16);
  ck_bad_with(EK_ERR_UNSUPPORTED, setup, optimizer, narrow, ck_training_try(&t, &setup, group),
              (types & EK_TYPES_BF16) != 0 ? "narrow computes in f32, not in bf16" : "not in bf16");
}

CK_SUITE("gradient_type")
