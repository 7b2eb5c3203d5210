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
 * A worker that computes may be late by any time. A worker that only queues is not: if it does not
 * arrive within the group's time limit, the ranks that wait for it give up. A worker that has ended
 * its part of the job does not arrive any more: waiting ranks check for that every second.
 *
 * Lock: `mutex` guards all of this except the memory that slots point to. That memory belongs to
 * the ranks that are working on the slot from the last arrival to the last finish. The mutex is
 * held while a small collective is done whole, but not while parts are copied or summed, and no
 * other lock is taken inside it. Waiting ranks are woken after the mutex is released, or they would
 * wake only to wait for it.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/sizes.h"
#include "device/between.h"
#include "device/communicator_internal.h"
#include "device/track.h"

enum { RING = 64 };

/* Bytes of all ranks together, up to which the last rank to arrive does a collective whole. */
enum { SMALL = 64 * 1024 };

/* Seconds between two looks at workers that may have ended early. */
#define LOOK_EVERY 1.0

struct host_communicator;

struct slot {
  struct ek__errand errand; /* first: between processes, that all members have arrived */
  struct ek__bulk bulk;     /* its data, if it is not urgent */
  bool begun;               /* that data */
  struct host_communicator *of;
  struct ek__collective collective; /* of the first to arrive; data is not used */
  int64_t *offsets;                 /* one more than there are ranks in the world */
  void **data;                      /* of each rank */
  ek_event **ready, **done;         /* of each rank */
  size_t arrived;
  bool mismatch; /* the ranks did not mean the same collective */
};

struct rank {
  uint64_t queued, finished; /* collectives */
  uint64_t waited;           /* those that the compute stream has waited for */
  uint64_t shown;            /* those that have a span; of `finished` another rank may have done some */
  void **pointers;           /* scratch for the arguments of a sum: one per rank */
  const void **sources;
};

struct host_communicator {
  ek_communicator base;
  struct ek__communicator_table table;
  const struct ek__link *link; /* NULL: parts are sums and copies over the memory of all */
  void *linked;
  struct ek__between *between; /* NULL: one process, or a link */
  uint64_t number;             /* that the other processes know it by */
  size_t ranks;                /* members: those of this process */
  size_t world;                /* of all processes */
  pthread_mutex_t mutex;
  pthread_cond_t changed; /* the last arrival, the last finish, an abort */
  uint64_t changes;       /* how often it is signalled */
  bool tell;              /* a change that has not been signalled: release() does that */
  bool aborted;
  bool queues; /* the devices compute later; else there are no events */
  struct rank *rank;
  struct slot ring[RING];
  /* The memory that slots and ranks point to. */
  int64_t *offsets;
  void **pointers;
  const void **sources;
  ek_event **events;
};

static uint64_t over(const struct host_communicator *self) {
  uint64_t least = self->rank[0].finished;
  for (size_t i = 1; i < self->ranks; i++) {
    if (self->rank[i].finished < least) least = self->rank[i].finished;
  }
  return least;
}

static void take(struct host_communicator *self) { pthread_mutex_lock(&self->mutex); }

/* Releases the mutex, and wakes the ranks that wait if something changed. */
static void release(struct host_communicator *self) {
  const bool tell = self->tell;
  self->tell = false;
  pthread_mutex_unlock(&self->mutex);
  if (tell) pthread_cond_broadcast(&self->changed);
}

/* The mutex is held. */
static void tell_peers(struct host_communicator *self) {
  self->changes++;
  self->tell = true;
}

#define MISFIT "the devices called different collectives, or with different sizes"

static ek_status misfit(void) { return ek_error_set(EK_ERR_SHAPE, MISFIT); }

/* The error of `rank` after an abort. A mismatch at which all have arrived is an error of all,
 * including those that see only the abort by the first to notice it. Called with the mutex held. */
