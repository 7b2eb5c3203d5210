/*
 * optimizer_pieces.c - which rank updates what.
 *
 * What a device updates is a list of ranges of the flat buffers: everything on device 0 (master),
 * everything on every device (replicated), or its part of each bucket (sharded in any way). Where
 * all devices are in one address space, the master's ranges are cut into one part per device and
 * every worker updates its part of device 0's memory, so that no worker idles.
 *
 * Flat buffers hold parameters in groups of equal options (module/layout.h), of the whole model or
 * of each unit: those without decay, the others, those with a rate or decay of their own (one group
 * for each combination), and last the frozen ones, which belong to no range. So a range has at most
 * one piece for each group (two groups without patterns), and a model of hundreds of weights and
 * biases takes one launch more than a model without biases.
 *
 * The states of a device's pieces are end to end, in the same order, in flat buffers of their own.
 * All of this is computed when the optimizer is opened.
 */
#include "core/alloc.h"
#include "core/sizes.h"
#include "module/replica_internal.h"
#include "optimizer_internal.h"
#include "reduction.h"

/* *share, empty so far, becomes range number `number` of those that a rank updates (or sums). */
static void share_of(struct ek__range *share, const ek_data_parallel_model *model,
                     const struct ek__rank *rank, size_t number, bool norm) {
  const int64_t end = rank->replica->layout.trained_count;
  const struct ek__placement *placement = ek__placement(model);
  const size_t ranks = model->run.cut.ranks;
  size_t part = 0, parts = 1;
  if (placement->state_shares) {
    const struct ek__bucket *bucket = &model->run.cut.list[number];
    share->place = bucket->places[rank->part];
    ek__bucket_range(&share->first, &share->last, bucket, rank->sums.kind, rank->part);
    return;
  }
  if (placement->master) {
    /* The ranks of rank 0's process can reach its memory. */
    const bool helps = ek__update_helps(model);
    if (model->run.ranks[0].number > 0 || (rank->place > 0 && !helps)) return;
    part = rank->place;
    parts = helps ? model->run.count : 1;
  } else if (norm) {
    part = rank->part;
    parts = ranks;
  }
  share->first = ek__part_begin(end, part, parts);
  share->last = ek__part_begin(end, part + 1, parts);
}

/* Adds the share's part of run number `run`, to the piece before it if that is alike. */
static void append(struct ek__ranges *pieces, const struct ek__range *share,
                   const struct ek__layout *layout, size_t run, bool norm) {
  const struct ek__run *r = &layout->runs[run];
  const int64_t end = run + 1 < layout->run_count ? r[1].first : layout->flat_count;
  const int64_t first = r->first > share->first ? r->first : share->first;
  const int64_t last = end < share->last ? end : share->last;
  const size_t group = norm ? 0 : r->group;
  if (first >= last) return;
  struct ek__range *before = pieces->count == 0 ? NULL : &pieces->list[pieces->count - 1];
  if (before != NULL && before->last == first && first > share->first && before->group == group) {
    before->last = last;
    return;
  }
  pieces->list[pieces->count++] = (struct ek__range){
      .first = first, .last = last, .place = share->place + first - share->first, .group = group};
}

/* The run that has element `first`. */
static size_t run_at(const struct ek__layout *layout, int64_t first) {
  size_t low = 0, high = layout->run_count; /* it is between them */
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

ek_status ek__ranges_make(struct ek__ranges *ranges, const ek_data_parallel_model *model,
                          const struct ek__rank *rank, bool norm) {
  const struct ek__layout *layout = &rank->replica->layout;
  const size_t shares = ek__placement(model)->state_shares ? model->run.cut.trained : 1;
  EK_TRY(ek__new(&ranges->list, shares + layout->run_count, sizeof *ranges->list,
                 "the ranges of an optimizer"));
  for (size_t i = 0; i < shares; i++) {
    struct ek__range share = {0};
    share_of(&share, model, rank, i, norm);
    for (size_t run = run_at(layout, share.first);
         run < layout->run_count && layout->runs[run].first < share.last; run++) {
      append(ranges, &share, layout, run, norm);
    }
  }
  return EK_OK;
}

ek_status ek__optimizer_cut(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->run.count; k++) {
    struct ek__rank *rank = &model->run.ranks[k];
    struct ek__share *share = &rank->share;
    share->owner = ek__placement(model)->master ? &model->run.ranks[0] : rank;
    EK_TRY(ek__ranges_make(&share->updates, model, rank, false));
    EK_TRY(model->run.reduction->norm_ranges(share, model, rank));
    int64_t *owned = &share->owner->share.owned;
    for (size_t i = 0; i < share->updates.count; i++) {
      struct ek__range *range = &share->updates.list[i];
      range->state = *owned;
      *owned += range->last - range->first;
    }
  }
  return EK_OK;
}

void ek__optimizer_cut_free(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->run.count; k++) {
    ek__free(model->run.ranks[k].share.updates.list);
    ek__free(model->run.ranks[k].share.norms.list);
  }
}
