/*
 * cuda_attend_warp.cuh - tiles of attention whose products are made by whole warps on tensor cores.
 *
 * A block of four warps has a tile of ROWS tokens of its own and walks over tiles of COLUMNS
 * tokens. A warp has STRIPS of 16 neighbouring rows, all columns of them, in registers, and needs
 * no others: no scores go through shared memory. Tiles of tokens are in shared memory as operands,
 * in words of 32 bits; their rows are 4 words longer than a head, so that eight rows of 16 bytes,
 * which are read at once, are in 32 banks. Only a warp itself reads its rows of the block's own
 * tiles, so it puts its results there in the end, and writes them in pieces of 16 bytes.
 *
 * What depends on the type is in a struct `precision` alone: TF32, bf16 or f16. A product of 16-bit
 * types has twice the depth in as many words of the same places, so that rows times rows is one
 * code. Rows times a tile are not: the sums of a product are its left operand as they are, two to a
 * word, and the right one is transposed as it is read; of TF32 no instruction does that, and the
 * sums are in the order of an operand only if its tokens are not counted as in memory
 * in.
 *
 * Floor: 4 d operations (2 of them a multiply-add) for each pair of tokens forward, 14 d backward.
 * A strip's product of 16 x 8 by DEPTH reads 64 words of shared memory, or 64 / STRIPS a strip.
 */
#ifndef EK_CUDA_ATTEND_WARP_CUH
#define EK_CUDA_ATTEND_WARP_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/cuda_attend.cuh"
#include "backend/cuda/cuda_inline.cuh"

namespace ek__cuda {

/* A lane's place: see multiply_tf32(). */
struct place_in_warp {
  int lane, g, t, row; /* row: the warp's first in the tile */
  __device__ explicit place_in_warp(int rows_of_warp)
      : lane((int)(threadIdx.x % WARP)), g(lane / 4), t(lane % 4),
        row((int)(threadIdx.x / WARP) * rows_of_warp) {}
};

/*
 * A precision has
 *   DEPTH, PER_WORD   of a product: 8 words of a row; elements of a word
 *   ROUNDS            words that were copied become operands by operand()
 *   left()            DEPTH columns of scores as the left operand of the next product
 *   right()           the same DEPTH tokens of 16 columns of a tile, which `tile` points to, as two
 *                     right ones
 *   put()             neighbouring results, columns 2 t and 2 t + 1 of 8, into the row of a tile
 */
struct tf32 {
  using T = float;
  static constexpr int DEPTH = 8, PER_WORD = 1;
  static constexpr bool ROUNDS = true;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned *b) {
    multiply_tf32(d, a, b);
  }
  static __device__ __forceinline__ unsigned operand(unsigned word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return round_tf32(x);
  }
  /* A lane has the columns 2 t and 2 t + 1; as operand t and t + 4 they are the tokens that right()
   * takes for these. */
  static __device__ __forceinline__ void left(unsigned (&a)[4], const float (*score)[4]) {
    a[0] = round_tf32(score[0][0]);
    a[1] = round_tf32(score[0][2]);
    a[2] = round_tf32(score[0][1]);
    a[3] = round_tf32(score[0][3]);
  }
  static __device__ __forceinline__ void right(unsigned (&b)[4], const unsigned *tile,
                                               int stride, const place_in_warp &at) {
    EK_UNROLL
    for (int n = 0; n < 2; n++) {
      b[2 * n] = tile[2 * at.t * stride + 8 * n + at.g];
      b[2 * n + 1] = tile[(2 * at.t + 1) * stride + 8 * n + at.g];
    }
  }
  static __device__ __forceinline__ void put(unsigned *row, int t, float x, float y) {
    const pack<float, 2> two = {{x, y}};
    memcpy(row + 2 * t, &two, sizeof two);
  }
};

template <class Half> struct half_precision {
  using T = Half;
  static constexpr bool BF16 = std::is_same_v<Half, __nv_bfloat16>;
  static constexpr int DEPTH = 16, PER_WORD = 2;
  static constexpr bool ROUNDS = false;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned *b) {
    if constexpr (BF16) {
      multiply_bf16(d, a, b);
    } else {
      multiply_f16(d, a, b);
    }
  }
  static __device__ __forceinline__ unsigned operand(unsigned word) { return word; }
  /* Both rounded to nearest even; x in the lower half. */
  static __device__ __forceinline__ unsigned word_of(float x, float y) {
    unsigned word;
    if constexpr (BF16) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
      memcpy(&word, &two, sizeof word);
    } else {
      const __half2 two = __floats2half2_rn(x, y);
      memcpy(&word, &two, sizeof word);
    }
    return word;
  }
  static __device__ __forceinline__ void left(unsigned (&a)[4], const float (*score)[4]) {
    EK_UNROLL
    for (int i = 0; i < 4; i++)
      a[i] = word_of(score[i / 2][i % 2 * 2], score[i / 2][i % 2 * 2 + 1]);
  }
  static __device__ __forceinline__ void right(unsigned (&b)[4], const unsigned *tile,
                                               int stride, const place_in_warp &at) {
    load_transposed(b, tile + at.lane % 16 * stride + at.lane / 16 * 4);
  }
  static __device__ __forceinline__ void put(unsigned *row, int t, float x, float y) {
    row[t] = word_of(x, y);
  }
};

