/*
 * model_forward.c - the forward of a data-parallel model.
 *
 * Scatters the inputs (or takes parts that were scattered before), brings stale replicas up to
 * date, and runs one pass per device that has rows. The passes stay with the model until backward.
 * In mode gather the outputs' rows go to one device.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <evenkeel/gather.h>
#include <evenkeel/replicate.h>

#include "core/error.h"
#include "core/options.h"
#include "grains.h"
#include "keeper.h"
#include "module/pass_internal.h"
#include "parallel_internal.h"

/* Forwards of all models of the process: no two have the same number, and none has 0. */
static _Atomic uint64_t forwards;

/* A forward, or, of a module with targets that are left out, what it predicts. */
struct call {
  const ek_forward_options *options;
  bool predict;
  size_t inputs, outputs; /* what goes in, and what comes out */
};

static struct call call_of(const ek_data_parallel_model *model, size_t inputs,
                           const ek_forward_options *options) {
  const ek_module *module = model->module;
  struct call call = {options, false, module->inputs, module->outputs};
  if (module->predictions > 0 && inputs + module->targets == module->inputs && !options->gradient) {
    call = (struct call){options, true, inputs, module->predictions};
  }
  return call;
}

static bool is_broadcast(const ek_data_parallel_model *model, size_t input) {
  return (model->options.broadcast_inputs >> input & 1) != 0;
}

/* Whether the pending forward has added to gradients that the step has accumulated: nothing can
 * take that back, so only its backward may follow, or the end of the step. */
static bool is_mixed(const ek_data_parallel_model *model) {
  bool added = false;
  for (size_t k = 0; k < model->pass_count; k++) {
    added = added || ek__pass_has_added(model->passes[k]);
  }
  return added && model->stage == EK__STEP_ACCUMULATED;
}

static ek_status check_call(const ek_data_parallel_model *model, size_t count,
                            const struct call *call) {
  EK_TRY(ek__model_check(model));
  EK_TRY(ek__layout_check(&model->replicas[0]->layout)); /* arrays are laid out by its counts */
  EK__FAIL_IF(count != call->inputs, EK_ERR_INVALID_ARGUMENT,
              "forward: %s takes %zu inputs, not %zu", model->module->ops->kind, call->inputs,
              count);
  EK__FAIL_IF(model->stage == EK__STEP_REDUCED && call->options->gradient, EK_ERR_STATE,
              "forward: the step's last backward has run; the optimizer (or discard) is "
              "next");
  EK__FAIL_IF(is_mixed(model), EK_ERR_STATE,
              "forward: the last forward has added to the gradients of the step "
              "(gradient_in_forward): its backward (or discard) is next");
  return EK_OK;
}

/* Shards of the caller's. */
static ek_status check_cut(const ek_data_parallel_model *model, const ek_shards *input,
                           size_t number) {
  EK_TRY(ek__given_check("forward: input", number, model, input, NULL));
  if (input->broadcast == is_broadcast(model, number)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "forward: input number %zu is %s", number,
                      input->broadcast ? "broadcast, and the model cuts it"
                                       : "cut, and the model broadcasts it");
}

static size_t first_target(const ek_data_parallel_model *model) {
  return model->module->inputs - model->module->targets;
}

/* All inputs are cut alike, with one row for each sample, and targets at these samples. *lead: the
 * first that is cut. */
