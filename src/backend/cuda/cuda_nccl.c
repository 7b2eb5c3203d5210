/*
 * cuda_nccl.c - collectives between different GPUs by NCCL.
 *
 * A clique is one NCCL communicator for each device. The communicators do not block: a call that
 * says "in progress" is asked about until it is over, so that a peer that never comes can be given
 * up after the group's time limit. NCCL calls of a rank are made by its device's worker, or by
 * threads of their own when a clique is opened, aborted or closed, because those calls wait for
 * each other.
 *
 * After an abort the ranks may have queued different numbers of collectives; those that were ahead
 * hang on the GPU, for ever if nobody ends them. Then, and only then, every rank aborts its
 * communicator, all meet, and new ones are made.
 *
 * Sums are taken at the width of the type, by SUM: AVG would multiply by a rounded 1/n first.
 */
#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL

#include <nccl.h>
#include <stdio.h>
#include <string.h>

struct member {
  ncclComm_t communicator;
  _Atomic uint64_t queued; /* collectives, written by the rank's worker */
};

struct ek__cuda_clique {
  struct ek__cuda_clique *next; /* of the group */
  struct ek__cuda_group *group;
  atomic_bool aborted;
  atomic_bool failed;      /* a call of a rank failed: who knows what it queued */
  bool broken;             /* the last renewal failed */
  struct member members[]; /* by rank */
};

static const struct ek__cuda_device *device_of(const struct ek__cuda_clique *clique, size_t rank) {
  return &clique->group->devices[rank];
}

/* ---- errors ---- */

static ek_status report(const struct ek__cuda_clique *clique, size_t rank, ncclResult_t result,
                        const char *call) {
  const char *more = ncclGetLastError(clique->members[rank].communicator);
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "%s: %s: NCCL: %s%s%s",
                                  device_of(clique, rank)->name, call, ncclGetErrorString(result),
                                  more == NULL || *more == '\0' ? "" : ": ",
                                  more == NULL ? "" : more);
}

/* Appends the ranks that have queued less than this one. */
static void name_late(char *text, size_t size, const struct ek__cuda_clique *clique, size_t rank) {
  size_t used = 0;
  const uint64_t own = atomic_load(&clique->members[rank].queued);
  for (size_t i = 0; i < clique->group->count && used < size; i++) {
    if (atomic_load(&clique->members[i].queued) >= own) continue;
    const int written = snprintf(text + used, size - used, "%s%s", used == 0 ? ": late is " : ", ",
                                 device_of(clique, i)->name);
    if (written > 0) used += (size_t)written;
  }
}

static ek_status too_long(const struct ek__cuda_clique *clique, size_t rank, const char *call) {
  char late[256] = "";
  name_late(late, sizeof late, clique, rank);
  return ek__cuda_host->error_set(
      EK_ERR_UNAVAILABLE, "%s: %s: NCCL: not over after %g seconds: a peer has not come%s",
      device_of(clique, rank)->name, call, clique->group->time_limit, late);
}

/* Between two looks at what goes on since `since`: an error if nobody will end it. */
static ek_status keep_waiting(const struct ek__cuda_clique *clique, size_t rank, double since,
                              unsigned asked, const char *call) {
  if (atomic_load(&clique->aborted)) {
    return ek__cuda_host->error_set(EK_ERR_ABORTED, "given up because another device failed");
  }
  if (ek__cuda_now() - since > clique->group->time_limit) return too_long(clique, rank, call);
  ek__cuda_pause(asked);
  return EK_OK;
}

/* Waits until a call of this rank is over. */
static ek_status settle(struct ek__cuda_clique *clique, size_t rank, ncclResult_t result,
                        const char *call) {
  const double since = ek__cuda_now();
  for (unsigned asked = 0; result == ncclInProgress; asked++) {
    EK_TRY(keep_waiting(clique, rank, since, asked, call));
    const ncclResult_t asking = ncclCommGetAsyncError(clique->members[rank].communicator, &result);
    if (asking != ncclSuccess) result = asking;
  }
  return result == ncclSuccess ? EK_OK : report(clique, rank, result, call);
}

