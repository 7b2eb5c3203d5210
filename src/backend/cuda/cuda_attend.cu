/*
 * cuda_attend.cu - causal attention forward, tiled, with an online softmax (Milakov and Gimelshein
 * 2018; Dao et al. 2022).
 *
 * A block has one tile of queries of one head and walks over the tiles of keys up to its own. Each
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

  /* On the diagonal: a key after its query counts for nothing. */
  __device__ __forceinline__ static void mask(part_of_scores<t> &score) {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        if (threadIdx.x + t::SIDE * j > threadIdx.y + t::SIDE * i) score[i][j] = -T(INFINITY);
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

template <class t, class T = typename t::T>
__global__ void __launch_bounds__(t::THREADS) forward_kernel(attended<T> a) {
  EK_DYNAMIC_SHARED(T, memory);
  T *const queries = memory, *const keys = queries + t::TILE, *const values = keys + t::TILE,
           *const scores = values + t::TILE;
  const int64_t heads = gridDim.x / a.tiles, head = blockIdx.x % heads;
  const int64_t query = (a.tiles - 1 - blockIdx.x / heads) * t::B; /* the longest rows first */
  const T *const q = a.qkv + a.in_q(head), *const k = a.qkv + a.in_k(head),
                 *const v = a.qkv + a.in_v(head);
  rows_so_far<t> rows;
  rows.clear();
  const auto fetch = [&](T *tile, const T *from, int64_t first) {
    if (first <= query) fetch_tile<t>(tile, from, a.stride(), first, a);
    copy_commit();
  };
  fetch_tile<t>(queries, q, a.stride(), query, a);
  fetch(keys, k, 0);
  fetch(values, v, 0);
  for (int64_t key = 0; key <= query; key += t::B) {
    part_of_scores<t> score;
    copy_wait<1>();
    __syncthreads();
    dot_rows<t>(score, queries, keys);
    if (key == query) rows.mask(score);
    rows.take(score, scores, a.scale);
    copy_wait<0>();
    __syncthreads();
    fetch(keys, k, key + t::B);
    rows.out.add_product(scores, values);
    __syncthreads();
    fetch(values, v, key + t::B);
  }
  EK_UNROLL
  for (int i = 0; i < t::M; i++) {
    const int64_t row = query + threadIdx.y + t::SIDE * i;
    rows.out.times(i, T(1) / rows.sum[i]);
    if (threadIdx.x == 0 && row < a.tokens) {
      a.lse[a.in_lse(head) + row] = rows.largest[i] + log(rows.sum[i]);
    }
  }
  rows.out.put(a.out + a.in_out(head), a.channels(), query, a);
}

template <class t> cudaError_t forward(cudaStream_t stream, const struct ek__attention_args *args) {
  const auto a = attended_of<typename t::T>(args, t::B);
  return launch_tiles<t>(stream, forward_kernel<t>, a.tiles * args->batch * args->heads,
                         3 * t::TILE + t::SCORES, a);
}

} // namespace

extern "C" cudaError_t ek__cuda_attention_forward(const struct ek__cuda_place *at,
                                                  const struct ek__attention_args *args) {
  if (args->batch * args->heads * args->tokens * args->head_width <= 0) return cudaSuccess;
  if (const struct tensor_cores *cores = cores_for(args)) {
    const cudaError_t status = cores->forward(at->stream, args);
    if (status != cudaErrorNotSupported) return status;
  }
  return with_tiling(args, [&](auto t) {
    return that_fits(t, [&](auto t) { return forward<decltype(t)>(at->stream, args); });
  });
}
