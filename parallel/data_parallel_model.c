/*
 * data_parallel_model.c - forward and backward of a module over all devices of a group.
 *
 * A forward scatters the inputs, brings stale replicas up to date, and runs one pass per device that
 * has rows. A backward runs these passes back; each says which gradients are complete, and the
 * reducer sums them over the devices meanwhile. A device without rows takes part in every collective
 * with a gradient of zeros.
 *
 * The passes live from forward to backward. Whatever fails after work has begun drops them and what
 * the step had accumulated; parameters are not touched by either.
 */
#include <evenkeel/data_parallel_model.h>

#include <string.h>

#include <evenkeel/apply.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/gather.h>
#include <evenkeel/replicate.h>

#include "core/alloc.h"
#include "parallel_internal.h"

/* ---- modes ---- */

static const struct {
  const char *name;
  ek_output_placement outputs;
  ek_state_placement state;
} modes[] = {[EK_MODE_GATHER] = {"gather", EK_OUTPUTS_GATHER, EK_STATE_MASTER},
             [EK_MODE_BALANCED] = {"balanced", EK_OUTPUTS_STAY, EK_STATE_MASTER},
             [EK_MODE_REPLICATED] = {"replicated", EK_OUTPUTS_STAY, EK_STATE_REPLICATED},
             [EK_MODE_SHARDED] = {"sharded", EK_OUTPUTS_STAY, EK_STATE_SHARDED}};

enum { MODES = sizeof modes / sizeof modes[0] };

const char *ek_mode_name(ek_mode mode) {
  return (unsigned)mode < MODES ? modes[mode].name : "unknown";
}

ek_status ek_mode_parse(ek_mode *mode, const char *name) {
  if (mode == NULL || name == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "ek_mode_parse: an argument is NULL");
  }
  for (unsigned i = 0; i < MODES; i++) {
    if (strcmp(modes[i].name, name) == 0) {
      *mode = (ek_mode)i;
      return EK_OK;
    }
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "there is no mode \"%s\": gather, balanced, replicated, sharded", name);
}

ek_status ek_data_parallel_model_options_set_mode(ek_data_parallel_model_options *options,
                                                  ek_mode mode) {
  if (options == NULL || (unsigned)mode >= MODES) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "options may not be NULL, or there is no mode %d",
                        (int)mode);
  }
  options->outputs = modes[mode].outputs;
  options->state = modes[mode].state;
  return EK_OK;
}

/* ---- opening and closing ---- */

static ek_status check_options(const ek_data_parallel_model_options *options,
                               const ek_group *group) {
  if (options->size != sizeof *options || (unsigned)options->outputs > EK_OUTPUTS_GATHER ||
      (unsigned)options->state > EK_STATE_SHARDED) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_model_open: options were not initialised with "
                        "EK_DATA_PARALLEL_MODEL_OPTIONS_INIT, or there is no such placement");
  }
  if (options->output_device >= ek_group_size(group)) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_model_open: there is no device number %zu",
                        options->output_device);
  }
  return EK_OK;
}

static ek_status open_replica(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  options.type = model->options.type;
  options.seed = model->options.seed;
  options.initialize = index == 0;
  EK_TRY(ek_replica_open(&model->replicas[index], device, model->module, &options));
  const int64_t shape[] = {2};
  EK_TRY(ek_tensor_create(&model->totals[index], device, EK_MEMORY_LOSS, EK_F64, 1, shape));
  return ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &model->totals[index]);
}

static ek_status open_reducer(ek_data_parallel_model *model) {
  static const ek_reduce_kind kinds[] = {[EK_STATE_MASTER] = EK_REDUCE_TO_FIRST,
                                         [EK_STATE_REPLICATED] = EK_REDUCE_TO_ALL,
                                         [EK_STATE_SHARDED] = EK_REDUCE_SCATTER};
  ek_reducer_options options = EK_REDUCER_OPTIONS_INIT;
  options.kind = kinds[model->options.state];
  options.bucket_bytes = model->options.bucket_bytes;
  return ek_reducer_open(&model->reducer, model->communicator, model->group, model->replicas,
                         &options);
}

