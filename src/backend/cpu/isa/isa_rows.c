/*
 * isa_rows.c - sums of rows, and softmax.
 *
 * A row of usual size stays in the cache while it is read again. Sums are kept in two vectors, so
 * that their order is given by the number of columns. Softmax computes its exponentials twice, for
 * the sum and for the result, so that nothing is rounded to 16 bits in between.
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#include <math.h>

static float row_total(const value *a, int64_t columns) {
  vec sum0 = {0}, sum1 = {0};
  X_PAIRS(0, columns, {
    const struct pair v = x_get_pair(a + i, n);
    sum0 += v.of[0];
    sum1 += v.of[1];
  });
  return v_sum(sum0 + sum1);
}

static float row_product(const value *a, const value *b, int64_t columns) {
  vec sum0 = {0}, sum1 = {0};
  X_PAIRS(0, columns, {
    const struct pair v = x_get_pair(a + i, n), w = x_get_pair(b + i, n);
    sum0 += v.of[0] * w.of[0];
    sum1 += v.of[1] * w.of[1];
  });
  return v_sum(sum0 + sum1);
}

void EK_ISA_NAME(row_sum)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  const int64_t columns = args->columns;
  float *y = args->y;
  for (int64_t r = begin; r < end; r++) {
    float sum = 0.0f;
    if (columns > 0) { /* else there is no memory */
      const value *a = (const value *)args->a + r * columns;
      sum = args->b ? row_product(a, (const value *)args->b + r * columns, columns)
                    : row_total(a, columns);
    }
    y[r] = args->mean ? sum / (float)columns : sum;
  }
}

/* A NaN may be passed over: the sum of exponentials shows it. */
static float row_largest(const value *x, int64_t columns) {
  vec best = v_set(-INFINITY);
  int64_t i = 0;
  for (; i + W <= columns; i += W) best = v_max(x_load(x + i), best);
  if (i < columns) best = v_max(x_load_some(x + i, columns - i, -INFINITY), best);
  return v_largest(best);
}

static float row_exp_sum(const value *x, float largest, int64_t columns) {
  vec sum = {0};
  int64_t i = 0;
  for (; i + W <= columns; i += W) sum += x_exp(x_load(x + i) - largest);
  if (i < columns) {
    const int64_t n = columns - i; /* lanes beyond the row count nothing, whatever `largest` is */
    sum += v_first(n, x_exp(x_load_some(x + i, n, 0.0f) - largest), v_set(0.0f));
  }
  return v_sum(sum);
}

void EK_ISA_NAME(softmax_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  const int64_t columns = args->columns;
  for (int64_t r = begin; r < end; r++) {
    const value *x = (const value *)args->a + r * columns;
    value *y = (value *)args->y + r * columns;
    const float largest = row_largest(x, columns);
    const float sum = row_exp_sum(x, largest, columns);
    V_EACH(0, columns, x_put(y + i, x_exp(x_get(x + i, n) - largest) / sum, n));
  }
}

void EK_ISA_NAME(softmax_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__row_args *args = raw;
  const int64_t columns = args->columns;
  for (int64_t r = begin; r < end; r++) {
    const value *dy = (const value *)args->a + r * columns;
    const value *y = (const value *)args->b + r * columns;
    value *dx = (value *)args->y + r * columns;
    const float sum = row_product(dy, y, columns);
    X_PAIRS(0, columns, {
      const struct pair slope = x_get_pair(dy + i, n);
      struct pair v = x_get_pair(y + i, n);
      X_BOTH(v.of[j] *= slope.of[j] - sum);
      x_put_pair(dx + i, x_quiet_pair(v), n);
    });
  }
}
