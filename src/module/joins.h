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
  size_t branched; /* steps up to the last that ends a branch, that one included */
  size_t unread;   /* the results of this step, and of the additions after it, are not read */
  bool save;       /* false: what runs now runs again in backward */
  bool cheap;      /* cheap results are made again */
};

/* What a step does. The last two end a branch (chain.h). */
enum ek__step { EK__STEP_CHILD, EK__STEP_ACTIVATION, EK__STEP_ADD, EK__STEP_MULTIPLY };

static inline size_t ek__step_code(const struct ek__chain *chain, size_t i) {
  return chain->steps == NULL ? i : chain->steps[i];
}

/* By the two highest bits of the code. */
static inline enum ek__step ek__step_kind(const struct ek__chain *chain, size_t i) {
  static const enum ek__step kinds[] = {EK__STEP_CHILD, EK__STEP_MULTIPLY, EK__STEP_ADD,
                                        EK__STEP_ACTIVATION};
  const size_t code = ek__step_code(chain, i);
  return code == EK_CHAIN_ADD ? EK__STEP_ADD : kinds[code / EK_CHAIN_MULTIPLY_CHILD(0)];
}

/* The child of step i, on the shortcut if the step ends a branch; SIZE_MAX: none. */
static inline size_t ek__step_child(const struct ek__chain *chain, size_t i) {
  const size_t code = ek__step_code(chain, i);
  const bool none = code == EK_CHAIN_ADD || ek__step_kind(chain, i) == EK__STEP_ACTIVATION;
  return none ? SIZE_MAX : code % EK_CHAIN_MULTIPLY_CHILD(0);
}

static inline bool ek__ends_branch(const struct ek__chain *chain, size_t i) {
  return ek__step_kind(chain, i) >= EK__STEP_ADD;
}

/* The numbers of inputs and outputs of step i. */
size_t ek__step_inputs(const struct ek__chain *chain, size_t i);
size_t ek__step_outputs(const struct ek__chain *chain, size_t i);

/* If the results of step end - 1 are not read: the last of steps begin .. end - 1 that is no
 * addition, whose results are not read either. SIZE_MAX: there is none. */
size_t ek__last_result(const struct ek__chain *chain, size_t begin, size_t end);

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
