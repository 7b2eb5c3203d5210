/*
 * grains_shares.c - the gradients of a reproducible model, added along the tree where devices hold
 * shares of them.
 *
 * A device's backward gives a bucket of a grain at a time, and nobody has memory for all of them.
 * All devices are in the same round (grains.h), so a bucket's leaves of the round are complete on
 * all at the same time: they are gathered, a chunk at a time, and everybody adds its own share of
 * each to the blocks of the device that the leaf comes from. It does for every device what the
 * binary counter does for one (grains.c), on a part of the elements: with N devices of g grains
 * each it holds shares of N log2(g) blocks at most, as much as log2(g) whole gradients.
 *
 * In the last round the blocks of all devices are there, and are added up at once: its leaves are
 * held nowhere, so with a grain for each device no block is.
 */
#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "device/communicator_internal.h"
#include "grains_memory.h"
#include "module/replica_internal.h"

/* ---- rounds ---- */

static size_t grains_of_run(const struct ek__grain_run *run) { return run->last - run->first; }

ek_status ek__grains_begin(ek_data_parallel_model *model, ek_device *device, size_t index) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  const size_t used = ek__grains_used(model, model->forward_samples);
  own->round = 0;
  own->rounds = ek__grains_rounds(model, used);
  for (size_t k = 0; k < model->count; k++) {
    struct ek__grain_run *run = &own->runs[k];
    ek__grains_of(&run->first, &run->last, model, k, used);
    run->fold = (struct ek__fold){.leaves = used};
  }
  if (own->rounds > 0 || model->stage != EK__STEP_EMPTY) return EK_OK;
  ek_tensor shares = *ek_replica_gradients(model->replicas[index]);
  return ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &shares);
}

void ek__grains_end_round(const ek_data_parallel_model *model, size_t index) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  for (size_t k = 0; k < model->count; k++) {
    struct ek__grain_run *run = &own->runs[k];
    if (own->round >= grains_of_run(run)) continue;
    (void)ek__fold_push(&run->fold, (struct ek__block){0, run->first + own->round});
  }
  own->round++;
}

/* ---- a bucket ---- */

struct taking {
  ek_data_parallel_model *model;
  ek_device *device;
  size_t index;
  struct ek__grain_memory *own;
  const struct ek__bucket *bucket;
  const ek_tensor *whole;
};

static ek_stream *stream_of(const struct taking *t) {
  return ek_device_stream(t->device, EK_STREAM_COMPUTE);
}

static bool has_leaf(const struct taking *t, size_t device) {
  return t->own->round < grains_of_run(&t->own->runs[device]);
}

/* Elements of the bucket that are the device's. */
struct range {
  int64_t first, last;
};

/* Where they begin in its shares. */
static int64_t place_of(const struct taking *t, const struct range *range) {
  return t->bucket->places[t->index] + range->first - t->bucket->offsets[t->index];
}

static int64_t slot_of(const struct taking *t, size_t slot, const struct range *range) {
  const int64_t share = ek_tensor_count(ek_replica_gradients(t->model->replicas[t->index]));
  return (int64_t)slot * share + place_of(t, range);
}

/* *block, a leaf of a device, is added to its blocks as far as that goes, and is kept. */
static ek_status add_leaf(struct ek__row *block, const struct taking *t,
                          const struct ek__grain_run *run, const struct range *range) {
  const int64_t width = range->last - range->first;
  struct ek__fold fold = run->fold;
  size_t depth = fold.depth;
  for (size_t sums = ek__fold_push(&fold, block->block); sums > 0; sums--) {
    const int64_t below = slot_of(t, run->begin + --depth, range);
    ek_tensor sum = ek__flat_range(&t->own->slots, below, width);
    const ek_tensor added = ek__flat_range(block->flat, block->first, width);
    EK_TRY(ek_op_add(stream_of(t), &sum, &sum, &added));
    block->flat = &t->own->slots;
    block->first = below;
  }
  block->block = fold.blocks[fold.depth - 1];
  if (t->own->round + 1 == t->own->rounds || block->flat == &t->own->slots) return EK_OK;
  ek_tensor slot = ek__flat_range(&t->own->slots, slot_of(t, run->begin + depth, range), width);
  const ek_tensor leaf = ek__flat_range(block->flat, block->first, width);
  return ek_op_copy(stream_of(t), &slot, &leaf);
}

