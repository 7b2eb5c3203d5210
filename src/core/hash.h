/*
 * hash.h - a hash of bytes: FNV-1a of Fowler, Noll and Vo. It finds differences that happen, not
 * ones that are made to escape it.
 */
#ifndef EK_HASH_H
#define EK_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The hash of no bytes. */
#define EK__HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* The hash of what `hash` is of, and of `count` bytes after that. */
static inline uint64_t ek__hash(uint64_t hash, const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
  }
  return hash;
}

#endif /* EK_HASH_H */
