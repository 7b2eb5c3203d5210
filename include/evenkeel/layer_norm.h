/*
 * layer_norm.h - layer normalisation over the last dimension (normalize.h has the formula).
 *
 * Input and output [..., width]. Parameters: weight [width] (ones), bias [width] (zeros).
 */
#ifndef EVENKEEL_LAYER_NORM_H
#define EVENKEEL_LAYER_NORM_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* epsilon is usually 1e-5. */
EK_API EK_CHECKED ek_status ek_layer_norm_create(ek_module **module, int64_t width, double epsilon);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LAYER_NORM_H */
