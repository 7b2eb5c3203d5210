/*
 * tree.c - the cut of a batch into grains, and the tree of sums.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent are there. So a rank holds at most two
 * blocks of each size, and the sums are those of the tree whatever run of grains it has.
 */
#include "tree.h"

#include <evenkeel/elementwise.h>

#include "core/error.h"

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

/* Where grain `number` of a batch begins. */
static int64_t begin_of(const ek_data_parallel_model *model, size_t number, int64_t samples) {
  return ek__even_begin(samples, number, ek__grains_of_model(model));
}

ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards) {
  const int64_t samples = shards->samples[shards->count];
  const size_t used = ek__grains_used(model, samples);
  size_t grain = 0;
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

/* Where parameters are shares every rank runs in every round of a forward, one that has no grain
 * for it with no rows, because it meets the others in collectives. */
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t all = samples[model->run.count], begin = samples[rank->place];
  const size_t used = ek__grains_used(model, all);
  *pieces =
      (struct ek__pieces){.begin = begin, .samples = samples[rank->place + 1] - begin, .all = all};
  if (forward) {
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
  return (struct ek__piece){number, first, begin_of(model, number + 1, pieces->all) - first};
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
