/*
 * random.h - random numbers that depend on where they are used, not on when.
 *
 * A number is a pure function of (seed, step, stream, sample, index): Philox 4x32-10 (Salmon,
 * Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) over that key. There
 * is no state to save or to restore; a recomputed forward, a retried step and another number of
 * devices all see the same mask. A program's own kernels can call the same functions, in CUDA too.
 *
 *   seed    one number for the whole training run
 *   step    the optimizer step, counted from 0
 *   stream  tells users apart: every module of a model has a stream of its own
 *   sample  the row of the global batch, across all devices and micro-batches
 *   index   the element within the sample
 */
#ifndef EVENKEEL_RANDOM_H
#define EVENKEEL_RANDOM_H

#include <stdint.h>

#include <evenkeel/export.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_random_key {
  uint64_t seed;
  uint32_t step;
  uint32_t stream;
} ek_random_key;

/*
 * Four independent words of 32 random bits for the four elements 4 * block .. 4 * block + 3 of a
 * sample.
 */
EK_INLINE void ek_random_bits(ek_random_key key, uint32_t sample, uint32_t block,
                              uint32_t bits[4]) {
  uint32_t k0 = (uint32_t)key.seed;
  uint32_t k1 = (uint32_t)(key.seed >> 32);
  uint32_t c0 = block, c1 = sample, c2 = key.stream, c3 = key.step;
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
    const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  bits[0] = c0;
  bits[1] = c1;
  bits[2] = c2;
  bits[3] = c3;
}

/* Turns 32 bits into a float in [0, 1) with 24 random bits, exactly. */
EK_INLINE float ek_random_unit(uint32_t bits) { return (float)(bits >> 8) * (1.0f / 16777216.0f); }

EK_END_DECLARATIONS

#endif /* EVENKEEL_RANDOM_H */
