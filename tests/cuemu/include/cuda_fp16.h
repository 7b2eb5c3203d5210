/*
 * cuda_fp16.h - __half: storage and conversions, rounded to nearest even. No arithmetic: kernels
 * compute in float.
 */
#ifndef CUEMU_FP16_H
#define CUEMU_FP16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t cuemu_float_to_half(float value) {
  uint32_t bits, sign, magnitude;
  memcpy(&bits, &value, sizeof(bits));
  sign = (bits >> 16) & 0x8000u;
  magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7fffu);  /* NaN */
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
  if (magnitude < 0x38800000u) { /* below 2^-14: adding 0.5 rounds at the right bit */
    float small;
    memcpy(&small, &magnitude, sizeof(small));
    small += 0.5f;
    memcpy(&magnitude, &small, sizeof(magnitude));
    return (uint16_t)(sign | (magnitude - 0x3f000000u));
  }
  magnitude += 0xfffu + ((magnitude >> 13) & 1);
  return (uint16_t)(sign | ((magnitude - 0x38000000u) >> 13));
}

static inline float cuemu_half_to_float(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ffu, bits;
  float value;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (fraction << 13);
  } else if (exponent) {
    bits = sign | ((exponent + 112) << 23) | (fraction << 13);
  } else {
    value = (float)fraction * 5.9604644775390625e-08f; /* 2^-24 */
    memcpy(&bits, &value, sizeof(bits));
    bits |= sign;
  }
  memcpy(&value, &bits, sizeof(value));
  return value;
}

#ifdef __cplusplus
struct __half {
  uint16_t x;
  __half() = default;
  __half(float value) : x(cuemu_float_to_half(value)) {}
  operator float() const { return cuemu_half_to_float(x); }
};
struct alignas(4) __half2 {
  __half x, y;
};
static inline __half2 __floats2half2_rn(float x, float y) { return __half2{x, y}; }
#endif

#endif
