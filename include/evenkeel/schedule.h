/*
 * schedule.h - the learning rate as a function of the step.
 *
 * A schedule is a plain value and needs no free. Steps count from 0.
 */
#ifndef EVENKEEL_SCHEDULE_H
#define EVENKEEL_SCHEDULE_H

#include <stdint.h>

#include <evenkeel/status.h>

EK_BEGIN_DECLARATIONS

typedef enum ek_schedule_kind {
  EK_SCHEDULE_CONSTANT = 0,
  EK_SCHEDULE_WARMUP_COSINE = 1
} ek_schedule_kind;

typedef struct ek_schedule {
  ek_schedule_kind kind;
  double peak, floor;
  int64_t warmup, total;
} ek_schedule;

/* Always `rate` (>= 0, finite). */
EK_API EK_CHECKED ek_status ek_schedule_constant(ek_schedule *schedule, double rate);

/*
 * peak * (step + 1) / warmup for the first `warmup` steps, then
 * floor + (peak - floor) * (1 + cos(pi * (step - warmup) / (total - warmup))) / 2, and floor from
 * step `total` on (Loshchilov and Hutter 2017). 0 <= warmup, 1 <= total, 0 <= floor <= peak. If
 * total <= warmup, the run ends within its warm-up and has the first `total` rates of that.
 */
EK_API EK_CHECKED ek_status ek_schedule_warmup_cosine(ek_schedule *schedule, double peak,
                                                      double floor, int64_t warmup, int64_t total);

/* The rate of a step (a negative one counts as 0); 0 for NULL. */
EK_API double ek_schedule_rate(const ek_schedule *schedule, int64_t step);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SCHEDULE_H */
