/*
 * vector_exp.h - e^x for a vector of floats.
 *
 * x = n ln 2 + r with n the nearest integer (Cody and Waite 1980: ln 2 in two parts, the first so
 * short that n times it is exact), then e^x = 2^n e^r. e^r = 1 + r + r^2 q(r) on |r| <= ln 2 / 2
 * with q of degree 4, fitted for the least largest relative error (Lawson's iteration), 3.1e-9;
 * what remains is rounding.
 *
 * The error is below 1 ulp, measured over the whole range. Results below 2^-126 are 0, because a
 * softmax has no use for a slow denormal. Results above 2^127.5 are infinite. e^-inf = 0,
 * e^inf = inf, NaN stays NaN.
 */
#ifndef EK_CPU_VECTOR_EXP_H
#define EK_CPU_VECTOR_EXP_H

#include "backend/cpu/isa/vector.h"

/* 1.5 * 2^23, whose last bit is worth 1, and the bias of exponents: what is added to it is rounded
 * to an integer n, and its low bits are n + 127. What is above them leaves at the left. */
#define EK_TO_EXPONENT (12582912.0f + 127.0f)

static inline vec v_exp(vec x) {
  /* At these ends 2^n is already 0 or infinite. The order of operands lets NaN through. */
  x = v_max(v_set(-88.0f), v_min(v_set(89.0f), x));
  const vec t = x * 0x1.715476p+0f + EK_TO_EXPONENT;
  const vec n = t - EK_TO_EXPONENT;
  const vec r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  vec q = r * 0x1.6a2252p-10f + 0x1.123b04p-7f;
  q = q * r + 0x1.5558f8p-5f;
  q = q * r + 0x1.555490p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const vec p = q * (r * r) + r + 1.0f;
  return p * (vec)((vec_u)t << 23);
}

/*
 * e^x for what will be rounded to 16 bits: 2^n 2^r with r = x log2(e) - n on |r| <= 1/2, and 2^r =
 * 1 + r q(r) with q of degree 4, fitted as above. It takes 12 instructions for the 15 of
 * v_exp().
 *
 * x log2(e) - n is a fused multiplication and so loses nothing. With u = 2^-24 the polynomial has
 * a relative error of 1.8 u, rounding adds 3 u, and log2(e), of which `rest` is what f32 leaves
 * out, 0.3 u |x| where rest is 0. These are within the bounds that docs/numerics.md has for f32,
 * and 5 u are 1/13000 of half a unit of bf16. 1 + r q(r) is exactly 1 at 0, as e^0 is; the ends are
 * those of v_exp().
 */
#if defined(__FMA__)
static const float v_exp_terms[6] = {0x1.5bba14p-10f, 0x1.3cea88p-7f, 0x1.c6b752p-5f,
                                     0x1.ebf9bcp-3f,  0x1.62e42ap-1f, 1.0f};

/* `terms` are the above, which may all have been multiplied by the same factor, as the result
 * then is: one rounding each, in place of the result's. */
static inline vec v_exp_short(vec x, float rest, float most, const float terms[6]) {
  x = v_max(v_set(-88.0f), most > 0.0f ? v_min(v_set(most), x) : x);
  const vec t = x * 0x1.715476p+0f + EK_TO_EXPONENT;
  vec r = x * 0x1.715476p+0f - (t - EK_TO_EXPONENT);
  if (rest != 0.0f) r += x * rest;
  vec q = r * terms[0] + terms[1];
  q = q * r + terms[2];
  q = q * r + terms[3];
  q = q * r + terms[4];
  return (q * r + terms[5]) * (vec)((vec_u)t << 23);
}
#endif

/*
 * What the type of values needs; without fused multiplications r would not be exact.
 *   x_exp        relative error 5 u
 *   x_exp_near   0.3 u |x| more, for formulas that damp it: where |x| is large the result is small
 *                beside what it is added to or compared with
 *   x_exp_below  the same for x that is at most 89 as it comes, or NaN
 */
#if defined(EK_VALUE_f32) || !defined(__FMA__)
static inline vec x_exp(vec x) { return v_exp(x); }
static inline vec x_exp_near(vec x) { return v_exp(x); }
static inline vec x_exp_below(vec x) { return v_exp(x); }
#else
static inline vec x_exp(vec x) { return v_exp_short(x, 0x1.4ae0cp-26f, 89.0f, v_exp_terms); }
static inline vec x_exp_near(vec x) { return v_exp_short(x, 0.0f, 89.0f, v_exp_terms); }
static inline vec x_exp_below(vec x) { return v_exp_short(x, 0.0f, 0.0f, v_exp_terms); }
#endif

/* factor x_exp_below(x) for many x. */
struct exp_times {
  float terms[6]; /* or the first alone: the factor */
};

#if defined(EK_VALUE_f32) || !defined(__FMA__)
static inline struct exp_times x_exp_times(float factor) { return (struct exp_times){{factor}}; }
static inline vec x_exp_below_times(vec x, const struct exp_times *times) {
  return v_exp(x) * times->terms[0];
}
#else
static inline struct exp_times x_exp_times(float factor) {
  struct exp_times times;
  for (int i = 0; i < 6; i++) times.terms[i] = factor * v_exp_terms[i];
  return times;
}
static inline vec x_exp_below_times(vec x, const struct exp_times *times) {
  return v_exp_short(x, 0.0f, 0.0f, times->terms);
}
#endif

#endif /* EK_CPU_VECTOR_EXP_H */
