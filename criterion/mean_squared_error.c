/*
 * mean_squared_error.c - (y - t)^2 against a target of the same shape and type.
 *
 * Backward needs nothing but what it is given, so the loss holds no memory at all between the two,
 * unless every single loss was asked for.
 */
#include <evenkeel/mean_squared_error.h>

#include <evenkeel/losses.h>

#include "core/alloc.h"

/* The operation would accept 2 x 6 against 4 x 3 flattened; a loss of that would be a mistake. */
static ek_status check_target(const ek_tensor *y, const ek_tensor *target) {
  bool equal = y->rank == target->rank;
  for (int d = 0; equal && d < y->rank; d++) equal = y->shape[d] == target->shape[d];
  if (equal) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "mean_squared_error: the target has not the shape of the output "
                      "(ranks %d and %d)",
                      target->rank, y->rank);
}

static ek_status forward(const ek_criterion *self, ek_criterion_pass *pass,
                         const ek_tensor *outputs, const ek_tensor *targets, ek_tensor *totals) {
  const ek_tensor *y = &outputs[0];
  ek_stream *stream = ek_criterion_pass_stream(pass);
  EK_TRY(check_target(y, &targets[0]));
  if (self->reduction != EK_REDUCTION_NONE) {
    return ek_op_squared_error_forward(stream, NULL, totals, y, &targets[0]);
  }
  ek_tensor losses = {0};
  EK_TRY(ek_criterion_pass_create(&losses, pass, y->type, y->rank, y->shape));
  ek_status status = ek_op_squared_error_forward(stream, &losses, totals, y, &targets[0]);
  if (status == EK_OK) status = ek_criterion_pass_losses(pass, &losses);
  ek_tensor_free(&losses);
  return status;
}

static ek_status backward(const ek_criterion *self, ek_criterion_pass *pass,
                          const ek_tensor *outputs, const ek_tensor *targets,
                          const ek_tensor *scales, ek_tensor *gradients) {
  (void)self;
  const ek_tensor *y = &outputs[0];
  ek_tensor factors = {0};
  if (ek_criterion_pass_loss_factors(&factors, pass)) {
    /* As many as there are losses; in which shape they came does not matter. */
    factors.rank = y->rank;
    for (int d = 0; d < y->rank; d++) factors.shape[d] = y->shape[d];
  }
  EK_TRY(check_target(y, &targets[0]));
  EK_TRY(ek_criterion_pass_gradient(&gradients[0], pass, y));
  return ek_op_squared_error_backward(ek_criterion_pass_stream(pass), &gradients[0], y, &targets[0],
                                      scales, ek_tensor_exists(&factors) ? &factors : NULL);
}

static void release(ek_criterion *self) { ek__free(self); }

static const ek_criterion_ops ops = {.size = sizeof(ek_criterion_ops),
                                     .kind = "mean_squared_error",
                                     .forward = forward,
                                     .backward = backward,
                                     .free = release,
                                     .types = EK_TYPES_F32 | EK_TYPES_F64};

ek_status ek_mean_squared_error_create(ek_criterion **criterion, ek_reduction reduction) {
  if (criterion == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "mean_squared_error: criterion is NULL");
  }
  ek_criterion *c = ek__calloc(1, sizeof *c);
  if (c == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "mean_squared_error: the host has no memory");
  }
  const ek_status status = ek_criterion_init(c, &ops, 1, 1, reduction);
  if (status != EK_OK) {
    ek__free(c);
    return status;
  }
  *criterion = c;
  return EK_OK;
}
