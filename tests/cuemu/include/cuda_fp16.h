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

/* Without branches: 2^112 brings the exponent of f16 to that of f32, also where the number is
 * subnormal. */
static inline float cuemu_half_to_float(uint16_t half) {
  const uint32_t shifted = (half & 0x7fffu) << 13, sign = (half & 0x8000u) << 16;
  uint32_t bits;
  float value;
  memcpy(&value, &shifted, sizeof(value));
  value *= 0x1p112f;
  memcpy(&bits, &value, sizeof(bits));
  bits |= sign | (shifted >= 0x0f800000u ? 0x7f800000u : 0); /* infinity, NaN */
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
