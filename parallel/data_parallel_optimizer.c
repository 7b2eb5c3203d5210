/*
 * data_parallel_optimizer.c - steps over the ranges that each device owns.
 *
 * What a device updates is a list of ranges of the flat buffers: everything on device 0 (master),
 * everything on every device (replicated), or its part of each bucket (sharded). The state of a
 * device's ranges lies end to end in flat buffers of its own.
 *
 * Where all devices lie in one address space, the master's ranges are cut into one part per device
 * and every worker updates its part of device 0's memory, so that no worker idles.
 *
 * All memory is taken when it is opened, and nothing is written before everything that can be known
 * to fail has been done: a step that fails so leaves parameters and state as they were. A failure
 * inside the update itself leaves the model torn (model_torn.c).
 */
#include <evenkeel/data_parallel_optimizer.h>

#include <math.h>
#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/device_internal.h"
#include "device/types.h"
#include "parallel_internal.h"

struct ek_data_parallel_optimizer {
  ek_data_parallel_model *model;
  ek_optimizer *optimizer;
  ek_schedule schedule;
  bool norm, refuse;             /* options: gradient_norm, refuse_not_finite */
  bool helpers;                  /* every worker updates a part of device 0's memory */
  int64_t owned[EK_MAX_DEVICES]; /* elements of each device's state */
  size_t state_count;            /* of the rule, when it was opened */
  ek_tensor states[EK_MAX_DEVICES][EK_MAX_OPTIMIZER_STATES];
  ek_tensor square_norms[EK_MAX_DEVICES]; /* f64, of the whole gradient */
  int64_t steps;
};

/* ---- ranges ---- */

/* What a worker works on: ranges of the memory of device number `owner`. */
struct share {
  size_t owner;
  size_t ranges;
  int64_t first, last; /* the only range, if there are no buckets to walk */
  bool buckets;
};

static int64_t flat_count(const ek_data_parallel_model *model) {
  return ek_tensor_count(ek_replica_parameters(model->replicas[0]));
}

/* Part number `part` of all elements, in units of a vector. */
static void cut(int64_t *first, int64_t *last, int64_t count, size_t part, size_t parts) {
  const int64_t units = (count + 15) / 16;
  *first = units * (int64_t)part / (int64_t)parts * 16;
  *last = units * (int64_t)(part + 1) / (int64_t)parts * 16;
  if (*last > count) *last = count;
  if (*first > count) *first = count;
}

/* What worker `index` updates. */
static struct share update_share(const ek_data_parallel_optimizer *self, size_t index) {
  const ek_data_parallel_model *model = self->model;
  struct share share = {.owner = index, .ranges = 1, .last = flat_count(model)};
  switch (model->options.state) {
  case EK_STATE_REPLICATED: break;
  case EK_STATE_SHARDED:
    share.buckets = true;
    share.ranges = ek_reducer_bucket_count(model->reducer);
    break;
  case EK_STATE_MASTER:
    share.owner = 0;
    if (self->helpers) {
      cut(&share.first, &share.last, flat_count(model), index, model->count);
    } else if (index != 0) {
      share.ranges = 0;
    }
    break;
  }
  return share;
}

/* What worker `index` adds to the norm: every element of the gradient is counted by one worker. */
static struct share norm_share(const ek_data_parallel_optimizer *self, size_t index) {
  struct share share = update_share(self, index);
  if (self->model->options.state == EK_STATE_REPLICATED) {
    cut(&share.first, &share.last, flat_count(self->model), index, self->model->count);
  }
  return share;
}

static ek_status range_of(int64_t *first, int64_t *last, const ek_data_parallel_optimizer *self,
                          const struct share *share, size_t range) {
  if (share->buckets) {
    return ek_reducer_range(first, last, self->model->reducer, range, share->owner);
  }
  *first = share->first;
  *last = share->last;
  return EK_OK;
}

