/*
 * isa_elementwise.c - operations on one element at a time, and sums of columns.
 *
 * All but the sum are bound by memory; plain loops over whole vectors with a scalar tail reach that
 * bound. A destination may be a source itself, so nothing is `restrict`.
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

/* From this many bytes on a fill goes past the caches, which could not hold it anyway and would
 * read what is overwritten: twice as fast. */
#define STREAM_LEAST (8 << 20)
#define EACH ((int64_t)(sizeof(vec) / sizeof(value))) /* values in the bytes of a vector */

static int64_t fill_stream(value *y, value with, int64_t begin, int64_t end) {
  value lanes[sizeof(vec) / sizeof(value)];
  vec all;
  int64_t i = begin;
  for (int64_t j = 0; j < EACH; j++) lanes[j] = with;
  memcpy(&all, lanes, sizeof all);
  for (; (uintptr_t)(y + i) % sizeof(vec) != 0; i++) y[i] = with;
  for (; i + EACH <= end; i += EACH) v_stream((float *)(void *)(y + i), all);
  v_stream_end();
  return i;
}

void EK_ISA_NAME(fill)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  value *y = args->y, with;
  x_set(&with, (float)args->value);
  const bool far = end - begin >= STREAM_LEAST / (int64_t)sizeof(value);
  int64_t i = far ? fill_stream(y, with, begin, end) : begin;
  for (; i + W <= end; i += W) x_store(y + i, v_set(x_one(&with)));
  for (; i < end; i++) y[i] = with;
}

void EK_ISA_NAME(widen)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const value *x = args->a;
  float *y = args->y;
  V_EACH(begin, end, v_put(y + i, x_get(x + i, n), n));
}

void EK_ISA_NAME(narrow)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  const float *x = args->a;
  value *y = args->y;
  X_PAIRS(begin, end, x_put_ordered(y + i, v_get_pair(x + i, n), n));
}

void EK_ISA_NAME(add)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  value *y = args->y;
  const value *a = args->a, *b = args->b;
  X_PAIRS(begin, end, {
    const struct pair add = x_get_pair(b + i, n);
    struct pair v = x_get_pair(a + i, n);
    X_BOTH(v.of[j] += add.of[j]);
    x_put_pair(y + i, v, n);
  });
}

void EK_ISA_NAME(scale)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  value *y = args->y;
  const value *a = args->a;
  const float factor = (float)args->value;
  X_PAIRS(begin, end, {
    struct pair v = x_get_pair(a + i, n);
    X_BOTH(v.of[j] *= factor);
    x_put_pair(y + i, x_quiet_pair(v), n);
  });
}

void EK_ISA_NAME(lerp)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__elementwise_args *args = raw;
  value *y = args->y;
  const value *a = args->a, *b = args->b;
  const float weight = (float)args->value;
  X_PAIRS(begin, end, {
    const struct pair to = x_get_pair(b + i, n);
    struct pair v = x_get_pair(a + i, n);
    X_BOTH(v.of[j] += weight * (to.of[j] - v.of[j]));
    x_put_pair(y + i, x_quiet_pair(v), n);
  });
}

/* v OP= operand, by kind; each loop is compiled for itself. */
#define BINARY(args, LOOP)                                                                         \
  switch ((args)->kind) {                                                                          \
  case EK__ADD: LOOP(+=); break;                                                                   \
  case EK__SUBTRACT: LOOP(-=); break;                                                              \
  case EK__MULTIPLY: LOOP(*=); break;                                                              \
  case EK__DIVIDE: LOOP(/=); break;                                                                \
  }

static void combine(const struct ek__binary_args *args, value *y, const value *a, const value *b,
                    int64_t count) {
#define PAIRWISE(OP)                                                                               \
  X_PAIRS(0, count, {                                                                              \
    const struct pair other = x_get_pair(b + i, n);                                                \
    struct pair v = x_get_pair(a + i, n);                                                          \
    X_BOTH(v.of[j] OP other.of[j]);                                                                \
    x_put_pair(y + i, x_quiet_pair(v), n);                                                         \
  })
  BINARY(args, PAIRWISE)
#undef PAIRWISE
}

