/*
 * host_memory.h - a switch for tests that makes the host run out of memory.
 *
 * The library takes a little host memory for descriptions and tables, address space for the arenas
 * of CPU devices, and threads; none of it inside a training step that has run before. (Memory that
 * oneDNN allocates during a product is not counted here.)
 */
#ifndef EVENKEEL_HOST_MEMORY_H
#define EVENKEEL_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <evenkeel/export.h>

EK_BEGIN_DECLARATIONS

/* The n-th request for one of these from now on fails (n = 1 is the next); 0 cancels this. The call
 * that needed it returns EK_ERR_OUT_OF_MEMORY. */
EK_API void ek_host_memory_fail_at(uint64_t n);

/* Counts one request, and is true if that request has to fail. The library calls it before each
 * allocation, mapping and thread. Your own module can call it too, so that a test makes its host
 * allocations fail: `p = ek_host_memory_fails() ? NULL : malloc(n)`. */
EK_API bool ek_host_memory_fails(void);

EK_END_DECLARATIONS

#endif /* EVENKEEL_HOST_MEMORY_H */