/* ---- opening and closing ---- */

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_optimizer *self = context;
  const ek_data_parallel_model *model = self->model;
  const int64_t one = 1;
  EK_TRY(
      ek_tensor_create(&self->square_norms[index], device, EK_MEMORY_OPTIMIZER, EK_F64, 1, &one));
  if (model->options.state == EK_STATE_MASTER && index != 0) return EK_OK;
  if (model->options.state == EK_STATE_SHARDED) {
    for (size_t b = 0; b < ek_reducer_bucket_count(model->reducer); b++) {
      int64_t first = 0, last = 0;
      EK_TRY(ek_reducer_range(&first, &last, model->reducer, b, index));
      self->owned[index] += last - first;
    }
  } else {
    self->owned[index] = flat_count(model);
  }
  for (size_t i = 0; i < self->state_count; i++) {
    EK_TRY(ek_tensor_create(&self->states[index][i], device, EK_MEMORY_OPTIMIZER,
                            model->options.type, 1, &self->owned[index]));
  }
  return EK_OK;
}

static ek_status check_open(ek_data_parallel_optimizer **parallel,
                            const ek_data_parallel_model *model, const ek_optimizer *optimizer) {
  if (parallel == NULL || model == NULL || optimizer == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_optimizer_open: an argument is NULL");
  }
  if (optimizer->ops == NULL || optimizer->states > EK_MAX_OPTIMIZER_STATES) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "ek_data_parallel_optimizer_open: the optimizer has %zu states, expected 0 "
                        "to %d, or is not what ek_optimizer_init() made of it",
                        optimizer->states, EK_MAX_OPTIMIZER_STATES);
  }
  EK_TRY(
      ek__types_check(EK__TABLE_TYPES(optimizer->ops), model->options.type, optimizer->ops->kind));
  return EK_OK;
}

ek_status ek_data_parallel_optimizer_open(ek_data_parallel_optimizer **parallel,
                                          ek_data_parallel_model *model, ek_optimizer *optimizer,
                                          const ek_data_parallel_optimizer_options *options) {
  ek_data_parallel_optimizer_options o = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_optimizer_options"));
  EK_TRY(check_open(parallel, model, optimizer));
  EK_TRY(ek__model_check(model));
  ek_data_parallel_optimizer *self = ek__calloc(1, sizeof *self);
  if (self == NULL) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for a data-parallel optimizer");
  }
  self->model = model;
  self->optimizer = ek_optimizer_share(optimizer);
  self->norm = o.gradient_norm;
  self->refuse = o.refuse_not_finite;
  self->state_count = optimizer->states;
  self->helpers = ek__device_table(ek_group_device(model->group, 0))->shared_memory;
  ek_status status = EK_OK;
  if (o.schedule != NULL) {
    self->schedule = *o.schedule;
  } else {
    EK_TRY_GOTO(status, ek_schedule_constant(&self->schedule, optimizer->learning_rate), cleanup);
  }
  EK_TRY_GOTO(status, ek_group_apply(model->group, open_one, self), cleanup);
  *parallel = self;
  return EK_OK;
cleanup:
  ek_data_parallel_optimizer_free(self);
  return status;
}

void ek_data_parallel_optimizer_free(ek_data_parallel_optimizer *parallel) {
  if (parallel == NULL) return;
  for (size_t k = 0; k < parallel->model->count; k++) {
    for (size_t i = 0; i < EK_MAX_OPTIMIZER_STATES; i++) ek_tensor_free(&parallel->states[k][i]);
    ek_tensor_free(&parallel->square_norms[k]);
  }
  ek_optimizer_free(parallel->optimizer);
  ek__free(parallel);
}

/* ---- the step, on a device's worker ---- */

static ek_status sum_squares(const ek_data_parallel_optimizer *self, ek_device *device,
                             size_t index) {
  const struct share share = norm_share(self, index);
  const ek_tensor *gradients = ek_replica_gradients(self->model->replicas[share.owner]);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor norm = self->square_norms[index];
  EK_TRY(ek_op_zero(stream, &norm));
  for (size_t i = 0; i < share.ranges; i++) {
    int64_t first = 0, last = 0;
    EK_TRY(range_of(&first, &last, self, &share, i));
    const ek_tensor part = ek__flat_range(gradients, first, last - first);
    EK_TRY(ek_op_square_norm(stream, &norm, &part, 1.0));
  }
  EK_TRY(ek_communicator_all_reduce(self->model->communicator, device, &norm));
  return ek_communicator_wait(self->model->communicator, device);
}