ek_status ek_data_parallel_model_open(ek_data_parallel_model **model, ek_group *group,
                                      ek_module *module,
                                      const ek_data_parallel_model_options *options) {
  static const ek_data_parallel_model_options defaults = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  if (model == NULL || group == NULL || module == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_model_open: model, group and module may not be NULL");
  }
  if (options == NULL) options = &defaults;
  EK_TRY(check_options(options, group));
  ek_data_parallel_model *result = ek__calloc(1, sizeof *result);
  if (result == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel model");
  }
  result->group = group;
  result->count = ek_group_size(group);
  result->module = ek_module_share(module);
  result->options = *options;
  ek_status status = EK_OK;
  result->inputs = ek__calloc(module->inputs, sizeof *result->inputs);
  result->part_shapes = ek__calloc(module->outputs, sizeof *result->part_shapes);
  result->part_gradients = ek__calloc(module->outputs, sizeof *result->part_gradients);
  if (result->inputs == NULL || result->part_shapes == NULL || result->part_gradients == NULL) {
    status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel model");
    goto cleanup;
  }
  EK_TRY_GOTO(status, ek_communicator_open(&result->communicator, group), cleanup);
  EK_TRY_GOTO(status, ek_group_apply(group, open_replica, result), cleanup);
  EK_TRY_GOTO(status, open_reducer(result), cleanup);
  EK_TRY_GOTO(status, ek_replicate(result->communicator, group, result->replicas), cleanup);
  *model = result;
  return EK_OK;
cleanup:
  ek_data_parallel_model_free(result);
  return status;
}

static void drop_forward(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->count; k++) {
    ek_pass_free(model->passes[k]);
    model->passes[k] = NULL;
  }
  model->has_forward = false;
}

void ek_data_parallel_model_free(ek_data_parallel_model *model) {
  if (model == NULL) return;
  drop_forward(model);
  ek_reducer_free(model->reducer);
  for (size_t k = 0; k < model->count; k++) {
    ek_tensor_free(&model->totals[k]);
    ek_replica_free(model->replicas[k]);
  }
  ek_communicator_close(model->communicator);
  ek__free(model->part_gradients);
  ek__free(model->part_shapes);
  ek__free(model->inputs);
  ek_module_free(model->module);
  ek__free(model);
}

ek_group *ek_data_parallel_model_group(const ek_data_parallel_model *model) {
  return model == NULL ? NULL : model->group;
}

ek_replica *ek_data_parallel_model_replica(const ek_data_parallel_model *model, size_t index) {
  return model == NULL || index >= model->count ? NULL : model->replicas[index];
}

/* ---- the step ---- */

void ek__model_end_step(ek_data_parallel_model *model, bool taken) {
  drop_forward(model);
  model->stage = EK__STEP_EMPTY;
  model->step_samples = 0;
  if (!taken) return;
  model->step++;
  if (model->options.state == EK_STATE_MASTER) model->replicas_stale = true;
}

ek_status ek_data_parallel_model_discard(ek_data_parallel_model *model) {
  if (model == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_model_discard: model may not be NULL");
  }
  ek__model_end_step(model, false);
  return EK_OK;
}

/* ---- forward ---- */

static bool is_broadcast(const ek_data_parallel_model *model, size_t input) {
  return (model->options.broadcast_inputs >> input & 1) != 0;
}

static ek_status check_inputs(const ek_data_parallel_model *model, const ek_tensor *inputs,
                              size_t count, const ek_forward_options *options, size_t *lead) {
  if (options->size != sizeof *options) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "forward: options were not initialised with EK_FORWARD_OPTIONS_INIT");
  }
  if (count != model->module->inputs) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "forward: %s takes %zu inputs, not %zu",
                        model->module->ops->kind, model->module->inputs, count);
  }
  *lead = count;
  for (size_t i = 0; i < count; i++) {
    if (!ek_tensor_exists(&inputs[i])) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT, "forward: there is no input number %zu", i);
    }
    if (inputs[i].device != NULL && ek_device_group(inputs[i].device) != model->group) {
      return ek_error_set(EK_ERR_DEVICE, "forward: input number %zu is on %s of another group", i,
                          ek_device_name(inputs[i].device));
    }
    if (is_broadcast(model, i)) continue;
    if (inputs[i].rank == 0) {
      return ek_error_set(EK_ERR_SHAPE, "forward: input number %zu is a scalar and cannot be cut",
                          i);
    }
    if (*lead == count) *lead = i;
    if (inputs[i].shape[0] != inputs[*lead].shape[0]) {
      return ek_error_set(EK_ERR_SHAPE, "forward: input number %zu has %lld rows, number %zu %lld",
                          i, (long long)inputs[i].shape[0], *lead,
                          (long long)inputs[*lead].shape[0]);
    }
  }
  if (*lead < count) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "forward: every input is broadcast; one must be cut");
}

