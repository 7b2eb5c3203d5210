/*
 * report_processes.h - what each process of a world had and did: rows, work, memory. All of it is
 * nothing where a run had one process.
 */
#ifndef BENCH_REPORT_PROCESSES_H
#define BENCH_REPORT_PROCESSES_H

#include "report.h"

/* "processes" and "slowest_process" of a run's object. */
void put_processes(json_t *json, const struct run *run);

/* Adds the rows of a run to a table, which is made with the first of them: *grid is NULL before. */
void processes_rows(struct grid **grid, const struct run *run);

#endif
