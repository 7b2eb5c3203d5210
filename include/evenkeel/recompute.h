/*
 * recompute.h - activations for the price of a second forward.
 *
 * A recomputed module keeps its inputs and nothing else. Its backward runs its forward again,
 * saving, and then its backward (Chen et al. 2016, "Training deep nets with sublinear memory
 * cost"). Training is the same bit for bit: the same operations run on the same numbers, random
 * masks are functions of seed, step, module and sample, and a module that counts batches asks
 * ek_pass_is_recomputing(). It costs one more forward of what is recomputed.
 *
 * A module of your own can do the same: it needs ek_declare_wrapped(),
 * ek_pass_child_forward_with() and ek_pass_save() (docs/own-model.md).
 */
#ifndef EVENKEEL_RECOMPUTE_H
#define EVENKEEL_RECOMPUTE_H

#include <evenkeel/module.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `inner`, recomputed in backward. It stands in the place of `inner`: names, initial values and
 * random numbers are the same, and inner may be recomputed itself or hold what is. It keeps a
 * reference. Inputs may be of integers or targets, outputs of integers. Without a backward it is
 * inner and nothing else.
 *
 * A module that declares `collective` makes its collectives again, on all devices in the same
 * order: its sums are those of the first time. A linear, or an activation, keeps nothing but its
 * input anyway and is run as if it were not wrapped (ek_module_formula()).
 *
 * An error of the second forward says "forward again" where one of the first says "forward".
 *
 * EK_ERR_INVALID_ARGUMENT  `inner` is NULL, no module, or a criterion: what a loss keeps is what
 *                          its caller needs. Recompute the model that goes into it
 */
EK_API EK_CHECKED ek_status ek_recompute_create(ek_module **module, ek_module *inner);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_RECOMPUTE_H */
