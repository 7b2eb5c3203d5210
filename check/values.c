/*
 * values.c - the checks of a module's values: initial values, equal bits of two runs, and equal
 * outputs in a pass that trains nothing.
 */
#include <stdlib.h>

#include "checks.h"

ek_status ek__check_start(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  (void)once;
  struct ek__values first = {0}, other = {0};
  ek_status status = EK_OK;
  const int64_t count = ek_tensor_count(ek_replica_parameters(bed->parts[0].replica));
  EK_TRY_GOTO(status, ek__bed_values(&first, count), cleanup);
  EK_TRY_GOTO(status, ek__bed_values(&other, count), cleanup);
  EK_TRY_GOTO(status, ek__bed_read(first.data, ek_replica_parameters(bed->parts[0].replica)),
              cleanup);
  EK_TRY_GOTO(status, ek__check_finite("initial values", first.data, count), cleanup);
  for (size_t k = 1; k < bed->devices; k++) {
    EK_TRY_GOTO(status, ek__bed_read(other.data, ek_replica_parameters(bed->parts[k].replica)),
                cleanup);
    EK_TRY_GOTO(status,
                ek__check_agree(c, "initial values of another device", other.data, first.data,
                                count, NULL, 0, 0),
                cleanup);
  }
cleanup:
  free(first.data);
  free(other.data);
  return status;
}

ek_status ek__check_repeat(struct ek__checker *c, struct ek__bed *bed, union ek__results *once) {
  const struct ek__comparison are_finite = {c, bed, EK__ALL, 0, true},
                              equal = {c, bed, EK__ALL, 0, false};
  struct ek__trial again = ek__check_whole;
  again.inspect = true;
  EK_TRY(ek__check_compare(&are_finite, once, once));
  return ek__check_rerun(&equal, bed, &again, once);
}

static bool has_buffers(const ek_replica *replica) {
  return ek_tensor_count(ek_replica_buffers(replica)) > 0;
}

ek_status ek__check_evaluation(struct ek__checker *c, struct ek__bed *bed,
                               union ek__results *once) {
  const struct ek__comparison equal = {c, bed, EK__OUTPUTS, ek__check_rounding(c, bed->type),
                                       false};
  struct ek__trial without = ek__check_whole;
  without.gradient = without.backward = without.grad_inputs = false;
  EK_TRY(ek__check_rerun(&equal, bed, &without, once));
  struct ek__trial other_numbers = without;
  other_numbers.step++;
  const ek_status random = ek__check_rerun(&equal, bed, &other_numbers, once);
  if (random == EK_ERR_MISMATCH || has_buffers(bed->parts[0].replica)) return EK_OK;
  EK_TRY(random);
  without.training = false;
  return ek__check_rerun(&equal, bed, &without, once);
}
