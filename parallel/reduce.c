/*
 * reduce.c - sums gradients bucket by bucket while backward still runs.
 *
 * The buckets are the same on all devices; each device has its own record of which are complete,
 * and touches only that. Buckets are queued in their order and no other, because every device must
 * meet the collectives in the same order. Which of them are one call of a link follows from the
 * layout alone, because a rank without rows queues all of them at the end.
 */
#include <evenkeel/reduce.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/options.h"
#include "device/communicator_internal.h"
#include "parallel_internal.h"

static const char memory_of[] = "the gradient buckets";

/* ---- the sums of one rank, on its worker ---- */

ek_status ek__sums_open(struct ek__sums *sums, const struct ek__sums *like) {
  const size_t most = like->cut->parameters;
  *sums = *like;
  EK_TRY(ek__new(&sums->waiting, most, sizeof *sums->waiting, memory_of));
  return sums->queue == NULL ? EK_OK : ek__new(&sums->lent, most, sizeof *sums->lent, memory_of);
}

void ek__sums_close(struct ek__sums *sums) {
  ek__free(sums->lent);
  ek__free(sums->waiting);
}

void ek__sums_start(struct ek__sums *sums, bool more) {
  for (size_t i = 0; i < sums->cut->trained; i++) {
    sums->waiting[i] = sums->cut->list[i].parameters;
  }
  sums->queued = sums->overlapped = sums->settled = 0;
  sums->more = more;
}

static ek_status queue_bucket(struct ek__sums *sums, struct ek__rank *rank) {
  static const enum ek__collective_kind kinds[] = {[EK_REDUCE_TO_FIRST] = EK__REDUCE,
                                                   [EK_REDUCE_TO_ALL] = EK__ALL_REDUCE,
                                                   [EK_REDUCE_SCATTER] = EK__REDUCE_SCATTER};
  const struct ek__bucket *bucket = &sums->cut->list[sums->queued];
  if (sums->queue != NULL) return sums->queue(rank, sums->queued);
  const ek_tensor *flat = ek_replica_gradients(sums->replica);
  const ek_tensor range = ek__flat_range(flat, bucket->first, bucket->last - bucket->first);
  const bool cut = sums->kind == EK_REDUCE_SCATTER;
  return ek__communicator_start(sums->communicator, sums->device, &range,
                                &(struct ek__collective){.kind = kinds[sums->kind],
                                                         .offsets = cut ? bucket->offsets : NULL,
                                                         .more = bucket->joined});
}

/* Whether the next bucket is complete, and the one that is queued with it. */
static bool is_ready(const struct ek__sums *sums) {
  size_t next = sums->queued;
  if (next == sums->cut->trained) return false;
  while (sums->waiting[next] == 0 && sums->cut->list[next].joined) next++;
  return sums->waiting[next] == 0;
}

