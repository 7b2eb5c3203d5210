/*
 * isa_channel_norm.c - normalisation by channels (channel_norm.h).
 *
 * Sums: a vector of channels goes down BLOCK rows with its sums in registers, as doubles; then the
 * next vector of channels goes down the same rows, which are in the cache. Meanwhile the rows of
 * the next block are fetched in their own order: a processor fetches ahead badly where it is led
 * down columns. Every channel has its own lane, so its sum has one order, that of the rows of the
 * piece, on every instruction set. The product of two f32 is exact in f64.
 *
 * Floor: bytes. Moments read x once, slopes x and dy; forward reads x and writes y, backward reads
 * x and dy and writes dx.
 */
#include "backend/cpu/isa/isa.h"

#include <math.h>

#define BLOCK 32  /* rows: with 2048 channels 256 KiB, what a cache of the second level holds */
#define STRIP 1024 /* channels whose factors are on the stack; wider rows are taken in strips */

/* Two sums of a vector of channels: each in the halves that v_widen() gives. */
struct sums {
  vec_d of[2][2];
};

static inline struct sums get_sums(const double *first, const double *second, int64_t n) {
  double lanes[2][W] = {{0}};
  struct sums s;
  if (n == W) {
    memcpy(s.of[0], first, sizeof s.of[0]);
    memcpy(s.of[1], second, sizeof s.of[1]);
    return s;
  }
  memcpy(lanes[0], first, (size_t)n * sizeof *first);
  memcpy(lanes[1], second, (size_t)n * sizeof *second);
  memcpy(&s, lanes, sizeof s);
  return s;
}

static inline void put_sums(double *first, double *second, struct sums s, int64_t n) {
  memcpy(first, s.of[0], (size_t)n * sizeof *first);
  memcpy(second, s.of[1], (size_t)n * sizeof *second);
}

/* A block of rows of one piece. */
struct block {
  const value *x, *dy;
  const float *mean; /* of the sample */
  double *sums;
  int64_t rows, channels;
};

static void add_moments(const struct block *b) {
  V_EACH(0, b->channels, {
    struct sums s = get_sums(b->sums + i, b->sums + b->channels + i, n);
    const value *x = b->x + i;
    const value *next = b->x + (b->channels + i) * BLOCK;
    for (int64_t row = 0; row < b->rows; row++, x += b->channels, next += W) {
      vec_d v[2];
      __builtin_prefetch(next);
      v_widen(x_get(x, n), &v[0], &v[1]);
      X_BOTH({
        s.of[0][j] += v[j];
        s.of[1][j] += v[j] * v[j];
      });
    }
    put_sums(b->sums + i, b->sums + b->channels + i, s, n);
  });
}

/* The second sum is that of dy (x - mean): rstd comes last. */
static void add_slopes(const struct block *b) {
  V_EACH(0, b->channels, {
    struct sums s = get_sums(b->sums + i, b->sums + b->channels + i, n);
    const value *x = b->x + i, *dy = b->dy + i;
    const vec mean = v_get(b->mean + i, n);
    const int64_t ahead = (b->channels + i) * BLOCK;
    for (int64_t row = 0; row < b->rows; row++, x += b->channels, dy += b->channels) {
      vec_d d[2], g[2];
      __builtin_prefetch(b->x + ahead + row * W);
      __builtin_prefetch(b->dy + ahead + row * W);
      v_widen(x_get(x, n) - mean, &d[0], &d[1]);
      v_widen(x_get(dy, n), &g[0], &g[1]);
      X_BOTH({
        s.of[0][j] += g[j];
        s.of[1][j] += g[j] * d[j];
      });
    }
    put_sums(b->sums + i, b->sums + b->channels + i, s, n);
  });
}

