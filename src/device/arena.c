/*
 * arena.c - first fit over a row of blocks; see arena.h for the design and the invariants.
 *
 * Nothing here walks the row, because a model of 100,000 layers holds as many blocks. A request
 * takes time in the logarithm of the number of free blocks, everything else looks at a few
 * neighbours.
 *
 * A child of fork() may read the memory, but takes and frees nothing: a thread of the parent may
 * have held the mutex.
 */
#include "core/error.h"
#include "device/arena.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/sizes.h"
#include "device/device_internal.h"
#include "device/free_tree.h"
#include "device/guard.h"
#include "device/ledger.h"
#include "device/track.h"

/* Records come in slabs, so that a step that ran before allocates nothing on the host. */
enum { RECORDS_PER_SLAB = 256 };
struct ek__slab {
  struct ek__slab *next;
  struct ek_memory records[RECORDS_PER_SLAB];
};

/* Real memory is made usable in steps of this size. */
enum { COMMIT_STEP = 8 << 20 };

/* Makes sure that one spare record is there: a split needs it. */
static ek_status reserve_record(struct ek__arena *arena) {
  if (arena->spare != NULL) return EK_OK;
  struct ek__slab *slab = NULL;
  EK_TRY(ek__new(&slab, 1, sizeof *slab, "the arena"));
  slab->next = arena->slabs;
  arena->slabs = slab;
  for (size_t i = 0; i < RECORDS_PER_SLAB; i++) {
    slab->records[i].next = arena->spare;
    arena->spare = &slab->records[i];
  }
  return EK_OK;
}

static struct ek_memory *take_record(struct ek__arena *arena) {
  struct ek_memory *record = arena->spare;
  arena->spare = record->next;
  memset(record, 0, sizeof *record);
  record->arena = arena;
  return record;
}

ek_status ek__arena_open(struct ek__arena *arena, ek_device *device,
                         const struct ek__backend *backend, uint64_t capacity, void *lent) {
  memset(arena, 0, sizeof *arena);
  arena->process = ek__process_this();
  arena->device = device;
  arena->backend = backend;
  arena->capacity = capacity & ~(uint64_t)(EK_MEMORY_UNIT - 1);
  EK__FAIL_IF(arena->capacity > INT64_MAX, EK_ERR_OUT_OF_MEMORY,
              "%s: the capacity does not fit in 63 bits", ek_device_name(device));
  EK_TRY(reserve_record(arena));
  const bool locks = pthread_mutex_init(&arena->mutex, NULL) == 0;
  ek_status status = EK_OK;
  if (!locks) status = ek_error_set(EK_ERR_OUT_OF_MEMORY, "%s: a mutex could not be "
                                                          "created", ek_device_name(device));
  arena->base = lent;
  arena->lent = lent != NULL;
  if (status == EK_OK && arena->capacity > 0 && !arena->lent) {
    status = backend->memory_reserve(&arena->base, arena->capacity, device);
  }
  if (status != EK_OK) {
    if (locks) pthread_mutex_destroy(&arena->mutex);
    ek__free(arena->slabs);
    arena->slabs = NULL;
    return status;
  }
  arena->last = take_record(arena);
  arena->last->bytes = arena->capacity;
  ek__free_tree_insert(&arena->free, arena->last);
  return EK_OK;
}

void ek__arena_close(struct ek__arena *arena) {
  if (arena->slabs == NULL) return;
  if (arena->capacity > 0 && !arena->lent) {
    arena->backend->memory_release(arena->base, arena->capacity);
  }
  while (arena->slabs != NULL) {
    struct ek__slab *slab = arena->slabs;
    arena->slabs = slab->next;
    ek__free(slab);
  }
  ek__free(arena->events);
  ek__free(arena->places);
  if (arena->owns_when_full) ek__free(arena->when_full);
  pthread_mutex_destroy(&arena->mutex);
}

/* ---- the ledger's side: called with the mutex held ---- */

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The end of the last used block: a free one after it has no free neighbour. */
static uint64_t height(const struct ek__arena *arena) {
  return arena->last->offset + (arena->last->used ? arena->last->bytes : 0);
}

