/*
 * data_parallel_criterion.c - the loss where the outputs are, summed over the devices.
 *
 * Every device has a replica of the criterion, without gradients. Forward: every device that has
 * rows computes its totals {s, d} per term in a pass; a device without rows has zeros. One
 * all-reduce of these few numbers gives every device the totals of all, from which it combines the
 * terms itself. Nothing of it waits for the host. With gradient_in_forward the outputs may hold
 * their gradients from then on; the pass knows. Where the model computes its loss itself, its
 * outputs are the totals, and there are no replicas and no passes.
 *
 * Outputs carry the number of the forward that made them. The criterion remembers that number, and
 * its backward, in criterion_backward.c, refuses any other forward's pass. What its passes hold is
 * dropped with the forward of the model.
 */
#include <evenkeel/data_parallel_criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/losses.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "criterion_internal.h"
#include "grains.h"
#include "module/replica_internal.h"

/* ---- opening and closing ---- */

static const char memory_of[] = "a data-parallel criterion";

static ek_status open_replica(ek_data_parallel_criterion *self, ek_device *device, size_t index) {
  struct ek__criterion_device *own = &self->devices[index];
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.type = self->model->options.type;
  options.precision = self->model->options.precision;
  options.gradients = false;
  EK_TRY(ek_replica_open(&own->replica, device, &self->criterion->base, &options));
  const bool collective = own->replica->layout.collective;
  if (!collective && ek_tensor_count(ek_replica_parameters(own->replica)) == 0) return EK_OK;
  return ek_error_set(
      EK_ERR_UNSUPPORTED,
      "%s has %s: that works in one module with the model, see ek_with_criterion_create()",
      self->criterion->base.ops->kind, collective ? "collectives of its own" : "parameters");
}

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_criterion *self = context;
  struct ek__criterion_device *own = &self->devices[index];
  const int64_t totals[] = {(int64_t)self->terms, 2}, combined[] = {2};
  EK_TRY(ek_tensor_create(&own->totals, device, EK_MEMORY_LOSS, EK_F64, 2, totals));
  EK_TRY(ek_tensor_create(&self->combined[index], device, EK_MEMORY_LOSS, EK_F64, 1, combined));
  EK_TRY(ek_tensor_create(&own->scales, device, EK_MEMORY_LOSS, EK_F64, 2, totals));
  if (self->model->options.reproducible > 0) {
    const int64_t leaves[] = {(int64_t)self->pass_count, (int64_t)self->terms, 2};
    EK_TRY(ek_tensor_create(&own->leaves, device, EK_MEMORY_LOSS, EK_F64, 3, leaves));
    EK_TRY(ek__new(&own->offsets, self->count + 1, sizeof *own->offsets, memory_of));
  }
  if (ek__criterion_keeps_terms(self)) {
    EK_TRY(ek_tensor_create(&own->step_totals, device, EK_MEMORY_LOSS, EK_F64, 2, totals));
    EK_TRY(
        ek_tensor_create(&self->step_combined[index], device, EK_MEMORY_LOSS, EK_F64, 1, combined));
    EK_TRY(ek_tensor_create(&own->step_scales, device, EK_MEMORY_LOSS, EK_F64, 2, totals));
  }
  return self->of_model ? EK_OK : open_replica(self, device, index);
}

static ek_status check_open(ek_data_parallel_criterion **parallel,
                            const ek_data_parallel_model *model, const ek_criterion *criterion,
                            const ek_data_parallel_criterion_options *options) {
  EK__NOT_NULL("ek_data_parallel_criterion_open", parallel, model);
  if (model->module->terms == 0) EK__NOT_NULL("ek_data_parallel_criterion_open", criterion);
  EK__FAIL_IF(
      model->module->terms > 0 && criterion != NULL, EK_ERR_INVALID_ARGUMENT,
      "ek_data_parallel_criterion_open: %s computes its loss itself: the criterion must be NULL",
      model->module->ops->kind);
  EK__FAIL_IF(options->keep_outputs && options->gradient_in_forward, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_criterion_open: keep_outputs and gradient_in_forward, which "
              "overwrites them");
  if (criterion == NULL) return EK_OK;
  EK_TRY(ek_criterion_check(criterion));
  EK__FAIL_IF(ek_criterion_outputs(criterion) != model->module->outputs, EK_ERR_INVALID_ARGUMENT,
              "%s looks at %zu outputs, %s has %zu", criterion->base.ops->kind,
              ek_criterion_outputs(criterion), model->module->ops->kind, model->module->outputs);
  return EK_OK;
}

