/*
 * tree.c - the cut of a batch into grains, the tree of sums, and the few numbers that a
 * reproducible model adds along it: totals of a loss and squares of a norm.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent exist. So a rank holds at most two
 * blocks of each size, and the sums are those of the tree for any run of grains.
 *
 * The totals of a loss have a leaf for each grain. The leaves of all ranks are gathered, and every
 * rank adds them up along the tree by itself; so it is with the squares of a norm, whose leaves are
 * parts of buckets.
 */
#include "tree.h"

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "optimizer_internal.h"

/* ---- the cut ---- */

size_t ek__grains_of_model(const ek_data_parallel_model *model) {
  return model->options.reproducible;
}

size_t ek__grains_used(const ek_data_parallel_model *model, int64_t samples) {
  const size_t grains = ek__grains_of_model(model);
  return samples < (int64_t)grains ? (size_t)samples : grains;
}

void ek__grains_of(size_t *first, size_t *last, const ek_data_parallel_model *model, size_t number,
                   size_t used) {
  const int64_t grains = (int64_t)ek__grains_of_model(model);
  *first = (size_t)ek__even_begin(grains, number, model->run.cut.ranks);
  *last = (size_t)ek__even_begin(grains, number + 1, model->run.cut.ranks);
  if (*last > used) *last = used;
  if (*first > *last) *first = *last;
}

size_t ek__grains_most(const ek_data_parallel_model *model) {
  return (ek__grains_of_model(model) + model->run.cut.ranks - 1) / model->run.cut.ranks;
}

size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used) {
  const size_t most = ek__grains_most(model); /* of rank 0 */
  return used < most ? used : most;
}

/* The first sample of grain `number` of a batch. */
static int64_t begin_of(const ek_data_parallel_model *model, size_t number, int64_t samples) {
  return ek__even_begin(samples, number, ek__grains_of_model(model));
}

static bool is_alone(const ek_data_parallel_model *model) {
  return model->run.cut.ranks == model->run.count;
}

/* Samples of all processes, where the ranks of this one have `samples`. */
static int64_t all_of(const ek_data_parallel_model *model, const int64_t *samples) {
  return samples[model->run.count] + model->last.all - model->last.samples;
}

ek_status ek__grains_sizes(int64_t *sizes, const ek_data_parallel_model *model, int64_t samples,
                           int64_t before, int64_t all) {
  const size_t used = ek__grains_used(model, all);
  int64_t own = 0, begins = 0;
  for (size_t k = 0; k < model->run.count; k++) {
    size_t first = 0, last = 0;
    ek__grains_of(&first, &last, model, model->run.ranks[k].number, used);
    sizes[k] = begin_of(model, last, all) - begin_of(model, first, all);
    if (k == 0) begins = begin_of(model, first, all);
    own += sizes[k];
  }
  if (own == samples && (own == 0 || begins == before)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "forward: this process has %lld samples from number %lld on, of %lld; of the "
                      "%zu grains of a reproducible model it computes %lld samples from number "
                      "%lld on (ek_world_rows)",
                      (long long)samples, (long long)before, (long long)all,
                      ek__grains_of_model(model), (long long)own, (long long)begins);
}

