/*
 * alloc.h - memory of the host for descriptions and tables, never for tensors.
 *
 * All of the library's malloc and free are in host_memory.c, so that a test can make the n-th one
 * fail.
 */
#ifndef EK_ALLOC_H
#define EK_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if a test wants this call of the system to fail: asked before every allocation, map and
 * thread. */
bool ek__host_call_fails(void);

/* Zeroed memory for count * size bytes (one byte for none), or NULL; sets no message. */
void *ek__calloc(size_t count, size_t size);

/* Makes *array hold at least `wanted` items: keeps the first *capacity, zeroes the new ones. False,
 * with nothing changed, if there is no memory; sets no message. */
bool ek__grow(void *array, size_t *capacity, size_t wanted, size_t size);

/* A copy of a string, or NULL; sets no message. */
char *ek__strdup(const char *text);

void ek__free(void *memory);

#endif /* EK_ALLOC_H */
