/*
 * cpu_isa.h - the instruction set of the range functions (cpu_dispatch.c), for code that checks it
 * at each call; ek__cpu_isa_name() is its name.
 */
#ifndef EK_CPU_ISA_H
#define EK_CPU_ISA_H

enum ek__cpu_isa { EK__ISA_BASELINE, EK__ISA_AVX2, EK__ISA_AVX512 };

/* Except for f64. */
enum ek__cpu_isa ek__cpu_isa(void);

#endif /* EK_CPU_ISA_H */
