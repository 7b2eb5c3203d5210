/*
 * ck_optimizer.h - an optimizer with one range of parameters on the device of a rig.
 */
#ifndef CK_OPTIMIZER_H
#define CK_OPTIMIZER_H

#include "ek_check.h"

struct ck_range {
  struct ck_rig *rig;
  ek_optimizer *optimizer;
  ek_tensor *parameters, *gradients;
  ek_tensor states[EK_MAX_OPTIMIZER_STATES]; /* tensors of the rig, NaN before the first step */
  ek_tensor *totals, *square_norm;           /* f64, for scales */
  int64_t count, step;
};

/* The range keeps `optimizer`: it is freed when the test ends. */
struct ck_range ck_range_open(struct ck_rig *rig, ek_optimizer *optimizer, const double *parameters,
                              int64_t count);

/* Checks the parameters after the five steps of a script that was run with PyTorch, on a rig of
 * f64:
 *   p = torch.nn.Parameter((torch.arange(6) - 2.5) / 2)
 *   for t in range(5): p.grad = ((torch.arange(6) * 3 + t * 5) % 7 - 3) / 8; o.step()
 * Gradients are given `weight` times too large (see below); `bound` is that of a step. */
void ck_range_five_steps(struct ck_rig *rig, ek_optimizer *optimizer, double weight, double bound,
                         const double want[6]);

/* The next step with this gradient at the optimizer's own rate; scale NULL: none. */
void ck_range_step(struct ck_range *range, const double *gradient, const ek_update_scale *scale);

/* The same with gradients that are `weight` times too large, which the totals {1, weight} say, and
 * with the optimizer's clip_norm. */
void ck_range_step_divided(struct ck_range *range, const double *gradient, double weight);

#endif /* CK_OPTIMIZER_H */
