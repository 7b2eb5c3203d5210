/*
 * grains_forward.c - the forward of a reproducible model: a pass for each grain.
 *
 * A device runs its grains one after the other and puts their outputs together. The passes, one for
 * each grain, stay with the model until backward. Where nothing but the first grain's own output
 * refers to it, its memory becomes the beginning of the whole.
 *
 * Buffers (running statistics) are those of the first grain of the batch: every grain begins with
 * what there was before the forward, and what grain 0 has left goes to all devices at the end.
 */
#include <string.h>

#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>
#include <evenkeel/parallel_apply.h>

#include "core/error.h"
#include "grains.h"

struct job {
  ek_data_parallel_model *model;
  const struct ek__grain_call *call;
  ek_shards *outputs;
  int64_t samples; /* of the batch */
};

/* ---- buffers ---- */

/* Copies of a device's buffers; structs of zeros where nothing may write them. */
struct buffers {
  ek_tensor before, first;
};

static ek_status keep(ek_tensor *copy, const ek_tensor *flat) {
  ek_stream *stream = ek_device_stream(flat->device, EK_STREAM_COMPUTE);
  if (!ek_tensor_exists(copy)) {
    EK_TRY(ek_tensor_create(copy, flat->device, EK_MEMORY_WORKSPACE, flat->type, flat->rank,
                            flat->shape));
  }
  return ek_op_copy(stream, copy, flat);
}

static ek_status put_back(const ek_tensor *flat, const ek_tensor *copy) {
  ek_tensor to = *flat;
  return ek_op_copy(ek_device_stream(flat->device, EK_STREAM_COMPUTE), &to, copy);
}

static bool writes_buffers(const struct job *job) {
  return job->call->options->training && !job->call->predict &&
         ek_tensor_count(ek_replica_buffers(job->model->replicas[0])) > 0;
}

static ek_status begin_buffers(struct buffers *buffers, const struct job *job, size_t index) {
  if (!writes_buffers(job)) return EK_OK;
  return keep(&buffers->before, ek_replica_buffers(job->model->replicas[index]));
}

static ek_status after_grain(struct buffers *buffers, const struct job *job, size_t index,
                             size_t grain) {
  if (!writes_buffers(job)) return EK_OK;
  const ek_tensor *flat = ek_replica_buffers(job->model->replicas[index]);
  if (grain == 0) EK_TRY(keep(&buffers->first, flat));
  return put_back(flat, &buffers->before);
}

static ek_status share_buffers(const struct buffers *buffers, const struct job *job,
                               ek_device *device, size_t index) {
  if (!writes_buffers(job)) return EK_OK;
  ek_communicator *communicator = job->model->communicator;
  ek_tensor flat = *ek_replica_buffers(job->model->replicas[index]);
  if (ek_tensor_exists(&buffers->first)) EK_TRY(put_back(&flat, &buffers->first));
  EK_TRY(ek_communicator_broadcast(communicator, device, &flat, 0));
  return ek_communicator_wait(communicator, device);
}

/* ---- a grain ---- */

static ek_status open_pass(ek_pass **pass, const struct job *job, size_t index,
                           const struct ek__grain *grain) {
  const ek_data_parallel_model *model = job->model;
  const ek_forward_options *options = job->call->options;
  ek_pass_options o = EK_PASS_OPTIONS_INIT;
  o.gradient = options->gradient;
  o.training = options->training;
  o.seed = model->options.seed;
  o.step = (uint32_t)model->step;
  o.first_sample = model->step_samples + options->first_sample + grain->first;
  o.samples = grain->count;
  return ek_pass_open(pass, model->replicas[index], &o);
}

/* Its rows of every input. */
static ek_status take_rows(ek_tensor *inputs, const struct job *job, size_t index,
                           const struct ek__grain *grain) {
  const struct ek__grain_call *call = job->call;
  const int64_t *samples = call->lead->samples;
  for (size_t i = 0; i < call->input_count; i++) {
    const ek_tensor *part = &call->inputs[i].parts[index];
    EK_TRY(ek_tensor_wait(part));
    if (call->inputs[i].broadcast) {
      EK_TRY(ek_tensor_share(&inputs[i], part));
      continue;
    }
    const int64_t rows = part->shape[0] / (samples[index + 1] - samples[index]);
    EK_TRY(ek__grain_rows(&inputs[i], part, rows * (grain->first - samples[index]),
                          rows * grain->count, EK_MEMORY_INPUTS));
  }
  return EK_OK;
}