static ek_status given_up(const struct host_communicator *self, size_t rank) {
  for (uint64_t i = self->rank[rank].finished; i < self->rank[rank].queued; i++) {
    const struct slot *slot = &self->ring[i % RING];
    if (slot->mismatch && slot->arrived == self->ranks) return misfit();
  }
  return ek_error_set(EK_ERR_ABORTED, "abandoned because another device failed");
}

static char *element(const struct slot *slot, size_t rank, int64_t index) {
  return (char *)slot->data[rank] + (size_t)index * ek_type_size(slot->collective.type);
}

/* Work that is done at once has the threads of the compute stream. */
static ek_stream *part_stream(const ek_device *device) {
  const bool queues = ek__device_table(device)->event_open != NULL;
  return ek_device_stream(device, queues ? EK_STREAM_COMMUNICATION : EK_STREAM_COMPUTE);
}

static ek_status sum_part(const struct host_communicator *self, ek_device *device,
                          const struct slot *slot, int64_t first, int64_t last,
                          size_t destination_first, size_t destination_count) {
  const struct rank *own = &self->rank[ek_device_index(device)];
  const size_t ranks = self->ranks;
  for (size_t i = 0; i < ranks; i++) own->sources[i] = own->pointers[i] = element(slot, i, first);
  const struct ek__reduce_args args = {.destinations = own->pointers + destination_first,
                                       .sources = own->sources,
                                       .destination_count = destination_count,
                                       .source_count = ranks,
                                       .count = last - first,
                                       .type = slot->collective.type};
  return ek__device_table(device)->kernels->reduce(part_stream(device), &args);
}

static ek_status copy_part(ek_device *device, const struct slot *slot, size_t to, size_t from,
                           int64_t first, int64_t last) {
  const size_t bytes = (size_t)(last - first) * ek_type_size(slot->collective.type);
  return ek__device_table(device)->kernels->copy(part_stream(device), element(slot, to, first),
                                                 element(slot, from, first), bytes);
}