/* Copies what arrays are laid out by. */
static void describe(ek_data_parallel_criterion *self, ek_data_parallel_model *model,
                     ek_criterion *criterion) {
  self->model = model;
  self->count = model->count;
  self->pass_count = model->pass_count;
  self->of_model = criterion == NULL;
  /* A module with terms is the first member of a criterion. */
  self->criterion = ek_criterion_share(self->of_model ? (ek_criterion *)model->module : criterion);
  self->outputs = model->module->outputs;
  self->targets = self->of_model ? 0 : criterion->base.targets;
  self->terms = self->criterion->base.terms;
  self->reduction = self->criterion->reduction;
  for (size_t i = 0; i < self->terms; i++) {
    const double *coefficients = self->criterion->coefficients;
    self->coefficients[i] = coefficients == NULL ? 1.0 : coefficients[i];
  }
}

static ek_status allocate(ek_data_parallel_criterion *self) {
  EK_TRY(ek__new(&self->devices, self->count, sizeof *self->devices, memory_of));
  EK_TRY(ek__new(&self->passes, self->pass_count, sizeof *self->passes, memory_of));
  EK_TRY(ek__new(&self->combined, self->count, sizeof *self->combined, memory_of));
  return ek__new(&self->step_combined, self->count, sizeof *self->step_combined, memory_of);
}

ek_status ek_data_parallel_criterion_open(ek_data_parallel_criterion **parallel,
                                          ek_data_parallel_model *model, ek_criterion *criterion,
                                          const ek_data_parallel_criterion_options *options) {
  ek_data_parallel_criterion_options o = EK_DATA_PARALLEL_CRITERION_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_criterion_options"));
  EK_TRY(check_open(parallel, model, criterion, &o));
  EK__MODEL_USE(model, "criterion open");
  ek_data_parallel_criterion *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  describe(self, model, criterion);
  self->options = o;
  self->next = model->criteria;
  model->criteria = self;
  ek_status status =
      ek__scalings_copy(&self->scalings, "ek_data_parallel_criterion_open", o.target_scaling,
                        o.target_scaling_count, self->targets);
  if (status == EK_OK) status = allocate(self);
  if (status == EK_OK) status = ek_group_apply(model->group, open_one, self);
  if (status == EK_OK) {
    *parallel = self;
  } else {
    ek_data_parallel_criterion_free(self);
  }
  return status;
}

void ek__criterion_drop_forward(ek_data_parallel_criterion *self) {
  for (size_t i = 0; i < self->pass_count && self->passes != NULL; i++) {
    ek_pass_free(self->passes[i]);
    self->passes[i] = NULL;
  }
  for (size_t k = 0; k < self->count && self->devices != NULL; k++) {
    ek_tensor_free(&self->devices[k].losses);
  }
  self->seen = NULL;
  self->has_forward = false;
}

static void free_device(struct ek__criterion_device *own) {
  ek_replica_free(own->replica);
  ek__free(own->offsets);
  ek_tensor_free(&own->leaves);
  ek_tensor_free(&own->step_scales);
  ek_tensor_free(&own->step_totals);
  ek_tensor_free(&own->scales);
  ek_tensor_free(&own->totals);
}

void ek_data_parallel_criterion_free(ek_data_parallel_criterion *parallel) {
  if (parallel == NULL) return;
  ek_data_parallel_criterion **link = &parallel->model->criteria;
  while (*link != parallel) link = &(*link)->next;
  *link = parallel->next;
  if (parallel->model->before_update_context == parallel) parallel->model->before_update = NULL;
  ek__criterion_drop_forward(parallel);
  for (size_t k = 0; k < parallel->count; k++) {
    if (parallel->devices != NULL) free_device(&parallel->devices[k]);
    if (parallel->combined != NULL) ek_tensor_free(&parallel->combined[k]);
    if (parallel->step_combined != NULL) ek_tensor_free(&parallel->step_combined[k]);
  }
  ek__free(parallel->step_combined);
  ek__free(parallel->combined);
  ek__free(parallel->passes);
  ek__free(parallel->devices);
  ek_criterion_free(parallel->criterion);
  ek__free(parallel->scalings);
  ek__free(parallel);
}

