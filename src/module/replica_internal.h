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
  struct ek__spare *next;
};

struct ek_replica {
  ek_device *device;
  ek_module *module;
  ek_type type;
  struct ek__layout layout;
  ek_tensor parameters, gradients, buffers; /* flat */
  bool whole_parameters, whole_gradients;   /* they have all elements, and not a share of them */
  struct ek__spare *spares; /* freed passes: the next step allocates nothing on the host */
};

/* A view, without a reference, of a parameter in `flat`, which begins with element `first` of the
 * flat buffer. */
ek_tensor ek__replica_view(const ek_tensor *flat, const ek_replica *replica, size_t parameter,
                           int64_t first);

/* ek_replica_open() with a layout in units of `unit_bytes` (0: not in units), with parameters or
 * without. */
ek_status ek__replica_open_units(ek_replica **replica, ek_device *device, ek_module *module,
                                 const ek_replica_options *options, size_t unit_bytes,
                                 bool parameters);
/* For a replica without: `count` of its parameters, zeros. */
ek_status ek__replica_hold_parameters(ek_replica *replica, int64_t count);
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

/* Fills elements from number `first`, a multiple of 4, on of a parameter or a buffer:
 * initial_values.c. */
ek_status ek__initial_values(ek_tensor *values, const struct ek__parameter *parameter,
                             int64_t first, uint64_t seed);

#endif /* EK_REPLICA_INTERNAL_H */
