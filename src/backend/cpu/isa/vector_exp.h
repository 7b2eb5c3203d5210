/*
 * vector_exp.h - e^x for a vector of floats.
 *
 * x = n ln 2 + r with n the nearest integer (Cody and Waite 1980: ln 2 in two parts, the first so
 * short that n times it is exact), then e^x = 2^n e^r. e^r = 1 + r + r^2 q(r) on |r| <= ln 2 / 2
 * with q of degree 4, fitted for the least largest relative error (Lawson's iteration), 3.1e-9;
 * what remains is rounding.
 *
 * Error below 1 ulp, as measured over the whole range. Results below 2^-126 are 0: a slow
 * denormal would be worth nothing to a softmax. Results above 2^127.5 are infinite. e^-inf = 0,
 * e^inf = inf, NaN stays NaN.
 */
#ifndef EK_CPU_VECTOR_EXP_H
#define EK_CPU_VECTOR_EXP_H

#include "backend/cpu/isa/vector.h"

static inline vec v_exp(vec x) {
  const float round_to_integer = 12582912.0f; /* 1.5 * 2^23: its last bit is worth 1 */
  /* At these ends 2^n is already 0 or infinite. The order of operands lets NaN through. */
  x = v_max(v_set(-88.0f), v_min(v_set(89.0f), x));
  const vec t = x * 0x1.715476p+0f + round_to_integer;
  const vec n = t - round_to_integer;
  const vec r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  vec q = r * 0x1.6a2252p-10f + 0x1.123b04p-7f;
  q = q * r + 0x1.5558f8p-5f;
  q = q * r + 0x1.555490p-3f;
  q = q * r + 0x1.fffffcp-2f;
  const vec p = q * (r * r) + r + 1.0f;
  /* The low bits of t are n; what is above them leaves at the left. */
  const vec_u scale = ((vec_u)t + 127u) << 23;
  return p * (vec)scale;
}

#endif /* EK_CPU_VECTOR_EXP_H */
