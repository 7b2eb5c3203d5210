/*
 * cuda_attend_warp.cuh - tiles of attention whose products are made by whole warps on tensor cores.
 *
 * A block of four warps has a tile of ROWS tokens of its own and walks over tiles of COLUMNS tokens. A
 * warp has STRIPS of 16 neighbouring rows, all columns of them, in registers, and nobody else's: no
 * scores go through shared memory. Tiles of tokens lie in shared memory, rounded, as words of 32 bits;
 * their rows are 4 words longer than a head, so that the eight rows and four words that a warp reads at
 * once are in 32 banks, along rows and along columns.
 *
 * The sums of a product have the order in which they are multiplied next as a left operand only if
 * its tokens are counted in another order than they lie in: see left() and right().
 *
 * What depends on the type is in the struct `precision` alone: the words of a row, the depth of a
 * product, and how scores become operands. A product of 16-bit types has twice the depth in as many
 * words, read in the same places (PTX ISA, mma.m16n8k16): its struct is all that they will need.
 *
 * Floor: 4 d operations (2 of them a multiply-add) for each pair of tokens forward, 14 d backward.
 * Each product of 16 x 8 x 8 by a strip reads 64 words of shared memory, or 64 / STRIPS a strip.
 */
#ifndef EK_CUDA_ATTEND_WARP_CUH
#define EK_CUDA_ATTEND_WARP_CUH

#include "backend/cuda/cuda_attend.cuh"
#include "backend/cuda/cuda_inline.cuh"

namespace ek__cuda {

struct tf32 {
  using T = float;
  static constexpr int DEPTH = 8; /* of a product: 8 words of a row */
  static constexpr int PER_WORD = 1;

