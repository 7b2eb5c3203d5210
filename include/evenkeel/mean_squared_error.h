/*
 * mean_squared_error.h - (y - t)^2 against a target of the same shape and type.
 *
 * The weight d is the number of elements, so that `mean` is torch.nn.MSELoss.
 */
#ifndef EVENKEEL_MEAN_SQUARED_ERROR_H
#define EVENKEEL_MEAN_SQUARED_ERROR_H

#include <evenkeel/criterion.h>

#ifdef __cplusplus
extern "C" {
#endif

EK_API EK_CHECKED ek_status ek_mean_squared_error_create(ek_criterion **criterion,
                                                         ek_reduction reduction);

#ifdef __cplusplus
}
#endif

#endif /* EVENKEEL_MEAN_SQUARED_ERROR_H */
