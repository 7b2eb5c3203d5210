/*
 * replicate.c - parameters that ranks send each other.
 *
 * ek_replicate() makes replicas equal to that of rank 0, with one broadcast for each flat buffer.
 *
 * Masters are parameters that are shared between devices, or of which modules see copies of 16
 * bits. Of shared masters a device has its share of every bucket, end to end, as of the optimizer's
 * state. The copies are in a whole flat buffer or, if values are shared too, in a buffer of shares
 * at the same places. Copies are always the rounded masters: the update writes both
 * (data_parallel_optimizer.c), and state.c, which writes masters by name, rounds them on the host
 * to the same bits.
 */
#include <evenkeel/replicate.h>

#include <evenkeel/convert.h>

#include "core/error.h"
#include "device/communicator_internal.h"
#include "parallel_internal.h"

/* ---- replicas ---- */

static ek_status broadcast_flat(ek_communicator *communicator, ek_device *device,
                                const ek_tensor *flat) {
  if (ek_tensor_count(flat) == 0) return EK_OK;
  ek_tensor view = *flat;
  return ek_communicator_broadcast(communicator, device, &view, 0);
}

/* If every rank has masters, each rounds its own; if only the first has them, it sends copies. */
ek_status ek__replicate_rank(ek_communicator *communicator, ek_device *device,
                             ek_replica *replica) {
  const bool whole = replica->masters == EK__MASTERS_WHOLE;
  if (replica->masters != EK__MASTERS_SHARED) {
    EK_TRY(broadcast_flat(communicator, device,
                          whole ? ek_replica_parameters(replica) : ek_replica_copies(replica)));
  }
  EK_TRY(ek__replicate_buffers(communicator, device, replica));
  ek__group_keep(device);
  return whole ? ek_replica_refresh(replica) : EK_OK;
}

ek_status ek__replicate_buffers(ek_communicator *communicator, ek_device *device,
                                ek_replica *replica) {
  EK_TRY(broadcast_flat(communicator, device, ek_replica_buffers(replica)));
  return ek_communicator_wait(communicator, device);
}

struct replicate_job {
  ek_communicator *communicator;
  ek_replica *const *replicas;
};

static ek_status replicate_one(void *context, ek_device *device, size_t index) {
  const struct replicate_job *job = context;
  return ek__replicate_rank(job->communicator, device, job->replicas[index]);
}

ek_status ek_replicate(ek_communicator *communicator, ek_replica *const *replicas) {
  EK__NOT_NULL("ek_replicate", communicator, replicas);
  ek_group *group = ek_communicator_group(communicator);
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

/* ---- masters ---- */

/* Each device computes its own share of every parameter: no device holds all of one. */
static ek_status initialize(const ek_data_parallel_model *model, const struct ek__rank *own) {
  const ek_replica *replica = own->replica;
  const struct ek__layout *layout = &replica->layout;
  const struct ek__buckets *cut = &model->run.cut;
  if (ek_device_counts_only(replica->device)) return EK_OK;
  for (size_t i = 0; i < layout->order_count; i++) {
    const size_t number = layout->order[i];
    const struct ek__parameter *p = &layout->parameters[number];
    const struct ek__span span =
        ek__span_within(ek__bucket_span(&cut->list[cut->of[number]], own->share_number), p->offset,
                        p->offset + p->count);
    if (span.count == 0) continue;
    ek_tensor values = ek__span_range(ek_replica_parameters(replica), span, true);
    EK_TRY(ek__initial_values(&values, p, span.first - p->offset, model->options.seed,
                              model->run.count));
  }
  return EK_OK;
}

/* The device's own share of every bucket, in a whole buffer. */
static ek_status round_into_whole(const ek_data_parallel_model *model, const struct ek__rank *own) {
  const ek_replica *replica = own->replica;
  const struct ek__buckets *cut = &model->run.cut;
  for (size_t b = 0; b < cut->count; b++) {
    const struct ek__span span = ek__bucket_span(&cut->list[b], own->share_number);
    const ek_tensor master = ek__span_range(ek_replica_parameters(replica), span, true);
    ek_tensor copy = ek__span_range(ek_replica_copies(replica), span, false);
    EK_TRY(ek_op_convert(ek__rank_stream(own), &copy, &master));
  }
  return EK_OK;
}

ek_status ek__masters_open(const ek_data_parallel_model *model, const struct ek__rank *own) {
  const struct ek__buckets *cut = &model->run.cut;
  EK_TRY(ek__replica_hold_parameters(own->replica,
                                     ek__buckets_share(cut, cut->count, own->share_number)));
  EK_TRY(initialize(model, own));
  return own->replica->whole_values ? round_into_whole(model, own)
                                    : ek_replica_refresh(own->replica);
}

ek_status ek__masters_share(const ek_data_parallel_model *model, const struct ek__rank *own,
                            bool frozen) {
  const struct ek__buckets *cut = &model->run.cut;
  const ek_tensor *values = ek__replica_values(own->replica);
  const size_t count = frozen ? cut->count : cut->trained;
  ek__group_keep(own->device);
  for (size_t b = 0; b < count; b++) {
    const struct ek__bucket *bucket = &cut->list[b];
    ek_tensor range = ek__flat_range(values, bucket->first, bucket->last - bucket->first);
    EK_TRY(ek__communicator_start(model->run.gathers, own->device, &range,
                                  &(struct ek__collective){.kind = EK__ALL_GATHER,
                                                           .offsets = bucket->offsets,
                                                           .more = b + 1 < count}));
  }
  return ek_communicator_wait(model->run.gathers, own->device);
}
