/*
 * host_parts.c - the work of a collective: sums and copies over the memory of all ranks, at once or
 * queued, or calls of a link.
 */
#include "core/error.h"
#include "core/sizes.h"
#include "device/host_ring.h"
#include "device/track.h"

static char *element(const struct ek__ring_slot *slot, size_t rank, int64_t index) {
  return (char *)slot->data[rank] + (size_t)index * ek_type_size(slot->collective.type);
}

ek_stream *ek__ring_stream(const ek_device *device) {
  const bool queues = ek__device_table(device)->event_open != NULL;
  return ek_device_stream(device, queues ? EK_STREAM_COMMUNICATION : EK_STREAM_COMPUTE);
}

static ek_status sum_part(const struct ek__ring *self, ek_device *device,
                          const struct ek__ring_slot *slot, int64_t first, int64_t last,
                          size_t destination_first, size_t destination_count) {
  const struct ek__ring_rank *own = &self->rank[ek_device_index(device)];
  const size_t ranks = self->ranks;
  for (size_t i = 0; i < ranks; i++) own->sources[i] = own->pointers[i] = element(slot, i, first);
  const struct ek__reduce_args args = {.destinations = own->pointers + destination_first,
                                       .sources = own->sources,
                                       .destination_count = destination_count,
                                       .source_count = ranks,
                                       .count = last - first,
                                       .type = slot->collective.type};
  return ek__device_table(device)->kernels->reduce(ek__ring_stream(device), &args);
}

static ek_status copy_part(ek_device *device, const struct ek__ring_slot *slot, size_t to,
                           size_t from, int64_t first, int64_t last) {
  const size_t bytes = (size_t)(last - first) * ek_type_size(slot->collective.type);
  return ek__device_table(device)->kernels->copy(ek__ring_stream(device), element(slot, to, first),
                                                 element(slot, from, first), bytes);
}

ek_status ek__ring_do_part(struct ek__ring *self, const struct ek__ring_slot *slot,
                           ek_device *device, size_t rank) {
  const size_t ranks = self->ranks;
  const size_t root = slot->collective.root;
  int64_t first = ek__part_begin(slot->collective.count, rank, ranks);
  int64_t last = ek__part_begin(slot->collective.count, rank + 1, ranks);
  switch (slot->collective.kind) {
  case EK__BROADCAST:
    for (size_t i = 0; i < ranks && first < last; i++) {
      if (i != root) EK_TRY(copy_part(device, slot, i, root, first, last));
    }
    return EK_OK;
  case EK__REDUCE:
    return first == last ? EK_OK : sum_part(self, device, slot, first, last, root, 1);
  case EK__ALL_REDUCE:
    return first == last ? EK_OK : sum_part(self, device, slot, first, last, 0, ranks);
  case EK__REDUCE_SCATTER:
    first = slot->offsets[rank], last = slot->offsets[rank + 1];
    return first == last ? EK_OK : sum_part(self, device, slot, first, last, rank, 1);
  case EK__ALL_GATHER:
    for (size_t i = 0; i < ranks; i++) {
      first = slot->offsets[i], last = slot->offsets[i + 1];
      if (i != rank && first < last) EK_TRY(copy_part(device, slot, rank, i, first, last));
    }
    return EK_OK;
  }
  return ek_error_set(EK_ERR_INTERNAL, "unknown collective");
}

/* Collectives number first .. first + count - 1, by the link. */
static ek_status queue_linked(struct ek__ring *self, ek_device *device, uint64_t first,
                              size_t count) {
  struct ek__collective list[EK__COLLECTIVES_TOGETHER];
  const size_t rank = ek_device_index(device);
  ek_stream *stream = ek__ring_stream(device);
  for (size_t i = 0; i < count; i++) {
    const struct ek__ring_slot *slot = ek__ring_slot(self, first + i);
    list[i] = slot->collective;
    list[i].data = slot->data[rank];
    EK_TRY(ek_stream_wait(stream, slot->ready[rank]));
  }
  EK_TRY(self->link->run(self->linked, device, list, count));
  for (size_t i = 0; i < count; i++) {
    EK_TRY(ek_event_record(ek__ring_slot(self, first + i)->done[rank], stream));
  }
  return EK_OK;
}

static ek_status queue_work(struct ek__ring *self, ek_device *device, uint64_t first,
                            size_t count) {
  const struct ek__ring_slot *slot = ek__ring_slot(self, first);
  const size_t rank = ek_device_index(device);
  if (!self->queues) return ek__ring_do_part(self, slot, device, rank);
  if (self->link != NULL) return queue_linked(self, device, first, count);
  ek_stream *stream = ek__ring_stream(device);
  for (size_t i = 0; i < self->ranks; i++) EK_TRY(ek_stream_wait(stream, slot->ready[i]));
  EK_TRY(ek__ring_do_part(self, slot, device, rank));
  return ek_event_record(slot->done[rank], stream);
}

struct ek__track_span *ek__ring_span(struct ek__ring *self, ek_device *device, uint64_t first,
                                     size_t count) {
  const struct ek__ring_slot *slot = ek__ring_slot(self, first);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const struct ek__collective *one = &ek__ring_slot(self, first + i)->collective;
    bytes += (uint64_t)one->count * ek_type_size(one->type);
  }
  struct ek__track_span *span =
      ek__track_span_begin(device, EK__LANE_COMMUNICATION, "collective", bytes);
  if (span != NULL) ek__track_span_name(span, ek__collective_name(slot->collective.kind));
  return span;
}

ek_status ek__ring_queue(struct ek__ring *self, ek_device *device, uint64_t first, size_t count) {
  struct ek__track_span *span = ek__ring_span(self, device, first, count);
  const ek_status status = queue_work(self, device, first, count);
  ek__track_span_end(span);
  return status;
}
