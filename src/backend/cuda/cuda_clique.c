/*
 * cuda_clique.c - NCCL's communicators: opened, polled, aborted, renewed, closed.
 *
 * NCCL calls of a rank are made by its device's worker, or by threads of their own when a clique is
 * opened, aborted or closed, because those calls wait for each other.
 *
 * After an abort the ranks may have queued different numbers of collectives; the extra ones hang on
 * the GPU, for ever unless something ends them. Then, and only then, every rank aborts its
 * communicator, all ranks meet, and new ones are made, after the workers have returned. If a worker
 * does not return, because its CUDA call waits for such a collective, the thread that waits for the
 * workers aborts (cuda_watch.c): a member may lose its communicator at any time.
 */
#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL

#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_clique.h"
#include "core/thread.h"

/* Blocks of a collective on a GPU, at most. Sums run beside backward, which lacks the
 * multiprocessors that they take. NCCL_MAX_CTAS overrides it. */
enum { MOST_CTAS = 16 };

/* ---- errors ---- */

static ek_status report(struct ek__cuda_clique *clique, size_t rank, ncclResult_t result,
                        const char *call) {
  struct ek__cuda_member *member = &clique->members[rank];
  char more[256] = "";
  pthread_mutex_lock(&member->mutex);
  const char *text =
      member->communicator == NULL ? NULL : ek__nccl.GetLastError(member->communicator);
  if (text != NULL) (void)snprintf(more, sizeof more, "%s", text);
  pthread_mutex_unlock(&member->mutex);
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "%s: %s: NCCL: %s%s%s",
                                  ek__cuda_clique_device(clique, rank)->name, call,
                                  ek__nccl.GetErrorString(result), *more == '\0' ? "" : ": ", more);
}

void ek__cuda_clique_say_late(char *text, size_t size, const struct ek__cuda_clique *clique,
                              size_t rank, const char *call) {
  const uint64_t own = atomic_load(&clique->members[rank].queued);
  const char *before = ": late is ";
  int used = snprintf(text, size, "%s: %sNCCL: not complete after %g seconds: a peer has not "
                                  "joined the collective",
                      ek__cuda_clique_device(clique, rank)->name, call, clique->group->time_limit);
  for (size_t i = 0; i < clique->group->count && used >= 0 && (size_t)used < size; i++) {
    if (atomic_load(&clique->members[i].queued) >= own) continue;
    used += snprintf(text + used, size - (size_t)used, "%s%s", before,
                     ek__cuda_clique_device(clique, i)->name);
    before = ", ";
  }
}

static ek_status too_long(const struct ek__cuda_clique *clique, size_t rank, const char *call) {
  char text[512], named[64];
  (void)snprintf(named, sizeof named, "%s: ", call);
  ek__cuda_clique_say_late(text, sizeof text, clique, rank, named);
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "%s", text);
}

/* Whether processes that this one meets, to open or to close, may not come. */
static bool others_fail(const struct ek__cuda_clique *clique) {
  const struct ek__members *members = &clique->group->members;
  return clique->meets && members->world != NULL && members->agreeing->misses(members->world);
}

ek_status ek__cuda_clique_settle(struct ek__cuda_clique *clique, size_t rank, ncclResult_t result,
                                 const char *call) {
  struct ek__cuda_member *member = &clique->members[rank];
  const double since = ek__cuda_now();
  for (unsigned asked = 0; result == ncclInProgress; asked++) {
    EK_TRY(ek__cuda_check_stuck(clique->group));
    if (atomic_load(&clique->aborted)) return ek__cuda_given_up();
    if (asked % 8 == 7 && others_fail(clique)) return ek__cuda_given_up();
    if (ek__cuda_now() - since > clique->group->time_limit) return too_long(clique, rank, call);
    ek__cuda_pause(asked);
    pthread_mutex_lock(&member->mutex);
    if (member->communicator != NULL) { /* else the next look sees why not */
      const ncclResult_t asking = ek__nccl.CommGetAsyncError(member->communicator, &result);
      if (asking != ncclSuccess) result = asking;
    }
    pthread_mutex_unlock(&member->mutex);
  }
  return result == ncclSuccess ? EK_OK : report(clique, rank, result, call);
}

