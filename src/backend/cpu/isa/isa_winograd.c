/*
 * isa_winograd.c - transforms of a convolution by Winograd's algorithm (cpu_winograd.h).
 *
 * Channels are neighbours in pictures and in matrices, so vectors are of channels. Kernels are not:
 * they pass through a block of one vector of channels.
 */
#include "backend/cpu/isa/isa.h"

#include "backend/cpu/cpu_winograd.h"

#define TAPS 9

/* ---- tiles ---- */

struct tile {
  int64_t image, rest[2], at[2];
};

static inline struct tile tile_of(const struct ek__tiles *tiles, int64_t number) {
  struct tile t;
  t.at[1] = number % tiles->count[1], number /= tiles->count[1];
  t.at[0] = number % tiles->count[0], number /= tiles->count[0];
  t.rest[1] = number % tiles->dilation[1], number /= tiles->dilation[1];
  t.rest[0] = number % tiles->dilation[0];
  t.image = number / tiles->dilation[0];
  return t;
}

static inline void next_tile(const struct ek__tiles *tiles, struct tile *t) {
  if (++t->at[1] < tiles->count[1]) return;
  t->at[1] = 0;
  if (++t->at[0] < tiles->count[0]) return;
  t->at[0] = 0;
  if (++t->rest[1] < tiles->dilation[1]) return;
  t->rest[1] = 0;
  if (++t->rest[0] < tiles->dilation[0]) return;
  t->rest[0] = 0;
  t->image++;
}

/* The row or column of element `i`, or -1. */
static inline int64_t place(const struct ek__tiles *tiles, const struct tile *t, int direction,
                            int64_t i) {
  const int64_t pixel = tiles->first[direction] + t->rest[direction] +
                        tiles->dilation[direction] * (2 * t->at[direction] + i);
  return pixel < tiles->size[direction] ? pixel : -1;
}

static inline int64_t offset(const struct ek__tiles *tiles, const struct tile *t, int64_t row,
                             int64_t column) {
  return ((t->image * tiles->size[0] + row) * tiles->size[1] + column) * tiles->channels;
}

/* ---- from pixels ---- */

/* An element of B^T d or A e: of two elements of d or e, with their signs. */
struct combination {
  int at[2];
  float sign[2];
};
static const struct combination of_pixels[4] = {
    {{0, 2}, {1, -1}}, {{1, 2}, {1, 1}}, {{2, 1}, {1, -1}}, {{1, 3}, {1, -1}}};
static const struct combination of_gradients[4] = {
    {{0, 1}, {1, 0}}, {{0, 1}, {1, 1}}, {{0, 1}, {1, -1}}, {{0, 1}, {0, -1}}};

struct taps {
  int count; /* 0, 1, 2 or 4 */
  const value *from[4];
  float sign[4];
};

static inline struct taps taps_of(const struct ek__winograd_gather_args *args,
                                  const struct tile *t) {
  const struct combination *all = args->gradient ? of_gradients : of_pixels;
  const struct combination *v = &all[args->position / 4], *h = &all[args->position % 4];
  struct taps taps = {0};
  for (int i = 0; i < 2; i++) {
    const int64_t row = v->sign[i] == 0 ? -1 : place(args->tiles, t, 0, v->at[i]);
    if (row < 0) continue;
    for (int j = 0; j < 2; j++) {
      const int64_t column = h->sign[j] == 0 ? -1 : place(args->tiles, t, 1, h->at[j]);
      if (column < 0) continue;
      taps.from[taps.count] =
          (const value *)args->pixels + offset(args->tiles, t, row, column) + args->channel;
      taps.sign[taps.count++] = v->sign[i] * h->sign[j];
    }
  }
  return taps;
}

static inline vec tap(const struct taps *taps, int which, int64_t i, int64_t n) {
  return v_set(taps->sign[which]) * x_get(taps->from[which] + i, n);
}

static inline void add_taps(float *to, const struct taps *taps, int64_t columns) {
  switch (taps->count) {
  case 0: memset(to, 0, (size_t)columns * sizeof *to); break;
  case 1: V_EACH(0, columns, v_put(to + i, tap(taps, 0, i, n), n)); break;
  case 2: V_EACH(0, columns, v_put(to + i, tap(taps, 0, i, n) + tap(taps, 1, i, n), n)); break;
  default:
    V_EACH(
        0, columns,
        v_put(to + i,
              (tap(taps, 0, i, n) + tap(taps, 1, i, n)) + (tap(taps, 2, i, n) + tap(taps, 3, i, n)),
              n));
    break;
  }
}

void EK_ISA_NAME(winograd_gather)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__winograd_gather_args *args = raw;
  struct tile t = tile_of(args->tiles, args->tile + begin);
  for (int64_t i = begin; i < end; i++, next_tile(args->tiles, &t)) {
    const struct taps taps = taps_of(args, &t);
    add_taps(args->matrix + (i - begin) * args->columns, &taps, args->columns);
  }
}

/* ---- to pixels ---- */

