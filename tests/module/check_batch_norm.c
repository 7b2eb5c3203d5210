/*
 * check_batch_norm.c - batch normalisation over the rows of one device: against plain sums in f64,
 * running statistics, evaluation, frozen statistics. Several devices: tests/whole.
 */
#include "ck_module.h"

enum { C = 6, ROWS = 8 };

static ek_batch_norm_options options_now = EK_BATCH_NORM_OPTIONS_INIT;

#define BATCH_NORM(create, kind, has_affine, has_track)                                            \
  CK_CREATE_WITH(create, ek_batch_norm_options, EK_BATCH_NORM_OPTIONS_INIT,                        \
                 ek_batch_norm_create_with(module, C, &o), .over = kind, .affine = has_affine,     \
                 .track = has_track, .epsilon = 0.125)
BATCH_NORM(create_shard, EK_BATCH_NORM_SHARD, true, true)
BATCH_NORM(create_all, EK_BATCH_NORM_ALL, true, true)
BATCH_NORM(create_frozen, EK_BATCH_NORM_FROZEN, true, true)
BATCH_NORM(create_plain, EK_BATCH_NORM_SHARD, false, false)
static ek_status create_now(ek_module **module) {
  return ek_batch_norm_create_with(module, C, &options_now);
}
CK_CREATE_AROUND(create_recomputed, ek_recompute_create, create_now(&inner))

static const struct ck_module_case cases[] = {
    CK_CASE("8 x 6", create_shard, 8, 6, 1, {0, 2, {ROWS, C}, -2, 2}),
    CK_CASE("2 x 3 x 2 x 6, over all", create_all, 12, 6, 2, {0, 4, {2, 3, 2, C}, -2, 2}),
    CK_CASE_PROBED("300 x 2 x 6, far from zero, in two pieces", create_shard, 600, 24, 1, 8,
                   {0, 3, {300, 2, C}, 3, 5, 0}), /* x is four times x - mean */
    CK_CASE("8 x 6, frozen", create_frozen, 8, 6, 1, {0, 2, {ROWS, C}, -2, 2}),
    CK_CASE("8 x 6, x alone", create_plain, 8, 6, 1, {0, 2, {ROWS, C}, -2, 2}),
};

/* Statistics of a shard differ from those of the whole batch. */
static bool is_of_the_device(const struct ck_module_case *is) {
  return is->create == create_shard || is->create == create_plain;
}
CK_LOOP(every_module, EK_CHECKS * sizeof cases / sizeof cases[0]) {
  const struct ck_module_case *is = &cases[_i / EK_CHECKS];
  const ek_check check = (ek_check)(_i % EK_CHECKS);
  if (check == EK_CHECK_DEVICES && is_of_the_device(is)) return;
  ck_module_case_check(is, check);
}

/* ---- against plain sums ---- */

static const struct ck_module_case now = {.create = create_now,
                                          .input = {{0, 4, {2, 2, 2, C}, -2, 6, 0}}};

struct plain {
  double mean[C], variance[C];
};

static struct plain plain_of(const double *x) {
  struct plain p = {{0}, {0}};
  for (int i = 0; i < ROWS * C; i++) p.mean[i % C] += x[i] / ROWS;
  for (int i = 0; i < ROWS * C; i++) {
    p.variance[i % C] += (x[i] - p.mean[i % C]) * (x[i] - p.mean[i % C]) / ROWS;
  }
  return p;
}

static void read_named(double *values, const struct ck_bed *bed, const char *name) {
  CK_GOT(ek_parameter_info, info, ek_replica_find(&info, bed->replica, name));
  ck_get(values, &info.value);
}

static const double weights[] = {0.5, -1, 2, 0.25, -3, 1}, biases[] = {1, 2, 0, -1, -2, 0.5};

