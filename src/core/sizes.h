/*
 * sizes.h - arithmetic of sizes that says when it does not fit, and sizes as text.
 */
#ifndef EK_SIZES_H
#define EK_SIZES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* "1.50 GiB"; 32 characters are room for any. Returns `buffer`. */
const char *ek__size_text(char *buffer, size_t size, uint64_t bytes);

/*
 * Reads a size that ends a text: digits ["." digits] [unit]. NULL, or what was expected at *at,
 * which moves to the end or to the place of the mistake.
 */
const char *ek__size_read(uint64_t *bytes, const char **at);

/* *result = a * b for a, b >= 0; false if it does not fit in 63 bits. */
static inline bool ek__multiply(int64_t *result, int64_t a, int64_t b) {
  return !__builtin_mul_overflow(a, b, result);
}

/* *result = a + b; false if it does not fit in 63 bits. */
static inline bool ek__add(int64_t *result, int64_t a, int64_t b) {
  return !__builtin_add_overflow(a, b, result);
}

/* Whether two shapes are the same, of tensors of whatever type. */
static inline bool ek__same_sizes(int rank, const int64_t *shape, int other_rank,
                                  const int64_t *other) {
  return rank == other_rank && memcmp(shape, other, (size_t)rank * sizeof *shape) == 0;
}

/* `bytes` up to the next multiple of `unit`, a power of two; false if there is none. */
static inline bool ek__round_up(uint64_t *result, uint64_t bytes, uint64_t unit) {
  if (bytes > UINT64_MAX - (unit - 1)) return false;
  *result = (bytes + unit - 1) & ~(unit - 1);
  return true;
}

/*
 * Where part number `part` of `count` elements begins if they are cut into `parts` equal ones, in
 * units of 16 so that vectors stay aligned; the end for part == parts.
 */
static inline int64_t ek__part_begin(int64_t count, size_t part, size_t parts) {
  const int64_t units = count / 16 + (count % 16 != 0), n = (int64_t)parts, k = (int64_t)part;
  const int64_t unit = units / n * k + units % n * k / n; /* units * k / n that cannot overflow */
  return unit < units ? unit * 16 : count;
}

/* First of `count` things that part number `part` of `parts` has; larger parts come first. */
static inline int64_t ek__even_begin(int64_t count, size_t part, size_t parts) {
  const int64_t k = (int64_t)part, n = (int64_t)parts, rest = count % n;
  return count / n * k + (k < rest ? k : rest);
}

#endif /* EK_SIZES_H */
