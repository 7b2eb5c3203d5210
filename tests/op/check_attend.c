/*
 * check_attend.c - self-attention against the formula, written out in long double.
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
 * Dropout multiplies p in out and dv, and dp, with 0 or a factor that is rounded: 2 u more in each.
 * Where g heads share keys, dv and dk are sums of g T terms instead of T.
 * Where products multiply in TF32, each of their operands has a relative error r = 2^-11 more: 2 r
 * in s and dp, in p as it is multiplied, and in v; and a tensor core's additions may cut, so that u
 * is 2 u. Of 16 bits on tensor cores q, k, v and dout are exact, and r is that of p and ds, of
 * which f16 keeps no more than multiples of 2^-24.
 * The bounds are doubled for the terms of second order. A p below the smallest normal number of the
 * type keeps no relative error; it may be 0.
 */
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

/* What a query sees, and what is dropped. */
struct mask {
  bool everything; /* not causal */
  int lengths[6];  /* of documents, over and over; negative: padding; none: a row is one document */
  double dropout;
};
static const ek_random_key key = {0x123456789ABCDEF, 7, 3};
enum { FIRST_SAMPLE = 5 };

struct attention {
  int64_t batch, tokens, heads, width, kv_heads; /* width of a head */
  struct mask mask;
  double *segments; /* batch x tokens, or NULL */
  const double *qkv, *dout;
  double *given; /* out as the type holds it: what backward gets */
  double *out, *out_bound, *lse, *lse_bound, *dqkv, *dqkv_bound;
};

/* One head of one sample: rows of q, k, v are `stride` apart; p, dp, their errors are T x T. */
struct head {
  const struct ck_rig *rig;
  const struct attention *a;
  int64_t sample, number, stride;
  const double *q, *k, *v;
  long double *p, *p_error, *weight; /* weight: of a row's keys, p after dropout */
  double *size;                      /* the same, for the bounds */
  double u, r, r_scores; /* r_scores: of p and ds, r: of the others */
  double tiny; /* the smallest normal number of the type, or what p and ds are multiples of */
};

CK_UNWATCHED static long double dot(const double *a, const double *b, int64_t n, double *size) {
  long double sum = 0;
  double total = 0;
  for (int64_t i = 0; i < n; i++) {
    sum += (long double)a[i] * b[i];
    total += fabs(a[i] * b[i]);
  }
  *size = total;
  return sum;
}

/* The keys that query i of a head's sample sees: none where it is padding. */
struct seen {
  int64_t first, end;
};
static struct seen keys_of(const struct head *h, int64_t i) {
  const double *segments = h->a->segments;
  struct seen seen = {0, h->a->tokens};
  if (segments != NULL) {
    segments += h->sample * h->a->tokens;
    for (seen.first = i; seen.first > 0 && segments[seen.first - 1] == segments[i];) seen.first--;
    for (seen.end = i; seen.end < h->a->tokens && segments[seen.end] == segments[i];) seen.end++;
  }
  if (!h->a->mask.everything) seen.end = i + 1;
  if (segments != NULL && segments[i] < 0) seen.end = 0;
  return seen;
}

static double kept(const struct attention *a, int64_t sample, int64_t head, int64_t i, int64_t j) {
  uint32_t bits[4];
  if (a->mask.dropout == 0) return 1;
  const int64_t blocks = (a->tokens + 3) / 4;
  ek_random_bits(key, (uint32_t)(FIRST_SAMPLE + sample),
                 (uint32_t)((head * a->tokens + i) * blocks + j / 4), bits);
  return ek_random_unit(bits[j % 4]) >= a->mask.dropout ? 1 / (1 - a->mask.dropout) : 0;
}

