/*
 * buckets.h - how the flat parameters and gradients of a model are cut over the devices.
 *
 * A bucket is a range of whole parameters, a share a rank's part of it. Shares of all buckets, end
 * to end, are what a device holds of anything that is cut (keeper.h).
 */
#ifndef EK_BUCKETS_H
#define EK_BUCKETS_H

#include <evenkeel/replica.h>

struct ek__bucket {
  int64_t first, last; /* elements of the flat buffer */
  uint32_t parameters; /* how many complete it */
  int64_t *offsets;    /* rank r owns first + offsets[r] .. first + offsets[r + 1] - 1 */
  int64_t *places;     /* where its share begins if those of all buckets lie end to end */
};

struct ek__buckets {
  struct ek__bucket *list;
  size_t count, ranks, pieces;
  size_t *of;                /* per parameter of the replica; SIZE_MAX for a buffer */
  int64_t *offsets, *places; /* of all buckets */
};

/* Whole parameters from the end of the flat buffer to its beginning, until a bucket has `bytes`; of
 * a layout in units the units, from the last to the first. What was made stays for close on
 * failure. Each rank has as many of the `pieces` of a bucket as the next, or one more. */
ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t pieces, size_t bytes);
void ek__buckets_close(struct ek__buckets *buckets);

/* Elements that a rank owns of a bucket, and of all of them. */
static inline int64_t ek__bucket_share(const struct ek__bucket *bucket, size_t rank) {
  return bucket->offsets[rank + 1] - bucket->offsets[rank];
}
static inline int64_t ek__buckets_share(const struct ek__buckets *buckets, size_t rank) {
  if (buckets->count == 0) return 0;
  const struct ek__bucket *last = &buckets->list[buckets->count - 1];
  return last->places[rank] + ek__bucket_share(last, rank);
}

#endif /* EK_BUCKETS_H */
