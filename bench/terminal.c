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
#include <unistd.h>

enum { BAR_CELLS = 24 };

const char *terminal_program = "evenkeel-bench";

const char *volatile terminal_unfinished;

static const char erase_line[] = "\r\033[K";

static bool people; /* stderr is a terminal and may be written to freely */
static bool colours;
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

void progress_show(size_t done, size_t total, const char *format, ...) {
  if (!people) return;
  if (total == 0) total = 1;
  if (done > total) done = total;
  const size_t full = (size_t)((double)done / (double)total * BAR_CELLS);
  char bar[BAR_CELLS + 1];
  memset(bar, ' ', BAR_CELLS);
  memset(bar, '=', full);
  bar[BAR_CELLS] = '\0';
  char what[80];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  bar_is_visible = 1;
  fprintf(stderr, "%s[%s%s%s] %s", erase_line, colours ? "\033[32m" : "", bar,
          colours ? "\033[0m" : "", what);
  fflush(stderr);
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
