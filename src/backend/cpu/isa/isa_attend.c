/*
 * isa_attend.c - causal self-attention in f32, one head of one sample at a time.
 *
 * Scores live in a tile of ROWS queries by COLUMNS keys, in scratch and never in memory. Tiles
 * above the diagonal are not computed. The products of tiles read straight from qkv and write
 * straight to the results, by their leading dimensions, so nothing is copied.
 *   forward   per tile of queries: over the tiles of keys, an online softmax
 *             (Milakov and Gimelshein 2018; Dao et al. 2022)
 *   backward  the same tiles from lse: P = e^(S - lse), dP = dO V^T, dS = P (dP - delta),
 *             delta = the row's sum of dO O; dV += P^T dO, dK += dS^T Q, dQ += dS K
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

#define ROWS 64
#define COLUMNS 128

typedef float tile[ROWS][COLUMNS];

struct tiles {
  _Alignas(64) tile p, dp;
};
_Static_assert(sizeof(struct tiles) <= sizeof((struct ek__scratch *)0)->tiles, "scratch");

static struct tiles *tiles_of_this_thread(void) {
  return (struct tiles *)(void *)ek__team_scratch()->tiles;
}

/* One head of one sample. */
struct head {
  const float *q, *k, *v; /* tokens x width, a row every 3 C elements */
  float *dq, *dk, *dv;    /* likewise */
  const float *dout;      /* tokens x width, a row every C elements */
  float *out, *lse;
  int64_t tokens, width, step, out_step;
  double scale;
  const struct ek__attention_job *job;
};

static struct head head_of(const struct ek__attention_job *job, int64_t index) {
  const struct ek__attention_args *args = job->args;
  const int64_t sample = index / args->heads, number = index % args->heads;
  const int64_t model = args->heads * args->head_width;
  const int64_t in = sample * args->tokens * 3 * model + number * args->head_width;
  const int64_t at = sample * args->tokens * model + number * args->head_width;
  const float *qkv = (const float *)args->qkv + in;
  float *dqkv = args->dqkv ? (float *)args->dqkv + in : NULL;
  return (struct head){.q = qkv,
                       .k = qkv + model,
                       .v = qkv + 2 * model,
                       .dq = dqkv,
                       .dk = dqkv ? dqkv + model : NULL,
                       .dv = dqkv ? dqkv + 2 * model : NULL,
                       .dout = args->dout ? (const float *)args->dout + at : NULL,
                       .out = (float *)args->out + at,
                       .lse = (float *)args->lse + index * args->tokens,
                       .tokens = args->tokens,
                       .width = args->head_width,
                       .step = 3 * model,
                       .out_step = model,
                       .scale = 1.0 / sqrt((double)args->head_width),
                       .job = job};
}

/* A row-major matrix inside a larger one: a row every `step` elements. */
struct part {
  float *at;
  int64_t step;
};

static void multiply(const struct head *head, const struct ek__gemm *gemm) {
  const ek_status status = head->job->multiply(gemm);
  if (status != EK_OK) atomic_store(head->job->status, (int)status);
}

/* t[rows][columns] = scale a b^T for rows and columns of the head's width. */
static void tile_scores(const struct head *head, tile t, double scale, const float *a,
                        int64_t a_step, int64_t rows, const float *b, int64_t columns) {
  multiply(head, &(struct ek__gemm){.transpose_b = true,
                                    .m = rows,
                                    .n = columns,
                                    .k = head->width,
                                    .alpha = scale,
                                    .a = a,
                                    .lda = a_step,
                                    .b = b,
                                    .ldb = head->step,
                                    .c = t,
                                    .ldc = COLUMNS});
}

/* c[rows][width] = t b + beta c. */
static void tile_times(const struct head *head, struct part c, double beta, tile t, int64_t rows,
                       int64_t columns, const float *b) {
  multiply(head, &(struct ek__gemm){.m = rows,
                                    .n = head->width,
                                    .k = columns,
                                    .alpha = 1.0,
                                    .a = t,
                                    .lda = COLUMNS,
                                    .b = b,
                                    .ldb = head->step,
                                    .beta = beta,
                                    .c = c.at,
                                    .ldc = c.step});
}

