/*
 * units.c - parameters of which every device holds a share, gathered for the nodes that need them.
 *
 * A unit is a bucket (buckets.h). When a node is entered, its unit is gathered unless it is there
 * already, and pinned until the node is left. At most two more units stay: the one that was entered
 * last, because its other modules or its backward come next; and the one that is expected next,
 * whose gather runs while the current unit computes. Forward expects units in the order of a walk
 * through the model, backward in the reverse order. A recomputation expects nothing, and does not
 * change what backward expects.
 *
 * A gather copies the device's share into its place and is an all-gather in place: peers read the
 * share there. So the memory of a unit is freed only after its gather has ended on all devices;
 * the compute stream waits for that before it uses the unit.
 *
 * Backward completes a unit's gradients and enters the next node at once, which gathers the unit
 * after the next one. The sum of these gradients waits for that on the host, so that a link takes
 * both in one call.
 *
 * Which units are gathered, and when, depends only on the order of nodes, which is the same on all
 * devices.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/communicator_internal.h"
#include "parallel_internal.h"

/* ---- units ---- */

/* The bucket of a layout's unit. */
static size_t bucket_of(const struct ek__buckets *cut, size_t unit) {
  return (unit < cut->trained ? cut->trained : cut->trained + cut->count) - 1 - unit;
}

static ek_status gather(struct ek__rank *rank, size_t unit) {
  struct ek__keeper *keeper = &rank->keeper;
  const struct ek__bucket *bucket = &rank->sums->cut->list[unit];
  struct ek__gathered *values = &keeper->values[unit];
  ek_communicator *communicator = keeper->gathers;
  const int64_t count = bucket->last - bucket->first;
  const int64_t share = ek__bucket_share(bucket, rank->share_number);
  const ek_tensor *shares = ek__replica_values(rank->replica);
  const ek_tensor from = ek__flat_range(shares, bucket->places[rank->share_number], share);
  EK_TRY(ek_tensor_create(&values->whole, rank->device,
                          ek__replica_is_mixed(rank->replica) ? EK_MEMORY_COPIES
                                                              : EK_MEMORY_PARAMETERS,
                          shares->type, 1, &count));
  ek_tensor to = ek__flat_range(&values->whole, bucket->offsets[rank->share_number], share);
  EK_TRY(ek_op_copy(ek__rank_stream(rank), &to, &from));
  EK_TRY(ek__keeper_release(rank, rank->sums->communicator == communicator));
  EK_TRY(ek__communicator_start(
      communicator, rank->device, &values->whole,
      &(struct ek__collective){.kind = EK__ALL_GATHER,
                               .offsets = bucket->offsets,
                               .about = ek__keeper_about(keeper, unit)}));
  values->gather = ek__communicator_started(communicator, rank->device);
  return EK_OK;
}

static ek_status wait_for(struct ek__rank *rank, size_t unit) {
  struct ek__keeper *keeper = &rank->keeper;
  struct ek__gathered *values = &keeper->values[unit];
  if (values->gather == 0) return EK_OK;
  EK_TRY(ek__communicator_wait_for(keeper->gathers, rank->device, values->gather));
  values->gather = 0;
  return EK_OK;
}

/* Makes the unit the current one; the one before is freed, unless a node needs it. */
static ek_status make_current(struct ek__rank *rank, size_t unit) {
  struct ek__keeper *keeper = &rank->keeper;
  const size_t before = keeper->current;
  if (before != EK__NO_BUCKET && before != unit && keeper->values[before].pins == 0) {
    ek_tensor_free(&keeper->values[before].whole);
  }
  keeper->current = unit;
  if (keeper->ahead == unit) keeper->ahead = EK__NO_BUCKET;
  if (!ek_tensor_exists(&keeper->values[unit].whole)) EK_TRY(gather(rank, unit));
  return wait_for(rank, unit);
}

/* Begins to gather the unit that is expected next, unless it is resident. */
static ek_status look_ahead(struct ek__rank *rank, size_t unit) {
  struct ek__keeper *keeper = &rank->keeper;
  const size_t before = keeper->ahead;
  if (ek_tensor_exists(&keeper->values[unit].whole)) return EK_OK;
  if (before != EK__NO_BUCKET) {
    EK_TRY(wait_for(rank, before)); /* it was not needed */
    ek_tensor_free(&keeper->values[before].whole);
  }
  keeper->ahead = unit;
  return gather(rank, unit);
}

static ek_status expect(struct ek__rank *rank, const struct ek__node *node, enum ek__way way) {
  const struct ek__layout *layout = &rank->replica->layout;
  size_t stop = node->stop;
  if (way == EK__WAY_AGAIN || stop == EK__NO_UNIT) return EK_OK;
  if (way == EK__WAY_BACKWARD ? stop-- == 0 : ++stop == layout->stop_count) return EK_OK;
  return look_ahead(rank, bucket_of(rank->sums->cut, layout->stops[stop]));
}

