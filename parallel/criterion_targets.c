/*
 * criterion_targets.c - whether targets that were cut fit the inputs or outputs of a model.
 */
#include "core/error.h"
#include "parallel_internal.h"

bool ek__target_fits(const ek_shards *target, const ek_shards *like) {
  const int64_t samples = like->samples[like->count], rows = target->offsets[like->count];
  if (target->broadcast || (samples == 0 ? rows != 0 : rows % samples != 0)) return false;
  const int64_t per_sample = samples == 0 ? 0 : rows / samples;
  for (size_t k = 0; k <= like->count; k++) {
    if (target->offsets[k] != like->samples[k] * per_sample) return false;
  }
  return true;
}

ek_status ek__target_shards_check(const ek_data_parallel_model *model, const ek_shards *outputs,
                                  const ek_shards *targets, size_t target_count) {
  for (size_t i = 0; i < target_count; i++) {
    EK__FAIL_IF(targets[i].group != model->group, EK_ERR_DEVICE,
                "target number %zu is not of the model's group", i);
    EK_TRY(ek__shards_check("criterion forward: a target", &targets[i]));
    EK__FAIL_IF(!ek__target_fits(&targets[i], outputs), EK_ERR_SHAPE,
                "target number %zu is not cut at the samples of the outputs", i);
    for (size_t k = 0; k < model->count; k++) {
      const ek_tensor *part = &targets[i].parts[k];
      const int64_t rows = targets[i].offsets[k + 1] - targets[i].offsets[k];
      EK__FAIL_IF(
          !ek_tensor_exists(part) || part->device != ek_group_device(model->group, k) ||
              part->rank == 0 || part->shape[0] != rows,
          EK_ERR_SHAPE,
          "part number %zu of target number %zu is not on %s, or has not the %lld rows of the cut",
          k, i, ek_device_name(ek_group_device(model->group, k)), (long long)rows);
    }
  }
  return EK_OK;
}
