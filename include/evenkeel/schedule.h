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
  EK_SCHEDULE_WARMUP_COSINE = 1,
  EK_SCHEDULE_WARMUP_STABLE = 2,
  EK_SCHEDULE_STEPS = 3,
  EK_SCHEDULE_ONE_CYCLE = 4,
  EK_SCHEDULE_FUNCTION = 5
} ek_schedule_kind;

/* The arguments of the function that made it; 0 where it has none of that name. */
typedef struct ek_schedule {
  ek_schedule_kind kind;
  double peak, floor, first, factor;
  int64_t warmup, total, decay;
  double (*function)(int64_t step, void *context);
  void *context;
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

/*
 * As above during the warm-up, then peak until step total - decay, and from there a straight line
 * to floor at step `total`: warm-up, stable, decay (Hu et al. 2024). A run that is to be longer
 * than planned goes on from a state before the decay with a larger total. With decay = total -
 * warmup it is a linear schedule. 0 <= warmup, 1 <= total, 0 <= decay <= total - warmup, 0 <= floor
 * <= peak.
 */
EK_API EK_CHECKED ek_status ek_schedule_warmup_stable(ek_schedule *schedule, double peak,
                                                      double floor, int64_t warmup, int64_t decay,
                                                      int64_t total);

/* peak * factor^(step / period, rounded down), but at least floor: torch's StepLR. 1 <= period,
 * 0 <= factor <= 1, 0 <= floor <= peak. */
EK_API EK_CHECKED ek_status ek_schedule_steps(ek_schedule *schedule, double peak, double factor,
                                              int64_t period, double floor);

/*
 * From `first` to peak in `warmup` steps and from there to floor at step total - 1, both along half
 * a cosine; floor afterwards (Smith 2017). torch's OneCycleLR(optimizer, max_lr, total_steps) with
 * pct_start p is first = max_lr / 25, floor = first / 1e4, warmup = p * total. 1 <= warmup < total,
 * 0 <= first <= peak, 0 <= floor <= peak.
 */
EK_API EK_CHECKED ek_status ek_schedule_one_cycle(ek_schedule *schedule, double first, double peak,
                                                  double floor, int64_t warmup, int64_t total);

/*
 * function(step, context), a function of the program's: for one step always the same number, the
 * same in all processes. An optimizer calls it once for each step, on the thread that takes the
 * step, before anything is updated. A number below 0 or not finite makes that step fail with
 * EK_ERR_INVALID_ARGUMENT; nothing is updated then. Saved states do not have the function: a run
 * that goes on is given it again.
 */
EK_API EK_CHECKED ek_status ek_schedule_function(ek_schedule *schedule,
                                                 double (*function)(int64_t step, void *context),
                                                 void *context);

/* EK_ERR_INVALID_ARGUMENT for a schedule that none of these functions makes. */
EK_API EK_CHECKED ek_status ek_schedule_check(const ek_schedule *schedule);

/* The rate of a step (a negative one counts as 0). It is 0 for NULL, and for a schedule that lacks
 * its function or its period. */
EK_API double ek_schedule_rate(const ek_schedule *schedule, int64_t step);

EK_END_DECLARATIONS

#endif /* EVENKEEL_SCHEDULE_H */