template <class Precision, int HEAD, int Strips, int Columns> struct block_of {
  using precision = Precision;
  using T = typename Precision::T;
  static constexpr int WARPS = 4, THREADS = WARPS * (int)WARP, STRIPS = Strips;
  static constexpr int ROWS = WARPS * STRIPS * 16, COLUMNS = Columns;
  static constexpr int WIDTH = HEAD, WORDS = HEAD / Precision::PER_WORD, STRIDE = WORDS + 4;
  static constexpr int ROW_TILE = ROWS * STRIDE, COLUMN_TILE = COLUMNS * STRIDE; /* in words */
};

/* What a lane has of a warp's scores, and of its results, which are as wide as a head. */
template <class s> using scores_of = float[s::STRIPS][s::COLUMNS / 8][4];
template <class s> using sums_of = float[s::STRIPS][s::WIDTH / 8][4];

/* ---- tiles ---- */

/* The 16 bytes of a tile's row that are this thread's, of every STEP-th row from its first on. */
template <class s> struct piece_of_row {
  static constexpr int PIECES = s::WORDS / 4, STEP = s::THREADS / PIECES;
  int word, row;
  __device__ piece_of_row() : word((int)threadIdx.x % PIECES * 4), row((int)threadIdx.x / PIECES) {}

  /* Calls f(word of the tile, row) for each. */
  template <int ROWS, class F> __device__ __forceinline__ void each(F f) const {
    static_assert(s::THREADS % PIECES == 0 && ROWS % STEP == 0, "all threads have as many");
    EK_UNROLL_BY(4)
    for (int r = 0; r < ROWS; r += STEP) f((row + r) * s::STRIDE + word, row + r);
  }
};

/* Begins to copy `rows` rows of a head, zeros instead of the others of ROWS; p: the piece of this
 * thread's first row. See round_tile(). */
template <class s, int ROWS, class T = typename s::T>
__device__ void fetch_rows(unsigned *tile, const T *p, int64_t stride, int rows,
                           const attended<T> &a) {
  const piece_of_row<s> piece;
  const int column = piece.word * s::precision::PER_WORD;
  const int64_t step = stride * piece.STEP;
  if (column >= a.width) rows = 0;
  if (a.wide) {
    piece.template each<ROWS>([&](int at, int row) {
      copy_async<16>(tile + at, row < rows ? p : a.q, row < rows);
      p += step;
    });
    return;
  }
  piece.template each<ROWS>([&](int at, int row) {
    pack<T, PACK<T>> value = {};
    for (int j = 0; j < PACK<T>; j++) {
      if (row < rows && column + j < a.width) value.at[j] = p[j];
    }
    memcpy(tile + at, &value, sizeof value);
    p += step;
  });
}

/* Those from row `first` on of a head at `from`. */
template <class s, int ROWS, class T = typename s::T>
__device__ void fetch_tile(unsigned *tile, const T *from, int64_t stride, int64_t first,
                           const attended<T> &a) {
  const piece_of_row<s> piece;
  const int64_t left = a.tokens - first;
  fetch_rows<s, ROWS>(tile,
                      from + (first + piece.row) * stride + piece.word * s::precision::PER_WORD,
                      stride, left < ROWS ? (int)left : ROWS, a);
}

/* What this thread has copied becomes operands: after copy_wait(), before the barrier. */
template <class s, int ROWS> __device__ __forceinline__ void round_tile(unsigned *tile) {
  if constexpr (!s::precision::ROUNDS) return;
  piece_of_row<s>().template each<ROWS>([&](int at, int) {
    pack<unsigned, 4> words = load<4>(tile + at);
    EK_UNROLL
    for (int j = 0; j < 4; j++) words.at[j] = s::precision::operand(words.at[j]);
    *reinterpret_cast<pack<unsigned, 4> *>(tile + at) = words;
  });
}

/* ---- products ---- */

