/*
 * cuda_attend.cuh - tiles of attention, shared by forward and backward.
 *
 * A block of SIDE x SIDE threads works on square tiles of B = SIDE M tokens. Products of tiles are
 * done in registers: a thread (tx, ty) has the rows ty + SIDE i (i < M) and, of a tile of scores,
 * the columns tx + SIDE j (j < M); of a tile as wide as a head, PACK neighbouring columns from (tx
 * + SIDE n) * PACK on (n < W). One packed read from shared memory serves M rows or columns.
 *
 * Tiles are in shared memory with a padded row, so that the threads of a row read from different
 * banks. A head is padded to 32, 64, 128 or 256 columns with zeros, a tile to B rows. SIDE is 16,
 * and 8 for heads of up to 32, whose rows are shared by 8 threads: padded to 64 they would cost
 * twice the arithmetic, and short sequences are padded to half as many tokens.
 *
 * Floor, in f32 without tensor cores: 2 d multiply-adds for each pair of tokens forward (two
 * products of width d), 7 d backward (seven products: scores and dP are computed in each of its two
 * kernels, which is what it costs to add dK, dV and dQ in a fixed order without a T x T matrix).
 * With M = 4 the loop reads 12 wavefronts of shared memory for 16 cycles of arithmetic.
 *
 * After a tile has been read, its place is filled with the next one at once, by copies that arrive
 * during the product of another tile: each tile has one place, and nothing waits for copies as long
 * as products take longer.
 *
 * What is seen is one rule: a row sees the columns of a span (attended.seen()), whose ends grow
 * with the row. So of a tile of rows the first and the last say which tiles of columns are walked
 * over, and which of these need a mask: those on the diagonal, at an end of a document, and the
 * last ones. A document that begins with a tile has the bits that it has alone.
 */
#ifndef EK_CUDA_ATTEND_CUH
#define EK_CUDA_ATTEND_CUH

#include <cstdint>
#include <type_traits>

#include "backend/cuda/cuda_inline.cuh"

