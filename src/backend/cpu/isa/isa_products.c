/*
 * isa_products.c - matrix products: of 16-bit values, and of f32 if that is faster than oneDNN or
 * the library is built without it.
 *
 * Blocks of a and b are copied as floats (Goto and van de Geijn 2008, "Anatomy of high-performance
 * matrix multiplication"):
 *   b   DEPTH x COLUMNS, in panels of two or four vectors' columns, which the innermost loop reads
 *       in order; is in the second cache
 *   a   LINES x DEPTH, as it is in memory, or, if its lines are in order there, in tiles of ROWS
 *       lines; its numbers are read one by one. In f32 a block that is already in reading order is
 *       read in place, even if it collides in the caches; of 16 bits a whole strip of lines is
 *       widened once for all columns, if there is room for its k
 * A tile of c, ROWS lines of a times a panel, is summed in registers over the depth of a block.
 * Blocks are padded to whole tiles, so that the loop has one shape, or half of it for the last
 * panel's columns if they are few; only its result is cut.
 *
 * An element of c is the sum in the order of k, by blocks of DEPTH: its bits depend neither on the
 * number of threads nor on its place in the matrix. If c is of 16 bits, its blocks are added up in
 * scratch, STRIP x COLUMNS, and the last of them is rounded into c.
 *
 * Besides the multiplications, which take 1 / (2 W) cycles each, an element of a that is copied by
 * blocks is copied for every COLUMNS of them, and one of b for every STRIP, or every row. The cost
 * of that is stores that miss the first cache, which leave the store buffer in order, and reads
 * that no cache holds. So destinations, c included, are fetched ahead, and so are the next sources
 * of copies, a run of memory for each tile that is multiplied.
 */
#include "backend/cpu/isa/place.h"

/* The registers, 32 or 16, hold the sums, a panel's vectors and a number of a. A step of depth is
 * ROWS + VECTORS reads for ROWS VECTORS multiplications: 10 for 24 with AVX-512. 12 rows by 2
 * vectors take 14 for 24, which is slower if another thread uses the same ports. */
#define ROWS 6
#if W == 16
#define VECTORS 4
#else
#define VECTORS 2
#endif
#define WIDE (VECTORS * W)
#define HALF (WIDE / 2)

#define LINES 96
#define DEPTH 256
#define TURNED (DEPTH * ROWS + W)       /* a tile of a whose numbers are turned, and a gap */
#define STORED ((ROWS + W - 1) / W * W) /* of which ROWS count */

/* Lines of a are read where they are. */
#ifdef EK_VALUE_f32
#define IN_PLACE true
#else
#define IN_PLACE false
#endif

typedef float tile[ROWS][WIDE];

struct panels {
  _Alignas(64) float a[LINES / ROWS * TURNED];
  _Alignas(64) float b[COLUMNS * DEPTH];
};

_Static_assert(sizeof(struct panels) <= sizeof((struct ek__scratch *)0)->panels, "scratch");

/* Part of a or b: element (line, p) is at x + line * line_step + p * depth_step, of which one
 * step is 1. */
struct view {
  const value *x;
  int64_t line_step, depth_step;
  int64_t lines, depth;
  int64_t there; /* at least this many lines may be read */
};

#define AHEAD 16
/* Fetches `count` floats that are going to be written. */
static inline void fetch(const float *to, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(to + i, 1);
}

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

/* The view's lines from x on, of which `lines` are there. */
static void pack_panel_turned(float *panel, const struct view *view, const value *x,
                              int64_t lines) {
  const int64_t step = view->line_step, depth = view->depth;
  int64_t p = 0;
  if (lines == WIDE) {
    for (; p + W <= depth; p += W) {
      float *to = panel + p * WIDE;
      fetch(to + W * WIDE, W * WIDE);
      for (int j = 0; j < VECTORS; j += 2) x_turn(to + j * W, WIDE, x + p + j * W * step, step);
    }
  }
  if (p == depth) return;
  const int vectors = lines <= HALF ? VECTORS / 2 : VECTORS; /* that are read */
  for (int j = 0; j < vectors; j++) {
    pack_turned(panel + p * WIDE + j * W, x + p + j * W * step, lines - j * W, step, depth - p);
  }
}

