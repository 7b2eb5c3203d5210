/*
 * operations_piece.h - an operand between guards, and its elements as numbers: those of 16 bits by
 * integer arithmetic of the harness's own.
 */
#ifndef OPERATIONS_PIECE_H
#define OPERATIONS_PIECE_H

#include "fuzz_training.h"

enum { MOST_BYTES = 9 << 20 }; /* of a block; at most 69 x 69 x 228 of f64 */

/* An operand as it is built: a block, and what the call gets. */
struct piece {
  ek_type type;
  int rank;
  int64_t shape[EK_MAX_RANK];
  int64_t guard;    /* elements before and after */
  ek_tensor block;  /* guard, elements, guard */
  ek_tensor tensor; /* the elements */
  ek_tensor given;  /* what the call gets; no reference of its own */
};

/* The block of a piece on `device`, all of it filled with `filling`. */
void make_piece(struct piece *piece, ek_device *device, uint8_t filling);
void free_piece(struct piece *piece);

int64_t count_of(const struct piece *piece);
size_t size_before(const struct piece *piece); /* bytes of a guard */

/* Between the elements of a tensor and as many bytes of the host. */
void upload(const ek_tensor *tensor, void *bytes);
void download(void *bytes, const ek_tensor *tensor);
void *copy_block(const struct piece *piece); /* for free() */

static inline bool is_half(ek_type type) { return type == EK_BF16 || type == EK_F16; }

/* The bits of a number that the type, bf16 or f16, holds: 0, or one of its normal numbers. */
uint16_t half_of(ek_type type, double value);

/* Element n of such bytes. */
double element_of(ek_type type, const void *bytes, int64_t n);

#endif /* OPERATIONS_PIECE_H */
