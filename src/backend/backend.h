/*
 * backend.h - the table that a backend is.
 *
 * A backend is one `static const struct ek__backend` with designated initialisers. Each slot says
 * whether it is required (EK__BACKEND_REQUIRED takes these) or what happens without it. Only the
 * wrappers in src/op and src/device call slots; they have checked every argument before, so a slot
 * checks nothing that they check.
 *
 * Kernels get a struct of plain pointers and sizes. They run on the stream of their device; the CPU
 * backend runs them at once on the calling thread and its team. A kernel allocates no tensor
 * memory. Kernel sizes may be zero; pointers may then be NULL.
 */
#ifndef EK_BACKEND_H
#define EK_BACKEND_H

#include <evenkeel/activation_list.h>
#include <evenkeel/device.h>
#include <evenkeel/memory.h>
#include <evenkeel/random.h>
#include <evenkeel/tensor.h>

/* What the numbers of a call are: the same for f32 and f64; for values of 16 bits `sum` is f32. */
struct ek__types {
  ek_type value; /* activations, their gradients, and parameters as a layer sees them */
  ek_type sum;   /* arithmetic, and what is added up: statistics, losses, gradients of parameters */
  bool tf32;     /* products of f32 may take their operands with 10 bits of mantissa */
};

/* Those of values of a type. */
static inline struct ek__types ek__types_in(ek_type value) {
  const struct ek__types types = {value, value == EK_F64 ? EK_F64 : EK_F32, false};
  return types;
}
/* Those of a precision that has values, and the precision that they are. */
static inline struct ek__types ek__types_for(ek_precision precision) {
  const bool tf32 = precision == EK_PRECISION_TF32;
  struct ek__types types = ek__types_in(tf32 ? EK_F32 : (ek_type)precision);
  types.tf32 = tf32;
  return types;
}
static inline ek_precision ek__types_precision(const struct ek__types *types) {
  return types->tf32 ? EK_PRECISION_TF32 : (ek_precision)types->value;
}

/* ---- arguments of kernels; rows, columns and counts are in elements ----
 *
 * A void pointer is to values, unless the comment says that it is to sums.
 */

struct ek__matmul_args { /* c[m][n] = a' b' + beta c; a' is m x k, b' is k x n; row-major; no 0 */
  void *c;
  const void *a, *b;
  int64_t m, n, k;
  int64_t lda, ldb, ldc;         /* elements from one stored row to the next */
  bool transpose_a, transpose_b; /* a is stored k x m; b is stored n x k */
  double beta;
  const void *bias; /* n elements to be added to each row of c, or NULL */
  struct ek__types types;
  bool gradient; /* c is that of a weight, a sum */
};

/* What a backend may do to a product before its result is in memory, or with an operand that it
 * reads anyway. The plain kernels in the same order give the same: products.c. */
enum ek__epilogue {
  EK__EPILOGUE_GELU,          /* c becomes pre (with the bias, if any), then c = gelu(pre) */
  EK__EPILOGUE_GELU_BACKWARD, /* c = c * gelu'(pre); sums (+)= the columns of c */
  EK__EPILOGUE_SUMS           /* sums (+)= the rows of a' */
};

struct ek__fused_args {
  struct ek__matmul_args product; /* beta is 0 but for SUMS, bias NULL but for GELU */
  enum ek__epilogue epilogue;
  void *pre;        /* m x n: written by GELU, or NULL; read by GELU_BACKWARD */
  void *sums;       /* sums: n elements, or m for SUMS; NULL: none wanted, not for SUMS */
  double sums_beta; /* sums = sums_beta sums + .. */
};

struct ek__elementwise_args { /* which of them are used depends on the kernel */
  void *y;
  const void *a, *b;
  int64_t count;
  double value; /* fill, scale, column_sum's beta */
  struct ek__types types;
};

