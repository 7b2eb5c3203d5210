/*
 * joins.h - the steps of a chain (chain.h), some of them in one go: what chain.c runs whole, or
 * segment by segment.
 */
#ifndef EK_JOINS_H
#define EK_JOINS_H

#include <evenkeel/chain.h>

#include "module/pass_internal.h"

struct ek__chain {
  ek_pass *pass;
  const struct ek__node *node; /* of the running module */
  const size_t *steps;
  size_t count;
  size_t adds;   /* steps up to the last EK_CHAIN_ADD, that one included */
  size_t unread; /* the last child, if its outputs are not read; SIZE_MAX: they are */
  bool save;     /* false: what runs now runs again in backward */
  bool cheap;    /* cheap results are made again */
};

/* The child of step i, or EK_CHAIN_ADD. */
static inline size_t ek__step_child(const struct ek__chain *chain, size_t i) {
  return chain->steps == NULL ? i : chain->steps[i];
}

static inline bool ek__is_add(const struct ek__chain *chain, size_t i) {
  return ek__step_child(chain, i) == EK_CHAIN_ADD;
}

/* The numbers of inputs and outputs of step i. */
size_t ek__step_inputs(const struct ek__chain *chain, size_t i);
size_t ek__step_outputs(const struct ek__chain *chain, size_t i);

/* The last child of steps begin .. end - 1; SIZE_MAX: no child is among them. */
size_t ek__last_child(const struct ek__chain *chain, size_t begin, size_t end);

/* Whether a segment may begin with step i > 0: one tensor flows there, and a join across it has the
 * bits of its parts. */
bool ek__may_begin(const struct ek__chain *chain, size_t i);

/* Runs steps begin .. end - 1. */
ek_status ek__steps_forward(const struct ek__chain *chain, size_t begin, size_t end,
                            const ek_tensor *inputs, ek_tensor *outputs);

/* Runs back through steps end - 1 .. begin. */
ek_status ek__steps_backward(const struct ek__chain *chain, size_t begin, size_t end,
                             const ek_tensor *grad_outputs, ek_tensor *grad_inputs);

#endif /* EK_JOINS_H */
