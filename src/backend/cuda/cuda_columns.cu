/*
 * cuda_columns.cu - sums over the rows of a matrix: column sums, and the gradients of layer
 * normalisation's gamma and beta.
 *
 * A block takes the columns of a warp, one a lane or, in 16 bits, two, of a chunk of rows, so that
 * a warp reads 128 bytes at once; its warps share the chunk and are added in shared memory.
 * Then the chunks' sums are added in order by a second kernel. Floor: each element once, 4 bytes in
 * f32 (8 for dgamma and dbeta, x and dy, where the norm's own kernel has not summed them).
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

constexpr int64_t MOST_CHUNKS = 64, LEAST_ROWS = 32;

/* Columns of a lane. */
template <class T> constexpr int COLUMNS = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;

/* What N neighbours in a row add to each of `sums` sums of their columns; the warps of a block, and
 * the rows that each of them reads before it adds the first. */
template <class T, class S> struct plain {
  static constexpr int sums = 1, lines = 8, ahead = 4;
  const T *x;
  int64_t pitch;
  template <int N> __device__ void add(S (&sum)[1][N], int64_t row, int64_t column) const {
    const pack<T, N> value = load<N>(x + row * pitch + column);
    EK_UNROLL
    for (int j = 0; j < N; j++) sum[0][j] += S(value.at[j]);
  }
};

template <class T, class S> struct norm_gradient {
  static constexpr int sums = 2, lines = 8, ahead = 4;
  const T *dy, *x;
  const S *mean, *rstd;
  int64_t columns;
  template <int N> __device__ void add(S (&sum)[2][N], int64_t row, int64_t column) const {
    const pack<T, N> slope = load<N>(dy + row * columns + column);
    const pack<T, N> value = load<N>(x + row * columns + column);
    const S centre = mean ? mean[row] : S(0);
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      sum[0][j] += S(slope.at[j]) * (S(value.at[j]) - centre) * rstd[row];
      sum[1][j] += S(slope.at[j]);
    }
  }
};

/* The same, of sums that kernels of the norm have made of parts of the rows. There are few blocks,
 * whose time is the latency of memory. */
template <class S> struct norm_gradient_parts {
  static constexpr int sums = 2, lines = 16, ahead = 12;
  const S *parts;
  int64_t columns;
  bool gamma, beta;
  template <int N> __device__ void add(S (&sum)[2][N], int64_t part, int64_t column) const {
    const S *const at = parts + part * 2 * columns + column;
    if (gamma) sum[0][0] += at[0];
    if (beta) sum[1][0] += at[columns];
  }
};

/* y = scale y + sum; y is not read where scale is 0. NULL: the sum is not wanted. */
template <class S> struct target {
  S *y0, *y1, scale0, scale1;
  __device__ void put(int which, int64_t column, S sum) const {
    S *to = which == 0 ? y0 : y1;
    const S scale = which == 0 ? scale0 : scale1;
    if (to) to[column] = scale == S(0) ? sum : scale * to[column] + sum;
  }
};

/* Block (x, y): columns N 32 x .., rows y * chunk .. N divides their number. With one chunk there
 * is nothing left to add. */
template <class S, int N, class F>
__global__ void __launch_bounds__(WARP *F::lines)
    column_kernel(target<S> target, S *partial, F f, int64_t rows, int64_t columns, int64_t chunk) {
  __shared__ S lines[F::sums][F::lines][N][WARP];
  const int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N;
  const int64_t first = blockIdx.y * chunk;
  const int64_t last = rows - first < chunk ? rows : first + chunk;
  S sum[F::sums][N] = {};
  if (column < columns) {
    EK_UNROLL_BY(F::ahead)
    for (int64_t row = first + threadIdx.y; row < last; row += F::lines) f.add(sum, row, column);
  }
  for (int i = 0; i < F::sums; i++) {
    for (int j = 0; j < N; j++) lines[i][threadIdx.y][j][threadIdx.x] = sum[i][j];
  }
  __syncthreads();
  if (threadIdx.y >= F::sums * N || column >= columns) return;
  const int which = (int)threadIdx.y / N, j = (int)threadIdx.y % N;
  S total = S(0);
  for (int i = 0; i < F::lines; i++) total += lines[which][i][j][threadIdx.x];
  if (gridDim.y == 1) {
    target.put(which, column + j, total);
  } else {
    partial[((int64_t)blockIdx.y * F::sums + which) * columns + column + j] = total;
  }
}