struct
    ek__matrix_args { /* add_bias: y[r][c] += b[c]. column_sum: y[c] = value y[c] + sum a[r][c] */
  void *y;            /* column_sum: sums */
  const void *a, *b;
  int64_t rows, columns;
  int64_t pitch; /* elements from one row of the matrix to the next */
  double value;
  struct ek__types types;
};

struct ek__activation_args { /* forward: x += bias if any; y = f(x). backward: y = dy * f'(x) */
  ek_activation kind;        /* f */
  void *y, *x;               /* backward: x is what activation_list.h says is kept */
  const void *bias, *dy;
  const void *factor; /* gate: y = f(x) * factor; y = dy * factor * f'(x), dfactor = dy * f(x) */
  void *dfactor;
  int64_t rows, columns;
  struct ek__types types;
};

/* Public enumerations of src/op, by their numbers. */
enum ek__binary { EK__ADD, EK__SUBTRACT, EK__MULTIPLY, EK__DIVIDE };
enum ek__spread { EK__SPREAD_NONE, EK__SPREAD_ROWS, EK__SPREAD_COLUMNS };
enum ek__unary { EK__RSQRT, EK__EXP };

struct ek__binary_args { /* y = a OP b; y may be a, without spread b */
  enum ek__binary kind;
  enum ek__spread spread;
  void *y;
  const void *a, *b; /* b: with EK__SPREAD_ROWS sums */
  int64_t rows, columns;
  struct ek__types types;
};

struct ek__unary_args { /* y = f(x + offset); y may be x */
  enum ek__unary kind;
  void *y;
  const void *x;
  int64_t count;
  double offset;
  struct ek__types types;
};

struct ek__row_args {
  void *y; /* row_sum: sums. softmax: y, which may be a; backward: dx, which may be a or b */
  const void *a, *b; /* row_sum: b may be NULL. softmax_backward: dy and y */
  int64_t rows, columns;
  bool mean;
  struct ek__types types;
};

struct ek__dropout_args {
  void *y;
  const void *x;
  int64_t samples, per_sample, first_sample;
  double p;
  ek_random_key key;
  struct ek__types types;
};

struct ek__layer_norm_args {
  void *y;
  void *mean, *rstd;    /* sums: forward writes, backward reads */
  void *sum;            /* forward: written and normalised in place of x, if there is a residual */
  const void *residual; /* or NULL: added to x by forward, to dx by backward */
  const void *x, *gamma, *beta;
  void *dx;             /* backward writes; may be NULL */
  void *dgamma, *dbeta; /* sums: backward writes */
  const void *dy;
  double epsilon, gamma_scale, beta_scale;
  int64_t rows, width;
  struct ek__types types;
};

struct ek__lookup_args {
  void *y;           /* forward: y; backward: sums, dtable or dpositions */
  const void *table; /* forward: table; backward: dy */
  const int32_t *index;
  const void *positions; /* or NULL */
  int64_t rows, width, entries, period;
  int64_t first; /* in the batch, of the first index: for messages */
  double beta;   /* positions_backward */
  struct ek__types types;
};

struct ek__attention_args {
  void *out;  /* forward writes; backward reads */
  void *lse;  /* sums: the same */
  void *dqkv; /* backward writes */
  const void *qkv, *dout;
  int64_t batch, tokens, heads, head_width;
  struct ek__types types;
};

struct ek__loss_args {
  void *losses;     /* sums. cross-entropy: rows; squared error: count, or NULL */
  void *normalizer; /* sums. cross-entropy only: rows x {m, z} */
  double *totals;   /* {s, d}, overwritten */
  void *gradient;   /* backward; may alias outputs */
  const void *outputs;
  const void *targets;       /* cross-entropy: int32_t; squared error: the type of outputs */
  const void *class_weights; /* sums, or NULL */
  const double *scale;       /* on the device, or NULL */
  double host_scale;         /* cross_entropy_gradient only, in place of scale and row_scale */
  const void *row_scale;     /* sums, or NULL */
  int64_t rows, classes;     /* squared error: rows = count, and these are 1 */
  int64_t columns;   /* of outputs and gradient; behind `classes` of them nothing is looked at */
  int64_t first_row; /* in the batch, of the first target: for messages */
  int32_t ignore_index;
  double label_smoothing;
  struct ek__types types;
};

