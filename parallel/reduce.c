/*
 * reduce.c - sums gradients bucket by bucket while backward still runs.
 *
 * The buckets are the same on all devices; each device has its own record of which are complete,
 * and touches only that. Buckets are queued in their order and no other, because every device must
 * meet the collectives in the same order.
 */
#include <evenkeel/reduce.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "module/layout.h"
#include "parallel_internal.h"

struct bucket {
  int64_t first, last; /* elements of the flat buffer */
  uint32_t parameters; /* how many complete it */
  int64_t *offsets;    /* rank r owns first + offsets[r] .. first + offsets[r + 1] - 1 */
};

struct progress {    /* of one device in this round */
  uint32_t *waiting; /* per bucket: parameters that are not complete */
  size_t queued;     /* buckets queued so far */
  size_t overlapped; /* of those, before finish */
};

struct ek_reducer {
  ek_communicator *communicator;
  ek_reducer_options options;
  size_t devices, ranks; /* of this process, of the world */
  ek_replica **replicas; /* of the devices */
  struct bucket *buckets;
  size_t bucket_count;
  int64_t *offsets;          /* of all buckets */
  size_t *bucket_of;         /* per parameter of the replica */
  struct progress *progress; /* of the devices */
};

/* Whole parameters from the end of the flat buffer to its beginning, until a bucket is large
 * enough.
 */
static ek_status make_buckets(ek_reducer *reducer) {
  const ek_replica *replica = reducer->replicas[0];
  const size_t parameters = ek_replica_parameter_count(replica);
  const int64_t element = (int64_t)ek_type_size(ek_replica_type(replica));
  int64_t end = ek_tensor_count(ek_replica_gradients(replica));
  uint32_t members = 0;
  for (size_t place = EK__GROUPS * parameters; place-- > 0;) {
    const size_t i = place % parameters;
    ek_parameter_info info;
    EK_TRY(ek_replica_parameter(&info, replica, i));
    if (info.buffer) reducer->bucket_of[i] = SIZE_MAX; /* it is in none */
    if (info.buffer || ek__group_of(info.no_decay, info.frozen) != place / parameters) continue;
    reducer->bucket_of[i] = reducer->bucket_count;
    members++;
    const bool large =
        (uint64_t)(end - info.offset) * (uint64_t)element >= reducer->options.bucket_bytes;
    if (!large && info.offset > 0) continue;
    int64_t *offsets = &reducer->offsets[reducer->bucket_count * (reducer->ranks + 1)];
    for (size_t r = 0; r <= reducer->ranks; r++) {
      offsets[r] = ek__part_begin(end - info.offset, r, reducer->ranks);
    }
    reducer->buckets[reducer->bucket_count++] = (struct bucket){
        .first = info.offset, .last = end, .parameters = members, .offsets = offsets};
    end = info.offset;
    members = 0;
  }
  return EK_OK;
}

static const char memory_of[] = "the gradient buckets";

static ek_status allocate(ek_reducer *reducer, ek_replica *const *replicas) {
  const size_t parameters = ek_replica_parameter_count(replicas[0]);
  EK_TRY(
      ek__new_copy(&reducer->replicas, replicas, reducer->devices * sizeof *replicas, memory_of));
  EK_TRY(ek__new(&reducer->buckets, parameters, sizeof *reducer->buckets, memory_of));
  EK_TRY(ek__new(&reducer->offsets, parameters, (reducer->ranks + 1) * sizeof *reducer->offsets,
                 memory_of));
  EK_TRY(ek__new(&reducer->bucket_of, parameters, sizeof *reducer->bucket_of, memory_of));
  EK_TRY(ek__new(&reducer->progress, reducer->devices, sizeof *reducer->progress, memory_of));
  for (size_t k = 0; k < reducer->devices; k++) {
    EK_TRY(ek__new(&reducer->progress[k].waiting, parameters, sizeof(uint32_t), memory_of));
  }
  return EK_OK;
}

static ek_status check_open(ek_reducer **reducer, const ek_communicator *communicator,
                            const ek_group *group, ek_replica *const *replicas,
                            const ek_reducer_options *o) {
  EK__NOT_NULL("ek_reducer_open", reducer, communicator, group, replicas);
  EK__FAIL_IF((unsigned)o->kind > EK_REDUCE_SCATTER, EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_open: there is no kind %d", (int)o->kind);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    EK__FAIL_IF(ek_replica_device(replicas[k]) != ek_group_device(group, k) ||
                    ek_tensor_count(ek_replica_gradients(replicas[k])) !=
                        ek_tensor_count(ek_replica_gradients(replicas[0])),
                EK_ERR_DEVICE,
                "ek_reducer_open: replica number %zu is missing, not on %s, or of another size", k,
                ek_device_name(ek_group_device(group, k)));
    EK__FAIL_IF(ek_tensor_count(ek_replica_gradients(replicas[k])) <
                    ek_tensor_count(ek_replica_parameters(replicas[k])),
                EK_ERR_STATE, "ek_reducer_open: replica number %zu holds no gradients", k);
  }
  return EK_OK;
}

