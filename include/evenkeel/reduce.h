/*
 * reduce.h - sums the gradients of replicas, bucket by bucket, while backward still runs.
 *
 * The flat gradient buffer is cut into buckets of neighbouring parameters, from its end to its
 * beginning: the order in which backward completes them. When every parameter of the next bucket is
 * complete on a device, that device queues the bucket's collective; a bucket starts when all
 * devices have queued it. Nothing is copied into a bucket: it is a range of the flat buffer.
 */
#ifndef EVENKEEL_REDUCE_H
#define EVENKEEL_REDUCE_H

#include <evenkeel/communicator.h>
#include <evenkeel/replica.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_reducer ek_reducer;

typedef enum ek_reduce_kind {
  EK_REDUCE_TO_FIRST = 0, /* rank 0 has the sum */
  EK_REDUCE_TO_ALL = 1,   /* every device has it */
  EK_REDUCE_SCATTER = 2   /* rank r has its share of every bucket: ek_reducer_range() */
} ek_reduce_kind;

typedef struct ek_reducer_options {
  size_t size;
  ek_reduce_kind kind;
  /* At least this many per bucket, the last may be smaller; 0: 25 MiB on CUDA devices, on others
   * 4 MiB. Of more than 4 MiB, the first bucket is filled to 1 MiB, and one with 1 MiB ends before
   * a parameter that is a bucket by itself. Of less, the buckets with the last `bucket_bytes` of
   * other parameters are filled to 1 MiB: their sums have little of backward beside them. */
  size_t bucket_bytes;
  /* Of a bucket, dealt out to the ranks evenly; 0: one for each rank. If the number is fixed, the
   * ends of a rank's share are ends of pieces for any number of ranks. */
  size_t pieces;
} ek_reducer_options;
#define EK_REDUCER_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_reducer_options), .kind = EK_REDUCE_TO_ALL, .bucket_bytes = 0,               \
    .pieces = 0                                                                                    \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_reducer_options_init(ek_reducer_options *options, size_t size);

/* `replicas` has one for each device of the communicator's group, in the order of the devices; they
 * must outlive the reducer. */
EK_API EK_CHECKED ek_status ek_reducer_open(ek_reducer **reducer, ek_communicator *communicator,
                                            ek_replica *const *replicas,
                                            const ek_reducer_options *options);
EK_API void ek_reducer_free(ek_reducer *reducer);

/* How many buckets the gradients are cut into. */
EK_API size_t ek_reducer_bucket_count(const ek_reducer *reducer);
/* Elements first .. last - 1 of the flat buffer that a rank owns of a bucket. */
EK_API EK_CHECKED ek_status ek_reducer_range(int64_t *first, int64_t *last,
                                             const ek_reducer *reducer, size_t bucket, size_t rank);

/* On the device's worker: a new round begins. */
EK_API EK_CHECKED ek_status ek_reducer_begin(ek_reducer *reducer, ek_device *device);
/* On the device's worker: this parameter's gradient is complete. A frozen one has none, and is
 * passed over. */
EK_API EK_CHECKED ek_status ek_reducer_complete(ek_reducer *reducer, ek_device *device,
                                                size_t parameter);
/* On the device's worker: all are complete; queues what is left and waits (in stream order). */
EK_API EK_CHECKED ek_status ek_reducer_end(ek_reducer *reducer, ek_device *device);

/* How many buckets of the last round device number `device` had queued before finish was called. */
EK_API size_t ek_reducer_overlapped(const ek_reducer *reducer, size_t device);

EK_END_DECLARATIONS

#endif /* EVENKEEL_REDUCE_H */