static struct ek__event_place place_of(const struct ek_memory *block) {
  return (struct ek__event_place){.offset = block->offset,
                                  .bytes = block->bytes,
                                  .serial = block->serial,
                                  .holder = block->holder,
                                  .function = block->function};
}

/* `before` is another one where a block has changed it. */
static void record_event(struct ek__arena *arena, ek_memory_category category,
                         ek_memory_category before, int64_t delta, struct ek__event_place place) {
  if (before != category) ek__track_memory(arena->device, before, arena->current[before]);
  ek__track_memory(arena->device, category, arena->current[category]);
  if (!arena->recording) return;
  if (arena->event_count == arena->event_capacity) {
    arena->events_dropped++;
    return;
  }
  arena->places[arena->event_count] = place;
  arena->events[arena->event_count++] = (ek_memory_event){.nanoseconds = now() - arena->event_start,
                                                          .delta_bytes = delta,
                                                          .current_bytes = arena->current_total,
                                                          .height_bytes = height(arena),
                                                          .category = category,
                                                          .before = before,
                                                          .block_bytes = place.bytes};
}

static void note_height(struct ek__arena *arena, uint64_t end) {
  if (end <= arena->peak) return;
  arena->peak = end;
  arena->peak_total = arena->current_total;
  arena->peak_serial = arena->serial;
  memcpy(arena->at_peak, arena->current, sizeof arena->at_peak);
}

/* The bytes of a block that the record of the peak counts. */
static uint64_t bytes_in_peak(const struct ek__arena *arena, const struct ek_memory *memory) {
  if (memory->serial > arena->peak_serial) return 0;
  return memory->grown_serial > arena->peak_serial ? memory->bytes_before : memory->bytes;
}

static ek_status commit(struct ek__arena *arena, uint64_t end) {
  if (end <= arena->committed || arena->backend->memory_commit == NULL || arena->lent) return EK_OK;
  uint64_t wanted = 0;
  if (!ek__round_up(&wanted, end, COMMIT_STEP) || wanted > arena->capacity) {
    wanted = arena->capacity;
  }
  EK_TRY(arena->backend->memory_commit(arena->base, wanted));
  arena->committed = wanted;
  return EK_OK;
}

/* ---- taking and giving back ---- */

/* Cuts a block that has left the tree so that it has `bytes`; the rest becomes a free block. */
static void split(struct ek__arena *arena, struct ek_memory *block, uint64_t bytes) {
  if (block->bytes == bytes) return;
  struct ek_memory *rest = take_record(arena);
  rest->offset = block->offset + bytes;
  rest->bytes = block->bytes - bytes;
  rest->ticket = block->ticket;
  rest->arrival = block->arrival;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != NULL) rest->next->previous = rest;
  if (arena->last == block) arena->last = rest;
  block->next = rest;
  block->bytes = bytes;
  ek__free_tree_insert(&arena->free, rest);
}

/* Joins `block` with its successor; neither is in the tree. */
static void swallow_next(struct ek__arena *arena, struct ek_memory *block) {
  struct ek_memory *next = block->next;
  block->bytes += next->bytes;
  if (next->ticket > block->ticket) block->ticket = next->ticket;
  if (next->arrival > block->arrival) block->arrival = next->arrival;
  block->next = next->next;
  if (block->next != NULL) block->next->previous = block;
  if (arena->last == next) arena->last = block;
  next->next = arena->spare;
  arena->spare = next;
}

