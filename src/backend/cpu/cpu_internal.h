/*
 * cpu_internal.h - shared by the parts of the CPU backend.
 *
 * A kernel of the table in kernels.h is split in two:
 *   - the kernel itself (cpu_*.c) makes the checks that depend on data, cuts the work into ranges
 *     for the device's team, and depends neither on the type nor on the instruction set;
 *   - a range function does begin .. end - 1 of that work on one thread. There is one set for f64
 *     (reference_*.c, plain C and libm), and one for each other type of values per instruction set
 *     (isa/, vectorised).
 *
 * A range function allocates nothing and may be called on any thread. `args` is the kernel's own
 * argument struct or, if that is not enough, one of the jobs below. Pointers need no alignment
 * beyond their element's.
 */
#ifndef EK_CPU_INTERNAL_H
#define EK_CPU_INTERNAL_H

#include <stdatomic.h>

#include "backend/cpu/team.h"
#include "backend/formulas.h"

typedef void ek__range_function(const void *args, int64_t begin, int64_t end);

/* X(name, kind, cut): every range function; those that are no kernel's own come last. Their args
 * are the kernel's, unless its row says that they are one of the jobs below. */
#define EK__CPU_FUNCTION_LIST(X)                                                                   \
  EK__RANGE_LIST(X)                                                                                \
  X(widen, elementwise, OWN)             /* elements: y = a, which are values; y is f32 */         \
  X(narrow, elementwise, OWN)            /* elements: the other way */                             \
  X(layer_norm_columns, layer_norm, OWN) /* columns: dgamma and dbeta over all rows */             \
  X(product, gemm, OWN)                  /* rows of c; args: gemm; needs scratch */

/* Those that f64 lacks: cpu_winograd.h has their args. */
#define EK__CPU_WINOGRAD_LIST(X)                                                                   \
  X(winograd_gather, winograd_gather, OWN)   /* tiles */                                           \
  X(winograd_scatter, winograd_scatter, OWN) /* tiles */                                           \
  X(winograd_weights, winograd_weights, OWN) /* rows of kernels */                                 \
  X(winograd_sums, winograd_weights, OWN)    /* the same */

struct ek__cpu_functions {
#define EK__CPU_MEMBER(name, kind, cut) ek__range_function *name;
  EK__CPU_FUNCTION_LIST(EK__CPU_MEMBER)
  EK__CPU_WINOGRAD_LIST(EK__CPU_MEMBER)
};
#undef EK__CPU_MEMBER

/* ---- jobs: arguments and what is computed once for all ranges ---- */

struct ek__layer_norm_job {
  const struct ek__layer_norm_args *args;
  bool add_columns; /* the rows' shares of dgamma and dbeta are added to what is there */
};

struct ek__gemm;

struct ek__attention_job {
  const struct ek__attention_args *args;
  ek_status (*multiply)(const struct ek__gemm *gemm); /* in f32, on the calling thread alone */
  atomic_int *status;                                 /* EK_OK, or what went wrong in any range */
};

/* Most chunks of sums whose order may not depend on the number of threads. */
#define EK__MAX_CHUNKS 256

struct ek__loss_job {
  const struct ek__loss_args *args;
  double factor;       /* the scale, or 1 */
  double class_weight; /* sum of all class weights */
  double *partials;    /* element by element: {s, sum of weights} of each `chunk` elements */
  int64_t chunk;
};

struct ek__update_job {
  const struct ek__update_args *args;
  double factor; /* what the gradient is multiplied with: updates.h */
};

struct ek__norm_job {
  const void *x;
  int64_t count, chunk;
  double *partials; /* one sum per chunk */
};

/* Elements per chunk so that `count` needs at most EK__MAX_CHUNKS; a function of count alone. */
static inline int64_t ek__cpu_chunk(int64_t count) {
  const int64_t least = 4096;
  const int64_t even = count / EK__MAX_CHUNKS + 1;
  return even <= least ? least : (even + least - 1) / least * least;
}

/* ---- shared services ---- */

/* Fewer elements than this per thread are not worth waking it: some 10 microseconds from memory. */
#define EK__CPU_LEAST 16384

/* As many rows of `width` elements. */
static inline int64_t ek__cpu_least_rows(int64_t width) {
  return width >= EK__CPU_LEAST ? 1 : EK__CPU_LEAST / (width + 1) + 1;
}

/* As many columns of `rows` elements; whole cache lines, so that threads do not share one. */
static inline int64_t ek__cpu_least_columns(int64_t rows) {
  const int64_t least = ek__cpu_least_rows(rows);
  return least < 64 ? 64 : least;
}

/* The range functions for these types, of the best instruction set there is. */
const struct ek__cpu_functions *ek__cpu_functions(struct ek__types types);
/* Processors that this process may use, at least 1. */
int ek__cpu_cores(void);
/* "AVX-512", "AVX2" or "baseline": what they run on, except for f64. */
const char *ek__cpu_isa_name(void);
/* EK_ERR_INVALID_ARGUMENT if EVENKEEL_ISA has a value that the library does not know. */
ek_status ek__cpu_isa_check_wish(void);
/* Whether EVENKEEL_ISA leaves an instruction set: "avx2", "avx512". */
bool ek__cpu_isa_is_allowed(const char *isa);

