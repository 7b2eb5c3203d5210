/*
 * ck_frozen.h - a module whose child has parameters that are frozen.
 *
 * The layers of the library freeze nothing by themselves: each name stands for a parameter of the
 * wrapper's own, own0, own1, ..., to which the child's is tied.
 */
#ifndef CK_FROZEN_H
#define CK_FROZEN_H

#include "ck_module.h"

/* Takes over the child, whose names begin with "inner." from now on. Bit i of `mask`: number i of
 * the `count` names is frozen; the others are trained, from the same values. */
ek_module *ck_frozen_create(ek_module *child, const char *const *names, size_t count,
                            unsigned mask);

/*
 * A layer with a "weight" and a "bias" of these numbers. Bit 0 of `mask` freezes the weight, bit 1
 * the bias. dx and the gradient of the other one have the bits that they have when both are
 * trained. No memory is taken for a gradient that is not needed, and it is not computed. The input
 * follows.
 */
#define CK_FROZEN_PAIR(create, mask, weight, bias, ...)                                            \
  ck_frozen_pair(create, mask, weight, bias, (struct ck_input){__VA_ARGS__})
void ck_frozen_pair(ek_status (*create)(ek_module **), unsigned mask, const double *weight,
                    const double *bias, struct ck_input input);

/* The same, but the wrapper's own parameters are declared without `frozen`: ek_declare_frozen()
 * freezes them by path, by turns before the tie, by their name, and by the child's name. */
ek_module *ck_frozen_by_path(ek_module *child, const char *const *names, size_t count,
                             unsigned mask);

#endif /* CK_FROZEN_H */
