/*
 * cpu_amx.h - whether this process may use Intel's AMX for bf16.
 */
#ifndef EK_CPU_AMX_H
#define EK_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

/* What is asked of the processor and of the operating system; tests bring their own. */
struct ek__amx_system {
  bool (*cpuid)(unsigned leaf, unsigned part, unsigned registers[4]); /* eax ebx ecx edx; false: no
                                                                         such leaf */
  uint64_t (*enabled)(void); /* XCR0; only where CPUID says that the system uses it */
  bool (*permit)(void);      /* asks the kernel for the tiles' state; it is asked last */
};
extern const struct ek__amx_system ek__amx_this_system;

bool ek__amx_is_there(const struct ek__amx_system *system);

#endif /* EK_CPU_AMX_H */