/* Row i of p with its relative error, and lse. */
CK_UNWATCHED static void softmax_row(struct head *h, int64_t i, double *lse, double *lse_bound) {
  const struct attention *a = h->a;
  const long double c = 1 / sqrtl((long double)a->width), u = h->u;
  long double *p = h->p + i * a->tokens;
  const struct seen seen = keys_of(h, i);
  long double most = 0, largest = -HUGE_VALL, e_s = 0, sum = 0;
  *lse = *lse_bound = 0;
  if (seen.first >= seen.end) return;
  for (int64_t j = seen.first; j < seen.end; j++) {
    double size = 0;
    p[j] = c * dot(h->q + i * h->stride, h->k + j * h->stride, a->width, &size);
    e_s = fmaxl(e_s, ((long double)(a->width + 3) * u + 2 * (long double)h->r) * c * size);
    most = fmaxl(most, fabsl(p[j]));
    largest = fmaxl(largest, p[j]);
  }
  for (int64_t j = seen.first; j < seen.end; j++) sum += expl(p[j] - largest);
  const long double exact = largest + logl(sum);
  for (int64_t j = seen.first; j < seen.end; j++) p[j] = expl(p[j] - exact);
  const long double t = (long double)a->tokens;
  h->p_error[i] = 2 * e_s + (t + 16 + 4 * most + (a->mask.dropout > 0 ? 2 : 0)) * u;
  *lse = (double)exact;
  *lse_bound = (double)(2 * (e_s + (t + 16 + 2 * most + fabsl(exact)) * u));
}

CK_UNWATCHED static void head_forward(struct head *h) {
  const struct attention *a = h->a;
  const int64_t t = a->tokens, channels = a->heads * a->width;
  for (int64_t i = 0; i < t; i++) {
    const int64_t at = (h->sample * a->heads + h->number) * t + i;
    const struct seen seen = keys_of(h, i);
    softmax_row(h, i, &a->lse[at], &a->lse_bound[at]);
    for (int64_t j = seen.first; j < seen.end; j++) {
      h->weight[j] = h->p[i * t + j] * kept(a, h->sample, h->number, i, j);
      h->size[j] = (double)h->weight[j];
    }
    const double error = (double)(2 * (h->p_error[i] + (long double)h->r + h->r_scores));
    for (int64_t e = 0; e < a->width; e++) {
      long double sum = 0;
      double size = 0, values = 0;
      for (int64_t j = seen.first; j < seen.end; j++) {
        const double v = h->v[j * h->stride + e];
        sum += h->weight[j] * v;
        size += h->size[j] * fabs(v);
        values += fabs(v);
      }
      const int64_t to = (h->sample * t + i) * channels + h->number * a->width + e;
      a->out[to] = (double)sum;
      a->given[to] = ck_round(h->rig, a->out[to]);
      a->out_bound[to] = error * size + h->tiny * values;
    }
  }
}

/* What key j adds to the gradients of row i: ds, times c, with its bound, and the weight of v, with
 * its relative and its least error. */
struct share {
  long double ds, weight;
  double ds_bound, error, least;
};

