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

#include "core/alloc.h"
#include "core/error.h"
#include "grains_memory.h"
#include "module/replica_internal.h"

/* ---- memory ---- */

ek_status ek__grains_check_open(const ek_data_parallel_model_options *options,
                                const ek_group *group) {
  const size_t grains = options->reproducible;
  if (grains == 0) return EK_OK;
  EK__FAIL_IF(grains < ek_group_size(group) || grains > EK__MAX_GRAINS, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: reproducible is %zu, expected at least the %zu devices "
              "and at most %d",
              grains, ek_group_size(group), EK__MAX_GRAINS);
  EK__FAIL_IF(options->state > EK_STATE_SHARDED, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: reproducible with gradients or parameters in shards is "
              "not yet implemented");
  EK__FAIL_IF(ek__group_world_size(group) != ek_group_size(group), EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: reproducible over several processes is not yet "
              "implemented");
  if (ek_group_is_deterministic(group)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "ek_data_parallel_model_open: a reproducible model needs a group that was "
                      "opened with ek_group_options.deterministic");
}

/* The blocks that device `index` is left with, of so many grains. */
static struct ek__fold blocks_of_device(const ek_data_parallel_model *model, size_t index,
                                        size_t grains) {
  struct ek__fold fold = {.leaves = grains};
  size_t first = 0, last = 0;
  ek__grains_of(&first, &last, model, index, grains);
  for (; first < last; first++) (void)ek__fold_push(&fold, (struct ek__block){0, first});
  return fold;
}

/* Blocks that the devices together may be left with. */
static size_t most_blocks(const ek_data_parallel_model *model) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    size_t blocks = 0;
    for (size_t k = 0; k < model->count; k++) blocks += blocks_of_device(model, k, used).depth;
    if (blocks > most) most = blocks;
  }
  return most;
}

ek_status ek__grains_zeros(ek_tensor *flat, ek_device *device, int64_t count, ek_type type,
                           ek_memory_category category) {
  EK_TRY(ek_tensor_create(flat, device, category, type, 1, &count));
  return ek_op_zero(ek_device_stream(device, EK_STREAM_COMPUTE), flat);
}

/* The least chunk: a collective costs some microseconds whatever it moves. */
enum { LEAST_CHUNK = 4096 };

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  struct ek__grain_memory *own = &model->grain_memory[index];
  const ek_type type = model->options.type;
  const int64_t count = ek_tensor_count(ek_replica_gradients(model->replicas[index]));
  const size_t grains = model->options.reproducible;
  size_t first = 0, last = 0;
  ek__grains_of(&first, &last, model, index, grains);
  for (size_t i = 1; i < ek__fold_most(first, last, grains); i++) {
    EK_TRY(ek__grains_zeros(&own->blocks[i], device, count, type, EK_MEMORY_GRADIENTS));
  }
  if (model->count == 1) return EK_OK;
  EK_TRY(ek__new(&own->offsets, model->count + 1, sizeof *own->offsets, "a reproducible model"));
  const size_t blocks = most_blocks(model);
  own->chunk = (int64_t)(model->options.bucket_bytes / ek_type_size(type) / blocks / 16 * 16);
  if (own->chunk < LEAST_CHUNK) own->chunk = LEAST_CHUNK;
  if (own->chunk > count) own->chunk = count;
  return ek__grains_zeros(&own->exchange, device, (int64_t)blocks * own->chunk, type,
                          EK_MEMORY_COMMUNICATION);
}

ek_status ek__grains_open(ek_data_parallel_model *model) {
  EK__FAIL_IF(model->replicas[0]->layout.collective, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: %s has collectives of its own, which the grains of a "
              "reproducible model do not meet",
              model->module->ops->kind);
  EK_TRY(ek__new(&model->grain_memory, model->count, sizeof *model->grain_memory,
                 "a reproducible model"));
  return ek_group_apply(model->group, open_one, model);
}

void ek__grains_close(ek_data_parallel_model *model) {
  for (size_t k = 0; k < model->count && model->grain_memory != NULL; k++) {
    struct ek__grain_memory *own = &model->grain_memory[k];
    for (size_t i = 0; i < EK__FOLD_DEPTH; i++) ek_tensor_free(&own->blocks[i]);
    ek_tensor_free(&own->earlier);
    ek_tensor_free(&own->exchange);
    ek__free(own->offsets);
  }
  ek__free(model->grain_memory);
}

/* ---- sums ---- */

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
    const struct ek__fold fold = blocks_of_device(model, k, all->leaves);
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
  EK_TRY(ek__fold_rows(stream, &sum->own->exchange, end - begin, first - begin, last - begin,
                       all->blocks, all->count, all->leaves));
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
