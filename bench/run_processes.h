/*
 * run_processes.h - what each process of a world had and did in a run. In a run of one process, and
 * of devices that only count, nothing is kept and no call is made.
 */
#ifndef BENCH_RUN_PROCESSES_H
#define BENCH_RUN_PROCESSES_H

#include "run.h"

/* To call before the first measured step (begins), and after the last. Processes have heard of each
 * other in the update of the step before: the work is that from update to update. */
void run_busy(struct run *run, const ek_world *world, bool begins);

/* After a run that ended well, in all processes: a collective. run->usage is known. */
ek_status run_processes(struct run *run, const struct training *training);

#endif
