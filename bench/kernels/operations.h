/*
 * operations.h - the one list of public operations outside the library: how each is called, and
 * what its operands look like.
 *
 * From a row follow the calls with bad arguments (tests/op/check_op.c), the calls of the fuzzer
 * (tests/fuzz/fuzz_operations.c), the operands of check_op.c's other cases, and a measurement by
 * evenkeel-kernels.
 */
#ifndef BENCH_OPERATIONS_H
#define BENCH_OPERATIONS_H

#include <evenkeel/evenkeel.h>

enum { MOST_OPERANDS = 9, MOST_TERMS = 66 };

/* What a call gets besides its tensors. */
struct parameters {
  double real[6]; /* betas, scales, terms of an update */
  double chance;  /* of dropout; label smoothing */
  double epsilon;
  int64_t period, step, first_sample;
  int64_t classes; /* C, or 0 where rows are no wider than that */
  int heads;
  ek_activation activation; /* of a gate */
  int32_t ignore_index;
  bool flag[3];
  bool without_terms; /* terms is NULL */
  ek_random_key key;
  double coefficients[MOST_TERMS];
};

/*
 * A shape is a text of letters, one per dimension: R C K E P B T H J are sizes that the caller
 * chooses (P divides R), Q is 3C with C a multiple of H, W is C or more: what follows the first C
 * columns is padding. 1 and 2 are themselves.
 */
struct sizes {
  int64_t r, c, w, k, e, p, b, t, h, j;
};

struct operand {
  const char *name;
  const char *shape;
  ek_type type;   /* 0: a floating one, equal for all of them */
  ek_type fuzzed; /* a floating operand that the fuzzer gives this type, whatever the others have */
  bool sum;       /* the type of sums instead: f32 where values have 16 bits */
  bool either;    /* that of values or of sums */
  bool any_float; /* a floating type of its own */
  bool any_type;
  bool any_shape; /* no other operand fixes its last dimension */
  bool written;
  bool updated; /* written, and read by every call */
  bool optional;
  bool needed;       /* optional, but not with operation_parameters() */
  bool not_negative; /* the content that makes sense: second moments, weights */
  bool zero_padding; /* written: its padding becomes 0, otherwise it stays as it is */
  char index_below;  /* the letter of the size that the content is below */
  unsigned may_be;   /* bit j: a destination that may be operand j itself */
};

struct operation {
  const char *name;
  const char *message; /* what errors call it with operation_parameters() */
  ek_status (*call)(ek_stream *stream, ek_tensor *const *t, const struct parameters *p);
  int count;
  struct operand operand[MOST_OPERANDS];
};

enum { MOST_OPERATIONS = 128 };
extern const struct operation operations[];
extern const size_t operation_count;

/* The size of a letter, and the shape of an operand: returns its rank. */
int64_t operation_size(const struct sizes *sizes, char letter);
int operand_shape(int64_t *shape, const struct operand *operand, const struct sizes *sizes);

/* Parameters with which every operation succeeds. */
struct parameters operation_parameters(const struct sizes *sizes);

#endif /* BENCH_OPERATIONS_H */
