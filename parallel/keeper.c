/*
 * keeper.c - lends buckets of gradients, and keeps the device's shares of their sums.
 *
 * A bucket is freed when the sum of the next one has been queued, and two that are queued together
 * when that of the bucket after them has. So its own sum has the time of a bucket's backward to
 * end, and at most two buckets exist beside those that backward adds to. All of this is queued: the
 * compute stream waits for the sum, the host does not.
 *
 * A bucket's memory is not cleared, because the first module that adds to a gradient overwrites it.
 * Only the elements between two parameters, which nothing writes, are zeroed: they count in norms.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "device/communicator_internal.h"
#include "parallel_internal.h"

/* ---- lending ---- */

/* Zeros after each parameter of the bucket up to the next one. */
static ek_status clear_gaps(const struct ek__rank *rank, size_t number) {
  const struct ek__layout *layout = &rank->replica->layout;
  const struct ek__buckets *cut = rank->sums->cut;
  for (size_t i = 0; i < layout->order_trained; i++) {
    const struct ek__parameter *p = &layout->parameters[layout->order[i]];
    const int64_t end = ek__trained_end(layout, i), last = p->offset + p->count;
    if (end == last || cut->of[layout->order[i]] != number) continue;
    ek_tensor gap =
        ek__flat_range(&rank->sums->lent[number].whole, last - cut->list[number].first, end - last);
    EK_TRY(ek_op_zero(ek__rank_stream(rank), &gap));
  }
  return EK_OK;
}

/* Its elements are undefined, or zeros. */
static ek_status take(const struct ek__rank *rank, size_t number, bool zeros) {
  const struct ek__bucket *bucket = &rank->sums->cut->list[number];
  const int64_t count = bucket->last - bucket->first;
  ek_tensor *whole = &rank->sums->lent[number].whole;
  EK_TRY(ek_tensor_create(whole, rank->device, EK_MEMORY_GRADIENTS, rank->replica->gradient_type, 1,
                          &count));
  return zeros ? ek_op_zero(ek__rank_stream(rank), whole) : clear_gaps(rank, number);
}

static ek_status lend_gradient(ek_tensor *gradient, struct ek__lender *lender, size_t parameter) {
  const struct ek__rank *rank = (const struct ek__rank *)lender;
  const struct ek__buckets *cut = rank->sums->cut;
  const size_t number = cut->of[parameter];
  const ek_tensor *whole = &rank->sums->lent[number].whole;
  if (!ek_tensor_exists(whole)) EK_TRY(take(rank, number, false));
  *gradient = ek__replica_view(whole, rank->replica, parameter, cut->list[number].first);
  return EK_OK;
}

/* ---- opening and closing ---- */

void ek__keeper_open(struct ek__rank *rank, ek_communicator *gathers) {
  struct ek__keeper *keeper = &rank->keeper;
  keeper->lender.gradient = lend_gradient;
  keeper->gathers = gathers;
  keeper->current = keeper->ahead = keeper->held = EK__NO_BUCKET;
}

void ek__keeper_close(struct ek__rank *rank) {
  ek__keeper_drop(rank);
  ek__free(rank->keeper.values);
}

void ek__keeper_drop(struct ek__rank *rank) {
  struct ek__keeper *keeper = &rank->keeper;
  if (keeper->lender.gradient == NULL) return;
  for (size_t i = 0; i < rank->round_count; i++) {
    const struct ek__sums *sums = &rank->rounds[i];
    for (size_t b = 0; sums->lent != NULL && b < sums->cut->count; b++) {
      ek_tensor_free(&sums->lent[b].whole);
    }
  }
  for (size_t u = 0; keeper->values != NULL && u < rank->sums->cut->count; u++) {
    ek_tensor_free(&keeper->values[u].whole);
    keeper->values[u] = (struct ek__gathered){0};
  }
  keeper->trail = 0;
  keeper->current = keeper->ahead = keeper->held = EK__NO_BUCKET;
}

/* ---- sums over the devices ---- */

static ek_status begin(struct ek__rank *rank, size_t bucket, bool more) {
  const struct ek__sums *sums = rank->sums;
  struct ek__lent *lent = &sums->lent[bucket];
  EK_TRY(ek__communicator_start(
      sums->communicator, rank->device, &lent->whole,
      &(struct ek__collective){.kind = EK__REDUCE_SCATTER,
                               .offsets = sums->cut->list[bucket].offsets,
                               .about = ek__keeper_about(&rank->keeper, bucket),
                               .more = more}));
  lent->sum = ek__communicator_started(sums->communicator, rank->device);
  return EK_OK;
}

ek_status ek__keeper_release(struct ek__rank *rank, bool more) {
  const size_t held = rank->keeper.held;
  rank->keeper.held = EK__NO_BUCKET;
  return held == EK__NO_BUCKET ? EK_OK : begin(rank, held, more);
}

ek_status ek__keeper_reduce(struct ek__rank *rank, size_t bucket) {
  const struct ek__sums *sums = rank->sums;
  struct ek__keeper *keeper = &rank->keeper;
  const bool holds = keeper->values != NULL && bucket + 1 < sums->cut->trained;
  if (!ek_tensor_exists(&sums->lent[bucket].whole)) EK_TRY(take(rank, bucket, true));
  EK_TRY(ek__keeper_release(rank, false));
  if (holds) keeper->held = bucket;
  if (!holds) EK_TRY(begin(rank, bucket, sums->cut->list[bucket].joined));
  if (sums->cut->list[bucket].joined) return EK_OK; /* nothing waits between it and the next */
  return ek__keeper_settle(rank,
                           bucket > 0 && sums->cut->list[bucket - 1].joined ? bucket - 1 : bucket);
}

ek_status ek__keeper_settle(struct ek__rank *rank, size_t end) {
  struct ek__sums *sums = rank->sums;
  for (; sums->settled < end; sums->settled++) {
    const struct ek__bucket *bucket = &sums->cut->list[sums->settled];
    struct ek__lent *lent = &sums->lent[sums->settled];
    const struct ek__span own = ek__bucket_span(bucket, rank->share_number);
    ek_tensor sum = ek__flat_range(&lent->whole, own.first - bucket->first, own.count);
    ek_tensor share = ek__span_range(ek_replica_gradients(rank->replica), own, true);
    EK_TRY(ek__communicator_wait_for(sums->communicator, rank->device, lent->sum));
    EK_TRY(sums->more ? ek_op_add(ek__rank_stream(rank), &share, &share, &sum)
                      : ek_op_copy(ek__rank_stream(rank), &share, &sum));
    ek_tensor_free(&lent->whole);
  }
  return EK_OK;
}
