/*
 * tile_attend.c - causal self-attention in bf16 on the matrix unit, one head of one sample at a
 * time.
 *
 * The scheme is that of isa/isa_attend.c, tiles of ROWS queries by COLUMNS keys: an online softmax
 * forward, the same tiles again from lse backward. What differs is what the products take. q, k, v
 * and dout are operands as they are, packed (operand.h) and never widened; P and dS are rounded to
 * bf16 where they become operands, as in FlashAttention. Scores, softmax, lse, delta and all sums
 * are f32; the sum of a row is of exponentials that are not rounded. The scale is multiplied where
 * scores are read.
 *
 * Keys and values are packed in slots of COLUMNS keys, forward once a head where all of them fit,
 * backward once for each block of keys whose gradients are added up at a time. A sequence that is
 * longer than such a block goes through the tiles once for each, and once more for dQ; there, and
 * forward behind what fits, a slot is packed for each tile.
 *
 * Widths are filled up to whole squares, `padded`. Of what is filled up, rows behind the last query
 * hold anything and are not read; along the depth of a product there are zeros.
 */
#include "backend/cpu/isa/attend.h"
#include "backend/cpu/tiles/operand.h"

#define WIDE EK__CPU_WIDEST_TILE_HEAD
#define KEPT 65536

/* Of a slot, each COLUMNS x padded: keys and values as b of products over the width (_w) or over
 * the keys (_k). */
enum { FORWARD_K_W, FORWARD_V_K, FORWARD_PARTS };
enum { BACKWARD_K_W, BACKWARD_K_K, BACKWARD_V_W, BACKWARD_PARTS };
#define FORWARD_ROOM 7 /* times KEPT: what backward has for sums and keys */

struct room {
  _Alignas(64) tile p, dp; /* scores and P, dP */
  value p16[ROWS][COLUMNS], ds16[ROWS][COLUMNS];
  value turned[COLUMNS * ROWS];                /* P^T, dS^T */
  value q[ROWS * WIDE], dout[ROWS * WIDE];     /* as a */
  value q_b[ROWS * WIDE], dout_b[ROWS * WIDE]; /* as b, the depth is the queries */
  float mine[ROWS * WIDE];                     /* sums of out, or dq */
  union {
    struct {
      float dk[KEPT], dv[KEPT];
      value keys[BACKWARD_PARTS * KEPT];
    };
    value all[FORWARD_ROOM * KEPT];
  };
};
_Static_assert(sizeof(struct room) <= sizeof((struct ek__scratch *)0)->tiles, "scratch");
_Static_assert(WIDE % SQUARE == 0 && COLUMNS * WIDE <= KEPT, "whole squares, and a slot");

static struct room *room_of_this_thread(void) {
  return (struct room *)(void *)ek__team_scratch()->tiles;
}

static int64_t padded(const struct head *head) { return cover(head->width, SQUARE) * SQUARE; }

/* Rows of values, `step` apart, where sums go over the width, or over the rows. */
static struct matrix by_width(const value *x, int64_t step, int64_t rows, int64_t width) {
  return (struct matrix){x, step, 1, rows, width};
}
static struct matrix by_rows(const value *x, int64_t step, int64_t rows, int64_t width) {
  return (struct matrix){x, 1, step, width, rows};
}

/* Keys of the slot that begins with `key`; of its products over the keys so many tiles deep. */
static int64_t keys_in_slot(const struct head *head, int64_t key) {
  return at_most(head->tokens - key, COLUMNS);
}
static int64_t depths_of_slot(const struct head *head, int64_t key) {
  return cover(keys_in_slot(head, key), TILE_DEPTH);
}

/* c[rows][columns] = a b, or c + a b, in whole squares; over `depth`. Not inlined, as pack(). */
static __attribute__((noinline)) void multiply(float *c, int64_t step, struct operand a,
                                               const struct operand *b, int64_t rows,
                                               int64_t columns, int64_t depth, bool adds) {
  const int64_t depths = cover(depth, TILE_DEPTH);
  for (int64_t i = 0; i < rows; i += SQUARE, a.at += 2 * a.lines) {
    struct operand here = *b;
    for (int64_t j = 0; j < columns; j += SQUARE, here.at += 2 * here.lines) {
      multiply_square(c + i * step + j, step, &a, &here, depths, adds);
    }
  }
}