struct ek__convert_args { /* y = x: one of them f32, or both of 16 bits */
  void *y;
  const void *x;
  int64_t count;
  ek_type to, from;
};

struct ek__combine_args { /* losses.h, ek_op_combine_totals() */
  double *combined, *scales;
  const double *totals;
  double coefficients[64];
  size_t terms;
  bool divide;
};

struct ek__update_args {     /* all pointers are to sums, but for copy and perhaps g */
  void *p, *state0, *state1; /* SGD: momentum (or NULL); AdamW: m, v */
  const void *g;
  bool g_is_value;
  void *copy; /* of p, in values; or NULL */
  int64_t count;
  const double *totals;      /* {s, d} or NULL */
  const double *square_norm; /* or NULL */
  double clip_norm;
  double learning_rate, weight_decay;
  double momentum, dampening;      /* SGD */
  double beta1, beta2, epsilon;    /* AdamW */
  double correction1, correction2; /* AdamW: 1 - beta^step */
  bool nesterov, decoupled, first;
  struct ek__types types;
};

struct ek__reduce_args { /* every destination[j][i] = sum over s of sources[s][i], s in order */
  void *const *destinations;
  const void *const *sources; /* destinations may be among them, at the same position */
  size_t destination_count, source_count;
  int64_t count;
  ek_type type; /* of values: numbers of 16 bits are added up in f32 */
};

/* ---- kernels ----
 *
 * The one list of them. KERNEL(name, arguments) makes the slot `name` here and, in every backend
 * that computes, the prototype of its function for it and the entry of its table: a kernel that a
 * backend has not does not compile or link. OPTIONAL(name, arguments) makes the slot alone, which a
 * table may leave NULL:
 *   matmul_fused   Fallback: matmul, activations, column_sum; also where *done, false before,
 *                  stays false: the backend has nothing for these arguments and has queued
 *                  nothing.
 */

#define EK__ARGS(kind) (ek_stream * stream, const struct ek__##kind##_args *args)

#define EK__KERNEL_LIST(KERNEL, OPTIONAL)                                                          \
  KERNEL(zero, (ek_stream * stream, void *y, size_t bytes))                                        \
  KERNEL(copy, (ek_stream * stream, void *y, const void *x, size_t bytes))                         \
  KERNEL(convert, EK__ARGS(convert))                                                               \
  KERNEL(fill, EK__ARGS(elementwise))                                                              \
  KERNEL(add, EK__ARGS(elementwise))                                                               \
  KERNEL(scale, EK__ARGS(elementwise))                                                             \
  KERNEL(binary, EK__ARGS(binary))                                                                 \
  KERNEL(unary, EK__ARGS(unary))                                                                   \
  KERNEL(row_sum, EK__ARGS(row))                                                                   \
  KERNEL(softmax_forward, EK__ARGS(row))                                                           \
  KERNEL(softmax_backward, EK__ARGS(row))                                                          \
  KERNEL(add_bias, EK__ARGS(matrix))                                                               \
  KERNEL(column_sum, EK__ARGS(matrix))                                                             \
  KERNEL(activation_forward, EK__ARGS(activation))                                                 \
  KERNEL(activation_backward, EK__ARGS(activation))                                                \
  KERNEL(gate_forward, EK__ARGS(activation))                                                       \
  KERNEL(gate_backward, EK__ARGS(activation)) /* x = x, whatever is kept */                        \
  KERNEL(dropout, EK__ARGS(dropout))                                                               \
  KERNEL(matmul, EK__ARGS(matmul))                                                                 \
  OPTIONAL(matmul_fused, (bool *done, ek_stream *stream, const struct ek__fused_args *args))       \
  KERNEL(layer_norm_forward, EK__ARGS(layer_norm))                                                 \
  KERNEL(layer_norm_backward, EK__ARGS(layer_norm))                                                \
  KERNEL(lookup_forward, EK__ARGS(lookup))                                                         \
  KERNEL(lookup_backward, EK__ARGS(lookup))                                                        \
  KERNEL(positions_backward, EK__ARGS(lookup))                                                     \
  KERNEL(attention_forward, EK__ARGS(attention))                                                   \
  KERNEL(attention_backward, EK__ARGS(attention))                                                  \
  KERNEL(cross_entropy_forward, EK__ARGS(loss))                                                    \
  KERNEL(cross_entropy_backward, EK__ARGS(loss))                                                   \
  KERNEL(cross_entropy_gradient, EK__ARGS(loss)) /* forward, then backward */                      \
  KERNEL(squared_error_forward, EK__ARGS(loss))                                                    \
  KERNEL(squared_error_backward, EK__ARGS(loss))                                                   \
  KERNEL(combine_totals, EK__ARGS(combine))                                                        \
  KERNEL(sgd, EK__ARGS(update))                                                                    \
  KERNEL(adamw, EK__ARGS(update))                                                                  \
  KERNEL(square_norm, EK__ARGS(elementwise)) /* y is a double: value * y + the sum of a^2 */       \
  KERNEL(reduce, EK__ARGS(reduce))

