/*
 * cuda_reduce.cu - the peer collective: sums N arrays in order and writes the sum to M arrays.
 *
 * It serves logical devices of one GPU, and GPUs that see each other's memory. Each element is read
 * by the thread that writes it, so a destination may be the source at the same place. Numbers of 16
 * bits are added up in f32, and the sum is rounded once. Floor on one GPU: N reads and M writes of
 * the array; between GPUs the slowest link.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

template <class T> struct peers {
  const T *sources[EK__CUDA_MAX_POINTERS];
  T *destinations[EK__CUDA_MAX_POINTERS];
  int source_count, destination_count;
  int64_t count;
};

template <class T, class S, int N>
__device__ __forceinline__ void reduce_pack(const peers<T> &a, int64_t i) {
  pack<S, N> sum = {};
  if (a.source_count > 0) sum = widened<S>(load<N>(a.sources[0] + i));
  EK_UNROLL_BY(4)
  for (int s = 1; s < a.source_count; s++) {
    const pack<S, N> more = widened<S>(load<N>(a.sources[s] + i));
    EK_UNROLL
    for (int j = 0; j < N; j++) sum.at[j] += more.at[j];
  }
  const pack<T, N> result = narrowed<T>(sum);
  for (int d = 0; d < a.destination_count; d++) store<N>(a.destinations[d] + i, result);
}

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) reduce_kernel(const __grid_constant__ peers<T> a) {
  const int64_t packs = a.count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) reduce_pack<T, S, N>(a, i * N);
  for (int64_t i = packs * N + thread_index(); i < a.count; i += thread_count()) {
    reduce_pack<T, S, 1>(a, i);
  }
}

template <class T, class S>
cudaError_t reduce(cudaStream_t stream, const struct ek__reduce_args *args) {
  if (args->count <= 0 || args->destination_count == 0) return cudaSuccess;
  if (args->source_count > EK__CUDA_MAX_POINTERS ||
      args->destination_count > EK__CUDA_MAX_POINTERS) {
    return cudaErrorInvalidValue;
  }
  peers<T> a = {};
  bool wide = true;
  for (size_t s = 0; s < args->source_count; s++) {
    a.sources[s] = as<T>(args->sources[s]);
    wide = wide && aligned(a.sources[s]);
  }
  for (size_t d = 0; d < args->destination_count; d++) {
    a.destinations[d] = as<T>(args->destinations[d]);
    wide = wide && aligned(a.destinations[d]);
  }
  a.source_count = (int)args->source_count;
  a.destination_count = (int)args->destination_count;
  a.count = args->count;
  return launch_flat(wide, PACK<T>, reduce_kernel<T, S, PACK<T>>, reduce_kernel<T, S, 1>, a.count,
                     stream, a);
}

} // namespace

extern "C" cudaError_t ek__cuda_reduce(const struct ek__cuda_place *at,
                                       const struct ek__reduce_args *args) {
  const struct ek__types types = ek__types_in(args->type);
  return with_values(types, [&](auto value, auto sum) {
    return reduce<decltype(value), decltype(sum)>(at->stream, args);
  });
}
