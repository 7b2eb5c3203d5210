/*
 * perform.c - the arithmetic of collectives.
 *
 * Sums go in rank order, in the type itself, so that a result is the same in each run and can be
 * predicted. An average multiplies by 1/n, rounded to the type, before it adds, as NCCL does.
 */
#include "collective.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

size_t cuemu_nccl_element_bytes(ncclDataType_t type) {
  switch (type) {
  case ncclInt8:
  case ncclUint8: return 1;
  case ncclFloat16:
  case ncclBfloat16: return 2;
  case ncclInt32:
  case ncclUint32:
  case ncclFloat32: return 4;
  case ncclInt64:
  case ncclUint64:
  case ncclFloat64: return 8;
  default: return 0;
  }
}

/* Bytes that are worked on at a time, so that they stay in the cache. */
#define PIECE ((size_t)32 << 10)

#define LARGER(a, b) ((a) < (b) ? (b) : (a))
#define SMALLER(a, b) ((b) < (a) ? (b) : (a))

/* `sums` is the type that sums and products are computed in: unsigned for integers, which may
 * overflow */
#define COMBINE_BY(expression)                                                                     \
  for (size_t i = 0; i < count; i++) result[i] = expression;                                       \
  break
#define COMBINE(name, type, sums)                                                                  \
  static void name(type *result, const type *x, size_t count, ncclRedOp_t op) {                    \
    switch (op) {                                                                                  \
    case ncclProd: COMBINE_BY((type)((sums)result[i] * (sums)x[i]));                               \
    case ncclMax: COMBINE_BY(LARGER(result[i], x[i]));                                             \
    case ncclMin: COMBINE_BY(SMALLER(result[i], x[i]));                                            \
    default: COMBINE_BY((type)((sums)result[i] + (sums)x[i]));                                     \
    }                                                                                              \
  }
COMBINE(combine_int8, int8_t, unsigned)
COMBINE(combine_uint8, uint8_t, unsigned)
COMBINE(combine_int32, int32_t, uint32_t)
COMBINE(combine_uint32, uint32_t, uint32_t)
COMBINE(combine_int64, int64_t, uint64_t)
COMBINE(combine_uint64, uint64_t, uint64_t)
COMBINE(combine_float, float, float)
COMBINE(combine_double, double, double)

static void combine_16_bits(uint16_t *result, const uint16_t *x, size_t count, ncclRedOp_t op,
                            float (*load)(uint16_t), uint16_t (*store)(float)) {
  for (size_t i = 0; i < count; i++) {
    float a = load(result[i]), b = load(x[i]);
    combine_float(&a, &b, 1, op);
    result[i] = store(a);
  }
}

static void combine(void *result, const void *x, size_t count, ncclDataType_t type,
                    ncclRedOp_t op) {
  switch (type) {
  case ncclInt8: combine_int8(result, x, count, op); break;
  case ncclUint8: combine_uint8(result, x, count, op); break;
  case ncclInt32: combine_int32(result, x, count, op); break;
  case ncclUint32: combine_uint32(result, x, count, op); break;
  case ncclInt64: combine_int64(result, x, count, op); break;
  case ncclUint64: combine_uint64(result, x, count, op); break;
  case ncclFloat32: combine_float(result, x, count, op); break;
  case ncclFloat64: combine_double(result, x, count, op); break;
  case ncclFloat16:
    combine_16_bits(result, x, count, op, cuemu_half_to_float, cuemu_float_to_half);
    break;
  case ncclBfloat16:
    combine_16_bits(result, x, count, op, cuemu_bfloat16_to_float, cuemu_float_to_bfloat16);
    break;
  }
}

/* For averages of floating types, in place. Integers are not averaged by this library. */
static void scale(void *x, size_t count, ncclDataType_t type, int ranks) {
  for (size_t i = 0; i < count; i++) {
    switch (type) {
    case ncclFloat32: ((float *)x)[i] *= 1.0f / (float)ranks; break;
    case ncclFloat64: ((double *)x)[i] *= 1.0 / ranks; break;
    default: break;
    }
  }
}

/* The sum over all ranks of `count` elements from element `first` on; `scaled` is room for them. */
static void reduce(const struct collective *c, int ranks, size_t first, size_t count, char *result,
                   char *scaled) {
  const struct part *part = c->part;
  const size_t element = cuemu_nccl_element_bytes(part->type), bytes = count * element;
  memcpy(result, (const char *)part[0].send + first * element, bytes);
  if (part->op == ncclAvg) scale(result, count, part->type, ranks);
  for (int r = 1; r < ranks; r++) {
    const char *from = (const char *)part[r].send + first * element;
    if (part->op == ncclAvg) {
      memcpy(scaled, from, bytes);
      scale(scaled, count, part->type, ranks);
      from = scaled;
    }
    combine(result, from, count, part->type, part->op == ncclAvg ? ncclSum : part->op);
  }
}

/* What is there already is not written: a backend that opens sends megabytes of zeros, which lie in
 * pages that the system need not give as long as they are only read. */
static void put(void *receive, size_t at, const char *from, size_t bytes) {
  char *to = (char *)receive + at;
  if (to != from && memcmp(to, from, bytes) != 0) memcpy(to, from, bytes);
}

static bool fits_together(const struct collective *c, int ranks) {
  const struct part *first = &c->part[0];
  for (int r = 1; r < ranks; r++) {
    const struct part *other = &c->part[r];
    if (other->kind != first->kind || other->count != first->count || other->type != first->type ||
        other->op != first->op || other->root != first->root) {
      return false;
    }
  }
  return true;
}

/* Element `first` and those after it, of `whose` rank's block where each rank has its own. A
 * receiver may be a sender too, in place: each element is read before it is written, and not again.
 */
static void perform_piece(const struct collective *c, int ranks, int whose, size_t first,
                          size_t count, char *room) {
  const struct part *part = c->part;
  const size_t element = cuemu_nccl_element_bytes(part->type), bytes = count * element;
  const size_t block = (size_t)whose * part->count;
  const char *send = (const char *)part[whose].send + first * element;
  char *scaled = room + PIECE;
  switch (part->kind) {
  case ALL_REDUCE:
    reduce(c, ranks, first, count, room, scaled);
    for (int r = 0; r < ranks; r++) put(part[r].receive, first * element, room, bytes);
    break;
  case REDUCE:
    reduce(c, ranks, first, count, room, scaled);
    put(part[part->root].receive, first * element, room, bytes);
    break;
  case REDUCE_SCATTER:
    reduce(c, ranks, block + first, count, room, scaled);
    put(part[whose].receive, first * element, room, bytes);
    break;
  case BROADCAST:
    for (int r = 0; r < ranks; r++) put(part[r].receive, first * element, send, bytes);
    break;
  case ALL_GATHER:
    for (int r = 0; r < ranks; r++) put(part[r].receive, (block + first) * element, send, bytes);
    break;
  }
}

bool cuemu_perform(const struct collective *c, int ranks) {
  if (!fits_together(c, ranks)) return false;
  const struct part *part = c->part;
  const bool blocks = part->kind == REDUCE_SCATTER || part->kind == ALL_GATHER;
  const int begin = blocks ? 0 : part->root, end = blocks ? ranks : begin + 1;
  const size_t most = PIECE / cuemu_nccl_element_bytes(part->type);
  char *room = cuemu_new(2 * PIECE);
  for (int whose = begin; whose < end; whose++) {
    for (size_t first = 0; first < part->count; first += most) {
      const size_t left = part->count - first;
      perform_piece(c, ranks, whose, first, left < most ? left : most, room);
    }
  }
  free(room);
  return true;
}
