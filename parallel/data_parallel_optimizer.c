/*
 * data_parallel_optimizer.c - steps over the ranges that each device owns (optimizer_pieces.c).
 *
 * All memory is taken when it is opened, and nothing is written before everything that can be known
 * to fail has been done: a step that fails so leaves parameters and state as they were. A failure
 * inside the update itself leaves the model torn (model_torn.c).
 *
 * A model has one optimizer at a time, and one counter of steps, which is the model's: masks,
 * schedule and bias corrections all follow it. It ends with the optimizer.
 */
#include <evenkeel/data_parallel_optimizer.h>

#include <math.h>

#include <evenkeel/convert.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/trace.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/device_internal.h"
#include "device/types.h"
#include "module/replica_internal.h"
#include "optimizer_internal.h"

/* ---- opening and closing ---- */

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_optimizer *self = context;
  struct ek__optimizer_device *own = &self->devices[index];
  const int64_t one = 1;
  EK_TRY(ek_tensor_create(&own->square_norm, device, EK_MEMORY_OPTIMIZER, EK_F64, 1, &one));
  if (self->model->options.reproducible > 0) {
    const int64_t leaves = ek__norm_leaves(self->model);
    EK_TRY(ek_tensor_create(&own->norm_leaves, device, EK_MEMORY_OPTIMIZER, EK_F64, 1, &leaves));
  }
  for (size_t i = 0; i < self->state_count && own->owner == index; i++) {
    EK_TRY(ek_tensor_create(&own->states[i], device, EK_MEMORY_OPTIMIZER, self->model->options.type,
                            1, &own->owned));
    EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &own->states[i]));
  }
  return EK_OK;
}

static const char memory_of[] = "a data-parallel optimizer";

/* Host memory, by the parameters of the replicas. */
static ek_status make_tables(ek_data_parallel_optimizer *self) {
  const ek_replica *replica = self->model->replicas[0];
  const size_t count = ek_replica_parameter_count(replica), devices = self->model->count;
  const size_t ranks = ek_communicator_world_size(self->model->communicator);
  EK_TRY(ek__new(&self->devices, devices, sizeof *self->devices, memory_of));
  EK_TRY(ek__new(&self->parameters, count, sizeof *self->parameters, memory_of));
  EK_TRY(ek__new(&self->written, count, self->state_count * sizeof *self->written, memory_of));
  for (size_t k = 0; k < devices; k++) {
    EK_TRY(
        ek__new(&self->devices[k].offsets, ranks + 1, sizeof *self->devices[k].offsets, memory_of));
  }
  for (size_t i = 0; i < count; i++) {
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, replica, i));
    if (!info.buffer && !info.frozen) self->parameters[self->parameter_count++] = i;
  }
  return ek__optimizer_cut(self);
}

static ek_status check_open(const ek_data_parallel_model *model, const ek_optimizer *optimizer) {
  EK__FAIL_IF(optimizer->ops == NULL || optimizer->states > EK_MAX_OPTIMIZER_STATES,
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_optimizer_open: the optimizer has %zu states, expected 0 to %d, or "
              "is not what ek_optimizer_init() made of it",
              optimizer->states, EK_MAX_OPTIMIZER_STATES);
  const unsigned types = EK__TABLE_TYPES(optimizer->ops);
  EK_TRY(ek__types_check(types, model->options.type, optimizer->ops->kind));
  EK_TRY(ek__types_check(types, model->options.gradient_type, optimizer->ops->kind));
  EK_TRY(ek__model_check(model));
  const bool takes = EK__TABLE_HAS(optimizer->ops, takes_decay) && optimizer->ops->takes_decay;
  const struct ek__layout *layout = &model->replicas[0]->layout;
  for (size_t i = 0; i < layout->group_count && !takes; i++) {
    EK__FAIL_IF(layout->groups[i].weight_decay > 0, EK_ERR_UNSUPPORTED,
                "a pattern asks for weight decay %g, and %s does not take one from patterns "
                "(takes_decay in optimizer.h)",
                layout->groups[i].weight_decay, optimizer->ops->kind);
  }
  if (model->optimizer == NULL) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "ek_data_parallel_optimizer_open: the model has an optimizer, "
                                    "which must be freed before another");
}

