/*
 * optimizer_pieces.c - who updates what.
 *
 * What a device updates is a list of ranges of the flat buffers: everything on device 0 (master),
 * everything on every device (replicated), or its part of each bucket (sharded). Where all devices
 * lie in one address space, the master's ranges are cut into one part per device and every worker
 * updates its part of device 0's memory, so that no worker idles.
 *
 * The state of a device's ranges lies end to end, in their order, in flat buffers of its own. All
 * of it is worked out when the optimizer is opened.
 */
#include "core/alloc.h"
#include "optimizer_internal.h"

static int64_t flat_count(const ek_data_parallel_model *model) {
  return ek_tensor_count(ek_replica_parameters(model->replicas[0]));
}

/* Part number `part` of all elements, in units of a vector. */
static struct ek__piece cut(int64_t count, size_t part, size_t parts) {
  const int64_t units = (count + 15) / 16;
  const int64_t first = units * (int64_t)part / (int64_t)parts * 16;
  const int64_t last = units * (int64_t)(part + 1) / (int64_t)parts * 16;
  return (struct ek__piece){.first = first < count ? first : count,
                            .last = last < count ? last : count};
}

/* Worker `index` has so many ranges to update (or to sum), of which this is number `range`. */
static ek_status share_of(struct ek__piece *share, const ek_data_parallel_optimizer *self,
                          size_t index, size_t range, bool norm) {
  const ek_data_parallel_model *model = self->model;
  const int64_t count = flat_count(model);
  switch (model->options.state) {
  case EK_STATE_SHARDED:
    return ek_reducer_range(&share->first, &share->last, model->reducer, range, index);
  case EK_STATE_REPLICATED: *share = cut(count, norm ? index : 0, norm ? model->count : 1); break;
  case EK_STATE_MASTER:
    *share = self->helpers ? cut(count, index, model->count)
                           : (struct ek__piece){.last = index == 0 ? count : 0};
    break;
  }
  return EK_OK;
}

static ek_status make_pieces(struct ek__pieces *pieces, const ek_data_parallel_optimizer *self,
                             size_t index, bool norm) {
  const ek_data_parallel_model *model = self->model;
  const size_t shares =
      model->options.state == EK_STATE_SHARDED ? ek_reducer_bucket_count(model->reducer) : 1;
  pieces->list = ek__calloc(shares, sizeof *pieces->list);
  if (pieces->list == NULL && shares > 0) {
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "no host memory for the ranges of an optimizer");
  }
  for (size_t i = 0; i < shares; i++) {
    struct ek__piece share = {0};
    EK_TRY(share_of(&share, self, index, i, norm));
    if (share.first < share.last) pieces->list[pieces->count++] = share;
  }
  return EK_OK;
}

ek_status ek__optimizer_cut(ek_data_parallel_optimizer *self) {
  const ek_data_parallel_model *model = self->model;
  for (size_t k = 0; k < model->count; k++) {
    struct ek__optimizer_device *own = &self->devices[k];
    own->owner = model->options.state == EK_STATE_MASTER ? 0 : k;
    EK_TRY(make_pieces(&own->updates, self, k, false));
    EK_TRY(make_pieces(&own->norms, self, k, true));
    int64_t *owned = &self->devices[own->owner].owned;
    for (size_t i = 0; i < own->updates.count; i++) {
      struct ek__piece *piece = &own->updates.list[i];
      piece->state = *owned;
      *owned += piece->last - piece->first;
    }
  }
  return EK_OK;
}

void ek__optimizer_cut_free(ek_data_parallel_optimizer *self) {
  for (size_t k = 0; k < self->model->count && self->devices != NULL; k++) {
    ek__free(self->devices[k].updates.list);
    ek__free(self->devices[k].norms.list);
  }
}
