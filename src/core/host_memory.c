/*
 * host_memory.c - the only file of the library that calls malloc and free.
 */
#include "core/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/host_memory.h>

static _Atomic uint64_t fail_countdown;

bool ek__host_call_fails(void) {
  uint64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (left != 0) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

void *ek__calloc(size_t count, size_t size) {
  if (ek__host_call_fails()) return NULL;
  if (count == 0 || size == 0) count = size = 1;
  return calloc(count, size);
}

bool ek__grow(void *array, size_t *capacity, size_t wanted, size_t size) {
  if (wanted <= *capacity) return true;
  size_t grown = *capacity < 8 ? 8 : *capacity * 2;
  if (grown < wanted) grown = wanted;
  void *memory = ek__calloc(grown, size);
  if (memory == NULL) return false;
  /* `array` is the address of a pointer to any kind of object: copied, not dereferenced. */
  void *old = NULL;
  memcpy(&old, array, sizeof old);
  if (old != NULL) memcpy(memory, old, *capacity * size);
  memcpy(array, &memory, sizeof memory);
  ek__free(old);
  *capacity = grown;
  return true;
}

char *ek__strdup(const char *text) {
  const size_t size = strlen(text) + 1;
  char *copy = ek__calloc(size, 1);
  if (copy != NULL) memcpy(copy, text, size);
  return copy;
}

void ek__free(void *memory) { free(memory); }

void ek_host_memory_fail_at(uint64_t n) { atomic_store(&fail_countdown, n); }
