/*
 * data_parallel_criterion.c - the loss where the outputs are, summed over the devices.
 *
 * Forward: every device that has rows computes its totals {s, d} per term; a device without rows
 * has zeros. One all-reduce of these few numbers gives every device the totals of all, from which
 * it combines the terms itself. Nothing of it waits for the host. With gradient_in_forward the
 * outputs may hold their gradients from then on; the criterion's pass knows.
 */
#include <evenkeel/data_parallel_criterion.h>

#include <math.h>
#include <string.h>

#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/alloc.h"
#include "core/options.h"
#include "parallel_internal.h"

struct ek_data_parallel_criterion {
  ek_data_parallel_model *model;
  ek_criterion *criterion;
  ek_data_parallel_criterion_options options;
  size_t count; /* of devices */
  double coefficients[EK_MAX_TERMS];
  ek_criterion_pass *passes[EK_MAX_DEVICES];
  ek_tensor totals[EK_MAX_DEVICES];   /* f64 [terms, 2], of all devices after forward */
  ek_tensor combined[EK_MAX_DEVICES]; /* f64 {s, D} */
  ek_tensor scales[EK_MAX_DEVICES];   /* f64 [terms] */

  /* From forward to backward. */
  bool has_forward, has_loss;
  bool with_gradient;       /* that forward was allowed to write over the outputs */
  uint64_t forward;         /* which of the model's forwards gave the outputs */
  const ek_shards *outputs; /* the caller's */
  ek_shards *targets;       /* one per target */
  ek_shards *gradients;     /* one per output, during backward */
};

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
  return ek_criterion_pass_open(&self->passes[index], device, self->criterion, &options);
}

