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

/* ---- what each kind takes ---- */

static ek_status check_rates(const ek_schedule *s) {
  EK__FAIL_IF(!(s->floor >= 0.0 && s->floor <= s->peak && isfinite(s->peak)),
              EK_ERR_INVALID_ARGUMENT, "schedule: floor is %g and peak %g, expected 0 <= floor <= "
                                       "peak",
              s->floor, s->peak);
  return EK_OK;
}

static ek_status check_times(const ek_schedule *s) {
  EK__FAIL_IF(s->warmup < 0 || s->total < 1, EK_ERR_INVALID_ARGUMENT,
              "schedule: warmup is %" PRId64 " and total %" PRId64
              ", expected 0 <= warmup and 1 <= total",
              s->warmup, s->total);
  return EK_OK;
}

static ek_status check_stable(const ek_schedule *s) {
  EK_TRY(check_rates(s));
  EK_TRY(check_times(s));
  EK__FAIL_IF(s->decay < 0 || s->decay > s->total - s->warmup, EK_ERR_INVALID_ARGUMENT,
              "schedule: decay is %" PRId64 ", expected 0 to total - warmup = %" PRId64, s->decay,
              s->total - s->warmup);
  return EK_OK;
}

static ek_status check_steps(const ek_schedule *s) {
  EK_TRY(check_rates(s));
  EK__FAIL_IF(s->decay < 1 || !(s->factor >= 0.0 && s->factor <= 1.0), EK_ERR_INVALID_ARGUMENT,
              "schedule: period is %" PRId64 " and factor %g, expected 1 <= period and 0 <= factor "
              "<= 1",
              s->decay, s->factor);
  return EK_OK;
}

static ek_status check_cycle(const ek_schedule *s) {
  EK_TRY(check_rates(s));
  EK__FAIL_IF(!(s->first >= 0.0 && s->first <= s->peak), EK_ERR_INVALID_ARGUMENT,
              "schedule: first is %g and peak %g, expected 0 <= first <= peak", s->first, s->peak);
  EK__FAIL_IF(s->warmup < 1 || s->warmup >= s->total, EK_ERR_INVALID_ARGUMENT,
              "schedule: warmup is %" PRId64 " and total %" PRId64 ", expected 1 <= warmup < total",
              s->warmup, s->total);
  return EK_OK;
}

static ek_status check_function(const ek_schedule *s) {
  EK__FAIL_IF(s->function == NULL, EK_ERR_INVALID_ARGUMENT,
              "schedule: function is NULL, expected one that gives the rate of a step");
  return EK_OK;
}

ek_status ek_schedule_check(const ek_schedule *schedule) {
  EK__NOT_NULL("schedule", schedule);
  switch (schedule->kind) {
  case EK_SCHEDULE_CONSTANT: return ek__check_number("schedule", "rate", schedule->peak);
  case EK_SCHEDULE_WARMUP_COSINE: EK_TRY(check_rates(schedule)); return check_times(schedule);
  case EK_SCHEDULE_WARMUP_STABLE: return check_stable(schedule);
  case EK_SCHEDULE_STEPS: return check_steps(schedule);
  case EK_SCHEDULE_ONE_CYCLE: return check_cycle(schedule);
  case EK_SCHEDULE_FUNCTION: return check_function(schedule);
  }
  return ek_error_set(EK_ERR_INVALID_ARGUMENT, "schedule: unknown kind %d", (int)schedule->kind);
}

/* ---- making one ---- */

static ek_status make(ek_schedule *schedule, const ek_schedule *made) {
  EK__NOT_NULL("schedule", schedule);
  EK_TRY(ek_schedule_check(made));
  *schedule = *made;
  return EK_OK;
}

ek_status ek_schedule_constant(ek_schedule *schedule, double rate) {
  const ek_schedule made = {.kind = EK_SCHEDULE_CONSTANT, .peak = rate, .floor = rate};
  return make(schedule, &made);
}

