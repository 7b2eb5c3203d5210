/*
 * value.h - vectors of floats from and to memory of the type that this file is compiled for.
 *
 * The files of isa/ are compiled for each instruction set and, there, for each type of values: f32,
 * bf16 and f16 (struct ek__types in backend/kernel_args.h). A value in memory is a `value`; it is
 * converted when it is loaded (x_load, x_get) and when it is stored (x_store, x_put), and computed
 * with in f32. A sum is a float in memory too, and is loaded by the functions of vector.h. For f32
 * the two are the same.
 *
 * A store rounds to nearest even, as core/half.h does, bit for bit on every instruction set. A
 * number that is used again as if it had been read back from memory goes through x_round() first.
 *
 * Pairs. Conversions of bf16 cost most if a vector of floats is made of half a vector of values. So
 * loops over single elements take 2 W of them at a time: bf16 in even and odd
 * lanes need one load and two instructions. X_PAIRS() is such a loop. If vectors of sums take part,
 * x_put_ordered() stores two vectors in the order of memory.
 *
 * NaN. Rounding to bf16 is an addition, which turns a NaN whose lower half is not 0 into a number
 * or infinity. A NaN computed from values and constants has 0 there, like the values and the
 * processor's own NaN: so x_put_pair() needs no test. Floats in memory may be any NaN:
 * x_quiet_pair() comes first, with one test for both vectors. All other stores have a test of their
 * own.
 */
#ifndef EK_CPU_VALUE_H
#define EK_CPU_VALUE_H

#include "backend/cpu/isa/vector.h"
#include "core/half.h"

struct pair { /* 2 W values, in an order that is the type's */
  vec of[2];
};

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

/* Of numbers, and of NaN whose lower half is 0: the upper half is the result. */
static inline vec_u x_rounded(vec x) {
  const vec_u bits = (vec_u)x;
  return bits + 0x7FFFu + (bits >> 16 & 1u);
}

/* A NaN becomes a quiet one whose lower half is 0, so that no rounding carries out of it. */
static inline vec x_quiet(vec x) {
  return v_choose(x != x, (vec)(((vec_u)x & 0xFFFF0000u) | 0x400000u), x);
}

static inline vec_s x_narrow(vec x) { return s_upper_halves(x_rounded(x_quiet(x))); }

static inline struct pair x_load_pair(const value *p) {
  vec_u words;
  memcpy(&words, p, sizeof words);
  return (struct pair){{(vec)(words << 16), (vec)(words & 0xFFFF0000u)}};
}

static inline struct pair x_quiet_pair(struct pair v) {
  if (__builtin_expect(v_any_nan(v.of[0], v.of[1]), 0)) {
    v.of[0] = x_quiet(v.of[0]);
    v.of[1] = x_quiet(v.of[1]);
  }
  return v;
}

static inline vec_u x_narrow_pair(struct pair v) {
  const vec_u even = x_rounded(v.of[0]) >> 16, odd = x_rounded(v.of[1]);
#if defined(EK_ISA_avx2)
  return (vec_u)_mm256_blend_epi16((__m256i)even, (__m256i)odd, 0xAA);
#else
  return even | (odd & 0xFFFF0000u);
#endif
}

static inline void x_store_pair(value *p, struct pair v) {
  const vec_u words = x_narrow_pair(v);
  memcpy(p, &words, sizeof words);
}

static inline struct pair x_round_pair(struct pair v) {
  const vec_u words = x_narrow_pair(v);
  return (struct pair){{(vec)(words << 16), (vec)(words & 0xFFFF0000u)}};
}

