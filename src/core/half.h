/*
 * half.h - numbers of 16 bits, one at a time: what every other conversion must agree with.
 *
 *   bf16   the upper half of an f32: 8 bits of exponent, 7 of fraction
 *   f16    IEEE 754 binary16: 5 bits of exponent, 10 of fraction
 *
 * To f32 is exact. From f32 rounds to nearest, ties to even, once: what is half a unit or more
 * above the largest number becomes infinite, and what is below the smallest normal number keeps
 * the digits that a subnormal one has. NaN stays NaN, with its sign and the upper part of its
 * payload, and becomes a quiet one.
 *
 * Each is a struct of its own, so that no compiler takes one for the other or for an integer.
 */
#ifndef EK_HALF_H
#define EK_HALF_H

#include <stdint.h>
#include <string.h>

struct ek__bf16 {
  uint16_t bits;
};
struct ek__f16 {
  uint16_t bits;
};

static inline uint32_t ek__f32_bits(float x) {
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline float ek__f32_from_bits(uint32_t bits) {
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static inline float ek__bf16_widen(struct ek__bf16 x) {
  return ek__f32_from_bits((uint32_t)x.bits << 16);
}

static inline struct ek__bf16 ek__bf16_narrow(float x) {
  const uint32_t bits = ek__f32_bits(x);
  /* A tie goes up where the last bit that stays is odd; a carry runs into the exponent. */
  const uint32_t rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
  return (struct ek__bf16){(uint16_t)((x != x ? bits | 0x400000u : rounded) >> 16)};
}

static inline float ek__f16_widen(struct ek__f16 x) {
  const uint32_t sign = (uint32_t)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7FFFu;
  if (rest > 0x7C00u) return ek__f32_from_bits(sign | 0x7FC00000u | rest << 13); /* NaN */
  if (rest == 0x7C00u) return ek__f32_from_bits(sign | 0x7F800000u);
  /* The exponent of f16 read as one of f32 is 112 too small, of subnormal numbers too. */
  const float size = ek__f32_from_bits(rest << 13) * 0x1p112f;
  return ek__f32_from_bits(sign | ek__f32_bits(size));
}

static inline struct ek__f16 ek__f16_narrow(float x) {
  const uint32_t bits = ek__f32_bits(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7FFFFFFFu;
  uint32_t result = 0;
  if (rest > 0x7F800000u) {
    result = 0x7E00u | (rest >> 13 & 0x3FFu);
  } else if (rest >= 0x477FF000u) { /* 65520, half a unit above the largest */
    result = 0x7C00u;
  } else if (rest >= 0x38800000u) { /* 2^-14, the smallest normal number */
    result = (rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1u)) >> 13;
  } else { /* the unit of a number just above 1/2 is that of subnormal f16, so the sum rounds */
    result = ek__f32_bits(ek__f32_from_bits(rest) + 0.5f) - 0x3F000000u;
  }
  return (struct ek__f16){(uint16_t)(sign | result)};
}

#endif /* EK_HALF_H */
