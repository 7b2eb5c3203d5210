/*
 * ck_arena.h - blocks of a device's arena by their bytes, and its ledger.
 */
#ifndef CK_ARENA_H
#define CK_ARENA_H

#include "ek_check.h"

enum { CK_UNIT = EK_MEMORY_UNIT };

/* `bytes` of category `category`; any number, also one that is no multiple of the unit. */
static inline ek_status ck_take(ek_tensor *tensor, ek_device *device, ek_memory_category category,
                                uint64_t bytes) {
  return ek_tensor_create(tensor, device, category, EK_F16, 1,
                          (const int64_t[]){(int64_t)(bytes / 2)});
}

static inline uint64_t ck_rounded(uint64_t bytes) {
  return (bytes + CK_UNIT - 1) / CK_UNIT * CK_UNIT;
}

#endif /* CK_ARENA_H */