/* p16 or ds16 where it lies, as a of products over the keys. */
static struct operand in_rows(value (*x)[COLUMNS]) {
  const int64_t row = COLUMNS * (int64_t)sizeof(value);
  return (struct operand){(const char *)x, row, TILE_LINES * row, 64};
}

/* Its columns as a of products over the queries. */
static struct operand in_columns(value *turned, value (*x)[COLUMNS], int64_t rows,
                                 int64_t columns) {
  const struct matrix m = by_rows(x[0], COLUMNS, rows, columns);
  pack(turned, &m, SIDE_A);
  return packed(turned, cover(rows, TILE_DEPTH));
}

static struct operand pack_by_width(value *to, const value *x, int64_t step, int64_t rows,
                                    int64_t width, enum side side) {
  const struct matrix m = by_width(x, step, rows, width);
  pack(to, &m, side);
  return packed(to, cover(width, TILE_DEPTH));
}

static struct operand pack_by_rows(value *to, const value *x, int64_t step, int64_t rows,
                                   int64_t width) {
  const struct matrix m = by_rows(x, step, rows, width);
  pack(to, &m, SIDE_B);
  return packed(to, cover(rows, TILE_DEPTH));
}

/* ---- forward ---- */

/* to[0 .. n-1] = e^(scale x - shift) rounded, the rest up to `columns` 0; returns the sum, of what
 * is not rounded. Rows of scores are read to the end of a pair of vectors. */
static float exp_row(value *to, const float *x, float scale, float shift, int64_t n,
                     int64_t columns) {
  const vec zero = {0};
  vec sum[2] = {{0}};
  int64_t i = 0;
  for (; i < n; i += 2 * W) {
    struct pair e = {{v_load(x + i), v_load(x + i + W)}};
    X_BOTH(e.of[j] = x_exp_near(e.of[j] * scale - shift));
    if (i + 2 * W > n) X_BOTH(e.of[j] = v_first(n - i - j * W, e.of[j], zero));
    X_BOTH(sum[j] += e.of[j]);
    x_put_ordered(to + i, e, 2 * W);
  }
  if (i < columns) memset(to + i, 0, (size_t)(columns - i) * sizeof *to);
  return v_sum(sum[0] + sum[1]);
}

static void softmax_tile(const struct head *head, struct room *room, struct online *online,
                         int64_t query, int64_t rows, int64_t key, int64_t columns) {
  const float scale = (float)head->scale;
  const struct part sums = {room->mine, padded(head)};
  for (int64_t r = 0; r < rows; r++) {
    const int64_t n = seen(query + r, key, columns);
    meet_tile(online, r, scale * largest_of(room->p[r], n), sums, key == 0, head->width);
    online->sum[r] += exp_row(room->p16[r], room->p[r], scale, shift_of(online, r), n,
                              cover(columns, SQUARE) * SQUARE);
  }
}

/* The slot of keys from `key` on. */
static void pack_forward(const struct head *head, value *slot, int64_t key) {
  const int64_t part = COLUMNS * padded(head), keys = keys_in_slot(head, key);
  const int64_t at = key * head->step;
  (void)pack_by_width(slot + FORWARD_K_W * part, head->k + at, head->step, keys, head->width,
                      SIDE_B);
  (void)pack_by_rows(slot + FORWARD_V_K * part, head->v + at, head->step, keys, head->width);
}

static void forward_rows(const struct head *head, int64_t query, int64_t rows, bool kept) {
  struct room *room = room_of_this_thread();
  const int64_t width = head->width, wide = padded(head), part = COLUMNS * wide;
  struct online online;
  begin_rows(&online, rows);
  const struct operand q =
      pack_by_width(room->q, head->q + query * head->step, head->step, rows, width, SIDE_A);
  const int64_t keys = query + rows;
  for (int64_t key = 0; key < keys; key += COLUMNS) {
    const int64_t columns = at_most(keys - key, COLUMNS);
    value *slot = room->all + (kept ? key / COLUMNS * FORWARD_PARTS * part : 0);
    if (!kept) pack_forward(head, slot, key);
    const struct operand k = packed(slot + FORWARD_K_W * part, cover(width, TILE_DEPTH));
    const struct operand v = packed(slot + FORWARD_V_K * part, depths_of_slot(head, key));
    multiply(room->p[0], COLUMNS, q, &k, rows, columns, width, false);
    softmax_tile(head, room, &online, query, rows, key, columns);
    multiply(room->mine, wide, in_rows(room->p16), &v, rows, width, columns, key > 0);
  }
  const struct part out = {room->mine, wide};
  end_rows(head, &online, out, query, rows);
  narrowed(head->out + query * head->out_step, head->out_step, out, rows, width);
}

