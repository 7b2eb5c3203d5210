/*
 * weighted_sum.h - several losses for several outputs: sum over j of coefficient[j] * loss_j.
 *
 * Term j looks at as many outputs and targets as it needs, taken in order: a model with two outputs
 * and two terms of one output each gives output 0 to term 0 and output 1 to term 1. All terms have
 * the same reduction, `mean` or `sum`. With `mean`, each loss_j is divided by its own weight D_j
 * over all devices, exactly as on one device. Over several accumulated micro-batches the result is
 * the mean of the micro-batches' losses weighted by their largest D_j: equal to the whole batch's
 * whenever the ratios between the D_j are the same in each micro-batch (docs/numerics.md).
 */
#ifndef EVENKEEL_WEIGHTED_SUM_H
#define EVENKEEL_WEIGHTED_SUM_H

#include <evenkeel/criterion.h>

EK_BEGIN_DECLARATIONS

/*
 * Keeps references of its own to the terms; coefficients are copied. EK_ERR_INVALID_ARGUMENT for no
 * terms, mixed reductions, `none`, more than EK_MAX_TERMS, coefficients that are not finite.
 */
EK_API EK_CHECKED ek_status ek_weighted_sum_create(ek_criterion **criterion,
                                                   ek_criterion *const *terms,
                                                   const double *coefficients, size_t count);

EK_END_DECLARATIONS

#endif /* EVENKEEL_WEIGHTED_SUM_H */
