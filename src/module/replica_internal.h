/*
 * replica_internal.h - a replica from the inside, for the pass.
 */
#ifndef EK_REPLICA_INTERNAL_H
#define EK_REPLICA_INTERNAL_H

#include <evenkeel/pass.h>
#include <evenkeel/replica.h>

#include "device/types.h"
#include "module/layout.h"

/* An object that is freed with the replica: the first member of its user's struct. */
struct ek__spare {
  void (*free)(struct ek__spare *spare);
  struct ek__spare *next;
};

/* Which ranks have the parameters of a model where modules see copies of them. Without copies every
 * rank has them, or a share of them. */
enum ek__masters {
  EK__MASTERS_WHOLE, /* every replica has all */
  EK__MASTERS_FIRST, /* the first of all ranks has all, the others none */
  EK__MASTERS_SHARED /* each has a share */
};

struct ek_replica {
  ek_device *device;
  ek_module *module;
  ek_type type;           /* of parameters */
  ek_precision precision; /* that modules compute in */
  ek_type gradient_type;   /* of the flat gradients: type, or of 16 bits */
  struct ek__layout layout;
  ek_tensor parameters, gradients, buffers; /* flat */
  ek_tensor copies;                         /* flat; without elements if precision is type */
  enum ek__masters masters;
  bool whole_parameters, whole_gradients; /* they have all elements, and not a share of them */
  bool whole_values;                      /* what modules see has */
  struct ek__spare *spares; /* freed passes: the next step allocates nothing on the host */
};

/* A view, without a reference, of a parameter in `flat`, which begins with element `first` of the
 * flat buffer. */
ek_tensor ek__replica_view(const ek_tensor *flat, const ek_replica *replica, size_t parameter,
                           int64_t first);

/* The parts that a replica of a data-parallel model does not hold whole. */
struct ek__replica_parts {
  size_t unit_bytes;  /* not 0: the layout is in units of that many bytes */
  bool shared_values; /* what modules see is shared */
  enum ek__masters masters;
  bool none; /* it has no masters: not the first rank */
};
ek_status ek__replica_open_parts(ek_replica **replica, ek_device *device, ek_module *module,
                                 const ek_replica_options *options,
                                 const struct ek__replica_parts *parts);
/* For one whose masters are shared: `count` of its parameters, zeros; and as many copies, if the
 * values are shared, too. */
ek_status ek__replica_hold_parameters(ek_replica *replica, int64_t count);
/* For a replica that was opened without gradients: `count` of them, zeros; the caller decides which
 * parameters they belong to (parallel/keeper.h). */
ek_status ek__replica_hold_gradients(ek_replica *replica, int64_t count);

/* Views without references of their own: of the value that modules see, and of its gradient. */
ek_tensor ek__replica_value(const ek_replica *replica, size_t parameter);
ek_tensor ek__replica_gradient(const ek_replica *replica, size_t parameter);

/* Modules see copies. */
static inline bool ek__replica_is_mixed(const ek_replica *replica) {
  return ek__type_is_half(ek_precision_type(replica->precision));
}
/* The flat buffer of the values that modules see. */
static inline const ek_tensor *ek__replica_values(const ek_replica *replica) {
  return ek__replica_is_mixed(replica) ? &replica->copies : &replica->parameters;
}

/* EK_ERR_INVALID_ARGUMENT unless `type` is f32 or f64 and *precision, if not the default, fits it;
 * EK_ERR_UNSUPPORTED unless the device computes in it. `who` begins messages. */
ek_status ek__precision_read(ek_precision *precision, ek_type type, const ek_device *device,
                             const char *who);

/* The same for the type of gradients, 0 for `type`: of 16 bits beside f32, and that of the
 * precision if that is of 16 bits, too. */
ek_status ek__gradient_type_read(ek_type *gradient_type, ek_type type, ek_precision precision,
                                 const ek_device *device, const char *who);

/* Modules add to an f32 gradient that is rounded when it is complete. */
static inline bool ek__replica_rounds_gradients(const ek_replica *replica) {
  return replica->gradient_type != replica->type;
}

/* Modules add to an f32 gradient that the pass lends them; when it is complete it is freed, or
 * rounded to its place. */
static inline bool ek__replica_lends_gradient(const ek_replica *replica, size_t parameter) {
  return ek__replica_rounds_gradients(replica) || replica->layout.parameters[parameter].frozen;
}

/* Whether it holds whole gradients: of all trained parameters, or nothing is trained. */
static inline bool ek__replica_has_gradients(const ek_replica *replica) {
  return replica->whole_gradients || replica->layout.trained_count == 0;
}

/* Fills elements from number `first`, a multiple of 4, on of a parameter or a buffer, while
 * `sharers` devices do so: initial_values.c. */
ek_status ek__initial_values(ek_tensor *values, const struct ek__parameter *parameter,
                             int64_t first, uint64_t seed, size_t sharers);

#endif /* EK_REPLICA_INTERNAL_H */
