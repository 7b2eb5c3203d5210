/*
 * memory_snapshot.c - see memory_snapshot.h. All is written with the mutexes of all arenas held, so
 * that blocks, events and sums are of one moment; no other code takes two of them.
 *
 * PyTorch's viewer goes back from the blocks of a segment through the events, so an event is only
 * the allocation or the free of a whole block: a block that grew, or changed its category, is freed
 * and allocated again. The viewer fails if no event has the category "unknown", so a last event,
 * without meaning, has it.
 */
#include <evenkeel/memory_snapshot.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <evenkeel/device.h>
#include <evenkeel/version.h>

#include "core/alloc.h"
#include "core/error.h"
#include "core/log_internal.h"
#include "device/arena.h"
#include "device/device_internal.h"
#include "io/file.h"
#include "io/value_file.h"

/* Space for a device's addresses. */
static const uint64_t spacing = UINT64_C(1) << 46;

/* A request that found no room; `device` NULL: there was none. */
struct refused {
  const ek_device *device;
  ek_memory_category category;
  uint64_t bytes;
};

struct writing {
  struct ek__value_file values;
  struct ek__arena *arena; /* of the device that is written */
  uint64_t base;           /* its first address */
  bool grown;              /* a block that was held before the recording has grown in it */
  struct refused refused;
};

/* ---- the parts of a snapshot ---- */

static void put_frame(struct writing *it, const char *file, const char *function) {
  ek__value_open(&it->values, false);
  ek__value_put_string(&it->values, "filename", file);
  ek__value_put_number(&it->values, "line", 0);
  ek__value_put_string(&it->values, "name", function);
  ek__value_close(&it->values);
}

/* The module's path, and those that end before one of its dots. */
static void put_paths(struct writing *it, const char *path, const char *function) {
  char part[1024];
  size_t length = strlen(path);
  put_frame(it, path, function);
  if (length >= sizeof part) return;
  memcpy(part, path, length + 1);
  while (length-- > 0) {
    if (part[length] != '.') continue;
    part[length] = '\0';
    put_frame(it, part, "module");
  }
}

static void put_frames(struct writing *it, const struct ek__holder *holder, const char *function,
                       ek_memory_category category) {
  ek__value_put_open(&it->values, "frames", true);
  if (holder != NULL) {
    put_paths(it, ek__holder_name(holder), function);
  } else {
    char name[64];
    ek__holding_name(name, sizeof name, &(struct ek__holding){.category = category});
    put_frame(it, name, "no module");
  }
  ek__value_close(&it->values);
}

static void put_event(struct writing *it, const char *action, const struct ek__event_place *place,
                      ek_memory_category category, uint64_t nanoseconds) {
  ek__value_open(&it->values, false);
  ek__value_put_string(&it->values, "action", action);
  ek__value_put_number(&it->values, "addr", it->base + place->offset);
  ek__value_put_number(&it->values, "size", place->bytes);
  ek__value_put_number(&it->values, "stream", 0);
  ek__value_put_number(&it->values, "time_us", nanoseconds / 1000);
  ek__value_put_string(&it->values, "category", ek_memory_category_name(category));
  put_frames(it, place->holder, place->function, category);
  ek__value_close(&it->values);
}

static void put_taken(struct writing *it, const struct ek__event_place *place,
                      ek_memory_category category, uint64_t nanoseconds) {
  put_event(it, "alloc", place, category, nanoseconds);
}

static void put_given_back(struct writing *it, const struct ek__event_place *place,
                           ek_memory_category category, uint64_t nanoseconds) {
  put_event(it, "free_requested", place, category, nanoseconds);
  put_event(it, "free_completed", place, category, nanoseconds);
}

/* ---- events ---- */

static int by_serial(const void *left, const void *right) {
  const struct ek_memory *a = *(const struct ek_memory *const *)left;
  const struct ek_memory *b = *(const struct ek_memory *const *)right;
  return (a->serial > b->serial) - (a->serial < b->serial);
}

/* Bytes by which a block has grown in the recording that was held before it. */
static uint64_t grown_by(const struct writing *it, uint64_t serial) {
  uint64_t more = 0;
  for (size_t i = 0; it->grown && i < it->arena->event_count; i++) {
    const int64_t delta = it->arena->events[i].delta_bytes;
    if (delta > 0 && it->arena->places[i].serial == serial) more += (uint64_t)delta;
  }
  return more;
}

