/*
 * cuemu_device.h - the device language: qualifiers, built-in variables, barriers, warp functions,
 * atomics.
 *
 * A kernel is an ordinary function. threadIdx and its relatives are thread-local and set by the
 * block executor whenever it goes on to another CUDA thread. __shared__ variables are thread-local
 * to the worker that runs the block: one block at a time runs on a worker, so that its CUDA threads
 * see the same variable and blocks of other streams see another one. They are not set to anything
 * between blocks, as on a GPU.
 */
#ifndef CUEMU_DEVICE_H
#define CUEMU_DEVICE_H

/* Standard headers first: some use words that are macros below. */
#include <assert.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <math.h>
#include <type_traits>

#include "cuda_runtime_api.h"

#ifdef CUEMU_BOUNDED /* rewritten by bounds.sed: a kernel that has kept the word has no bound */
#define __global__ a kernel without __launch_bounds__
#else
#define __global__
#endif
#define __device__
#define __host__
#define __grid_constant__
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

constexpr int warpSize = 32;

enum cuemu_warp_operation {
  CUEMU_WARP_SYNC,
  CUEMU_WARP_SHUFFLE,
  CUEMU_WARP_BALLOT,
  CUEMU_WARP_MULTIPLY,
  CUEMU_WARP_LOAD
};

extern "C" {
/* Initial-exec: read in every kernel's every index; 60 bytes of the static block are enough. */
#define CUEMU_BUILTIN extern __thread __attribute__((tls_model("initial-exec")))
CUEMU_BUILTIN uint3 threadIdx, blockIdx;
CUEMU_BUILTIN dim3 blockDim, gridDim;
CUEMU_BUILTIN int cuemu_lane;
CUEMU_BUILTIN int *cuemu_asked_bound;
#undef CUEMU_BUILTIN

void cuemu_syncthreads(const char *file, int line);
uint64_t cuemu_warp(enum cuemu_warp_operation operation, uint32_t mask, uint64_t value, int source,
                    const char *file, int line);
void cuemu_copy_async(void *to, const void *from, unsigned bytes, int there, const char *file,
                      int line);
void cuemu_copy_commit(void);
void cuemu_copy_wait(unsigned groups);
}

/* The place is part of a barrier: two different ones met by one block are an error. */
#define __syncthreads() cuemu_syncthreads(__FILE__, __LINE__)

namespace cuemu {

constexpr unsigned full_mask = 0xffffffffu;

struct place { /* where a warp function was called; the default argument is evaluated there */
  const char *file;
  int line;
  static constexpr place here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

/* Begins a kernel that has __launch_bounds__ (bounds.sed): whether it was only asked for its
 * bound. */
static inline bool bounded(int most_threads, int = 0) {
  if (!cuemu_asked_bound) return false;
  *cuemu_asked_bound = most_threads;
  return true;
}

static inline int segment(int width) { return cuemu_lane & ~(width - 1); }

template <class T> static inline T shuffle(unsigned mask, T value, int source, place at) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a shuffle moves at most eight bytes");
  static_assert(std::is_trivially_copyable_v<T>, "a shuffle moves bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(value));
  bits = cuemu_warp(CUEMU_WARP_SHUFFLE, mask, bits, source, at.file, at.line);
  memcpy(&value, &bits, sizeof(value));
  return value;
}

} // namespace cuemu

static inline void __syncwarp(unsigned mask = cuemu::full_mask,
                              cuemu::place at = cuemu::place::here()) {
  (void)cuemu_warp(CUEMU_WARP_SYNC, mask, 0, 0, at.file, at.line);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate,
                                     cuemu::place at = cuemu::place::here()) {
  return (unsigned)cuemu_warp(CUEMU_WARP_BALLOT, mask, predicate != 0, 0, at.file, at.line);
}

/* Outside its segment of `width` lanes a shuffle gives the caller's own value. */
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                            cuemu::place at = cuemu::place::here()) {
  return cuemu::shuffle(mask, value, cuemu::segment(width) + (source & (width - 1)), at);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 cuemu::place at = cuemu::place::here()) {
  int source = cuemu_lane + (int)delta;
  bool outside = source >= cuemu::segment(width) + width;
  return cuemu::shuffle(mask, value, outside ? cuemu_lane : source, at);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                                cuemu::place at = cuemu::place::here()) {
  int source = cuemu_lane ^ lanes;
  bool outside = source >= cuemu::segment(width) + width;
  return cuemu::shuffle(mask, value, outside ? cuemu_lane : source, at);
}

