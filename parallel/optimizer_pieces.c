/*
 * optimizer_pieces.c - which rank updates what.
 *
 * What a device updates is a list of ranges of the flat buffers: everything on device 0 (master),
 * everything on every device (replicated), or its share of each bucket (sharded in any way). Where
 * all devices are in one address space, the master's ranges are cut into one piece per device and
 * every worker updates its piece of device 0's memory, so that no worker idles.
 *
 * Flat buffers hold parameters in groups of equal options (module/layout.h), of the whole model or
 * of each unit: those without decay, the others, those with a rate or decay of their own (one group
 * for each combination), and last the frozen ones, which belong to no range. So a range has at most
 * one piece for each group (two groups without patterns), and a model of hundreds of weights and
 * biases takes one launch more than a model without biases.
 *
 * A parameter that the rule takes whole (optimizer.h) is a range by itself, and buckets are cut so
 * that it is in one share (buckets.h). Then workers that update pieces of device 0's memory have
 * their shares of the buckets, as in the sharded modes.
 *
 * The states of a device's pieces are end to end, in the same order, in flat buffers of their own;
 * a rule may keep a state for some parameters alone. All of this is computed when the optimizer is
 * opened.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "module/replica_internal.h"
#include "optimizer_internal.h"
#include "reduction.h"

static const char memory_of[] = "a data-parallel optimizer";

/* Whether ranks have their shares of every bucket. */
static bool cuts_buckets(const ek_data_parallel_model *model) {
  const struct ek__placement *placement = ek__placement(model);
  return placement->state_shares ||
         (placement->master && model->run.cut.whole != NULL && ek__update_helps(model));
}

bool ek__update_span(struct ek__span *span, const ek_data_parallel_model *model,
                     const struct ek__rank *rank, size_t number, bool norm) {
  const int64_t end = rank->replica->layout.trained_count;
  const struct ek__placement *placement = ek__placement(model);
  const bool helps = ek__update_helps(model);
  size_t index = 0, pieces = 1;
  *span = (struct ek__span){0};
  if (cuts_buckets(model)) {
    if (number == model->run.cut.trained) return false;
    *span = ek__bucket_span(&model->run.cut.list[number], rank->share_number);
    return true;
  }
  if (placement->master) {
    /* The ranks of rank 0's process can reach its memory. */
    if (model->run.ranks[0].number > 0 || (rank->place > 0 && !helps)) return false;
    index = rank->place;
    pieces = helps ? model->run.count : 1;
  } else if (norm) {
    index = rank->share_number;
    pieces = model->run.cut.ranks;
  }
  span->first = ek__part_begin(end, index, pieces);
  span->count = ek__part_begin(end, index + 1, pieces) - span->first;
  return number == 0;
}

/* What a rank has of a parameter: it goes on in the last range, number `first` or a later one, if
 * an update handles both alike. */
static ek_status append(struct ek__ranges *ranges, size_t first, struct ek__span own, size_t group,
                        size_t whole) {
  struct ek__range *last = ranges->count == first ? NULL : &ranges->list[ranges->count - 1];
  if (own.count == 0) return EK_OK;
  if (last != NULL && last->group == group && last->whole == whole) {
    last->span.count += own.count;
    return EK_OK;
  }
  EK_TRY(ek__grow(&ranges->list, &ranges->capacity, ranges->count + 1, sizeof *ranges->list,
                  memory_of));
  ranges->list[ranges->count++] = (struct ek__range){own, group, whole, {0}};
  return EK_OK;
}

/* The buckets have the trained parameters from the last to the first. */
static ek_status make_ranges(struct ek__ranges *ranges, const ek_data_parallel_model *model,
                             const struct ek__rank *rank) {
  const struct ek__layout *layout = &rank->replica->layout;
  const struct ek__buckets *cut = &model->run.cut;
  size_t end = layout->order_trained;
  struct ek__span span;
  for (size_t i = 0; ek__update_span(&span, model, rank, i, false); i++) {
    const size_t first = ranges->count;
    const size_t begin = cuts_buckets(model) ? end - cut->list[i].parameters : 0;
    for (size_t j = begin; j < end; j++) {
      const struct ek__parameter *p = &layout->parameters[layout->order[j]];
      const struct ek__span own = ek__span_within(span, p->offset, ek__trained_end(layout, j));
      const bool whole = ek__buckets_whole(cut, layout->order[j]);
      EK_TRY(append(ranges, first, own, p->group, whole ? layout->order[j] : EK__NO_PARAMETER));
    }
    end = begin;
  }
  return EK_OK;
}

bool ek__rule_keeps(const ek_optimizer *rule, size_t state, bool whole) {
  const ek_optimizer_ops *ops = ek_optimizer_table(rule);
  return EK__TABLE_SLOT(ops, keeps) == NULL || ops->keeps(rule, state, whole);
}

