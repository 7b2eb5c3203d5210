/*
 * isa_table.c - the f32 range functions of one instruction set, as a table for the dispatcher.
 */
#include "backend/cpu/isa/isa.h"

extern const struct ek__cpu_functions EK_ISA_NAME(cpu_functions);
const struct ek__cpu_functions EK_ISA_NAME(cpu_functions) = {
#define MEMBER(name, kind, cut) .name = EK_ISA_NAME(name),
    EK__CPU_FUNCTION_LIST(MEMBER) EK__CPU_WINOGRAD_LIST(MEMBER)};