/* The bed with the options of now and with known parameters; `training` as said. */
static struct ck_bed *open_now(ek_type type, bool training) {
  struct ck_bed *bed = ck_bed_open(&now, type, test_devices("cpu:1"));
  bed->options.training = training;
  ck_bed_set(bed, "weight", weights);
  ck_bed_set(bed, "bias", biases);
  ck_bed_set(bed, "running_mean", (const double[C]){0, 0.5, 1, -1, 2, 0.25});
  ck_bed_set(bed, "running_var", (const double[C]){1, 2, 0.5, 4, 1, 0.25});
  ck_bed_set(bed, "num_batches_tracked", (const double[]){1});
  return bed;
}

static void expect(const char *what, const double *got, const double *want, int count,
                   double tolerance) {
  for (int i = 0; i < count; i++) {
    ck_assert_msg(fabs(got[i] - want[i]) <= tolerance, "%s[%d] is %.17g, expected %.17g", what, i,
                  got[i], want[i]);
  }
}

/* Sums of 8 terms below 36, twice differenced, in f64: 1e-13 is a hundred times the error. In f32
 * 32 roundings of numbers below 16. */
CK_LOOP(against_plain_sums, 4) {
  const ek_type type = _i % 2 == 0 ? EK_F64 : EK_F32;
  const double tolerance = type == EK_F64 ? 1e-13 : 32 * 16 * 0x1p-24;
  options_now = (ek_batch_norm_options)EK_BATCH_NORM_OPTIONS_INIT;
  options_now.epsilon = 0.125;
  options_now.over = _i / 2 == 0 ? EK_BATCH_NORM_SHARD : EK_BATCH_NORM_ALL;
  struct ck_bed *bed = open_now(type, true);
  const struct plain p = plain_of(bed->value[0]);
  double y[ROWS * C], got[C], running[2][C], before[2][C];
  read_named(before[0], bed, "running_mean");
  read_named(before[1], bed, "running_var");
  for (int i = 0; i < ROWS * C; i++) {
    const int c = i % C;
    y[i] = (bed->value[0][i] - p.mean[c]) / sqrt(p.variance[c] + 0.125) * weights[c] + biases[c];
  }
  for (int c = 0; c < C; c++) {
    running[0][c] = 0.9 * before[0][c] + 0.1 * p.mean[c];
    running[1][c] = 0.9 * before[1][c] + 0.1 * p.variance[c] * ROWS / (ROWS - 1);
  }
  expect("y", ck_bed_backward(bed, false)->output[0], y, ROWS * C, tolerance);
  read_named(got, bed, "running_mean");
  expect("running_mean", got, running[0], C, tolerance);
  read_named(got, bed, "running_var");
  expect("running_var", got, running[1], C, tolerance);
  read_named(got, bed, "num_batches_tracked");
  ck_assert_double_eq(got[0], 2);
}

/* The buffers follow once, though a recomputed forward runs twice. */
CK_TEST(recomputation_counts_once) {
  options_now = (ek_batch_norm_options)EK_BATCH_NORM_OPTIONS_INIT;
  struct ck_bed *bed = open_now(EK_F32, true);
  CK_WITH(struct ck_module_case, again, now, .create = create_recomputed);
  struct ck_bed *twice = ck_bed_open(&again, EK_F32, test_devices("cpu:1"));
  static const char *const names[] = {"weight", "bias", "running_mean", "running_var",
                                      "num_batches_tracked"};
  double values[5][C], got[C];
  for (int k = 0; k < 5; k++) {
    read_named(values[k], bed, names[k]);
    ck_bed_set(twice, names[k], values[k]);
  }
  const struct ck_results *want = ck_bed_backward(bed, true), *have = ck_bed_backward(twice, true);
  ck_same_bits("y", have->output[0], want->output[0], ROWS * C);
  ck_same_bits("dx", have->grad_input[0], want->grad_input[0], ROWS * C);
  for (int k = 2; k < 5; k++) {
    read_named(values[k], bed, names[k]);
    read_named(got, twice, names[k]);
    ck_same_bits(names[k], got, values[k], k == 4 ? 1 : C);
  }
}

