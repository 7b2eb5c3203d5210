/*
 * memory.h - the ledger: what a device holds, by category, now and at its peak.
 *
 * Every byte of tensor memory comes from its device's arena and is charged to one category. The
 * arena is deterministic (first fit over 256-byte units, free neighbours merge), so the same run
 * gives the same addresses and the same peak.
 *
 * peak_bytes is the height that the arena has reached: the smallest capacity with which the same
 * run passes. With 256 bytes less it fails with EK_ERR_OUT_OF_MEMORY. What the categories held at
 * that moment is kept in at_peak; holes between blocks, if there were any, are unused_at_peak, so
 * that the sum of at_peak plus unused_at_peak is peak_bytes.
 */
#ifndef EVENKEEL_MEMORY_H
#define EVENKEEL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <evenkeel/export.h>
#include <evenkeel/status.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_device ek_device;
typedef struct ek_group ek_group;

/* X(identifier, name) */
#define EK_MEMORY_CATEGORY_LIST(X)                                                                 \
  X(EK_MEMORY_PARAMETERS, "parameters")                                                            \
  X(EK_MEMORY_COPIES, "copies") /* of parameters, in the type that modules compute in */           \
  X(EK_MEMORY_GRADIENTS, "gradients")                                                              \
  X(EK_MEMORY_OPTIMIZER, "optimizer")                                                              \
  X(EK_MEMORY_INPUTS, "inputs")                                                                    \
  X(EK_MEMORY_ACTIVATIONS, "activations")                                                          \
  X(EK_MEMORY_OUTPUTS, "outputs")                                                                  \
  X(EK_MEMORY_LOSS, "loss")                                                                        \
  X(EK_MEMORY_COMMUNICATION, "communication")                                                      \
  X(EK_MEMORY_WORKSPACE, "workspace")

typedef enum ek_memory_category {
#define EK_MEMORY_ENUM(identifier, name) identifier,
  EK_MEMORY_CATEGORY_LIST(EK_MEMORY_ENUM)
#undef EK_MEMORY_ENUM
      EK_MEMORY_CATEGORIES /* how many there are */
} ek_memory_category;

/* All requests are rounded up to this many bytes; capacities are exact to one such unit. */
#define EK_MEMORY_UNIT 256

/* The name of a category ("activations"); "unknown" outside the list. */
EK_API const char *ek_memory_category_name(ek_memory_category category);

typedef struct ek_memory_usage {
  uint64_t capacity_bytes; /* the cap, or the device's default capacity: device.h */
  uint64_t current_bytes;  /* held now, all categories */
  uint64_t peak_bytes;     /* the arena's height: the smallest capacity that is enough */
  uint64_t unused_at_peak; /* holes between blocks at that moment */
  uint64_t current[EK_MEMORY_CATEGORIES]; /* held now, by category */
  uint64_t at_peak[EK_MEMORY_CATEGORIES]; /* held at the peak, by category */
  uint64_t allocations;                   /* how many were ever made */
  uint64_t fixed_bytes;   /* part of current_bytes: the device's own (cuda: workspace) */
  uint64_t outside_bytes; /* outside the arena, measured at opening (cuda: context, libraries) */
} ek_memory_usage;

/*
 * Memory in use outside a device's arena, which no ledger sees: a driver's context, code, buffers
 * of NCCL, other programs. In bytes. Several devices of one GPU have equal parts of the GPU's
 * figures, so that the sum over them is exact: total_bytes is free_bytes plus the arenas (the
 * devices' capacities) plus now_bytes. All zero for devices without memory of their own (cpu,
 * plan).
 */
typedef struct ek_memory_outside {
  uint64_t opening_bytes; /* measured when the group was opened: outside_bytes of ek_memory_usage */
  uint64_t now_bytes;     /* measured by this call */
  uint64_t reserve_bytes; /* left free for growth by a default capacity; 0 with a cap */
  uint64_t free_bytes, total_bytes; /* of the GPU, now */
} ek_memory_outside;

/*
 * Measures it, from any thread; takes some microseconds and waits for nothing. EK_ERR_UNAVAILABLE
 * if the driver does not report it.
 */
EK_API EK_CHECKED ek_status ek_memory_measure_outside(ek_memory_outside *outside,
                                                      const ek_device *device);

/* Reads a device's ledger, at any time, from any thread. Fails only on NULL, and in a child of the
 * process that opened the group (EK_ERR_STATE). */
EK_API EK_CHECKED ek_status ek_memory_stats(ek_memory_usage *usage, const ek_device *device);

/* The peak becomes the arena's current height. Fails like ek_memory_stats(). */
EK_API EK_CHECKED ek_status ek_memory_reset_peak(ek_device *device);

/*
 * Writes a table of the bytes held at the peak (a row for each category, a column for each device
 * of the group, each size with its unit) as text with a final newline. Writes at most `size` bytes,
 * the final NUL included, and sets *needed (which may be NULL) to the bytes that the whole text
 * needs. `buffer` may be NULL when `size` is 0.
 */
EK_API EK_CHECKED ek_status ek_memory_format(char *buffer, size_t *needed, size_t size,
                                             const ek_group *group);

/* ---- the recorder: a timeline of one device's ledger ---- */

typedef struct ek_memory_event {
  uint64_t nanoseconds;   /* since the recorder was started */
  int64_t delta_bytes;    /* allocated (> 0) or freed (< 0); 0 for a change of category */
  uint64_t current_bytes; /* held after it */
  uint64_t height_bytes;  /* the arena's height after it */
  ek_memory_category category;
  ek_memory_category before; /* the category before a change; otherwise the same */
  uint64_t block_bytes;      /* of the whole block */
} ek_memory_event;

/*
 * Records the first `capacity` events from now on; later ones are counted but dropped. Replaces an
 * earlier recording. EK_ERR_OUT_OF_MEMORY if the host has no memory for it.
 */
EK_API EK_CHECKED ek_status ek_memory_record_start(ek_device *device, size_t capacity);

/*
 * Stops recording. *events points to *count events until the next start or the closing of the
 * group; *dropped (may be NULL) is the number of events dropped. EK_ERR_STATE if no recording was
 * started.
 */
EK_API EK_CHECKED ek_status ek_memory_record_stop(const ek_memory_event **events, size_t *count,
                                                  size_t *dropped, ek_device *device);

/*
 * For tests of a program that runs out of memory: the n-th allocation on this device from now on
 * (n = 1 is the next) fails once with EK_ERR_OUT_OF_MEMORY. n = 0 cancels this.
 */
EK_API EK_CHECKED ek_status ek_memory_fail_at(ek_device *device, uint64_t n);

EK_END_DECLARATIONS

#endif /* EVENKEEL_MEMORY_H */
