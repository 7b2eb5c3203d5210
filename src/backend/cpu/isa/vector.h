/*
 * vector.h - vectors of floats as wide as the instruction set this file is compiled for.
 *
 * Arithmetic and comparison are the compilers' own vector extensions, so that the kernels are
 * written once. Operations that the extensions lack in C (select, square root, a widening product)
 * have a line per instruction set below and a plain form for all others.
 *
 * Sums: a kernel keeps several vectors of partial sums and adds them up at the end in a fixed
 * order, so a result depends on the instruction set but not on the run.
 */
#ifndef EK_CPU_VECTOR_H
#define EK_CPU_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(EK_ISA_avx512) || defined(EK_ISA_avx2)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h> /* the other one takes half a second to compile */
#endif

#define EK_PASTE2(a, b) a##b
#define EK_PASTE(a, b) EK_PASTE2(a, b)
#define EK_ISA_NAME(name) EK_PASTE(ek__##name, EK_ISA_SUFFIX)

#define W EK_ISA_WIDTH

typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t vec_i __attribute__((vector_size(W * 4)));
typedef uint32_t vec_u __attribute__((vector_size(W * 4)));
typedef uint64_t vec_w __attribute__((vector_size(W * 4))); /* W / 2 wide words */
typedef float vec_h __attribute__((vector_size(W * 2)));    /* W / 2 floats */
typedef double vec_d __attribute__((vector_size(W * 4)));   /* W / 2 doubles */

static inline vec v_load(const float *p) {
  vec v;
  memcpy(&v, p, sizeof v);
  return v;
}

static inline void v_store(float *p, vec v) { memcpy(p, &v, sizeof v); }

static inline vec v_set(float x) { return x - (vec){0}; }

/*
 * Asks for what a pass over memory will need soon. The processor's own prefetching stops at pages
 * of 4 KiB; one page ahead, a single thread reads up to 1.7 times as fast. Past the end is
 * harmless.
 */
#define EK_AHEAD 1024 /* floats */
static inline void v_fetch(const float *p) { __builtin_prefetch((const char *)p + 4 * EK_AHEAD); }

/* Stores past the caches; p must be aligned to the vector. v_stream_end() after the last. */
static inline void v_stream(float *p, vec v) {
#if defined(EK_ISA_avx512)
  _mm512_stream_ps(p, (__m512)v);
#elif defined(EK_ISA_avx2)
  _mm256_stream_ps(p, (__m256)v);
#elif defined(__SSE2__)
  _mm_stream_ps(p, (__m128)v);
#else
  v_store(p, v);
#endif
}

static inline void v_stream_end(void) {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

/* True (all bits) in the first n lanes. */
static inline vec_i v_first_mask(int64_t n) {
#if W == 16
  const vec_i lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif W == 8
  const vec_i lane = {0, 1, 2, 3, 4, 5, 6, 7};
#else
  const vec_i lane = {0, 1, 2, 3};
#endif
  return lane < (int32_t)n;
}

/* x in the first n lanes, y in the others; n <= 0 and n >= W are legal. */
static inline vec v_first(int64_t n, vec x, vec y) {
#if defined(EK_ISA_avx512)
  const __mmask16 mask = (__mmask16)(n >= W ? 0xFFFFu : n <= 0 ? 0u : (1u << n) - 1u);
  return (vec)_mm512_mask_blend_ps(mask, (__m512)y, (__m512)x);
#else
  const vec_i mask = v_first_mask(n < W ? n : W);
  return (vec)((mask & (vec_i)x) | (~mask & (vec_i)y));
#endif
}

/* The first n < W elements; the others are `fill`. Memory after them is not touched. */
static inline vec v_load_some(const float *p, int64_t n, float fill) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_mask_loadu_ps((__m512)v_set(fill), (__mmask16)((1u << n) - 1u), p);
#elif defined(EK_ISA_avx2)
  return v_first(n, (vec)_mm256_maskload_ps(p, (__m256i)v_first_mask(n)), v_set(fill));
#else
  float lanes[W];
  for (int i = 0; i < W; i++) lanes[i] = fill;
  for (int64_t i = 0; i < n; i++) lanes[i] = p[i];
  return v_load(lanes);
#endif
}

static inline void v_store_some(float *p, vec v, int64_t n) {
#if defined(EK_ISA_avx512)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)v);
#elif defined(EK_ISA_avx2)
  _mm256_maskstore_ps(p, (__m256i)v_first_mask(n), (__m256)v);
#else
  float lanes[W];
  v_store(lanes, v);
  for (int64_t i = 0; i < n; i++) p[i] = lanes[i];
#endif
}

/* n elements from p on, 0 < n <= W: a plain load or store where the compiler knows that n is W. */
static inline vec v_get(const float *p, int64_t n) {
  return n == W ? v_load(p) : v_load_some(p, n, 0.0f);
}

static inline void v_put(float *p, vec v, int64_t n) {
  if (n == W) {
    v_store(p, v);
  } else {
    v_store_some(p, v, n);
  }
}

/* The loop over begin .. end - 1: what follows is written for `n` elements from `i` on, and
 * compiled twice, for whole vectors and for what is left. */
#define V_EACH(begin, end, ...) V_STEPS(W, begin, end, __VA_ARGS__)