/* The member's mutex is held. */
static bool has_failed(struct ek__cuda_clique *clique, size_t rank, char *text, size_t size) {
  ncclComm_t communicator = clique->members[rank].communicator;
  ncclResult_t result = ncclSuccess;
  if (communicator == NULL) return false;
  if (ek__nccl.CommGetAsyncError(communicator, &result) != ncclSuccess) return false;
  if (result == ncclSuccess || result == ncclInProgress) return false;
  const char *more = ek__nccl.GetLastError(communicator);
  (void)snprintf(text, size, "%s: NCCL, on the GPU: %s: %s",
                 ek__cuda_clique_device(clique, rank)->name, ek__nccl.GetErrorString(result),
                 more == NULL ? "" : more);
  return true;
}

bool ek__cuda_nccl_failed(const struct ek__cuda_group *group, char *text, size_t size) {
  bool failed = false;
  for (struct ek__cuda_clique *clique = group->cliques; clique != NULL; clique = clique->next) {
    for (size_t i = 0; i < group->count && !failed; i++) {
      /* A thread that is in a call sees the error itself. */
      if (pthread_mutex_trylock(&clique->members[i].mutex) != 0) continue;
      failed = has_failed(clique, i, text, size);
      pthread_mutex_unlock(&clique->members[i].mutex);
    }
  }
  return failed;
}

bool ek__cuda_nccl_aborted(struct ek__cuda_group *group) {
  bool aborted = false;
  pthread_mutex_lock(&group->failure_mutex);
  for (struct ek__cuda_clique *clique = group->cliques; clique != NULL; clique = clique->next) {
    aborted = aborted || atomic_load(&clique->aborted);
  }
  pthread_mutex_unlock(&group->failure_mutex);
  return aborted;
}

/* ---- what all ranks do at the same time, each on a thread of its own ---- */

struct rank_job {
  struct ek__cuda_clique *clique;
  size_t rank;
  ek__cuda_rank_function *function;
  const void *context;
  pthread_t thread;
  ek_status status;
  char message[512];
};

static void *rank_main(void *raw) {
  struct rank_job *job = raw;
  job->status = ek__cuda_enter(ek__cuda_clique_device(job->clique, job->rank));
  if (job->status == EK_OK) job->status = job->function(job->clique, job->rank, job->context);
  if (job->status != EK_OK) {
    (void)snprintf(job->message, sizeof job->message, "%s", ek__cuda_host->error_message());
    atomic_store(&job->clique->aborted, true); /* no rank waits for this one */
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

ek_status ek__cuda_on_all_ranks(struct ek__cuda_clique *clique, ek__cuda_rank_function *function,
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
    struct rank_job *job = &jobs[started];
    if (ek__thread_create(&job->thread, &attributes, rank_main, job) != 0) break;
  }
  if (stated) pthread_attr_destroy(&attributes);
  if (started < count) atomic_store(&clique->aborted, true);
  for (size_t i = 0; i < started; i++) pthread_join(jobs[i].thread, NULL);
  const ek_status status =
      started < count ? ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "cuda: no thread could be "
                                                                       "created for NCCL")
                      : first_error(jobs, count);
  ek__cuda_host->free(jobs);
  return status;
}

static ek_status join_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  struct ek__cuda_member *member = &clique->members[rank];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = MOST_CTAS;
  const ncclUniqueId *ids = context;
  const ncclUniqueId id = ids[clique->reach == EK__REACH_SHARES ? rank : 0];
  pthread_mutex_lock(&member->mutex);
  const ncclResult_t result = ek__nccl.CommInitRankConfig(
      &member->communicator, (int)ek__cuda_clique_ranks(clique), id,
      (int)ek__cuda_clique_rank(clique, rank), &config);
  pthread_mutex_unlock(&member->mutex);
  return ek__cuda_clique_settle(clique, rank, result, "ncclCommInitRankConfig");
}

