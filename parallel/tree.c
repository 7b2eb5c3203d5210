/*
 * tree.c - the cut of a batch into grains, the tree of sums, and sums with a leaf for each grain:
 * every rank gets the leaves of all ranks and adds them all up.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent exist. So a rank holds at most two
 * blocks of each size, and the sums are those of the tree for any run of grains.
 */
#include "tree.h"

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "core/sizes.h"

/* ---- the cut ---- */

size_t ek__grains_used(const ek_data_parallel_model *model, int64_t samples) {
  const size_t grains = model->options.reproducible;
  return samples < (int64_t)grains ? (size_t)samples : grains;
}

struct ek__grains ek__grains_of(const ek_data_parallel_model *model, size_t rank, size_t used) {
  const int64_t grains = (int64_t)model->options.reproducible;
  size_t first = (size_t)ek__even_begin(grains, rank, model->run.cut.ranks);
  size_t last = (size_t)ek__even_begin(grains, rank + 1, model->run.cut.ranks);
  if (last > used) last = used;
  if (first > last) first = last;
  return (struct ek__grains){first, last};
}

size_t ek__grains_most(const ek_data_parallel_model *model) {
  return (model->options.reproducible + model->run.cut.ranks - 1) / model->run.cut.ranks;
}

size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used) {
  const size_t most = ek__grains_most(model); /* rank 0 has as many */
  return used < most ? used : most;
}

/* The first sample of grain `number` of a batch. */
static int64_t begin_of(const ek_data_parallel_model *model, size_t number, int64_t samples) {
  return ek__even_begin(samples, number, model->options.reproducible);
}

static bool is_alone(const ek_data_parallel_model *model) {
  return model->run.cut.ranks == model->run.count;
}

int64_t ek__samples_of_all(const ek_data_parallel_model *model, const int64_t *samples) {
  return samples[model->run.count] + model->last.all - model->last.samples;
}

/* The samples of this process are those of its grains. */
static ek_status check_place(const ek_data_parallel_model *model, int64_t samples, int64_t before,
                             int64_t all) {
  const size_t grains = model->options.reproducible, ranks = model->run.cut.ranks;
  const size_t first = model->run.ranks[0].number, last = first + model->run.count;
  const int64_t begin = ek__grains_begin(all, grains, first, ranks);
  const int64_t count = ek__grains_begin(all, grains, last, ranks) - begin;
  if (count == samples && (count == 0 || begin == before)) return EK_OK;
  return ek_error_set(EK_ERR_SHAPE,
                      "forward: this process has %lld samples from number %lld on, of %lld; of the "
                      "%zu grains of a reproducible model it computes %lld samples from number "
                      "%lld on (ek_world_rows)",
                      (long long)samples, (long long)before, (long long)all, grains,
                      (long long)count, (long long)begin);
}

/* The first grain of a batch that begins with sample `begin` or later. */
static size_t grain_from(const ek_data_parallel_model *model, int64_t begin, int64_t samples) {
  const size_t used = ek__grains_used(model, samples);
  size_t grain = 0;
  while (grain < used && begin_of(model, grain, samples) < begin) grain++;
  return grain;
}

/* A forward needs each rank's own grains. A loss may be computed on other devices than its outputs
 * were, with any grains that this process has. */
ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards, int64_t before, int64_t all, bool forward) {
  const int64_t *samples = shards->samples, own = samples[shards->count];
  const size_t grains = model->options.reproducible;
  const bool any = !forward && is_alone(model);
  if (!any) EK_TRY(check_place(model, own, before, all));
  for (size_t k = 0; k < shards->count && !any; k++) {
    const size_t rank = model->run.ranks[k].number, ranks = model->run.cut.ranks;
    const int64_t size =
        ek__grains_begin(all, grains, rank + 1, ranks) - ek__grains_begin(all, grains, rank, ranks);
    EK__FAIL_IF(samples[k + 1] - samples[k] != size, EK_ERR_SHAPE,
                "%s: device number %zu has %lld samples; its grains of a reproducible model have "
                "%lld (EK_SCATTER_GRAINS)",
                who, k, (long long)(samples[k + 1] - samples[k]), (long long)size);
  }
  for (size_t k = 0; k <= shards->count && any; k++) {
    const size_t grain = grain_from(model, samples[k], own);
    EK__FAIL_IF(samples[k] != own && begin_of(model, grain, own) != samples[k], EK_ERR_SHAPE,
                "%s: device number %zu begins with sample %lld of %lld, in the middle of one of "
                "the %zu grains of a reproducible model (EK_SCATTER_GRAINS)",
                who, k, (long long)samples[k], (long long)own, grains);
  }
  return EK_OK;
}

