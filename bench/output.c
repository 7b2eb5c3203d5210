/*
 * output.c - see output.h.
 *
 * At most one file is under its other name at a time, because results are written one after the
 * other; terminal.c removes it if a signal ends the program then, and an exit handler if exit()
 * does.
 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "terminal.h"

enum { EXIT_UNWRITTEN = 1, MOST_LEFT_BEHIND = 1000 };

struct output {
  const char *path; /* as it was given, for messages */
  char *target;     /* a file's name after all links; NULL: written directly */
  char *temporary;  /* the name beside it while it is written */
  int descriptor;   /* written directly: open since output_prepare(); else -1 */
  FILE *file;
};

struct output *output_create(const char *path) {
  struct output *output = need_memory(1, sizeof *output);
  output->path = path;
  output->descriptor = -1;
  return output;
}

static bool refuse(const struct output *output, const char *why) {
  say_error("cannot write %s: %s", output->path, why);
  return false;
}

/* The number of standard output or standard error, if `about` is what it leads to; else -1. */
static int standard_descriptor(const struct stat *about) {
  for (int number = STDOUT_FILENO; number <= STDERR_FILENO; number++) {
    struct stat standard;
    if (fstat(number, &standard) == 0 && standard.st_dev == about->st_dev &&
        standard.st_ino == about->st_ino) {
      return number;
    }
  }
  return -1;
}

/* A pipe without a reader fails here instead of blocking; writing may wait for its reader. */
static bool open_directly(struct output *output, const struct stat *about) {
  const int standard = standard_descriptor(about);
  if (standard >= 0) {
    output->descriptor = fcntl(standard, F_DUPFD_CLOEXEC, 0);
    return output->descriptor >= 0 || refuse(output, strerror(errno));
  }
  if (S_ISDIR(about->st_mode)) return refuse(output, strerror(EISDIR));
  if (!S_ISFIFO(about->st_mode) && !S_ISCHR(about->st_mode)) {
    return refuse(output, "it is neither a regular file nor a pipe");
  }
  output->descriptor = open(output->path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (output->descriptor < 0) {
    return refuse(output, errno == ENXIO ? "no process reads this pipe" : strerror(errno));
  }
  const int flags = fcntl(output->descriptor, F_GETFL);
  return (flags >= 0 && fcntl(output->descriptor, F_SETFL, flags & ~O_NONBLOCK) == 0) ||
         refuse(output, strerror(errno));
}

/* A name of its own in the target's folder, which is where rename() is one step. `attempt`: a run
 * that was killed may have left a file, and its number is a new process's in a container. */
static char *name_beside(const char *target, int attempt) {
  const char *slash = strrchr(target, '/');
  const size_t folder = slash == NULL ? 0 : (size_t)(slash + 1 - target);
  const size_t size = folder + 64;
  char *name = need_memory(size, 1);
  (void)snprintf(name, size, "%.*s.evenkeel-bench.%ld.%d", (int)folder, target, (long)getpid(),
                 attempt);
  return name;
}

static void remove_temporary(void) {
  if (terminal_unfinished != NULL) (void)unlink(terminal_unfinished);
  terminal_unfinished = NULL;
}

/* Creates the file under its other name. */
static int create(struct output *output) {
  static bool watched; /* exit() may come from anywhere, for want of memory */
  if (!watched) watched = atexit(remove_temporary) == 0;
  int descriptor = -1;
  for (int i = 0; i < MOST_LEFT_BEHIND && descriptor < 0; i++) {
    free(output->temporary);
    output->temporary = name_beside(output->target, i);
    descriptor =
        open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST) return -1;
  }
  if (descriptor < 0) return -1;
  terminal_unfinished = output->temporary;
  struct stat old; /* the new file takes the place of the old one, with its rights */
  if (stat(output->target, &old) == 0) (void)fchmod(descriptor, old.st_mode & 0777);
  return descriptor;
}

