/*
 * isa_dropout.c - dropout, with random bits of random_bits.h.
 */
#include "backend/cpu/isa/random_bits.h"

static inline float drop_one(const struct mask *mask, float x, uint32_t bits) {
  return x * (bits >> 8 >= mask->threshold ? mask->factor : 0.0f);
}

/* Elements first .. last - 1, all within one block. */
static void drop_some(const struct mask *mask, value *y, const value *x, int64_t first,
                      int64_t last) {
  uint32_t bits[4];
  ek_random_bits(mask->key, mask->sample, (uint32_t)(first / 4), bits);
  for (int64_t i = first; i < last; i++) x_set(y + i, drop_one(mask, x_one(x + i), bits[i % 4]));
}

static inline vec drop(const struct mask *mask, vec x, vec_u bits) {
  return x * kept_or_0(mask, bits);
}

/* Elements first .. last - 1 of one sample; y and x point at its element 0. */
static void drop_range(const struct mask *mask, value *y, const value *x, int64_t first,
                       int64_t last) {
  int64_t i = first;
  if (i % 4 != 0) {
    const int64_t stop = i / 4 * 4 + 4 < last ? i / 4 * 4 + 4 : last;
    drop_some(mask, y, x, i, stop);
    i = stop;
  }
  for (; i + 4 * W <= last; i += 4 * W) { /* two at a time: the products take long to finish */
    vec_u bits[4];
    random_bits(mask, (uint32_t)(i / 4), bits);
    random_bits(mask, (uint32_t)(i / 4 + BLOCKS), bits + 2);
    for (int j = 0; j < 4; j++) x_store(y + i + j * W, drop(mask, x_load(x + i + j * W), bits[j]));
  }
  for (; i < last; i += 4) drop_some(mask, y, x, i, i + 4 < last ? i + 4 : last);
}

void EK_ISA_NAME(dropout)(const void *raw, int64_t begin, int64_t end) {
  const struct ek__dropout_args *args = raw;
  const int64_t width = args->per_sample;
  struct mask mask = mask_of(args->p, args->key);
  while (begin < end) {
    const int64_t sample = begin / width, start = sample * width;
    const int64_t stop = end - start < width ? end - start : width;
    mask.sample = (uint32_t)(args->first_sample + sample);
    drop_range(&mask, (value *)args->y + start, (const value *)args->x + start, begin - start,
               stop);
    begin = start + stop;
  }
}
