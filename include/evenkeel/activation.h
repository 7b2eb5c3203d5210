/*
 * activation.h - the pointwise activations of activation_list.h as modules.
 *
 * One input of any shape with at least one dimension, one output of the same shape. For backward a
 * module saves its output where that is enough (ReLU), because the next layer probably saves it too
 * and the input can then be freed; otherwise it saves the input.
 */
#ifndef EVENKEEL_ACTIVATION_H
#define EVENKEEL_ACTIVATION_H

#include <evenkeel/activation_list.h>
#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* y = f(x), element by element; the caller owns *module, which has one reference. */
EK_API EK_CHECKED ek_status ek_activation_create(ek_module **module, ek_activation activation);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ACTIVATION_H */