/* `given` may have been filled by hand; NULL: the rate of the rule. */
static ek_status read_schedule(ek_schedule *schedule, const ek_schedule *given,
                               const ek_optimizer *rule) {
  if (given == NULL) return ek_schedule_constant(schedule, rule->learning_rate);
  switch (given->kind) {
  case EK_SCHEDULE_CONSTANT: return ek_schedule_constant(schedule, given->peak);
  case EK_SCHEDULE_WARMUP_COSINE:
    return ek_schedule_warmup_cosine(schedule, given->peak, given->floor, given->warmup,
                                     given->total);
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "schedule: there is no kind %d", (int)given->kind);
}

ek_status ek_data_parallel_optimizer_open(ek_data_parallel_optimizer **parallel,
                                          ek_data_parallel_model *model, ek_optimizer *optimizer,
                                          const ek_data_parallel_optimizer_options *options) {
  ek_data_parallel_optimizer_options o = EK_DATA_PARALLEL_OPTIMIZER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_optimizer_options"));
  if (o.loss_scale != NULL) EK_TRY(ek_loss_scale_check(o.loss_scale));
  EK__NOT_NULL("ek_data_parallel_optimizer_open", parallel, model, optimizer);
  EK__MODEL_ENTER(model, "optimizer open");
  EK_TRY(check_open(model, optimizer));
  ek_data_parallel_optimizer *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->model = model;
  self->optimizer = ek_optimizer_share(optimizer);
  self->norm = o.gradient_norm;
  self->refuse = o.refuse_not_finite;
  if (model->options.precision == EK_F16 || model->options.gradient_type == EK_F16) {
    self->loss_scale = (ek_loss_scale)EK_LOSS_SCALE_INIT;
  }
  if (o.loss_scale != NULL) self->loss_scale = *o.loss_scale;
  self->scaler = ek_loss_scale_begin(&self->loss_scale);
  self->state_count = optimizer->states;
  self->helpers = ek__device_table(ek_group_device(model->group, 0))->shared_memory;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, read_schedule(&self->schedule, o.schedule, optimizer), cleanup);
  EK_TRY_GOTO(status, make_tables(self), cleanup);
  EK_TRY_GOTO(status, ek_group_apply(model->group, open_one, self), cleanup);
  model->optimizer = self;
  *parallel = self;
  return EK_OK;
cleanup:
  ek_data_parallel_optimizer_free(self);
  return status;
}

void ek_data_parallel_optimizer_free(ek_data_parallel_optimizer *parallel) {
  if (parallel == NULL) return;
  ek_data_parallel_model *model = parallel->model;
  if (model->optimizer == parallel) ek__model_lose_optimizer(model);
  for (size_t k = 0; k < model->count && parallel->devices != NULL; k++) {
    struct ek__optimizer_device *own = &parallel->devices[k];
    for (size_t i = 0; i < EK_MAX_OPTIMIZER_STATES; i++) ek_tensor_free(&own->states[i]);
    ek_tensor_free(&own->square_norm);
    ek_tensor_free(&own->norm_leaves);
    ek__free(own->offsets);
  }
  ek__optimizer_cut_free(parallel);
  ek__free(parallel->written);
  ek__free(parallel->parameters);
  ek__free(parallel->devices);
  ek_optimizer_free(parallel->optimizer);
  ek__free(parallel);
}

/* ---- the step, on a device's worker ---- */

