/*
 * residual.h - y = x + inner(x) for a module of one input and one output of the same shape.
 *
 * The child is named "inner".
 */
#ifndef EVENKEEL_RESIDUAL_H
#define EVENKEEL_RESIDUAL_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* Takes a reference to `inner`: the caller frees both. EK_ERR_INVALID_ARGUMENT unless it has one
 * input and one output. */
EK_API EK_CHECKED ek_status ek_residual_create(ek_module **module, ek_module *inner);

EK_END_DECLARATIONS

#endif /* EVENKEEL_RESIDUAL_H */