/* Of a rank: in one process those that begin among its samples, wherever a loss is computed. */
static struct ek__grains grains_here(const ek_data_parallel_model *model, const int64_t *samples,
                                     size_t rank, size_t used) {
  const int64_t all = samples[model->run.count];
  if (!is_alone(model)) return ek__grains_of(model, rank, used);
  return (struct ek__grains){grain_from(model, samples[rank], all),
                             grain_from(model, samples[rank + 1], all)};
}

/* If parameters are shares, or modules have collectives, every rank runs in every round of a
 * forward, a rank without a grain with no rows, because it meets the others in collectives. */
void ek__grains_pieces(struct ek__pieces *pieces, const ek_data_parallel_model *model,
                       const struct ek__rank *rank, const int64_t *samples, bool forward) {
  const int64_t all = ek__samples_of_all(model, samples), begin = samples[rank->place];
  const size_t used = ek__grains_used(model, all);
  const struct ek__grains own = grains_here(model, samples, rank->number, used);
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

static ek_status add_row(const struct ek__row *left, const struct ek__row *right, int64_t width) {
  if (left->flat == NULL) return EK_OK;
  ek_tensor sum = ek__row_range(left, width);
  const ek_tensor added = ek__row_range(right, width);
  return ek_op_add(ek_device_stream(sum.device, EK_STREAM_COMPUTE), &sum, &sum, &added);
}

ek_status ek__fold_add(struct ek__fold *fold, struct ek__row row, int64_t width) {
  while (row.index > 0 || (size_t)1 << row.level < fold->leaves) {
    if (row.index % 2 == 0) {
      if ((row.index + 1) << row.level < fold->leaves) break; /* the right half is to come */
    } else {
      if (fold->depth == 0) break;
      const struct ek__row *left = &fold->rows[fold->depth - 1];
      if (left->level != row.level || left->index + 1 != row.index) break;
      EK_TRY(add_row(left, &row, width));
      row = *left;
      fold->depth--;
    }
    row.level++;
    row.index /= 2;
  }
  fold->rows[fold->depth++] = row;
  return EK_OK;
}

struct ek__fold ek__fold_of(size_t *most, struct ek__grains grains, size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  size_t held = 0;
  for (size_t i = grains.first; i < grains.last; i++) {
    if (fold.depth + 1 > held) held = fold.depth + 1;
    (void)ek__fold_add(&fold, (struct ek__row){.index = i}, 0);
  }
  if (most != NULL) *most = held;
  return fold;
}

/* ---- a leaf for each grain ---- */

ek_status ek__leaves_add(const ek_data_parallel_model *model, const struct ek__rank *rank,
                         ek_communicator *communicator, ek_tensor *leaves, size_t count,
                         const int64_t *samples) {
  const size_t ranks = model->run.cut.ranks;
  const int64_t size = ek_tensor_count(leaves) / (int64_t)count;
  int64_t offsets[EK__MAX_GRAINS + 1] = {0};
  struct ek__fold fold = {.leaves = count};
  for (size_t r = 0; r + 1 < ranks; r++) {
    const struct ek__grains grains =
        samples == NULL ? ek__grains_of(model, r, count) : grains_here(model, samples, r, count);
    offsets[r + 1] = (int64_t)grains.last * size;
  }
  offsets[ranks] = (int64_t)count * size;
  if (ranks > 1) {
    EK_TRY(ek_communicator_all_gather(communicator, rank->device, leaves, offsets));
    EK_TRY(ek_communicator_wait(communicator, rank->device));
  }
  for (size_t i = 0; i < count; i++) {
    EK_TRY(ek__fold_add(&fold, (struct ek__row){0, i, leaves, (int64_t)i * size}, size));
  }
  return EK_OK;
}