static void combine_with(const struct ek__binary_args *args, value *y, const value *a, float b,
                         int64_t count) {
  const vec other = v_set(b);
#define WITH_ONE(OP)                                                                               \
  X_PAIRS(0, count, {                                                                              \
    struct pair v = x_get_pair(a + i, n);                                                          \
    X_BOTH(v.of[j] OP other);                                                                      \
    x_put_pair(y + i, x_quiet_pair(v), n);                                                         \
  })
  BINARY(args, WITH_ONE)
#undef WITH_ONE
}

void EK_ISA_NAME(binary)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__binary_args *args = raw;
  const value *a = args->a, *b = args->b;
  const int64_t columns = args->columns;
  value *y = args->y;
  if (args->spread == EK__SPREAD_NONE) {
    combine(args, y + begin, a + begin, b + begin, end - begin);
    return;
  }
  for (int64_t r = begin; r < end; r++) {
    if (args->spread == EK__SPREAD_COLUMNS) {
      combine(args, y + r * columns, a + r * columns, b, columns);
    } else {
      combine_with(args, y + r * columns, a + r * columns, ((const float *)args->b)[r], columns);
    }
  }
}

/* e^x up to the largest float, beyond the end of x_exp(): rare, and so one by one. */
static vec exp_of(vec x) {
  const vec near = x_exp(x);
  if (v_sum(v_less(v_set(88.0f), x, v_set(1.0f), v_set(0.0f))) == 0.0f) return near;
  vec all = near;
  for (int k = 0; k < W; k++) {
    if (x[k] > 88.0f) all[k] = expf(x[k]);
  }
  return all;
}

void EK_ISA_NAME(unary)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__unary_args *args = raw;
  const value *x = args->x;
  value *y = args->y;
  const vec offset = v_set((float)args->offset);
  if (args->kind == EK__EXP) {
    V_EACH(begin, end, x_put(y + i, exp_of(x_get(x + i, n) + offset), n));
  } else {
    V_EACH(begin, end, x_put(y + i, 1.0f / v_sqrt(x_get(x + i, n) + offset), n));
  }
}

void EK_ISA_NAME(add_bias)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__matrix_args *args = raw;
  const int64_t columns = args->columns;
  const value *bias = args->b;
  for (int64_t row = begin; row < end; row++) {
    value *y = (value *)args->y + row * args->pitch;
    X_PAIRS(0, columns, {
      const struct pair add = x_get_pair(bias + i, n);
      struct pair v = x_get_pair(y + i, n);
      X_BOTH(v.of[j] += add.of[j]);
      x_put_pair(y + i, v, n);
    });
  }
}

/* Columns whose sums are held at a time: they stay in the first cache. */
#define SUM_COLUMNS 2048

/* sums[0 .. n-1] += columns of `rows` rows from x on. Four rows at a time: a quarter of the traffic
 * to the sums, and a smaller rounding error. */
static void add_rows(float *sums, const value *x, int64_t rows, int64_t stride, int64_t n) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, x += 4 * stride) {
    const value *x1 = x + stride, *x2 = x1 + stride, *x3 = x2 + stride;
    int64_t c = 0;
    for (; c + W <= n; c += W) {
      const vec sum = (x_load(x + c) + x_load(x1 + c)) + (x_load(x2 + c) + x_load(x3 + c));
      v_store(sums + c, v_load(sums + c) + sum);
    }
    for (; c < n; c++) {
      sums[c] += (x_one(x + c) + x_one(x1 + c)) + (x_one(x2 + c) + x_one(x3 + c));
    }
  }
  for (; row < rows; row++, x += stride) {
    for (int64_t c = 0; c < n; c++) sums[c] += x_one(x + c);
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
      add_rows(sums, (const value *)args->a + first, args->rows, args->pitch, n);
    }
    for (int64_t c = 0; c < n; c++) {
      y[first + c] = beta == 0.0f ? sums[c] : beta * y[first + c] + sums[c];
    }
  }
}