static void sum_piece(const struct ek__channel_args *args, int64_t piece) {
  const int64_t channels = args->channels, last = ek__channel_piece(args, piece + 1);
  const int64_t of = args->samples == 1 ? 0 : piece * channels;
  struct block b = {.channels = channels, .sums = args->sums + 2 * piece * channels};
  memset(b.sums, 0, 2 * (size_t)channels * sizeof *b.sums);
  for (int64_t row = ek__channel_piece(args, piece); row < last; row += BLOCK) {
    b.x = (const value *)args->x + row * channels;
    b.rows = at_most(last - row, BLOCK);
    if (args->dy) {
      b.dy = (const value *)args->dy + row * channels;
      b.mean = (const float *)args->mean + of;
      add_slopes(&b);
    } else {
      add_moments(&b);
    }
  }
  if (!args->dy) return;
  for (int64_t c = 0; c < channels; c++) {
    b.sums[channels + c] *= (double)((const float *)args->rstd)[of + c];
  }
}

void EK_ISA_NAME(channel_moments)(const void *raw, int64_t begin, int64_t end) {
  for (int64_t piece = begin; piece < end; piece++) sum_piece(raw, piece);
}

void EK_ISA_NAME(channel_slopes)(const void *raw, int64_t begin, int64_t end) {
  for (int64_t piece = begin; piece < end; piece++) sum_piece(raw, piece);
}

/* ---- from sums to statistics and averages: few numbers, in f64 ---- */

void EK_ISA_NAME(channel_statistics)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t width = args->channels / args->groups;
  for (int64_t i = begin; i < end; i++) {
    const int64_t sample = i / args->groups, first = i % args->groups * width;
    const struct ek__moments m = ek__group_moments(args, sample, first, width);
    float *mean = (float *)args->mean + sample * args->channels;
    float *rstd = (float *)args->rstd + sample * args->channels;
    for (int64_t c = first; c < first + width; c++) {
      mean[c] = (float)m.mean;
      rstd[c] = (float)ek__moments_rstd(m, args->epsilon);
    }
  }
}

void EK_ISA_NAME(channel_running)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const double n = ek__channel_rows(args);
  float *mean = args->running_mean, *variance = args->running_variance, *batches = args->batches;
  if (n == 0.0) return;
  const double factor = args->momentum == 0.0 ? 1.0 / ((double)*batches + 1.0) : args->momentum;
  for (int64_t c = begin; c < end; c++) {
    const struct ek__moments m = ek__moments_of(n, args->sums[c], args->sums[args->channels + c]);
    const double old[2] = {(double)mean[c], (double)variance[c]};
    mean[c] = (float)(old[0] + factor * (m.mean - old[0]));
    if (!(n <= 1.0)) variance[c] = (float)(old[1] + factor * (m.deviations / (n - 1.0) - old[1]));
  }
  *batches += 1.0f;
}

/* Of group number `i` of all samples. */
static void write_averages(const struct ek__channel_args *args, int64_t i) {
  const int64_t width = args->channels / args->groups, sample = i / args->groups;
  const int64_t first = i % args->groups * width, at = sample * args->channels;
  const double *sums = args->sums + 2 * at, n = ek__channel_rows(args) * (double)width;
  const value *weight = args->weight;
  double g = 0.0, gn = 0.0;
  for (int64_t c = first; c < first + width; c++) {
    const double w = weight ? (double)x_one(weight + c) : 1.0;
    g += w * sums[c];
    gn += w * sums[args->channels + c];
  }
  for (int64_t c = first; c < first + width; c++) {
    if (args->average_g) ((float *)args->average_g)[at + c] = n == 0.0 ? 0.0f : (float)(g / n);
    if (args->average_gn) ((float *)args->average_gn)[at + c] = n == 0.0 ? 0.0f : (float)(gn / n);
  }
}

static void add_sum(float *y, double scale, double sum) {
  if (y) *y = (float)(sum + (scale == 0.0 ? 0.0 : scale * (double)*y));
}