/* panel[p][line], WIDE lines, for the view's lines from `first` on; 0 after the last. */
static void pack_panel(float *panel, const struct view *view, int64_t first) {
  const int64_t lines = at_most(view->lines - first, WIDE), depth = view->depth;
  const int64_t step = view->depth_step;
  const value *x = view->x + first * view->line_step;
  if (view->line_step != 1) {
    pack_panel_turned(panel, view, x, lines);
    return;
  }
  if (lines < WIDE) memset(panel, 0, (size_t)(depth * WIDE) * sizeof *panel);
  for (int64_t p = 0; p < depth; p++) {
    float *to = panel + p * WIDE;
    fetch(to + AHEAD * WIDE, WIDE);
    if (lines == WIDE) {
      for (int j = 0; j < VECTORS; j++) v_store(to + j * W, x_load(x + p * step + j * W));
    } else {
      V_EACH(0, lines, v_put(to + i, x_get(x + p * step + i, n), n));
    }
  }
}

static void pack(float *panels, const struct view *view) {
  for (int64_t first = 0; first < view->lines; first += WIDE) {
    pack_panel(panels + first * view->depth, view, first);
  }
}

/* Where the tiles of a block of a are read. */
struct tiles {
  const float *at;
  int64_t step; /* from one to the next */
  int64_t line; /* from one of the ROWS lines to the next; 0: turned, ROWS numbers for each depth */
};

struct layout {
  struct tiles whole, rest; /* rest: the last tile, where lines are missing in it */
};

/* Whole vectors are stored, over the beginning of what comes next in the tile; hence the gap. */
static void widen_turned(float *block, const struct view *view) {
  const int64_t lines = view->lines, depth = view->depth;
  for (int64_t p = 0; p < depth; p++) {
    const value *from = view->x + p * view->depth_step;
    float *to = block + p * ROWS;
    for (int64_t i = 0; i < lines; i += ROWS, to += TURNED) {
      if (i + STORED <= view->there) {
        for (int64_t j = 0; j < STORED; j += W) v_store(to + j, x_load(from + i + j));
      } else {
        for (int64_t j = 0; j < STORED; j += W) {
          const int64_t n = at_most(lines - i - j, W);
          v_store(to + j, n > 0 ? x_get(from + i + j, n) : (vec){0});
        }
      }
    }
  }
}

/* Tiles of lines that were copied. */
static struct layout in_lines(const float *block) {
  const struct tiles tiles = {block, ROWS * DEPTH, DEPTH};
  return (struct layout){tiles, tiles};
}

/* Lines `first` on as floats, and 0 up to a multiple of ROWS. */
static void widen_lines(float *block, const struct view *view, int64_t first) {
  const int64_t more = (ROWS - view->lines % ROWS) % ROWS, depth = view->depth;
  for (int64_t line = first; line < view->lines; line++) {
    const value *from = view->x + line * view->line_step;
    float *to = block + line * DEPTH;
    V_EACH(0, depth, {
      fetch(to + i + AHEAD * W, W);
      v_put(to + i, x_get(from + i, n), n);
    });
  }
  memset(block + view->lines * DEPTH, 0, (size_t)(more * DEPTH) * sizeof *block);
}

/* Lines of a from i on, `most` of them, which end before `end`, and k from p on. */
static struct view block_of_a(const struct ek__gemm *g, int64_t i, int64_t end, int64_t p,
                              int64_t most) {
  const int64_t line = g->transpose_a ? 1 : g->lda, depth = g->transpose_a ? g->lda : 1;
  return (struct view){(const value *)g->a + i * line + p * depth,
                       line,
                       depth,
                       at_most(end - i, most),
                       at_most(g->k - p, DEPTH),
                       end - i};
}

