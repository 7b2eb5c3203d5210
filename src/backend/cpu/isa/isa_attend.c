/*
 * isa_attend.c - self-attention, one head of one sample at a time.
 *
 * A row of several documents is as many heads with fewer tokens, one after the other: no tile is
 * cut, nothing between documents is computed, and the bits are those of each document apart.
 *
 * Scores live in a tile of ROWS queries by COLUMNS keys, in scratch and never in memory. With a
 * causal mask, tiles above the diagonal are not computed. In f32 the products of tiles read
 * straight from q, k, v and write straight to the results, by their leading dimensions, so nothing
 * is copied.
 *   forward   per tile of queries: over the tiles of keys, an online softmax
 *             (Milakov and Gimelshein 2018; Dao et al. 2022)
 *   backward  the same tiles from lse: P = e^(S - lse), dP = dO V^T, dS = P (dP - delta),
 *             delta = the row's sum of dO O; dV += P^T dO, dK += dS^T Q, dQ += dS K
 *
 * 16-bit values are widened tile by tile into scratch; sums over tiles are added up there and
 * rounded once. For dK and dV scratch holds KEPT / width keys at a time: a longer sequence goes
 * through the tiles once for each block of keys, and once more for dQ. If a head is wider than
 * WIDE, the tiles have fewer rows. Forward widens keys and values once if all of them fit into the
 * same place.
 */
#include "backend/cpu/isa/attend.h"

#ifdef EK_VALUE_f32
struct tiles {
  _Alignas(64) tile p, dp;
};
#else
#define WIDE 128
#define KEPT 65536
struct tiles {
  _Alignas(64) tile p, dp;
  float q[ROWS * WIDE], dout[ROWS * WIDE], mine[ROWS * WIDE]; /* mine: out, then dq */
  float k[COLUMNS * WIDE], v[COLUMNS * WIDE];
  float dk[KEPT], dv[KEPT];
};
_Static_assert(ROWS *WIDE >= EK__CPU_WIDEST_HALF_HEAD, "one row of the widest head");
#endif
_Static_assert(sizeof(struct tiles) <= sizeof((struct ek__scratch *)0)->tiles, "scratch");

static struct tiles *tiles_of_this_thread(void) {
  return (struct tiles *)(void *)ek__team_scratch()->tiles;
}

/* A row-major matrix of floats inside a larger one: a row every `step` elements. */
struct view {
  const float *at;
  int64_t step;
};

static int64_t highest(const struct head *head) {
  return head->causal && head->tokens < FEW_TOKENS ? LOW_ROWS : ROWS;
}

/*
 * What differs by the type of values.
 *   widened    rows of values as floats, in `to` if they are not floats already
 *   place_of   where sums for rows of y are added up: y itself, or `to`
 *   narrowed   puts them into y, if they are not there
 */
#ifdef EK_VALUE_f32
static int64_t rows_of(const struct head *head) { return highest(head); }
static int64_t columns_of(const struct head *head) { return (void)head, COLUMNS; }
static int64_t keys_of(const struct head *head) { return head->tokens; }
static bool keeps(const struct head *head) { return (void)head, true; }

static struct view widened(const value *x, int64_t step, int64_t rows, int64_t width) {
  (void)rows, (void)width;
  return (struct view){x, step};
}
static struct part place_of(value *y, int64_t step, int64_t width) {
  (void)width;
  return (struct part){y, step};
}
static void narrowed(value *y, int64_t step, struct part from, int64_t rows, int64_t width) {
  (void)y, (void)step, (void)from, (void)rows, (void)width;
}
#define WIDENED(to, ...) widened(__VA_ARGS__)
#define PLACE_OF(to, ...) place_of(__VA_ARGS__)
#else
/* Queries and keys of a tile, and keys whose gradients are added up at a time. */
static int64_t rows_of(const struct head *head) {
  return at_most(ROWS * WIDE / head->width, highest(head));
}
static int64_t columns_of(const struct head *head) {
  return at_most(COLUMNS * WIDE / head->width, COLUMNS);
}
static int64_t keys_of(const struct head *head) {
  return KEPT / head->width / columns_of(head) * columns_of(head);
}

/* Whether there is room for the keys and values of all tokens. */
static bool keeps(const struct head *head) { return head->tokens <= KEPT / head->width; }

