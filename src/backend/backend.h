/*
 * backend.h - the table that a backend is.
 *
 * A backend is one `static const struct ek__backend` with designated initialisers. The comment of
 * each slot says whether it is required (EK__BACKEND_REQUIRED takes these) or what happens without
 * it. Only the wrappers in src/op and src/device call slots; they check every argument first, so a
 * slot does not check it again.
 *
 * The kernels of a backend are a table of their own: kernels.h.
 */
#ifndef EK_BACKEND_H
#define EK_BACKEND_H

#include <evenkeel/memory.h>

#include "backend/kernels.h"

/* ---- the backend ---- */

/* One device of a string: logical device number `part` of `parts` on GPU number `physical`. */
struct ek__device_place {
  int physical, part, parts;
};

/* What the device string says: device_spec.c. */
struct ek__device_spec {
  const struct ek__backend_name *backend; /* src/device/backends.h */
  size_t count;                           /* of devices; 0: all there are, only before `resolve` */
  uint64_t capacity;                      /* of each device; 0: not given */
  struct ek__device_place *places; /* one per device where the string numbers them, or NULL */
  size_t room;                     /* how many `places` has room for */
};

/* ---- collectives: communicator.h says what they do ---- */

enum ek__collective_kind {
  EK__BROADCAST,
  EK__REDUCE,
  EK__ALL_REDUCE,
  EK__REDUCE_SCATTER,
  EK__ALL_GATHER
};

/* As functions and spans are called. Without designators: C++ reads this too. */
static inline const char *ek__collective_name(enum ek__collective_kind kind) {
  static const char *const names[] = {"broadcast", "reduce", "all_reduce", "reduce_scatter",
                                      "all_gather"};
  return names[kind];
}

struct ek__collective {
  enum ek__collective_kind kind;
  void *data;
  int64_t count;
  ek_type type;
  size_t root;            /* broadcast, reduce */
  const int64_t *offsets; /* reduce_scatter, all_gather: one more than there are devices */
  uint64_t about;         /* what is gathered, if that is said; the same on all devices */
  bool more;              /* all devices start the next one at once: a link takes both together */
};

/* The most that a link takes together. */
enum { EK__COLLECTIVES_TOGETHER = 16 };

/* How the processes of a group agree on something before their devices can reach each other. */
struct ek__agreeing {
  /* Every process gets the bytes of the one that has rank 0. This and the next are called in the
   * same order in all of them, on no worker. */
  ek_status (*share)(ek_world *world, void *bytes, size_t count);
  /* *same: all processes have the same number. */
  ek_status (*compare)(ek_world *world, int64_t number, bool *same);
  /* Whether some process has said that it fails, or is gone: it may not come. From any thread. */
  bool (*misses)(ek_world *world);
};

/* Where a group's devices are among the ranks of all processes. */
struct ek__members {
  size_t first_rank, ranks;
  ek_world *world; /* NULL: there is one process */
  const struct ek__agreeing *agreeing;
};

/* Which devices are ranks of a communicator: those of roots, offsets and sums. */
enum ek__reach {
  EK__REACH_WORLD,   /* of all processes */
  EK__REACH_PROCESS, /* of this process */
  /* Of this process, and reduce_scatter (the only collective there) adds up the devices of all
   * processes, which have the same number of them: first in each process, then the processes. */
  EK__REACH_SHARES
};

/*
 * Collectives of a backend's own, over all devices of one group. host_communicator.c sees to it
 * that every device means the same collective, in the same order, before the first of them runs it.
 */
struct ek__link {
  const char *name;
  /* Required: *self is what the others get; called on no worker. */
  ek_status (*open)(void **self, void *group, enum ek__reach reach);
  /* Required: queues the device's part of collectives, one or more and the same on all devices, on
   * its communication stream; on the device's worker. */
  ek_status (*run)(void *self, ek_device *device, const struct ek__collective *collectives,
                   size_t count);
  /* Required: from any thread, waits for nothing; calls of `run` that wait for others return
   * EK_ERR_ABORTED. */
  void (*abort)(void *self);
  /* Required: makes it as new after an abort; no worker runs. True if it cut collectives off. All
   * processes call it at the same time. */
  bool (*renew)(void *self);
  void (*close)(void *self);
};

/* ---- the table ---- */

/* What goes from host memory to a device: bytes as they are, or what is made of them piece by
 * piece. */
struct ek__host_bytes {
  const void *data;
  /* NULL, or puts bytes first .. first + count - 1 of what is sent to `to`; both are multiples of
   * 8, except at the end. From any thread. */
  ek_status (*make)(const void *context, void *to, size_t first, size_t count);
  const void *context;
};