/* The first failure of the parts of a run, whose threads keep their messages to themselves. */
struct ek__cpu_failure {
  atomic_flag set;
  ek_status status;
  char message[256];
};
#define EK__CPU_NO_FAILURE                                                                         \
  { .set = ATOMIC_FLAG_INIT, .status = EK_OK }
/* Keeps the failure of a part, if `status` is one and none has come before it. */
void ek__cpu_note(struct ek__cpu_failure *failure, ek_status status);
/* After the run, on the calling thread: EK_OK, or the failure. */
ek_status ek__cpu_failed(const struct ek__cpu_failure *failure);

/*
 * Runs function over 0 .. count - 1 on the stream's team, with at least `least` per thread (> 0).
 * Nothing happens for count 0.
 */
void ek__cpu_range(ek_stream *stream, ek__range_function *function, const void *args, int64_t count,
                   int64_t least);

/* ek__cpu_<name>: after the check its range functions over `count`, at least `least` per thread. */
#define EK__CPU_RANGE(name, kind, check, count, least)                                             \
  ek_status ek__cpu_##name EK__ARGS(kind) {                                                        \
    EK_TRY(check);                                                                                 \
    ek__cpu_range(stream, ek__cpu_functions(args->types)->name, args, count, least);               \
    return EK_OK;                                                                                  \
  }

/* ek__cpu_<name>: run(stream, args, its range function, ..). */
#define EK__CPU_RUN(name, kind, run, ...)                                                          \
  ek_status ek__cpu_##name EK__ARGS(kind) {                                                        \
    return run(stream, args, ek__cpu_functions(args->types)->name, __VA_ARGS__);                   \
  }

/* The same for range functions that need scratch (team.h), with at least one item per thread. */
void ek__cpu_range_with_scratch(ek_stream *stream, ek__range_function *function, const void *args,
                                int64_t count);
ek_status ek__cpu_parallel_for(ek_stream *stream, int64_t count, ek_range_function function,
                               void *context);

/* c = alpha a' b' + beta c on the calling thread alone; row-major with leading dimensions. All of
 * m, n and k are at least 1. */
struct ek__gemm {
  bool c_is_sum;    /* where a and b are values of 16 bits: c is of floats */
  const void *bias; /* where c is: n values to be added to each row, or NULL */
  bool transpose_a, transpose_b;
  bool collides; /* an operand is read down its columns, whose rows are multiples of 2 KiB apart */
  int64_t m, n, k;
  double alpha;
  const void *a;
  int64_t lda;
  const void *b;
  int64_t ldb;
  double beta;
  void *c;
  int64_t ldc;
};
/* Elements of a head of values of 16 bits at most: its tiles are in scratch as floats. */
#define EK__CPU_WIDEST_HALF_HEAD 8192

/* Threads of a team that a product is cut for at most. */
#define EK__MAX_TEAM 256

/* In f32; by oneDNN or by the range function `product`, as the library was built. */
ek_status ek__cpu_sgemm(const struct ek__gemm *gemm);
/*
 * The product by oneDNN's matmul primitive, on a thread that has scratch (team.h); alpha is 1.
 * *done, false before, stays false where it is not the choice for the type (cpu_matmul_choice.c),
 * or has nothing for the shape.
 */
ek_status ek__cpu_matmul_primitive(bool *done, const struct ek__gemm *gemm, ek_type type);
/* What ek__cpu_sgemm() is, for people. */
const char *ek__cpu_products_name(void);

/* EK_ERR_INVALID_ARGUMENT if EVENKEEL_PRODUCTS has a value that the library does not know. */
ek_status ek__cpu_products_check_wish(void);

/* Called when a device is opened, before the first product: what fails only once fails here. */
ek_status ek__cpu_products_prepare(void);

/* oneDNN's code and tables take 6 MiB (2.6), partly maps of their own; where the system gives so
 * much, that is there too. */
#define EK__CPU_CUSHION ((uint64_t)24 << 20)

/* ---- memory: cpu_memory.c ---- */

/* Of a device of an open group; for NULL what the process may have in all. */
ek_status ek__cpu_memory_size(uint64_t *bytes, const ek_device *device, size_t devices);
ek_status ek__cpu_memory_reserve(void **base, uint64_t bytes, const ek_device *device);
ek_status ek__cpu_memory_commit(void *base, uint64_t bytes);
void ek__cpu_memory_release(void *base, uint64_t bytes);
/* Zeroed pages of the system for what is large and little used, such as scratch: no more than what
 * is touched costs anything. */
ek_status ek__cpu_memory_map(void **base, uint64_t bytes);
void ek__cpu_memory_unmap(void *base, uint64_t bytes);
/* EK_OK if the system gives that many bytes now; they are given back. */
ek_status ek__cpu_memory_probe(uint64_t bytes);

/* ---- the kernels of the table: ek__cpu_<name>, each in one of cpu_*.c ---- */

#define EK__CPU_PROTOTYPE(name, arguments) ek_status ek__cpu_##name arguments;
#define EK__CPU_KERNEL(name, kind, cut) EK__CPU_PROTOTYPE(name, EK__ARGS(kind))
#define EK__CPU_NOTHING(name, arguments)
EK__SLOT_LIST(EK__CPU_PROTOTYPE, EK__CPU_NOTHING, EK__CPU_PROTOTYPE, EK__CPU_KERNEL)

#endif /* EK_CPU_INTERNAL_H */
