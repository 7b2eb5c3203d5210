/*
 * file_calls.c - open() and others, counted: see file_calls.h. Calls may come from several
 * threads; the order of those that were under way at once is any.
 */
#define _GNU_SOURCE /* RTLD_NEXT, fallocate() */
#include "file_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

const char *const file_fault_names[FILE_FAULTS] = {
    "none", "EIO", "ENOSPC", "SIGKILL", "EINVAL", "EINTR", "half of the bytes", "a flipped bit",
    "ENOENT"};

enum { MOST = 4096 };

static atomic_int counting, calls, at;
static enum file_fault wanted;
static char sequence[MOST + 1];

void file_calls_begin(enum file_fault fault, int n) {
  wanted = fault;
  atomic_store(&at, n);
  atomic_store(&calls, 0);
  memset(sequence, 0, sizeof sequence);
  atomic_store(&counting, 1);
}

int file_calls_end(void) {
  atomic_store(&counting, 0);
  return atomic_load(&calls);
}

const char *file_calls_sequence(void) { return sequence; }

static int error_of(enum file_fault fault) {
  return fault == FILE_ENOSPC   ? ENOSPC
         : fault == FILE_EINVAL ? EINVAL
         : fault == FILE_EINTR  ? EINTR
         : fault == FILE_GONE   ? ENOENT
                                : EIO;
}

/* Counts a call; 1 if it is to fail, with errno set. */
static int refused(char letter) {
  if (!atomic_load(&counting)) return 0;
  const int number = atomic_fetch_add(&calls, 1) + 1;
  if (number <= MOST) sequence[number - 1] = letter;
  if (wanted == FILE_NONE || number != atomic_load(&at)) return 0;
  if ((wanted == FILE_SHORT || wanted == FILE_FLIP) && letter != 'w' && letter != 'p') return 0;
  if (wanted == FILE_GONE && letter != 'o') return 0;
  if (wanted == FILE_EINTR && strchr("owpsfcale", letter) == NULL) return 0;
  if (wanted == FILE_KILL) (void)kill(getpid(), SIGKILL);
  errno = error_of(wanted);
  return 1;
}

/* The C library's own function of this name. */
#define NEXT(name)                                                                                 \
  static __typeof__(&name) next;                                                                   \
  if (next == NULL) *(void **)(void *)&next = dlsym(RTLD_NEXT, #name)

int open(const char *path, int flags, ...) {
  NEXT(open);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return refused('o') ? -1 : next(path, flags, mode);
}

/* Of a call that meets its fault: whether it is of the faults that let it go on. */
static int goes_on(void) { return wanted == FILE_SHORT || wanted == FILE_FLIP; }

ssize_t pwrite(int file, const void *data, size_t bytes, off_t place) {
  NEXT(pwrite);
  if (!refused('w')) return next(file, data, bytes, place);
  if (!goes_on()) return -1;
  if (wanted == FILE_SHORT) return next(file, data, (bytes + 1) / 2, place);
  const ssize_t put = next(file, data, bytes, place);
  const unsigned char flipped = (unsigned char)(((const unsigned char *)data)[bytes / 2] ^ 4u);
  const int plain = fcntl(file, F_GETFL);
  (void)fcntl(file, F_SETFL, plain & ~O_DIRECT);
  if (next(file, &flipped, 1, place + (off_t)(bytes / 2)) != 1) abort();
  (void)fcntl(file, F_SETFL, plain);
  return put;
}

ssize_t pread(int file, void *data, size_t bytes, off_t place) {
  NEXT(pread);
  if (!refused('p')) return next(file, data, bytes, place);
  return goes_on() ? next(file, data, (bytes + 1) / 2, place) : -1;
}

/* A whole function: the next one's, unless it is refused. */
#define CALL(name, letter, parameters, arguments)                                                  \
  int name parameters {                                                                            \
    NEXT(name);                                                                                    \
    return refused(letter) ? -1 : next arguments;                                                  \
  }

CALL(fallocate, 'a', (int file, int mode, off_t place, off_t bytes), (file, mode, place, bytes))

int fsync(int file) {
  NEXT(fsync);
  struct stat about;
  const int folder = fstat(file, &about) == 0 && S_ISDIR(about.st_mode);
  return refused(folder ? 'f' : 's') ? -1 : next(file);
}

int close(int file) {
  NEXT(close);
  const int fails = refused('c');
  const int result = next(file); /* the system has closed it, whatever it says */
  if (fails) errno = error_of(wanted);
  return fails ? -1 : result;
}

CALL(rename, 'r', (const char *from, const char *to), (from, to))
CALL(unlink, 'u', (const char *path), (path))
CALL(mkdir, 'm', (const char *path, mode_t mode), (path, mode))
CALL(stat, 't', (const char *restrict path, struct stat *restrict about), (path, about))

struct dirent *readdir(DIR *folder) {
  NEXT(readdir);
  return refused('e') ? NULL : next(folder);
}

DIR *opendir(const char *path) {
  NEXT(opendir);
  return refused('l') ? NULL : next(path);
}
