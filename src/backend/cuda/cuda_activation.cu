/*
 * cuda_activation.cu - a bias for every row, and the pointwise activations with and without one.
 *
 * Each is a struct of two functions: forward(x), and backward(dy, kept value). Floor in f32:
 * add_bias 8 bytes an element, forward 8 (12 with a bias, x is written back), backward 12; the
 * exponentials take less time than the memory accesses and run in parallel with them.
 */
#include "backend/cuda/cuda_inline.cuh"
#include "backend/cuda/cuda_map.cuh"

using namespace ek__cuda;

namespace {

/* ---- formulas: in T, for values V in memory ---- */

template <class T, class V = T> struct relu {
  static __device__ __forceinline__ T forward(T x) { return x < T(0) ? T(0) : x; } /* NaN stays */
  static __device__ __forceinline__ T backward(T dy, T y) { /* NaN passes on */
    return y > T(0) ? dy : y <= T(0) ? T(0) : y;
  }
};

template <class T, class V = T> struct gelu {
  /* s = 1 / (1 + e^(-2u)) = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3). Of 16 bits
   * there are twice as many values in a byte, and the exact forms would take longer than the
   * memory. */
  static __device__ __forceinline__ T share(T x) {
    const T minus_2_u = T(-2 * 0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    if constexpr (sizeof(V) == 2) {
      return reciprocal(T(1) + power_of_2(T(1.44269504088896340736) * minus_2_u));
    } else {
      return T(1) / (T(1) + exp(minus_2_u));
    }
  }
  static __device__ __forceinline__ T forward(T x) { return x * share(x); }
  static __device__ __forceinline__ T backward(T dy, T x) {
    /* Beyond 40 the slope is 0 or 1, and nothing here overflows. NaN goes through, and an infinite
     * x, whose result forward may have been no number, becomes one. */
    x = (x < T(-40) ? T(-40) : x > T(40) ? T(40) : x) + (x - x);
    const T s = share(x);
    const T slope = T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
    return dy * (s + x * s * (T(1) - s) * T(2) * slope);
  }
};

template <class T, class V = T> struct silu {
  static __device__ __forceinline__ T forward(T x) { return x / (T(1) + exp(-x)); }
  static __device__ __forceinline__ T backward(T dy, T x) {
    /* s + x s (1 - s), s = 1 / (1 + e^-x), by e^-|x|, which does not overflow */
    const T e = exp(-fabs(x)), share = T(1) / (T(1) + e);
    return dy * ((x < T(0) ? e * share : share) + x * (e * share * share));
  }
};

/* ---- kernels; A is one of the above ---- */

template <class S, class A> struct forward_of {
  static constexpr int inputs = 1;
  __device__ S operator()(S x, S) const { return A::forward(x); }
};

template <class S, class A> struct backward_of {
  static constexpr int inputs = 2;
  __device__ S operator()(S dy, S kept) const { return A::backward(dy, kept); }
};

/* x += bias; y = A(x), or nothing more for A = void. A pack is within one row: columns and pitch
 * are multiples of N. */
template <class T, class S, int N, class A>
__global__ void __launch_bounds__(BLOCK)
    bias_kernel(T *y, T *x, const T *bias, int64_t count, int64_t columns, int64_t pitch) {
  walk at(columns / N);
  for (int64_t k = thread_index() * N; k < count; k += thread_count() * N, at.next()) {
    const int64_t i = at.row * pitch + at.column * N;
    pack<T, N> value = load<N>(x + i);
    const pack<T, N> added = load<N>(bias + at.column * N);
    EK_UNROLL
    for (int j = 0; j < N; j++) value.at[j] = T(S(value.at[j]) + S(added.at[j]));
    store<N>(x + i, value);
    if constexpr (!std::is_void<A>::value) {
      pack<T, N> result;
      EK_UNROLL
      for (int j = 0; j < N; j++) result.at[j] = T(A::forward(S(value.at[j])));
      store<N>(y + i, result); /* y may be x: last */
    }
  }
}

template <class T, class S, class A>
cudaError_t with_bias(cudaStream_t stream, void *y, void *x, const void *bias, int64_t rows,
                      int64_t columns, int64_t pitch) {
  const int64_t count = rows * columns;
  if (count <= 0) return cudaSuccess;
  const bool wide = columns % PACK<T> == 0 && pitch % PACK<T> == 0 && aligned(y, x, bias);
  return launch_flat(wide, PACK<T>, bias_kernel<T, S, PACK<T>, A>, bias_kernel<T, S, 1, A>, count,
                     stream, as<T>(y), as<T>(x), as<T>(bias), count, columns, pitch);
}

template <class T, class S>
cudaError_t add_bias(const struct ek__cuda_place *at, const struct ek__matrix_args *args) {
  return with_bias<T, S, void>(at->stream, args->y, args->y, args->b, args->rows, args->columns,
                               args->pitch);
}

/* f(A()) for the activation A. */
constexpr bool RESULT = true, INPUT = false;
template <class A, bool Kept> struct keeping : A { static constexpr bool keeps_result = Kept; };
template <class T, class S, class F> cudaError_t with_activation(ek_activation kind, F f) {
  switch (kind) {
#define CASE(NAME, name, kept)                                                                     \
  case EK_ACTIVATION_##NAME: return f(keeping<name<S, T>, kept>());
    EK_ACTIVATION_LIST(CASE)
  }
  return cudaErrorInvalidValue;
}

template <class T, class S>
cudaError_t activation_forward(const struct ek__cuda_place *at,
                               const struct ek__activation_args *args) {
  return with_activation<T, S>(args->kind, [&](auto activation) {
    using A = decltype(activation);
    if (args->bias) {
      return with_bias<T, S, A>(at->stream, args->y, args->x, args->bias, args->rows, args->columns,
                                args->columns);
    }
    return map<T, S>(at->stream, args->y, args->x, NULL, args->rows * args->columns,
                     forward_of<S, A>{});
  });
}

template <class T, class S>
cudaError_t activation_backward(const struct ek__cuda_place *at,
                                const struct ek__activation_args *args) {
  return with_activation<T, S>(args->kind, [&](auto activation) {
    return map<T, S>(at->stream, args->y, args->dy, args->x, args->rows * args->columns,
                     backward_of<S, decltype(activation)>{});
  });
}

/* ---- gates: y = A(x) * factor ---- */

template <class S, class A> struct gate_of {
  static constexpr int inputs = 2;
  __device__ S operator()(S x, S factor) const { return A::forward(x) * factor; }
};

template <class T> struct gate {
  T *dx, *dfactor;
  const T *dy, *x, *factor;
  int64_t count;
};

/* All of an element is read before any of it is written: dx may be dy or x, and dfactor factor. */
template <class T, class S, int N, class A>
__global__ void __launch_bounds__(BLOCK) gate_kernel(gate<T> a) {
  for (int64_t i = thread_index() * N; i < a.count; i += thread_count() * N) {
    const pack<T, N> dy = load<N>(a.dy + i), x = load<N>(a.x + i), factor = load<N>(a.factor + i);
    pack<T, N> dx, dfactor;
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      const S value = S(x.at[j]), y = A::forward(value), slope = S(dy.at[j]);
      dx.at[j] = T(A::backward(slope * S(factor.at[j]), A::keeps_result ? y : value));
      dfactor.at[j] = T(slope * y);
    }
    store<N>(a.dx + i, dx);
    store<N>(a.dfactor + i, dfactor);
  }
}

template <class T, class S>
cudaError_t gate_forward(const struct ek__cuda_place *at, const struct ek__activation_args *args) {
  return with_activation<T, S>(args->kind, [&](auto activation) {
    return map<T, S>(at->stream, args->y, args->x, args->factor, args->rows * args->columns,
                     gate_of<S, decltype(activation)>{});
  });
}

template <class T, class S>
cudaError_t gate_backward(const struct ek__cuda_place *at, const struct ek__activation_args *args) {
  const gate<T> a = {as<T>(args->y), as<T>(args->dfactor), as<T>(args->dy),
                     as<T>(args->x), as<T>(args->factor),  args->rows * args->columns};
  if (a.count <= 0) return cudaSuccess;
  const bool wide = a.count % PACK<T> == 0 && aligned(a.dx, a.dfactor, a.dy, a.x, a.factor);
  return with_activation<T, S>(args->kind, [&](auto activation) {
    using A = decltype(activation);
    return launch_flat(wide, PACK<T>, gate_kernel<T, S, PACK<T>, A>, gate_kernel<T, S, 1, A>,
                       a.count, at->stream, a);
  });
}

} // namespace

EK_CUDA_LAUNCHER(add_bias, matrix)
EK_CUDA_LAUNCHER(activation_forward, activation)
EK_CUDA_LAUNCHER(activation_backward, activation)
EK_CUDA_LAUNCHER(gate_forward, activation)
EK_CUDA_LAUNCHER(gate_backward, activation)
