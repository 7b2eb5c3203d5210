/*
 * perform.c - the arithmetic of collectives.
 *
 * Sums go in rank order, in the type itself, so that a result is the same in each run and can be
 * predicted.
 */
#include "collective.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

size_t cuemu_nccl_element_bytes(ncclDataType_t type) {
  switch (type) {
  case ncclUint8: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclFloat32: return 4;
  case ncclFloat64: return 8;
  default: return 0;
  }
}

static void add(void *result, const void *x, size_t count, ncclDataType_t type) {
  uint16_t *half = result;
  const uint16_t *more = x;
  for (size_t i = 0; i < count; i++) {
    switch (type) {
    case ncclUint8: ((uint8_t *)result)[i] += ((const uint8_t *)x)[i]; break;
    case ncclFloat32: ((float *)result)[i] += ((const float *)x)[i]; break;
    case ncclFloat64: ((double *)result)[i] += ((const double *)x)[i]; break;
    case ncclFloat16:
      half[i] = cuemu_float_to_half(cuemu_half_to_float(half[i]) + cuemu_half_to_float(more[i]));
      break;
    case ncclBfloat16:
      half[i] = cuemu_float_to_bfloat16(cuemu_bfloat16_to_float(half[i]) +
                                        cuemu_bfloat16_to_float(more[i]));
      break;
    }
  }
}

/* A collective that is being computed. */
struct work {
  const struct collective *c;
  struct clique *clique;
  const struct part *part; /* of a rank of this process: the others' are like it */
  size_t element;          /* bytes */
  bool between;            /* some ranks are those of other processes */
  char *room;
};

/* What a rank sends, from element `first` on; of a piece that all processes see, if there are
 * several. */
static const char *sent(const struct work *w, int rank, size_t first) {
  if (w->between) return w->clique->shared->data[rank];
  return (const char *)w->c->part[rank].send + first * w->element;
}

/* The sum over all ranks of `count` elements from element `first` on. */
static void reduce(const struct work *w, size_t first, size_t count) {
  memcpy(w->room, sent(w, 0, first), count * w->element);
  for (int r = 1; r < w->clique->ranks; r++) {
    add(w->room, sent(w, r, first), count, w->part->type);
  }
}

/* Equal bytes are not written: a backend that opens sends megabytes of zeros, whose pages the
 * system need not provide as long as they are only read. Ranks of other processes receive there. */
static void put(const struct work *w, int rank, size_t first, const char *from, size_t bytes) {
  if (!w->clique->is_local[rank]) return;
  char *to = (char *)w->c->part[rank].receive + first * w->element;
  if (to != from && memcmp(to, from, bytes) != 0) memcpy(to, from, bytes);
}

static bool are_alike(const struct part *a, const struct part *b) {
  return a->kind == b->kind && a->count == b->count && a->type == b->type && a->root == b->root;
}

/* Whether the parts of all ranks fit together; tells the other processes those of this one. */
static enum performed compare(const struct work *w) {
  struct part *shared = w->clique->shared->part;
  enum performed performed = DONE;
  for (int r = 0; r < w->clique->ranks && w->between; r++) {
    if (w->clique->is_local[r]) shared[r] = w->c->part[r];
  }
  if (w->between && !cuemu_meet(w->clique)) return GIVEN_UP;
  for (int r = 0; r < w->clique->ranks; r++) {
    const struct part *other = w->between ? &shared[r] : &w->c->part[r];
    if (!are_alike(other, w->part)) performed = DIFFERENT_PARTS;
  }
  /* No process writes the next collective's parts before all have read these. */
  return w->between && !cuemu_meet(w->clique) ? GIVEN_UP : performed;
}

/* Shows the other processes what this one's ranks send of a piece. */
static bool show(const struct work *w, int whose, size_t first, size_t count) {
  const bool sums = w->part->kind != BROADCAST && w->part->kind != ALL_GATHER;
  for (int r = 0; r < w->clique->ranks; r++) {
    if (!w->clique->is_local[r] || !(sums || r == whose)) continue;
    const char *from = (const char *)w->c->part[r].send + first * w->element;
    memcpy(w->clique->shared->data[r], from, count * w->element);
  }
  return cuemu_meet(w->clique);
}

/* Element `first` and those after it, of `whose` rank's block where each rank has its own. A
 * receiver may be a sender too, in place: each element is read before it is written, and not again.
 */
static bool perform_piece(const struct work *w, int whose, size_t first, size_t count) {
  const struct part *part = w->part;
  const int ranks = w->clique->ranks;
  const size_t bytes = count * w->element, block = (size_t)whose * part->count;
  const size_t begin = part->kind == REDUCE_SCATTER ? block + first : first;
  if (w->between && !show(w, whose, begin, count)) return false;
  const bool sums = part->kind != BROADCAST && part->kind != ALL_GATHER;
  if (sums) reduce(w, begin, count);
  const char *result = sums ? w->room : sent(w, whose, first);
  switch (part->kind) {
  case ALL_REDUCE:
  case BROADCAST:
    for (int r = 0; r < ranks; r++) put(w, r, first, result, bytes);
    break;
  case REDUCE: put(w, part->root, first, result, bytes); break;
  case REDUCE_SCATTER: put(w, whose, first, result, bytes); break;
  case ALL_GATHER:
    for (int r = 0; r < ranks; r++) put(w, r, block + first, result, bytes);
    break;
  }
  return !w->between || cuemu_meet(w->clique); /* the next piece takes the same place */
}

static bool perform_pieces(const struct work *w) {
  const struct part *part = w->part;
  const bool blocks = part->kind == REDUCE_SCATTER || part->kind == ALL_GATHER;
  const int begin = blocks ? 0 : part->root, end = blocks ? w->clique->ranks : begin + 1;
  const size_t most = PIECE / w->element;
  for (int whose = begin; whose < end; whose++) {
    for (size_t first = 0; first < part->count; first += most) {
      const size_t left = part->count - first;
      if (!perform_piece(w, whose, first, left < most ? left : most)) return false;
    }
  }
  return true;
}

enum performed cuemu_perform(const struct collective *c, struct clique *clique) {
  int own = 0;
  while (!clique->is_local[own]) own++;
  struct work work = {.c = c,
                      .clique = clique,
                      .part = &c->part[own],
                      .element = cuemu_nccl_element_bytes(c->part[own].type),
                      .between = clique->local < clique->ranks};
  enum performed performed = compare(&work);
  if (performed != DONE) return performed;
  work.room = cuemu_new(PIECE);
  const bool done = perform_pieces(&work);
  free(work.room);
  return done ? DONE : GIVEN_UP;
}
