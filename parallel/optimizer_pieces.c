/*
 * optimizer_pieces.c - who updates what.
 *
 * What a device updates is a list of ranges of the flat buffers: everything on device 0 (master),
 * everything on every device (replicated), or its part of each bucket (sharded in any way). Where
 * all devices lie in one address space, the master's ranges are cut into one part per device and
 * every worker updates its part of device 0's memory, so that no worker idles.
 *
 * Flat buffers hold parameters by what an optimizer is asked for them (module/layout.h): those
 * without decay, then the others, then those with a rate or decay of their own (one group for each
 * combination), of the whole model or of each unit, and after all of them the frozen ones, which
 * belong to no range. So a range is at most as many pieces as there are groups, two without
 * patterns, and a model of hundreds of weights and biases takes one launch more than a model
 * without biases.
 *
 * The state of a device's pieces lies end to end, in their order, in flat buffers of its own. All
 * of it is worked out when the optimizer is opened.
 */
#include "core/alloc.h"
#include "core/sizes.h"
#include "module/replica_internal.h"
#include "optimizer_internal.h"
#include "reduce_internal.h"

/* *share, empty so far, becomes range number `range` of those that worker `index` updates (or
 * sums). */
static ek_status share_of(struct ek__piece *share, const ek_data_parallel_optimizer *self,
                          size_t index, size_t range, bool norm) {
  const ek_data_parallel_model *model = self->model;
  const struct ek__layout *layout = &model->replicas[0]->layout;
  const int64_t end = layout->trained_count;
  const size_t first_rank = ek_communicator_first_rank(model->communicator);
  const struct ek__placement *placement = ek__placement(model);
  size_t part = 0, parts = 1;
  if (placement->state_shares) {
    const struct ek__bucket *bucket = &ek__reducer_buckets(model->reducer)->list[range];
    share->place = bucket->places[first_rank + index];
    return ek_reducer_range(&share->first, &share->last, model->reducer, range, first_rank + index);
  }
  if (placement->master) {
    if (first_rank > 0 || (index > 0 && !self->helpers)) return EK_OK;
    part = index;
    parts = self->helpers ? model->count : 1;
  } else if (norm) {
    part = first_rank + index;
    parts = ek_communicator_world_size(model->communicator);
  }
  share->first = ek__part_begin(end, part, parts);
  share->last = ek__part_begin(end, part + 1, parts);
  return EK_OK;
}

/* What a share has of run number `run`; one piece with what is before it if that is alike. */
static void append(struct ek__pieces *pieces, const struct ek__piece *share,
                   const struct ek__layout *layout, size_t run, bool norm) {
  const struct ek__run *r = &layout->runs[run];
  const int64_t end = run + 1 < layout->run_count ? r[1].first : layout->flat_count;
  const int64_t first = r->first > share->first ? r->first : share->first;
  const int64_t last = end < share->last ? end : share->last;
  const size_t group = norm ? 0 : r->group;
  if (first >= last) return;
  struct ek__piece *before = pieces->count == 0 ? NULL : &pieces->list[pieces->count - 1];
  if (before != NULL && before->last == first && first > share->first && before->group == group) {
    before->last = last;
    return;
  }
  pieces->list[pieces->count++] = (struct ek__piece){
      .first = first, .last = last, .place = share->place + first - share->first, .group = group};
}

/* The run that has element `first`. */
static size_t run_at(const struct ek__layout *layout, int64_t first) {
  size_t low = 0, high = layout->run_count; /* it lies between them */
  while (low + 1 < high) {
    const size_t middle = low + (high - low) / 2;
    if (layout->runs[middle].first <= first) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

static ek_status make_pieces(struct ek__pieces *pieces, const ek_data_parallel_optimizer *self,
                             size_t index, bool norm) {
  const ek_data_parallel_model *model = self->model;
  const struct ek__layout *layout = &model->replicas[0]->layout;
  const size_t shares =
      ek__placement(model)->state_shares ? ek_reducer_bucket_count(model->reducer) : 1;
  EK_TRY(ek__new(&pieces->list, shares + layout->run_count, sizeof *pieces->list,
                 "the ranges of an optimizer"));
  for (size_t i = 0; i < shares; i++) {
    struct ek__piece share = {0};
    EK_TRY(share_of(&share, self, index, i, norm));
    for (size_t run = run_at(layout, share.first);
         run < layout->run_count && layout->runs[run].first < share.last; run++) {
      append(pieces, &share, layout, run, norm);
    }
  }
  return EK_OK;
}

/* A reproducible model: whole parts of buckets, whose sums of squares are then the same for any
 * number of workers. */
static ek_status make_leaves(struct ek__optimizer_device *own,
                             const ek_data_parallel_optimizer *self, size_t index) {
  const ek_data_parallel_model *model = self->model;
  const size_t grains = model->options.reproducible;
  const size_t buckets = ek_reducer_bucket_count(model->reducer);
  const bool alone = model->options.state == EK_STATE_MASTER && !self->helpers;
  const size_t workers = alone ? 1 : model->count;
  if (index >= workers) {
    own->first_leaf = ek__norm_leaves(model);
    return EK_OK;
  }
  const size_t first = (size_t)ek__even_begin((int64_t)grains, index, workers);
  const size_t last = (size_t)ek__even_begin((int64_t)grains, index + 1, workers);
  EK_TRY(ek__new(&own->norms.list, (last - first) * buckets, sizeof *own->norms.list,
                 "the ranges of an optimizer"));
  own->first_leaf = (int64_t)(first * buckets);
  own->norms.count = (last - first) * buckets;
  for (size_t i = 0; i < buckets; i++) {
    const struct ek__bucket *b = &ek__reducer_buckets(model->reducer)->list[i];
    for (size_t part = first; part < last; part++) {
      struct ek__piece *leaf = &own->norms.list[(part - first) * buckets + i];
      leaf->first = b->first + ek__part_begin(b->last - b->first, part, grains);
      leaf->last = b->first + ek__part_begin(b->last - b->first, part + 1, grains);
      leaf->place = b->places[index] + leaf->first - b->first - b->offsets[index];
    }
  }
  return EK_OK;
}

ek_status ek__optimizer_cut(ek_data_parallel_optimizer *self) {
  const ek_data_parallel_model *model = self->model;
  for (size_t k = 0; k < model->count; k++) {
    struct ek__optimizer_device *own = &self->devices[k];
    own->owner = ek__placement(model)->master ? 0 : k;
    EK_TRY(make_pieces(&own->updates, self, k, false));
    EK_TRY(model->options.reproducible > 0 ? make_leaves(own, self, k)
                                           : make_pieces(&own->norms, self, k, true));
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
