/*
 * cuda_elementwise.cu - fill, add, scale, lerp, and what programs build modules from.
 *
 * All are bound by memory: f32 reads and writes 4 bytes each, so add moves 12 bytes an element, and
 * a binary operation with a spread 8. The operation is a number of the launch, the same in all
 * threads: a branch costs nothing compared to the memory, and a kernel for each would be four times
 * the code.
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

template <class S> struct part_of_way {
  static constexpr int inputs = 2;
  S weight;
  __device__ S operator()(S a, S b) const { return a + weight * (b - a); }
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

template <class T, class S>
cudaError_t lerp(const struct ek__cuda_place *at, const struct ek__elementwise_args *args) {
  return map<T, S>(at->stream, args->y, args->a, args->b, args->count,
                   part_of_way<S>{(S)args->value});
}

template <class S> struct combined {
  static constexpr int inputs = 2;
  enum ek__binary kind;
  __device__ S operator()(S a, S b) const {
    switch (kind) {
    case EK__ADD: return a + b;
    case EK__SUBTRACT: return a - b;
    case EK__MULTIPLY: return a * b;
    default: return a / b;
    }
  }
};

/* With an element of b for each row (sums) or each column (values). A pack is within one row. */
template <class T, class S, int N, bool Rows>
__global__ void __launch_bounds__(BLOCK)
    spread_kernel(T *y, const T *a, const void *b, int64_t count, int64_t columns, combined<S> f) {
  walk at(columns / N);
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N, at.next()) {
    pack<T, N> value = load<N>(a + i);
    pack<S, N> other;
    if constexpr (Rows) {
      const S one = static_cast<const S *>(b)[at.row];
      EK_UNROLL
      for (int j = 0; j < N; j++) other.at[j] = one;
    } else {
      other = widened<S>(load<N>(static_cast<const T *>(b) + at.column * N));
    }
    EK_UNROLL
    for (int j = 0; j < N; j++) value.at[j] = T(f(S(value.at[j]), other.at[j]));
    store<N>(y + i, value);
  }
}

template <class T, class S, bool Rows>
cudaError_t spread(const struct ek__cuda_place *at, const struct ek__binary_args *args) {
  const int64_t count = args->rows * args->columns;
  if (count <= 0) return cudaSuccess;
  const bool wide = args->columns % PACK<T> == 0 && aligned(args->y, args->a) &&
                    (Rows || aligned(args->b));
  return launch_flat(wide, PACK<T>, spread_kernel<T, S, PACK<T>, Rows>,
                     spread_kernel<T, S, 1, Rows>, count, at->stream, as<T>(args->y),
                     as<T>(args->a), args->b, count, args->columns, combined<S>{args->kind});
}

template <class T, class S>
cudaError_t binary(const struct ek__cuda_place *at, const struct ek__binary_args *args) {
  if (args->spread == EK__SPREAD_ROWS) return spread<T, S, true>(at, args);
  if (args->spread == EK__SPREAD_COLUMNS) return spread<T, S, false>(at, args);
  return map<T, S>(at->stream, args->y, args->a, args->b, args->rows * args->columns,
                   combined<S>{args->kind});
}

template <class S> struct function_of {
  static constexpr int inputs = 1;
  enum ek__unary kind;
  S offset;
  __device__ S operator()(S x, S) const {
    return kind == EK__EXP ? exp(x + offset) : S(1) / sqrt(x + offset);
  }
};

template <class T, class S>
cudaError_t unary(const struct ek__cuda_place *at, const struct ek__unary_args *args) {
  return map<T, S>(at->stream, args->y, args->x, NULL, args->count,
                   function_of<S>{args->kind, (S)args->offset});
}

} // namespace

EK_CUDA_LAUNCHER(fill, elementwise)
EK_CUDA_LAUNCHER(add, elementwise)
EK_CUDA_LAUNCHER(scale, elementwise)
EK_CUDA_LAUNCHER(lerp, elementwise)
EK_CUDA_LAUNCHER(binary, binary)
EK_CUDA_LAUNCHER(unary, unary)
