/*
 * host_communicator.c - collectives between devices that reach each other's memory: `host` for
 * those of the CPU, `peer` for those of CUDA.
 *
 * There is no thread for communication: a device's communication stream is a queue that its worker
 * processes whenever it calls progress() or wait(). A collective has a slot in a ring; every rank
 * puts its pointer in and goes on computing. Once all ranks have arrived, the work is cut into one
 * part per rank, and each rank does its own part over the memory of all: one pass that reads all
 * sources in the order of the devices. So the load is even, sums have a fixed order, and a rank
 * never holds a copy of anything.
 *
 * The ring belongs to one process: its ranks are the members, the devices of the group, by their
 * index. Roots and offsets are in ranks of the world. If the world has more processes, the members
 * do not do a collective at which all have arrived: it becomes an errand (place.h) of the thread
 * that waits for them, which does the whole collective with the other processes (between.c) and
 * finishes it for all members. The data of a communicator that is not urgent is bulk of the world:
 * the errand only begins it. A link reaches the other processes itself.
 *
 * Every rank meets the collectives in the same order. rank[r] counts those that it has queued and
 * those of which it has done its part (finished); a slot is over, and its memory may be touched
 * again, when all ranks have finished it: the smallest `finished` is the number of collectives that
 * are over.
 *
 * To wake the other ranks takes longer than a small collective. The last rank to arrive does such a
 * collective whole, for all ranks, if nothing before it is left to do: the others wake once, when
 * it is over, and record a span of no length. Each element has the same sum in the same order.
 *
 * Devices that queue their work (`queues`: the backend has events) do the same, except that each
 * step is only queued: a rank arrives by recording an event at the end of its compute stream; a
 * part is queued on the communication stream, after the arrivals of all ranks, because an event
 * that has not been recorded yet would hold no rank back; and a rank waits by letting its compute
 * stream wait for the parts of all ranks, whether they read its memory or write it. The event of
 * the last collective that it waits for is enough, because a rank's parts run in order. If the slot
 * has been used again since, `done` is the event of a later one, and the rank waits for that.
 *
 * If the backend has a link (`nccl`), a rank's part is its call of the link, which itself waits for
 * the other devices.
 *
 * Lock: `mutex` guards all of this except the memory that slots point to. That memory belongs to
 * the ranks that are working on the slot from the last arrival to the last finish. The mutex is
 * held while a small collective is done whole, but not while parts are copied or summed, and no
 * other lock is taken inside it. Waiting ranks are woken after the mutex is released, or they would
 * wake only to wait for it.
 */
#include <string.h>

#include "core/alloc.h"
#include "core/error.h"
#include "device/host_ring.h"
#include "device/track.h"

/* Bytes of all ranks together, up to which the last rank to arrive does a collective whole. */
enum { SMALL = 64 * 1024 };

/* The error of `rank` after an abort. A mismatch at which all have arrived is an error of all,
 * including those that see only the abort by the first to notice it. Called with the mutex held. */
static ek_status given_up(const struct ek__ring *self, size_t rank) {
  for (uint64_t i = self->rank[rank].finished; i < self->rank[rank].queued; i++) {
    const struct ek__ring_slot *slot = &self->ring[i % EK__RING];
    if (slot->mismatch && slot->arrived == self->ranks) return ek__ring_misfit();
  }
  return ek_error_set(EK_ERR_ABORTED, "abandoned because another device failed");
}

/* Spans of what other ranks have done for this one. The mutex is held. */
static void show_done(struct ek__ring *self, ek_device *device) {
  struct ek__ring_rank *own = &self->rank[ek_device_index(device)];
  for (; !self->queues && self->between == NULL && own->shown < own->finished; own->shown++) {
    ek__track_span_end(ek__ring_span(self, device, own->shown, 1));
  }
}

/*
 * How many collectives from the rank's next on are done in one go, which is the same on all ranks;
 * 0 if not all of them have arrived at all of these. A link takes those together that are said to
 * follow each other.
 */
static ek_status find_ready(size_t *count, struct ek__ring *self, size_t rank) {
  const uint64_t first = self->rank[rank].finished;
  const bool together = self->link != NULL;
  size_t found = 0;
  *count = 0;
  for (bool more = true; more && found < EK__COLLECTIVES_TOGETHER; found++) {
    const struct ek__ring_slot *slot = ek__ring_slot(self, first + found);
    if (first + found == self->rank[rank].queued || slot->arrived < self->ranks) return EK_OK;
    if (slot->mismatch) return ek__ring_misfit();
    more = together && slot->collective.more;
  }
  *count = found;
  return EK_OK;
}

