/*
 * cuda_portable.cuh - shared by all kernels: launches, 16-byte access, sums of a warp and of a
 * block.
 *
 * The sources are CUDA C++17 for nvcc 12 and 13. A stand-in for the runtime that compiles them for
 * another machine brings a <cuda_runtime.h> of its own, which may define EK_LAUNCH and
 * EK_DYNAMIC_SHARED before this file does.
 *
 * A kernel has a type T of values, as they are in memory, and a type S of sums, in which it
 * computes: the same, or T of 16 bits and S float. S(x) widens, T(s) rounds to nearest even; no
 * other operation uses a T, because the 16-bit types convert to several others implicitly.
 *
 * Rules for kernels
 *   - Threads of a block that meet at a barrier all get there: no early return before one.
 *   - Indices and sizes are 64 bits wide; a grid has a bounded size and walks over the work.
 *   - No atomic operation on a floating number. Every sum has one order, given by sizes alone.
 */
#ifndef EK_CUDA_PORTABLE_CUH
#define EK_CUDA_PORTABLE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "backend/cuda/cuda_kernels.h"

/* A statement; cudaGetLastError() says what became of it. kernel: a name or a pointer to one. */
#ifndef EK_LAUNCH
#define EK_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
  (kernel)<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
#endif

/* Declares `name`, the block's memory of a size that the launch gives. */
#ifndef EK_DYNAMIC_SHARED
#define EK_DYNAMIC_SHARED(type, name)                                                              \
  extern __shared__ __align__(16) unsigned char ek__cuda_dynamic_shared[];                         \
  type *const name = reinterpret_cast<type *>(ek__cuda_dynamic_shared)
#endif

#ifdef __CUDACC__
#define EK_PRAGMA(text) _Pragma(#text)
#define EK_UNROLL EK_PRAGMA(unroll)
#define EK_UNROLL_BY(count) EK_PRAGMA(unroll count)
#else
#define EK_UNROLL
#define EK_UNROLL_BY(count)
#endif

namespace ek__cuda {

constexpr unsigned WARP = 32, ALL_LANES = 0xFFFFFFFFu;
constexpr int BLOCK = 256;            /* threads of a block that needs no certain number */
constexpr int64_t MOST_BLOCKS = 2112; /* 16 blocks of 256 on each of 132 multiprocessors */

/* ---- 16 bytes at a time ---- */

template <class T> constexpr int PACK = 16 / (int)sizeof(T);

template <class T, int N> constexpr int PACK_BYTES = N *(int)sizeof(T);

/* N elements; what is longer than 16 bytes moves in pieces of 16. */
template <class T, int N> struct alignas(PACK_BYTES<T, N> < 16 ? PACK_BYTES<T, N> : 16) pack {
  T at[N];
};

/* An address of the arguments as one of elements. */
template <class T> __host__ __device__ inline T *as(void *p) { return static_cast<T *>(p); }
template <class T> __host__ __device__ inline const T *as(const void *p) {
  return static_cast<const T *>(p);
}

/* nvcc would take a pack of small elements apart into loads of each. */
template <int N, class T> __device__ __forceinline__ pack<T, N> load(const T *p) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2 && N > 1) {
    using word = std::conditional_t<N % 8 == 0, uint4, std::conditional_t<N == 4, uint2, unsigned>>;
    static_assert(PACK_BYTES<T, N> == sizeof(word), "16 bytes, 8 or 4");
    const word bits = *reinterpret_cast<const word *>(p);
    pack<T, N> result;
    memcpy(result.at, &bits, sizeof bits);
    return result;
  }
#endif
  return *reinterpret_cast<const pack<T, N> *>(p);
}

/* To memory of the device, not to that of a block. nvcc takes a pack apart into its elements and
 * does not put together the stores of all of them again, so a whole one is stored by an
 * instruction. */
template <int N, class T> __device__ __forceinline__ void store(T *p, const pack<T, N> &value) {
#ifdef __CUDA_ARCH__
  if constexpr (N > 1 && PACK_BYTES<T, N> % 4 == 0 && PACK_BYTES<T, N> >= 4) {
    constexpr int WORDS = PACK_BYTES<T, N> / 4;
    unsigned word[WORDS];
    memcpy(word, value.at, sizeof word);
    const size_t to = __cvta_generic_to_global(p);
    if constexpr (WORDS == 1) {
      asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word[0]) : "memory");
    } else if constexpr (WORDS == 2) {
      asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1])
                   : "memory");
    } else {
      static_assert(WORDS % 4 == 0, "whole pieces of 16 bytes");
      EK_UNROLL
      for (int i = 0; i < WORDS; i += 4) {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + 4 * i), "r"(word[i]),
                     "r"(word[i + 1]), "r"(word[i + 2]), "r"(word[i + 3])
                     : "memory");
      }
    }
    return;
  }
#endif
  *reinterpret_cast<pack<T, N> *>(p) = value;
}

/* Values as sums, and back. A bf16 is the upper half of a float: nvcc takes two instructions for
 * every second one of a pack, where one will do. */
template <class S, class T, int N>
__device__ __forceinline__ pack<S, N> widened(const pack<T, N> &value) {
  pack<S, N> result;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && N % 2 == 0) {
    EK_UNROLL
    for (int j = 0; j < N; j += 2) {
      unsigned word;
      memcpy(&word, value.at + j, sizeof word);
      const unsigned bits[] = {word << 16, word & 0xFFFF0000u};
      memcpy(result.at + j, bits, sizeof bits);
    }
  } else {
    EK_UNROLL
    for (int j = 0; j < N; j++) result.at[j] = S(value.at[j]);
  }
  return result;
}

