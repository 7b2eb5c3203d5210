/*
 * isa_dropout.c - dropout, with the random bits of evenkeel/random.h for W / 2 blocks at a
 * time.
 *
 * The state lives in 64-bit words whose upper halves are undefined: the widening product reads the
 * lower halves only. unit(bits) >= p is (bits >> 8) >= ceil(2^24 p), exactly, in integers.
 */
#include "backend/cpu/isa/isa.h"

#include <math.h>

#define BLOCKS (W / 2) /* blocks of four elements in a vector of wide words */

struct mask {
  ek_random_key key;
  uint32_t sample;
  uint32_t threshold; /* kept if bits >> 8 is not below */
  float factor;       /* 1 / (1 - p) */
};

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

/* The bits of BLOCKS blocks from `block` on, as two vectors in the order of their elements. */
static inline void random_bits(const struct mask *mask, uint32_t block, vec_u bits[2]) {
  uint64_t lanes[BLOCKS];
  for (uint32_t i = 0; i < BLOCKS; i++) lanes[i] = (uint32_t)(block + i);
  const vec_w zero = {0}, m0 = zero + 0xD2511F53u, m1 = zero + 0xCD9E8D57u;
  uint32_t k0 = (uint32_t)mask->key.seed, k1 = (uint32_t)(mask->key.seed >> 32);
  vec_w c0, c1 = zero + mask->sample, c2 = zero + mask->key.stream, c3 = zero + mask->key.step;
  memcpy(&c0, lanes, sizeof c0);
  for (int round = 0; round < 10; round++) {
    const vec_w p0 = v_multiply_wide(m0, c0), p1 = v_multiply_wide(m1, c2);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  vec_w low, high;
  v_interleave_wide((c0 & 0xFFFFFFFFu) | (c1 << 32), (c2 & 0xFFFFFFFFu) | (c3 << 32), &low, &high);
  bits[0] = (vec_u)low;
  bits[1] = (vec_u)high;
}

static inline vec drop(const struct mask *mask, vec x, vec_u bits) {
  const vec_i kept = (vec_i)(bits >> 8) >= (int32_t)mask->threshold;
  return x * (vec)((vec_i)v_set(mask->factor) & kept);
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
  struct mask mask = {.key = args->key,
                      .threshold = (uint32_t)ceil(args->p * 16777216.0),
                      .factor = (float)(1.0 / (1.0 - args->p))};
  while (begin < end) {
    const int64_t sample = begin / width, start = sample * width;
    const int64_t stop = end - start < width ? end - start : width;
    mask.sample = (uint32_t)(args->first_sample + sample);
    drop_range(&mask, (value *)args->y + start, (const value *)args->x + start, begin - start,
               stop);
    begin = start + stop;
  }
}
