/*
 * elementwise_loss.h - losses of numbers against targets of the same shape and type.
 *
 *     ek_element_loss loss = ek_huber(1.0);
 *     EK_TRY(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN));
 *
 * losses.h has the formulas. The weight d is the number of elements, so that `mean` is what PyTorch
 * calls `mean`. Elements that do not count, such as pixels without a depth, get weights:
 *
 *     ek_elementwise_loss_options options = EK_ELEMENTWISE_LOSS_OPTIONS_INIT;
 *     options.weighted = true;   // targets: the targets, then weights of the same shape and type
 *     EK_TRY(ek_elementwise_loss_create_with(&criterion, &loss, &options));
 *
 * Then d is the sum of the weights, over all devices and micro-batches. An element of weight 0 is
 * ignored, whatever its output and target are, NaN too.
 */
#ifndef EVENKEEL_ELEMENTWISE_LOSS_H
#define EVENKEEL_ELEMENTWISE_LOSS_H

#include <evenkeel/criterion.h>
#include <evenkeel/losses.h>

EK_BEGIN_DECLARATIONS

/* torch.nn.L1Loss */
static inline ek_element_loss ek_absolute_error(void) {
  const ek_element_loss loss = {EK_ELEMENT_LOSS_HUBER, 0, 1};
  return loss;
}
/* torch.nn.SmoothL1Loss(beta) */
static inline ek_element_loss ek_smooth_absolute_error(double beta) {
  const ek_element_loss loss = {EK_ELEMENT_LOSS_HUBER, beta, 1};
  return loss;
}
/* torch.nn.HuberLoss(delta) */
static inline ek_element_loss ek_huber(double delta) {
  const ek_element_loss loss = {EK_ELEMENT_LOSS_HUBER, delta, delta};
  return loss;
}
/* torch.nn.BCEWithLogitsLoss; targets are probabilities */
static inline ek_element_loss ek_binary_cross_entropy(void) {
  const ek_element_loss loss = {EK_ELEMENT_LOSS_BINARY, 0, 1};
  return loss;
}
/* The same with pos_weight, of all classes: what targets of 1 contribute is multiplied with it. */
static inline ek_element_loss ek_binary_cross_entropy_with(double positive_weight) {
  const ek_element_loss loss = {EK_ELEMENT_LOSS_BINARY, 0, positive_weight};
  return loss;
}
/* torch.nn.KLDivLoss, whose `batchmean` is EK_REDUCTION_MEAN with option by_sample: outputs are
 * logarithms of probabilities; targets are probabilities, or logarithms too. For targets against
 * logits see option soft_targets of cross_entropy.h. */
static inline ek_element_loss ek_divergence(bool log_targets) {
  const ek_element_loss loss = {
      log_targets ? EK_ELEMENT_LOSS_LOG_DIVERGENCE : EK_ELEMENT_LOSS_DIVERGENCE, 0, 0};
  return loss;
}

typedef struct ek_elementwise_loss_options {
  size_t size;
  ek_reduction reduction;
  bool weighted;  /* a second target, of the shape and type of the first: a weight >= 0 for each */
  bool by_sample; /* d counts samples, the entries of dimension 0, instead of elements */
} ek_elementwise_loss_options;
#define EK_ELEMENTWISE_LOSS_OPTIONS_INIT                                                           \
  {                                                                                                \
    .size = sizeof(ek_elementwise_loss_options), .reduction = EK_REDUCTION_MEAN,                   \
    .weighted = false, .by_sample = false                                                          \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status
ek_elementwise_loss_options_init(ek_elementwise_loss_options *options, size_t size);

/*
 * One output, and one target or two; the caller frees *criterion with ek_criterion_free().
 * `options` NULL gives the defaults.
 * EK_ERR_INVALID_ARGUMENT for NULL, an unknown kind, and numbers that are not finite or below 0.
 */
EK_API EK_CHECKED ek_status
ek_elementwise_loss_create_with(ek_criterion **criterion, const ek_element_loss *loss,
                                const ek_elementwise_loss_options *options);
/* With the default options, except for the reduction. */
EK_API EK_CHECKED ek_status ek_elementwise_loss_create(ek_criterion **criterion,
                                                       const ek_element_loss *loss,
                                                       ek_reduction reduction);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ELEMENTWISE_LOSS_H */