namespace ek__cuda {

/* M: rows of a thread. All tiles of a kernel are in a block's memory at once, four backward: 88 KiB
 * for heads of 64 in f32, and for heads of 128 and 256 in f32 152 and 136 KiB, which not every GPU
 * gives a block. So those two have a second, `Small` form with half as many rows: 72 and 68 KiB. */
template <class T_, int HEAD, bool Small = false> struct tiling {
  using T = T_;
  static constexpr bool F64 = sizeof(T) == 8;
  static constexpr int WIDTH = HEAD;
  static constexpr int SIDE = HEAD <= 32 || (F64 && HEAD > 128) ? 8 : 16;
  static constexpr int THREADS = SIDE * SIDE; /* of a block */
  static constexpr int M = F64 ? (HEAD <= 64 ? 2 : 1) : (HEAD <= 128 ? 4 : 2) / (Small ? 2 : 1);
  static constexpr int B = SIDE * M; /* tokens of a tile */
  static constexpr int N = PACK<T>;
  static constexpr int W = HEAD / (SIDE * N);   /* packs of a row of a head per thread */
  static constexpr int STRIDE = HEAD + N;       /* of a tile of B x HEAD */
  static constexpr int SCORE_STRIDE = B + SIDE; /* of a tile of B x B */
  static constexpr int TILE = B * STRIDE, SCORES = B * SCORE_STRIDE; /* in elements */
};

/* What a thread has of a tile of scores. */
template <class t> using part_of_scores = typename t::T[t::M][t::M];

/* Of a row: columns low .. high - 1. */
struct span {
  int64_t low, high;
};

/* A distance between tokens as an int. A far one is cut: only near tokens share a tile. */
__device__ __forceinline__ int ahead(int64_t distance) {
  constexpr int64_t FAR = 1 << 20;
  return (int)(distance < -FAR ? -FAR : distance > FAR ? FAR : distance);
}

template <class T> struct attended {
  using S = std::conditional_t<sizeof(T) == 8, double, float>; /* of sums */
  const T *q, *k, *v, *dout;
  T *out, *dq, *dk, *dv;
  S *lse;
  const int32_t *ranges; /* of documents, or NULL */
  int64_t tokens, heads, kv_heads, width, q_step, k_step, v_step;
  int64_t tiles; /* of a sequence */
  S scale;
  bool wide; /* 16-byte access to rows of a head */
  bool causal;
  ek_random_key key; /* of dropout */
  uint32_t first_sample, threshold; /* 0: nothing is dropped; see cuda_dropout.cu */
  S factor;

  __device__ int64_t channels() const { return heads * width; }
  /* Heads of queries that share keys and values, and the first of them for a head of keys. */
  __device__ int64_t group() const { return heads / kv_heads; }
  __device__ int64_t first_of(int64_t kv) const { return kv * group(); }
  /* Offsets of the first row of a head of queries: in q, k, v, out, and lse. */
  __device__ int64_t in_q(int64_t head) const {
    return head / heads * tokens * q_step + head % heads * width;
  }
  __device__ int64_t in_k(int64_t head) const {
    return head / heads * tokens * k_step + head % heads / group() * width;
  }
  __device__ int64_t in_v(int64_t head) const {
    return head / heads * tokens * v_step + head % heads / group() * width;
  }
  __device__ int64_t in_out(int64_t head) const {
    return head / heads * tokens * channels() + head % heads * width;
  }
  __device__ int64_t in_lse(int64_t head) const { return head * tokens; }

  /* delta of a query of a head is where the first elements of its dq will be, so that no other
   * memory is needed. A head of one element of 16 bits has no room for it: it is a single product
   * there, and the place that of one factor. */
  __device__ __forceinline__ const T *delta_place(int64_t head, int64_t query) const {
    return has_room() ? dq + in_q(head) + query * q_step
                      : dout + in_out(head) + query * channels();
  }
  __device__ int64_t delta_step() const { return has_room() ? q_step : channels(); }
  __device__ __forceinline__ S delta_at(const T *place) const {
    if (!has_room()) return S(out[place - dout]) * S(*place);
    S value;
    memcpy(&value, place, sizeof value);
    return value;
  }
  __device__ bool has_room() const { return width * (int64_t)sizeof(T) >= (int64_t)sizeof(S); }

  /* The keys that query `row` of a head's sample sees, or with Keys the queries that see key `row`.
   * Rows past the end are like the last one, or see nothing. */
  template <bool Keys> __device__ __forceinline__ span seen(int64_t head, int64_t row) const {
    span s = {0, tokens};
    if (ranges) {
      const int64_t token = row < tokens ? row : tokens - 1;
      const int32_t *const range = ranges + 2 * (head / heads * tokens + token);
      s.low = range[0] > 0 ? range[0] : 0;
      s.high = range[1] < tokens ? range[1] : tokens;
    }
    if (causal && Keys && s.low < row) s.low = row;
    if (causal && !Keys && s.high > row + 1) s.high = row + 1;
    return s;
  }

  /* Whether spans may begin after the first column of a tile that is seen. */
  template <bool Keys> static constexpr bool BEGINS = true;
  __host__ __device__ bool drops() const { return threshold != 0; }

  /* What dropout makes of the probability of a query and a key: 0 or 1 / (1 - p). */
  __device__ __forceinline__ S kept(int64_t head, int64_t query, int64_t key_token) const {
    uint32_t bits[4];
    const int64_t row = head % heads * tokens + query;
    ek_random_bits(key, first_sample + (uint32_t)(head / heads),
                   (uint32_t)(row * ((tokens + 3) / 4) + key_token / 4), bits);
    const uint32_t two = key_token & 1 ? bits[1] : bits[0],
                   more = key_token & 1 ? bits[3] : bits[2];
    return (key_token & 2 ? more : two) >> 8 >= threshold ? factor : S(0);
  }
};

/*
 * The same where a query sees all tokens up to its own and nothing is dropped, as in most models: a
 * type of its own, because the general rule takes registers that the tensor cores' kernels lack.
 */
template <class T> struct attended_causally : attended<T> {
  template <bool Keys> __device__ __forceinline__ span seen(int64_t, int64_t row) const {
    return Keys ? span{row, this->tokens} : span{0, row + 1};
  }
  template <bool Keys> static constexpr bool BEGINS = Keys;
  __host__ __device__ static constexpr bool drops() { return false; }
};

/* Begins to copy rows first .. first + B - 1 of a head at `from`, zeros where there are none: they
 * are in the tile after copy_wait() and a barrier. */
template <class t, class T = typename t::T>
__device__ void fetch_tile(T *tile, const T *from, int64_t stride, int64_t first,
                           const attended<T> &a) {
  constexpr int PACKS = t::WIDTH / t::N;
  const int thread = (int)thread_in_block();
  for (int i = thread; i < t::B * PACKS; i += t::THREADS) {
    const int row = i / PACKS, column = i % PACKS * t::N;
    const bool there = first + row < a.tokens && column < a.width;
    const T *const p = from + (first + row) * stride + column;
    T *const to = tile + row * t::STRIDE + column;
    if (a.wide) {
      copy_async<16>(to, there ? p : from, there);
      continue;
    }
    pack<T, t::N> value = {};
    EK_UNROLL
    for (int j = 0; j < t::N; j++) {
      if (there && column + j < a.width) value.at[j] = p[j];
    }
    *reinterpret_cast<pack<T, t::N> *>(to) = value;
  }
}

/* product[i][j] = row ty + 16 i of a . row tx + 16 j of b */
template <class t, class T = typename t::T>
__device__ __forceinline__ void dot_rows(part_of_scores<t> &product, const T *a, const T *b) {
  const T *const rows = a + threadIdx.y * t::STRIDE, *const columns = b + threadIdx.x * t::STRIDE;
  EK_UNROLL
  for (int i = 0; i < t::M; i++) {
    EK_UNROLL
    for (int j = 0; j < t::M; j++) product[i][j] = T(0);
  }
  EK_UNROLL_BY(2)
  for (int k = 0; k < t::WIDTH; k += t::N) {
    pack<T, t::N> left[t::M], right[t::M];
    EK_UNROLL
    for (int i = 0; i < t::M; i++) left[i] = load<t::N>(rows + i * t::SIDE * t::STRIDE + k);
    EK_UNROLL
    for (int j = 0; j < t::M; j++) right[j] = load<t::N>(columns + j * t::SIDE * t::STRIDE + k);
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      EK_UNROLL
      for (int j = 0; j < t::M; j++) {
        EK_UNROLL
        for (int e = 0; e < t::N; e++) product[i][j] += left[i].at[e] * right[j].at[e];
      }
    }
  }
}