/* ---- forward ---- */

struct criterion_forward_job {
  ek_data_parallel_criterion *self;
  const ek_shards *targets; /* cut like the outputs */
};

/* The totals of this device. */
static ek_status run_pass(const struct criterion_forward_job *job, size_t index) {
  ek_data_parallel_criterion *self = job->self;
  struct ek__criterion_device *own = &self->devices[index];
  ek_pass **pass = &self->passes[index];
  ek_tensor inputs[EK_MAX_INPUTS], results[EK_MAX_TENSORS] = {{0}};
  for (size_t i = 0; i < self->outputs; i++) inputs[i] = self->seen[i].parts[index];
  for (size_t i = 0; i < self->targets; i++) {
    inputs[self->outputs + i] = job->targets[i].parts[index];
  }
  EK_TRY(ek__criterion_open_pass(pass, self, index, self->seen[0].samples[index], &own->totals));
  EK_TRY(ek_pass_run_forward(results, *pass, inputs));
  ek_tensor_free(&results[0]); /* they lie where they were wanted */
  own->losses = results[1];
  if (self->gradient) return EK_OK;
  ek_pass_free(*pass);
  *pass = NULL;
  return EK_OK;
}

/* The totals of all devices. */
static ek_status sum_totals(const struct criterion_forward_job *job, ek_device *device,
                            size_t index) {
  ek_data_parallel_criterion *self = job->self;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_communicator *communicator = self->model->communicator;
  ek_tensor *totals = &self->devices[index].totals;
  if (!ek__criterion_has_rows(self->seen, index)) {
    EK_TRY(ek_op_zero(stream, totals));
  } else if (self->of_model) {
    EK_TRY(ek_op_copy(stream, totals, &self->seen[0].parts[index]));
  } else {
    EK_TRY(run_pass(job, index));
  }
  EK_TRY(ek_communicator_all_reduce(communicator, device, totals));
  return ek_communicator_wait(communicator, device);
}

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  const struct criterion_forward_job *job = context;
  ek_data_parallel_criterion *self = job->self;
  EK_TRY(self->model->options.reproducible > 0
             ? ek__criterion_grains_forward(self, device, index, job->targets)
             : sum_totals(job, device, index));
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor *scales = &self->devices[index].scales;
  EK_TRY(ek_op_combine_totals(stream, &self->combined[index], scales, &self->devices[index].totals,
                              self->coefficients, self->reduction == EK_REDUCTION_MEAN));
  const double factor = self->scaling.factor;
  return factor == 1 ? EK_OK : ek_op_scale(stream, scales, scales, factor);
}

ek_status ek__criterion_unchanged(const ek_data_parallel_criterion *self) {
  return ek__layout_check(self->of_model ? &self->model->replicas[0]->layout
                                         : &self->devices[0].replica->layout);
}

static ek_status check_outputs(const ek_data_parallel_criterion *self, const ek_shards *outputs,
                               size_t output_count, size_t target_count) {
  EK_TRY(ek__criterion_unchanged(self));
  EK__FAIL_IF(output_count != self->outputs || target_count != self->targets,
              EK_ERR_INVALID_ARGUMENT, "%s takes %zu outputs and %zu targets, not %zu and %zu",
              self->criterion->base.ops->kind, self->outputs, self->targets, output_count,
              target_count);
  for (size_t i = 0; i < output_count; i++) {
    EK__FAIL_IF(outputs[i].group != self->model->group, EK_ERR_DEVICE,
                "output number %zu is not of the model's group", i);
    EK_TRY(ek__shards_check("criterion forward: an output", &outputs[i]));
    for (size_t k = 0; k < self->count; k++) {
      EK__FAIL_IF((outputs[i].offsets[k] < outputs[i].offsets[k + 1]) !=
                      ek__criterion_has_rows(outputs, k),
                  EK_ERR_SHAPE, "output number %zu lies on other devices than number 0", i);
    }
  }
  return self->model->options.reproducible == 0
             ? EK_OK
             : ek__grains_check_cut("criterion forward", self->model, &outputs[0]);
}

/* All outputs of one forward, in their order, none of them overwritten. Tensors that a program has
 * made itself have the number 0. */