static ek_status out_of_memory(struct ek__arena *arena, ek_memory_category category, uint64_t bytes,
                               const char *why) {
  const uint64_t largest = ek__free_tree_largest(arena->free);
  char held[1024], holders[512];
  ek__ledger_describe(held, sizeof held, arena->current);
  ek__holders_describe(holders, sizeof holders, arena);
  char wanted[32], free_text[32], capacity[32], total[32];
  return ek_error_set(
      EK_ERR_OUT_OF_MEMORY,
      "%s: out of memory: %s%s (%llu bytes) for %s, largest free block %s (%llu bytes), capacity "
      "%s, held %s: %s%s%s",
      ek_device_name(arena->device), why, ek__size_text(wanted, sizeof wanted, bytes),
      (unsigned long long)bytes, ek_memory_category_name(category),
      ek__size_text(free_text, sizeof free_text, largest), (unsigned long long)largest,
      ek__size_text(capacity, sizeof capacity, arena->capacity),
      ek__size_text(total, sizeof total, arena->current_total), held,
      holders[0] != '\0' ? "; most by modules: " : "", holders);
}

/* Content that was sent into a block and that was not waited for may still be on its way. */
static ek_status let_arrive(struct ek__arena *arena, struct ek_memory *block) {
  if (block->arrival == 0) return EK_OK;
  EK_TRY(arena->backend->arrive(arena->device, block->arrival));
  block->arrival = 0;
  return EK_OK;
}

/* Counts a request: the one that a test has chosen fails. */
static ek_status admit(struct ek__arena *arena, ek_memory_category category, uint64_t bytes) {
  if (arena->fail_at == ++arena->serial) {
    arena->fail_at = 0;
    return out_of_memory(arena, category, bytes, "(failure requested by a test) ");
  }
  return reserve_record(arena);
}

/* Takes a free block of `bytes` out of the tree, cut from the beginning of this one. */
static ek_status occupy(struct ek__arena *arena, struct ek_memory *block, uint64_t bytes) {
  EK_TRY(commit(arena, block->offset + bytes));
  EK_TRY(let_arrive(arena, block));
  ek__free_tree_remove(&arena->free, block);
  split(arena, block, bytes);
  arena->made++;
  return EK_OK;
}

/* Charges the last `bytes` of a block to the ledger. */
static void charge(struct ek__arena *arena, const struct ek_memory *block, uint64_t bytes) {
  arena->current[block->category] += bytes;
  arena->current_total += bytes;
  note_height(arena, block->offset + block->bytes);
  record_event(arena, block->category, block->category, (int64_t)bytes, place_of(block));
}

/* The module that runs on this thread, if it runs on this device: holder.h. */
static void note_holder(struct ek_memory *block, const struct ek__arena *arena) {
  const struct ek__place *here = ek__place_here();
  const bool is_here = here->device == arena->device;
  block->holder = is_here ? here->holder : NULL;
  block->function = is_here ? here->function : NULL;
}

static ek_status take_locked(struct ek_memory **memory, struct ek__arena *arena,
                             ek_memory_category category, uint64_t bytes) {
  EK_TRY(admit(arena, category, bytes));
  struct ek_memory *block = ek__free_tree_first(arena->free, bytes);
  if (block == NULL) return out_of_memory(arena, category, bytes, "");
  EK_TRY(occupy(arena, block, bytes));
  block->used = true;
  block->guard = arena->guard;
  block->address = (char *)arena->base + block->offset + block->guard;
  block->watched = block->reported = false;
  block->category = category;
  block->serial = arena->serial;
  block->grown_serial = 0;
  note_holder(block, arena);
  atomic_store_explicit(&block->references, 1, memory_order_relaxed);
  charge(arena, block, bytes);
  *memory = block;
  return EK_OK;
}

/* A tool may learn what of the arena is a tensor's, or with its guards: these are read too. */
static void tell_taken(const struct ek_memory *block, uint64_t bytes) {
  const struct ek__arena *arena = block->arena;
  if (arena->backend->block_taken == NULL || bytes == 0) return;
  const bool guarded = block->guard > 0;
  arena->backend->block_taken(arena->device, (char *)block->address - block->guard,
                              guarded ? block->bytes : bytes);
}

static void tell_given(const struct ek_memory *block) {
  const struct ek__arena *arena = block->arena;
  if (arena->backend->block_given == NULL) return;
  arena->backend->block_given(arena->device, (char *)block->address - block->guard);
}

