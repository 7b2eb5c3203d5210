/*
 * check_cuda_kernels_training.c - the CUDA kernels of losses, updates and the peer reduction
 * against the reference in double precision. Tolerances: kernel_rig.h; totals are f64, but the sum
 * of what the type of the losses holds, so that they err as those do.
 */
#include <math.h>
#include <string.h>

#include "kernel_rig.h"

/* ---- cross-entropy ---- */

/* rows, classes: odd ones put rows at every offset from 16 bytes */
static const int64_t logits[][2] = {{0, 5},    {1, 1},   {7, 2},    {65, 3},  {33, 31},
                                    {9, 1025}, {4, 257}, {3, 9001}, {1100, 4}};
enum { LOGITS = sizeof logits / sizeof logits[0], IGNORED = -100 };

struct entropy {
  struct kr_array x, losses, normalizer, weights, row_scale, gradient;
  const int32_t *targets;
  double *totals; /* on the device */
  struct ek__loss_args device, host;
  struct ek__loss_job job;
};

/* Bits of a kind: smoothing; weights and scales; something in common of all logits, which nothing
 * may depend on. */
enum { SMOOTH = 1, WEIGHED = 2, SHIFTED = 4 };

/* Case i of 4 * LOGITS: every other size is shifted. */
static int kind_of(int i) { return i % 4 | (i / 4 % 2 == 1 ? SHIFTED : 0); }

static struct entropy make_entropy(struct kr_rig *rig, const int64_t *size, int kind) {
  const int64_t rows = size[0], classes = size[1], n = rows * classes;
  const double scale = 0.37, poison = NAN;
  struct entropy e = {.x = kr_values(rig, n, -5, 5),
                      .losses = kr_poison(rig, rows),
                      .normalizer = kr_poison(rig, 2 * rows),
                      .weights = kr_values(rig, classes, 0.1, 2),
                      .row_scale = kr_values(rig, rows, -1, 1),
                      .gradient = kr_poison(rig, n)};
  int32_t *targets = (int32_t *)(void *)kr_zeros(rig, rows);
  for (int64_t i = 0; i < rows; i++) {
    targets[i] = (int32_t)ck_random_integer(&rig->random, 0, classes - 1);
    if (i % 5 == 4) targets[i] = IGNORED;
  }
  e.targets = targets;
  const double common = 1e5 * (0x1p-24 / rig->unit);
  for (int64_t i = 0; (kind & SHIFTED) && i < n; i++) {
    const double value = e.x.host[i] + common;
    e.x.host[i] = rig->type == EK_F32 ? (double)(float)value : value;
  }
  kr_send(rig, &e.x);
  e.totals = kr_bytes(rig, (double[]){poison, poison}, 2 * sizeof(double));
  e.host = (struct ek__loss_args){.losses = e.losses.host,
                                  .normalizer = e.normalizer.host,
                                  .gradient = e.gradient.host,
                                  .outputs = e.x.host,
                                  .targets = targets,
                                  .rows = rows,
                                  .classes = classes,
                                  .columns = classes,
                                  .ignore_index = IGNORED,
                                  .label_smoothing = kind & SMOOTH ? 0.1 : 0,
                                  .types = {EK_F64, EK_F64}};
  e.device = e.host;
  e.device.losses = e.losses.device, e.device.normalizer = e.normalizer.device;
  e.device.gradient = e.gradient.device, e.device.outputs = e.x.device;
  e.device.targets = kr_bytes(rig, targets, (size_t)rows * sizeof *targets);
  e.device.totals = e.totals;
  e.device.types = rig->types;
  e.job = (struct ek__loss_job){.factor = 1, .class_weight = (double)classes};
  if (kind & WEIGHED) {
    e.host.class_weights = e.weights.host, e.device.class_weights = e.weights.device;
    e.job.class_weight = 0;
    for (int64_t c = 0; c < classes; c++) e.job.class_weight += e.weights.host[c];
    e.host.row_scale = e.row_scale.host, e.device.row_scale = e.row_scale.device;
    e.device.scale = kr_bytes(rig, &scale, sizeof scale);
    e.job.factor = scale;
  }
  return e;
}

/* What a forward has written: log z is at most log(9001) and a logit 10 below the largest, so that
 * a loss is at most 20; with the sum's 40 roundings, 15 times is enough. */
