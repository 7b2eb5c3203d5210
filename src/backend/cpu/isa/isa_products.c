/*
 * isa_products.c - matrix products: of values of 16 bits, and of f32 for a library that is built
 * without oneDNN.
 *
 * Blocks of a and b are copied as floats (Goto and van de Geijn 2008, "Anatomy of high-performance
 * matrix multiplication"):
 *   b   DEPTH x COLUMNS, in panels of two vectors' columns, which the innermost loop reads in
 *       order; stays in the second cache, a panel in the first
 *   a   LINES x DEPTH as it lies in memory, so that nothing is turned; its numbers are read one by
 *       one
 * A tile of c, ROWS x two vectors, is summed in registers over the depth of a block. Blocks are
 * filled up to whole tiles, so that the loop has one shape; only what it gives is cut.
 *
 * An element of c is the sum in the order of k, by blocks of DEPTH: its bits depend neither on the
 * number of threads nor on its place in the matrix. Where c is of 16 bits its blocks are added up
 * in scratch, STRIP x COLUMNS, and rounded once.
 */
#include "backend/cpu/isa/isa.h"

/* Two accumulators for each row must fit into the registers: 32 of them, or 16. */
#if W == 16
#define ROWS 12
#else
#define ROWS 6
#endif
#define WIDE (2 * W)

#define LINES 48
#define DEPTH 256
#define COLUMNS 128
#define STRIP 192
#define TURNED (DEPTH * ROWS + WIDE) /* a tile of a whose numbers are turned, and a gap */

typedef float tile[ROWS][WIDE];

struct panels {
  _Alignas(64) float a[LINES / ROWS * TURNED];
  _Alignas(64) float b[COLUMNS * DEPTH];
};

_Static_assert(sizeof(struct panels) <= sizeof((struct ek__scratch *)0)->panels, "scratch");

/* Part of a or b: element (line, p) lies at x + line * line_step + p * depth_step, of which one
 * step is 1. */
struct view {
  const value *x;
  int64_t line_step, depth_step;
  int64_t lines, depth;
};

static int64_t at_most(int64_t count, int64_t most) { return count < most ? count : most; }

/* panel[p][line] of W lines from x on, whose depth is in order; `lines` of them are there, the
 * others are 0. */
static void pack_turned(float *panel, const value *x, int64_t lines, int64_t step, int64_t depth) {
  vec rows[W];
  V_EACH(0, depth, {
    for (int64_t j = 0; j < W; j++) rows[j] = j < lines ? x_get(x + j * step + i, n) : (vec){0};
    v_transpose(rows);
    for (int64_t j = 0; j < n; j++) v_store(panel + (i + j) * WIDE, rows[j]);
  });
}

/* panel[p][line], WIDE lines, for the view's lines from `first` on; 0 behind the last. */
static void pack_panel(float *panel, const struct view *view, int64_t first) {
  const int64_t lines = at_most(view->lines - first, WIDE);
  const value *x = view->x + first * view->line_step;
  if (view->line_step != 1) {
    pack_turned(panel, x, lines, view->line_step, view->depth);
    pack_turned(panel + W, x + W * view->line_step, lines - W, view->line_step, view->depth);
    return;
  }
  if (lines < WIDE) memset(panel, 0, (size_t)(view->depth * WIDE) * sizeof *panel);
  for (int64_t p = 0; p < view->depth; p++) {
    const value *from = x + p * view->depth_step;
    V_EACH(0, lines, v_put(panel + p * WIDE + i, x_get(from + i, n), n));
  }
}

static void pack(float *panels, const struct view *view) {
  for (int64_t first = 0; first < view->lines; first += WIDE) {
    pack_panel(panels + first * view->depth, view, first);
  }
}

/* How a block of a lies: in tiles of ROWS lines, as they are in memory, DEPTH apart, or turned,
 * ROWS numbers for each depth. */
struct layout {
  bool turned;
  int64_t tile; /* from one to the next */
};

