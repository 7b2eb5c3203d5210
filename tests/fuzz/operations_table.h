/*
 * operations_table.h - every public operation: how it is called, and what its operands look like.
 */
#ifndef OPERATIONS_TABLE_H
#define OPERATIONS_TABLE_H

#include "fuzz_devices.h"

enum { MOST_OPERANDS = 9, MOST_TERMS = 66 };

/* What a call gets beside its tensors. */
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
 * A shape is a text of letters, one per dimension: R C K E P B T H J are sizes that the input
 * chooses (P divides R), Q is 3C with C a multiple of H, W is C or more: what is behind the first C
 * columns is padding. 1 and 2 are themselves.
 */
struct operand {
  const char *name;
  const char *shape;
  ek_type type; /* 0: a floating type, the same for the whole call */
  bool sum;     /* f32 where that has 16 bits */
  bool written;
  bool optional;
  bool not_negative; /* the content that makes sense: second moments, weights */
  bool zero_padding; /* written: its padding becomes 0, else it stays as it is */
  char index_below;  /* the letter of the size that the content is below */
};

struct operation {
  const char *name;
  ek_status (*call)(ek_stream *stream, ek_tensor *const *t, const struct parameters *p);
  int count;
  struct operand operand[MOST_OPERANDS];
};

extern const struct operation operations[];
extern const size_t operation_count;

#endif /* OPERATIONS_TABLE_H */
