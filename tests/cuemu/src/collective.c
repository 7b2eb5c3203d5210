/*
 * collective.c - collectives from the call to the streams, and groups of calls.
 *
 * A call on a blocking communicator goes to its stream at once, one in a group when the group ends.
 * On a non-blocking communicator it waits until its state is asked for often enough
 * (cuemu_settings.nccl_polls) with ncclCommGetAsyncError(): host code that records an event before
 * that records it too early, which it may on a GPU and surely does here.
 */
#include "collective.h"

#include <stdio.h>
#include <stdlib.h>

struct group {
  int depth;
  struct request *requests, **tail;
};
static __thread struct group group;

/* ---- in the worker threads ---- */

static struct collective *find_collective(struct clique *clique, uint64_t number) {
  struct collective *c = clique->collectives;
  while (c && c->number != number) c = c->next;
  if (c) return c;
  c = cuemu_new(sizeof(*c));
  c->number = number;
  c->next = clique->collectives;
  clique->collectives = c;
  return c;
}

static void leave(struct clique *clique, struct collective *c) {
  if (++c->left < clique->local) return;
  struct collective **link = &clique->collectives;
  while (*link != c) link = &(*link)->next;
  *link = c->next;
  free(c);
}

static void mark_mismatch(struct clique *clique, uint64_t number) {
  fprintf(stderr, "cuemu: NCCL: the ranks' collectives number %llu differ\n",
          (unsigned long long)number);
  for (int r = 0; r < clique->ranks; r++) {
    if (clique->comm[r]) clique->comm[r]->error = ncclInvalidUsage;
  }
}

/* The lock of the clique is held. */
static void take_part(struct request *request) {
  struct ncclComm *comm = request->comm;
  struct clique *clique = comm->clique;
  struct collective *c = find_collective(clique, request->number);
  c->part[comm->rank] = request->part;
  if (++c->arrived == clique->local && !cuemu_read(&clique->shared->aborted)) {
    enum performed performed = cuemu_perform(c, clique);
    if (performed == DIFFERENT_PARTS) mark_mismatch(clique, c->number);
    c->done = performed != GIVEN_UP;
    pthread_cond_broadcast(&clique->changed);
  }
  while (!c->done && !comm->aborted) pthread_cond_wait(&clique->changed, &clique->mutex);
  leave(clique, c);
}

static cudaError_t run_request(cudaStream_t stream, void *argument) {
  struct request *request = argument;
  struct ncclComm *comm = request->comm;
  struct clique *clique = comm->clique;
  bool hang = cuemu_runs_into_hang(stream->device, CUEMU_NCCL);
  pthread_mutex_lock(&clique->mutex);
  comm->running++;
  if (hang) {
    cuemu_add_hanging(1);
    while (!comm->aborted) pthread_cond_wait(&clique->changed, &clique->mutex);
    cuemu_add_hanging(-1);
  } else if (!comm->aborted) {
    take_part(request);
  }
  comm->running--;
  pthread_cond_broadcast(&clique->changed);
  pthread_mutex_unlock(&clique->mutex);
  return cudaSuccess;
}

static void release_request(void *argument) {
  struct request *request = argument;
  struct clique *clique = request->comm->clique;
  pthread_mutex_lock(&clique->mutex);
  request->comm->queued--;
  pthread_cond_broadcast(&clique->changed);
  pthread_mutex_unlock(&clique->mutex);
  cuemu_unreference_comm(request->comm);
  free(request);
}

void cuemu_queue_request(struct request *request) {
  cuemu_enqueue(request->stream, CUEMU_NCCL, run_request, release_request, request);
}

/* ---- from the call ---- */

/* Whether the address may be a buffer of the communicator's device. */
static bool good_buffer(const struct ncclComm *comm, const void *buffer, size_t bytes) {
  int device;
  bool whole;
  enum cuemu_place place = cuemu_find(buffer, bytes, &device, &whole);
  return !bytes || (place == CUEMU_ON_DEVICE && device == comm->device && whole);
}

