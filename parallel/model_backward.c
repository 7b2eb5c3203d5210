/*
 * model_backward.c - the backward of a data-parallel model.
 *
 * Runs the passes of the last forward back. Each says which gradients are complete, and the reducer
 * sums them over the devices meanwhile. A device without rows takes part in every collective with a
 * gradient of zeros; where modules have collectives of their own it runs them with no rows.
 * Gradients of gathered outputs are cut where the forward's rows came from.
 */
#include <string.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/loss_scale.h>

#include "core/error.h"
#include "core/options.h"
#include "grains.h"
#include "module/replica_internal.h"
#include "parallel_internal.h"

struct backward_job {
  ek_data_parallel_model *model;
  const ek_shards *gradients;
  const ek_backward_options *options;
};

static ek_status add_totals(const struct backward_job *job, ek_device *device, size_t index) {
  ek_data_parallel_model *model = job->model;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor *totals = &model->totals[index];
  const ek_tensor *more = job->options->totals == NULL ? NULL : &job->options->totals[index];
  if (model->stage == EK__STEP_EMPTY || job->options->running) {
    return more == NULL ? ek_op_zero(stream, totals) : ek_op_copy(stream, totals, more);
  }
  return more == NULL ? EK_OK : ek_op_add(stream, totals, totals, more);
}

static bool has_rows(const ek_shards *shape, size_t index) {
  return shape->samples[index] < shape->samples[index + 1];
}

/* Of a device without rows, which runs for the sake of its collectives: tensors without elements,
 * or the zero of a scalar; *zero holds their memory. */
static ek_status no_gradients(ek_tensor *gradients, ek_tensor *zero, const struct backward_job *job,
                              ek_device *device, size_t index) {
  const ek_data_parallel_model *model = job->model;
  EK_TRY(ek_tensor_create(zero, device, EK_MEMORY_LOSS, ek_type_of_values(model->options.precision),
                          0, NULL));
  EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), zero));
  for (size_t i = 0; i < model->module->outputs; i++) {
    const ek_shards *shape = &model->part_shapes[i];
    gradients[i] = shape->parts[index];
    for (size_t k = 0; k < model->count; k++) {
      if (shape->parts[k].rank == 0) gradients[i] = *zero;
    }
  }
  return EK_OK;
}

static ek_status run_backward(const struct backward_job *job, ek_device *device, size_t index) {
  const ek_data_parallel_model *model = job->model;
  ek_tensor gradients[EK_MAX_TENSORS], zero = {0};
  ek_status status = EK_OK;
  for (size_t i = 0; i < model->module->outputs; i++) {
    gradients[i] = job->gradients[i].parts[index];
  }
  if (!has_rows(&model->part_shapes[0], index) && model->module->terms == 0) {
    status = no_gradients(gradients, &zero, job, device, index);
  }
  if (status == EK_OK) status = ek_pass_run_backward(NULL, model->passes[index], gradients);
  ek_tensor_free(&zero);
  return status;
}

static ek_status backward_one(void *context, ek_device *device, size_t index) {
  const struct backward_job *job = context;
  ek_data_parallel_model *model = job->model;
  if (model->options.reproducible > 0) {
    EK_TRY(ek__grains_backward(model, device, index, job->gradients, job->options->accumulate));
    return add_totals(job, device, index);
  }
  if (model->reducing) EK_TRY(ek_reducer_start(model->reducer, device));
  if (model->passes[index] != NULL) {
    EK_TRY(run_backward(job, device, index));
  } else if (model->stage == EK__STEP_EMPTY && !ek__placement(model)->gradient_shares) {
    ek_tensor flat = *ek_replica_gradients(model->replicas[index]);
    EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &flat));
  }
  EK_TRY(add_totals(job, device, index));
  return model->reducing ? ek_reducer_finish(model->reducer, device) : EK_OK;
}

