/*
 * host_errands.c - collectives with other processes: once all members have arrived, one becomes an
 * errand (place.h) of the thread that waits for them, which does the whole of it (between.c) and
 * finishes it for all members. If the communicator is not urgent, the errand only begins it, and
 * the rest is bulk of the world.
 */
#include <stddef.h>

#include "core/error.h"
#include "device/host_ring.h"

/* Whether all members have arrived at a collective, with the same arguments. */
static bool errand_ready(struct ek__errand *errand) {
  const struct ek__ring_slot *slot = (struct ek__ring_slot *)errand;
  struct ek__ring *self = slot->of;
  ek__ring_take(self);
  const bool ready = slot->arrived == self->ranks && !slot->mismatch && !self->aborted;
  ek__ring_release(self);
  return ready;
}

/* The other processes have done their part of a collective. */
static void finish_errand(struct ek__ring *self) {
  if (!ek__between_went_well(self->between)) return; /* the job ends */
  ek__ring_take(self);
  ek__ring_finish_for_all(self);
  ek__ring_release(self);
}

/* A whole collective, for all members, or its beginning. */
static ek_status errand_run(struct ek__errand *errand) {
  struct ek__ring_slot *slot = (struct ek__ring_slot *)errand;
  struct ek__ring *self = slot->of;
  EK_TRY(ek__between_meet(self->between, self->number, &slot->collective, slot->data));
  if (!self->base.urgent) {
    slot->begun = false;
    ek__place_add_bulk(ek__group_place(self->base.group), &slot->bulk);
    return EK_OK;
  }
  EK_TRY(ek__between_begin(self->between, &slot->collective, slot->data));
  EK_TRY(ek__between_finish(self->between));
  finish_errand(self);
  return EK_OK;
}

static struct ek__ring_slot *slot_of_bulk(struct ek__bulk *bulk) {
  return (struct ek__ring_slot *)(void *)((char *)bulk - offsetof(struct ek__ring_slot, bulk));
}

static ek_status bulk_advance(struct ek__bulk *bulk, bool *done) {
  struct ek__ring_slot *slot = slot_of_bulk(bulk);
  struct ek__between *between = slot->of->between;
  if (!slot->begun) EK_TRY(ek__between_begin(between, &slot->collective, slot->data));
  slot->begun = true;
  return ek__between_advance(between, bulk, done);
}

static void bulk_end(struct ek__bulk *bulk, ek_status status) {
  struct ek__ring *self = slot_of_bulk(bulk)->of;
  if (status == EK_OK) finish_errand(self);
  ek__place_ended(ek__group_place(self->base.group), status);
}

ek_status ek__ring_open_errands(struct ek__ring *self) {
  ek_group *group = self->base.group;
  if (ek__group_world(group) == NULL || self->base.reach == EK__REACH_PROCESS) return EK_OK;
  self->number = ek__place_number(ek__group_place(group));
  if (self->link != NULL) return EK_OK;
  EK__FAIL_IF(
      self->queues, EK_ERR_UNSUPPORTED,
      "ek_communicator_open: %s does not reach the devices of other processes; NCCL does, if "
      "each device is a GPU of its own",
      self->table.name);
  for (size_t i = 0; i < EK__RING; i++) {
    struct ek__ring_slot *slot = &self->ring[i];
    slot->of = self;
    slot->errand.ready = errand_ready;
    slot->errand.run = errand_run;
    slot->bulk.advance = bulk_advance;
    slot->bulk.end = bulk_end;
  }
  return ek__between_open(&self->between, group, self->base.reach, self->base.urgent);
}