CK_UNWATCHED static void add_share(const struct head *h, const struct share *s, int64_t i,
                                   int64_t j) {
  const struct attention *a = h->a;
  const int64_t n = a->width, qi = h->q - a->qkv + i * h->stride, kj = j * h->stride;
  const double *q = h->q + i * h->stride, *k = h->k + kj;
  const double *dout = a->dout + ((h->sample * a->tokens + i) * a->heads + h->number) * n;
  double *dq = a->dqkv + qi, *dk = a->dqkv + (h->k - a->qkv) + kj;
  double *dv = a->dqkv + (h->v - a->qkv) + kj;
  double *dq_bound = a->dqkv_bound + qi, *dk_bound = a->dqkv_bound + (h->k - a->qkv) + kj;
  double *dv_bound = a->dqkv_bound + (h->v - a->qkv) + kj;
  for (int64_t e = 0; e < n; e++) {
    const double of_v = (double)(s->weight * dout[e]);
    dq[e] += (double)(s->ds * k[e]);
    dq_bound[e] += s->ds_bound * fabs(k[e]);
    dk[e] += (double)(s->ds * q[e]);
    dk_bound[e] += s->ds_bound * fabs(q[e]);
    dv[e] += of_v;
    dv_bound[e] += s->error * fabs(of_v) + s->least * fabs(dout[e]);
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
  const struct seen seen = keys_of(h, i);
  double d_size = 0;
  const long double total = dot(a->dout + row, a->given + row, n, &d_size);
  for (int64_t j = seen.first; j < seen.end; j++) {
    const long double p = h->p[i * t + j], keep = kept(a, h->sample, h->number, i, j);
    double size = 0;
    const long double dp = keep * dot(a->dout + row, h->v + j * h->stride, n, &size);
    size *= (double)keep;
    const long double ds = p * (dp - total);
    const long double error =
        h->tiny * (1 + fabsl(dp - total)) +
        p * (h->p_error[i] * fabsl(dp - total) +
             (long double)(n + 4) * u * (size + d_size) + r * size) +
        ((terms + 4) * u + r_score) * fabsl(ds);
    const struct share share = {
        .ds = c * ds, .ds_bound = (double)(2 * c * error), .weight = keep * p,
        .error = (double)(2 * (h->p_error[i] + (terms + 3) * u + r_score)),
        .least = (double)fmaxl(keep, 1) * h->tiny};
    add_share(h, &share, i, j);
  }
}

static void reference(const struct ck_rig *rig, const struct attention *a) {
  const int64_t t = a->tokens, channels = a->heads * a->width;
  struct head h = {.rig = rig, .a = a, .u = rig->unit, .r = rig->operand};
  ck_assign(h, .stride = channels + 2 * a->kv_heads * a->width, .r_scores = h.r,
            .tiny = rig->sum == EK_F32 ? 0x1p-126 : 0x1p-1022);
  if (ek_type_size(rig->type) == 2 && ck_on_gpu()) {
    h.r_scores = rig->type == EK_BF16 ? 0x1p-8 : 0x1p-11;
    if (rig->type == EK_F16) h.tiny = 0x1p-24;
  }
  if (h.r_scores > 0) h.u *= 2;
  CK_HELD(long double *, p, ck_array((size_t)(t * t), sizeof *p));
  CK_HELD(long double *, rows, ck_array((size_t)(2 * t), sizeof *rows));
  CK_HELD(double *, row, ck_array((size_t)t, sizeof *row));
  ck_assign(h, .p = p, .p_error = rows, .weight = rows + t, .size = row);
  for (h.sample = 0; h.sample < a->batch; h.sample++) {
    for (h.number = 0; h.number < a->heads; h.number++) {
      ck_assign(h, .q = a->qkv + h.sample * t * h.stride + h.number * a->width,
                .k = a->qkv + h.sample * t * h.stride + channels +
                     h.number / (a->heads / a->kv_heads) * a->width);
      h.v = h.k + a->kv_heads * a->width;
      head_forward(&h);
      for (int64_t i = 0; i < t && a->dout != NULL; i++) row_backward(&h, i);
    }
  }
}

/* Random numbers, without what is to come out. */
static struct attention numbers(struct ck_rig *rig, const int64_t *size, double range) {
  struct attention a = {.batch = size[0], .tokens = size[1], .heads = size[2], .width = size[3]};
  const int64_t n = a.batch * a.tokens * a.heads * a.width, rows = a.batch * a.tokens * a.heads;
  a.kv_heads = size[4] == 0 ? a.heads : size[4];
  const int64_t in = a.batch * a.tokens * (a.heads + 2 * a.kv_heads) * a.width;
  ck_assign(a, .qkv = ck_values(rig, in, -range, range), .dout = ck_values(rig, n, -1, 1));
  ck_assign(a, .given = ck_zeros(rig, n), .out = ck_zeros(rig, n), .out_bound = ck_zeros(rig, n),
            .lse = ck_zeros(rig, rows), .lse_bound = ck_zeros(rig, rows),
            .dqkv = ck_zeros(rig, in), .dqkv_bound = ck_zeros(rig, in));
  return a;
}

/* Documents of the mask's lengths; each sample begins with another one. */
static void set_mask(struct ck_rig *rig, struct attention *a, const struct mask *mask) {
  a->mask = *mask;
  if (mask->lengths[0] == 0) return;
  a->segments = ck_zeros(rig, a->batch * a->tokens);
  for (int64_t b = 0; b < a->batch; b++) {
    int number = (int)b, left = 0, length = 0;
    for (int64_t i = 0; i < a->tokens; i++, left--) {
      if (left == 0) {
        do length = mask->lengths[number++ % 6];
        while (length == 0);
        left = abs(length);
      }
      a->segments[b * a->tokens + i] = length < 0 ? -1 : number;
    }
  }
}

/* The tensors of one call, on the device. */
struct tensors {
  ek_tensor *qkv, *out, *lse, *dout, *dqkv;
  int64_t in, result, rows; /* numbers of elements */
  ek_attend_options options;
};

static const ek_tensor *upload_ranges(struct ck_rig *rig, const struct attention *a) {
  if (a->segments == NULL) return NULL;
  ek_tensor *segments = ck_tensor_of(rig, EK_I32, a->segments, CK_SHAPE(a->batch, a->tokens));
  ek_tensor *ranges = ck_blank(rig, EK_I32, CK_SHAPE(a->batch, a->tokens, 2));
  ck_ok(ek_op_document_ranges(rig->stream, ranges, NULL, segments));
  return ranges;
}

static struct tensors upload(struct ck_rig *rig, const struct attention *a) {
  const ek_attend_options options = {.size = sizeof options, .heads = (int)a->heads,
                                     .kv_heads = (int)a->kv_heads, .causal = !a->mask.everything,
                                     .ranges = upload_ranges(rig, a), .dropout = a->mask.dropout,
                                     .key = key, .first_sample = FIRST_SAMPLE};
  const int64_t b = a->batch, t = a->tokens, c = a->heads * a->width;
  const int64_t all = c + 2 * a->kv_heads * a->width;
  return (struct tensors){.qkv = ck_tensor(rig, a->qkv, CK_SHAPE(b, t, all)),
                          .out = ck_poisoned(rig, CK_SHAPE(b, t, c)),
                          .lse = ck_poisoned_sums(rig, CK_SHAPE(b, a->heads, t)),
                          .dout = ck_tensor(rig, a->dout, CK_SHAPE(b, t, c)),
                          .dqkv = ck_poisoned(rig, CK_SHAPE(b, t, all)), .in = b * t * all,
                          .result = b * t * c, .rows = b * a->heads * t, .options = options};
}

static ek_status forward(struct ck_rig *rig, const struct tensors *t) {
  return ek_op_attention_forward(rig->stream, t->out, t->lse, t->qkv, &t->options);
}

static ek_status backward(struct ck_rig *rig, const struct tensors *t) {
  return ek_op_attention_backward(rig->stream, t->dqkv, t->dout, t->qkv,
                                  t->out, t->lse, &t->options);
}

/* Uploads, and runs both. */
static struct tensors both(struct ck_rig *rig, const struct attention *a) {
  const struct tensors t = upload(rig, a);
  ck_ok(forward(rig, &t));
  ck_ok(backward(rig, &t));
  return t;
}

/* The variants of all tests, and two in TF32 where the device has it. */
#define VARIANTS (ck_variants() + (ck_on_gpu() ? 2 : 0))

static struct ck_rig *open_variant(int variant) {
  return variant < ck_variants() ? ck_rig_variant(variant) : ck_rig_tf32(variant - ck_variants());
}

static const struct mask no_mask;

/* Forward and backward, twice, over NaN. */
static void check_both(struct ck_rig *rig, const int64_t *size, const struct mask *mask,
                       double range) {
  const double *out[2], *lse[2], *dqkv[2];
  struct attention a = numbers(rig, size, range);
  set_mask(rig, &a, mask);
  reference(rig, &a);
  const struct tensors t = upload(rig, &a);
  for (int again = 0; again < 2; again++) {
    if (CK_TSAN && again == 1) return; /* the same again has the same races */
    ck_set(t.out, NULL);
    ck_set(t.lse, NULL);
    ck_set(t.dqkv, NULL);
    ck_ok(forward(rig, &t));
    out[again] = ck_read(rig, t.out), lse[again] = ck_read(rig, t.lse);
    ck_fits(rig, "out", t.out, a.out, a.out_bound, t.result);
    ck_fits(rig, "lse", t.lse, a.lse, a.lse_bound, t.rows);
    ck_set(t.out, a.given);
    ck_set(t.lse, a.lse);
    ck_ok(backward(rig, &t));
    dqkv[again] = ck_read(rig, t.dqkv);
    ck_fits(rig, "dqkv", t.dqkv, a.dqkv, a.dqkv_bound, t.in);
  }
  ck_same_bits("out again", out[1], out[0], t.result);
  ck_same_bits("lse again", lse[1], lse[0], t.rows);
  ck_same_bits("dqkv again", dqkv[1], dqkv[0], t.in);
}

/* Case `s` of a long loop, if it is the variant's turn. */
static void check_turn(int variant, int s, const int64_t *size, const struct mask *mask) {
  if (variant < ck_variants() ? !ck_turn(variant, s) : !ck_part(s)) return;
  struct ck_rig *rig = open_variant(variant);
  check_both(rig, size, mask, 1);
  ck_rig_close(rig);
}

CK_LOOP(forward_and_backward, VARIANTS) {
  for (int s = 0; s < SIZES; s++) check_turn(_i, s, sizes[s], &no_mask);
}

static const struct masked {
  int64_t size[5];
  struct mask mask;
} masked[] = {
    {{1, 129, 3, 8}, {true, {0}, 0}},
    {{1, 70, 2, 128}, {true, {0}, 0}},
    {{2, 150, 2, 16}, {false, {17, 1, 70, -3, 40, 9}, 0}},
    {{2, 150, 4, 32, 2}, {true, {17, 1, 70, -3, 40, 9}, 0}},
    {{2, 170, 2, 64, 1}, {false, {5, 100, 30, 64}, 0.3}},
    {{1, 67, 1, 256}, {false, {-20, 7, 40}, 0}},
    {{2, 40, 2, 100, 1}, {true, {0}, 0.5}},
    {{1, 75, 2, 33}, {true, {-70, 3}, 0.1}},
    {{2, 33, 2, 5}, {false, {-33, 33}, 0}},
    {{1, 300, 1, 8}, {true, {0}, 0.1}},
};
enum { MASKED = sizeof masked / sizeof masked[0] };

CK_LOOP(masks_and_dropout, VARIANTS) {
  for (int s = 0; s < MASKED; s++) check_turn(_i, s, masked[s].size, &masked[s].mask);
}

/* Scores of +-60: without the subtraction of a maximum, exp() would leave the range of f32. */
CK_LOOP(large_scores, VARIANTS) {
  static const int64_t size[5] = {1, 150, 2, 4};
  if (ck_part(_i)) check_both(open_variant(_i), size, &no_mask, 7);
}

/* On CPU the tiles of rows this long are higher. */
CK_LOOP(long_rows, ck_variants()) {
  static const int64_t size[5] = {1, 1029, 1, 2};
  if (!ck_on_gpu() && ck_part(_i)) check_both(ck_rig_variant(_i), size, &no_mask, 1);
}

/* What comes later, NaN included, changes no bit of what came before. */
CK_PART_LOOP(causality, VARIANTS) {
  static const int64_t size[5] = {1, 300, 2, 16};
  static const int64_t cuts[] = {1, 63, 64, 127, 128, 129, 299};
  struct ck_rig *rig = open_variant(_i);
  const struct attention a = numbers(rig, size, 1);
  const struct tensors t = upload(rig, &a);
  const int64_t channels = 32;
  ck_ok(forward(rig, &t));
  const double *out = ck_read(rig, t.out), *lse = ck_read(rig, t.lse);
  for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
    double *changed = ck_values(rig, t.in, -1, 1);
    memcpy(changed, a.qkv, (size_t)(cuts[c] * 3 * channels) * sizeof *changed);
    if (c % 2 == 1) changed[cuts[c] * 3 * channels + channels] = NAN;
    ck_set(t.qkv, changed);
    ck_ok(forward(rig, &t));
    ck_same_bits("earlier outputs", ck_read(rig, t.out), out, cuts[c] * channels);
    const double *got = ck_read(rig, t.lse);
    for (int h = 0; h < 2; h++) ck_same_bits("earlier lse", got + h * 300, lse + h * 300, cuts[c]);
  }
}