ek_status ek_reducer_open(ek_reducer **reducer, ek_communicator *communicator, ek_group *group,
                          ek_replica *const *replicas, const ek_reducer_options *options) {
  ek_reducer_options o = EK_REDUCER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_reducer_options"));
  EK_TRY(check_open(reducer, communicator, group, replicas, &o));
  ek_reducer *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->communicator = communicator;
  result->options = o;
  result->devices = ek_group_size(group);
  result->ranks = ek_communicator_world_size(communicator);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, allocate(result, replicas), cleanup);
  EK_TRY_GOTO(status, make_buckets(result), cleanup);
  *reducer = result;
  return EK_OK;
cleanup:
  ek_reducer_free(result);
  return status;
}

void ek_reducer_free(ek_reducer *reducer) {
  if (reducer == NULL) return;
  for (size_t k = 0; k < reducer->devices && reducer->progress != NULL; k++) {
    ek__free(reducer->progress[k].waiting);
  }
  ek__free(reducer->progress);
  ek__free(reducer->bucket_of);
  ek__free(reducer->offsets);
  ek__free(reducer->buckets);
  ek__free(reducer->replicas);
  ek__free(reducer);
}

size_t ek_reducer_bucket_count(const ek_reducer *reducer) {
  return reducer == NULL ? 0 : reducer->bucket_count;
}

ek_status ek_reducer_range(int64_t *first, int64_t *last, const ek_reducer *reducer, size_t bucket,
                           size_t rank) {
  EK__FAIL_IF(first == NULL || last == NULL || reducer == NULL || bucket >= reducer->bucket_count ||
                  rank >= reducer->ranks,
              EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_range: an argument is NULL, or there is no bucket %zu on rank %zu",
              bucket, rank);
  const struct bucket *b = &reducer->buckets[bucket];
  switch (reducer->options.kind) {
  case EK_REDUCE_TO_FIRST:
    *first = b->first;
    *last = rank == 0 ? b->last : b->first;
    break;
  case EK_REDUCE_TO_ALL:
    *first = b->first;
    *last = b->last;
    break;
  case EK_REDUCE_SCATTER:
    *first = b->first + b->offsets[rank];
    *last = b->first + b->offsets[rank + 1];
    break;
  }
  return EK_OK;
}

/* ---- a round, on a device's worker ---- */

static ek_status own_progress(struct progress **progress, const char *who, ek_reducer *reducer,
                              const ek_device *device) {
  EK__FAIL_IF(reducer == NULL || device == NULL || ek_device_index(device) >= reducer->devices ||
                  ek_replica_device(reducer->replicas[ek_device_index(device)]) != device,
              EK_ERR_INVALID_ARGUMENT, "%s: no reducer, or a device that is not of it", who);
  *progress = &reducer->progress[ek_device_index(device)];
  return EK_OK;
}

ek_status ek_reducer_start(ek_reducer *reducer, ek_device *device) {
  struct progress *progress = NULL;
  EK_TRY(own_progress(&progress, "ek_reducer_start", reducer, device));
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    progress->waiting[i] = reducer->buckets[i].parameters;
  }
  progress->queued = progress->overlapped = 0;
  return EK_OK;
}

static ek_status queue_bucket(ek_reducer *reducer, ek_device *device, const struct bucket *bucket) {
  const ek_tensor *flat = ek_replica_gradients(reducer->replicas[ek_device_index(device)]);
  ek_tensor range = ek__flat_range(flat, bucket->first, bucket->last - bucket->first);
  switch (reducer->options.kind) {
  case EK_REDUCE_TO_FIRST: return ek_communicator_reduce(reducer->communicator, device, &range, 0);
  case EK_REDUCE_TO_ALL: return ek_communicator_all_reduce(reducer->communicator, device, &range);
  case EK_REDUCE_SCATTER:
    return ek_communicator_reduce_scatter(reducer->communicator, device, &range, bucket->offsets);
  }
  return EK_OK;
}

ek_status ek_reducer_complete(ek_reducer *reducer, ek_device *device, size_t parameter) {
  struct progress *progress = NULL;
  EK_TRY(own_progress(&progress, "ek_reducer_complete", reducer, device));
  EK__FAIL_IF(parameter >= ek_replica_parameter_count(reducer->replicas[0]),
              EK_ERR_INVALID_ARGUMENT, "ek_reducer_complete: no parameter number %zu", parameter);
  const size_t of = reducer->bucket_of[parameter];
  EK__FAIL_IF(of == SIZE_MAX, EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_complete: number %zu is a buffer, which has no gradient", parameter);
  EK__FAIL_IF(progress->waiting[of] == 0, EK_ERR_STATE,
              "ek_reducer_complete: bucket %zu is complete already", of);
  progress->waiting[of]--;
  while (progress->queued < reducer->bucket_count && progress->waiting[progress->queued] == 0) {
    EK_TRY(queue_bucket(reducer, device, &reducer->buckets[progress->queued]));
    progress->queued++;
    progress->overlapped++;
  }
  return ek_communicator_progress(reducer->communicator, device);
}

ek_status ek_reducer_finish(ek_reducer *reducer, ek_device *device) {
  struct progress *progress = NULL;
  EK_TRY(own_progress(&progress, "ek_reducer_finish", reducer, device));
  for (; progress->queued < reducer->bucket_count; progress->queued++) {
    EK_TRY(queue_bucket(reducer, device, &reducer->buckets[progress->queued]));
  }
  return ek_communicator_wait(reducer->communicator, device);
}

size_t ek_reducer_overlapped(const ek_reducer *reducer, size_t device) {
  return reducer == NULL || device >= reducer->devices ? 0 : reducer->progress[device].overlapped;
}
