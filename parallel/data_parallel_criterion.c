/*
 * data_parallel_criterion.c - the loss where the outputs are, summed over the devices.
 *
 * Forward: every device that has rows computes its totals {s, d} per term; a device without rows
 * has zeros. One all-reduce of these few numbers gives every device the totals of all, from which
 * it combines the terms itself. Nothing of it waits for the host. With gradient_in_forward the
 * outputs may hold their gradients from then on; the criterion's pass knows.
 *
 * Outputs carry the number of the forward that made them. The criterion remembers that number, and
 * its backward, in criterion_backward.c, refuses any other forward's pass.
 */
#include <evenkeel/data_parallel_criterion.h>

#include <math.h>
#include <string.h>

#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/alloc.h"
#include "core/options.h"
#include "criterion_internal.h"

/* ---- opening and closing ---- */

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_criterion *self = context;
  const int64_t terms = (int64_t)self->criterion->terms;
  const int64_t totals[] = {terms, 2}, combined[] = {2};
  ek_criterion_pass_options options = EK_CRITERION_PASS_OPTIONS_INIT;
  options.keep_outputs = self->options.keep_outputs;
  options.type = self->model->options.type;
  EK_TRY(ek_tensor_create(&self->totals[index], device, EK_MEMORY_LOSS, EK_F64, 2, totals));
  EK_TRY(ek_tensor_create(&self->combined[index], device, EK_MEMORY_LOSS, EK_F64, 1, combined));
  EK_TRY(ek_tensor_create(&self->scales[index], device, EK_MEMORY_LOSS, EK_F64, 1, &terms));
  if (ek__criterion_keeps_terms(self)) {
    EK_TRY(ek_tensor_create(&self->step_totals[index], device, EK_MEMORY_LOSS, EK_F64, 2, totals));
    EK_TRY(
        ek_tensor_create(&self->step_combined[index], device, EK_MEMORY_LOSS, EK_F64, 1, combined));
    EK_TRY(ek_tensor_create(&self->step_scales[index], device, EK_MEMORY_LOSS, EK_F64, 1, &terms));
  }
  return ek_criterion_pass_open(&self->passes[index], device, self->criterion, &options);
}

static ek_status check_open(struct ek__criterion_counts *counts,
                            ek_data_parallel_criterion **parallel,
                            const ek_data_parallel_model *model, const ek_criterion *criterion,
                            const ek_data_parallel_criterion_options *options) {
  if (parallel == NULL || model == NULL || criterion == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_criterion_open: an argument is NULL");
  }
  if (options->keep_outputs && options->gradient_in_forward) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_criterion_open: keep_outputs and gradient_in_forward, "
                        "which overwrites them");
  }
  EK_TRY(ek__criterion_count(counts, criterion));
  if (criterion->outputs != model->module->outputs) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "%s looks at %zu outputs, %s has %zu",
                        criterion->ops->kind, criterion->outputs, model->module->ops->kind,
                        model->module->outputs);
  }
  return EK_OK;
}

ek_status ek_data_parallel_criterion_open(ek_data_parallel_criterion **parallel,
                                          ek_data_parallel_model *model, ek_criterion *criterion,
                                          const ek_data_parallel_criterion_options *options) {
  ek_data_parallel_criterion_options o = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_criterion_options"));
  struct ek__criterion_counts counts;
  EK_TRY(check_open(&counts, parallel, model, criterion, &o));
  EK_TRY(ek__model_check(model));
  ek_data_parallel_criterion *self = ek__calloc(1, sizeof *self);
  if (self == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel criterion");
  }
  self->model = model;
  self->counts = counts;
  self->criterion = ek_criterion_share(criterion);
  self->options = o;
  self->count = model->count;
  for (size_t i = 0; i < criterion->terms; i++) {
    self->coefficients[i] = criterion->coefficients == NULL ? 1.0 : criterion->coefficients[i];
  }
  ek_status status = EK_OK;
  self->targets = ek__calloc(criterion->targets, sizeof *self->targets);
  self->gradients = ek__calloc(criterion->outputs, sizeof *self->gradients);
  if (self->targets == NULL || self->gradients == NULL) {
    status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel criterion");
    goto cleanup;
  }
  EK_TRY_GOTO(status, ek_group_apply(model->group, open_one, self), cleanup);
  *parallel = self;
  return EK_OK;
cleanup:
  ek_data_parallel_criterion_free(self);
  return status;
}

void ek__criterion_drop_forward(ek_data_parallel_criterion *self) {
  for (size_t k = 0; k < self->count; k++) ek_criterion_pass_reset(self->passes[k]);
  for (size_t i = 0; i < self->counts.targets && self->targets != NULL; i++) {
    ek_shards_free(&self->targets[i]);
  }
  for (size_t i = 0; i < self->counts.outputs && self->gradients != NULL; i++) {
    ek_shards_free(&self->gradients[i]);
  }
  self->outputs = NULL;
  self->has_forward = false;
}