struct ek__kernels {
#define EK__SLOT(name, arguments) ek_status(*name) arguments;
  EK__KERNEL_LIST(EK__SLOT, EK__SLOT)
#undef EK__SLOT
};

/* ---- the backend ---- */

/* One device of a string: logical device number `part` of `parts` on GPU number `physical`. */
struct ek__device_place {
  int physical, part, parts;
};

/* What the device string says: device_spec.c. */
struct ek__device_spec {
  const struct ek__backend_name *backend; /* src/device/backends.h */
  size_t count;                           /* of devices; 0: all there are, only before `resolve` */
  uint64_t capacity;                      /* of each device; 0: not given */
  struct ek__device_place *places; /* one per device where the string numbers them, or NULL */
  size_t room;                     /* how many `places` has room for */
};

/* ---- collectives: communicator.h says what they do ---- */

enum ek__collective_kind {
  EK__BROADCAST,
  EK__REDUCE,
  EK__ALL_REDUCE,
  EK__REDUCE_SCATTER,
  EK__ALL_GATHER
};

struct ek__collective {
  enum ek__collective_kind kind;
  void *data;
  int64_t count;
  ek_type type;
  size_t root;            /* broadcast, reduce */
  const int64_t *offsets; /* reduce_scatter, all_gather: one more than there are devices */
  uint64_t about;         /* what is gathered, if that is said; the same on all devices */
};

/* Where a group's devices are among the ranks of all processes, and how these agree on something
 * before they can reach each other. */
struct ek__members {
  size_t first_rank, world;
  /* NULL: there is one process. Every process gets the bytes of the one that has rank 0. Called in
   * the same order in all of them, on no worker. */
  ek_status (*share)(void *context, void *bytes, size_t count);
  void *context;
};

/*
 * Collectives of a backend's own, over all devices of one group. host_communicator.c sees to it
 * that every device means the same collective, in the same order, before the first of them runs it.
 */
struct ek__link {
  const char *name;
  /* Required: *self is what the others get; called on no worker. */
  ek_status (*open)(void **self, void *group);
  /* Required: queues the device's part on its communication stream; on the device's worker. */
  ek_status (*run)(void *self, ek_device *device, const struct ek__collective *collective);
  /* Required: from any thread, waits for nothing; calls of `run` that wait for others return
   * EK_ERR_ABORTED. */
  void (*abort)(void *self);
  /* Required: makes it as new after an abort; no worker runs. */
  void (*renew)(void *self);
  void (*close)(void *self);
};

/* ---- the table ---- */

/* What goes from host memory to a device: bytes as they are, or what is made of them piece by
 * piece. */
