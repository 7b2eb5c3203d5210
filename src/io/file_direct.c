/*
 * file_direct.c - writes that go past the page cache (O_DIRECT).
 *
 * The page cache costs a copy and the search for free pages, about 1.5 s of a processor for each GB
 * of a file that is not read again soon, and the sync at the end waits for all of it. Direct writes
 * need offsets, lengths and addresses that are multiples of a disk's block; a page is a multiple of
 * every block. Parts of pages go through the cache: the two kinds of write never touch the same
 * page.
 *
 * A direct write past the end of a file locks the file while it makes it longer. So space for the
 * whole file is reserved first: then several writes run at once, which makes them twice as fast on
 * a disk that is not busy with one.
 */
#define _GNU_SOURCE /* O_DIRECT, fallocate() */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/error.h"
#include "io/file.h"

/* Fewer bytes are not worth the wait for the disk. */
enum { LEAST = 32 * EK__FILE_PAGE };

int ek__file_open_direct(const char *path) {
#ifdef O_DIRECT
  return open(path, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
#else
  (void)path;
  return -1;
#endif
}

ek_status ek__file_pages(char **memory, char **first, uint64_t bytes, const char *what) {
  EK__FAIL_IF(bytes > SIZE_MAX - EK__FILE_PAGE, EK_ERR_OVERFLOW,
              "%s is too large for one block of host memory", what);
  EK_TRY(ek__new(memory, 1, (size_t)bytes + EK__FILE_PAGE, what));
  *first = *memory + (-(uintptr_t)*memory & (EK__FILE_PAGE - 1));
  return EK_OK;
}

ek_status ek__file_reserve(int file, const char *path, uint64_t bytes) {
#ifdef FALLOC_FL_KEEP_SIZE
  int failed = 0;
  if (bytes < LEAST || bytes > INT64_MAX) return EK_OK;
  do {
    failed = fallocate(file, 0, 0, (off_t)bytes);
  } while (failed != 0 && errno == EINTR);
  if (failed == 0 || (errno != ENOSPC && errno != EDQUOT && errno != EFBIG && errno != EIO)) {
    return EK_OK;
  }
  return ek__file_refused(path, "no space is left for it");
#else
  (void)file, (void)path, (void)bytes;
  return EK_OK;
#endif
}

/* Writes `bytes`, whole pages, as far as the file system takes them: *put. */
static ek_status write_direct(size_t *put, int direct, atomic_bool *usable, const char *path,
                              const char *data, size_t bytes, uint64_t place) {
  *put = 0;
  while (*put < bytes && *put % EK__FILE_PAGE == 0) {
    const ssize_t more = pwrite(direct, data + *put, bytes - *put, (off_t)(place + *put));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0 && (errno == EINVAL || errno == EOPNOTSUPP)) {
      atomic_store(usable, false);
      return EK_OK;
    }
    if (more == 0) errno = ENOSPC;
    if (more <= 0) return ek__file_refused(path, "cannot be written");
    *put += (size_t)more;
  }
  return EK_OK;
}

ek_status ek__file_write_pages(int file, int direct, atomic_bool *usable, const char *path,
                               const void *data, size_t bytes, uint64_t place) {
  const char *from = data;
  const size_t part = (size_t)(place % EK__FILE_PAGE), head = part == 0 ? 0 : EK__FILE_PAGE - part;
  const size_t pages = bytes < head ? 0 : (bytes - head) / EK__FILE_PAGE * EK__FILE_PAGE;
  const bool fits = ((uintptr_t)from + head) % EK__FILE_PAGE == 0;
  if (direct < 0 || pages < LEAST || !fits || !atomic_load(usable)) {
    return ek__file_write(file, path, data, bytes, place);
  }
  size_t put = 0;
  EK_TRY(ek__file_write(file, path, from, head, place));
  EK_TRY(write_direct(&put, direct, usable, path, from + head, pages, place + head));
  return ek__file_write(file, path, from + head + put, bytes - head - put, place + head + put);
}
