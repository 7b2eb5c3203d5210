/*
 * cpu_primitive.h - oneDNN's matmul primitive (cpu_matmul_onednn.c), and the products that use it
 * (cpu_matmul_choice.c).
 */
#ifndef EK_CPU_PRIMITIVE_H
#define EK_CPU_PRIMITIVE_H

#include "backend/cpu/cpu_internal.h"

/* The product on the calling thread, which has scratch (team.h); alpha is 1. *done, false before,
 * stays false where oneDNN has nothing for the type, or for the shape. */
ek_status ek__cpu_primitive_multiply(bool *done, const struct ek__gemm *gemm, ek_type type);

/* Whether oneDNN's primitives are taken for values of the type; on a thread that has scratch. */
ek_status ek__cpu_primitive_is_good(bool *yes, ek_type type);

/* Closes what the calling thread has kept of such products. */
void ek__cpu_primitive_forget(void);

/* Whether the processor has instructions that multiply bf16 (AMX, AVX512-BF16), as oneDNN says. */
bool ek__cpu_primitive_for_bf16(void);

/* Whether every product is our own: the environment wants it, or oneDNN was given up. */
bool ek__cpu_products_are_own(void);

/* Called when the first device opens: from now on every product of the process is our own. */
void ek__cpu_products_give_up_onednn(void);

#endif /* EK_CPU_PRIMITIVE_H */