/* Parts that stay: each is like the forward's, on its device. */
static bool parts_fit(const ek_data_parallel_model *model, const ek_shards *gradient,
                      const ek_shards *shape) {
  for (size_t k = 0; k < model->count; k++) {
    const ek_tensor *part = &gradient->parts[k];
    if (has_rows(shape, k) && (part->device != ek_group_device(model->group, k) ||
                               !ek_tensor_same_shape(part, &shape->parts[k]))) {
      return false;
    }
  }
  return true;
}

/* All rows are on one device, each like the forward's; a row of scalars is a scalar. */
static bool whole_fits(const ek_data_parallel_model *model, const ek_shards *gradient,
                       const ek_shards *shape) {
  const size_t target = model->options.output_device;
  const ek_tensor *whole = &gradient->parts[target];
  if (!ek_tensor_exists(whole) || whole->device != ek_group_device(model->group, target) ||
      whole->rank == 0 || whole->shape[0] != shape->offsets[model->count]) {
    return false;
  }
  for (size_t k = 0; k < model->count; k++) {
    ek_tensor part = shape->parts[k];
    if (!has_rows(shape, k)) continue;
    if (part.rank == 0) part.rank = 1;
    part.shape[0] = whole->shape[0];
    if (!ek_tensor_same_shape(whole, &part)) return false;
  }
  return true;
}

static ek_status check_gradients(const ek_data_parallel_model *model, const ek_shards *gradients,
                                 size_t count) {
  EK_TRY(ek__layout_check(&model->replicas[0]->layout)); /* arrays are laid out by its counts */
  EK__FAIL_IF(count != model->module->outputs, EK_ERR_INVALID_ARGUMENT,
              "backward: %s has %zu outputs, not %zu", model->module->ops->kind,
              model->module->outputs, count);
  const bool gathered = model->options.outputs == EK_OUTPUTS_GATHER;
  for (size_t i = 0; i < count; i++) {
    const ek_shards *gradient = &gradients[i], *shape = &model->part_shapes[i];
    EK__FAIL_IF(
        gradient->forward != 0 && (gradient->forward != model->pending || gradient->output != i),
        EK_ERR_STATE,
        "backward: gradient number %zu is not of output number %zu of the model's last forward", i,
        i);
    if (gradient->group == model->group) EK_TRY(ek__shards_check("backward", gradient));
    EK__FAIL_IF(gradient->group != model->group ||
                    !(gathered ? whole_fits : parts_fit)(model, gradient, shape),
                EK_ERR_SHAPE, "backward: gradient number %zu does not lie as the forward's output",
                i);
  }
  return EK_OK;
}

static ek_status check_backward(const ek_data_parallel_model *model, const ek_shards *gradients,
                                size_t count, const ek_backward_options *options) {
  EK_TRY(ek__model_check(model));
  EK__FAIL_IF(model->pending == 0, EK_ERR_STATE,
              "backward: no forward with gradient has come before it");
  EK__FAIL_IF(options->running && options->totals == NULL, EK_ERR_INVALID_ARGUMENT,
              "backward: running totals that are not there");
  const bool divided = options->totals != NULL && !options->sum;
  EK__FAIL_IF(model->stage != EK__STEP_EMPTY && model->divided != divided, EK_ERR_STATE,
              "backward: gradients that are to be divided by a weight and gradients that are not "
              "cannot be added up in one step");
  EK__FAIL_IF(model->stage != EK__STEP_EMPTY && model->scaling.factor != options->loss_scale,
              EK_ERR_STATE,
              "backward: gradients with the loss scales %g and %g cannot be added up in one step",
              model->scaling.factor, options->loss_scale);
  EK__FAIL_IF(
      model->stage != EK__STEP_EMPTY && model->running != options->running, EK_ERR_STATE,
      "backward: totals of the step so far and totals of a micro-batch cannot be put together");
  for (size_t k = 0; k < model->count && options->totals != NULL; k++) {
    const ek_tensor *totals = &options->totals[k];
    EK__FAIL_IF(totals->type != EK_F64 || ek_tensor_count(totals) != 2 ||
                    totals->device != ek_group_device(model->group, k),
                EK_ERR_INVALID_ARGUMENT, "backward: totals number %zu is not two f64 on its device",
                k);
  }
  return check_gradients(model, gradients, count);
}