static ek_status check_open(ek_data_parallel_criterion **parallel,
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
  EK_TRY(check_open(parallel, model, criterion, &o));
  ek_data_parallel_criterion *self = ek__calloc(1, sizeof *self);
  if (self == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel criterion");
  }
  self->model = model;
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

static void drop_forward(ek_data_parallel_criterion *self) {
  for (size_t k = 0; k < self->count; k++) ek_criterion_pass_reset(self->passes[k]);
  for (size_t i = 0; i < self->criterion->targets && self->targets != NULL; i++) {
    ek_shards_free(&self->targets[i]);
  }
  for (size_t i = 0; i < self->criterion->outputs && self->gradients != NULL; i++) {
    ek_shards_free(&self->gradients[i]);
  }
  self->outputs = NULL;
  self->has_forward = false;
}

void ek_data_parallel_criterion_free(ek_data_parallel_criterion *parallel) {
  if (parallel == NULL) return;
  drop_forward(parallel);
  for (size_t k = 0; k < parallel->count; k++) {
    ek_criterion_pass_free(parallel->passes[k]);
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

static bool has_rows(const ek_shards *outputs, size_t index) {
  return outputs[0].offsets[index] < outputs[0].offsets[index + 1];
}

static void take_parts(ek_tensor *parts, const ek_shards *shards, size_t count, size_t index) {
  for (size_t i = 0; i < count; i++) parts[i] = shards[i].parts[index];
}

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_criterion *self = context;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_communicator *communicator = self->model->communicator;
  ek_tensor *totals = &self->totals[index];
  if (has_rows(self->outputs, index)) {
    ek_tensor outputs[EK_MAX_TENSORS], targets[EK_MAX_TENSORS];
    take_parts(outputs, self->outputs, self->criterion->outputs, index);
    take_parts(targets, self->targets, self->criterion->targets, index);
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
    for (size_t k = 0; k < self->count; k++) {
      if ((outputs[i].offsets[k] < outputs[i].offsets[k + 1]) != has_rows(outputs, k)) {
        return ek_error_set(EK_ERR_SHAPE, "output number %zu lies on other devices than number 0",
                            i);
      }
    }
  }
  return EK_OK;
}

/* The targets are in their place. */
static ek_status run_forward(ek_data_parallel_criterion *self) {
  EK_TRY(ek_group_apply(self->model->group, forward_one, self));
  self->has_forward = self->has_loss = true;
  self->forward = self->model->forwards;
  return EK_OK;
}

static ek_status begin_forward(ek_data_parallel_criterion *self, ek_shards *outputs) {
  const ek_data_parallel_model *model = self->model;
  const bool with_gradient = self->options.gradient_in_forward && model->has_forward;
  if (with_gradient && self->has_forward && self->forward == model->forwards) {
    return ek_error_set(EK_ERR_STATE,
                        "criterion forward: with gradient_in_forward it has overwritten the "
                        "outputs of the model's last forward already");
  }
  drop_forward(self);
  self->with_gradient = with_gradient;
  self->has_loss = false;
  self->outputs = outputs;
  return EK_OK;
}

static void fail_forward(ek_data_parallel_criterion *self) {
  drop_forward(self);
  ek__model_end_step(self->model, false);
}

ek_status ek_data_parallel_criterion_forward(ek_data_parallel_criterion *parallel,
                                             ek_shards *outputs, size_t output_count,
                                             const ek_tensor *targets, size_t target_count) {
  if (parallel == NULL || outputs == NULL || targets == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion forward: an argument is NULL");
  }
  EK_TRY(check_outputs(parallel, outputs, output_count, target_count));
  EK_TRY(ek__targets_check(parallel->model, outputs, targets, target_count));
  EK_TRY(begin_forward(parallel, outputs));
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
  EK_TRY(check_outputs(parallel, outputs, output_count, target_count));
  EK_TRY(ek__target_shards_check(parallel->model, outputs, targets, target_count));
  EK_TRY(begin_forward(parallel, outputs));
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
  if (!parallel->has_loss) {
    return ek_error_set(EK_ERR_STATE, "criterion loss: no forward has come before it");
  }
  const size_t terms = parallel->criterion->terms;
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
  if (!parallel->has_forward || parallel->criterion->reduction != EK_REDUCTION_NONE) {
    return ek_error_set(EK_ERR_STATE,
                        "criterion losses: no forward with reduction `none` has come before it");
  }
  ek_shards made = {.group = parallel->model->group, .count = parallel->count};
  for (size_t k = 0; k < parallel->count; k++) {
    ek_tensor part = {
        .device = ek_group_device(made.group, k), .type = parallel->model->options.type, .rank = 1};
    ek_status status = EK_OK;
    if (has_rows(parallel->outputs, k)) {
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
  memcpy(made.samples, parallel->outputs[0].samples, sizeof made.samples);
  *losses = made;
  return EK_OK;
}

const ek_tensor *ek_data_parallel_criterion_totals(const ek_data_parallel_criterion *parallel) {
  return parallel == NULL ? NULL : parallel->combined;
}

/* ---- backward ---- */

struct criterion_backward_job {
  ek_data_parallel_criterion *self;
  const ek_shards *factors;
};

static ek_status backward_one(void *context, ek_device *device, size_t index) {
  const struct criterion_backward_job *job = context;
  ek_data_parallel_criterion *self = job->self;
  const size_t count = self->criterion->outputs;
  ek_tensor outputs[EK_MAX_TENSORS], targets[EK_MAX_TENSORS], gradients[EK_MAX_TENSORS] = {{0}};
  (void)device;
  if (!has_rows(self->outputs, index)) return EK_OK;
  take_parts(outputs, self->outputs, count, index);
  take_parts(targets, self->targets, self->criterion->targets, index);
  EK_TRY(ek_criterion_pass_run_backward(self->passes[index], outputs, targets, &self->scales[index],
                                        job->factors == NULL ? NULL : &job->factors->parts[index],
                                        gradients));
  for (size_t i = 0; i < count; i++) self->gradients[i].parts[index] = gradients[i];
  return EK_OK;
}

/* Gradients lie where the outputs do; a part without rows is an output's without a holder. */
static void lay_out_gradients(ek_data_parallel_criterion *self) {
  for (size_t i = 0; i < self->criterion->outputs; i++) {
    ek_shards *gradient = &self->gradients[i];
    *gradient = self->outputs[i];
    for (size_t k = 0; k < self->count; k++) {
      if (has_rows(self->outputs, k)) {
        memset(&gradient->parts[k], 0, sizeof gradient->parts[k]);
      } else {
        gradient->parts[k].memory = NULL;
      }
    }
  }
}

static ek_status check_backward(const ek_data_parallel_criterion *self,
                                const ek_data_parallel_model *model,
                                const ek_criterion_backward_options *options) {
  if (model != self->model) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "criterion backward: the criterion was opened for another model");
  }
  if (!self->has_forward || !model->has_forward || self->forward != model->forwards) {
    return ek_error_set(EK_ERR_STATE,
                        "criterion backward: the model's last forward was without gradient, or the "
                        "criterion has not seen its outputs");
  }
  const bool divided = self->criterion->reduction == EK_REDUCTION_MEAN;
  if (model->stage != EK__STEP_EMPTY && model->divided != divided) {
    return ek_error_set(EK_ERR_STATE,
                        "criterion backward: reduction `mean` and others cannot be added up in one "
                        "step");
  }
  if (options->factors != NULL && (self->criterion->reduction != EK_REDUCTION_NONE ||
                                   options->factors->group != model->group)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "criterion backward: factors go with reduction `none`, in the model's "
                        "group");
  }
  return EK_OK;
}

ek_status ek_data_parallel_criterion_backward(ek_data_parallel_criterion *parallel,
                                              ek_data_parallel_model *model,
                                              const ek_criterion_backward_options *options) {
  ek_criterion_backward_options o = EK_CRITERION_BACKWARD_OPTIONS_INIT;
  if (parallel == NULL || model == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "criterion backward: an argument is NULL");
  }
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_criterion_backward_options"));
  EK_TRY(check_backward(parallel, model, &o));
  struct criterion_backward_job job = {parallel, o.factors};
  ek_backward_options backward = EK_BACKWARD_OPTIONS_INIT;
  backward.accumulate = o.accumulate;
  backward.totals = parallel->combined;
  backward.sum = parallel->criterion->reduction != EK_REDUCTION_MEAN;
  lay_out_gradients(parallel);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_group_apply(model->group, backward_one, &job), cleanup);
  EK_TRY_GOTO(status,
              ek_data_parallel_model_backward(model, parallel->gradients,
                                              parallel->criterion->outputs, &backward),
              cleanup);
cleanup:
  drop_forward(parallel);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}