/* The part of `rank`, done by `device`, of a collective that all have arrived at. */
static ek_status do_part(struct host_communicator *self, const struct slot *slot,
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

static struct slot *slot_of(struct host_communicator *self, uint64_t number) {
  return &self->ring[number % RING];
}

/* Collectives number first .. first + count - 1, by the link. */
static ek_status queue_linked(struct host_communicator *self, ek_device *device, uint64_t first,
                              size_t count) {
  struct ek__collective list[EK__COLLECTIVES_TOGETHER];
  const size_t rank = ek_device_index(device);
  ek_stream *stream = part_stream(device);
  for (size_t i = 0; i < count; i++) {
    const struct slot *slot = slot_of(self, first + i);
    list[i] = slot->collective;
    list[i].data = slot->data[rank];
    EK_TRY(ek_stream_wait(stream, slot->ready[rank]));
  }
  EK_TRY(self->link->run(self->linked, device, list, count));
  for (size_t i = 0; i < count; i++) {
    EK_TRY(ek_event_record(slot_of(self, first + i)->done[rank], stream));
  }
  return EK_OK;
}

static ek_status queue_work(struct host_communicator *self, ek_device *device, uint64_t first,
                            size_t count) {
  const struct slot *slot = slot_of(self, first);
  const size_t rank = ek_device_index(device);
  if (!self->queues) return do_part(self, slot, device, rank);
  if (self->link != NULL) return queue_linked(self, device, first, count);
  ek_stream *stream = part_stream(device);
  for (size_t i = 0; i < self->ranks; i++) EK_TRY(ek_stream_wait(stream, slot->ready[i]));
  EK_TRY(do_part(self, slot, device, rank));
  return ek_event_record(slot->done[rank], stream);
}

/* A collective was done for all members. The mutex is held. */
static void finish_for_all(struct host_communicator *self) {
  for (size_t i = 0; i < self->ranks; i++) self->rank[i].finished++;
  tell_peers(self);
}

/* Whether all members have arrived at a collective, with the same arguments. */
static bool errand_ready(struct ek__errand *errand) {
  const struct slot *slot = (struct slot *)errand;
  struct host_communicator *self = slot->of;
  take(self);
  const bool ready = slot->arrived == self->ranks && !slot->mismatch && !self->aborted;
  release(self);
  return ready;
}

/* The other processes have done their part of a collective. */
static void finish_errand(struct host_communicator *self) {
  if (!ek__between_went_well(self->between)) return; /* the job ends */
  take(self);
  finish_for_all(self);
  release(self);
}

/* A whole collective, for all members, or its beginning. */
static ek_status errand_run(struct ek__errand *errand) {
  struct slot *slot = (struct slot *)errand;
  struct host_communicator *self = slot->of;
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

static struct slot *slot_of_bulk(struct ek__bulk *bulk) {
  return (struct slot *)(void *)((char *)bulk - offsetof(struct slot, bulk));
}

static ek_status bulk_advance(struct ek__bulk *bulk, bool *done) {
  struct slot *slot = slot_of_bulk(bulk);
  struct ek__between *between = slot->of->between;
  if (!slot->begun) EK_TRY(ek__between_begin(between, &slot->collective, slot->data));
  slot->begun = true;
  return ek__between_advance(between, bulk, done);
}

static void bulk_end(struct ek__bulk *bulk, ek_status status) {
  struct host_communicator *self = slot_of_bulk(bulk)->of;
  if (status == EK_OK) finish_errand(self);
  ek__place_ended(ek__group_place(self->base.group), status);
}

/* The rank that keeps the oldest collective from its end: the first that has not arrived or, if all
 * have, the first that has not done its part. */
static const char *late(const struct host_communicator *self) {
  const uint64_t oldest = over(self);
  size_t found = self->ranks;
  for (size_t i = 0; i < self->ranks && found == self->ranks; i++) {
    if (self->rank[i].queued <= oldest) found = i;
  }
  for (size_t i = 0; i < self->ranks && found == self->ranks; i++) {
    if (self->rank[i].finished <= oldest) found = i;
  }
  return ek_device_name(ek_group_device(self->base.group, found));
}

/* A rank that waits for its own part alone is about to use another communicator. */
#define OTHER_ORDER                                                                                \
  ": with several communicators, all devices must call the collectives in one order"

/*
 * A worker that has ended its part of the job without doing what others wait for: arriving at the
 * collective `number`, counted from 0, or, for `all`, doing its part of it. NULL: no worker has.
 * Called with the mutex held.
 */
static const char *ended_early(const struct host_communicator *self, bool all, uint64_t number) {
  for (size_t i = 0; i < self->ranks; i++) {
    const bool ended = ek__group_worker_ended(self->base.group, i); /* it is read first */
    /* Between processes a worker has no part, and may end before the collective. */
    const bool parts = all && self->between == NULL;
    const uint64_t come_to = parts ? self->rank[i].finished : self->rank[i].queued;
    if (ended && come_to <= number) return ek_device_name(ek_group_device(self->base.group, i));
  }
  return NULL;
}

/* Waits with the mutex for a change of the communicator, for `seconds` at most. Returns whether
 * that time passed without a change. */
static bool nothing_changes(struct host_communicator *self, double seconds) {
  struct timespec until;
  const double whole = floor(seconds);
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)((seconds - whole) * 1e9);
  until.tv_sec += (time_t)whole + until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  const uint64_t before = self->changes; /* a change may come with the end of the time */
  if (self->tell) pthread_cond_broadcast(&self->changed);
  self->tell = false;
  while (self->changes == before &&
         pthread_cond_timedwait(&self->changed, &self->mutex, &until) != ETIMEDOUT) {
  }
  return self->changes == before;
}

/*
 * Waits for a change: that this rank can do its next part, or, for `all`, that all have done their
 * parts of the oldest collective. An error if that cannot happen any more or, on devices that queue
 * their work, if nothing changes for the time limit. Called and left with the mutex held.
 */
static ek_status wait_in_time(struct host_communicator *self, const ek_device *device, bool all) {
  const struct rank *own = &self->rank[ek_device_index(device)];
  const uint64_t number = all ? over(self) : own->finished;
  const double limit = self->queues ? ek__group_time_limit(self->base.group) : INFINITY;
  for (double left = limit; left > 0; left -= LOOK_EVERY) {
    if (!nothing_changes(self, fmin(left, LOOK_EVERY))) return EK_OK;
    const char *name = self->aborted ? NULL : ended_early(self, all, number);
    EK__FAIL_IF(name != NULL, EK_ERR_SHAPE,
                MISFIT ": %s ended its work without a collective that %s waits for", name,
                ek_device_name(device));
  }
  return ek_error_set(EK_ERR_UNAVAILABLE, "%s: %s: %s has not joined after %g seconds%s",
                      ek_device_name(device), self->table.name, late(self), limit,
                      all ? "" : OTHER_ORDER);
}

static ek_status wait_for_peers(struct host_communicator *self, ek_device *device, bool all) {
  const uint64_t began = ek__track_now();
  const ek_status status = wait_in_time(self, device, all);
  ek__device_waited(device, began);
  return status;
}

/* Of `count` collectives from number `first` on. */
static struct ek__span *begin_span(struct host_communicator *self, ek_device *device,
                                   uint64_t first, size_t count) {
  static const char *const names[] = {[EK__BROADCAST] = "broadcast",
                                      [EK__REDUCE] = "reduce",
                                      [EK__ALL_REDUCE] = "all_reduce",
                                      [EK__REDUCE_SCATTER] = "reduce_scatter",
                                      [EK__ALL_GATHER] = "all_gather"};
  const struct slot *slot = slot_of(self, first);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const struct ek__collective *one = &slot_of(self, first + i)->collective;
    bytes += (uint64_t)one->count * ek_type_size(one->type);
  }
  struct ek__span *span = ek__span_begin(device, EK__LANE_COMMUNICATION, "collective", bytes);
  if (span != NULL) ek__span_name(span, names[slot->collective.kind]);
  return span;
}

