/*
 * communicator.c - the checked entry points of the collectives, and the communicator that counts.
 */
#include <evenkeel/communicator.h>

#include <pthread.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/between.h"
#include "device/communicator_internal.h"
#include "device/device_struct.h"
#include "device/fault_internal.h"

/* ---- the counting communicator: nothing moves, so nothing waits ---- */

/* All wait for what the processes say about a collective, and for each half of it. */
static void count_between(const ek_communicator *self, const struct ek__collective *collective,
                          struct ek__work *work) {
  const struct ek__traffic traffic =
      ek__between_traffic(self->group, self->reach, self->urgent, collective);
  work->sent += traffic.bytes;
  work->trips += traffic.bytes > 0 ? 1 + traffic.halves : 0;
}

/* A device of N sends (and gets) all except its own part; twice if it gets the sum of all in the
 * end. */
static ek_status count_start(ek_communicator *self, ek_device *device,
                             const struct ek__collective *collective) {
  struct ek__work *work = ek__device_work(device);
  const double devices = (double)ek_group_size(self->group);
  const double bytes = (double)collective->count * (double)ek_type_size(collective->type);
  const bool twice = collective->kind == EK__ALL_REDUCE;
  work->moved += (twice ? 2 : 1) * bytes * (devices - 1) / devices;
  if (ek_device_index(device) == 0) count_between(self, collective, work);
  work->calls++;
  return EK_OK;
}

struct counting {
  ek_communicator base;
  ek_tensor *buffers; /* of each device, to other processes; NULL: there are none */
};

static void count_close(ek_communicator *base) {
  struct counting *self = (struct counting *)base;
  for (size_t i = 0; i < ek_group_size(base->group) && self->buffers != NULL; i++) {
    ek_tensor_free(&self->buffers[i]);
  }
  ek__free(self->buffers);
  ek__free(self);
}

static const struct ek__communicator_table count_table = {
    .name = "count", .start = count_start, .close = count_close};

static ek_status count_open(ek_communicator **communicator, ek_group *group, enum ek__reach reach,
                            bool urgent) {
  const struct counting made = {
      .base = {.table = &count_table, .group = group, .reach = reach, .urgent = urgent}};
  const size_t devices = ek_group_size(group);
  struct counting *self = NULL;
  ek_status status = EK_OK;
  EK_TRY(ek__new_copy(&self, &made, sizeof made, "a communicator"));
  /* NCCL has memory of its own; devices that compute in the host's have buffers. */
  if (ek__between_in_host(group) && ek__group_world_size(group) > devices &&
      reach != EK__REACH_PROCESS) {
    status = ek__new(&self->buffers, devices, sizeof *self->buffers, "a communicator");
    if (status == EK_OK) status = ek__between_reserve(self->buffers, group, reach);
  }
  if (status == EK_OK) {
    *communicator = &self->base;
  } else {
    count_close(&self->base);
  }
  return status;
}

/* ---- opening and closing ---- */

static void abort_one(struct ek__abortable *abortable) {
  ek_communicator_abort((ek_communicator *)(void *)abortable);
}

static bool unblock_one(struct ek__abortable *abortable) {
  ek_communicator *self = (ek_communicator *)(void *)abortable;
  return self->table->unblock != NULL && self->table->unblock(self);
}

static void renew_one(struct ek__abortable *abortable) {
  ek_communicator *self = (ek_communicator *)(void *)abortable;
  if (self->table->renew != NULL) self->table->renew(self);
}

ek_status ek__communicator_open(ek_communicator **communicator, ek_group *group,
                                enum ek__reach reach, bool urgent) {
  EK_TRY(ek__group_check(group, "ek_communicator_open"));
  ek_communicator *result = NULL;
  if (ek_device_counts_only(ek_group_device(group, 0))) {
    EK_TRY(count_open(&result, group, reach, urgent));
  } else {
    EK_TRY(ek__host_communicator_open(&result, group, reach, urgent));
  }
  result->abortable.abort = abort_one;
  result->abortable.unblock = unblock_one;
  result->abortable.renew = renew_one;
  ek__group_attach(group, &result->abortable);
  *communicator = result;
  return EK_OK;
}

ek_status ek_communicator_open(ek_communicator **communicator, ek_group *group) {
  EK__NOT_NULL("ek_communicator_open", communicator, group);
  return ek__communicator_open(communicator, group, EK__REACH_WORLD, false);
}

