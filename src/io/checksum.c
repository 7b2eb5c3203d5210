/*
 * checksum.c - the checksums of header.h and header_text.h, by xxHash (XXH3, 64 bits).
 */
#define _GNU_SOURCE /* memmem */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/alloc.h"
#include "io/header.h"
#include "io/header_text.h"

struct ek__checksum {
  void *block; /* of the state, which wants to be aligned */
  XXH3_state_t *state;
};

struct ek__checksum *ek__checksum_new(void) {
  struct ek__checksum *sum = ek__calloc(1, sizeof *sum);
  if (sum == NULL) return NULL;
  sum->block = ek__calloc(1, sizeof(XXH3_state_t) + 64);
  if (sum->block == NULL) {
    ek__free(sum);
    return NULL;
  }
  sum->state = (XXH3_state_t *)(((uintptr_t)sum->block + 63) & ~(uintptr_t)63);
  ek__checksum_begin(sum);
  return sum;
}

void ek__checksum_free(struct ek__checksum *sum) {
  if (sum != NULL) ek__free(sum->block);
  ek__free(sum);
}

void ek__checksum_begin(struct ek__checksum *sum) { (void)XXH3_64bits_reset(sum->state); }

void ek__checksum_add(struct ek__checksum *sum, const void *data, size_t bytes) {
  if (bytes > 0) (void)XXH3_64bits_update(sum->state, data, bytes);
}

uint64_t ek__checksum_end(const struct ek__checksum *sum) { return XXH3_64bits_digest(sum->state); }

bool ek__header_parse_sum(uint64_t *checksum, const char *text) {
  uint64_t value = 0;
  for (size_t i = 0; i < EK__HEADER_DIGITS; i++) {
    const char *digits = "0123456789abcdef";
    const char *digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);
    if (digit == NULL) return false;
    value = value << 4 | (uint64_t)(digit - digits);
  }
  *checksum = value;
  return true;
}

/* A quote within a string has a backslash, so that no name or value looks like this. */
char *ek__header_find_digits(char *text, size_t length) {
  static const char before[] = "\"" EK__HEADER_SUM "\":\"";
  char *found = memmem(text, length, before, sizeof before - 1);
  if (found == NULL) return NULL;
  found += sizeof before - 1;
  return (size_t)(text + length - found) < EK__HEADER_DIGITS + 1 ? NULL : found;
}

uint64_t ek__header_sum(const char *text, size_t length, const char *digits) {
  XXH3_state_t state;
  const size_t before = (size_t)(digits - text);
  (void)XXH3_64bits_reset(&state);
  (void)XXH3_64bits_update(&state, text, before);
  (void)XXH3_64bits_update(&state, EK__HEADER_NO_SUM, EK__HEADER_DIGITS);
  (void)XXH3_64bits_update(&state, digits + EK__HEADER_DIGITS, length - before - EK__HEADER_DIGITS);
  return XXH3_64bits_digest(&state);
}