static struct view widened(float *to, const value *x, int64_t step, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    V_EACH(0, width, v_put(to + r * width + i, x_get(x + r * step + i, n), n));
  }
  return (struct view){to, width};
}
static struct part place_of(float *to, value *y, int64_t step, int64_t width) {
  (void)y, (void)step;
  return (struct part){to, width};
}
#define WIDENED widened
#define PLACE_OF place_of
#endif

static void multiply(const struct head *head, const struct ek__gemm *gemm) {
  const ek_status status = head->job->multiply(gemm);
  if (status != EK_OK) atomic_store(head->job->status, (int)status);
}

/* t[rows][columns] = scale a b^T for rows and columns of the head's width. */
static void tile_scores(const struct head *head, tile t, double scale, struct view a, int64_t rows,
                        struct view b, int64_t columns) {
  multiply(head, &(struct ek__gemm){.transpose_b = true,
                                    .m = rows,
                                    .n = columns,
                                    .k = head->width,
                                    .alpha = scale,
                                    .a = a.at,
                                    .lda = a.step,
                                    .b = b.at,
                                    .ldb = b.step,
                                    .c = t,
                                    .ldc = COLUMNS});
}

/* c[rows][width] = t b + beta c. */
static void tile_times(const struct head *head, struct part c, double beta, tile t, int64_t rows,
                       int64_t columns, struct view b) {
  multiply(head, &(struct ek__gemm){.m = rows,
                                    .n = head->width,
                                    .k = columns,
                                    .alpha = 1.0,
                                    .a = t,
                                    .lda = COLUMNS,
                                    .b = b.at,
                                    .ldb = b.step,
                                    .beta = beta,
                                    .c = c.at,
                                    .ldc = c.step});
}

/* c[columns][width] += t^T b. */
static void add_turned_tile_times(const struct head *head, struct part c, tile t, int64_t rows,
                                  int64_t columns, struct view b) {
  multiply(head, &(struct ek__gemm){.transpose_a = true,
                                    .m = columns,
                                    .n = head->width,
                                    .k = rows,
                                    .alpha = 1.0,
                                    .a = t,
                                    .lda = COLUMNS,
                                    .b = b.at,
                                    .ldb = b.step,
                                    .beta = 1.0,
                                    .c = c.at,
                                    .ldc = c.step});
}

/* x[0 .. n-1] = e^(x - shift), the rest up to `columns` and its vector 0; returns the sum. */
static float exp_row(float *x, float shift, int64_t n, int64_t columns) {
  const vec zero = {0};
  vec sum0 = {0}, sum1 = {0};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const vec e0 = x_exp_near(v_load(x + i) - shift), e1 = x_exp_near(v_load(x + i + W) - shift);
    v_store(x + i, e0);
    v_store(x + i + W, e1);
    sum0 += e0;
    sum1 += e1;
  }
  for (; i < n; i += W) {
    const vec e = v_first(n - i, x_exp_near(v_load(x + i) - shift), zero);
    v_store(x + i, e);
    sum0 += e;
  }
  for (; i < columns; i += W) v_store(x + i, zero);
  return v_sum(sum0 + sum1);
}

/* ---- forward ---- */

/* Turns scores into exponentials and scales what `out` holds so far down to the new largest. */
static void softmax_tile(const struct head *head, tile t, struct online *online, struct part out,
                         int64_t query, int64_t rows, int64_t key, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    const int64_t n = seen(head, query + r, key, columns);
    meet_tile(online, r, largest_of(t[r], n), out, key == 0, head->width);
    online->sum[r] += exp_row(t[r], shift_of(online, r), n, columns);
    if (!head->drops) continue;
    float room[ROOM];
    multiply_row(t[r], factors_of(room, head, query + r, key, n), n);
  }
}

/* `key` on of the rows that are kept. */
static struct view kept_from(struct view rows, int64_t key) {
  return (struct view){rows.at + key * rows.step, rows.step};
}

