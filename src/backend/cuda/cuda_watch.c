/*
 * cuda_watch.c - sees, while workers run, that one of them is stuck.
 *
 * A worker that waits polls, and gives up by itself (cuda_wait.c). But a CUDA call may wait for all
 * work of a GPU, for example to load code; if that work includes an NCCL collective whose peer
 * waits in the same way, the calls never return. So the thread that waits for the workers checks
 * them at intervals, without a CUDA call that might block too:
 *
 *   - a worker has been in one call of ours for longer than the time limit;
 *   - or for as long some rank has queued more collectives than another, and neither queues more:
 *     then a worker may be stuck in a call of the program's own.
 *
 *
 * And other processes may fail, so that their part of a collective never comes (`ended`).
 *
 * Then NCCL's communicators are aborted, which ends the collectives on the GPUs. The calls return,
 * their results are not used, and a thread that waits or queues a collective afterwards gets an
 * error. If GPUs work over each other's memory, no call waits for a peer, and nothing is aborted.
 */
#include <stdio.h>

#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL
#include "backend/cuda/cuda_clique.h"
#endif

/* ---- calls ---- */

/* The device's calls since it was opened, and whether one goes on. */
static bool in_a_call(uint64_t *changes, const struct ek__cuda_device *device) {
  const uint64_t ended = atomic_load(&device->calls_ended);
  const uint64_t begun = atomic_load(&device->calls_begun);
  *changes = begun + ended + atomic_load(&device->beats);
  return begun != ended;
}

static bool device_is_stuck(struct ek__cuda_device *device, double now) {
  uint64_t changes = 0;
  const bool inside = in_a_call(&changes, device);
  if (!inside || changes != device->changes_seen) {
    device->changes_seen = changes;
    device->unchanged_since = now;
  }
  return now - device->unchanged_since > device->group->time_limit;
}

#ifdef EK_CUDA_HAVE_NCCL

/* ---- collectives ---- */

/* True if some rank waits for another one; *early is then one that has queued most. */
static bool uneven(size_t *early, const struct ek__cuda_clique *clique, uint64_t *sum) {
  bool differ = false;
  *early = 0;
  *sum = 0;
  for (size_t i = 0; i < clique->group->count; i++) {
    const uint64_t queued = atomic_load(&clique->members[i].queued);
    const uint64_t most = atomic_load(&clique->members[*early].queued);
    differ = differ || queued != most;
    if (queued > most) *early = i;
    *sum += queued;
  }
  return differ;
}

static bool clique_is_stuck(size_t *early, struct ek__cuda_clique *clique, double now) {
  uint64_t sum = 0;
  if (!uneven(early, clique, &sum) || sum != clique->seen) {
    clique->seen = sum;
    clique->since = now;
  }
  return now - clique->since > clique->group->time_limit;
}

/* What is stuck, in words; the group's failure_mutex is held. */
static bool find_stuck(char *text, size_t size, struct ek__cuda_group *group, double now) {
  for (size_t i = 0; i < group->count; i++) {
    if (!device_is_stuck(&group->devices[i], now)) continue;
    (void)snprintf(text, size, "%s: a call of CUDA has not returned for %g seconds",
                   group->devices[i].name, group->time_limit);
    return true;
  }
  for (struct ek__cuda_clique *clique = group->cliques; clique != NULL; clique = clique->next) {
    size_t early = 0;
    if (!clique_is_stuck(&early, clique, now)) continue;
    ek__cuda_clique_say_late(text, size, clique, early, "");
    return true;
  }
  return false;
}

/* The spare one was not asked for, and nothing of it is on a GPU. */
static void abort_cliques(struct ek__cuda_group *group) {
  for (struct ek__cuda_clique *clique = group->cliques; clique != NULL; clique = clique->next) {
    if (clique != group->spare) ek__cuda_clique_abort(clique);
  }
}

ek_status ek__cuda_watch(void *raw, ek_status ended) {
  struct ek__cuda_group *group = raw;
  char text[512] = "";
  ek_status status = ended;
  if (!group->nccl || atomic_load(&group->stuck)) return ended;
  if (ended != EK_OK) (void)snprintf(text, sizeof text, "%s", ek__cuda_host->error_message());
  pthread_mutex_lock(&group->failure_mutex);
  if (ended == EK_OK && find_stuck(text, sizeof text, group, ek__cuda_now())) {
    status = EK_ERR_UNAVAILABLE;
  }
  if (status != EK_OK) {
    (void)snprintf(group->failure, sizeof group->failure, "%s", text);
    group->failure_status = status;
    atomic_store(&group->stuck, true);
    abort_cliques(group);
  }
  pthread_mutex_unlock(&group->failure_mutex);
  return status == EK_OK ? EK_OK : ek__cuda_host->error_set(status, "%s", text);
}

#else

ek_status ek__cuda_watch(void *raw, ek_status ended) {
  (void)raw, (void)device_is_stuck;
  return ended;
}

#endif
