/*
 * parallel_apply.c - the same forward on every device at once.
 */
#include <evenkeel/parallel_apply.h>

#include <string.h>

#include "core/error.h"
#include "parallel_internal.h"

struct apply_job {
  ek_shards *outputs;
  size_t output_count;
  ek_pass *const *passes;
  const ek_shards *inputs;
  size_t input_count;
  const ek_shards *lead; /* the input whose rows decide which devices work: those with rows */
};

/* Every device has the rows of a broadcast input. */
static bool has_rows(const struct apply_job *job, size_t index) {
  return job->lead->broadcast || job->lead->offsets[index] < job->lead->offsets[index + 1];
}

static ek_status forward_one(void *context, ek_device *device, size_t index) {
  const struct apply_job *job = context;
  ek_tensor inputs[EK_MAX_INPUTS], outputs[EK_MAX_TENSORS] = {{0}};
  (void)device;
  const bool rows = has_rows(job, index);
  if (!rows && !ek_pass_is_collective(job->passes[index])) return EK_OK;
  EK__FAIL_IF(job->passes[index] == NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_parallel_apply: a pass is NULL");
  for (size_t i = 0; i < job->input_count; i++) {
    inputs[i] = job->inputs[i].parts[index];
    EK_TRY(ek_tensor_wait(&inputs[i]));
  }
  EK_TRY(ek_pass_run_forward(outputs, job->passes[index], inputs));
  for (size_t i = 0; i < job->output_count; i++) {
    /* A scalar would count as a row. */
    if (!rows && outputs[i].rank == 0) ek_tensor_free(&outputs[i]);
    job->outputs[i].parts[index] = outputs[i];
  }
  return EK_OK;
}

/* A part without rows, of the type and other dimensions of `like`, or of any (NULL). */
static ek_status make_empty(ek_shards *shards, size_t index, const ek_tensor *like) {
  static const ek_tensor none = {.type = EK_F32, .rank = 1};
  ek_tensor part = like == NULL ? none : *like;
  if (part.rank == 0) part.rank = 1;
  part.shape[0] = 0;
  return ek_tensor_create(&shards->parts[index], ek_group_device(shards->group, index),
                          EK_MEMORY_OUTPUTS, part.type, part.rank, part.shape);
}

ek_status ek__parallel_apply_finish(ek_shards *output, const ek_tensor *like) {
  const ek_tensor *model = like;
  for (size_t i = output->count; i-- > 0;) {
    if (ek_tensor_exists(&output->parts[i])) model = &output->parts[i];
  }
  for (size_t i = 0; i < output->count; i++) {
    ek_tensor *part = &output->parts[i];
    if (!ek_tensor_exists(part)) EK_TRY(make_empty(output, i, model));
    output->offsets[i + 1] = output->offsets[i] + ek__part_rows(part);
  }
  return EK_OK;
}

static ek_status check(const ek_shards *outputs, size_t output_count, ek_pass *const *passes,
                       const ek_shards *inputs, size_t input_count) {
  EK__FAIL_IF(outputs == NULL || passes == NULL || inputs == NULL || input_count == 0 ||
                  input_count > EK_MAX_INPUTS || output_count == 0 || output_count > EK_MAX_TENSORS,
              EK_ERR_INVALID_ARGUMENT,
              "ek_parallel_apply: an argument is NULL, or %zu inputs and %zu outputs", input_count,
              output_count);
  for (size_t i = 0; i < input_count; i++) {
    EK_TRY(ek__shards_check("ek_parallel_apply: an input", &inputs[i]));
    EK__FAIL_IF(inputs[i].group != inputs[0].group, EK_ERR_DEVICE,
                "ek_parallel_apply: input number %zu is of another group", i);
  }
  for (size_t k = 0; k < inputs[0].count; k++) {
    const ek_module *module = ek_pass_module(passes[k]);
    EK__FAIL_IF(module != NULL && (ek_module_inputs(module) != input_count ||
                                   ek_module_outputs(module) != output_count),
                EK_ERR_INVALID_ARGUMENT,
                "ek_parallel_apply: %s has %zu inputs and %zu outputs, not %zu and %zu",
                ek_module_kind(module), ek_module_inputs(module), ek_module_outputs(module),
                input_count, output_count);
  }
  return EK_OK;
}

ek_status ek_parallel_apply(ek_shards *outputs, size_t output_count, ek_pass *const *passes,
                            const ek_shards *inputs, size_t input_count) {
  EK_TRY(check(outputs, output_count, passes, inputs, input_count));
  ek_shards made[EK_MAX_TENSORS] = {{0}};
  struct apply_job job = {made, output_count, passes, inputs, input_count, &inputs[0]};
  for (size_t i = input_count; i-- > 0;) {
    if (!inputs[i].broadcast) job.lead = &inputs[i];
  }
  ek_status status = EK_OK;
  for (size_t i = 0; i < output_count; i++) {
    EK_TRY_GOTO(status, ek__shards_create_like(&made[i], job.lead), cleanup);
  }
  EK_TRY_GOTO(status, ek_group_apply(inputs[0].group, forward_one, &job), cleanup);
  for (size_t i = 0; i < output_count; i++) {
    EK_TRY_GOTO(status, ek__parallel_apply_finish(&made[i], NULL), cleanup);
  }
  memcpy(outputs, made, output_count * sizeof *made);
  return EK_OK;
cleanup:
  for (size_t i = 0; i < output_count; i++) ek_shards_free(&made[i]);
  return status;
}
