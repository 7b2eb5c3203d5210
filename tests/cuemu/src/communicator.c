/*
 * communicator.c - NCCL's communicators: how they begin, what state they are in, how they end.
 *
 * A communicator lives until it is destroyed or aborted and none of its requests is on a stream. An
 * abort waits only for the worker that is in one of its collectives, not for what is queued after
 * other work.
 */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_MAGIC 0xcafebeefu

static pthread_mutex_t cliques_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct clique *cliques;
static __thread char last_error[160];

/* ---- cliques ---- */

/* The clique of the id, a new one if need be, with one more reference; NULL if nothing is known of
 * the id. */
static struct clique *find_clique(const ncclUniqueId *id, int ranks) {
  pthread_mutex_lock(&cliques_mutex);
  struct clique *clique = cliques;
  while (clique && memcmp(&clique->shared->id, id, sizeof(*id)) != 0) clique = clique->next;
  struct shared *shared = clique ? clique->shared : cuemu_map_id(id);
  if (!shared) {
    pthread_mutex_unlock(&cliques_mutex);
    return NULL;
  }
  if (!clique) {
    clique = cuemu_new(sizeof(*clique));
    clique->shared = shared;
    clique->ranks = ranks;
    pthread_mutex_init(&clique->mutex, NULL);
    pthread_cond_init(&clique->changed, NULL);
    clique->next = cliques;
    cliques = clique;
  }
  clique->references++;
  pthread_mutex_unlock(&cliques_mutex);
  return clique;
}

static void unreference_clique(struct clique *clique) {
  pthread_mutex_lock(&cliques_mutex);
  bool last = --clique->references == 0;
  if (last) {
    struct clique **link = &cliques;
    while (*link != clique) link = &(*link)->next;
    *link = clique->next;
  }
  pthread_mutex_unlock(&cliques_mutex);
  if (!last) return;
  while (clique->collectives) {
    struct collective *next = clique->collectives->next;
    free(clique->collectives);
    clique->collectives = next;
  }
  pthread_mutex_destroy(&clique->mutex);
  pthread_cond_destroy(&clique->changed);
  cuemu_unmap_id(clique->shared);
  free(clique);
}

void cuemu_unreference_comm(struct ncclComm *comm) {
  struct clique *clique = comm->clique;
  pthread_mutex_lock(&clique->mutex);
  bool last = --comm->references == 0;
  pthread_mutex_unlock(&clique->mutex);
  if (!last) return;
  free(comm);
  unreference_clique(clique);
}

/* ---- one thread at a time ---- */

void cuemu_comm_enter(struct ncclComm *comm) {
  if (__atomic_fetch_add(&comm->inside, 1, __ATOMIC_RELAXED) != 0) {
    cuemu_add(CUEMU_NCCL_OVERLAPS);
    fprintf(stderr, "cuemu: NCCL: two threads in one communicator, of rank %d\n", comm->rank);
  }
  if (cuemu_settings.nccl_call_us) usleep(cuemu_settings.nccl_call_us);
}

void cuemu_comm_leave(struct ncclComm *comm) {
  (void)__atomic_fetch_sub(&comm->inside, 1, __ATOMIC_RELAXED);
}

/* ---- begin ---- */

ncclResult_t ncclGetVersion(int *version) {
  cuemu_initialise();
  *version = cuemu_settings.nccl_version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) { return cuemu_make_id(id); }

bool cuemu_comm_takes(struct ncclComm *comm) {
  if (!cuemu_take_hidden(comm->device, cuemu_settings.nccl_bytes)) return false;
  comm->hidden += cuemu_settings.nccl_bytes;
  return true;
}

/* Adds the rank to its clique; the clique becomes invalid if two ranks share a device. Devices of
 * other processes are other devices. */
static ncclComm_t join(int ranks, const ncclUniqueId *id, int rank, int device, bool blocking) {
  struct clique *clique = find_clique(id, ranks);
  if (!clique) return NULL;
  ncclComm_t comm = cuemu_new(sizeof(*comm));
  *comm = (struct ncclComm){
      .clique = clique, .rank = rank, .device = device, .references = 1, .blocking = blocking};
  (void)cuemu_comm_takes(comm); /* check_join() has seen that it fits */
  comm->pending_tail = &comm->pending;
  comm->polls = blocking ? 0 : cuemu_settings.nccl_polls;
  pthread_mutex_lock(&clique->mutex);
  for (int r = 0; r < clique->ranks; r++) {
    if (!clique->comm[r] || clique->comm[r]->device != device) continue;
    cuemu_set(&clique->shared->invalid);
    (void)snprintf(last_error, sizeof(last_error),
                   "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", rank, r,
                   device);
  }
  if (clique->ranks != ranks || clique->comm[rank]) cuemu_set(&clique->shared->invalid);
  if (!clique->comm[rank]) clique->comm[rank] = comm;
  clique->is_local[rank] = true;
  clique->local++;
  (void)__atomic_fetch_add(&clique->shared->joined, 1, __ATOMIC_RELEASE);
  pthread_cond_broadcast(&clique->changed);
  pthread_mutex_unlock(&clique->mutex);
  cuemu_count(&cuemu_devices[device].communicators_alive, 1);
  return comm;
}

/* Takes the user's reference away. */
static void drop(ncclComm_t comm) {
  struct clique *clique = comm->clique;
  pthread_mutex_lock(&clique->mutex);
  if (clique->comm[comm->rank] == comm) clique->comm[comm->rank] = NULL;
  pthread_mutex_unlock(&clique->mutex);
  cuemu_give_hidden(comm->device, comm->hidden);
  comm->hidden = 0;
  cuemu_count(&cuemu_devices[comm->device].communicators_alive, -1);
  cuemu_unreference_comm(comm);
}