/* c[columns][width] += t^T b. */
static void add_turned_tile_times(const struct head *head, float *c, tile t, int64_t rows,
                                  int64_t columns, const float *b, int64_t b_step) {
  multiply(head, &(struct ek__gemm){.transpose_a = true,
                                    .m = columns,
                                    .n = head->width,
                                    .k = rows,
                                    .alpha = 1.0,
                                    .a = t,
                                    .lda = COLUMNS,
                                    .b = b,
                                    .ldb = b_step,
                                    .beta = 1.0,
                                    .c = c,
                                    .ldc = head->step});
}

/* Keys of a tile that query `token` may see. */
static int64_t seen(int64_t token, int64_t first_key, int64_t columns) {
  const int64_t count = token - first_key + 1;
  return count < 0 ? 0 : count < columns ? count : columns;
}

/* Rows of a tile are whole vectors: what lies behind the last key is read, and not used. */
static float largest_of(const float *x, int64_t n) {
  vec best = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + W <= n; i += W) best = v_max(v_load(x + i), best);
  if (i < n) best = v_max(v_first(n - i, v_load(x + i), best), best);
  return v_largest(best);
}

/* x[0 .. n-1] = e^(x - shift), the rest up to `columns` and its vector 0; returns the sum. */
static float exp_row(float *x, float shift, int64_t n, int64_t columns) {
  const vec zero = {0};
  vec sum0 = {0}, sum1 = {0};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const vec e0 = v_exp(v_load(x + i) - shift), e1 = v_exp(v_load(x + i + W) - shift);
    v_store(x + i, e0);
    v_store(x + i + W, e1);
    sum0 += e0;
    sum1 += e1;
  }
  for (; i < n; i += W) {
    const vec e = v_first(n - i, v_exp(v_load(x + i) - shift), zero);
    v_store(x + i, e);
    sum0 += e;
  }
  for (; i < columns; i += W) v_store(x + i, zero);
  return v_sum(sum0 + sum1);
}

static void scale_row(float *x, float factor, int64_t width) {
  V_EACH(0, width, v_put(x + i, v_get(x + i, n) * factor, n));
}

/* ---- forward ---- */

/* What is known of a tile's rows so far. */
struct online {
  float largest[ROWS], sum[ROWS];
};

/* Turns scores into exponentials and scales what `out` holds so far down to the new largest. */
static void softmax_tile(const struct head *head, tile t, struct online *online, int64_t query,
                         int64_t rows, int64_t key, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t n = seen(query + r, key, columns);
    const float best = largest_of(t[r], n);
    if (best > online->largest[r]) {
      if (key > 0) {
        const float correction = expf(online->largest[r] - best);
        online->sum[r] *= correction;
        scale_row(head->out + (query + r) * head->out_step, correction, head->width);
      }
      online->largest[r] = best;
    }
    const float shift = online->largest[r] > -INFINITY ? online->largest[r] : 0.0f;
    online->sum[r] += exp_row(t[r], shift, n, columns);
  }
}

static void forward_rows(const struct head *head, int64_t query, int64_t rows) {
  float(*t)[COLUMNS] = tiles_of_this_thread()->p;
  struct online online;
  for (int64_t r = 0; r < rows; r++) {
    online.largest[r] = -INFINITY;
    online.sum[r] = 0.0f;
  }
  float *out = head->out + query * head->out_step;
  const int64_t keys = query + rows;
  for (int64_t key = 0; key < keys; key += COLUMNS) {
    const int64_t columns = keys - key < COLUMNS ? keys - key : COLUMNS;
    tile_scores(head, t, head->scale, head->q + query * head->step, head->step, rows,
                head->k + key * head->step, columns);
    softmax_tile(head, t, &online, query, rows, key, columns);
    tile_times(head, (struct part){out, head->out_step}, key > 0 ? 1.0 : 0.0, t, rows, columns,
               head->v + key * head->step);
  }
  for (int64_t r = 0; r < rows; r++) {
    scale_row(out + r * head->out_step, 1.0f / online.sum[r], head->width);
    const float shift = online.largest[r] > -INFINITY ? online.largest[r] : 0.0f;
    head->lse[query + r] = shift + logf(online.sum[r]);
  }
}

