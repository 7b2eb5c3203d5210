/*
 * cuda_gate.c - what may wait for all GPUs keeps out of the middle of NCCL's collectives.
 *
 * cudaFree() and cudaFreeHost() wait for a GPU and its peers and keep other threads out of CUDA
 * meanwhile; allocating and loading code may do so. If some GPUs of another group of the process
 * have their part of a collective then and others do not, all wait for each other: the launch of
 * the missing part for the free, the free for the parts that run, and these for the missing one.
 *
 * So a thread that opens or closes closes the gate first. That waits until each clique is even: all
 * its ranks have launched as many collectives. While the gate is closed, or a thread waits for it,
 * no rank launches a collective that no other rank of its clique has launched; those that are
 * behind go on. They catch up, because all devices launch all collectives of a group in one order
 * (host_communicator.c, host_settle). Neither waits longer than a time limit; then all is as
 * without a gate, and ends by the watch. A program's own calls of CUDA know no gate:
 * docs/misuse.md.
 */
#include "backend/cuda/cuda_internal.h"

#ifdef EK_CUDA_HAVE_NCCL

#include "backend/cuda/cuda_clique.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned uneven;  /* cliques some of whose ranks are ahead */
static unsigned closers; /* threads that have closed the gate, or wait for that */

/* With the mutex. */
static uint64_t most_begun(const struct ek__cuda_clique *clique) {
  uint64_t most = 0;
  for (size_t i = 0; i < clique->group->count; i++) {
    if (clique->members[i].begun > most) most = clique->members[i].begun;
  }
  return most;
}

/* With the mutex. */
static void note_evenness(struct ek__cuda_clique *clique) {
  const uint64_t most = most_begun(clique);
  bool even = true;
  for (size_t i = 0; i < clique->group->count; i++) {
    even = even && clique->members[i].launched == most;
  }
  if (even == !clique->uneven) return;
  clique->uneven = !even;
  uneven += even ? (unsigned)-1 : 1;
}

void ek__cuda_gate_begin(struct ek__cuda_clique *clique, size_t rank) {
  struct ek__cuda_member *member = &clique->members[rank];
  const double since = ek__cuda_now();
  pthread_mutex_lock(&mutex);
  for (unsigned asked = 0; closers > 0 && member->begun == most_begun(clique); asked++) {
    pthread_mutex_unlock(&mutex);
    const bool late = ek__cuda_now() - since > clique->group->time_limit;
    if (!late && !atomic_load(&clique->aborted)) ek__cuda_pause(asked);
    pthread_mutex_lock(&mutex);
    if (late || atomic_load(&clique->aborted)) break;
  }
  member->begun++;
  note_evenness(clique);
  pthread_mutex_unlock(&mutex);
}

void ek__cuda_gate_end(struct ek__cuda_clique *clique, size_t rank) {
  pthread_mutex_lock(&mutex);
  clique->members[rank].launched = clique->members[rank].begun;
  note_evenness(clique);
  pthread_mutex_unlock(&mutex);
}

void ek__cuda_gate_forget(struct ek__cuda_clique *clique) {
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < clique->group->count; i++) {
    clique->members[i].begun = clique->members[i].launched = 0;
  }
  note_evenness(clique);
  pthread_mutex_unlock(&mutex);
}

void ek__cuda_gate_close(double time_limit) {
  const double since = ek__cuda_now();
  pthread_mutex_lock(&mutex);
  closers++;
  for (unsigned asked = 0; uneven > 0 && ek__cuda_now() - since <= time_limit; asked++) {
    pthread_mutex_unlock(&mutex);
    ek__cuda_pause(asked);
    pthread_mutex_lock(&mutex);
  }
  pthread_mutex_unlock(&mutex);
}

void ek__cuda_gate_open(void) {
  pthread_mutex_lock(&mutex);
  closers--;
  pthread_mutex_unlock(&mutex);
}

#else

void ek__cuda_gate_close(double time_limit) { (void)time_limit; }
void ek__cuda_gate_open(void) {}

#endif
