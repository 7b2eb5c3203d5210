/*
 * swiglu.h - a feed-forward layer with a gate (Shazeer 2020): y = down(silu(gate(x)) * up(x)).
 *
 * Input and output [..., width]. Children: gate and up, linears width -> hidden, and down, a linear
 * hidden -> width. For backward it keeps the results of gate and up, and down its input;
 * silu(gate(x)) is computed again.
 */
#ifndef EVENKEEL_SWIGLU_H
#define EVENKEEL_SWIGLU_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* `bias`: whether the three linears have one. */
EK_API EK_CHECKED ek_status ek_swiglu_create(ek_module **module, int64_t width, int64_t hidden,
                                             bool bias);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SWIGLU_H */
