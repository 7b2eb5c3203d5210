/*
 * given_shards.c - whether shards that a program has made fit a model, and targets its inputs or
 * outputs.
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

ek_status ek__given_check(const char *what, size_t number, const ek_data_parallel_model *model,
                          const ek_shards *given, const ek_shards *like) {
  EK__FAIL_IF(given->group != model->run.group, EK_ERR_DEVICE,
              "%s number %zu is not of the model's group", what, number);
  EK_TRY(ek__shards_check(what, given));
  EK__FAIL_IF(like != NULL && !ek__target_fits(given, like), EK_ERR_SHAPE,
              "%s number %zu is not cut at the samples of the outputs", what, number);
  for (size_t k = 0; k < model->run.count; k++) {
    const ek_tensor *part = &given->parts[k];
    const ek_device *device = model->run.ranks[k].device;
    const int64_t rows = given->offsets[k + 1] - given->offsets[k];
    EK__FAIL_IF(!ek_tensor_exists(part) || part->device != device, EK_ERR_DEVICE,
                "%s number %zu: its part number %zu is not on %s", what, number, k,
                ek_device_name(device));
    EK__FAIL_IF(!given->broadcast && (part->rank == 0 || rows < 0 || part->shape[0] != rows),
                EK_ERR_SHAPE, "%s number %zu: its part number %zu has not the %lld rows of the cut",
                what, number, k, (long long)rows);
  }
  return EK_OK;
}