template <class T, class S, int N>
__device__ __forceinline__ pack<T, N> narrowed(const pack<S, N> &value) {
  pack<T, N> result;
  EK_UNROLL
  for (int j = 0; j < N; j++) result.at[j] = T(value.at[j]);
  return result;
}

/* True if all pointers are fit for 16-byte access; NULL is. */
template <class... P> __host__ __device__ inline bool aligned(const P *...p) {
  return (((reinterpret_cast<uintptr_t>(p) % 16) == 0) && ...);
}

/* The same for packs of N elements of different types, which may be shorter. */
template <int N, class... P> __host__ __device__ inline bool packed(const P *...p) {
  return (((reinterpret_cast<uintptr_t>(p) % alignof(pack<P, N>)) == 0) && ...);
}

/* ---- the work of each thread ---- */

inline unsigned blocks_for(int64_t items, int64_t per_block = BLOCK) {
  const int64_t blocks = (items + per_block - 1) / per_block;
  return (unsigned)(blocks < 1 ? 1 : blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

__device__ __forceinline__ int64_t thread_index() {
  return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t thread_count() { return (int64_t)gridDim.x * blockDim.x; }

/* One thread's items of a matrix, as row and column: the divisions are done once. */
struct walk {
  int64_t row, column, width, step_rows, step_columns;
  __device__ explicit walk(int64_t columns) : width(columns) {
    row = thread_index() / width;
    column = thread_index() % width;
    step_rows = thread_count() / width;
    step_columns = thread_count() % width;
  }
  __device__ __forceinline__ void next() {
    row += step_rows;
    column += step_columns;
    if (column >= width) {
      column -= width;
      row++;
    }
  }
};

/* ---- what is out of range ---- */

/* The lowest row stays; the one word for its kind of struct ek__cuda_bad. */
__device__ __forceinline__ void report_bad(unsigned long long *bad, int64_t row, int32_t value) {
  const unsigned long long place = (unsigned long long)row;
  const bool both = place < EK__CUDA_ROW_ALONE >> 32;
  atomicMin(bad, both ? place << 32 | (uint32_t)value : EK__CUDA_ROW_ALONE | place);
}

/* ---- sums; the order is that of a tree over the lanes, the same for all of them ---- */

template <int LANES = (int)WARP, class T> __device__ __forceinline__ T warp_sum(T value) {
  EK_UNROLL
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_LANES, value, distance);
  }
  return value;
}

__device__ __forceinline__ unsigned thread_in_block() {
  return threadIdx.x + blockDim.x * threadIdx.y;
}

/* The sum over a block of whole warps, in every thread of it. `scratch` is 32 elements, shared. */
template <class T> __device__ __forceinline__ T block_sum(T value, T *scratch) {
  const unsigned lane = thread_in_block() % WARP, warp = thread_in_block() / WARP;
  const unsigned warps = blockDim.x * blockDim.y / WARP;
  value = warp_sum(value);
  __syncthreads(); /* scratch may still be read from the sum before */
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : T(0));
}

/* ---- launchers ---- */

/* Lets the kernel be launched on the current GPU with up to `bytes` of dynamic shared memory, the
 * same number in every call for a kernel. cudaErrorNotSupported: a block of the GPU may not have
 * that. In cuda_grant.cu. */
cudaError_t grant(const struct ek__cuda_place *at, const void *kernel, int bytes);

/* Queues a kernel without dynamic memory; gives what became of it. */
template <class... P, class... A>
inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, cudaStream_t stream,
                          const A &...args) {
  EK_LAUNCH(kernel, grid, block, 0, stream, args...);
  return cudaGetLastError();
}

/* Over `count` elements: `packed` takes `size` of them at a time, and runs where access is `wide`.
 */
template <class... P, class... A>
inline cudaError_t launch_flat(bool wide, int size, void (*packed)(P...), void (*single)(P...),
                               int64_t count, cudaStream_t stream, const A &...args) {
  return launch(wide ? packed : single, blocks_for(wide ? count / size : count), BLOCK, stream,
                args...);
}

/* Calls f(T(), S()) for the types of values and of sums, and gives what it gives. */
template <class F> inline cudaError_t with_types(struct ek__types types, F f) {
  if (types.value == EK_F32 && types.sum == EK_F32) return f(float(), float());
  if (types.value == EK_F64 && types.sum == EK_F64) return f(double(), double());
  return cudaErrorInvalidValue;
}

/* The same with values of 16 bits. */
template <class F> inline cudaError_t with_values(struct ek__types types, F f) {
  if (types.sum != EK_F32) return with_types(types, f);
  if (types.value == EK_BF16) return f(__nv_bfloat16(), float());
  if (types.value == EK_F16) return f(__half(), float());
  return with_types(types, f);
}

/* The launcher of cuda_kernels.h, from a template of its name over both types. */
#define EK_CUDA_LAUNCHER(name, kind)                                                               \
  extern "C" cudaError_t ek__cuda_##name(const struct ek__cuda_place *at,                          \
                                         const struct ek__##kind##_args *args) {                   \
    return with_values(args->types, [&](auto value, auto sum) {                                    \
      return name<decltype(value), decltype(sum)>(at, args);                                       \
    });                                                                                            \
  }

} // namespace ek__cuda

#endif /* EK_CUDA_PORTABLE_CUH */
