/*
 * reduce_internal.h - the sums of one rank's gradients with those of the other ranks, bucket by
 * bucket: what a reducer has for each of its devices, and a data-parallel model for each rank.
 */
#ifndef EK_REDUCE_INTERNAL_H
#define EK_REDUCE_INTERNAL_H

#include <evenkeel/reduce.h>

#include "buckets.h"

struct ek__rank;

struct ek__sums {
  ek_communicator *communicator; /* loans, as are the next three */
  const struct ek__buckets *cut;
  ek_device *device;
  ek_replica *replica;
  ek_reduce_kind kind;
  /* Where a model's replicas do not hold whole gradients (keeper.h): `queue` sums a bucket of the
   * rank's, instead of a collective over the replica's buffer, and `settle` takes the sums of
   * all buckets. NULL for a public reducer. */
  ek_status (*queue)(struct ek__rank *rank, size_t bucket);
  ek_status (*settle)(struct ek__rank *rank, size_t end);
  struct ek__rank *rank;
  /* The round: */
  uint32_t *waiting; /* per bucket: parameters that are not complete */
  size_t queued;     /* buckets queued so far */
  size_t overlapped; /* of those, before the end of the round */
};

/* Host memory; what was made stays for the second call on failure. The loans are the caller's to
 * set. */
ek_status ek__sums_open(struct ek__sums *sums, const struct ek__buckets *cut);
void ek__sums_close(struct ek__sums *sums);

/* On the rank's worker: ek_reducer_start(), _complete() and _finish() of one device. */
void ek__sums_start(struct ek__sums *sums);
ek_status ek__sums_complete(struct ek__sums *sums, size_t parameter);
ek_status ek__sums_finish(struct ek__sums *sums);

/* Elements first .. last - 1 of the flat buffer that a rank of the world owns of a bucket. */
void ek__bucket_range(int64_t *first, int64_t *last, const struct ek__bucket *bucket,
                      ek_reduce_kind kind, size_t rank);

#endif /* EK_REDUCE_INTERNAL_H */
