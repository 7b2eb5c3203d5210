/*
 * terminal.h - what the program says on stderr: errors always, notes and a progress bar to people.
 *
 * Standard output is for data only. Notes and the bar appear only if stderr is a terminal and
 * --quiet was not given; colours only if NO_COLOR is unset or empty and TERM is not "dumb".
 */
#ifndef BENCH_TERMINAL_H
#define BENCH_TERMINAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__GNUC__)
#define BENCH_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define BENCH_PRINTF(text, first)
#endif

/* What errors begin with: "evenkeel-bench", if the program does not set it before. */
extern const char *terminal_program;

/* A file that is not whole yet, or NULL: a signal that ends the program removes it. */
extern const char *volatile terminal_unfinished;

/* Looks at stderr and the environment; makes Ctrl-C clear the bar before it ends the program. */
void terminal_start(bool quiet);

/* "PROGRAM: ..." for what stops the program or makes its exit code. */
void say_error(const char *format, ...) BENCH_PRINTF(1, 2);

/* A line for people; nothing if there are none. */
void say_note(const char *format, ...) BENCH_PRINTF(1, 2);

/* Draws the bar: `done` of `total` units, and what is going on. */
void progress_show(size_t done, size_t total, const char *format, ...) BENCH_PRINTF(3, 4);

/* Takes the bar away; the next line of output starts on a clean line. */
void progress_clear(void);

/* Memory or the end of the program (exit 1): for the small things that a report is made of. */
void *need_memory(size_t count, size_t size);
void *need_more(void *old, size_t count, size_t size);
char *need_copy(const char *text, size_t length);
/* As vprintf() would print it. */
char *need_format(const char *format, va_list arguments);

#endif
