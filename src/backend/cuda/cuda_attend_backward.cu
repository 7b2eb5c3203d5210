/*
 * cuda_attend_backward.cu - attention backward; scores are computed again from q, k and lse.
 *
 * Three kernels, one after the other on the stream:
 *   1. delta (cuda_attend.cuh), which is where dq will be;
 *   2. a block has a tile of keys and walks over the tiles of queries that see them: dk, dv;
 *   3. a block has a tile of queries and walks over the keys that they see: dq, over the deltas.
 * Each sum is one thread's, in the order of the tiles: nothing is added atomically.
 */
#include "backend/cuda/cuda_attend.cuh"

using namespace ek__cuda;

namespace {

/* Where the first query of a head has its numbers. The heads that share keys are of one sample:
 * a step leads from one to the next, which takes fewer registers than their numbers do. */
template <class T> struct head_of_queries {
  const T *q, *dout;
  const typename attended<T>::S *lse;

  __device__ head_of_queries(const attended<T> &a, int64_t head)
      : q(a.q + a.in_q(head)), dout(a.dout + a.in_out(head)), lse(a.lse + a.in_lse(head)) {}
  __device__ __forceinline__ void next(const attended<T> &a) {
    q += a.width;
    dout += a.width;
    lse += a.tokens;
  }
  __device__ __forceinline__ const T *deltas(const attended<T> &a) const {
    return a.dq + (q - a.q);
  }
};

/* Begins to copy lse and delta of B queries from `first` on; past the end 0. */
template <class t, class T = typename t::T>
__device__ void fetch_terms(T *lse, T *delta, const head_of_queries<T> &head, int64_t first,
                            const attended<T> &a) {
  for (int i = (int)thread_in_block(); i < t::B; i += t::THREADS) {
    const bool there = first + i < a.tokens;
    const int64_t row = there ? first + i : 0;
    copy_async<sizeof(T)>(lse + i, head.lse + row, there);
    copy_async<sizeof(T)>(delta + i, head.deltas(a) + row * a.q_step, there);
  }
}

/* p and ds of one pair of tokens from q.k and dout.v; both 0 unless the query sees the key. What
 * dropout keeps has the factor `kept`. */
template <class T>
__device__ __forceinline__ void pair(T *p, T *ds, T scale, T lse, T delta, bool seen, T kept) {
  const T probability = seen ? exp(*p * scale - lse) : T(0);
  *ds = seen ? probability * (*ds * kept - delta) * scale : T(0);
  *p = probability * kept;
}

template <class t, class T = typename t::T>
__device__ __forceinline__ void put_scores(T *shared, const part_of_scores<t> &score) {
  EK_UNROLL
  for (int i = 0; i < t::M; i++) {
    EK_UNROLL
    for (int j = 0; j < t::M; j++) {
      shared[(threadIdx.y + t::SIDE * i) * t::SCORE_STRIDE + threadIdx.x + t::SIDE * j] =
          score[i][j];
    }
  }
}

/* Shared memory of both kernels: four tiles, scores, and lse and delta of a tile. */
template <class t> struct places {
  using T = typename t::T;
  static constexpr int ELEMENTS = 4 * t::TILE + t::SCORES + 2 * t::B;
  T *tile[4], *scores, *lse, *delta;
  __device__ explicit places(T *memory) {
    for (int i = 0; i < 4; i++) tile[i] = memory + i * t::TILE;
    scores = memory + 4 * t::TILE;
    lse = scores + t::SCORES;
    delta = lse + t::B;
  }
};

/* Rows of scores are keys here, columns queries: those of all heads that share the keys, one head
 * after the other. One block on a multiprocessor will do: for two ptxas spills. */
template <class t, class A, class T = typename t::T>
__global__ void __launch_bounds__(t::THREADS, 1) keys_kernel(A a) {
  EK_DYNAMIC_SHARED(T, memory);
  const places<t> at(memory);
  T *const k = at.tile[0], *const v = at.tile[1], *const q = at.tile[2], *const dout = at.tile[3];
  const int64_t heads = gridDim.x / a.tiles, begin = a.first_of(blockIdx.x % heads);
  const int64_t key = blockIdx.x / heads * t::B; /* the first keys have most queries */
  const int64_t last = (key + t::B < a.tokens ? key + t::B : a.tokens) - 1;
  const span top = a.template seen<true>(begin, key), bottom = a.template seen<true>(begin, last);
  const int64_t first = top.low / t::B * t::B, end = bottom.high; /* of queries */
  head_of_queries<T> head(a, begin);
  share_of_tile<t> dk, dv;
  dk.clear();
  dv.clear();
  const auto fetch_dout = [&](int64_t query) {
    if (query < end) fetch_tile<t>(dout, head.dout, a.channels(), query, a);
    copy_commit();
  };
  const auto fetch_queries = [&](int64_t query) {
    if (query < end) {
      fetch_tile<t>(q, head.q, a.q_step, query, a);
      fetch_terms<t>(at.lse, at.delta, head, query, a);
    }
    copy_commit();
  };
  fetch_tile<t>(k, a.k + a.in_k(begin), a.k_step, key, a);
  fetch_tile<t>(v, a.v + a.in_v(begin), a.v_step, key, a);
  fetch_dout(first);
  fetch_queries(first);
  int left = first < end ? (int)a.group() : 0; /* heads, with the one that is walked over */
  for (int64_t query = first; left > 0;) {
    const int64_t number = begin + a.group() - left; /* of the head */
    const bool masked = query < bottom.low || query + t::B > top.high;
    part_of_scores<t> p, ds;
    copy_wait<1>();
    __syncthreads();
    dot_rows<t>(ds, v, dout);
    copy_wait<0>();
    __syncthreads();
    dot_rows<t>(p, k, q);
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      const int64_t row = key + threadIdx.y + t::SIDE * i;
      const span by = a.template seen<true>(begin, row);
      const int low = ahead(by.low - query), high = ahead(by.high - query);
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        const int column = (int)threadIdx.x + t::SIDE * j;
        const bool seen = !masked || (column >= low && column < high);
        const T kept = !a.drops() ? T(1) : a.kept(number, query + column, row);
        pair(&p[i][j], &ds[i][j], a.scale, at.lse[column], at.delta[column], seen, kept);
      }
    }
    put_scores<t>(at.scores, p);
    __syncthreads();
    dv.add_product(at.scores, dout);
    __syncthreads();
    query += t::B;
    if (query >= end && --left > 0) {
      query = first;
      head.next(a);
    }
    fetch_dout(query);
    put_scores<t>(at.scores, ds);
    __syncthreads();
    dk.add_product(at.scores, q);
    __syncthreads();
    fetch_queries(query);
  }
  dk.put(a.dk + a.in_k(begin), a.k_step, key, a);
  dv.put(a.dv + a.in_v(begin), a.v_step, key, a);
}

