/*
 * check_attend.c - causal self-attention against the formula, written out in long double.
 *
 * Bounds, with u the unit roundoff, d the head width, T the tokens; c = 1 / sqrt(d):
 *   s_ij = c q_i k_j          e_s = (d + 3) u c sum|q||k|, the largest of the row
 *   p_ij = exp(s_ij - lse_i)  relative e_p = 2 e_s + (T + 16 + 4 max|s|) u: the exponent errs by
 *                             e_s in s and in lse, by u |s| where it is rounded, and the sum of T
 *                             terms, rescaled by the online softmax, adds T u
 *   out                       e_p sum_j p |v|
 *   lse                       e_s + (T + 16 + 2 max|s| + |lse|) u
 * Backward gets out and lse rounded to the type, within the above:
 *   ds = p (dp - D)           p (e_p |dp - D| + (d + 4) u (sum|dout||v| + sum|dout||out|))
 *   dv                        sum_i |dout| p (e_p + (T + 3) u)
 *   dq, dk                    c sum (|k| or |q|) (error of ds + (T + 4) u |ds|)
 * Where g heads share keys, dv and dk are sums of g T terms instead of T.
 * Where products multiply in TF32, each of their operands has a relative error r = 2^-11 more: 2 r
 * in s and dp, in p as it is multiplied, and in v; and a tensor core's additions may cut, so that u
 * is 2 u. Of 16 bits on tensor cores q, k, v and dout are exact, and r is that of p and ds, of
 * which f16 keeps no more than multiples of 2^-24.
 * The bounds are doubled for the terms of second order. A p below the smallest normal number of the
 * type keeps no relative error; it may be 0.
 */
#include <evenkeel/attend.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ek_check.h"

/* batch, tokens, heads, head width, heads of keys (0: as many): every tiling of a GPU's kernels,
 * tiles cut in both directions */