static void check_entropy_losses(struct kr_rig *rig, struct entropy *e) {
  double want[2] = {0, 0};
  const double steps = 15 * (40 + sqrt((double)e->host.classes));
  e->job.args = &e->host;
  ek__cross_entropy_forward_f64(&e->job, 0, e->host.rows);
  for (int64_t i = 0; i < e->host.rows; i++) {
    if (e->targets[i] == IGNORED) continue;
    want[0] += e->losses.host[i];
    want[1] += e->host.class_weights ? e->weights.host[e->targets[i]] : 1;
  }
  if (e->host.classes > 1) {
    kr_check(rig, "losses", &e->losses, steps);
    kr_check(rig, "normalizer", &e->normalizer, steps);
  }
  kr_check_doubles(rig, "totals", e->totals, want, 2, steps * rig->unit);
}

START_TEST(cross_entropy) {
  for (int i = 0; i < 4 * LOGITS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    struct entropy e = make_entropy(rig, logits[i / 4], kind_of(i));
    kr_ok(ek__cuda_cross_entropy_forward(&rig->at, &e.device));
    check_entropy_losses(rig, &e);
    kr_send(rig, &e.normalizer);
    const bool in_place = e.host.classes > 4;
    if (in_place) e.device.gradient = e.x.device, e.gradient.device = e.x.device;
    kr_ok(ek__cuda_cross_entropy_backward(&rig->at, &e.device));
    ek__cross_entropy_backward_f64(&e.job, 0, e.host.rows);
    /* p - 1 loses what p has: 200 for p next to 1, and the exponent's size. */
    if (e.host.classes > 1) kr_check_small(rig, "gradient", &e.gradient, 400);
    kr_close(rig);
  }
}
END_TEST

/* Both in one kernel, in place or not. */
static void check_entropy_gradient(struct kr_rig *rig, const int64_t *size, int kind,
                                   double scale) {
  struct entropy e = make_entropy(rig, size, kind);
  e.device.row_scale = e.host.row_scale = NULL;
  e.device.scale = NULL;
  e.device.host_scale = e.job.factor = scale;
  const bool in_place = e.host.classes > 4;
  if (in_place) e.device.gradient = e.x.device, e.gradient.device = e.x.device;
  kr_ok(ek__cuda_cross_entropy_gradient(&rig->at, &e.device));
  check_entropy_losses(rig, &e);
  ek__cross_entropy_backward_f64(&e.job, 0, e.host.rows);
  if (e.host.classes > 1) kr_check_small(rig, "gradient", &e.gradient, 400);
}

START_TEST(cross_entropy_gradient) {
  for (int i = 0; i < 4 * LOGITS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    check_entropy_gradient(rig, logits[i / 4], kind_of(i), i % 3 == 0 ? 1 : -0.37);
    kr_close(rig);
  }
}
END_TEST

/* Rows so long that not all of them are under way at a time: a block takes several. */
START_TEST(cross_entropy_gradient_in_turns) {
  if (!ck_part(_i)) return;
  struct kr_rig *rig = kr_open(_i);
  const int64_t size[] = {140, rig->type == EK_F32 ? 24001 : 12001};
  check_entropy_gradient(rig, size, SMOOTH | WEIGHED, 0.5);
  kr_close(rig);
}
END_TEST

/* Infinite logits, a class of no weight, all ignored: what the reference says, bit for bit NaN. */
START_TEST(special_logits) {
  static const double rows[][4] = {{-HUGE_VAL, 0, 1, 2}, {-HUGE_VAL, -HUGE_VAL, 3, -HUGE_VAL},
                                   {1000, -1000, 0, 0},  {NAN, 0, 0, 0},
                                   {HUGE_VAL, 0, 0, 0},  {-HUGE_VAL, -HUGE_VAL, -HUGE_VAL, 0}};
  static const int64_t size[] = {6, 4};
  struct kr_rig *rig = kr_open(_i);
  struct entropy e = make_entropy(rig, size, 0);
  memcpy(e.x.host, rows, sizeof rows);
  kr_send(rig, &e.x);
  for (int i = 0; i < 6; i++) ((int32_t *)(void *)(uintptr_t)e.targets)[i] = i == 5 ? IGNORED : 2;
  e.device.targets = kr_bytes(rig, e.targets, 6 * sizeof(int32_t));
  e.job.args = &e.host;
  kr_ok(ek__cuda_cross_entropy_forward(&rig->at, &e.device));
  ek__cross_entropy_forward_f64(&e.job, 0, 6);
  double bound[6];
  double pairs[12] = {0};
  for (int i = 0; i < 6; i++) pairs[2 * i + 1] = 40 * rig->unit * e.normalizer.host[2 * i + 1];
  ck_within("normalizer", kr_fetch(rig, &e.normalizer), e.normalizer.host, pairs, 12);
  for (int i = 0; i < 6; i++) bound[i] = 40 * rig->unit * (1 + fabs(e.losses.host[i]));
  ck_within("losses", kr_fetch(rig, &e.losses), e.losses.host, bound, 6);
  kr_close(rig);
}
END_TEST

