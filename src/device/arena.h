/*
 * arena.h - one device's tensor memory and its ledger.
 *
 * The arena is a row of blocks, used and free, in address order. Requests are rounded up to
 * EK_MEMORY_UNIT and go into the first free block that is large enough (free_tree.h finds it); free
 * neighbours merge at once. Where a block lands depends on the sequence of requests alone, not on
 * capacity or addresses, so a run repeats its addresses and its peak, and a `plan` device has those
 * of a real one.
 *
 * Invariants, all under `mutex`:
 *   - blocks cover 0 .. capacity without gaps; no two free blocks are neighbours; `free` has the
 *     free ones;
 *   - current[c] is the sum of the used blocks of category c;
 *   - peak is the largest end of a used block since the last reset, and at_peak has the bytes of
 *     each category when it was first reached.
 *
 * A block's `category` and `serial` belong to the mutex too; `references` is atomic, and the holder
 * of a reference may read `address`, `bytes` and `ticket`. `arrival` is set by the thread that
 * allocated the block, before it has another holder.
 *
 * Memory is freed in the order of the device's compute stream: when the last reference is dropped,
 * all work that uses the block must have been queued there, or the compute stream must have been
 * made to wait for it. So the next holder may queue work on the compute stream without a wait. To
 * write the block from another stream, wait for its ticket; merged free blocks have the largest
 * ticket of them.
 */
#ifndef EK_ARENA_H
#define EK_ARENA_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "core/process.h"
#include "device/holder.h"

struct ek_memory {
  struct ek__arena *arena;
  struct ek_memory *previous, *next; /* neighbours by address; `next` also chains spare records */
  struct ek_memory *left, *right;    /* of a free block: in the tree of free blocks */
  uint64_t largest;                  /* of a free block: the largest in its part of the tree */
  char *address;
  uint64_t offset, bytes;
  uint64_t serial;       /* number of the allocation */
  uint64_t grown_serial; /* number of the allocation when it grew last; 0: never */
  uint64_t bytes_before; /* its size at the last peak, if it grew since then */
  uint64_t ticket;       /* backend.h: of the previous holder; 0: none */
  uint64_t arrival;      /* of content that was sent into it; 0: none */
  uint64_t guard;        /* guard.h: bytes of the block before `address`, and at its end; 0: none */
  uint64_t wanted;       /* of a guarded block, and of foreign memory: bytes of the tensor */
  bool watched, reported;
  uintptr_t whole; /* where the tensor that it was cut from would begin; 0: it was not cut */
  void (*release)(void *context); /* of memory that is not the arena's, or NULL */
  void *context;
  ek_memory_category category;
  const struct ek__holder *holder; /* of a used block: the module that took it, or NULL; and in */
  const char *function;            /* which of its functions, a literal, or NULL */
  bool used;
  atomic_int references;
};

/* The recorder's data of an event besides that in memory.h: the block after it or, if it was freed,
 * before it. */
struct ek__event_place {
  uint64_t offset, bytes, serial;
  const struct ek__holder *holder;
  const char *function;
};

/* Called for a request that found no room, with nothing locked, before the request fails. */
struct ek__when_full {
  void (*call)(struct ek__when_full *self, const ek_device *device, ek_memory_category category,
               uint64_t bytes);
};

struct ek__arena {
  ek_device *device;
  const struct ek__backend *backend;
  struct ek__process process; /* that opened it */
  void *base;
  bool lent; /* `base` is the program's: ek_device_resources */
  uint64_t capacity, committed;
  uint64_t fixed, outside; /* of the device itself: in the arena, and beside it */
  pthread_mutex_t mutex;
  struct ek_memory *last;  /* the block with the highest address */
  struct ek_memory *free;  /* the tree of free blocks */
  struct ek_memory *spare; /* records that describe nothing */
  struct ek__slab *slabs;  /* memory of all records */
  uint64_t current[EK_MEMORY_CATEGORIES], current_total;
  uint64_t at_peak[EK_MEMORY_CATEGORIES], peak, peak_total;
  uint64_t serial, peak_serial; /* requests so far, those that failed included */
  uint64_t made;                /* requests that succeeded */
  uint64_t fail_at;             /* fail the allocation with this serial; 0: none */
  uint64_t apart;               /* records without a block: ek__arena_take_none(), _foreign() */
  uint64_t guard;               /* of new blocks; fixed before the first tensor */
  ek_status noted;              /* guard.h: what a free has found */
  char noted_words[512];
  ek_memory_event *events;
  struct ek__event_place *places; /* of the events */
  size_t event_count, event_capacity, events_dropped;
  uint64_t event_start;
  bool recording;
  uint64_t event_serial; /* requests before the recording */
  struct ek__when_full *when_full; /* NULL: none. Changed while the group is at rest */
  bool owns_when_full;             /* one arena of a group does, and frees it */
};

/* `capacity` is rounded down to whole units. `lent` is the program's memory of as many bytes, or
 * NULL. */
ek_status ek__arena_open(struct ek__arena *arena, ek_device *device,
                         const struct ek__backend *backend, uint64_t capacity, void *lent);
/* A zeroed arena is legal. */
void ek__arena_close(struct ek__arena *arena);

/* bytes > 0; the new block has one reference. */
ek_status ek__arena_take(struct ek_memory **memory, struct ek__arena *arena,
                         ek_memory_category category, uint64_t bytes);
/*
 * A record for a tensor without elements: it has holders and is unlike any other, as a block is,
 * and has no bytes and no place in the row. NULL unless a module runs on the device in this thread.
 * So modules get the same answers on a device without rows as on others: pass.c asks for the
 * holders of a tensor, remake.c for its identity.
 */
ek_status ek__arena_take_none(struct ek_memory **memory, struct ek__arena *arena);
/*
 * A record for memory that is not the arena's: it has holders, no bytes in the ledger and no place
 * in the row. `release`, which may be NULL, is called when the last reference is dropped, on the
 * thread that drops it and with nothing locked.
 */
ek_status ek__arena_take_foreign(struct ek_memory **memory, struct ek__arena *arena, void *address,
                                 uint64_t bytes, void (*release)(void *context), void *context);
/* How many records of these two kinds are held. */
uint64_t ek__arena_apart(struct ek__arena *arena);
/* Lengthens a block in place if there is room after it. */
ek_status ek__arena_extend(bool *extended, struct ek_memory *memory, uint64_t bytes);
void ek__arena_charge(struct ek_memory *memory, ek_memory_category category);
/* Drops a reference; the last one gives the block back. */
void ek__arena_drop(struct ek_memory *memory);

/* The bytes of a block for its tensor, from `address` on. */
static inline uint64_t ek__arena_room(const struct ek_memory *memory) {
  return memory->bytes == 0 ? memory->wanted : memory->bytes - 2 * memory->guard;
}

/* Of a device: device.c. */
struct ek__arena *ek__device_arena(const ek_device *device);

#endif /* EK_ARENA_H */