static ek_status queue_part(struct host_communicator *self, ek_device *device, uint64_t first,
                            size_t count) {
  struct ek__span *span = begin_span(self, device, first, count);
  const ek_status status = queue_work(self, device, first, count);
  ek__span_end(span);
  return status;
}

/* Spans of what other ranks have done for this one. The mutex is held. */
static void show_done(struct host_communicator *self, ek_device *device) {
  struct rank *own = &self->rank[ek_device_index(device)];
  for (; !self->queues && self->between == NULL && own->shown < own->finished; own->shown++) {
    ek__span_end(begin_span(self, device, own->shown, 1));
  }
}

/*
 * How many collectives from the rank's next on are done in one go, which is the same on all ranks;
 * 0 if not all of them have arrived at all of these. A link takes those together that are said to
 * follow each other.
 */
static ek_status find_ready(size_t *count, struct host_communicator *self, size_t rank) {
  const uint64_t first = self->rank[rank].finished;
  const bool together = self->link != NULL;
  size_t found = 0;
  *count = 0;
  for (bool more = true; more && found < EK__COLLECTIVES_TOGETHER; found++) {
    const struct slot *slot = slot_of(self, first + found);
    if (first + found == self->rank[rank].queued || slot->arrived < self->ranks) return EK_OK;
    if (slot->mismatch) return misfit();
    more = together && slot->collective.more;
  }
  *count = found;
  return EK_OK;
}

/* Does this rank's parts that are ready. Called and left with the mutex held. */
static ek_status work_off(struct host_communicator *self, ek_device *device) {
  const size_t rank = ek_device_index(device);
  show_done(self, device);
  while (!self->aborted && self->rank[rank].finished < self->rank[rank].queued) {
    size_t count = 0;
    EK_TRY(find_ready(&count, self, rank));
    if (count == 0 || self->between != NULL) return EK_OK; /* an errand */
    release(self);
    const ek_status status = queue_part(self, device, self->rank[rank].finished, count);
    take(self);
    /* A link that was aborted does not know why. */
    if (status == EK_ERR_ABORTED && self->aborted) return given_up(self, rank);
    if (status != EK_OK) return status;
    const uint64_t before = over(self);
    self->rank[rank].finished += count;
    self->rank[rank].shown = self->rank[rank].finished;
    if (over(self) != before) tell_peers(self);
  }
  return self->aborted ? given_up(self, rank) : EK_OK;
}

