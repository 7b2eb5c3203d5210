/*
 * cuda_lookup.cu - rows of a table by index, and the sums of their gradients.
 *
 * Floor in f32: forward 8 bytes an element (12 with positions); backward 12 an element of dy, and
 * every block reads all indices, from L2: with 8192 of them and 1024 blocks that is 32 MiB.
 */
#include "backend/cuda/cuda_portable.cuh"

using namespace ek__cuda;

namespace {

/* ---- forward ---- */

template <class T> struct table {
  T *y;
  const T *entry, *positions;
  const int32_t *index;
  int64_t rows, width, entries, period, first;
  unsigned long long *bad;
};

__device__ __forceinline__ bool in_table(int32_t index, int64_t entries) {
  return index >= 0 && index < entries;
}

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) forward_kernel(table<T> a) {
  for (walk at(a.width / N); at.row < a.rows; at.next()) {
    const int32_t index = a.index[at.row];
    const int64_t column = at.column * N;
    pack<T, N> value = {};
    if (in_table(index, a.entries)) {
      value = load<N>(a.entry + index * a.width + column);
      if (a.positions) {
        const T *from = a.positions + at.row % a.period * a.width + column;
        const pack<T, N> position = load<N>(from);
        EK_UNROLL
        for (int j = 0; j < N; j++) value.at[j] = T(S(value.at[j]) + S(position.at[j]));
      }
    } else if (at.column == 0) {
      report_bad(a.bad, a.first + at.row, index);
    }
    store<N>(a.y + at.row * a.width + column, value);
  }
}

template <class T, class S>
cudaError_t lookup_forward(const struct ek__cuda_place *at, const struct ek__lookup_args *args) {
  if (args->rows <= 0 || args->width <= 0) return cudaSuccess;
  const table<T> a = {as<T>(args->y), as<T>(args->table), as<T>(args->positions), args->index,
                      args->rows,     args->width,        args->entries,          args->period,
                      args->first,    &at->bad->index};
  const bool wide = args->width % PACK<T> == 0 && aligned(a.y, a.entry, a.positions);
  return launch_flat(wide, PACK<T>, forward_kernel<T, S, PACK<T>>, forward_kernel<T, S, 1>,
                     args->rows * args->width, at->stream, a);
}

/* ---- backward: dtable[index[i]] += dy[i] in the order of i ---- */

constexpr int COLUMNS = 4;       /* of a thread: COLUMNS * BLOCK of a block */
constexpr int AHEAD = 4;         /* rows of dy that are read before the first is added */
constexpr int64_t STRIPS = 1024; /* parts of the table at most; entry e belongs to e % strips */

template <class T, class S> struct gradient {
  S *dtable;
  const T *dy;
  const int32_t *index;
  int64_t rows, width, entries, first;
  unsigned long long *bad;
};

/* Where this thread's match goes in the block's list: matches of lower threads come first. */
__device__ __forceinline__ int rank_in_block(bool match, int *warps, int *matches) {
  const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
  const unsigned votes = __ballot_sync(ALL_LANES, match);
  if (lane == 0) warps[warp] = __popc(votes);
  __syncthreads();
  int before = 0, all = 0;
  for (unsigned w = 0; w < BLOCK / WARP; w++) {
    if (w < warp) before += warps[w];
    all += warps[w];
  }
  *matches = all;
  return before + __popc(votes & ((1u << lane) - 1));
}

/* Adds AHEAD listed rows or fewer; a thread owns its columns, so their order is the list's. */
template <class T, class S>
__device__ __forceinline__ void add_rows(const gradient<T, S> &a, const int64_t *list, int count,
                                         int64_t first_column) {
  EK_UNROLL
  for (int c = 0; c < COLUMNS; c++) {
    const int64_t column = first_column + c * BLOCK;
    if (column >= a.width) break;
    S slope[AHEAD];
    EK_UNROLL
    for (int k = 0; k < AHEAD; k++) {
      if (k < count) slope[k] = S(a.dy[list[k] * a.width + column]);
    }
    int64_t open = a.index[list[0]]; /* the entry that `sum` is of */
    S sum = a.dtable[open * a.width + column];
    EK_UNROLL
    for (int k = 0; k < AHEAD; k++) {
      if (k >= count) break;
      const int64_t entry = a.index[list[k]];
      if (entry != open) {
        a.dtable[open * a.width + column] = sum;
        sum = a.dtable[entry * a.width + column];
        open = entry;
      }
      sum += slope[k];
    }
    a.dtable[open * a.width + column] = sum;
  }
}