/* Between processes: the parts that sizes() gives. */
static ek_status check_parts(const ek_data_parallel_model *model, const ek_shards *shards,
                             int64_t before, int64_t all) {
  int64_t *sizes = model->run.sizes;
  const int64_t *samples = shards->samples;
  EK_TRY(ek__grains_sizes(sizes, model, samples[shards->count], before, all));
  for (size_t k = 0; k < shards->count; k++) {
    EK__FAIL_IF(samples[k + 1] - samples[k] != sizes[k], EK_ERR_SHAPE,
                "forward: device number %zu has %lld samples; its grains of a reproducible model "
                "have %lld",
                k, (long long)(samples[k + 1] - samples[k]), (long long)sizes[k]);
  }
  return EK_OK;
}

ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards, int64_t before, int64_t all) {
  const int64_t samples = shards->samples[shards->count];
  const size_t used = ek__grains_used(model, samples);
  size_t grain = 0;
  if (!is_alone(model)) return check_parts(model, shards, before, all);
  for (size_t k = 0; k <= shards->count; k++) {
    const int64_t wanted = shards->samples[k];
    while (grain < used && begin_of(model, grain, samples) < wanted) grain++;
    if (wanted == samples || begin_of(model, grain, samples) == wanted) continue;
    return ek_error_set(EK_ERR_SHAPE,
                        "%s: device number %zu begins with sample %lld of %lld, in the middle of "
                        "one of the %zu grains of a reproducible model (EK_SCATTER_GRAINS)",
                        who, k, (long long)wanted, (long long)samples, ek__grains_of_model(model));
  }
  return EK_OK;
}

/* Grains that begin among the samples of a rank's part. */
void ek__grains_here(size_t *first, size_t *last, const ek_data_parallel_model *model,
                     const int64_t *samples, size_t place) {
  const int64_t all = samples[model->run.count];
  const size_t used = ek__grains_used(model, all);
  *first = 0;
  while (*first < used && begin_of(model, *first, all) < samples[place]) ++*first;
  *last = *first;
  while (*last < used && begin_of(model, *last, all) < samples[place + 1]) ++*last;
}

/* If parameters are shares, every rank runs in every round of a forward, a rank without a grain
 * with no rows, because it meets the others in collectives. */
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t all = all_of(model, samples), begin = samples[rank->place];
  const size_t used = ek__grains_used(model, all);
  *pieces =
      (struct ek__pieces){.begin = begin, .samples = samples[rank->place + 1] - begin, .all = all};
  if (forward || !is_alone(model)) {
    ek__grains_of(&pieces->first, &pieces->last, model, rank->number, used);
  } else {
    ek__grains_here(&pieces->first, &pieces->last, model, samples, rank->place);
  }
  pieces->rounds = forward && ek__placement(model)->parameter_shares
                       ? ek__grains_rounds(model, used)
                       : pieces->last - pieces->first;
}

