/*
 * cuda_attend_kernels.cuh - attention on tensor cores, over the tiles of
 * cuda_attend_warp.cuh: sums, exponentials and statistics are f32, and the operands of products are
 * of their precision.
 *
 * The forward is that of cuda_attend.cu, and the backward that of cuda_attend_backward.cu: one
 * kernel over the keys for dk and dv, one over the queries for dq, each sum in the order of the
 * tiles. Each product of an iteration except one hides a copy: a tile that it does not read is
 * being copied. A warp skips a tile of which its rows see nothing.
 *
 * For a head of 256 the sums of 16 rows take 128 registers of a lane, and those of both dk and dv
 * 256, one more than a lane has: then the kernel over the keys runs twice, once for each, with 5
 * products of tiles instead of 4.
 */
#ifndef EK_CUDA_ATTEND_KERNELS_CUH
#define EK_CUDA_ATTEND_KERNELS_CUH

#include "backend/cuda/cuda_attend_warp.cuh"

namespace ek__cuda {

constexpr float LOG2_E = 1.44269504088896f, LN_2 = 0.693147180559945f;

/* ---- forward ---- */

/* Over the four lanes that share a row. */
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
  return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(ALL_LANES, x, 1);
  return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* Calls f(row, column, element of `score`) for each of a lane's scores; row and column count from
 * those of its first. */
template <class s, class F> __device__ __forceinline__ void each_score(F f) {
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int n = 0; n < s::COLUMNS / 8; n++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) f(16 * i + e / 2 * 8, 8 * n + e % 2, i, n, e);
    }
  }
}

/* What a warp's rows see: the tiles of columns between the first of its first row and the last of
 * its last one, without a mask those that all rows see whole. */
template <class s> struct warp_view {
  span top, bottom;

  template <bool Keys, class A>
  __device__ __forceinline__ static warp_view of(const A &a, int64_t head, int64_t low) {
    const int64_t high = low + 16 * s::STRIPS - 1;
    return {a.template seen<Keys>(head, low),
            a.template seen<Keys>(head, high < a.tokens ? high : a.tokens - 1)};
  }
  __device__ __forceinline__ bool sees(int64_t column) const {
    return column < bottom.high && column + s::COLUMNS > top.low;
  }
  __device__ __forceinline__ bool masks(int64_t column) const {
    return column < bottom.low || column + s::COLUMNS > top.high;
  }
};

/* Calls f(i, n, e) for a lane's scores that are not seen; row and column are those of its first. */
template <class s, bool Keys, class A, class F>
__device__ __forceinline__ void each_hidden(const A &a, int64_t head, int64_t row, int64_t column,
                                            F f) {
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int h = 0; h < 2; h++) {
      const span seen = a.template seen<Keys>(head, row + 16 * i + 8 * h);
      const int low = ahead(seen.low - column), high = ahead(seen.high - column);
      EK_UNROLL
      for (int n = 0; n < s::COLUMNS / 8; n++) {
        EK_UNROLL
        for (int e = 0; e < 2; e++) {
          const bool early = A::template BEGINS<Keys> && 8 * n + e < low;
          if (early || 8 * n + e >= high) f(i, n, 2 * h + e);
        }
      }
    }
  }
}

/* What dropout keeps of a lane's scores, a bit each, in the order of each_score(). */
template <class s, bool Keys, class T>
__device__ __forceinline__ uint64_t kept_of(const attended<T> &a, int64_t head, int64_t row,
                                            int64_t column) {
  static_assert(s::STRIPS * s::COLUMNS / 2 <= 64, "a bit each");
  uint64_t kept = 0;
  for (int i = 0; i < s::STRIPS * s::COLUMNS / 2; i++) {
    const int strip = i / (s::COLUMNS / 2), n = i / 4 % (s::COLUMNS / 8), e = i % 4;
    const int64_t r = row + 16 * strip + e / 2 * 8, c = column + 8 * n + e % 2;
    if ((Keys ? a.kept(head, c, r) : a.kept(head, r, c)) != 0) kept |= (uint64_t)1 << i;
  }
  return kept;
}