/* Values of 16 bits: heads so wide that tiles are smaller, and the keys go in blocks; and the first
 * that is too wide. */
CK_LOOP_FROM(wide_heads_of_16_bits, CK_VARIANTS, ck_variants()) {
  if (!ck_gpu_part(_i)) return;
  static const int64_t shapes[][5] = {{1, 200, 1, 512}, {1, 3, 1, 8192}, {1, 90, 1, 256}};
  const int64_t too_wide = ck_on_gpu() ? 257 : 8193;
  struct ck_rig *rig = ck_rig_variant(_i);
  for (int s = ck_on_gpu() ? 2 : 0; s < 3; s++) check_both(rig, shapes[s], &no_mask, 0.25);
  ek_tensor *qkv = ck_poisoned(rig, CK_SHAPE(1, 1, 3 * too_wide));
  ck_fails(ek_op_attention_forward(rig->stream, ck_poisoned(rig, CK_SHAPE(1, 1, too_wide)),
                                   ck_poisoned_sums(rig, CK_SHAPE(1, 1, 1)), qkv, NULL),
           EK_ERR_UNSUPPORTED, ck_text("heads are %d wide", (int)too_wide));
}

/* With one token, softmax is 1: out is v, lse the score, dv is dout, dq and dk are 0. */
CK_RIG_LOOP(one_token, ck_variants()) {
  static const int64_t size[5] = {3, 1, 2, 4};
  const struct attention a = numbers(rig, size, 1);
  const struct tensors t = upload(rig, &a);
  ck_ok(forward(rig, &t));
  const double *out = ck_read(rig, t.out);
  for (int64_t b = 0; b < 3; b++) ck_within("v", out + b * 8, a.qkv + b * 24 + 16, NULL, 8);
}

