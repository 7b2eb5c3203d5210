/*
 * cuda_layer_norm.cu - layer normalisation of rows; with a mean of 0 where none is stored
 * (RMSNorm).
 *
 * A team of threads (one warp up to 1024 columns in f32 and in 16 bits, else a block) holds a row
 * in registers, so that memory is read once: the mean first, then the squares of the deviations,
 * from the registers. Columns that a team cannot hold are read again.
 *
 * Backward writes dx, and each thread adds what its rows give dgamma and dbeta to sums of its own
 * columns in shared memory, where they take no registers. At the end the teams of a block are added
 * in their order, each block's sums go to the workspace, and cuda_columns.cu adds those, again in
 * order. Where the workspace has no room for enough blocks, cuda_columns.cu sums the columns from x
 * and dy in a pass of their own.
 *
 * Floor in f32: forward 8 bytes an element, backward 12 for all three. With a residual forward is
 * 16, instead of 20 with a separate addition (12) before it, and backward 16 instead of 24.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

/* Packs of a row that a thread holds: up to 32 values. */
template <int N> constexpr int HELD = N > 4 ? 32 / N : 8;
constexpr int ROWS = 4; /* rows of a block while a team is a warp */
constexpr int MOST_THREADS = 512;

/* A team's place and its sums. Threads: x within the team, y which team of the block. */
template <class S> struct team {
  S *scratch;
  __device__ S sum(S value) const {
    return blockDim.x == WARP ? warp_sum(value) : block_sum(value, scratch);
  }
};

/* All packs of a row that are this thread's: those that are held, then, read again, the rest. */
template <class T, class S, int N> struct strip {
  pack<T, N> held[HELD<N>];
  const T *row;
  int64_t width;

  __device__ static int64_t place(int64_t k) { return (k * blockDim.x + threadIdx.x) * N; }
  __device__ strip(const T *from, int64_t columns) : row(from), width(columns) {
    EK_UNROLL
    for (int k = 0; k < HELD<N>; k++) {
      if (place(k) < width) held[k] = load<N>(row + place(k));
    }
  }
  /* The same of x + residual, which is written to `sum`: where this thread reads it again. */
  __device__ strip(const T *x, const T *residual, T *sum, int64_t columns)
      : row(sum), width(columns) {
    EK_UNROLL
    for (int k = 0; k < HELD<N>; k++) {
      if (place(k) < width) held[k] = add(x, residual, sum, place(k));
    }
    for (int64_t k = HELD<N>; place(k) < width; k++) (void)add(x, residual, sum, place(k));
  }
  __device__ static pack<T, N> add(const T *x, const T *residual, T *sum, int64_t column) {
    pack<T, N> value = load<N>(x + column);
    const pack<T, N> more = load<N>(residual + column);
    EK_UNROLL
    for (int j = 0; j < N; j++) value.at[j] = T(S(value.at[j]) + S(more.at[j]));
    store<N>(sum + column, value);
    return value;
  }
  /* f(pack, first column, k) for each pack, k its place in `held`, or -1. */
  template <bool AllHeld = false, class F> __device__ __forceinline__ void each(F f) const {
    EK_UNROLL
    for (int k = 0; k < HELD<N>; k++) {
      if (place(k) < width) f(held[k], place(k), k);
    }
    if constexpr (!AllHeld) {
      for (int64_t k = HELD<N>; place(k) < width; k++) f(load<N>(row + place(k)), place(k), -1);
    }
  }
  /* The pack of that column and k. */
  __device__ __forceinline__ pack<T, N> at(int64_t column, int k) const {
    return k >= 0 ? held[k] : load<N>(row + column);
  }
};

/* The same of a row that is read when it is needed. */
template <class T, int N> struct row_in_memory {
  const T *row;
  __device__ row_in_memory(const T *from, int64_t) : row(from) {}
  __device__ __forceinline__ pack<T, N> at(int64_t column, int) const {
    return load<N>(row + column);
  }
};

template <class T, class S> struct forward {
  T *y, *sum;
  S *mean, *rstd;
  const T *x, *residual, *gamma, *beta;
  S epsilon;
  int64_t rows, width;
};

template <class T, class S, int N, bool Add>
__device__ __forceinline__ strip<T, S, N> forward_row(const forward<T, S> &a, int64_t row) {
  const int64_t at = row * a.width;
  if constexpr (Add) return strip<T, S, N>(a.x + at, a.residual + at, a.sum + at, a.width);
  return strip<T, S, N>(a.x + at, a.width);
}