template <class s>
__device__ __forceinline__ void drop(scores_of<s> &score, uint64_t kept, float factor) {
  each_score<s>([&](int, int, int i, int n, int e) {
    score[i][n][e] *= kept >> (i * (s::COLUMNS / 2) + 4 * n + e) & 1 ? factor : 0.0f;
  });
}

/* What is known of a warp's rows so far; powers of two. */
template <class s> struct warp_rows {
  float largest[s::STRIPS][2], sum[s::STRIPS][2];
  sums_of<s> out;

  __device__ __forceinline__ void begin() {
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) {
      largest[i][0] = largest[i][1] = -INFINITY;
      sum[i][0] = sum[i][1] = 0;
    }
    clear<s>(out);
  }

  __device__ __forceinline__ void times(int i, int h, float factor) {
    EK_UNROLL
    for (int n = 0; n < s::WIDTH / 8; n++) {
      out[i][n][2 * h] *= factor;
      out[i][n][2 * h + 1] *= factor;
    }
  }

  /* Scores, which are multiplied with `scale`, become the rows' exponentials. */
  __device__ __forceinline__ void take(scores_of<s> &score, float scale) {
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) {
      EK_UNROLL
      for (int h = 0; h < 2; h++) {
        float most = -INFINITY, added = 0;
        EK_UNROLL
        for (int n = 0; n < s::COLUMNS / 8; n++) {
          EK_UNROLL
          for (int e = 0; e < 2; e++) most = fmaxf(most, score[i][n][2 * h + e]);
        }
        most = fmaxf(largest[i][h], row_max(most) * scale);
        const float base = most == -INFINITY ? 0.0f : most;  /* -inf less -inf is no number */
        const float kept = power_of_2(largest[i][h] - base); /* 0 in the first tile */
        EK_UNROLL
        for (int n = 0; n < s::COLUMNS / 8; n++) {
          EK_UNROLL
          for (int e = 0; e < 2; e++) {
            float &x = score[i][n][2 * h + e];
            x = power_of_2(fmaf(x, scale, -base));
            added += x;
          }
        }
        sum[i][h] = sum[i][h] * kept + row_sum(added);
        largest[i][h] = most;
        times(i, h, kept);
      }
    }
  }

  /* Divides, and writes lse of the rows from `query` on, the lane's first. */
  template <class A>
  __device__ __forceinline__ void finish(const A &a, int64_t head, int64_t query, bool writes) {
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) {
      EK_UNROLL
      for (int h = 0; h < 2; h++) {
        const int64_t row = query + 16 * i + 8 * h;
        const span seen = a.template seen<false>(head, row);
        const bool sees = seen.low < seen.high;
        times(i, h, sees ? 1.0f / sum[i][h] : 0.0f);
        if (!writes || row >= a.tokens) continue;
        a.lse[a.in_lse(head) + row] = sees ? largest[i][h] * LN_2 + logf(sum[i][h]) : 0.0f;
      }
    }
  }
};