void ek_communicator_free(ek_communicator *communicator) {
  if (communicator == NULL || ek__group_of_parent(communicator->group)) return;
  ek__group_detach(communicator->group, &communicator->abortable);
  for (size_t i = 0; i < ek_group_size(communicator->group); i++) {
    ek_device *device = ek_group_device(communicator->group, i);
    pthread_mutex_lock(&device->used_mutex);
    if (device->used == communicator) device->used = NULL;
    pthread_mutex_unlock(&device->used_mutex);
  }
  communicator->table->close(communicator);
}

const char *ek_communicator_name(const ek_communicator *communicator) {
  return communicator == NULL ? "" : communicator->table->name;
}

ek_group *ek_communicator_group(const ek_communicator *communicator) {
  return communicator == NULL ? NULL : communicator->group;
}

size_t ek_communicator_first_rank(const ek_communicator *communicator) {
  if (communicator == NULL || communicator->reach != EK__REACH_WORLD) return 0;
  return ek__group_first_rank(communicator->group);
}

size_t ek_communicator_world_size(const ek_communicator *communicator) {
  if (communicator == NULL) return 0;
  return communicator->reach == EK__REACH_WORLD ? ek__group_world_size(communicator->group)
                                              : ek_group_size(communicator->group);
}

/* ---- collectives ---- */

static ek_status check_call(const char *who, const ek_communicator *communicator,
                            const ek_device *device) {
  EK__NOT_NULL(who, communicator, device);
  EK__FAIL_IF(ek_device_group(device) != communicator->group, EK_ERR_DEVICE,
              "%s: %s is not of the communicator's group", who, ek_device_name(device));
  return ek__fault_point(device, who);
}

ek_status ek__communicator_can_sum(const char *who, const ek_device *device, ek_type type) {
  const unsigned floats = EK_TYPES_F32 | EK_TYPES_F64 | EK_TYPES_BF16 | EK_TYPES_F16;
  EK__FAIL_IF((floats >> type & 1u) == 0, EK_ERR_TYPE, "%s: cannot sum %s", who,
              ek_type_name(type));
  EK__FAIL_IF((ek_device_types(device) >> type & 1u) == 0, EK_ERR_UNSUPPORTED,
              "%s: cannot sum %s, in which %s does not compute", who, ek_type_name(type),
              ek_device_name(device));
  return EK_OK;
}

static ek_status check_tensor(const char *who, const ek_device *device, const ek_tensor *tensor,
                              bool sums) {
  EK__FAIL_IF(!ek_tensor_exists(tensor), EK_ERR_INVALID_ARGUMENT, "%s: the tensor is NULL or "
                                                                  "absent", who);
  EK__FAIL_IF(tensor->device != device, EK_ERR_DEVICE, "%s: called for %s with a tensor on %s", who,
              ek_device_name(device), ek_device_name(tensor->device));
  return sums ? ek__communicator_can_sum(who, device, tensor->type) : EK_OK;
}

static ek_status check_offsets(const char *who, const ek_communicator *communicator,
                               const ek_tensor *tensor, const int64_t *offsets) {
  const size_t ranks = ek_communicator_world_size(communicator);
  bool right = offsets != NULL && offsets[0] == 0 && offsets[ranks] == ek_tensor_count(tensor);
  for (size_t i = 0; right && i < ranks; i++) right = offsets[i] <= offsets[i + 1];
  if (right) return EK_OK;
  return ek_error_set(EK_ERR_INVALID_ARGUMENT,
                      "%s: offsets must rise from 0 to the number of elements (%lld)", who,
                      (long long)ek_tensor_count(tensor));
}

static const struct {
  bool sums, parts; /* of each rank, by offsets */
} kinds[] = {[EK__BROADCAST] = {false, false},
             [EK__REDUCE] = {true, false},
             [EK__ALL_REDUCE] = {true, false},
             [EK__REDUCE_SCATTER] = {true, true},
             [EK__ALL_GATHER] = {false, true}};

/* Another thread may be freeing the communicator that was used last: it waits until that has
 * settled, and no worker finds it afterwards. */
