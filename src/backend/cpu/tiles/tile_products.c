/*
 * tile_products.c - products of bf16 on the matrix unit, with sums in f32.
 *
 * As in isa/isa_products.c blocks of a and b are copied, here as they are and into tiles
 * (operand.h), and what they give goes to the same place, c or scratch (isa/place.h):
 *   b   DEPTH x COLUMNS; lies in the second cache
 *   a   LINES x DEPTH
 *
 * A square of c is summed in the unit's registers over the depth of a block and leaves through a
 * buffer, where vectors add, round and cut it. So an element is the sum of blocks of DEPTH from the
 * first on, each by steps of 32 that begin at 0: its bits depend neither on the number of threads
 * nor on its place in the matrix. alpha is 1.
 */
#include "backend/cpu/isa/place.h"
#include "backend/cpu/tiles/operand.h"

#define LINES 96
#define DEPTH 512

struct panels {
  _Alignas(64) value a[LINES * DEPTH];
  _Alignas(64) value b[COLUMNS * DEPTH];
};
_Static_assert(sizeof(struct panels) <= sizeof((struct ek__scratch *)0)->panels, "scratch");
_Static_assert(LINES % SQUARE == 0 && COLUMNS % SQUARE == 0, "whole squares");

/* The part of a square that c has. */
static void write_square(const struct place *place, float t[SQUARE][SQUARE], int64_t row,
                         int64_t column, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; r++) {
    if (place->c == NULL) {
      write_sums(place->sums + (row + r) * place->step + column, t[r], columns, place->beta);
      continue;
    }
    for (int64_t j = 0; j < columns; j += 2 * W) {
      write_values(place, row + r, column + j, t[r] + j, at_most(columns - j, 2 * W));
    }
  }
}

/* `row` is the place's of the first line of a. */
static void multiply_blocks(const struct place *place, int64_t row, const struct panels *panels,
                            int64_t lines, int64_t columns, int64_t depths) {
  _Alignas(64) float t[SQUARE][SQUARE];
  struct operand b = packed(panels->b, depths);
  for (int64_t j = 0; j < columns; j += SQUARE, b.at += 2 * b.lines) {
    struct operand a = packed(panels->a, depths);
    const int64_t there = place->padded ? SQUARE : at_most(columns - j, SQUARE);
    for (int64_t i = 0; i < lines; i += SQUARE, a.at += 2 * a.lines) {
      multiply_square(t[0], SQUARE, &a, &b, depths, false);
      write_square(place, t, row + i, j, at_most(lines - i, SQUARE), there);
    }
  }
}

/* Rows begin .. end - 1 and columns from j on, of a block. */
static void multiply_strip(const struct ek__gemm *g, int64_t begin, int64_t end, int64_t j) {
  const int64_t a_line = g->transpose_a ? 1 : g->lda, a_depth = g->transpose_a ? g->lda : 1;
  const int64_t b_line = g->transpose_b ? g->ldb : 1, b_depth = g->transpose_b ? 1 : g->ldb;
  struct panels *panels = (struct panels *)(void *)ek__team_scratch()->panels;
  for (int64_t p = 0; p < g->k; p += DEPTH) {
    const int64_t depth = at_most(g->k - p, DEPTH), columns = at_most(g->n - j, COLUMNS);
    const struct place place = place_of(g, begin, j, p, DEPTH);
    const value *from = (const value *)g->b + j * b_line + p * b_depth;
    pack(panels->b, &(struct matrix){from, b_line, b_depth, columns, depth}, SIDE_B);
    for (int64_t i = begin; i < end; i += LINES) {
      const int64_t lines = at_most(end - i, LINES);
      from = (const value *)g->a + i * a_line + p * a_depth;
      pack(panels->a, &(struct matrix){from, a_line, a_depth, lines, depth}, SIDE_A);
      multiply_blocks(&place, i - begin, panels, lines, columns, cover(depth, TILE_DEPTH));
    }
  }
}

void EK_ISA_NAME(tile_product)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gemm *g = raw;
  const int64_t strip = rounds(g) ? STRIP : end - begin;
  struct tile_unit unit;
  tile_open(&unit);
  for (int64_t first = begin; first < end; first += strip) {
    for (int64_t j = 0; j < g->n; j += COLUMNS) {
      multiply_strip(g, first, first + at_most(end - first, strip), j);
    }
  }
  tile_close(&unit);
}