void ek_data_parallel_criterion_free(ek_data_parallel_criterion *parallel) {
  if (parallel == NULL) return;
  if (parallel->model->before_update_context == parallel) parallel->model->before_update = NULL;
  ek__criterion_drop_forward(parallel);
  for (size_t k = 0; k < parallel->count; k++) {
    ek_criterion_pass_free(parallel->passes[k]);
    ek_tensor_free(&parallel->step_scales[k]);
    ek_tensor_free(&parallel->step_combined[k]);
    ek_tensor_free(&parallel->step_totals[k]);
    ek_tensor_free(&parallel->scales[k]);
    ek_tensor_free(&parallel->combined[k]);
    ek_tensor_free(&parallel->totals[k]);
  }
  ek__free(parallel->gradients);
  ek__free(parallel->targets);
  ek_criterion_free(parallel->criterion);
  ek__free(parallel);
}

/* ---- forward ---- */

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_criterion *self = context;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_communicator *communicator = self->model->communicator;
  ek_tensor *totals = &self->totals[index];
  if (ek__criterion_has_rows(self->outputs, index)) {
    ek_tensor outputs[EK_MAX_TENSORS], targets[EK_MAX_TENSORS];
    ek__criterion_parts(outputs, self->outputs, self->criterion->outputs, index);
    ek__criterion_parts(targets, self->targets, self->criterion->targets, index);
    EK_TRY((self->with_gradient
                ? ek_criterion_pass_run_forward_gradient
                : ek_criterion_pass_run_forward)(self->passes[index], outputs, targets, totals));
  } else {
    EK_TRY(ek_op_zero(stream, totals));
  }
  EK_TRY(ek_communicator_all_reduce(communicator, device, totals));
  EK_TRY(ek_communicator_wait(communicator, device));
  return ek_op_combine_totals(stream, &self->combined[index], &self->scales[index], totals,
                              self->coefficients, self->criterion->reduction == EK_REDUCTION_MEAN);
}

static ek_status check_outputs(const ek_data_parallel_criterion *self, const ek_shards *outputs,
                               size_t output_count, size_t target_count) {
  EK_TRY(ek__criterion_unchanged(self->criterion, &self->counts));
  if (output_count != self->criterion->outputs || target_count != self->criterion->targets) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "%s takes %zu outputs and %zu targets, not %zu and %zu",
                        self->criterion->ops->kind, self->criterion->outputs,
                        self->criterion->targets, output_count, target_count);
  }
  for (size_t i = 0; i < output_count; i++) {
    if (outputs[i].group != self->model->group) {
      return ek_error_set(EK_ERR_DEVICE, "output number %zu is not of the model's group", i);
    }
    EK_TRY(ek__shards_check("criterion forward: an output", &outputs[i]));
    for (size_t k = 0; k < self->count; k++) {
      if ((outputs[i].offsets[k] < outputs[i].offsets[k + 1]) !=
          ek__criterion_has_rows(outputs, k)) {
        return ek_error_set(EK_ERR_SHAPE, "output number %zu lies on other devices than number 0",
                            i);
      }
    }
  }
  return EK_OK;
}

/*
 * All outputs of one forward, in their order, none of them overwritten; *forward becomes its
 * number, 0 for tensors that a program has made itself.
 */
static ek_status check_origin(uint64_t *forward, const ek_shards *outputs, size_t count) {
  *forward = outputs[0].forward;
  for (size_t i = 0; i < count; i++) {
    if (outputs[i].forward != *forward || (*forward != 0 && outputs[i].output != i)) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "criterion forward: output number %zu is not output number %zu of the "
                          "forward that gave output number 0",
                          i, i);
    }
    if (outputs[i].overwritten) {
      return ek_error_set(EK_ERR_STATE,
                          "criterion forward: a criterion has written the gradient over output "
                          "number %zu",
                          i);
    }
  }
  return EK_OK;
}

/* Everything that is checked before anything is changed. */
static ek_status check_forward(const ek_data_parallel_criterion *self, const ek_shards *outputs,
                               size_t output_count, size_t target_count) {
  uint64_t forward = 0;
  EK_TRY(ek__model_check(self->model));
  EK_TRY(check_outputs(self, outputs, output_count, target_count));
  return check_origin(&forward, outputs, output_count);
}

static void begin_forward(ek_data_parallel_criterion *self, ek_shards *outputs) {
  const ek_data_parallel_model *model = self->model;
  ek__criterion_drop_forward(self);
  self->with_gradient = self->options.gradient_in_forward && model->pending != 0 &&
                        outputs[0].forward == model->pending;
  self->has_loss = false;
  self->outputs = outputs;
  self->forward = outputs[0].forward;
}

/* The targets are in their place. */
static ek_status run_forward(ek_data_parallel_criterion *self) {
  for (size_t i = 0; i < self->criterion->outputs; i++) {
    self->outputs[i].overwritten = self->with_gradient;
  }
  EK_TRY(ek_group_apply(self->model->group, forward_one, self));
  self->has_forward = self->has_loss = true;
  return EK_OK;
}

