/*
 * kernels.h - the operations whose speed is measured, ready to be called again and again.
 *
 * One row of the tables in kernels.c (what memory bounds) and products.c (what arithmetic bounds)
 * is one operation. Those of kernels.c follow from operations.c: what they are called with, and the
 * bytes that a call must move at least. So does the measurement of an operation that is in no
 * table.
 */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include "operations.h"

/* What an operation is called with. */
struct bed {
  ek_device *device;
  ek_stream *stream;
  ek_type type;          /* of values: f32, bf16 or f16; sums are f32 */
  const float *random;   /* in host memory, enough for a large tensor; NULL: ones will do */
  int64_t tokens;        /* rows of what a product multiplies */
  int64_t rows, columns; /* of the large tensors */
  double bytes, flops;   /* of a call, at least; flops: 0 where memory is the bound */
  const struct operation *operation;
  struct parameters parameters;
  ek_tensor operands[MOST_OPERANDS];
  ek_tensor *given[MOST_OPERANDS]; /* of `operands`, or NULL; of products.c all are */
};

struct kernel {
  const char *name;
  const char *operation; /* of operations.c */
  int64_t columns;       /* of the large tensors, RC or RW; rows follow from the size */
  double real[5];        /* as in struct parameters */
  bool flag[2];
  int shared, with; /* operand `shared` is operand `with` itself; with = 0: none is */
  int values_more;  /* values per element that further passes read */
  bool copy;        /* an update, which with 16 bits writes a copy too */
  bool plain;       /* no row of a table: operation_parameters() and all that they need */
  ek_status (*call)(struct bed *bed);
  ek_status (*open)(struct bed *bed); /* of a product: makes everything, bytes and flops too */
};

/* What the others are held against. */
extern const struct kernel copy_kernel;
/* That an element of a large tensor must move at least. */
int kernel_bytes(const struct kernel *kernel, ek_type type);
/* NULL after the last one. */
const struct kernel *memory_kernel_at(size_t index);
const struct kernel *product_at(size_t index);
/* Row `index` of operations.c, measured by its row alone; NULL after the last one. */
const struct kernel *listed_kernel_at(size_t index);
/* Of a product's largest operand. */
int64_t product_elements(int64_t tokens);

/*
 * Makes what the kernel needs for large tensors of about `elements` elements (whole rows, at least
 * one). `bed` must be zero except device, stream, type, random and tokens; bed_close() frees what
 * was made, also after a failure.
 */
ek_status bed_open(struct bed *bed, const struct kernel *kernel, int64_t elements);
void bed_close(struct bed *bed);

/* A tensor of sums, or of values: of random numbers between 0 and 1. */
ek_status bed_sums(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape);
ek_status bed_values(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape);

#endif
