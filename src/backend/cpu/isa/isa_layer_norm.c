/*
 * isa_layer_norm.c - layer normalisation.
 *
 * A row stays in the cache while it is read two or three times, so each direction is one pass over
 * memory, which also makes the additions to a row. Backward adds the row's share of dgamma and
 * dbeta in the same pass if one thread does all rows; several threads would race for them, so each
 * then takes columns of its own instead.
 */
#include "backend/cpu/isa/isa.h"

#include <math.h>

static float row_sum(const value *x, int64_t width) {
  vec sum0 = {0}, sum1 = {0};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + 2 * W <= width; i += 2 * W) {
    const struct pair v = x_load_pair(x + i);
    sum0 += v.of[0];
    sum1 += v.of[1];
  }
  for (; i < width; i++) rest += x_one(x + i);
  return v_sum(sum0 + sum1) + rest;
}

/* sum = x + residual, which sum may be; returns what row_sum(sum) would. */
static float row_add(value *sum, const value *x, const value *residual, int64_t width) {
  vec sum0 = {0}, sum1 = {0};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + 2 * W <= width; i += 2 * W) {
    const struct pair add = x_load_pair(residual + i);
    struct pair v = x_load_pair(x + i);
    X_BOTH(v.of[j] += add.of[j]);
    v = x_round_pair(v);
    x_store_pair(sum + i, v);
    sum0 += v.of[0];
    sum1 += v.of[1];
  }
  for (; i < width; i++) {
    x_set(sum + i, x_one(x + i) + x_one(residual + i));
    rest += x_one(sum + i);
  }
  return v_sum(sum0 + sum1) + rest;
}

static float row_squares(const value *x, float mean, int64_t width) {
  vec sum0 = {0}, sum1 = {0};
  float rest = 0.0f;
  int64_t i = 0;
  for (; i + 2 * W <= width; i += 2 * W) {
    const struct pair v = x_load_pair(x + i);
    const vec d0 = v.of[0] - mean, d1 = v.of[1] - mean;
    sum0 += d0 * d0;
    sum1 += d1 * d1;
  }
  for (; i < width; i++) rest += (x_one(x + i) - mean) * (x_one(x + i) - mean);
  return v_sum(sum0 + sum1) + rest;
}

/* beta NULL: zeros, with the same bits. Inlined where beta is known to be there or not, because a
 * branch within the loop takes half as much time again. */
static inline __attribute__((always_inline)) void write_y(value *y, const value *x,
                                                          const value *gamma, const value *beta,
                                                          float mean, float rstd, int64_t width) {
  X_PAIRS(0, width, {
    const struct pair times = x_get_pair(gamma + i, n);
    struct pair v = x_get_pair(x + i, n), add = {{{0}}};
    if (beta) add = x_get_pair(beta + i, n);
    X_BOTH(v.of[j] = (v.of[j] - mean) * rstd * times.of[j] + add.of[j]);
    x_put_pair(y + i, x_quiet_pair(v), n);
  });
}

void EK_ISA_NAME(layer_norm_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_args *args = raw;
  const int64_t width = args->width;
  const value *gamma = args->gamma, *beta = args->beta;
  for (int64_t row = begin; row < end; row++) {
    const value *x = (const value *)args->x + row * width;
    value *y = (value *)args->y + row * width;
    float mean = 0.0f;
    if (args->residual) {
      value *sum = (value *)args->sum + row * width;
      mean = row_add(sum, x, (const value *)args->residual + row * width, width) / (float)width;
      x = sum;
    } else if (args->mean) {
      mean = row_sum(x, width) / (float)width;
    }
    if (!args->mean) mean = 0.0f;
    const float variance = row_squares(x, mean, width) / (float)width;
    const float rstd = 1.0f / sqrtf(variance + (float)args->epsilon);
    if (beta) {
      write_y(y, x, gamma, beta, mean, rstd, width);
    } else {
      write_y(y, x, gamma, NULL, mean, rstd, width);
    }
    if (args->mean) ((float *)args->mean)[row] = mean;
    ((float *)args->rstd)[row] = rstd;
  }
}

/* One row of backward: what it reads. */
struct row {
  const value *dy, *x, *gamma;
  float mean, rstd;
  int64_t width;
};

