/*
 * ck_optimizer.c - an optimizer with one range of parameters: see ck_optimizer.h.
 */
#include "ck_optimizer.h"

struct ck_range ck_range_open(struct ck_rig *rig, ek_optimizer *optimizer, const double *parameters,
                              int64_t count) {
  struct ck_range range = {.rig = rig, .optimizer = ck_keep(optimizer), .count = count};
  ck_assign(range, .parameters = ck_tensor(rig, parameters, CK_SHAPE(count)),
            .gradients = ck_poisoned(rig, CK_SHAPE(count)),
            .totals = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(2)),
            .square_norm = ck_tensor_of(rig, EK_F64, NULL, CK_SHAPE(1)));
  for (size_t i = 0; i < ek_optimizer_states(optimizer); i++) {
    range.states[i] = *ck_poisoned(rig, CK_SHAPE(count)); /* undefined memory at step 1 */
  }
  return range;
}

void ck_range_step(struct ck_range *range, const double *gradient, const ek_update_scale *scale) {
  const ek_optimizer *o = range->optimizer;
  ek_update update = {.parameters = range->parameters, .gradients = range->gradients,
                      .states = range->states, .step = ++range->step,
                      .learning_rate = ek_optimizer_learning_rate(o)};
  if (scale != NULL) update.scale = *scale;
  ck_set(range->gradients, gradient);
  ck_ok(ek_optimizer_table(o)->update(o, range->rig->stream, &update));
}

void ck_range_step_divided(struct ck_range *range, const double *gradient, double weight) {
  const double totals[] = {1.0, weight};
  double *larger = malloc((size_t)range->count * sizeof *larger);
  ck_assert_ptr_nonnull(larger);
  for (int64_t i = 0; i < range->count; i++) larger[i] = gradient[i] * weight;
  ck_set(range->totals, totals);
  ck_set(range->gradients, larger);
  ck_ok(ek_op_square_norm(range->rig->stream, range->square_norm, range->gradients, 0.0));
  const ek_update_scale scale = {.totals = range->totals, .square_norm = range->square_norm,
                                 .clip_norm = ek_optimizer_clip_norm(range->optimizer)};
  ck_range_step(range, larger, &scale);
  free(larger);
}

void ck_range_five_steps(struct ck_rig *rig, ek_optimizer *optimizer, double weight, double bound,
                         const double want[6]) {
  double p[6], g[6], bounds[6];
  for (int i = 0; i < 6; i++) {
    p[i] = (i - 2.5) / 2;
    bounds[i] = 5 * bound;
  }
  struct ck_range range = ck_range_open(rig, optimizer, p, 6);
  for (int t = 0; t < 5; t++) {
    for (int i = 0; i < 6; i++) g[i] = ((i * 3 + t * 5) % 7 - 3) / 8.0;
    ck_range_step_divided(&range, g, weight);
  }
  ck_within("parameters", ck_read(rig, range.parameters), want, bounds, 6);
}
