/*
 * place.h - the destination of the products of blocks: c, or scratch until the last of them is
 * rounded into c (isa_products.c).
 */
#ifndef EK_CPU_PLACE_H
#define EK_CPU_PLACE_H

#include "backend/cpu/isa/isa.h"

/* Columns of c at a time, and rows where it is of 16 bits: their sums are in scratch. */
#define COLUMNS 256
#define STRIP 512

/* Where the product of a block of a and one of b goes: c, or what has been added up of it. */
struct place {
  float *sums; /* = alpha a b + beta sums */
  int64_t step;
  float alpha, beta;
  bool padded; /* rows of sums are as long as whole tiles */
  /* Of the last of the blocks, where c is of values and not NULL: = alpha a b + sums + beta c */
  value *c;
  int64_t ldc;
  bool has_sums;
  const value *bias; /* or NULL */
};

/* `count` elements of a row of sums; they are not read where beta is 0. */
static inline void write_sums(float *sums, const float *t, int64_t count, float beta) {
  V_EACH(0, count, {
    const vec sum = v_load(t + i);
    v_put(sums + i, beta == 0.0f ? sum : sum + beta * v_get(sums + i, n), n);
  });
}

/* The same of values, of which a row has `count`, 2 W at most. */
static inline void write_values(const struct place *place, int64_t row, int64_t column,
                                const float *t, int64_t count) {
  value *c = place->c + row * place->ldc + column;
  struct pair sum = v_get_pair(t, 2 * W);
  if (place->has_sums) {
    const struct pair before = v_get_pair(place->sums + row * place->step + column, 2 * W);
    X_BOTH(sum.of[j] += before.of[j]);
  }
  if (place->beta != 0.0f) {
    const struct pair old = x_get_ordered(c, count);
    X_BOTH(sum.of[j] += place->beta * old.of[j]);
  }
  if (place->bias != NULL) {
    const struct pair bias = x_get_ordered(place->bias + column, count);
    X_BOTH(sum.of[j] += bias.of[j]);
  }
  x_put_ordered(c, sum, count);
}

#ifdef EK_VALUE_f32
static inline bool rounds(const struct ek__gemm *g) { return (void)g, false; }
static inline float *strip(void) { return NULL; }
#else
static inline bool rounds(const struct ek__gemm *g) { return !g->c_is_sum; }
static inline float *strip(void) { return (float *)(void *)ek__team_scratch()->sums; }
_Static_assert(STRIP *COLUMNS * sizeof(float) <= sizeof((struct ek__scratch *)0)->sums, "scratch");
#endif

/* For rows and columns from (i, j) on and the block of k from p on, which is `depth` at most. */
static inline struct place place_of(const struct ek__gemm *g, int64_t i, int64_t j, int64_t p,
                                    int64_t depth) {
  struct place place = {.alpha = (float)g->alpha};
  if (!rounds(g)) {
    place.sums = (float *)g->c + i * g->ldc + j;
    place.step = g->ldc;
    place.beta = p == 0 ? (float)g->beta : 1.0f;
    return place;
  }
  place.sums = strip();
  place.step = COLUMNS;
  place.has_sums = p > 0;
  place.padded = g->k - p > depth;
  place.beta = place.has_sums ? 1.0f : 0.0f;
  if (place.padded) return place;
  place.c = (value *)g->c + i * g->ldc + j;
  place.ldc = g->ldc;
  place.beta = (float)g->beta;
  place.bias = g->bias != NULL ? (const value *)g->bias + j : NULL;
  return place;
}

#endif /* EK_CPU_PLACE_H */