static inline void x_store_ordered(value *p, struct pair v) {
  v = x_quiet_pair(v);
  const vec_u first = x_rounded(v.of[0]), second = x_rounded(v.of[1]);
#if defined(EK_ISA_avx2)
  const __m256i lanes = _mm256_packus_epi32((__m256i)(first >> 16), (__m256i)(second >> 16));
  const __m256i words = _mm256_permute4x64_epi64(lanes, 0xD8);
  memcpy(p, &words, sizeof words);
#else
  const vec_s words[2] = {s_upper_halves(first), s_upper_halves(second)};
  memcpy(p, words, sizeof words);
#endif
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
/* Without instructions for it: the steps of core/half.h for all lanes, and a choice between
 * them. */
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

#if !defined(EK_VALUE_bf16) /* bf16 has its own, above */
static inline struct pair x_load_pair(const value *p) {
  return (struct pair){{x_load(p), x_load(p + W)}};
}
static inline void x_store_pair(value *p, struct pair v) {
  x_store(p, v.of[0]);
  x_store(p + W, v.of[1]);
}
static inline struct pair x_round_pair(struct pair v) {
  return (struct pair){{x_round(v.of[0]), x_round(v.of[1])}};
}
static inline struct pair x_quiet_pair(struct pair v) { return v; }
static inline void x_store_ordered(value *p, struct pair v) { x_store_pair(p, v); }
#endif

/* n values from p on, 0 < n <= 2 W; the others are 0. */
static inline struct pair x_get_pair(const value *p, int64_t n) {
  if (n == 2 * W) return x_load_pair(p);
  value lanes[2 * W];
  memset(lanes, 0, sizeof lanes);
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return x_load_pair(lanes);
}

/* The same as two vectors in the order of memory. */
static inline struct pair x_get_ordered(const value *p, int64_t n) {
  if (n == 2 * W) return (struct pair){{x_load(p), x_load(p + W)}};
  value lanes[2 * W];
  memset(lanes, 0, sizeof lanes);
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return (struct pair){{x_load(lanes), x_load(lanes + W)}};
}

static inline void x_put_pair(value *p, struct pair v, int64_t n) {
  if (n == 2 * W) {
    x_store_pair(p, v);
    return;
  }
  value lanes[2 * W];
  x_store_pair(lanes, v);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}

/* Two vectors of floats, in the order of memory. */
static inline void x_put_ordered(value *p, struct pair v, int64_t n) {
  if (n == 2 * W) {
    x_store_ordered(p, v);
    return;
  }
  value lanes[2 * W];
  x_store_ordered(lanes, v);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}

static inline struct pair v_get_pair(const float *p, int64_t n) {
  if (n == 2 * W) return (struct pair){{v_load(p), v_load(p + W)}};
  float lanes[2 * W] = {0};
  memcpy(lanes, p, (size_t)n * sizeof *p);
  return (struct pair){{v_load(lanes), v_load(lanes + W)}};
}

static inline void v_put_pair(float *p, struct pair v, int64_t n) {
  if (n == 2 * W) {
    v_store(p, v.of[0]);
    v_store(p + W, v.of[1]);
    return;
  }
  float lanes[2 * W];
  v_store(lanes, v.of[0]);
  v_store(lanes + W, v.of[1]);
  memcpy(p, lanes, (size_t)n * sizeof *p);
}

/* to[p][line], a row every `wide` floats, of 2 W lines of x, `step` apart, and W depths p, which
 * are in order there. */
#if defined(EK_ISA_avx2) && !defined(EK_VALUE_f32)
static inline void x_turn(float *to, int64_t wide, const value *x, int64_t step) {
  __m256i rows[8], next[8];
  for (int i = 0; i < 8;
       i++) { /* lines 0 to 3 and 8 to 11, in the other lane 4 to 7 and 12 to 15 */
    const value *low = x + (i < 4 ? i : i + 4) * step, *high = low + 4 * step;
    rows[i] = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
        _mm_loadu_si128((const __m128i *)(const void *)high), 1);
  }
  for (int stage = 0; stage < 3; stage++) {
    for (int i = 0; i < 4; i++) {
      next[2 * i] = _mm256_unpacklo_epi16(rows[i], rows[i + 4]);
      next[2 * i + 1] = _mm256_unpackhi_epi16(rows[i], rows[i + 4]);
    }
    memcpy(rows, next, sizeof rows);
  }
  for (int i = 0; i < 8; i++, to += wide) { /* each row now is a depth */
#if defined(EK_VALUE_bf16)
    v_store(to, (vec)_mm256_unpacklo_epi16(_mm256_setzero_si256(), rows[i]));
    v_store(to + W, (vec)_mm256_unpackhi_epi16(_mm256_setzero_si256(), rows[i]));
#else
    const __m256i lines = _mm256_permute4x64_epi64(rows[i], 0xD8);
    v_store(to, (vec)_mm256_cvtph_ps(_mm256_castsi256_si128(lines)));
    v_store(to + W, (vec)_mm256_cvtph_ps(_mm256_extracti128_si256(lines, 1)));
#endif
  }
}
#elif defined(EK_ISA_avx2)
static inline void x_turn(float *to, int64_t wide, const value *x, int64_t step) {
  for (int half = 0; half < 2; half++, to += W, x += W * step) {
    for (int p = 0; p < W; p += 4) { /* 4 depths of lines 0 to 3, in the other lane 4 to 7 */
      __m256 rows[4];
      for (int i = 0; i < 4; i++) {
        const float *low = x + i * step + p;
        rows[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)),
                                       _mm_loadu_ps(low + 4 * step), 1);
      }
      for (int i = 0; i < 2; i++) {
        const __m256 first =
            i == 0 ? _mm256_unpacklo_ps(rows[0], rows[1]) : _mm256_unpackhi_ps(rows[0], rows[1]);
        const __m256 second =
            i == 0 ? _mm256_unpacklo_ps(rows[2], rows[3]) : _mm256_unpackhi_ps(rows[2], rows[3]);
        float *at = to + (p + 2 * i) * wide;
        v_store(at, (vec)_mm256_shuffle_ps(first, second, 0x44));
        v_store(at + wide, (vec)_mm256_shuffle_ps(first, second, 0xEE));
      }
    }
  }
}
#else
static inline void x_turn(float *to, int64_t wide, const value *x, int64_t step) {
  for (int half = 0; half < 2; half++, to += W, x += W * step) {
    vec rows[W];
    for (int i = 0; i < W; i++) rows[i] = x_load(x + i * step);
    v_transpose(rows);
    for (int i = 0; i < W; i++) v_store(to + i * wide, rows[i]);
  }
}
#endif

/* The loop over begin .. end - 1 in pairs, as V_EACH(): `n` elements from `i` on. */
#define X_PAIRS(begin, end, ...) V_STEPS(2 * W, begin, end, __VA_ARGS__)

/* What follows for both vectors of a pair: j is 0 and 1. */
#define X_BOTH(...)                                                                                \
  do {                                                                                             \
    for (int j = 0; j < 2; j++) {                                                                  \
      __VA_ARGS__;                                                                                 \
    }                                                                                              \
  } while (0)

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