/* Lines begin .. end - 1 of a as floats, once for all columns of c: one block after the other, each
 * of all lines. NULL: they are floats, not in order of k, of few columns, or there is no room. */
#define WIDENED_LINES (STRIP + ROWS)
static const float *widened_strip(const struct ek__gemm *g, int64_t begin, int64_t end) {
  const int64_t most = (int64_t)(sizeof((struct ek__scratch *)0)->lines / sizeof(float));
  const int64_t blocks = (g->k + DEPTH - 1) / DEPTH;
  if (IN_PLACE || g->transpose_a || g->n <= COLUMNS || end - begin > STRIP ||
      blocks > most / (WIDENED_LINES * DEPTH)) {
    return NULL;
  }
  float *all = (float *)(void *)ek__team_scratch()->lines;
  for (int64_t block = 0; block < blocks; block++) {
    const struct view view = block_of_a(g, begin, end, block * DEPTH, STRIP);
    widen_lines(all + block * WIDENED_LINES * DEPTH, &view, 0);
  }
  return all;
}

static const float *block_in(const float *widened, int64_t line, int64_t p) {
  return widened + (p / DEPTH * WIDENED_LINES + line) * DEPTH;
}

/* The view in tiles; what cannot be read in place is copied into the block. */
static struct layout lay_out(float *block, const struct view *view) {
  if (view->line_step == 1) {
    widen_turned(block, view);
    const struct tiles turned = {block, TURNED, 0};
    return (struct layout){turned, turned};
  }
  struct layout layout = in_lines(block);
  const struct tiles there = {(const float *)(const void *)view->x, ROWS * view->line_step,
                              view->line_step};
  widen_lines(block, view, IN_PLACE ? view->lines / ROWS * ROWS : 0);
  if (IN_PLACE) layout.whole = there;
  return layout;
}

struct scale {
  float alpha, beta;
};

/* c = alpha t + beta c for t = ROWS lines of a times a panel of b; c is not read where beta is
 * 0. All of the 16 registers of AVX2 except one are sums, a panel's two vectors and a number of a:
 * so alpha and beta are read when the loop is done. That takes few turns, so that the processor
 * foresees its end. The loop after it has a condition, and is not unrolled unless asked for; a
 * loop would have its sums in memory. */
static inline __attribute__((always_inline)) void multiply_tile(
    float *c, int64_t ldc, const float *a, int64_t line_step, int64_t depth_step, const float *b,
    int64_t depth, const struct scale *scale, const int vectors) {
  vec sum[ROWS][VECTORS];
  for (int i = 0; i < ROWS; i++) {
    fetch(c + i * ldc, vectors * W);
    /* Of another line of the cache, maybe. */
    __builtin_prefetch(c + i * ldc + vectors * W - 1, 1);
    for (int j = 0; j < vectors; j++) sum[i][j] = (vec){0};
  }
#pragma GCC unroll 8
  for (int64_t p = 0; p < depth; p++, a += depth_step, b += WIDE) {
    vec of_b[VECTORS];
    for (int j = 0; j < vectors; j++) of_b[j] = v_load(b + j * W);
    for (int i = 0; i < ROWS; i++) {
      const vec of_a = v_set(a[i * line_step]);
      for (int j = 0; j < vectors; j++) sum[i][j] += of_a * of_b[j];
    }
  }
  const float alpha = scale->alpha, beta = scale->beta;
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++) {
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) {
      float *to = c + i * ldc + j * W;
      const vec t = alpha * sum[i][j];
      v_store(to, beta == 0.0f ? t : t + beta * v_load(to));
    }
  }
}

/* Both layouts and both widths, with their steps told to the compiler. Functions by themselves, so
 * that no other variable takes a register from the sums. */
#define MULTIPLY(name, line_step, depth_step, vectors)                                             \
  static __attribute__((noinline)) void name(float *c, int64_t ldc, const float *a, int64_t line,  \
                                             const float *b, int64_t depth,                        \
                                             const struct scale *scale) {                          \
    (void)line;                                                                                    \
    multiply_tile(c, ldc, a, line_step, depth_step, b, depth, scale, vectors);                     \
  }
