/*
 * mlp.h - linear layers with an activation between them.
 *
 * Input [B, sizes[0]], output [B, sizes[count - 1]]; no activation after the last layer.
 */
#ifndef EVENKEEL_MLP_H
#define EVENKEEL_MLP_H

#include <evenkeel/activation_list.h>
#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

/* count >= 2 sizes give count - 1 linear layers with bias. */
EK_API EK_CHECKED ek_status ek_mlp_create(ek_module **module, const int64_t *sizes, size_t count,
                                          ek_activation activation);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MLP_H */
