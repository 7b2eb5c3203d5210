/*
 * host_memory.c - the only file of the library that calls malloc and free.
 */
#include "core/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/host_memory.h>

#include "core/error.h"

static _Atomic uint64_t fail_countdown;

bool ek_host_memory_fails(void) {
  uint64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
  while (left != 0) {
    if (atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) return left == 1;
  }
  return false;
}

void *ek__calloc(size_t count, size_t size) {
  if (ek_host_memory_fails()) return NULL;
  if (count == 0 || size == 0) count = size = 1;
  return calloc(count, size);
}

ek_status ek__new(void *pointer, size_t count, size_t size, const char *what) {
  void *memory = ek__calloc(count, size);
  EK__FAIL_IF(memory == NULL, EK_ERR_OUT_OF_MEMORY, "out of host memory for %s", what);
  memcpy(pointer, &memory, sizeof memory); /* copied: it is no object of type void * */
  return EK_OK;
}

ek_status ek__grow(void *pointer, size_t *capacity, size_t wanted, size_t size, const char *what) {
  if (wanted <= *capacity) return EK_OK;
  size_t grown = *capacity < 8 ? 8 : *capacity * 2;
  if (grown < wanted) grown = wanted;
  void *memory = NULL, *old = NULL;
  EK_TRY(ek__new(&memory, grown, size, what));
  memcpy(&old, pointer, sizeof old);
  if (old != NULL) memcpy(memory, old, *capacity * size);
  memcpy(pointer, &memory, sizeof memory);
  ek__free(old);
  *capacity = grown;
  return EK_OK;
}

ek_status ek__new_copy(void *pointer, const void *object, size_t size, const char *what) {
  void *memory = NULL;
  EK_TRY(ek__new(&memory, 1, size, what));
  memcpy(memory, object, size);
  memcpy(pointer, &memory, sizeof memory);
  return EK_OK;
}

void ek__free(void *memory) { free(memory); }

void ek_host_memory_fail_at(uint64_t n) { atomic_store(&fail_countdown, n); }