/* Vectors are stored over the beginning of what comes next, in order; hence the gap between tiles.
 * A load that spans two stores waits until both have left the store buffer, so several depths are
 * widened before the first is read again. */
#define AHEAD 8
static void widen_turned(float *block, const struct view *view) {
  float lines[AHEAD][LINES + WIDE] = {{0}};
  for (int64_t first = 0; first < view->depth; first += AHEAD) {
    const int64_t last = at_most(view->depth, first + AHEAD);
    for (int64_t p = first; p < last; p++) {
      const value *from = view->x + p * view->depth_step;
      float *to = lines[p - first];
      V_EACH(0, view->lines, v_put(to + i, x_get(from + i, n), n));
    }
    for (int64_t i = 0; i < view->lines; i += ROWS) {
      for (int64_t p = first; p < last; p++) {
        float *to = block + i / ROWS * TURNED + p * ROWS;
        for (int64_t j = 0; j < ROWS; j += W) v_store(to + j, v_load(lines[p - first] + i + j));
      }
    }
  }
}

/* The block as floats; lines up to a multiple of ROWS are there. */
static struct layout widen_block(float *block, const struct view *view) {
  if (view->line_step == 1) {
    widen_turned(block, view);
    return (struct layout){true, TURNED};
  }
  const int64_t more = (ROWS - view->lines % ROWS) % ROWS;
  for (int64_t line = 0; line < view->lines; line++) {
    const value *from = view->x + line * view->line_step;
    V_EACH(0, view->depth, v_put(block + line * DEPTH + i, x_get(from + i, n), n));
  }
  memset(block + view->lines * DEPTH, 0, (size_t)(more * DEPTH) * sizeof *block);
  return (struct layout){false, ROWS * DEPTH};
}

/* c = alpha t + beta c for t = ROWS lines of a times a panel of b; c is not read where beta is
 * 0. */
static inline __attribute__((always_inline)) void multiply_tile(float *c, int64_t ldc,
                                                                const float *a, int64_t line_step,
                                                                int64_t depth_step, const float *b,
                                                                int64_t depth, float alpha,
                                                                float beta) {
  vec sum[ROWS][2];
  for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = (vec){0};
  for (int64_t p = 0; p < depth; p++, a += depth_step, b += WIDE) {
    const vec b0 = v_load(b), b1 = v_load(b + W);
    for (int i = 0; i < ROWS; i++) {
      sum[i][0] += v_set(a[i * line_step]) * b0;
      sum[i][1] += v_set(a[i * line_step]) * b1;
    }
  }
  for (int i = 0; i < ROWS; i++) {
    float *to = c + i * ldc;
    const vec t0 = alpha * sum[i][0], t1 = alpha * sum[i][1];
    v_store(to, beta == 0.0f ? t0 : t0 + beta * v_load(to));
    v_store(to + W, beta == 0.0f ? t1 : t1 + beta * v_load(to + W));
  }
}

/* Both layouts, with their steps told to the compiler. */
static void multiply_panels(float *c, int64_t ldc, const float *a, bool turned, const float *b,
                            int64_t depth, float alpha, float beta) {
  if (turned) {
    multiply_tile(c, ldc, a, 1, ROWS, b, depth, alpha, beta);
  } else {
    multiply_tile(c, ldc, a, DEPTH, 1, b, depth, alpha, beta);
  }
}

/* `count` elements of a row: c = t + beta c; c is not read where beta is 0. */
static void write_row(float *c, const float *t, int64_t count, float beta) {
  V_EACH(0, count, {
    const vec sum = v_load(t + i);
    v_put(c + i, beta == 0.0f ? sum : sum + beta * v_get(c + i, n), n);
  });
}

