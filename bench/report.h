/*
 * report.h - what a command found, on its way to standard output and to files.
 *
 * A command hands over the same result in three forms; this picks the one that was asked for.
 */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include <jansson.h>

#include "grid.h"
#include "options.h"
#include "run.h"

enum { REPORT_TABLES = 5 };

struct report {
  json_t *json;
  struct grid *csv;                   /* one row per record, plain numbers */
  struct grid *tables[REPORT_TABLES]; /* for people; NULL ends the list */
};

/* Writes it, in the first process of a world, and frees it. False, after a message, if something
 * could not be written. */
bool report_write(struct report *report, const struct options *options);

/* ---- pieces of JSON; memory that runs out ends the program ---- */

/* Before the first of them. */
void report_prepare(void);
/* {"schema": 1, "command": ..., "config": {...}} of a training command. */
json_t *report_start(const struct options *options, const struct text *text);
/* Puts `value` (its reference is taken over) into an object or at the end of an array. */
void put(json_t *object, const char *key, json_t *value);
void append(json_t *array, json_t *value);
/* null for what is not finite */
json_t *number_or_null(double value);
json_t *whole(uint64_t value);
json_t *file_name(const char *name); /* or another text of the system, in any encoding */
json_t *summary_json(struct summary summary);
/* Of a run's measured steps; null for each where none is known. */
json_t *losses_json(const struct run *run);
/* "loss_scale" of the last step (null without steps), and how many steps it skipped, warm-up
 * included. */
void put_loss_scale(json_t *json, const struct run *run);

#endif
