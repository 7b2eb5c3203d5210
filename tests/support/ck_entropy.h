/*
 * ck_entropy.h - the cross-entropy of ck_op_loss.h for the options of a criterion.
 */
#ifndef CK_ENTROPY_H
#define CK_ENTROPY_H

#include "ek_check.h"

struct ck_entropy {
  double *losses, *gradient; /* the gradient of s */
  double s, d;
  double *loss_bound, *gradient_bound;
  double s_bound;
};

/* Arrays of the rig, for rows x classes logits and one target per row. */
struct ck_entropy ck_entropy(struct ck_rig *rig, const double *logits, const double *targets,
                             int64_t rows, int64_t classes, const ek_cross_entropy_options *o);

#endif /* CK_ENTROPY_H */