template <class S, int Sums>
__global__ void __launch_bounds__(BLOCK)
    finish_kernel(target<S> target, const S *partial, int64_t columns, int chunks) {
  for (int64_t i = thread_index(); i < Sums * columns; i += thread_count()) {
    S total = S(0);
    EK_UNROLL_BY(16) /* that many reads at a time */
    for (int k = 0; k < chunks; k++) total += partial[k * Sums * columns + i];
    target.put((int)(i / columns), i % columns, total);
  }
}

template <int N, class S, class F>
cudaError_t sum_columns(cudaStream_t stream, const target<S> &target, F f, int64_t rows,
                        int64_t columns, void *workspace) {
  if (columns <= 0) return cudaSuccess;
  const int64_t room = (int64_t)(EK__CUDA_WORKSPACE / sizeof(S)) / (F::sums * columns);
  const int64_t most = room < 1 ? 1 : room < MOST_CHUNKS ? room : MOST_CHUNKS;
  int64_t chunk = (rows + most - 1) / most;
  if (chunk < LEAST_ROWS) chunk = LEAST_ROWS;
  const int64_t chunks = rows > 0 ? (rows + chunk - 1) / chunk : 1;
  const int64_t blocks = (columns + N * (int64_t)WARP - 1) / (N * (int64_t)WARP);
  S *partial = as<S>(workspace);
  const cudaError_t status =
      launch(column_kernel<S, N, F>, dim3((unsigned)blocks, (unsigned)chunks), dim3(WARP, F::lines),
             stream, target, partial, f, rows, columns, chunk);
  if (status != cudaSuccess || chunks == 1) return status;
  return launch(finish_kernel<S, F::sums>, blocks_for(F::sums * columns), BLOCK, stream, target,
                partial, columns, (int)chunks);
}

/* COLUMNS<T> of a lane where every row has whole packs of them. */
template <class T, class S, class F>
cudaError_t sum_rows(const struct ek__cuda_place *at, const target<S> &target, F f, int64_t rows,
                     int64_t columns, bool whole) {
  if constexpr (COLUMNS < T >> 1) {
    if (whole && columns % COLUMNS<T> == 0) {
      return sum_columns<COLUMNS<T>>(at->stream, target, f, rows, columns, at->workspace);
    }
  }
  return sum_columns<1>(at->stream, target, f, rows, columns, at->workspace);
}

template <class T, class S>
cudaError_t column_sum(const struct ek__cuda_place *at, const struct ek__matrix_args *args) {
  const target<S> target = {as<S>(args->y), NULL, (S)args->value, S(0)};
  const plain<T, S> f = {as<T>(args->a), args->pitch};
  return sum_rows<T>(at, target, f, args->rows, args->columns,
                     args->pitch % COLUMNS<T> == 0 && packed<COLUMNS<T>>(f.x));
}

template <class S> target<S> gradients_of(const struct ek__layer_norm_args *args) {
  return {as<S>(args->dgamma), as<S>(args->dbeta), (S)args->gamma_scale, (S)args->beta_scale};
}

template <class T, class S>
cudaError_t layer_norm_columns(const struct ek__cuda_place *at,
                               const struct ek__layer_norm_args *args) {
  if (!args->dgamma && !args->dbeta) return cudaSuccess;
  const target<S> target = gradients_of<S>(args);
  const norm_gradient<T, S> f = {as<T>(args->dy), as<T>(args->x), as<S>(args->mean),
                                 as<S>(args->rstd), args->width};
  return sum_rows<T>(at, target, f, args->rows, args->width, packed<COLUMNS<T>>(f.dy, f.x));
}

template <class S>
cudaError_t layer_norm_parts(const struct ek__cuda_place *at,
                             const struct ek__layer_norm_args *args, int64_t parts) {
  const target<S> target = gradients_of<S>(args);
  const norm_gradient_parts<S> f = {as<S>(at->workspace), args->width, target.y0 != NULL,
                                    target.y1 != NULL};
  S *const none = NULL;
  return launch(column_kernel<S, 1, norm_gradient_parts<S>>,
                (unsigned)((args->width + WARP - 1) / WARP), dim3(WARP, f.lines), at->stream,
                target, none, f, parts, args->width, parts);
}

} // namespace

extern "C" cudaError_t ek__cuda_layer_norm_parts(const struct ek__cuda_place *at,
                                                 const struct ek__layer_norm_args *args,
                                                 int64_t parts) {
  return args->types.sum == EK_F64 ? layer_norm_parts<double>(at, args, parts)
                                   : layer_norm_parts<float>(at, args, parts);
}

EK_CUDA_LAUNCHER(column_sum, matrix)
EK_CUDA_LAUNCHER(layer_norm_columns, layer_norm)