/* Where the states of a range begin among those of its owner, which now has as many more. */
static void place_states(struct ek__range *range, struct ek__share *owner,
                         const ek_optimizer *rule) {
  for (size_t s = 0; s < ek_optimizer_states(rule); s++) {
    const bool keeps = ek__rule_keeps(rule, s, range->whole != EK__NO_PARAMETER);
    range->states[s] = keeps ? owner->owned[s] : -1;
    if (keeps) owner->owned[s] += range->span.count;
  }
}

static ek_status cut(ek_data_parallel_model *model, const ek_optimizer *rule) {
  EK__EACH_RANK(rank, &model->run) {
    struct ek__share *share = &rank->share;
    share->owner = ek__placement(model)->master ? &model->run.ranks[0] : rank;
    EK_TRY(make_ranges(&share->updates, model, rank));
    for (size_t i = 0; i < share->updates.count; i++) {
      place_states(&share->updates.list[i], &share->owner->share, rule);
    }
  }
  return EK_OK;
}

/* ---- opening ---- */

/* As much as the rule wants for any parameter that the rank updates. */
static ek_status open_workspace(struct ek__rank *rank, const ek_optimizer *rule, ek_type type) {
  struct ek__share *share = &rank->share;
  const ek_optimizer_ops *ops = ek_optimizer_table(rule);
  int64_t most = 0;
  for (size_t i = 0; i < share->updates.count; i++) {
    const struct ek__range *range = &share->updates.list[i];
    if (range->whole == EK__NO_PARAMETER || EK__TABLE_SLOT(ops, workspace) == NULL) continue;
    const ek_optimizer_parameter whole = ek__rule_parameter(rank->replica, range->whole);
    const int64_t wanted = ops->workspace(rule, &whole);
    EK__FAIL_IF(wanted < 0, EK_ERR_INVALID_ARGUMENT, "%s: a workspace of %lld elements for %s",
                ek_optimizer_kind(rule), (long long)wanted, whole.name);
    if (wanted > most) most = wanted;
  }
  if (most == 0) return EK_OK;
  return ek_tensor_create(&share->workspace, rank->device, EK_MEMORY_WORKSPACE, type, 1, &most);
}

struct opening {
  ek_data_parallel_model *model;
  struct ek__update *update;
};

static ek_status open_one(void *context, struct ek__rank *rank) {
  const struct opening *opening = context;
  const ek_data_parallel_model *model = opening->model;
  ek_device *device = rank->device;
  struct ek__share *share = &rank->share;
  const int64_t one = 1;
  EK_TRY(ek_tensor_create(&share->square_norm, device, EK_MEMORY_OPTIMIZER, EK_F64, 1, &one));
  if (model->run.reduction->norm_leaves != NULL) {
    const int64_t leaves = model->run.reduction->norm_leaves(model);
    EK_TRY(ek_tensor_create(&share->leaves, device, EK_MEMORY_OPTIMIZER, EK_F64, 1, &leaves));
  }
  for (size_t i = 0; i < opening->update->state_count && share->owner == rank; i++) {
    EK_TRY(ek_tensor_create(&share->states[i], device, EK_MEMORY_OPTIMIZER, model->options.type, 1,
                            &share->owned[i]));
    EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &share->states[i]));
  }
  return open_workspace(rank, opening->update->optimizer, model->options.type);
}

/* Host memory, by the parameters of the replicas. */
static ek_status make_tables(const ek_data_parallel_model *model, struct ek__update *update) {
  const ek_replica *replica = model->run.ranks[0].replica;
  const size_t count = ek_replica_parameter_count(replica);
  EK_TRY(ek__new(&update->kept, count, update->state_count * sizeof *update->kept, memory_of));
  EK_TRY(
      ek__new(&update->written, count, update->state_count * sizeof *update->written, memory_of));
  for (size_t s = 0; s < update->state_count; s++) {
    for (size_t i = 0; i < count; i++) {
      const struct ek__parameter *p = &replica->layout.parameters[i];
      const bool whole = ek__buckets_whole(&model->run.cut, i);
      if (p->buffer || p->frozen || !ek__rule_keeps(update->optimizer, s, whole)) continue;
      update->kept[update->kept_count++] = (struct ek__kept){s, i};
    }
  }
  return EK_OK;
}

ek_status ek__shares_open(ek_data_parallel_model *model, struct ek__update *update) {
  struct opening opening = {model, update};
  EK_TRY(make_tables(model, update));
  EK_TRY(cut(model, update->optimizer));
  return ek__ranks_apply(&model->run, open_one, &opening);
}

static void free_share(struct ek__share *share) {
  ek__free(share->updates.list);
  for (size_t i = 0; i < EK_MAX_OPTIMIZER_STATES; i++) ek_tensor_free(&share->states[i]);
  ek_tensor_free(&share->square_norm);
  ek_tensor_free(&share->leaves);
  ek_tensor_free(&share->workspace);
  *share = (struct ek__share){0};
}

void ek__shares_close(ek_data_parallel_model *model, struct ek__update *update) {
  EK__EACH_RANK(rank, &model->run) free_share(&rank->share);
  ek__free(update->written);
  ek__free(update->kept);
}
