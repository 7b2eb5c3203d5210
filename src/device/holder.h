/*
 * holder.h - which module runs on a thread, and which module, in which of its functions, allocated
 * a block of memory.
 *
 * The code that runs a module records it for the thread (`ek__place_here`), in a few assignments
 * for each function; a block allocated on that device meanwhile notes the holder. So the holder is
 * always known, and the message of a request that finds no room can name the largest ones.
 *
 * A holder lives as long as its owner, a layout of modules, and blocks may outlive it: before an
 * owner is freed, its device forgets it. Blocks and the recorder's events are read and forgotten
 * under the arena's mutex.
 */
#ifndef EK_HOLDER_H
#define EK_HOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include <evenkeel/memory.h>

struct ek__arena;

struct ek__holder {
  const void *owner;
  const char *path; /* "blocks.3.mlp"; NULL: of the owner as a whole, which its kind names */
  const char *kind;
};

struct ek__place {
  const ek_device *device;
  const struct ek__holder *holder; /* NULL: no module runs */
  const char *function;            /* a literal */
};

/* Of the calling thread. A function that changes it restores the old value. */
struct ek__place *ek__place_here(void);

static inline const char *ek__holder_name(const struct ek__holder *holder) {
  return holder->path != NULL ? holder->path : holder->kind;
}

/* No block and no event names a holder of this owner any more. */
void ek__holders_forget(const ek_device *device, const void *owner);

/* What one module holds, or all whose paths differ in numbers alone ("blocks.3.mlp"); or, where no
 * module took it, what there is of a category. */
struct ek__holding {
  const struct ek__holder *holder; /* one of them, or NULL */
  ek_memory_category category;     /* if NULL */
  bool several;                    /* modules of other paths are in it */
  uint64_t bytes;
  size_t blocks;
};

struct ek__holdings {
  struct ek__holding
      *list; /* all zero; `capacity` places, a power of two, of which half are used */
  size_t capacity, count;
  bool alike;             /* paths that differ in numbers alone are one */
  uint64_t missing_bytes; /* of those for whom there was no place */
};

/* With the arena's mutex held: all that is in use, the largest first. */
void ek__holdings_collect(struct ek__holdings *holdings, const struct ek__arena *arena);

/* "blocks.*.mlp", "(parameters)"; the end of what is too long. */
void ek__holding_name(char *buffer, size_t size, const struct ek__holding *holding);

/* With the arena's mutex held: "blocks.*.mlp 1.20 GiB, head 512.00 MiB", the three modules that
 * hold most; "" if none holds anything. */
void ek__holders_describe(char *buffer, size_t size, const struct ek__arena *arena);

#endif /* EK_HOLDER_H */