static ek_status change_to(ek_communicator *communicator, ek_device *device) {
  ek_status status = EK_OK;
  pthread_mutex_lock(&device->used_mutex);
  ek_communicator *used = device->used;
  if (used != NULL && used != communicator && used->table->settle != NULL) {
    status = used->table->settle(used, device);
  }
  if (status == EK_OK) device->used = communicator;
  pthread_mutex_unlock(&device->used_mutex);
  return status;
}

/* Whether there is one device, which has all there is: nothing moves, and nothing is waited for. */
static bool is_alone(const ek_communicator *communicator) {
  if (communicator->table->runs_alone) return false;
  const bool here = communicator->reach == EK__REACH_PROCESS;
  return (here ? ek_group_size(communicator->group)
               : ek__group_world_size(communicator->group)) == 1;
}

ek_status ek__communicator_start(ek_communicator *communicator, ek_device *device,
                                 const ek_tensor *tensor, const struct ek__collective *what) {
  const char *who = ek__collective_name(what->kind);
  struct ek__collective collective = *what;
  EK_TRY(check_call(who, communicator, device));
  EK_TRY(check_tensor(who, device, tensor, kinds[what->kind].sums));
  EK__FAIL_IF(what->root >= ek_communicator_world_size(communicator), EK_ERR_INVALID_ARGUMENT,
              "%s: no rank %zu", who, what->root);
  if (kinds[what->kind].parts) EK_TRY(check_offsets(who, communicator, tensor, what->offsets));
  if (is_alone(communicator)) return EK_OK;
  collective.data = tensor->data;
  collective.count = ek_tensor_count(tensor);
  collective.type = tensor->type;
  EK_TRY(change_to(communicator, device));
  return communicator->table->start(communicator, device, &collective);
}

static ek_status start(ek_communicator *communicator, ek_device *device,
                       enum ek__collective_kind kind, const ek_tensor *tensor, size_t root,
                       const int64_t *offsets) {
  return ek__communicator_start(
      communicator, device, tensor,
      &(struct ek__collective){.kind = kind, .root = root, .offsets = offsets});
}

ek_status ek_communicator_broadcast(ek_communicator *communicator, ek_device *device,
                                    ek_tensor *tensor, size_t root) {
  return start(communicator, device, EK__BROADCAST, tensor, root, NULL);
}

ek_status ek_communicator_reduce(ek_communicator *communicator, ek_device *device,
                                 ek_tensor *tensor, size_t root) {
  return start(communicator, device, EK__REDUCE, tensor, root, NULL);
}

ek_status ek_communicator_all_reduce(ek_communicator *communicator, ek_device *device,
                                     ek_tensor *tensor) {
  return start(communicator, device, EK__ALL_REDUCE, tensor, 0, NULL);
}

ek_status ek_communicator_reduce_scatter(ek_communicator *communicator, ek_device *device,
                                         ek_tensor *tensor, const int64_t *offsets) {
  return start(communicator, device, EK__REDUCE_SCATTER, tensor, 0, offsets);
}

ek_status ek_communicator_all_gather(ek_communicator *communicator, ek_device *device,
                                     ek_tensor *tensor, const int64_t *offsets) {
  return start(communicator, device, EK__ALL_GATHER, tensor, 0, offsets);
}

ek_status ek_communicator_progress(ek_communicator *communicator, ek_device *device) {
  EK_TRY(check_call("ek_communicator_progress", communicator, device));
  if (communicator->table->progress == NULL) return EK_OK;
  return communicator->table->progress(communicator, device);
}

ek_status ek_communicator_wait(ek_communicator *communicator, ek_device *device) {
  EK_TRY(check_call("ek_communicator_wait", communicator, device));
  if (communicator->table->wait == NULL) return EK_OK;
  return communicator->table->wait(communicator, device);
}

uint64_t ek__communicator_started(const ek_communicator *communicator, const ek_device *device) {
  return communicator->table->started == NULL ? 0
                                              : communicator->table->started(communicator, device);
}

ek_status ek__communicator_wait_for(ek_communicator *communicator, ek_device *device,
                                    uint64_t number) {
  EK_TRY(check_call("ek_communicator_wait", communicator, device));
  if (communicator->table->wait_for == NULL) return EK_OK;
  return communicator->table->wait_for(communicator, device, number);
}

void ek_communicator_abort(ek_communicator *communicator) {
  if (communicator == NULL || communicator->table->abort == NULL) return;
  if (!ek__group_of_parent(communicator->group)) communicator->table->abort(communicator);
}
