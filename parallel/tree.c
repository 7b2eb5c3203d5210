/*
 * tree.c - the cut of a batch into grains, the tree of sums, and all sums but those of gradients:
 * totals of a loss and what modules add up, with a leaf for each grain, and the squares of a norm,
 * with a leaf for each piece of a bucket. Every rank gets the leaves of all ranks and adds them all
 * up.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent exist. So a rank holds at most two
 * blocks of each size, and the sums are those of the tree for any run of grains.
 */
#include "tree.h"

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/sizes.h"
#include "optimizer_internal.h"

/* ---- the cut ---- */

size_t ek__grains_of_model(const ek_data_parallel_model *model) {
  return model->options.reproducible;
}

size_t ek__grains_used(const ek_data_parallel_model *model, int64_t samples) {
  const size_t grains = ek__grains_of_model(model);
  return samples < (int64_t)grains ? (size_t)samples : grains;
}

struct ek__grains ek__grains_of(const ek_data_parallel_model *model, size_t rank, size_t used) {
  const int64_t grains = (int64_t)ek__grains_of_model(model);
  size_t first = (size_t)ek__even_begin(grains, rank, model->run.cut.ranks);
  size_t last = (size_t)ek__even_begin(grains, rank + 1, model->run.cut.ranks);
  if (last > used) last = used;
  if (first > last) first = last;
  return (struct ek__grains){first, last};
}

size_t ek__grains_most(const ek_data_parallel_model *model) {
  return (ek__grains_of_model(model) + model->run.cut.ranks - 1) / model->run.cut.ranks;
}

size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used) {
  const size_t most = ek__grains_most(model); /* rank 0 has as many */
  return used < most ? used : most;
}

/* The first sample of grain `number` of a batch. */
static int64_t begin_of(const ek_data_parallel_model *model, size_t number, int64_t samples) {
  return ek__even_begin(samples, number, ek__grains_of_model(model));
}

static bool is_alone(const ek_data_parallel_model *model) {
  return model->run.cut.ranks == model->run.count;
}

static int64_t samples_of_all(const ek_data_parallel_model *model, const int64_t *samples) {
  return samples[model->run.count] + model->last.all - model->last.samples;
}

ek_status ek__grains_sizes(int64_t *sizes, const ek_data_parallel_model *model, int64_t samples,
                           int64_t before, int64_t all) {
  const size_t grains = ek__grains_of_model(model), ranks = model->run.cut.ranks;
  const size_t rank = model->run.ranks[0].number;
  const int64_t begins = ek__grains_begin(all, grains, rank, ranks);
  int64_t end = begins;
  for (size_t k = 0; k < model->run.count; k++) {
    const int64_t begin = end;
    end = ek__grains_begin(all, grains, rank + k + 1, ranks);
    sizes[k] = end - begin;
  }
  const int64_t count = end - begins;
  if (count == samples && (count == 0 || begins == before)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "forward: this process has %lld samples from number %lld on, of %lld; of the "
                      "%zu grains of a reproducible model it computes %lld samples from number "
                      "%lld on (ek_world_rows)",
                      (long long)samples, (long long)before, (long long)all,
                      ek__grains_of_model(model), (long long)count, (long long)begins);
}

/* A forward needs each rank's own grains. A loss may be computed on other devices than its outputs
 * were, with any grains that this process has. */
ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards, int64_t before, int64_t all, bool forward) {
  const int64_t *samples = shards->samples, own = samples[shards->count];
  int64_t *sizes = model->run.sizes;
  size_t grain = 0;
  const bool any = !forward && is_alone(model);
  if (!any) EK_TRY(ek__grains_sizes(sizes, model, own, before, all));
  for (size_t k = 0; k < shards->count && !any; k++) {
    EK__FAIL_IF(samples[k + 1] - samples[k] != sizes[k], EK_ERR_SHAPE,
                "%s: device number %zu has %lld samples; its grains of a reproducible model have "
                "%lld (EK_SCATTER_GRAINS)",
                who, k, (long long)(samples[k + 1] - samples[k]), (long long)sizes[k]);
  }
  for (size_t k = 0; k <= shards->count && any; k++) {
    while (grain < ek__grains_used(model, own) && begin_of(model, grain, own) < samples[k]) grain++;
    EK__FAIL_IF(samples[k] != own && begin_of(model, grain, own) != samples[k], EK_ERR_SHAPE,
                "%s: device number %zu begins with sample %lld of %lld, in the middle of one of "
                "the %zu grains of a reproducible model (EK_SCATTER_GRAINS)",
                who, k, (long long)samples[k], (long long)own, ek__grains_of_model(model));
  }
  return EK_OK;
}

/* Grains that begin among the samples of a rank. */
static struct ek__grains grains_here(const ek_data_parallel_model *model, const int64_t *samples,
                                     size_t place) {
  const int64_t all = samples[model->run.count];
  const size_t used = ek__grains_used(model, all);
  struct ek__grains here = {0, 0};
  while (here.first < used && begin_of(model, here.first, all) < samples[place]) here.first++;
  here.last = here.first;
  while (here.last < used && begin_of(model, here.last, all) < samples[place + 1]) here.last++;
  return here;
}

static struct ek__grains grains_of_loss(const ek_data_parallel_model *model, const int64_t *samples,
                                        size_t rank, size_t used) {
  return is_alone(model) ? grains_here(model, samples, rank) : ek__grains_of(model, rank, used);
}

