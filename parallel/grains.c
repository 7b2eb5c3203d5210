/*
 * grains.c - the cut of a batch into grains, the tree of sums, and rows of a grain.
 *
 * The fold is a binary counter: blocks of the tree come from left to right, and each is added to
 * its left neighbour as soon as both halves of their parent are there. So a device holds at most
 * two blocks of each size, and the sums are those of the tree whatever run of grains it has.
 */
#include "grains.h"

#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"

/* ---- the cut ---- */

void ek__grains_of(size_t *first, size_t *last, const ek_data_parallel_model *model, size_t index,
                   size_t used) {
  const int64_t grains = (int64_t)model->options.reproducible;
  *first = (size_t)ek__even_begin(grains, index, model->count);
  *last = (size_t)ek__even_begin(grains, index + 1, model->count);
  if (*last > used) *last = used;
  if (*first > *last) *first = *last;
}

size_t ek__grains_most(const ek_data_parallel_model *model) {
  return (model->options.reproducible + model->count - 1) / model->count;
}

size_t ek__grains_rounds(const ek_data_parallel_model *model, size_t used) {
  const size_t most = ek__grains_most(model); /* of device 0 */
  return used < most ? used : most;
}

struct ek__grain ek__grain_at(const ek_data_parallel_model *model, size_t number, int64_t samples) {
  const size_t grains = model->options.reproducible;
  const int64_t first = ek__even_begin(samples, number, grains);
  return (struct ek__grain){number, first, ek__even_begin(samples, number + 1, grains) - first};
}

ek_status ek__grains_check_cut(const char *who, const ek_data_parallel_model *model,
                               const ek_shards *shards) {
  const int64_t samples = shards->samples[shards->count];
  const size_t used = ek__grains_used(model, samples);
  size_t grain = 0;
  for (size_t k = 0; k <= shards->count; k++) {
    const int64_t wanted = shards->samples[k];
    while (grain < used && ek__grain_at(model, grain, samples).first < wanted) grain++;
    if (wanted == samples || ek__grain_at(model, grain, samples).first == wanted) continue;
    return ek_error_set(EK_ERR_SHAPE,
                        "%s: device number %zu begins with sample %lld of %lld, in the middle of "
                        "one of the %zu grains of a reproducible model (EK_SCATTER_GRAINS)",
                        who, k, (long long)wanted, (long long)samples, model->options.reproducible);
  }
  return EK_OK;
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

size_t ek__fold_most(size_t first, size_t last, size_t leaves) {
  struct ek__fold fold = {.leaves = leaves};
  size_t most = 0;
  for (size_t leaf = first; leaf < last; leaf++) {
    if (fold.depth + 1 > most) most = fold.depth + 1;
    (void)ek__fold_push(&fold, (struct ek__block){0, leaf});
  }
  return most;
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

ek_status ek__fold_leaves(ek_stream *stream, const ek_tensor *rows, int64_t stride, size_t leaves) {
  struct ek__row row[EK__MAX_GRAINS];
  ek_tensor sum = ek__flat_range(rows, 0, stride);
  for (size_t i = 0; i < leaves; i++) {
    row[i] = (struct ek__row){{0, i}, rows, (int64_t)i * stride};
  }
  return leaves == 0 ? ek_op_zero(stream, &sum)
                     : ek__fold_rows(stream, row, leaves, stride, leaves);
}

struct ek__fold ek__grains_blocks(const ek_data_parallel_model *model, size_t index,
                                  size_t grains) {
  struct ek__fold fold = {.leaves = grains};
  size_t first = 0, last = 0;
  ek__grains_of(&first, &last, model, index, grains);
  for (; first < last; first++) (void)ek__fold_push(&fold, (struct ek__block){0, first});
  return fold;
}

/* ---- rows of a grain ---- */

static ek_stream *stream_of(const ek_tensor *tensor) {
  return ek_device_stream(tensor->device, EK_STREAM_COMPUTE);
}

ek_status ek__grain_rows(ek_tensor *rows, const ek_tensor *whole, int64_t first, int64_t count,
                         ek_memory_category category) {
  ek_tensor view = {0}, copy = {0};
  EK_TRY(ek_tensor_rows(&view, whole, first, count));
  if ((uintptr_t)view.data % EK_MEMORY_UNIT == 0) {
    *rows = view;
    return EK_OK;
  }
  ek_status status =
      ek_tensor_create(&copy, whole->device, category, view.type, view.rank, view.shape);
  if (status == EK_OK) {
    ek__tensor_cut_from(&copy, ek__tensor_first(&view));
    status = ek_op_copy(stream_of(whole), &copy, &view);
  }
  ek_tensor_free(&view);
  if (status != EK_OK) {
    ek_tensor_free(&copy);
    return status;
  }
  *rows = copy;
  return EK_OK;
}

static bool fits(const ek_tensor *whole, const ek_tensor *part, int64_t rows) {
  ek_tensor like = *part;
  like.shape[0] = rows;
  return ek_tensor_same_shape(whole, &like);
}

ek_status ek__grain_append(ek_tensor *whole, ek_tensor *part, const struct ek__grain_place *place,
                           ek_memory_category category) {
  ek_tensor rows = {0};
  ek_status status = EK_OK;
  EK__FAIL_IF(part->rank == 0, EK_ERR_UNSUPPORTED,
              "a scalar for each grain is nothing that a reproducible model can put together");
  const int64_t per_sample = part->shape[0] / place->count, all = per_sample * place->all;
  if (!ek_tensor_exists(whole)) {
    bool grown = false;
    EK_TRY(ek_tensor_grow(&grown, part, all));
    if (grown) {
      *whole = *part;
      memset(part, 0, sizeof *part);
      return EK_OK;
    }
    int64_t shape[EK_MAX_RANK];
    memcpy(shape, part->shape, sizeof shape);
    shape[0] = all;
    EK_TRY(ek_tensor_create(whole, part->device, category, part->type, part->rank, shape));
  }
  EK__FAIL_IF(!fits(whole, part, all), EK_ERR_SHAPE,
              "a grain gives another type, other dimensions or %lld rows per sample, which the "
              "first grain of the device does not",
              (long long)per_sample);
  EK_TRY(ek_tensor_rows(&rows, whole, per_sample * place->before, part->shape[0]));
  status = ek_op_copy(stream_of(whole), &rows, part);
  ek_tensor_free(&rows);
  ek_tensor_free(part);
  return status;
}
