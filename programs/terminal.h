/*
 * terminal.h - what the program says on stderr: errors always, notes and a progress bar to people.
 *
 * Standard output is for data only. Notes and the bar appear only if stderr is a terminal and
 * --quiet was not given; colours only if NO_COLOR is unset or empty and TERM is not "dumb".
 */
#ifndef PROGRAMS_TERMINAL_H
#define PROGRAMS_TERMINAL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stddef.h>

#if defined(__GNUC__)
#define BENCH_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define BENCH_PRINTF(text, first)
#endif

/* What errors begin with: "evenkeel-bench" unless the program sets it before. */
extern const char *terminal_program;

/* A file that is not whole yet, or NULL: a signal that ends the program removes it. */
extern const char *volatile terminal_unfinished;

/* Looks at stderr and the environment; makes Ctrl-C clear the bar before it ends the program. */
void terminal_start(bool quiet);

/* From now on there are no people, as with `quiet`: another process tells them. */
void terminal_hush(void);

/* "PROGRAM: ..." for what stops the program or makes its exit code. */
void say_error(const char *format, ...) BENCH_PRINTF(1, 2);

/* A line for people; nothing if there are none. */
void say_note(const char *format, ...) BENCH_PRINTF(1, 2);

/*
 * The command is at run number `run` of `runs`, which take about as long as each other, or, where
 * `runs` is 0 where the number is not known. The first call starts the clock.
 */
void progress_run(size_t run, size_t runs);

/* Draws the bar: `done` of the run's `total` units, the time since the start and, where the number
 * of runs is known, what is left of it, and what is going on. */
void progress_show(size_t done, size_t total, const char *format, ...) BENCH_PRINTF(3, 4);

/* "1:05, 12:30 left" after `elapsed` seconds for `share` of the work, without the second where it
 * would be a guess; returns `text`. */
#define PROGRESS_TEXT 80
const char *progress_times(char text[PROGRESS_TEXT], double share, double elapsed);

/* Columns of what `descriptor` leads to: COLUMNS of the environment, else those of the terminal, 80
 * where it does not say; 0: as many as one likes, it is no terminal. */
size_t terminal_width(int descriptor);

/* Takes the bar away; the next line of output starts on a clean line. */
void progress_clear(void);

/* "4.15 GiB (4458501376 bytes)", below a KiB "256 bytes"; returns `text`. */
#define BYTES_TEXT 64
const char *bytes_text(char text[BYTES_TEXT], uint64_t bytes);

/* Memory or the end of the program (exit 1): for the small things that a report is made of. */
void *need_memory(size_t count, size_t size);
void *need_more(void *old, size_t count, size_t size);
char *need_copy(const char *text, size_t length);
/* As vprintf() would print it. */
char *need_format(const char *format, va_list arguments);

#endif