START_TEST(bad_target) {
  static const int64_t size[] = {6, 4};
  struct kr_rig *rig = kr_open(_i);
  struct entropy e = make_entropy(rig, size, 0);
  const int32_t targets[] = {0, 4, 1, -1, 2, IGNORED};
  e.device.targets = kr_bytes(rig, targets, sizeof targets);
  kr_ok(ek__cuda_cross_entropy_forward(&rig->at, &e.device));
  ck_assert_uint_eq(kr_bad(rig).target, kr_bad_word(1, 4)); /* of rows 1 and 3 */
  double totals[2];
  kr_fetch_bytes(rig, totals, e.totals, sizeof totals);
  ck_assert_double_eq(totals[1], 3);
  kr_ok(ek__cuda_cross_entropy_backward(&rig->at, &e.device));
  ck_assert_uint_eq(kr_bad(rig).target, kr_bad_word(1, 4)); /* of rows 1 and 3 */
  const double *gradient = kr_fetch(rig, &e.gradient);
  for (int c = 0; c < 4; c++) ck_assert_double_eq(gradient[4 + c], 0);
  e.device.host_scale = 1;
  kr_ok(ek__cuda_cross_entropy_gradient(&rig->at, &e.device));
  ck_assert_uint_eq(kr_bad(rig).target, kr_bad_word(1, 4));
  ck_same_bits("gradient again", kr_fetch(rig, &e.gradient), gradient, 24);
  kr_close(rig);
}
END_TEST

/* ---- squared error ---- */

static const int64_t counts[] = {0, 1, 3, 4, 255, 1027, 5000};
enum { COUNTS = sizeof counts / sizeof counts[0] };

START_TEST(squared_error) {
  for (int i = 0; i < 2 * COUNTS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t n = counts[i / 2];
    const bool all = i % 2 == 0;
    const double scale = -0.3;
    double want[2] = {0, (double)n};
    const struct kr_array y = kr_values(rig, n, 1, 2), t = kr_values(rig, n, -2, -1);
    const struct kr_array losses = kr_poison(rig, n), factor = kr_values(rig, n, -1, 1);
    double *totals = kr_bytes(rig, want, sizeof want);
    struct ek__loss_args args = {.losses = all ? losses.device : NULL,
                                 .totals = totals,
                                 .gradient = y.device,
                                 .outputs = y.device,
                                 .targets = t.device,
                                 .scale = all ? kr_bytes(rig, &scale, sizeof scale) : NULL,
                                 .row_scale = all ? factor.device : NULL,
                                 .rows = n,
                                 .classes = 1,
                                 .columns = 1,
                                 .types = rig->types};
    kr_ok(ek__cuda_squared_error_forward(&rig->at, &args));
    struct ek__loss_args host = args;
    host.losses = losses.host, host.gradient = y.host, host.outputs = y.host;
    host.targets = t.host, host.row_scale = all ? factor.host : NULL;
    const struct ek__loss_job job = {&host, all ? scale : 1, 0, want, n + 1};
    ek__squared_error_forward_f64(&job, 0, 1);
    if (all) kr_check(rig, "losses", &losses, 4);
    kr_check_doubles(rig, "totals", totals, want, 2, 4 * rig->unit + (double)n * 0x1p-53);
    kr_ok(ek__cuda_squared_error_backward(&rig->at, &args));
    ek__squared_error_backward_f64(&job, 0, n);
    kr_check(rig, "gradient", &y, 5);
    kr_close(rig);
  }
}
END_TEST

START_TEST(combine_totals) {
  for (int i = 0; i < 2 * 65; i++) {
    struct kr_rig *rig = kr_open(0);
    const int64_t terms = i / 2;
    struct ek__combine_args args = {.terms = (size_t)terms, .divide = i % 2 == 0};
    double *totals = kr_zeros(rig, 2 * terms), *scales = kr_zeros(rig, 2 * terms),
           combined[2] = {0, 0};
    for (int64_t j = 0; j < terms; j++) {
      args.coefficients[j] = ck_random_uniform(&rig->random, 0, 1);
      totals[2 * j] = ck_random_uniform(&rig->random, 1, 2);
      totals[2 * j + 1] = (double)ck_random_integer(&rig->random, 0, 3);
    }
    struct ek__combine_args host = args;
    host.totals = totals, host.scales = scales, host.combined = combined;
    args.totals = kr_bytes(rig, totals, (size_t)(2 * terms) * sizeof *totals);
    args.scales = kr_bytes(rig, totals, (size_t)(2 * terms) * sizeof *totals);
    args.combined = kr_bytes(rig, combined, sizeof combined);
    kr_ok(ek__cuda_combine_totals(&rig->at, &args));
    ck_ok(ek__cpu_combine_totals(NULL, &host));
    kr_check_doubles(rig, "combined", args.combined, combined, 2, 100 * 0x1p-53);
    kr_check_doubles(rig, "scales", args.scales, scales, 2 * terms, 4 * 0x1p-53);
    kr_close(rig);
  }
}
END_TEST