/* k and v are all of the head's, or NULL. */
static void forward_rows(const struct head *head, int64_t query, int64_t rows,
                         const struct view *all_k, const struct view *all_v) {
  struct tiles *tiles = tiles_of_this_thread();
  const int64_t width = head->width, most = columns_of(head);
  struct online online;
  begin_rows(&online, rows);
  value *result = head->out + query * head->out_step;
  const struct part out = PLACE_OF(tiles->mine, result, head->out_step, width);
  const struct view q =
      WIDENED(tiles->q, head->q + query * head->q_step, head->q_step, rows, width);
  const int64_t keys = keys_end(head, query + rows);
  for (int64_t key = 0; key < keys; key += most) {
    const int64_t columns = keys - key < most ? keys - key : most;
    const struct view k =
        all_k != NULL
            ? kept_from(*all_k, key)
            : WIDENED(tiles->k, head->k + key * head->k_step, head->k_step, columns, width);
    const struct view v =
        all_v != NULL
            ? kept_from(*all_v, key)
            : WIDENED(tiles->v, head->v + key * head->v_step, head->v_step, columns, width);
    tile_scores(head, tiles->p, head->scale, q, rows, k, columns);
    softmax_tile(head, tiles->p, &online, out, query, rows, key, columns);
    tile_times(head, out, key > 0 ? 1.0 : 0.0, tiles->p, rows, columns, v);
  }
  end_rows(head, &online, out, query, rows);
  narrowed(result, head->out_step, out, rows, width);
}

static void forward_document(const struct head *head) {
  const int64_t most = rows_of(head), width = head->width;
  struct view k = {0}, v = {0};
  const bool kept = keeps(head);
  if (kept) {
    k = WIDENED(tiles_of_this_thread()->dk, head->k, head->k_step, head->tokens, width);
    v = WIDENED(tiles_of_this_thread()->dv, head->v, head->v_step, head->tokens, width);
  }
  for (int64_t query = 0; query < head->tokens; query += most) {
    const int64_t rows = head->tokens - query < most ? head->tokens - query : most;
    forward_rows(head, query, rows, kept ? &k : NULL, kept ? &v : NULL);
  }
}

void EK_ISA_NAME(attention_forward)(const void *raw, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; index++) {
    const struct head whole = head_of(raw, index);
    for (int64_t first = 0; first < whole.tokens;) {
      const struct head head = document_at(&whole, first);
      first += head.tokens;
      if (!head.padding) {
        forward_document(&head);
        continue;
      }
      clear_value(head.out, head.width);
      head.lse[0] = 0;
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
    const vec e = x_exp_near(v_load(p + i) - lse);
    v_store(p + i, e);
    v_store(dp + i, e * (v_load(dp + i) - delta) * scale);
  }
  if (i < n) {
    const vec e = x_exp_near(v_load(p + i) - lse);
    v_store(p + i, v_first(n - i, e, zero));
    v_store(dp + i, v_first(n - i, e * (v_load(dp + i) - delta) * scale, zero));
    i += W;
  }
  for (; i < columns; i += W) {
    v_store(p + i, zero);
    v_store(dp + i, zero);
  }
}

/* Keys first .. last - 1, and where their gradients are added up; without dk only dq is
 * computed. */
struct keys {
  int64_t first, last;
  struct part dk, dv;
};