bool ek__cuda_nccl_failed(const struct ek__cuda_group *group, char *text, size_t size) {
  for (struct ek__cuda_clique *clique = group->cliques; clique != NULL; clique = clique->next) {
    for (size_t i = 0; i < group->count; i++) {
      ncclResult_t result = ncclSuccess;
      if (clique->members[i].communicator == NULL) continue;
      if (ncclCommGetAsyncError(clique->members[i].communicator, &result) != ncclSuccess) continue;
      if (result == ncclSuccess || result == ncclInProgress) continue;
      const char *more = ncclGetLastError(clique->members[i].communicator);
      (void)snprintf(text, size, "%s: NCCL, on the GPU: %s: %s", group->devices[i].name,
                     ncclGetErrorString(result), more == NULL ? "" : more);
      return true;
    }
  }
  return false;
}

/* ---- what all ranks do at the same time, each on a thread of its own ---- */

struct rank_job {
  struct ek__cuda_clique *clique;
  size_t rank;
  ek_status (*function)(struct ek__cuda_clique *clique, size_t rank, const void *context);
  const void *context;
  pthread_t thread;
  ek_status status;
  char message[512];
};

static void *rank_main(void *raw) {
  struct rank_job *job = raw;
  job->status = ek__cuda_enter(device_of(job->clique, job->rank));
  if (job->status == EK_OK) job->status = job->function(job->clique, job->rank, job->context);
  if (job->status != EK_OK) {
    (void)snprintf(job->message, sizeof job->message, "%s", ek__cuda_host->error_message());
    atomic_store(&job->clique->aborted, true); /* nobody waits for this one */
  }
  return NULL;
}

/* The error of the lowest rank with one of its own. */
static ek_status first_error(const struct rank_job *jobs, size_t count) {
  const struct rank_job *failed = NULL;
  for (size_t i = 0; i < count; i++) {
    if (jobs[i].status == EK_OK) continue;
    if (failed == NULL || (failed->status == EK_ERR_ABORTED && jobs[i].status != EK_ERR_ABORTED)) {
      failed = &jobs[i];
    }
  }
  return failed == NULL ? EK_OK : ek__cuda_host->error_set(failed->status, "%s", failed->message);
}

/* As core/thread.h says; NCCL's own functions run in it. */
#define RANK_STACK ((size_t)8 << 20)

static ek_status on_all_ranks(struct ek__cuda_clique *clique,
                              ek_status (*function)(struct ek__cuda_clique *, size_t, const void *),
                              const void *context) {
  const size_t count = clique->group->count;
  struct rank_job *jobs = ek__cuda_new(count * sizeof *jobs, "NCCL");
  if (jobs == NULL) return EK_ERR_OUT_OF_MEMORY;
  pthread_attr_t attributes;
  size_t started = 0;
  const bool stated = pthread_attr_init(&attributes) == 0;
  const bool right = stated && pthread_attr_setstacksize(&attributes, RANK_STACK) == 0;
  for (; started < count && right; started++) {
    jobs[started] = (struct rank_job){
        .clique = clique, .rank = started, .function = function, .context = context};
    if (pthread_create(&jobs[started].thread, &attributes, rank_main, &jobs[started]) != 0) break;
  }
  if (stated) pthread_attr_destroy(&attributes);
  if (started < count) atomic_store(&clique->aborted, true);
  for (size_t i = 0; i < started; i++) pthread_join(jobs[i].thread, NULL);
  const ek_status status =
      started < count ? ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "cuda: no thread for NCCL")
                      : first_error(jobs, count);
  ek__cuda_host->free(jobs);
  return status;
}

static ek_status join_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  memcpy(&id, context, sizeof id);
  const ncclResult_t result = ncclCommInitRankConfig(
      &clique->members[rank].communicator, (int)clique->group->count, id, (int)rank, &config);
  return settle(clique, rank, result, "ncclCommInitRankConfig");
}

static ek_status abort_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  (void)context;
  if (clique->members[rank].communicator != NULL)
    (void)ncclCommAbort(clique->members[rank].communicator);
  clique->members[rank].communicator = NULL;
  return EK_OK;
}

