/*
 * dropout.h - sets elements to zero at random in training, and scales the rest by 1 / (1 - p).
 *
 * Dimension 0 counts samples. The mask is a function of (seed, step, layer, global sample,
 * element): it is not stored, and any number of devices sees the same one. In a pass that is not
 * training, and with p = 0, the output shares the input's memory.
 */
#ifndef EVENKEEL_DROPOUT_H
#define EVENKEEL_DROPOUT_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* 0 <= p < 1. */
EK_API EK_CHECKED ek_status ek_dropout_create(ek_module **module, double p);

EK_END_DECLARATIONS

#endif /* EVENKEEL_DROPOUT_H */
