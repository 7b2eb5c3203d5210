/*
 * cuda_clique.h - one NCCL communicator for each device of a group: their life (cuda_clique.c) and
 * their collectives (cuda_nccl.c).
 *
 * The ranks of a communicator are the devices of all processes, or, by the clique's reach, those of
 * this process, or the devices of one index in all processes (EK__REACH_SHARES): then each device's
 * communicator is that of other ranks. A clique of the last kind has one of the second kind, which
 * adds up the devices of the process first.
 *
 * The communicators do not block: a call that returns "in progress" is polled until it is over, so
 * that a peer that never arrives can be given up after the group's time limit.
 *
 * Lock: NCCL's calls for one communicator may not overlap, not even with a query of its state
 * (ncclCommGetAsyncError() completes an earlier call). So a member's mutex is held during every
 * call for its communicator, and guards the pointer to it, which an abort may clear at any time. A
 * thread that only checks for errors tries the mutex, and does not wait for it. No lock is taken
 * inside it.
 */
#ifndef EK_CUDA_CLIQUE_H
#define EK_CUDA_CLIQUE_H

#include "backend/cuda/cuda_internal.h"
#include "backend/cuda/cuda_nccl_library.h"

struct ek__cuda_member {
  pthread_mutex_t mutex;
  ncclComm_t communicator; /* NULL: not open, or aborted */
  _Atomic uint64_t queued; /* collectives, written by the rank's worker */
  uint64_t begun, launched; /* collectives, as the gate counts them: under its mutex */
};

struct ek__cuda_clique {
  struct ek__cuda_clique *next; /* of the group */
  struct ek__cuda_group *group;
  enum ek__reach reach;
  struct ek__cuda_clique *inside; /* of EK__REACH_SHARES; else NULL */
  atomic_bool aborted;
  atomic_bool failed; /* a call of a rank failed: it is not known what it queued */
  bool broken;        /* the last renewal failed */
  bool meets;         /* it is being opened or closed */
  bool uneven;        /* cuda_gate.c: some ranks are ahead; under its mutex */
  uint64_t seen;      /* cuda_watch.c: collectives queued when it looked last, and since when */
  double since;
  struct ek__cuda_member members[]; /* by device: of the group's first rank, and so on */
};

static inline const struct ek__cuda_device *ek__cuda_clique_device(
    const struct ek__cuda_clique *clique, size_t rank) {
  return &clique->group->devices[rank];
}

static inline size_t ek__cuda_clique_ranks(const struct ek__cuda_clique *clique) {
  const struct ek__cuda_group *group = clique->group;
  if (clique->reach == EK__REACH_PROCESS) return group->count;
  return group->members.ranks / (clique->reach == EK__REACH_SHARES ? group->count : 1);
}

/* The rank that device `index` has in its communicator. */
static inline size_t ek__cuda_clique_rank(const struct ek__cuda_clique *clique, size_t index) {
  const struct ek__cuda_group *group = clique->group;
  if (clique->reach == EK__REACH_PROCESS) return index;
  if (clique->reach == EK__REACH_SHARES) return group->members.first_rank / group->count;
  return group->members.first_rank + index;
}

/* What each rank does on a thread of its own. */
typedef ek_status ek__cuda_rank_function(struct ek__cuda_clique *clique, size_t rank,
                                         const void *context);
/* On all ranks at the same time, because NCCL's calls wait for each other. */
ek_status ek__cuda_on_all_ranks(struct ek__cuda_clique *clique, ek__cuda_rank_function *function,
                                const void *context);

ek_status ek__cuda_clique_open(struct ek__cuda_clique **opened, struct ek__cuda_group *group,
                               enum ek__reach reach);
void ek__cuda_clique_close(struct ek__cuda_clique *clique);
/* No worker runs. True if collectives were cut off; then that is so in all processes. */
bool ek__cuda_clique_renew(struct ek__cuda_clique *clique);
/* Ends what its collectives do on the GPUs, from any thread. */
void ek__cuda_clique_abort(struct ek__cuda_clique *clique);

/* Waits until a call of this rank, which gave `result`, is over. */
ek_status ek__cuda_clique_settle(struct ek__cuda_clique *clique, size_t rank, ncclResult_t result,
                                 const char *call);
/* That what this rank has queued takes too long, and which ranks have queued less; `call` is "" or
 * what it waits in, with ": " after it. */
void ek__cuda_clique_say_late(char *text, size_t size, const struct ek__cuda_clique *clique,
                              size_t rank, const char *call);

/* ---- cuda_gate.c: around a rank's launch of a collective; and all launches are forgotten ---- */

void ek__cuda_gate_begin(struct ek__cuda_clique *clique, size_t rank);
void ek__cuda_gate_end(struct ek__cuda_clique *clique, size_t rank);
void ek__cuda_gate_forget(struct ek__cuda_clique *clique);

#endif /* EK_CUDA_CLIQUE_H */