static ek_status scatter_inputs(ek_shards *parts, ek_data_parallel_model *model,
                                const ek_tensor *inputs, size_t count,
                                const ek_scatter_options *scatter) {
  for (size_t i = 0; i < count; i++) {
    if (is_broadcast(model, i)) {
      EK_TRY(ek_scatter_broadcast(&parts[i], model->group, &inputs[i], EK_MEMORY_INPUTS));
    } else {
      EK_TRY(ek_scatter(&parts[i], model->group, &inputs[i], EK_MEMORY_INPUTS, scatter));
    }
  }
  return EK_OK;
}

static ek_status tell_reducer(void *context, ek_pass *pass, size_t parameter) {
  const ek_data_parallel_model *model = context;
  if (!model->reducing) return EK_OK;
  return ek_reducer_complete(model->reducer, ek_pass_device(pass), parameter);
}

static ek_status open_passes(ek_data_parallel_model *model, const ek_shards *lead,
                             const ek_forward_options *options) {
  ek_pass_options pass = EK_PASS_OPTIONS_INIT;
  pass.gradient = options->gradient;
  pass.training = options->training;
  pass.accumulate = model->stage != EK__STEP_EMPTY;
  pass.seed = model->options.seed;
  pass.step = model->step;
  pass.complete = tell_reducer;
  pass.context = model;
  for (size_t k = 0; k < model->count; k++) {
    if (lead->samples[k] == lead->samples[k + 1]) continue;
    pass.first_sample = model->step_samples + lead->samples[k];
    EK_TRY(ek_pass_open(&model->passes[k], model->replicas[k], &pass));
  }
  return EK_OK;
}

/* A training forward may write the buffers of its replica, so they go out before the next forward,
 * whatever that is for. */
static ek_status refresh_replicas(ek_data_parallel_model *model, bool training) {
  const bool buffers = ek_tensor_count(ek_replica_buffers(model->replicas[0])) > 0;
  if (model->replicas_stale || model->buffers_stale) {
    EK_TRY(ek_replicate(model->communicator, model->group, model->replicas));
    model->replicas_stale = false;
  }
  model->buffers_stale = buffers && training;
  return EK_OK;
}

/* Remembers where the rows of an output lie, without holding it. */
static void remember(ek_shards *shape, const ek_shards *output) {
  *shape = *output;
  for (size_t k = 0; k < output->count; k++) {
    shape->parts[k].memory = NULL;
    shape->parts[k].data = NULL;
  }
}

static ek_status gather_output(ek_data_parallel_model *model, ek_shards *output) {
  ek_shards parts = *output;
  ek_shards whole = {.group = output->group, .count = output->count};
  const size_t target = model->options.output_device;
  memset(output, 0, sizeof *output);
  const int64_t samples = parts.samples[parts.count];
  EK_TRY(ek_gather_move(&whole.parts[target], &parts, target, EK_MEMORY_OUTPUTS));
  const ek_tensor *made = &whole.parts[target];
  for (size_t k = 0; k < whole.count; k++) {
    if (k != target) {
      int64_t shape[EK_MAX_RANK];
      memcpy(shape, made->shape, sizeof shape);
      shape[0] = 0;
      const ek_status status = ek_tensor_create(&whole.parts[k], ek_group_device(whole.group, k),
                                                EK_MEMORY_OUTPUTS, made->type, made->rank, shape);
      if (status != EK_OK) {
        ek_shards_free(&whole);
        return status;
      }
    }
    whole.offsets[k + 1] = k < target ? 0 : made->shape[0];
    whole.samples[k + 1] = k < target ? 0 : samples;
  }
  *output = whole;
  return EK_OK;
}

