/*
 * collective.h - cliques of communicators, and the collectives that they are in.
 *
 * A clique is all ranks that joined with one id. Each rank numbers its collectives; those with the
 * same number are one. The worker threads of the ranks' streams arrive in it, the last one computes
 * it for all, and all go on. The clique's lock is held throughout, so that who takes it knows that
 * no rank reads another's buffers.
 *
 * Once a rank has aborted, no collective of the clique is computed any more: the others hang in
 * theirs until they abort too, as on GPUs.
 *
 * The ranks may be those of several processes. Each process has the clique and its own ranks; the
 * last of these that arrives computes the collective together with the other processes, piece by
 * piece over memory that all of them map (between.c). A process that dies is not seen: the others
 * hang until they abort.
 */
#ifndef CUEMU_COLLECTIVE_H
#define CUEMU_COLLECTIVE_H

#include "internal.h"
#include "nccl.h"

enum { MAX_RANKS = CUEMU_MAX_DEVICES };

enum collective_kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER };

struct part { /* what one rank passed */
  enum collective_kind kind;
  const void *send;
  void *receive;
  size_t count;
  ncclDataType_t type;
  int root;
};

struct collective {
  struct collective *next;
  uint64_t number;
  int arrived, left;
  bool done;
  struct part part[MAX_RANKS];
};

#define PIECE ((size_t)32 << 10) /* bytes that are worked on at a time: they stay in the cache */

/* What the processes of a clique share. Its numbers are read and written by atomic operations. */
struct shared {
  ncclUniqueId id;
  int joined, aborted, invalid;
  uint64_t phase[MAX_RANKS]; /* meetings that the rank's process has come to */
  struct part part[MAX_RANKS];
  char data[MAX_RANKS][PIECE];
};

struct clique {
  struct clique *next;
  struct shared *shared;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int ranks, references;
  int local; /* ranks that joined in this process */
  bool is_local[MAX_RANKS];
  uint64_t phase;
  struct ncclComm *comm[MAX_RANKS];
  struct collective *collectives;
};

struct request { /* a collective of one rank, on its way to the stream */
  struct request *next;
  struct ncclComm *comm;
  uint64_t number;
  struct part part;
  cudaStream_t stream;
};

struct ncclComm {
  struct clique *clique;
  int rank, device, references;
  unsigned used_kinds; /* a bit for each kind of collective; each costs memory */
  size_t hidden;       /* what it took on its device */
  bool blocking, aborted, finalizing;
  uint64_t next_number;
  int inside;     /* threads that are in a call for it: one at a time, as NCCL has it */
  int queued;     /* requests on streams, not yet done */
  int running;    /* of them, in a worker's hands */
  unsigned polls; /* so often the state is still ncclInProgress */
  ncclResult_t error;
  struct request *pending, **pending_tail; /* non-blocking: queued when the state is asked for */
};

size_t cuemu_nccl_element_bytes(ncclDataType_t type); /* 0: no such type */
enum performed { DONE, DIFFERENT_PARTS, GIVEN_UP };
/* Computes the collective for all ranks of this process, which have arrived; the clique's lock is
 * held, and released while other processes are waited for. */
enum performed cuemu_perform(const struct collective *collective, struct clique *clique);

/* ---- between.c ---- */

/* Makes an id and the memory that goes with it; ncclSystemError if that cannot be had. */
ncclResult_t cuemu_make_id(ncclUniqueId *id);
/* NULL: the id's maker has gone, or never made it. */
struct shared *cuemu_map_id(const ncclUniqueId *id);
void cuemu_unmap(struct shared *shared);
void cuemu_unmap_id(struct shared *shared); /* at the end of its clique */
/* Waits until all processes have come here; false if a rank has aborted. The clique's lock is held,
 * and released meanwhile. */
bool cuemu_meet(struct clique *clique);

static inline int cuemu_read(const int *number) {
  return __atomic_load_n(number, __ATOMIC_ACQUIRE);
}
static inline void cuemu_set(int *number) { __atomic_store_n(number, 1, __ATOMIC_RELEASE); }
static inline bool cuemu_all_joined(const struct clique *clique) {
  return cuemu_read(&clique->shared->joined) >= clique->ranks;
}

/* Callers of these do not hold the clique's lock. */
void cuemu_comm_enter(struct ncclComm *comm); /* a call begins; counts those that overlap */
void cuemu_comm_leave(struct ncclComm *comm);
void cuemu_queue_request(struct request *request);
void cuemu_unreference_comm(struct ncclComm *comm);
bool cuemu_comm_takes(struct ncclComm *comm); /* cuemu_settings.nccl_bytes more */
bool cuemu_in_group(void); /* between ncclGroupStart() and ncclGroupEnd() of this thread */

#endif
