/*
 * keeper.c - lends buckets of gradients, and keeps the device's shares of their sums.
 *
 * A bucket is freed when the sum of the next one has been queued. So its own sum has the time of a
 * bucket's backward to end, and at most two buckets exist beside those that backward adds to. All
 * of this is queued: the compute stream waits for the sum, the host does not.
 *
 * A bucket's memory is not cleared, because the first module that adds to a gradient overwrites it.
 * Only the elements between two parameters, which nothing writes, are zeroed: they count in norms.
 */
#include "keeper.h"

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/communicator_internal.h"
#include "module/replica_internal.h"

/* ---- lending ---- */

static ek_stream *stream_of(const struct ek__keeper *keeper) {
  return ek_device_stream(keeper->device, EK_STREAM_COMPUTE);
}

/* Zeros after each parameter of the bucket up to the next one. */
static ek_status clear_gaps(const struct ek__keeper *keeper, size_t number) {
  const struct ek__layout *layout = &keeper->replica->layout;
  const int64_t first = keeper->cut->list[number].first;
  for (size_t i = 0; i < layout->order_trained; i++) {
    const struct ek__parameter *p = &layout->parameters[layout->order[i]];
    const int64_t end = i + 1 < layout->order_trained
                            ? layout->parameters[layout->order[i + 1]].offset
                            : layout->trained_count;
    const int64_t gap = end - (p->offset + p->count);
    if (gap == 0 || keeper->cut->of[layout->order[i]] != number) continue;
    ek_tensor range =
        ek__flat_range(&keeper->gradients[number].whole, p->offset + p->count - first, gap);
    EK_TRY(ek_op_zero(stream_of(keeper), &range));
  }
  return EK_OK;
}

/* Its elements are undefined, or zeros. */
static ek_status take(struct ek__keeper *keeper, size_t number, bool zeros) {
  const struct ek__bucket *bucket = &keeper->cut->list[number];
  const int64_t count = bucket->last - bucket->first;
  struct ek__lent *lent = &keeper->gradients[number];
  EK_TRY(ek_tensor_create(&lent->whole, keeper->device, EK_MEMORY_GRADIENTS,
                          keeper->replica->gradient_type, 1, &count));
  return zeros ? ek_op_zero(stream_of(keeper), &lent->whole) : clear_gaps(keeper, number);
}

static ek_status lend_gradient(ek_tensor *gradient, struct ek__lender *lender, size_t parameter) {
  struct ek__keeper *keeper = (struct ek__keeper *)lender;
  const size_t number = keeper->cut->of[parameter];
  const struct ek__lent *lent = &keeper->gradients[number];
  if (!ek_tensor_exists(&lent->whole)) EK_TRY(take(keeper, number, false));
  *gradient =
      ek__replica_view(&lent->whole, keeper->replica, parameter, keeper->cut->list[number].first);
  return EK_OK;
}

/* ---- opening and closing ---- */

ek_status ek__keeper_create(struct ek__rank *rank, const struct ek__ranks *run, bool values) {
  static const char memory_of[] = "a data-parallel model";
  struct ek__keeper *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  rank->keeper = self;
  self->lender.gradient = lend_gradient;
  self->sums = run->sums;
  self->gathers = run->gathers;
  self->cut = &run->cut;
  self->replica = rank->replica;
  self->rank = rank->part;
  self->current = self->ahead = run->cut.count;
  EK_TRY(ek__new(&self->gradients, run->cut.parameters, sizeof *self->gradients, memory_of));
  if (values) EK_TRY(ek__keeper_lend_values(self, run->cut.parameters));
  self->device = rank->device;
  return EK_OK;
}

void ek__keeper_free(struct ek__keeper *keeper) {
  if (keeper == NULL) return;
  ek__keeper_drop(keeper);
  ek__free(keeper->values);
  ek__free(keeper->gradients);
  ek__free(keeper);
}

ek_status ek__keeper_open(struct ek__keeper *keeper) {
  const struct ek__buckets *cut = keeper->cut;
  return ek__replica_hold_gradients(keeper->replica,
                                    ek__buckets_share(cut, cut->trained, keeper->rank));
}

void ek__keeper_drop(struct ek__keeper *keeper) {
  if (keeper == NULL || keeper->device == NULL) return;
  for (size_t b = 0; b < keeper->cut->count; b++) {
    ek_tensor_free(&keeper->gradients[b].whole);
  }
  keeper->trail = 0;
  if (keeper->values != NULL) ek__keeper_drop_values(keeper);
}

/* ---- sums over the devices ---- */

void ek__keeper_start(struct ek__keeper *keeper, bool more) {
  keeper->settled = 0;
  keeper->more = more;
}

ek_status ek__keeper_reduce(struct ek__rank *rank, size_t bucket) {
  struct ek__keeper *keeper = rank->keeper;
  struct ek__lent *lent = &keeper->gradients[bucket];
  if (!ek_tensor_exists(&lent->whole)) EK_TRY(take(keeper, bucket, true));
  EK_TRY(ek__communicator_reduce_scatter(keeper->sums, keeper->device, &lent->whole,
                                         keeper->cut->list[bucket].offsets,
                                         ek__keeper_about(keeper, bucket)));
  lent->sum = ek__communicator_started(keeper->sums, keeper->device);
  return ek__keeper_settle(rank, bucket);
}

ek_status ek__keeper_settle(struct ek__rank *rank, size_t end) {
  struct ek__keeper *keeper = rank->keeper;
  for (; keeper->settled < end; keeper->settled++) {
    const struct ek__bucket *bucket = &keeper->cut->list[keeper->settled];
    struct ek__lent *lent = &keeper->gradients[keeper->settled];
    const struct ek__part part = ek__bucket_part(bucket, keeper->rank);
    ek_tensor sum = ek__flat_range(&lent->whole, part.first - bucket->first, part.count);
    ek_tensor share = ek__flat_range(ek_replica_gradients(keeper->replica), part.place, part.count);
    EK_TRY(ek__communicator_wait_for(keeper->sums, keeper->device, lent->sum));
    EK_TRY(keeper->more ? ek_op_add(stream_of(keeper), &share, &share, &sum)
                        : ek_op_copy(stream_of(keeper), &share, &sum));
    ek_tensor_free(&lent->whole);
  }
  return EK_OK;
}