/* The leaves of all workers, halved until one is left: in an order that their number gives. */
static ek_status sum_leaves(const ek_data_parallel_optimizer *self, ek_device *device,
                            size_t index) {
  const struct ek__optimizer_device *own = &self->devices[index];
  ek_communicator *communicator = self->model->communicator;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor leaves = own->norm_leaves, norm = own->square_norm;
  int64_t count = ek_tensor_count(&leaves);
  for (size_t k = 0; k < self->model->count; k++) own->offsets[k] = self->devices[k].first_leaf;
  own->offsets[self->model->count] = count;
  if (count == 0) return ek_op_zero(stream, &norm);
  EK_TRY(ek_communicator_all_gather(communicator, device, &leaves, own->offsets));
  EK_TRY(ek_communicator_wait(communicator, device));
  while (count > 1) {
    const int64_t kept = (count + 1) / 2;
    ek_tensor sums = ek__flat_range(&leaves, 0, count - kept);
    const ek_tensor added = ek__flat_range(&leaves, kept, count - kept);
    EK_TRY(ek_op_add(stream, &sums, &sums, &added));
    count = kept;
  }
  const ek_tensor sum = ek__flat_range(&leaves, 0, 1);
  return ek_op_copy(stream, &norm, &sum);
}

static ek_status sum_squares_of_leaves(const ek_data_parallel_optimizer *self, ek_device *device,
                                       size_t index) {
  const struct ek__optimizer_device *own = &self->devices[index];
  const ek_tensor *gradients = ek_replica_gradients(self->model->replicas[own->owner]);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const bool shares = ek__placement(self->model)->gradient_shares;
  for (size_t i = 0; i < own->norms.count; i++) {
    const struct ek__piece *leaf = &own->norms.list[i];
    const ek_tensor part =
        ek__flat_range(gradients, shares ? leaf->place : leaf->first, leaf->last - leaf->first);
    ek_tensor norm = ek__flat_range(&own->norm_leaves, own->first_leaf + (int64_t)i, 1);
    EK_TRY(ek_op_square_norm(stream, &norm, &part, 0.0));
  }
  return sum_leaves(self, device, index);
}

static ek_status sum_squares(void *context, ek_device *device, size_t index) {
  const ek_data_parallel_optimizer *self = context;
  if (self->model->options.reproducible > 0) return sum_squares_of_leaves(self, device, index);
  const struct ek__optimizer_device *own = &self->devices[index];
  const ek_tensor *gradients = ek_replica_gradients(self->model->replicas[own->owner]);
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  ek_tensor norm = own->square_norm;
  const bool shares = ek__placement(self->model)->gradient_shares;
  EK_TRY(ek_op_zero(stream, &norm));
  for (size_t i = 0; i < own->norms.count; i++) {
    const struct ek__piece *piece = &own->norms.list[i];
    const ek_tensor part =
        ek__flat_range(gradients, shares ? piece->place : piece->first, piece->last - piece->first);
    EK_TRY(ek_op_square_norm(stream, &norm, &part, 1.0));
  }
  EK_TRY(ek_communicator_all_reduce(self->model->communicator, device, &norm));
  return ek_communicator_wait(self->model->communicator, device);
}

/* The rule may be a program's own: a failure is named after it. copy: what modules see of the
 * parameters, NULL if that is these. */
static ek_status run_rule(const ek_optimizer *rule, ek_device *device, ek_update *update,
                          ek_tensor *copy) {
  const bool writes = EK__TABLE_HAS(rule->ops, writes_copy) && rule->ops->writes_copy;
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  const uint64_t errors = ek__error_number();
  update->scale.copy = writes ? copy : NULL;
  const ek_status status = rule->ops->update(rule, stream, update);
  if (status != EK_OK) ek__error_name(rule->ops->kind, status, errors);
  if (status != EK_OK || writes || copy == NULL) return status;
  return ek_op_convert(stream, copy, update->parameters);
}

