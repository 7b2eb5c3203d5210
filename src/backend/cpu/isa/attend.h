/*
 * attend.h - attention, one head of one sample: its place in memory, and the functions on rows of a
 * tile (isa_attend.c). Inlining is left to the compiler.
 */
#ifndef EK_CPU_ATTEND_H
#define EK_CPU_ATTEND_H

#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/random_bits.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

/* Queries and keys of a tile at most. High tiles make faster products; but half of a tile on the
 * diagonal is computed for nothing, so the rows of few tokens are cut lower. */
#define ROWS 128
#define COLUMNS 256
#define LOW_ROWS 64
#define FEW_TOKENS 1024

typedef float tile[ROWS][COLUMNS];

/* One head of one sample, or one of its documents: a head of fewer tokens. */
struct head {
  const value *q, *k, *v; /* tokens x width, a row every q_step, k_step, v_step elements */
  value *dq, *dk, *dv;    /* likewise */
  const value *dout;      /* tokens x width, a row every `out_step` elements */
  value *out;
  float *lse;
  const int32_t *ranges; /* of documents, of the first token on; NULL: one document */
  int64_t tokens, width, q_step, k_step, v_step, out_step;
  int64_t first, number; /* the first token's number in the sample; the head's */
  double scale;
  bool causal, padding, drops;
  struct mask mask; /* of dropout */
  const struct ek__attention_job *job;
};

static struct head head_of(const struct ek__attention_job *job, int64_t index) {
  const struct ek__attention_args *args = job->args;
  const int64_t sample = index / args->heads, number = index % args->heads;
  const int64_t width = args->head_width, row = sample * args->tokens;
  const int64_t kv = number / (args->heads / args->kv_heads) * width;
  const int64_t q = row * args->q_step + number * width;
  const int64_t k = row * args->k_step + kv, v = row * args->v_step + kv;
  const int64_t out_step = args->heads * width, at = row * out_step + number * width;
  struct head head = {.q = (const value *)args->q + q,
                      .k = (const value *)args->k + k,
                      .v = (const value *)args->v + v,
                      .dq = args->dq ? (value *)args->dq + q : NULL,
                      .dk = args->dk ? (value *)args->dk + k : NULL,
                      .dv = args->dv ? (value *)args->dv + v : NULL,
                      .dout = args->dout ? (const value *)args->dout + at : NULL,
                      .out = (value *)args->out + at,
                      .lse = (float *)args->lse + index * args->tokens,
                      .ranges = args->ranges ? args->ranges + 2 * row : NULL,
                      .tokens = args->tokens,
                      .width = width,
                      .q_step = args->q_step,
                      .k_step = args->k_step,
                      .v_step = args->v_step,
                      .out_step = out_step,
                      .number = number,
                      .scale = 1.0 / sqrt((double)width),
                      .causal = args->causal,
                      .drops = args->dropout > 0,
                      .job = job};
  if (head.drops) head.mask = mask_of(args->dropout, args->key);
  head.mask.sample = (uint32_t)(args->first_sample + sample);
  return head;
}

/* What of a head begins with token `first`: a document, or one token of padding. */
static struct head document_at(const struct head *whole, int64_t first) {
  struct head head = *whole;
  if (whole->ranges == NULL) return head;
  head.first = first;
  head.padding = whole->ranges[2 * first] == whole->ranges[2 * first + 1];
  head.tokens = head.padding ? 1 : whole->ranges[2 * first + 1] - first;
  head.q += first * head.q_step;
  head.k += first * head.k_step;
  head.v += first * head.v_step;
  head.out += first * head.out_step;
  head.lse += first;
  if (head.dq == NULL) return head;
  head.dq += first * head.q_step;
  head.dk += first * head.k_step;
  head.dv += first * head.v_step;
  head.dout += first * head.out_step;
  return head;
}

static void clear_value(value *x, int64_t width) { memset(x, 0, (size_t)width * sizeof *x); }

/* Rows of sums: one every `step` elements. */
struct part {
  float *at;
  int64_t step;
};

/* Keys of a tile that query `token` may see: its first ones. */
static int64_t seen(const struct head *head, int64_t token, int64_t first_key, int64_t columns) {
  const int64_t count = token - first_key + 1;
  if (!head->causal) return columns;
  return count < 0 ? 0 : count < columns ? count : columns;
}

/* The end of the keys that are seen by any of the queries before `query`. */
static int64_t keys_end(const struct head *head, int64_t query) {
  return head->causal ? query : head->tokens;
}

/* The factors of dropout, each 0 or 1 / (1 - p), for the probabilities of query `query` and
 * `columns` keys from `key` on. They are in `room`, which begins where a block of random bits
 * does. */
#define ROOM (COLUMNS + 4 + 2 * W)
static const float *factors_of(float room[ROOM], const struct head *head, int64_t query,
                               int64_t key, int64_t columns) {
  const int64_t tokens = head->job->args->tokens, column = head->first + key;
  const int64_t begin = column / 4 * 4, end = column + columns;
  const int64_t row = head->number * tokens + head->first + query;
  const int64_t block = row * ((tokens + 3) / 4) + begin / 4;
  for (int64_t i = begin; i < end; i += 2 * W) {
    vec_u bits[2];
    random_bits(&head->mask, (uint32_t)(block + (i - begin) / 4), bits);
    v_store(room + i - begin, kept_or_0(&head->mask, bits[0]));
    v_store(room + i - begin + W, kept_or_0(&head->mask, bits[1]));
  }
  return room + column - begin;
}

static void multiply_row(float *x, const float *factors, int64_t columns) {
  V_EACH(0, columns, v_put(x + i, v_get(x + i, n) * v_get(factors + i, n), n));
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