ek_status ek_schedule_warmup_cosine(ek_schedule *schedule, double peak, double floor,
                                    int64_t warmup, int64_t total) {
  const ek_schedule made = {.kind = EK_SCHEDULE_WARMUP_COSINE,
                            .peak = peak,
                            .floor = floor,
                            .warmup = warmup,
                            .total = total};
  return make(schedule, &made);
}

ek_status ek_schedule_warmup_stable(ek_schedule *schedule, double peak, double floor,
                                    int64_t warmup, int64_t decay, int64_t total) {
  const ek_schedule made = {.kind = EK_SCHEDULE_WARMUP_STABLE,
                            .peak = peak,
                            .floor = floor,
                            .warmup = warmup,
                            .decay = decay,
                            .total = total};
  return make(schedule, &made);
}

ek_status ek_schedule_steps(ek_schedule *schedule, double peak, double factor, int64_t period,
                            double floor) {
  const ek_schedule made = {.kind = EK_SCHEDULE_STEPS,
                            .peak = peak,
                            .floor = floor,
                            .factor = factor,
                            .decay = period};
  return make(schedule, &made);
}

ek_status ek_schedule_one_cycle(ek_schedule *schedule, double first, double peak, double floor,
                                int64_t warmup, int64_t total) {
  const ek_schedule made = {.kind = EK_SCHEDULE_ONE_CYCLE,
                            .peak = peak,
                            .floor = floor,
                            .first = first,
                            .warmup = warmup,
                            .total = total};
  return make(schedule, &made);
}

ek_status ek_schedule_function(ek_schedule *schedule,
                               double (*function)(int64_t step, void *context), void *context) {
  const ek_schedule made = {
      .kind = EK_SCHEDULE_FUNCTION, .function = function, .context = context};
  return make(schedule, &made);
}

/* ---- rates ---- */

/* From a to b along half a cosine; `done` is 0 to 1. */
static double half_cosine(double a, double b, double done) {
  return b + (a - b) * (1.0 + cos(pi * done)) / 2.0;
}

static double warming(const ek_schedule *s, int64_t step) {
  return s->peak * ((double)(step + 1) / (double)s->warmup);
}

static double cosine_rate(const ek_schedule *s, int64_t step) {
  if (step >= s->total) return s->floor;
  if (step < s->warmup) return warming(s, step);
  return half_cosine(s->peak, s->floor,
                     (double)(step - s->warmup) / (double)(s->total - s->warmup));
}

static double stable_rate(const ek_schedule *s, int64_t step) {
  if (step >= s->total) return s->floor;
  if (step < s->warmup) return warming(s, step);
  if (step < s->total - s->decay) return s->peak;
  const double left = (double)(s->total - step) / (double)s->decay;
  return s->floor + (s->peak - s->floor) * left;
}

static double cycle_rate(const ek_schedule *s, int64_t step) {
  const int64_t top = s->warmup - 1, end = s->total - 1; /* their steps have peak and floor */
  if (step >= end) return s->floor;
  if (step < top) return half_cosine(s->first, s->peak, (double)step / (double)top);
  return half_cosine(s->peak, s->floor, (double)(step - top) / (double)(end - top));
}

double ek_schedule_rate(const ek_schedule *schedule, int64_t step) {
  if (ek_schedule_check(schedule) != EK_OK) return 0.0; /* it may be zeros with a kind */
  if (step < 0) step = 0;
  switch (schedule->kind) {
  case EK_SCHEDULE_CONSTANT: return schedule->peak;
  case EK_SCHEDULE_WARMUP_COSINE: return cosine_rate(schedule, step);
  case EK_SCHEDULE_WARMUP_STABLE: return stable_rate(schedule, step);
  case EK_SCHEDULE_STEPS:
    return fmax(schedule->floor,
                schedule->peak * pow(schedule->factor, (double)(step / schedule->decay)));
  case EK_SCHEDULE_ONE_CYCLE: return cycle_rate(schedule, step);
  case EK_SCHEDULE_FUNCTION: return schedule->function(step, schedule->context);
  }
  return 0.0;
}