static ek_status update_pieces(ek_data_parallel_optimizer *self, ek_device *device, size_t index) {
  const ek_data_parallel_model *model = self->model;
  const struct ek__optimizer_device *own = &self->devices[index];
  const ek_replica *replica = model->replicas[own->owner];
  const struct ek__placement *placement = ek__placement(model);
  const bool mixed = ek__replica_is_mixed(replica);
  const double rate = ek__optimizer_rate(self);
  ek_update update = {.step = model->step + 1};
  if (model->divided || model->scaling.factor != 1) update.scale.totals = &model->totals[index];
  update.scale.clip_norm = self->optimizer->clip_norm;
  if (update.scale.clip_norm > 0) update.scale.square_norm = &own->square_norm;
  ek__model_update_begins(self->model);
  for (size_t i = 0; i < own->updates.count; i++) {
    const struct ek__piece *piece = &own->updates.list[i];
    const int64_t count = piece->last - piece->first;
    ek_tensor states[EK_MAX_OPTIMIZER_STATES];
    ek_tensor parameters =
        ek__flat_range(ek_replica_parameters(replica),
                       ek__model_shares_masters(model) ? piece->place : piece->first, count);
    const ek_tensor gradients =
        ek__flat_range(ek_replica_gradients(replica),
                       placement->gradient_shares ? piece->place : piece->first, count);
    for (size_t s = 0; s < self->state_count; s++) {
      states[s] = ek__flat_range(&self->devices[own->owner].states[s], piece->state, count);
    }
    const struct ek__group *group = &replica->layout.groups[piece->group];
    update.no_decay = group->no_decay;
    update.learning_rate = rate * group->rate_scale;
    update.weight_decay = group->weight_decay;
    update.parameters = &parameters;
    update.gradients = &gradients;
    update.states = states;
    ek_tensor copy = {0};
    if (mixed) {
      copy = ek__flat_range(ek_replica_copies(replica),
                            placement->parameter_shares ? piece->place : piece->first, count);
    }
    EK_TRY(run_rule(self->optimizer, device, &update, mixed ? &copy : NULL));
  }
  return EK_OK;
}

/*
 * The totals become those of the gradient that is in memory: what an update divides by is D times
 * the factor of the loss scale, or that factor alone. So rules, and the clipping in them, know of
 * no scale. It is a power of two, so the quotients are the same. The step ends here, and with it
 * its totals.
 */
static ek_status scale_totals(const ek_data_parallel_model *model, ek_device *device,
                              size_t index) {
  ek_tensor *totals = &model->totals[index];
  ek_stream *stream = ek_device_stream(device, EK_STREAM_COMPUTE);
  if (model->scaling.factor == 1) return EK_OK;
  if (model->divided) return ek_op_scale(stream, totals, totals, model->scaling.factor);
  return ek_op_fill(stream, totals, model->scaling.factor);
}

static ek_status step_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_optimizer *self = context;
  const struct ek__placement *placement = ek__placement(self->model);
  EK_TRY(scale_totals(self->model, device, index));
  const ek_trace_span span = ek_trace_begin(device, "update");
  const ek_status status = update_pieces(self, device, index);
  ek_trace_end(span);
  EK_TRY(status);
  const bool share = placement->state_shares && !placement->parameter_shares;
  return share ? ek__masters_share(self->model, device, index, false) : EK_OK;
}

/* ---- the step, for the caller ---- */

static bool scales(const ek_data_parallel_optimizer *self) {
  return self->loss_scale.kind != EK_LOSS_SCALE_NONE;
}

static ek_status read_result(ek_step_result *result, const ek_data_parallel_optimizer *self,
                             bool norm) {
  const ek_data_parallel_model *model = self->model;
  double totals[2] = {NAN, NAN}, square_norm = NAN;
  EK_TRY(ek__read_numbers(totals, 2, &model->totals[0]));
  if (norm) EK_TRY(ek__read_numbers(&square_norm, 1, &self->devices[0].square_norm));
  const double weight = model->divided ? totals[1] : 0;
  result->empty = model->divided && totals[1] == 0;
  result->weight = weight;
  result->loss = !model->divided ? totals[0] : result->empty ? 0 : totals[0] / weight;
  result->gradient_norm = -1;
  if (norm) {
    result->gradient_norm = sqrt(square_norm) / model->scaling.factor;
    if (model->divided) result->gradient_norm /= weight;
    if (result->empty && isfinite(square_norm)) result->gradient_norm = 0;
  }
  /* Of a `plan` device nothing is known, and nothing is wrong. */
  const bool counts = ek_device_counts_only(ek_group_device(model->group, 0));
  const bool overflow = norm && !counts && !isfinite(square_norm);
  result->finite = counts || (isfinite(result->loss) && !overflow);
  result->skipped = overflow && scales(self);
  result->learning_rate = ek__optimizer_rate(self);
  result->loss_scale = model->scaling.factor * model->scaling.unit;
  result->step = model->step + !result->skipped;
  return EK_OK;
}

