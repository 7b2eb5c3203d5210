/*
 * data_parallel_model.c - a module over all devices of a group: opening, closing, steps.
 *
 * Forward and backward are in model_forward.c and model_backward.c, state and gradients by name in
 * state.c, and model_torn.c knows what becomes of an update that fails. The passes live
 * from forward to backward. Whatever fails after work has begun drops them and what the step had
 * accumulated; parameters are not touched by either.
 */
#include <evenkeel/data_parallel_model.h>

#include <evenkeel/elementwise.h>
#include <evenkeel/replicate.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "grains.h"
#include "keeper.h"
#include "module/replica_internal.h"
#include "parallel_internal.h"
#include "reduce_internal.h"

/* ---- opening and closing ---- */

static ek_status check_options(ek_data_parallel_model_options *options, const ek_group *group,
                               const ek_module *module) {
  EK__FAIL_IF((unsigned)options->outputs > EK_OUTPUTS_GATHER ||
                  (unsigned)options->state >= EK__PLACEMENTS,
              EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: there is no placement %d of outputs or %d of state",
              (int)options->outputs, (int)options->state);
  EK__FAIL_IF(options->output_device >= ek_group_size(group), EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: there is no device number %zu", options->output_device);
  EK_TRY(ek__precision_read(&options->precision, options->type, ek_group_device(group, 0),
                            "ek_data_parallel_model_open"));
  EK_TRY(ek__gradient_type_read(&options->gradient_type, options->type, options->precision,
                                ek_group_device(group, 0), "ek_data_parallel_model_open"));
  EK_TRY(ek__grains_check_open(options, group));
  EK_TRY(ek__module_check(module));
  EK__FAIL_IF(
      module->targets > 0 && options->broadcast_inputs >> (module->inputs - module->targets) != 0,
      EK_ERR_INVALID_ARGUMENT, "ek_data_parallel_model_open: broadcast_inputs names a target");
  EK__FAIL_IF(module->terms > 0 && module->outputs > 1, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: %s gives single losses; a model that computes its loss "
              "itself has reduction mean or sum",
              module->ops->kind);
  return EK_OK;
}

static ek_status open_replica(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  ek_replica_options options = EK_REPLICA_OPTIONS_INIT;
  struct ek__replica_parts parts = {.masters = ek__model_masters(model)};
  options.type = model->options.type;
  options.precision = model->options.precision;
  options.gradient_type = model->options.gradient_type;
  options.seed = model->options.seed;
  options.patterns = model->options.patterns;
  options.pattern_count = model->options.pattern_count;
  options.gradients = !ek__placement(model)->gradient_shares;
  options.initialize = ek_communicator_first_rank(model->communicator) + index == 0;
  parts.none = parts.masters == EK__MASTERS_FIRST && !options.initialize;
  parts.shared_values = ek__placement(model)->parameter_shares;
  /* The buckets of a reproducible model, and with them its norms, are the same in every mode. */
  if (parts.shared_values || model->options.reproducible > 0) {
    parts.unit_bytes = model->options.bucket_bytes == 0 ? 1 : model->options.bucket_bytes;
  }
  EK_TRY(ek__replica_open_parts(&model->replicas[index], device, model->module, &options, &parts));
  const int64_t shape[] = {2};
  EK_TRY(ek_tensor_create(&model->totals[index], device, EK_MEMORY_LOSS, EK_F64, 1, shape));
  return ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &model->totals[index]);
}

static const char memory_of[] = "a data-parallel model";

static ek_status open_keeper(void *context, ek_device *device, size_t index) {
  const ek_data_parallel_model *model = context;
  return ek__keeper_open(model->keepers[index], ek__reducer_buckets(model->reducer), device, index);
}

static ek_status open_reducer(ek_data_parallel_model *model) {
  ek_reducer_options options = EK_REDUCER_OPTIONS_INIT;
  const bool shares = ek__placement(model)->gradient_shares;
  options.kind = ek__placement(model)->reduce;
  options.bucket_bytes = model->options.bucket_bytes;
  options.pieces = model->options.reproducible;
  if (shares) {
    EK_TRY(ek__new(&model->keepers, model->count, sizeof *model->keepers, memory_of));
  }
  for (size_t k = 0; k < model->count && shares; k++) {
    EK_TRY(ek__keeper_create(&model->keepers[k], model));
  }
  EK_TRY(ek__reducer_open(&model->reducer, model->communicator, model->group, model->replicas,
                          &options, model->keepers));
  return shares ? ek_group_apply(model->group, open_keeper, model) : EK_OK;
}

static ek_status open_masters(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  EK_TRY(ek__masters_open(model, device, index));
  return ek__placement(model)->parameter_shares ? EK_OK
                                                : ek__masters_share(model, device, index, true);
}