void EK_ISA_NAME(channel_averages)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__channel_args *args = raw;
  const int64_t groups = args->samples * args->groups;
  for (int64_t i = begin; i < end; i++) {
    if (i < groups) {
      write_averages(args, i);
      continue;
    }
    const int64_t c = i - groups;
    double g = 0.0, gn = 0.0;
    for (int64_t s = 0; s < args->samples; s++) {
      g += args->sums[2 * s * args->channels + c];
      gn += args->sums[(2 * s + 1) * args->channels + c];
    }
    add_sum(args->dweight ? (float *)args->dweight + c : NULL, args->weight_scale, gn);
    add_sum(args->dbias ? (float *)args->dbias + c : NULL, args->bias_scale, g);
  }
}

/* ---- y and dx ---- */

/* Rows of one sample, and channels first .. first + width - 1 of them. */
struct area {
  int64_t row, rows, first, width, sample;
};

/* y = (x - mean) factor + add. */
static void write_y(const struct ek__channel_args *args, const struct area *a) {
  float factor[STRIP], add[STRIP];
  const float *mean = (const float *)args->mean + a->sample * args->channels + a->first;
  const float *rstd = (const float *)args->rstd + a->sample * args->channels + a->first;
  const value *weight = args->weight, *bias = args->bias;
  for (int64_t c = 0; c < a->width; c++) {
    factor[c] = rstd[c] * (weight ? x_one(weight + a->first + c) : 1.0f);
    add[c] = bias ? x_one(bias + a->first + c) : 0.0f;
  }
  for (int64_t row = a->row; row < a->row + a->rows; row++) {
    const int64_t at = row * args->channels + a->first;
    const value *x = (const value *)args->x + at;
    value *y = (value *)args->y + at;
    V_EACH(0, a->width, {
      x_fetch(x + i);
      const vec v = (x_get(x + i, n) - v_get(mean + i, n)) * v_get(factor + i, n);
      x_put(y + i, v + v_get(add + i, n), n);
    });
  }
}

/* dx = dy factor - constant - (x - mean) slope. */
static void write_dx(const struct ek__channel_args *args, const struct area *a) {
  float factor[STRIP], constant[STRIP], slope[STRIP];
  const int64_t of = a->sample * args->channels + a->first;
  const float *mean = (const float *)args->mean + of, *rstd = (const float *)args->rstd + of;
  const float *g = args->average_g, *gn = args->average_gn;
  const value *weight = args->weight;
  for (int64_t c = 0; c < a->width; c++) {
    factor[c] = rstd[c] * (weight ? x_one(weight + a->first + c) : 1.0f);
    constant[c] = g ? rstd[c] * g[of + c] : 0.0f;
    slope[c] = gn ? rstd[c] * (rstd[c] * gn[of + c]) : 0.0f;
  }
  for (int64_t row = a->row; row < a->row + a->rows; row++) {
    const int64_t at = row * args->channels + a->first;
    const value *x = (const value *)args->x + at, *dy = (const value *)args->dy + at;
    value *dx = (value *)args->y + at;
    V_EACH(0, a->width, {
      x_fetch(x + i);
      x_fetch(dy + i);
      vec v = x_get(dy + i, n) * v_get(factor + i, n) - v_get(constant + i, n);
      if (gn) v -= (x_get(x + i, n) - v_get(mean + i, n)) * v_get(slope + i, n);
      x_put(dx + i, v, n);
    });
  }
}

static void each_area(const struct ek__channel_args *args, int64_t begin, int64_t end,
                      void (*write)(const struct ek__channel_args *args, const struct area *a)) {
  const int64_t each = args->rows / args->samples;
  struct area a;
  for (a.row = begin; a.row < end; a.row += a.rows) {
    a.sample = a.row / each;
    a.rows = at_most(end, (a.sample + 1) * each) - a.row;
    for (a.first = 0; a.first < args->channels; a.first += a.width) {
      a.width = at_most(args->channels - a.first, STRIP);
      write(args, &a);
    }
  }
}

void EK_ISA_NAME(channel_norm_forward)(const void *raw, int64_t begin, int64_t end) {
  each_area(raw, begin, end, write_y);
}

void EK_ISA_NAME(channel_norm_backward)(const void *raw, int64_t begin, int64_t end) {
  each_area(raw, begin, end, write_dx);
}