/* Rows of scores are queries, columns keys. */
template <class t, class A, class T = typename t::T>
__global__ void __launch_bounds__(t::THREADS) queries_kernel(A a) {
  EK_DYNAMIC_SHARED(T, memory);
  const places<t> at(memory);
  T *const q = at.tile[0], *const dout = at.tile[1], *const k = at.tile[2], *const v = at.tile[3];
  const int64_t heads = gridDim.x / a.tiles, head = blockIdx.x % heads;
  const int64_t query = (a.tiles - 1 - blockIdx.x / heads) * t::B;
  const T *const k_from = a.k + a.in_k(head), *const v_from = a.v + a.in_v(head);
  const int64_t last = (query + t::B < a.tokens ? query + t::B : a.tokens) - 1;
  const span top = a.template seen<false>(head, query);
  const span bottom = a.template seen<false>(head, last);
  const int64_t begin = top.low / t::B * t::B, end = bottom.high; /* of keys */
  const head_of_queries<T> own(a, head);
  share_of_tile<t> dq;
  dq.clear();
  const auto fetch = [&](T *tile, const T *first, int64_t step, int64_t key) {
    if (key < end) fetch_tile<t>(tile, first, step, key, a);
    copy_commit();
  };
  fetch_tile<t>(q, own.q, a.q_step, query, a);
  fetch_tile<t>(dout, own.dout, a.channels(), query, a);
  fetch_terms<t>(at.lse, at.delta, own, query, a);
  fetch(v, v_from, a.v_step, begin);
  fetch(k, k_from, a.k_step, begin);
  for (int64_t key = begin; key < end; key += t::B) {
    const bool masked = key < bottom.low || key + t::B > top.high;
    part_of_scores<t> p, ds;
    copy_wait<1>();
    __syncthreads();
    dot_rows<t>(ds, dout, v);
    copy_wait<0>();
    __syncthreads();
    fetch(v, v_from, a.v_step, key + t::B);
    dot_rows<t>(p, q, k);
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      const int row = (int)threadIdx.y + t::SIDE * i;
      span of = {0, a.tokens};
      if (masked) of = a.template seen<false>(head, query + row);
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        const int64_t column = key + threadIdx.x + t::SIDE * j;
        const bool seen = !masked || (column >= of.low && column < of.high);
        const T kept = !a.drops() ? T(1) : a.kept(head, query + row, column);
        pair(&p[i][j], &ds[i][j], a.scale, at.lse[row], at.delta[row], seen, kept);
      }
    }
    put_scores<t>(at.scores, ds);
    __syncthreads();
    dq.add_product(at.scores, k);
    __syncthreads();
    fetch(k, k_from, a.k_step, key + t::B);
  }
  dq.put(a.dq + a.in_q(head), a.q_step, query, a);
}

template <class t>
cudaError_t backward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  using T = typename t::T;
  const attended<T> a = attended_of<T>(args, t::B);
  constexpr int elements = places<t>::ELEMENTS;
  cudaError_t status = fits(at, elements * (int)sizeof(T)); /* before anything is queued */
  if (status != cudaSuccess) return status;
  status = launch_delta(at->stream, args, a);
  if (status != cudaSuccess) return status;
  return as_seen(a, [&](auto seen) {
    using A = decltype(seen);
    const int64_t tiles = a.tiles * args->batch;
    const cudaError_t first =
        launch_tiles<t>(at, keys_kernel<t, A>, tiles * args->kv_heads, elements, seen);
    if (first != cudaSuccess) return first;
    return launch_tiles<t>(at, queries_kernel<t, A>, tiles * args->heads, elements, seen);
  });
}

} // namespace

extern "C" cudaError_t ek__cuda_attention_backward(const struct ek__cuda_place *at,
                                                   const struct ek__attention_args *args) {
  if (args->batch * args->heads * args->tokens * args->head_width <= 0) return cudaSuccess;
  if (const struct tensor_cores *cores = cores_for(args)) {
    const cudaError_t status = cores->backward(at, args);
    if (status != cudaErrorNotSupported) return status;
  }
  return with_tiling(args, [&](auto t) {
    return that_fits(t, [&](auto t) { return backward<decltype(t)>(at, args); });
  });
}
