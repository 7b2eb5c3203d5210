/*
 * cuda_channel_norm.cu - normalisation by channels (channel_norm.h).
 *
 * Sums: as in cuda_columns.cu a block takes the channels of a warp, one a lane or, in 16 bits, two,
 * of one piece of the rows; its eight warps share the piece and are added in shared memory, in
 * order. Sums are f64: of f32 that is two conversions, two additions and a product an element,
 * which GPUs for data centres do at the speed of memory, and others do not. y and dx: one pack of
 * a row for each thread.
 *
 * Floor: bytes. In f32 moments read 4 an element, slopes 8; forward moves 8, backward 12.
 */
#include "backend/cuda/cuda_portable.cuh"
#include "backend/formulas.h"

using namespace ek__cuda;

namespace {

constexpr int LINES = 8; /* warps of a block */

/* Channels of a lane. */
template <class T> constexpr int COLUMNS = sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1;

/* ---- sums ---- */

/* What N neighbours in a row add to the two sums of their channels. */
template <class T, class S, int N> struct moments {
  const T *x;
  __device__ moments(const struct ek__channel_args &a, int64_t, int64_t) : x(as<T>(a.x)) {}
  __device__ void add(double (&sum)[2][N], int64_t at) const {
    const pack<T, N> value = load<N>(x + at);
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      const double v = (double)S(value.at[j]);
      sum[0][j] += v;
      sum[1][j] += v * v;
    }
  }
  __device__ static double last(double sum, const struct ek__channel_args &, int64_t) {
    return sum;
  }
};

/* The second sum is that of dy (x - mean): rstd comes last. */
template <class T, class S, int N> struct slopes {
  const T *x, *dy;
  S mean[N];
  __device__ slopes(const struct ek__channel_args &a, int64_t piece, int64_t channel)
      : x(as<T>(a.x)), dy(as<T>(a.dy)) {
    const S *from = as<S>(a.mean) + (a.samples == 1 ? 0 : piece) * a.channels + channel;
    for (int j = 0; j < N; j++) mean[j] = channel < a.channels ? from[j] : S(0);
  }
  __device__ void add(double (&sum)[2][N], int64_t at) const {
    const pack<T, N> value = load<N>(x + at), slope = load<N>(dy + at);
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      const double g = (double)S(slope.at[j]);
      sum[0][j] += g;
      sum[1][j] += g * (double)(S(value.at[j]) - mean[j]);
    }
  }
  __device__ static double last(double sum, const struct ek__channel_args &a, int64_t at) {
    return sum * (double)as<S>(a.rstd)[at];
  }
};

/* Block (x, y): channels N 32 x .., pieces y, y + gridDim.y ... N divides the channels. */
template <int N, class F>
__global__ void __launch_bounds__(WARP *LINES) sums_kernel(struct ek__channel_args a) {
  __shared__ double lines[2][LINES][N][WARP];
  const int64_t channel = ((int64_t)blockIdx.x * WARP + threadIdx.x) * N;
  for (int64_t piece = blockIdx.y; piece < a.pieces; piece += gridDim.y) {
    const int64_t first = ek__channel_piece(&a, piece), last = ek__channel_piece(&a, piece + 1);
    const F f(a, piece, channel);
    double sum[2][N] = {};
    if (channel < a.channels) {
      EK_UNROLL_BY(4)
      for (int64_t row = first + threadIdx.y; row < last; row += LINES) {
        f.add(sum, row * a.channels + channel);
      }
    }
    for (int i = 0; i < 2; i++) {
      for (int j = 0; j < N; j++) lines[i][threadIdx.y][j][threadIdx.x] = sum[i][j];
    }
    __syncthreads();
    if (threadIdx.y < 2 * N && channel < a.channels) {
      const int which = (int)threadIdx.y / N, j = (int)threadIdx.y % N;
      double total = 0.0;
      for (int i = 0; i < LINES; i++) total += lines[which][i][j][threadIdx.x];
      const int64_t of = (a.samples == 1 ? 0 : piece) * a.channels + channel + j;
      a.sums[(2 * piece + which) * a.channels + channel + j] =
          which == 1 ? F::last(total, a, of) : total;
    }
    __syncthreads(); /* before the next piece writes lines */
  }
}

template <int N, class F>
cudaError_t sum_pieces(cudaStream_t stream, const struct ek__channel_args &a) {
  constexpr int64_t MOST_PIECES = 65535; /* of a grid's second dimension */
  if (a.channels <= 0 || a.pieces <= 0) return cudaSuccess;
  const int64_t blocks = (a.channels + N * (int64_t)WARP - 1) / (N * (int64_t)WARP);
  const int64_t pieces = a.pieces < MOST_PIECES ? a.pieces : MOST_PIECES;
  return launch(sums_kernel<N, F>, dim3((unsigned)blocks, (unsigned)pieces), dim3(WARP, LINES),
                stream, a);
}