template <class s, class A, class T = typename s::T>
__global__ void __launch_bounds__(s::THREADS) warp_forward_kernel(A a) {
  EK_DYNAMIC_SHARED(unsigned, memory);
  unsigned *const queries = memory, *const keys = queries + s::ROW_TILE,
                  *const values = keys + s::COLUMN_TILE;
  const place_in_warp at(16 * s::STRIPS);
  const int64_t heads = gridDim.x / a.tiles, head = blockIdx.x % heads;
  const int64_t first = (a.tiles - 1 - blockIdx.x / heads) * s::ROWS; /* the longest rows first */
  const int64_t last = (first + s::ROWS < a.tokens ? first + s::ROWS : a.tokens) - 1;
  const int64_t begin = a.template seen<false>(head, first).low / s::COLUMNS * s::COLUMNS;
  const int64_t end = a.template seen<false>(head, last).high;
  const int64_t low = first + at.row; /* of the warp's queries */
  const auto view = warp_view<s>::template of<false>(a, head, low);
  const T *const q = a.q + a.in_q(head), *const k = a.k + a.in_k(head),
                 *const v = a.v + a.in_v(head);
  const float scale = a.scale * LOG2_E;
  warp_rows<s> rows;
  rows.begin();
  fetch_tile<s, s::ROWS>(queries, q, a.q_step, first, a);
  fetch_tile<s, s::COLUMNS>(keys, k, a.k_step, begin, a);
  copy_commit();
  fetch_tile<s, s::COLUMNS>(values, v, a.v_step, begin, a);
  copy_commit();
  copy_wait<1>();
  round_tile<s, s::ROWS>(queries);
  for (int64_t key = begin; key < end; key += s::COLUMNS) {
    const bool sees = low < a.tokens && view.sees(key);
    scores_of<s> score;
    copy_wait<1>();
    round_tile<s, s::COLUMNS>(keys);
    __syncthreads();
    if (sees) dot_tiles<s>(score, queries, keys, at);
    __syncthreads();
    if (key + s::COLUMNS < end) {
      fetch_tile<s, s::COLUMNS>(keys, k, a.k_step, key + s::COLUMNS, a);
    }
    copy_commit();
    if (sees && view.masks(key)) { /* a key that its query does not see counts for nothing */
      each_hidden<s, false>(a, head, low + at.g, key + 2 * at.t,
                            [&](int i, int n, int e) { score[i][n][e] = -INFINITY; });
    }
    if (sees) rows.take(score, scale);
    if (sees && a.drops()) {
      drop<s>(score, kept_of<s, false>(a, head, low + at.g, key + 2 * at.t), a.factor);
    }
    copy_wait<1>();
    round_tile<s, s::COLUMNS>(values);
    __syncthreads();
    if (sees) add_tile<s>(rows.out, score, values, at);
    __syncthreads();
    if (key + s::COLUMNS < end) {
      fetch_tile<s, s::COLUMNS>(values, v, a.v_step, key + s::COLUMNS, a);
    }
    copy_commit();
  }
  copy_wait<0>(); /* also where no tile was walked over: put_tile() writes over the queries */
  __syncthreads();
  rows.finish(a, head, low + at.g, at.t == 0);
  put_tile<s>(a.out + a.in_out(head), a.channels(), first, rows.out, queries, at, a);
}

template <class s>
cudaError_t warp_forward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  const auto a = attended_of<typename s::T>(args, s::ROWS);
  constexpr int bytes = (s::ROW_TILE + 2 * s::COLUMN_TILE) * (int)sizeof(unsigned);
  return as_seen(a, [&](auto seen) {
    return launch_blocks(at, warp_forward_kernel<s, decltype(seen)>,
                         a.tiles * args->batch * args->heads, s::THREADS, bytes, seen);
  });
}

/* ---- backward ---- */

/* What a kernel sums up: dq, whose rows are queries and which walks over the keys that they see; or
 * dk, dv or both, whose rows are keys and which walks over the queries that see them. */
enum gradient { DQ = 1, DK = 2, DV = 4 };

/* One of the two operands of a kernel: a tile of its own, or those that it walks over. */
template <class T> struct operand {
  const T *from;
  int64_t stride;
};

/* Shared memory: two tiles of the block's own, two of those walked over, and lse and delta of the
 * columns, where they are queries. */
template <class s> struct warp_places {
  static constexpr int WORDS = 2 * s::ROW_TILE + 2 * s::COLUMN_TILE + 2 * s::COLUMNS;
  unsigned *own[2], *other[2];
  float *lse, *delta;
  __device__ explicit warp_places(unsigned *memory) {
    for (int i = 0; i < 2; i++) own[i] = memory + i * s::ROW_TILE;
    for (int i = 0; i < 2; i++) other[i] = memory + 2 * s::ROW_TILE + i * s::COLUMN_TILE;
    lse = reinterpret_cast<float *>(memory + 2 * s::ROW_TILE + 2 * s::COLUMN_TILE);
    delta = lse + s::COLUMNS;
  }
};