/* The same with `step` elements at a time. */
#define V_STEPS(step, begin, end, ...)                                                             \
  do {                                                                                             \
    int64_t i = (begin);                                                                           \
    for (; i + (step) <= (end); i += (step)) {                                                     \
      const int64_t n = (step);                                                                    \
      __VA_ARGS__;                                                                                 \
    }                                                                                              \
    const int64_t n = (end)-i;                                                                     \
    if (n > 0) {                                                                                   \
      __VA_ARGS__;                                                                                 \
    }                                                                                              \
  } while (0)

/* x where the mask has all bits, y where it has none. */
static inline vec v_choose(vec_i mask, vec x, vec y) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)y, (__m512)x);
#elif defined(EK_ISA_avx2)
  return (vec)_mm256_blendv_ps((__m256)y, (__m256)x, (__m256)mask);
#else
  return (vec)((mask & (vec_i)x) | (~mask & (vec_i)y));
#endif
}

/* a < b ? x : y in every lane; false if either is NaN. */
static inline vec v_less(vec a, vec b, vec x, vec y) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)y,
                                   (__m512)x);
#elif defined(EK_ISA_avx2)
  return (vec)_mm256_blendv_ps((__m256)y, (__m256)x,
                               _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ));
#else
  const vec_i mask = a < b;
  return (vec)((mask & (vec_i)x) | (~mask & (vec_i)y));
#endif
}

/* The larger; the second if either is NaN. */
static inline vec v_max(vec a, vec b) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(EK_ISA_avx2)
  return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
  return v_less(b, a, a, b);
#endif
}

/* The smaller; the second if either is NaN. */
static inline vec v_min(vec a, vec b) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(EK_ISA_avx2)
  return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (vec)_mm_min_ps((__m128)a, (__m128)b);
#else
  return v_less(a, b, a, b);
#endif
}

/* Whether a lane of either is NaN; true where there is no instruction for it. */
static inline int v_any_nan(vec a, vec b) {
#if defined(EK_ISA_avx512)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
#elif defined(EK_ISA_avx2)
  return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
#else
  (void)a, (void)b;
  return 1;
#endif
}

static inline vec v_sqrt(vec a) {
#if defined(EK_ISA_avx512)
  return (vec)_mm512_sqrt_ps((__m512)a);
#elif defined(EK_ISA_avx2)
  return (vec)_mm256_sqrt_ps((__m256)a);
#elif defined(__SSE2__)
  return (vec)_mm_sqrt_ps((__m128)a);
#else
  for (int i = 0; i < W; i++) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}

/* The 64-bit products of the lower halves of the words. */
static inline vec_w v_multiply_wide(vec_w a, vec_w b) {
#if defined(EK_ISA_avx512)
  return (vec_w)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(EK_ISA_avx2)
  return (vec_w)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (vec_w)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/* The lower and the upper half of the lanes as doubles. */
static inline void v_widen(vec v, vec_d *low, vec_d *high) {
  vec_h halves[2];
  memcpy(halves, &v, sizeof v);
  *low = __builtin_convertvector(halves[0], vec_d);
  *high = __builtin_convertvector(halves[1], vec_d);
}

/* a0 b0 a1 b1 ... as two vectors. */
static inline void v_interleave_wide(vec_w a, vec_w b, vec_w *low, vec_w *high) {
#if W == 16
  *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif W == 8
  *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
  *low = __builtin_shufflevector(a, b, 0, 2);
  *high = __builtin_shufflevector(a, b, 1, 3);
#endif
}

/* The same of floats. */
static inline void v_interleave(vec a, vec b, vec *low, vec *high) {
#if W == 16
  *low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  *high =
      __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif W == 8
  *low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  *high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  *low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  *high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* Lane j of vector i and lane i of vector j change places. */
static inline void v_transpose(vec x[W]) {
  vec y[W];
  for (int stage = 1; stage < W; stage *= 2) {
    for (int i = 0; i < W / 2; i++) v_interleave(x[i], x[i + W / 2], &y[2 * i], &y[2 * i + 1]);
    for (int i = 0; i < W; i++) x[i] = y[i];
  }
}

/* The lanes from the other half of each group of 2, 4, 8 or 16. */
#if W == 16
#define EK_SHUFFLE(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#define EK_SWAP_8(v) EK_SHUFFLE(v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define EK_SWAP_4(v) EK_SHUFFLE(v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define EK_SWAP_2(v) EK_SHUFFLE(v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define EK_SWAP_1(v) EK_SHUFFLE(v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif W == 8
#define EK_SWAP_4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3)
#define EK_SWAP_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5)
#define EK_SWAP_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define EK_SWAP_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1)
#define EK_SWAP_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#endif

/* The sum of all lanes, by halves. */
static inline float v_sum(vec v) {
#if W >= 16
  v += EK_SWAP_8(v);
#endif
#if W >= 8
  v += EK_SWAP_4(v);
#endif
  v += EK_SWAP_2(v);
  v += EK_SWAP_1(v);
  return v[0];
}

/* The largest lane; NaN may be passed over. */
static inline float v_largest(vec v) {
#if W >= 16
  v = v_max(EK_SWAP_8(v), v);
#endif
#if W >= 8
  v = v_max(EK_SWAP_4(v), v);
#endif
  v = v_max(EK_SWAP_2(v), v);
  v = v_max(EK_SWAP_1(v), v);
  return v[0];
}

static inline double v_sum_d(vec_d v) {
  double lanes[W / 2];
  memcpy(lanes, &v, sizeof v);
  for (int half = W / 4; half > 0; half /= 2) {
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

#endif /* EK_CPU_VECTOR_H */
