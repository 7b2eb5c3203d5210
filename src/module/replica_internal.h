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
  bool whole_gradients;                     /* that is what `gradients` has */
  struct ek__spare *spare; /* a pass that was freed: the next step allocates nothing on the host */
};

/* A view, without a reference, of a parameter in `flat`, which begins with element `first` of the
 * flat buffer. */
ek_tensor ek__replica_view(const ek_tensor *flat, const ek_replica *replica, size_t parameter,
                           int64_t first);

/* For a replica that was opened without gradients: `count` of them, zeros, of which it is not said
 * whose they are (parallel/keeper.h). */
ek_status ek__replica_hold_gradients(ek_replica *replica, int64_t count);

/* Views without references of their own. */
ek_tensor ek__replica_value(const ek_replica *replica, size_t parameter);
ek_tensor ek__replica_gradient(const ek_replica *replica, size_t parameter);

/* Whether it holds whole gradients: of all parameters, or there are none. */
static inline bool ek__replica_has_gradients(const ek_replica *replica) {
  return replica->whole_gradients || replica->layout.flat_count == 0;
}

/* Fills a parameter of a replica, or a buffer: initial_values.c. */
ek_status ek__initial_values(ek_tensor *value, const struct ek__parameter *parameter,
                             uint64_t seed);

#endif /* EK_REPLICA_INTERNAL_H */