/* Begins to copy lse and delta of the queries of a head from `first` on; zeros beyond the last. */
template <class s, class T = typename s::T>
__device__ __forceinline__ void fetch_queries_terms(const warp_places<s> &at,
                                                    const head_of_queries<T> &head, int64_t first,
                                                    const attended<T> &a) {
  static_assert(2 * s::COLUMNS <= s::THREADS, "a thread has one of them, or none");
  const int column = (int)threadIdx.x % s::COLUMNS;
  const int64_t row = first + column;
  const bool there = row < a.tokens;
  if ((int)threadIdx.x < s::COLUMNS) {
    copy_async<4>(at.lse + column, head.lse + (there ? row : 0), there);
  } else if ((int)threadIdx.x >= 2 * s::COLUMNS) {
    return;
  } else if (sizeof(T) == sizeof(float) || a.wide) { /* aligned */
    copy_async<4>(at.delta + column, head.deltas(a) + (there ? row : 0) * a.q_step, there);
  } else {
    at.delta[column] = there ? a.delta_of(head, row) : 0.0f;
  }
}

/* lse in powers of two, and delta times the scale, of a lane's queries. */
template <int N> struct terms_of { float lse[N], delta[N]; };

/* p and ds of one pair of tokens. */
__device__ __forceinline__ void warp_pair(float *p, float *ds, float scale, float lse,
                                          float delta) {
  const float probability = power_of_2(fmaf(*p, scale * LOG2_E, -lse));
  *ds = probability * fmaf(*ds, scale, -delta);
  *p = probability;
}

/* p and ds of a lane's scores, from q.k in p and dout.v in ds. */
template <class s, bool Keys>
__device__ __forceinline__ void make_pairs(scores_of<s> &p, scores_of<s> &ds,
                                           const terms_of<2> (&mine)[s::STRIPS],
                                           const warp_places<s> &tile, const place_in_warp &at,
                                           float scale) {
  EK_UNROLL
  for (int n = 0; n < s::COLUMNS / 8; n++) {
    EK_UNROLL
    for (int e = 0; e < 2; e++) {
      const int column = 8 * n + 2 * at.t + e;
      const float lse = Keys ? tile.lse[column] * LOG2_E : 0.0f;
      const float delta = Keys ? tile.delta[column] * scale : 0.0f;
      EK_UNROLL
      for (int i = 0; i < s::STRIPS; i++) {
        EK_UNROLL
        for (int h = 0; h < 2; h++) {
          warp_pair(&p[i][n][2 * h + e], &ds[i][n][2 * h + e], scale, Keys ? lse : mine[i].lse[h],
                    Keys ? delta : mine[i].delta[h]);
        }
      }
    }
  }
}

/* dv += p dout and dk += ds q, of `What` of them, over all heads that share the keys; or
 * dq += ds k, over the deltas. `first` and `other` are the tokens of the first row and column. */