/* What a thread has of a tile of B x HEAD results. */
template <class t> struct share_of_tile {
  using T = typename t::T;
  pack<T, t::N> at[t::M][t::W];

  __device__ __forceinline__ void clear() {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      EK_UNROLL
      for (int n = 0; n < t::W; n++) at[i][n] = pack<T, t::N>{};
    }
  }

  /* += scores (B x B) times tile (B x HEAD) */
  __device__ __forceinline__ void add_product(const T *scores, const T *tile) {
    const T *const rows = scores + threadIdx.y * t::SCORE_STRIDE;
    EK_UNROLL_BY(1)
    for (int k = 0; k < t::B; k += t::N) {
      pack<T, t::N> left[t::M];
      EK_UNROLL
      for (int i = 0; i < t::M; i++) left[i] = load<t::N>(rows + i * t::SIDE * t::SCORE_STRIDE + k);
      EK_UNROLL
      for (int e = 0; e < t::N; e++) add_row(left, e, tile + (k + e) * t::STRIDE);
    }
  }

  /* += left[.].at[e] times one row of the tile */
  __device__ __forceinline__ void add_row(const pack<T, t::N> (&left)[t::M], int e, const T *row) {
    EK_UNROLL
    for (int n = 0; n < t::W; n++) {
      const pack<T, t::N> right = load<t::N>(row + (threadIdx.x + t::SIDE * n) * t::N);
      EK_UNROLL
      for (int i = 0; i < t::M; i++) {
        EK_UNROLL
        for (int c = 0; c < t::N; c++) at[i][n].at[c] += left[i].at[e] * right.at[c];
      }
    }
  }

  __device__ __forceinline__ void times(int i, T factor) {
    EK_UNROLL
    for (int n = 0; n < t::W; n++) {
      EK_UNROLL
      for (int c = 0; c < t::N; c++) at[i][n].at[c] *= factor;
    }
  }

  /* Writes rows first .. of a head at `to`, as far as there are rows and columns. */
  __device__ void put(T *to, int64_t stride, int64_t first, const attended<T> &a) const {
    EK_UNROLL
    for (int i = 0; i < t::M; i++) {
      const int64_t row = first + threadIdx.y + t::SIDE * i;
      if (row >= a.tokens) continue;
      EK_UNROLL
      for (int n = 0; n < t::W; n++) {
        const int column = (int)(threadIdx.x + t::SIDE * n) * t::N;
        T *p = to + row * stride + column;
        if (a.wide && column < a.width) {
          store<t::N>(p, at[i][n]);
        } else {
          EK_UNROLL
          for (int c = 0; c < t::N; c++) {
            if (column + c < a.width) p[c] = at[i][n].at[c];
          }
        }
      }
    }
  }
};

