/*
 * output.h - where results go: standard output, and files that are there whole or not at all.
 *
 * A file is written under another name in its own folder and takes its name when everything is in
 * it; until then what the name stood for is as it was, also after Ctrl-C. A pipe or a device is
 * written directly and is opened before the run, so that its reader waits for the result; a pipe
 * without a reader is refused, because it would block for ever. What leads to standard output or
 * standard error (/dev/stdout) is written there.
 */
#ifndef BENCH_OUTPUT_H
#define BENCH_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

struct output;

/* `path` is the caller's and stays. Nothing is touched yet. */
struct output *output_create(const char *path);

/* Looks whether it can be written, before time is spent. False, after a message; NULL is fine. */
bool output_prepare(struct output *output);

/* After that: a pipe, a device or standard output, and no file. */
bool output_is_direct(const struct output *output);

/* After that: both would be written to one file, so that only one would be left. */
bool output_is_same(const struct output *left, const struct output *right);

/* Begins to write; NULL after a message. Needs output_prepare(). */
FILE *output_begin(struct output *output);

/* Ends it. With `whole` false, or after a message if not everything could be written, the file is
   as it was before. */
bool output_end(struct output *output, bool whole);

void output_free(struct output *output);

/* At the program's end standard output is closed; what it did not take makes the exit code 1. */
void output_watch_standard(void);

#endif
