/*
 * buckets.h - how the flat parameters and gradients of a model are cut over the devices.
 *
 * A bucket is a range of whole parameters, a share a rank's part of it. Shares of all buckets, end
 * to end, are what a device holds of parameters that are cut, and those of the buckets that are
 * trained, which come first, of gradients (keeper.h). Frozen parameters have buckets of their own.
 */
#ifndef EK_BUCKETS_H
#define EK_BUCKETS_H

#include <evenkeel/replica.h>

struct ek__bucket {
  int64_t first, last; /* elements of the flat buffer */
  uint32_t parameters; /* how many complete it */
  int64_t *offsets;    /* rank r owns first + offsets[r] .. first + offsets[r + 1] - 1 */
  int64_t *places;     /* where its share begins if those of all buckets are end to end */
};

struct ek__buckets {
  struct ek__bucket *list;
  size_t count, trained; /* all; without those of frozen parameters, which are the last */
  size_t ranks, pieces;
  size_t parameters;         /* of the replica, buffers as well */
  size_t *of;                /* per parameter of the replica; SIZE_MAX for a buffer */
  int64_t *offsets, *places; /* of all buckets */
};

/* Whole parameters from the end of those that are trained to the beginning, until a bucket has
 * `bytes`, and then the frozen ones likewise; of a layout in units the units, in the same order.
 * What was made stays for close on failure. Each rank has as many of the `pieces` of a bucket as
 * the next, or one more. */
ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t pieces, size_t bytes);
void ek__buckets_close(struct ek__buckets *buckets);

/* The bucket of a layout's unit. */
static inline size_t ek__bucket_of_unit(const struct ek__buckets *buckets, size_t unit) {
  return (unit < buckets->trained ? buckets->trained : buckets->trained + buckets->count) - 1 -
         unit;
}

/* Elements that a rank owns of a bucket, and of the first `count` of them. */
static inline int64_t ek__bucket_share(const struct ek__bucket *bucket, size_t rank) {
  return bucket->offsets[rank + 1] - bucket->offsets[rank];
}
static inline int64_t ek__buckets_share(const struct ek__buckets *buckets, size_t count,
                                        size_t rank) {
  if (count == 0) return 0;
  const struct ek__bucket *last = &buckets->list[count - 1];
  return last->places[rank] + ek__bucket_share(last, rank);
}

#endif /* EK_BUCKETS_H */