/* ---- launching ---- */

/* f32 and f64: calls f with the tiling for the type and the width of a head; what a block may have
 * of shared memory does not matter to it. cudaErrorNotSupported for types of 16 bits, whose tiles
 * are those of tensor cores alone. */
template <class F> inline cudaError_t with_tiling(const struct ek__attention_args *args, F f) {
  const auto of = [&](auto zero) {
    using T = decltype(zero);
    if (args->head_width <= 32) return f(tiling<T, 32>());
    if (args->head_width <= 64) return f(tiling<T, 64>());
    if (args->head_width <= 128) return f(tiling<T, 128>());
    return f(tiling<T, 256>());
  };
  if (args->head_width > EK__CUDA_MAX_HEAD_WIDTH) return cudaErrorInvalidValue;
  switch (args->types.value) {
  case EK_F32: return of(float());
  case EK_F64: return of(double());
  case EK_BF16:
  case EK_F16: return cudaErrorNotSupported;
  default: return cudaErrorInvalidValue;
  }
}

template <class T>
inline attended<T> attended_of(const struct ek__attention_args *args, int tokens_of_tile) {
  attended<T> a = {};
  a.q = as<T>(args->q);
  a.k = as<T>(args->k);
  a.v = as<T>(args->v);
  a.dout = as<T>(args->dout);
  a.out = as<T>(args->out);
  a.lse = as<typename attended<T>::S>(args->lse);
  a.dq = as<T>(args->dq);
  a.dk = as<T>(args->dk);
  a.dv = as<T>(args->dv);
  a.ranges = args->ranges;
  a.q_step = args->q_step;
  a.k_step = args->k_step;
  a.v_step = args->v_step;
  a.causal = args->causal;
  a.key = args->key;
  a.first_sample = (uint32_t)args->first_sample;
  a.threshold = (uint32_t)ceil(args->dropout * 16777216.0);
  a.factor = (typename attended<T>::S)(1.0 / (1.0 - args->dropout));
  a.tokens = args->tokens;
  a.heads = args->heads;
  a.kv_heads = args->kv_heads;
  a.width = args->head_width;
  a.tiles = (args->tokens + tokens_of_tile - 1) / tokens_of_tile;
  a.scale = (typename attended<T>::S)(1.0 / sqrt((double)args->head_width));
  a.wide = args->head_width % PACK<T> == 0 && a.q_step % PACK<T> == 0 && a.k_step % PACK<T> == 0 &&
           a.v_step % PACK<T> == 0 &&
           aligned(a.q, a.k, a.v, a.dout, a.out, a.dq, a.dk, a.dv);
  return a;
}

/* cudaErrorNotSupported if a block of the GPU may not have so much shared memory. */
inline cudaError_t fits(const struct ek__cuda_place *at, int bytes) {
  return bytes <= at->shared_bytes ? cudaSuccess : cudaErrorNotSupported;
}

/* Blocks with more than 48 KiB of shared memory, which must be asked for. */
template <class A>
inline cudaError_t launch_blocks(const struct ek__cuda_place *at, void (*kernel)(A),
                                 int64_t blocks, dim3 threads, int shared_bytes, const A &a) {
  const cudaError_t status = grant(at, reinterpret_cast<const void *>(kernel), shared_bytes);
  if (status != cudaSuccess) return status;
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidValue;
  EK_LAUNCH(kernel, (unsigned)blocks, threads, (size_t)shared_bytes, at->stream, a);
  return cudaGetLastError();
}

/* A block of a tiling, with its elements of shared memory. */
template <class t, class A>
inline cudaError_t launch_tiles(const struct ek__cuda_place *at, void (*kernel)(A), int64_t blocks,
                                int shared_elements, const A &a) {
  return launch_blocks(at, kernel, blocks, dim3(t::SIDE, t::SIDE),
                       shared_elements * (int)sizeof(typename t::T), a);
}