static void give_back(struct ek_memory *memory) {
  struct ek__arena *arena = memory->arena;
  tell_given(memory);
  pthread_mutex_lock(&arena->mutex);
  const ek_memory_category category = memory->category;
  const struct ek__event_place place = place_of(memory);
  arena->current[category] -= memory->bytes;
  arena->current_total -= memory->bytes;
  memory->used = false;
  memory->ticket = arena->backend->ticket == NULL ? 0 : arena->backend->ticket(arena->device);
  struct ek_memory *block = memory, *before = memory->previous;
  if (block->next != NULL && !block->next->used) {
    ek__free_tree_remove(&arena->free, block->next);
    swallow_next(arena, block);
  }
  if (before != NULL && !before->used) {
    ek__free_tree_remove(&arena->free, before);
    swallow_next(arena, before);
    block = before;
  }
  ek__free_tree_insert(&arena->free, block);
  record_event(arena, category, category, -(int64_t)place.bytes, place);
  pthread_mutex_unlock(&arena->mutex);
}

/* The bytes of a block for a tensor of `bytes`. */
static ek_status whole_units(uint64_t *rounded, const struct ek__arena *arena, uint64_t bytes) {
  uint64_t result = 0;
  EK__FAIL_IF(!ek__round_up(&result, bytes, EK_MEMORY_UNIT) ||
                  result > INT64_MAX - 2 * arena->guard,
              EK_ERR_OVERFLOW, "%s: %llu bytes do not fit in 63 bits",
              ek_device_name(arena->device), (unsigned long long)bytes);
  *rounded = result + 2 * arena->guard;
  return EK_OK;
}

/* A request has failed: calls the listener, and keeps the message. */
static ek_status said_if_full(ek_status status, const struct ek__arena *arena,
                              ek_memory_category category, uint64_t bytes) {
  struct ek__when_full *const listener = arena->when_full;
  if (status != EK_ERR_OUT_OF_MEMORY || listener == NULL) return status;
  char message[EK__MESSAGE_SIZE];
  (void)snprintf(message, sizeof message, "%s", ek_error_message());
  listener->call(listener, arena->device, category, bytes);
  return ek_error_set(status, "%s", message);
}

ek_status ek__arena_take(struct ek_memory **memory, struct ek__arena *arena,
                         ek_memory_category category, uint64_t bytes) {
  uint64_t rounded = 0;
  struct ek_memory *block = NULL;
  EK_TRY(whole_units(&rounded, arena, bytes));
  EK_TRY(ek__process_check(&arena->process, "ek_tensor_create"));
  pthread_mutex_lock(&arena->mutex);
  ek_status status = take_locked(&block, arena, category, rounded);
  pthread_mutex_unlock(&arena->mutex);
  if (status == EK_OK) tell_taken(block, bytes);
  if (status == EK_OK && block->guard > 0) {
    block->wanted = bytes;
    status = ek__guard_paint(block, 0);
    if (status != EK_OK) give_back(block);
  }
  if (status == EK_OK) *memory = block;
  return said_if_full(status, arena, category, rounded);
}

static ek_status take_apart(struct ek_memory **memory, struct ek__arena *arena, void *address,
                            uint64_t bytes, void (*release)(void *context), void *context) {
  pthread_mutex_lock(&arena->mutex);
  const ek_status status = reserve_record(arena);
  if (status == EK_OK) {
    struct ek_memory *record = take_record(arena);
    record->address = address;
    record->wanted = bytes;
    record->release = release;
    record->context = context;
    record->used = true;
    atomic_store_explicit(&record->references, 1, memory_order_relaxed);
    arena->apart++;
    *memory = record;
  }
  pthread_mutex_unlock(&arena->mutex);
  return status;
}

ek_status ek__arena_take_none(struct ek_memory **memory, struct ek__arena *arena) {
  const struct ek__place *here = ek__place_here();
  if (here->device != arena->device || here->holder == NULL) {
    *memory = NULL;
    return EK_OK;
  }
  EK_TRY(ek__process_check(&arena->process, "ek_tensor_create"));
  return take_apart(memory, arena, arena->base, 0, NULL, NULL);
}

