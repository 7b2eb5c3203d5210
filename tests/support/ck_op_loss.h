/*
 * ck_op_loss.h - cross-entropy by its formula, in long double, with the bounds that a result must
 * keep: the derivation is in tests/op/check_losses.c.
 */
#ifndef CK_OP_LOSS_H
#define CK_OP_LOSS_H

#include "ek_check.h"

enum { CK_IGNORED = -100 };

struct ck_formula {
  int64_t rows, classes;
  double smoothing, scale;
  double *logits, *targets, *weights, *row_scale; /* weights, row_scale may be NULL */
  double *l, *l_bound, *gradient, *gradient_bound;
  double *normalizer, *normalizer_bound; /* rows x {m, z} */
  double s, s_bound, d, d_bound;
};

/* Random logits and targets; all else is zero, NULL or, for the scale, 1. */
struct ck_formula ck_loss_make(struct ck_rig *rig, int64_t rows, int64_t classes);

/* Fills the results and their bounds from the logits, targets and terms. */
void ck_loss_reference(const struct ck_rig *rig, struct ck_formula *f);

/* The tensors of a call. */
struct ck_loss_tensors {
  ek_tensor *losses, *normalizer, *totals, *logits, *targets, *gradient;
  ek_tensor *scale, *row_scale;
  ek_cross_entropy_terms terms;
};

/* What the call writes holds NaN. */
struct ck_loss_tensors ck_loss_upload(struct ck_rig *rig, const struct ck_formula *f);

#endif /* CK_OP_LOSS_H */
