/*
 * norm.c - the square of the norm of the whole gradient, on every rank: slots of struct
 * ek__reduction. If each rank adds up its own spans, the order of the sum depends on the number of
 * ranks. A reproducible model has a number for each piece of each bucket instead; there are as many
 * pieces as grains, on any number of ranks.
 */
#include <evenkeel/elementwise.h>

#include "optimizer_internal.h"
#include "reduction.h"

/* ---- each rank its spans ---- */

ek_status ek__norm_of_spans(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__share *share = &rank->share;
  const ek_tensor *gradients = ek_replica_gradients(share->owner->replica);
  ek_stream *stream = ek__rank_stream(rank);
  ek_tensor sum = share->square_norm;
  struct ek__span own;
  const bool shares = ek__placement(model)->gradient_shares;
  EK_TRY(ek_op_zero(stream, &sum));
  for (size_t i = 0; ek__update_span(&own, model, rank, i, true); i++) {
    if (own.count == 0) continue;
    const ek_tensor values = ek__span_range(gradients, own, shares);
    EK_TRY(ek_op_square_norm(stream, &sum, &values, 1.0));
  }
  if (model->run.norms_ride) return EK_OK; /* agreement.c adds them up */
  EK_TRY(ek_communicator_all_reduce(model->run.gathers, rank->device, &sum));
  return ek_communicator_wait(model->run.gathers, rank->device);
}

/* ---- each piece by itself ---- */

int64_t ek__norm_pieces(const ek_data_parallel_model *model) {
  const struct ek__buckets *cut = &model->run.cut;
  if (cut->trained == 0) return 0;
  const struct ek__bucket *last = &cut->list[cut->trained - 1];
  return (int64_t)(last->piece + last->pieces);
}

/* The leaves of all ranks, halved until one is left: in an order that their number gives. A leaf is
 * a number of one rank, and 0 on all others, so their sum is exact. */
static ek_status sum_leaves(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__share *share = &rank->share;
  ek_stream *stream = ek__rank_stream(rank);
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
                               const struct ek__bucket *bucket, struct ek__span own) {
  const ek_tensor *gradients = ek_replica_gradients(rank->share.owner->replica);
  const bool shares = ek__placement(model)->gradient_shares;
  int64_t begin = bucket->first;
  for (size_t i = bucket->piece; i < bucket->piece + bucket->pieces; i++) {
    const int64_t end = bucket->first + model->run.cut.pieces[i];
    const struct ek__span piece = ek__span_within(own, begin, end);
    begin = end;
    if (piece.count == 0) continue;
    const ek_tensor values = ek__span_range(gradients, piece, shares);
    ek_tensor square = ek__flat_range(&rank->share.leaves, (int64_t)i, 1);
    EK_TRY(ek_op_square_norm(ek__rank_stream(rank), &square, &values, 0.0));
  }
  return EK_OK;
}

/* Rank 0 alone if only its memory has the sums and the others cannot reach it. */
ek_status ek__norm_of_pieces(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__buckets *cut = &model->run.cut;
  const bool alone = ek__placement(model)->master && !ek__update_helps(model);
  ek_tensor leaves = rank->share.leaves;
  EK_TRY(ek_op_zero(ek__rank_stream(rank), &leaves));
  for (size_t b = 0; b < cut->trained; b++) {
    const struct ek__bucket *bucket = &cut->list[b];
    const struct ek__span own = alone ? ek__bucket_owned(bucket, EK_REDUCE_TO_FIRST, rank->number)
                                      : ek__bucket_span(bucket, rank->number);
    EK_TRY(square_pieces(model, rank, bucket, own));
  }
  return sum_leaves(model, rank);
}