template <class s, int What, class A, class T = typename s::T>
__global__ void __launch_bounds__(s::THREADS) warp_backward_kernel(A a) {
  constexpr bool Keys = What != DQ, Scores = What != DV; /* ds is needed, and so dout.v */
  EK_DYNAMIC_SHARED(unsigned, memory);
  const warp_places<s> tile(memory);
  const place_in_warp at(16 * s::STRIPS);
  const int64_t heads = gridDim.x / a.tiles, turn = blockIdx.x / heads;
  const int64_t begin = Keys ? a.first_of(blockIdx.x % heads) : blockIdx.x % heads;
  const int64_t first = (Keys ? turn : a.tiles - 1 - turn) * s::ROWS;  /* the longest rows first */
  const int64_t last = (first + s::ROWS < a.tokens ? first + s::ROWS : a.tokens) - 1;
  const int64_t from = a.template seen<Keys>(begin, first).low / s::COLUMNS * s::COLUMNS;
  const int64_t past = a.template seen<Keys>(begin, last).high;
  const int64_t low = first + at.row; /* of the warp's rows */
  const auto view = warp_view<s>::template of<Keys>(a, begin, low);
  head_of_queries<T> head(a, begin);
  const auto queries_of = [&](int i) -> operand<T> {
    if (i == 0) return {head.q, a.q_step};
    return {head.dout, a.channels()};
  };
  const T *const k = a.k + a.in_k(begin), *const v = a.v + a.in_v(begin);
  const auto keys_of = [&](int i) -> operand<T> {
    return {i == 0 ? k : v, i == 0 ? a.k_step : a.v_step};
  };
  const auto fetch = [&](int i, int64_t other) {
    if (other < past) {
      const operand<T> walked = Keys ? queries_of(i) : keys_of(i);
      fetch_tile<s, s::COLUMNS>(tile.other[i], walked.from, walked.stride, other, a);
      if (Keys && i == 0) fetch_queries_terms<s>(tile, head, other, a);
    }
    copy_commit();
  };
  terms_of<2> mine[s::STRIPS]; /* of the rows, where they are queries */
  EK_UNROLL
  for (int i = 0; i < s::STRIPS && !Keys; i++) {
    EK_UNROLL
    for (int h = 0; h < 2; h++) {
      const int64_t row = low + at.g + 16 * i + 8 * h;
      const bool there = row < a.tokens;
      mine[i].lse[h] = there ? head.lse[row] * LOG2_E : 0.0f;
      mine[i].delta[h] = there ? a.delta_of(head, row) * a.scale : 0.0f;
    }
  }
  constexpr int SUMS = What == (DK | DV) ? 2 : 1;
  sums_of<s> sum[SUMS]; /* dk or dq, and dv */
  EK_UNROLL
  for (int i = 0; i < SUMS; i++) clear<s>(sum[i]);
  EK_UNROLL
  for (int i = 0; i < (Scores ? 2 : 1); i++) {
    const operand<T> own = Keys ? keys_of(i) : queries_of(i);
    fetch_tile<s, s::ROWS>(tile.own[i], own.from, own.stride, first, a);
  }
  int64_t other = from;
  int left = Keys ? (int)a.group() : 1; /* heads, with the one that is walked over */
  fetch(1, other);
  fetch(0, other);
  copy_wait<1>();
  EK_UNROLL
  for (int i = 0; i < (Scores ? 2 : 1); i++) round_tile<s, s::ROWS>(tile.own[i]);
  while (other < past) {
    const bool sees = low < a.tokens && view.sees(other);
    scores_of<s> p, ds = {};
    copy_wait<1>();
    round_tile<s, s::COLUMNS>(tile.other[1]);
    __syncthreads();
    if (Scores && sees) dot_tiles<s>(ds, tile.own[1], tile.other[1], at);
    copy_wait<0>();
    round_tile<s, s::COLUMNS>(tile.other[0]);
    __syncthreads();
    if (!Keys) fetch(1, other + s::COLUMNS);
    if (sees) {
      dot_tiles<s>(p, tile.own[0], tile.other[0], at);
      uint64_t kept = 0;
      if (a.drops()) {
        const int64_t number = Keys ? begin + a.group() - left : begin; /* of the head */
        kept = kept_of<s, Keys>(a, number, low + at.g, other + 2 * at.t);
        drop<s>(ds, kept, a.factor);
      }
      make_pairs<s, Keys>(p, ds, mine, tile, at, a.scale);
      if (a.drops()) drop<s>(p, kept, a.factor);
      if (view.masks(other)) { /* what a query does not see is 0, whatever its numbers are */
        each_hidden<s, Keys>(a, begin, low + at.g, other + 2 * at.t,
                             [&](int i, int n, int e) { p[i][n][e] = ds[i][n][e] = 0; });
      }
    }
    other += s::COLUMNS;
    if constexpr (Keys) {
      if ((What & DV) != 0 && sees) add_tile<s>(sum[SUMS - 1], p, tile.other[1], at);
      __syncthreads();
      if (other >= past && --left > 0) {
        other = from;
        head.next(a);
      }
      fetch(1, other);
    }
    if (Scores && sees) add_tile<s>(sum[0], ds, tile.other[0], at);
    __syncthreads();
    fetch(0, other);
  }
  copy_wait<0>(); /* also where no tile was walked over: put_tile() writes over the block's own */
  __syncthreads();
  if constexpr (What == DQ) {
    put_tile<s>(a.dq + a.in_q(begin), a.q_step, first, sum[0], tile.own[0], at, a);
  }
  if constexpr ((What & DK) != 0) {
    put_tile<s>(a.dk + a.in_k(begin), a.k_step, first, sum[0], tile.own[0], at, a);
  }
  if constexpr ((What & DV) != 0) {
    put_tile<s>(a.dv + a.in_v(begin), a.v_step, first, sum[SUMS - 1], tile.own[0], at, a);
  }
}