static bool has_grown(const struct ek__arena *arena) {
  for (size_t i = 0; i < arena->event_count; i++) {
    if (arena->events[i].delta_bytes > 0 && arena->places[i].serial <= arena->event_serial) {
      return true;
    }
  }
  return false;
}

/* The blocks that are held since before request number `serial`, in order of their requests. */
static ek_status put_held(struct writing *it, uint64_t serial) {
  const struct ek_memory **held = NULL;
  size_t count = 0, used = 0;
  for (const struct ek_memory *b = it->arena->last; b != NULL; b = b->previous) used += b->used;
  EK_TRY(ek__new(&held, used, sizeof *held, "a snapshot"));
  for (const struct ek_memory *b = it->arena->last; b != NULL; b = b->previous) {
    if (b->used && b->serial <= serial) held[count++] = b;
  }
  qsort((void *)held, count, sizeof *held, by_serial);
  for (size_t i = 0; i < count; i++) {
    const struct ek_memory *b = held[i];
    const struct ek__event_place place = {
        .offset = b->offset,
        .bytes = b->bytes - grown_by(it, b->serial),
        .holder = b->holder,
        .function = b->function};
    put_taken(it, &place, b->category, 0);
  }
  ek__free((void *)held);
  return EK_OK;
}

static void put_recorded(struct writing *it) {
  for (size_t i = 0; i < it->arena->event_count; i++) { /* what was held before, and is not now */
    struct ek__event_place place = it->arena->places[i];
    const bool given_back = it->arena->events[i].delta_bytes < 0;
    if (!given_back || place.serial > it->arena->event_serial) continue;
    place.bytes -= grown_by(it, place.serial);
    put_taken(it, &place, it->arena->events[i].category, 0);
  }
  for (size_t i = 0; i < it->arena->event_count; i++) {
    const ek_memory_event *event = &it->arena->events[i];
    const struct ek__event_place *place = &it->arena->places[i];
    struct ek__event_place before = *place;
    if (event->delta_bytes > 0) before.bytes -= (uint64_t)event->delta_bytes;
    if (before.bytes > 0) put_given_back(it, &before, event->category, event->nanoseconds);
    if (event->delta_bytes >= 0) put_taken(it, place, event->category, event->nanoseconds);
  }
}

static void put_refused(struct writing *it) {
  const struct ek__place *here = ek__place_here();
  ek__value_open(&it->values, false);
  ek__value_put_string(&it->values, "action", "oom");
  ek__value_put_number(&it->values, "size", it->refused.bytes);
  ek__value_put_number(&it->values, "device_free", it->arena->capacity - it->arena->current_total);
  ek__value_put_number(&it->values, "stream", 0);
  ek__value_put_string(&it->values, "category", ek_memory_category_name(it->refused.category));
  put_frames(it, here->device == it->refused.device ? here->holder : NULL, here->function,
             it->refused.category);
  ek__value_close(&it->values);
}

static void put_last(struct writing *it) {
  ek__value_open(&it->values, false);
  ek__value_put_string(&it->values, "action", "snapshot");
  ek__value_put_number(&it->values, "addr", 0);
  ek__value_put_number(&it->values, "size", 0);
  ek__value_put_number(&it->values, "stream", 0);
  ek__value_put_string(&it->values, "category", "unknown");
  ek__value_put_open(&it->values, "frames", true);
  ek__value_close(&it->values);
  ek__value_close(&it->values);
}

static ek_status put_trace(struct writing *it) {
  const bool recorded = it->arena->recording && it->arena->events_dropped == 0;
  it->grown = recorded && has_grown(it->arena);
  ek__value_open(&it->values, true);
  EK_TRY(put_held(it, recorded ? it->arena->event_serial : UINT64_MAX));
  if (recorded) put_recorded(it);
  if (it->refused.device == it->arena->device) put_refused(it);
  put_last(it);
  ek__value_close(&it->values);
  return EK_OK;
}

/* ---- segments ---- */

static void put_block(struct writing *it, const struct ek_memory *block, uint64_t bytes) {
  ek__value_open(&it->values, false);
  ek__value_put_number(&it->values, "address", it->base + block->offset);
  ek__value_put_number(&it->values, "size", bytes);
  ek__value_put_number(&it->values, "requested_size", bytes);
  ek__value_put_string(&it->values, "state", block->used ? "active_allocated" : "inactive");
  if (block->used) {
    ek__value_put_string(&it->values, "category", ek_memory_category_name(block->category));
    put_frames(it, block->holder, block->function, block->category);
  } else {
    ek__value_put_open(&it->values, "frames", true);
    ek__value_close(&it->values);
  }
  ek__value_close(&it->values);
}

