/*
 * isa.h - included first by every file of isa/: the vector helpers, and the prototypes of the f32
 * range functions of the instruction set that the file is compiled for.
 */
#ifndef EK_ISA_ISA_H
#define EK_ISA_ISA_H

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/isa/value.h"

#define EK__ISA_PROTOTYPE(name, kind, cut) ek__range_function EK_ISA_NAME(name);
EK__CPU_FUNCTION_LIST(EK__ISA_PROTOTYPE)
EK__CPU_WINOGRAD_LIST(EK__ISA_PROTOTYPE)

static inline int64_t at_most(int64_t count, int64_t most) { return count < most ? count : most; }

#endif /* EK_ISA_ISA_H */
