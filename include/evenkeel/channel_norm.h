/*
 * channel_norm.h - normalisation by channels: what batch norm (batch_norm.h) and group norm
 * (group_norm.h) are made of.
 *
 * x is read as rows x channels, channels last: of [B, H, W, C] every pixel is a row. Statistics are
 * of `samples` runs of rows: one for batch norm, one for each image for group norm. They are
 * made in two steps, so that sums may be added up over devices in between:
 *
 *     x --moments--> sums --statistics--> mean, rstd --forward--> y
 *     dy, x --slopes--> sums --averages--> the averages in dx, dweight, dbias --backward--> dx
 *
 * Sums are f64, also of values of 16 and 32 bits (docs/numerics.md has their error). Their order
 * depends on the shapes alone. See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_CHANNEL_NORM_H
#define EVENKEEL_CHANNEL_NORM_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

/*
 * sums f64 [pieces, 2, channels]: of each piece of the rows the sum of x and the sum of x * x, by
 * channel. The rows are cut into as many pieces as sums has, equal ones or, where that does not
 * divide them, the first ones longer by one. Many pieces are summed at the same time; the sum over
 * all of them is ek_op_column_sum() of sums as [pieces, 2 channels].
 */
EK_API EK_CHECKED ek_status ek_op_channel_moments(ek_stream *stream, ek_tensor *sums,
                                                  const ek_tensor *x);

/*
 * mean and rstd [samples, channels] from sums [samples, 2, channels], where `groups` (a divisor of
 * the channels) says how many groups of neighbouring channels share a mean and a variance: with
 * n = count * channels / groups values,
 *     mean = sum x / n, rstd = 1 / sqrt(variance + epsilon), variance = sum x x / n - mean mean,
 * or 0 if that is less. Each channel gets its group's. count is the number of rows of a sample:
 * `rows`, f64 [1] on the device, or `host_rows` if rows is NULL. Without rows both results are 0.
 */
EK_API EK_CHECKED ek_status ek_op_channel_statistics(ek_stream *stream, ek_tensor *mean,
                                                     ek_tensor *rstd, const ek_tensor *sums,
                                                     const ek_tensor *rows, double host_rows,
                                                     int64_t groups, double epsilon);

/*
 * The running statistics of batch norm from sums [2, channels], and rows as above:
 *     batches          += 1
 *     running_mean     += f * (mean - running_mean)
 *     running_variance += f * (variance * n / (n - 1) - running_variance)
 * with f = momentum or, if that is 0, f = 1 / batches: the average over all batches. Without rows
 * nothing changes; with one row running_variance does not, because the variance that is not biased
 * does not exist.
 */
EK_API EK_CHECKED ek_status ek_op_channel_running(ek_stream *stream, ek_tensor *running_mean,
                                                  ek_tensor *running_variance, ek_tensor *batches,
                                                  const ek_tensor *sums, const ek_tensor *rows,
                                                  double host_rows, double momentum);

/*
 * y = (x - mean) * rstd * weight + bias, where mean and rstd [samples, channels] are those of the
 * row's sample; samples divides the rows. weight and bias [channels] may be NULL: ones and zeros.
 * y may be x.
 */
EK_API EK_CHECKED ek_status ek_op_channel_norm_forward(ek_stream *stream, ek_tensor *y,
                                                       const ek_tensor *x, const ek_tensor *mean,
                                                       const ek_tensor *rstd,
                                                       const ek_tensor *weight,
                                                       const ek_tensor *bias);

/*
 * sums f64 [pieces, 2, channels]: of each piece of the rows, as above, the sum of dy and the sum of
 * dy * n, with n = (x - mean) * rstd. There is one sample, or one for each piece.
 */
EK_API EK_CHECKED ek_status ek_op_channel_slopes(ek_stream *stream, ek_tensor *sums,
                                                 const ek_tensor *dy, const ek_tensor *x,
                                                 const ek_tensor *mean, const ek_tensor *rstd);

typedef struct ek_channel_averages_args {
  ek_tensor *average_g, *average_gn, *dweight, *dbias; /* each may be NULL: not computed */
  const ek_tensor *sums, *rows, *weight;
  double host_rows;
  int64_t groups;
  double weight_beta, bias_beta;
} ek_channel_averages_args;

/*
 * From sums of slopes [samples, 2, channels], with groups, rows and the number n of values of a
 * group as in ek_op_channel_statistics():
 *     average_g  = sum of dy weight / n, over a group of a sample, for each of its channels;
 *                  [samples, channels]. Without rows 0, as
 *     average_gn = sum of dy n weight / n, the first n being (x - mean) * rstd
 *     dweight    = weight_beta * dweight + sum over samples of the sums of dy n
 *     dbias      = bias_beta * dbias + sum over samples of the sums of dy
 * weight NULL: ones. With a beta of 0 the old values are not read.
 */
EK_API EK_CHECKED ek_status ek_op_channel_averages(ek_stream *stream,
                                                   const ek_channel_averages_args *args);

typedef struct ek_channel_norm_backward_args {
  ek_tensor *dx;
  const ek_tensor *dy, *x, *mean, *rstd;
  const ek_tensor *weight;                 /* NULL: ones */
  const ek_tensor *average_g, *average_gn; /* NULL: zeros */
} ek_channel_norm_backward_args;

/*
 * dx = rstd * (dy * weight - average_g - n * average_gn). Both averages are NULL if mean and rstd
 * do not depend on x. dx may be dy.
 */
EK_API EK_CHECKED ek_status ek_op_channel_norm_backward(ek_stream *stream,
                                                        const ek_channel_norm_backward_args *args);

EK_END_DECLARATIONS

#endif /* EVENKEEL_CHANNEL_NORM_H */
