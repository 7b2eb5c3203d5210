/*
 * pieces.c - rows of a piece of what a rank has, and the rows of its pieces put together.
 */
#include <string.h>

#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "reduction.h"

static ek_stream *stream_of(const ek_tensor *tensor) {
  return ek_device_stream(tensor->device, EK_STREAM_COMPUTE);
}

/* Rows of `whole`, or a copy of them. */
static ek_status take_rows(ek_tensor *rows, const ek_tensor *whole, int64_t first, int64_t count,
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

/* A tensor like `like` without rows. */
static ek_status no_rows(ek_tensor *rows, const ek_tensor *like, ek_memory_category category) {
  ek_tensor none = *like;
  none.shape[0] = 0;
  return ek_tensor_create(rows, like->device, category, none.type, none.rank, none.shape);
}

ek_status ek__piece_rows(ek_tensor *rows, const ek_data_parallel_model *model,
                         const struct ek__pieces *pieces, const struct ek__piece *piece,
                         const ek_tensor *part, ek_memory_category category) {
  if (model->run.reduction->whole) {
    *rows = *part;
    return EK_OK;
  }
  if (piece->count == 0) return no_rows(rows, part, category);
  const int64_t per_sample = part->shape[0] / pieces->samples;
  return take_rows(rows, part, per_sample * (piece->first - pieces->begin),
                   per_sample * piece->count, category);
}

void ek__piece_free(ek_tensor *rows, const ek_data_parallel_model *model) {
  if (!model->run.reduction->whole) ek_tensor_free(rows);
}

static bool fits(const ek_tensor *whole, const ek_tensor *part, int64_t rows) {
  ek_tensor like = *part;
  like.shape[0] = rows;
  return ek_tensor_same_shape(whole, &like);
}

ek_status ek__piece_append(ek_tensor *whole, ek_tensor *part, const ek_data_parallel_model *model,
                           const struct ek__pieces *pieces, const struct ek__piece *piece,
                           ek_memory_category category) {
  ek_tensor rows = {0};
  if (model->run.reduction->whole) {
    *whole = *part;
    memset(part, 0, sizeof *part);
    return EK_OK;
  }
  EK__FAIL_IF(part->rank == 0, EK_ERR_UNSUPPORTED,
              "a reproducible model cannot put together outputs that are one scalar for each "
              "grain");
  const int64_t per_sample = part->shape[0] / piece->count, all = per_sample * pieces->samples;
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
              "a grain gives another type, other dimensions or another number of rows per sample "
              "(%lld) than the first grain of the device",
              (long long)per_sample);
  EK_TRY(ek_tensor_rows(&rows, whole, per_sample * (piece->first - pieces->begin), part->shape[0]));
  const ek_status status = ek_op_copy(stream_of(whole), &rows, part);
  ek_tensor_free(&rows);
  ek_tensor_free(part);
  return status;
}

ek_tensor ek__totals_leaf(const struct ek__totals *totals, size_t number) {
  const int64_t count = ek_tensor_count(&totals->sum);
  ek_tensor leaf = ek__flat_range(&totals->leaves, (int64_t)number * count, count);
  leaf.rank = 2;
  memcpy(leaf.shape, totals->sum.shape, sizeof leaf.shape);
  return leaf;
}