/* The rule may be a program's own: a failure is named after it. */
static ek_status run_rule(const ek_optimizer *rule, ek_device *device, const ek_update *update) {
  const uint64_t errors = ek__error_number();
  const ek_status status =
      rule->ops->update(rule, ek_device_stream(device, EK_STREAM_COMPUTE), update);
  if (status != EK_OK) ek__error_name(rule->ops->kind, status, errors);
  return status;
}

static ek_status update_ranges(ek_data_parallel_optimizer *self, ek_device *device, size_t index) {
  const ek_data_parallel_model *model = self->model;
  const struct share share = update_share(self, index);
  const ek_replica *replica = model->replicas[share.owner];
  ek_update update = {.step = self->steps + 1,
                      .learning_rate = ek_schedule_rate(&self->schedule, self->steps)};
  update.scale.totals = model->divided ? &model->totals[index] : NULL;
  update.scale.clip_norm = self->optimizer->clip_norm;
  if (update.scale.clip_norm > 0) update.scale.square_norm = &self->square_norms[index];
  ek__model_update_begins(self->model);
  int64_t done = share.buckets ? 0 : share.first; /* elements of the state before this range */
  for (size_t i = 0; i < share.ranges; i++) {
    int64_t first = 0, last = 0;
    EK_TRY(range_of(&first, &last, self, &share, i));
    ek_tensor states[EK_MAX_OPTIMIZER_STATES];
    ek_tensor parameters = ek__flat_range(ek_replica_parameters(replica), first, last - first);
    const ek_tensor gradients = ek__flat_range(ek_replica_gradients(replica), first, last - first);
    for (size_t s = 0; s < self->state_count; s++) {
      states[s] = ek__flat_range(&self->states[share.owner][s], done, last - first);
    }
    update.parameters = &parameters;
    update.gradients = &gradients;
    update.states = states;
    done += last - first;
    if (first < last) EK_TRY(run_rule(self->optimizer, device, &update));
  }
  return EK_OK;
}

/* Sharded: everybody gets everybody's updated part of each bucket. */
static ek_status share_parameters(const ek_data_parallel_optimizer *self, ek_device *device,
                                  size_t index) {
  const ek_data_parallel_model *model = self->model;
  for (size_t b = 0; b < ek_reducer_bucket_count(model->reducer); b++) {
    int64_t offsets[EK_MAX_DEVICES + 1] = {0}, begin = 0;
    for (size_t k = 0; k < model->count; k++) {
      int64_t first = 0, last = 0;
      EK_TRY(ek_reducer_range(&first, &last, model->reducer, b, k));
      if (k == 0) begin = first;
      offsets[k + 1] = last - begin;
    }
    ek_tensor bucket =
        ek__flat_range(ek_replica_parameters(model->replicas[index]), begin, offsets[model->count]);
    EK_TRY(ek_communicator_all_gather(model->communicator, device, &bucket, offsets));
  }
  return ek_communicator_wait(model->communicator, device);
}

static ek_status prepare_one(void *context, ek_device *device, size_t index) {
  return sum_squares(context, device, index);
}

static ek_status step_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_optimizer *self = context;
  EK_TRY(update_ranges(self, device, index));
  return self->model->options.state == EK_STATE_SHARDED ? share_parameters(self, device, index)
                                                        : EK_OK;
}

/* ---- the step, for the caller ---- */

static ek_status read_result(ek_step_result *result, const ek_data_parallel_optimizer *self,
                             bool norm) {
  const ek_data_parallel_model *model = self->model;
  double totals[2] = {NAN, NAN}, square_norm = NAN;
  EK_TRY(ek__read_numbers(totals, 2, &model->totals[0]));
  if (norm) EK_TRY(ek__read_numbers(&square_norm, 1, &self->square_norms[0]));
  const double weight = model->divided ? totals[1] : 0;
  result->empty = model->divided && totals[1] == 0;
  result->weight = weight;
  result->loss = !model->divided ? totals[0] : result->empty ? 0 : totals[0] / weight;
  result->gradient_norm = -1;
  if (norm) {
    result->gradient_norm = sqrt(square_norm);
    if (model->divided) result->gradient_norm = result->empty ? 0 : result->gradient_norm / weight;
  }
  /* Of a `plan` device nothing is known, and nothing is wrong. */
  const bool counts = ek_device_counts_only(ek_group_device(model->group, 0));
  result->finite = counts || (isfinite(result->loss) && isfinite(result->gradient_norm));
  result->learning_rate = ek_schedule_rate(&self->schedule, self->steps);
  result->step = self->steps + 1;
  return EK_OK;
}

