/*
 * host_waiting.c - how a rank waits for the others, and when it gives up.
 *
 * A worker that computes may be late by any time. A worker that only queues is not: if it does not
 * arrive within the group's time limit, the ranks that wait for it give up. A worker that has ended
 * its part of the job does not arrive any more: waiting ranks check for that every second.
 */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "core/error.h"
#include "device/host_ring.h"
#include "device/track.h"

/* Seconds between two looks at workers that may have ended early. */
#define LOOK_EVERY 1.0

#define MISFIT "the devices called different collectives, or with different sizes"

ek_status ek__ring_misfit(void) { return ek_error_set(EK_ERR_SHAPE, MISFIT); }

/* The rank that keeps the oldest collective from its end: the first that has not arrived or, if all
 * have, the first that has not done its part. */
static const char *late(const struct ek__ring *self) {
  const uint64_t oldest = ek__ring_over(self);
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
static const char *ended_early(const struct ek__ring *self, bool all, uint64_t number) {
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
static bool nothing_changes(struct ek__ring *self, double seconds) {
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

static ek_status wait_in_time(struct ek__ring *self, const ek_device *device, bool all) {
  const struct ek__ring_rank *own = &self->rank[ek_device_index(device)];
  const uint64_t number = all ? ek__ring_over(self) : own->finished;
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

ek_status ek__ring_wait(struct ek__ring *self, ek_device *device, bool all) {
  const uint64_t began = ek__track_now();
  const ek_status status = wait_in_time(self, device, all);
  ek__device_waited(device, began);
  return status;
}
