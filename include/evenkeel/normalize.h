/*
 * normalize.h - layer normalisation, and normalisation by the root mean square (RMSNorm).
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_NORMALIZE_H
#define EVENKEEL_NORMALIZE_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * y = (x - mean) * rstd * gamma + beta over each row of `width` elements, with
 * mean = sum x / width and rstd = 1 / sqrt(sum (x - mean)^2 / width + epsilon)
 * (Ba, Kiros, Hinton 2016). beta NULL: zeros. mean and rstd, one per row, are stored for the backward. y may be x
 * itself. Rows of no elements are EK_ERR_SHAPE, here and below.
 *
 * mean NULL: the mean is taken as 0, so that y = x / sqrt(sum x^2 / width + epsilon) * gamma + beta
 * (RMSNorm, Zhang and Sennrich 2019). The backward is then called with mean NULL as well.
 */
EK_API EK_CHECKED ek_status ek_op_layer_norm_forward(ek_stream *stream, ek_tensor *y,
                                                     ek_tensor *mean, ek_tensor *rstd,
                                                     const ek_tensor *x, const ek_tensor *gamma,
                                                     const ek_tensor *beta, double epsilon);

/*
 * sum = x + residual, and y = the layer norm of sum as above: a residual connection and the norm
 * that follows it, in one pass over memory. sum may be x or residual itself; the backward is that
 * of the layer norm, with sum as its x.
 */
EK_API EK_CHECKED ek_status ek_op_add_layer_norm_forward(ek_stream *stream, ek_tensor *y,
                                                         ek_tensor *sum, ek_tensor *mean,
                                                         ek_tensor *rstd, const ek_tensor *x,
                                                         const ek_tensor *residual,
                                                         const ek_tensor *gamma,
                                                         const ek_tensor *beta, double epsilon);

/*
 * With n = (x - mean) * rstd and g = dy * gamma, per row:
 *     dx     = rstd * (g - average(g) - n * average(g n))   [+ residual, unless it is NULL]
 *     dgamma = gamma_scale * dgamma + sum over rows of dy * n
 *     dbeta  = beta_scale * dbeta + sum over rows of dy
 * mean NULL, as in forward: n = x * rstd, and average(g) is left out of dx.
 * residual is the gradient that reaches x past the norm. dx may be dy, residual, or both of them.
 * With a scale of 0 the old values are not read. Each of dx, dgamma and dbeta may be NULL: not
 * computed; without dx, residual is not read.
 */
EK_API EK_CHECKED ek_status ek_op_layer_norm_backward(
    ek_stream *stream, ek_tensor *dx, ek_tensor *dgamma, ek_tensor *dbeta, const ek_tensor *dy,
    const ek_tensor *x, const ek_tensor *mean, const ek_tensor *rstd, const ek_tensor *gamma,
    const ek_tensor *residual, double gamma_scale, double beta_scale);

EK_END_DECLARATIONS

#endif /* EVENKEEL_NORMALIZE_H */