static const int64_t sizes[][5] = {
    {0, 4, 1, 4},    {1, 0, 2, 4},    {0, 5, 3, 0},    {1, 1, 1, 1},
    {2, 3, 2, 5},    {1, 17, 1, 64},  {1, 127, 1, 7},  {2, 128, 2, 16},
    {1, 129, 3, 8},  {1, 300, 2, 33}, {1, 33, 2, 32},  {1, 70, 2, 128},
    {1, 40, 1, 100}, {1, 67, 1, 256}, {1, 33, 1, 130}, {1, 35, 1, 200},
    {2, 3, 4, 5, 2}, {1, 129, 6, 8, 2}, {2, 70, 3, 64, 1}, {1, 33, 4, 32, 2},
    {1, 67, 2, 100, 1}, {1, 40, 2, 256, 1}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

struct attention {
  int64_t batch, tokens, heads, width, kv_heads; /* width of a head */
  const double *qkv, *dout;
  double *given; /* out as the type holds it: what backward gets */
  double *out, *out_bound, *lse, *lse_bound, *dqkv, *dqkv_bound;
};

/* One head of one sample: rows of q, k, v are `stride` apart; p, dp, their errors are T x T. */
struct head {
  const struct attention *a;
  int64_t sample, number, stride;
  const double *q, *k, *v;
  long double *p, *p_error;
  double u, r, r_scores; /* r_scores: of p and ds, r: of the others */
  double tiny; /* the smallest normal number of the type, or what p and ds are multiples of */
};

CK_UNWATCHED static long double dot(const double *a, const double *b, int64_t n,
                                    long double *size) {
  long double sum = 0;
  *size = 0;
  for (int64_t i = 0; i < n; i++) {
    sum += (long double)a[i] * b[i];
    *size += fabsl((long double)a[i] * b[i]);
  }
  return sum;
}

/* Row i of p with its relative error, and lse. */
CK_UNWATCHED static void softmax_row(struct head *h, int64_t i, double *lse, double *lse_bound) {
  const struct attention *a = h->a;
  const long double c = 1 / sqrtl((long double)a->width), u = h->u;
  long double *p = h->p + i * a->tokens;
  long double most = 0, largest = -HUGE_VALL, e_s = 0, sum = 0;
  for (int64_t j = 0; j <= i; j++) {
    long double size = 0;
    p[j] = c * dot(h->q + i * h->stride, h->k + j * h->stride, a->width, &size);
    e_s = fmaxl(e_s, ((long double)(a->width + 3) * u + 2 * (long double)h->r) * c * size);
    most = fmaxl(most, fabsl(p[j]));
    largest = fmaxl(largest, p[j]);
  }
  for (int64_t j = 0; j <= i; j++) sum += expl(p[j] - largest);
  const long double exact = largest + logl(sum);
  for (int64_t j = 0; j <= i; j++) p[j] = expl(p[j] - exact);
  const long double t = (long double)a->tokens;
  h->p_error[i] = 2 * e_s + (t + 16 + 4 * most) * u;
  *lse = (double)exact;
  *lse_bound = (double)(2 * (e_s + (t + 16 + 2 * most + fabsl(exact)) * u));
}

CK_UNWATCHED static void head_forward(struct head *h) {
  const struct attention *a = h->a;
  const int64_t t = a->tokens, channels = a->heads * a->width;
  for (int64_t i = 0; i < t; i++) {
    const int64_t at = (h->sample * a->heads + h->number) * t + i;
    softmax_row(h, i, &a->lse[at], &a->lse_bound[at]);
    for (int64_t e = 0; e < a->width; e++) {
      long double sum = 0, size = 0, lost = 0;
      for (int64_t j = 0; j <= i; j++) {
        sum += h->p[i * t + j] * h->v[j * h->stride + e];
        size += h->p[i * t + j] * fabs(h->v[j * h->stride + e]);
        lost += h->tiny * fabs(h->v[j * h->stride + e]);
      }
      const int64_t to = (h->sample * t + i) * channels + h->number * a->width + e;
      a->out[to] = (double)sum;
      const long double r = (long double)h->r + h->r_scores;
      a->out_bound[to] = (double)(2 * (h->p_error[i] + r) * size + lost);
    }
  }
}

/* Adds row i's share to dq, dk, dv and their bounds; head_forward() has filled p and out. */
CK_UNWATCHED static void row_backward(const struct head *h, int64_t i) {
  const struct attention *a = h->a;
  const int64_t t = a->tokens, channels = a->heads * a->width, n = a->width;
  const long double c = 1 / sqrtl((long double)n), u = h->u, r = 2 * (long double)h->r;
  const long double terms = (long double)(t * (a->heads / a->kv_heads)); /* of dk and dv */
  const long double r_score = (long double)h->r + h->r_scores;
  const int64_t row = (h->sample * t + i) * channels + h->number * n;
  const int64_t q0 = h->q - a->qkv, k0 = h->k - a->qkv, v0 = h->v - a->qkv;
  double *d = a->dqkv, *bound = a->dqkv_bound;
  long double d_size = 0;
  const long double total = dot(a->dout + row, a->given + row, n, &d_size);
  for (int64_t j = 0; j <= i; j++) {
    const long double p = h->p[i * t + j];
    long double size = 0;
    const long double dp = dot(a->dout + row, h->v + j * h->stride, n, &size);
    const long double ds = p * (dp - total);
    const long double error =
        h->tiny * (1 + fabsl(dp - total)) +
        p * (h->p_error[i] * fabsl(dp - total) +
             (long double)(n + 4) * u * (size + d_size) + r * size) +
        ((terms + 4) * u + r_score) * fabsl(ds);
    for (int64_t e = 0; e < n; e++) {
      const int64_t qi = i * h->stride + e, kj = j * h->stride + e;
      const long double dv = p * a->dout[row + e];
      d[q0 + qi] += (double)(c * ds * h->k[kj]);
      bound[q0 + qi] += (double)(2 * c * error * fabs(h->k[kj]));
      d[k0 + kj] += (double)(c * ds * h->q[qi]);
      bound[k0 + kj] += (double)(2 * c * error * fabs(h->q[qi]));
      d[v0 + kj] += (double)dv;
      bound[v0 + kj] +=
          (double)(2 * fabsl(dv) * (h->p_error[i] + (terms + 3) * u + r_score)) +
          h->tiny * fabs(a->dout[row + e]);
    }
  }
}

static bool on_cuda(void) { return strncmp(test_devices("cpu:1"), "cuda", 4) == 0; }

static void reference(const struct ck_rig *rig, const struct attention *a) {
  const int64_t t = a->tokens, channels = a->heads * a->width;
  const size_t square = (size_t)(t * t) + 1;
  struct head h = {.a = a, .u = rig->unit, .r = rig->operand};
  h.stride = channels + 2 * a->kv_heads * a->width;
  h.r_scores = h.r;
  h.tiny = rig->sum == EK_F32 ? 0x1p-126 : 0x1p-1022;
  if (ek_type_size(rig->type) == 2 && on_cuda()) {
    h.r_scores = rig->type == EK_BF16 ? 0x1p-8 : 0x1p-11;
    if (rig->type == EK_F16) h.tiny = 0x1p-24;
  }
  if (h.r_scores > 0) h.u *= 2;
  h.p = calloc(square, sizeof *h.p);
  h.p_error = calloc((size_t)t + 1, sizeof *h.p_error);
  ck_assert(h.p != NULL && h.p_error != NULL);
  for (h.sample = 0; h.sample < a->batch; h.sample++) {
    for (h.number = 0; h.number < a->heads; h.number++) {
      h.q = a->qkv + h.sample * t * h.stride + h.number * a->width;
      h.k = a->qkv + h.sample * t * h.stride + channels +
            h.number / (a->heads / a->kv_heads) * a->width;
      h.v = h.k + a->kv_heads * a->width;
      head_forward(&h);
      for (int64_t i = 0; i < a->batch * t * channels; i++) a->given[i] = ck_round(rig, a->out[i]);
      for (int64_t i = 0; i < t && a->dout != NULL; i++) row_backward(&h, i);
    }
  }
  free(h.p);
  free(h.p_error);
}

/* Random numbers, without what is to come out. */
static struct attention numbers(struct ck_rig *rig, const int64_t *size, double range) {
  struct attention a = {.batch = size[0], .tokens = size[1], .heads = size[2], .width = size[3]};
  const int64_t n = a.batch * a.tokens * a.heads * a.width, rows = a.batch * a.tokens * a.heads;
  a.kv_heads = size[4] == 0 ? a.heads : size[4];
  const int64_t in = a.batch * a.tokens * (a.heads + 2 * a.kv_heads) * a.width;
  a.qkv = ck_values(rig, in, -range, range);
  a.dout = ck_values(rig, n, -1, 1);
  a.out = ck_zeros(rig, n), a.out_bound = ck_zeros(rig, n);
  a.given = ck_zeros(rig, n);
  a.lse = ck_zeros(rig, rows), a.lse_bound = ck_zeros(rig, rows);
  a.dqkv = ck_zeros(rig, in), a.dqkv_bound = ck_zeros(rig, in);
  return a;
}

static struct attention make(struct ck_rig *rig, const int64_t *size, double range) {
  const struct attention a = numbers(rig, size, range);
  reference(rig, &a);
  return a;
}

/* The tensors of one call, on the device. */
struct tensors {
  ek_tensor *qkv, *out, *lse, *dout, *dqkv;
  int64_t in, result, rows; /* numbers of elements */
  int heads, kv_heads;
};

static struct tensors upload(struct ck_rig *rig, const struct attention *a) {
  const int64_t b = a->batch, t = a->tokens, c = a->heads * a->width;
  const int64_t all = c + 2 * a->kv_heads * a->width;
  return (struct tensors){.qkv = ck_tensor(rig, a->qkv, CK_SHAPE(b, t, all)),
                          .out = ck_poisoned(rig, CK_SHAPE(b, t, c)),
                          .lse = ck_poisoned_sums(rig, CK_SHAPE(b, a->heads, t)),
                          .dout = ck_tensor(rig, a->dout, CK_SHAPE(b, t, c)),
                          .dqkv = ck_poisoned(rig, CK_SHAPE(b, t, all)),
                          .in = b * t * all,
                          .result = b * t * c,
                          .rows = b * a->heads * t,
                          .heads = (int)a->heads,
                          .kv_heads = (int)a->kv_heads};
}

static void check_forward(struct ck_rig *rig, const struct attention *a) {
  const struct tensors t = upload(rig, a);
  ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, t.heads, t.kv_heads));
  const double *out = ck_read(rig, t.out), *lse = ck_read(rig, t.lse);
  ck_fits(rig, "out", t.out, a->out, a->out_bound, t.result);
  ck_fits(rig, "lse", t.lse, a->lse, a->lse_bound, t.rows);
  if (CK_TSAN) return; /* the same again has the same races */
  ck_set(t.out, NULL);
  ck_set(t.lse, NULL);
  ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, t.heads, t.kv_heads));
  ck_same_bits("out again", ck_read(rig, t.out), out, t.result);
  ck_same_bits("lse again", ck_read(rig, t.lse), lse, t.rows);
}