template <class s, int What, class T = typename s::T>
cudaError_t launch_gradient(const struct ek__cuda_place *at,
                            const struct ek__attention_args *args) {
  const attended<T> a = attended_of<T>(args, s::ROWS);
  const int64_t heads = args->batch * (What == DQ ? args->heads : args->kv_heads);
  return as_seen(a, [&](auto seen) {
    return launch_blocks(at, warp_backward_kernel<s, What, decltype(seen)>, a.tiles * heads,
                         s::THREADS, warp_places<s>::WORDS * (int)sizeof(unsigned), seen);
  });
}

/* keys, queries: the blocks of the kernels whose rows they are; Apart: dk and dv one after the
 * other. */
template <class keys, class queries = keys, bool Apart = false>
cudaError_t warp_backward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  constexpr int words = warp_places<keys>::WORDS > warp_places<queries>::WORDS
                            ? warp_places<keys>::WORDS
                            : warp_places<queries>::WORDS;
  cudaError_t status = fits(at, words * (int)sizeof(unsigned)); /* before anything is queued */
  if (status == cudaSuccess) {
    status = launch_delta(at->stream, args, attended_of<typename keys::T>(args, keys::ROWS));
  }
  if constexpr (Apart) {
    if (status == cudaSuccess) status = launch_gradient<keys, DV>(at, args);
    if (status == cudaSuccess) status = launch_gradient<keys, DK>(at, args);
  } else {
    if (status == cudaSuccess) status = launch_gradient<keys, DK | DV>(at, args);
  }
  return status == cudaSuccess ? launch_gradient<queries, DQ>(at, args) : status;
}

/* ---- what a type has ---- */

/*
 * Of two types, in one place. Two strips halve what is read of shared memory, which one strip reads
 * as fast as an A100 multiplies; they are taken where their sums leave room in the registers, and
 * their tiles leave room for two blocks in 99 KiB.
 */
template <class Half>
cudaError_t half_forward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  using p = half_precision<Half>;
  if (args->head_width <= 32) return warp_forward<block_of<p, 32, 2, 64>>(at, args);
  if (args->head_width <= 64) return warp_forward<block_of<p, 64, 2, 64>>(at, args);
  if (args->head_width <= 128) return warp_forward<block_of<p, 128, 2, 32>>(at, args);
  return warp_forward<block_of<p, 256, 1, 32>>(at, args);
}

template <class Half>
cudaError_t half_backward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  using p = half_precision<Half>;
  if (args->head_width <= 32) return warp_backward<block_of<p, 32, 2, 32>>(at, args);
  if (args->head_width <= 64) {
    return warp_backward<block_of<p, 64, 2, 16>, block_of<p, 64, 2, 32>>(at, args);
  }
  if (args->head_width <= 128) return warp_backward<block_of<p, 128, 1, 32>>(at, args);
  using widest = block_of<p, 256, 1, 16>;
  return warp_backward<widest, widest, true>(at, args);
}

} // namespace ek__cuda

#endif /* EK_CUDA_ATTEND_KERNELS_CUH */
