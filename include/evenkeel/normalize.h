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
 * y = (x - mean) * rstd * weight + bias over each row of `width` elements, with
 * mean = sum x / width and rstd = 1 / sqrt(sum (x - mean)^2 / width + epsilon)
 * (Ba, Kiros, Hinton 2016). x and y [..., width]; weight and bias [width], bias NULL: zeros. mean
 * and rstd, of the type of sums, get one number for each row, which the backward reads. y may be x
 * itself. EK_ERR_SHAPE for rows of no elements, here and below.
 *
 * mean NULL: the mean is taken as 0, so that y = x / sqrt(sum x^2 / width + epsilon) * weight +
 * bias (RMSNorm, Zhang and Sennrich 2019). The backward is then called with mean NULL as well.
 */
EK_API EK_CHECKED ek_status ek_op_layer_norm_forward(ek_stream *stream, ek_tensor *y,
                                                     ek_tensor *mean, ek_tensor *rstd,
                                                     const ek_tensor *x, const ek_tensor *weight,
                                                     const ek_tensor *bias, double epsilon);

typedef struct ek_add_layer_norm_args {
  ek_tensor *y, *sum, *mean, *rstd;
  const ek_tensor *x, *residual, *weight, *bias;
  double epsilon;
} ek_add_layer_norm_args;

/*
 * sum = x + residual, and y = the layer norm of sum as above: a residual connection and the norm
 * that follows it, in one pass over memory. sum may be x or residual itself. Its backward is that
 * of the layer norm, with sum as x.
 */
EK_API EK_CHECKED ek_status ek_op_add_layer_norm_forward(ek_stream *stream,
                                                         const ek_add_layer_norm_args *args);

typedef struct ek_layer_norm_backward_args {
  ek_tensor *dx, *dweight, *dbias; /* each may be NULL: not computed */
  const ek_tensor *dy, *x, *mean, *rstd, *weight;
  const ek_tensor *residual; /* the gradient that reaches x past the norm; NULL: none */
  double weight_beta, bias_beta;
} ek_layer_norm_backward_args;

/*
 * With n = (x - mean) * rstd and g = dy * weight, for each row:
 *     dx      = rstd * (g - average(g) - n * average(g n))   [+ residual]
 *     dweight = weight_beta * dweight + sum over rows of dy * n
 *     dbias   = bias_beta * dbias + sum over rows of dy
 * mean NULL, as in forward: n = x * rstd, and average(g) is left out of dx. dx may be dy, residual,
 * or both of them; without dx, residual is not read. With a beta of 0 the old values are not read.
 */
EK_API EK_CHECKED ek_status ek_op_layer_norm_backward(ek_stream *stream,
                                                      const ek_layer_norm_backward_args *args);

EK_END_DECLARATIONS

#endif /* EVENKEEL_NORMALIZE_H */
