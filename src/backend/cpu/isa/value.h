/*
 * value.h - vectors of floats from and to memory of the type that this file is compiled for.
 *
 * The files of isa/ are compiled for each instruction set and, there, for each type of values: f32,
 * bf16 and f16 (struct ek__types in backend/backend.h). What is a value in memory is a `value`; it
 * is converted where it is loaded (x_load, x_get) and where it is stored (x_store, x_put), and
 * computed with in f32. What is a sum is a float in memory too, and is loaded by the functions of
 * vector.h. For f32 the two are the same.
 *
 * A store rounds to nearest even, as core/half.h does, bit for bit on every instruction set. What
 * another operation will read again instead of what was stored goes through x_round() first.
 */
#ifndef EK_CPU_VALUE_H
#define EK_CPU_VALUE_H

#include "backend/cpu/isa/vector.h"
#include "core/half.h"

#if !defined(EK_VALUE_f32)

typedef uint16_t vec_s __attribute__((vector_size(W * 2))); /* W words of 16 bits */

/* Compilers make long detours of these two. */
static inline vec_u s_zero_extend(vec_s x) {
#if defined(EK_ISA_avx512)
  return (vec_u)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(EK_ISA_avx2)
  return (vec_u)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, vec_u);
#endif
}

static inline vec_s s_upper_halves(vec_u x) {
#if defined(EK_ISA_avx512)
  return (vec_s)_mm512_cvtepi32_epi16((__m512i)(x >> 16));
#elif defined(EK_ISA_avx2)
  const __m256i words = (__m256i)(x >> 16);
  return (vec_s)_mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#else
  return __builtin_convertvector(x >> 16, vec_s);
#endif
}

#if defined(EK_VALUE_bf16)

typedef struct ek__bf16 value;
#define EK_X_ONE ek__bf16_widen
#define EK_X_OF ek__bf16_narrow

static inline vec x_widen(vec_s x) { return (vec)(s_zero_extend(x) << 16); }

static inline vec_s x_narrow(vec x) {
  const vec_u bits = (vec_u)x, rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
  return s_upper_halves((vec_u)v_choose(x != x, (vec)(bits | 0x400000u), (vec)rounded));
}

#else /* EK_VALUE_f16 */

typedef struct ek__f16 value;
#define EK_X_ONE ek__f16_widen
#define EK_X_OF ek__f16_narrow

#if defined(EK_ISA_avx512)
static inline vec x_widen(vec_s x) { return (vec)_mm512_cvtph_ps((__m256i)x); }
static inline vec_s x_narrow(vec x) {
  return (vec_s)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(EK_ISA_avx2)
static inline vec x_widen(vec_s x) { return (vec)_mm256_cvtph_ps((__m128i)x); }
static inline vec_s x_narrow(vec x) {
  return (vec_s)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
}
#else
/* Without instructions for it: the steps of core/half.h for all lanes, and a choice between them. */
static inline vec_u choose(vec_i mask, vec_u x, vec_u y) {
  return ((vec_u)mask & x) | (~(vec_u)mask & y);
}

static inline vec x_widen(vec_s x) {
  const vec_u bits = __builtin_convertvector(x, vec_u), rest = bits & 0x7FFFu;
  const vec_u size = (vec_u)((vec)(rest << 13) * 0x1p112f);
  const vec_u special =
      choose((vec_i)rest > 0x7C00, rest << 13 | 0x7FC00000u, (vec_u){0} + 0x7F800000u);
  return (vec)((bits & 0x8000u) << 16 | choose((vec_i)rest >= 0x7C00, special, size));
}

static inline vec_s x_narrow(vec x) {
  const vec_u bits = (vec_u)x, rest = bits & 0x7FFFFFFFu;
  const vec_u normal = (rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1u)) >> 13;
  const vec_u small = (vec_u)((vec)rest + 0.5f) - 0x3F000000u;
  const vec_u nan = 0x7E00u | (rest >> 13 & 0x3FFu);
  const vec_u large = choose((vec_i)rest > 0x7F800000, nan, (vec_u){0} + 0x7C00u);
  const vec_u finite = choose((vec_i)rest >= 0x38800000, normal, small);
  const vec_u result = choose((vec_i)rest >= 0x477FF000, large, finite);
  return __builtin_convertvector((bits >> 16 & 0x8000u) | result, vec_s);
}
#endif
#endif

static inline float x_one(const value *p) { return EK_X_ONE(*p); }
static inline void x_set(value *p, float x) { *p = EK_X_OF(x); }
static inline vec x_round(vec v) { return x_widen(x_narrow(v)); }

static inline vec x_load(const value *p) {
  vec_s v;
  memcpy(&v, p, sizeof v);
  return x_widen(v);
}

static inline void x_store(value *p, vec v) {
  const vec_s words = x_narrow(v);
  memcpy(p, &words, sizeof words);
}

static inline vec x_load_some(const value *p, int64_t n, float fill) {
#if defined(EK_ISA_avx512)
  const vec v = x_widen((vec_s)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1u), p));
#else
  value lanes[W] = {{0}};
  for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
  const vec v = x_load(lanes);
#endif
  return fill == 0.0f ? v : v_first(n, v, v_set(fill));
}

static inline void x_store_some(value *p, vec v, int64_t n) {
#if defined(EK_ISA_avx512)
  _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1u), (__m256i)x_narrow(v));
#else
  value lanes[W];
  x_store(lanes, v);
  for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
#endif
}

static inline void x_fetch(const value *p) {
  __builtin_prefetch((const char *)p + sizeof(value) * EK_AHEAD);
}

#else /* EK_VALUE_f32 */

typedef float value;
static inline float x_one(const value *p) { return *p; }
static inline void x_set(value *p, float x) { *p = x; }
static inline vec x_round(vec v) { return v; }
static inline vec x_load(const value *p) { return v_load(p); }
static inline void x_store(value *p, vec v) { v_store(p, v); }
static inline vec x_load_some(const value *p, int64_t n, float fill) {
  return v_load_some(p, n, fill);
}
static inline void x_store_some(value *p, vec v, int64_t n) { v_store_some(p, v, n); }
static inline void x_fetch(const value *p) { v_fetch(p); }

#endif

/* As v_get() and v_put(). */
static inline vec x_get(const value *p, int64_t n) {
  return n == W ? x_load(p) : x_load_some(p, n, 0.0f);
}

static inline void x_put(value *p, vec v, int64_t n) {
  if (n == W) {
    x_store(p, v);
  } else {
    x_store_some(p, v, n);
  }
}

#endif /* EK_CPU_VALUE_H */