static void backward_rows(const struct head *head, int64_t query, int64_t rows,
                          const struct keys *keys, bool wants_dq) {
  struct tiles *tiles = tiles_of_this_thread();
  const int64_t width = head->width, most = columns_of(head);
  const int64_t out_step = head->out_step, q_step = head->q_step;
  float delta[ROWS];
  const struct view q = WIDENED(tiles->q, head->q + query * q_step, q_step, rows, width);
  const struct view dout =
      WIDENED(tiles->dout, head->dout + query * out_step, out_step, rows, width);
  const struct view out = WIDENED(tiles->mine, head->out + query * out_step, out_step, rows, width);
  for (int64_t r = 0; r < rows; r++) {
    delta[r] = dot(dout.at + r * dout.step, out.at + r * out.step, width);
  }
  const struct part dq = PLACE_OF(tiles->mine, head->dq + query * q_step, q_step, width);
  const int64_t last = at_most(keys_end(head, query + rows), keys->last);
  for (int64_t key = keys->first; key < last; key += most) {
    const int64_t columns = last - key < most ? last - key : most;
    const struct view k =
        WIDENED(tiles->k, head->k + key * head->k_step, head->k_step, columns, width);
    const struct view v =
        WIDENED(tiles->v, head->v + key * head->v_step, head->v_step, columns, width);
    tile_scores(head, tiles->p, head->scale, q, rows, k, columns);
    tile_scores(head, tiles->dp, 1.0, dout, rows, v, columns);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t n = seen(head, query + r, key, columns);
      float room[ROOM];
      const float *factors =
          head->drops ? factors_of(room, head, query + r, key, n) : NULL;
      if (factors != NULL) multiply_row(tiles->dp[r], factors, n);
      slope_row(tiles->dp[r], tiles->p[r], head->lse[query + r], delta[r], (float)head->scale, n,
                columns);
      if (factors != NULL) multiply_row(tiles->p[r], factors, n);
    }
    if (keys->dk.at != NULL) {
      const int64_t at = key - keys->first;
      struct part dk = keys->dk, dv = keys->dv;
      dk.at += at * dk.step;
      dv.at += at * dv.step;
      add_turned_tile_times(head, dv, tiles->p, rows, columns, dout);
      add_turned_tile_times(head, dk, tiles->dp, rows, columns, q);
    }
    if (wants_dq) tile_times(head, dq, key > 0 ? 1.0 : 0.0, tiles->dp, rows, columns, k);
  }
  if (wants_dq) narrowed(head->dq + query * q_step, q_step, dq, rows, width);
}

/* Of all queries that see any of the keys. */
static void backward_queries(const struct head *head, const struct keys *keys, bool wants_dq) {
  const int64_t most = rows_of(head);
  for (int64_t query = head->causal ? keys->first : 0; query < head->tokens; query += most) {
    const int64_t rows = head->tokens - query < most ? head->tokens - query : most;
    backward_rows(head, query, rows, keys, wants_dq);
  }
}

static void clear(struct part part, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; r++) {
    memset(part.at + r * part.step, 0, (size_t)width * sizeof *part.at);
  }
}

/* The document that begins with token `first`, of the heads from number `index` on, `group` of
 * them, which share their keys. dK and dV are sums over these heads and their tiles of queries, so
 * they begin as 0. */
static void backward_document(const struct head *shared, int64_t index, int64_t group) {
  const int64_t most = keys_of(shared), width = shared->width, tokens = shared->tokens;
  const int64_t k_step = shared->k_step, v_step = shared->v_step;
  const bool at_once = most >= tokens;
  for (int64_t first = 0; first < tokens; first += most) {
    const int64_t last = tokens - first < most ? tokens : first + most;
    value *dk = shared->dk + first * k_step, *dv = shared->dv + first * v_step;
    const struct keys keys = {first, last,
                              PLACE_OF(tiles_of_this_thread()->dk, dk, k_step, width),
                              PLACE_OF(tiles_of_this_thread()->dv, dv, v_step, width)};
    clear(keys.dk, last - first, width);
    clear(keys.dv, last - first, width);
    for (int64_t i = index; i < index + group; i++) {
      const struct head whole = head_of(shared->job, i), head = document_at(&whole, shared->first);
      backward_queries(&head, &keys, at_once);
    }
    narrowed(dk, k_step, keys.dk, last - first, width);
    narrowed(dv, v_step, keys.dv, last - first, width);
  }
  for (int64_t i = index; i < index + group && !at_once; i++) {
    const struct head whole = head_of(shared->job, i), head = document_at(&whole, shared->first);
    backward_queries(&head, &(struct keys){.last = tokens}, true);
  }
}

/* Nothing sees the token, and it sees nothing. */
static void clear_padding(const struct head *shared, int64_t group) {
  for (int64_t i = 0; i < group; i++) {
    clear_value(shared->dq + i * shared->width, shared->width);
  }
  clear_value(shared->dk, shared->width);
  clear_value(shared->dv, shared->width);
}

void EK_ISA_NAME(attention_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__attention_job *job = raw;
  const int64_t group = job->args->heads / job->args->kv_heads;
  for (int64_t kv = begin; kv < end; kv++) {
    const struct head whole = head_of(job, kv * group);
    for (int64_t first = 0; first < whole.tokens;) {
      const struct head head = document_at(&whole, first);
      first += head.tokens;
      if (head.padding) clear_padding(&head, group);
      else backward_document(&head, kv * group, group);
    }
  }
}