static bool good_buffers(const struct ncclComm *comm, const struct part *p) {
  size_t bytes = p->count * cuemu_nccl_element_bytes(p->type);
  size_t all = bytes * (size_t)comm->clique->ranks;
  bool is_root = comm->rank == p->root;
  bool sends = p->kind != BROADCAST || is_root, receives = p->kind != REDUCE || is_root;
  return (!sends || good_buffer(comm, p->send, p->kind == REDUCE_SCATTER ? all : bytes)) &&
         (!receives || good_buffer(comm, p->receive, p->kind == ALL_GATHER ? all : bytes));
}

static ncclResult_t check(ncclComm_t comm, const struct part *part, cudaStream_t stream) {
  if (!comm) return ncclInvalidArgument;
  cuemu_pass_context();
  int fault = cuemu_call(comm->device, CUEMU_NCCL);
  if (fault) return (ncclResult_t)fault;
  struct clique *clique = comm->clique;
  pthread_mutex_lock(&clique->mutex);
  bool in_use = comm->pending || comm->polls || !cuemu_all_joined(clique);
  ncclResult_t error = comm->error;
  pthread_mutex_unlock(&clique->mutex);
  if (error != ncclSuccess) return error;
  if (cuemu_sticky(comm->device) != cudaSuccess) return ncclUnhandledCudaError;
  if (in_use) return ncclInvalidArgument; /* the last call was still in progress */
  if (!cuemu_nccl_element_bytes(part->type) || part->root < 0 || part->root >= clique->ranks ||
      cuemu_stream_device(stream) != comm->device ||
      !good_buffers(comm, part)) {
    return ncclInvalidArgument;
  }
  const unsigned bit = 1u << part->kind;
  if (!(comm->used_kinds & bit) && !cuemu_comm_takes(comm)) return ncclUnhandledCudaError;
  comm->used_kinds |= bit;
  return ncclSuccess;
}

static ncclResult_t start(struct request *request) {
  struct ncclComm *comm = request->comm;
  pthread_mutex_lock(&comm->clique->mutex);
  comm->queued++;
  comm->references++;
  bool now = comm->blocking || !cuemu_settings.nccl_polls;
  if (!now) {
    comm->polls = cuemu_settings.nccl_polls;
    *comm->pending_tail = request;
    comm->pending_tail = &request->next;
  }
  pthread_mutex_unlock(&comm->clique->mutex);
  if (now) cuemu_queue_request(request);
  return now ? ncclSuccess : ncclInProgress;
}

static ncclResult_t submit_one(ncclComm_t comm, cudaStream_t stream, struct part part) {
  ncclResult_t result = check(comm, &part, stream);
  if (result != ncclSuccess) return result;
  struct request *request = cuemu_new(sizeof(*request));
  *request = (struct request){NULL, comm, comm->next_number++, part, stream};
  if (!group.depth) cuemu_add(CUEMU_NCCL_LAUNCHES);
  if (!group.depth) return start(request);
  *group.tail = request;
  group.tail = &request->next;
  return ncclSuccess;
}

static ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, struct part part) {
  if (!comm) return ncclInvalidArgument;
  cuemu_comm_enter(comm);
  ncclResult_t result = submit_one(comm, stream, part);
  cuemu_comm_leave(comm);
  return result;
}

bool cuemu_in_group(void) { return group.depth > 0; }

ncclResult_t ncclGroupStart(void) {
  if (!group.depth++) {
    group.requests = NULL;
    group.tail = &group.requests;
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  if (group.requests) cuemu_add(CUEMU_NCCL_LAUNCHES);
  for (struct request *request = group.requests; request;) {
    struct request *next = request->next;
    request->next = NULL;
    struct ncclComm *comm = request->comm;
    cuemu_comm_enter(comm);
    if (start(request) == ncclInProgress) result = ncclInProgress;
    cuemu_comm_leave(comm);
    request = next;
  }
  group.requests = NULL;
  return result;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  (void)op;
  return submit(comm, stream, (struct part){ALL_REDUCE, send, receive, count, type, 0});
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  (void)op;
  return submit(comm, stream, (struct part){REDUCE, send, receive, count, type, root});
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, stream, (struct part){BROADCAST, send, receive, count, type, root});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  (void)op;
  return submit(comm, stream, (struct part){REDUCE_SCATTER, send, receive, receive_count, type, 0});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit(comm, stream, (struct part){ALL_GATHER, send, receive, send_count, type, 0});
}
