/*
 * sizes.h - arithmetic of sizes that says when it does not fit.
 */
#ifndef EK_SIZES_H
#define EK_SIZES_H

#include <stdbool.h>
#include <stdint.h>

/* *result = a * b for a, b >= 0; false if it does not fit in 63 bits. */
static inline bool ek__multiply(int64_t *result, int64_t a, int64_t b) {
  return !__builtin_mul_overflow(a, b, result);
}

/* *result = a + b; false if it does not fit in 63 bits. */
static inline bool ek__add(int64_t *result, int64_t a, int64_t b) {
  return !__builtin_add_overflow(a, b, result);
}

/* `bytes` up to the next multiple of `unit`, a power of two; false if there is none. */
static inline bool ek__round_up(uint64_t *result, uint64_t bytes, uint64_t unit) {
  if (bytes > UINT64_MAX - (unit - 1)) return false;
  *result = (bytes + unit - 1) & ~(unit - 1);
  return true;
}

#endif /* EK_SIZES_H */