struct ek__host_bytes {
  const void *data;
  /* NULL, or puts bytes first .. first + count - 1 of what is sent to `to`; both are multiples of
   * 8, except at the end. From any thread. */
  ek_status (*make)(const void *context, void *to, size_t first, size_t count);
  const void *context;
};

struct ek__backend {
  const char *name;

  /* (optional) without kernels the backend only counts: operations succeed at once. */
  const struct ek__kernels *kernels;
  /* Required: the types of values that the kernels take, a set as in tensor.h; without kernels,
   * those of the backend that it counts for. */
  unsigned values;
  /* (optional: false) products of f32 round to TF32 where that is allowed. */
  bool tf32;

  /* (optional: false) all devices of the backend lie in one address space, so that any worker may
   * run a kernel over any device's memory. */
  bool shared_memory;

  /* Required: describes what there is; never fails for a missing device, says so in `text`. */
  ek_status (*describe)(ek_device_description *descriptions, size_t capacity, size_t *count);

  /* (optional: the string says it all) completes a parsed string: which devices `cuda` means. */
  ek_status (*resolve)(struct ek__device_spec *spec);
  /* (optional: nothing is shared) what the devices of one group share; `device_open` makes *native
   * of one device, which ek__device_native() then gives. Closed in the opposite order. */
  ek_status (*group_open)(void **native, const struct ek__device_spec *spec,
                          const ek_group_options *options, const struct ek__members *members);
  void (*group_close)(void *native);
  ek_status (*device_open)(void **native, void *group, size_t index);
  void (*device_close)(void *native);

  /* Required: the capacity of a device without a cap, in bytes, if its group has `devices`. */
  ek_status (*memory_size)(uint64_t *bytes, const ek_device *device, size_t devices);

  /* Required: *base becomes the address of `bytes` of address space for a device's arena. */
  ek_status (*memory_reserve)(void **base, uint64_t bytes, const ek_device *device);
  /* (optional: nothing to do) makes the first `bytes` of a reserved range usable. */
  ek_status (*memory_commit)(void *base, uint64_t bytes);
  /* Required. */
  void (*memory_release)(void *base, uint64_t bytes);

  /* (optional: 0) bytes of its arena that a device needs for itself as long as it is open, charged
   * as workspace before anything else; `workspace_give` gets them before the streams open. */
  uint64_t workspace_bytes;
  void (*workspace_give)(ek_device *device, void *address);
  /* (optional: zeros) what the device costs beside its arena, measured by this call. */
  ek_status (*memory_outside)(ek_memory_outside *outside, const ek_device *device);

  /* (optional: not supported, or nothing to do if there are no kernels) a program's loop, cut into
   * one range for each thread of the stream: device.h. */
  ek_status (*parallel_for)(ek_stream *stream, int64_t count, ek_range_function function,
                            void *context);

  /* Required: a stream's backend part; `threads` compute on the device. */
  ek_status (*stream_open)(void **native, ek_device *device, ek_stream_kind kind, int threads);
  void (*stream_close)(void *native);
  /* (optional: NULL) what programs of this backend call a stream. */
  void *(*stream_handle)(void *native);
  /* (optional: work is done when it was queued) */
  ek_status (*stream_synchronize)(ek_stream *stream);
  ek_status (*event_open)(void **native, ek_device *device);
  void (*event_close)(void *native);
  ek_status (*event_record)(void *event, ek_stream *stream);
  /* (optional: as stream_synchronize) lets the host wait for an event that was recorded. */
  ek_status (*event_synchronize)(void *event, ek_device *device);
  ek_status (*stream_wait)(ek_stream *stream, void *event);

  /* (optional: nothing is copied) host to device, device to host, device to device; complete for
   * the host when they return, but for `between`, which is queued on `stream`: the destination's
   * compute stream, or the caller's where memory is shared. `source` is where `from` lies. */
  ek_status (*upload)(ek_stream *stream, void *device, const struct ek__host_bytes *host,
                      size_t bytes);
  ek_status (*download)(ek_stream *stream, void *host, const void *device, size_t bytes);
  ek_status (*between)(ek_stream *stream, void *to, ek_device *source, const void *from,
                       size_t bytes);

