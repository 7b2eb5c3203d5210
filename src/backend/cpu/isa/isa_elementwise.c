/*
 * isa_elementwise.c - f32 operations on one element at a time, and sums of columns.
 *
 * All but the sum are bound by memory; plain loops over whole vectors with a scalar tail reach that
 * bound. A destination may be a source itself, so nothing is `restrict`.
 */
#include "backend/cpu/isa/isa.h"

/* From this many elements on (8 MiB) a fill goes past the caches, which could not hold it anyway
 * and would read what is overwritten: twice as fast. */
#define STREAM_LEAST (2 << 20)

static int64_t fill_stream(float *y, float value, int64_t begin, int64_t end) {
  int64_t i = begin;
  for (; (uintptr_t)(y + i) % sizeof(vec) != 0; i++) y[i] = value;
  for (; i + W <= end; i += W) v_stream(y + i, v_set(value));
  v_stream_end();
  return i;
}

void EK_ISA_NAME(fill)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  float *y = args->y;
  const float value = (float)args->value;
  int64_t i = end - begin >= STREAM_LEAST ? fill_stream(y, value, begin, end) : begin;
  for (; i + W <= end; i += W) v_store(y + i, v_set(value));
  for (; i < end; i++) y[i] = value;
}

void EK_ISA_NAME(add)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  float *y = args->y;
  const float *a = args->a, *b = args->b;
  V_EACH(begin, end, v_put(y + i, v_get(a + i, n) + v_get(b + i, n), n));
}

void EK_ISA_NAME(scale)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  float *y = args->y;
  const float *a = args->a, factor = (float)args->value;
  V_EACH(begin, end, v_put(y + i, v_get(a + i, n) * factor, n));
}

void EK_ISA_NAME(add_bias)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__matrix_args *args = raw;
  const int64_t columns = args->columns;
  const float *bias = args->b;
  for (int64_t row = begin; row < end; row++) {
    float *y = (float *)args->y + row * args->pitch;
    V_EACH(0, columns, v_put(y + i, v_get(y + i, n) + v_get(bias + i, n), n));
  }
}

/* Columns whose sums are held at a time: they stay in the first cache. */
#define SUM_COLUMNS 2048

/* sums[0 .. n-1] += columns of `rows` rows from x on. Four rows at a time: a quarter of the traffic
 * to the sums, and a smaller rounding error. */
static void add_rows(float *sums, const float *x, int64_t rows, int64_t stride, int64_t n) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, x += 4 * stride) {
    const float *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
    int64_t c = 0;
    for (; c + W <= n; c += W) {
      const vec sum = (v_load(x + c) + v_load(x1 + c)) + (v_load(x2 + c) + v_load(x3 + c));
      v_store(sums + c, v_load(sums + c) + sum);
    }
    for (; c < n; c++) sums[c] += (x[c] + x1[c]) + (x2[c] + x3[c]);
  }
  for (; row < rows; row++, x += stride) {
    for (int64_t c = 0; c < n; c++) sums[c] += x[c];
  }
}

void EK_ISA_NAME(column_sum)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__matrix_args *args = raw;
  const float beta = (float)args->value;
  float *y = args->y;
  float sums[SUM_COLUMNS];
  for (int64_t first = begin; first < end; first += SUM_COLUMNS) {
    const int64_t n = end - first < SUM_COLUMNS ? end - first : SUM_COLUMNS;
    memset(sums, 0, (size_t)n * sizeof *sums);
    if (args->rows > 0) { /* else there is no memory */
      add_rows(sums, (const float *)args->a + first, args->rows, args->pitch, n);
    }
    for (int64_t c = 0; c < n; c++) {
      y[first + c] = beta == 0.0f ? sums[c] : beta * y[first + c] + sums[c];
    }
  }
}
