/*
 * file.c - see file.h. A call that a signal interrupts is made again; a failed sync is final, since
 * the system may have dropped what it could not write.
 *
 * A process that removes another's unfinished file holds its lock and has checked that the name is
 * still that file's; a process that makes one checks, after it has the lock, that the name was not
 * removed meanwhile. So a file that a process is writing is never removed. On a file system without
 * locks every unfinished file counts as left behind.
 */
#define _GNU_SOURCE /* flock() beside O_CLOEXEC in C11 */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"

/* At most so much in one call, as the system has it. */
static const size_t most = (size_t)1 << 30;

ek_status ek__file_refused(const char *path, const char *what) {
  const int error = errno;
  char text[128] = "";
  const char *words = strerror_r(error, text, sizeof text); /* GNU's */
  return ek_error_set(error == ENOENT   ? EK_ERR_NOT_FOUND
                      : error == ENOMEM ? EK_ERR_OUT_OF_MEMORY
                                        : EK_ERR_IO,
                      "%s: %s: %s", path, what, words);
}

ek_status ek__file_of_process(char **name, const char *path, const ek_world *world) {
  enum { NUMBER = 24 };
  struct stat about;
  const size_t length = strlen(path);
  const bool other = stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode);
  const char *folder = strrchr(path, '/'), *dot = strrchr(path, '.');
  const char *last = folder == NULL ? path : folder + 1;
  EK_TRY(ek__new(name, length + NUMBER, 1, "a file's name"));
  if (ek_world_processes(world) == 1 || other) {
    memcpy(*name, path, length + 1);
    return EK_OK;
  }
  const size_t before = dot != NULL && dot > last ? (size_t)(dot - path) : length;
  (void)snprintf(*name, length + NUMBER, "%.*s.%zu%s", (int)before, path, ek_world_process(world),
                 path + before);
  return EK_OK;
}

ek_status ek__file_open(int *file, uint64_t *size, const char *path) {
  struct stat about;
  int opened = -1;
  do {
    opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe would wait for a writer */
  } while (opened < 0 && errno == EINTR);
  if (opened < 0) return ek__file_refused(path, "cannot be opened");
  if (fstat(opened, &about) != 0) {
    const ek_status status = ek__file_refused(path, "cannot be examined");
    (void)close(opened);
    return status;
  }
  if (!S_ISREG(about.st_mode)) {
    (void)close(opened);
    return ek_error_set(EK_ERR_IO, "%s: not a regular file", path);
  }
  *file = opened;
  *size = (uint64_t)about.st_size;
  return EK_OK;
}

int ek__file_open_again(const char *path) {
  int file = -1;
  do {
    file = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  } while (file < 0 && errno == EINTR);
  return file;
}

/* ---- a file beside another ---- */

/* False, and errno, where another has the lock or there are no locks. */
static bool lock(int file) {
  int failed = 0;
  do {
    failed = flock(file, LOCK_EX | LOCK_NB);
  } while (failed != 0 && errno == EINTR);
  return failed == 0;
}

