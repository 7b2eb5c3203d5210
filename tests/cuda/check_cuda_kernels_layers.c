/*
 * check_cuda_kernels_layers.c - the CUDA kernels of layer normalisation, lookups and attention
 * against the reference in double precision. Tolerances: kernel_rig.h.
 */
#include <math.h>
#include <string.h>

#include "kernel_rig.h"

/* ---- layer normalisation ---- */

/* Widths: below and above what a warp, a block, and a block's registers hold. */
static const int64_t norms[][2] = {{0, 4},     {1, 1},    {3, 2},    {7, 17},   {2, 256},  {65, 33},
                                   {130, 129}, {3, 1024}, {2, 1028}, {2, 5000}, {2, 16400}};
enum { NORMS = sizeof norms / sizeof norms[0] };

static struct ek__layer_norm_args norm_args(const struct kr_array a[6], bool device, ek_type type,
                                            int64_t rows, int64_t width) {
#define SIDE(i) (device ? a[i].device : (void *)a[i].host)
  return (struct ek__layer_norm_args){.y = SIDE(0),
                                      .mean = SIDE(1),
                                      .rstd = SIDE(2),
                                      .x = SIDE(3),
                                      .gamma = SIDE(4),
                                      .beta = SIDE(5),
                                      .epsilon = 1e-5,
                                      .rows = rows,
                                      .width = width,
                                      .types = {type, type}};
#undef SIDE
}

/*
 * The mean of x in offset +- 2 errs by (W + 1) u offset, which is (W + 1) offset of u in x - mean
 * of size 1: a variance by the difference of two sums would lose offset^2.
 */
START_TEST(layer_norm_forward) {
  static const double offsets[] = {0, 100};
  for (int i = 0; i < 2 * NORMS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t rows = norms[i / 2][0], width = norms[i / 2][1], n = rows * width;
    const double offset = offsets[i % 2], sum = (double)width + 20;
    const struct kr_array a[] = {kr_poison(rig, n),
                                 kr_poison(rig, rows),
                                 kr_poison(rig, rows),
                                 kr_values(rig, n, offset - 2, offset + 2),
                                 kr_values(rig, width, -2, 2),
                                 kr_values(rig, width, -2, 2)};
    struct ek__layer_norm_args args = norm_args(a, true, rig->type, rows, width);
    const struct ek__layer_norm_args host = norm_args(a, false, EK_F64, rows, width);
    kr_ok(ek__cuda_layer_norm_forward(&rig->at, &args));
    ek__layer_norm_forward_f64(&host, 0, rows);
    if (width > 1) {
      kr_check(rig, "y", &a[0], sum * (1 + offset));
      kr_check(rig, "mean", &a[1], sum * (width < 4 ? 100 : 4));
      kr_check(rig, "rstd", &a[2], sum * (1 + offset));
    } else {
      kr_check(rig, "y of one column is beta", &a[0], 1);
    }
    const double *y = kr_fetch(rig, &a[0]);
    args.y = a[3].device; /* in place */
    kr_ok(ek__cuda_layer_norm_forward(&rig->at, &args));
    ck_same_bits("y in place", kr_fetch(rig, &a[3]), y, n);
    kr_close(rig);
  }
}
END_TEST

/* Sums of numbers that halves of the type hold: exact, so that y is the norm of the same x. */
START_TEST(layer_norm_of_a_sum) {
  for (int i = 0; i < 3 * NORMS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    const int64_t rows = norms[i / 3][0], width = norms[i / 3][1], n = rows * width;
    struct kr_array a[] = {
        kr_poison(rig, n),       kr_poison(rig, rows),         kr_poison(rig, rows),
        kr_values(rig, n, 1, 4), kr_values(rig, width, -2, 2), kr_values(rig, width, -2, 2)};
    const struct kr_array residual = kr_values(rig, n, -1, 1);
    for (int64_t k = 0; k < n; k++) {
      a[3].host[k] = floor(a[3].host[k] * 256) / 256;
      residual.host[k] = floor(residual.host[k] * 256) / 256;
    }
    kr_send(rig, &a[3]);
    kr_send(rig, &residual);
    const struct kr_array sum = i % 3 == 0 ? kr_poison(rig, n) : i % 3 == 1 ? a[3] : residual;
    struct ek__layer_norm_args args = norm_args(a, true, rig->type, rows, width);
    struct ek__layer_norm_args host = norm_args(a, false, EK_F64, rows, width);
    args.sum = sum.device, args.residual = residual.device;
    host.sum = sum.host, host.residual = residual.host;
    kr_ok(ek__cuda_layer_norm_forward(&rig->at, &args));
    ek__layer_norm_forward_f64(&host, 0, rows);
    kr_check(rig, "sum", &sum, 0);
    kr_check(rig, "y of a sum", &a[0], width > 1 ? 4 * ((double)width + 20) : 1);
    const double *y = kr_fetch(rig, &a[0]);
    args.x = sum.device, args.residual = NULL;
    kr_ok(ek__cuda_layer_norm_forward(&rig->at, &args));
    ck_same_bits("y of the sum alone", kr_fetch(rig, &a[0]), y, n);
    kr_close(rig);
  }
}
END_TEST

