/*
 * grains_sum.c - the gradients of a reproducible model, added over the devices along the tree.
 *
 * A device is left with a few blocks of the tree, those of its run of grains. A communicator adds
 * in the order of ranks, or in one of its own, so none of its sums will do: the blocks of all
 * devices are gathered, a chunk of the flat gradients at a time, and whoever owns elements of the
 * sum adds them up itself, all in the same order. That moves as many times the gradients as there
 * are blocks, instead of twice. Gathering changes no bit on any communicator.
 *
 * The micro-batches of a step are added to what the earlier ones have left, each after its own sum
 * over the devices.
 */
#include <evenkeel/communicator.h>
#include <evenkeel/elementwise.h>

#include "core/error.h"
#include "grains_memory.h"
#include "module/replica_internal.h"

/* All blocks, device by device; device k has those from begins[k] on. */
struct everybody {
  size_t leaves, count;
  struct ek__block blocks[EK__MAX_GRAINS];
  size_t begins[EK__MAX_GRAINS + 1];
};

static void list_blocks(struct everybody *all, const ek_data_parallel_model *model) {
  all->leaves = ek__grains_used(model, model->forward_samples);
  all->count = 0;
  for (size_t k = 0; k < model->count; k++) {
    const struct ek__fold fold = ek__grains_blocks(model, k, all->leaves);
    all->begins[k] = all->count;
    for (size_t i = 0; i < fold.depth; i++) all->blocks[all->count++] = fold.blocks[i];
  }
  all->begins[model->count] = all->count;
}

struct sum {
  ek_data_parallel_model *model;
  ek_device *device;
  size_t index;
  struct ek__grain_memory *own;
  ek_tensor gradients; /* the replica's */
  struct everybody all;
  bool more, earlier; /* micro-batches of the step behind this one, before it */
};

static const ek_tensor *block_of(const struct sum *sum, size_t number) {
  return number == 0 ? &sum->gradients : &sum->own->blocks[number];
}

/* Elements first .. last - 1 of the step so far, from those of this micro-batch. */
static ek_status add_up(const struct sum *sum, const ek_tensor *added, int64_t first,
                        int64_t last) {
  ek_stream *stream = ek_device_stream(sum->device, EK_STREAM_COMPUTE);
  const ek_tensor *earlier = &sum->own->earlier;
  ek_tensor to = ek__flat_range(sum->more ? earlier : &sum->gradients, first, last - first);
  if (!sum->earlier) return to.data == added->data ? EK_OK : ek_op_copy(stream, &to, added);
  const ek_tensor before = ek__flat_range(earlier, first, last - first);
  return ek_op_add(stream, &to, &before, added);
}

/* Every device's blocks of `count` elements from `first` on, in its `exchange`. */
static ek_status gather(const struct sum *sum, int64_t first, int64_t count) {
  ek_communicator *communicator = sum->model->communicator;
  const struct everybody *all = &sum->all;
  for (size_t k = 0; k <= sum->model->count; k++) {
    sum->own->offsets[k] = (int64_t)all->begins[k] * count;
  }
  for (size_t i = all->begins[sum->index]; i < all->begins[sum->index + 1]; i++) {
    ek_tensor to = ek__flat_range(&sum->own->exchange, (int64_t)i * count, count);
    const ek_tensor from = ek__flat_range(block_of(sum, i - all->begins[sum->index]), first, count);
    EK_TRY(ek_op_copy(ek_device_stream(sum->device, EK_STREAM_COMPUTE), &to, &from));
  }
  ek_tensor rows = ek__flat_range(&sum->own->exchange, 0, (int64_t)all->count * count);
  EK_TRY(ek_communicator_all_gather(communicator, sum->device, &rows, sum->own->offsets));
  return ek_communicator_wait(communicator, sum->device);
}

/* Elements first .. last - 1, of which `begin` .. `end` - 1 are gathered and row 0 is to be their
 * sum. */
static ek_status sum_gathered(const struct sum *sum, int64_t begin, int64_t end, int64_t first,
                              int64_t last) {
  ek_stream *stream = ek_device_stream(sum->device, EK_STREAM_COMPUTE);
  const struct everybody *all = &sum->all;
  if (first < begin) first = begin;
  if (last > end) last = end;
  if (first >= last) return EK_OK;
  struct ek__row rows[EK__MAX_GRAINS];
  for (size_t i = 0; i < all->count; i++) {
    rows[i] = (struct ek__row){all->blocks[i], &sum->own->exchange,
                               (int64_t)i * (end - begin) + first - begin};
  }
  EK_TRY(ek__fold_rows(stream, rows, all->count, last - first, all->leaves));
  const ek_tensor row = ek__flat_range(&sum->own->exchange, first - begin, last - first);
  return add_up(sum, &row, first, last);
}

static ek_status sum_bucket(const struct sum *sum, size_t bucket) {
  const ek_reducer *reducer = sum->model->reducer;
  const size_t ranks = sum->model->count;
  int64_t begin = 0, end = 0, first = 0, last = 0, none = 0;
  EK_TRY(ek_reducer_range(&begin, &end, reducer, bucket, 0));
  if (sum->model->options.state == EK_STATE_SHARDED) {
    EK_TRY(ek_reducer_range(&none, &end, reducer, bucket, ranks - 1));
  }
  EK_TRY(ek_reducer_range(&first, &last, reducer, bucket, sum->index));
  while (begin < end) {
    const int64_t count = end - begin < sum->own->chunk ? end - begin : sum->own->chunk;
    EK_TRY(gather(sum, begin, count));
    EK_TRY(sum_gathered(sum, begin, begin + count, first, last));
    begin += count;
  }
  return EK_OK;
}

ek_status ek__grains_reduce(ek_data_parallel_model *model, ek_device *device, size_t index,
                            bool more) {
  struct sum sum = {.model = model,
                    .device = device,
                    .index = index,
                    .own = &model->grain_memory[index],
                    .gradients = *ek_replica_gradients(model->replicas[index]),
                    .more = more,
                    .earlier = model->stage != EK__STEP_EMPTY};
  list_blocks(&sum.all, model);
  if (sum.all.count == 0) { /* a batch of no samples */
    EK_TRY(ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), &sum.gradients));
  }
  if (sum.all.count == 0 || model->count == 1) {
    return add_up(&sum, &sum.gradients, 0, ek_tensor_count(&sum.gradients));
  }
  for (size_t b = 0; b < ek_reducer_bucket_count(model->reducer); b++) {
    EK_TRY(sum_bucket(&sum, b));
  }
  return EK_OK;
}
