/*
 * elementwise_loss.c - losses of numbers against targets of the same shape and type.
 *
 * Backward needs nothing but the two, so the loss holds no memory of its own between forward and
 * backward, unless every single loss was asked for.
 */
#include <evenkeel/elementwise_loss.h>

#include <math.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "module/layer_internal.h"

struct elementwise_loss {
  ek_criterion base;
  ek_element_loss loss;
};

static const ek_element_loss *loss_of(const ek_module *self) {
  return &((const struct elementwise_loss *)self)->loss;
}

/* The operation would accept 2 x 6 against 4 x 3 flattened; a loss of that would be a mistake. */
static ek_status check_target(const ek_tensor *y, const ek_tensor *target) {
  if (ek__same_sizes(y->rank, y->shape, target->rank, target->shape)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE, "the target's shape differs from the output's (ranks %d and "
                                    "%d)",
                      target->rank, y->rank);
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const ek_tensor *y = &inputs[0], *target = &inputs[1];
  ek_tensor *losses = ek_module_outputs(self) == 2 ? &outputs[1] : NULL;
  EK_TRY(check_target(y, target));
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  if (losses != NULL) {
    EK_TRY(ek_pass_output(losses, pass, ek_type_of_sums(y->type), y->rank, y->shape));
  }
  EK_TRY(ek_op_element_loss_forward(ek_pass_stream(pass), losses, &outputs[0], y, target,
                                    loss_of(self)));
  EK_TRY(ek_pass_save(pass, y));
  return ek_pass_save(pass, target);
}

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
  const bool single = ek_module_outputs(self) == 2; /* with a factor for each loss */
  ek_tensor saved[2];                     /* y and the target */
  EK_TRY(ek__layer_take(saved, pass, 2));
  ek_status status = EK_OK;
  if (grad_inputs != NULL) status = ek_pass_input_gradient(&grad_inputs[0], pass, &saved[0]);
  if (grad_inputs != NULL && status == EK_OK) {
    status = ek_op_element_loss_backward(ek_pass_stream(pass), &grad_inputs[0], &saved[0],
                                         &saved[1], single ? NULL : &scale,
                                         single ? &grad_outputs[1] : NULL, loss_of(self));
  }
  ek__free_all(saved, 2);
  return status;
}

/* By kind. */
static const ek_module_ops ops[] = {
    {EK__LAYER("mean_squared_error", forward, backward, ek__layer_free)},
    {EK__LAYER("huber", forward, backward, ek__layer_free)},
    {EK__LAYER("binary_cross_entropy", forward, backward, ek__layer_free)}};

ek_status ek_elementwise_loss_create(ek_criterion **criterion, const ek_element_loss *loss,
                                     ek_reduction reduction) {
  EK__NOT_NULL("ek_elementwise_loss_create", criterion, loss);
  EK__FAIL_IF((size_t)loss->kind >= sizeof ops / sizeof ops[0], EK_ERR_INVALID_ARGUMENT,
              "ek_elementwise_loss_create: unknown kind %d", (int)loss->kind);
  const ek_module_ops *table = &ops[loss->kind];
  EK_TRY(ek__check_number(table->kind, "width", loss->width));
  EK_TRY(ek__check_number(table->kind, "steepness", loss->steepness));
  struct elementwise_loss made = {.loss = *loss};
  EK_TRY(ek_criterion_init(&made.base, table, 1, 1, reduction));
  return ek__new_copy(criterion, &made, sizeof made, table->kind);
}
