/*
 * check_cuda_kernels.c - the CUDA kernels that no operation of op.h reaches, by their launchers:
 * totals of several terms, the sum over pointers, and what launchers refuse.
 *
 * All others are tested where the CPU's are, in tests/op, on emulated devices in each order of
 * CUDA's threads and on GPUs.
 */
#include "kernel_rig.h"

/* ---- what is refused: nothing is queued ---- */

/* A type that is not computed is refused, and nothing is queued. */
CK_TEST(wrong_types) {
  struct kr_rig *rig = kr_open(0);
  const struct ek__elementwise_args args = {.count = 1, .types = {EK_BF16, EK_BF16, false}};
  ck_assert_int_eq(ek__cuda_fill(&rig->at, &args), cudaErrorInvalidValue);
  kr_close(rig);
}

CK_LOOP(too_wide, 2) {
  struct kr_rig *rig = kr_open(_i);
  const struct ek__attention_args args = {
      .batch = 1, .tokens = 1, .heads = 1, .kv_heads = 1, .head_width = 257, .types = rig->types};
  ck_assert_int_eq(ek__cuda_attention_forward(&rig->at, &args), cudaErrorInvalidValue);
  ck_assert_int_eq(ek__cuda_attention_backward(&rig->at, &args), cudaErrorInvalidValue);
  kr_close(rig);
}

/* ---- totals ---- */

CK_TEST(combine_totals) {
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
    for (int64_t j = 0; j < terms; j++) combined[1] = fmax(combined[1], totals[2 * j + 1]);
    for (int64_t j = 0; j < terms; j++) { /* 0 for a term of 0 samples, unless all are */
      const double d = totals[2 * j + 1];
      const double ratio = d == combined[1] ? 1 : d == 0 ? 0 : combined[1] / d;
      scales[2 * j] = args.coefficients[j] * (args.divide ? ratio : 1);
      combined[0] += scales[2 * j] * totals[2 * j];
    }
    if (!args.divide) combined[1] = 1;
    args.totals = kr_bytes(rig, totals, (size_t)(2 * terms) * sizeof *totals);
    args.scales = kr_bytes(rig, totals, (size_t)(2 * terms) * sizeof *totals);
    args.combined = kr_bytes(rig, combined, sizeof combined);
    kr_ok(ek__cuda_combine_totals(&rig->at, &args));
    kr_check_doubles(rig, "combined", args.combined, combined, 2, 100 * 0x1p-53);
    kr_check_doubles(rig, "scales", args.scales, scales, 2 * terms, 4 * 0x1p-53);
    kr_close(rig);
  }
}

static const int64_t counts[] = {0, 1, 3, 4, 255, 1027, 5000};
enum { COUNTS = sizeof counts / sizeof counts[0] };

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
    kr_check(rig, "reduced", &array);
  }
}

CK_LOOP(reduce, KR_VARIANTS) {
  for (int i = 0; i < REDUCES * COUNTS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    check_reduce(rig, reduces[i / COUNTS], counts[i % COUNTS]);
    kr_close(rig);
  }
}

/* (1 + u) + u is 1 and u + u + 1 is not: sources are added in their order. */
CK_LOOP(reduce_order, KR_VARIANTS) {
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

KR_SUITE("cuda_kernels")
