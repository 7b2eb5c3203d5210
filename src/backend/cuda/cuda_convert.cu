/*
 * cuda_convert.cu - numbers of one type as numbers of another.
 *
 * Bound by memory: bytes read plus bytes written, 6 an element between f32 and a type of 16 bits.
 * All pairs except f64 with a type of 16 bits; the hardware's conversions round to nearest even,
 * once.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

template <class To, class From> __device__ __forceinline__ To converted(From x) {
  return To(float(x));
}

template <class To, class From, int N>
__global__ void __launch_bounds__(BLOCK) convert_kernel(To *y, const From *x, int64_t count) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_count()) {
    const pack<From, N> values = load<N>(x + i * N);
    pack<To, N> result;
    EK_UNROLL
    for (int j = 0; j < N; j++) result.at[j] = converted<To>(values.at[j]);
    store<N>(y + i * N, result);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_count()) {
    y[i] = converted<To>(x[i]);
  }
}

template <class To, class From>
cudaError_t convert(const struct ek__cuda_place *at, const struct ek__convert_args *args) {
  constexpr int N = PACK<To> < PACK<From> ? PACK<To> : PACK<From>;
  if (args->count <= 0) return cudaSuccess;
  return launch_flat(packed<N>(as<To>(args->y), as<From>(args->x)), N, convert_kernel<To, From, N>,
                     convert_kernel<To, From, 1>, args->count, at->stream, as<To>(args->y),
                     as<From>(args->x), args->count);
}

} // namespace

extern "C" cudaError_t ek__cuda_convert(const struct ek__cuda_place *at,
                                        const struct ek__convert_args *args) {
#define PAIR(TO, To, FROM, From)                                                                   \
  if (args->to == EK_##TO && args->from == EK_##FROM) return convert<To, From>(at, args);
  PAIR(F32, float, F64, double)
  PAIR(F64, double, F32, float)
  PAIR(F32, float, BF16, __nv_bfloat16)
  PAIR(BF16, __nv_bfloat16, F32, float)
  PAIR(F32, float, F16, __half)
  PAIR(F16, __half, F32, float)
  PAIR(BF16, __nv_bfloat16, F16, __half)
  PAIR(F16, __half, BF16, __nv_bfloat16)
  return cudaErrorInvalidValue;
}
