/*
 * elementwise_loss.h - losses of numbers against targets of the same shape and type.
 *
 *     ek_element_loss loss = ek_huber(1.0);
 *     EK_TRY(ek_elementwise_loss_create(&criterion, &loss, EK_REDUCTION_MEAN));
 *
 * losses.h has the formulas. The weight d is the number of elements, so that `mean` is what PyTorch
 * calls `mean`. Elements that do not count get a factor of 0 with reduction `none` (criterion.h).
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
  const ek_element_loss loss = {EK_ELEMENT_LOSS_BINARY, 0, 0};
  return loss;
}

/*
 * One output and one target; the caller frees *criterion with ek_criterion_free().
 * EK_ERR_INVALID_ARGUMENT for NULL, an unknown kind, and numbers that are not finite or below 0.
 */
EK_API EK_CHECKED ek_status ek_elementwise_loss_create(ek_criterion **criterion,
                                                       const ek_element_loss *loss,
                                                       ek_reduction reduction);

EK_END_DECLARATIONS

#endif /* EVENKEEL_ELEMENTWISE_LOSS_H */