static void fail_forward(ek_data_parallel_criterion *self) {
  ek__criterion_drop_forward(self);
  ek__model_end_step(self->model, false);
}

ek_status ek_data_parallel_criterion_forward(ek_data_parallel_criterion *parallel,
                                             ek_shards *outputs, size_t output_count,
                                             const ek_tensor *targets, size_t target_count) {
  if (parallel == NULL || outputs == NULL || targets == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion forward: an argument is NULL");
  }
  EK__MODEL_ENTER(parallel->model, "criterion forward");
  EK_TRY(check_forward(parallel, outputs, output_count, target_count));
  EK_TRY(ek__targets_check(parallel->model, outputs, targets, target_count));
  begin_forward(parallel, outputs);
  ek_status status = EK_OK;
  for (size_t i = 0; i < target_count; i++) {
    EK_TRY_GOTO(status,
                ek_scatter_like(&parallel->targets[i], outputs, &targets[i], EK_MEMORY_INPUTS),
                cleanup);
  }
  EK_TRY_GOTO(status, run_forward(parallel), cleanup);
  return EK_OK;
cleanup:
  fail_forward(parallel);
  return status;
}

ek_status ek_data_parallel_criterion_forward_shards(ek_data_parallel_criterion *parallel,
                                                    ek_shards *outputs, size_t output_count,
                                                    const ek_shards *targets, size_t target_count) {
  if (parallel == NULL || outputs == NULL || targets == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion forward: an argument is NULL");
  }
  EK__MODEL_ENTER(parallel->model, "criterion forward");
  EK_TRY(check_forward(parallel, outputs, output_count, target_count));
  EK_TRY(ek__target_shards_check(parallel->model, outputs, targets, target_count));
  begin_forward(parallel, outputs);
  ek_status status = EK_OK;
  for (size_t i = 0; i < target_count; i++) {
    EK_TRY_GOTO(status, ek__target_borrow(&parallel->targets[i], &targets[i]), cleanup);
  }
  EK_TRY_GOTO(status, run_forward(parallel), cleanup);
  return EK_OK;
cleanup:
  fail_forward(parallel);
  return status;
}

/* ---- the loss ---- */

ek_status ek_data_parallel_criterion_loss(double *loss, double *weight,
                                          ek_data_parallel_criterion *parallel) {
  if (loss == NULL || parallel == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion loss: an argument is NULL");
  }
  EK__MODEL_ENTER(parallel->model, "criterion loss");
  EK_TRY(ek__model_check(parallel->model));
  if (!parallel->has_loss) {
    return ek_error_set(EK_ERR_STATE, "criterion loss: no forward has come before it");
  }
  const size_t terms = parallel->counts.terms;
  double combined[2] = {NAN, NAN}, totals[2 * EK_MAX_TERMS] = {0};
  EK_TRY(ek__read_numbers(combined, 2, &parallel->combined[0]));
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms, &parallel->totals[0]));
  double most = 0;
  for (size_t i = 0; i < terms; i++) most = fmax(most, totals[2 * i + 1]);
  if (weight != NULL) *weight = most;
  const bool mean = parallel->criterion->reduction == EK_REDUCTION_MEAN;
  *loss = !mean ? combined[0] : combined[1] == 0 ? 0.0 : combined[0] / combined[1];
  return EK_OK;
}

ek_status ek_data_parallel_criterion_losses(ek_shards *losses,
                                            ek_data_parallel_criterion *parallel) {
  if (losses == NULL || parallel == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion losses: an argument is NULL");
  }
  EK__MODEL_ENTER(parallel->model, "criterion losses");
  EK_TRY(ek__model_check(parallel->model));
  if (!parallel->has_forward || parallel->criterion->reduction != EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_STATE,
                        "criterion losses: no forward with reduction `none` has come before it");
  }
  EK_TRY(ek__shards_check("criterion losses: the outputs", parallel->outputs));
  ek_shards made;
  EK_TRY(ek_shards_create(&made, parallel->model->group));
  for (size_t k = 0; k < parallel->count; k++) {
    ek_tensor part = {
        .device = ek_group_device(made.group, k), .type = parallel->model->options.type, .rank = 1};
    ek_status status = EK_OK;
    if (ek__criterion_has_rows(parallel->outputs, k)) {
      status = ek_criterion_pass_last_losses(&part, parallel->passes[k]);
      if (status == EK_OK) status = ek_tensor_share(&made.parts[k], &part);
    } else {
      made.parts[k] = part;
    }
    if (status != EK_OK) {
      ek_shards_free(&made);
      return status;
    }
    const int64_t rows = made.parts[k].rank == 0 ? 1 : made.parts[k].shape[0];
    made.offsets[k + 1] = made.offsets[k] + rows;
  }
  memcpy(made.samples, parallel->outputs[0].samples, (made.count + 1) * sizeof *made.samples);
  *losses = made;
  return EK_OK;
}

const ek_tensor *ek_data_parallel_criterion_totals(const ek_data_parallel_criterion *parallel) {
  return parallel == NULL ? NULL : parallel->combined;
}