static ek_status run_forward(ek_data_parallel_model *model, ek_shards *outputs,
                             const ek_shards *inputs, size_t lead,
                             const ek_forward_options *options) {
  const size_t count = model->module->outputs;
  EK_TRY(refresh_replicas(model, options->training));
  EK_TRY(open_passes(model, &inputs[lead], options));
  EK_TRY(ek_apply_forward(outputs, count, model->passes, inputs, model->module->inputs));
  for (size_t i = 0; i < count; i++) remember(&model->part_shapes[i], &outputs[i]);
  for (size_t i = 0; i < count && model->options.outputs == EK_OUTPUTS_GATHER; i++) {
    const ek_status status = gather_output(model, &outputs[i]);
    if (status == EK_OK) continue;
    for (size_t j = 0; j < count; j++) ek_shards_free(&outputs[j]);
    return status;
  }
  return EK_OK;
}

ek_status ek_data_parallel_model_forward(ek_data_parallel_model *model, ek_shards *outputs,
                                         const ek_tensor *inputs, size_t input_count,
                                         const ek_forward_options *options) {
  static const ek_forward_options defaults = EK_FORWARD_OPTIONS_INIT;
  if (model == NULL || outputs == NULL || inputs == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "forward: an argument is NULL");
  }
  if (options == NULL) options = &defaults;
  size_t lead = 0;
  EK_TRY(check_inputs(model, inputs, input_count, options, &lead));
  if (model->stage == EK__STEP_REDUCED && options->gradient) {
    return ek_error_set(EK_ERR_STATE,
                        "forward: the step's last backward has run; the optimizer (or discard) is "
                        "next");
  }
  int64_t cut[EK_MAX_DEVICES + 1]; /* a wrong cut is bad input: it loses nothing */
  EK_TRY(ek_scatter_offsets(cut, inputs[lead].shape[0], model->count, options->scatter));
  ek_shards *parts = model->inputs;
  drop_forward(model);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, scatter_inputs(parts, model, inputs, input_count, options->scatter), cleanup);
  EK_TRY_GOTO(status, run_forward(model, outputs, parts, lead, options), cleanup);
  model->forward_samples = inputs[lead].shape[0];
  model->has_forward = options->gradient;
  model->forwards++;
  if (!options->gradient) drop_forward(model);
cleanup:
  for (size_t i = 0; i < input_count; i++) ek_shards_free(&parts[i]);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

/* ---- backward ---- */

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
  if (model->stage == EK__STEP_EMPTY) {
    return more == NULL ? ek_op_zero(stream, totals) : ek_op_copy(stream, totals, more);
  }
  return more == NULL ? EK_OK : ek_op_add(stream, totals, totals, more);
}

static ek_status backward_one(void *context, ek_device *device, size_t index) {
  const struct backward_job *job = context;
  ek_data_parallel_model *model = job->model;
  if (model->reducing) EK_TRY(ek_reducer_start(model->reducer, device));
  if (model->passes[index] != NULL) {
    ek_tensor gradients[EK_MAX_TENSORS];
    for (size_t i = 0; i < model->module->outputs; i++) {
      gradients[i] = job->gradients[i].parts[index];
    }
    EK_TRY(ek_pass_run_backward(model->passes[index], gradients, NULL));
  } else if (model->stage == EK__STEP_EMPTY) {
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
    if (model->passes[k] != NULL && (part->device != ek_group_device(model->group, k) ||
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
    if (model->passes[k] == NULL) continue;
    if (part.rank == 0) part.rank = 1;
    part.shape[0] = whole->shape[0];
    if (!ek_tensor_same_shape(whole, &part)) return false;
  }
  return true;
}

static ek_status check_gradients(const ek_data_parallel_model *model, const ek_shards *gradients,
                                 size_t count) {
  if (count != model->module->outputs) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "backward: %s has %zu outputs, not %zu",
                        model->module->ops->kind, model->module->outputs, count);
  }
  const bool gathered = model->options.outputs == EK_OUTPUTS_GATHER;
  for (size_t i = 0; i < count; i++) {
    const ek_shards *gradient = &gradients[i], *shape = &model->part_shapes[i];
    if (gradient->group != model->group ||
        !(gathered ? whole_fits : parts_fit)(model, gradient, shape)) {
      return ek_error_set(EK_ERR_SHAPE,
                          "backward: gradient number %zu does not lie as the forward's output", i);
    }
  }
  return EK_OK;
}

