/*
 * cuda_rows.cu - sums of rows, and softmax.
 *
 * A team of threads has a row: a warp up to 1024 columns, else a block. Sums are added up over the
 * team in the order of a tree. Softmax reads its row three times, the later times from L1 or L2 for
 * rows of usual size. Floor in f32: 4 bytes an element for a sum (8 with a second factor), 8 for
 * softmax, 12 for its backward.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

constexpr int TEAMS = 8; /* rows of a block while a team is a warp */
constexpr int64_t MOST_OF_A_WARP = 1024;

/* Threads: x within the team, y which team of the block. */
template <class S> __device__ __forceinline__ S team_sum(S value, S *scratch) {
  return blockDim.x == WARP ? warp_sum(value) : block_sum(value, scratch);
}

/* The larger; a NaN may be passed over. */
template <class S> __device__ __forceinline__ S warp_largest(S value) {
  EK_UNROLL
  for (int distance = WARP / 2; distance > 0; distance /= 2) {
    const S other = __shfl_xor_sync(ALL_LANES, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

template <class S> __device__ __forceinline__ S team_largest(S value, S *scratch) {
  value = warp_largest(value);
  if (blockDim.x == WARP) return value;
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  __syncthreads(); /* scratch may still be read from the row before */
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_largest(scratch[lane < blockDim.x / WARP ? lane : 0]);
}

template <class T, class S> struct rows_of {
  void *y;
  const T *a, *b;
  int64_t rows, columns;
  bool mean;
};

/* f(row) for each row of the team's. All threads of a block get as far. */
template <class F> __device__ __forceinline__ void each_row(int64_t rows, F f) {
  const int64_t step = (int64_t)gridDim.x * blockDim.y;
  for (int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; r < rows; r += step) f(r);
}

/* f(column) for each column of the thread's. */
template <class F> __device__ __forceinline__ void each_column(int64_t columns, F f) {
  EK_UNROLL_BY(4)
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) f(c);
}

template <class T, class S>
__global__ void __launch_bounds__(BLOCK) sum_kernel(rows_of<T, S> of) {
  __shared__ S scratch[WARP];
  each_row(of.rows, [&](int64_t r) {
    const T *a = of.a + r * of.columns;
    S sum = S(0);
    if (of.b == NULL) {
      each_column(of.columns, [&](int64_t c) { sum += S(a[c]); });
    } else {
      const T *b = of.b + r * of.columns;
      each_column(of.columns, [&](int64_t c) { sum += S(a[c]) * S(b[c]); });
    }
    sum = team_sum(sum, scratch);
    if (threadIdx.x == 0) static_cast<S *>(of.y)[r] = of.mean ? sum / (S)of.columns : sum;
  });
}

template <class T, class S>
__global__ void __launch_bounds__(BLOCK) forward_kernel(rows_of<T, S> of) {
  __shared__ S scratch[WARP];
  each_row(of.rows, [&](int64_t r) {
    const T *x = of.a + r * of.columns;
    T *y = static_cast<T *>(of.y) + r * of.columns;
    S largest = -(S)INFINITY, sum = S(0);
    each_column(of.columns, [&](int64_t c) { largest = S(x[c]) > largest ? S(x[c]) : largest; });
    largest = team_largest(largest, scratch);
    each_column(of.columns, [&](int64_t c) { sum += exp(S(x[c]) - largest); });
    sum = team_sum(sum, scratch);
    each_column(of.columns, [&](int64_t c) { y[c] = T(exp(S(x[c]) - largest) / sum); });
  });
}

/* a is dy, b is y; the destination may be either: the thread that writes an element is the last to
 * read it. */
template <class T, class S>
__global__ void __launch_bounds__(BLOCK) backward_kernel(rows_of<T, S> of) {
  __shared__ S scratch[WARP];
  each_row(of.rows, [&](int64_t r) {
    const T *dy = of.a + r * of.columns, *y = of.b + r * of.columns;
    T *dx = static_cast<T *>(of.y) + r * of.columns;
    S sum = S(0);
    each_column(of.columns, [&](int64_t c) { sum += S(dy[c]) * S(y[c]); });
    sum = team_sum(sum, scratch);
    each_column(of.columns, [&](int64_t c) { dx[c] = T(S(y[c]) * (S(dy[c]) - sum)); });
  });
}

template <class T, class S>
cudaError_t over_rows(void (*kernel)(rows_of<T, S>), const struct ek__cuda_place *at,
                      const struct ek__row_args *args) {
  if (args->rows <= 0) return cudaSuccess;
  const bool warps = args->columns <= MOST_OF_A_WARP;
  const dim3 block = warps ? dim3(WARP, TEAMS) : dim3(BLOCK, 1);
  const rows_of<T, S> of = {args->y,    as<T>(args->a), as<T>(args->b),
                            args->rows, args->columns,  args->mean};
  return launch(kernel, blocks_for(args->rows, warps ? TEAMS : 1), block, at->stream, of);
}

template <class T, class S>
cudaError_t row_sum(const struct ek__cuda_place *at, const struct ek__row_args *args) {
  return over_rows<T, S>(sum_kernel<T, S>, at, args);
}

template <class T, class S>
cudaError_t softmax_forward(const struct ek__cuda_place *at, const struct ek__row_args *args) {
  return args->columns <= 0 ? cudaSuccess : over_rows<T, S>(forward_kernel<T, S>, at, args);
}

template <class T, class S>
cudaError_t softmax_backward(const struct ek__cuda_place *at, const struct ek__row_args *args) {
  return args->columns <= 0 ? cudaSuccess : over_rows<T, S>(backward_kernel<T, S>, at, args);
}

} // namespace

EK_CUDA_LAUNCHER(row_sum, row)
EK_CUDA_LAUNCHER(softmax_forward, row)
EK_CUDA_LAUNCHER(softmax_backward, row)