/* Does this rank's parts that are ready. Called and left with the mutex held. */
static ek_status work_off(struct ek__ring *self, ek_device *device) {
  const size_t rank = ek_device_index(device);
  show_done(self, device);
  while (!self->aborted && self->rank[rank].finished < self->rank[rank].queued) {
    size_t count = 0;
    EK_TRY(find_ready(&count, self, rank));
    if (count == 0 || self->between != NULL) return EK_OK; /* an errand */
    ek__ring_release(self);
    const ek_status status = ek__ring_queue(self, device, self->rank[rank].finished, count);
    ek__ring_take(self);
    /* A link that was aborted does not know why. */
    if (status == EK_ERR_ABORTED && self->aborted) return given_up(self, rank);
    if (status != EK_OK) return status;
    const uint64_t before = ek__ring_over(self);
    self->rank[rank].finished += count;
    self->rank[rank].shown = self->rank[rank].finished;
    if (ek__ring_over(self) != before) ek__ring_tell(self);
  }
  return self->aborted ? given_up(self, rank) : EK_OK;
}

static bool same_collective(const struct ek__ring_slot *slot,
                            const struct ek__collective *collective, size_t world) {
  const struct ek__collective *first = &slot->collective;
  if (first->kind != collective->kind || first->count != collective->count ||
      first->type != collective->type || first->root != collective->root ||
      first->about != collective->about || first->more != collective->more) {
    return false;
  }
  return collective->offsets == NULL ||
         memcmp(slot->offsets, collective->offsets, (world + 1) * sizeof *slot->offsets) == 0;
}

static void arrive(struct ek__ring *self, size_t rank, const struct ek__collective *collective) {
  struct ek__ring_slot *slot = &self->ring[self->rank[rank].queued % EK__RING];
  /* The first to arrive is the first whose queue got this far. */
  bool first = true;
  for (size_t i = 0; i < self->ranks; i++)
    first = first && self->rank[i].queued <= self->rank[rank].queued;
  if (first) {
    slot->collective = *collective;
    slot->arrived = 0;
    slot->mismatch = false;
    if (collective->offsets != NULL) {
      memcpy(slot->offsets, collective->offsets, (self->world + 1) * sizeof *slot->offsets);
      slot->collective.offsets = slot->offsets;
    }
  } else if (!same_collective(slot, collective, self->world)) {
    slot->mismatch = true;
  }
  slot->data[rank] = collective->data;
  self->rank[rank].queued++;
  if (rank == 0 && self->between != NULL) {
    ek__place_append(ek__group_place(self->base.group), &slot->errand);
  }
  if (++slot->arrived == self->ranks) ek__ring_tell(self);
}

static bool is_small(const struct ek__ring *self, const struct ek__ring_slot *slot) {
  const size_t count = (size_t)slot->collective.count;
  return count <= SMALL / (self->ranks * ek_type_size(slot->collective.type));
}

/* Does the collective at which `device` has just arrived, for all ranks, if it is the last to
 * arrive, no earlier one is left to do, and it is small. The mutex is held. */
static ek_status do_whole(struct ek__ring *self, ek_device *device) {
  struct ek__ring_rank *own = &self->rank[ek_device_index(device)];
  const uint64_t number = own->queued - 1;
  const struct ek__ring_slot *slot = ek__ring_slot(self, number);
  if (self->queues || self->between != NULL || slot->arrived < self->ranks || slot->mismatch ||
      ek__ring_over(self) != number || !is_small(self, slot)) {
    return EK_OK;
  }
  struct ek__track_span *span = ek__ring_span(self, device, number, 1);
  ek_status status = EK_OK;
  for (size_t i = 0; i < self->ranks && status == EK_OK; i++) {
    status = ek__ring_do_part(self, slot, device, i);
  }
  ek__track_span_end(span);
  if (status != EK_OK) return status;
  ek__ring_finish_for_all(self);
  own->shown = own->finished;
  return EK_OK;
}

/* Waits until the rank's next slot is free. The mutex is held. */
static ek_status make_room(struct ek__ring *self, ek_device *device, size_t rank) {
  ek_status status = self->aborted ? given_up(self, rank) : EK_OK;
  while (status == EK_OK && self->rank[rank].queued - ek__ring_over(self) >= EK__RING) {
    status = work_off(self, device);
    if (status == EK_OK && self->rank[rank].queued - ek__ring_over(self) >= EK__RING) {
      status = ek__ring_wait(self, device, true);
    }
  }
  return status;
}

/* EK_OK, or the error for which no collective can begin any more. */
static ek_status check_world(const struct ek__ring *self) {
  return ek__world_check(ek__group_world(self->base.group));
}

/* The event is recorded without the mutex: a GPU whose queue is full lets the call wait until work
 * has ended, and that work may be a collective that a peer can queue only with the mutex. Only the
 * rank itself changes `queued`, so the slot stays the one that is free. */
