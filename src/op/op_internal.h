/*
 * op_internal.h - the checks that all operations share.
 *
 * A public operation lists its tensors in a table, one row per operand, and passes it to
 * ek__op_begin(). This checks that the tensors exist, their device, their types, that no
 * destination overlaps another operand, and the sizes that a row requires; then it puts their
 * addresses into the kernel's arguments. The operation itself makes the checks that no row can
 * express, by the functions below, and calls the backend. Every message starts with the operation's
 * name.
 *
 * If op.kernels is NULL after that (backend `plan`, or no destination has elements) the operation
 * is done.
 */
#ifndef EK_OP_INTERNAL_H
#define EK_OP_INTERNAL_H

#include "core/error.h"
#include "device/device_internal.h"

#define EK__OP_MAX_OPERANDS 10

/* Fits "a x b x ..." of EK_MAX_RANK numbers of 19 digits. */
#define EK__OP_SHAPE_TEXT 192

/* The role of an operand, which gives its type: struct ek__types in backend/kernel_args.h. */
enum ek__operand_role {
  EK__VALUE = 0, /* activations, their gradients, parameters as layers see them: types.value */
  EK__SUM,       /* statistics, losses, gradients of parameters, optimizer's state: types.sum */
  EK__EITHER,    /* one or the other */
  EK__FLOAT,     /* f32, f64, bf16 or f16, whatever the others are */
  EK__F64,
  EK__I32,
  EK__ANY
};

/* How large an operand must be, if it is there. */
enum ek__operand_size {
  EK__SIZE_ANY = 0,
  EK__SIZE_SAME,   /* read as the same rows x columns as operand `of` */
  EK__SIZE_ALL,    /* as many elements as operand `of` */
  EK__SIZE_ROW,    /* one for each of its columns */
  EK__SIZE_COLUMN, /* one for each of its rows */
  EK__SIZE_EXACTLY /* `of` elements */
};

struct ek__operand {
  const char *name; /* as the header calls it */
  const ek_tensor *tensor;
  enum ek__operand_role role;
  enum ek__operand_size size;
  size_t of;
  void *to; /* the pointer among the kernel's arguments that becomes its address, or NULL */
  bool written;
  bool optional;   /* NULL is legal */
  bool picked;     /* of its rows only some are touched, by index */
  unsigned may_be; /* bit i: a destination that may be operand i itself */
};
#define EK__OPERAND(index) (1u << (index))

/* Rows of the table: `x` is the variable and the name; its role and other properties follow. */
#define EK__READ(x, ...)                                                                           \
  { .name = #x, .tensor = (x), .role = EK__##__VA_ARGS__ }
#define EK__MAY_READ(x, ...) EK__READ(x, __VA_ARGS__, .optional = true)
#define EK__WRITE(x, ...) EK__READ(x, __VA_ARGS__, .written = true)
#define EK__MAY_WRITE(x, ...) EK__WRITE(x, __VA_ARGS__, .optional = true)
/* The same of a member of a struct of arguments. */
#define EK__READ_OF(given, x, ...)                                                                 \
  { .name = #x, .tensor = (given)->x, .role = EK__##__VA_ARGS__ }
#define EK__MAY_READ_OF(given, x, ...) EK__READ_OF(given, x, __VA_ARGS__, .optional = true)
#define EK__WRITE_OF(given, x, ...) EK__READ_OF(given, x, __VA_ARGS__, .written = true)
#define EK__MAY_WRITE_OF(given, x, ...) EK__WRITE_OF(given, x, __VA_ARGS__, .optional = true)
/* The size of a row: EK__IS(SAME, X), EK__IS(EXACTLY, 2). */
#define EK__IS(size_, of_) .size = EK__SIZE_##size_, .of = (of_)

struct ek__op {
  const char *name;
  const struct ek__kernels *kernels; /* NULL: there is nothing to compute */
  struct ek__work *work;             /* of a device that only counts, else NULL; has the bytes */
  struct ek__types types;
  size_t count;
  const struct ek__operand *operand; /* the table */
  /* Each operand read as rows x columns: see op.h. */
  int64_t rows[EK__OP_MAX_OPERANDS], columns[EK__OP_MAX_OPERANDS];
};

/*
 * Fills *op, makes the checks named above, and fills *types and what rows point `to`; `types` may
 * be NULL. The table stays the caller's while *op is used. Fails with
 *   EK_ERR_INVALID_ARGUMENT  NULL, absent or damaged tensors, forbidden overlap
 *   EK_ERR_DEVICE            a tensor is in host memory or on a foreign device
 *   EK_ERR_TYPE              a type that is not that of the operand's role
 *   EK_ERR_UNSUPPORTED       a type of values in which the backend does not compute
 *   EK_ERR_SHAPE             another size than its row says
 *   EK_ERR_OVERFLOW          a count of elements that does not fit
 */
ek_status ek__op_begin(struct ek__op *op, const char *name, ek_stream *stream,
                       const struct ek__operand *operands, size_t count, struct ek__types *types);

/* Number of elements of operand i. */
int64_t ek__op_elements(const struct ek__op *op, size_t i);

/* EK_ERR_SHAPE unless operand i, if there is one, has `elements` elements, as operand j requires.
 */
ek_status ek__op_fits(const struct ek__op *op, size_t i, int64_t elements, size_t j);

/* EK_ERR_SHAPE unless operand i reads as rows x columns; `what` is the name of what it must be. */
ek_status ek__op_matrix(const struct ek__op *op, size_t i, int64_t rows, int64_t columns,
                        const char *what);

/* EK_ERR_INVALID_ARGUMENT unless low <= value <= high; NaN is outside. */
ek_status ek__op_between(const char *who, const char *name, double value, double low, double high);

/* Writes "a x b x c" ("one element" for rank 0) and returns text. */
const char *ek__op_shape_text(char text[EK__OP_SHAPE_TEXT], const ek_tensor *tensor);

#endif /* EK_OP_INTERNAL_H */
