/*
 * stacks_modules.h - a random model of stock modules, with a loss, a rule and batches that fit it.
 */
#ifndef STACKS_MODULES_H
#define STACKS_MODULES_H

#include "fuzz_training.h"

/* What goes into a model and what comes out of it. */
struct stack_shape {
  bool tokens;         /* the input is i32 [rows, sequence] */
  int64_t sequence;    /* 0: the input has two dimensions */
  int64_t input_width; /* of a floating input */
  int64_t vocabulary;  /* of a token input */
  int64_t width;       /* of the output */
};

/* Decides and makes; the same input makes the same model. A failure leaves nothing. */
ek_status stack_module(ek_module **module, struct stack_shape *shape, struct fuzz_input *input);
ek_status stack_criterion(ek_criterion **criterion, bool *classes, const struct stack_shape *shape,
                          struct fuzz_input *input);
ek_status stack_rule(ek_optimizer **rule, struct fuzz_input *input);

enum { STACK_MOST_ROWS = 7, STACK_MOST_ELEMENTS = 4096 };

/* The memory of a batch's tensors. */
struct stack_memory {
  double input[STACK_MOST_ELEMENTS], target[STACK_MOST_ELEMENTS];
};

/* A batch for a model of that shape; `classes` says that targets are numbers of classes. */
void stack_batch(struct fuzz_batch *batch, struct stack_memory *memory,
                 const struct stack_shape *shape, bool classes, ek_type type,
                 struct fuzz_input *input);

#endif /* STACKS_MODULES_H */