/* How dx is asked for: not, overwritten, added to, in the place of dy, added to something else. */
enum { DX_NONE, DX_WRITE, DX_ADD, DX_DY, DX_RESIDUAL, DX_KINDS };

static void check_norm_backward(struct kr_rig *rig, int64_t rows, int64_t width, int kind) {
  const int64_t n = rows * width;
  const double scale = kind == DX_ADD ? -0.5 : 0;
  struct kr_array a[] = {
      kr_poison(rig, n),       kr_poison(rig, rows),         kr_poison(rig, rows),
      kr_values(rig, n, 1, 4), kr_values(rig, width, -2, 2), kr_values(rig, width, -2, 2)};
  struct ek__layer_norm_args args = norm_args(a, true, rig->type, rows, width);
  struct ek__layer_norm_args host = norm_args(a, false, EK_F64, rows, width);
  const struct kr_array dy = kr_values(rig, n, -1, 1);
  const struct kr_array dx = kind == DX_ADD  ? kr_values(rig, n, -1, 1)
                             : kind == DX_DY ? dy
                                             : kr_poison(rig, n);
  const struct kr_array dgamma =
      kind == DX_ADD ? kr_values(rig, width, -1, 1) : kr_poison(rig, width);
  const struct kr_array dbeta = kr_values(rig, width, -1, 1);
  ek__layer_norm_forward_f64(&host, 0, rows);
  kr_send(rig, &a[1]);
  kr_send(rig, &a[2]);
  args.dy = dy.device, args.dgamma = dgamma.device, args.dbeta = dbeta.device;
  host.dy = dy.host, host.dgamma = dgamma.host, host.dbeta = dbeta.host;
  if (kind != DX_NONE) args.dx = dx.device, host.dx = dx.host;
  const struct kr_array residual = kind == DX_RESIDUAL ? kr_values(rig, n, -1, 1) : dx;
  if (kind == DX_ADD || kind == DX_RESIDUAL) {
    args.residual = residual.device, host.residual = residual.host;
  }
  args.gamma_scale = host.gamma_scale = scale;
  args.beta_scale = host.beta_scale = 1;
  for (int64_t i = 0; i < width && scale == 0; i++) dgamma.host[i] = 0;
  for (int64_t i = 0; i < width; i++) dgamma.host[i] *= scale;
  const struct ek__layer_norm_job job = {&host, true};
  kr_ok(ek__cuda_layer_norm_backward(&rig->at, &args));
  ek__layer_norm_backward_f64(&job, 0, rows);
  if (width > 1) {
    /* 300: rstd and mean arrive rounded, and x - mean is a third of x. dx of two columns is zero
     * but for what is rounded. */
    if (kind != DX_NONE && width > 2) kr_check(rig, "dx", &dx, (double)width + 300);
    kr_check(rig, "dgamma", &dgamma, (double)rows + 300);
    kr_check(rig, "dbeta", &dbeta, (double)rows + 10);
  }
}

START_TEST(layer_norm_backward) {
  for (int i = 0; i < DX_KINDS * NORMS; i++) {
    if (!ck_part(i)) continue;
    const int64_t *size = norms[i / DX_KINDS];
    struct kr_rig *rig = kr_open(_i);
    check_norm_backward(rig, size[0], size[1], i % DX_KINDS);
    kr_close(rig);
  }
}
END_TEST

/* ---- lookups ---- */