/* Calls f with what is attended, as the type that says most of it. */
template <class T, class F> inline cudaError_t as_seen(const attended<T> &a, F f) {
  if (a.causal && !a.ranges && !a.drops()) return f(attended_causally<T>{a});
  return f(a);
}

/* Calls f with the tiling, or with its small form where a block may not have enough memory. */
template <class T, int HEAD, class F> inline cudaError_t that_fits(tiling<T, HEAD> t, F f) {
  const cudaError_t status = f(t);
  if constexpr (sizeof(T) == 4 && HEAD > 64) {
    if (status == cudaErrorNotSupported) return f(tiling<T, HEAD, true>());
  }
  return status;
}

/* delta = sum of dout out for each row of a head: attended.delta(). LANES neighbours take a row,
 * each of them N neighbouring elements at a time. */
template <class T, int N, int LANES>
__global__ void __launch_bounds__(BLOCK) delta_kernel(attended<T> a, int64_t rows) {
  using S = typename attended<T>::S;
  constexpr int TOGETHER = (int)WARP / LANES; /* rows of a warp */
  const int64_t step = thread_count() / LANES;
  const int lane = (int)threadIdx.x % LANES, own = (int)(threadIdx.x % WARP) / LANES;
  for (int64_t i = thread_index() / WARP * TOGETHER; i < rows && a.has_room(); i += step) {
    const bool there = i + own < rows;
    const int64_t at = there ? i + own : i;
    const int64_t row = at / a.heads, column = at % a.heads * a.width; /* row: of all samples */
    const T *const out = a.out + row * a.channels() + column;
    const T *const dout = a.dout + row * a.channels() + column;
    S sum = S(0);
    for (int64_t c = lane * N; c < a.width; c += LANES * N) {
      const pack<T, N> left = load<N>(out + c), right = load<N>(dout + c);
      EK_UNROLL
      for (int j = 0; j < N; j++) sum += S(left.at[j]) * S(right.at[j]);
    }
    sum = warp_sum<LANES>(sum);
    if (lane == 0 && there) memcpy(a.dq + row * a.q_step + column, &sum, sizeof sum);
  }
}

/* Eight lanes where they have all of a head, in types that most models compute in. */
template <class T, int N>
inline cudaError_t launch_delta_of(cudaStream_t stream, const attended<T> &a, int64_t rows) {
  constexpr int FEW = 8, ALL = (int)WARP;
  if constexpr (N > 1 && sizeof(T) < 8) {
    if (a.width <= FEW * N) {
      return launch(delta_kernel<T, N, FEW>, blocks_for(rows, BLOCK / FEW), BLOCK, stream, a, rows);
    }
  }
  return launch(delta_kernel<T, N, ALL>, blocks_for(rows, BLOCK / ALL), BLOCK, stream, a, rows);
}

template <class T>
inline cudaError_t launch_delta(cudaStream_t stream, const struct ek__attention_args *args,
                                const attended<T> &a) {
  const int64_t rows = args->batch * args->heads * args->tokens;
  return a.wide ? launch_delta_of<T, PACK<T>>(stream, a, rows)
                : launch_delta_of<T, 1>(stream, a, rows);
}

/* ---- on tensor cores: cuda_attend_kernels.cuh ---- */

/* Either may lack the shared memory: then cudaErrorNotSupported, and nothing is queued. */
struct tensor_cores {
  cudaError_t (*forward)(const struct ek__cuda_place *at, const struct ek__attention_args *args);
  cudaError_t (*backward)(const struct ek__cuda_place *at, const struct ek__attention_args *args);
};
extern const struct tensor_cores attend_tf32, attend_bf16, attend_f16;

/* Those for the call, or NULL. */
inline const struct tensor_cores *cores_for(const struct ek__attention_args *args) {
  if (args->head_width > EK__CUDA_MAX_HEAD_WIDTH) return nullptr;
  if (args->types.value == EK_BF16) return &attend_bf16;
  if (args->types.value == EK_F16) return &attend_f16;
  return args->types.tf32 && args->head_width <= 128 ? &attend_tf32 : nullptr;
}

} // namespace ek__cuda

#endif /* EK_CUDA_ATTEND_CUH */
