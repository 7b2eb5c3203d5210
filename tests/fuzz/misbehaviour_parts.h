/*
 * misbehaviour_parts.h - a module, a criterion and an update rule that do what their headers
 * forbid.
 *
 * They compute, on [rows, WIDTH] of the model's type:
 *     module      y = child(x) + p          parameter p, buffer b; the child is a linear
 *     criterion   (y - t)^2, as the stock one
 *     rule        p -= rate * g / D, with one state that counts along
 *
 * What they do wrong is set before a step and only read by the workers.
 */
#ifndef MISBEHAVIOUR_PARTS_H
#define MISBEHAVIOUR_PARTS_H

#include <stdatomic.h>

#include "fuzz_training.h"

enum { WIDTH = 4 };

enum place { PLACE_FORWARD, PLACE_BACKWARD, PLACE_LOSS, PLACE_LOSS_BACKWARD, PLACE_UPDATE, PLACES };

/* What is done. A status in [..] must come of it; what has none may be forgiven. */
enum misdeed {
  NO_MISDEED,
  MISSING,        /* [x] no result is given */
  OTHER_TYPE,     /* [x] i32 instead of floats */
  FEWER_ROWS,     /* [x] */
  ON_THE_HOST,    /* [x] */
  OTHER_SHAPE,    /* one column more */
  ELSEWHERE,      /* on another device of the group */
  NO_MEMORY,      /* a struct without data */
  ODD_STRUCT,     /* rank 9, sizes below 0 */
  LEAKS,          /* workspace is not freed */
  SAVES_MORE,     /* what is saved is not taken */
  TAKES_MORE,     /* [x] forwards the status of a take too many */
  TAKES_QUIETLY,  /* the same, and says EK_OK */
  FAILS,          /* [x] with a message */
  FAILS_SILENTLY, /* [x] without one */
  ODD_STATUS,     /* [x] a status there is not */
  INFINITIES,     /* in the result */
  ODD_CALLS,      /* functions of the pass that make no sense here, and EK_OK */
  SHARES,         /* gives what it got; legal */
  NO_CHILD,       /* does not run its child */
  CHILD_TWICE,    /* runs it twice */
  MISDEEDS
};

struct trouble {
  enum place place;
  enum misdeed misdeed;
  unsigned devices; /* bit k: on device k */
  atomic_bool done; /* a device did it */
};
extern struct trouble trouble;

ek_status misbehaving_module(ek_module **module, bool with_child);
ek_status misbehaving_criterion(ek_criterion **criterion);
ek_status misbehaving_rule(ek_optimizer **rule);

/* Frees what was leaked. */
void misbehaviour_clean(void);

/* Makes all three with numbers that may be wrong, and runs what was taken. */
void misbehaviour_construction(struct fuzz_input *input);

#endif /* MISBEHAVIOUR_PARTS_H */