/* rows, width, entries, period */
static const int64_t lookups[][4] = {{0, 8, 5, 1},     {1, 1, 1, 1},   {6, 3, 4, 3},
                                     {64, 33, 50, 16}, {600, 8, 9, 5}, {300, 1100, 40, 30},
                                     {20, 0, 3, 4}};
enum { LOOKUPS = sizeof lookups / sizeof lookups[0] };

static int32_t *draw_indices(struct kr_rig *rig, int64_t rows, int64_t entries) {
  int32_t *index = (int32_t *)(void *)kr_zeros(rig, rows);
  for (int64_t i = 0; i < rows; i++) {
    index[i] = (int32_t)ck_random_integer(&rig->random, 0, entries - 1);
    if (i % 3 == 0) index[i] = (int32_t)(entries / 2); /* one that comes often */
  }
  return index;
}

START_TEST(lookup) {
  for (int i = 0; i < 2 * LOOKUPS; i++) {
    if (!ck_part(i)) continue;
    const int64_t *s = lookups[i / 2], n = s[0] * s[1];
    struct kr_rig *rig = kr_open(_i);
    const int32_t *index = draw_indices(rig, s[0], s[2]);
    void *device_index = kr_bytes(rig, index, (size_t)s[0] * sizeof *index);
    const struct kr_array table = kr_values(rig, s[2] * s[1], -2, 2), y = kr_poison(rig, n);
    const struct kr_array positions = kr_values(rig, s[3] * s[1], -2, 2);
    struct ek__lookup_args args = {.y = y.device,
                                   .table = table.device,
                                   .index = device_index,
                                   .positions = i % 2 == 0 ? positions.device : NULL,
                                   .rows = s[0],
                                   .width = s[1],
                                   .entries = s[2],
                                   .period = s[3],
                                   .types = rig->types};
    kr_ok(ek__cuda_lookup_forward(&rig->at, &args));
    args.y = y.host, args.table = table.host, args.index = index;
    args.positions = i % 2 == 0 ? positions.host : NULL;
    ek__lookup_forward_f64(&args, 0, s[0]);
    kr_check(rig, "lookup", &y, 1 - i % 2);
    kr_close(rig);
  }
}
END_TEST

START_TEST(lookup_backward) {
  for (int i = 0; i < LOOKUPS; i++) {
    if (!ck_part(i)) continue;
    const int64_t *s = lookups[i], n = s[0] * s[1];
    struct kr_rig *rig = kr_open(_i);
    const int32_t *index = draw_indices(rig, s[0], s[2]);
    const struct kr_array table = kr_values(rig, s[2] * s[1], -2, 2), dy = kr_values(rig, n, -1, 2);
    const struct ek__lookup_args args = {.y = table.device,
                                         .table = dy.device,
                                         .index =
                                             kr_bytes(rig, index, (size_t)s[0] * sizeof *index),
                                         .rows = s[0],
                                         .width = s[1],
                                         .entries = s[2],
                                         .types = rig->types};
    struct ek__lookup_args host = args;
    host.y = table.host, host.table = dy.host, host.index = index;
    kr_ok(ek__cuda_lookup_backward(&rig->at, &args));
    const double *first = kr_fetch(rig, &table);
    kr_send(rig, &table); /* the old ones again */
    kr_ok(ek__cuda_lookup_backward(&rig->at, &args));
    ck_same_bits("dtable again", kr_fetch(rig, &table), first, table.count);
    ek__lookup_backward_f64(&host, 0, s[1]);
    kr_check(rig, "dtable", &table, (double)s[0] + 1);
    kr_close(rig);
  }
}
END_TEST

START_TEST(positions_backward) {
  for (int i = 0; i < 2 * LOOKUPS; i++) {
    if (!ck_part(i)) continue;
    const int64_t *s = lookups[i / 2];
    const int64_t rows = s[0] / s[3] * s[3], n = rows * s[1]; /* period divides the rows */
    struct kr_rig *rig = kr_open(_i);
    const struct kr_array dy = kr_values(rig, n, -1, 2);
    const struct kr_array y =
        i % 2 == 0 ? kr_poison(rig, s[3] * s[1]) : kr_values(rig, s[3] * s[1], -1, 1);
    struct ek__lookup_args args = {.y = y.device,
                                   .table = dy.device,
                                   .rows = rows,
                                   .width = s[1],
                                   .period = s[3],
                                   .beta = i % 2 == 0 ? 0 : -0.5,
                                   .types = rig->types};
    kr_ok(ek__cuda_positions_backward(&rig->at, &args));
    args.y = y.host, args.table = dy.host;
    ek__positions_backward_f64(&args, 0, s[3]);
    kr_check(rig, "dpositions", &y, (double)(rows / s[3]) + 2);
    kr_close(rig);
  }
}
END_TEST