template <class T, class S, int N, bool Add>
__global__ void __launch_bounds__(MOST_THREADS) forward_kernel(forward<T, S> a) {
  __shared__ S scratch[WARP];
  const team<S> team = {scratch};
  const int64_t step = (int64_t)gridDim.x * blockDim.y;
  for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < a.rows; row += step) {
    const strip<T, S, N> x = forward_row<T, S, N, Add>(a, row);
    S mean = S(0), squares = S(0);
    if (a.mean) {
      x.each([&](const pack<T, N> &p, int64_t, int) {
        for (int j = 0; j < N; j++) mean += S(p.at[j]);
      });
      mean = team.sum(mean) / (S)a.width;
    }
    x.each([&](const pack<T, N> &p, int64_t, int) {
      for (int j = 0; j < N; j++) squares += (S(p.at[j]) - mean) * (S(p.at[j]) - mean);
    });
    const S rstd = S(1) / sqrt(team.sum(squares) / (S)a.width + a.epsilon);
    T *y = a.y + row * a.width;
    x.each([&](const pack<T, N> &p, int64_t column, int) {
      const pack<T, N> gamma = load<N>(a.gamma + column);
      pack<T, N> result, beta = {};
      if (a.beta) beta = load<N>(a.beta + column);
      for (int j = 0; j < N; j++) {
        result.at[j] = T((S(p.at[j]) - mean) * rstd * S(gamma.at[j]) + S(beta.at[j]));
      }
      store<N>(y + column, result);
    });
    if (threadIdx.x == 0) {
      if (a.mean) a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
  }
}

template <class T, class S> struct backward {
  T *dx;
  const T *residual, *dy, *x, *gamma;
  const S *mean, *rstd;
  int64_t rows, width;
  S *dgamma, *dbeta; /* of each block, 2 width from one to the next; NULL: not wanted */
};

/* g = dy gamma and n = (x - mean) rstd of the columns of one pack. */
template <class T, class S, int N>
__device__ __forceinline__ void slopes(pack<S, N> *g, pack<S, N> *n, const pack<T, N> &dy,
                                       const pack<T, N> &x, const T *gamma, S mean, S rstd) {
  const pack<T, N> factor = load<N>(gamma);
  EK_UNROLL
  for (int j = 0; j < N; j++) {
    g->at[j] = S(dy.at[j]) * S(factor.at[j]);
    n->at[j] = (S(x.at[j]) - mean) * rstd;
  }
}

/*
 * A thread's sums for dgamma and dbeta, over its rows, of all its columns. They are kept in units
 * of 16 bytes, and neighbouring threads have neighbouring units. For each team the shared memory of
 * a block has all of dgamma and then all of dbeta.
 */
template <class S, int N> struct column_sums {
  static constexpr int U = N * sizeof(S) > 16 ? 16 / (int)sizeof(S) : N, UNITS = N / U;
  S *shared;
  int units; /* of a thread, for each of dgamma and dbeta */

  __host__ __device__ static int units_of(int64_t width, int threads) {
    return (int)((width + N * threads - 1) / (N * threads)) * UNITS;
  }
  static size_t bytes(int64_t width, dim3 block) {
    const size_t units = (size_t)units_of(width, (int)block.x) * 2 * block.y;
    return units * block.x * U * sizeof(S);
  }
  __device__ S *place(int team, int unit) const {
    return shared + ((int64_t)(team * 2 * units + unit) * blockDim.x + threadIdx.x) * U;
  }
  __device__ static void add(S *to, const S *more) {
    pack<S, U> sum = *reinterpret_cast<pack<S, U> *>(to);
    EK_UNROLL
    for (int j = 0; j < U; j++) sum.at[j] += more[j];
    *reinterpret_cast<pack<S, U> *>(to) = sum;
  }
  __device__ void clear() const {
    for (int i = 0; i < 2 * units; i++) {
      *reinterpret_cast<pack<S, U> *>(place((int)threadIdx.y, i)) = {};
    }
  }
  /* Of the thread's k-th pack. */
  __device__ __forceinline__ void add(int k, const pack<S, N> &gamma,
                                      const pack<S, N> &beta) const {
    EK_UNROLL
    for (int i = k * UNITS; i < (k + 1) * UNITS; i++) {
      add(place((int)threadIdx.y, i), gamma.at + (i - k * UNITS) * U);
      add(place((int)threadIdx.y, units + i), beta.at + (i - k * UNITS) * U);
    }
  }
  /* All teams' to where the block's sums belong. */
  __device__ void put(S *dgamma, S *dbeta, int64_t width) const {
    __syncthreads();
    for (int i = (int)threadIdx.y; i < 2 * units; i += (int)blockDim.y) {
      S *const to = i < units ? dgamma : dbeta;
      const int unit = i % units;
      const int64_t column =
          ((int64_t)(unit / UNITS) * blockDim.x + threadIdx.x) * N + unit % UNITS * U;
      if (!to || column >= width) continue;
      pack<S, U> sum = *reinterpret_cast<const pack<S, U> *>(place(0, i));
      for (int team = 1; team < (int)blockDim.y; team++) {
        const S *const more = place(team, i);
        for (int j = 0; j < U; j++) sum.at[j] += more[j];
      }
      store<U>(to + blockIdx.x * 2 * width + column, sum);
    }
  }
};