/* From then on the communicator is the caller's alone. */
static ncclComm_t take_communicator(struct ek__cuda_member *member) {
  pthread_mutex_lock(&member->mutex);
  ncclComm_t communicator = member->communicator;
  member->communicator = NULL;
  pthread_mutex_unlock(&member->mutex);
  return communicator;
}

static ek_status abort_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  (void)context;
  ncclComm_t communicator = take_communicator(&clique->members[rank]);
  if (communicator != NULL) (void)ek__nccl.CommAbort(communicator);
  return EK_OK;
}

static ek_status leave_rank(struct ek__cuda_clique *clique, size_t rank, const void *context) {
  struct ek__cuda_member *member = &clique->members[rank];
  (void)context;
  pthread_mutex_lock(&member->mutex);
  const ncclResult_t result = ek__nccl.CommFinalize(member->communicator);
  pthread_mutex_unlock(&member->mutex);
  EK_TRY(ek__cuda_clique_settle(clique, rank, result, "ncclCommFinalize"));
  (void)ek__nccl.CommDestroy(take_communicator(member));
  return EK_OK;
}

/* ---- opening, renewing and closing ---- */

/* Does not look at the devices: one that has failed is no reason to let the others hang. */
static void *abort_main(void *raw) {
  const struct rank_job *job = raw;
  (void)abort_rank(job->clique, job->rank, NULL);
  return NULL;
}

void ek__cuda_clique_abort(struct ek__cuda_clique *clique) {
  struct rank_job jobs[EK__CUDA_MAX_POINTERS];
  const size_t count = clique->group->count;
  size_t started = 0;
  atomic_store(&clique->aborted, true);
  for (; started < count && started < EK__CUDA_MAX_POINTERS; started++) {
    jobs[started] = (struct rank_job){.clique = clique, .rank = started};
    if (ek__thread_create(&jobs[started].thread, NULL, abort_main, &jobs[started]) != 0) break;
  }
  for (size_t i = started; i < count; i++) (void)abort_rank(clique, i, NULL);
  for (size_t i = 0; i < started; i++) pthread_join(jobs[i].thread, NULL);
}

/* The process with rank 0 makes it, or each its own. All get an error if it could not. */
static ek_status make_id(ncclUniqueId *id, const struct ek__cuda_clique *clique) {
  struct {
    ncclUniqueId id;
    int32_t result;
  } made = {.result = (int32_t)ncclSuccess};
  const struct ek__members *members = &clique->group->members;
  const bool own = clique->reach == EK__REACH_PROCESS || members->world == NULL;
  if (own || members->first_rank == 0) made.result = (int32_t)ek__nccl.GetUniqueId(&made.id);
  if (!own) EK_TRY(members->agreeing->share(members->world, &made, sizeof made));
  *id = made.id;
  if (made.result == (int32_t)ncclSuccess) return EK_OK;
  return ek__cuda_host->error_set(EK_ERR_UNAVAILABLE, "cuda: ncclGetUniqueId: NCCL: %s",
                                  ek__nccl.GetErrorString((ncclResult_t)made.result));
}

/* One id for each communicator that devices of this process are in. */
static ek_status join_by_ids(struct ek__cuda_clique *clique, ncclUniqueId *ids, size_t count) {
  for (size_t k = 0; k < count; k++) EK_TRY(make_id(&ids[k], clique));
  const ek_status status = ek__cuda_on_all_ranks(clique, join_rank, ids);
  if (status != EK_OK) {
    char message[512];
    (void)snprintf(message, sizeof message, "%s", ek__cuda_host->error_message());
    ek__cuda_clique_abort(clique);
    return ek__cuda_host->error_set(status, "%s", message);
  }
  return EK_OK;
}

