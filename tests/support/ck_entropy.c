/*
 * ck_entropy.c - see ck_entropy.h.
 */
#include "ck_entropy.h"

#include "ck_op_loss.h"

struct ck_entropy ck_entropy(struct ck_rig *rig, const double *logits, const double *targets,
                             int64_t rows, int64_t classes, const ek_cross_entropy_options *o) {
  struct ck_loss f = ck_loss_make(rig, rows, classes);
  f.smoothing = o->label_smoothing;
  if (o->class_weights != NULL) f.weights = ck_zeros(rig, classes);
  for (int64_t c = 0; c < classes && f.weights != NULL; c++) {
    f.weights[c] = ck_round(rig, o->class_weights[c]);
  }
  memcpy(f.logits, logits, (size_t)(rows * classes) * sizeof *logits);
  for (int64_t r = 0; r < rows; r++) {
    f.targets[r] = (int32_t)targets[r] == o->ignore_index ? CK_IGNORED : targets[r];
  }
  ck_loss_reference(rig, &f);
  return (struct ck_entropy){f.l, f.gradient, f.s, f.d, f.l_bound, f.gradient_bound, f.s_bound};
}
