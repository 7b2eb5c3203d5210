/*
 * shards.c - parts, offsets and samples in one block that the group lends.
 *
 * Invariant: ticket is that of the block as long as the shards own it. The group gives every loan a
 * new ticket, so a stale copy of the struct is recognized even after the block was lent again.
 */
#include <evenkeel/shards.h>

#include <string.h>

#include "core/error.h"
#include "core/log_internal.h"
#include "parallel_internal.h"

ek_status ek_shards_create(ek_shards *shards, ek_group *group) {
  EK__NOT_NULL("ek_shards_create", shards, group);
  EK_TRY(ek__group_check(group, "ek_shards_create"));
  const size_t count = ek_group_size(group);
  const size_t parts = count * sizeof(ek_tensor), numbers = (count + 1) * sizeof(int64_t);
  uint64_t ticket = 0;
  char *block = ek__host_block_take(&ticket, ek__group_blocks(group), parts + 2 * numbers);
  EK__FAIL_IF(block == NULL, EK_ERR_OUT_OF_MEMORY, "out of host memory for the shards of %zu "
                                                   "devices",
              count);
  *shards = (ek_shards){.group = group,
                        .count = count,
                        .parts = (ek_tensor *)(void *)block,
                        .offsets = (int64_t *)(void *)(block + parts),
                        .samples = (int64_t *)(void *)(block + parts + numbers),
                        .private_members.ticket = ticket};
  return EK_OK;
}

static int64_t elements(const ek_shards *shards) {
  int64_t count = 0;
  for (size_t k = 0; k < shards->count; k++) {
    if (ek_tensor_exists(&shards->parts[k])) count += ek_tensor_count(&shards->parts[k]);
  }
  return count;
}

int64_t ek__targets_most(const ek_tensor *tensors, const ek_shards *shards, size_t count,
                         int64_t samples) {
  int64_t most = samples;
  for (size_t i = 0; i < count; i++) {
    const int64_t number = tensors != NULL ? ek_tensor_count(&tensors[i]) : elements(&shards[i]);
    if (number > most) most = number;
  }
  return most;
}

ek_status ek__shards_create_like(ek_shards *shards, const ek_shards *like) {
  EK_TRY(ek_shards_create(shards, like->group));
  memcpy(shards->samples, like->samples, (like->count + 1) * sizeof *like->samples);
  return EK_OK;
}

static bool stale(const ek_shards *shards) {
  return shards->parts == NULL ||
         !ek__host_block_lent(shards->parts, shards->private_members.ticket);
}

void ek_shards_free(ek_shards *shards) {
  if (shards == NULL) return;
  if (shards->group != NULL && !stale(shards)) {
    for (size_t i = 0; i < shards->count; i++) ek_tensor_free(&shards->parts[i]);
    if (!ek__group_of_parent(shards->group)) {
      ek__host_block_give(ek__group_blocks(shards->group), shards->parts);
    }
  } else if (shards->group != NULL) {
    ek__log(EK_LOG_WARNING, "ek_shards_free: the shards were freed through a copy of the struct");
  }
  memset(shards, 0, sizeof *shards);
}

ek_status ek__shards_check(const char *who, const ek_shards *shards) {
  EK__FAIL_IF(shards == NULL || shards->group == NULL, EK_ERR_INVALID_ARGUMENT,
              "%s: the shards are NULL or empty", who);
  if (!stale(shards)) return EK_OK;
  return ek_error_set(EK_ERR_STATE, "%s: the shards were freed through a copy of the struct", who);
}

ek_status ek_shards_wait(const ek_shards *shards) {
  EK__NOT_NULL("ek_shards_wait", shards);
  if (shards->group == NULL) return EK_OK;
  EK_TRY(ek__shards_check("ek_shards_wait", shards));
  for (size_t i = 0; i < shards->count; i++) {
    if (ek_tensor_exists(&shards->parts[i])) EK_TRY(ek_tensor_wait(&shards->parts[i]));
  }
  return EK_OK;
}

/* ---- shards that a program has made ---- */

bool ek__target_fits(const ek_shards *target, const ek_shards *like) {
  const int64_t samples = like->samples[like->count], rows = target->offsets[like->count];
  if (target->broadcast || (samples == 0 ? rows != 0 : rows % samples != 0)) return false;
  const int64_t per_sample = samples == 0 ? 0 : rows / samples;
  for (size_t k = 0; k <= like->count; k++) {
    if (target->offsets[k] != like->samples[k] * per_sample) return false;
  }
  return true;
}
