/*
 * cuda_bf16.h - __nv_bfloat16: storage and conversions, rounded to nearest even. No arithmetic:
 * kernels compute in float.
 */
#ifndef CUEMU_BF16_H
#define CUEMU_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint16_t cuemu_float_to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff; /* NaN */
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static inline float cuemu_bfloat16_to_float(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

#ifdef __cplusplus
struct __nv_bfloat16 {
  uint16_t x;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : x(cuemu_float_to_bfloat16(value)) {}
  operator float() const { return cuemu_bfloat16_to_float(x); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return __nv_bfloat162{x, y};
}
#endif

#endif
