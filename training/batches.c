/*
 * batches.c - cuts a batch into parts of whole samples, and puts the outputs of a prediction
 * together again: each part is cut over all devices, so each device copies its rows of a part to
 * the device that has these rows in a cut of the whole batch.
 */
#include "batches.h"

#include <string.h>

#include <evenkeel/gather.h>

#include "core/error.h"
#include "core/sizes.h"
#include "device/flaw.h"
#include "parallel/reduction.h"

struct ek__batch ek__batch_for(ek_tensor all[EK_MAX_INPUTS], const ek_module *module,
                               const struct ek__batch *batch) {
  const size_t inputs = batch->input_count, targets = batch->target_count;
  if (targets == 0 || ek_module_targets(module) != targets ||
      ek_module_inputs(module) > EK_MAX_INPUTS || ek_module_inputs(module) != inputs + targets) {
    return *batch;
  }
  memcpy(all, batch->inputs, inputs * sizeof *all);
  memcpy(all + inputs, batch->targets, targets * sizeof *all);
  return (struct ek__batch){all, NULL, ek_module_inputs(module), 0, batch->broadcast};
}

static bool is_cut(const struct ek__batch *batch, size_t input) {
  return input >= 64 || (batch->broadcast >> input & 1) == 0;
}

static ek_status check_rows(const char *what, size_t index, const ek_tensor *tensor,
                            int64_t samples) {
  char text[EK__FLAW_TEXT];
  const char *flaw = ek__tensor_flaw(text, tensor);
  EK__FAIL_IF(flaw != NULL, EK_ERR_INVALID_ARGUMENT, "micro-batches: %s number %zu has %s", what,
              index, flaw);
  const int64_t rows = tensor->rank > 0 ? tensor->shape[0] : 0;
  EK__FAIL_IF(tensor->rank == 0, EK_ERR_SHAPE, "micro-batches: %s number %zu has no rows", what,
              index);
  EK__FAIL_IF(samples == 0 ? rows != 0 : rows % samples != 0, EK_ERR_SHAPE,
              "micro-batches: %s number %zu: %lld rows are not a multiple of %lld samples", what,
              index, (long long)rows, (long long)samples);
  return EK_OK;
}

ek_status ek__batch_samples(int64_t *samples, const struct ek__batch *batch) {
  size_t lead = 0;
  EK__FAIL_IF(batch->input_count > EK_MAX_INPUTS || batch->target_count > EK_MAX_TENSORS,
              EK_ERR_INVALID_ARGUMENT,
              "micro-batches: %zu inputs and %zu targets, at most %d and %d", batch->input_count,
              batch->target_count, EK_MAX_INPUTS, EK_MAX_TENSORS);
  while (lead < batch->input_count && !is_cut(batch, lead)) lead++;
  EK__FAIL_IF(lead == batch->input_count, EK_ERR_INVALID_ARGUMENT,
              "micro-batches: every input is broadcast; one must be cut");
  const ek_tensor *first = &batch->inputs[lead];
  *samples = first->rank > 0 ? first->shape[0] : 0;
  for (size_t i = lead; i < batch->input_count; i++) {
    if (is_cut(batch, i)) EK_TRY(check_rows("input", i, &batch->inputs[i], *samples));
  }
  for (size_t i = 0; i < batch->target_count; i++) {
    EK_TRY(check_rows("target", i, &batch->targets[i], *samples));
  }
  return EK_OK;
}

/* Rows of samples first .. first + count - 1. */
static ek_tensor view(const ek_tensor *whole, int64_t samples, int64_t first, int64_t count) {
  ek_tensor part = *whole;
  const int64_t per_sample = samples == 0 ? 0 : whole->shape[0] / samples;
  const size_t row = (size_t)ek_tensor_row_elements(whole) * ek_type_size(whole->type);
  part.shape[0] = count * per_sample;
  if (whole->data != NULL) {
    part.data = (char *)whole->data + (size_t)(first * per_sample) * row;
  }
  return part;
}

/* The first sample of a part; for the number of parts: the samples of all. */
static int64_t part_begin(const struct ek__batch_cuts *cuts, int64_t index) {
  const size_t count = (size_t)cuts->count;
  int64_t begin = 0;
  if (cuts->group == NULL) return ek__even_begin(cuts->samples, (size_t)index, count);
  for (size_t i = 0; i < (size_t)index; i++) {
    const int64_t all =
        ek__even_begin(cuts->all, i + 1, count) - ek__even_begin(cuts->all, i, count);
    const size_t rank = ek__group_first_rank(cuts->group),
                 ranks = ek__group_world_size(cuts->group);
    const size_t last = rank + ek_group_size(cuts->group);
    begin += ek__grains_begin(all, cuts->grains, last, ranks) -
             ek__grains_begin(all, cuts->grains, rank, ranks);
  }
  return begin;
}

ek_status ek__batch_cuts_make(struct ek__batch_cuts *cuts, const ek_data_parallel_model *model,
                              int64_t samples, int64_t count) {
  *cuts = (struct ek__batch_cuts){.samples = samples, .count = count};
  ek_world *world = ek__model_world(model);
  if (world == NULL || model->run.reduction->whole) return EK_OK;
  int64_t all = samples;
  EK_TRY(ek__world_sum(world, model->step.taken, &all, 1, NULL));
  cuts->group = model->run.group;
  cuts->grains = model->options.reproducible;
  cuts->all = all;
  const int64_t own = part_begin(cuts, count);
  EK__FAIL_IF(
      own != samples, EK_ERR_SHAPE,
      "micro-batches: this process has %lld samples; of %lld parts of the batch of %lld its "
      "grains have %lld (ek_world_rows)",
      (long long)samples, (long long)count, (long long)all, (long long)own);
  return EK_OK;
}