/* Whether `path` is a name of this open, regular file. */
static bool is_name_of(const char *path, int file) {
  struct stat named, opened;
  return fstat(file, &opened) == 0 && lstat(path, &named) == 0 && S_ISREG(opened.st_mode) &&
         named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

bool ek__file_remove_stale(const char *path) {
  struct stat about;
  int file = -1;
  if (lstat(path, &about) != 0 || !S_ISREG(about.st_mode)) return false;
  do {
    file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return false;
  const bool stale = lock(file) || errno != EWOULDBLOCK;
  const bool removed = stale && is_name_of(path, file) && unlink(path) == 0;
  (void)close(file);
  return removed;
}

static int create_new(const char *path) {
  int file = -1;
  do {
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  } while (file < 0 && errno == EINTR);
  return file;
}

ek_status ek__file_create_beside(int *file, char *name, const char *path) {
  const size_t length = strlen(path);
  struct stat about;
  EK__FAIL_IF(stat(path, &about) == 0 && !S_ISREG(about.st_mode), EK_ERR_IO,
              "%s: not a regular file, so it cannot be replaced", path);
  memcpy(name, path, length + 1);
  for (int i = 0; i < 100; i++) {
    const char *form = i == 0 ? ".tmp" : ".%d.tmp";
    (void)snprintf(name + length, EK__FILE_BESIDE_SIZE, form, i);
    int opened = create_new(name);
    if (opened < 0 && errno == EEXIST) {
      if (!ek__file_remove_stale(name)) continue;
      opened = create_new(name);
    }
    if (opened < 0 && errno == EEXIST) continue;
    if (opened < 0) return ek__file_refused(name, "cannot be created");
    if ((lock(opened) || errno != EWOULDBLOCK) && is_name_of(name, opened)) {
      *file = opened;
      return EK_OK;
    }
    (void)close(opened); /* another has seen it before it had its lock, and removes it */
  }
  return ek_error_set(EK_ERR_IO, "%s: cannot be created: all such names are taken", name);
}

void ek__file_close(int file) {
  if (file >= 0) (void)close(file);
}

ek_status ek__file_read(int file, const char *path, void *data, size_t bytes, uint64_t place) {
  char *to = data;
  while (bytes > 0) {
    const ssize_t got = pread(file, to, bytes < most ? bytes : most, (off_t)place);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ek__file_refused(path, "cannot be read");
    EK__FAIL_IF(got == 0, EK_ERR_CORRUPT, "%s: the file ends too early", path);
    to += got;
    bytes -= (size_t)got;
    place += (uint64_t)got;
  }
  return EK_OK;
}

ek_status ek__file_write(int file, const char *path, const void *data, size_t bytes,
                         uint64_t place) {
  const char *from = data;
  while (bytes > 0) {
    const ssize_t put = pwrite(file, from, bytes < most ? bytes : most, (off_t)place);
    if (put < 0 && errno == EINTR) continue;
    if (put == 0) errno = ENOSPC;
    if (put <= 0) return ek__file_refused(path, "cannot be written");
    from += put;
    bytes -= (size_t)put;
    place += (uint64_t)put;
  }
  return EK_OK;
}

/* Opens the folder that `path` is in. */
static ek_status open_folder(int *folder, const char *path) {
  size_t length = strlen(path);
  *folder = -1;
  while (length > 1 && path[length - 1] == '/') length--;
  while (length > 0 && path[length - 1] != '/') length--;
  char *name = NULL;
  EK_TRY(ek__new(&name, 1, length + 2, "a path"));
  memcpy(name, length == 0 ? "." : path, length == 0 ? 1 : length);
  do {
    *folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (*folder < 0 && errno == EINTR);
  const ek_status status = *folder < 0 ? ek__file_refused(name, "cannot be opened") : EK_OK;
  ek__free(name);
  return status;
}

static ek_status sync_file(int file, const char *path, const char *what) {
  int failed = 0;
  do {
    failed = fsync(file);
  } while (failed != 0 && errno == EINTR);
  return failed == 0 ? EK_OK : ek__file_refused(path, what);
}

ek_status ek__file_sync(int file, const char *path) {
  return sync_file(file, path, "cannot be synced");
}

ek_status ek__file_sync_folder(const char *path) {
  int folder = -1;
  EK_TRY(open_folder(&folder, path));
  const ek_status status = sync_file(folder, path, "its folder cannot be synced");
  (void)close(folder);
  return status;
}

/* Gives the file its name, and syncs the folder if it is open. */
static ek_status rename_file(bool *renamed, int folder, const char *from, const char *to) {
  if (rename(from, to) != 0) {
    return ek__file_refused(to, "the new file cannot be given this name");
  }
  *renamed = true;
  if (folder < 0) return EK_OK;
  return sync_file(folder, to, "the file was written, but its folder cannot be synced");
}

ek_status ek__file_replace(int file, const char *from, const char *to, bool sync) {
  int folder = -1;
  bool renamed = false;
  ek_status status = sync ? ek__file_sync(file, from) : EK_OK;
  /* Keeps its lock until it has its name. */
  const int held = fcntl(file, F_DUPFD_CLOEXEC, 0);
  if (held < 0 && status == EK_OK) status = ek__file_refused(from, "cannot be kept open");
  /* Linux has closed it where a signal interrupts. */
  if (close(file) != 0 && errno != EINTR && status == EK_OK) {
    status = ek__file_refused(from, "cannot be closed");
  }
  if (status == EK_OK && sync) status = open_folder(&folder, to);
  if (status == EK_OK) status = rename_file(&renamed, folder, from, to);
  if (!renamed) (void)unlink(from); /* while it has the lock: later the name may be another's */
  ek__file_close(held);
  ek__file_close(folder);
  return status;
}
