/*
 * report_page.h - a result as a page for the eye: charts, tables, and the JSON within.
 *
 * Charts are drawn from the JSON alone, so that they cannot show another number. A command without
 * charts of its own has its tables.
 */
#ifndef BENCH_REPORT_PAGE_H
#define BENCH_REPORT_PAGE_H

#include "report.h"

/* `json` is the text of report->json. */
void report_page(FILE *file, const struct report *report, const char *json);

#endif