void ek__batch_cut(struct ek__batch_part *part, const struct ek__batch *batch,
                   const struct ek__batch_cuts *cuts, int64_t index) {
  const int64_t samples = cuts->samples, first = part_begin(cuts, index);
  const int64_t size = part_begin(cuts, index + 1) - first;
  part->batch = *batch;
  part->first = first;
  part->samples = size;
  part->batch.inputs = part->inputs;
  part->batch.targets = part->targets;
  for (size_t i = 0; i < batch->input_count; i++) {
    part->inputs[i] =
        is_cut(batch, i) ? view(&batch->inputs[i], samples, first, size) : batch->inputs[i];
  }
  for (size_t i = 0; i < batch->target_count; i++) {
    part->targets[i] = view(&batch->targets[i], samples, first, size);
  }
}

/* ---- outputs ---- */

struct rows_job {
  ek_shards *whole;
  const ek_shards *rows;
  ek_tensor like; /* of a part of the whole, except the rows */
  int64_t first;  /* row of the whole with which `rows` begin */
};

static ek_status make_rows(void *context, ek_device *device, size_t index) {
  const struct rows_job *job = context;
  int64_t shape[EK_MAX_RANK];
  memcpy(shape, job->like.shape, sizeof shape);
  shape[0] = job->whole->offsets[index + 1] - job->whole->offsets[index];
  return ek_tensor_create(&job->whole->parts[index], device, EK_MEMORY_OUTPUTS, job->like.type,
                          job->like.rank, shape);
}

/* Rows first .. last - 1 of the whole, of which the device has a part from row `begin` on. */
static ek_status copy_rows(const struct rows_job *job, size_t to, const ek_tensor *part,
                           int64_t begin, int64_t first, int64_t last) {
  ek_tensor from = {0}, into = {0};
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, ek_tensor_rows(&from, part, first - begin, last - first), cleanup);
  EK_TRY_GOTO(
      status,
      ek_tensor_rows(&into, &job->whole->parts[to], first - job->whole->offsets[to], last - first),
      cleanup);
  status = ek_tensor_copy(&into, &from);
cleanup:
  ek_tensor_free(&into);
  ek_tensor_free(&from);
  return status;
}

static ek_status put_rows(void *context, ek_device *device, size_t index) {
  (void)device;
  const struct rows_job *job = context;
  const ek_shards *whole = job->whole;
  const int64_t begin = job->first + job->rows->offsets[index];
  const int64_t end = job->first + job->rows->offsets[index + 1];
  for (size_t k = 0; k < whole->count; k++) {
    const int64_t first = whole->offsets[k] > begin ? whole->offsets[k] : begin;
    const int64_t last = whole->offsets[k + 1] < end ? whole->offsets[k + 1] : end;
    if (first >= last) continue;
    EK_TRY(copy_rows(job, k, &job->rows->parts[index], begin, first, last));
  }
  return EK_OK;
}

/* Cuts as a forward of the whole batch does. */
static ek_status lay_rows(ek_shards *whole, const ek_data_parallel_model *model, int64_t samples,
                          int64_t per_sample, bool predicted) {
  ek_scatter_options options = EK_SCATTER_OPTIONS_INIT;
  if (!model->run.reduction->whole) {
    options.kind = EK_SCATTER_GRAINS;
    options.grains = model->options.reproducible;
  }
  EK_TRY(ek_shards_create(whole, model->run.group));
  EK_TRY(ek_scatter_offsets(whole->samples, samples, whole->count, &options));
  const bool gathered = model->options.outputs == EK_OUTPUTS_GATHER && !predicted;
  for (size_t k = 0; k <= whole->count && gathered; k++) {
    whole->samples[k] = k <= model->options.output_device ? 0 : samples;
  }
  for (size_t k = 0; k <= whole->count; k++) whole->offsets[k] = whole->samples[k] * per_sample;
  return EK_OK;
}

ek_status ek__rows_put(ek_shards *whole, const ek_data_parallel_model *model, const ek_shards *rows,
                       const struct ek__batch_part *part, int64_t samples, bool predicted) {
  const int64_t per_sample = rows->offsets[rows->count] / part->samples;
  struct rows_job job = {.whole = whole, .rows = rows, .first = part->first * per_sample};
  if (whole->group == NULL) {
    EK_TRY(lay_rows(whole, model, samples, per_sample, predicted));
    job.like = rows->parts[0]; /* the first device has rows, or a part that is like the others */
    EK_TRY(ek_group_apply(model->run.group, make_rows, &job));
  }
  return ek_group_apply(model->run.group, put_rows, &job);
}

ek_status ek__rows_put_host(ek_tensor *whole, const ek_shards *rows,
                            const struct ek__batch_part *part, int64_t samples) {
  EK__FAIL_IF(!ek_tensor_exists(whole) || whole->device != NULL || whole->rank == 0 ||
                  whole->shape[0] % samples != 0,
              EK_ERR_SHAPE,
              "expected a host tensor with equally many rows for each of %lld samples",
              (long long)samples);
  ek_tensor some = view(whole, samples, part->first, part->samples);
  return ek_gather_host(&some, rows);
}
