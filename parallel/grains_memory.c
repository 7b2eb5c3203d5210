/*
 * grains_memory.c - what a reproducible model holds for its sums: blocks of the tree that wait, and
 * room for those of all devices. All of it is taken when the model is opened, but for the sum of
 * earlier micro-batches, of which there may be none.
 */
#include "grains_memory.h"

#include <evenkeel/elementwise.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/device_internal.h"
#include "module/replica_internal.h"
#include "reduce_internal.h"

ek_status ek__grains_check_open(const ek_data_parallel_model_options *options,
                                const ek_group *group) {
  const size_t grains = options->reproducible;
  if (grains == 0) return EK_OK;
  EK__FAIL_IF(grains < ek_group_size(group) || grains > EK__MAX_GRAINS, EK_ERR_INVALID_ARGUMENT,
              "ek_data_parallel_model_open: reproducible is %zu, expected at least the %zu devices "
              "and at most %d",
              grains, ek_group_size(group), EK__MAX_GRAINS);
  EK__FAIL_IF(ek__group_world_size(group) != ek_group_size(group), EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: reproducible over several processes is not yet "
              "implemented");
  if (ek_group_is_deterministic(group)) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "ek_data_parallel_model_open: a reproducible model needs a group that was "
                      "opened with ek_group_options.deterministic");
}

/* Blocks that the devices together may be left with. */
static size_t most_blocks(const ek_data_parallel_model *model) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    size_t blocks = 0;
    for (size_t k = 0; k < model->count; k++) blocks += ek__grains_blocks(model, k, used).depth;
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

static ek_status open_exchange(struct ek__grain_memory *own, const ek_data_parallel_model *model,
                               ek_device *device, size_t rows, int64_t most) {
  const ek_type type = model->options.gradient_type;
  if (model->count == 1) return EK_OK;
  EK_TRY(ek__new(&own->offsets, model->count + 1, sizeof *own->offsets, "a reproducible model"));
  own->chunk = (int64_t)(model->options.bucket_bytes / ek_type_size(type) / rows / 16 * 16);
  if (own->chunk < LEAST_CHUNK) own->chunk = LEAST_CHUNK;
  if (own->chunk > most) own->chunk = most;
  return ek__grains_zeros(&own->exchange, device, (int64_t)rows * own->chunk, type,
                          EK_MEMORY_COMMUNICATION);
}

/* Slots that device `index` needs in the memory of each: blocks of it that a round leaves behind
 * which is not the last. */
static size_t most_slots(const ek_data_parallel_model *model, size_t index) {
  size_t most = 0;
  for (size_t used = 1; used <= model->options.reproducible; used++) {
    struct ek__fold fold = {.leaves = used};
    size_t first = 0, last = 0;
    ek__grains_of(&first, &last, model, index, used);
    const size_t rounds = ek__grains_rounds(model, used);
    for (size_t i = first; i < last && i - first + 1 < rounds; i++) {
      (void)ek__fold_push(&fold, (struct ek__block){0, i});
      if (fold.depth > most) most = fold.depth;
    }
  }
  return most;
}

static ek_status open_shares(ek_data_parallel_model *model, ek_device *device, size_t index) {
  struct ek__grain_memory *own = &model->grain_memory[index];
  const struct ek__buckets *cut = ek__reducer_buckets(model->reducer);
  const int64_t share = ek__buckets_share(cut, cut->trained, index);
  int64_t longest = 0;
  size_t slots = 0;
  own->cut = cut;
  EK_TRY(ek__new(&own->runs, model->count, sizeof *own->runs, "a reproducible model"));
  for (size_t k = 0; k < model->count; k++) {
    own->runs[k].begin = slots;
    slots += most_slots(model, k);
  }
  for (size_t b = 0; b < cut->trained; b++) {
    const int64_t count = cut->list[b].last - cut->list[b].first;
    if (count > longest) longest = count;
  }
  EK_TRY(ek__grains_zeros(&own->slots, device, (int64_t)slots * share, model->options.gradient_type,
                          EK_MEMORY_GRADIENTS));
  return open_exchange(own, model, device, model->count, longest);
}

static ek_status open_one(void *context, ek_device *device, size_t index) {
  ek_data_parallel_model *model = context;
  struct ek__grain_memory *own = &model->grain_memory[index];
  const ek_type type = model->options.gradient_type;
  const int64_t count = ek_tensor_count(ek_replica_gradients(model->replicas[index]));
  const size_t grains = model->options.reproducible;
  size_t first = 0, last = 0;
  if (ek__placement(model)->gradient_shares) return open_shares(model, device, index);
  ek__grains_of(&first, &last, model, index, grains);
  for (size_t i = 1; i < ek__fold_most(first, last, grains); i++) {
    EK_TRY(ek__grains_zeros(&own->blocks[i], device, count, type, EK_MEMORY_GRADIENTS));
  }
  return open_exchange(own, model, device, most_blocks(model), count);
}

ek_status ek__grains_open(ek_data_parallel_model *model) {
  EK__FAIL_IF(model->replicas[0]->layout.collective, EK_ERR_UNSUPPORTED,
              "ek_data_parallel_model_open: %s has collectives of its own: a sum over the whole "
              "batch, which the grains of a reproducible model, one after the other, cannot have",
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
    ek_tensor_free(&own->slots);
    ek__free(own->runs);
    ek__free(own->offsets);
  }
  ek__free(model->grain_memory);
}
