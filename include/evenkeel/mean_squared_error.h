/*
 * mean_squared_error.h - (y - t)^2 against a target of the same shape and type.
 *
 * The weight d is the number of elements, so that `mean` is torch.nn.MSELoss.
 */
#ifndef EVENKEEL_MEAN_SQUARED_ERROR_H
#define EVENKEEL_MEAN_SQUARED_ERROR_H

#include <evenkeel/criterion.h>

EK_BEGIN_DECLARATIONS

/* One output and one target; the caller frees *criterion with ek_criterion_free(). */
EK_API EK_CHECKED ek_status ek_mean_squared_error_create(ek_criterion **criterion,
                                                         ek_reduction reduction);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MEAN_SQUARED_ERROR_H */