/* ---- differences ---- */

CK_TEST(gradient_by_differences) {
  if (CK_TSAN) return; /* one forward after the other, alone on the device */
  static const struct masked of[] = {
      {{2, 5, 2, 3}, {false, {0}, 0}},   {{1, 130, 1, 4}, {false, {0}, 0}},
      {{2, 5, 4, 2, 2}, {false, {0}, 0}}, {{2, 5, 4, 2, 2}, {true, {0}, 0}},
      {{2, 5, 4, 2, 2}, {false, {2, 1, -1, 3}, 0.25}},
      {{2, 5, 4, 2, 2}, {true, {3, -1, 2}, 0.25}}};
  for (int s = 0; s < 6; s++) {
    if (!ck_part(s + 1)) continue;
    struct ck_rig *rig = ck_rig_open(NULL, EK_F64, 1);
    struct attention a = numbers(rig, of[s].size, 1);
    set_mask(rig, &a, &of[s].mask);
    const struct tensors t = both(rig, &a);
    ck_gradient(rig, "attention", t.qkv, t.dqkv, 200, forward(rig, &t), ck_weighed(t.out, a.dout));
    ck_rig_close(rig);
  }
}

/* ---- wrong arguments ---- */

CK_RIG_TEST(bad_heads_and_huge_sizes, CK_HUGE_PLAN, EK_F32) {
  const int64_t b = 32, tokens = INT64_C(1) << 33, c = INT64_C(1) << 20;
  ek_stream *s = rig->stream;
  ek_tensor *qkv = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, 3 * c));
  ek_tensor *out = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, c));
  ek_tensor *lse = ck_ghost(rig, EK_F32, CK_SHAPE(b, 16, tokens));
  ek_attend_options o = EK_ATTEND_OPTIONS_INIT;
