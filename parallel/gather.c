/*
 * gather.c - puts the parts of a tensor together again.
 *
 * Every device's worker copies its own part to its place, so that the copies run in parallel.
 */
#include <evenkeel/gather.h>

#include <string.h>

#include "core/error.h"
#include "device/types.h"
#include "parallel_internal.h"

/* The row of the whole at which a part begins. */
static int64_t first_row(const ek_shards *shards, size_t index) {
  int64_t first = 0;
  for (size_t i = 0; i < index; i++) first += ek__part_rows(&shards->parts[i]);
  return first;
}

/* Except for the number of rows. */
static bool fits(const ek_tensor *a, const ek_tensor *b) {
  ek_tensor like = *b;
  if (like.rank > 0) like.shape[0] = a->shape[0];
  return ek_tensor_same_shape(a, &like);
}

/* Type, rank and shape of the whole. */
static ek_status measure(ek_tensor *whole, const char *who, const ek_shards *shards) {
  EK_TRY(ek__shards_check(who, shards));
  const ek_tensor *model = NULL, *any = NULL;
  for (size_t i = 0; i < shards->count; i++) {
    const ek_tensor *part = &shards->parts[i];
    if (any == NULL && ek_tensor_exists(part)) any = part;
    if (ek__part_rows(part) == 0) continue;
    if (model == NULL) model = part;
    EK__FAIL_IF(!fits(model, part), EK_ERR_SHAPE,
                "%s: the part on %s has another type or other dimensions than the first", who,
                ek_device_name(part->device));
  }
  if (model == NULL) model = any;
  EK__FAIL_IF(model == NULL, EK_ERR_INVALID_ARGUMENT, "%s: the shards are empty", who);
  *whole = (ek_tensor){.type = model->type, .rank = model->rank == 0 ? 1 : model->rank};
  memcpy(whole->shape, model->shape, sizeof whole->shape);
  whole->shape[0] = first_row(shards, shards->count);
  return ek_shards_wait(shards); /* a part may become the beginning of the whole */
}

struct gather_job {
  const ek_shards *shards;
  ek_tensor *whole;
};

static ek_status copy_part(void *context, ek_device *device, size_t index) {
  (void)device;
  const struct gather_job *job = context;
  const ek_tensor *part = &job->shards->parts[index];
  const int64_t count = ek__part_rows(part);
  if (count == 0) return EK_OK;
  ek_tensor rows = {0};
  EK_TRY(ek_tensor_rows(&rows, job->whole, first_row(job->shards, index), count));
  const ek_status status = ek__tensor_copy_converted(&rows, part);
  ek_tensor_free(&rows);
  return status;
}

/*
 * Makes the target's own part longer if it begins the whole and has room after it. The memory then
 * belongs to the result; the part still refers to its rows, which need not be copied.
 */
static ek_status try_in_place(ek_tensor *result, ek_shards *shards, size_t device, int64_t rows,
                              ek_memory_category category) {
  ek_tensor *own = &shards->parts[device];
  const int64_t own_rows = ek__part_rows(own);
  bool grown = false;
  if (own_rows == 0 || own->rank == 0 || first_row(shards, device) != 0) return EK_OK;
  EK_TRY(ek_tensor_grow(&grown, own, rows));
  if (!grown) return EK_OK;
  *result = *own;
  own->memory = NULL;
  own->shape[0] = own_rows;
  return ek_tensor_set_category(result, category);
}

static ek_status gather(ek_tensor *whole, const char *who, ek_shards *shards, size_t device,
                        ek_memory_category category, bool move) {
  ek_tensor like, result = {0};
  ek_status status = EK_OK;
  struct gather_job job = {shards, &result};
  EK__FAIL_IF(whole == NULL || shards == NULL || device >= shards->count, EK_ERR_INVALID_ARGUMENT,
              "%s: whole or shards is NULL, or no device has number %zu", who, device);
  EK_TRY(measure(&like, who, shards));
  if (move) {
    EK_TRY_GOTO(status, try_in_place(&result, shards, device, like.shape[0], category), cleanup);
  }
  if (!ek_tensor_exists(&result)) {
    EK_TRY_GOTO(status,
                ek_tensor_create(&result, ek_group_device(shards->group, device), category,
                                 like.type, like.rank, like.shape),
                cleanup);
  }
  EK_TRY_GOTO(status, ek_group_apply(shards->group, copy_part, &job), cleanup);
  *whole = result;
  return EK_OK;
cleanup:
  ek_tensor_free(&result);
  return status;
}

ek_status ek_gather(ek_tensor *whole, const ek_shards *shards, size_t device,
                    ek_memory_category category) {
  return gather(whole, "ek_gather", (ek_shards *)(uintptr_t)shards, device, category, false);
}

ek_status ek_gather_move(ek_tensor *whole, ek_shards *shards, size_t device,
                         ek_memory_category category) {
  const ek_status status = gather(whole, "ek_gather_move", shards, device, category, true);
  ek_shards_free(shards);
  return status;
}

ek_status ek_gather_host(ek_tensor *whole, const ek_shards *shards) {
  ek_tensor like;
  EK_TRY(measure(&like, "ek_gather_host", shards));
  EK__FAIL_IF(!ek_tensor_exists(whole) || whole->device != NULL, EK_ERR_INVALID_ARGUMENT,
              "ek_gather_host: expected a tensor in host memory");
  EK__FAIL_IF(whole->type != like.type &&
                  !(ek__type_is_floating(whole->type) && ek__type_is_floating(like.type)),
              EK_ERR_TYPE, "ek_gather_host: the parts are %s, the host tensor is %s",
              ek_type_name(like.type), ek_type_name(whole->type));
  EK__FAIL_IF(ek_tensor_count(whole) != ek_tensor_count(&like), EK_ERR_SHAPE,
              "ek_gather_host: the parts have %lld elements, the host tensor has %lld",
              (long long)ek_tensor_count(&like), (long long)ek_tensor_count(whole));
  like.data = whole->data;
  like.type = whole->type;
  struct gather_job job = {shards, &like};
  return ek_group_apply(shards->group, copy_part, &job);
}