/* Whether a step that was read is to be refused. What the loss scale has done alone is not. */
static ek_status check_read(const ek_data_parallel_optimizer *self, const ek_step_result *read) {
  if (!self->refuse || read->finite || (read->skipped && isfinite(read->loss))) return EK_OK;
  return ek_error_set(EK_ERR_NOT_FINITE,
                      "optimizer step: the loss is %g and the norm of the gradient %g: nothing "
                      "was updated, and the step is dropped",
                      read->loss, read->gradient_norm);
}

ek_status ek_data_parallel_optimizer_step(ek_step_result *result,
                                          ek_data_parallel_optimizer *parallel) {
  EK__NOT_NULL("optimizer step", parallel);
  ek_data_parallel_model *model = parallel->model;
  EK__MODEL_ENTER(model, "optimizer step");
  ek_step_result read = {0};
  ek_status status = EK_OK;
  EK_TRY(ek__model_check(model));
  EK_TRY(ek__model_reduce(model));
  const bool checked = parallel->refuse || scales(parallel), wanted = result != NULL || checked;
  const bool norm = parallel->optimizer->clip_norm > 0 || checked || (wanted && parallel->norm);
  if (model->before_update != NULL) {
    EK_TRY_GOTO(status, model->before_update(model->before_update_context), cleanup);
  }
  if (norm) EK_TRY_GOTO(status, ek_group_apply(model->group, sum_squares, parallel), cleanup);
  if (wanted) EK_TRY_GOTO(status, read_result(&read, parallel, norm), cleanup);
  EK_TRY_GOTO(status, check_read(parallel, &read), cleanup);
  if (!read.skipped) {
    /* From here on parameters are written; nothing below takes memory. */
    EK_TRY_GOTO(status, ek_group_apply(model->group, step_one, parallel), cleanup);
    ek__model_update_ended(model);
  }
  parallel->scaler = ek_loss_scale_next(&parallel->loss_scale, parallel->scaler, read.skipped);
  if (result != NULL) *result = read;
cleanup:
  ek__model_end_step(model, status == EK_OK && !read.skipped);
  return status;
}

ek_status ek_data_parallel_optimizer_set_learning_rate(ek_data_parallel_optimizer *parallel,
                                                       double learning_rate) {
  EK__NOT_NULL("set_learning_rate", parallel);
  EK__MODEL_USE(parallel->model, "set_learning_rate");
  ek_schedule rate;
  EK_TRY(ek_schedule_constant(&rate, learning_rate));
  parallel->held = parallel->schedule.kind != EK_SCHEDULE_CONSTANT;
  parallel->held_rate = learning_rate;
  if (!parallel->held) parallel->schedule = rate;
  return EK_OK;
}

ek_status ek_data_parallel_optimizer_set_schedule(ek_data_parallel_optimizer *parallel,
                                                  const ek_schedule *schedule) {
  EK__NOT_NULL("set_schedule", parallel);
  EK__MODEL_USE(parallel->model, "set_schedule");
  if (schedule != NULL) {
    EK_TRY(read_schedule(&parallel->schedule, schedule, parallel->optimizer));
  }
  parallel->held = false;
  return EK_OK;
}

double ek_data_parallel_optimizer_loss_scale(const ek_data_parallel_optimizer *parallel) {
  return parallel == NULL ? 1 : parallel->scaler.scale;
}

int64_t ek_data_parallel_optimizer_steps(const ek_data_parallel_optimizer *parallel) {
  return parallel == NULL ? 0 : parallel->model->step;
}