ek_status ek__arena_take_foreign(struct ek_memory **memory, struct ek__arena *arena, void *address,
                                 uint64_t bytes, void (*release)(void *context), void *context) {
  EK_TRY(ek__process_check(&arena->process, "ek_tensor_wrap"));
  return take_apart(memory, arena, address, bytes, release, context);
}

uint64_t ek__arena_apart(struct ek__arena *arena) {
  pthread_mutex_lock(&arena->mutex);
  const uint64_t count = arena->apart;
  pthread_mutex_unlock(&arena->mutex);
  return count;
}

static void give_back_apart(struct ek_memory *record) {
  struct ek__arena *arena = record->arena;
  void (*const release)(void *context) = record->release;
  void *const context = record->context;
  pthread_mutex_lock(&arena->mutex);
  record->next = arena->spare;
  arena->spare = record;
  arena->apart--;
  pthread_mutex_unlock(&arena->mutex);
  if (release != NULL) release(context);
}

static ek_status extend_locked(bool *extended, struct ek_memory *memory, uint64_t bytes) {
  struct ek__arena *arena = memory->arena;
  struct ek_memory *next = memory->next;
  *extended = false;
  if (bytes <= memory->bytes) {
    *extended = true;
    return EK_OK;
  }
  const uint64_t more = bytes - memory->bytes;
  if (next == NULL || next->used || next->bytes < more) return EK_OK;
  EK_TRY(admit(arena, memory->category, more));
  EK_TRY(occupy(arena, next, more));
  /* A second growth since the peak leaves the size that the peak saw. */
  if (memory->grown_serial <= arena->peak_serial) memory->bytes_before = memory->bytes;
  memory->grown_serial = arena->serial;
  swallow_next(arena, memory);
  charge(arena, memory, more);
  *extended = true;
  return EK_OK;
}

ek_status ek__arena_extend(bool *extended, struct ek_memory *memory, uint64_t bytes) {
  uint64_t rounded = 0;
  struct ek__arena *arena = memory->arena;
  EK_TRY(whole_units(&rounded, arena, bytes));
  EK_TRY(ek__process_check(&arena->process, "ek_tensor_grow"));
  pthread_mutex_lock(&arena->mutex);
  const ek_status status = extend_locked(extended, memory, rounded);
  if (*extended) memory->watched = false; /* its end is elsewhere */
  pthread_mutex_unlock(&arena->mutex);
  if (status == EK_OK && *extended) {
    tell_given(memory);
    tell_taken(memory, bytes);
  }
  if (status != EK_OK || !*extended || memory->guard == 0) {
    return said_if_full(status, arena, memory->category, rounded);
  }
  const uint64_t kept = memory->wanted;
  memory->wanted = bytes;
  return ek__guard_paint(memory, kept);
}

void ek__arena_charge(struct ek_memory *memory, ek_memory_category category) {
  struct ek__arena *arena = memory->arena;
  if (memory->bytes == 0 || ek__process_is_child(&arena->process)) return;
  pthread_mutex_lock(&arena->mutex);
  if (memory->category != category) {
    const uint64_t peak_bytes = bytes_in_peak(arena, memory);
    arena->at_peak[memory->category] -= peak_bytes;
    arena->at_peak[category] += peak_bytes;
    arena->current[memory->category] -= memory->bytes;
    arena->current[category] += memory->bytes;
    record_event(arena, category, memory->category, 0, place_of(memory));
    memory->category = category;
  }
  pthread_mutex_unlock(&arena->mutex);
}

void ek__arena_drop(struct ek_memory *memory) {
  if (atomic_fetch_sub_explicit(&memory->references, 1, memory_order_acq_rel) != 1) return;
  if (ek__process_is_child(&memory->arena->process)) return;
  if (memory->bytes == 0) {
    give_back_apart(memory);
    return;
  }
  if (memory->guard > 0) ek__guard_close(memory);
  give_back(memory);
}

