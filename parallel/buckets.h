/*
 * buckets.h - how the flat parameters and gradients of a model are cut over the devices, and the
 * sums of one rank's gradients with those of the other ranks, bucket by bucket.
 *
 * A bucket is a range of whole parameters; a share is what a rank owns of a bucket. A device holds
 * parameters that are cut as its shares of all buckets, end to end. It holds gradients that are cut
 * as its shares of the trained buckets, which come first (keeper.h). Frozen parameters have buckets
 * of their own.
 *
 * A bucket is a row of *pieces*, each of one rank, so that what is summed over a piece does not
 * depend on the number of ranks. Pieces are an equal cut of the bucket, or, for a rule that takes
 * parameters whole (optimizer.h), such a parameter and an equal cut of what is between two of them.
 */
#ifndef EK_BUCKETS_H
#define EK_BUCKETS_H

#include <evenkeel/optimizer.h>
#include <evenkeel/reduce.h>
#include <evenkeel/replica.h>

#include "module/layout.h"

/* The number of no bucket. */
#define EK__NO_BUCKET SIZE_MAX

struct ek__bucket {
  int64_t first, last; /* elements of the flat buffer */
  uint32_t parameters; /* how many complete it */
  bool joined; /* the next one is complete when this one is: they are queued together */
  int64_t *offsets;    /* rank r owns first + offsets[r] .. first + offsets[r + 1] - 1 */
  int64_t *places;     /* where its share begins if those of all buckets are end to end */
  size_t piece, pieces; /* the number of its first piece among those of all buckets */
};

struct ek__buckets {
  struct ek__bucket *list;
  size_t count, trained; /* all; without those of frozen parameters, which are the last */
  size_t ranks;
  size_t equal_pieces;       /* that what is not taken whole is cut into */
  size_t parameters;         /* of the replica, buffers as well */
  size_t *of;                /* per parameter of the replica; a buffer has none */
  int64_t *offsets, *places; /* of all buckets */
  bool *whole;               /* per parameter: the rule takes it whole; NULL: none */
  int64_t *loads;            /* per rank, elements: if parameters are taken whole */
  int64_t *pieces;           /* where each ends, from the beginning of its bucket on */
  size_t piece_count, piece_capacity;
};

/* The bytes of a bucket that a program asks for, or, for 0, those that suit the devices. */
size_t ek__bucket_bytes(size_t given, const ek_device *device);

/* Takes whole parameters from the end of the trained ones to the beginning until a bucket has
 * `bytes`, then the frozen ones likewise. Of more than 4 MiB, the first bucket ends at 1 MiB, so
 * that sums begin early, and one with 1 MiB ends before a parameter of `bytes`, which may be
 * complete much later. Of 1 to 4 MiB, the last buckets end at 1 MiB, because their sums have little
 * of backward beside them. If the last trained bucket has only parameters without decay, it is
 * joined to the one before it. With a layout in units each unit is a bucket, in the same order.
 * After a failure close frees what was made. Equal pieces of a bucket are dealt out evenly: the
 * numbers of two ranks differ by at most one. If `rule`, which may be NULL, takes parameters whole,
 * pieces are dealt out so that the rank with the most elements of all buckets so far has as few as
 * possible; a rank's pieces of a bucket are side by side in any case. */
ek_status ek__buckets_open(struct ek__buckets *buckets, const ek_replica *replica, size_t ranks,
                           size_t pieces, size_t bytes, const ek_optimizer *rule);
void ek__buckets_close(struct ek__buckets *buckets);

/* Where the elements of a trained parameter end in the flat buffers, with the gap after it. `i` is
 * its number in the layout's order. */
static inline int64_t ek__trained_end(const struct ek__layout *layout, size_t i) {
  return i + 1 < layout->order_trained ? layout->parameters[layout->order[i + 1]].offset
                                       : layout->trained_count;
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

/* A parameter, as rules get it, and whether one takes it whole; and whether the rule did that the
 * buckets were cut for. */
ek_optimizer_parameter ek__rule_parameter(const ek_replica *replica, size_t parameter);
bool ek__rule_takes(const ek_optimizer *rule, const ek_replica *replica, size_t parameter);
static inline bool ek__buckets_whole(const struct ek__buckets *buckets, size_t parameter) {
  return buckets->whole != NULL && buckets->whole[parameter];
}

/* Elements first .. first + count - 1 of the flat buffers, of one rank; `place`: where they begin
 * if the rank's shares of all buckets are end to end. */
struct ek__span {
  int64_t first, count, place;
};

/* A rank's share of a bucket; and what of a span is among elements begin .. end - 1. */
static inline struct ek__span ek__bucket_span(const struct ek__bucket *bucket, size_t rank) {
  return (struct ek__span){bucket->first + bucket->offsets[rank], ek__bucket_share(bucket, rank),
                           bucket->places[rank]};
}
static inline struct ek__span ek__span_within(struct ek__span span, int64_t begin, int64_t end) {
  const int64_t last = span.first + span.count < end ? span.first + span.count : end;
  const int64_t first = span.first > begin ? span.first : begin;
  return (struct ek__span){first, last > first ? last - first : 0, span.place + first - span.first};
}

/* ---- sums: reduce.c ---- */

struct ek__rank;

/* The sums of one device: a reducer has one for each of its devices, a rank of a model one for each
 * backward that may run at the same time. */
struct ek__sums {
  ek_communicator *communicator; /* loans, as are the next three */
  const struct ek__buckets *cut;
  ek_device *device;
  ek_replica *replica;
  ek_reduce_kind kind;
  /* If a model's replicas do not hold whole gradients (keeper.h): sums a bucket that the rank was
   * lent, instead of a collective over the replica's buffer. NULL for a public reducer. */
  ek_status (*queue)(struct ek__rank *rank, size_t bucket);
  /* The round: */
  uint32_t *waiting; /* per bucket: parameters that are not complete */
  size_t queued;     /* buckets queued so far */
  size_t overlapped; /* of those, before the end of the round */
  bool more;         /* the rank's shares have sums of the step already: add to them */
  struct ek__lent {
    ek_tensor whole; /* exists while it is lent */
    uint64_t sum;    /* number of the collective that sums it; 0: none */
  } * lent;          /* per bucket; NULL without `queue` */
  size_t settled;    /* buckets whose sums are in the shares */
};

/* Host memory, for what `like` has above the round; after a failure the second function frees what
 * was made. */
ek_status ek__sums_open(struct ek__sums *sums, const struct ek__sums *like);
void ek__sums_close(struct ek__sums *sums);

/* On the worker: ek_reducer_begin(), _complete() and _finish() of one device. rank: whose current
 * sums these are; NULL for a reducer. */
void ek__sums_start(struct ek__sums *sums, bool more);
ek_status ek__sums_complete(struct ek__sums *sums, struct ek__rank *rank, size_t parameter);
ek_status ek__sums_finish(struct ek__sums *sums, struct ek__rank *rank);

/* What a rank of the world has of the sum of a bucket. */
struct ek__span ek__bucket_owned(const struct ek__bucket *bucket, ek_reduce_kind kind, size_t rank);

#endif /* EK_BUCKETS_H */