/* Block (x, y): the entries e with e % gridDim.x == x, COLUMNS * BLOCK columns from y on. */
template <class T, class S>
__global__ void __launch_bounds__(BLOCK) backward_kernel(gradient<T, S> a) {
  __shared__ int64_t list[BLOCK];
  __shared__ int warps[BLOCK / WARP];
  const int64_t column = (int64_t)blockIdx.y * COLUMNS * BLOCK + threadIdx.x;
  for (int64_t first = 0; first < a.rows; first += BLOCK) {
    const int64_t row = first + threadIdx.x;
    const int32_t index = row < a.rows ? a.index[row] : 0;
    const bool good = row >= a.rows || in_table(index, a.entries);
    if (!good && blockIdx.x == 0 && blockIdx.y == 0) report_bad(a.bad, a.first + row, index);
    const bool match = good && row < a.rows && (unsigned)index % gridDim.x == blockIdx.x;
    int matches = 0;
    const int rank = rank_in_block(match, warps, &matches); /* its barrier frees the last list */
    if (match) list[rank] = row;
    __syncthreads();
    for (int k = 0; k < matches; k += AHEAD) {
      add_rows(a, list + k, matches - k < AHEAD ? matches - k : AHEAD, column);
    }
  }
}

template <class T, class S>
cudaError_t lookup_backward(const struct ek__cuda_place *at, const struct ek__lookup_args *args) {
  if (args->rows <= 0 || args->width <= 0) return cudaSuccess;
  const gradient<T, S> a = {as<S>(args->y), as<T>(args->table), args->index, args->rows,
                            args->width,    args->entries,      args->first, &at->bad->index};
  int64_t strips = args->entries < args->rows ? args->entries : args->rows;
  if (strips > STRIPS) strips = STRIPS;
  if (strips < 1) strips = 1;
  const int64_t parts = (args->width + COLUMNS * BLOCK - 1) / (COLUMNS * BLOCK);
  return launch(backward_kernel<T, S>, dim3((unsigned)strips, (unsigned)parts), BLOCK, at->stream,
                a);
}

/* ---- positions ---- */

template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK)
    positions_kernel(S *y, const T *dy, int64_t rows, int64_t width, int64_t period, S beta) {
  for (walk at(width / N); at.row < period; at.next()) {
    const int64_t place = at.row * width + at.column * N;
    pack<S, N> sum = {};
    EK_UNROLL_BY(4)
    for (int64_t row = at.row; row < rows; row += period) {
      const pack<T, N> slope = load<N>(dy + row * width + at.column * N);
      for (int j = 0; j < N; j++) sum.at[j] += S(slope.at[j]);
    }
    if (beta != S(0)) {
      const pack<S, N> before = load<N>(y + place);
      for (int j = 0; j < N; j++) sum.at[j] += beta * before.at[j];
    }
    store<N>(y + place, sum);
  }
}

template <class T, class S>
cudaError_t positions_backward(const struct ek__cuda_place *at,
                               const struct ek__lookup_args *args) {
  if (args->period <= 0 || args->width <= 0) return cudaSuccess;
  S *y = as<S>(args->y);
  const T *dy = as<T>(args->table);
  const bool wide = args->width % PACK<S> == 0 && packed<PACK<S>>(y, dy);
  return launch_flat(wide, PACK<S>, positions_kernel<T, S, PACK<S>>, positions_kernel<T, S, 1>,
                     args->period * args->width, at->stream, y, dy, args->rows, args->width,
                     args->period, (S)args->beta);
}

} // namespace

EK_CUDA_LAUNCHER(lookup_forward, lookup)
EK_CUDA_LAUNCHER(lookup_backward, lookup)
EK_CUDA_LAUNCHER(positions_backward, lookup)