/* ---- updates ---- */

/* Bits of a kind: totals, clipping, first step, momentum or decoupled, nesterov. */
enum { TOTALS = 1, CLIP = 2, FIRST = 4, SECOND_WAY = 8, NESTEROV = 16 };

/* As the reference has it, and updates.h. */
static double factor_of(int kind, double weight, double square_norm, double clip_norm) {
  const double share = kind & TOTALS ? (weight == 0 ? 0 : 1 / weight) : 1;
  if (!(kind & CLIP)) return share;
  const double clip = clip_norm / (sqrt(square_norm) * share + 1e-6);
  return clip > 1 ? share : share * clip;
}

static void check_update(struct kr_rig *rig, int64_t n, int kind, bool adam) {
  const double totals[] = {1, kind & NESTEROV ? 0 : 8}, square_norm = 49;
  const struct kr_array p = kr_values(rig, n, -1, 1), g = kr_values(rig, n, -1, 1);
  const bool read = !(kind & FIRST);
  const struct kr_array s0 = read ? kr_values(rig, n, -1, 1) : kr_poison(rig, n);
  const struct kr_array s1 = read ? kr_values(rig, n, 0.1, 1) : kr_poison(rig, n);
  const bool state = adam || kind & SECOND_WAY;
  struct ek__update_args args = {
      .p = p.device,
      .state0 = state ? s0.device : NULL,
      .state1 = adam ? s1.device : NULL,
      .g = g.device,
      .count = n,
      .totals = kind & TOTALS ? kr_bytes(rig, totals, sizeof totals) : NULL,
      .square_norm = kind & CLIP ? kr_bytes(rig, &square_norm, sizeof square_norm) : NULL,
      .clip_norm = kind & CLIP ? 0.5 : 0,
      .learning_rate = 0.1,
      .weight_decay = 0.01,
      .momentum = kind & SECOND_WAY ? 0.9 : 0,
      .dampening = kind & NESTEROV ? 0 : 0.1,
      .beta1 = 0.9,
      .beta2 = 0.99,
      .epsilon = 1e-6,
      .correction1 = 0.3,
      .correction2 = 0.1,
      .nesterov = kind & NESTEROV,
      .decoupled = kind & SECOND_WAY,
      .first = kind & FIRST,
      .types = rig->types};
  struct ek__update_args host = args;
  host.p = p.host, host.g = g.host, host.state0 = state ? s0.host : NULL, host.state1 = s1.host;
  const struct ek__update_job job = {&host, factor_of(kind, totals[1], square_norm, 0.5)};
  kr_ok(adam ? ek__cuda_adamw(&rig->at, &args) : ek__cuda_sgd(&rig->at, &args));
  (adam ? ek__adamw_f64 : ek__sgd_f64)(&job, 0, n);
  kr_check(rig, "p", &p, 40);
  if (state && (adam || args.momentum != 0)) kr_check(rig, "first state", &s0, 12);
  if (adam) kr_check(rig, "second state", &s1, 12);
}

START_TEST(updates) {
  for (int i = 0; i < 64 * COUNTS; i++) {
    if (!ck_part(i)) continue;
    if (i / 64 % 2 == 0 && i % 64 != 11) continue; /* half of the counts once is enough */
    struct kr_rig *rig = kr_open(_i);
    check_update(rig, counts[i / 64], i % 32, i % 64 >= 32);
    kr_close(rig);
  }
}
END_TEST

START_TEST(square_norm) {
  for (int i = 0; i < 2 * COUNTS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t n = counts[i / 2];
    const struct kr_array x = kr_values(rig, n, -1, 2);
    double want = i % 2 == 0 ? NAN : 3.5;
    const double beta = i % 2 == 0 ? 0 : -0.5;
    double *result = kr_bytes(rig, &want, sizeof want);
    const struct ek__elementwise_args args = {
        .y = result, .a = x.device, .count = n, .value = beta, .types = rig->types};
    kr_ok(ek__cuda_square_norm(&rig->at, &args));
    want = beta == 0 ? 0 : beta * want;
    for (int64_t k = 0; k < n; k++) want += x.host[k] * x.host[k];
    kr_check_doubles(rig, "square norm", result, &want, 1, (double)(n + 2) * 0x1p-53);
    kr_close(rig);
  }
}
END_TEST

