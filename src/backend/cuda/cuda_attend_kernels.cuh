/*
 * cuda_attend_kernels.cuh - attention on tensor cores, over the tiles of
 * cuda_attend_warp.cuh: sums, exponentials and statistics are f32, and the operands of products are
 * of their precision.
 *
 * The forward is that of cuda_attend.cu, and the backward that of cuda_attend_backward.cu: one
 * kernel over the keys for dk and dv, one over the queries for dq, each sum in the order of the
 * tiles. Copies are hidden: in the forward a tile is copied while another one is multiplied, and in
 * the backward both tiles of the next iteration are, with one barrier for an iteration. A warp
 * skips a tile that its rows do not see.
 *
 * One kernel over the keys for all three would have 5 products where the two have 7, but would read
 * nearly as much of shared memory, which is the limit: its ds goes through there, and all warps of
 * a block read its keys again for dq (docs/results/2026-11-26-cuda-step.md has the count).
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

/* What a warp's rows see of the tiles of columns from `from` on, where the block begins to walk:
 * tiles first .. end - 1, and clear .. masked - 1 of them whole, so that they need no mask. */
template <class s> struct warp_view {
  int first, end, clear, masked;

  /* low: the warp's first row. */
  template <bool Keys, class A>
  __device__ __forceinline__ static warp_view of(const A &a, int64_t head, int64_t low,
                                                 int64_t from) {
    const int64_t high = low + 16 * s::STRIPS - 1;
    const span top = a.template seen<Keys>(head, low);
    const span bottom = a.template seen<Keys>(head, high < a.tokens ? high : a.tokens - 1);
    const auto down = [&](int64_t column) { /* the tile that the column is in */
      return column < from ? 0 : (int)((column - from) / s::COLUMNS);
    };
    const auto up = [&](int64_t column) { return down(column + s::COLUMNS - 1); };
    return {down(top.low), low < a.tokens ? up(bottom.high) : 0, up(bottom.low), down(top.high)};
  }
  __device__ __forceinline__ bool sees(int tile) const { return tile >= first && tile < end; }
  __device__ __forceinline__ bool masks(int tile) const { return tile < clear || tile >= masked; }
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
  const auto view = warp_view<s>::template of<false>(a, head, low, begin);
  const T *const q = a.q + a.in_q(head), *const k = a.k + a.in_k(head),
                 *const v = a.v + a.in_v(head);
  const float scale = a.scale * LOG2_E;
  warp_rows<s> rows;
  rows.begin();
  rows_in_tile<s> own;
  own.take(queries, at);
  fetch_tile<s, s::ROWS>(queries, q, a.q_step, first, a);
  fetch_tile<s, s::COLUMNS>(keys, k, a.k_step, begin, a);
  copy_commit();
  fetch_tile<s, s::COLUMNS>(values, v, a.v_step, begin, a);
  copy_commit();
  copy_wait<1>();
  round_tile<s, s::ROWS>(queries);
  int number = 0; /* of the tile */
  for (int64_t key = begin; key < end; key += s::COLUMNS, number++) {
    const bool sees = view.sees(number);
    scores_of<s> score;
    copy_wait<1>();
    round_tile<s, s::COLUMNS>(keys);
    __syncthreads();
    if (sees) dot_tiles<s>(score, own, keys, at);
    __syncthreads();
    if (key + s::COLUMNS < end) {
      fetch_tile<s, s::COLUMNS>(keys, k, a.k_step, key + s::COLUMNS, a);
    }
    copy_commit();
    if (sees && view.masks(number)) { /* a key that its query does not see counts for nothing */
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

/* Queries of its own a warp keeps in registers, if they leave room for its sums. */
template <class s, int What>
constexpr bool KEEPS = What == DQ && s::STRIPS * s::WORDS <= 64;

/* Shared memory: two tiles of the block's own, and twice two of those walked over: one pair is
 * multiplied while the next one is copied. The second pair is where the block's own were, if these
 * are kept. Queries that are walked over have lse and delta in the words after their row, which no
 * matrix has. */
template <class s, bool Kept> struct warp_places {
  static_assert(s::COLUMNS <= s::ROWS, "a pair fits");
  static constexpr int WORDS = 2 * s::ROW_TILE + (Kept ? 2 : 4) * s::COLUMN_TILE;
  unsigned *const memory;
  __device__ unsigned *own(int i) const { return memory + i * s::ROW_TILE; } /* k, v; q, dout */
  __device__ unsigned *other(int pair, int i) const {
    const int first = Kept ? (1 - pair) * 2 * s::ROW_TILE
                           : 2 * s::ROW_TILE + 2 * pair * s::COLUMN_TILE;
    return memory + first + i * s::COLUMN_TILE;
  }
};

/* A tile of a head, and the heads that are left, with its own; of none 0. */
struct tile_of_head {
  int tile, left;
};

/* The tiles that a block walks over, as this thread copies them: those of q and dout of each head
 * that shares the keys, or those of k and v. */
template <class s, bool Keys> struct tile_walk {
  using T = typename s::T;
  /* Addresses are numbers: of a pointer nvcc keeps one for each address space. */
  uintptr_t piece[2]; /* this thread's of the next tiles, of its first row */
  uintptr_t term;     /* of q: lse or delta of this thread's query */
  int64_t term_bytes; /* from one tile to the next */
  int tiles, full;    /* of a head; that have all rows */
  tile_of_head next;

  /* From token `from` up to `past`; `head` is the first. */
  __device__ tile_walk(const attended<T> &a, int64_t head, int64_t from, int64_t past)
      : tiles(from < past ? (int)((past - from + s::COLUMNS - 1) / s::COLUMNS) : 0),
        full((int)((a.tokens - from) / s::COLUMNS)),
        next{0, tiles == 0 ? 0 : Keys ? (int)a.group() : 1} {
    const piece_of_row<s> mine;
    const int64_t row = from + mine.row, column = mine.word * s::precision::PER_WORD;
    const T *const first[2] = {Keys ? a.q + a.in_q(head) : a.k + a.in_k(head),
                               Keys ? a.dout + a.in_out(head) : a.v + a.in_v(head)};
    EK_UNROLL
    for (int i = 0; i < 2; i++) {
      piece[i] = reinterpret_cast<uintptr_t>(first[i] + row * step(a, i) + column);
    }
    if constexpr (Keys) {
      const int64_t query = from + (int)threadIdx.x % s::COLUMNS;
      term = has_lse() ? reinterpret_cast<uintptr_t>(a.lse + a.in_lse(head) + query)
                       : reinterpret_cast<uintptr_t>(a.delta_place(head, query));
      term_bytes = s::COLUMNS * (has_lse() ? (int64_t)sizeof(float)
                                           : a.delta_step() * (int64_t)sizeof(T));
    }
  }
  __device__ static int64_t step(const attended<T> &a, int i) {
    if (i == 0) return Keys ? a.q_step : a.k_step;
    return Keys ? a.channels() : a.v_step;
  }

  /* Begins to copy the next tiles into a pair of places, if there are any. */
  template <class Places>
  __device__ void fetch(const Places &to, int pair, const attended<T> &a) {
    if (next.left > 0) {
      const int rows = next.tile < full ? s::COLUMNS : (int)((uint64_t)a.tokens % s::COLUMNS);
      EK_UNROLL
      for (int i = 0; i < 2; i++) {
        fetch_rows<s, s::COLUMNS>(to.other(pair, i), reinterpret_cast<const T *>(piece[i]),
                                  step(a, i), rows, a);
        piece[i] += s::COLUMNS * step(a, i) * (int64_t)sizeof(T);
      }
      if constexpr (Keys) fetch_term(to.other(pair, 0), rows, a);
    }
    copy_commit();
  }
  /* After fetch(): to the tiles after these. */
  __device__ void advance(const attended<T> &a) {
    if (++next.tile == tiles) next_head(a);
  }

private:
  __device__ static bool has_lse() { return (int)threadIdx.x < s::COLUMNS; }
  __device__ void fetch_term(unsigned *queries, int rows, const attended<T> &a) {
    static_assert(2 * s::COLUMNS <= s::THREADS, "a thread has one of them, or none");
    const int column = (int)threadIdx.x % s::COLUMNS;
    unsigned *const to = queries + column * s::STRIDE + s::WORDS + (has_lse() ? 0 : 1);
    if ((int)threadIdx.x < 2 * s::COLUMNS) {
      if (has_lse() || sizeof(T) == sizeof(float) || a.wide) { /* aligned */
        copy_async<4>(to, column < rows ? reinterpret_cast<const float *>(term) : a.lse,
                      column < rows);
      } else {
        const float delta = column < rows ? a.delta_at(reinterpret_cast<const T *>(term)) : 0.0f;
        memcpy(to, &delta, sizeof delta);
      }
    }
    term += term_bytes;
  }
  __device__ void next_head(const attended<T> &a) {
    next = {0, next.left - 1};
    if constexpr (Keys) {
      EK_UNROLL
      for (int i = 0; i < 2; i++) {
        piece[i] += (a.width - step(a, i) * tiles * s::COLUMNS) * (int64_t)sizeof(T);
      }
      term += (has_lse() ? a.tokens * (int64_t)sizeof(float) : a.width * (int64_t)sizeof(T)) -
              tiles * term_bytes;
    }
  }
};

/* lse in powers of two, and delta times the scale, of a lane's queries. */
template <int N> struct terms_of { float lse[N], delta[N]; };

/* p and ds of one pair of tokens. */
__device__ __forceinline__ void warp_pair(float *p, float *ds, float scale, float lse,
                                          float delta) {
  const float probability = power_of_2(fmaf(*p, scale * LOG2_E, -lse));
  *ds = probability * fmaf(*ds, scale, -delta);
  *p = probability;
}

/* p and ds of a lane's scores, from q.k in p and dout.v in ds; `mine` or, with Keys, the tile of
 * queries have lse and delta. */
template <class s, bool Keys>
__device__ __forceinline__ void make_pairs(scores_of<s> &p, scores_of<s> &ds,
                                           const terms_of<2> (&mine)[s::STRIPS],
                                           const unsigned *queries, const place_in_warp &at,
                                           float scale) {
  EK_UNROLL
  for (int n = 0; n < s::COLUMNS / 8; n++) {
    EK_UNROLL
    for (int e = 0; e < 2; e++) {
      pack<float, 2> two = {};
      if constexpr (Keys) {
        two = load<2>(reinterpret_cast<const float *>(
            queries + (8 * n + 2 * at.t + e) * s::STRIDE + s::WORDS));
      }
      const float lse = two.at[0] * LOG2_E, delta = two.at[1] * scale;
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

/* lse and delta of a lane's rows, from `low` on, where they are queries. */
template <class s, class T = typename s::T>
__device__ __forceinline__ void load_terms(terms_of<2> (&mine)[s::STRIPS], const attended<T> &a,
                                           int64_t head, int64_t low) {
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int h = 0; h < 2; h++) {
      const int64_t row = low + 16 * i + 8 * h;
      const bool there = row < a.tokens;
      mine[i].lse[h] = there ? a.lse[a.in_lse(head) + row] * LOG2_E : 0.0f;
      mine[i].delta[h] = there ? a.delta_at(a.delta_place(head, row)) * a.scale : 0.0f;
    }
  }
}

/* Blocks of a multiprocessor that registers must do for; they do for two in any case. */
template <class s> constexpr int BLOCKS = s::STRIPS == 1 && s::WIDTH <= 64 ? 3 : 1;

/* dv += p dout and dk += ds q, of `What` of them, over all heads that share the keys; or
 * dq += ds k, over the deltas. `first` and `from` are the tokens of the first row and column. */
template <class s, int What, class A, class T = typename s::T>
__global__ void __launch_bounds__(s::THREADS, BLOCKS<s>) warp_backward_kernel(A a) {
  constexpr bool Keys = What != DQ, Scores = What != DV; /* ds is needed, and so dout.v */
  constexpr int OWN = Scores ? 2 : 1, SUMS = What == (DK | DV) ? 2 : 1;
  EK_DYNAMIC_SHARED(unsigned, memory);
  const warp_places<s, KEEPS<s, What>> tile = {memory};
  const place_in_warp at(16 * s::STRIPS);
  const int64_t heads = gridDim.x / a.tiles, turn = blockIdx.x / heads;
  const int64_t begin = Keys ? a.first_of(blockIdx.x % heads) : blockIdx.x % heads;
  const int64_t first = (Keys ? turn : a.tiles - 1 - turn) * s::ROWS; /* the longest rows first */
  const int64_t last = (first + s::ROWS < a.tokens ? first + s::ROWS : a.tokens) - 1;
  const int64_t from = a.template seen<Keys>(begin, first).low / s::COLUMNS * s::COLUMNS;
  const int64_t low = first + at.row; /* of the warp's rows */
  const auto view = warp_view<s>::template of<Keys>(a, begin, low, from);
  tile_walk<s, Keys> walk(a, begin, from, a.template seen<Keys>(begin, last).high);
  terms_of<2> mine[s::STRIPS];
  if constexpr (!Keys) load_terms<s>(mine, a, begin, low + at.g);
  sums_of<s> sum[SUMS]; /* dk or dq, and dv */
  EK_UNROLL
  for (int i = 0; i < SUMS; i++) clear<s>(sum[i]);
  EK_UNROLL
  for (int i = 0; i < OWN; i++) {
    const T *const keys = i == 0 ? a.k + a.in_k(begin) : a.v + a.in_v(begin);
    const T *const queries = i == 0 ? a.q + a.in_q(begin) : a.dout + a.in_out(begin);
    fetch_tile<s, s::ROWS>(tile.own(i), Keys ? keys : queries, tile_walk<s, !Keys>::step(a, i),
                           first, a);
  }
  tile_of_head now = walk.next;
  walk.fetch(tile, 0, a);
  walk.advance(a);
  copy_wait<0>();
  EK_UNROLL
  for (int i = 0; i < OWN; i++) round_tile<s, s::ROWS>(tile.own(i));
  __syncthreads();
  std::conditional_t<KEEPS<s, What>, rows_in_registers<s>, rows_in_tile<s>> own[2];
  EK_UNROLL
  for (int i = 0; i < OWN; i++) own[i].take(tile.own(i), at);
  for (int pair = 0; now.left > 0; pair ^= 1) {
    unsigned *const columns[2] = {tile.other(pair, 0), tile.other(pair, 1)};
    copy_wait<0>();
    EK_UNROLL
    for (int i = 0; i < 2; i++) round_tile<s, s::COLUMNS>(columns[i]);
    __syncthreads(); /* and the other pair has been read */
    walk.fetch(tile, pair ^ 1, a);
    if (view.sees(now.tile)) {
      const int64_t other = from + (int64_t)now.tile * s::COLUMNS;
      scores_of<s> p, ds = {};
      if constexpr (Scores) dot_tiles<s>(ds, own[1], columns[1], at);
      dot_tiles<s>(p, own[0], columns[0], at);
      uint64_t kept = 0;
      if (a.drops()) {
        const int64_t head = Keys ? begin + a.group() - now.left : begin;
        kept = kept_of<s, Keys>(a, head, low + at.g, other + 2 * at.t);
        drop<s>(ds, kept, a.factor);
      }
      make_pairs<s, Keys>(p, ds, mine, columns[0], at, a.scale);
      if (a.drops()) drop<s>(p, kept, a.factor);
      if (view.masks(now.tile)) { /* what a query does not see is 0, whatever its numbers are */
        each_hidden<s, Keys>(a, begin, low + at.g, other + 2 * at.t,
                             [&](int i, int n, int e) { p[i][n][e] = ds[i][n][e] = 0; });
      }
      if constexpr ((What & DV) != 0) add_tile<s>(sum[SUMS - 1], p, columns[1], at);
      if constexpr (Scores) add_tile<s>(sum[0], ds, columns[0], at);
    }
    now = walk.next;
    walk.advance(a);
  }
  if constexpr (KEEPS<s, What>) __syncthreads(); /* put_tile() writes over what others read */
  if constexpr (What == DQ) {
    put_tile<s>(a.dq + a.in_q(begin), a.q_step, first, sum[0], tile.own(0), at, a);
  }
  if constexpr ((What & DK) != 0) {
    put_tile<s>(a.dk + a.in_k(begin), a.k_step, first, sum[0], tile.own(0), at, a);
  }
  if constexpr ((What & DV) != 0) {
    put_tile<s>(a.dv + a.in_v(begin), a.v_step, first, sum[SUMS - 1], tile.own(0), at, a);
  }
}

template <class s, int What, class T = typename s::T>
cudaError_t launch_gradient(const struct ek__cuda_place *at,
                            const struct ek__attention_args *args) {
  const attended<T> a = attended_of<T>(args, s::ROWS);
  const int64_t heads = args->batch * (What == DQ ? args->heads : args->kv_heads);
  return as_seen(a, [&](auto seen) {
    return launch_blocks(at, warp_backward_kernel<s, What, decltype(seen)>, a.tiles * heads,
                         s::THREADS,
                         warp_places<s, KEEPS<s, What>>::WORDS * (int)sizeof(unsigned), seen);
  });
}

/* Apart: dk and dv one after the other. */
template <class s, bool Apart = false>
cudaError_t warp_backward(const struct ek__cuda_place *at, const struct ek__attention_args *args) {
  /* Before anything is queued. */
  cudaError_t status = fits(at, warp_places<s, false>::WORDS * (int)sizeof(unsigned));
  if (status == cudaSuccess) {
    status = launch_delta(at->stream, args, attended_of<typename s::T>(args, s::ROWS));
  }
  if constexpr (Apart) {
    if (status == cudaSuccess) status = launch_gradient<s, DV>(at, args);
    if (status == cudaSuccess) status = launch_gradient<s, DK>(at, args);
  } else {
    if (status == cudaSuccess) status = launch_gradient<s, DK | DV>(at, args);
  }
  return status == cudaSuccess ? launch_gradient<s, DQ>(at, args) : status;
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
  if (args->head_width <= 64) return warp_backward<block_of<p, 64, 2, 32>>(at, args);
  if (args->head_width <= 128) return warp_backward<block_of<p, 128, 1, 32>>(at, args);
  return warp_backward<block_of<p, 256, 1, 16>, true>(at, args);
}

} // namespace ek__cuda

#endif /* EK_CUDA_ATTEND_KERNELS_CUH */