static bool same_collective(const struct slot *slot, const struct ek__collective *collective,
                            size_t world) {
  const struct ek__collective *first = &slot->collective;
  if (first->kind != collective->kind || first->count != collective->count ||
      first->type != collective->type || first->root != collective->root ||
      first->about != collective->about || first->more != collective->more) {
    return false;
  }
  return collective->offsets == NULL ||
         memcmp(slot->offsets, collective->offsets, (world + 1) * sizeof *slot->offsets) == 0;
}

static void arrive(struct host_communicator *self, size_t rank,
                   const struct ek__collective *collective) {
  struct slot *slot = &self->ring[self->rank[rank].queued % RING];
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
  if (++slot->arrived == self->ranks) tell_peers(self);
}

static bool is_small(const struct host_communicator *self, const struct slot *slot) {
  const size_t count = (size_t)slot->collective.count;
  return count <= SMALL / (self->ranks * ek_type_size(slot->collective.type));
}

/* Does the collective at which `device` has just arrived, for all ranks, if it is the last to
 * arrive, no earlier one is left to do, and it is small. The mutex is held. */
static ek_status do_whole(struct host_communicator *self, ek_device *device) {
  struct rank *own = &self->rank[ek_device_index(device)];
  const uint64_t number = own->queued - 1;
  const struct slot *slot = slot_of(self, number);
  if (self->queues || self->between != NULL || slot->arrived < self->ranks || slot->mismatch ||
      over(self) != number || !is_small(self, slot)) {
    return EK_OK;
  }
  struct ek__span *span = begin_span(self, device, number, 1);
  ek_status status = EK_OK;
  for (size_t i = 0; i < self->ranks && status == EK_OK; i++) {
    status = do_part(self, slot, device, i);
  }
  ek__span_end(span);
  if (status != EK_OK) return status;
  finish_for_all(self);
  own->shown = own->finished;
  return EK_OK;
}

/* Waits until the rank's next slot is free. The mutex is held. */
static ek_status make_room(struct host_communicator *self, ek_device *device, size_t rank) {
  ek_status status = self->aborted ? given_up(self, rank) : EK_OK;
  while (status == EK_OK && self->rank[rank].queued - over(self) >= RING) {
    status = work_off(self, device);
    if (status == EK_OK && self->rank[rank].queued - over(self) >= RING) {
      status = wait_for_peers(self, device, true);
    }
  }
  return status;
}

/* EK_OK, or the error for which no collective can begin any more. */
static ek_status check_world(const struct host_communicator *self) {
  return ek__world_check(ek__group_world(self->base.group));
}

/* The event is recorded without the mutex: a GPU whose queue is full lets the call wait until work
 * has ended, and that work may be a collective that a peer can queue only with the mutex. Only the
 * rank itself changes `queued`, so the slot stays the one that is free. */
static ek_status host_start(ek_communicator *base, ek_device *device,
                            const struct ek__collective *collective) {
  struct host_communicator *self = (struct host_communicator *)base;
  const size_t rank = ek_device_index(device);
  EK_TRY(check_world(self));
  take(self);
  show_done(self, device);
  ek_status status = make_room(self, device, rank);
  if (status == EK_OK && self->queues) {
    ek_event *ready = self->ring[self->rank[rank].queued % RING].ready[rank];
    release(self);
    status = ek_event_record(ready, ek_device_stream(device, EK_STREAM_COMPUTE));
    take(self);
    if (status == EK_OK && self->aborted) status = given_up(self, rank);
  }
  if (status == EK_OK) {
    arrive(self, rank, collective);
    status = do_whole(self, device);
  }
  const uint64_t last = self->rank[rank].queued - 1;
  const bool errand = status == EK_OK && self->between != NULL &&
                      self->ring[last % RING].arrived == self->ranks;
  release(self);
  if (errand) ek__group_errand(self->base.group);
  return status;
}