static void check_backward(struct ck_rig *rig, const struct attention *a) {
  const struct tensors t = upload(rig, a);
  ck_set(t.out, a->given);
  ck_set(t.lse, a->lse);
  ck_ok(ek_op_attention_backward(rig->stream, t.dqkv, t.dout, t.qkv, t.out, t.lse, t.heads,
                                 t.kv_heads));
  const double *dqkv = ck_read(rig, t.dqkv);
  ck_fits(rig, "dqkv", t.dqkv, a->dqkv, a->dqkv_bound, t.in);
  if (CK_TSAN) return;
  ck_set(t.dqkv, NULL);
  ck_ok(ek_op_attention_backward(rig->stream, t.dqkv, t.dout, t.qkv, t.out, t.lse, t.heads,
                                 t.kv_heads));
  ck_same_bits("dqkv again", ck_read(rig, t.dqkv), dqkv, t.in);
}

/* The variants of all tests, and two in TF32 where the device has it. */
#define VARIANTS (ck_variants() + 2)

static struct ck_rig *open_variant(int variant) {
  if (variant < ck_variants()) return ck_rig_variant(variant);
  if (!on_cuda()) return NULL;
  return ck_rig_tf32(variant - ck_variants());
}

CK_LOOP(forward_and_backward, VARIANTS) {
  for (int s = 0; s < SIZES; s++) {
    if (_i < ck_variants() ? !ck_turn(_i, s) : !ck_part(s)) continue;
    struct ck_rig *rig = open_variant(_i);
    if (rig == NULL) return;
    const struct attention a = make(rig, sizes[s], 1);
    check_forward(rig, &a);
    check_backward(rig, &a);
    ck_rig_close(rig);
  }
}