/* Of leaves that are there: that of device k is number k of `leaves`, elements `begin` and so on of
 * the bucket, `count` of them. */
static ek_status add_leaves(struct ek__row *rows, size_t *row_count, const struct taking *t,
                            const ek_tensor *leaves, int64_t begin, int64_t count,
                            const struct range *range) {
  *row_count = 0;
  for (size_t k = 0; k < t->model->count; k++) {
    const struct ek__grain_run *run = &t->own->runs[k];
    struct ek__row top = {
        {0, run->first + t->own->round}, leaves, (int64_t)k * count + range->first - begin};
    if (has_leaf(t, k)) EK_TRY(add_leaf(&top, t, run, range));
    if (t->own->round + 1 < t->own->rounds) continue;
    /* What it had before, but for what is in the leaf's block now. */
    for (size_t i = 0; i < run->fold.depth; i++) {
      const struct ek__block block = run->fold.blocks[i];
      const int64_t slot = slot_of(t, run->begin + i, range);
      if (has_leaf(t, k) && block.index << block.level >= top.block.index << top.block.level) break;
      rows[(*row_count)++] = (struct ek__row){block, &t->own->slots, slot};
    }
    if (has_leaf(t, k)) rows[(*row_count)++] = top;
  }
  return EK_OK;
}

static ek_status add_share(const struct taking *t, const ek_tensor *leaves, int64_t begin,
                           int64_t count, const struct range *range) {
  struct ek__row rows[EK__MAX_GRAINS];
  const int64_t width = range->last - range->first;
  size_t row_count = 0;
  EK_TRY(add_leaves(rows, &row_count, t, leaves, begin, count, range));
  if (row_count == 0) return EK_OK;
  EK_TRY(ek__fold_rows(stream_of(t), rows, row_count, width, t->own->runs[0].fold.leaves));
  ek_tensor share =
      ek__flat_range(ek_replica_gradients(t->model->replicas[t->index]), place_of(t, range), width);
  const ek_tensor sum = ek__flat_range(rows[0].flat, rows[0].first, width);
  return t->model->stage == EK__STEP_EMPTY ? ek_op_copy(stream_of(t), &share, &sum)
                                           : ek_op_add(stream_of(t), &share, &share, &sum);
}

/* The leaves of this round, `count` elements of each from `begin` on. Devices that have none are
 * behind those that have one. */
static ek_status gather(const struct taking *t, int64_t begin, int64_t count) {
  ek_communicator *communicator = t->model->communicator;
  int64_t *offsets = t->own->offsets;
  offsets[0] = 0;
  for (size_t k = 0; k < t->model->count; k++) {
    offsets[k + 1] = offsets[k] + (has_leaf(t, k) ? count : 0);
  }
  if (offsets[t->index] < offsets[t->index + 1]) {
    ek_tensor to = ek__flat_range(&t->own->exchange, offsets[t->index], count);
    const ek_tensor from = ek__flat_range(t->whole, begin, count);
    EK_TRY(ek_op_copy(stream_of(t), &to, &from));
  }
  ek_tensor rows = ek__flat_range(&t->own->exchange, 0, offsets[t->model->count]);
  EK_TRY(ek_communicator_all_gather(communicator, t->device, &rows, offsets));
  return ek__communicator_wait_for(communicator, t->device,
                                   ek__communicator_started(communicator, t->device));
}

ek_status ek__grains_take(ek_data_parallel_model *model, ek_device *device, size_t index,
                          size_t bucket, const ek_tensor *whole) {
  const struct taking t = {model,
                           device,
                           index,
                           &model->grain_memory[index],
                           &model->grain_memory[index].cut->list[bucket],
                           whole};
  const int64_t all = t.bucket->last - t.bucket->first;
  if (model->count == 1) return add_share(&t, whole, 0, all, &(struct range){0, all});
  for (int64_t begin = 0; begin < all; begin += t.own->chunk) {
    const int64_t count = all - begin < t.own->chunk ? all - begin : t.own->chunk;
    struct range range = {t.bucket->offsets[index], t.bucket->offsets[index + 1]};
    if (range.first < begin) range.first = begin;
    if (range.last > begin + count) range.last = begin + count;
    EK_TRY(gather(&t, begin, count));
    if (range.first < range.last) {
      EK_TRY(add_share(&t, &t.own->exchange, begin, count, &range));
    }
  }
  return EK_OK;
}