template <class T, class S>
cudaError_t channel_moments(const struct ek__cuda_place *at, const struct ek__channel_args *args) {
  constexpr int N = COLUMNS<T>;
  if constexpr (N > 1) {
    if (args->channels % N == 0 && packed<N>(as<T>(args->x))) {
      return sum_pieces<N, moments<T, S, N>>(at->stream, *args);
    }
  }
  return sum_pieces<1, moments<T, S, 1>>(at->stream, *args);
}

template <class T, class S>
cudaError_t channel_slopes(const struct ek__cuda_place *at, const struct ek__channel_args *args) {
  constexpr int N = COLUMNS<T>;
  if constexpr (N > 1) {
    if (args->channels % N == 0 && packed<N>(as<T>(args->x), as<T>(args->dy))) {
      return sum_pieces<N, slopes<T, S, N>>(at->stream, *args);
    }
  }
  return sum_pieces<1, slopes<T, S, 1>>(at->stream, *args);
}

/* ---- from sums to statistics and averages: few numbers, in f64 ---- */

template <class S>
__global__ void __launch_bounds__(BLOCK) statistics_kernel(struct ek__channel_args a) {
  const int64_t width = a.channels / a.groups;
  for (int64_t i = thread_index(); i < a.samples * a.groups; i += thread_count()) {
    const int64_t sample = i / a.groups, first = i % a.groups * width;
    const struct ek__moments m = ek__group_moments(&a, sample, first, width);
    const S mean = (S)m.mean, rstd = (S)ek__moments_rstd(m, a.epsilon);
    for (int64_t c = sample * a.channels + first; c < sample * a.channels + first + width; c++) {
      as<S>(a.mean)[c] = mean;
      as<S>(a.rstd)[c] = rstd;
    }
  }
}

/* One block, because all threads read the number of batches before one writes it. */
template <class S>
__global__ void __launch_bounds__(BLOCK) running_kernel(struct ek__channel_args a) {
  S *mean = as<S>(a.running_mean), *variance = as<S>(a.running_variance), *to = as<S>(a.batches);
  const double n = ek__channel_rows(&a), batches = (double)*to + 1.0;
  const double factor = a.momentum == 0.0 ? 1.0 / batches : a.momentum;
  __syncthreads();
  if (n == 0.0) return;
  if (threadIdx.x == 0) *to = (S)batches;
  for (int64_t c = threadIdx.x; c < a.channels; c += BLOCK) {
    const struct ek__moments m = ek__moments_of(n, a.sums[c], a.sums[a.channels + c]);
    const double was[2] = {(double)mean[c], (double)variance[c]};
    mean[c] = (S)(was[0] + factor * (m.mean - was[0]));
    if (!(n <= 1.0)) variance[c] = (S)(was[1] + factor * (m.deviations / (n - 1.0) - was[1]));
  }
}

/* Of group number `i` of all samples. */
template <class T, class S>
__device__ void write_averages(const struct ek__channel_args &a, int64_t i) {
  const int64_t width = a.channels / a.groups, sample = i / a.groups;
  const int64_t first = i % a.groups * width, at = sample * a.channels;
  const double *sums = a.sums + 2 * at, n = ek__channel_rows(&a) * (double)width;
  const T *weight = as<T>(a.weight);
  double g = 0.0, gn = 0.0;
  for (int64_t c = first; c < first + width; c++) {
    const double w = weight ? (double)S(weight[c]) : 1.0;
    g += w * sums[c];
    gn += w * sums[a.channels + c];
  }
  g = n == 0.0 ? 0.0 : g / n;
  gn = n == 0.0 ? 0.0 : gn / n;
  for (int64_t c = first; c < first + width; c++) {
    if (a.average_g) as<S>(a.average_g)[at + c] = (S)g;
    if (a.average_gn) as<S>(a.average_gn)[at + c] = (S)gn;
  }
}

template <class S> __device__ void add_sum(S *y, double scale, double sum) {
  *y = (S)(sum + (scale == 0.0 ? 0.0 : scale * (double)*y));
}

template <class T, class S>
__global__ void __launch_bounds__(BLOCK) averages_kernel(struct ek__channel_args a) {
  const int64_t groups = a.samples * a.groups;
  for (int64_t i = thread_index(); i < groups + a.channels; i += thread_count()) {
    if (i < groups) {
      write_averages<T, S>(a, i);
      continue;
    }
    const int64_t c = i - groups;
    double g = 0.0, gn = 0.0;
    for (int64_t s = 0; s < a.samples; s++) {
      g += a.sums[2 * s * a.channels + c];
      gn += a.sums[(2 * s + 1) * a.channels + c];
    }
    if (a.dweight) add_sum(as<S>(a.dweight) + c, a.weight_scale, gn);
    if (a.dbias) add_sum(as<S>(a.dbias) + c, a.bias_scale, g);
  }
}

template <class T, class S>
cudaError_t channel_statistics(const struct ek__cuda_place *at,
                               const struct ek__channel_args *args) {
  if (args->channels <= 0 || args->samples <= 0) return cudaSuccess;
  return launch(statistics_kernel<S>, blocks_for(args->samples * args->groups), BLOCK, at->stream,
                *args);
}

