/*
 * timeline.h - what every device holds over one step, for a curve.
 */
#ifndef BENCH_TIMELINE_H
#define BENCH_TIMELINE_H

#include "run.h"

/*
 * Takes one more step with a wait after each part. Memory that is not there for it is no failure:
 * a step without reduction before it takes more than a plain one, and then *timeline is NULL.
 */
ek_status timeline_take(struct step_timeline **timeline, struct training *training);
void timeline_free(struct step_timeline *timeline, size_t devices);

#endif