/* *g = average of dy gamma, *gn = average of dy gamma n. */
static void row_averages(const struct row *row, float *g, float *gn) {
  vec sum_g[2] = {{0}}, sum_gn[2] = {{0}};
  float rest_g = 0.0f, rest_gn = 0.0f;
  int64_t i = 0;
  for (; i + 2 * W <= row->width; i += 2 * W) {
    const struct pair dy = x_load_pair(row->dy + i), gamma = x_load_pair(row->gamma + i);
    const struct pair x = x_load_pair(row->x + i);
    X_BOTH({
      const vec slope = dy.of[j] * gamma.of[j];
      sum_g[j] += slope;
      sum_gn[j] += slope * ((x.of[j] - row->mean) * row->rstd);
    });
  }
  for (; i < row->width; i++) {
    const float slope = x_one(row->dy + i) * x_one(row->gamma + i);
    rest_g += slope;
    rest_gn += slope * ((x_one(row->x + i) - row->mean) * row->rstd);
  }
  *g = (v_sum(sum_g[0] + sum_g[1]) + rest_g) / (float)row->width;
  *gn = (v_sum(sum_gn[0] + sum_gn[1]) + rest_gn) / (float)row->width;
}

/* dgamma and dbeta (NULL: not wanted), element by element; before dx is written, which may be
 * dy. */
static void add_columns(const struct row *row, float *dgamma, float *dbeta) {
  V_EACH(0, row->width, {
    const vec dy = x_get(row->dy + i, n);
    const vec normal = (x_get(row->x + i, n) - row->mean) * row->rstd;
    if (dgamma) v_put(dgamma + i, v_get(dgamma + i, n) + dy * normal, n);
    if (dbeta) v_put(dbeta + i, v_get(dbeta + i, n) + dy, n);
  });
}

/* residual may be NULL, and dx may be it. */
static void write_dx(const struct row *row, value *dx, const value *residual, float g, float gn) {
  X_PAIRS(0, row->width, {
    const struct pair dy = x_get_pair(row->dy + i, n), gamma = x_get_pair(row->gamma + i, n);
    const struct pair x = x_get_pair(row->x + i, n);
    struct pair v = {{{0}}};
    if (residual) v = x_get_pair(residual + i, n);
    X_BOTH({
      const vec normal = (x.of[j] - row->mean) * row->rstd;
      const vec slope = (dy.of[j] * gamma.of[j] - g - normal * gn) * row->rstd;
      v.of[j] = residual ? v.of[j] + slope : slope;
    });
    x_put_pair(dx + i, x_quiet_pair(v), n);
  });
}

static struct row row_of(const struct ek__layer_norm_args *args, int64_t index) {
  return (struct row){.dy = (const value *)args->dy + index * args->width,
                      .x = (const value *)args->x + index * args->width,
                      .gamma = args->gamma,
                      .mean = args->mean ? ((const float *)args->mean)[index] : 0.0f,
                      .rstd = ((const float *)args->rstd)[index],
                      .width = args->width};
}

void EK_ISA_NAME(layer_norm_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_job *job = raw;
  const struct ek__layer_norm_args *args = job->args;
  for (int64_t index = begin; index < end; index++) {
    const struct row row = row_of(args, index);
    float g = 0.0f, gn = 0.0f;
    if (args->dx) row_averages(&row, &g, &gn);
    if (!args->mean) g = 0.0f; /* the average is the mean's share of dx */
    if (job->add_columns) add_columns(&row, args->dgamma, args->dbeta);
    if (!args->dx) continue;
    const value *residual =
        args->residual ? (const value *)args->residual + index * args->width : NULL;
    write_dx(&row, (value *)args->dx + index * args->width, residual, g, gn);
  }
}

/* dgamma and dbeta, where wanted, must hold scale times what was there already. */
void EK_ISA_NAME(layer_norm_columns)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__layer_norm_args *args = raw;
  for (int64_t index = 0; index < args->rows; index++) {
    struct row row = row_of(args, index);
    row.dy += begin;
    row.x += begin;
    row.width = end - begin;
    add_columns(&row, args->dgamma ? (float *)args->dgamma + begin : NULL,
                args->dbeta ? (float *)args->dbeta + begin : NULL);
  }
}
