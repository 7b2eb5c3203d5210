/*
 * group_struct.h - what a group has; for group.c and group_open.c.
 */
#ifndef EK_GROUP_STRUCT_H
#define EK_GROUP_STRUCT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "core/error.h"
#include "core/process.h"
#include "device/device_internal.h"
#include "device/host_blocks.h"
#include "device/place.h"

enum { EK__KEPT = 2, EK__ENDS };

struct ek__worker {
  ek_group *group;
  ek_device *device;
  pthread_t thread;
  sem_t work; /* posted when there is a job, or none will come any more */
  bool started;
  atomic_bool ended; /* its part of the job that runs */
  ek_status status;
  char message[EK__MESSAGE_SIZE];
  /* Of the last two jobs, by their number's last bit, and of the last that is kept; a job sets its
   * own. */
  ek_event *ends[EK__ENDS];
  bool keeps; /* the job that runs is kept */
};

struct ek_group {
  const struct ek__backend *backend;
  void *native; /* the backend's */
  char *spec;
  size_t count;
  size_t first_rank, world_size; /* of the devices of all processes */
  struct ek__place *place;       /* among them; NULL: there is one process, or they only count */
  bool errands;                  /* there may be work of `place` for the waiting thread */
  double time_limit;             /* seconds */
  bool deterministic;            /* as it was opened */
  struct ek__worker *workers;
  struct ek__process process; /* whose workers these are */
  pthread_mutex_t mutex;
  pthread_cond_t turn, done;
  uint64_t drawn, served; /* numbers of callers; equal: there is no job */
  uint64_t job;
  atomic_size_t running; /* workers that have not finished the job */
  bool stopping;
  ek_apply_function function;
  void *context;
  ek_status watched; /* what the backend found of the job that runs; its caller's */
  char watched_message[EK__MESSAGE_SIZE];
  struct ek__abortable *abortables;
  enum ek__left left; /* by an abort of the watch */
  struct ek__recovery recovery;
  struct ek__host_blocks blocks; /* has a lock of its own */
};

/* Whether other processes have queues, too, and may not have queued what this one has. */
static inline bool ek__group_queues_away(const ek_group *group) {
  return group->place != NULL && group->backend->watch != NULL;
}

/* ---- group.c ---- */

ek_status ek__group_start_workers(ek_group *group);
void ek__group_stop_workers(ek_group *group);
/* From now on the group recovers when an error of all processes has ended a call; until the second
 * call. Nothing if only this process has queues. */
void ek__group_recovers(ek_group *group);
void ek__group_recovers_no_more(ek_group *group);

#endif /* EK_GROUP_STRUCT_H */
