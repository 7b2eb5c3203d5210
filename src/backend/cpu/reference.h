/*
 * reference.h - names of the f64 range functions.
 *
 * They are plain C with libm, written from the formulas of the public headers and not from the f32
 * kernels: gradient checks and the tests of the f32 kernels rely on them. Clarity comes before
 * speed.
 */
#ifndef EK_CPU_REFERENCE_H
#define EK_CPU_REFERENCE_H

#include "backend/cpu/cpu_internal.h"

#define DECLARE_REFERENCE(name, kind, cut) ek__range_function ek__##name##_f64;
EK__CPU_FUNCTION_LIST(DECLARE_REFERENCE)
#undef DECLARE_REFERENCE

extern const struct ek__cpu_functions ek__cpu_functions_f64;

#endif /* EK_CPU_REFERENCE_H */
