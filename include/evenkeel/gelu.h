/*
 * gelu.h - GELU in its tanh form, element by element (elementwise.h has the formula).
 */
#ifndef EVENKEEL_GELU_H
#define EVENKEEL_GELU_H

#include <evenkeel/module.h>

#ifdef __cplusplus
extern "C" {
#endif

EK_API EK_CHECKED ek_status ek_gelu_create(ek_module **module);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_GELU_H */
