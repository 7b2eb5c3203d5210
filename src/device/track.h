/*
 * track.h - keeps a device's spans and changes of memory while a trace runs: trace.h.
 *
 * A track has room for a fixed number of spans and counters, allocated once. A span takes the next
 * place when it begins, from any thread, and belongs to the thread that began it until it ends,
 * when its `end` is set.
 *
 * Counters are written under the arena's mutex. A device without a track records nothing, at the
 * cost of one test of a pointer. A device keeps its last track after the recording, to be read.
 *
 * If the backend has marks, the times of spans are those of a stream: span i begins at mark 2 i and
 * ends at mark 2 i + 1.
 *
 * If a tool listens to the backend's ranges (NVTX), each span is a range as well, from its name to
 * its end. Where nothing is recorded, or the track is full, the span is then the device's `heard`,
 * which all threads share and none writes.
 */
#ifndef EK_TRACK_H
#define EK_TRACK_H

#include <evenkeel/memory.h>

#include <stdatomic.h>

#include "backend/backend.h"

enum ek__lane { EK__LANE_COMPUTE, EK__LANE_COMMUNICATION, EK__LANE_TRANSFERS, EK__LANES };

enum { EK__SPAN_NAME = 80 };

struct ek__track_span {
  struct ek__track *track; /* NULL: only a tool hears of it */
  const struct ek__backend *listener; /* whose tool hears of it: backend.h; or NULL */
  uint64_t begin;            /* CLOCK_MONOTONIC, nanoseconds, until a mark says better */
  atomic_uint_least64_t end; /* 0: it has not ended */
  uint64_t bytes;            /* that it moves; 0: nothing to say */
  const char *category;      /* a literal */
  enum ek__lane lane;
  char name[EK__SPAN_NAME];
};

struct ek__counter {
  uint64_t nanoseconds, bytes; /* held by the category from then on */
  ek_memory_category category;
};

struct ek__track {
  ek_device *device;
  uint64_t start;
  size_t capacity, counter_capacity;
  atomic_size_t begun; /* spans, also those without a place */
  struct ek__track_span *spans;
  size_t counted; /* counters, also those without a place */
  struct ek__counter *counters;
  uint64_t held[EK_MEMORY_CATEGORIES]; /* at the start */
  void *marks;                         /* NULL: the host's clock is right */
};

uint64_t ek__track_now(void);

ek_status ek__track_open(struct ek__track **track, ek_device *device, size_t spans);
void ek__track_free(struct ek__track *track);
/* Gives a track to its device, which frees the one it kept, and records on it. */
void ek__track_start(struct ek__track *track);
/* False: the device does not record. */
bool ek__track_stop(ek_device *device);
/* That the device keeps, and whether it is recording; NULL: there was none. */
const struct ek__track *ek__track_kept(bool *recording, const ek_device *device);

/* When a span began and ended; false: it did not end, or its marks cannot be read. */
bool ek__track_span_times(uint64_t *begin, uint64_t *end, const struct ek__track *track,
                          size_t index);

/* ---- recording ---- */

/* NULL where nothing is recorded and no tool listens: the device may be NULL too. Otherwise
 * ek__track_span_name() comes next. */
struct ek__track_span *ek__track_span_begin(const ek_device *device, enum ek__lane lane,
                                            const char *category, uint64_t bytes);
/* The end of a name that is too long is what tells. */
void ek__track_span_name(struct ek__track_span *span, const char *name);
/* NULL is legal. */
void ek__track_span_end(struct ek__track_span *span);

/* With the arena's mutex held. */
void ek__track_memory(const ek_device *device, ek_memory_category category, uint64_t bytes);

/* Nanoseconds that the device's worker has been in jobs, without waiting for other devices. The
 * worker says when a job begins and ends, and how long it has waited in between. */
uint64_t ek__device_busy(const ek_device *device);
void ek__device_begins(ek_device *device);
void ek__device_waited(ek_device *device, uint64_t since);
void ek__device_ends(ek_device *device);

#endif /* EK_TRACK_H */