#define FORWARD(heads_, kv_heads_)                                                                 \
  (o.heads = (heads_), o.kv_heads = (kv_heads_),                                                   \
   ek_op_attention_forward(s, out, lse, qkv, &o))
  ck_ok(FORWARD(16, 0));
  ck_invalid(FORWARD(0, 0), "attention_forward: heads is 0");
  ck_invalid(FORWARD(-16, 0), "heads is -16");
  ck_fails(FORWARD(3, 0), EK_ERR_SHAPE,
           "attention_forward: out is 32 x 8589934592 x 1048576 but must be B x T x a multiple of "
           "3 heads");
  ck_invalid(FORWARD(16, 3), "attention_forward: 16 heads are not a multiple of 3 kv_heads");
  ck_invalid(FORWARD(16, -1), "16 heads are not a multiple of -1 kv_heads");
  ck_fails(FORWARD(8, 0), EK_ERR_SHAPE,
           "attention_forward: lse is 32 x 16 x 8589934592 but out is");
  ck_fails(FORWARD(16, 8), EK_ERR_SHAPE,
           "attention_forward: q is 32 x 8589934592 x 3145728 but out is");
  o.dropout = 0.5;
  ck_fails(FORWARD(16, 0), EK_ERR_UNSUPPORTED, "probabilities, which are more than 2^34");
  o.dropout = 1;
  ck_invalid(FORWARD(16, 0), "dropout is 1, which is outside 0 <= p < 1");
  ck_assign(o, .dropout = 0, .k = qkv);
  ck_invalid(FORWARD(16, 0), "attention_forward: v is NULL");
  ck_assign(o, .k = NULL, .k_column = 1);
  ck_invalid(FORWARD(16, 0), "columns are given, but k and v are NULL");
  o.k_column = 2 * c + 1;
  o.k = o.v = qkv;
  ck_fails(FORWARD(16, 0), EK_ERR_SHAPE,
           "k is 32 x 8589934592 x 3145728, expected at least 1048576 columns from column 2097153");
  o.k_column = c, o.v_column = 2 * c;
  ck_ok(FORWARD(16, 0));
  ek_tensor *dqkv = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, 3 * c));
  ek_tensor *dout = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, c));
  o.dk = o.dv = dqkv;
  ck_ok(ek_op_attention_backward(s, dqkv, dout, qkv, out, lse, &o));
  o.v_column = c + 1;
  ck_invalid(ek_op_attention_backward(s, dqkv, dout, qkv, out, lse, &o),
             "the columns of dv and dk overlap in one tensor");
  o.k_column = o.v_column = 0;
  o.k = o.v = NULL, o.dv = NULL;
  ck_invalid(ek_op_attention_backward(s, dqkv, dout, qkv, out, lse, &o),
             "dk is given, but k and v are NULL");
  ek_tensor *none = ck_ghost(rig, EK_F32, CK_SHAPE(b, tokens, 0));
  ck_fails(ek_op_attention_forward(s, none, lse, none, &o), EK_ERR_SHAPE,
           "attention_forward: out is 32 x 8589934592 x 0, which has no channels");
}