/* ---- reduce: integers, so that the sum is exact; and one whose order shows ---- */

/* sources, destinations, how many destinations are sources */
static const int reduces[][3] = {{1, 1, 1}, {2, 2, 2}, {4, 1, 0},
                                 {4, 6, 3}, {0, 2, 0}, {16, 16, 16}};
enum { REDUCES = sizeof reduces / sizeof reduces[0] };

static void check_reduce(struct kr_rig *rig, const int *kind, int64_t n) {
  struct kr_array arrays[32];
  void *destinations[32];
  const void *sources[32];
  double *want = kr_zeros(rig, n);
  int made = 0;
  for (int s = 0; s < kind[0]; s++) {
    arrays[made] = kr_values(rig, n, -1, 1);
    for (int64_t i = 0; i < n; i++) {
      const double whole = (double)ck_random_integer(&rig->random, -1000, 1000);
      arrays[made].host[i] = whole;
      want[i] += whole;
    }
    kr_send(rig, &arrays[made]);
    sources[s] = arrays[made++].device;
  }
  for (int d = 0; d < kind[1]; d++) {
    if (d >= kind[2]) arrays[made] = kr_poison(rig, n);
    destinations[d] = d < kind[2] ? arrays[d].device : arrays[made++].device;
  }
  const struct ek__reduce_args args = {destinations,    sources, (size_t)kind[1],
                                       (size_t)kind[0], n,       rig->type};
  kr_ok(ek__cuda_reduce(&rig->at, &args));
  for (int d = 0; d < kind[1]; d++) {
    const struct kr_array array = {want, destinations[d], n};
    kr_check(rig, "reduced", &array, 0);
  }
}

START_TEST(reduce) {
  for (int i = 0; i < REDUCES * COUNTS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    check_reduce(rig, reduces[i / COUNTS], counts[i % COUNTS]);
    kr_close(rig);
  }
}
END_TEST

/* (1 + u) + u is 1 and u + u + 1 is not: sources are added in their order. */
START_TEST(reduce_order) {
  struct kr_rig *rig = kr_open(_i);
  const double u = rig->unit;
  struct kr_array x[] = {kr_values(rig, 1, 0, 1), kr_values(rig, 1, 0, 1), kr_values(rig, 1, 0, 1)};
  const double values[] = {1, u, u};
  for (int i = 0; i < 3; i++) x[i].host[0] = values[i], kr_send(rig, &x[i]);
  const struct kr_array y = kr_poison(rig, 1);
  void *const to[] = {y.device};
  const void *const up[] = {x[0].device, x[1].device, x[2].device};
  const void *const down[] = {x[2].device, x[1].device, x[0].device};
  struct ek__reduce_args args = {to, up, 1, 3, 1, rig->type};
  kr_ok(ek__cuda_reduce(&rig->at, &args));
  ck_assert_double_eq(*kr_fetch(rig, &y), 1);
  args.sources = down;
  kr_ok(ek__cuda_reduce(&rig->at, &args));
  ck_assert_double_eq(*kr_fetch(rig, &y), 1 + 2 * u);
  kr_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("cuda_kernels_training");
  TCase *loss = ck_case(suite, "losses");
  tcase_add_loop_test(loss, cross_entropy, 0, KR_VARIANTS);
  tcase_add_loop_test(loss, cross_entropy_gradient, 0, KR_VARIANTS);
  tcase_add_loop_test(loss, cross_entropy_gradient_in_turns, 0, 2);
  tcase_add_loop_test(loss, special_logits, 0, KR_VARIANTS);
  tcase_add_loop_test(loss, bad_target, 0, KR_VARIANTS);
  tcase_add_loop_test(loss, squared_error, 0, KR_VARIANTS);
  tcase_add_test(loss, combine_totals);
  TCase *update = ck_case(suite, "updates");
  tcase_add_loop_test(update, updates, 0, KR_VARIANTS);
  tcase_add_loop_test(update, square_norm, 0, KR_VARIANTS);
  TCase *sum = ck_case(suite, "reduce");
  tcase_add_loop_test(sum, reduce, 0, KR_VARIANTS);
  tcase_add_loop_test(sum, reduce_order, 0, KR_VARIANTS);
  return suite;
}

KR_MAIN(make_suite)
