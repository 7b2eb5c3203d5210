/*
 * losses.h - losses of one shard as a sum and a weight, and their gradients.
 *
 * `totals` is an f64 tensor of two elements, {sum s, weight d}; forward overwrites both. The
 * division by the weight of all devices and micro-batches happens once, later (design: exact loss).
 *
 * See op.h for the rules that hold for all operations.
 */
#ifndef EVENKEEL_LOSSES_H
#define EVENKEEL_LOSSES_H

#include <evenkeel/tensor.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_cross_entropy_terms {
  int32_t ignore_index;   /* targets equal to it are ignored */
  double label_smoothing; /* 0 <= e <= 1 */
  const ek_tensor
      *class_weights; /* `classes` elements of the type of sums on the device; NULL: 1 */
  int64_t classes;    /* leading columns of the logits that are classes; 0: all of them */
} ek_cross_entropy_terms;

/*
 * Rows may be wider than the number of classes, such as those of a vocabulary that is padded for
 * faster products: columns after the first `classes` are ignored, whatever their values, and have
 * the gradient 0. Below, `logits` means the first `classes` columns.
 *
 * For rows x classes logits and one i32 target per row, with p = softmax(row), weights w, y the
 * target and e the smoothing (the formula of PyTorch's CrossEntropyLoss):
 *     l = -(1 - e) w[y] log p[y] - e / classes * sum over c of w[c] log p[c]
 *     s = sum of l, d = sum of w[y], over the rows that are not ignored
 * losses (one per row, of the type of sums) is written; an ignored row has loss 0. normalizer (rows
 * x 2, of that type too) gets {m, z} of every row, m the largest logit and z the sum of e^(x - m),
 * so that p[c] = e^(x[c] - m) / z: kept apart, so that what the logits of a row have in common
 * costs no digits. One pass over the logits' memory. A logit of -infinity has probability 0; a row
 * with NaN or +infinity, or with nothing but -infinity, has loss NaN. A target that is neither
 * ignored nor in 0 .. classes - 1: as a bad index in lookup.h.
 *
 * Targets of the logits' type and shape are soft, a probability t[c] for each class:
 *     q[c] = w[c] ((1 - e) t[c] + e / classes), l = - sum over c of q[c] log p[c]
 *     s = sum of l, d = number of rows that are not ignored
 * A row whose targets are all 0, or whose W = sum of q[c] is 0, is ignored. normalizer is then rows
 * x 3, {m, z, W} of every row. The other functions take soft targets too.
 */
EK_API EK_CHECKED ek_status ek_op_cross_entropy_forward(ek_stream *stream, ek_tensor *losses,
                                                        ek_tensor *normalizer, ek_tensor *totals,
                                                        const ek_tensor *logits,
                                                        const ek_tensor *targets,
                                                        const ek_cross_entropy_terms *terms);

/*
 * gradient[r] = scale * row_scale[r] * dl[r]/dlogits[r]; an ignored row gets zeros. `scale` is one
 * f64 on the device (NULL: 1), `row_scale` one element per row (NULL: 1). gradient may be the
 * logits itself: one read and one write of that memory.
 */
EK_API EK_CHECKED ek_status ek_op_cross_entropy_backward(
    ek_stream *stream, ek_tensor *gradient, const ek_tensor *logits, const ek_tensor *normalizer,
    const ek_tensor *targets, const ek_tensor *scale, const ek_tensor *row_scale,
    const ek_cross_entropy_terms *terms);

typedef struct ek_cross_entropy_gradient_args {
  ek_tensor *gradient, *losses, *normalizer, *totals;
  const ek_tensor *logits, *targets;
  double scale;
  const ek_cross_entropy_terms *terms;
} ek_cross_entropy_gradient_args;

/*
 * ek_op_cross_entropy_forward() and ek_op_cross_entropy_backward() in one, which reads memory once:
 * a row is still in the cache when its gradient is computed. `scale` is a number of the host;
 * there is no row_scale. gradient may be the logits itself.
 */
EK_API EK_CHECKED ek_status
ek_op_cross_entropy_gradient(ek_stream *stream, const ek_cross_entropy_gradient_args *args);

/*
 * l = (y - t)^2 for every element; s = sum of l, d = their number. losses (same shape as y; NULL:
 * not wanted) gets every l.
 */
EK_API EK_CHECKED ek_status ek_op_squared_error_forward(ek_stream *stream, ek_tensor *losses,
                                                        ek_tensor *totals, const ek_tensor *y,
                                                        const ek_tensor *target);