static ek_status host_progress(ek_communicator *base, ek_device *device) {
  struct host_communicator *self = (struct host_communicator *)base;
  take(self);
  const ek_status status = work_off(self, device);
  release(self);
  return status;
}

/* Works until this rank, or all of them, have done their parts of the first `number` that this one
 * has started. */
static ek_status work_until(struct host_communicator *self, ek_device *device, bool all,
                            uint64_t number) {
  const struct rank *rank = &self->rank[ek_device_index(device)];
  take(self);
  ek_status status = work_off(self, device);
  while (status == EK_OK && (all ? over(self) : rank->finished) < number) {
    status = wait_for_peers(self, device, all);
    if (status == EK_OK) status = work_off(self, device);
  }
  release(self);
  return status;
}

static ek_status host_settle(ek_communicator *base, ek_device *device) {
  struct host_communicator *self = (struct host_communicator *)base;
  return work_until(self, device, false, self->rank[ek_device_index(device)].queued);
}

static ek_status host_wait_for(ek_communicator *base, ek_device *device, uint64_t number) {
  struct host_communicator *self = (struct host_communicator *)base;
  const size_t rank = ek_device_index(device);
  ek_status status = work_until(self, device, true, number);
  const bool more = self->queues && self->rank[rank].waited < number;
  for (size_t i = 0; i < self->ranks && more && status == EK_OK; i++) {
    if (self->link != NULL && i != rank) continue;
    status = ek_stream_wait(ek_device_stream(device, EK_STREAM_COMPUTE),
                            self->ring[(number - 1) % RING].done[i]);
  }
  if (status == EK_OK && more) self->rank[rank].waited = number; /* this rank's alone */
  return status;
}

static uint64_t host_started(const ek_communicator *base, const ek_device *device) {
  return ((const struct host_communicator *)base)->rank[ek_device_index(device)].queued;
}

static ek_status host_wait(ek_communicator *base, ek_device *device) {
  return host_wait_for(base, device, host_started(base, device));
}

static void host_abort(ek_communicator *base) {
  struct host_communicator *self = (struct host_communicator *)base;
  take(self);
  self->aborted = true;
  /* Before any rank wakes: after that it may be made new, and the abort would hit what comes next.
   */
  if (self->link != NULL) self->link->abort(self->linked);
  tell_peers(self);
  release(self);
}

/* Parts that were queued before the abort may still write other ranks' memory: they must be over
 * before the next step begins. Their errors have been reported. */
static void drain(const struct host_communicator *self) {
  for (size_t i = 0; i < self->ranks; i++) {
    if (ek_stream_synchronize(part_stream(ek_group_device(self->base.group, i))) != EK_OK) {
      ek_error_clear();
    }
  }
}

static bool host_unblock(ek_communicator *base) {
  struct host_communicator *self = (struct host_communicator *)base;
  return self->link != NULL && self->link->renew(self->linked); /* streams may hang in it */
}

static void host_renew(ek_communicator *base) {
  struct host_communicator *self = (struct host_communicator *)base;
  if (self->queues) drain(self);
  take(self);
  self->aborted = false;
  for (size_t i = 0; i < self->ranks; i++) {
    self->rank[i].queued = self->rank[i].finished = 0;
    self->rank[i].waited = self->rank[i].shown = 0;
  }
  release(self);
}

