/*
 * cuda_attend.cu - attention forward, tiled, with an online softmax (Milakov and Gimelshein
 * 2018; Dao et al. 2022).
 *
 * A block has one tile of queries of one head and walks over the tiles of keys that it sees. Each
 * thread keeps the largest score and the sum of exponentials of its rows; the threads of a row hold
 * the same values.
 */
#include "backend/cuda/cuda_attend.cuh"

using namespace ek__cuda;

namespace {

/* Over the threads of a row, SIDE neighbours of a warp. */
template <int SIDE, class T> __device__ __forceinline__ T row_max(T value) {
  EK_UNROLL
  for (int distance = SIDE / 2; distance > 0; distance /= 2) {
    value = fmax(value, __shfl_xor_sync(ALL_LANES, value, distance));
  }
  return value;
}

template <int SIDE, class T> __device__ __forceinline__ T row_sum(T value) {
  EK_UNROLL
  for (int distance = SIDE / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(ALL_LANES, value, distance);
  }
  return value;
}

/* What is known of a thread's rows so far. */
template <class t> struct rows_so_far {
  using T = typename t::T;
  T largest[t::M], sum[t::M];
  share_of_tile<t> out;

  __device__ __forceinline__ void clear() {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      largest[i] = -T(INFINITY);
      sum[i] = T(0);
    }
    out.clear();
  }

  /* A key that its query does not see counts for nothing. */
  template <class A>
  __device__ __forceinline__ static void mask(part_of_scores<t> &score, const A &a, int64_t head,
                                               int64_t query, int64_t key) {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      const span seen = a.template seen<false>(head, query + threadIdx.y + t::SIDE * i);
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        const int64_t column = key + threadIdx.x + t::SIDE * j;
        if (column < seen.low || column >= seen.high) score[i][j] = -T(INFINITY);
      }
    }
  }

  /* Drops from this thread's exponentials in shared memory. */
  __device__ static void drop(T *shared, const attended<T> &a, int64_t head, int64_t query,
                              int64_t key) {
    for (int i = 0; i < t::M; i++) {
      for (int j = 0; j < t::M; j++) {
        const int row = (int)threadIdx.y + t::SIDE * i, column = (int)threadIdx.x + t::SIDE * j;
        shared[row * t::SCORE_STRIDE + column] *= a.kept(head, query + row, key + column);
      }
    }
  }

  /* Takes scores in; they become the rows' exponentials, in shared memory. */
  __device__ __forceinline__ void take(part_of_scores<t> &score, T *shared, T scale) {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      T most = largest[i], added = T(0);
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        score[i][j] *= scale;
        most = fmax(most, score[i][j]);
      }
      most = row_max<t::SIDE>(most);
      const T base = most == -T(INFINITY) ? T(0) : most; /* -inf less -inf is no number */
      const T kept = exp(largest[i] - base);             /* 0 in the first tile */
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        const T e = exp(score[i][j] - base);
        shared[(threadIdx.y + t::SIDE * i) * t::SCORE_STRIDE + threadIdx.x + t::SIDE * j] = e;
        added += e;
      }
      sum[i] = sum[i] * kept + row_sum<t::SIDE>(added);
      largest[i] = most;
      out.times(i, kept);
    }
  }
};

template <class t, class A, class T = typename t::T>
__global__ void __launch_bounds__(t::THREADS) forward_kernel(A a) {
  EK_DYNAMIC_SHARED(T, memory);
  T *const queries = memory, *const keys = queries + t::TILE, *const values = keys + t::TILE,
           *const scores = values + t::TILE;
  const int64_t heads = gridDim.x / a.tiles, head = blockIdx.x % heads;
  const int64_t query = (a.tiles - 1 - blockIdx.x / heads) * t::B; /* the longest rows first */
  const T *const q = a.q + a.in_q(head), *const k = a.k + a.in_k(head),
                 *const v = a.v + a.in_v(head);
  const int64_t last = (query + t::B < a.tokens ? query + t::B : a.tokens) - 1;
  const span top = a.template seen<false>(head, query);
  const span bottom = a.template seen<false>(head, last);
  const int64_t first = top.low / t::B * t::B, end = bottom.high;
  rows_so_far<t> rows;
  rows.clear();
  const auto fetch = [&](T *tile, const T *from, int64_t step, int64_t key) {
    if (key < end) fetch_tile<t>(tile, from, step, key, a);
    copy_commit();
  };
  fetch_tile<t>(queries, q, a.q_step, query, a);
  fetch(keys, k, a.k_step, first);
  fetch(values, v, a.v_step, first);
  for (int64_t key = first; key < end; key += t::B) {
    part_of_scores<t> score;
    copy_wait<1>();
    __syncthreads();
    dot_rows<t>(score, queries, keys);
    if (key < bottom.low || key + t::B > top.high) rows.mask(score, a, head, query, key);
    rows.take(score, scores, a.scale);
    if (a.drops()) rows.drop(scores, a, head, query, key);
    copy_wait<0>();
    __syncthreads();
    fetch(keys, k, a.k_step, key + t::B);
    rows.out.add_product(scores, values);
    __syncthreads();
    fetch(values, v, a.v_step, key + t::B);
  }
  EK_UNROLL
  for (int i = 0; i < t::M; i++) {
    const int64_t row = query + threadIdx.y + t::SIDE * i;
    const span seen = a.template seen<false>(head, row);
    const bool sees = seen.low < seen.high;
    rows.out.times(i, sees ? T(1) / rows.sum[i] : T(0));
    if (threadIdx.x == 0 && row < a.tokens) {
      a.lse[a.in_lse(head) + row] = sees ? rows.largest[i] + log(rows.sum[i]) : T(0);
    }
  }
  rows.out.put(a.out + a.in_out(head), a.channels(), query, a);
}

template <class t>
cudaError_t forward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  const auto a = attended_of<typename t::T>(args, t::B);
  return as_seen(a, [&](auto seen) {
    return launch_tiles<t>(at, forward_kernel<t, decltype(seen)>,
                           a.tiles * args->batch * args->heads, 3 * t::TILE + t::SCORES, seen);
  });
}

} // namespace

extern "C" cudaError_t ek__cuda_attention_forward(const struct ek__cuda_place *at,
                                                  const struct ek__attention_args *args) {
  if (args->batch * args->heads * args->tokens * args->head_width <= 0) return cudaSuccess;
  if (const struct tensor_cores *cores = cores_for(args)) {
    const cudaError_t status = cores->forward(at, args);
    if (status != cudaErrorNotSupported) return status;
  }
  return with_tiling(args, [&](auto t) {
    return that_fits(t, [&](auto t) { return forward<decltype(t)>(at, args); });
  });
}