static ek_status leave_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  (void)context;
  EK_TRY(settle(clique, rank, ncclCommFinalize(clique->members[rank].communicator),
                "ncclCommFinalize"));
  (void)ncclCommDestroy(clique->members[rank].communicator);
  clique->members[rank].communicator = NULL;
  return EK_OK;
}

/* ---- opening, renewing and closing ---- */

static void abort_all(struct ek__cuda_clique *clique) {
  if (on_all_ranks(clique, abort_rank, NULL) == EK_OK) return;
  for (size_t i = 0; i < clique->group->count; i++) (void)abort_rank(clique, i, NULL);
}

static ek_status join_all(struct ek__cuda_clique *clique) {
  ncclUniqueId id;
  atomic_store(&clique->aborted, false);
  atomic_store(&clique->failed, false);
  for (size_t i = 0; i < clique->group->count; i++) atomic_store(&clique->members[i].queued, 0);
  const ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) {
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "cuda: ncclGetUniqueId: NCCL: %s",
                                    ncclGetErrorString(result));
  }
  const ek_status status = on_all_ranks(clique, join_rank, &id);
  if (status != EK_OK) {
    char message[512];
    (void)snprintf(message, sizeof message, "%s", ek__cuda_host->error_message());
    abort_all(clique);
    return ek__cuda_host->error_set(status, "%s", message);
  }
  return EK_OK;
}

static void attach(struct ek__cuda_clique *clique) {
  pthread_mutex_lock(&clique->group->failure_mutex);
  clique->next = clique->group->cliques;
  clique->group->cliques = clique;
  pthread_mutex_unlock(&clique->group->failure_mutex);
}

static void detach(struct ek__cuda_clique *clique) {
  pthread_mutex_lock(&clique->group->failure_mutex);
  struct ek__cuda_clique **link = &clique->group->cliques;
  while (*link != NULL && *link != clique) link = &(*link)->next;
  if (*link != NULL) *link = clique->next;
  pthread_mutex_unlock(&clique->group->failure_mutex);
}

static ek_status open_new(struct ek__cuda_clique **opened, struct ek__cuda_group *group) {
  struct ek__cuda_clique *clique =
      ek__cuda_new(sizeof *clique + group->count * sizeof clique->members[0], "NCCL");
  if (clique == NULL) return EK_ERR_OUT_OF_MEMORY;
  clique->group = group;
  const ek_status status = join_all(clique);
  if (status != EK_OK) {
    ek__cuda_host->free(clique);
    return status;
  }
  attach(clique);
  *opened = clique;
  return EK_OK;
}

static ek_status clique_open(void **self, void *raw) {
  struct ek__cuda_group *group = raw;
  pthread_mutex_lock(&group->failure_mutex);
  struct ek__cuda_clique *clique = group->spare;
  group->spare = NULL;
  pthread_mutex_unlock(&group->failure_mutex);
  if (clique == NULL) EK_TRY(open_new(&clique, group));
  *self = clique;
  return EK_OK;
}

static void clique_abort(void *self) {
  atomic_store(&((struct ek__cuda_clique *)self)->aborted, true);
}

/* Whether collectives of some ranks wait for others that were never queued or will never end. */
static bool torn(const struct ek__cuda_clique *clique) {
  if (clique->broken || ek__cuda_check_gpus(clique->group) != EK_OK) return true;
  for (size_t i = 1; i < clique->group->count; i++) {
    if (clique->members[i].queued != clique->members[0].queued) return true;
  }
  return atomic_load(&clique->failed) || atomic_load(&clique->group->stuck);
}

static void clique_renew(void *self) {
  struct ek__cuda_clique *clique = self;
  if (!torn(clique)) {
    atomic_store(&clique->aborted, false);
    return;
  }
  detach(clique); /* who waits must not look at a communicator that goes */
  abort_all(clique);
  clique->broken = join_all(clique) != EK_OK;
  if (!clique->broken) atomic_store(&clique->group->stuck, false);
  attach(clique);
}

