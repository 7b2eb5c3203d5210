/*
 * elementwise_loss.c - losses of numbers against targets of the same shape and type.
 *
 * Backward needs nothing but the two, so the loss holds no memory of its own between forward and
 * backward, unless every single loss was asked for.
 */
#include <evenkeel/elementwise_loss.h>

#include <inttypes.h>
#include <math.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "module/layer_internal.h"

struct elementwise_loss {
  ek_criterion base;
  ek_element_loss loss;
  bool by_sample;
};

enum { Y, TARGET, WEIGHTS, MOST }; /* inputs, which are saved; the last only if weighted */

static const ek_element_loss *loss_of(const ek_module *self) {
  return &((const struct elementwise_loss *)self)->loss;
}

/* The operation would accept 2 x 6 against 4 x 3 flattened; a loss of that would be a mistake. */
static ek_status check_target(const ek_tensor *y, const ek_tensor *target, const char *what) {
  if (ek__same_sizes(y->rank, y->shape, target->rank, target->shape)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "the %s's shape differs from the output's: rank %d with %" PRId64
                      " elements in each row, expected rank %d with %" PRId64,
                      what, target->rank, ek_tensor_row_elements(target), y->rank,
                      ek_tensor_row_elements(y));
}

/* Elements that count as one in d. */
static int64_t unit_of(const ek_module *self, const ek_tensor *y) {
  if (!((const struct elementwise_loss *)self)->by_sample || y->rank == 0) return 1;
  const int64_t each = y->shape[0] == 0 ? 0 : ek_tensor_count(y) / y->shape[0];
  return each == 0 ? 1 : each;
}

static ek_status forward(const ek_module *self, ek_pass *pass, const ek_tensor *inputs,
                         ek_tensor *outputs) {
  const size_t count = ek_module_inputs(self);
  const ek_tensor *y = &inputs[Y], *weights = count == MOST ? &inputs[WEIGHTS] : NULL;
  ek_tensor *losses = ek_module_outputs(self) == 2 ? &outputs[1] : NULL;
  EK_TRY(check_target(y, &inputs[TARGET], "target"));
  if (weights != NULL) EK_TRY(check_target(y, weights, "weight"));
  EK_TRY(ek_pass_totals(&outputs[0], pass));
  if (losses != NULL) {
    EK_TRY(ek_pass_output(losses, pass, ek_type_of_sums(y->type), y->rank, y->shape));
  }
  EK_TRY(ek_op_element_loss_forward(ek_pass_stream(pass), losses, &outputs[0], y, &inputs[TARGET],
                                    weights, loss_of(self), unit_of(self, y)));
  for (size_t i = 0; i < count; i++) EK_TRY(ek_pass_save(pass, &inputs[i]));
  return EK_OK;
}

static ek_status backward(const ek_module *self, ek_pass *pass, const ek_tensor *grad_outputs,
                          ek_tensor *grad_inputs) {
  const ek_tensor scale = ek_criterion_scale(&grad_outputs[0], 0);
  const bool single = ek_module_outputs(self) == 2; /* with a factor for each loss */
  const size_t count = ek_module_inputs(self);
  ek_tensor saved[MOST] = {{0}};
  EK_TRY(ek__layer_take(saved, pass, count));
  ek_status status = EK_OK;
  if (grad_inputs != NULL) status = ek_pass_input_gradient(&grad_inputs[0], pass, &saved[Y]);
  if (grad_inputs != NULL && status == EK_OK) {
    status = ek_op_element_loss_backward(
        ek_pass_stream(pass), &grad_inputs[0], &saved[Y], &saved[TARGET],
        count == MOST ? &saved[WEIGHTS] : NULL, single ? NULL : &scale,
        single ? &grad_outputs[1] : NULL, loss_of(self));
  }
  ek__free_all(saved, count);
  return status;
}

/* By kind. */
static const ek_module_ops ops[] = {
    {EK__LAYER("mean_squared_error", forward, backward, ek__layer_free)},
    {EK__LAYER("huber", forward, backward, ek__layer_free)},
    {EK__LAYER("binary_cross_entropy", forward, backward, ek__layer_free)},
    {EK__LAYER("divergence", forward, backward, ek__layer_free)},
    {EK__LAYER("log_divergence", forward, backward, ek__layer_free)}};

ek_status ek_elementwise_loss_create_with(ek_criterion **criterion, const ek_element_loss *loss,
                                          const ek_elementwise_loss_options *options) {
  ek_elementwise_loss_options o = EK_ELEMENTWISE_LOSS_OPTIONS_INIT;
  EK__NOT_NULL("ek_elementwise_loss_create", criterion, loss);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_elementwise_loss_options"));
  EK__FAIL_IF((size_t)loss->kind >= sizeof ops / sizeof ops[0], EK_ERR_INVALID_ARGUMENT,
              "ek_elementwise_loss_create: unknown kind %d", (int)loss->kind);
  const ek_module_ops *table = &ops[loss->kind];
  EK_TRY(ek__check_number(table->kind, "width", loss->width));
  EK_TRY(ek__check_number(table->kind, "steepness", loss->steepness));
  struct elementwise_loss made = {.loss = *loss, .by_sample = o.by_sample};
  EK_TRY(ek_criterion_init(&made.base, table, 1, o.weighted ? 2 : 1, o.reduction));
  return ek__new_copy(criterion, &made, sizeof made, table->kind);
}

ek_status ek_elementwise_loss_create(ek_criterion **criterion, const ek_element_loss *loss,
                                     ek_reduction reduction) {
  ek_elementwise_loss_options options = EK_ELEMENTWISE_LOSS_OPTIONS_INIT;
  options.reduction = reduction;
  return ek_elementwise_loss_create_with(criterion, loss, &options);
}

EK__OPTIONS_INIT(ek_elementwise_loss_options, EK_ELEMENTWISE_LOSS_OPTIONS_INIT)
