/*
 * device_struct.h - the members of a device, for device.c, which reads them, and device_open.c,
 * which sets them.
 */
#ifndef EK_DEVICE_STRUCT_H
#define EK_DEVICE_STRUCT_H

#include <evenkeel/communicator.h>

#include <pthread.h>
#include <stdatomic.h>

#include "device/arena.h"
#include "device/device_internal.h"
#include "device/fault_internal.h"
#include "device/track.h"

struct ek_device {
  struct ek__device_head head; /* first: what the backend made of it */
  ek_group *group;
  const struct ek__backend *backend;
  size_t index;
  int threads;
  char name[32];
  struct ek_memory *workspace; /* the backend's part of the arena, or NULL */
  ek_stream *streams[2];       /* by ek_stream_kind */
  atomic_int events;           /* that are not freed yet */
  struct ek__fault fault;      /* of a test */
  uint64_t began, waited;      /* its worker's job, and how long that has waited; nanoseconds */
  _Atomic uint64_t busy;       /* of its worker in jobs, without waiting; nanoseconds */
  struct ek__work work;        /* if it only counts: its worker's */
  struct ek__work marked;      /* the same at ek_device_mark_work() */
  pthread_mutex_t used_mutex;  /* of `used`; held while a worker settles that communicator */
  ek_communicator *used; /* of its worker's last collective: a loan until that is freed */
  _Atomic(struct ek__track *) track; /* that records, or NULL */
  struct ek__track *kept_track;      /* the same, or one that has ended, or NULL */
  struct ek__track_span heard;       /* of a tool's: track.h */
  struct ek__arena arena;
};

#endif /* EK_DEVICE_STRUCT_H */
