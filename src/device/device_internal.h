/*
 * device_internal.h - devices, streams and groups from the inside of src/device, and its functions
 * for the layers that may call a backend's slots (src/op).
 */
#ifndef EK_DEVICE_INTERNAL_H
#define EK_DEVICE_INTERNAL_H

#include "backend/backend.h"
#include "device/host_blocks.h"
#include "device/types.h"

/* The backend of a device; never NULL. */
const struct ek__backend *ek__device_table(const ek_device *device);

/*
 * The work that a device that only counts would have done: predictions of time are made from it.
 * Its worker adds to it, and nothing resets it.
 */
struct ek__work {
  /* Of operations, by the type of their values: 16-bit numbers, and products in tf32, have shares
   * of their own, because they have rates of their own. */
  struct ek__arithmetic {
    double products;  /* operations of matrix products */
    double attention; /* those of attention */
    double bytes;     /* read by operations, and twice those written: a cache reads them first */
  } wide, tf32, half; /* tf32 has no bytes: they are those of f32 */
  double moved;       /* between devices of this process */
  double calls;       /* operations and collectives */
  /* What the process exchanges with others in collectives, on its device 0 alone: bytes of data
   * that it sends, and how often it waits for something to cross the link. */
  uint64_t sent, trips;
};
/* Its share for bytes of a type, and for products of some types. */
static inline struct ek__arithmetic *ek__work_of(struct ek__work *work, ek_type type) {
  return ek__type_is_half(type) ? &work->half : &work->wide;
}
static inline struct ek__arithmetic *ek__work_in(struct ek__work *work,
                                                 const struct ek__types *types) {
  return types->tf32 ? &work->tf32 : ek__work_of(work, types->value);
}
struct ek__work *ek__device_work(const ek_device *device); /* NULL where kernels compute */

/* EK_ERR_STATE in a child of the process that opened the group: there are no workers here, and a
 * lock may be held for ever. */
ek_status ek__group_check(const ek_group *group, const char *who);
bool ek__group_of_parent(const ek_group *group);

/* The group's place among the devices of all processes: ek_group_options. */
size_t ek__group_first_rank(const ek_group *group);
size_t ek__group_world_size(const ek_group *group);

/* Its processes, a loan; NULL where there is one, and on devices that only count. */
ek_world *ek__group_world(const ek_group *group);
struct ek__place *ek__group_place(const ek_group *group); /* in the world; NULL likewise */
/* From any thread: there may be an errand that is ready (place.h). */
void ek__group_errand(ek_group *group);

/* The group's blocks of host memory; a group whose blocks are lent is not freed. */
struct ek__host_blocks *ek__group_blocks(ek_group *group);

/* The device whose worker is calling; NULL on any other thread. */
ek_device *ek__group_worker_device(const ek_group *group);
/* From now on the calling thread, which is the library's, counts as the device's worker: it runs
 * parts of the worker's jobs, while that waits for it (core/turns.h). */
void ek__group_stand_in(ek_device *device);

/* On a worker, in a job: an abort lets all that the device has queued in it end first. */
void ek__group_keep(ek_device *device);

/* Runs `wait`, which makes the calling thread wait for the device. A device with queues may itself
 * wait for a device of another process, and that process may have failed. So with several processes
 * the device's worker waits, in a job, while this thread looks at the other processes. */
ek_status ek__group_await(ek_device *device, ek_status (*wait)(void *context), void *context);

/* Whether the worker of device number `index` has ended its part of the running job. If a worker of
 * that job calls it, the other's work in the job has happened before. */
bool ek__group_worker_ended(const ek_group *group, size_t index);

/* Whether what a program gives suits the devices that a string named. */
ek_status ek__device_check_resources(const ek_group_options *options,
                                     const struct ek__backend *backend,
                                     const struct ek__device_spec *spec);

void *ek__group_native(const ek_group *group); /* what the backend made of it, or NULL */
double ek__group_time_limit(const ek_group *group);
/* Opens device number `index` of what a string named; `first` is number 0, or NULL for itself. */
ek_status ek__device_open(ek_device **device, ek_group *group, void *group_native,
                          const struct ek__backend *backend, const struct ek__device_spec *spec,
                          size_t index, const ek_device *first, int threads,
                          const ek_group_options *options);
/* NULL is legal. */
void ek__device_close(ek_device *device);
/* EK_ERR_STATE while tensors are on the device, or events are made for it. */
ek_status ek__device_check_unused(const ek_device *device, const char *who);
/* An event was made (+1) or freed (-1). */
void ek__device_count_event(ek_device *device, int change);

/* tensor.c: notes that the tensor's memory is a part of a larger one, from element `first` on; and
 * returns the number of the tensor's first element in the larger one, 0 if nothing was noted. For
 * messages, so that they count rows of the batch and not of a shard. */
void ek__tensor_cut_from(const ek_tensor *tensor, int64_t first);
int64_t ek__tensor_first(const ek_tensor *tensor);

/* tensor.c: elements first .. first + count - 1 of a tensor as a list, a loan. */
ek_tensor ek__flat_range(const ek_tensor *flat, int64_t first, int64_t count);
/* tensor.c: copies a few f64 of a device to the host. */
ek_status ek__read_numbers(double *numbers, int64_t count, const ek_tensor *tensor);

/* host_values.c: fills a tensor with what host->make() computes, which gets multiples of 64 KiB
 * except at the end, on several threads; `sharers`: how many callers do so at the same time. On the
 * device's worker. A failure of host->make() has no message from other threads. */
ek_status ek__tensor_fill_from(ek_tensor *tensor, const struct ek__host_bytes *host,
                               size_t sharers);

/* tensor.c: checks a shape and counts its bytes, without overflow. */
ek_status ek__tensor_measure(int64_t *bytes, const char *who, ek_type type, int rank,
                             const int64_t *shape);

/* tensor.c: whether a host tensor of any type fits `like`, in its shape or as a list of all its
 * elements. A message begins with the two names. */
ek_status ek__tensor_check_host(const ek_tensor *host, const ek_tensor *like, const char *who,
                                const char *name);

/* stream.c */
ek_status ek__stream_open(ek_stream **stream, ek_device *device, const struct ek__backend *backend,
                          ek_stream_kind kind, int threads);
void ek__stream_close(ek_stream *stream);

/* What a failed job has left of the work that earlier jobs queued on the devices. */
enum ek__left {
  EK__LEFT_WELL, /* it has ended without an error, or goes on */
  EK__LEFT_CUT,  /* some of it was cut off, but no job that ek__group_keep() names */
  EK__LEFT_TORN  /* not known, or worse */
};

/* A group lists its communicators, so that a failing worker wakes those that wait for it, and its
 * models. All functions may be NULL. */
struct ek__abortable {
  struct ek__abortable *next; /* belongs to the group's mutex */
  void (*abort)(struct ek__abortable *self);
  /* A job has failed; where several processes have queues, its error is known to all of them. */
  void (*failed)(struct ek__abortable *self, enum ek__left left);
  bool (*is_torn)(struct ek__abortable *self);
  /* Both are called when no worker runs. unblock, of all of them before any renew: ends what a
   * stream of the devices may hang in; true if that cut something off. */
  bool (*unblock)(struct ek__abortable *self);
  void (*renew)(struct ek__abortable *self);
};
void ek__group_attach(ek_group *group, struct ek__abortable *abortable);
void ek__group_detach(ek_group *group, struct ek__abortable *abortable);

#endif /* EK_DEVICE_INTERNAL_H */
