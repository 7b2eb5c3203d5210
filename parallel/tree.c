/*
 * tree.c - the cut of a batch into grains, and the tree of sums.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent exist. So a rank holds at most two
 * blocks of each size, and the sums are those of the tree for any run of grains.
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

int64_t ek__grains_all(const ek_data_parallel_model *model, const int64_t *samples) {
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

/* Between processes: the parts that ek__grains_sizes() gives. */
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

struct ek__grains ek__grains_of_loss(const ek_data_parallel_model *model, const int64_t *samples,
                                     size_t rank, size_t used) {
  return is_alone(model) ? grains_here(model, samples, rank) : ek__grains_of(model, rank, used);
}

/* If parameters are shares, or modules have collectives, every rank runs in every round of a
 * forward, a rank without a grain with no rows, because it meets the others in collectives. */
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t all = ek__grains_all(model, samples), begin = samples[rank->place];
  const size_t used = ek__grains_used(model, all);
  const struct ek__grains own = forward ? ek__grains_of(model, rank->number, used)
                                        : ek__grains_of_loss(model, samples, rank->number, used);
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
