/*
 * report_charts.h - the charts of each command, from its JSON (docs/benchmark.md) alone.
 */
#ifndef BENCH_REPORT_CHARTS_H
#define BENCH_REPORT_CHARTS_H

#include <jansson.h>
#include <stdio.h>

void charts_memory(FILE *file, const json_t *root);
void charts_step(FILE *file, const json_t *root);
void charts_techniques(FILE *file, const json_t *root);
void charts_max_batch(FILE *file, const json_t *root);
void charts_fit(FILE *file, const json_t *root);
/* Bars of the work of each process, for each run that has processes. */
void charts_processes(FILE *file, const json_t *root);

#endif
