/*
 * cuda_elementwise.cu - fill, add and scale.
 *
 * All are bound by memory: f32 reads and writes 4 bytes each, so add moves 12 bytes an element.
 */
#include "backend/cuda/cuda_map.cuh"

using namespace ek__cuda;

namespace {

template <class S> struct fill_with {
  static constexpr int inputs = 0;
  S value;
  __device__ S operator()(S, S) const { return value; }
};

template <class S> struct sum_of {
  static constexpr int inputs = 2;
  __device__ S operator()(S a, S b) const { return a + b; }
};

template <class S> struct times {
  static constexpr int inputs = 1;
  S factor;
  __device__ S operator()(S a, S) const { return a * factor; }
};

template <class T, class S>
cudaError_t fill(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, NULL, NULL, args->count, fill_with<S>{(S)args->value});
}

template <class T, class S>
cudaError_t add(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, args->a, args->b, args->count, sum_of<S>{});
}

template <class T, class S>
cudaError_t scale(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, args->a, NULL, args->count, times<S>{(S)args->value});
}

} // namespace

EK_CUDA_LAUNCHER(fill, elementwise)
EK_CUDA_LAUNCHER(add, elementwise)
EK_CUDA_LAUNCHER(scale, elementwise)