struct ek__backend {
  const char *name;

  /* (optional) without kernels the backend only counts: operations succeed at once. */
  const struct ek__kernels *kernels;
  /* Required: the types of values that the kernels take, a set as in tensor.h; without kernels,
   * those of the backend that it counts for. */
  unsigned values;
  /* (optional: "plan") the backend whose devices count what a device of this one takes. */
  const char *planner;
  /* (optional: false) products of f32 round to TF32 where that is allowed. */
  bool tf32;

  /* (optional: false) all devices of the backend are in one address space, so that any worker may
   * run a kernel over any device's memory. */
  bool shared_memory;

  /* (optional: tensors are not exchanged) what DLPack calls memory of the backend's devices; and
   * (optional: 0) the number by which programs of this backend know a device's hardware. */
  int dlpack_type;
  int (*number)(const ek_device *device);

  /* Required: describes what there is; never fails for a missing device, says so in `text`. */
  ek_status (*describe)(ek_device_description *descriptions, size_t capacity, size_t *count);

  /* (optional: the string says it all) completes a parsed string: which devices `cuda` means. */
  ek_status (*resolve)(struct ek__device_spec *spec);
  /* (optional: nothing is shared) what the devices of one group share; `device_open` makes *native
   * of one device, which ek__device_native() then gives. Closed in the opposite order. */
  ek_status (*group_open)(void **native, const struct ek__device_spec *spec,
                          const ek_group_options *options, const struct ek__members *members);
  void (*group_close)(void *native);
  ek_status (*device_open)(void **native, void *group, size_t index);
  void (*device_close)(void *native);

  /* Required: the capacity of a device without a cap, in bytes, if its group has `devices`. */
  ek_status (*memory_size)(uint64_t *bytes, const ek_device *device, size_t devices);

  /* Required: *base becomes the address of `bytes` of address space for a device's arena. */
  ek_status (*memory_reserve)(void **base, uint64_t bytes, const ek_device *device);
  /* (optional: nothing to do) makes the first `bytes` of a reserved range usable. */
  ek_status (*memory_commit)(void *base, uint64_t bytes);
  /* Required. */
  void (*memory_release)(void *base, uint64_t bytes);

  /* (optional: any address will do) EK_ERR_INVALID_ARGUMENT for memory of a program's that kernels
   * of the device cannot use. From any thread. */
  ek_status (*memory_check)(const ek_device *device, const void *address);

  /* (optional: 0) bytes of its arena that a device needs for itself as long as it is open, charged
   * as workspace before anything else; `workspace_give` gets them before the streams open. */
  uint64_t workspace_bytes;
  void (*workspace_give)(ek_device *device, void *address);
  /* (optional: zeros) what the device costs beside its arena, measured by this call. */
  ek_status (*memory_outside)(ek_memory_outside *outside, const ek_device *device);

  /* (optional: not supported, or nothing to do if there are no kernels) a program's loop, cut into
   * one range for each thread of the stream: device.h. */
  ek_status (*parallel_for)(ek_stream *stream, int64_t count, ek_range_function function,
                            void *context);

  /* Required: a stream's backend part; `threads` compute on the device. */
  ek_status (*stream_open)(void **native, ek_device *device, ek_stream_kind kind, int threads);
  void (*stream_close)(void *native);
  /* (optional: NULL) what programs of this backend call a stream. */
  void *(*stream_handle)(void *native);
  /* (optional: false) group_open uses the streams of ek_device_resources. */
  bool takes_stream;
  /* (optional: work is done when it was queued) lets `stream` wait for what the program's stream
   * `native` holds, or with `reverse` the other way round. From any thread. */
  ek_status (*stream_join)(ek_stream *stream, void *native, bool reverse);
  /* (optional: work is done when it was queued) */
  ek_status (*stream_synchronize)(ek_stream *stream);
  ek_status (*event_open)(void **native, ek_device *device);
  void (*event_close)(void *native);
  ek_status (*event_record)(void *event, ek_stream *stream);
  /* (optional: as stream_synchronize) lets the host wait for an event that was recorded. */
  ek_status (*event_synchronize)(void *event, ek_device *device);
  ek_status (*stream_wait)(ek_stream *stream, void *event);

  /* (optional: nothing is copied) host to device, device to host, device to device; complete for
   * the host when they return, except for `between`, which is queued on `stream`: the destination's
   * compute stream, or the caller's where memory is shared. `source` is where `from` is. */
  ek_status (*upload)(ek_stream *stream, void *device, const struct ek__host_bytes *host,
                      size_t bytes);
  ek_status (*download)(ek_stream *stream, void *host, const void *device, size_t bytes);
  ek_status (*between)(ek_stream *stream, void *to, ek_device *source, const void *from,
                       size_t bytes);

