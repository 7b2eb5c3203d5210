/*
 * host_memory.h - a switch for tests of what happens when the host runs out of memory.
 *
 * The library takes a little memory of the host for descriptions and tables, never for tensors, and
 * none inside a training step that has run before.
 */
#ifndef EVENKEEL_HOST_MEMORY_H
#define EVENKEEL_HOST_MEMORY_H

#include <stdint.h>

#include <evenkeel/export.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th such allocation of the process from now on fails once (n = 1 is the next); 0 takes it
 * back. The call that needed it returns EK_ERR_OUT_OF_MEMORY. */
EK_API void ek_host_memory_fail_at(uint64_t n);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_HOST_MEMORY_H */