/* A^T m A of n channels. */
static inline void combine_results(vec y[2][2], const float *m, int64_t step, int64_t n) {
  vec half[2][4];
  for (int j = 0; j < 4; j++) {
    const vec first = v_get(m + j * step, n), second = v_get(m + (4 + j) * step, n);
    const vec third = v_get(m + (8 + j) * step, n), fourth = v_get(m + (12 + j) * step, n);
    half[0][j] = (first + second) + third;
    half[1][j] = (second - third) - fourth;
  }
  for (int i = 0; i < 2; i++) {
    y[i][0] = (half[i][0] + half[i][1]) + half[i][2];
    y[i][1] = (half[i][1] - half[i][2]) - half[i][3];
  }
}

static inline void put_results(const struct ek__winograd_scatter_args *args, value *const to[4],
                               const float *m) {
  const value *bias = args->bias == NULL ? NULL : (const value *)args->bias + args->channel;
  V_EACH(0, args->columns, {
    vec y[2][2];
    combine_results(y, m + i, args->step, n);
    const vec more = bias == NULL ? v_set(0.0f) : x_get(bias + i, n);
    for (int j = 0; j < 4; j++) {
      const vec result = bias == NULL ? y[j / 2][j % 2] : y[j / 2][j % 2] + more;
      if (to[j] != NULL) x_put(to[j] + i, result, n);
    }
  });
}

void EK_ISA_NAME(winograd_scatter)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__winograd_scatter_args *args = raw;
  struct tile t = tile_of(args->tiles, args->tile + begin);
  for (int64_t i = begin; i < end; i++, next_tile(args->tiles, &t)) {
    value *to[4] = {NULL};
    for (int j = 0; j < 4; j++) {
      const int64_t row = place(args->tiles, &t, 0, j / 2);
      const int64_t column = place(args->tiles, &t, 1, j % 2);
      if (row < 0 || column < 0) continue;
      to[j] = (value *)args->pixels + offset(args->tiles, &t, row, column) + args->channel;
    }
    put_results(args, to, args->matrix + (i - begin) * args->columns);
  }
}

/* ---- kernels ---- */

/* G of three elements. */
static inline void spread(vec to[4], vec a, vec b, vec c) {
  const vec half = v_set(0.5f);
  to[0] = a;
  to[1] = half * ((a + c) + b);
  to[2] = half * ((a + c) - b);
  to[3] = c;
}

/* G^T of four. */
static inline void gather(vec to[3], vec a, vec b, vec c, vec d) {
  const vec half = v_set(0.5f);
  to[0] = a + half * (b + c);
  to[1] = half * (b - c);
  to[2] = half * (b + c) + d;
}

/* Columns c to c + n of a row. */
static inline void put_kernels(const struct ek__winograd_weights_args *args, float *to,
                               const value *from, int64_t n) {
  float lanes[TAPS][W] = {{0}};
  for (int64_t i = 0; i < n; i++, from += args->column_step) {
    for (int k = 0; k < TAPS; k++) lanes[args->turned ? TAPS - 1 - k : k][i] = x_one(from + k);
  }
  vec half[3][4];
  for (int j = 0; j < 3; j++) {
    spread(half[j], v_load(lanes[j]), v_load(lanes[3 + j]), v_load(lanes[6 + j]));
  }
  for (int i = 0; i < 4; i++) {
    vec row[4];
    spread(row, half[0][i], half[1][i], half[2][i]);
    for (int j = 0; j < 4; j++) v_put(to + (4 * i + j) * args->step, row[j], n);
  }
}

void EK_ISA_NAME(winograd_weights)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__winograd_weights_args *args = raw;
  for (int64_t r = begin; r < end; r++) {
    const value *from = (const value *)args->weight + (args->row + r) * args->row_step;
    float *to = args->matrix + r * args->columns;
    V_EACH(0, args->columns, put_kernels(args, to + i, from + i * args->column_step, n));
  }
}

static inline void add_kernels(const struct ek__winograd_weights_args *args, float *to,
                               const float *from, int64_t n) {
  float lanes[TAPS][W];
  const float scale = (float)args->scale;
  vec half[3][4];
  for (int j = 0; j < 4; j++) {
    vec column[3];
    gather(column, v_get(from + j * args->step, n), v_get(from + (4 + j) * args->step, n),
           v_get(from + (8 + j) * args->step, n), v_get(from + (12 + j) * args->step, n));
    for (int i = 0; i < 3; i++) half[i][j] = column[i];
  }
  for (int i = 0; i < 3; i++) {
    vec row[3];
    gather(row, half[i][0], half[i][1], half[i][2], half[i][3]);
    for (int j = 0; j < 3; j++) v_store(lanes[3 * i + j], row[j]);
  }
  for (int64_t i = 0; i < n; i++, to += args->column_step) {
    for (int k = 0; k < TAPS; k++) {
      to[k] = scale == 0.0f ? lanes[k][i] : scale * to[k] + lanes[k][i];
    }
  }
}

void EK_ISA_NAME(winograd_sums)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__winograd_weights_args *args = raw;
  for (int64_t r = begin; r < end; r++) {
    float *to = (float *)args->weight + (args->row + r) * args->row_step;
    const float *from = args->matrix + r * args->columns;
    V_EACH(0, args->columns, add_kernels(args, to + i * args->column_step, from + i, n));
  }
}
