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
#include "keeper.h"
#include "module/pass_internal.h"

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

static ek_status tell_reducer(void *context, ek_pass *pass, size_t parameter) {
  const ek_data_parallel_model *model = context;
  return ek_reducer_complete(model->reducer, ek_pass_device(pass), parameter);
}

static ek_status open_pass(ek_pass **pass, const struct job *job, size_t index,
                           const struct ek__grain *grain) {
  const ek_data_parallel_model *model = job->model;
  const ek_forward_options *options = job->call->options;
  const bool shares = ek__placement(model)->gradient_shares;
  ek_pass_options o = EK_PASS_OPTIONS_INIT;
  o.gradient = options->gradient;
  o.training = options->training;
  o.seed = model->options.seed;
  o.step = (uint32_t)model->step;
  o.first_sample = model->step_samples + options->first_sample + grain->first;
  o.samples = grain->count;
  o.complete = shares ? tell_reducer : NULL;
  o.context = job->model;
  return ek__pass_open(pass, model->replicas[index], &o,
                       shares ? &model->keepers[index]->lender : NULL);
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
    if (grain->count == 0) {
      ek_tensor none = *part;
      none.shape[0] = 0;
      EK_TRY(ek_tensor_create(&inputs[i], part->device, EK_MEMORY_INPUTS, none.type, none.rank,
                              none.shape));
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

/* The grains of a device: first .. last - 1. */
struct run {
  size_t index, first, last;
};

/* A grain without samples leaves nothing behind but its pass. */
static ek_status keep_outputs(const struct job *job, const struct run *run,
                              const struct ek__grain *grain, ek_tensor *outputs) {
  const int64_t *samples = job->call->lead->samples;
  const struct ek__grain_place place = {grain->first - samples[run->index], grain->count,
                                        samples[run->index + 1] - samples[run->index]};
  const bool totals = job->model->module->terms > 0 && !job->call->predict;
  for (size_t i = 0; i < job->call->output_count && grain->count > 0; i++) {
    ek_tensor *whole = &job->outputs[i].parts[run->index];
    EK_TRY(totals ? append_totals(whole, &outputs[i], grain->number - run->first,
                                  run->last - run->first)
                  : ek__grain_append(whole, &outputs[i], &place, EK_MEMORY_OUTPUTS));
  }
  return EK_OK;
}

static ek_status run_grain(const struct job *job, const struct run *run, size_t round,
                           const struct ek__grain *grain) {
  const struct ek__grain_call *call = job->call;
  ek_pass **pass = &job->model->passes[run->index * ek__grains_most(job->model) + round];
  ek_tensor inputs[EK_MAX_INPUTS] = {{0}}, outputs[EK_MAX_TENSORS] = {{0}};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, take_rows(inputs, job, run->index, grain), cleanup);
  EK_TRY_GOTO(status, open_pass(pass, job, run->index, grain), cleanup);
  EK_TRY_GOTO(status,
              (call->predict ? ek_pass_run_predict : ek_pass_run_forward)(outputs, *pass, inputs),
              cleanup);
  if (!call->options->gradient) {
    ek_pass_free(*pass);
    *pass = NULL;
  }
  status = keep_outputs(job, run, grain, outputs);
cleanup:
  for (size_t i = 0; i < call->output_count; i++) ek_tensor_free(&outputs[i]);
  for (size_t i = 0; i < call->input_count; i++) ek_tensor_free(&inputs[i]);
  return status;
}

static ek_status run_grains(struct buffers *buffers, const struct job *job, size_t index) {
  const size_t used = ek__grains_used(job->model, job->samples);
  struct run run = {index, 0, 0};
  ek__grains_of(&run.first, &run.last, job->model, index, used);
  const size_t rounds = ek__placement(job->model)->parameter_shares
                            ? ek__grains_rounds(job->model, used)
                            : run.last - run.first;
  for (size_t round = 0; round < rounds; round++) {
    const size_t number = run.first + round;
    const struct ek__grain none = {SIZE_MAX, job->call->lead->samples[index], 0};
    const struct ek__grain grain =
        number < run.last ? ek__grain_at(job->model, number, job->samples) : none;
    const ek_status status = run_grain(job, &run, round, &grain);
    const ek_status kept = after_grain(buffers, job, index, grain.number);
    EK_TRY(status);
    EK_TRY(kept);
  }
  return EK_OK;
}

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  const struct job *job = context;
  struct buffers buffers = {{0}, {0}};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, begin_buffers(&buffers, job, index), cleanup);
  EK_TRY_GOTO(status, run_grains(&buffers, job, index), cleanup);
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
