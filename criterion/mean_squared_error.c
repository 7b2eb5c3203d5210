/*
 * mean_squared_error.c - (y - t)^2, one of elementwise_loss.c.
 */
#include <evenkeel/mean_squared_error.h>

#include <evenkeel/elementwise_loss.h>

#include "core/error.h"

ek_status ek_mean_squared_error_create(ek_criterion **criterion, ek_reduction reduction) {
  static const ek_element_loss squared = {EK_ELEMENT_LOSS_SQUARED, 0, 0};
  EK__NOT_NULL("mean_squared_error", criterion);
  return ek_elementwise_loss_create(criterion, &squared, reduction);
}
