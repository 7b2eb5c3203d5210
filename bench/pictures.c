/*
 * pictures.c - pictures whose classes are drawn, and then their pixels.
 */
#include "pictures.h"

#include <evenkeel/random.h>

enum { TILE = 8 }; /* pixels a side with one class, where pictures are segmented */

static int32_t draw(const struct shape *shape, ek_random_key key, int64_t sample, int64_t place) {
  uint32_t bits[4];
  ek_random_bits(key, (uint32_t)sample, (uint32_t)place, bits);
  return (int32_t)(bits[0] % (uint64_t)shape->vocab);
}

/* Uniform noise of the class's brightness. */
static void fill(float *pixel, const struct shape *shape, int32_t class, uint32_t *noise) {
  for (int c = 0; c < PICTURE_COLOURS; c++) {
    *noise = *noise * 1664525u + 1013904223u;
    pixel[c] = 2.0f * (float)class / (float)shape->vocab - 1.0f + (float)(*noise >> 8) * 0x1p-24f;
  }
}

void pictures_batch(float *inputs, int32_t *targets, const struct shape *shape, uint64_t seed,
                    int64_t step) {
  const ek_random_key key = {seed, (uint32_t)step, 0};
  const int64_t side = shape->image, tiles = (side + TILE - 1) / TILE;
  uint32_t noise = (uint32_t)(seed + (uint64_t)step);
  for (int64_t b = 0; b < shape->batch; b++) {
    const int32_t whole = draw(shape, key, b, 0);
    if (!shape->segments) targets[b] = whole;
    for (int64_t i = 0; i < side * side; i++) {
      const int64_t tile = i / side / TILE * tiles + i % side / TILE, at = b * side * side + i;
      const int32_t class = shape->segments ? draw(shape, key, b, tile) : whole;
      if (shape->segments) targets[at] = class;
      fill(inputs + PICTURE_COLOURS * at, shape, class, &noise);
    }
  }
}
