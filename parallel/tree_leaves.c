/*
 * tree_leaves.c - the small sums of a reproducible model: totals of a loss and what modules add up,
 * with a leaf for each grain, and the squares of a norm, with a leaf for each piece of a bucket.
 * Every rank gets the leaves of all ranks and adds them all up.
 */
#include <evenkeel/elementwise.h>

#include "optimizer_internal.h"
#include "tree.h"

static ek_stream *stream_of(const struct ek__rank *rank) {
  return ek_device_stream(rank->device, EK_STREAM_COMPUTE);
}

/* ---- a leaf for each grain ---- */

ek_status ek__leaves_add(const ek_data_parallel_model *model, const struct ek__rank *rank,
                         ek_communicator *communicator, ek_tensor *leaves, size_t count,
                         const int64_t *samples) {
  const size_t ranks = model->run.cut.ranks;
  const int64_t size = ek_tensor_count(leaves) / (int64_t)count;
  int64_t offsets[EK__MAX_GRAINS + 1] = {0};
  struct ek__row rows[EK__MAX_GRAINS];
  for (size_t r = 0; r + 1 < ranks; r++) {
    const struct ek__grains grains = samples == NULL
                                         ? ek__grains_of(model, r, count)
                                         : ek__grains_of_loss(model, samples, r, count);
    offsets[r + 1] = (int64_t)grains.last * size;
  }
  offsets[ranks] = (int64_t)count * size;
  if (ranks > 1) {
    EK_TRY(ek_communicator_all_gather(communicator, rank->device, leaves, offsets));
    EK_TRY(ek_communicator_wait(communicator, rank->device));
  }
  for (size_t i = 0; i < count; i++) {
    rows[i] = (struct ek__row){{0, i}, leaves, (int64_t)i * size};
  }
  return ek__fold_rows(stream_of(rank), rows, count, size, count);
}

ek_status ek__tree_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                          struct ek__totals *totals, const int64_t *samples) {
  const size_t used = ek__grains_used(model, ek__grains_all(model, samples));
  if (used == 0) return ek_op_zero(stream_of(rank), &totals->sum);
  ek_tensor leaves =
      ek__flat_range(&totals->leaves, 0, (int64_t)used * ek_tensor_count(&totals->sum));
  EK_TRY(ek__leaves_add(model, rank, model->run.communicator, &leaves, used, samples));
  const ek_tensor sum = ek__totals_leaf(totals, 0);
  return ek_op_copy(stream_of(rank), &totals->sum, &sum);
}

/* ---- norms ---- */

int64_t ek__tree_norm_leaves(const ek_data_parallel_model *model) {
  const struct ek__buckets *cut = &model->run.cut;
  if (cut->trained == 0) return 0;
  const struct ek__bucket *last = &cut->list[cut->trained - 1];
  return (int64_t)(last->piece + last->pieces);
}

/* The leaves of all ranks, halved until one is left: in an order that their number gives. A leaf is
 * a number of one rank, and 0 on all others, so their sum is exact. */
static ek_status sum_leaves(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__share *share = &rank->share;
  ek_stream *stream = stream_of(rank);
  ek_tensor leaves = share->leaves, norm = share->square_norm;
  int64_t count = ek_tensor_count(&leaves);
  if (count == 0) return ek_op_zero(stream, &norm);
  EK_TRY(ek_communicator_all_reduce(model->run.communicator, rank->device, &leaves));
  EK_TRY(ek_communicator_wait(model->run.communicator, rank->device));
  while (count > 1) {
    const int64_t kept = (count + 1) / 2;
    ek_tensor sums = ek__flat_range(&leaves, 0, count - kept);
    const ek_tensor added = ek__flat_range(&leaves, kept, count - kept);
    EK_TRY(ek_op_add(stream, &sums, &sums, &added));
    count = kept;
  }
  const ek_tensor sum = ek__flat_range(&leaves, 0, 1);
  return ek_op_copy(stream, &norm, &sum);
}

/* The squares of the pieces of a trained bucket that are within `own`: the number of pieces and
 * their squares do not depend on the number of ranks. */
static ek_status square_pieces(const ek_data_parallel_model *model, const struct ek__rank *rank,
                               const struct ek__bucket *bucket, struct ek__part own) {
  const ek_tensor *gradients = ek_replica_gradients(rank->share.owner->replica);
  const bool shares = ek__placement(model)->gradient_shares;
  int64_t begin = bucket->first;
  for (size_t i = bucket->piece; i < bucket->piece + bucket->pieces; i++) {
    const int64_t end = bucket->first + model->run.cut.pieces[i];
    const struct ek__part piece = ek__part_within(own, begin, end);
    begin = end;
    if (piece.count == 0) continue;
    const ek_tensor part =
        ek__flat_range(gradients, shares ? piece.place : piece.first, piece.count);
    ek_tensor square = ek__flat_range(&rank->share.leaves, (int64_t)i, 1);
    EK_TRY(ek_op_square_norm(stream_of(rank), &square, &part, 0.0));
  }
  return EK_OK;
}

/* Rank 0 alone if only its memory has the sums and the others cannot reach it. */
ek_status ek__tree_norm(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__buckets *cut = &model->run.cut;
  const bool alone = ek__placement(model)->master && !ek__update_helps(model);
  ek_tensor leaves = rank->share.leaves;
  EK_TRY(ek_op_zero(stream_of(rank), &leaves));
  for (size_t b = 0; b < cut->trained; b++) {
    const struct ek__bucket *bucket = &cut->list[b];
    const struct ek__part own = alone ? ek__bucket_owned(bucket, EK_REDUCE_TO_FIRST, rank->number)
                                      : ek__bucket_part(bucket, rank->number);
    EK_TRY(square_pieces(model, rank, bucket, own));
  }
  return sum_leaves(model, rank);
}
