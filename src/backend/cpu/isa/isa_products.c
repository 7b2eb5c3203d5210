/*
 * isa_products.c - matrix products: of values of 16 bits, and of f32 for a library that is built
 * without oneDNN.
 *
 * Blocks of a and b are copied into panels of floats, so that the innermost loop reads both in order
 * (Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication"):
 *   b   DEPTH x COLUMNS, in panels of two vectors' columns; stays in the second cache
 *   a   LINES x DEPTH, in panels of ROWS rows; stays in the first cache
 * A tile of c, ROWS x two vectors, is summed in registers over the depth of a block. Panels at the
 * edge are filled up with zeros, so that the loop has one shape; only what it gives is cut.
 *
 * An element of c is the sum in the order of k, by blocks of DEPTH: its bits depend neither on the
 * number of threads nor on its place in the matrix. Where c is of 16 bits its blocks are added up in
 * scratch, STRIP x COLUMNS, and rounded once.
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
#define DEPTH 128
#define COLUMNS 256
#define STRIP 96

typedef float tile[ROWS][WIDE];

struct panels {
  _Alignas(64) float a[LINES * DEPTH];
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

/* panel[p][line], `width` lines wide, for the view's lines from `first` on; 0 behind the last. */
static void pack_panel(float *panel, int width, const struct view *view, int64_t first) {
  const int64_t left = view->lines - first;
  const int64_t lines = left < width ? left : width;
  const value *x = view->x + first * view->line_step;
  if (lines < width) memset(panel, 0, (size_t)(view->depth * width) * sizeof *panel);
  if (view->line_step == 1) {
    for (int64_t p = 0; p < view->depth; p++) {
      const value *from = x + p * view->depth_step;
      V_EACH(0, lines, v_put(panel + p * width + i, x_get(from + i, n), n));
    }
    return;
  }
  for (int64_t line = 0; line < lines; line++) {
    const value *from = x + line * view->line_step;
    V_EACH(0, view->depth, {
      float lanes[W];
      v_store(lanes, x_get(from + i, n));
      for (int64_t j = 0; j < n; j++) panel[(i + j) * width + line] = lanes[j];
    });
  }
}

static void pack(float *panels, int width, const struct view *view) {
  for (int64_t first = 0; first < view->lines; first += width) {
    pack_panel(panels + first * view->depth, width, view, first);
  }
}

/* t = a panel of a times a panel of b. */
static void multiply_panels(tile t, const float *a, const float *b, int64_t depth) {
  vec sum[ROWS][2];
  for (int i = 0; i < ROWS; i++) sum[i][0] = sum[i][1] = (vec){0};
  for (int64_t p = 0; p < depth; p++, a += ROWS, b += WIDE) {
    const vec b0 = v_load(b), b1 = v_load(b + W);
    for (int i = 0; i < ROWS; i++) {
      sum[i][0] += v_set(a[i]) * b0;
      sum[i][1] += v_set(a[i]) * b1;
    }
  }
  for (int i = 0; i < ROWS; i++) {
    v_store(t[i], sum[i][0]);
    v_store(t[i] + W, sum[i][1]);
  }
}

/* `count` elements of a row: c = alpha t + beta c; c is not read where beta is 0. */
static void write_row(float *c, const float *t, int64_t count, float alpha, float beta) {
  V_EACH(0, count, {
    const vec sum = alpha * v_load(t + i);
    v_put(c + i, beta == 0.0f ? sum : sum + beta * v_get(c + i, n), n);
  });
}

/* The packed blocks' share of the part of c that begins at `c`. */
static void multiply_blocks(float *c, int64_t ldc, double alpha, double beta,
                            const struct panels *panels, const struct view *a,
                            const struct view *b) {
  tile t;
  for (int64_t j = 0; j < b->lines; j += WIDE) {
    const int64_t columns = b->lines - j < WIDE ? b->lines - j : WIDE;
    for (int64_t i = 0; i < a->lines; i += ROWS) {
      const int64_t rows = a->lines - i < ROWS ? a->lines - i : ROWS;
      multiply_panels(t, panels->a + i * a->depth, panels->b + j * b->depth, a->depth);
      for (int64_t r = 0; r < rows; r++) {
        write_row(c + (i + r) * ldc + j, t[r], columns, (float)alpha, (float)beta);
      }
    }
  }
}

static int64_t at_most(int64_t count, int64_t most) { return count < most ? count : most; }

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
    pack(panels->b, WIDE, &b);
    for (int64_t i = begin; i < end; i += LINES) {
      const struct view a = {(const value *)g->a + i * a_line + p * a_depth, a_line, a_depth,
                             at_most(end - i, LINES), depth};
      pack(panels->a, ROWS, &a);
      multiply_blocks(c + (i - begin) * ldc, ldc, g->alpha, p == 0 ? beta : 1.0, panels, &a, &b);
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
