/*
 * multiply.c - mma.sync.m16n8k8 of TF32: d (16 x 8) += a (16 x 8) b (8 x 8), by the lanes of a warp.
 *
 * Products of operands with 11 bits are exact in f32. A GPU adds them up in an order and with a rounding
 * that are not documented; here they are added one after the other. An operand with bits that TF32
 * does not have is an error: PTX leaves open what becomes of it, and GPUs cut it off, which doubles
 * the error of a kernel that forgot to round.
 */
#include "executor.h"

#include <string.h>

enum { ROWS = 16, COLUMNS = 8, DEPTH = 8 };

struct cuemu_operands { /* cuemu_device.h */
  float *d;
  const uint32_t *a, *b;
};

static float operand(uint32_t word, struct place place) {
  const bool nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
  if ((word & 0x1FFFu) != 0 && !nan) cuemu_fail_block("an operand is not in TF32", place);
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

void cuemu_multiply(struct warp *warp, struct place place) {
  float a[ROWS][DEPTH], b[DEPTH][COLUMNS], d[ROWS][COLUMNS];
  for (int lane = 0; lane < WARP_LANES; lane++) {
    const struct cuemu_operands *own = (const struct cuemu_operands *)(uintptr_t)warp->in[lane];
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
      a[g + i % 2 * 8][t + i / 2 * 4] = operand(own->a[i], place);
      d[g + i / 2 * 8][2 * t + i % 2] = own->d[i];
    }
    for (int i = 0; i < 2; i++) b[t + 4 * i][g] = operand(own->b[i], place);
  }
  for (int row = 0; row < ROWS; row++) {
    for (int k = 0; k < DEPTH; k++) {
      for (int column = 0; column < COLUMNS; column++) d[row][column] += a[row][k] * b[k][column];
    }
  }
  for (int lane = 0; lane < WARP_LANES; lane++) {
    const struct cuemu_operands *own = (const struct cuemu_operands *)(uintptr_t)warp->in[lane];
    for (int i = 0; i < 4; i++) own->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}
