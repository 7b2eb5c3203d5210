/*
 * file.c - see file.h. A call that a signal interrupts is made again; a failed sync is final, since
 * the system may have dropped what it could not write.
 */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"

/* At most so much in one call, as the system has it. */
static const size_t most = (size_t)1 << 30;

ek_status ek__file_refused(const char *path, const char *what) {
  const int error = errno;
  char text[128] = "";
  (void)strerror_r(error, text, sizeof text);
  return ek_error_set(error == ENOENT ? EK_ERR_NOT_FOUND : EK_ERR_IO, "%s: %s: %s", path, what,
                      text);
}

ek_status ek__file_open(int *file, uint64_t *size, const char *path) {
  struct stat about;
  int opened = -1;
  do {
    opened = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe would wait for a writer */
  } while (opened < 0 && errno == EINTR);
  if (opened < 0) return ek__file_refused(path, "cannot be opened");
  if (fstat(opened, &about) != 0) {
    const ek_status status = ek__file_refused(path, "cannot be looked at");
    (void)close(opened);
    return status;
  }
  if (!S_ISREG(about.st_mode)) {
    (void)close(opened);
    return ek_error_set(EK_ERR_IO, "%s: this is no regular file", path);
  }
  *file = opened;
  *size = (uint64_t)about.st_size;
  return EK_OK;
}

ek_status ek__file_create(int *file, const char *path) {
  int opened = -1;
  do {
    opened = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  } while (opened < 0 && errno == EINTR);
  if (opened < 0) return ek__file_refused(path, "cannot be created");
  *file = opened;
  return EK_OK;
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
    EK__FAIL_IF(got == 0, EK_ERR_CORRUPT, "%s: it ends too early", path);
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
  const char *slash = strrchr(path, '/');
  const size_t length = slash == NULL || slash == path ? 1 : (size_t)(slash - path);
  char *name = NULL;
  EK_TRY(ek__new(&name, 1, length + 1, "a path"));
  memcpy(name, slash == NULL ? "." : path, length);
  *folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const ek_status status = *folder < 0 ? ek__file_refused(name, "cannot be opened") : EK_OK;
  ek__free(name);
  return status;
}

ek_status ek__file_replace(bool *renamed, int file, const char *from, const char *to) {
  int folder = -1;
  *renamed = false;
  ek_status status = fsync(file) == 0 ? EK_OK : ek__file_refused(from, "cannot be synced");
  if (close(file) != 0 && status == EK_OK) status = ek__file_refused(from, "cannot be closed");
  if (status == EK_OK) status = open_folder(&folder, to);
  if (status != EK_OK) return status;
  if (rename(from, to) == 0) {
    *renamed = true;
    if (fsync(folder) != 0)
      status = ek__file_refused(to, "it is there, but its folder cannot be synced");
  } else {
    status = ek__file_refused(to, "the new file cannot be given this name");
  }
  (void)close(folder);
  return status;
}