static void forward_head(const struct head *head) {
  const int64_t part = COLUMNS * padded(head);
  const bool kept = cover(head->tokens, COLUMNS) <= FORWARD_ROOM * KEPT / (FORWARD_PARTS * part);
  for (int64_t key = 0; key < head->tokens && kept; key += COLUMNS) {
    pack_forward(head, room_of_this_thread()->all + key / COLUMNS * FORWARD_PARTS * part, key);
  }
  for (int64_t query = 0; query < head->tokens; query += ROWS) {
    forward_rows(head, query, at_most(head->tokens - query, ROWS), kept);
  }
}

void EK_ISA_NAME(tile_attention_forward)(const void *raw, int64_t begin, int64_t end) {
  struct tile_unit unit;
  tile_open(&unit);
  for (int64_t index = begin; index < end; index++) {
    const struct head head = head_of(raw, index);
    forward_head(&head);
  }
  tile_close(&unit);
}

/* ---- backward ---- */

static float dot(const value *a, const value *b, int64_t width) {
  vec sum = {0};
  V_EACH(0, width, sum += x_get(a + i, n) * x_get(b + i, n));
  return v_sum(sum);
}

/* P = e^(scale S - lse) and dS = P (dP - delta) scale, both rounded and 0 where not seen. */
struct slope {
  float scale, lse, delta;
};

static void slope_row(value *ds16, value *p16, const float *dp, const float *s,
                      const struct slope *slope, int64_t n, int64_t columns) {
  const vec zero = {0};
  const float scale = slope->scale, lse = slope->lse, delta = slope->delta;
  int64_t i = 0;
  for (; i < n; i += 2 * W) {
    struct pair e = {{v_load(s + i), v_load(s + i + W)}};
    struct pair ds = {{v_load(dp + i), v_load(dp + i + W)}};
    X_BOTH(e.of[j] = x_exp_near(e.of[j] * scale - lse));
    X_BOTH(ds.of[j] = e.of[j] * (ds.of[j] - delta) * scale);
    if (i + 2 * W > n) {
      X_BOTH(e.of[j] = v_first(n - i - j * W, e.of[j], zero));
      X_BOTH(ds.of[j] = v_first(n - i - j * W, ds.of[j], zero));
    }
    x_put_ordered(p16 + i, e, 2 * W);
    x_put_ordered(ds16 + i, ds, 2 * W);
  }
  if (i >= columns) return;
  memset(p16 + i, 0, (size_t)(columns - i) * sizeof *p16);
  memset(ds16 + i, 0, (size_t)(columns - i) * sizeof *ds16);
}

static void slope_tile(const struct head *head, struct room *room, const float *delta,
                       int64_t query, int64_t rows, int64_t key, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    const struct slope slope = {(float)head->scale, head->lse[query + r], delta[r]};
    slope_row(room->ds16[r], room->p16[r], room->dp[r], room->p[r], &slope,
              seen(query + r, key, columns), cover(columns, SQUARE) * SQUARE);
  }
}

/* The slot of keys from `key` on. */
static void pack_backward(const struct head *head, value *slot, int64_t key) {
  const int64_t part = COLUMNS * padded(head), keys = keys_in_slot(head, key);
  const int64_t step = head->step, width = head->width, at = key * step;
  (void)pack_by_width(slot + BACKWARD_K_W * part, head->k + at, step, keys, width, SIDE_B);
  (void)pack_by_rows(slot + BACKWARD_K_K * part, head->k + at, step, keys, width);
  (void)pack_by_width(slot + BACKWARD_V_W * part, head->v + at, step, keys, width, SIDE_B);
}

/* Keys first .. last - 1: their slots are packed and their gradients added up, or, where only dq is
 * computed, neither. */
struct keys {
  int64_t first, last;
  bool kept;
};

