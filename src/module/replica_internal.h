/*
 * replica_internal.h - a replica from the inside, for the pass.
 */
#ifndef EK_REPLICA_INTERNAL_H
#define EK_REPLICA_INTERNAL_H

#include <evenkeel/pass.h>
#include <evenkeel/replica.h>

#include "module/layout.h"

/* What a user of the replica leaves with it, to be freed with it: first member of its struct. */
struct ek__spare {
  void (*free)(struct ek__spare *spare);
};

struct ek_replica {
  ek_device *device;
  ek_module *module;
  ek_type type;
  struct ek__layout layout;
  ek_tensor parameters, gradients, buffers; /* flat */
  struct ek__spare *spare; /* a pass that was freed: the next step allocates nothing on the host */
};

/* Views without references of their own. */
ek_tensor ek__replica_value(const ek_replica *replica, size_t parameter);
ek_tensor ek__replica_gradient(const ek_replica *replica, size_t parameter);

/* Fills a parameter of a replica, or a buffer: initial_values.c. */
ek_status ek__initial_values(ek_tensor *value, const struct ek__parameter *parameter,
                             uint64_t seed);

#endif /* EK_REPLICA_INTERNAL_H */