/* dx may be dy, or residual: a pack is read for the last time by the thread that writes it. The
 * residual is read with dy, before the sums that dx waits for, where it takes half the
 * registers. */
template <class T, class S, int N, bool Add, bool Sums>
__global__ void __launch_bounds__(MOST_THREADS) backward_kernel(backward<T, S> a) {
  __shared__ S scratch[WARP];
  EK_DYNAMIC_SHARED(S, shared);
  const team<S> team = {scratch};
  const column_sums<S, N> sums = {shared, column_sums<S, N>::units_of(a.width, (int)blockDim.x)};
  if (Sums) sums.clear();
  const int64_t step = (int64_t)gridDim.x * blockDim.y;
  for (int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; row < a.rows; row += step) {
    const S mean = a.mean ? a.mean[row] : S(0), rstd = a.rstd[row];
    const T *x = a.x + row * a.width;
    const strip<T, S, N> dy(a.dy + row * a.width, a.width);
    using added = std::conditional_t<sizeof(T) == 2, strip<T, S, N>, row_in_memory<T, N>>;
    const added residual(Add ? a.residual + row * a.width : NULL, Add ? a.width : 0);
    S sum_g = S(0), sum_gn = S(0);
    dy.template each<Sums>([&](const pack<T, N> &p, int64_t column, int) {
      pack<S, N> g, n;
      slopes(&g, &n, p, load<N>(x + column), a.gamma + column, mean, rstd);
      for (int j = 0; j < N; j++) {
        sum_g += g.at[j];
        sum_gn += g.at[j] * n.at[j];
      }
    });
    const S average_g = a.mean ? team.sum(sum_g) / (S)a.width : S(0);
    const S average_gn = team.sum(sum_gn) / (S)a.width;
    T *dx = Sums && !a.dx ? NULL : a.dx + row * a.width;
    /* x again: from L1 or L2 */
    dy.template each<Sums>([&](const pack<T, N> &p, int64_t column, int k) {
      pack<S, N> g, n;
      pack<T, N> result = {};
      if constexpr (Add) result = residual.at(column, k);
      slopes(&g, &n, p, load<N>(x + column), a.gamma + column, mean, rstd);
      for (int j = 0; j < N; j++) {
        result.at[j] = T(S(result.at[j]) + rstd * (g.at[j] - average_g - n.at[j] * average_gn));
      }
      if (!Sums || dx) store<N>(dx + column, result);
      if (!Sums) return;
      const pack<S, N> slope = widened<S>(p);
      for (int j = 0; j < N; j++) n.at[j] *= slope.at[j];
      sums.add(k, n, slope);
    });
  }
  if (Sums) sums.put(a.dgamma, a.dbeta, a.width);
}

/* Threads of a team, of which each holds `held` values, teams of a block, and the blocks for so
 * many rows. */
struct shape {
  dim3 block;
  unsigned blocks;
  shape(int64_t rows, int64_t width, int held) {
    const int64_t needed = (width + held - 1) / held;
    int64_t threads = (needed + WARP - 1) / WARP * WARP;
    if (threads < (int64_t)WARP) threads = WARP;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    const int64_t teams = threads == (int64_t)WARP ? ROWS : 1;
    block = dim3((unsigned)threads, (unsigned)teams);
    const int64_t wanted = (rows + teams - 1) / teams;
    blocks = (unsigned)(wanted < 0x7FFFFFFF ? wanted : 0x7FFFFFFF);
  }
};

