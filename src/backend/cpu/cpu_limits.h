/*
 * cpu_limits.h - the memory limit of the process, if it is less than the memory of the machine.
 */
#ifndef EK_CPU_LIMITS_H
#define EK_CPU_LIMITS_H

#include <stdint.h>

struct ek__cpu_limit {
  uint64_t bytes; /* UINT64_MAX: none */
  uint64_t free;  /* of these, what is not in use; caches of files that can be dropped are free */
};

/* The tightest limit of the process's control groups; `root` is "" but in a test. */
struct ek__cpu_limit ek__cpu_memory_limit(const char *root);

#endif /* EK_CPU_LIMITS_H */