/* A bad index is told, its row is zeros, and nothing else goes wrong. */
START_TEST(bad_index) {
  static const int32_t indices[][3] = {{0, -1, 1}, {0, 2, 1}, {0, INT32_MIN, 1}, {0, INT32_MAX, 1}};
  for (int i = 0; i < 4; i++) {
    struct kr_rig *rig = kr_open(_i);
    const struct kr_array table = kr_values(rig, 2 * 5, 1, 2), y = kr_poison(rig, 3 * 5);
    struct ek__lookup_args args = {.y = y.device,
                                   .table = table.device,
                                   .index = kr_bytes(rig, indices[i], sizeof indices[i]),
                                   .rows = 3,
                                   .width = 5,
                                   .entries = 2,
                                   .period = 1,
                                   .types = rig->types};
    kr_ok(ek__cuda_lookup_forward(&rig->at, &args));
    ck_assert_uint_eq(kr_bad(rig).index, kr_bad_word(1, indices[i][1]));
    memcpy(y.host, table.host, 5 * sizeof(double));
    memcpy(y.host + 10, table.host + 5, 5 * sizeof(double));
    kr_check(rig, "rows around a bad index", &y, 0);
    args.y = table.device, args.table = y.device;
    kr_ok(ek__cuda_lookup_backward(&rig->at, &args));
    ck_assert_uint_eq(kr_bad(rig).index, kr_bad_word(1, indices[i][1]));
    for (int k = 0; k < 10; k++) table.host[k] *= 2; /* its own rows were added: exact */
    kr_check(rig, "table around a bad index", &table, 0);
    kr_close(rig);
  }
}
END_TEST

/* Of many bad rows the lowest is told, whichever thread comes first. */
START_TEST(lowest_bad_index) {
  enum { ROWS = 1000, LOWEST = 333 };
  struct kr_rig *rig = kr_open(_i);
  const struct kr_array table = kr_values(rig, 2 * 5, 1, 2), y = kr_poison(rig, ROWS * 5);
  int32_t index[ROWS];
  for (int i = 0; i < ROWS; i++) index[i] = i < LOWEST ? i % 2 : i % 7 - 9;
  struct ek__lookup_args args = {.y = y.device,
                                 .table = table.device,
                                 .index = kr_bytes(rig, index, sizeof index),
                                 .rows = ROWS,
                                 .width = 5,
                                 .entries = 2,
                                 .period = 1,
                                 .types = rig->types};
  kr_ok(ek__cuda_lookup_forward(&rig->at, &args));
  ck_assert_uint_eq(kr_bad(rig).index, kr_bad_word(LOWEST, index[LOWEST]));
  args.y = table.device, args.table = y.device;
  kr_ok(ek__cuda_lookup_backward(&rig->at, &args));
  ck_assert_uint_eq(kr_bad(rig).index, kr_bad_word(LOWEST, index[LOWEST]));
  kr_close(rig);
}
END_TEST

/* ---- attention ---- */

/* batch, tokens, heads, head width: every tiling, tiles cut in both directions */
static const int64_t attends[][4] = {{0, 4, 1, 4},    {1, 0, 2, 4},    {1, 1, 1, 1},
                                     {2, 3, 2, 5},    {1, 17, 1, 64},  {1, 65, 2, 33},
                                     {2, 130, 1, 16}, {1, 70, 2, 128}, {1, 40, 1, 100},
                                     {1, 67, 1, 256}, {1, 33, 1, 130}, {1, 33, 2, 32}};
enum { ATTENDS = sizeof attends / sizeof attends[0] };