/* Momentum 0 and below: the second batch of two counts a half. */
CK_LOOP(cumulative, 2) {
  options_now = (ek_batch_norm_options)EK_BATCH_NORM_OPTIONS_INIT;
  options_now.momentum = _i == 0 ? 0 : -1;
  struct ck_bed *bed = open_now(EK_F64, true);
  const struct plain p = plain_of(bed->value[0]);
  double before[C], got[C], want[C];
  read_named(before, bed, "running_var");
  (void)ck_bed_backward(bed, false);
  for (int c = 0; c < C; c++) want[c] = (before[c] + p.variance[c] * ROWS / (ROWS - 1)) / 2;
  read_named(got, bed, "running_var");
  expect("running_var", got, want, C, 1e-13);
}

/* Evaluation, and frozen statistics in training: the running ones, which stay. */
CK_LOOP(running_statistics, 3) {
  options_now = (ek_batch_norm_options)EK_BATCH_NORM_OPTIONS_INIT;
  options_now.over = _i == 0   ? EK_BATCH_NORM_FROZEN
                     : _i == 1 ? EK_BATCH_NORM_SHARD
                               : EK_BATCH_NORM_ALL;
  struct ck_bed *bed = open_now(EK_F64, _i == 0);
  double mean[C], variance[C], after[C], y[ROWS * C], dx[ROWS * C];
  read_named(mean, bed, "running_mean");
  read_named(variance, bed, "running_var");
  for (int i = 0; i < ROWS * C; i++) {
    const double factor = weights[i % C] / sqrt(variance[i % C] + 1e-5);
    y[i] = (bed->value[0][i] - mean[i % C]) * factor + biases[i % C];
    dx[i] = bed->factor[0][i] * factor;
  }
  struct ck_results *results = ck_bed_backward(bed, true);
  expect("y", results->output[0], y, ROWS * C, 1e-12);
  expect("dx", results->grad_input[0], dx, ROWS * C, 1e-12);
  read_named(after, bed, "running_mean");
  ck_same_bits("running_mean", after, mean, C);
  read_named(after, bed, "num_batches_tracked");
  ck_assert_double_eq(after[0], 1);
}

/* ---- wrong arguments ---- */

CK_TEST(bad_input) {
  const ek_initializer ones = ek_initializer_ones();
  ek_batch_norm_options o = EK_BATCH_NORM_OPTIONS_INIT;
  ek_module *module = NULL;
  ck_invalid(ek_batch_norm_create(NULL, C), "batch_norm");
  ck_invalid(ek_batch_norm_create(&module, 0), "channels is 0");
#define REFUSED(member, value, text)                                                               \
  ck_bad(o, member, value, ek_batch_norm_create_with(&module, C, &o), text);                       \
  ck_assert_ptr_null(module)
  REFUSED(epsilon, 0, "epsilon is 0");
  REFUSED(epsilon, (double)NAN, "epsilon");
  REFUSED(momentum, 1.5, "momentum is 1.5");
  REFUSED(momentum, (double)NAN, "momentum");
  REFUSED(over, (ek_batch_norm_over)3, "over is 3");
  o.track = false;
  REFUSED(over, EK_BATCH_NORM_FROZEN, "needs the running statistics");
  ck_assign(o, .track = true, .affine = false);
  REFUSED(weight_start, &ones, "affine is false");
  ck_host_failures(create_shard);

  ck_ok(create_shard(&module));
  ck_forward_fails(module, EK_ERR_SHAPE, "batch_norm, forward: input has 5 columns, expected 6",
                   EK_F32, CK_SHAPE(2, 5));
  ek_module_free(module);
  ck_overflows(module, ek_batch_norm_create(&module, INT64_MAX));
}

CK_SUITE("batch_norm")