/* ---- documents ---- */

CK_RIG_LOOP(document_ranges, 1) {
  enum { SAMPLES = 2, TOKENS = 7 };
  static const double numbers_of[SAMPLES * TOKENS] = {4, 4, 0, -1, -1, 4, 4, 7, 7, 7, 7, 7, 7, 7};
  static const double want[2 * SAMPLES * TOKENS] = {0, 2, 0, 2, 2, 3, 3, 3, 4, 4, 5, 7, 5, 7,
                                                     0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7, 0, 7};
  static const double places[SAMPLES * TOKENS] = {0, 1, 0, 0, 0, 0, 1, 0, 1, 2, 3, 4, 5, 6};
  ek_tensor *segments = ck_tensor_of(rig, EK_I32, numbers_of, CK_SHAPE(SAMPLES, TOKENS));
  ek_tensor *ranges = ck_blank(rig, EK_I32, CK_SHAPE(SAMPLES, TOKENS, 2));
  ek_tensor *positions = ck_blank(rig, EK_I32, CK_SHAPE(SAMPLES, TOKENS));
  ck_ok(ek_op_document_ranges(rig->stream, ranges, positions, segments));
  ck_same_bits("ranges", ck_read(rig, ranges), want, 2 * SAMPLES * TOKENS);
  ck_same_bits("positions", ck_read(rig, positions), places, SAMPLES * TOKENS);
  ck_fails(ek_op_document_ranges(rig->stream, positions, NULL, segments), EK_ERR_SHAPE,
           "document_ranges: ranges is 2 x 7 but segments is 2 x 7, which takes 2 x 7 x 2");
  ck_ok(ek_op_document_ranges(rig->stream, NULL, NULL, segments));
}