  /*
   * (optional, all three: else `upload`) fills memory that was just taken, beside what the compute
   * stream holds. `ticket`, asked when memory is given back, is where its users end; `send` gets it
   * when the memory is filled again (0: it never had a user) and returns when `host` may be
   * written. *arrival, set also when it fails, is for `arrive`, which lets the compute stream wait
   * for the content; called as often as anybody likes. From any thread.
   */
  uint64_t (*ticket)(const ek_device *device);
  ek_status (*send)(uint64_t *arrival, ek_device *device, void *to,
                    const struct ek__host_bytes *host, size_t bytes, uint64_t ticket);
  ek_status (*arrive)(ek_device *device, uint64_t arrival);

  /* (optional: NULL) the group's own collectives; NULL is said to use those of
   * src/device/host_communicator.c, which queue `reduce` and `copy` on every device. */
  const struct ek__link *(*link_for)(void *group);

  /* (optional: workers come back by themselves) called again and again by who waits for the workers
   * of a group, on no worker: an error if one is stuck. What it was stuck in has been ended, so
   * that it comes back; the job has failed. */
  ek_status (*watch)(void *group);
  /*
   * (optional, all four: work is done when it was queued, so the host's clock will do) marks of
   * time in a device's streams, for a trace. `mark` queues mark number `index`, once; `mark_time`,
   * when the streams are done, says when it was reached, on CLOCK_MONOTONIC in nanoseconds; false
   * if it cannot. A mark that cannot be queued is one that cannot be read.
   */
  ek_status (*marks_open)(void **marks, ek_device *device, size_t count);
  void (*marks_close)(void *marks);
  void (*mark)(void *marks, size_t index, ek_stream *stream);
  bool (*mark_time)(uint64_t *nanoseconds, void *marks, size_t index);

  /* (optional: nothing to do) the first that a device's worker does. */
  void (*worker_begins)(ek_device *device);
};

/* The required slots of a table, none of which can be left out. */
#define EK__BACKEND_REQUIRED(NAME, DESCRIBE, MEMORY_SIZE, MEMORY_RESERVE, MEMORY_RELEASE,          \
                             STREAM_OPEN, STREAM_CLOSE)                                            \
  .name = (NAME), .describe = (DESCRIBE), .memory_size = (MEMORY_SIZE),                            \
  .memory_reserve = (MEMORY_RESERVE), .memory_release = (MEMORY_RELEASE),                          \
  .stream_open = (STREAM_OPEN), .stream_close = (STREAM_CLOSE)

extern const struct ek__backend ek__cpu_backend;
extern const struct ek__backend ek__plan_backend;
extern const struct ek__backend ek__plan_cuda_backend; /* counts what `cuda` would take */

/* Bytes of one element; 0 for a value outside the list. */
static inline size_t ek__type_size(ek_type type) {
  switch (type) {
  case EK_F32:
  case EK_U32:
  case EK_I32: return 4;
  case EK_F64:
  case EK_I64: return 8;
  case EK_U16:
  case EK_BF16:
  case EK_F16: return 2;
  case EK_U8: return 1;
  }
  return 0;
}

/*
 * What a stream and a device begin with: what the backend made of them. So a backend finds its own
 * part without a call to the layer above, which knows the backends.
 */
struct ek__stream_head {
  void *native;
};
struct ek__device_head {
  void *native;
  bool deterministic; /* ek_group_options */
};

static inline void *ek__stream_backend(const ek_stream *stream) {
  return ((const struct ek__stream_head *)(const void *)stream)->native;
}
static inline void *ek__device_native(const ek_device *device) {
  return ((const struct ek__device_head *)(const void *)device)->native;
}
static inline bool ek__device_is_deterministic(const ek_device *device) {
  return ((const struct ek__device_head *)(const void *)device)->deterministic;
}

#endif /* EK_BACKEND_H */
