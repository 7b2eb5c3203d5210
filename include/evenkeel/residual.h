/*
 * residual.h - y = x + inner(x) for a module of one input and one output of the same shape.
 *
 * The child is named "inner".
 */
#ifndef EVENKEEL_RESIDUAL_H
#define EVENKEEL_RESIDUAL_H

#include <evenkeel/module.h>

#ifdef __cplusplus
extern "C" {
#endif

EK_API EK_CHECKED ek_status ek_residual_create(ek_module **module, ek_module *inner);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_RESIDUAL_H */