MULTIPLY(multiply_turned, 1, ROWS, VECTORS)
MULTIPLY(multiply_lines, IN_PLACE ? line : DEPTH, 1, VECTORS)
MULTIPLY(multiply_turned_half, 1, ROWS, VECTORS / 2)
MULTIPLY(multiply_lines_half, IN_PLACE ? line : DEPTH, 1, VECTORS / 2)

/* What a tile of c is multiplied from. */
struct factors {
  const float *a;
  int64_t line; /* of a, 0 where it is turned */
  const float *b;
  int64_t depth;
};

/* This and multiply_rows() become a part of the loop over tiles, so that a tile's factors need no
 * memory. */
static inline __attribute__((always_inline)) void multiply_panels(float *c, int64_t ldc,
                                                                  const struct factors *of,
                                                                  bool half, float alpha,
                                                                  float beta) {
  const struct scale scale = {alpha, beta};
  if (half) {
    (of->line == 0 ? multiply_turned_half : multiply_lines_half)(c, ldc, of->a, of->line, of->b,
                                                                 of->depth, &scale);
  } else {
    (of->line == 0 ? multiply_turned : multiply_lines)(c, ldc, of->a, of->line, of->b, of->depth,
                                                       &scale);
  }
}

/* ROWS lines of a times a panel of b, of which c has `rows` and `columns`. */
static inline __attribute__((always_inline)) void multiply_rows(const struct place *place,
                                                                int64_t row, int64_t column,
                                                                const struct factors *of,
                                                                int64_t rows, int64_t columns) {
  tile t;
  float *sums = place->sums + row * place->step + column;
  const bool half = columns <= HALF;
  if (place->c == NULL && rows == ROWS && columns == (half ? HALF : WIDE)) {
    multiply_panels(sums, place->step, of, half, place->alpha, place->beta);
    return;
  }
  if (place->c != NULL) {
    for (int64_t r = 0; r < rows; r++) {
      if (place->has_sums) fetch(sums + r * place->step, WIDE);
      __builtin_prefetch(place->c + (row + r) * place->ldc + column, 1);
    }
  }
  multiply_panels(t[0], WIDE, of, half, place->alpha, 0.0f);
  for (int64_t r = 0; r < rows; r++) {
    if (place->c != NULL) {
      for (int j = 0; j < columns; j += 2 * W) {
        write_values(place, row + r, column + j, t[r] + j, at_most(columns - j, 2 * W));
      }
    } else {
      write_sums(sums + r * place->step, t[r], columns, place->beta);
    }
  }
}

/* What is copied next: runs of memory. */
struct next {
  const value *at;
  int64_t step, runs;
};

static struct next next_of(const struct view *view) {
  const bool by_depth = view->line_step == 1;
  return (struct next){view->x, by_depth ? view->depth_step : view->line_step,
                       by_depth ? view->depth : view->lines};
}

/* Fetches `lines` cache lines of a run: a loop of a fixed number has no condition that the
 * processor could mispredict. */
static inline __attribute__((always_inline)) void fetch_run(const struct next *next, int64_t run,
                                                            int lines) {
  if (run >= next->runs) return;
  const char *at = (const char *)(next->at + run * next->step);
#pragma GCC unroll 16
  for (int i = 0; i < lines; i++) __builtin_prefetch(at + i * 64, 0, 2);
}

/* A run of a that is in order of its lines has LINES values, which begin anywhere; all others have
 * the depth of a block, or its columns. */
#define RUN_LINES (DEPTH * (int)sizeof(value) / 64)
#define RUN_LINES_OF_A (IN_PLACE ? LINES * (int)sizeof(value) / 64 + 1 : RUN_LINES)
_Static_assert(DEPTH == COLUMNS, "runs of b");