/* The packed blocks' share of the part of c that begins at `c`. */
static void multiply_blocks(float *c, int64_t ldc, float alpha, float beta,
                            const struct panels *panels, const struct view *a, struct layout layout,
                            const struct view *b) {
  tile t;
  for (int64_t j = 0; j < b->lines; j += WIDE) {
    const int64_t columns = at_most(b->lines - j, WIDE);
    const float *panel = panels->b + j * b->depth;
    for (int64_t i = 0; i < a->lines; i += ROWS) {
      const int64_t rows = at_most(a->lines - i, ROWS);
      const float *lines = panels->a + i / ROWS * layout.tile;
      float *to = c + i * ldc + j;
      if (rows == ROWS && columns == WIDE) {
        multiply_panels(to, ldc, lines, layout.turned, panel, a->depth, alpha, beta);
        continue;
      }
      multiply_panels(t[0], WIDE, lines, layout.turned, panel, a->depth, alpha, 0.0f);
      for (int64_t r = 0; r < rows; r++) write_row(to + r * ldc, t[r], columns, beta);
    }
  }
}

/* Rows begin .. end - 1 and columns from j on, of a block, as floats: c points at the first. */
static void multiply_strip(const struct ek__gemm *g, float *c, int64_t ldc, double beta,
                           int64_t begin, int64_t end, int64_t j) {
  const int64_t a_line = g->transpose_a ? 1 : g->lda, a_depth = g->transpose_a ? g->lda : 1;
  const int64_t b_line = g->transpose_b ? g->ldb : 1, b_depth = g->transpose_b ? 1 : g->ldb;
  struct panels *panels = (struct panels *)(void *)ek__team_scratch()->panels;
  for (int64_t p = 0; p < g->k; p += DEPTH) {
    const int64_t depth = at_most(g->k - p, DEPTH);
    const struct view b = {(const value *)g->b + j * b_line + p * b_depth, b_line, b_depth,
                           at_most(g->n - j, COLUMNS), depth};
    pack(panels->b, &b);
    for (int64_t i = begin; i < end; i += LINES) {
      const struct view a = {(const value *)g->a + i * a_line + p * a_depth, a_line, a_depth,
                             at_most(end - i, LINES), depth};
      const struct layout layout = widen_block(panels->a, &a);
      multiply_blocks(c + (i - begin) * ldc, ldc, (float)g->alpha, p == 0 ? (float)beta : 1.0f,
                      panels, &a, layout, &b);
    }
  }
}

/* c is of sums. */
static void multiply_into_sums(const struct ek__gemm *g, int64_t begin, int64_t end) {
  for (int64_t j = 0; j < g->n; j += COLUMNS) {
    multiply_strip(g, (float *)g->c + begin * g->ldc + j, g->ldc, g->beta, begin, end, j);
  }
}

#ifdef EK_VALUE_f32
void EK_ISA_NAME(product)(const void *raw, int64_t begin, int64_t end) {
  multiply_into_sums(raw, begin, end);
}
#else
typedef float strip[STRIP][COLUMNS];
_Static_assert(sizeof(strip) <= sizeof((struct ek__scratch *)0)->sums, "scratch");

static void multiply_into_values(const struct ek__gemm *g, int64_t begin, int64_t end) {
  float(*sums)[COLUMNS] = (float(*)[COLUMNS])(void *)ek__team_scratch()->sums;
  const float beta = (float)g->beta;
  const value *bias = g->bias;
  for (int64_t first = begin; first < end; first += STRIP) {
    const int64_t last = first + at_most(end - first, STRIP);
    for (int64_t j = 0; j < g->n; j += COLUMNS) {
      const int64_t columns = at_most(g->n - j, COLUMNS);
      multiply_strip(g, sums[0], COLUMNS, 0.0, first, last, j);
      for (int64_t row = first; row < last; row++) {
        const float *sum = sums[row - first];
        value *c = (value *)g->c + row * g->ldc + j;
        V_EACH(0, columns, {
          vec add = v_get(sum + i, n);
          if (beta != 0.0f) add += beta * x_get(c + i, n);
          if (bias != NULL) add += x_get(bias + j + i, n);
          x_put(c + i, add, n);
        });
      }
    }
  }
}

void EK_ISA_NAME(product)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gemm *g = raw;
  if (g->c_is_sum) {
    multiply_into_sums(g, begin, end);
  } else {
    multiply_into_values(g, begin, end);
  }
}
#endif
