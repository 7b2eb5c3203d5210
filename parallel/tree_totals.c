/*
 * tree_totals.c - the few numbers that a reproducible model adds along the tree (tree.h), and the
 * row of its reduction.
 *
 * The totals of a loss have a leaf for each grain. The leaves of all ranks are gathered, and every
 * rank adds them up along the tree by itself; so it is with the squares of a norm, whose leaves are
 * parts of buckets.
 */
#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "optimizer_internal.h"
#include "tree.h"

/* ---- totals of a loss ---- */

/* The leaves of all ranks to all ranks. */
static ek_status gather_leaves(const ek_data_parallel_model *model, const struct ek__rank *rank,
                               struct ek__totals *totals, const int64_t *samples, size_t used) {
  const int64_t size = ek_tensor_count(&totals->sum);
  totals->offsets[0] = 0;
  for (size_t k = 0; k < model->run.count; k++) {
    size_t first = 0, last = 0;
    ek__grains_here(&first, &last, model, samples, k);
    totals->offsets[k + 1] = (int64_t)last * size;
  }
  totals->offsets[model->run.count] = (int64_t)used * size;
  ek_tensor leaves = ek__flat_range(&totals->leaves, 0, (int64_t)used * size);
  EK_TRY(
      ek_communicator_all_gather(model->run.communicator, rank->device, &leaves, totals->offsets));
  return ek_communicator_wait(model->run.communicator, rank->device);
}

static ek_status sum_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                            struct ek__totals *totals, const int64_t *samples) {
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  const size_t used = ek__grains_used(model, samples[model->run.count]);
  const int64_t size = ek_tensor_count(&totals->sum);
  struct ek__row rows[EK__MAX_GRAINS];
  if (used == 0) return ek_op_zero(stream, &totals->sum);
  if (model->run.cut.ranks > 1) EK_TRY(gather_leaves(model, rank, totals, samples, used));
  for (size_t i = 0; i < used; i++) {
    rows[i] = (struct ek__row){{0, i}, &totals->leaves, (int64_t)i * size};
  }
  EK_TRY(ek__fold_rows(stream, rows, used, size, used));
  const ek_tensor sum = ek__totals_leaf(totals, 0);
  return ek_op_copy(stream, &totals->sum, &sum);
}

static size_t leaves_of(const ek_data_parallel_model *model) {
  return ek__grains_most(model) * model->run.cut.ranks;
}

/* ---- norms ---- */

/* Parts of buckets whose squares are summed by themselves: part 0 of all buckets, then part 1, ..
 * So their sums are the same for any number of ranks. */
static ek_status norm_ranges(struct ek__share *share, const ek_data_parallel_model *model,
                             const struct ek__rank *rank) {
  const struct ek__buckets *cut = &model->run.cut;
  const size_t grains = ek__grains_of_model(model), buckets = cut->trained;
  const bool alone = ek__placement(model)->master && !ek__update_helps(model);
  const size_t workers = alone ? 1 : cut->ranks;
  if (rank->number >= workers) {
    share->first_leaf = (int64_t)(grains * buckets);
    return EK_OK;
  }
  const size_t first = (size_t)ek__even_begin((int64_t)grains, rank->number, workers);
  const size_t last = (size_t)ek__even_begin((int64_t)grains, rank->number + 1, workers);
  EK_TRY(ek__new(&share->norms.list, (last - first) * buckets, sizeof *share->norms.list,
                 "the ranges of an optimizer"));
  share->first_leaf = (int64_t)(first * buckets);
  share->norms.count = (last - first) * buckets;
  for (size_t i = 0; i < buckets; i++) {
    const struct ek__bucket *b = &cut->list[i];
    for (size_t part = first; part < last; part++) {
      struct ek__range *leaf = &share->norms.list[(part - first) * buckets + i];
      leaf->first = b->first + ek__part_begin(b->last - b->first, part, grains);
      leaf->last = b->first + ek__part_begin(b->last - b->first, part + 1, grains);
      leaf->place = b->places[rank->number] + leaf->first - b->first - b->offsets[rank->number];
    }
  }
  return EK_OK;
}

/* The leaves of all ranks, halved until one is left: in an order that their number gives. */
static ek_status sum_leaves(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__share *share = &rank->share;
  ek_communicator *communicator = model->run.communicator;
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  ek_tensor leaves = share->leaves, norm = share->square_norm;
  int64_t count = ek_tensor_count(&leaves);
  for (size_t k = 0; k < model->run.count; k++) {
    share->offsets[k] = model->run.ranks[k].share.first_leaf;
  }
  share->offsets[model->run.count] = count;
  if (count == 0) return ek_op_zero(stream, &norm);
  EK_TRY(ek_communicator_all_gather(communicator, rank->device, &leaves, share->offsets));
  EK_TRY(ek_communicator_wait(communicator, rank->device));
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

static ek_status norm(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__share *share = &rank->share;
  const ek_tensor *gradients = ek_replica_gradients(share->owner->replica);
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  const bool shares = ek__placement(model)->gradient_shares;
  for (size_t i = 0; i < share->norms.count; i++) {
    const struct ek__range *leaf = &share->norms.list[i];
    const ek_tensor part =
        ek__flat_range(gradients, shares ? leaf->place : leaf->first, leaf->last - leaf->first);
    ek_tensor square = ek__flat_range(&share->leaves, share->first_leaf + (int64_t)i, 1);
    EK_TRY(ek_op_square_norm(stream, &square, &part, 0.0));
  }
  return sum_leaves(model, rank);
}

static int64_t norm_leaves(const ek_data_parallel_model *model) {
  return (int64_t)(ek__grains_of_model(model) * model->run.cut.trained);
}

const struct ek__reduction ek__reduction_tree = {.grains = ek__grains_of_model,
                                                 .check_cut = ek__grains_check_cut,
                                                 .most = ek__grains_most,
                                                 .leaves = leaves_of,
                                                 .pieces = ek__grains_pieces,
                                                 .piece = ek__grains_piece,
                                                 .open = ek__tree_open,
                                                 .close = ek__tree_close,
                                                 .backward = ek__tree_backward,
                                                 .rest = ek__tree_rest,
                                                 .totals = sum_totals,
                                                 .norm_ranges = norm_ranges,
                                                 .norm_leaves = norm_leaves,
                                                 .norm = norm};
