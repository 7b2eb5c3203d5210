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

constexpr int AHEAD = 16;        /* rows of dy that are read before the first is added */
constexpr int EACH = 8;          /* indices that a thread reads at a time */
constexpr int64_t STRIPS = 1024; /* parts of the table at most; entry e belongs to e % strips */

template <class T, class S> struct gradient {
  S *dtable;
  const T *dy;
  const int32_t *index;
  int64_t rows, width, entries, first;
  unsigned long long *bad;
};

/* The rows of one walk over EACH * BLOCK indices that are the block's, in their order. */
struct matches {
  uint16_t row[EACH * BLOCK];
  int warps[EACH][BLOCK / WARP];

  /* Thread t has found whether rows t, BLOCK + t and so on match; gives how many do. */
  __device__ __forceinline__ int list(const bool (&match)[EACH]) {
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned votes[EACH];
    EK_UNROLL
    for (int e = 0; e < EACH; e++) {
      votes[e] = __ballot_sync(ALL_LANES, match[e]);
      if (lane == 0) warps[e][warp] = __popc(votes[e]);
    }
    __syncthreads(); /* the rows of the last walk have been read as well */
    int all = 0;
    EK_UNROLL
    for (int e = 0; e < EACH; e++) {
      int before = all + __popc(votes[e] & ((1u << lane) - 1));
      for (unsigned w = 0; w < BLOCK / WARP; w++) {
        if (w < warp) before += warps[e][w];
        all += warps[e][w];
      }
      if (match[e]) row[before] = (uint16_t)(e * BLOCK + (int)threadIdx.x);
    }
    __syncthreads();
    return all;
  }
};

/* A thread's N columns of the entry that it adds to: in registers until another entry follows. A
 * frequent token has a thousand rows in a batch, and they are one block's. */
template <class T, class S, int N> struct open_entry {
  const gradient<T, S> &a;
  int64_t column, entry;
  pack<S, N> sum;

  __device__ S *place() const { return a.dtable + entry * a.width + column; }
  __device__ void close() {
    if (entry >= 0) store<N>(place(), sum);
  }
  /* Rows first + list[0] up to list[count - 1], AHEAD or fewer. */
  __device__ __forceinline__ void add(int64_t first, const uint16_t *list, int count) {
    pack<T, N> slope[AHEAD];
    int32_t of[AHEAD];
    EK_UNROLL
    for (int k = 0; k < AHEAD; k++) {
      const int64_t row = first + list[k < count ? k : 0];
      of[k] = a.index[row];
      slope[k] = load<N>(a.dy + row * a.width + column);
    }
    EK_UNROLL
    for (int k = 0; k < AHEAD; k++) {
      if (k >= count) break;
      if (of[k] != entry) {
        close();
        entry = of[k];
        sum = load<N>(place());
      }
      EK_UNROLL
      for (int j = 0; j < N; j++) sum.at[j] += S(slope[k].at[j]);
    }
  }
};

/* Block (x, y): the entries e with e % gridDim.x == x, N * BLOCK columns from y on. */
template <class T, class S, int N>
__global__ void __launch_bounds__(BLOCK) backward_kernel(gradient<T, S> a) {
  __shared__ matches found;
  open_entry<T, S, N> open = {a, ((int64_t)blockIdx.y * BLOCK + threadIdx.x) * N, -1, {}};
  for (int64_t first = 0; first < a.rows; first += EACH * BLOCK) {
    int32_t index[EACH];
    bool match[EACH];
    EK_UNROLL
    for (int e = 0; e < EACH; e++) {
      const int64_t row = first + e * BLOCK + threadIdx.x;
      index[e] = row < a.rows ? a.index[row] : -1;
    }
    EK_UNROLL
    for (int e = 0; e < EACH; e++) {
      const int64_t row = first + e * BLOCK + threadIdx.x;
      const bool good = in_table(index[e], a.entries);
      if (!good && row < a.rows && blockIdx.x == 0 && blockIdx.y == 0) {
        report_bad(a.bad, a.first + row, index[e]);
      }
      match[e] = good && (unsigned)index[e] % gridDim.x == blockIdx.x;
    }
    const int count = found.list(match);
    for (int k = 0; k < count && open.column < a.width; k += AHEAD) {
      open.add(first, found.row + k, count - k < AHEAD ? count - k : AHEAD);
    }
  }
  open.close();
}

template <class T, class S>
cudaError_t lookup_backward(const struct ek__cuda_place *at, const struct ek__lookup_args *args) {
  if (args->rows <= 0 || args->width <= 0) return cudaSuccess;
  const gradient<T, S> a = {as<S>(args->y), as<T>(args->table), args->index, args->rows,
                            args->width,    args->entries,      args->first, &at->bad->index};
  int64_t strips = args->entries < args->rows ? args->entries : args->rows;
  if (strips > STRIPS) strips = STRIPS;
  if (strips < 1) strips = 1;
  const bool wide = a.width % PACK<S> == 0 && packed<PACK<S>>(a.dtable, a.dy);
  const int64_t each = (int64_t)BLOCK * (wide ? PACK<S> : 1);
  const dim3 grid((unsigned)strips, (unsigned)((a.width + each - 1) / each));
  return launch(wide ? backward_kernel<T, S, PACK<S>> : backward_kernel<T, S, 1>, grid, BLOCK,
                at->stream, a);
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