ek_status ek__sums_complete(struct ek__sums *sums, struct ek__rank *rank, size_t parameter) {
  EK__FAIL_IF(parameter >= sums->cut->parameters, EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_complete: no parameter number %zu", parameter);
  const size_t of = sums->cut->of[parameter];
  EK__FAIL_IF(of == EK__NO_BUCKET, EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_complete: number %zu is a buffer, which has no gradient", parameter);
  if (of >= sums->cut->trained) return EK_OK; /* frozen */
  EK__FAIL_IF(sums->waiting[of] == 0, EK_ERR_STATE,
              "ek_reducer_complete: bucket %zu is already complete", of);
  sums->waiting[of]--;
  if (rank != NULL) ek__keeper_note(&rank->keeper, EK__TRAIL_COMPLETE, parameter);
  while (is_ready(sums)) {
    for (bool more = true; more; sums->overlapped++) {
      more = sums->cut->list[sums->queued].joined;
      EK_TRY(queue_bucket(sums, rank));
      sums->queued++;
    }
  }
  return ek_communicator_progress(sums->communicator, sums->device);
}

ek_status ek__sums_finish(struct ek__sums *sums, struct ek__rank *rank) {
  for (; sums->queued < sums->cut->trained; sums->queued++) EK_TRY(queue_bucket(sums, rank));
  return ek_communicator_wait(sums->communicator, sums->device);
}

struct ek__span ek__bucket_owned(const struct ek__bucket *bucket, ek_reduce_kind kind,
                                 size_t rank) {
  if (kind == EK_REDUCE_SCATTER) return ek__bucket_span(bucket, rank);
  const bool all = kind == EK_REDUCE_TO_ALL || rank == 0;
  return (struct ek__span){.first = bucket->first, .count = all ? bucket->last - bucket->first : 0};
}

/* ---- a reducer ---- */

struct ek_reducer {
  ek_reduce_kind kind;
  struct ek__buckets buckets;
  struct ek__sums *sums; /* of the devices */
  size_t devices;
};

static ek_status check_open(ek_reducer **reducer, const ek_communicator *communicator,
                            ek_replica *const *replicas, const ek_reducer_options *o) {
  EK__NOT_NULL("ek_reducer_open", reducer, communicator, replicas);
  const ek_group *group = ek_communicator_group(communicator);
  EK__FAIL_IF((unsigned)o->kind > EK_REDUCE_SCATTER || o->pieces > INT32_MAX,
              EK_ERR_INVALID_ARGUMENT, "ek_reducer_open: unknown kind %d, or %zu pieces",
              (int)o->kind, o->pieces);
  for (size_t k = 0; k < ek_group_size(group); k++) {
    EK__FAIL_IF(ek_replica_device(replicas[k]) != ek_group_device(group, k) ||
                    ek_tensor_count(ek_replica_gradients(replicas[k])) !=
                        ek_tensor_count(ek_replica_gradients(replicas[0])),
                EK_ERR_DEVICE,
                "ek_reducer_open: replica number %zu is missing, not on %s, or of another size", k,
                ek_device_name(ek_group_device(group, k)));
    EK__FAIL_IF(ek_tensor_count(ek_replica_gradients(replicas[k])) <
                    replicas[k]->layout.trained_count,
                EK_ERR_STATE, "ek_reducer_open: replica number %zu holds no gradients", k);
  }
  return EK_OK;
}

static ek_status open_sums(ek_reducer *reducer, ek_communicator *communicator,
                           ek_replica *const *replicas) {
  const ek_group *group = ek_communicator_group(communicator);
  EK_TRY(ek__new(&reducer->sums, reducer->devices, sizeof *reducer->sums, memory_of));
  for (size_t k = 0; k < reducer->devices; k++) {
    const struct ek__sums like = {.communicator = communicator,
                                  .cut = &reducer->buckets,
                                  .device = ek_group_device(group, k),
                                  .replica = replicas[k],
                                  .kind = reducer->kind};
    EK_TRY(ek__sums_open(&reducer->sums[k], &like));
  }
  return EK_OK;
}

ek_status ek_reducer_open(ek_reducer **reducer, ek_communicator *communicator,
                          ek_replica *const *replicas, const ek_reducer_options *options) {
  ek_reducer_options o = EK_REDUCER_OPTIONS_INIT;
  EK_TRY(ek__options_read(&o, sizeof o, options, "ek_reducer_options"));
  EK_TRY(check_open(reducer, communicator, replicas, &o));
  ek_reducer *result = NULL;
  EK_TRY(ek__new(&result, 1, sizeof *result, memory_of));
  result->kind = o.kind;
  result->devices = ek_group_size(ek_communicator_group(communicator));
  const size_t ranks = ek_communicator_world_size(communicator);
  ek_status status = EK_OK;
  EK_TRY_GOTO(status,
              ek__buckets_open(&result->buckets, replicas[0], ranks,
                               o.pieces == 0 ? ranks : o.pieces,
                               ek__bucket_bytes(o.bucket_bytes, ek_replica_device(replicas[0])),
                               NULL),
              cleanup);
  EK_TRY_GOTO(status, open_sums(result, communicator, replicas), cleanup);
  *reducer = result;
  return EK_OK;
cleanup:
  ek_reducer_free(result);
  return status;
}

void ek_reducer_free(ek_reducer *reducer) {
  if (reducer == NULL) return;
  for (size_t k = 0; k < reducer->devices && reducer->sums != NULL; k++) {
    ek__sums_close(&reducer->sums[k]);
  }
  ek__free(reducer->sums);
  ek__buckets_close(&reducer->buckets);
  ek__free(reducer);
}

size_t ek_reducer_bucket_count(const ek_reducer *reducer) {
  return reducer == NULL ? 0 : reducer->buckets.trained;
}

ek_status ek_reducer_range(int64_t *first, int64_t *last, const ek_reducer *reducer, size_t bucket,
                           size_t rank) {
  EK__FAIL_IF(first == NULL || last == NULL || reducer == NULL ||
                  bucket >= reducer->buckets.trained || rank >= reducer->buckets.ranks,
              EK_ERR_INVALID_ARGUMENT,
              "ek_reducer_range: an argument is NULL, or bucket %zu or rank %zu does not exist",
              bucket, rank);
  const struct ek__span own = ek__bucket_owned(&reducer->buckets.list[bucket], reducer->kind, rank);
  *first = own.first;
  *last = own.first + own.count;
  return EK_OK;
}

static ek_status sums_of(struct ek__sums **sums, const char *who, ek_reducer *reducer,
                         const ek_device *device) {
  EK__FAIL_IF(reducer == NULL || device == NULL || ek_device_index(device) >= reducer->devices ||
                  reducer->sums[ek_device_index(device)].device != device,
              EK_ERR_INVALID_ARGUMENT,
              "%s: the reducer is NULL, or the device is not one of its "
              "devices",
              who);
  *sums = &reducer->sums[ek_device_index(device)];
  return EK_OK;
}

ek_status ek_reducer_begin(ek_reducer *reducer, ek_device *device) {
  struct ek__sums *sums = NULL;
  EK_TRY(sums_of(&sums, "ek_reducer_begin", reducer, device));
  ek__sums_start(sums, false);
  return EK_OK;
}

ek_status ek_reducer_complete(ek_reducer *reducer, ek_device *device, size_t parameter) {
  struct ek__sums *sums = NULL;
  EK_TRY(sums_of(&sums, "ek_reducer_complete", reducer, device));
  return ek__sums_complete(sums, NULL, parameter);
}

ek_status ek_reducer_end(ek_reducer *reducer, ek_device *device) {
  struct ek__sums *sums = NULL;
  EK_TRY(sums_of(&sums, "ek_reducer_end", reducer, device));
  return ek__sums_finish(sums, NULL);
}

size_t ek_reducer_overlapped(const ek_reducer *reducer, size_t device) {
  return reducer == NULL || device >= reducer->devices ? 0 : reducer->sums[device].overlapped;
}

EK__OPTIONS_INIT(ek_reducer_options, EK_REDUCER_OPTIONS_INIT)