static ek_status check_origin(const ek_shards *outputs, size_t count) {
  for (size_t i = 0; i < count; i++) {
    EK__FAIL_IF(outputs[i].forward != outputs[0].forward ||
                    (outputs[0].forward != 0 && outputs[i].output != i),
                EK_ERR_INVALID_ARGUMENT,
                "criterion forward: output number %zu is not output number %zu of the forward that "
                "gave output number 0",
                i, i);
    EK__FAIL_IF(outputs[i].overwritten, EK_ERR_STATE,
                "criterion forward: a criterion has written the gradient over output number %zu",
                i);
  }
  return EK_OK;
}

static void begin_forward(ek_data_parallel_criterion *self, ek_shards *outputs, int64_t targets) {
  const ek_data_parallel_model *model = self->model;
  ek__criterion_drop_forward(self);
  self->seen = outputs;
  self->forward = outputs[0].forward;
  self->gradient = model->pending != 0 && self->forward == model->pending;
  self->scaling = (struct ek__scaling){1, 1};
  if (self->gradient) {
    const bool mean = self->reduction == EK_REDUCTION_MEAN;
    self->scaling =
        self->of_model ? model->last_scaling : ek__model_scaling(model, mean ? targets : 0);
  }
  self->with_gradient = self->gradient && self->options.gradient_in_forward && !self->of_model &&
                        model->options.reproducible == 0;
  self->has_loss = false;
}

/* Targets come as tensors that are to be cut, or as shards that were. */
static ek_status forward(ek_data_parallel_criterion *parallel, ek_shards *outputs,
                         size_t output_count, const ek_tensor *tensors, const ek_shards *shards,
                         size_t target_count) {
  const void *targets = shards == NULL ? (const void *)tensors : shards;
  EK__NOT_NULL("criterion forward", parallel, outputs);
  if (target_count > 0) EK__NOT_NULL("criterion forward", targets);
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_USE(model, "criterion forward");
  EK_TRY(check_outputs(parallel, outputs, output_count, target_count));
  EK_TRY(check_origin(outputs, output_count));
  for (size_t i = 0; i < target_count && shards != NULL; i++) {
    EK_TRY(ek__given_check("criterion forward: target", i, model, &shards[i], outputs));
  }
  ek_shards cut[EK_MAX_TENSORS] = {{0}};
  struct ek__conversion taken[EK_MAX_TENSORS];
  const struct ek__intakes intakes = {&parallel->criterion->base, parallel->outputs,
                                      parallel->scalings, parallel->options.target_scaling_count,
                                      model->options.type};
  struct criterion_forward_job job = {parallel, shards == NULL ? cut : shards};
  bool begun = false;
  ek_status status = EK_OK;
  for (size_t i = 0; i < target_count && shards == NULL; i++) {
    char who[64];
    (void)snprintf(who, sizeof who, "criterion forward: target number %zu", i);
    EK_TRY_GOTO(status, ek__scatter_lay_like(&cut[i], who, outputs, &tensors[i]), cleanup);
    EK_TRY_GOTO(status, ek__intake_of(&taken[i], who, &intakes, i, &tensors[i]), cleanup);
  }
  const int64_t samples = outputs[0].samples[parallel->count];
  begin_forward(parallel, outputs, ek__targets_most(tensors, shards, target_count, samples));
  begun = true;
  for (size_t i = 0; i < target_count; i++) {
    if (shards != NULL) {
      EK_TRY_GOTO(status, ek_shards_wait(&shards[i]), cleanup);
    } else {
      EK_TRY_GOTO(status, ek__scatter_fill(&cut[i], &tensors[i], EK_MEMORY_INPUTS, &taken[i]),
                  cleanup);
    }
  }
  for (size_t i = 0; i < output_count; i++) outputs[i].overwritten = parallel->with_gradient;
  EK_TRY_GOTO(status, ek_group_apply(model->group, forward_one, &job), cleanup);
  parallel->has_forward = parallel->has_loss = true;
cleanup:
  for (size_t i = 0; i < target_count; i++) ek_shards_free(&cut[i]);
  if (status != EK_OK && begun) {
    ek__criterion_drop_forward(parallel);
    ek__model_end_step(model, false);
  }
  return status;
}

