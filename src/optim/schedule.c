/*
 * schedule.c - the learning rate as a function of the step.
 */
#include <evenkeel/schedule.h>

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "core/error.h"
#include "core/options.h"

static const double pi = 3.14159265358979323846;

ek_status ek_schedule_constant(ek_schedule *schedule, double rate) {
  EK__NOT_NULL("schedule", schedule);
  EK_TRY(ek__check_number("schedule", "rate", rate));
  *schedule = (ek_schedule){.kind = EK_SCHEDULE_CONSTANT, .peak = rate, .floor = rate};
  return EK_OK;
}

ek_status ek_schedule_warmup_cosine(ek_schedule *schedule, double peak, double floor,
                                    int64_t warmup, int64_t total) {
  EK__NOT_NULL("schedule", schedule);
  EK__FAIL_IF(!(floor >= 0.0 && floor <= peak && isfinite(peak)), EK_ERR_INVALID_ARGUMENT,
              "schedule: floor is %g and peak %g, expected 0 <= floor <= peak", floor, peak);
  EK__FAIL_IF(warmup < 0 || total < 1, EK_ERR_INVALID_ARGUMENT,
              "schedule: warmup is %" PRId64 " and total %" PRId64
              ", expected 0 <= warmup and 1 <= total",
              warmup, total);
  *schedule = (ek_schedule){.kind = EK_SCHEDULE_WARMUP_COSINE,
                            .peak = peak,
                            .floor = floor,
                            .warmup = warmup,
                            .total = total};
  return EK_OK;
}

double ek_schedule_rate(const ek_schedule *schedule, int64_t step) {
  if (schedule == NULL) return 0.0;
  if (schedule->kind == EK_SCHEDULE_CONSTANT) return schedule->peak;
  if (step < 0) step = 0;
  if (step >= schedule->total) return schedule->floor;
  if (step < schedule->warmup) {
    return schedule->peak * ((double)(step + 1) / (double)schedule->warmup);
  }
  const double done =
      (double)(step - schedule->warmup) / (double)(schedule->total - schedule->warmup);
  return schedule->floor + (schedule->peak - schedule->floor) * (1.0 + cos(pi * done)) / 2.0;
}
