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

static void reduce(const struct collective *c, int ranks, size_t count, void *result) {
  const struct part *first = &c->part[0];
  size_t bytes = count * cuemu_nccl_element_bytes(first->type);
  memcpy(result, first->send, bytes);
  if (first->op != ncclAvg) {
    for (int r = 1; r < ranks; r++) combine(result, c->part[r].send, count, first->type, first->op);
    return;
  }
  void *scaled = cuemu_new(bytes);
  scale(result, count, first->type, ranks);
  for (int r = 1; r < ranks; r++) {
    memcpy(scaled, c->part[r].send, bytes);
    scale(scaled, count, first->type, ranks);
    combine(result, scaled, count, first->type, ncclSum);
  }
  free(scaled);
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

bool cuemu_perform(const struct collective *c, int ranks) {
  if (!fits_together(c, ranks)) return false;
  const struct part *first = &c->part[0];
  size_t bytes = first->count * cuemu_nccl_element_bytes(first->type);
  size_t all = (size_t)ranks * first->count;
  char *result = cuemu_new((size_t)ranks * bytes); /* receivers may be senders too */
  switch (first->kind) {
  case ALL_REDUCE:
  case REDUCE: reduce(c, ranks, first->count, result); break;
  case REDUCE_SCATTER: reduce(c, ranks, all, result); break;
  case BROADCAST: memcpy(result, c->part[first->root].send, bytes); break;
  case ALL_GATHER:
    for (int r = 0; r < ranks; r++) memcpy(result + (size_t)r * bytes, c->part[r].send, bytes);
    break;
  }
  for (int r = 0; r < ranks; r++) {
    const char *from = first->kind == REDUCE_SCATTER ? result + (size_t)r * bytes : result;
    if (first->kind == REDUCE && r != first->root) continue;
    memcpy(c->part[r].receive, from, first->kind == ALL_GATHER ? (size_t)ranks * bytes : bytes);
  }
  free(result);
  return true;
}