bool output_prepare(struct output *output) {
  if (output == NULL) return true;
  struct stat about;
  const bool exists = stat(output->path, &about) == 0;
  if (!exists && errno != ENOENT) return refuse(output, strerror(errno));
  if (exists && (!S_ISREG(about.st_mode) || standard_descriptor(&about) >= 0)) {
    return open_directly(output, &about);
  }
  if (exists && access(output->path, W_OK) != 0) return refuse(output, strerror(errno));
  char *real = exists ? realpath(output->path, NULL) : NULL;
  const char *target = real != NULL ? real : output->path;
  output->target = need_copy(target, strlen(target));
  free(real);
  const size_t length = strlen(output->target);
  if (length == 0 || output->target[length - 1] == '/') return refuse(output, strerror(ENOENT));
  const int descriptor = create(output);
  if (descriptor < 0) return refuse(output, strerror(errno));
  (void)close(descriptor);
  remove_temporary();
  return true;
}

/* Device and number of the folder that a file is in; false if the folder is missing. */
static bool find_folder(struct stat *about, const char *target) {
  const char *slash = strrchr(target, '/');
  char *folder =
      slash == NULL ? need_copy(".", 1) : need_copy(target, (size_t)(slash - target) + 1);
  const bool found = stat(folder, about) == 0;
  free(folder);
  return found;
}

static const char *name_within(const char *target) {
  const char *slash = strrchr(target, '/');
  return slash == NULL ? target : slash + 1;
}

/* One name in one folder, or one file under two names. */
bool output_is_same(const struct output *left, const struct output *right) {
  struct stat one, other;
  /* Pipes take one after another. */
  if (left->target == NULL || right->target == NULL) return false;
  if (stat(left->target, &one) == 0 && stat(right->target, &other) == 0) {
    return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  }
  return strcmp(name_within(left->target), name_within(right->target)) == 0 &&
         find_folder(&one, left->target) && find_folder(&other, right->target) &&
         one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

bool output_is_direct(const struct output *output) { return output->target == NULL; }

FILE *output_begin(struct output *output) {
  const int descriptor = output->target == NULL ? output->descriptor : create(output);
  output->file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
  output->descriptor = -1; /* the stream's now */
  if (output->file == NULL) {
    (void)refuse(output, strerror(errno));
    if (descriptor >= 0) (void)close(descriptor);
    remove_temporary();
  }
  return output->file;
}

/* A full disk shows only when the buffer is written out. */
bool output_end(struct output *output, bool whole) {
  errno = 0;
  bool good = ferror(output->file) == 0;
  good = fclose(output->file) == 0 && good;
  output->file = NULL;
  if (good && whole && output->target != NULL) {
    good = rename(output->temporary, output->target) == 0;
    if (good) terminal_unfinished = NULL;
  }
  if (!good) (void)refuse(output, strerror(errno));
  remove_temporary();
  return good && whole;
}

void output_free(struct output *output) {
  if (output == NULL) return;
  if (output->descriptor >= 0) (void)close(output->descriptor);
  free(output->temporary);
  free(output->target);
  free(output);
}

static void close_standard(void) {
  errno = 0;
  bool good = fflush(stdout) == 0 && ferror(stdout) == 0;
  const int why = errno;
  errno = 0;
  /* Whoever closed it before the start, and was written nothing, does not mind. */
  if (good && fclose(stdout) != 0 && errno != EBADF) good = false;
  if (good) return;
  remove_temporary();
  const int error = why != 0 ? why : errno; /* 0: of an earlier write, and forgotten */
  say_error("cannot write standard output%s%s", error == 0 ? "" : ": ",
            error == 0 ? "" : strerror(error));
  _exit(EXIT_UNWRITTEN);
}

void output_watch_standard(void) {
  if (atexit(close_standard) == 0) return;
  say_error("the host is out of memory");
  _exit(EXIT_UNWRITTEN);
}
