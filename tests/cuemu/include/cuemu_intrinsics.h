/*
 * cuemu_intrinsics.h - device functions that are not about threads: vectors, numbers, memory,
 * atomics.
 *
 * Fast approximations (__expf and so on) give the accurate value: results differ from a GPU's in
 * the last bits, and tests compare with tolerances. There is no atomicAdd on floating point on
 * purpose: its order is not fixed, and the backend has none.
 */
#ifndef CUEMU_INTRINSICS_H
#define CUEMU_INTRINSICS_H

#include "cuemu_device.h"

/* ---- vectors ---- */

#define CUEMU_MAKE(type, name)                                                                     \
  static inline name##2 make_##name##2(type x, type y) { return name##2 {x, y}; }                  \
  static inline name##3 make_##name##3(type x, type y, type z) { return name##3 {x, y, z}; }       \
  static inline name##4 make_##name##4(type x, type y, type z, type w) {                           \
    return name##4 {x, y, z, w};                                                                   \
  }
CUEMU_MAKE(int, int)
CUEMU_MAKE(unsigned int, uint)
CUEMU_MAKE(long long, longlong)
CUEMU_MAKE(float, float)
CUEMU_MAKE(double, double)
#undef CUEMU_MAKE

/* ---- numbers ---- */

/* The C library declares functions of these names, so they have to be macros. */
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, (x))
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

namespace cuemu {
template <class To, class From> static inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps the size");
  To result;
  memcpy(&result, &value, sizeof(result));
  return result;
}
} // namespace cuemu

static inline unsigned __float_as_uint(float x) { return cuemu::bits<unsigned>(x); }
static inline int __float_as_int(float x) { return cuemu::bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return cuemu::bits<float>(x); }
static inline float __int_as_float(int x) { return cuemu::bits<float>(x); }
static inline long long __double_as_longlong(double x) { return cuemu::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return cuemu::bits<double>(x); }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __umulhi(unsigned x, unsigned y) {
  return (unsigned)(((unsigned long long)x * y) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  __extension__ typedef unsigned __int128 wide;
  return (unsigned long long)(((wide)x * y) >> 64);
}

template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return (T)a < (T)b ? (T)b : (T)a;
}

/* ---- memory ---- */

template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcg(T *p, T value) { *p = value; }
template <class T> static inline void __stcs(T *p, T value) { *p = value; }
template <class T> static inline void __stwt(T *p, T value) { *p = value; }

static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline size_t __cvta_generic_to_shared(const void *p) { return (size_t)p; }

/* ---- atomics, integers only ---- */

/* Acquire and release, although CUDA's are relaxed: ThreadSanitizer does not understand the fences
   that a kernel puts around them. */
#define CUEMU_ATOMICS(type)                                                                        \
  static inline type atomicAdd(type *p, type value) {                                              \
    return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);                                         \
  }                                                                                                \
  static inline type atomicExch(type *p, type value) {                                             \
    return __atomic_exchange_n(p, value, __ATOMIC_ACQ_REL);                                        \
  }                                                                                                \
  static inline type atomicCAS(type *p, type compare, type value) {                                \
    __atomic_compare_exchange_n(p, &compare, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);    \
    return compare;                                                                                \
  }                                                                                                \
  static inline type atomicMax(type *p, type value) {                                              \
    type old = __atomic_load_n(p, __ATOMIC_ACQUIRE);                                               \
    while (old < value && atomicCAS(p, old, value) != old)                                         \
      old = __atomic_load_n(p, __ATOMIC_ACQUIRE);                                                  \
    return old;                                                                                    \
  }                                                                                                \
  static inline type atomicMin(type *p, type value) {                                              \
    type old = __atomic_load_n(p, __ATOMIC_ACQUIRE);                                               \
    while (old > value && atomicCAS(p, old, value) != old)                                         \
      old = __atomic_load_n(p, __ATOMIC_ACQUIRE);                                                  \
    return old;                                                                                    \
  }                                                                                                \
  static inline type atomicOr(type *p, type value) {                                               \
    return __atomic_fetch_or(p, value, __ATOMIC_ACQ_REL);                                          \
  }                                                                                                \
  static inline type atomicAnd(type *p, type value) {                                              \
    return __atomic_fetch_and(p, value, __ATOMIC_ACQ_REL);                                         \
  }
CUEMU_ATOMICS(int)
CUEMU_ATOMICS(unsigned int)
CUEMU_ATOMICS(unsigned long long)
#undef CUEMU_ATOMICS

/* As on a GPU: old < limit ? old + 1 : 0. The usual way to find the last block of a grid. */
static inline unsigned atomicInc(unsigned *p, unsigned limit) {
  unsigned old = __atomic_load_n(p, __ATOMIC_ACQUIRE), seen;
  while ((seen = atomicCAS(p, old, old >= limit ? 0 : old + 1)) != old) old = seen;
  return old;
}

#endif