static ek_status check_backward(const ek_data_parallel_model *model, const ek_shards *gradients,
                                size_t count, const ek_backward_options *options) {
  if (options->size != sizeof *options) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "backward: options were not initialised with EK_BACKWARD_OPTIONS_INIT");
  }
  if (!model->has_forward) {
    return ek_error_set(EK_ERR_STATE, "backward: no forward with gradient has come before it");
  }
  const bool divided = options->totals != NULL && !options->sum;
  if (model->stage != EK__STEP_EMPTY && model->divided != divided) {
    return ek_error_set(EK_ERR_STATE,
                        "backward: gradients that are to be divided by a weight and gradients that "
                        "are not cannot be added up in one step");
  }
  for (size_t k = 0; k < model->count && options->totals != NULL; k++) {
    const ek_tensor *totals = &options->totals[k];
    if (totals->type != EK_F64 || ek_tensor_count(totals) != 2 ||
        totals->device != ek_group_device(model->group, k)) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                          "backward: totals number %zu is not two f64 on its device", k);
    }
  }
  return check_gradients(model, gradients, count);
}

/* Cuts gathered gradients where the forward's rows came from; views on the device that has them. */
static ek_status scatter_gradients(ek_shards *parts, const ek_data_parallel_model *model,
                                   const ek_shards *gradients, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const ek_shards *shape = &model->part_shapes[i];
    const ek_tensor *whole = &gradients[i].parts[model->options.output_device];
    int64_t sizes[EK_MAX_DEVICES];
    for (size_t k = 0; k < model->count; k++) sizes[k] = shape->offsets[k + 1] - shape->offsets[k];
    ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
    options.kind = EK_SCATTER_SIZES;
    options.sizes = sizes;
    EK_TRY(ek_scatter(&parts[i], model->group, whole, EK_MEMORY_LOSS, &options));
    for (size_t k = 0; k < model->count; k++) {
      /* Scalars were gathered to a vector: each is a scalar again. */
      parts[i].parts[k].rank = shape->parts[k].rank;
    }
  }
  return EK_OK;
}

ek_status ek_data_parallel_model_backward(ek_data_parallel_model *model,
                                          const ek_shards *gradients, size_t count,
                                          const ek_backward_options *options) {
  static const ek_backward_options defaults = EK_BACKWARD_OPTIONS_INIT;
  if (model == NULL || gradients == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "backward: an argument is NULL");
  }
  if (options == NULL) options = &defaults;
  EK_TRY(check_backward(model, gradients, count, options));
  ek_status status = EK_OK;
  struct backward_job job = {model, gradients, options};
  if (model->options.outputs == EK_OUTPUTS_GATHER && model->forward_samples > 0) {
    EK_TRY_GOTO(status, scatter_gradients(model->part_gradients, model, gradients, count), cleanup);
    job.gradients = model->part_gradients;
  }
  model->reducing = !options->accumulate;
  EK_TRY_GOTO(status, ek_group_apply(model->group, backward_one, &job), cleanup);
  model->divided = options->totals != NULL && !options->sum;
  model->stage = options->accumulate ? EK__STEP_ACCUMULATED : EK__STEP_REDUCED;
  model->step_samples += model->forward_samples;
cleanup:
  for (size_t i = 0; i < count; i++) ek_shards_free(&model->part_gradients[i]);
  drop_forward(model);
  if (status != EK_OK) ek__model_end_step(model, false);
  return status;
}

static ek_status reduce_one(void *context, ek_device *device, size_t index) {
  const ek_data_parallel_model *model = context;
  (void)index;
  EK_TRY(ek_reducer_start(model->reducer, device));
  return ek_reducer_finish(model->reducer, device);
}

ek_status ek__model_reduce(ek_data_parallel_model *model) {
  if (model->stage == EK__STEP_EMPTY) {
    return ek_error_set(EK_ERR_STATE, "there is no gradient: no backward since the last step");
  }
  if (model->stage == EK__STEP_REDUCED) return EK_OK;
  const ek_status status = ek_group_apply(model->group, reduce_one, model);
  if (status != EK_OK) {
    ek__model_end_step(model, false);
    return status;
  }
  model->stage = EK__STEP_REDUCED;
  return EK_OK;
}
