/*
 * cuda_map.cuh - y[i] = f(a[i], b[i]) over a flat range, in the type of sums, 16 bytes at a time
 * where all pointers are aligned, with the rest one by one.
 *
 * Floor: bytes read and written over the bandwidth of the memory.
 */
#ifndef EK_CUDA_MAP_CUH
#define EK_CUDA_MAP_CUH

#include "backend/cuda/cuda_portable.cuh"

namespace ek__cuda {

/* F::inputs says how many of a and b are read. y may be one of them. */
template <class T, class S, int N, class F>
__global__ void __launch_bounds__(BLOCK)
    map_kernel(T *y, const T *a, const T *b, int64_t count, F f) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    pack<T, N> x0 = {}, x1 = {}, result;
    if (F::inputs > 0) x0 = load<N>(a + i * N);
    if (F::inputs > 1) x1 = load<N>(b + i * N);
    EK_UNROLL
    for (int j = 0; j < N; j++) result.at[j] = T(f(S(x0.at[j]), S(x1.at[j])));
    store<N>(y + i * N, result);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_count()) {
    y[i] = T(f(F::inputs > 0 ? S(a[i]) : S(0), F::inputs > 1 ? S(b[i]) : S(0)));
  }
}

template <class T, class S, class F>
inline cudaError_t map(cudaStream_t stream, void *y, const void *a, const void *b, int64_t count,
                       F f) {
  if (count <= 0) return cudaSuccess;
  const bool wide = aligned(y, F::inputs > 0 ? a : NULL, F::inputs > 1 ? b : NULL);
  return launch_flat(wide, PACK<T>, map_kernel<T, S, PACK<T>, F>, map_kernel<T, S, 1, F>, count,
                     stream, as<T>(y), as<T>(a), as<T>(b), count, f);
}

} // namespace ek__cuda

#endif /* EK_CUDA_MAP_CUH */
