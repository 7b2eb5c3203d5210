/*
 * isa_activation.c - the pointwise activations, with a bias.
 *
 * Each is two functions of vectors, <name>(x) and <name>_back(dy, kept value). There is one set of
 * the loops below for each row of activation_list.h, because the compiler inlines a function that
 * is given by name into the loop and keeps the constants in registers. The last
 * elements go through the same functions as the others.
 */
#include "backend/cpu/isa/isa.h"
#include "backend/cpu/isa/vector_exp.h"

/* ---- formulas ---- */

static inline vec relu(vec x) { return v_max((vec){0}, x); } /* NaN stays */
static inline vec relu_back(vec dy, vec y) { /* where y is not above 0, its relu: 0, or NaN */
  const vec zero = {0};
  return v_less(zero, y, dy, v_max(zero, y));
}

/*
 * x/2 (1 + tanh(u)) = x / (1 + e^(-2u)), which needs one exponential and keeps its relative
 * precision where tanh(u) is close to -1. With s = 1 / (1 + e^(-2u)):
 *     GELU' = s + x s (1 - s) 2 u',   u = sqrt(2/pi) (x + 0.044715 x^3)
 */
#define TWO_ROOT 1.5957691216057308f /* 2 sqrt(2/pi) */
#define CUBE 0.044715f

static inline vec gelu(vec x) {
  const vec minus_2u = x * (x * x * (-TWO_ROOT * CUBE) - TWO_ROOT);
  return x / (x_exp_near(minus_2u) + 1.0f);
}

static inline vec gelu_back(vec dy, vec x) {
  /* Beyond 12 the slope is 0 or 1 to the last bit, and nothing here overflows. NaN goes through,
   * and an infinite x, whose result forward may have been no number, becomes one. */
  x = x * 0.0f + v_max(v_set(-12.0f), v_min(v_set(12.0f), x));
  const vec square = x * x;
  const vec e = x_exp_near(x * (square * (-TWO_ROOT * CUBE) - TWO_ROOT));
  const vec s = 1.0f / (e + 1.0f);
  const vec slope_2u = square * (3.0f * TWO_ROOT * CUBE) + TWO_ROOT;
  return dy * (s + x * slope_2u * s * (1.0f - s));
}

/*
 * SiLU' = s + x s (1 - s) with s = 1 / (1 + e^-x). By e = e^-|x|, which does not overflow,
 *     s = 1 / (1 + e) for x >= 0, e / (1 + e) else,   s (1 - s) = e / (1 + e)^2
 */
static inline vec silu(vec x) { return x / (x_exp(-x) + 1.0f); }
static inline vec silu_back(vec dy, vec x) {
  const vec e = x_exp(-v_max(x, -x)), share = 1.0f / (e + 1.0f);
  const vec s = v_less(x, (vec){0}, e * share, share);
  return dy * (s + x * (e * share * share));
}

/* ---- loops: inlined by force, or each element would cost a call ---- */

#define FORCED static inline __attribute__((always_inline))

FORCED void forward(const struct ek__activation_args *args, int64_t begin, int64_t end,
                    vec (*f)(vec)) {
  const value *bias = args->bias;
  const int64_t columns = args->columns;
  value *x = args->x, *y = args->y;
  if (bias == NULL) {
    X_PAIRS(begin, end, {
      struct pair v = x_get_pair(x + i, n);
      X_BOTH(v.of[j] = f(v.of[j]));
      x_put_pair(y + i, v, n);
    });
    return;
  }
  for (int64_t r = begin; r < end; r++) {
    value *to_x = x + r * columns, *to_y = y + r * columns;
    X_PAIRS(0, columns, {
      const struct pair add = x_get_pair(bias + i, n);
      struct pair v = x_get_pair(to_x + i, n);
      X_BOTH(v.of[j] += add.of[j]);
      v = x_round_pair(v); /* f of what backward will read */
      x_put_pair(to_x + i, v, n);
      X_BOTH(v.of[j] = f(v.of[j]));
      x_put_pair(to_y + i, v, n);
    });
  }
}

FORCED void backward(const struct ek__activation_args *args, int64_t begin, int64_t end,
                     vec (*f)(vec, vec)) {
  const value *x = args->x, *dy = args->dy;
  value *dx = args->y;
  X_PAIRS(begin, end, {
    const struct pair slope = x_get_pair(dy + i, n);
    struct pair v = x_get_pair(x + i, n);
    X_BOTH(v.of[j] = f(slope.of[j], v.of[j]));
    x_put_pair(dx + i, v, n);
  });
}

FORCED void gate(const struct ek__activation_args *args, int64_t begin, int64_t end,
                 vec (*f)(vec)) {
  const value *x = args->x, *factor = args->factor;
  value *y = args->y;
  X_PAIRS(begin, end, {
    const struct pair times = x_get_pair(factor + i, n);
    struct pair v = x_get_pair(x + i, n);
    X_BOTH(v.of[j] = f(v.of[j]) * times.of[j]);
    x_put_pair(y + i, v, n);
  });
}

/* Everything is read before anything is written: a gradient may be where an operand is. */
FORCED void gate_backward(const struct ek__activation_args *args, int64_t begin, int64_t end,
                          vec (*f)(vec), vec (*back)(vec, vec), bool keeps_result) {
  const value *x = args->x, *factor = args->factor, *dy = args->dy;
  value *dx = args->y, *dfactor = args->dfactor;
  X_PAIRS(begin, end, {
    const struct pair times = x_get_pair(factor + i, n);
    struct pair slope = x_get_pair(dy + i, n), v = x_get_pair(x + i, n);
    X_BOTH({
      const vec result = f(v.of[j]);
      v.of[j] = back(slope.of[j] * times.of[j], keeps_result ? result : v.of[j]);
      slope.of[j] *= result;
    });
    x_put_pair(dx + i, v, n);
    x_put_pair(dfactor + i, slope, n);
  });
}

/* ---- by kind ---- */

#define BY_KIND(function, CASE)                                                                    \
  void EK_ISA_NAME(function)(const void *raw, int64_t begin, int64_t end) {                        \
    const struct ek__activation_args *args = raw;                                                  \
    switch (args->kind) { EK_ACTIVATION_LIST(CASE) }                                               \
  }
#define RESULT true
#define INPUT false

#define FORWARD(NAME, name, kept)                                                                  \
  case EK_ACTIVATION_##NAME: forward(args, begin, end, name); return;
BY_KIND(activation_forward, FORWARD)

#define BACKWARD(NAME, name, kept)                                                                 \
  case EK_ACTIVATION_##NAME: backward(args, begin, end, name##_back); return;
BY_KIND(activation_backward, BACKWARD)

#define GATE(NAME, name, kept)                                                                     \
  case EK_ACTIVATION_##NAME: gate(args, begin, end, name); return;
BY_KIND(gate_forward, GATE)

#define GATE_BACKWARD(NAME, name, kept)                                                            \
  case EK_ACTIVATION_##NAME: gate_backward(args, begin, end, name, name##_back, kept); return;
BY_KIND(gate_backward, GATE_BACKWARD)