/* A warp's rows of a tile as the left operand of products: read for each of them, or kept. */
template <class s> struct rows_in_tile {
  static constexpr int UNROLLED = 4;
  const unsigned *first;

  __device__ __forceinline__ void take(const unsigned *tile, const place_in_warp &at) {
    first = tile + (at.row + at.lane % 16) * s::STRIDE + at.lane / 16 * 4;
  }
  /* The words from k on, 8 of each row. */
  __device__ __forceinline__ void words(unsigned (&a)[s::STRIPS][4], int k) const {
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) load_matrices(a[i], first + 16 * i * s::STRIDE + k);
  }
};
template <class s> struct rows_in_registers {
  static constexpr int UNROLLED = s::WORDS / 8; /* or the words are not in registers */
  unsigned word[s::WORDS / 8][s::STRIPS][4];

  __device__ __forceinline__ void take(const unsigned *tile, const place_in_warp &at) {
    rows_in_tile<s> rows;
    rows.take(tile, at);
    EK_UNROLL
    for (int k = 0; k < s::WORDS; k += 8) rows.words(word[k / 8], k);
  }
  __device__ __forceinline__ void words(unsigned (&a)[s::STRIPS][4], int k) const {
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) a[i][e] = word[k / 8][i][e];
    }
  }
};

/* score = this warp's rows . rows of `columns` */
template <class s, class Rows>
__device__ __forceinline__ void dot_tiles(scores_of<s> &score, const Rows &rows,
                                          const unsigned *columns, const place_in_warp &at) {
  const unsigned *const right =
      columns + (at.lane / 16 * 8 + at.lane % 8) * s::STRIDE + at.lane / 8 % 2 * 4;
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int n = 0; n < s::COLUMNS / 8; n++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) score[i][n][e] = 0;
    }
  }
  EK_UNROLL_BY(Rows::UNROLLED)
  for (int k = 0; k < s::WORDS; k += 8) {
    unsigned a[s::STRIPS][4];
    rows.words(a, k);
    EK_UNROLL
    for (int n = 0; n < s::COLUMNS / 8; n += 2) {
      unsigned b[4];
      load_matrices(b, right + 8 * n * s::STRIDE + k);
      EK_UNROLL
      for (int i = 0; i < s::STRIPS; i++) {
        s::precision::multiply(score[i][n], a[i], &b[0]);
        s::precision::multiply(score[i][n + 1], a[i], &b[2]);
      }
    }
  }
}

/* sum += score . tile */
template <class s>
__device__ __forceinline__ void add_tile(sums_of<s> &sum, const scores_of<s> &score,
                                         const unsigned *tile, const place_in_warp &at) {
  using p = typename s::precision;
  EK_UNROLL
  for (int k = 0; k < s::COLUMNS; k += p::DEPTH) {
    unsigned a[s::STRIPS][4];
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) p::left(a[i], &score[i][k / 8]);
    EK_UNROLL
    for (int n = 0; n < s::WIDTH / 8; n += 2) {
      unsigned b[4];
      p::right(b, tile + k * s::STRIDE + 8 * n / p::PER_WORD, s::STRIDE, at);
      EK_UNROLL
      for (int i = 0; i < s::STRIPS; i++) {
        p::multiply(sum[i][n], a[i], &b[0]);
        p::multiply(sum[i][n + 1], a[i], &b[2]);
      }
    }
  }
}

template <class s> __device__ __forceinline__ void clear(sums_of<s> &sum) {
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int n = 0; n < s::WIDTH / 8; n++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) sum[i][n][e] = 0;
    }
  }
}

/* Writes this warp's rows of a tile that begins at row `first` of a head at `to`, by way of its
 * rows of `tile`, one of the block's own. */
template <class s, class T = typename s::T>
__device__ __forceinline__ void put_tile(T *to, int64_t stride, int64_t first,
                                         const sums_of<s> &sum, unsigned *tile,
                                         const place_in_warp &at, const attended<T> &a) {
  constexpr int PIECES = s::WORDS / 4, PER_WORD = s::precision::PER_WORD;
  unsigned *const rows = tile + at.row * s::STRIDE;
  __syncwarp();
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int n = 0; n < s::WIDTH / 8; n++) {
      EK_UNROLL
      for (int h = 0; h < 2; h++) {
        s::precision::put(rows + (16 * i + 8 * h + at.g) * s::STRIDE + 8 * n / PER_WORD, at.t,
                          sum[i][n][2 * h], sum[i][n][2 * h + 1]);
      }
    }
  }
  __syncwarp();
  EK_UNROLL_BY(4)
  for (int i = 0; i < s::STRIPS * 16 * PIECES; i += (int)WARP) {
    const int piece = i + at.lane, row = piece / PIECES, word = piece % PIECES * 4;
    const int column = word * PER_WORD;
    const int64_t token = first + at.row + row;
    if (token >= a.tokens || column >= a.width) continue;
    pack<T, PACK<T>> value;
    const pack<unsigned, 4> words = load<4>(rows + row * s::STRIDE + word);
    memcpy(&value, &words, sizeof value);
    T *const p = to + token * stride + column;
    if (a.wide) {
      store<PACK<T>>(p, value);
      continue;
    }
    EK_UNROLL
    for (int j = 0; j < PACK<T>; j++) {
      if (column + j < a.width) p[j] = value.at[j];
    }
  }
}

} // namespace ek__cuda

#endif /* EK_CUDA_ATTEND_WARP_CUH */
