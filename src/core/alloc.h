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

#include <evenkeel/status.h>

/* Zeroed memory for count * size bytes (one byte for none), or NULL; sets no message. */
void *ek__calloc(size_t count, size_t size);

/* The same, with EK_ERR_OUT_OF_MEMORY "no host memory for WHAT": *pointer, which may be one to any
 * kind of object, becomes `count` items of `size` bytes. Nothing changes if there is no memory. */
ek_status ek__new(void *pointer, size_t count, size_t size, const char *what);

/* Makes *pointer, an array, hold at least `wanted` items: keeps the first *capacity, zeroes the new
 * ones. */
ek_status ek__grow(void *pointer, size_t *capacity, size_t wanted, size_t size, const char *what);

/* *pointer becomes a copy of an object. */
ek_status ek__new_copy(void *pointer, const void *object, size_t size, const char *what);

void ek__free(void *memory);

#endif /* EK_ALLOC_H */
