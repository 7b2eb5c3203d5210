/*
 * host_ring.h - the ring of a communicator between devices that reach each other's memory
 * (host_communicator.c): what its files share.
 *
 * host_communicator.c has the ranks and their collectives, host_parts.c the work of one collective,
 * host_waiting.c how a rank waits for others and when it gives up, host_errands.c collectives with
 * other processes.
 */
#ifndef EK_HOST_RING_H
#define EK_HOST_RING_H

#include <pthread.h>

#include "device/between.h"
#include "device/communicator_internal.h"

enum { EK__RING = 64 };

struct ek__ring;

struct ek__ring_slot {
  struct ek__errand errand; /* first: between processes, that all members have arrived */
  struct ek__bulk bulk;     /* its data, if it is not urgent */
  bool begun;               /* that data */
  struct ek__ring *of;
  struct ek__collective collective; /* of the first to arrive; data is not used */
  int64_t *offsets;                 /* one more than there are ranks in the world */
  void **data;                      /* of each rank */
  ek_event **ready, **done;         /* of each rank */
  size_t arrived;
  bool mismatch; /* the ranks did not mean the same collective */
};

struct ek__ring_rank {
  uint64_t queued, finished; /* collectives */
  uint64_t waited;           /* those that the compute stream has waited for */
  uint64_t shown;  /* those that have a span; of `finished` another rank may have done some */
  void **pointers; /* scratch for the arguments of a sum: one per rank */
  const void **sources;
};

struct ek__ring {
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
  bool tell;              /* a change that has not been signalled: ek__ring_release() does that */
  bool aborted;
  bool queues; /* the devices compute later; else there are no events */
  struct ek__ring_rank *rank;
  struct ek__ring_slot ring[EK__RING];
  /* The memory that slots and ranks point to. */
  int64_t *offsets;
  void **pointers;
  const void **sources;
  ek_event **events;
};

/* The number of collectives that are over. The mutex is held. */
static inline uint64_t ek__ring_over(const struct ek__ring *self) {
  uint64_t least = self->rank[0].finished;
  for (size_t i = 1; i < self->ranks; i++) {
    if (self->rank[i].finished < least) least = self->rank[i].finished;
  }
  return least;
}

static inline struct ek__ring_slot *ek__ring_slot(struct ek__ring *self, uint64_t number) {
  return &self->ring[number % EK__RING];
}

/* ---- the mutex ---- */

static inline void ek__ring_take(struct ek__ring *self) { pthread_mutex_lock(&self->mutex); }

/* Releases the mutex, and wakes the ranks that wait if something changed. */
static inline void ek__ring_release(struct ek__ring *self) {
  const bool tell = self->tell;
  self->tell = false;
  pthread_mutex_unlock(&self->mutex);
  if (tell) pthread_cond_broadcast(&self->changed);
}

/* Something changed. The mutex is held. */
static inline void ek__ring_tell(struct ek__ring *self) {
  self->changes++;
  self->tell = true;
}

/* A collective was done for all members. The mutex is held. */
static inline void ek__ring_finish_for_all(struct ek__ring *self) {
  for (size_t i = 0; i < self->ranks; i++) self->rank[i].finished++;
  ek__ring_tell(self);
}

/* ---- host_parts.c ---- */

/* The stream that parts are done on: work that is done at once has the threads of the compute
 * stream. */
ek_stream *ek__ring_stream(const ek_device *device);
/* The part of `rank`, done by `device`, of a collective that all have arrived at. */
ek_status ek__ring_do_part(struct ek__ring *self, const struct ek__ring_slot *slot,
                           ek_device *device, size_t rank);
/* A span of `count` collectives from number `first` on; NULL: there is no trace. */
struct ek__track_span *ek__ring_span(struct ek__ring *self, ek_device *device, uint64_t first,
                                     size_t count);
/* Does the device's own parts of these, or queues them. The mutex is not held. */
ek_status ek__ring_queue(struct ek__ring *self, ek_device *device, uint64_t first, size_t count);

/* ---- host_waiting.c ---- */

/* The error of ranks that did not mean the same collective. */
ek_status ek__ring_misfit(void);
/*
 * Waits for a change: that this rank can do its next part, or, for `all`, that all have done their
 * parts of the oldest collective. An error if that cannot happen any more or, on devices that queue
 * their work, if nothing changes for the time limit. Called and left with the mutex held.
 */
ek_status ek__ring_wait(struct ek__ring *self, ek_device *device, bool all);

/* ---- host_errands.c ---- */

/* The needs of devices whose world has other processes. */
ek_status ek__ring_open_errands(struct ek__ring *self);

#endif /* EK_HOST_RING_H */