/* ---- requests of a pass ---- */

static void unpin(struct ek__rank *rank, size_t unit) {
  struct ek__keeper *keeper = &rank->keeper;
  struct ek__gathered *values = &keeper->values[unit];
  if (--values->pins == 0 && unit != keeper->current) ek_tensor_free(&values->whole);
}

/* The units of a node are the one that it has marked and those of its own parameters; some may be
 * the same. Returns number `i` of them: none without a mark, and for a buffer. */
static size_t unit_of(const struct ek__rank *rank, const struct ek__node *node, size_t i) {
  const struct ek__buckets *cut = rank->sums->cut;
  if (i > 0) return cut->of[node->parameters[i - 1]];
  return node->unit == EK__NO_UNIT ? EK__NO_BUCKET : bucket_of(cut, node->unit);
}

static void leave_some(struct ek__rank *rank, const struct ek__node *node, size_t count) {
  for (size_t i = count; i-- > 0;) {
    const size_t unit = unit_of(rank, node, i);
    if (unit != EK__NO_BUCKET) unpin(rank, unit);
  }
}

static void leave(struct ek__lender *lender, const struct ek__node *node) {
  struct ek__rank *rank = (struct ek__rank *)lender;
  ek__keeper_note(&rank->keeper, EK__TRAIL_LEFT, node->number);
  leave_some(rank, node, node->parameter_count + 1);
}

/* Whether a unit is resident; true for no unit. */
static bool is_there(const struct ek__rank *rank, size_t unit) {
  return unit == EK__NO_BUCKET || ek_tensor_exists(&rank->keeper.values[unit].whole);
}

static ek_status enter(struct ek__lender *lender, const struct ek__node *node, enum ek__way way) {
  struct ek__rank *rank = (struct ek__rank *)lender;
  struct ek__keeper *keeper = &rank->keeper;
  bool new = false;
  EK__FAIL_IF(!is_there(rank, keeper->current) || !is_there(rank, keeper->ahead), EK_ERR_INTERNAL,
              "unit %zu or %zu does not exist", keeper->current, keeper->ahead);
  ek__keeper_note(keeper, way, node->number);
  for (size_t i = 0; i <= node->parameter_count; i++) {
    const size_t unit = unit_of(rank, node, i);
    if (unit == EK__NO_BUCKET) continue;
    if (keeper->values[unit].pins == 0) {
      const ek_status status = make_current(rank, unit);
      if (status != EK_OK) leave_some(rank, node, i);
      EK_TRY(status);
      new = true;
    }
    keeper->values[unit].pins++;
  }
  ek_status status = new ? expect(rank, node, way) : EK_OK;
  if (status == EK_OK) status = ek__keeper_release(rank, false);
  if (status != EK_OK) leave(lender, node);
  return status;
}

static ek_status lend_value(ek_tensor *value, struct ek__lender *lender, size_t parameter) {
  const struct ek__rank *rank = (const struct ek__rank *)lender;
  const struct ek__keeper *keeper = &rank->keeper;
  const size_t unit = rank->sums->cut->of[parameter];
  const ek_tensor *whole = &keeper->values[unit].whole;
  EK__FAIL_IF(keeper->values[unit].pins == 0, EK_ERR_INTERNAL, "%s was not gathered",
              rank->replica->layout.parameters[parameter].name);
  *value = ek__replica_view(whole, rank->replica, parameter, rank->sums->cut->list[unit].first);
  value->memory = whole->memory;
  return EK_OK;
}

/* Gives back the units that are not needed any more, once their gathers have ended. Other passes
 * may be within nodes (reduction.h): they pin theirs. */
static ek_status rest(struct ek__lender *lender, bool last) {
  struct ek__rank *rank = (struct ek__rank *)lender;
  struct ek__keeper *keeper = &rank->keeper;
  ek__keeper_note(keeper, EK__TRAIL_ENDED, last);
  if (keeper->ahead != EK__NO_BUCKET) {
    EK_TRY(wait_for(rank, keeper->ahead));
    ek_tensor_free(&keeper->values[keeper->ahead].whole);
    keeper->ahead = EK__NO_BUCKET;
  }
  if (last && keeper->current != EK__NO_BUCKET) {
    struct ek__gathered *values = &keeper->values[keeper->current];
    if (values->pins == 0) ek_tensor_free(&values->whole);
    keeper->current = EK__NO_BUCKET;
  }
  return EK_OK;
}

ek_status ek__keeper_lend_values(struct ek__rank *rank) {
  struct ek__keeper *keeper = &rank->keeper;
  keeper->lender.enter = enter;
  keeper->lender.leave = leave;
  keeper->lender.value = lend_value;
  keeper->lender.rest = rest;
  return ek__new(&keeper->values, rank->sums->cut->parameters, sizeof *keeper->values,
                 "a data-parallel model");
}