/* Up to the highest address that was in use; a peak may have been reset below what is held. */
static ek_status put_segment(struct writing *it) {
  const struct ek__arena *arena = it->arena;
  const struct ek_memory *block = arena->last;
  uint64_t end = arena->peak;
  if (block->used && block->offset + block->bytes > end) end = block->offset + block->bytes;
  while (block->previous != NULL) block = block->previous;
  ek__value_open(&it->values, false);
  ek__value_put_number(&it->values, "device", ek_device_index(arena->device));
  ek__value_put_number(&it->values, "address", it->base);
  ek__value_put_number(&it->values, "total_size", end);
  ek__value_put_number(&it->values, "allocated_size", arena->current_total);
  ek__value_put_number(&it->values, "active_size", arena->current_total);
  ek__value_put_number(&it->values, "requested_size", arena->current_total);
  ek__value_put_number(&it->values, "stream", 0);
  ek__value_put_string(&it->values, "segment_type", "large");
  ek__value_put_open(&it->values, "frames", true);
  ek__value_close(&it->values);
  ek__value_put_open(&it->values, "blocks", true);
  for (; block != NULL && block->offset < end; block = block->next) {
    const uint64_t room = end - block->offset;
    put_block(it, block, block->bytes < room ? block->bytes : room);
  }
  ek__value_close(&it->values);
  ek__value_close(&it->values);
  return EK_OK;
}

/* ---- holders ---- */

/* With the arena's mutex held; the caller frees the list. */
static ek_status collect(struct ek__holdings *holdings, const struct ek__arena *arena, bool alike) {
  size_t wanted = 2;
  for (const struct ek_memory *b = arena->last; b != NULL; b = b->previous) wanted += 2 * b->used;
  *holdings = (struct ek__holdings){.capacity = 2, .alike = alike};
  while (holdings->capacity < wanted) holdings->capacity *= 2;
  EK_TRY(ek__new(&holdings->list, holdings->capacity, sizeof *holdings->list, "a snapshot"));
  ek__holdings_collect(holdings, arena);
  return EK_OK;
}

static ek_status put_device(struct writing *it) {
  struct ek__holdings holdings;
  EK_TRY(collect(&holdings, it->arena, false));
  ek__value_open(&it->values, false);
  ek__value_put_string(&it->values, "name", ek_device_name(it->arena->device));
  ek__value_put_number(&it->values, "capacity_bytes", it->arena->capacity);
  ek__value_put_number(&it->values, "held_bytes", it->arena->current_total);
  ek__value_put_number(&it->values, "peak_bytes", it->arena->peak);
  ek__value_put_open(&it->values, "holders", true);
  for (size_t i = 0; i < holdings.count; i++) {
    char name[1024];
    ek__holding_name(name, sizeof name, &holdings.list[i]);
    ek__value_open(&it->values, false);
    ek__value_put_string(&it->values, "name", name);
    ek__value_put_number(&it->values, "bytes", holdings.list[i].bytes);
    ek__value_put_number(&it->values, "blocks", holdings.list[i].blocks);
    ek__value_close(&it->values);
  }
  ek__value_close(&it->values);
  ek__value_close(&it->values);
  ek__free(holdings.list);
  return EK_OK;
}

/* ---- the file ---- */

typedef ek_status (*put_one)(struct writing *it);

/* A list with an item for each device. */
static ek_status put_devices(struct writing *it, const ek_group *group, const char *key,
                             put_one put) {
  ek_status status = EK_OK;
  ek__value_put_open(&it->values, key, true);
  for (size_t k = 0; k < ek_group_size(group) && status == EK_OK; k++) {
    it->arena = ek__device_arena(ek_group_device(group, k));
    it->base = (k + 1) * spacing;
    status = put(it);
  }
  ek__value_close(&it->values);
  return status;
}

static ek_status put_all(struct writing *it, const ek_group *group) {
  ek__value_open(&it->values, false);
  EK_TRY(put_devices(it, group, "segments", put_segment));
  EK_TRY(put_devices(it, group, "device_traces", put_trace));
  ek__value_put_open(&it->values, "evenkeel", false);
  ek__value_put_string(&it->values, "version", ek_version_string());
  EK_TRY(put_devices(it, group, "devices", put_device));
  ek__value_close(&it->values);
  ek__value_close(&it->values);
  return EK_OK;
}