static void clique_close(void *self) {
  struct ek__cuda_clique *clique = self;
  detach(clique);
  if (torn(clique) || on_all_ranks(clique, leave_rank, NULL) != EK_OK) abort_all(clique);
  ek__cuda_host->free(clique);
}

/* ---- collectives ---- */

struct call {
  size_t rank, ranks;
  ncclComm_t communicator;
  cudaStream_t stream;
  const struct ek__collective *what;
  ncclDataType_t type;
  size_t element, width; /* bytes of an element; NCCL elements in one of ours */
};

static char *at(const struct call *call, int64_t element) {
  return (char *)call->what->data + (size_t)element * call->element;
}

static size_t elements(const struct call *call, int64_t count) {
  return (size_t)count * call->width;
}

static bool equal_parts(const struct call *call) {
  const int64_t *offsets = call->what->offsets;
  for (size_t i = 0; i < call->ranks; i++) {
    if (offsets[i + 1] - offsets[i] != offsets[1]) return false;
  }
  return true;
}

/* Parts of different sizes: one collective for each part, in one group. */
static ncclResult_t by_parts(const struct call *call) {
  const int64_t *offsets = call->what->offsets;
  ncclResult_t result = ncclGroupStart();
  for (size_t i = 0; i < call->ranks && result == ncclSuccess; i++) {
    const size_t count = elements(call, offsets[i + 1] - offsets[i]);
    char *part = at(call, offsets[i]);
    if (count == 0) continue;
    result =
        call->what->kind == EK__ALL_GATHER
            ? ncclBroadcast(part, part, count, call->type, (int)i, call->communicator, call->stream)
            : ncclReduce(part, part, count, call->type, ncclSum, (int)i, call->communicator,
                         call->stream);
    if (result == ncclInProgress) result = ncclSuccess; /* inside a group it says nothing yet */
  }
  const ncclResult_t end = ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

static ncclResult_t issue(const struct call *call) {
  const struct ek__collective *what = call->what;
  const size_t count = elements(call, what->count);
  void *data = what->data;
  switch (what->kind) {
  case EK__BROADCAST:
    return ncclBroadcast(data, data, count, call->type, (int)what->root, call->communicator,
                         call->stream);
  case EK__REDUCE:
    return ncclReduce(data, data, count, call->type, ncclSum, (int)what->root, call->communicator,
                      call->stream);
  case EK__ALL_REDUCE:
    return ncclAllReduce(data, data, count, call->type, ncclSum, call->communicator, call->stream);
  case EK__REDUCE_SCATTER:
    if (!equal_parts(call)) return by_parts(call);
    return ncclReduceScatter(data, at(call, what->offsets[call->rank]),
                             elements(call, what->offsets[1]), call->type, ncclSum,
                             call->communicator, call->stream);
  case EK__ALL_GATHER:
    if (!equal_parts(call)) return by_parts(call);
    return ncclAllGather(at(call, what->offsets[call->rank]), data,
                         elements(call, what->offsets[1]), call->type, call->communicator,
                         call->stream);
  }
  return ncclInvalidArgument;
}

static struct call call_of(const struct ek__cuda_clique *clique, size_t rank,
                           const struct ek__collective *what) {
  const size_t element = ek__type_size(what->type);
  const bool sums = what->type == EK_F32 || what->type == EK_F64;
  return (struct call){.rank = rank,
                       .ranks = clique->group->count,
                       .communicator = clique->members[rank].communicator,
                       .stream = device_of(clique, rank)->streams[EK_STREAM_COMMUNICATION].handle,
                       .what = what,
                       .type = !sums                  ? ncclUint8
                               : what->type == EK_F64 ? ncclFloat64
                                                      : ncclFloat32,
                       .element = element,
                       .width = sums ? 1 : element};
}

static ek_status clique_run(void *self, ek_device *raw, const struct ek__collective *collective) {
  static const char *const names[] = {[EK__BROADCAST] = "broadcast",
                                      [EK__REDUCE] = "reduce",
                                      [EK__ALL_REDUCE] = "all_reduce",
                                      [EK__REDUCE_SCATTER] = "reduce_scatter",
                                      [EK__ALL_GATHER] = "all_gather"};
  struct ek__cuda_clique *clique = self;
  struct ek__cuda_device *device = ek__cuda_device_of(raw);
  const struct call call = call_of(clique, device->index, collective);
  if (clique->broken || call.communicator == NULL) {
    return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE,
                                    "%s: NCCL: the communicator could not be made new after a "
                                    "failure; close the group",
                                    device->name);
  }
  if (collective->count == 0) return EK_OK;
  EK_TRY(ek__cuda_enter(device));
  clique->members[call.rank].queued++;
  const ek_status status = settle(clique, call.rank, issue(&call), names[collective->kind]);
  if (status != EK_OK) atomic_store(&clique->failed, true);
  return status;
}

