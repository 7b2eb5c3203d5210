/*
 * terminal.c - stderr: errors, notes, the progress bar, Ctrl-C.
 *
 * The bar is one line that is redrawn with a carriage return; nothing else of the terminal's state
 * is touched, so that all a signal handler has to do is to erase the line.
 */
#include "terminal.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "parse.h"
#include "statistics.h"

enum { BAR_CELLS = 16, USUAL_WIDTH = 80 };

/* Before that, what is left is a guess. */
static const double least_elapsed = 1, least_share = 0.02;

const char *terminal_program = "evenkeel-bench";

const char *volatile terminal_unfinished;

static const char erase_line[] = "\r\033[K";

static bool people; /* stderr is a terminal and may be written to freely */
static bool colours;
static struct {
  size_t run, runs; /* runs 0: not known */
  double start;     /* 0: not yet */
} progress;
static volatile sig_atomic_t bar_is_visible; /* read by the signal handler */

/* Restores the line and dies of the same signal, so that the shell sees why. */
static void on_signal(int number) {
  if (bar_is_visible) {
    const ssize_t written = write(STDERR_FILENO, erase_line, sizeof erase_line - 1);
    (void)written; /* nothing can be done about it here */
  }
  if (terminal_unfinished != NULL) (void)unlink(terminal_unfinished);
  /* SA_RESETHAND has put the default action back. */
  raise(number);
}

void terminal_start(bool quiet) {
  const char *term = getenv("TERM");
  const char *no_colour = getenv("NO_COLOR");
  const bool smart = term != NULL && strcmp(term, "dumb") != 0;
  people = !quiet && isatty(STDERR_FILENO) && smart;
  colours = isatty(STDERR_FILENO) && smart && (no_colour == NULL || no_colour[0] == '\0');
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_signal;
  action.sa_flags = (int)SA_RESETHAND;
  sigemptyset(&action.sa_mask);
  const int numbers[] = {SIGINT, SIGTERM};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    /* A signal that is ignored (nohup, a job in the background) stays ignored. */
    struct sigaction old;
    if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) continue;
    sigaction(numbers[i], &action, NULL);
  }
}

void terminal_hush(void) { people = 0; }

void progress_clear(void) {
  if (!bar_is_visible) return;
  fputs(erase_line, stderr);
  fflush(stderr);
  bar_is_visible = 0;
}

void say_error(const char *format, ...) {
  progress_clear();
  fprintf(stderr, colours ? "\033[1;31m%s:\033[0m " : "%s: ", terminal_program);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

void say_note(const char *format, ...) {
  if (!people) return;
  progress_clear();
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

void progress_run(size_t run, size_t runs) {
  if (progress.start == 0) progress.start = clock_seconds();
  progress.run = run;
  progress.runs = runs;
}

/* "1:02:03", "2:03" */
static void write_duration(char text[32], double seconds) {
  const unsigned long long whole = (unsigned long long)seconds;
  if (whole >= 3600) {
    snprintf(text, 32, "%llu:%02llu:%02llu", whole / 3600, whole / 60 % 60, whole % 60);
  } else {
    snprintf(text, 32, "%llu:%02llu", whole / 60, whole % 60);
  }
}

const char *progress_times(char text[PROGRESS_TEXT], double share, double elapsed) {
  char since[32], left[32];
  write_duration(since, elapsed);
  if (elapsed < least_elapsed || share < least_share || share > 1) {
    snprintf(text, PROGRESS_TEXT, "%s", since);
  } else {
    write_duration(left, elapsed / share - elapsed + 0.5);
    snprintf(text, PROGRESS_TEXT, "%s, %s left", since, left);
  }
  return text;
}

void progress_show(size_t done, size_t total, const char *format, ...) {
  if (!people) return;
  if (total == 0) total = 1;
  if (done > total) done = total;
  double share = (double)done / (double)total;
  if (progress.runs > 0) share = ((double)progress.run + share) / (double)progress.runs;
  if (share > 1) share = 1;
  char bar[BAR_CELLS + 1];
  memset(bar, ' ', BAR_CELLS);
  memset(bar, '=', (size_t)(share * BAR_CELLS));
  bar[BAR_CELLS] = '\0';
  char times[PROGRESS_TEXT], what[160];
  const double elapsed = progress.start > 0 ? clock_seconds() - progress.start : 0;
  (void)progress_times(times, progress.runs > 0 ? share : 0, elapsed);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  /* A line that wraps could not be erased. */
  const size_t width = terminal_width(STDERR_FILENO), around = BAR_CELLS + strlen(times) + 5;
  const int room = width == 0 ? (int)sizeof what : width > around ? (int)(width - around) : 0;
  bar_is_visible = 1;
  fprintf(stderr, "%s[%s%s%s] %s %.*s", erase_line, colours ? "\033[32m" : "", bar,
          colours ? "\033[0m" : "", times, room, what);
  fflush(stderr);
}

/* COLUMNS has precedence: shells do not export it, so a user who exported it meant programs. */
size_t terminal_width(int descriptor) {
  const char *columns = getenv("COLUMNS");
  int64_t width = 0;
  struct winsize window;
  if (columns != NULL && parse_whole(&width, columns, 1, 100000)) return (size_t)width;
  if (!isatty(descriptor)) return 0;
  if (ioctl(descriptor, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
  return USUAL_WIDTH;
}

const char *bytes_text(char text[BYTES_TEXT], uint64_t bytes) {
  static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = (double)bytes / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++) value /= 1024;
  const unsigned long long whole = bytes;
  if (bytes < 1024) {
    snprintf(text, BYTES_TEXT, "%llu bytes", whole);
  } else {
    snprintf(text, BYTES_TEXT, "%.2f %s (%llu bytes)", value, units[unit], whole);
  }
  return text;
}

void *need_more(void *old, size_t count, size_t size) {
  if (count == 0) count = 1;
  void *memory = size != 0 && count > SIZE_MAX / size ? NULL : realloc(old, count * size);
  if (memory == NULL) {
    say_error("the host is out of memory");
    exit(1);
  }
  return memory;
}

void *need_memory(size_t count, size_t size) {
  void *memory = need_more(NULL, count, size);
  memset(memory, 0, count * size);
  return memory;
}

char *need_copy(const char *text, size_t length) {
  char *copy = need_more(NULL, length + 1, 1);
  memcpy(copy, text, length);
  copy[length] = '\0';
  return copy;
}

char *need_format(const char *format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(NULL, 0, format, again);
  va_end(again);
  char *text = need_memory((size_t)(length < 0 ? 0 : length) + 1, 1);
  if (length > 0) (void)vsnprintf(text, (size_t)length + 1, format, arguments);
  return text;
}
