/*
 * cuda_gelu.cu - a bias for every row, and GELU in its tanh form with and without one.
 *
 * Floor in f32: add_bias 8 bytes an element, GELU 8 (12 with a bias, x is written back), backward
 * 12; the exponential of each element hides behind that.
 */
#include "backend/cuda/cuda_map.cuh"

using namespace ek__cuda;

namespace {

/* s = 1 / (1 + e^(-2u)) = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3) */
template <class T> __device__ __forceinline__ T gelu_share(T x) {
  const T root_2_over_pi = T(0.79788456080286535588);
  return T(1) / (T(1) + exp(T(-2) * root_2_over_pi * (x + T(0.044715) * x * x * x)));
}

template <class T> struct gelu {
  static constexpr int inputs = 1;
  __device__ T operator()(T x, T) const { return x * gelu_share(x); }
};

template <class T> struct gelu_slope {
  static constexpr int inputs = 2;
  __device__ T operator()(T dy, T x) const {
    /* Beyond 40 the slope is 0 or 1, and nothing here overflows. NaN goes through, and an infinite x,
     * whose result forward may have been no number, becomes one. */
    x = (x < T(-40) ? T(-40) : x > T(40) ? T(40) : x) + (x - x);
    const T s = gelu_share(x);
    const T slope = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    return dy * (s + x * s * (T(1) - s) * T(2) * slope);
  }
};

/* x += bias; y = gelu(x) if Gelu. A pack lies within one row: columns is a multiple of N. */
template <class T, int N, bool Gelu>
__global__ void __launch_bounds__(BLOCK)
    bias_kernel(T *y, T *x, const T *bias, int64_t count, int64_t columns) {
  walk at(columns / N);
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N, at.next()) {
    pack<T, N> value = load<N>(x + i);
    const pack<T, N> added = load<N>(bias + at.column * N);
    EK_UNROLL
    for (int j = 0; j < N; j++) value.at[j] += added.at[j];
    store<N>(x + i, value);
    if constexpr (Gelu) {
      pack<T, N> result;
      EK_UNROLL
      for (int j = 0; j < N; j++) result.at[j] = value.at[j] * gelu_share(value.at[j]);
      store<N>(y + i, result); /* y may be x: last */
    }
  }
}

template <class T, bool Gelu>
cudaError_t add_bias(cudaStream_t stream, void *y, void *x, const void *bias, int64_t rows,
                     int64_t columns) {
  const int64_t count = rows * columns;
  if (count <= 0) return cudaSuccess;
  const bool wide = columns % PACK<T> == 0 && aligned(y, x, bias);
  const unsigned blocks = blocks_for(wide ? count / PACK<T> : count);
  const auto kernel = wide ? bias_kernel<T, PACK<T>, Gelu> : bias_kernel<T, 1, Gelu>;
  EK_LAUNCH(kernel, blocks, BLOCK, 0, stream, static_cast<T *>(y), static_cast<T *>(x),
            static_cast<const T *>(bias), count, columns);
  return cudaGetLastError();
}

} // namespace

extern "C" cudaError_t ek__cuda_add_bias(cudaStream_t stream, const struct ek__matrix_args *args) {
  return with_type(args->type, [&](auto zero) {
    return add_bias<decltype(zero), false>(stream, NULL, args->y, args->b, args->rows,
                                           args->columns);
  });
}

extern "C" cudaError_t ek__cuda_gelu_forward(cudaStream_t stream,
                                             const struct ek__gelu_args *args) {
  return with_type(args->type, [&](auto zero) {
    using T = decltype(zero);
    if (args->bias) {
      return add_bias<T, true>(stream, args->y, args->x, args->bias, args->rows, args->columns);
    }
    return map<T>(stream, args->y, args->x, NULL, args->rows * args->columns, gelu<T>{});
  });
}

extern "C" cudaError_t ek__cuda_gelu_backward(cudaStream_t stream,
                                              const struct ek__gelu_args *args) {
  return with_type(args->type, [&](auto zero) {
    using T = decltype(zero);
    return map<T>(stream, args->y, args->dy, args->x, args->rows * args->columns, gelu_slope<T>{});
  });
}
