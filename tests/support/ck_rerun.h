/*
 * ck_rerun.h - modules of a program's own that run their child otherwise than they run themselves.
 */
#ifndef CK_RERUN_H
#define CK_RERUN_H

#include "ek_check.h"

/*
 * Runs its child without saving, saves its inputs, and in backward runs it again: recomputation. It
 * wraps the child, so all names and random numbers are the child's. Keeps a reference.
 */
ek_status ck_rerun_create(ek_module **module, ek_module *child);

/* What a rerun does wrong. */
enum ck_rerun_flaw {
  CK_RERUN_RIGHT,
  CK_RERUN_NOT,         /* does not run the child again before its backward */
  CK_RERUN_NO_BACKWARD, /* runs it again, and not its backward */
  CK_RERUN_TWICE,       /* runs it again twice, and its backward once */
  CK_RERUN_SHORTER,     /* runs it again with fewer rows */
  CK_RERUN_IN_BF16,
  CK_RERUN_IN_F64 /* without converting the input */
};
ek_status ck_rerun_create_wrong(ek_module **module, ek_module *child, enum ck_rerun_flaw flaw);

/* y = child(x), computed in f64 whatever the pass computes in. One input, one output. */
ek_status ck_widen_create(ek_module **module, ek_module *child);

/*
 * y = x. A buffer "count" [3] has how often its forward has run: in training for the first time,
 * without a backward to come, and again in a backward.
 */
ek_status ck_counter_create(ek_module **module);

#endif /* CK_RERUN_H */