/* The totals of a model that computes its loss itself: [terms, 2] of grains [grain, terms, 2]. */
static ek_status append_totals(ek_tensor *whole, ek_tensor *part, size_t row, size_t rows) {
  int64_t shape[3] = {(int64_t)rows, part->shape[0], part->shape[1]};
  const int64_t count = ek_tensor_count(part);
  if (!ek_tensor_exists(whole)) {
    EK_TRY(ek_tensor_create(whole, part->device, EK_MEMORY_OUTPUTS, part->type, 3, shape));
  }
  ek_tensor to = ek__flat_range(whole, (int64_t)row * count, count);
  EK_TRY(ek_op_copy(ek_device_stream(part->device, EK_STREAM_COMPUTE), &to, part));
  ek_tensor_free(part);
  return EK_OK;
}

static ek_status run_grain(const struct job *job, size_t index, size_t first, size_t last,
                           size_t number) {
  ek_data_parallel_model *model = job->model;
  const struct ek__grain_call *call = job->call;
  const int64_t *samples = call->lead->samples;
  const struct ek__grain grain = ek__grain_at(model, number, job->samples);
  const struct ek__grain_place place = {grain.first - samples[index], grain.count,
                                        samples[index + 1] - samples[index]};
  ek_pass **pass = &model->passes[number];
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, outputs[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, take_rows(inputs, job, index, &grain), cleanup);
  EK_TRY_GOTO(status, open_pass(pass, job, index, &grain), cleanup);
  EK_TRY_GOTO(status,
              (call->predict ? ek_pass_run_predict : ek_pass_run_forward)(outputs, *pass, inputs),
              cleanup);
  if (!call->options->gradient) {
    ek_pass_free(*pass);
    *pass = NULL;
  }
  for (size_t i = 0; i < call->output_count; i++) {
    ek_tensor *whole = &job->outputs[i].parts[index];
    const bool totals = model->module->terms > 0 && !call->predict;
    EK_TRY_GOTO(status,
                totals ? append_totals(whole, &outputs[i], number - first, last - first)
                       : ek__grain_append(whole, &outputs[i], &place, EK_MEMORY_OUTPUTS),
                cleanup);
  }
cleanup:
  for (size_t i = 0; i < call->output_count; i++) ek_tensor_free(&outputs[i]);
  for (size_t i = 0; i < call->input_count; i++) ek_tensor_free(&inputs[i]);
  return status;
}

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  const struct job *job = context;
  struct buffers buffers = {{0}, {0}};
  size_t first = 0, last = 0;
  ek_status status = EK_OK;
  ek__grains_of(&first, &last, job->model, index, ek__grains_used(job->model, job->samples));
  EK_TRY_GOTO(status, begin_buffers(&buffers, job, index), cleanup);
  for (size_t grain = first; grain < last; grain++) {
    status = run_grain(job, index, first, last, grain);
    const ek_status kept = after_grain(&buffers, job, index, grain);
    if (status == EK_OK) status = kept;
    if (status != EK_OK) goto cleanup;
  }
  EK_TRY_GOTO(status, share_buffers(&buffers, job, device, index), cleanup);
cleanup:
  ek_tensor_free(&buffers.before);
  ek_tensor_free(&buffers.first);
  return status;
}

ek_status ek__grains_forward(ek_shards *outputs, ek_data_parallel_model *model,
                             const struct ek__grain_call *call) {
  struct job job = {model, call, outputs, call->lead->samples[model->count]};
  ek_status status = EK_OK;
  memset(outputs, 0, call->output_count * sizeof *outputs);
  for (size_t i = 0; i < call->output_count && status == EK_OK; i++) {
    status = ek_shards_create(&outputs[i], model->group);
  }
  if (status == EK_OK) status = ek_group_apply(model->group, forward_one, &job);
  for (size_t i = 0; i < call->output_count && status == EK_OK; i++) {
    status = ek__parallel_apply_finish(&outputs[i], call->lead);
  }
  for (size_t i = 0; i < call->output_count && status != EK_OK; i++) ek_shards_free(&outputs[i]);
  if (status == EK_OK && writes_buffers(&job)) model->buffers_stale = false;
  return status;
}