ek_status ek_data_parallel_optimizer_step(ek_step_result *result,
                                          ek_data_parallel_optimizer *parallel) {
  if (parallel == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "optimizer step: optimizer may not be NULL");
  }
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "optimizer step");
  ek_step_result read = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__model_check(model));
  EK_TRY(ek__model_reduce(model));
  const bool wanted = result != NULL || parallel->refuse;
  const bool norm =
      parallel->optimizer->clip_norm > 0 || parallel->refuse || (wanted && parallel->norm);
  if (model->before_update != NULL) {
    EK_TRY_GOTO(status, model->before_update(model->before_update_context), cleanup);
  }
  if (norm) EK_TRY_GOTO(status, ek_group_apply(model->group, prepare_one, parallel), cleanup);
  if (wanted) EK_TRY_GOTO(status, read_result(&read, parallel, norm), cleanup);
  if (parallel->refuse && !read.finite) {
    status = ek_error_set(EK_ERR_NOT_FINITE,
                          "optimizer step: the loss is %g and the norm of the gradient %g: nothing "
                          "was updated, and the step is dropped",
                          read.loss, read.gradient_norm);
    goto cleanup;
  }
  /* From here on parameters are written; nothing below takes memory. */
  EK_TRY_GOTO(status, ek_group_apply(model->group, step_one, parallel), cleanup);
  ek__model_update_ended(model);
  parallel->steps++;
  if (result != NULL) *result = read;
cleanup:
  ek__model_end_step(model, status == EK_OK);
  return status;
}

ek_status ek_data_parallel_optimizer_set_learning_rate(ek_data_parallel_optimizer *parallel,
                                                       double learning_rate) {
  if (parallel == NULL) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT, "set_learning_rate: optimizer may not be NULL");
  }
  EK__MODEL_ENTER(parallel->model, "set_learning_rate");
  EK_TRY(ek__model_check(parallel->model));
  return ek_schedule_constant(&parallel->schedule, learning_rate);
}

int64_t ek_data_parallel_optimizer_steps(const ek_data_parallel_optimizer *parallel) {
  return parallel == NULL ? 0 : parallel->steps;
}

ek_status ek_data_parallel_optimizer_state(ek_tensor *host,
                                           const ek_data_parallel_optimizer *parallel,
                                           const char *name, size_t state) {
  if (parallel == NULL || name == NULL || host == NULL || state >= parallel->state_count) {
    return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                        "optimizer state: an argument is NULL, or there is no state number %zu",
                        state);
  }
  EK__MODEL_ENTER(parallel->model, "optimizer state");
  EK_TRY(ek__model_check(parallel->model));
  if (parallel->steps == 0) {
    return ek_error_set(EK_ERR_STATE, "optimizer state: no step has been taken");
  }
  const ek_data_parallel_model *model = parallel->model;
  ek_parameter_info info;
  EK_TRY(ek_replica_find(&info, model->replicas[0], name));
  if (info.buffer || !ek_tensor_exists(host) || host->device != NULL ||
      host->type != info.value.type || ek_tensor_count(host) != ek_tensor_count(&info.value)) {
    return ek_error_set(EK_ERR_SHAPE,
                        "optimizer state: %s is a buffer, or the host tensor does not "
                        "have its type and size",
                        info.name);
  }
  const ek_tensor *flats[EK_MAX_DEVICES];
  for (size_t k = 0; k < model->count; k++) flats[k] = &parallel->states[k][state];
  return ek__model_read_flat(model, flats, false, info.offset, host);
}
