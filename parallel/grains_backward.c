/*
 * grains_backward.c - the backward of a reproducible model: a device's grains, and their sums.
 *
 * A grain's gradients go to a flat buffer of their own, as large as all gradients: to the lowest
 * that holds no block of the tree (grains.h). Block number 0 is the replica's own buffer, which its
 * passes write to; while a grain runs, the replica has another one in its place. Whatever blocks
 * are left when the last grain is done are added to those of other devices by grains_sum.c. Where
 * gradients are shares there are no such buffers, and grains_shares.c adds up bucket by bucket.
 */
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "grains.h"
#include "grains_memory.h"
#include "module/replica_internal.h"

/* Its rows of every gradient. The totals of a model that computes its loss itself have the same
 * gradient for all grains. */
static ek_status take_rows(ek_tensor *rows, const ek_data_parallel_model *model, size_t index,
                           const ek_shards *gradients, const struct ek__grain *grain) {
  for (size_t i = 0; i < model->module->outputs; i++) {
    const ek_shards *shape = &model->part_shapes[i];
    const ek_tensor *part = &gradients[i].parts[index];
    if (model->module->terms > 0) {
      EK_TRY(ek_tensor_share(&rows[i], part));
      continue;
    }
    if (grain->count == 0) {
      ek_tensor none = shape->parts[index];
      none.shape[0] = 0;
      EK_TRY(ek_tensor_create(&rows[i], ek_group_device(model->group, index), EK_MEMORY_LOSS,
                              none.type, none.rank, none.shape));
      continue;
    }
    const int64_t own = shape->samples[index + 1] - shape->samples[index];
    const int64_t per_sample = part->shape[0] / own;
    EK_TRY(ek__grain_rows(&rows[i], part, per_sample * (grain->first - shape->samples[index]),
                          per_sample * grain->count, EK_MEMORY_LOSS));
  }
  return EK_OK;
}

static ek_status run_grain(ek_data_parallel_model *model, size_t index, const ek_shards *gradients,
                           size_t round, const struct ek__grain *grain) {
  ek_pass **pass = &model->passes[index * ek__grains_most(model) + round];
  ek_tensor rows[EK_MAX_TENSORS] = {{0}};
  ek_status status = take_rows(rows, model, index, gradients, grain);
  if (status == EK_OK) status = ek_pass_run_backward(NULL, *pass, rows);
  for (size_t i = 0; i < model->module->outputs; i++) ek_tensor_free(&rows[i]);
  ek_pass_free(*pass);
  *pass = NULL;
  return status;
}

static ek_status run_grains(ek_data_parallel_model *model, ek_device *device, size_t index,
                            const ek_shards *gradients) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  ek_replica *replica = model->replicas[index];
  const ek_tensor first_block = replica->gradients;
  const size_t used = ek__grains_used(model, model->forward_samples);
  size_t first = 0, last = 0;
  ek_status status = EK_OK;
  ek__grains_of(&first, &last, model, index, used);
  own->fold = (struct ek__fold){.leaves = used};
  for (size_t number = first; number < last && status == EK_OK; number++) {
    const struct ek__grain grain = ek__grain_at(model, number, model->forward_samples);
    size_t top = own->fold.depth;
    if (top > 0) replica->gradients = own->blocks[top];
    status = run_grain(model, index, gradients, number - first, &grain);
    replica->gradients = first_block;
    size_t sums = ek__fold_push(&own->fold, (struct ek__block){0, number});
    for (; sums > 0 && status == EK_OK; sums--, top--) {
      ek_tensor sum = top > 1 ? own->blocks[top - 1] : first_block;
      status =
          ek_op_add(ek_device_stream(device, EK_STREAM_COMPUTE), &sum, &sum, &own->blocks[top]);
    }
  }
  return status;
}

/* Gradients in shares: each grain's go to all devices while its backward runs. */
static ek_status run_rounds(ek_data_parallel_model *model, ek_device *device, size_t index,
                            const ek_shards *gradients) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  EK_TRY(ek__grains_begin(model, device, index));
  const struct ek__grain_run *run = &own->runs[index];
  while (own->round < own->rounds) {
    const size_t number = run->first + own->round;
    const struct ek__grain none = {SIZE_MAX, 0, 0};
    const struct ek__grain grain =
        number < run->last ? ek__grain_at(model, number, model->forward_samples) : none;
    EK_TRY(ek_reducer_start(model->reducer, device));
    if (grain.count > 0 || ek__placement(model)->parameter_shares) {
      EK_TRY(run_grain(model, index, gradients, own->round, &grain));
    }
    EK_TRY(ek_reducer_finish(model->reducer, device));
    ek__grains_end_round(model, index);
  }
  return EK_OK;
}

ek_status ek__grains_backward(ek_data_parallel_model *model, ek_device *device, size_t index,
                              const ek_shards *gradients, bool more) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  if (ek__placement(model)->gradient_shares) return run_rounds(model, device, index, gradients);
  if (more && !ek_tensor_exists(&own->earlier)) {
    EK_TRY(ek__grains_zeros(&own->earlier, device,
                            ek_tensor_count(ek_replica_gradients(model->replicas[index])),
                            model->options.gradient_type, EK_MEMORY_GRADIENTS));
  }
  EK_TRY(run_grains(model, device, index, gradients));
  return ek__grains_reduce(model, device, index, more);
}

ek_status ek__grains_take_earlier(ek_data_parallel_model *model, size_t index) {
  const ek_tensor gradients = model->replicas[index]->gradients;
  model->replicas[index]->gradients = model->grain_memory[index].earlier;
  model->grain_memory[index].earlier = gradients;
  return EK_OK;
}