/* gradient = scale * element_scale * 2 (y - t); gradient may be y itself. NULL scales are 1. */
EK_API EK_CHECKED ek_status ek_op_squared_error_backward(ek_stream *stream, ek_tensor *gradient,
                                                         const ek_tensor *y,
                                                         const ek_tensor *target,
                                                         const ek_tensor *scale,
                                                         const ek_tensor *element_scale);

/*
 * Other losses of elements, with d = y - t:
 *     SQUARED  d^2
 *     HUBER    steepness * (d^2 / (2 width) for abs(d) < width, else abs(d) - width / 2)
 *     BINARY   max(y, 0) - y t + b + (steepness - 1) t (b + max(-y, 0)), b = log(1 + exp(-abs(y))):
 *              the cross-entropy of a logit y and the probability t, where what t contributes is
 *              multiplied with steepness (torch.nn.BCEWithLogitsLoss, pos_weight)
 *     DIVERGENCE      t (log t - y), 0 for t = 0: of a logarithm y of a probability
 *                     (torch.nn.KLDivLoss)
 *     LOG_DIVERGENCE  e^t (t - y), 0 for e^t = 0: the same of a logarithm t (log_target)
 * HUBER is torch.nn.SmoothL1Loss(beta) with width = beta and steepness 1, HuberLoss(delta) with
 * both delta, and L1Loss with width 0 and steepness 1. Both numbers are finite and 0 or more.
 */
typedef enum ek_element_loss_kind {
  EK_ELEMENT_LOSS_SQUARED = 0,
  EK_ELEMENT_LOSS_HUBER = 1,
  EK_ELEMENT_LOSS_BINARY = 2,
  EK_ELEMENT_LOSS_DIVERGENCE = 3,
  EK_ELEMENT_LOSS_LOG_DIVERGENCE = 4
} ek_element_loss_kind;

typedef struct ek_element_loss {
  ek_element_loss_kind kind;
  double width, steepness; /* of HUBER; BINARY has the second */
} ek_element_loss;

/*
 * As ek_op_squared_error_forward(), of this loss (NULL: SQUARED), with weights w of y's shape
 * (NULL: 1): losses get w l, s = sum of w l, d = sum of w / unit. An element of weight 0 is
 * ignored, whatever y and t are, NaN too. `unit` is how many elements count as one in d, 1 or more:
 * the width of a row for the mean over rows.
 */
EK_API EK_CHECKED ek_status ek_op_element_loss_forward(ek_stream *stream, ek_tensor *losses,
                                                       ek_tensor *totals, const ek_tensor *y,
                                                       const ek_tensor *target,
                                                       const ek_tensor *weights,
                                                       const ek_element_loss *loss, int64_t unit);

/* As ek_op_squared_error_backward(): gradient = scale * element_scale * w * the slope of the loss
 * by y, which is 0 where abs(d) is not differentiable, and where the weight is 0. */
EK_API EK_CHECKED ek_status ek_op_element_loss_backward(ek_stream *stream, ek_tensor *gradient,
                                                        const ek_tensor *y, const ek_tensor *target,
                                                        const ek_tensor *weights,
                                                        const ek_tensor *scale,
                                                        const ek_tensor *element_scale,
                                                        const ek_element_loss *loss);

/*
 * Puts the terms of a loss together. `totals` is f64, terms x {s, d}; with D the largest d:
 *     combined = {D * sum over j of c[j] * s[j] / d[j], D},  scales[j] = {c[j] * D / d[j], 0}
 * A term without weight (d = 0) is ignored if another term has weight. If no term has
 * weight, D / d is 1 and combined is {sum of c[j] s[j], 0}, which counts if another micro-batch of
 * the step has weight. A d that is NaN is the largest. With divide false (reduction `sum`):
 *     combined = {sum of c[j] * s[j], 1},  scales[j] = {c[j], 0}.
 * scales has the shape of totals, whose gradient it is: a view of its first element is the scale of
 * a loss of one term. `coefficients`, the c[j], is in host memory, read before the call returns. At
 * most 64 terms.
 */
EK_API EK_CHECKED ek_status ek_op_combine_totals(ek_stream *stream, ek_tensor *combined,
                                                 ek_tensor *scales, const ek_tensor *totals,
                                                 const double *coefficients, bool divide);

EK_END_DECLARATIONS

#endif /* EVENKEEL_LOSSES_H */
