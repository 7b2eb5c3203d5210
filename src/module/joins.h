/*
 * joins.h - the steps of a chain (chain.h), some of them in one go: what chain.c runs whole, or
 * segment by segment. joins.c has the table of joins; chain_forward.c and chain_backward.c run the
 * steps.
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
  size_t shared;   /* inputs that children take besides the one that flows */
  const ek_tensor *shared_inputs; /* loans; NULL in backward where nothing runs again */
  bool leaves_sum; /* its caller computes an addition at its end */
  bool save;       /* false: what runs now runs again in backward */
  bool cheap;      /* cheap results are made again */
  bool remakes;    /* the policy is `cheap`: so they are, in this pass or in that of a backward */
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

/* Whether step i is a child that takes the shared inputs. */
bool ek__takes_shared(const struct ek__chain *chain, size_t i);

/* The numbers of tensors that flow into step i and out of it. */
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

/* A part of a join: what a step computes. GATE is an activation whose result is multiplied, RESULT
 * another one whose backward needs its result, such as ReLU. */
enum ek__part {
  EK__PART_OTHER,
  EK__PART_ADD,
  EK__PART_MULTIPLY,
  EK__PART_LINEAR,
  EK__PART_GELU,
  EK__PART_GATE,
  EK__PART_RESULT,
  EK__PART_NORM
};

/* The formula of a step that ends no branch, and which part it is; with EK__PART_ADD and
 * EK__PART_MULTIPLY there is no formula. */
void ek__step_formula(ek_formula *formula, const struct ek__chain *chain, size_t i);
enum ek__part ek__part_of(ek_formula *formula, const struct ek__chain *chain, size_t i);
bool ek__is_norm(const struct ek__chain *chain, size_t i);

/* The tensors that flow in and out of one step, or of several joined ones, forward. */
struct ek__forward {
  const struct ek__chain *chain;
  size_t i, last;                    /* the first step and the last */
  size_t end;                        /* the one of them that ends a branch; else last + 1 */
  const ek_tensor *given, *shortcut; /* loans */
  ek_tensor *own;                    /* given, where its references may be taken over; NULL */
  const struct ek__made *made;       /* what given[0] can be made from again; NULL: it is kept */
  ek_tensor *results;
  ek_tensor *inner; /* what went into the last of several, if anything may need it */
  ek_tensor *sum;   /* the input of the next branch */
  size_t *recipe;   /* of the result, open until the next step has run; EK__NO_RECIPE */
};

/* The same, backward. */
struct ek__backward {
  const struct ek__chain *chain;
  size_t i;                  /* the last step of them */
  const ek_tensor *given;    /* the gradient of its results */
  ek_tensor *own;            /* given, where its references may be taken over; NULL */
  const ek_tensor *residual; /* the gradient that reaches the input of a norm past it; NULL */
  bool bias_done;            /* the gradient of the linear's bias has been computed */
  ek_tensor *results;        /* NULL: not wanted */
  ek_tensor *past;           /* the gradient on a shortcut with a child; NULL: not wanted */
};

/* A row of the table: neighbours that run in one go. */
enum ek__joined {
  EK__JOINED_LINEAR_GELU,
  EK__JOINED_GATE,
  EK__JOINED_ADD_NORM,
  EK__JOINED_GELU_LINEAR,
  EK__JOINED_RESULT,
  EK__JOINED_NORM_ADD
};
enum { EK__JOIN_PARTS = 3 };
struct ek__join {
  enum ek__joined operation;
  size_t count, before; /* parts, and how many of the first are only looked at */
  enum ek__part parts[EK__JOIN_PARTS];
  bool forward, backward; /* in this direction; in the other they run one by one */
  bool branches;          /* only where a branch begins */
  bool cut;               /* a segment may begin within: alone the parts have the same bits */
};

/* The join forward that begins at step i and is over at `end`; NULL: none does. */
const struct ek__join *ek__join_forward(const struct ek__chain *chain, size_t i, size_t end);
/* The join back that begins with step i. */
const struct ek__join *ek__join_backward(const struct ek__chain *chain, size_t i);
/* Whether step i is part of a join in any direction. */
bool ek__is_joined(const struct ek__chain *chain, size_t i);

/* sum += x, in place if the chain alone holds `sum`, else into a new tensor that replaces it: it
 * may have been saved, or it may be x itself. In chain_forward.c. */
ek_status ek__residual_add(ek_pass *pass, ek_tensor *sum, const ek_tensor *x);

#endif /* EK_JOINS_H */
