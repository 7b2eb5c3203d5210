/*
 * isa_gelu.c - GELU in f32, with its bias.
 *
 * x/2 (1 + tanh(u)) = x / (1 + e^(-2u)), which needs one exponential and keeps its relative
 * precision where tanh(u) is close to -1. With s = 1 / (1 + e^(-2u)):
 *     GELU' = s + x s (1 - s) 2 u',   u = sqrt(2/pi) (x + 0.044715 x^3)
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

#define TWO_ROOT 1.5957691216057308f /* 2 sqrt(2/pi) */
#define CUBE 0.044715f

static inline vec gelu(vec x) {
  const vec minus_2u = x * (x * x * (-TWO_ROOT * CUBE) - TWO_ROOT);
  return x / (v_exp(minus_2u) + 1.0f);
}

static inline vec gelu_slope(vec x) {
  /* Beyond 12 the slope is 0 or 1 to the last bit, and nothing here overflows. NaN goes through, and
   * an infinite x, whose result forward may have been no number, becomes one. */
  x = v_max(v_set(-12.0f), v_min(v_set(12.0f), x)) + (x - x);
  const vec square = x * x;
  const vec e = v_exp(x * (square * (-TWO_ROOT * CUBE) - TWO_ROOT));
  const vec s = 1.0f / (e + 1.0f);
  const vec slope_2u = square * (3.0f * TWO_ROOT * CUBE) + TWO_ROOT;
  return s + x * slope_2u * s * (1.0f - s);
}

static void gelu_row(float *y, const float *x, int64_t columns) {
  int64_t c = 0;
  for (; c + W <= columns; c += W) v_store(y + c, gelu(v_load(x + c)));
  if (c < columns) {
    v_store_some(y + c, gelu(v_load_some(x + c, columns - c, 0.0f)), columns - c);
  }
}

static void gelu_bias_row(float *y, float *x, const float *bias, int64_t columns) {
  int64_t c = 0;
  for (; c + W <= columns; c += W) {
    const vec v = v_load(x + c) + v_load(bias + c);
    v_store(x + c, v);
    v_store(y + c, gelu(v));
  }
  if (c < columns) {
    const int64_t n = columns - c;
    const vec v = v_load_some(x + c, n, 0.0f) + v_load_some(bias + c, n, 0.0f);
    v_store_some(x + c, v, n);
    v_store_some(y + c, gelu(v), n);
  }
}

void EK_ISA_NAME(gelu_forward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gelu_args *args = raw;
  const int64_t columns = args->columns;
  for (int64_t row = begin; row < end; row++) {
    float *x = (float *)args->x + row * columns, *y = (float *)args->y + row * columns;
    if (args->bias) {
      gelu_bias_row(y, x, args->bias, columns);
    } else {
      gelu_row(y, x, columns);
    }
  }
}

void EK_ISA_NAME(gelu_backward)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gelu_args *args = raw;
  const float *x = args->x, *dy = args->dy;
  float *dx = args->y;
  int64_t i = begin;
  for (; i + W <= end; i += W) v_store(dx + i, v_load(dy + i) * gelu_slope(v_load(x + i)));
  if (i < end) {
    const int64_t n = end - i;
    const vec slope = gelu_slope(v_load_some(x + i, n, 0.0f));
    v_store_some(dx + i, v_load_some(dy + i, n, 0.0f) * slope, n);
  }
}