/* Scores of +-60: without the subtraction of a maximum, exp() would leave the range of f32. */
CK_LOOP(large_scores, VARIANTS) {
  if (!ck_part(_i)) return;
  static const int64_t size[5] = {1, 150, 2, 4};
  struct ck_rig *rig = open_variant(_i);
  if (rig == NULL) return;
  const struct attention a = make(rig, size, 7);
  check_forward(rig, &a);
  check_backward(rig, &a);
}

/* What comes later, NaN included, changes no bit of what came before. */
CK_LOOP(causality, VARIANTS) {
  if (!ck_part(_i)) return;
  static const int64_t size[5] = {1, 300, 2, 16};
  static const int64_t cuts[] = {1, 63, 64, 127, 128, 129, 299};
  struct ck_rig *rig = open_variant(_i);
  if (rig == NULL) return;
  const struct attention a = numbers(rig, size, 1);
  const struct tensors t = upload(rig, &a);
  const int64_t channels = 32;
  ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, 2, 0));
  const double *out = ck_read(rig, t.out), *lse = ck_read(rig, t.lse);
  for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
    double *changed = ck_values(rig, t.in, -1, 1);
    memcpy(changed, a.qkv, (size_t)(cuts[c] * 3 * channels) * sizeof *changed);
    if (c % 2 == 1) changed[cuts[c] * 3 * channels + channels] = NAN;
    ck_set(t.qkv, changed);
    ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, 2, 0));
    ck_same_bits("earlier outputs", ck_read(rig, t.out), out, cuts[c] * channels);
    const double *got = ck_read(rig, t.lse);
    for (int h = 0; h < 2; h++) ck_same_bits("earlier lse", got + h * 300, lse + h * 300, cuts[c]);
  }
}

/* Values of 16 bits: heads so wide that tiles are smaller, and the keys go in blocks; and the first
 * that is too wide. */
CK_LOOP_FROM(wide_heads_of_16_bits, CK_VARIANTS, ck_variants()) {
  static const int64_t shapes[][5] = {{1, 200, 1, 512}, {1, 3, 1, 8192}, {1, 90, 1, 256}};
  const int64_t too_wide = on_cuda() ? 257 : 8193;
  char text[64];
  struct ck_rig *rig = ck_rig_variant(_i);
  for (int s = on_cuda() ? 2 : 0; s < 3; s++) {
    const struct attention a = make(rig, shapes[s], 0.25);
    check_forward(rig, &a);
    check_backward(rig, &a);
  }
  ek_tensor *qkv = ck_poisoned(rig, CK_SHAPE(1, 1, 3 * too_wide));
  snprintf(text, sizeof text, "heads are %d wide", (int)too_wide);
  ck_fails(ek_op_attention_forward(rig->stream, ck_poisoned(rig, CK_SHAPE(1, 1, too_wide)),
                                   ck_poisoned_sums(rig, CK_SHAPE(1, 1, 1)), qkv, 1, 0),
           EK_ERR_UNSUPPORTED, text);
}