  static __device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4],
                                                  const unsigned (&b)[2]) {
    multiply_tf32(d, a, b);
  }
  /* A word as it was copied becomes an operand. */
  static __device__ __forceinline__ unsigned operand(unsigned word) {
    float x;
    memcpy(&x, &word, sizeof x);
    return round_tf32(x);
  }
  /* DEPTH columns of scores as the left operand of the next product. A lane has the columns 2 t and
   * 2 t + 1; as operand t and t + 4 they are the tokens that right() takes for these. */
  static __device__ __forceinline__ void left(unsigned (&a)[4], const float (*score)[4]) {
    a[0] = round_tf32(score[0][0]);
    a[1] = round_tf32(score[0][2]);
    a[2] = round_tf32(score[0][1]);
    a[3] = round_tf32(score[0][3]);
  }
  /* The same DEPTH tokens of one column of a tile; `tile` is at the first of them. */
  static __device__ __forceinline__ void right(unsigned (&b)[2], const unsigned *tile, int stride,
                                               int t) {
    b[0] = tile[2 * t * stride];
    b[1] = tile[(2 * t + 1) * stride];
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

/* A lane's place: see multiply_tf32(). */
struct place_in_warp {
  int g, t, row; /* row: the warp's first in the tile */
  __device__ explicit place_in_warp(int rows_of_warp)
      : g((int)(threadIdx.x % WARP) / 4), t((int)(threadIdx.x % WARP) % 4),
        row((int)(threadIdx.x / WARP) * rows_of_warp) {}
};

/* ---- tiles ---- */

/* Calls f(word of the tile, row, element of the row) for each 16 bytes that are this thread's. */
template <class s, int ROWS, class F> __device__ __forceinline__ void each_piece(F f) {
  constexpr int PIECES = s::WORDS / 4;
  static_assert(ROWS * PIECES % s::THREADS == 0, "all threads have as many");
  EK_UNROLL_BY(4)
  for (int i = (int)threadIdx.x; i < ROWS * PIECES; i += s::THREADS) {
    const int row = i / PIECES, word = i % PIECES * 4;
    f(row * s::STRIDE + word, row, word * s::precision::PER_WORD);
  }
}

/* Begins to copy rows first .. of a head at `from`, zeros where there are none; see round_tile(). */
template <class s, int ROWS, class T = typename s::T>
__device__ __forceinline__ void fetch_tile(unsigned *tile, const T *from, int64_t stride,
                                           int64_t first, const attended<T> &a) {
  each_piece<s, ROWS>([&](int at, int row, int column) {
    const bool there = first + row < a.tokens && column < a.width;
    const T *p = from + (first + row) * stride + column;
    if (a.wide) {
      copy_async<16>(tile + at, there ? p : from, there);
      return;
    }
    pack<T, PACK<T>> value = {};
    for (int j = 0; j < PACK<T>; j++) {
      if (there && column + j < a.width) value.at[j] = p[j];
    }
    memcpy(tile + at, &value, sizeof value);
  });
}

/* What this thread has copied becomes operands: after copy_wait(), before the barrier. */
template <class s, int ROWS> __device__ __forceinline__ void round_tile(unsigned *tile) {
  each_piece<s, ROWS>([&](int at, int, int) {
    pack<unsigned, 4> words = load<4>(tile + at);
    EK_UNROLL
    for (int j = 0; j < 4; j++) words.at[j] = s::precision::operand(words.at[j]);
    *reinterpret_cast<pack<unsigned, 4> *>(tile + at) = words;
  });
}

/* ---- products ---- */

/* score = this warp's rows of `rows` . rows of `columns` */
template <class s>
__device__ __forceinline__ void dot_tiles(scores_of<s> &score, const unsigned *rows,
                                          const unsigned *columns, const place_in_warp &at) {
  const unsigned *const left = rows + (at.row + at.g) * s::STRIDE + at.t;
  const unsigned *const right = columns + at.g * s::STRIDE + at.t;
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int n = 0; n < s::COLUMNS / 8; n++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) score[i][n][e] = 0;
    }
  }
  EK_UNROLL_BY(2)
  for (int k = 0; k < s::WORDS; k += 8) {
    unsigned a[s::STRIPS][4];
    EK_UNROLL
    for (int i = 0; i < s::STRIPS; i++) {
      EK_UNROLL
      for (int e = 0; e < 4; e++) {
        a[i][e] = left[(16 * i + e % 2 * 8) * s::STRIDE + k + e / 2 * 4];
      }
    }
    EK_UNROLL
    for (int n = 0; n < s::COLUMNS / 8; n++) {
      const unsigned b[2] = {right[8 * n * s::STRIDE + k], right[8 * n * s::STRIDE + k + 4]};
      EK_UNROLL
      for (int i = 0; i < s::STRIPS; i++) s::precision::multiply(score[i][n], a[i], b);
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
    for (int n = 0; n < s::WIDTH / 8; n++) {
      unsigned b[2];
      p::right(b, tile + k * s::STRIDE + 8 * n + at.g, s::STRIDE, at.t);
      EK_UNROLL
      for (int i = 0; i < s::STRIPS; i++) p::multiply(sum[i][n], a[i], b);
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

/* Writes this warp's rows of a tile that begins at row `first` of a head at `to`. */
template <class s, class T = typename s::T>
__device__ __forceinline__ void put_tile(T *to, int64_t stride, int64_t first,
                                         const sums_of<s> &sum, const place_in_warp &at,
                                         const attended<T> &a) {
  EK_UNROLL
  for (int i = 0; i < s::STRIPS; i++) {
    EK_UNROLL
    for (int h = 0; h < 2; h++) {
      const int64_t row = first + at.row + 16 * i + 8 * h + at.g;
      if (row >= a.tokens) continue;
      EK_UNROLL
      for (int n = 0; n < s::WIDTH / 8; n++) {
        const int column = 8 * n + 2 * at.t;
        T *const p = to + row * stride + column;
        const pack<T, 2> two = {{T(sum[i][n][2 * h]), T(sum[i][n][2 * h + 1])}};
        if (a.wide && column < a.width) {
          store<2>(p, two);
        } else {
          if (column < a.width) p[0] = two.at[0];
          if (column + 1 < a.width) p[1] = two.at[1];
        }
      }
    }
  }
}

} // namespace ek__cuda

#endif /* EK_CUDA_ATTEND_WARP_CUH */
