/*
 * random_bits.h - the random bits of evenkeel/random.h, for W / 2 blocks of four elements at a
 * time.
 *
 * The state lives in 64-bit words whose upper halves are undefined: the widening product reads the
 * lower halves only. unit(bits) >= p is (bits >> 8) >= ceil(2^24 p), exactly, in integers.
 */
#ifndef EK_CPU_RANDOM_BITS_H
#define EK_CPU_RANDOM_BITS_H

#include "backend/cpu/isa/isa.h"

#include <math.h>

#define BLOCKS (W / 2) /* blocks of four elements in a vector of wide words */

struct mask {
  ek_random_key key;
  uint32_t sample;
  uint32_t threshold; /* kept if bits >> 8 is not below */
  float factor;       /* 1 / (1 - p) */
};

static inline struct mask mask_of(double p, ek_random_key key) {
  return (struct mask){.key = key,
                       .threshold = (uint32_t)ceil(p * 16777216.0),
                       .factor = (float)(1.0 / (1.0 - p))};
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

/* The factor where it is kept, 0 where it is dropped. */
static inline vec kept_or_0(const struct mask *mask, vec_u bits) {
  const vec_i kept = (vec_i)(bits >> 8) >= (int32_t)mask->threshold;
  return (vec)((vec_i)v_set(mask->factor) & kept);
}

#endif /* EK_CPU_RANDOM_BITS_H */