static ek_status check_cuts(size_t *lead, const ek_data_parallel_model *model,
                            const ek_shards *inputs, size_t input_count) {
  const size_t count = first_target(model);
  const size_t bytes = (model->count + 1) * sizeof *inputs->offsets;
  *lead = count;
  for (size_t i = 0; i < count; i++) {
    const ek_shards *input = &inputs[i];
    if (input->broadcast) continue;
    if (*lead == count) *lead = i;
    EK__FAIL_IF(
        input->offsets[0] != 0 || memcmp(input->offsets, inputs[*lead].offsets, bytes) != 0 ||
            memcmp(input->offsets, input->samples, bytes) != 0,
        EK_ERR_SHAPE,
        "forward: input number %zu is cut differently from number %zu (%lld rows, %lld), or has "
        "not one row for each sample",
        i, *lead, (long long)input->offsets[model->count],
        (long long)inputs[*lead].offsets[model->count]);
  }
  EK__FAIL_IF(*lead == count, EK_ERR_INVALID_ARGUMENT,
              "forward: every input is broadcast; one must be cut");
  for (size_t i = count; i < input_count; i++) {
    if (ek__target_fits(&inputs[i], &inputs[*lead])) continue;
    return ek_error_set(EK_ERR_SHAPE,
                        "forward: input number %zu, a target, is not cut at the samples of input "
                        "number %zu",
                        i, *lead);
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
  /* Gradients of which the devices keep shares begin anew with each micro-batch. */
  pass.accumulate = model->stage != EK__STEP_EMPTY && !ek__placement(model)->gradient_shares;
  pass.seed = model->options.seed;
  pass.step = (uint32_t)model->step;
  pass.complete = tell_reducer;
  pass.context = model;
  pass.communicator = model->inner;
  pass.gradient_now = options->gradient ? ek__model_scale(model) : 0;
  const bool everywhere = model->inner != NULL || ek__placement(model)->parameter_shares;
  for (size_t k = 0; k < model->count; k++) {
    if (lead->samples[k] == lead->samples[k + 1] && !everywhere) continue;
    pass.first_sample = model->step_samples + options->first_sample + lead->samples[k];
    pass.samples = lead->samples[k + 1] - lead->samples[k];
    EK_TRY(ek__pass_open(&model->passes[k], model->replicas[k], &pass,
                         model->keepers == NULL ? NULL : &model->keepers[k]->lender));
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
static void remember(ek_shards *shape, const ek_shards *output, bool totals) {
  ek__shards_cut_like(shape, output);
  for (size_t k = 0; k < output->count; k++) {
    ek_tensor *part = &shape->parts[k];
    *part = output->parts[k];
    part->memory = NULL;
    part->data = NULL;
    if (!totals || part->rank < 3) continue;
    part->rank = 2; /* of each grain: all have the same gradient */
    memmove(part->shape, part->shape + 1, 2 * sizeof *part->shape);
  }
}

/* All rows on one device, none on the others. */
static ek_status gather_output(ek_data_parallel_model *model, ek_shards *output) {
  const size_t target = model->options.output_device;
  const int64_t samples = output->samples[output->count];
  ek_shards whole;
  EK_TRY(ek_shards_create(&whole, output->group));
  ek_tensor *made = &whole.parts[target];
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_gather_move(made, output, target, EK_MEMORY_OUTPUTS), cleanup);
  for (size_t k = 0; k < whole.count; k++) {
    if (k != target) EK_TRY_GOTO(status, ek__shards_empty_part(&whole, k, made), cleanup);
    whole.offsets[k + 1] = k < target ? 0 : made->shape[0];
    whole.samples[k + 1] = k < target ? 0 : samples;
  }
  *output = whole;
  return EK_OK;
cleanup:
  ek_shards_free(&whole);
  return status;
}

/* Each device's pass has seen whole samples; all of them must have as many rows. */
static ek_status check_rows(const ek_data_parallel_model *model, size_t index,
                            const ek_shards *output) {
  size_t first = 0; /* the device that `per_sample` was seen on */
  int64_t per_sample = 0;
  for (size_t k = 0; k < output->count; k++) {
    const int64_t samples = output->samples[k + 1] - output->samples[k];
    if (output->parts[k].rank == 0) continue;
    EK__FAIL_IF(samples == 0 && output->parts[k].shape[0] > 0, EK_ERR_SHAPE,
                "%s, forward: output number %zu has %lld rows on %s, which "
                "has no samples",
                model->module->ops->kind, index, (long long)output->parts[k].shape[0],
                ek_device_name(ek_group_device(model->group, k)));
    if (samples == 0) continue;
    const int64_t rows = output->parts[k].shape[0] / samples;
    if (per_sample == 0) first = k, per_sample = rows;
    if (rows == per_sample) continue;
    return ek_error_set(EK_ERR_SHAPE,
                        "%s, forward: output number %zu has %lld rows per sample on %s and %lld "
                        "on %s",
                        model->module->ops->kind, index, (long long)per_sample,
                        ek_device_name(ek_group_device(model->group, first)), (long long)rows,
                        ek_device_name(ek_group_device(model->group, k)));
  }
  return EK_OK;
}

/* One pass for each device, or for each grain. */
static ek_status run_passes(ek_shards *outputs, ek_data_parallel_model *model,
                            const ek_shards *inputs, size_t lead, const struct call *call) {
  if (model->options.reproducible > 0) {
    const struct ek__grain_call grains = {inputs,        &inputs[lead], call->inputs,
                                          call->outputs, call->predict, call->options};
    return ek__grains_forward(outputs, model, &grains);
  }
  EK_TRY(open_passes(model, &inputs[lead], call->options));
  return ek__parallel_apply(outputs, call->outputs, model->passes, inputs, call->inputs,
                            call->predict);
}

static ek_status make_outputs(ek_shards *outputs, ek_data_parallel_model *model,
                              const ek_shards *inputs, size_t lead, const struct call *call) {
  const size_t count = call->outputs;
  EK_TRY(refresh_replicas(model, call->options->training));
  EK_TRY(run_passes(outputs, model, inputs, lead, call));
  for (size_t i = 0; i < count && (call->predict || model->module->terms == 0); i++) {
    EK_TRY(check_rows(model, i, &outputs[i]));
  }
  for (size_t i = 0; i < count && !call->predict; i++) {
    remember(&model->part_shapes[i], &outputs[i], model->module->terms > 0);
    if (model->options.outputs == EK_OUTPUTS_GATHER) EK_TRY(gather_output(model, &outputs[i]));
  }
  return EK_OK;
}

/* The outputs become the caller's if all went well. */
static ek_status run_forward(ek_shards *outputs, ek_data_parallel_model *model,
                             const ek_shards *inputs, size_t lead, const struct call *call) {
  const ek_forward_options *options = call->options;
  ek_shards made[EK_MAX_TENSORS] = {{0}};
  model->last_scaling = ek__model_own_scaling(model, inputs, lead);
  const ek_status status = make_outputs(made, model, inputs, lead, call);
  if (status != EK_OK) {
    for (size_t i = 0; i < call->outputs; i++) ek_shards_free(&made[i]);
    return status;
  }
  model->forward_samples = inputs[lead].samples[model->count];
  model->first_sample = model->step_samples + options->first_sample;
  model->batch_samples =
      options->batch_samples == 0 ? model->forward_samples : options->batch_samples;
  model->last_forward = atomic_fetch_add(&forwards, 1) + 1;
  model->last_gradient = options->gradient;
  model->last_scale = options->gradient ? ek__model_scale(model) : 0;
  if (!options->gradient) ek__model_drop_forward(model);
  model->pending = options->gradient ? model->last_forward : 0;
  for (size_t i = 0; i < call->outputs; i++) {
    outputs[i] = made[i];
    outputs[i].forward = model->last_forward;
    outputs[i].output = i;
  }
  return EK_OK;
}

/* This call's samples among those of the batch, and of the step. */
static ek_status check_place(const ek_data_parallel_model *model, int64_t samples,
                             const ek_forward_options *options) {
  const int64_t all = options->batch_samples == 0 ? samples : options->batch_samples;
  EK__FAIL_IF(all < samples || options->first_sample < 0 || options->first_sample > all - samples,
              EK_ERR_INVALID_ARGUMENT,
              "forward: %lld samples from number %lld on in a batch of %lld", (long long)samples,
              (long long)options->first_sample, (long long)all);
  if (all <= INT64_MAX - model->step_samples) return EK_OK;
  return ek_error_set(EK_ERR_OVERFLOW, "forward: the step's samples do not fit in 63 bits");
}

/* Inputs that are to be cut: how, and what they become, but not yet the parts. */
static ek_status lay_inputs(ek_shards *parts, struct ek__conversion *taken,
                            const ek_data_parallel_model *model, const ek_tensor *inputs,
                            const struct call *call) {
  size_t lead = 0; /* targets are cut at its samples */
  const struct ek__intakes intakes = {model->module, 0, model->scalings,
                                      model->options.input_scaling_count, model->options.type};
  ek_scatter_options grains = EK_SCATTER_OPTIONS_INIT;
  const ek_scatter_options *scatter = call->options->scatter;
  if (model->options.reproducible > 0) {
    EK__FAIL_IF(scatter != NULL, EK_ERR_INVALID_ARGUMENT,
                "forward: a reproducible model cuts its batches itself: options.scatter is NULL");
    grains.kind = EK_SCATTER_GRAINS;
    grains.grains = model->options.reproducible;
    scatter = &grains;
  }
  for (size_t i = 0; i < call->inputs; i++) {
    char who[48];
    (void)snprintf(who, sizeof who, "forward: input number %zu", i);
    if (i >= first_target(model) && !parts[lead].broadcast) {
      EK_TRY(ek__scatter_lay_like(&parts[i], who, &parts[lead], &inputs[i]));
    } else {
      EK_TRY(ek__scatter_lay(&parts[i], who, model->group, &inputs[i], is_broadcast(model, i),
                             scatter));
      if (parts[lead].broadcast) lead = i;
    }
    EK_TRY(ek__intake_of(&taken[i], who, &intakes, i, &inputs[i]));
  }
  return EK_OK;
}

/* Of whole inputs, or of shards that were cut before. What is wrong with the arguments is seen
 * before anything is lost; whatever fails later drops the step. */
static ek_status forward(ek_shards *outputs, ek_data_parallel_model *model, const ek_tensor *whole,
                         const ek_shards *cut, const struct call *call) {
  ek_shards parts[EK_MAX_INPUTS] = {{0}};
  struct ek__conversion taken[EK_MAX_INPUTS];
  const ek_shards *inputs = cut == NULL ? parts : cut;
  const size_t count = call->inputs;
  size_t lead = 0;
  bool begun = false;
  ek_status status = EK_OK;
  for (size_t i = 0; i < count && cut != NULL; i++) EK_TRY(check_cut(model, &cut[i], i));
  if (cut == NULL) {
    EK_TRY_GOTO(status, lay_inputs(parts, taken, model, whole, call), cleanup);
  }
  EK_TRY_GOTO(status, check_cuts(&lead, model, inputs, count), cleanup);
  if (model->options.reproducible > 0) {
    EK_TRY_GOTO(status, ek__grains_check_cut("forward", model, &inputs[lead]), cleanup);
  }
  EK_TRY_GOTO(status, check_place(model, inputs[lead].samples[model->count], call->options),
              cleanup);
  ek__model_drop_forward(model);
  begun = true;
  for (size_t i = 0; i < count && cut == NULL; i++) {
    EK_TRY_GOTO(status, ek__scatter_fill(&parts[i], &whole[i], EK_MEMORY_INPUTS, &taken[i]),
                cleanup);
  }
  EK_TRY_GOTO(status, run_forward(outputs, model, inputs, lead, call), cleanup);
cleanup:
  for (size_t i = 0; i < count; i++) ek_shards_free(&parts[i]);
  if (status != EK_OK && begun) ek__model_end_step(model, false);
  return status;
}

/* What integers become is the model's to say. */
static ek_status check_scatter(const ek_scatter_options *options) {
  ek_scatter_options o = EK_SCATTER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_scatter_options"));
  EK__FAIL_IF(o.type != 0 || o.scaling != NULL, EK_ERR_INVALID_ARGUMENT,
              "forward: options.scatter has a type or a scaling; the model's options.input_scaling "
              "and its module say what inputs become");
  return EK_OK;
}

static ek_status enter(ek_shards *outputs, ek_data_parallel_model *model, const ek_tensor *whole,
                       const ek_shards *cut, size_t count, const ek_forward_options *options) {
  ek_forward_options o = EK_FORWARD_OPTIONS_INIT;
  const void *inputs = whole == NULL ? (const void *)cut : whole;
  EK__NOT_NULL("forward", model, outputs, inputs);
  EK__MODEL_ENTER(model, "forward");
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_forward_options"));
  const struct call call = call_of(model, count, &o);
  EK_TRY(check_call(model, count, &call));
  EK__FAIL_IF(cut != NULL && o.scatter != NULL, EK_ERR_INVALID_ARGUMENT,
              "forward: shards are cut already");
  EK_TRY(check_scatter(o.scatter));
  return forward(outputs, model, whole, cut, &call);
}

ek_status ek_data_parallel_model_forward(ek_shards *outputs, ek_data_parallel_model *model,
                                         const ek_tensor *inputs, size_t input_count,
                                         const ek_forward_options *options) {
  return enter(outputs, model, inputs, NULL, input_count, options);
}

ek_status ek_data_parallel_model_forward_shards(ek_shards *outputs, ek_data_parallel_model *model,
                                                const ek_shards *inputs, size_t input_count,
                                                const ek_forward_options *options) {
  return enter(outputs, model, NULL, inputs, input_count, options);
}
