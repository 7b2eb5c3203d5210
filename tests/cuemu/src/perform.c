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

/* Bytes that are worked on at a time, so that they stay in the cache. */
#define PIECE ((size_t)32 << 10)

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

/* The sum over all ranks of `count` elements from element `first` on. */
static void reduce(const struct collective *c, int ranks, size_t first, size_t count,
                   char *result) {
  const struct part *part = c->part;
  const size_t element = cuemu_nccl_element_bytes(part->type);
  memcpy(result, (const char *)part[0].send + first * element, count * element);
  for (int r = 1; r < ranks; r++) {
    add(result, (const char *)part[r].send + first * element, count, part->type);
  }
}

/* Equal bytes are not written: a backend that opens sends megabytes of zeros, whose pages the
 * system need not provide as long as they are only read. */
static void put(void *receive, size_t at, const char *from, size_t bytes) {
  char *to = (char *)receive + at;
  if (to != from && memcmp(to, from, bytes) != 0) memcpy(to, from, bytes);
}

static bool fits_together(const struct collective *c, int ranks) {
  const struct part *first = &c->part[0];
  for (int r = 1; r < ranks; r++) {
    const struct part *other = &c->part[r];
    if (other->kind != first->kind || other->count != first->count || other->type != first->type ||
        other->root != first->root) {
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
  switch (part->kind) {
  case ALL_REDUCE:
    reduce(c, ranks, first, count, room);
    for (int r = 0; r < ranks; r++) put(part[r].receive, first * element, room, bytes);
    break;
  case REDUCE:
    reduce(c, ranks, first, count, room);
    put(part[part->root].receive, first * element, room, bytes);
    break;
  case REDUCE_SCATTER:
    reduce(c, ranks, block + first, count, room);
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
  char *room = cuemu_new(PIECE);
  for (int whose = begin; whose < end; whose++) {
    for (size_t first = 0; first < part->count; first += most) {
      const size_t left = part->count - first;
      perform_piece(c, ranks, whose, first, left < most ? left : most, room);
    }
  }
  free(room);
  return true;
}
