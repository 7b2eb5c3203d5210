/*
 * attention.h - causal multi-head self-attention with its projections.
 *
 * Input and output [B, T, width]. Children: qkv, a linear width -> 3 width, and projection, a
 * linear width -> width, both with bias. attend.h has the formula; no B x heads x T x T matrix is
 * held.
 */
#ifndef EVENKEEL_ATTENTION_H
#define EVENKEEL_ATTENTION_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/*
 * width must be a multiple of heads. The weights start normal with the given standard deviations
 * (GPT-2: 0.02, and 0.02 / sqrt(2 layers) for the projection); ek_attention_create() uses 0.02.
 */
EK_API EK_CHECKED ek_status ek_attention_create(ek_module **module, int64_t width, int heads);
EK_API EK_CHECKED ek_status ek_attention_create_with(ek_module **module, int64_t width, int heads,
                                                     double deviation, double projection_deviation);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ATTENTION_H */