/* A score errs by (d + 3) u of its terms; its exponential, rescaled along T keys, by that and T. */
static void check_attention(struct kr_rig *rig, const int64_t *s, double range) {
  const int64_t rows = s[0] * s[1] * s[2], n = rows * s[3];
  const double steps = range * range * (double)(s[3] + s[1]) + 60;
  const struct kr_array qkv = kr_values(rig, 3 * n, -range, range), out = kr_poison(rig, n);
  const struct kr_array lse = kr_poison(rig, rows), dout = kr_values(rig, n, -1, 1);
  const struct kr_array dqkv = kr_poison(rig, 3 * n);
  const struct ek__attention_args args = {.out = out.device,
                                          .lse = lse.device,
                                          .dqkv = dqkv.device,
                                          .qkv = qkv.device,
                                          .dout = dout.device,
                                          .batch = s[0],
                                          .tokens = s[1],
                                          .heads = s[2],
                                          .head_width = s[3],
                                          .types = rig->types};
  struct ek__attention_args host = args;
  host.out = out.host, host.lse = lse.host, host.dqkv = dqkv.host;
  host.qkv = qkv.host, host.dout = dout.host;
  const struct ek__attention_job job = {.args = &host};
  kr_ok(ek__cuda_attention_forward(&rig->at, &args));
  ek__attention_forward_f64(&job, 0, s[1] > 0 ? s[0] * s[2] : 0);
  kr_check_small(rig, "out", &out, steps);
  kr_check(rig, "lse", &lse, steps);
  kr_send(rig, &out);
  kr_send(rig, &lse);
  kr_ok(ek__cuda_attention_backward(&rig->at, &args));
  ek__attention_backward_f64(&job, 0, s[1] > 0 ? s[0] * s[2] : 0);
  kr_check_small(rig, "dqkv", &dqkv, 2 * steps);
  const double *first = kr_fetch(rig, &dqkv);
  kr_ok(ek__cuda_attention_backward(&rig->at, &args));
  ck_same_bits("dqkv again", kr_fetch(rig, &dqkv), first, 3 * n);
}

START_TEST(attention) {
  for (int i = 0; i < ATTENDS; i++) {
    if (!ck_part(i)) continue;
    struct kr_rig *rig = kr_open(_i);
    check_attention(rig, attends[i], 1);
    kr_close(rig);
  }
}
END_TEST

/* Scores of +-60: without the subtraction of a maximum, exp() would leave the range of f32. */
START_TEST(large_scores) {
  static const int64_t size[] = {1, 100, 1, 4};
  struct kr_rig *rig = kr_open(_i);
  check_attention(rig, size, 7);
  kr_close(rig);
}
END_TEST

START_TEST(too_wide) {
  struct kr_rig *rig = kr_open(_i);
  const struct ek__attention_args args = {
      .batch = 1, .tokens = 1, .heads = 1, .head_width = 257, .types = rig->types};
  ck_assert_int_eq(ek__cuda_attention_forward(&rig->at, &args), cudaErrorInvalidValue);
  ck_assert_int_eq(ek__cuda_attention_backward(&rig->at, &args), cudaErrorInvalidValue);
  kr_close(rig);
}
END_TEST

static Suite *make_suite(void) {
  Suite *suite = suite_create("cuda_kernels_layers");
  TCase *norm = ck_case(suite, "layer norm");
  tcase_add_loop_test(norm, layer_norm_forward, 0, KR_VARIANTS);
  tcase_add_loop_test(norm, layer_norm_of_a_sum, 0, KR_VARIANTS);
  tcase_add_loop_test(norm, layer_norm_backward, 0, KR_VARIANTS);
  TCase *table = ck_case(suite, "lookup");
  tcase_add_loop_test(table, lookup, 0, KR_VARIANTS);
  tcase_add_loop_test(table, lookup_backward, 0, KR_VARIANTS);
  tcase_add_loop_test(table, positions_backward, 0, KR_VARIANTS);
  tcase_add_loop_test(table, bad_index, 0, KR_VARIANTS);
  tcase_add_loop_test(table, lowest_bad_index, 0, KR_VARIANTS);
  TCase *attend = ck_case(suite, "attention");
  tcase_add_loop_test(attend, attention, 0, KR_VARIANTS);
  tcase_add_loop_test(attend, large_scores, 0, KR_VARIANTS);
  tcase_add_loop_test(attend, too_wide, 0, 2);
  return suite;
}

KR_MAIN(make_suite)
