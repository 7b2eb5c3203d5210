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

#include "cuda_fp16.h"

enum { ROWS = 16, COLUMNS = 8, DEEPEST = 16 };
enum { TF32, BF16, F16 }; /* cuemu_device.h */

struct cuemu_operands { /* cuemu_device.h */
  float *d;
  const uint32_t *a, *b;
  int precision;
};

/* The words of both operands as the lanes hold them: b after a. */
enum {
  DEEPEST_WORDS = DEEPEST / 2,
  A_WORDS = ROWS * DEEPEST_WORDS,
  WORDS = A_WORDS + DEEPEST_WORDS * COLUMNS
};

static const struct cuemu_operands *of_lane(const struct warp *warp, int lane) {
  return (const struct cuemu_operands *)(uintptr_t)warp->in[lane];
}

static void gather(const struct warp *warp, uint32_t *words, float (*d)[COLUMNS],
                   struct place place) {
  const int precision = of_lane(warp, 0)->precision;
  for (int lane = 0; lane < WARP_LANES; lane++) {
    const struct cuemu_operands *own = of_lane(warp, lane);
    const int g = lane / 4, t = lane % 4;
    if (own->precision != precision) cuemu_fail_block("products of two precisions", place);
    for (int i = 0; i < 4; i++) {
      words[(g + i % 2 * 8) * DEEPEST_WORDS + t + i / 2 * 4] = own->a[i];
      d[g + i / 2 * 8][2 * t + i % 2] = own->d[i];
    }
    for (int i = 0; i < 2; i++) words[A_WORDS + (t + 4 * i) * COLUMNS + g] = own->b[i];
  }
}

union operand {
  uint32_t word[WORDS];
  float value[WORDS];
};

static void check_tf32(const uint32_t *words, struct place place) {
  uint32_t wrong = 0;
  for (int i = 0; i < WORDS; i++) {
    const bool nan = (words[i] & 0x7FFFFFFFu) > 0x7F800000u;
    wrong |= nan ? 0 : words[i] & 0x1FFFu;
  }
  if (wrong) cuemu_fail_block("an operand is not in TF32", place);
}

/* Of two neighbours in a word one: of the lower half (shift 0) or the higher one (16). */
static void take(const uint32_t *words, union operand *one, int precision, int shift) {
  if (precision == BF16) {
    for (int i = 0; i < WORDS; i++) one->word[i] = words[i] >> shift << 16;
  } else {
    for (int i = 0; i < WORDS; i++) {
      one->value[i] = cuemu_half_to_float((uint16_t)(words[i] >> shift));
    }
  }
}

typedef float quad __attribute__((vector_size(16)));

/* d += a b, one term after the other; two neighbours in depth are in two parts. */
static void add(float (*d)[COLUMNS], const float *const *part, int parts) {
  for (int row = 0; row < ROWS; row++) {
    quad left, right;
    memcpy(&left, d[row], sizeof left);
    memcpy(&right, d[row] + 4, sizeof right);
    for (int word = 0; word < DEEPEST_WORDS; word++) {
      for (int p = 0; p < parts; p++) {
        const float a = part[p][row * DEEPEST_WORDS + word];
        const float *b = part[p] + A_WORDS + word * COLUMNS;
        quad first, second;
        memcpy(&first, b, sizeof first);
        memcpy(&second, b + 4, sizeof second);
        left += a * first;
        right += a * second;
      }
    }
    memcpy(d[row], &left, sizeof left);
    memcpy(d[row] + 4, &right, sizeof right);
  }
}

void cuemu_multiply(struct warp *warp, struct place place) {
  union operand words, low, high;
  float d[ROWS][COLUMNS];
  const int precision = of_lane(warp, 0)->precision;
  gather(warp, words.word, d, place);
  if (precision == TF32) {
    check_tf32(words.word, place);
    add(d, (const float *const[]){words.value}, 1);
  } else {
    take(words.word, &low, precision, 0);
    take(words.word, &high, precision, 16);
    add(d, (const float *const[]){low.value, high.value}, 2);
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
