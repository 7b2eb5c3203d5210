/*
 * host_calls.h - the n-th call of the system that the process makes fails.
 *
 * The program defines malloc(), mmap(), pthread_create() and their relatives itself (host_calls.c),
 * in front of the C library's, so that every library of the process calls these: ours, oneDNN,
 * libstdc++. Calls are counted while a failure is armed. Those of libgomp always succeed: it ends
 * the process when they do not, and the library sees to it that it gets its memory (cpu_onednn.c).
 */
#ifndef HOST_CALLS_H
#define HOST_CALLS_H

#include <stdint.h>

enum host_call { HOST_MEMORY, HOST_MAP, HOST_PROTECT, HOST_ADVISE, HOST_UNMAP, HOST_THREAD };
enum { HOST_CALLS = 6 };
extern const char *const host_call_names[HOST_CALLS];

/* From now on the n-th call of this kind fails, and only that one; n = 0: none does. */
void host_calls_fail_at(enum host_call call, uint64_t n);
/* Calls in between are neither counted nor do they fail: the test's own. */
void host_calls_hold(int hold);
/* Those of oneDNN, and of C++ for it, succeed as well, for products by its matmul primitive: it
 * does not survive it when they do not, and the library sees to it that it gets its memory
 * (cpu_kept_onednn.c). */
void host_calls_spare_onednn(int spare);
/* Whether it has come to that, since it was armed. */
int host_calls_failed(void);

/* Blocks of memory, and bytes of maps, that were taken and not given back. */
int64_t host_calls_blocks(void);
int64_t host_calls_maps(void);

#endif /* HOST_CALLS_H */
