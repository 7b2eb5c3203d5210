/*
 * replicate.c - makes replicas equal to that of rank 0, with one broadcast for each flat buffer.
 */
#include <evenkeel/replicate.h>

#include "core/error.h"
#include "parallel_internal.h"

static ek_status broadcast_flat(ek_communicator *communicator, ek_device *device,
                                const ek_tensor *flat) {
  if (ek_tensor_count(flat) == 0) return EK_OK;
  ek_tensor view = *flat;
  return ek_communicator_broadcast(communicator, device, &view, 0);
}

/* Where every rank has masters, each rounds them; where only the first has, what travels is the
 * copies. */
ek_status ek__replicate_rank(ek_communicator *communicator, ek_device *device,
                             ek_replica *replica) {
  const bool whole = replica->masters == EK__MASTERS_WHOLE;
  if (replica->masters != EK__MASTERS_SHARED) {
    EK_TRY(broadcast_flat(communicator, device,
                          whole ? ek_replica_parameters(replica) : ek_replica_copies(replica)));
  }
  EK_TRY(broadcast_flat(communicator, device, ek_replica_buffers(replica)));
  EK_TRY(ek_communicator_wait(communicator, device));
  return whole ? ek_replica_refresh(replica) : EK_OK;
}

struct replicate_job {
  ek_communicator *communicator;
  ek_replica *const *replicas;
};

static ek_status replicate_one(void *context, ek_device *device, size_t index) {
  const struct replicate_job *job = context;
  return ek__replicate_rank(job->communicator, device, job->replicas[index]);
}

ek_status ek_replicate(ek_communicator *communicator, ek_group *group,
                       ek_replica *const *replicas) {
  EK__NOT_NULL("ek_replicate", communicator, group, replicas);
  for (size_t i = 0; i < ek_group_size(group); i++) {
    EK__FAIL_IF(replicas[i] == NULL || ek_replica_device(replicas[i]) != ek_group_device(group, i),
                EK_ERR_DEVICE, "ek_replicate: replica number %zu is missing or not on %s", i,
                ek_device_name(ek_group_device(group, i)));
    EK__FAIL_IF(ek_replica_module(replicas[i]) != ek_replica_module(replicas[0]) ||
                    ek_replica_type(replicas[i]) != ek_replica_type(replicas[0]) ||
                    ek_replica_precision(replicas[i]) != ek_replica_precision(replicas[0]),
                EK_ERR_INVALID_ARGUMENT,
                "ek_replicate: replica number %zu is of another module or type", i);
  }
  struct replicate_job job = {communicator, replicas};
  return ek_group_apply(group, replicate_one, &job);
}
