/*
 * host_calls.c - malloc() and others, counted: see host_calls.h.
 *
 * The memory comes from glibc's own functions by their other names, which needs no look-up: a
 * look-up allocates.
 */
#define _GNU_SOURCE /* RTLD_NEXT, MAP_ANONYMOUS */
#include "host_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *const host_call_names[HOST_CALLS] = {"memory",  "mmap",   "mprotect",
                                                 "madvise", "munmap", "pthread_create"};

static atomic_int armed = -1; /* an enum host_call */
static _Atomic uint64_t left;
static atomic_int failed, held;

void host_calls_fail_at(enum host_call call, uint64_t n) {
  atomic_store(&armed, -1);
  atomic_store(&failed, 0);
  atomic_store(&left, n);
  if (n > 0) atomic_store(&armed, (int)call);
}

void host_calls_hold(int hold) { atomic_store(&held, hold); }

int host_calls_failed(void) { return atomic_load(&failed); }

/* ---- who calls ---- */

struct code { /* of a library whose calls succeed */
  const char *name;
  uintptr_t first, last;
};
static struct code spared[] = {
    {.name = "libgomp"}, {.name = "libstdc++.so"}, {.name = "libdnnl.so"}};
enum { SPARED = sizeof spared / sizeof spared[0] };

static int look_for_spared(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size, (void)context;
  for (int i = 0; i < SPARED; i++) {
    if (strstr(info->dlpi_name, spared[i].name) == NULL) continue;
    for (int j = 0; j < info->dlpi_phnum; j++) {
      const ElfW(Phdr) *part = &info->dlpi_phdr[j];
      if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0) continue;
      spared[i].first = info->dlpi_addr + part->p_vaddr;
      spared[i].last = spared[i].first + part->p_memsz;
    }
  }
  return 0;
}

__attribute__((constructor)) static void start(void) {
  (void)dl_iterate_phdr(look_for_spared, NULL);
}

static atomic_int spares_onednn;

void host_calls_spare_onednn(int spare) { atomic_store(&spares_onednn, spare); }

static int is_spared(uintptr_t caller) {
  const int count = atomic_load(&spares_onednn) ? SPARED : 1;
  for (int i = 0; i < count; i++) {
    if (caller - spared[i].first < spared[i].last - spared[i].first) return 1;
  }
  return 0;
}

static int must_fail(enum host_call call, const void *caller) {
  if (atomic_load(&armed) != (int)call || atomic_load(&held) != 0) return 0;
  if (is_spared((uintptr_t)caller)) return 0;
  if (atomic_fetch_sub(&left, 1) != 1) return 0;
  atomic_store(&armed, -1);
  atomic_store(&failed, 1);
  return 1;
}

#define MUST_FAIL(call) must_fail(call, __builtin_return_address(0))

/* ---- memory ---- */

static _Atomic int64_t blocks, maps;

int64_t host_calls_blocks(void) { return atomic_load(&blocks); }
int64_t host_calls_maps(void) { return atomic_load(&maps); }

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static void *no_memory(void) {
  errno = ENOMEM;
  return NULL;
}

static void *counted(void *memory) {
  if (memory != NULL) atomic_fetch_add(&blocks, 1);
  return memory;
}

void *malloc(size_t size) {
  return MUST_FAIL(HOST_MEMORY) ? no_memory() : counted(__libc_malloc(size));
}

void *calloc(size_t count, size_t size) {
  return MUST_FAIL(HOST_MEMORY) ? no_memory() : counted(__libc_calloc(count, size));
}

void *realloc(void *memory, size_t size) {
  if (MUST_FAIL(HOST_MEMORY)) return no_memory();
  return memory == NULL ? counted(__libc_malloc(size)) : __libc_realloc(memory, size);
}

void *memalign(size_t alignment, size_t size) {
  return MUST_FAIL(HOST_MEMORY) ? no_memory() : counted(__libc_memalign(alignment, size));
}

void *aligned_alloc(size_t alignment, size_t size) {
  return MUST_FAIL(HOST_MEMORY) ? no_memory() : counted(__libc_memalign(alignment, size));
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  if (MUST_FAIL(HOST_MEMORY)) return ENOMEM;
  void *result = counted(__libc_memalign(alignment, size));
  if (result == NULL) return ENOMEM;
  *memory = result;
  return 0;
}

void free(void *memory) {
  if (memory != NULL) atomic_fetch_sub(&blocks, 1);
  __libc_free(memory);
}

/* ---- maps ---- */

static int refuse(void) {
  errno = ENOMEM;
  return -1;
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset) {
  if (MUST_FAIL(HOST_MAP)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void *result = (void *)syscall(SYS_mmap, address, size, protection, flags, file, offset);
  if (result != MAP_FAILED) atomic_fetch_add(&maps, (int64_t)size);
  return result;
}

int mprotect(void *address, size_t size, int protection) {
  if (MUST_FAIL(HOST_PROTECT)) return refuse();
  return (int)syscall(SYS_mprotect, address, size, protection);
}

int madvise(void *address, size_t size, int advice) {
  if (MUST_FAIL(HOST_ADVISE)) return refuse();
  return (int)syscall(SYS_madvise, address, size, advice);
}

int munmap(void *address, size_t size) {
  if (MUST_FAIL(HOST_UNMAP)) return refuse();
  const int result = (int)syscall(SYS_munmap, address, size);
  if (result == 0) atomic_fetch_sub(&maps, (int64_t)size);
  return result;
}

/* ---- threads ---- */

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                   void *argument) {
  static _Atomic(create_function *) real;
  if (MUST_FAIL(HOST_THREAD)) return EAGAIN;
  create_function *create = atomic_load(&real);
  if (create == NULL) {
    void *found = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&create, &found, sizeof create);
    atomic_store(&real, create);
  }
  return create(thread, attributes, function, argument);
}