static ek_status host_start(ek_communicator *base, ek_device *device,
                            const struct ek__collective *collective) {
  struct ek__ring *self = (struct ek__ring *)base;
  const size_t rank = ek_device_index(device);
  EK_TRY(check_world(self));
  ek__ring_take(self);
  show_done(self, device);
  ek_status status = make_room(self, device, rank);
  if (status == EK_OK && self->queues) {
    ek_event *ready = self->ring[self->rank[rank].queued % EK__RING].ready[rank];
    ek__ring_release(self);
    status = ek_event_record(ready, ek_device_stream(device, EK_STREAM_COMPUTE));
    ek__ring_take(self);
    if (status == EK_OK && self->aborted) status = given_up(self, rank);
  }
  if (status == EK_OK) {
    arrive(self, rank, collective);
    status = do_whole(self, device);
  }
  const uint64_t last = self->rank[rank].queued - 1;
  const bool errand = status == EK_OK && self->between != NULL &&
                      self->ring[last % EK__RING].arrived == self->ranks;
  ek__ring_release(self);
  if (errand) ek__group_errand(self->base.group);
  return status;
}

static ek_status host_progress(ek_communicator *base, ek_device *device) {
  struct ek__ring *self = (struct ek__ring *)base;
  ek__ring_take(self);
  const ek_status status = work_off(self, device);
  ek__ring_release(self);
  return status;
}

/* Works until this rank, or all of them, have done their parts of the first `number` that this one
 * has started. */
static ek_status work_until(struct ek__ring *self, ek_device *device, bool all, uint64_t number) {
  const struct ek__ring_rank *rank = &self->rank[ek_device_index(device)];
  ek__ring_take(self);
  ek_status status = work_off(self, device);
  while (status == EK_OK && (all ? ek__ring_over(self) : rank->finished) < number) {
    status = ek__ring_wait(self, device, all);
    if (status == EK_OK) status = work_off(self, device);
  }
  ek__ring_release(self);
  return status;
}

static ek_status host_settle(ek_communicator *base, ek_device *device) {
  struct ek__ring *self = (struct ek__ring *)base;
  return work_until(self, device, false, self->rank[ek_device_index(device)].queued);
}

static ek_status host_wait_for(ek_communicator *base, ek_device *device, uint64_t number) {
  struct ek__ring *self = (struct ek__ring *)base;
  const size_t rank = ek_device_index(device);
  ek_status status = work_until(self, device, true, number);
  const bool more = self->queues && self->rank[rank].waited < number;
  for (size_t i = 0; i < self->ranks && more && status == EK_OK; i++) {
    if (self->link != NULL && i != rank) continue;
    status = ek_stream_wait(ek_device_stream(device, EK_STREAM_COMPUTE),
                            self->ring[(number - 1) % EK__RING].done[i]);
  }
  if (status == EK_OK && more) self->rank[rank].waited = number; /* this rank's alone */
  return status;
}

static uint64_t host_started(const ek_communicator *base, const ek_device *device) {
  return ((const struct ek__ring *)base)->rank[ek_device_index(device)].queued;
}

static ek_status host_wait(ek_communicator *base, ek_device *device) {
  return host_wait_for(base, device, host_started(base, device));
}

static void host_abort(ek_communicator *base) {
  struct ek__ring *self = (struct ek__ring *)base;
  ek__ring_take(self);
  self->aborted = true;
  /* Before any rank wakes: after that it may be made new, and the abort would hit what comes next.
   */
  if (self->link != NULL) self->link->abort(self->linked);
  ek__ring_tell(self);
  ek__ring_release(self);
}

/* Parts that were queued before the abort may still write other ranks' memory: they must be over
 * before the next step begins. Their errors have been reported. */
static void drain(const struct ek__ring *self) {
  for (size_t i = 0; i < self->ranks; i++) {
    if (ek_stream_synchronize(ek__ring_stream(ek_group_device(self->base.group, i))) != EK_OK) {
      ek_error_clear();
    }
  }
}

static bool host_unblock(ek_communicator *base) {
  struct ek__ring *self = (struct ek__ring *)base;
  return self->link != NULL && self->link->renew(self->linked); /* streams may hang in it */
}

static void host_renew(ek_communicator *base) {
  struct ek__ring *self = (struct ek__ring *)base;
  if (self->queues) drain(self);
  ek__ring_take(self);
  self->aborted = false;
  for (size_t i = 0; i < self->ranks; i++) {
    self->rank[i].queued = self->rank[i].finished = 0;
    self->rank[i].waited = self->rank[i].shown = 0;
  }
  ek__ring_release(self);
}