/* `row` is the place's of the first line of a. */
static void multiply_blocks(const struct place *place, int64_t row, const struct view *a,
                            const struct layout *layout, const struct view *b, const float *panels,
                            const struct next *next_a, const struct next *next_b) {
  for (int64_t j = 0; j < b->lines; j += WIDE) {
    const int64_t columns = place->padded ? WIDE : at_most(b->lines - j, WIDE);
    for (int64_t i = 0; i < a->lines; i += ROWS) {
      const int64_t number = i / ROWS, rows = at_most(a->lines - i, ROWS);
      const struct tiles *tiles = rows == ROWS ? &layout->whole : &layout->rest;
      fetch_run(next_a, j / WIDE * (LINES / ROWS) + number, RUN_LINES_OF_A);
      fetch_run(next_b, j / WIDE * (LINES / ROWS) + number, RUN_LINES);
      multiply_rows(place, row + i, j,
                    &(struct factors){tiles->at + number * tiles->step, tiles->line,
                                      panels + j * b->depth, b->depth},
                    rows, columns);
    }
  }
}

static struct view block_of_b(const struct ek__gemm *g, int64_t j, int64_t p) {
  const int64_t line = g->transpose_b ? g->ldb : 1, depth = g->transpose_b ? 1 : g->ldb;
  const int64_t columns = at_most(g->n - j, COLUMNS);
  return (struct view){(const value *)g->b + j * line + p * depth,
                       line,
                       depth,
                       columns,
                       at_most(g->k - p, DEPTH),
                       columns};
}

/* What is copied after the block of a at (i, p), in a strip of which it is a part; nothing where a
 * is read in place. */
static struct next next_a(const struct ek__gemm *g, int64_t begin, int64_t end, int64_t i,
                          int64_t p) {
  const bool same = i + LINES < end; /* the same k */
  if ((IN_PLACE && !g->transpose_a) || (!same && p + DEPTH >= g->k)) return (struct next){0};
  const struct view view =
      same ? block_of_a(g, i + LINES, end, p, LINES) : block_of_a(g, begin, end, p + DEPTH, LINES);
  return next_of(&view);
}

static struct next next_b(const struct ek__gemm *g, int64_t j, int64_t p) {
  const bool same = p + DEPTH < g->k; /* the same columns */
  if (!same && j + COLUMNS >= g->n) return (struct next){0};
  const struct view view = same ? block_of_b(g, j, p + DEPTH) : block_of_b(g, j + COLUMNS, 0);
  return next_of(&view);
}

/* Rows begin .. end - 1 and columns from j on, of a block. The next block of b is fetched late, so
 * that it stays in the second cache, but with a block of a that has a tile for each run. */
static void multiply_strip(const struct ek__gemm *g, int64_t begin, int64_t end, int64_t j,
                           const float *widened) {
  const int64_t full = (end - begin) / LINES, last = begin + (full > 1 ? full - 1 : 0) * LINES;
  struct panels *panels = (struct panels *)(void *)ek__team_scratch()->panels;
  for (int64_t p = 0; p < g->k; p += DEPTH) {
    const struct place place = place_of(g, begin, j, p, DEPTH);
    const struct view b = block_of_b(g, j, p);
    const struct next then_b = next_b(g, j, p), nothing = {0};
    pack(panels->b, &b);
    for (int64_t i = begin; i < end; i += LINES) {
      const struct view a = block_of_a(g, i, end, p, LINES);
      const struct next then_a = widened != NULL ? nothing : next_a(g, begin, end, i, p);
      const struct layout layout =
          widened != NULL ? in_lines(block_in(widened, i - begin, p)) : lay_out(panels->a, &a);
      multiply_blocks(&place, i - begin, &a, &layout, &b, panels->b, &then_a,
                      i == last ? &then_b : &nothing);
    }
  }
}

void EK_ISA_NAME(product)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__gemm *g = raw;
  const int64_t strip = rounds(g) ? STRIP : end - begin;
  for (int64_t first = begin; first < end; first += strip) {
    const int64_t last = first + at_most(end - first, strip);
    const float *widened = widened_strip(g, first, last);
    for (int64_t j = 0; j < g->n; j += COLUMNS) multiply_strip(g, first, last, j, widened);
  }
}
