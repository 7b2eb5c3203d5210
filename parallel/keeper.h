/*
 * keeper.h - the shares of a model that one device holds if state is cut over the devices.
 *
 * The flat gradients are cut into the buckets of the reducer, and each bucket into one share per
 * rank. A device holds its shares, end to end, for good. A whole bucket exists from the first use
 * of one of its gradients until its sum over the devices has ended: then the device's share of that
 * sum is added to its shares of the step, and the memory is freed. The reduction decides which sum
 * that is and when it has ended (reduction.h).
 *
 * Parameters may be cut alike (mode fully-sharded): a bucket is then a *unit*, and the whole of it
 * is gathered for the nodes that need it.
 *
 * All functions except open, close and drop run on the device's worker.
 */
#ifndef EK_KEEPER_H
#define EK_KEEPER_H

#include "buckets.h"
#include "module/lender.h"

/* A rank has one, as its first member. */
struct ek__keeper {
  struct ek__lender lender; /* for passes: the first member; no functions where nothing is cut */
  ek_communicator *gathers; /* a loan */
  struct ek__gathered {
    ek_tensor whole; /* exists from the start of its gather until it is given back */
    uint64_t gather; /* number of the collective, until the compute stream waits for it; else 0 */
    uint32_t pins;   /* nodes that have entered and not left */
  } * values;        /* per bucket; NULL: the replica has them */
  size_t current;    /* the unit that was entered last, or EK__NO_BUCKET */
  size_t ahead;      /* the one that is gathered for what is expected next, likewise */
  size_t held;       /* a bucket whose sum is queued with the next gather, likewise */
  uint64_t trail;    /* of what its passes have asked for: ek__keeper_note() */
};

/* For a rank whose replica and sums exist. ek__keeper_close() also frees what
 * ek__keeper_lend_values() has made. */
void ek__keeper_open(struct ek__rank *rank, ek_communicator *gathers);
void ek__keeper_close(struct ek__rank *rank);

/* Of the reduction `sum`, the first as struct ek__sums.queue: queue the sum of a bucket, zeros if
 * nothing has used it; and add the sums of all buckets below `end` to the rank's shares and free
 * these buckets. If values are gathered, the sum of a bucket other than the last is held until a
 * node has been entered: a gather that begins there is one call of a link with it. */
ek_status ek__keeper_reduce(struct ek__rank *rank, size_t bucket);
/* Queues the sum that is held, if there is one. more: the same communicator gathers at once. */
ek_status ek__keeper_release(struct ek__rank *rank, bool more);
ek_status ek__keeper_settle(struct ek__rank *rank, size_t end);

/*
 * The subject of a bucket's collective (communicator_internal.h). Without NDEBUG it includes all
 * requests of the device's passes so far, in order: so a device that has taken another path through
 * the model is found at its next collective, even if that is the same.
 */
static inline uint64_t ek__keeper_about(const struct ek__keeper *keeper, size_t bucket) {
  return keeper->trail * UINT64_C(0x9e3779b97f4a7c15) + bucket + 1;
}
/* Adds a step of a pass to the trail: an ek__way for a node that is entered, or one of these. All
 * devices run the model only if values are gathered. */
enum { EK__TRAIL_LEFT = EK__WAY_BACKWARD + 1, EK__TRAIL_COMPLETE, EK__TRAIL_ENDED };
static inline void ek__keeper_note(struct ek__keeper *keeper, unsigned step, size_t number) {
#ifdef NDEBUG
  (void)keeper, (void)step, (void)number;
#else
  if (keeper->values == NULL) return;
  keeper->trail = (keeper->trail ^ (number * 8 + step + 1)) * UINT64_C(0x100000001b3);
#endif
}

/* Frees what is lent. No worker runs. */
void ek__keeper_drop(struct ek__rank *rank);

/* ---- units.c: values ---- */

/* For a keeper that is open: values are cut too, and gathered by `gathers`. */
ek_status ek__keeper_lend_values(struct ek__rank *rank);

#endif /* EK_KEEPER_H */
