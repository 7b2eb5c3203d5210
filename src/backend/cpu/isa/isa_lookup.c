/*
 * isa_lookup.c - rows of a table by index, and the sums of their gradients. Indices were
 * checked before.
 */
#include "backend/cpu/isa/isa.h"

/* To a row of sums. */
static inline void add_row(float *y, const value *x, int64_t width) {
  V_EACH(0, width, v_put(y + i, v_get(y + i, n) + x_get(x + i, n), n));
}

void EK_ISA_NAME(lookup_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const int64_t width = args->width;
  if (width == 0) return; /* there may be no table, and memcpy takes no NULL */
  for (int64_t row = begin; row < end; row++) {
    value *y = (value *)args->y + row * width;
    const value *x = (const value *)args->table + args->index[row] * width;
    if (args->positions == NULL) {
      memcpy(y, x, (size_t)width * sizeof *y);
      continue;
    }
    const value *position = (const value *)args->positions + row % args->period * width;
    V_EACH(0, width, x_put(y + i, x_get(x + i, n) + x_get(position + i, n), n));
  }
}

/* A range of columns for all rows in order: no two threads meet, and the order of sums is fixed. */
void EK_ISA_NAME(lookup_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const int64_t width = args->width;
  for (int64_t row = 0; row < args->rows; row++) {
    add_row((float *)args->y + args->index[row] * width + begin,
            (const value *)args->table + row * width + begin, end - begin);
  }
}

void EK_ISA_NAME(positions_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__lookup_args *args = raw;
  const int64_t width = args->width;
  const float beta = (float)args->beta;
  for (int64_t position = begin; position < end; position++) {
    float *y = (float *)args->y + position * width;
    for (int64_t i = 0; i < width; i++) y[i] = beta == 0.0f ? 0.0f : beta * y[i];
    for (int64_t row = position; row < args->rows; row += args->period) {
      add_row(y, (const value *)args->table + row * width, width);
    }
  }
}
