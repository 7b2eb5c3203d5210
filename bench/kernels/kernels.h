/*
 * kernels.h - the operations whose speed is measured, ready to be called again and again.
 *
 * One row of the tables in kernels.c (what memory bounds) and products.c (what arithmetic bounds)
 * is one operation: its shape for a given size, what it needs, a call, and what a call must move
 * and compute at least.
 */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <evenkeel/evenkeel.h>

enum { BED_OPERANDS = 7 };

/* What the operations are called with; a kernel uses the members that its setup makes. */
struct bed {
  ek_device *device;
  ek_stream *stream;
  ek_type type;          /* of values: f32, bf16 or f16; sums are f32 */
  const float *random;   /* in host memory, enough for a large tensor; NULL: ones will do */
  int64_t tokens;        /* rows of what a product multiplies */
  int64_t rows, columns; /* of the large tensors */
  double bytes, flops;   /* of a call, at least; flops: 0 where memory is the bound */
  ek_tensor large[4];    /* rows x columns each */
  ek_tensor per_row[2], per_column[4];
  ek_tensor targets, totals, normalizer;
  ek_tensor copy;                   /* of the parameters, in values: of an update in 16 bits */
  ek_tensor operands[BED_OPERANDS]; /* of products.c */
};

struct kernel {
  const char *name;
  int64_t columns;  /* of the large tensors; rows follow from the size */
  int values, sums; /* that an element of a large tensor must move at least, read or written */
  int large;        /* how many large tensors there are */
  int per_row, per_column;
  bool losses; /* targets, totals and normalizer are needed */
  bool state;  /* an update: the large tensors are sums, and with 16 bits there is a copy */
  ek_status (*call)(struct bed *bed);
  ek_status (*open)(
      struct bed *bed); /* makes everything, bytes and flops too; NULL: by the above */
};

/* What the others are held against. */
extern const struct kernel copy_kernel;
/* That an element of a large tensor must move at least. */
int kernel_bytes(const struct kernel *kernel, ek_type type);
/* NULL after the last one. */
const struct kernel *memory_kernel_at(size_t index);
const struct kernel *product_at(size_t index);
/* Of a product's largest operand. */
int64_t product_elements(int64_t tokens);

/*
 * Makes what the kernel needs for large tensors of about `elements` elements (whole rows, at least
 * one). `bed` must be zero but for device, stream, type, random and tokens; bed_close() frees what
 * was made, also after a failure.
 */
ek_status bed_open(struct bed *bed, const struct kernel *kernel, int64_t elements);
void bed_close(struct bed *bed);

/* A tensor of sums, or of values: of random numbers between 0 and 1. */
ek_status bed_sums(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape);
ek_status bed_values(ek_tensor *tensor, const struct bed *bed, int rank, const int64_t *shape);

#endif