/* ---- before the first collective ---- */

/* Not ek__cuda_finish(): a rank that has failed lets the others wait on the GPU, until an abort. */
static ek_status finish_rank(const struct ek__cuda_clique *clique, size_t rank) {
  const struct ek__cuda_device *device = device_of(clique, rank);
  const double since = ek__cuda_now();
  for (unsigned asked = 0;; asked++) {
    const cudaError_t error = ek__cuda_query(&device->streams[EK_STREAM_COMMUNICATION]);
    if (error != cudaErrorNotReady) return ek__cuda_check(device, error, "opening NCCL");
    EK_TRY(keep_waiting(clique, rank, since, asked, "the first collectives"));
  }
}

/* Elements, as many as a bucket of gradients has; a build for another NCCL may say less. */
#ifndef EK__CUDA_LARGE_COLLECTIVE
#define EK__CUDA_LARGE_COLLECTIVE ((int64_t)1 << 20)
#endif

/* Every kind, small and large: NCCL has different ways for them. */
static ek_status warm_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  const int64_t ranks = (int64_t)clique->group->count;
  int64_t *offsets = ek__cuda_new(((size_t)ranks + 1) * sizeof *offsets, "NCCL");
  if (offsets == NULL) return EK_ERR_OUT_OF_MEMORY;
  ek_status status = EK_OK;
  const int64_t sizes[] = {16, EK__CUDA_LARGE_COLLECTIVE / ranks}; /* of a rank's part */
  (void)context;
  for (size_t i = 0; i < 2 * (EK__ALL_GATHER + 1) && status == EK_OK; i++) {
    for (int64_t k = 0; k <= ranks; k++) offsets[k] = k * sizes[i % 2];
    const struct ek__collective collective = {.kind = (enum ek__collective_kind)(i / 2),
                                              .data = device_of(clique, rank)->gpu->scratch,
                                              .count = offsets[ranks],
                                              .type = EK_F32,
                                              .offsets = offsets};
    const struct call call = call_of(clique, rank, &collective);
    status = settle(clique, rank, issue(&call), "opening NCCL");
  }
  ek__cuda_host->free(offsets);
  return status == EK_OK ? finish_rank(clique, rank) : status;
}

ek_status ek__cuda_nccl_warm(struct ek__cuda_group *group) {
  EK_TRY(open_new(&group->spare, group));
  const ek_status status = on_all_ranks(group->spare, warm_rank, NULL);
  if (status != EK_OK) group->spare->broken = true; /* it ends by an abort */
  return status;
}

void ek__cuda_nccl_end(struct ek__cuda_group *group) {
  if (group->spare != NULL) clique_close(group->spare);
  group->spare = NULL;
}

static const struct ek__link link_table = {.name = "nccl",
                                           .open = clique_open,
                                           .run = clique_run,
                                           .abort = clique_abort,
                                           .renew = clique_renew,
                                           .close = clique_close};

const struct ek__link *const ek__cuda_nccl = &link_table;

#else

const struct ek__link *const ek__cuda_nccl = NULL;

ek_status ek__cuda_nccl_warm(struct ek__cuda_group *group) {
  (void)group;
  return EK_OK;
}

void ek__cuda_nccl_end(struct ek__cuda_group *group) { (void)group; }

bool ek__cuda_nccl_failed(const struct ek__cuda_group *group, char *text, size_t size) {
  (void)group, (void)text, (void)size;
  return false;
}

#endif