static void host_close(ek_communicator *base) {
  struct host_communicator *self = (struct host_communicator *)base;
  for (size_t i = 0; i < RING && self->between != NULL; i++) {
    ek__place_remove(ek__group_place(self->base.group), &self->ring[i].errand);
  }
  ek__between_close(self->between);
  if (self->linked != NULL) self->link->close(self->linked);
  for (size_t i = 0; i < 2 * RING * self->ranks && self->events != NULL; i++) {
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
static ek_status open_queue(struct host_communicator *self) {
  ek_group *group = self->base.group;
  const struct ek__backend *backend = ek__device_table(ek_group_device(group, 0));
  self->link = backend->link_for == NULL ? NULL : backend->link_for(ek__group_native(group));
  self->table.name = self->link == NULL ? "peer" : self->link->name;
  /* A link's parts wait for each other on the devices: two in another order would wait for ever. */
  if (self->link != NULL) self->table.settle = host_settle;
  self->table.runs_alone = self->link != NULL; /* one rank has a link only where it was asked for */
  for (size_t i = 0; i < self->ranks; i++) {
    ek_device *device = ek_group_device(group, i);
    for (size_t k = 0; k < RING; k++) {
      EK_TRY(ek_event_create(&self->ring[k].ready[i], device));
      EK_TRY(ek_event_create(&self->ring[k].done[i], device));
    }
  }
  if (self->link == NULL) return EK_OK;
  return self->link->open(&self->linked, ek__group_native(group), self->base.reach);
}

/* The needs of devices whose world has other processes. */
static ek_status open_between(struct host_communicator *self) {
  ek_group *group = self->base.group;
  if (ek__group_world(group) == NULL || self->base.reach == EK__REACH_PROCESS) return EK_OK;
  self->number = ek__place_number(ek__group_place(group));
  if (self->link != NULL) return EK_OK;
  EK__FAIL_IF(self->queues, EK_ERR_UNSUPPORTED,
              "ek_communicator_open: %s does not reach the devices of other processes; NCCL does, "
              "between GPUs of which each is one device",
              self->table.name);
  return ek__between_open(&self->between, group, self->base.reach, self->base.urgent);
}

static const char memory_of[] = "a communicator";

static ek_status allocate(struct host_communicator *self) {
  const size_t ranks = self->ranks;
  EK_TRY(ek__new(&self->rank, ranks, sizeof *self->rank, memory_of));
  const size_t offsets = self->world + 1;
  EK_TRY(ek__new(&self->offsets, RING, offsets * sizeof *self->offsets, memory_of));
  EK_TRY(ek__new(&self->pointers, (RING + ranks) * ranks, sizeof *self->pointers, memory_of));
  EK_TRY(ek__new(&self->sources, ranks * ranks, sizeof *self->sources, memory_of));
  EK_TRY(ek__new(&self->events, 2 * RING * ranks, sizeof *self->events, memory_of));
  for (size_t i = 0; i < RING; i++) {
    self->ring[i].of = self;
    self->ring[i].errand.ready = errand_ready;
    self->ring[i].errand.run = errand_run;
    self->ring[i].bulk.advance = bulk_advance;
    self->ring[i].bulk.end = bulk_end;
    self->ring[i].offsets = self->offsets + i * offsets;
    self->ring[i].data = self->pointers + i * ranks;
    self->ring[i].ready = self->events + 2 * i * ranks;
    self->ring[i].done = self->ring[i].ready + ranks;
  }
  for (size_t i = 0; i < ranks; i++) {
    self->rank[i].pointers = self->pointers + (RING + i) * ranks;
    self->rank[i].sources = self->sources + i * ranks;
  }
  return EK_OK;
}

ek_status ek__host_communicator_open(ek_communicator **communicator, ek_group *group,
                                     enum ek__reach reach, bool urgent) {
  struct host_communicator *self = NULL;
  EK_TRY(ek__new(&self, 1, sizeof *self, memory_of));
  self->table = host_table;
  self->base.table = &self->table;
  self->base.group = group;
  self->base.urgent = urgent;
  self->base.reach = ek__group_world(group) == NULL ? EK__REACH_WORLD : reach;
  self->ranks = ek_group_size(group);
  self->world =
      self->base.reach == EK__REACH_WORLD ? ek__group_world_size(group) : self->ranks;
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
  if (status == EK_OK) status = open_between(self);
  if (status != EK_OK) {
    host_close(&self->base);
    return status;
  }
  *communicator = &self->base;
  return EK_OK;
}