/* ---- the ledger's public side: memory.h ---- */

/* Takes the lock of a device's arena. */
static ek_status enter(struct ek__arena **arena, const char *who, const ek_device *device) {
  EK__NOT_NULL(who, device);
  *arena = ek__device_arena(device);
  EK_TRY(ek__process_check(&(*arena)->process, who));
  pthread_mutex_lock(&(*arena)->mutex);
  return EK_OK;
}

ek_status ek_memory_stats(ek_memory_usage *usage, const ek_device *device) {
  EK__NOT_NULL("ek_memory_stats", usage);
  struct ek__arena *arena = NULL;
  EK_TRY(enter(&arena, "ek_memory_stats", device));
  *usage = (ek_memory_usage){.capacity_bytes = arena->capacity,
                             .current_bytes = arena->current_total,
                             .peak_bytes = arena->peak,
                             .unused_at_peak = arena->peak - arena->peak_total,
                             .allocations = arena->made,
                             .fixed_bytes = arena->fixed,
                             .outside_bytes = arena->outside};
  memcpy(usage->current, arena->current, sizeof usage->current);
  memcpy(usage->at_peak, arena->at_peak, sizeof usage->at_peak);
  pthread_mutex_unlock(&arena->mutex);
  return EK_OK;
}

ek_status ek_memory_reset_peak(ek_device *device) {
  struct ek__arena *arena = NULL;
  EK_TRY(enter(&arena, "ek_memory_reset_peak", device));
  arena->peak = height(arena);
  arena->peak_total = arena->current_total;
  arena->peak_serial = arena->serial;
  memcpy(arena->at_peak, arena->current, sizeof arena->at_peak);
  pthread_mutex_unlock(&arena->mutex);
  return EK_OK;
}

ek_status ek_memory_fail_at(ek_device *device, uint64_t n) {
  struct ek__arena *arena = NULL;
  EK_TRY(enter(&arena, "ek_memory_fail_at", device));
  arena->fail_at = n == 0 ? 0 : arena->serial + n;
  pthread_mutex_unlock(&arena->mutex);
  return EK_OK;
}

ek_status ek_memory_record_start(ek_device *device, size_t capacity) {
  EK__NOT_NULL("ek_memory_record_start", device);
  struct ek__arena *arena = ek__device_arena(device);
  EK_TRY(ek__process_check(&arena->process, "ek_memory_record_start"));
  ek_memory_event *events = ek__calloc(capacity, sizeof *events);
  struct ek__event_place *places = ek__calloc(capacity, sizeof *places);
  if (events == NULL || places == NULL) {
    ek__free(events);
    ek__free(places);
    return ek_error_set(EK_ERR_OUT_OF_MEMORY, "out of host memory to record %zu events", capacity);
  }
  pthread_mutex_lock(&arena->mutex);
  ek_memory_event *old = arena->events;
  struct ek__event_place *old_places = arena->places;
  arena->events = events;
  arena->places = places;
  arena->event_capacity = capacity;
  arena->event_count = arena->events_dropped = 0;
  arena->event_start = now();
  arena->event_serial = arena->serial;
  arena->recording = true;
  pthread_mutex_unlock(&arena->mutex);
  ek__free(old);
  ek__free(old_places);
  return EK_OK;
}

ek_status ek_memory_record_stop(const ek_memory_event **events, size_t *count, size_t *dropped,
                                ek_device *device) {
  EK__NOT_NULL("ek_memory_record_stop", events, count);
  struct ek__arena *arena = NULL;
  EK_TRY(enter(&arena, "ek_memory_record_stop", device));
  const bool recording = arena->recording;
  if (recording) {
    arena->recording = false;
    *events = arena->events;
    *count = arena->event_count;
    if (dropped != NULL) *dropped = arena->events_dropped;
  }
  pthread_mutex_unlock(&arena->mutex);
  EK__FAIL_IF(!recording, EK_ERR_STATE, "%s: no recording is running", ek_device_name(device));
  return EK_OK;
}