/* With one token, softmax is 1: out is v, lse the score, dv is dout, dq and dk are 0. */
CK_RIG_LOOP(one_token, ck_variants()) {
  static const int64_t size[5] = {3, 1, 2, 4};
  const struct attention a = make(rig, size, 1);
  const struct tensors t = upload(rig, &a);
  ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, 2, 0));
  const double *out = ck_read(rig, t.out);
  for (int64_t b = 0; b < 3; b++) {
    ck_within("v", out + b * 8, a.qkv + b * 24 + 16, NULL, 8);
  }
}

/* ---- differences ---- */

struct attention_context {
  struct ck_rig *rig;
  const struct tensors *t;
  const double *dout;
};

static double attention_function(void *context, const double *qkv) {
  const struct attention_context *f = context;
  ck_set(f->t->qkv, qkv);
  ck_ok(ek_op_attention_forward(f->rig->stream, f->t->out, f->t->lse, f->t->qkv, f->t->heads,
                                f->t->kv_heads));
  return ck_weighed(f->t->out, f->dout);
}

CK_TEST(gradient_by_differences) {
  if (CK_TSAN) return; /* one forward after the other, alone on the device */
  static const int64_t shapes[][5] = {{2, 5, 2, 3}, {1, 130, 1, 4}, {2, 5, 4, 2, 2}};
  for (int s = 0; s < 3; s++) {
    if (!ck_part(s + 1)) continue;
    struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
    const struct attention a = numbers(rig, shapes[s], 1);
    const struct tensors t = upload(rig, &a);
    struct attention_context f = {rig, &t, a.dout};
    double *qkv = ck_zeros(rig, t.in);
    memcpy(qkv, a.qkv, (size_t)t.in * sizeof *qkv);
    ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, t.qkv, t.heads, t.kv_heads));
    ck_ok(ek_op_attention_backward(rig->stream, t.dqkv, t.dout, t.qkv, t.out, t.lse, t.heads,
                                   t.kv_heads));
    ck_gradient(rig, "attention", attention_function, &f, qkv, ck_read(rig, t.dqkv), t.in, 200);
    ck_rig_close(rig);
  }
}

/* ---- wrong arguments ---- */

CK_TEST(bad_heads_and_huge_sizes) {
  struct ck_rig *rig = ck_rig_open(CK_HUGE_PLAN, EK_F32, 1);
  const int64_t b = 32, tokens = INT64_C(1) << 33, c = INT64_C(1) << 20;
  ek_stream *s = rig->stream;
  ek_tensor *qkv = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, 3 * c));
  ek_tensor *out = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, c));
  ek_tensor *lse = ck_ghost(rig, EK_F32, CK_SHAPE(b, 16, tokens));
  ck_ok(ek_op_attention_forward(s, out, lse, qkv, 16, 0));
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, 0, 0), EK_ERR_INVALID_ARGUMENT,
           "attention_forward: heads is 0");
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, -16, 0), EK_ERR_INVALID_ARGUMENT,
           "heads is -16");
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, 3, 0), EK_ERR_SHAPE,
           "attention_forward: qkv is 32 x 8589934592 x 3145728 but must be B x T x a multiple of "
           "3 + 2 x 3 heads");
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, 16, 3), EK_ERR_INVALID_ARGUMENT,
           "attention_forward: 16 heads are not a multiple of 3 kv_heads");
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, 16, -1), EK_ERR_INVALID_ARGUMENT,
           "16 heads are not a multiple of -1 kv_heads");
  ck_fails(ek_op_attention_forward(s, out, lse, qkv, 8, 0), EK_ERR_SHAPE,
           "attention_forward: lse is 32 x 16 x 8589934592 but qkv is");
  ek_tensor *none = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, 0));
  ck_fails(ek_op_attention_forward(s, none, lse, none, 16, 0), EK_ERR_SHAPE,
           "attention_forward: qkv is 32 x 8589934592 x 0, which has no channels");
}

CK_SUITE("attend")
