/*
 * attend.h - attention, one head of one sample: its place in memory, and the functions on rows of a
 * tile (isa_attend.c). Inlining is left to the compiler.
 */
#ifndef EK_CPU_ATTEND_H
#define EK_CPU_ATTEND_H

#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

/* Queries and keys of a tile at most. */
#define ROWS 64
#define COLUMNS 128

typedef float tile[ROWS][COLUMNS];

/* One head of one sample. */
struct head {
  const value *q, *k, *v; /* tokens x width, a row every `step` elements */
  value *dq, *dk, *dv;    /* likewise */
  const value *dout;      /* tokens x width, a row every `out_step` elements */
  value *out;
  float *lse;
  int64_t tokens, width, step, out_step;
  double scale;
  const struct ek__attention_job *job;
};

static struct head head_of(const struct ek__attention_job *job, int64_t index) {
  const struct ek__attention_args *args = job->args;
  const int64_t sample = index / args->heads, number = index % args->heads;
  const int64_t model = args->heads * args->head_width, shared = args->kv_heads * args->head_width;
  const int64_t row = sample * args->tokens * (model + 2 * shared);
  const int64_t in = row + number * args->head_width;
  const int64_t in_k = row + model + number / (args->heads / args->kv_heads) * args->head_width;
  const int64_t at = sample * args->tokens * model + number * args->head_width;
  const value *qkv = args->qkv;
  value *dqkv = args->dqkv;
  return (struct head){.q = qkv + in,
                       .k = qkv + in_k,
                       .v = qkv + in_k + shared,
                       .dq = dqkv ? dqkv + in : NULL,
                       .dk = dqkv ? dqkv + in_k : NULL,
                       .dv = dqkv ? dqkv + in_k + shared : NULL,
                       .dout = args->dout ? (const value *)args->dout + at : NULL,
                       .out = (value *)args->out + at,
                       .lse = (float *)args->lse + index * args->tokens,
                       .tokens = args->tokens,
                       .width = args->head_width,
                       .step = model + 2 * shared,
                       .out_step = model,
                       .scale = 1.0 / sqrt((double)args->head_width),
                       .job = job};
}

/* Rows of sums: one every `step` elements. */
struct part {
  float *at;
  int64_t step;
};

/* Keys of a tile that query `token` may see. */
static int64_t seen(int64_t token, int64_t first_key, int64_t columns) {
  const int64_t count = token - first_key + 1;
  return count < 0 ? 0 : count < columns ? count : columns;
}

/* Rows of a tile are whole vectors: what is after the last key is read, and not used. */
static float largest_of(const float *x, int64_t n) {
  vec best = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + W <= n; i += W) best = v_max(v_load(x + i), best);
  if (i < n) best = v_max(v_first(n - i, v_load(x + i), best), best);
  return v_largest(best);
}

static void scale_row(float *x, float factor, int64_t width) {
  V_EACH(0, width, v_put(x + i, v_get(x + i, n) * factor, n));
}

/* What is known of a tile's rows so far. */
struct online {
  float largest[ROWS], sum[ROWS];
};

static void begin_rows(struct online *online, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    online->largest[r] = -INFINITY;
    online->sum[r] = 0.0f;
  }
}

/* What row r's exponentials are relative to. */
static float shift_of(const struct online *online, int64_t r) {
  return online->largest[r] > -INFINITY ? online->largest[r] : 0.0f;
}

/* Row r has a tile more, whose largest score is `best`: what its sums hold of tiles before, if
 * there were any, is scaled down to a new largest. */
static void meet_tile(struct online *online, int64_t r, float best, struct part sums, bool first,
                      int64_t width) {
  if (!(best > online->largest[r])) return;
  if (!first) {
    const float correction = expf(online->largest[r] - best);
    online->sum[r] *= correction;
    scale_row(sums.at + r * sums.step, correction, width);
  }
  online->largest[r] = best;
}

/* Rows query on have met all tiles: their sums are divided, and lse is written. */
static void end_rows(const struct head *head, const struct online *online, struct part sums,
                     int64_t query, int64_t rows) {
  for (int64_t r = 0; r < rows; r++) {
    scale_row(sums.at + r * sums.step, 1.0f / online->sum[r], head->width);
    head->lse[query + r] = shift_of(online, r) + logf(online->sum[r]);
  }
}

#ifndef EK_VALUE_f32
/* The sums, rounded, as rows of values. */
static void narrowed(value *y, int64_t step, struct part from, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    const float *row = from.at + r * from.step;
    X_PAIRS(0, width, x_put_ordered(y + r * step + i, v_get_pair(row + i, n), n));
  }
}
#endif

#endif /* EK_CPU_ATTEND_H */