static inline int __popc(unsigned x) { return __builtin_popcount(x); }

/* Atomics on integers only: on floating point their order is not fixed, and the backend has none.
 * Acquire and release, although CUDA's are relaxed: ThreadSanitizer does not understand the fences
 * that a kernel puts around them. */
template <class T> static inline T atomicAdd(T *p, std::common_type_t<T> value) {
  return __atomic_fetch_add(p, value, __ATOMIC_ACQ_REL);
}
template <class T> static inline T atomicMin(T *p, std::common_type_t<T> value) {
  T old = __atomic_load_n(p, __ATOMIC_ACQUIRE);
  while (old > value &&
         !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  return old;
}

/* ---- what CUDA C++ has no words for: a product's inline assembly, here functions ---- */

/* cp.async, and its groups. */
#define EK_COPY_ASYNC(to, from, bytes, there)                                                      \
  cuemu_copy_async((to), (from), (bytes), (there), __FILE__, __LINE__)
#define EK_COPY_COMMIT() cuemu_copy_commit()
#define EK_COPY_WAIT(groups) cuemu_copy_wait(groups)

/* The host's C library has none. */
static inline void sincospi(double x, double *sine, double *cosine) {
  const double angle = 3.14159265358979323846 * remainder(x, 2.0);
  *sine = sin(angle);
  *cosine = cos(angle);
}
static inline void sincospif(float x, float *sine, float *cosine) {
  double s, c;
  sincospi(x, &s, &c);
  *sine = (float)s;
  *cosine = (float)c;
}

namespace cuemu {

/* cvt.rna.tf32.f32: to 10 bits after the point, ties away from zero; a NaN stays one. */
static inline uint32_t round_tf32(float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  if ((word & 0x7F800000u) == 0x7F800000u) return (word & 0x7FFFFFu) ? 0x7FFFFFFFu : word;
  return (word + 0x1000u) & ~0x1FFFu;
}

/* ex2.approx.ftz.f32 and rcp.approx.ftz.f32: no subnormal numbers. */
static inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline float power_of_2(float x) { return flushed(exp2f(flushed(x))); }
static inline float reciprocal(float x) { return flushed(1.0f / flushed(x)); }

enum precision { TF32, BF16, F16 };

struct operands { /* src/multiply.c */
  float *d;
  const uint32_t *a, *b;
  int precision;
};

/* mma.sync, of m16n8k8 in TF32 and m16n8k16 in 16 bits, by all lanes of a warp. */
static inline void multiply(precision precision, float (&d)[4], const uint32_t (&a)[4],
                            const uint32_t *b, place at = place::here()) {
  const operands own = {d, a, b, precision};
  (void)cuemu_warp(CUEMU_WARP_MULTIPLY, full_mask, (uint64_t)(uintptr_t)&own, 0, at.file, at.line);
}

struct matrices { /* src/multiply.c */
  uint32_t *x;
  const void *address;
  uint32_t row[4];
  int transposed;
};

/* ldmatrix.x4. The lane that names a row reads it, so that ThreadSanitizer sees who did. */
static inline void load_matrices(bool transposed, uint32_t *x, const uint32_t *row,
                                 place at = place::here()) {
  matrices own = {x, row, {}, transposed};
  for (int i = 0; i < 4 && (uintptr_t)row % 16 == 0; i++) own.row[i] = row[i];
  (void)cuemu_warp(CUEMU_WARP_LOAD, full_mask, (uint64_t)(uintptr_t)&own, 0, at.file, at.line);
}

} // namespace cuemu

#define EK_ROUND_TF32(x) cuemu::round_tf32(x)
#define EK_POWER_OF_2(x) cuemu::power_of_2(x)
#define EK_RECIPROCAL(x) cuemu::reciprocal(x)
#define EK_MULTIPLY_TF32(d, a, b) cuemu::multiply(cuemu::TF32, d, a, b)
#define EK_MULTIPLY_BF16(d, a, b) cuemu::multiply(cuemu::BF16, d, a, b)
#define EK_MULTIPLY_F16(d, a, b) cuemu::multiply(cuemu::F16, d, a, b)
#define EK_LOAD_MATRICES(x, row) cuemu::load_matrices(false, x, row)
#define EK_LOAD_TRANSPOSED(x, row) cuemu::load_matrices(true, x, row)

#endif