template <class T, class S>
cudaError_t channel_running(const struct ek__cuda_place *at, const struct ek__channel_args *args) {
  if (args->channels <= 0) return cudaSuccess;
  return launch(running_kernel<S>, 1, BLOCK, at->stream, *args);
}

template <class T, class S>
cudaError_t channel_averages(const struct ek__cuda_place *at, const struct ek__channel_args *args) {
  if (args->channels <= 0) return cudaSuccess;
  return launch(averages_kernel<T, S>, blocks_for(args->samples * args->groups + args->channels),
                BLOCK, at->stream, *args);
}

/* ---- y and dx ---- */

/* A pack of a row in S; `otherwise` where there is no array. */
template <class S, int N, class T>
__device__ __forceinline__ pack<S, N> load_or(const T *p, int64_t at, S otherwise) {
  if (p) return widened<S>(load<N>(p + at));
  pack<S, N> result;
  EK_UNROLL
  for (int j = 0; j < N; j++) result.at[j] = otherwise;
  return result;
}

/* Rows of a.channels / N packs. */
template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) forward_kernel(struct ek__channel_args a) {
  const int64_t each = a.rows / a.samples;
  for (walk w(a.channels / N); w.row < a.rows; w.next()) {
    const int64_t c = w.column * N, at = w.row * a.channels + c;
    const int64_t of = (a.samples == 1 ? 0 : w.row / each) * a.channels + c;
    const pack<T, N> x = load<N>(as<T>(a.x) + at);
    const pack<S, N> mean = load<N>(as<S>(a.mean) + of), rstd = load<N>(as<S>(a.rstd) + of);
    const pack<S, N> weight = load_or<S, N>(as<T>(a.weight), c, S(1));
    const pack<S, N> bias = load_or<S, N>(as<T>(a.bias), c, S(0));
    pack<T, N> y;
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      y.at[j] = T((S(x.at[j]) - mean.at[j]) * (rstd.at[j] * weight.at[j]) + bias.at[j]);
    }
    store<N>(as<T>(a.y) + at, y);
  }
}

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) backward_kernel(struct ek__channel_args a) {
  const int64_t each = a.rows / a.samples;
  for (walk w(a.channels / N); w.row < a.rows; w.next()) {
    const int64_t c = w.column * N, at = w.row * a.channels + c;
    const int64_t of = (a.samples == 1 ? 0 : w.row / each) * a.channels + c;
    const pack<T, N> dy = load<N>(as<T>(a.dy) + at);
    pack<T, N> x = {};
    if (a.average_gn) x = load<N>(as<T>(a.x) + at);
    const pack<S, N> mean = load<N>(as<S>(a.mean) + of), rstd = load<N>(as<S>(a.rstd) + of);
    const pack<S, N> weight = load_or<S, N>(as<T>(a.weight), c, S(1));
    const pack<S, N> g = load_or<S, N>(as<S>(a.average_g), of, S(0));
    const pack<S, N> gn = load_or<S, N>(as<S>(a.average_gn), of, S(0));
    pack<T, N> dx;
    EK_UNROLL
    for (int j = 0; j < N; j++) {
      S slope = S(dy.at[j]) * weight.at[j] - g.at[j];
      if (a.average_gn) slope -= (S(x.at[j]) - mean.at[j]) * (rstd.at[j] * gn.at[j]);
      dx.at[j] = T(rstd.at[j] * slope);
    }
    store<N>(as<T>(a.y) + at, dx);
  }
}

template <class T, class S> bool is_wide(const struct ek__channel_args *a) {
  return a->channels % PACK<T> == 0 && aligned(a->y, a->x, a->dy, a->weight, a->bias, a->mean,
                                               a->rstd, a->average_g, a->average_gn);
}

template <class T, class S>
cudaError_t channel_norm_forward(const struct ek__cuda_place *at,
                                 const struct ek__channel_args *args) {
  if (args->rows <= 0 || args->channels <= 0) return cudaSuccess;
  return launch_flat(is_wide<T, S>(args), PACK<T>, forward_kernel<T, S, PACK<T>>,
                     forward_kernel<T, S, 1>, args->rows * args->channels, at->stream, *args);
}

template <class T, class S>
cudaError_t channel_norm_backward(const struct ek__cuda_place *at,
                                  const struct ek__channel_args *args) {
  if (args->rows <= 0 || args->channels <= 0) return cudaSuccess;
  return launch_flat(is_wide<T, S>(args), PACK<T>, backward_kernel<T, S, PACK<T>>,
                     backward_kernel<T, S, 1>, args->rows * args->channels, at->stream, *args);
}

} // namespace

EK_CUDA_LAUNCHER(channel_moments, channel)
EK_CUDA_LAUNCHER(channel_slopes, channel)
EK_CUDA_LAUNCHER(channel_statistics, channel)
EK_CUDA_LAUNCHER(channel_running, channel)
EK_CUDA_LAUNCHER(channel_averages, channel)
EK_CUDA_LAUNCHER(channel_norm_forward, channel)
EK_CUDA_LAUNCHER(channel_norm_backward, channel)