static ek_status join_all(struct ek__cuda_clique *clique) {
  const size_t count = clique->reach == EK__REACH_SHARES ? clique->group->count : 1;
  atomic_store(&clique->aborted, false);
  atomic_store(&clique->failed, false);
  for (size_t i = 0; i < clique->group->count; i++) atomic_store(&clique->members[i].queued, 0);
  ek__cuda_gate_forget(clique);
  ncclUniqueId *ids = ek__cuda_new(count * sizeof *ids, "NCCL");
  if (ids == NULL) return EK_ERR_OUT_OF_MEMORY;
  clique->meets = true;
  const ek_status status = join_by_ids(clique, ids, count);
  clique->meets = false;
  ek__cuda_host->free(ids);
  return status;
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

static void discard(struct ek__cuda_clique *clique, size_t members) {
  ek__cuda_gate_forget(clique);
  for (size_t i = 0; i < members; i++) pthread_mutex_destroy(&clique->members[i].mutex);
  ek__cuda_host->free(clique);
}

ek_status ek__cuda_clique_open(struct ek__cuda_clique **opened, struct ek__cuda_group *group,
                               enum ek__reach reach) {
  struct ek__cuda_clique *clique =
      ek__cuda_new(sizeof *clique + group->count * sizeof clique->members[0], "NCCL");
  if (clique == NULL) return EK_ERR_OUT_OF_MEMORY;
  clique->group = group;
  clique->reach = reach;
  size_t members = 0;
  while (members < group->count && pthread_mutex_init(&clique->members[members].mutex, NULL) == 0) {
    members++;
  }
  const ek_status status = members < group->count
                               ? ek__cuda_host->error_set(EK_ERR_OUT_OF_MEMORY, "cuda: a mutex "
                                                                                "could not be "
                                                                                "created")
                               : join_all(clique);
  if (status != EK_OK) {
    discard(clique, members);
    return status;
  }
  attach(clique);
  *opened = clique;
  return EK_OK;
}

/* Whether collectives of some ranks of this process wait for others that were never queued or will
 * never end. */
static bool torn(struct ek__cuda_clique *clique) {
  if (clique->broken || ek__cuda_check_gpus(clique->group) != EK_OK) return true;
  for (size_t i = 0; i < clique->group->count; i++) {
    if (clique->members[i].communicator == NULL) return true;
    if (clique->members[i].queued != clique->members[0].queued) return true;
  }
  return atomic_load(&clique->failed) || atomic_load(&clique->group->stuck);
}

/* The same of all processes: their ranks have queued as many collectives if nothing is torn. */
static bool torn_anywhere(struct ek__cuda_clique *clique) {
  const struct ek__members *members = &clique->group->members;
  const bool here = torn(clique);
  bool same = false;
  if (members->world == NULL || clique->reach == EK__REACH_PROCESS) return here;
  const int64_t queued = here ? -1 : (int64_t)atomic_load(&clique->members[0].queued);
  return members->agreeing->compare(members->world, queued, &same) != EK_OK || !same || here;
}

bool ek__cuda_clique_renew(struct ek__cuda_clique *clique) {
  if (!torn_anywhere(clique)) {
    atomic_store(&clique->aborted, false);
    return false;
  }
  detach(clique); /* waiting threads must not see a communicator that is being freed */
  ek__cuda_clique_abort(clique);
  /* The stuck work has ended with it; joining threads would take it for a reason not to wait. */
  const bool stuck = atomic_exchange(&clique->group->stuck, false);
  clique->broken = join_all(clique) != EK_OK;
  if (clique->broken && stuck) atomic_store(&clique->group->stuck, true);
  attach(clique);
  return true;
}

void ek__cuda_clique_close(struct ek__cuda_clique *clique) {
  detach(clique);
  clique->meets = true;
  /* What the members of other processes have queued is not known. */
  const bool unsure = clique->group->members.world != NULL && atomic_load(&clique->aborted);
  if (unsure || torn(clique) || ek__cuda_on_all_ranks(clique, leave_rank, NULL) != EK_OK) {
    ek__cuda_clique_abort(clique);
  }
  discard(clique, clique->group->count);
}

#else

bool ek__cuda_nccl_failed(const struct ek__cuda_group *group, char *text, size_t size) {
  (void)group, (void)text, (void)size;
  return false;
}

bool ek__cuda_nccl_aborted(struct ek__cuda_group *group) {
  (void)group;
  return false;
}

#endif