/* Documents in one row give what each gives in a row of its own: the same bits where a document
 * begins with a tile, as on the CPU each does; gradients of keys too. */
CK_LOOP(packed_is_apart, VARIANTS) {
  if (CK_TSAN || !ck_gpu_part(_i)) return; /* the same work, whose values are compared */
  static const int64_t size[5] = {1, 128 + 60, 4, 16, 2};
  static const struct mask two = {.lengths = {128, 60}};
  struct ck_rig *rig = open_variant(_i);
  struct attention a = numbers(rig, size, 1);
  set_mask(rig, &a, &two);
  const struct tensors t = both(rig, &a);
  const double *out = ck_read(rig, t.out), *dqkv = ck_read(rig, t.dqkv);
  for (int64_t part = 0, first = 0; part < 2; first += two.lengths[part++]) {
    CK_WITH(struct attention, one, a, .tokens = two.lengths[part], .segments = NULL);
    one.qkv += first * 8 * 16, one.dout += first * 4 * 16;
    const struct tensors alone = both(rig, &one);
    ck_same_bits("out", out + first * 4 * 16, ck_read(rig, alone.out), alone.result);
    ck_same_bits("dqkv", dqkv + first * 8 * 16, ck_read(rig, alone.dqkv), alone.in);
  }
}

/* Queries, keys and values in tensors of their own, in the midst of others' columns. */
CK_LOOP(views, VARIANTS) {
  if (CK_TSAN || !ck_gpu_part(_i)) return; /* the same work, whose values are compared */
  static const int64_t size[5] = {2, 70, 4, 8, 2};
  enum { ROWS = 2 * 70, IN = 64, OUT = 32, SHARED = 16, WIDE = 40 };
  struct ck_rig *rig = open_variant(_i);
  const struct attention a = numbers(rig, size, 1);
  const struct tensors t = both(rig, &a);
  const double *out = ck_read(rig, t.out), *dqkv = ck_read(rig, t.dqkv);
  double *q = ck_zeros(rig, ROWS * WIDE), *kv = ck_zeros(rig, ROWS * WIDE);
  for (int64_t i = 0; i < ROWS; i++) {
    memcpy(q + i * WIDE + 8, a.qkv + i * IN, OUT * sizeof *q);
    memcpy(kv + i * WIDE, a.qkv + i * IN + OUT + SHARED, SHARED * sizeof *kv); /* v first */
    memcpy(kv + i * WIDE + 24, a.qkv + i * IN + OUT, SHARED * sizeof *kv);
  }
  ek_attend_options o = t.options;
  o.q_column = 8, o.k_column = 24, o.v_column = 0;
  ek_tensor *at_q = ck_tensor(rig, q, CK_SHAPE(2, 70, WIDE));
  ek_tensor *at_kv = ck_tensor(rig, kv, CK_SHAPE(2, 70, WIDE));
  ek_tensor *dq = ck_poisoned(rig, CK_SHAPE(2, 70, WIDE));
  ek_tensor *dkv = ck_poisoned(rig, CK_SHAPE(2, 70, WIDE));
  ck_set(t.out, NULL);
  o.k = o.v = at_kv, o.dk = o.dv = dkv;
  ck_ok(ek_op_attention_forward(rig->stream, t.out, t.lse, at_q, &o));
  ck_same_bits("out of views", ck_read(rig, t.out), out, t.result);
  ck_ok(ek_op_attention_backward(rig->stream, dq, t.dout, at_q, t.out, t.lse, &o));
  const double *got_q = ck_read(rig, dq), *got_kv = ck_read(rig, dkv);
  for (int64_t i = 0; i < ROWS; i++) {
    const double *want = dqkv + i * IN;
    ck_same_bits("dq", got_q + i * WIDE + 8, want, OUT);
    ck_same_bits("dk", got_kv + i * WIDE + 24, want + OUT, SHARED);
    ck_same_bits("dv", got_kv + i * WIDE, want + OUT + SHARED, SHARED);
  }
}

CK_SUITE("attend")