ek_status ek_data_parallel_criterion_forward(ek_data_parallel_criterion *parallel,
                                             ek_shards *outputs, size_t output_count,
                                             const ek_tensor *targets, size_t target_count) {
  return forward(parallel, outputs, output_count, targets, NULL, target_count);
}

ek_status ek_data_parallel_criterion_forward_shards(ek_data_parallel_criterion *parallel,
                                                    ek_shards *outputs, size_t output_count,
                                                    const ek_shards *targets, size_t target_count) {
  return forward(parallel, outputs, output_count, NULL, targets, target_count);
}

/* ---- the loss ---- */

ek_status ek__criterion_add_totals(double *totals, const ek_data_parallel_criterion *self) {
  double read[2 * EK_MAX_TERMS];
  for (size_t i = 0; i < 2 * self->terms; i++) read[i] = NAN; /* of `plan` devices */
  EK_TRY(ek__read_numbers(read, 2 * (int64_t)self->terms, &self->devices[0].totals));
  for (size_t i = 0; i < 2 * self->terms; i++) totals[i] += read[i];
  return EK_OK;
}

double ek__criterion_loss_of(double *weight, const ek_data_parallel_criterion *self,
                             const double *totals) {
  double loss = 0, most = 0;
  for (size_t i = 0; i < self->terms; i++) {
    const double s = totals[2 * i], d = totals[2 * i + 1];
    const bool divided = self->reduction == EK_REDUCTION_MEAN;
    if (!divided || d != 0) loss += self->coefficients[i] * s / (divided ? d : 1);
    most = fmax(most, d);
  }
  if (weight != NULL) *weight = most;
  return loss;
}

ek_status ek_data_parallel_criterion_loss(double *loss, double *weight,
                                          ek_data_parallel_criterion *parallel) {
  EK__NOT_NULL("criterion loss", loss, parallel);
  EK__MODEL_USE(parallel->model, "criterion loss");
  EK__FAIL_IF(!parallel->has_loss, EK_ERR_STATE, "criterion loss: no forward has come before it");
  const size_t terms = parallel->terms;
  double combined[2] = {NAN, NAN}, totals[2 * EK_MAX_TERMS] = {0};
  EK_TRY(ek__read_numbers(combined, 2, &parallel->combined[0]));
  EK_TRY(ek__read_numbers(totals, 2 * (int64_t)terms, &parallel->devices[0].totals));
  double most = 0;
  for (size_t i = 0; i < terms; i++) most = fmax(most, totals[2 * i + 1]);
  if (weight != NULL) *weight = most;
  const bool mean = parallel->reduction == EK_REDUCTION_MEAN;
  *loss = !mean ? combined[0] : combined[1] == 0 ? 0.0 : combined[0] / combined[1];
  return EK_OK;
}

ek_status ek_data_parallel_criterion_losses(ek_shards *losses,
                                            ek_data_parallel_criterion *parallel) {
  EK__NOT_NULL("criterion losses", losses, parallel);
  EK__MODEL_USE(parallel->model, "criterion losses");
  EK__FAIL_IF(!parallel->has_forward || parallel->reduction != EK_REDUCTION_NONE, EK_ERR_STATE,
              "criterion losses: no forward with reduction `none` has come before it");
  EK_TRY(ek__shards_check("criterion losses: the outputs", parallel->seen));
  ek_shards made;
  EK_TRY(ek_shards_create(&made, parallel->model->group));
  for (size_t k = 0; k < parallel->count; k++) {
    ek_tensor part = {
        .device = ek_group_device(made.group, k), .type = parallel->model->options.type, .rank = 1};
    made.parts[k] = part;
    if (ek__criterion_has_rows(parallel->seen, k)) {
      const ek_status status = ek_tensor_share(&made.parts[k], &parallel->devices[k].losses);
      if (status != EK_OK) {
        ek_shards_free(&made);
        return status;
      }
    }
    const int64_t rows = made.parts[k].rank == 0 ? 1 : made.parts[k].shape[0];
    made.offsets[k + 1] = made.offsets[k] + rows;
  }
  memcpy(made.samples, parallel->seen[0].samples, (made.count + 1) * sizeof *made.samples);
  *losses = made;
  return EK_OK;
}

const ek_tensor *ek_data_parallel_criterion_totals(const ek_data_parallel_criterion *parallel) {
  return parallel == NULL ? NULL : parallel->combined;
}