  /* (optional, all three: a download is done when it returns) host memory for a few f64, and a copy
   * into it that is queued: device/note.h. From any thread, except `note_write`. */
  ek_status (*note_open)(void **memory, ek_device *device);
  void (*note_close)(void *memory, ek_device *device);
  ek_status (*note_write)(ek_stream *stream, void *memory, const void *from, size_t bytes);
  /* (optional: nothing is found late) an error that devices of the group have found so far, which
   * is forgotten then. Waits for nothing. From any thread. */
  ek_status (*check_found)(ek_device *device);

  /*
   * (optional, all three: else `upload`) fills memory that was just taken, beside what the compute
   * stream holds. `ticket`, asked when memory is given back, is where its users end; `send` gets it
   * when the memory is filled again (0: it never had a user) and returns when `host` may be
   * written. *arrival, set also when it fails, is for `arrive`, which lets the compute stream wait
   * for the content; may be called any number of times. From any thread.
   */
  uint64_t (*ticket)(const ek_device *device);
  ek_status (*send)(uint64_t *arrival, ek_device *device, void *to,
                    const struct ek__host_bytes *host, size_t bytes, uint64_t ticket);
  ek_status (*arrive)(ek_device *device, uint64_t arrival);

  /* (optional: 4 MiB, which caches hold) bytes of a bucket of gradients, unless a program says. */
  size_t bucket_bytes;
  /* (optional: any number) a product is fastest if a table of tokens has a multiple of this many
   * rows. */
  size_t table_rows;

  /* (optional: NULL) the group's own collectives; NULL is said to use those of
   * src/device/host_parts.c, which queue `reduce` and `copy` on every device. */
  const struct ek__link *(*link_for)(void *group);

  /* (optional: workers return by themselves) called again and again by the thread that waits for
   * the workers of a group, never by a worker: an error if one is stuck. Its stuck call has been
   * ended, so that it returns; the job has failed. With `ended`, an error that this thread has just
   * got from other processes, all that may wait for them is ended likewise, and the error
   * returned. */
  ek_status (*watch)(void *group, ek_status ended);
  /*
   * (optional, all four: work is done when it was queued, so the host's clock will do) marks of
   * time in a device's streams, for a trace. `mark` queues mark number `index`, once; `mark_time`,
   * when the streams are done, says when it was reached, on CLOCK_MONOTONIC in nanoseconds; false
   * if it cannot. A mark that cannot be queued is one that cannot be read.
   */
  ek_status (*marks_open)(void **marks, ek_device *device, size_t count);
  void (*marks_close)(void *marks);
  void (*mark)(void *marks, size_t index, ek_stream *stream);
  bool (*mark_time)(uint64_t *nanoseconds, void *marks, size_t index);

  /* (optional, all three: no tool listens) whether a tool listens to named ranges of the host
   * (NVTX), asked when a device opens; and such a range, on the calling thread, where they nest. */
  bool (*listens)(void);
  void (*range_begin)(const char *name);
  void (*range_end)(void);

  /* (optional, both: no tool looks) a block of the arena begins to be a tensor's, with `bytes` that
   * may be used, and ceases to be. From any thread. */
  void (*block_taken)(const ek_device *device, const void *address, uint64_t bytes);
  void (*block_given)(const ek_device *device, const void *address);

  /* (optional: nothing to do) the first that a device's worker does. */
  void (*worker_begins)(ek_device *device);
};

/* The export of the module that has `cuda` (core/loader.h), and the size of its tables. */
#define EK__CUDA_ENTRY "ek_cuda_module"
#define EK__BACKEND_SIZE (sizeof(struct ek__backend) + sizeof(struct ek__kernels))

/* The required slots of a table, none of which can be left out. */
#define EK__BACKEND_REQUIRED(NAME, DESCRIBE, MEMORY_SIZE, MEMORY_RESERVE, MEMORY_RELEASE,          \
                             STREAM_OPEN, STREAM_CLOSE)                                            \
  .name = (NAME), .describe = (DESCRIBE), .memory_size = (MEMORY_SIZE),                            \
  .memory_reserve = (MEMORY_RESERVE), .memory_release = (MEMORY_RELEASE),                          \
  .stream_open = (STREAM_OPEN), .stream_close = (STREAM_CLOSE)

extern const struct ek__backend ek__cpu_backend;
extern const struct ek__backend ek__plan_backend;
extern const struct ek__backend ek__plan_cuda_backend; /* counts what `cuda` would take */

#endif /* EK_BACKEND_H */
