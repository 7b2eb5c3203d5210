/*
 * reduce_internal.h - a reducer from the inside, for a model whose gradients are cut.
 */
#ifndef EK_REDUCE_INTERNAL_H
#define EK_REDUCE_INTERNAL_H

#include <evenkeel/reduce.h>

#include "buckets.h"

struct ek__keeper;

/* Of replicas without gradients: `keepers`, one per device, lend the buckets. They are used from
 * ek_reducer_start() on, and must outlive the reducer. */
ek_status ek__reducer_open(ek_reducer **reducer, ek_communicator *communicator, ek_group *group,
                           ek_replica *const *replicas, const ek_reducer_options *options,
                           struct ek__keeper *const *keepers);
/* A loan. */
const struct ek__buckets *ek__reducer_buckets(const ek_reducer *reducer);

#endif /* EK_REDUCE_INTERNAL_H */