static void lock_all(const ek_group *group, bool lock) {
  for (size_t k = 0; k < ek_group_size(group); k++) {
    pthread_mutex_t *mutex = &ek__device_arena(ek_group_device(group, k))->mutex;
    if (lock) {
      pthread_mutex_lock(mutex);
    } else {
      pthread_mutex_unlock(mutex);
    }
  }
}

static ek_status write_snapshot(const ek_group *group, const char *path, struct refused refused) {
  struct writing it = {.refused = refused};
  const size_t length = strlen(path);
  const bool json = length >= 5 && strcmp(path + length - 5, ".json") == 0;
  char *own = NULL;
  EK_TRY(ek__file_of_process(&own, path, ek__group_world(group)));
  const ek_status begun = ek__value_begin(&it.values, own, !json);
  ek__free(own);
  EK_TRY(begun);
  lock_all(group, true);
  const ek_status status = put_all(&it, group);
  lock_all(group, false);
  if (status == EK_OK) return ek__value_end(&it.values);
  ek__value_drop(&it.values);
  return status;
}

ek_status ek_memory_snapshot(const ek_group *group, const char *path) {
  EK__NOT_NULL("ek_memory_snapshot", group, path);
  EK_TRY(ek__group_check(group, "ek_memory_snapshot"));
  return write_snapshot(group, path, (struct refused){.device = NULL});
}

ek_status ek_memory_holders(ek_memory_holder *holders, size_t *count, size_t capacity,
                            const ek_device *device, bool alike) {
  static const char *const who = "ek_memory_holders";
  EK__NOT_NULL(who, count, device);
  EK__FAIL_IF(holders == NULL && capacity > 0, EK_ERR_INVALID_ARGUMENT, "%s: holders is NULL", who);
  EK_TRY(ek__group_check(ek_device_group(device), who));
  struct ek__arena *arena = ek__device_arena(device);
  struct ek__holdings holdings;
  pthread_mutex_lock(&arena->mutex);
  const ek_status status = collect(&holdings, arena, alike);
  for (size_t i = 0; status == EK_OK && i < holdings.count && i < capacity; i++) {
    ek__holding_name(holders[i].name, sizeof holders[i].name, &holdings.list[i]);
    holders[i].bytes = holdings.list[i].bytes;
    holders[i].blocks = holdings.list[i].blocks;
  }
  pthread_mutex_unlock(&arena->mutex);
  EK_TRY(status);
  *count = holdings.count;
  ek__free(holdings.list);
  return EK_OK;
}

/* ---- when memory runs out ---- */

struct listener {
  struct ek__when_full base; /* first */
  atomic_flag used;
  char path[];
};

static void write_when_full(struct ek__when_full *self, const ek_device *device,
                            ek_memory_category category, uint64_t bytes) {
  struct listener *listener = (struct listener *)self;
  if (atomic_flag_test_and_set(&listener->used)) return;
  const struct refused refused = {device, category, bytes};
  if (write_snapshot(ek_device_group(device), listener->path, refused) == EK_OK) return;
  ek__log(EK_LOG_WARNING, "no snapshot could be written after memory ran out: "
                          "%s", ek_error_message());
}

ek_status ek_memory_snapshot_when_full(ek_group *group, const char *path) {
  EK__NOT_NULL("ek_memory_snapshot_when_full", group);
  EK_TRY(ek__group_check(group, "ek_memory_snapshot_when_full"));
  struct listener *listener = NULL;
  if (path != NULL) {
    const size_t length = strlen(path) + 1;
    EK_TRY(ek__new(&listener, 1, sizeof *listener + length, "a snapshot"));
    listener->base.call = write_when_full;
    atomic_flag_clear(&listener->used);
    memcpy(listener->path, path, length);
  }
  struct ek__arena *first = ek__device_arena(ek_group_device(group, 0));
  struct ek__when_full *old = first->when_full;
  for (size_t k = 0; k < ek_group_size(group); k++) {
    ek__device_arena(ek_group_device(group, k))->when_full = (struct ek__when_full *)listener;
  }
  first->owns_when_full = true;
  ek__free(old);
  return EK_OK;
}