template <class T, class S>
cudaError_t layer_norm_forward(const struct ek__cuda_place *at,
                               const struct ek__layer_norm_args *args) {
  if (args->rows <= 0) return cudaSuccess;
  const forward<T, S> a = {as<T>(args->y),     as<T>(args->sum),  as<S>(args->mean),
                           as<S>(args->rstd),  as<T>(args->x),    as<T>(args->residual),
                           as<T>(args->gamma), as<T>(args->beta), (S)args->epsilon,
                           args->rows,         args->width};
  const bool wide =
      args->width % PACK<T> == 0 && aligned(a.y, a.sum, a.x, a.residual, a.gamma, a.beta);
  const shape shape(args->rows, args->width, wide ? PACK<T> * HELD<PACK<T>> : HELD<1>);
  const auto plain = wide ? forward_kernel<T, S, PACK<T>, false> : forward_kernel<T, S, 1, false>;
  const auto add = wide ? forward_kernel<T, S, PACK<T>, true> : forward_kernel<T, S, 1, true>;
  return launch(a.residual ? add : plain, shape.blocks, shape.block, at->stream, a);
}

/*
 * Blocks of a backward that sums columns: a team takes 6 rows or more, and no more blocks run than
 * give each of 132 multiprocessors 12 warps. 0: a thread does not hold all its columns, or the
 * workspace or shared memory has no room.
 */
template <class S, int N> int64_t summing_blocks(const shape &shape, int64_t rows, int64_t width) {
  constexpr int64_t EACH = 6, WARPS = 12 * 132, LEAST = 128, SHARED = 40 << 10;
  const int64_t threads = shape.block.x * shape.block.y, each = EACH * shape.block.y;
  const int64_t room = (int64_t)(EK__CUDA_WORKSPACE / sizeof(S)) / (2 * width);
  if (N * HELD<N> * (int64_t)shape.block.x < width || room < LEAST) return 0;
  if (column_sums<S, N>::bytes(width, shape.block) > (size_t)SHARED) return 0;
  const int64_t wanted = (rows + each - 1) / each, most = WARPS * WARP / threads;
  return wanted < most ? wanted < room ? wanted : room : most < room ? most : room;
}

/* With dgamma, dbeta or both; the bits of these are the same without dx. */
template <class T, class S, int N>
cudaError_t backward_with_sums(const struct ek__cuda_place *at,
                               const struct ek__layer_norm_args *args, backward<T, S> a, dim3 block,
                               int64_t blocks) {
  const size_t shared = column_sums<S, N>::bytes(a.width, block);
  a.dgamma = args->dgamma ? as<S>(at->workspace) : NULL;
  a.dbeta = args->dbeta ? as<S>(at->workspace) + a.width : NULL;
  if (a.residual) {
    EK_LAUNCH((backward_kernel<T, S, N, true, true>), (unsigned)blocks, block, shared, at->stream,
              a);
  } else {
    EK_LAUNCH((backward_kernel<T, S, N, false, true>), (unsigned)blocks, block, shared, at->stream,
              a);
  }
  const cudaError_t status = cudaGetLastError();
  return status != cudaSuccess ? status : ek__cuda_layer_norm_parts(at, args, blocks);
}

template <class T, class S, int N>
cudaError_t backward_of(const struct ek__cuda_place *at, const struct ek__layer_norm_args *args,
                        const backward<T, S> &a) {
  const shape shape(a.rows, a.width, N * HELD<N>);
  if (args->dgamma || args->dbeta) {
    const int64_t blocks = summing_blocks<S, N>(shape, a.rows, a.width);
    if (blocks > 0) return backward_with_sums<T, S, N>(at, args, a, shape.block, blocks);
    const cudaError_t status = ek__cuda_layer_norm_columns(at, args); /* dx may be dy */
    if (status != cudaSuccess) return status;
  }
  if (!a.dx) return cudaSuccess;
  return launch(a.residual ? backward_kernel<T, S, N, true, false>
                           : backward_kernel<T, S, N, false, false>,
                shape.blocks, shape.block, at->stream, a);
}

template <class T, class S>
cudaError_t layer_norm_backward(const struct ek__cuda_place *at,
                                const struct ek__layer_norm_args *args) {
  if (args->rows <= 0 || args->width <= 0) return ek__cuda_layer_norm_columns(at, args);
  const backward<T, S> a = {as<T>(args->dx),
                            as<T>(args->residual),
                            as<T>(args->dy),
                            as<T>(args->x),
                            as<T>(args->gamma),
                            as<S>(args->mean),
                            as<S>(args->rstd),
                            args->rows,
                            args->width,
                            NULL,
                            NULL};
  const bool wide = args->width % PACK<T> == 0 && aligned(a.dx, a.residual, a.dy, a.x, a.gamma);
  return wide ? backward_of<T, S, PACK<T>>(at, args, a) : backward_of<T, S, 1>(at, args, a);
}

} // namespace

EK_CUDA_LAUNCHER(layer_norm_forward, layer_norm)
EK_CUDA_LAUNCHER(layer_norm_backward, layer_norm)