static void backward_rows(const struct head *head, int64_t query, int64_t rows,
                          const struct keys *keys, bool wants_dq) {
  struct room *room = room_of_this_thread();
  const int64_t width = head->width, wide = padded(head), part = COLUMNS * wide;
  const int64_t step = head->step, out_step = head->out_step;
  const value *q_rows = head->q + query * step, *dout_rows = head->dout + query * out_step;
  const value *out_rows = head->out + query * out_step;
  float delta[ROWS];
  for (int64_t r = 0; r < rows; r++) {
    delta[r] = dot(dout_rows + r * out_step, out_rows + r * out_step, width);
  }
  const struct operand q = pack_by_width(room->q, q_rows, step, rows, width, SIDE_A);
  const struct operand dout = pack_by_width(room->dout, dout_rows, out_step, rows, width, SIDE_A);
  struct operand q_b = {0}, dout_b = {0};
  if (keys->kept) {
    q_b = pack_by_rows(room->q_b, q_rows, step, rows, width);
    dout_b = pack_by_rows(room->dout_b, dout_rows, out_step, rows, width);
  }
  const int64_t last = query + rows < keys->last ? query + rows : keys->last;
  for (int64_t key = keys->first; key < last; key += COLUMNS) {
    const int64_t columns = at_most(last - key, COLUMNS), at = key - keys->first;
    value *slot = room->keys + (keys->kept ? at / COLUMNS * BACKWARD_PARTS * part : 0);
    if (!keys->kept) pack_backward(head, slot, key);
    const int64_t depths = cover(width, TILE_DEPTH);
    const struct operand k = packed(slot + BACKWARD_K_W * part, depths);
    const struct operand v = packed(slot + BACKWARD_V_W * part, depths);
    multiply(room->p[0], COLUMNS, q, &k, rows, columns, width, false);
    multiply(room->dp[0], COLUMNS, dout, &v, rows, columns, width, false);
    slope_tile(head, room, delta, query, rows, key, columns);
    if (keys->kept) {
      multiply(room->dv + at * wide, wide, in_columns(room->turned, room->p16, rows, columns),
               &dout_b, columns, width, rows, true);
      multiply(room->dk + at * wide, wide, in_columns(room->turned, room->ds16, rows, columns),
               &q_b, columns, width, rows, true);
    }
    if (wants_dq) {
      const struct operand k_k = packed(slot + BACKWARD_K_K * part, depths_of_slot(head, key));
      multiply(room->mine, wide, in_rows(room->ds16), &k_k, rows, width, columns, key > 0);
    }
  }
  if (!wants_dq) return;
  narrowed(head->dq + query * step, step, (struct part){room->mine, wide}, rows, width);
}

static void backward_from(const struct head *head, int64_t query, const struct keys *keys,
                          bool wants_dq) {
  for (; query < head->tokens; query += ROWS) {
    backward_rows(head, query, at_most(head->tokens - query, ROWS), keys, wants_dq);
  }
}

/* dK and dV of a block of keys are sums over the tiles of queries, so they begin as 0. */
static void backward_head(const struct head *head) {
  struct room *room = room_of_this_thread();
  const int64_t wide = padded(head), part = COLUMNS * wide, step = head->step;
  const int64_t most = KEPT / part * COLUMNS;
  const bool at_once = most >= head->tokens;
  for (int64_t first = 0; first < head->tokens; first += most) {
    const struct keys keys = {first, at_most(head->tokens, first + most), true};
    const int64_t count = keys.last - first;
    memset(room->dk, 0, (size_t)(count * wide) * sizeof *room->dk);
    memset(room->dv, 0, (size_t)(count * wide) * sizeof *room->dv);
    for (int64_t key = first; key < keys.last; key += COLUMNS) {
      pack_backward(head, room->keys + (key - first) / COLUMNS * BACKWARD_PARTS * part, key);
    }
    backward_from(head, first, &keys, at_once);
    narrowed(head->dk + first * step, step, (struct part){room->dk, wide}, count, head->width);
    narrowed(head->dv + first * step, step, (struct part){room->dv, wide}, count, head->width);
  }
  if (!at_once) backward_from(head, 0, &(struct keys){.last = head->tokens}, true);
}

void EK_ISA_NAME(tile_attention_backward)(const void *raw, int64_t begin, int64_t end) {
  struct tile_unit unit;
  tile_open(&unit);
  for (int64_t index = begin; index < end; index++) {
    const struct head head = head_of(raw, index);
    backward_head(&head);
  }
  tile_close(&unit);
}