/* Cuts gathered gradients where the forward's rows came from; views on the device that has them. */
static ek_status scatter_gradients(ek_shards *parts, const ek_data_parallel_model *model,
                                   const ek_shards *gradients, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const ek_shards *shape = &model->part_shapes[i];
    const ek_tensor *whole = &gradients[i].parts[model->options.output_device];
    EK_TRY(ek_shards_create(&parts[i], model->group));
    memcpy(parts[i].offsets, shape->offsets, (model->count + 1) * sizeof *shape->offsets);
    EK_TRY(ek__scatter_fill(&parts[i], whole, EK_MEMORY_LOSS, NULL));
    for (size_t k = 0; k < model->count; k++) {
      /* Scalars were gathered to a vector: each is a scalar again. */
      parts[i].parts[k].rank = shape->parts[k].rank;
    }
  }
  return EK_OK;
}

ek_status ek_data_parallel_model_backward(ek_data_parallel_model *model, const ek_shards *gradients,
                                          size_t count, const ek_backward_options *options) {
  ek_backward_options o = EK_BACKWARD_OPTIONS_INIT;
  EK__NOT_NULL("backward", model, gradients);
  EK__MODEL_ENTER(model, "backward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_backward_options"));
  if (o.loss_scale == 0) o.loss_scale = 1;
  const ek_loss_scale given = {.kind = EK_LOSS_SCALE_STATIC, .scale = o.loss_scale};
  EK_TRY(ek_loss_scale_check(&given));
  EK_TRY(ek__model_check(model));
  EK__FAIL_IF(model->pending != 0 && model->last_scale != 0, EK_ERR_STATE,
              "backward: forward has computed gradients for the scale of a criterion "
              "(gradient_in_forward), whose backward is next");
  return ek__model_backward(model, gradients, count, &o, 1);
}

ek_status ek__model_backward(ek_data_parallel_model *model, const ek_shards *gradients,
                             size_t count, const ek_backward_options *options, double unit) {
  const ek_backward_options o = *options;
  EK_TRY(check_backward(model, gradients, count, &o));
  ek_status status = EK_OK;
  ek_shards parts[EK_MAX_TENSORS] = {{0}}; /* of gathered gradients */
  struct backward_job job = {model, gradients, &o};
  if (model->options.outputs == EK_OUTPUTS_GATHER && model->forward_samples > 0) {
    EK_TRY_GOTO(status, scatter_gradients(parts, model, gradients, count), cleanup);
    job.gradients = parts;
  }
  model->reducing = !o.accumulate || ek__placement(model)->gradient_shares;
  EK_TRY_GOTO(status, ek_group_apply(model->group, backward_one, &job), cleanup);
  model->divided = o.totals != NULL && !o.sum;
  model->scaling = (struct ek__scaling){o.loss_scale, unit};
  model->stage = o.accumulate ? EK__STEP_ACCUMULATED : EK__STEP_REDUCED;
  model->running = o.running;
  model->micro_batches++;
  model->step_samples += model->batch_samples;
cleanup:
  for (size_t i = 0; i < count; i++) ek_shards_free(&parts[i]);
  ek__model_drop_forward(model);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

static ek_status reduce_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  if (model->options.reproducible > 0) return ek__grains_take_earlier(model, index);
  EK_TRY(ek_reducer_start(model->reducer, device));
  return ek_reducer_finish(model->reducer, device);
}

ek_status ek__model_reduce(ek_data_parallel_model *model) {
  EK__FAIL_IF(model->stage == EK__STEP_EMPTY, EK_ERR_STATE,
              "there is no gradient: no backward since the last step");
  if (model->stage == EK__STEP_REDUCED) return EK_OK;
  const ek_status status = ek__placement(model)->gradient_shares
                               ? EK_OK /* each micro-batch was */
                               : ek_group_apply(model->group, reduce_one, model);
  if (status != EK_OK) {
    ek__model_end_step(model, false);
    return status;
  }
  model->stage = EK__STEP_REDUCED;
  return EK_OK;
}