static void host_close(ek_communicator *base) {
  struct ek__ring *self = (struct ek__ring *)base;
  for (size_t i = 0; i < EK__RING && self->between != NULL; i++) {
    ek__place_remove(ek__group_place(self->base.group), &self->ring[i].errand);
  }
  ek__between_close(self->between);
  if (self->linked != NULL) self->link->close(self->linked);
  for (size_t i = 0; i < 2 * EK__RING * self->ranks && self->events != NULL; i++) {
    ek_event_free(self->events[i]);
  }
  pthread_cond_destroy(&self->changed);
  pthread_mutex_destroy(&self->mutex);
  ek__free(self->events);
  ek__free(self->sources);
  ek__free(self->pointers);
  ek__free(self->offsets);
  ek__free(self->rank);
  ek__free(self);
}

static const struct ek__communicator_table host_table = {.name = "host",
                                                         .start = host_start,
                                                         .progress = host_progress,
                                                         .wait = host_wait,
                                                         .started = host_started,
                                                         .wait_for = host_wait_for,
                                                         .abort = host_abort,
                                                         .unblock = host_unblock,
                                                         .renew = host_renew,
                                                         .close = host_close};

/* The needs of devices that queue their work. */
static ek_status open_queue(struct ek__ring *self) {
  ek_group *group = self->base.group;
  const struct ek__backend *backend = ek__device_table(ek_group_device(group, 0));
  self->link = backend->link_for == NULL ? NULL : backend->link_for(ek__group_native(group));
  self->table.name = self->link == NULL ? "peer" : self->link->name;
  /* A link's parts wait for each other on the devices: two in another order would wait for ever. */
  if (self->link != NULL) self->table.settle = host_settle;
  self->table.runs_alone = self->link != NULL; /* one rank has a link only where it was asked for */
  for (size_t i = 0; i < self->ranks; i++) {
    ek_device *device = ek_group_device(group, i);
    for (size_t k = 0; k < EK__RING; k++) {
      EK_TRY(ek_event_create(&self->ring[k].ready[i], device));
      EK_TRY(ek_event_create(&self->ring[k].done[i], device));
    }
  }
  if (self->link == NULL) return EK_OK;
  return self->link->open(&self->linked, ek__group_native(group), self->base.reach);
}

static const char memory_of[] = "a communicator";

static ek_status allocate(struct ek__ring *self) {
  const size_t ranks = self->ranks;
  EK_TRY(ek__new(&self->rank, ranks, sizeof *self->rank, memory_of));
  const size_t offsets = self->world + 1;
  EK_TRY(ek__new(&self->offsets, EK__RING, offsets * sizeof *self->offsets, memory_of));
  EK_TRY(ek__new(&self->pointers, (EK__RING + ranks) * ranks, sizeof *self->pointers, memory_of));
  EK_TRY(ek__new(&self->sources, ranks * ranks, sizeof *self->sources, memory_of));
  EK_TRY(ek__new(&self->events, 2 * EK__RING * ranks, sizeof *self->events, memory_of));
  for (size_t i = 0; i < EK__RING; i++) {
    self->ring[i].offsets = self->offsets + i * offsets;
    self->ring[i].data = self->pointers + i * ranks;
    self->ring[i].ready = self->events + 2 * i * ranks;
    self->ring[i].done = self->ring[i].ready + ranks;
  }
  for (size_t i = 0; i < ranks; i++) {
    self->rank[i].pointers = self->pointers + (EK__RING + i) * ranks;
    self->rank[i].sources = self->sources + i * ranks;
  }
  return EK_OK;
}

ek_status ek__host_communicator_open(ek_communicator **communicator, ek_group *group,
                                     enum ek__reach reach, bool urgent) {
  struct ek__ring *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->table = host_table;
  self->base.table = &self->table;
  self->base.group = group;
  self->base.urgent = urgent;
  self->base.reach = ek__group_world(group) == NULL ? EK__REACH_WORLD : reach;
  self->ranks = ek_group_size(group);
  self->world = self->base.reach == EK__REACH_WORLD ? ek__group_world_size(group) : self->ranks;
  self->queues = ek__device_table(ek_group_device(group, 0))->event_open != NULL;
  pthread_condattr_t steady;
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_mutex_init(&self->mutex, NULL);
  pthread_cond_init(&self->changed, &steady);
  pthread_condattr_destroy(&steady);
  ek_status status = allocate(self);
  if (status == EK_OK && self->base.reach == EK__REACH_SHARES) {
    status = ek__place_check_even(ek__group_place(group));
  }
  if (status == EK_OK && self->queues) status = open_queue(self);
  if (status == EK_OK) status = ek__ring_open_errands(self);
  if (status != EK_OK) {
    host_close(&self->base);
    return status;
  }
  *communicator = &self->base;
  return EK_OK;
}
