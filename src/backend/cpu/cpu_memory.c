/*
 * cpu_memory.c - pages for the arenas and the scratch of CPU devices; the library's only mmap.
 *
 * A device without a cap may use all the memory of the machine. In a container with a memory limit
 * all devices of a group together may use the free part of that limit, less a reserve: exceeding it
 * would get the process killed, where the machine itself would refuse or swap.
 *
 * An arena reserves its whole capacity as address space, which costs nothing, and makes it usable
 * from the front as it grows. Bases are aligned to 2 MiB and the kernel is asked for huge pages,
 * because a fresh page of 4 KiB costs several times as much as its use. The first 2 MiB are an
 * exception: a small arena uses few pages, and clearing a huge page takes longer than opening the
 * device.
 */
#include "backend/cpu/cpu_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <evenkeel/host_memory.h>

#include "backend/cpu/cpu_limits.h"
#include "core/error.h"
#include "core/sizes.h"

#define HUGE_PAGE ((uint64_t)2 << 20)

static ek_status refused(const char *what, uint64_t bytes) {
  const int error = errno;
  char size[32];
  return ek_error_set(EK_ERR_OUT_OF_MEMORY, "the system refused to %s %s: %s", what,
                      ek__size_text(size, sizeof size, bytes), strerror(error));
}

/* The part of a container's memory that arenas may fill: the rest of the process grows too (stacks,
 * oneDNN's scratch, huge pages), and a process over the limit is killed. */
static uint64_t for_arenas(const struct ek__cpu_limit *limit) {
  const uint64_t reserve = limit->bytes / 16 + ((uint64_t)16 << 20);
  return limit->free > 2 * reserve ? limit->free - reserve : limit->free / 2;
}

ek_status ek__cpu_memory_size(uint64_t *bytes, const ek_device *device, size_t devices) {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  EK__FAIL_IF(pages <= 0 || page <= 0, EK_ERR_UNAVAILABLE,
              "the system does not report its memory size");
  *bytes = (uint64_t)pages * (uint64_t)page;
  const struct ek__cpu_limit limit = ek__cpu_memory_limit("");
  if (limit.bytes >= *bytes) return EK_OK;
  *bytes = limit.bytes;
  if (device == NULL) return EK_OK; /* of the machine */
  const uint64_t share = for_arenas(&limit) / devices;
  *bytes = share < EK_MEMORY_UNIT ? EK_MEMORY_UNIT : share;
  return EK_OK;
}

static char *map(uint64_t bytes, int protection, int flags) {
  errno = ENOMEM; /* what a test's failure says */
  if (ek_host_memory_fails()) return MAP_FAILED;
  return mmap(NULL, (size_t)bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

/* The bytes that a range of `bytes` really takes: whole huge pages. */
static uint64_t whole(uint64_t bytes) { return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

ek_status ek__cpu_memory_reserve(void **base, uint64_t bytes, const ek_device *device) {
  (void)device;
  if (bytes > (uint64_t)1 << 62) {
    errno = ENOMEM;
    return refused("reserve address space of", bytes);
  }
  const uint64_t size = whole(bytes ? bytes : 1);
  char *start = map(size + HUGE_PAGE, PROT_NONE, MAP_NORESERVE);
  if (start == MAP_FAILED) return refused("reserve address space of", bytes);
  const uint64_t before = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
  if (before > 0) (void)munmap(start, (size_t)before);
  if (before < HUGE_PAGE) (void)munmap(start + before + size, (size_t)(HUGE_PAGE - before));
  if (size > HUGE_PAGE) { /* a wish: may be refused */
    (void)madvise(start + before + HUGE_PAGE, (size_t)(size - HUGE_PAGE), MADV_HUGEPAGE);
  }
  *base = start + before;
  return EK_OK;
}

ek_status ek__cpu_memory_map(void **base, uint64_t bytes) {
  void *start = map(bytes, PROT_READ | PROT_WRITE, 0);
  if (start == MAP_FAILED) return refused("provide", bytes);
  *base = start;
  return EK_OK;
}

void ek__cpu_memory_unmap(void *base, uint64_t bytes) { (void)munmap(base, (size_t)bytes); }

ek_status ek__cpu_memory_probe(uint64_t bytes) {
  void *start = NULL;
  EK_TRY(ek__cpu_memory_map(&start, bytes));
  ek__cpu_memory_unmap(start, bytes);
  return EK_OK;
}

ek_status ek__cpu_memory_commit(void *base, uint64_t bytes) {
  if (bytes == 0) return EK_OK;
  errno = ENOMEM; /* what a test's failure says */
  if (ek_host_memory_fails() || mprotect(base, (size_t)whole(bytes), PROT_READ | PROT_WRITE) != 0) {
    return refused("provide", bytes);
  }
  return EK_OK;
}

void ek__cpu_memory_release(void *base, uint64_t bytes) {
  if (base) (void)munmap(base, (size_t)whole(bytes ? bytes : 1));
}
