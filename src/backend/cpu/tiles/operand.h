/*
 * operand.h - operands of products on the matrix unit: packed as whole tiles, and multiplied.
 *
 * A matrix of `lines` by `depth` is cut into tiles of 16 lines by 32 of depth, filled up with
 * zeros; lines are a's rows or b's columns, and the depth is what is summed over. A tile is a
 * square of 16 by 16 words, a word two neighbours of the depth:
 *   a   tile[line][word]
 *   b   tile[word][line], which is the same turned
 * Where the depth is in order in memory a's tile is a copy, and where the lines are, b's is two
 * rows interleaved; the other two cases turn words.
 *
 * Products are made in squares of 32 by 32 of c: of the eight tiles four are c, two a, two b, so
 * that each loaded tile serves two operations.
 */
#ifndef EK_CPU_OPERAND_H
#define EK_CPU_OPERAND_H

#include "backend/cpu/tiles/tile.h"

#define SQUARE 32 /* rows and columns of c at a time */

/* How many of `size` cover `count`. */
static inline int64_t cover(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* Tiles in memory, by bytes. */
struct operand {
  const char *at;
  int64_t row;   /* from one row of a tile to the next */
  int64_t lines; /* from a tile to the one of the next 16 lines */
  int64_t depth; /* from a tile to the one of the next 32 of depth */
};

/* Packed with so many tiles along the depth. */
static inline struct operand packed(const void *at, int64_t depths) {
  return (struct operand){at, 64, depths * TILE_BYTES, TILE_BYTES};
}

/* ---- packing ---- */

/* Part of a matrix: element (line, p) at x + line * line_step + p * depth_step, of which one step
 * is 1. */
struct matrix {
  const value *x;
  int64_t line_step, depth_step;
  int64_t lines, depth;
};

enum side { SIDE_A, SIDE_B };

typedef uint32_t words[16][16];

static inline void turn_words(uint32_t (*to)[16], uint32_t (*from)[16]) {
  for (int i = 0; i < 16; i += W) {
    for (int j = 0; j < 16; j += W) {
      vec rows[W];
      for (int r = 0; r < W; r++) memcpy(&rows[r], &from[i + r][j], sizeof rows[r]);
      v_transpose(rows);
      for (int r = 0; r < W; r++) memcpy(&to[j + r][i], &rows[r], sizeof rows[r]);
    }
  }
}

/* to[line][word], from x on; the depth is in order. */
static inline void copy_lines(uint32_t (*to)[16], const value *x, int64_t step, int64_t lines,
                              int64_t depth) {
  if (lines == TILE_LINES && depth == TILE_DEPTH) {
    for (int64_t i = 0; i < TILE_LINES; i++) memcpy(to[i], x + i * step, sizeof to[i]);
    return;
  }
  memset(to, 0, TILE_BYTES);
  for (int64_t i = 0; i < lines; i++) memcpy(to[i], x + i * step, (size_t)depth * sizeof *x);
}

/* to[word][line]; the lines are in order. */
static inline void join_depths(uint32_t (*to)[16], const value *x, int64_t step, int64_t lines,
                               int64_t depth) {
  if (lines == TILE_LINES && depth == TILE_DEPTH) {
    for (int64_t p = 0; p < TILE_DEPTH; p += 2, x += 2 * step) {
      for (int64_t i = 0; i < TILE_LINES; i += W) {
        vec_s even, odd;
        memcpy(&even, x + i, sizeof even);
        memcpy(&odd, x + step + i, sizeof odd);
        const vec_u both = s_zero_extend(even) | s_zero_extend(odd) << 16;
        memcpy(&to[p / 2][i], &both, sizeof both);
      }
    }
    return;
  }
  memset(to, 0, TILE_BYTES);
  for (int64_t p = 0; p < depth; p++) {
    const int shift = p % 2 == 0 ? 0 : 16;
    for (int64_t i = 0; i < lines; i++) to[p / 2][i] |= (uint32_t)x[p * step + i].bits << shift;
  }
}

static inline void pack_tile(uint32_t (*to)[16], const struct matrix *m, int64_t line, int64_t p,
                             enum side side) {
  _Alignas(64) words natural;
  const int64_t lines = m->lines - line < TILE_LINES ? m->lines - line : TILE_LINES;
  const int64_t depth = m->depth - p < TILE_DEPTH ? m->depth - p : TILE_DEPTH;
  const value *x = m->x + line * m->line_step + p * m->depth_step;
  const bool in_order = m->depth_step == 1; /* the depth */
  uint32_t(*const place)[16] = in_order == (side == SIDE_A) ? to : natural;
  if (in_order) {
    copy_lines(place, x, m->line_step, lines, depth);
  } else {
    join_depths(place, x, m->depth_step, lines, depth);
  }
  if (place != to) turn_words(to, natural);
}

/* Lines are filled up to whole squares, tiles of one line behind each other. Called from many
 * places, each of which would have it whole. */
static __attribute__((noinline)) void pack(value *to, const struct matrix *m, enum side side) {
  const int64_t depths = cover(m->depth, TILE_DEPTH), lines = cover(m->lines, SQUARE) * SQUARE;
  char *next = (char *)to;
  for (int64_t line = 0; line < lines; line += TILE_LINES) {
    for (int64_t p = 0; p < depths; p++, next += TILE_BYTES) {
      if (line < m->lines) {
        pack_tile((uint32_t(*)[16])(void *)next, m, line, p * TILE_DEPTH, side);
      } else {
        memset(next, 0, TILE_BYTES);
      }
    }
  }
}

/* ---- products ---- */

/* c, a square of rows `step` floats apart, = a b, or c + a b where it adds; over so many tiles of
 * depth. */
static inline void multiply_square(float *c, int64_t step, const struct operand *a,
                                   const struct operand *b, int64_t depths, bool adds) {
  TILE_FILE(t);
  float *below = c + TILE_LINES * step;
  const int64_t row = step * (int64_t)sizeof *c;
  const char *a0 = a->at, *a1 = a0 + a->lines, *b0 = b->at, *b1 = b0 + b->lines;
  TILE_FENCE();
  if (adds) {
    TILE_LOAD(t, 0, c, row);
    TILE_LOAD(t, 1, c + 16, row);
    TILE_LOAD(t, 2, below, row);
    TILE_LOAD(t, 3, below + 16, row);
  } else {
    TILE_ZERO(t, 0);
    TILE_ZERO(t, 1);
    TILE_ZERO(t, 2);
    TILE_ZERO(t, 3);
  }
  for (int64_t p = 0; p < depths; p++) {
    TILE_LOAD(t, 4, a0, a->row);
    TILE_LOAD(t, 6, b0, b->row);
    TILE_DOT(t, 0, 4, 6);
    TILE_LOAD(t, 7, b1, b->row);
    TILE_DOT(t, 1, 4, 7);
    TILE_LOAD(t, 5, a1, a->row);
    TILE_DOT(t, 2, 5, 6);
    TILE_DOT(t, 3, 5, 7);
    a0 += a->depth, a1 += a->depth, b0 += b->depth, b1 += b->depth;
  }
  TILE_STORE(t, 0, c, row);
  TILE_STORE(t, 1, c + 16, row);
  TILE_STORE(t, 2, below, row);
  TILE_STORE(t, 3, below + 16, row);
  TILE_FENCE();
}

#endif /* EK_CPU_OPERAND_H */