void EK_ISA_NAME(attention_forward)(const void *raw, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; index++) {
    const struct head head = head_of(raw, index);
    for (int64_t query = 0; query < head.tokens; query += ROWS) {
      forward_rows(&head, query, head.tokens - query < ROWS ? head.tokens - query : ROWS);
    }
  }
}

/* ---- backward ---- */

static float dot(const float *a, const float *b, int64_t n) {
  vec sum = {0};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + W <= n; i += W) sum += v_load(a + i) * v_load(b + i);
  for (; i < n; i++) rest += a[i] * b[i];
  return v_sum(sum) + rest;
}

/* p becomes P = e^(S - lse) and dp becomes dS = P (dP - delta) scale; both 0 where not seen. */
static void slope_row(float *dp, float *p, float lse, float delta, float scale, int64_t n,
                      int64_t columns) {
  const vec zero = {0};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const vec e = v_exp(v_load(p + i) - lse);
    v_store(p + i, e);
    v_store(dp + i, e * (v_load(dp + i) - delta) * scale);
  }
  if (i < n) {
    const vec e = v_exp(v_load(p + i) - lse);
    v_store(p + i, v_first(n - i, e, zero));
    v_store(dp + i, v_first(n - i, e * (v_load(dp + i) - delta) * scale, zero));
    i += W;
  }
  for (; i < columns; i += W) {
    v_store(p + i, zero);
    v_store(dp + i, zero);
  }
}

static void backward_rows(const struct head *head, int64_t query, int64_t rows) {
  struct tiles *tiles = tiles_of_this_thread();
  float(*p)[COLUMNS] = tiles->p, (*dp)[COLUMNS] = tiles->dp;
  float delta[ROWS];
  const float *q = head->q + query * head->step, *dout = head->dout + query * head->out_step;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t at = r * head->out_step;
    delta[r] = dot(dout + at, head->out + query * head->out_step + at, head->width);
  }
  const int64_t keys = query + rows;
  for (int64_t key = 0; key < keys; key += COLUMNS) {
    const int64_t columns = keys - key < COLUMNS ? keys - key : COLUMNS;
    const float *k = head->k + key * head->step, *v = head->v + key * head->step;
    tile_scores(head, p, head->scale, q, head->step, rows, k, columns);
    tile_scores(head, dp, 1.0, dout, head->out_step, rows, v, columns);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t n = seen(query + r, key, columns);
      slope_row(dp[r], p[r], head->lse[query + r], delta[r], (float)head->scale, n, columns);
    }
    add_turned_tile_times(head, head->dv + key * head->step, p, rows, columns, dout,
                          head->out_step);
    add_turned_tile_times(head, head->dk + key * head->step, dp, rows, columns, q, head->step);
    tile_times(head, (struct part){head->dq + query * head->step, head->step}, key > 0 ? 1.0 : 0.0,
               dp, rows, columns, k);
  }
}

/* dK and dV of a head are sums over the tiles of queries, so they begin as 0. */
void EK_ISA_NAME(attention_backward)(const void *raw, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; index++) {
    const struct head head = head_of(raw, index);
    const size_t bytes = (size_t)head.width * sizeof(float);
    for (int64_t token = 0; token < head.tokens; token++) {
      memset(head.dk + token * head.step, 0, bytes);
      memset(head.dv + token * head.step, 0, bytes);
    }
    for (int64_t query = 0; query < head.tokens; query += ROWS) {
      backward_rows(&head, query, head.tokens - query < ROWS ? head.tokens - query : ROWS);
    }
  }
}