struct ek__piece ek__grains_piece(const ek_data_parallel_model *model,
                                  const struct ek__pieces *pieces, size_t round) {
  const size_t number = pieces->first + round;
  if (number >= pieces->last) return (struct ek__piece){SIZE_MAX, pieces->begin, 0};
  const int64_t first = begin_of(model, number, pieces->all);
  const int64_t last = begin_of(model, number + 1, pieces->all);
  return (struct ek__piece){number, first - model->last.before, last - first};
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

struct ek__fold ek__fold_of(size_t *most_blocks, size_t first, size_t last, size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  for (size_t held = 0; first < last; first++) {
    if (fold.depth + 1 > held) held = fold.depth + 1;
    if (most_blocks != NULL) *most_blocks = held;
    (void)ek__fold_push(&fold, (struct ek__block){0, first});
  }
  return fold;
}

ek_status ek__fold_rows(ek_stream *stream, const struct ek__row *rows, size_t count, int64_t width,
                        size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  const struct ek__row *held[EK__FOLD_DEPTH];
  for (size_t i = 0; i < count; i++) {
    size_t top = fold.depth;
    size_t sums = ek__fold_push(&fold, rows[i].block);
    held[top] = &rows[i];
    for (; sums > 0; sums--, top--) {
      ek_tensor sum = ek__flat_range(held[top - 1]->flat, held[top - 1]->first, width);
      const ek_tensor added = ek__flat_range(held[top]->flat, held[top]->first, width);
      EK_TRY(ek_op_add(stream, &sum, &sum, &added));
    }
  }
  return EK_OK;
}

/* ---- totals of a loss ---- */

/* The leaves of all ranks to all ranks. */
static ek_status gather_leaves(const ek_data_parallel_model *model, const struct ek__rank *rank,
                               struct ek__totals *totals, const int64_t *samples, size_t used) {
  const int64_t size = ek_tensor_count(&totals->sum);
  const size_t ranks = model->run.cut.ranks;
  totals->offsets[0] = 0;
  for (size_t r = 0; r < ranks; r++) {
    size_t first = 0, last = 0;
    if (is_alone(model)) {
      ek__grains_here(&first, &last, model, samples, r);
    } else {
      ek__grains_of(&first, &last, model, r, used);
    }
    totals->offsets[r + 1] = (int64_t)last * size;
  }
  totals->offsets[ranks] = (int64_t)used * size;
  ek_tensor leaves = ek__flat_range(&totals->leaves, 0, (int64_t)used * size);
  EK_TRY(
      ek_communicator_all_gather(model->run.communicator, rank->device, &leaves, totals->offsets));
  return ek_communicator_wait(model->run.communicator, rank->device);
}

ek_status ek__tree_totals(const ek_data_parallel_model *model, const struct ek__rank *rank,
                          struct ek__totals *totals, const int64_t *samples) {
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  const size_t used = ek__grains_used(model, all_of(model, samples));
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

/* ---- norms ---- */

/* The pieces of trained buckets that the rank owns, or rank 0 alone if only its memory has the sums:
 * their number and their squares do not depend on the number of ranks. */
ek_status ek__tree_norm_ranges(struct ek__share *share, const ek_data_parallel_model *model,
                               const struct ek__rank *rank) {
  const struct ek__buckets *cut = &model->run.cut;
  const bool alone = ek__placement(model)->master && !ek__update_helps(model);
  if (alone && rank->number > 0) return EK_OK;
  EK_TRY(ek__new(&share->norms.list, cut->piece_count, sizeof *share->norms.list,
                 "the ranges of an optimizer"));
  for (size_t b = 0; b < cut->trained; b++) {
    const struct ek__bucket *bucket = &cut->list[b];
    const int64_t *ends = &cut->pieces[bucket->piece];
    const int64_t first = alone ? 0 : bucket->offsets[rank->number];
    const int64_t last = alone ? bucket->last - bucket->first : bucket->offsets[rank->number + 1];
    for (size_t i = 0; i < bucket->pieces; i++) {
      const int64_t begin = i == 0 ? 0 : ends[i - 1];
      if (begin < first || ends[i] > last || begin == ends[i]) continue;
      share->norms.list[share->norms.count++] =
          (struct ek__range){.first = bucket->first + begin,
                             .last = bucket->first + ends[i],
                             .place = bucket->places[rank->number] + begin - first,
                             .piece = bucket->piece + i};
    }
  }
  return EK_OK;
}

/* The leaves of all ranks, halved until one is left: in an order that their number gives. A leaf is
 * a number of one rank, and 0 on all others, so their sum is exact. */
static ek_status sum_leaves(const ek_data_parallel_model *model, struct ek__rank *rank) {
  struct ek__share *share = &rank->share;
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
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

ek_status ek__tree_norm(const ek_data_parallel_model *model, struct ek__rank *rank) {
  const struct ek__share *share = &rank->share;
  const ek_tensor *gradients = ek_replica_gradients(share->owner->replica);
  ek_stream *stream = ek_device_stream(rank->device, EK_STREAM_COMPUTE);
  const bool shares = ek__placement(model)->gradient_shares;
  ek_tensor leaves = share->leaves;
  EK_TRY(ek_op_zero(stream, &leaves));
  for (size_t i = 0; i < share->norms.count; i++) {
    const struct ek__range *leaf = &share->norms.list[i];
    const ek_tensor part =
        ek__flat_range(gradients, shares ? leaf->place : leaf->first, leaf->last - leaf->first);
    ek_tensor square = ek__flat_range(&share->leaves, (int64_t)leaf->piece, 1);
    EK_TRY(ek_op_square_norm(stream, &square, &part, 0.0));
  }
  return sum_leaves(model, rank);
}
