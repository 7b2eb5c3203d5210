/*
 * replica.h - one device's parameters and gradients for a module.
 *
 * All parameters are in one flat buffer: those without decay, then the others, then those with a
 * rate or a decay of their own (ek_parameter_pattern), then frozen ones, each group in declaration
 * order. All gradients are in another buffer of the same layout, which ends where the frozen ones
 * begin; each parameter starts at a multiple of 16 elements, and the elements between are zeros.
 * They must stay so: on CUDA devices rows of zeros that follow a table of tokens take part in
 * products (ek_pass_padded_rows()). Broadcast, buckets, shards, clipping and the optimizer work on
 * ranges of the flat buffers; a module sees tensors into them.
 *
 * If modules compute in 16 bits (`precision`), the parameters are f32 *masters*, which an optimizer
 * updates, and modules see *copies* of them, a third flat buffer of the same layout. Code that
 * writes masters also writes the copies (ek_update_scale.copy), or calls ek_replica_refresh().
 *
 * With EK_PRECISION_TF32 tensors are f32, and products of modules may round their factors to 10
 * bits of mantissa (ek_stream_allow_tf32()). Devices that do not round so (ek_device_precisions())
 * give the same bits as with f32.
 *
 * Gradients may be kept in 16 bits (`gradient_type`): in the type of the precision or, if modules
 * compute in f32, in either. A module still adds to an f32 gradient, which the pass lends it and
 * rounds when the gradient is complete (pass.h).
 *
 * A replica and its functions belong to one thread at a time.
 */
#ifndef EVENKEEL_REPLICA_H
#define EVENKEEL_REPLICA_H

#include <evenkeel/module.h>

EK_BEGIN_DECLARATIONS

typedef struct ek_replica ek_replica;

typedef struct ek_replica_options {
  size_t size;
  ek_type type;          /* EK_F32 or EK_F64: parameters and gradients */
  uint64_t seed;         /* for the initial values */
  bool gradients;        /* hold a gradient buffer */
  bool initialize;       /* false: values are undefined until they are set or replicated */
  ek_precision precision; /* that modules compute in: the default for that of `type`, or, with f32,
                           * TF32, BF16 or F16 */
  ek_type gradient_type; /* of the gradient buffer: 0 for `type`, or, with f32, EK_BF16 or EK_F16 */
  const ek_parameter_pattern *patterns; /* what is asked for parameters, by name (module.h) */
  size_t pattern_count;
} ek_replica_options;
#define EK_REPLICA_OPTIONS_INIT                                                                    \
  {                                                                                                \
    .size = sizeof(ek_replica_options), .type = EK_F32, .seed = 0, .gradients = true,              \
    .initialize = true, .precision = EK_PRECISION_DEFAULT, .gradient_type = (ek_type)0,            \
    .patterns = NULL, .pattern_count = 0                                                           \
  }
/* The same values, by a function: status.h. */
EK_API EK_CHECKED ek_status ek_replica_options_init(ek_replica_options *options, size_t size);

/* Walks the module's declarations and makes the flat buffers on `device`. Keeps a reference.
 * EK_ERR_UNSUPPORTED if the device (ek_device_types()) or a module does not compute in the
 * precision, or the device not in the gradients' type; EK_ERR_INVALID_ARGUMENT for types that do
 * not go together; a module that declares f32, but no type of 16 bits, runs between casts
 * (module.h). EK_ERR_NOT_FOUND for a pattern that matches no parameter, except "*": the message has
 * the nearest name. EK_ERR_INVALID_ARGUMENT for a pattern whose numbers are negative or not finite,
 * or that has both no_decay and a weight_decay. */
EK_API EK_CHECKED ek_status ek_replica_open(ek_replica **replica, ek_device *device,
                                            ek_module *module, const ek_replica_options *options);
EK_API void ek_replica_free(ek_replica *replica);

EK_API ek_device *ek_replica_device(const ek_replica *replica); /* a loan */
EK_API ek_module *ek_replica_module(const ek_replica *replica); /* a loan */
EK_API ek_type ek_replica_type(const ek_replica *replica);      /* of the master parameters */
/* What modules compute in; ek_precision_type() of it is the type of their tensors. */
EK_API ek_precision ek_replica_precision(const ek_replica *replica);

/* Loans of the flat buffers, of rank 1; of a module without such numbers a tensor without elements.
 * If devices hold shares of a model (data_parallel_model.h), these are the device's own shares, end
 * to end. */
EK_API const ek_tensor *ek_replica_parameters(const ek_replica *replica);
EK_API const ek_tensor *ek_replica_gradients(const ek_replica *replica);
EK_API const ek_tensor *ek_replica_buffers(const ek_replica *replica);
/* The copies that modules see; without elements if modules see the parameters themselves. */
EK_API const ek_tensor *ek_replica_copies(const ek_replica *replica);

/* Queues the rounding of all parameters into the copies; does nothing without copies. EK_ERR_STATE
 * for a replica that holds different shares of the two. */
EK_API EK_CHECKED ek_status ek_replica_refresh(ek_replica *replica);

typedef struct ek_parameter_info {
  const char *name; /* full name, "blocks.0.attention.weight"; lives as long as the replica */
  ek_tensor value;  /* a loan: a view into the flat parameters (or buffers); if the device holds a
                         share, type and shape alone, data NULL */
  /* A loan, of the type that gradients are kept in; a struct of zeros for a buffer or a frozen
   * parameter, and if the device holds a share. */
  ek_tensor gradient;
  int64_t offset; /* of its first element in the flat buffer */
  bool buffer;
  bool no_decay, frozen; /* declared (ek_parameter_options), or by a pattern */
  double rate_scale;     /* by a pattern; else 1 */
  double weight_decay;   /* by a pattern; else 0 */
  bool elementwise;      /* declared (ek_parameter_options), or by a pattern */
} ek_parameter_info;

/* Numbers of elements in the declarations of a module. A tied parameter counts once. */
typedef struct ek_parameter_totals {
  int64_t parameters; /* elements of all parameters, the frozen ones included */
  int64_t trained;    /* elements of those that are not frozen */
  int64_t buffers;    /* elements of all buffers */
} ek_parameter_totals;

/* Counts without a device and without memory for the parameters. `patterns` may be NULL; what they
 * freeze is not trained. Errors as for ek_replica_open(). */
EK_API EK_CHECKED ek_status ek_parameter_count(ek_parameter_totals *totals, ek_module *module,
                                               const ek_parameter_pattern *patterns,
                                               size_t pattern_count);

/* Number of parameters and buffers; a tied parameter counts once, under its source's name. */
EK_API size_t ek_replica_parameter_count(const ek_replica *replica);
/* EK_ERR_INVALID_ARGUMENT outside. */
EK_API EK_CHECKED ek_status ek_replica_parameter(ek_parameter_info *info, const ek_replica *replica,
                                                 size_t index);
/* By full name, tied names included. EK_ERR_NOT_FOUND. */
EK_API EK_CHECKED ek_status ek_replica_find(ek_parameter_info *info, const ek_replica *replica,
                                            const char *name);

EK_END_DECLARATIONS

#endif /* EVENKEEL_REPLICA_H */
