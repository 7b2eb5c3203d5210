/*
 * reduce.c - sums gradients bucket by bucket while backward still runs.
 *
 * The buckets are the same on all devices; each device has its own record of which are complete,
 * and touches only that. Buckets are queued in their order and no other, because every device must
 * meet the collectives in the same order.
 *
 * Where replicas hold no gradients, a device's keeper lends the buckets (keeper.c).
 */
#include <evenkeel/reduce.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "core/sizes.h"
#include "keeper.h"
#include "module/replica_internal.h"
#include "reduce_internal.h"

struct progress {    /* of one device in this round */
  uint32_t *waiting; /* per bucket: parameters that are not complete */
  size_t queued;     /* buckets queued so far */
  size_t overlapped; /* of those, before finish */
};

struct ek_reducer {
  ek_communicator *communicator;
  ek_reducer_options options;
  size_t devices, ranks;             /* of this process, of the world */
  ek_replica **replicas;             /* of the devices */
  struct ek__keeper *const *keepers; /* of the devices; NULL if the replicas hold gradients */
  struct ek__buckets buckets;
  struct progress *progress; /* of the devices */
};

static const char memory_of[] = "the gradient buckets";

static ek_status allocate(ek_reducer *reducer, ek_replica *const *replicas) {
  const size_t parameters = ek_replica_parameter_count(replicas[0]);
  EK_TRY(
      ek__new_copy(&reducer->replicas, replicas, reducer->devices * sizeof *replicas, memory_of));
  EK_TRY(ek__new(&reducer->progress, reducer->devices, sizeof *reducer->progress, memory_of));
  for (size_t k = 0; k < reducer->devices; k++) {
    EK_TRY(ek__new(&reducer->progress[k].waiting, parameters, sizeof(uint32_t), memory_of));
  }
  return ek__buckets_open(&reducer->buckets, replicas[0], reducer->ranks, reducer->options.pieces,
                          reducer->options.bucket_bytes);
}

static ek_status check_open(ek_reducer **reducer, const ek_communicator *communicator,
                            const ek_group *group, ek_replica *const *replicas,
                            const ek_reducer_options *o, bool whole) {
  EK__NOT_NULL("ek_reducer_open", reducer, communicator, group, replicas);
  EK__FAIL_IF((unsigned)o->kind > EK_REDUCE_SCATTER || o->pieces > INT32_MAX,
              EK_ERR_INVALID_ARGUMENT, "ek_reducer_open: there is no kind %d, or %zu pieces",
              (int)o->kind, o->pieces);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    EK__FAIL_IF(ek_replica_device(replicas[k]) != ek_group_device(group, k) ||
                    ek_tensor_count(ek_replica_gradients(replicas[k])) !=
                        ek_tensor_count(ek_replica_gradients(replicas[0])),
                EK_ERR_DEVICE,
                "ek_reducer_open: replica number %zu is missing, not on %s, or of another size", k,
                ek_device_name(ek_group_device(group, k)));
    EK__FAIL_IF(whole && ek_tensor_count(ek_replica_gradients(replicas[k])) <
                             replicas[k]->layout.trained_count,
                EK_ERR_STATE, "ek_reducer_open: replica number %zu holds no gradients", k);
  }
  return EK_OK;
}

ek_status ek_reducer_open(ek_reducer **reducer, ek_communicator *communicator, ek_group *group,
                          ek_replica *const *replicas, const ek_reducer_options *options) {
  return ek__reducer_open(reducer, communicator, group, replicas, options, NULL);
}

ek_status ek__reducer_open(ek_reducer **reducer, ek_communicator *communicator, ek_group *group,
                           ek_replica *const *replicas, const ek_reducer_options *options,
                           struct ek__keeper *const *keepers) {
  ek_reducer_options o = EK_REDUCER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_reducer_options"));
  EK_TRY(check_open(reducer, communicator, group, replicas, &o, keepers == NULL));
  ek_reducer *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->communicator = communicator;
  result->keepers = keepers;
  result->options = o;
  result->devices = ek_group_size(group);
  result->ranks = ek_communicator_world_size(communicator);
  if (o.pieces == 0) result->options.pieces = result->ranks;
  ek_status status = EK_OK;
  EK_TRY_GOTO(status, allocate(result, replicas), cleanup);
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
  ek__buckets_close(&reducer->buckets);
  ek__free(reducer->replicas);
  ek__free(reducer);
}

size_t ek_reducer_bucket_count(const ek_reducer *reducer) {
  return reducer == NULL ? 0 : reducer->buckets.trained;
}

ek_status ek_reducer_range(int64_t *first, int64_t *last, const ek_reducer *reducer, size_t bucket,
                           size_t rank) {
  EK__FAIL_IF(first == NULL || last == NULL || reducer == NULL ||
                  bucket >= reducer->buckets.trained || rank >= reducer->ranks,
              EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_range: an argument is NULL, or there is no bucket %zu on rank %zu",
              bucket, rank);
  const struct ek__bucket *b = &reducer->buckets.list[bucket];
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

const struct ek__buckets *ek__reducer_buckets(const ek_reducer *reducer) {
  return &reducer->buckets;
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
  for (size_t i = 0; i < reducer->buckets.trained; i++) {
    progress->waiting[i] = reducer->buckets.list[i].parameters;
  }
  progress->queued = progress->overlapped = 0;
  if (reducer->keepers != NULL) ek__keeper_start(reducer->keepers[ek_device_index(device)]);
  return EK_OK;
}

static ek_status queue_bucket(ek_reducer *reducer, ek_device *device, size_t number) {
  const struct ek__bucket *bucket = &reducer->buckets.list[number];
  if (reducer->keepers != NULL) {
    return ek__keeper_reduce(reducer->keepers[ek_device_index(device)], number);
  }
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
  const size_t of = reducer->buckets.of[parameter];
  EK__FAIL_IF(of == SIZE_MAX, EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_complete: number %zu is a buffer, which has no gradient", parameter);
  if (of >= reducer->buckets.trained) return EK_OK; /* frozen */
  EK__FAIL_IF(progress->waiting[of] == 0, EK_ERR_STATE,
              "ek_reducer_complete: bucket %zu is complete already", of);
  progress->waiting[of]--;
  if (reducer->keepers != NULL) {
    ek__keeper_note(reducer->keepers[ek_device_index(device)], EK__TRAIL_COMPLETE, parameter);
  }
  while (progress->queued < reducer->buckets.trained && progress->waiting[progress->queued] == 0) {
    EK_TRY(queue_bucket(reducer, device, progress->queued));
    progress->queued++;
    progress->overlapped++;
  }
  return ek_communicator_progress(reducer->communicator, device);
}

ek_status ek_reducer_finish(ek_reducer *reducer, ek_device *device) {
  struct progress *progress = NULL;
  EK_TRY(own_progress(&progress, "ek_reducer_finish", reducer, device));
  for (; progress->queued < reducer->buckets.trained; progress->queued++) {
    EK_TRY(queue_bucket(reducer, device, progress->queued));
  }
  EK_TRY(ek_communicator_wait(reducer->communicator, device));
  if (reducer->keepers == NULL) return EK_OK;
  return ek__keeper_settle(reducer->keepers[ek_device_index(device)], reducer->buckets.trained);
}

size_t ek_reducer_overlapped(const ek_reducer *reducer, size_t device) {
  return reducer == NULL || device >= reducer->devices ? 0 : reducer->progress[device].overlapped;
}
