/*
 * cuda_row.cuh - a row of a matrix by the threads of a block, 16 bytes at a time, which may begin
 * anywhere; and its first part in the block's memory, so that a kernel that needs it twice reads it
 * once.
 *
 * Each thread gets its elements in the order of the row, whatever is in shared memory: the order of
 * a sum is the same on every GPU. It reads only what it has copied itself, so no barrier stands
 * between a copy and its use, and as soon as it has used a part for the last time it may send for
 * the same part of another row.
 */
#ifndef EK_CUDA_ROW_CUH
#define EK_CUDA_ROW_CUH

#include "backend/cuda/cuda_inline.cuh"

namespace ek__cuda {

/* Of n elements: `head` before the first multiple of 16 bytes, then packs, then the rest. To the
 * functions below f is f.one(value, c) for single elements, f.many(pack, c) for packs that start at
 * column c; a thread gets them in this order, but single elements first. */
template <class T> struct row_of {
  static constexpr int N = PACK<T>;
  const T *x;
  int64_t head, packs, n;

  __device__ row_of(const T *row, int64_t count) : x(row), n(count) {
    const int64_t past = (int64_t)(reinterpret_cast<uintptr_t>(x) / sizeof(T) % N);
    head = past == 0 ? 0 : N - past < n ? N - past : n;
    packs = (n - head) / N;
  }
  __device__ const T *place(int64_t i) const { return x + head + i * N; }
  template <class F> __device__ __forceinline__ void each_single(F &f) const {
    const int64_t tail = head + packs * N;
    if (threadIdx.x < head) f.one(x[threadIdx.x], threadIdx.x);
    if (tail + threadIdx.x < n) f.one(x[tail + threadIdx.x], tail + threadIdx.x);
  }
  /* Packs from `first` on, a multiple of the number of threads: two loads are under way. */
  template <class F> __device__ __forceinline__ void each_pack(int64_t first, F &f) const {
    int64_t i = first + threadIdx.x;
    for (; i + blockDim.x < packs; i += 2 * (int64_t)blockDim.x) {
      const pack<T, N> one = load<N>(place(i)), two = load<N>(place(i + blockDim.x));
      f.many(one, head + i * N);
      f.many(two, head + (i + blockDim.x) * N);
    }
    if (i < packs) f.many(load<N>(place(i)), head + i * N);
  }
  template <class F> __device__ __forceinline__ void each(F &f) const {
    each_single(f);
    each_pack(0, f);
  }
};

/* The first packs of a row in the block's memory: `kept` of them at most, in PARTS parts of `part`
 * packs, which is a multiple of the number of threads, as is `kept` where a row is longer. */
constexpr int PARTS = 4;
struct room {
  int kept, part;
};

template <class T> struct kept_row {
  static constexpr int N = PACK<T>;
  T *slots;
  room has;

  __device__ int end(const row_of<T> &row, int which) const {
    const int most = row.packs < has.kept ? (int)row.packs : has.kept, end = (which + 1) * has.part;
    return end < most ? end : most;
  }
  /* Queues the copies of this thread, as one group. */
  __device__ __forceinline__ void fetch(const row_of<T> &row, int which) const {
    const int last = end(row, which);
    for (int i = which * has.part + (int)threadIdx.x; i < last; i += (int)blockDim.x) {
      copy_async<16>(slots + i * N, row.place(i), true);
    }
    copy_commit();
  }
  /* Until a part is there: those after it may still be under way. */
  __device__ __forceinline__ static void wait_for(int which) {
    static_assert(PARTS == 4, "a case for each part but the last");
    switch (which) {
    case 0: copy_wait<3>(); break;
    case 1: copy_wait<2>(); break;
    case 2: copy_wait<1>(); break;
    default: copy_wait<0>(); break;
    }
  }
  template <class F>
  __device__ __forceinline__ void each_pack(const row_of<T> &row, int which, F &f) const {
    const int last = end(row, which);
    for (int i = which * has.part + (int)threadIdx.x; i < last; i += (int)blockDim.x) {
      f.many(load<N>(slots + i * N), row.head + (int64_t)i * N);
    }
  }
};

/* Shared memory for packs: what a block may have beside the kernel's own. */
template <class T> constexpr int PACK_SIZE = PACK<T> *(int)sizeof(T);
constexpr int OWN_BYTES = 1024;
inline int bytes_for_packs(const struct ek__cuda_place *at) {
  return at->shared_bytes > OWN_BYTES ? at->shared_bytes - OWN_BYTES : 0;
}

template <class T>
inline room room_for(const struct ek__cuda_place *at, int64_t columns, int threads) {
  const int64_t packs = columns / PACK<T>;
  const int most = bytes_for_packs(at) / PACK_SIZE<T>;
  const int kept = packs <= most ? (int)packs : most / threads * threads;
  return {kept, (kept + PARTS * threads - 1) / (PARTS * threads) * threads};
}

} // namespace ek__cuda

#endif /* EK_CUDA_ROW_CUH */
