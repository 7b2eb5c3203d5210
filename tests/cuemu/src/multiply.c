/*
 * multiply.c - what a warp does with small matrices: ldmatrix, which reads them from the block's
 * memory, and mma.sync: d (16 x 8) += a b, with a depth of 8 in TF32 and of 16 in bf16 and f16.
 *
 * Products of operands with 11 bits are exact in f32. A GPU adds them up in an order and with a
 * rounding that are not documented; here they are added one after the other. An operand with bits
 * that TF32 does not have is an error: PTX leaves open what becomes of it, and GPUs cut it off,
 * which doubles the error of a kernel that forgot to round. A number of 16 bits has no bits too
 * many.
 */
#include "executor.h"

#include <string.h>

#include "cuda_bf16.h"
#include "cuda_fp16.h"

enum { ROWS = 16, COLUMNS = 8, DEEPEST = 16 };
enum { TF32, BF16, F16 }; /* cuemu_device.h */

struct cuemu_operands { /* cuemu_device.h */
  float *d;
  const uint32_t *a, *b;
  int precision;
};

static float operand(uint32_t word, struct place place) {
  const bool nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
  if ((word & 0x1FFFu) != 0 && !nan) cuemu_fail_block("an operand is not in TF32", place);
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

/* The numbers of a word: one, or two that are neighbours. */
static void take(float *to, int step, uint32_t word, int precision, struct place place) {
  if (precision == TF32) {
    *to = operand(word, place);
  } else if (precision == BF16) {
    to[0] = cuemu_bfloat16_to_float((uint16_t)word);
    to[step] = cuemu_bfloat16_to_float((uint16_t)(word >> 16));
  } else {
    to[0] = cuemu_half_to_float((uint16_t)word);
    to[step] = cuemu_half_to_float((uint16_t)(word >> 16));
  }
}

static const struct cuemu_operands *of_lane(const struct warp *warp, int lane) {
  return (const struct cuemu_operands *)(uintptr_t)warp->in[lane];
}

void cuemu_multiply(struct warp *warp, struct place place) {
  float a[ROWS][DEEPEST], b[DEEPEST][COLUMNS], d[ROWS][COLUMNS];
  const int precision = of_lane(warp, 0)->precision;
  const int each = precision == TF32 ? 1 : 2, depth = 8 * each;
  for (int lane = 0; lane < WARP_LANES; lane++) {
    const struct cuemu_operands *own = of_lane(warp, lane);
    const int g = lane / 4, t = lane % 4;
    if (own->precision != precision) cuemu_fail_block("products of two precisions", place);
    for (int i = 0; i < 4; i++) {
      take(&a[g + i % 2 * 8][(t + i / 2 * 4) * each], 1, own->a[i], precision, place);
      d[g + i / 2 * 8][2 * t + i % 2] = own->d[i];
    }
    for (int i = 0; i < 2; i++) {
      take(&b[(t + 4 * i) * each][g], COLUMNS, own->b[i], precision, place);
    }
  }
  for (int row = 0; row < ROWS; row++) {
    for (int k = 0; k < depth; k++) {
      for (int column = 0; column < COLUMNS; column++) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < WARP_LANES; lane++) {
    for (int i = 0; i < 4; i++) {
      of_lane(warp, lane)->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

struct cuemu_matrices { /* cuemu_device.h */
  uint32_t *x;
  const void *address;
  uint32_t row[4];
  int transposed;
};

static const struct cuemu_matrices *rows_of_lane(const struct warp *warp, int lane) {
  return (const struct cuemu_matrices *)(uintptr_t)warp->in[lane];
}

/* An element of 16 bits of a matrix, whose rows lanes 8 * matrix .. have named. */
static uint32_t element(const struct warp *warp, int matrix, int row, int column) {
  const uint32_t word = rows_of_lane(warp, 8 * matrix + row)->row[column / 2];
  return word >> column % 2 * 16 & 0xFFFFu;
}

void cuemu_load_matrices(struct warp *warp, struct place place) {
  for (int lane = 0; lane < WARP_LANES; lane++) {
    const struct cuemu_matrices *own = rows_of_lane(warp, lane);
    const int g = lane / 4, t = lane % 4;
    if ((uintptr_t)own->address % 16 != 0) {
      cuemu_fail_block("a row of a matrix is not aligned", place);
    }
    for (int matrix = 0; matrix < 4; matrix++) {
      own->x[matrix] = own->transposed ? element(warp, matrix, 2 * t, g) |
                                             element(warp, matrix, 2 * t + 1, g) << 16
                                       : rows_of_lane(warp, 8 * matrix + g)->row[t];
    }
  }
}