static ek_status open_parts(ek_data_parallel_model *model) {
  ek_group *group = model->group;
  EK_TRY(ek__new(&model->replicas, model->count, sizeof *model->replicas, memory_of));
  const size_t grains = model->options.reproducible;
  model->pass_count = model->count * (grains > 0 ? ek__grains_most(model) : 1);
  EK_TRY(ek__new(&model->passes, model->pass_count, sizeof *model->passes, memory_of));
  EK_TRY(ek__new(&model->totals, model->count, sizeof *model->totals, memory_of));
  for (size_t i = 0; i < model->module->outputs; i++) {
    EK_TRY(ek_shards_create(&model->part_shapes[i], group));
  }
  EK_TRY(ek_communicator_open(&model->communicator, group));
  ek__model_watch(model);
  EK_TRY(ek_group_apply(group, open_replica, model));
  if (model->replicas[0]->layout.collective) EK_TRY(ek_communicator_open(&model->inner, group));
  EK_TRY(open_reducer(model));
  if (ek__model_shares_masters(model)) EK_TRY(ek_group_apply(group, open_masters, model));
  if (grains > 0) EK_TRY(ek__grains_open(model));
  EK_TRY(ek__new(&model->written, ek_replica_parameter_count(model->replicas[0]) + EK__RUN_NUMBERS,
                 sizeof *model->written, memory_of));
  return ek_replicate(model->communicator, group, model->replicas);
}

ek_status ek_data_parallel_model_open(ek_data_parallel_model **model, ek_group *group,
                                      ek_module *module,
                                      const ek_data_parallel_model_options *options) {
  ek_data_parallel_model_options o = EK_DATA_PARALLEL_MODEL_OPTIONS_INIT;
  EK__NOT_NULL("ek_data_parallel_model_open", model, group, module);
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_data_parallel_model_options"));
  EK_TRY(check_options(&o, group, module));
  if (module->terms > 0) o.outputs = EK_OUTPUTS_STAY; /* totals have no rows to gather */
  ek_data_parallel_model *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->group = group;
  result->count = ek_group_size(group);
  result->module = ek_module_share(module);
  result->options = o;
  ek_status status = ek__scalings_copy(&result->scalings, "ek_data_parallel_model_open",
                                       o.input_scaling, o.input_scaling_count, module->inputs);
  if (status == EK_OK) status = open_parts(result);
  result->options.patterns = NULL; /* the caller's */
  result->options.pattern_count = 0;
  if (status == EK_OK) {
    *model = result;
  } else {
    ek_data_parallel_model_free(result);
  }
  return status;
}

static ek_status free_replica(void *context, ek_device *device, size_t index) {
  ek_replica **replicas = context;
  (void)device;
  ek_replica_free(replicas[index]);
  replicas[index] = NULL;
  return EK_OK;
}

/* On the workers where modules keep state, which is closed where it was opened. */
static void free_replicas(ek_group *group, ek_replica **replicas) {
  bool stateful = false;
  if (replicas == NULL) return;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    stateful = stateful || (replicas[k] != NULL && replicas[k]->layout.stateful);
  }
  /* Refused in a child of fork(), which has no workers. */
  const ek_status status = stateful ? ek_group_apply(group, free_replica, replicas) : EK_OK;
  (void)status;
  for (size_t k = 0; k < ek_group_size(group); k++) ek_replica_free(replicas[k]);
  ek__free(replicas);
}

void ek_data_parallel_model_free(ek_data_parallel_model *model) {
  if (model == NULL) return;
  ek__model_drop_forward(model);
  for (size_t k = 0; k < model->count && model->keepers != NULL; k++) {
    ek__keeper_free(model->keepers[k]);
  }
  ek__free(model->keepers);
  ek__grains_close(model);
  ek_reducer_free(model->reducer);
  for (size_t k = 0; k < model->count && model->totals != NULL; k++) {
    ek_tensor_free(&model->totals[k]);
  }
  ek__free(model->totals);
  ek__free(model->passes);
  free_replicas(model->group, model->replicas);
  ek__model_unwatch(model);
  ek_communicator_free(model->inner);
  ek_communicator_free(model->communicator);
  for (size_t i = 0; i < EK_MAX_TENSORS; i++) ek_shards_free(&model->part_shapes[i]);
  ek__free(model->written);
  ek__free(model->scalings);
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

ek_status ek_data_parallel_model_discard(ek_data_parallel_model *model) {
  EK__NOT_NULL("ek_data_parallel_model_discard", model);
  EK__MODEL_USE(model, "discard");
  ek__model_end_step(model, false);
  return EK_OK;
}