static ncclResult_t wait_for_clique(ncclComm_t *comm) {
  struct clique *clique = (*comm)->clique;
  while (!cuemu_all_joined(clique) && !cuemu_read(&clique->shared->invalid)) (void)usleep(50);
  if (!cuemu_read(&clique->shared->invalid)) return ncclSuccess;
  drop(*comm);
  *comm = NULL;
  return ncclInvalidUsage;
}

static _Atomic int most_ctas;

int cuemu_nccl_most_ctas(void) { return most_ctas; }

static ncclResult_t check_join(int ranks, int rank, int device) {
  if (ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (cuemu_enter() != cudaSuccess) return ncclUnhandledCudaError;
  if (!cuemu_take_hidden(device, cuemu_settings.nccl_bytes)) return ncclUnhandledCudaError;
  cuemu_give_hidden(device, cuemu_settings.nccl_bytes); /* join() takes it */
  int fault = cuemu_call(device, CUEMU_NCCL);
  return fault ? (ncclResult_t)fault : ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
  int device = cuemu_current_device();
  ncclResult_t result = check_join(ranks, rank, device);
  *comm = NULL;
  if (result != ncclSuccess) return result;
  if (config && (config->magic != CONFIG_MAGIC || config->size != sizeof(*config))) {
    return ncclInvalidArgument;
  }
  most_ctas = config ? config->maxCTAs : NCCL_CONFIG_UNDEF_INT;
  bool blocking = !config || config->blocking != 0; /* undefined is blocking */
  *comm = join(ranks, &id, rank, device, blocking);
  if (!*comm) return ncclSystemError;
  if (!blocking) return ncclInProgress;
  return cuemu_in_group() ? ncclSuccess : wait_for_clique(comm); /* one thread may make all ranks */
}

/* ---- state ---- */

/* With the lock held: the state, and what now may go to the streams. */
static ncclResult_t poll(ncclComm_t comm, struct request **ready) {
  struct clique *clique = comm->clique;
  *ready = NULL;
  if (cuemu_read(&clique->shared->invalid)) return ncclInvalidUsage;
  if (comm->error != ncclSuccess) return comm->error;
  if (!cuemu_all_joined(clique)) return ncclInProgress;
  if (comm->polls) {
    comm->polls--;
    return ncclInProgress;
  }
  *ready = comm->pending;
  comm->pending = NULL;
  comm->pending_tail = &comm->pending;
  return comm->finalizing && comm->queued ? ncclInProgress : ncclSuccess;
}

static void queue_all(struct request *ready) {
  while (ready) {
    struct request *next = ready->next;
    cuemu_queue_request(ready);
    ready = next;
  }
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  struct request *ready;
  if (!comm) return ncclInvalidArgument;
  cuemu_comm_enter(comm);
  pthread_mutex_lock(&comm->clique->mutex);
  *error = poll(comm, &ready);
  pthread_mutex_unlock(&comm->clique->mutex);
  queue_all(ready);
  cuemu_comm_leave(comm);
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  switch (result) {
  case ncclSuccess: return "no error";
  case ncclUnhandledCudaError: return "unhandled cuda error";
  case ncclSystemError: return "unhandled system error";
  case ncclInternalError: return "internal error";
  case ncclInvalidArgument: return "invalid argument";
  case ncclInvalidUsage: return "invalid usage";
  case ncclRemoteError: return "remote process exited or there was a network error";
  case ncclInProgress: return "NCCL operation in progress";
  default: return "unknown result code";
  }
}

const char *ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return last_error;
}

/* ---- end ---- */

static void forget_pending(ncclComm_t comm, struct request *pending) {
  while (pending) {
    struct request *next = pending->next;
    free(pending);
    cuemu_unreference_comm(comm);
    pending = next;
  }
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (!comm) return ncclInvalidArgument;
  struct clique *clique = comm->clique;
  cuemu_comm_enter(comm);
  pthread_mutex_lock(&clique->mutex);
  comm->finalizing = true;
  while (comm->blocking && comm->queued) pthread_cond_wait(&clique->changed, &clique->mutex);
  bool wait = !comm->blocking;
  if (wait) comm->polls = cuemu_settings.nccl_polls;
  pthread_mutex_unlock(&clique->mutex);
  cuemu_comm_leave(comm);
  return wait ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  struct clique *clique = comm->clique;
  struct request *ready = NULL;
  cuemu_comm_enter(comm);
  pthread_mutex_lock(&clique->mutex);
  comm->polls = 0;
  (void)poll(comm, &ready);
  pthread_mutex_unlock(&clique->mutex);
  queue_all(ready);
  pthread_mutex_lock(&clique->mutex);
  while (comm->queued) pthread_cond_wait(&clique->changed, &clique->mutex);
  pthread_mutex_unlock(&clique->mutex);
  drop(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  struct clique *clique = comm->clique;
  cuemu_comm_enter(comm);
  pthread_mutex_lock(&clique->mutex);
  comm->aborted = true;
  cuemu_set(&clique->shared->aborted);
  struct request *pending = comm->pending;
  comm->pending = NULL;
  pthread_cond_broadcast(&clique->changed);
  while (comm->running) pthread_cond_wait(&clique->changed, &clique->mutex);
  pthread_mutex_unlock(&clique->mutex);
  forget_pending(comm, pending);
  drop(comm);
  return ncclSuccess;
}
