/*
 * criterion_targets.c - whether targets fit the outputs of a model: as tensors that will be cut, or
 * as shards that were.
 */
#include <string.h>

#include "parallel_internal.h"

ek_status ek__targets_check(const ek_data_parallel_model *model, const ek_shards *outputs,
                            const ek_tensor *targets, size_t target_count) {
  for (size_t i = 0; i < target_count; i++) {
    if (!ek_tensor_exists(&targets[i])) {
      return ek_error_set(EK_ERR_INVALID_ARGUMENT, "there is no target number %zu", i);
    }
    if (targets[i].device != NULL && ek_device_group(targets[i].device) != model->group) {
      return ek_error_set(EK_ERR_DEVICE, "target number %zu is on %s of another group", i,
                          ek_device_name(targets[i].device));
    }
    const int64_t samples = outputs[0].samples[model->count];
    const int64_t rows = targets[i].rank > 0 ? targets[i].shape[0] : -1;
    if (rows < 0 || (samples == 0 ? rows != 0 : rows % samples != 0)) {
      return ek_error_set(EK_ERR_SHAPE,
                          "target number %zu has %lld rows, which is no multiple of %lld samples",
                          i, (long long)rows, (long long)samples);
    }
  }
  return EK_OK;
}

/* Whole samples, and those of the outputs. */
static bool fits(const ek_shards *target, const ek_shards *outputs, size_t count) {
  const int64_t samples = outputs->samples[count], rows = target->offsets[count];
  if (target->broadcast || (samples == 0 ? rows != 0 : rows % samples != 0)) return false;
  const int64_t per_sample = samples == 0 ? 0 : rows / samples;
  for (size_t k = 0; k <= count; k++) {
    if (target->offsets[k] != outputs->samples[k] * per_sample) return false;
  }
  return true;
}

ek_status ek__target_shards_check(const ek_data_parallel_model *model, const ek_shards *outputs,
                                  const ek_shards *targets, size_t target_count) {
  for (size_t i = 0; i < target_count; i++) {
    if (targets[i].group != model->group) {
      return ek_error_set(EK_ERR_DEVICE, "target number %zu is not of the model's group", i);
    }
    EK_TRY(ek__shards_check("criterion forward: a target", &targets[i]));
    if (!fits(&targets[i], outputs, model->count)) {
      return ek_error_set(EK_ERR_SHAPE,
                          "target number %zu is not cut at the samples of the outputs", i);
    }
    for (size_t k = 0; k < model->count; k++) {
      const ek_tensor *part = &targets[i].parts[k];
      const int64_t rows = targets[i].offsets[k + 1] - targets[i].offsets[k];
      if (!ek_tensor_exists(part) || part->device != ek_group_device(model->group, k) ||
          part->rank == 0 || part->shape[0] != rows) {
        return ek_error_set(EK_ERR_SHAPE,
                            "part number %zu of target number %zu is not on %s, or "
                            "has not the %lld rows of the cut",
                            k, i, ek_device_name(ek_group_device(model->group, k)),
                            (long long)rows);
      }
    }
  }
  return EK_OK;
}

ek_status ek__target_borrow(ek_shards *borrowed, const ek_shards *shards) {
  ek_shards made;
  EK_TRY(ek_shards_create(&made, shards->group));
  const size_t offsets = (made.count + 1) * sizeof *made.offsets;
  memcpy(made.offsets, shards->offsets, offsets);
  memcpy(made.samples, shards->samples, offsets);
  ek_status status = ek_shards_arrive(shards);
  for (size_t k = 0; k < made.count && status == EK_OK; k++) {
    status = ek_tensor_share(&made.parts[k], &shards->parts[k]);
  }
  if (status != EK_OK) {
    ek_shards_free(&made);
    return status;
  }
  *borrowed = made;
  return EK_OK;
}