/* If parameters are shares, or modules have collectives, every rank runs in every round of a
 * forward, a rank without a grain with no rows, because it meets the others in collectives. */
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t all = samples_of_all(model, samples), begin = samples[rank->place];
  const size_t used = ek__grains_used(model, all);
  const struct ek__grains own = forward ? ek__grains_of(model, rank->number, used)
                                        : grains_of_loss(model, samples, rank->number, used);
  const bool everywhere =
      forward && (model->run.inner != NULL || ek__placement(model)->parameter_shares);
  *pieces = (struct ek__pieces){.first = own.first,
                                .last = own.last,
                                .rounds = everywhere ? ek__grains_rounds(model, used)
                                                     : own.last - own.first,
                                .begin = begin,
                                .samples = samples[rank->place + 1] - begin,
                                .all = all};
}

struct ek__piece ek__grains_piece(const ek_data_parallel_model *model,
                                  const struct ek__pieces *pieces, size_t round) {
  const size_t number = pieces->first + round;
  if (number >= pieces->last) return (struct ek__piece){SIZE_MAX, pieces->begin, 0, pieces};
  const int64_t first = begin_of(model, number, pieces->all);
  const int64_t last = begin_of(model, number + 1, pieces->all);
  return (struct ek__piece){number, first - model->last.before, last - first, pieces};
}

/* ---- the tree ---- */

static bool has_leaves(const struct ek__fold *fold, size_t level, size_t index) {
  return index << level < fold->leaves;
}

size_t ek__fold_push(struct ek__fold *fold, struct ek__block block) {
  size_t sums = 0;
  while (block.index > 0 || (size_t)1 << block.level < fold->leaves) {
    if (block.index % 2 == 1) {
      if (fold->depth == 0) break;
      const struct ek__block *left = &fold->blocks[fold->depth - 1];
      if (left->level != block.level || left->index + 1 != block.index) break;
      fold->depth--;
      sums++;
    } else if (has_leaves(fold, block.level, block.index + 1)) {
      break;
    }
    block.level++;
    block.index /= 2;
  }
  fold->blocks[fold->depth++] = block;
  return sums;
}

struct ek__fold ek__fold_of(size_t *most, struct ek__grains grains, size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  size_t held = 0;
  for (size_t i = grains.first; i < grains.last; i++) {
    if (fold.depth + 1 > held) held = fold.depth + 1;
    (void)ek__fold_push(&fold, (struct ek__block){0, i});
  }
  if (most != NULL) *most = held;
  return fold;
}

ek_status ek__fold_add(struct ek__fold *fold, struct ek__row *rows, struct ek__row row,
                       int64_t width) {
  ek_stream *stream = ek_device_stream(row.flat->device, EK_STREAM_COMPUTE);
  size_t top = fold->depth, sums = ek__fold_push(fold, row.block);
  rows[top] = row;
  for (; sums > 0; sums--, top--) {
    ek_tensor sum = ek__row_range(&rows[top - 1], width);
    const ek_tensor added = ek__row_range(&rows[top], width);
    EK_TRY(ek_op_add(stream, &sum, &sum, &added));
  }
  rows[top].block = fold->blocks[top];
  return EK_OK;
}

ek_status ek__fold_rows(struct ek__row *rows, size_t count, int64_t width, size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  for (size_t i = 0; i < count; i++) EK_TRY(ek__fold_add(&fold, rows, rows[i], width));
  return EK_OK;
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
    const struct ek__grains grains =
        samples == NULL ? ek__grains_of(model, r, count) : grains_of_loss(model, samples, r, count);
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
  return ek__fold_rows(rows, count, size, count);
}

ek_status ek__tree_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                          struct ek__totals *totals, const int64_t *samples) {
  const size_t used = ek__grains_used(model, samples_of_all(model, samples));
  if (used == 0) return ek_op_zero(ek__rank_stream(rank), &totals->sum);
  ek_tensor leaves =
      ek__flat_range(&totals->leaves, 0, (int64_t)used * ek_tensor_count(&totals->sum));
  EK_TRY(ek__leaves_add(model, rank, model->run.communicator, &leaves, used, samples));
  const ek_tensor sum = ek__totals_leaf(totals, 0);
  return ek_op_copy(ek__rank_stream(rank), &totals->sum, &sum);
}

size_t ek__tree_leaves_before(const ek_data_parallel_model *model, size_t rank) {
  const size_t used = ek__grains_used(model, model->last.all);
  return rank == 0 ? 0 : ek__grains_of(model, rank - 1, used).last;
}

void ek__fold_numbers(double *leaves, size_t count, size_t width) {
  struct ek__fold fold = {.leaves = count};
  size_t rows[EK__FOLD_DEPTH]; /* where the blocks are */
  for (size_t i = 0; i < count; i++) {
    size_t top = fold.depth, sums = ek__fold_push(&fold, (struct ek__block){0, i});
    rows[top] = i * width;
    for (; sums > 0; sums--, top--) {
      double *sum = leaves + rows[top - 1], *added = leaves + rows[top];
      for (size_t j = 0; j < width; j++) sum[j] += added[j];
    }
  }
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
    const ek_tensor values =
        ek__flat_range(gradients, shares ? piece.place : piece.first, piece.count);
    ek_tensor square = ek__flat_range(&rank->share.leaves, (int64_t)i, 1);
    EK_TRY(ek_op_square_norm(ek__rank_stream(rank), &square, &values, 0.0));
  }
  return EK_OK;
}

/* Rank 0 alone if only its memory has the sums and the others cannot reach it. */
ek_status ek__tree_norm(const ek_data_parallel_model *model, struct ek__rank *rank) {
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
